/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "dcp_util.h"
#include "dir_util.h"
#include "format/format.h"
#include "format/megatron/megatron.h"
#include "index/catalog_build.h"
#include "index/catalog_query.h"
#include "opts_util.h"
#include "parse/pickle_lex.h"
#include "scan_util.h"
#include "sha256_util.h"
#include "source/place.h"
#include "suites.h"
#include <ckptfs/ckpt.h>

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define U(...) \
	(const uint64_t[]) \
	{ \
		__VA_ARGS__ \
	}

static void put_text(const char *name, const char *text)
{
	put_file(dir_fd, name, text, strlen(text));
}

#define DIST "{\"sharded_backend\": \"torch_dist\", \"sharded_backend_version\": 1}"
#define ZARR "{\"sharded_backend\": \"zarr\", \"sharded_backend_version\": 1}"

/* ---- what is one ---- */

static const struct {
	const char *files; /* besides metadata.json, separated by spaces */
	const char *json;  /* metadata.json; NULL: none */
	const char *where; /* it lies; NULL: "" */
	const char *found; /* format and metadata files, or: */
	const char *msg;
} directories[] = {
	{ ".metadata common.pt __0_0.distcp", DIST, NULL,
	  "megatron: metadata.json .metadata common.pt ", NULL },
	{ ".metadata", "{\"sharded_backend\": \"torch_dist\", \"more\": [1]}", NULL,
	  "megatron: metadata.json .metadata ", NULL },
	{ "weights/.metadata weights/common.pt context/model.yaml", DIST, "weights/",
	  "megatron: weights/metadata.json weights/.metadata weights/common.pt ", NULL },
	{ "model_weights/.metadata", DIST, "model_weights/",
	  "megatron: model_weights/metadata.json model_weights/.metadata ", NULL },
	{ "common.pt b/.zarray a/.zarray a/0 c/shard_0_1.pt file", ZARR, NULL,
	  "megatron-zarr: metadata.json common.pt a b c ", NULL },
	{ "weights/a/.zarray", ZARR, "weights/", "megatron-zarr: weights/metadata.json weights/a ",
	  NULL },
	/* A DCP checkpoint stays one, whatever file is called metadata.json beside it. */
	{ ".metadata common.pt", NULL, NULL, "dcp: .metadata ", NULL },
	{ ".metadata", "{\"my\": \"own\"}", NULL, "dcp: .metadata ", NULL },
	{ ".metadata", "[]", NULL, "dcp: .metadata ", NULL },
	{ ".metadata", "", NULL, "dcp: .metadata ", NULL },
	{ ".metadata", "{\"sharded_backend\": 3}", NULL, "dcp: .metadata ", NULL },
	{ ".metadata weights/.metadata", DIST, "weights/", "dcp: .metadata ", NULL },
	{ "common.pt", DIST, NULL, NULL,
	  "'metadata.json' says that it is a Megatron-core checkpoint, but '.metadata' is "
	  "missing" },
	{ "common.pt weights/x", DIST, "weights/", NULL,
	  "'weights/metadata.json' says that it is a Megatron-core checkpoint, but "
	  "'weights/.metadata' is missing" },
	{ ".metadata", "{\"sharded_backend\": \"fsdp_dtensor\"}", NULL, NULL,
	  "'metadata.json': sharded_backend 'fsdp_dtensor' is neither torch_dist nor zarr" },
	{ ".metadata", "{\"sharded_backend\": \"torch_dist\", \"sharded_backend_version\": 2}",
	  NULL, NULL, "'metadata.json': of sharded_backend 'torch_dist' only version 1 is known" },
	{ "a/.zarray", "{\"sharded_backend\": \"zarr\", \"sharded_backend_version\": \"1\"}", NULL,
	  NULL, "'metadata.json': of sharded_backend 'zarr' only version 1 is known" },
	{ "a/.zarray weights/x", ZARR "x", "weights/", "orbax: a weights ", NULL },
};

/* Empty files, and the directories that they are in. */
static void put_files(const char *names)
{
	autofree char *copy = strdup(names);
	char *save;

	for (char *s = strtok_r(copy, " ", &save); s; s = strtok_r(NULL, " ", &save)) {
		for (char *slash = strchr(s, '/'); slash; slash = strchr(slash + 1, '/')) {
			*slash = 0;
			(void)mkdirat(dir_fd, s, 0700);
			*slash = '/';
		}
		put_text(s, "");
	}
}

START_LOOP_TEST(a_checkpoint_is_known_by_metadata_json, ARRAY_LEN(directories))
{
	struct place *place CLEANUP(place_freep) = place_of(dir_fd);
	const char *where = directories[_i].where ? directories[_i].where : "";
	struct buf found = BUF_INIT(10000);
	const struct format *f = NULL;
	struct name_list l = { 0 };
	struct ckpt_err e = { 0 };
	char path[64];
	int rc;

	put_files(directories[_i].files);
	(void)snprintf(path, sizeof(path), "%smetadata.json", where);
	if (directories[_i].json)
		put_text(path, directories[_i].json);
	rc = format_detect(place, NULL, &f, &l, &e);
	/* If no format is recognised, the message goes on with how to recognise the other
	 * formats. */
	if (directories[_i].msg)
		ck_assert_mem_eq(e.msg, directories[_i].msg, strlen(directories[_i].msg));
	ck_assert_int_eq(!rc, !directories[_i].msg);
	if (!rc) {
		buf_printf(&found, "%s: ", f->name);
		for (size_t i = 0; i < l.n; i++)
			buf_printf(&found, "%s ", l.v[i]);
		ck_assert_str_eq(found.data, directories[_i].found);
	}
	name_list_release(&l);
	buf_release(&found);
}
END_TEST

/* ---- what is in it ---- */

/* mcore_data: {"flat": (4, 6), "odd": (4, 5), "none": nothing} */
static void put_mcore_data(struct dcp *d)
{
	static const char key[] = "nd_reformulated_orig_global_shape";
	static const struct {
		const char *fqn;
		const char *shape; /* opcodes */
	} of[] = { { "flat", "K\4K\6\x86" },
		   { "odd", "K\4K\5\x86" },
		   { "n/a", "K\1\x85" },
		   { "none", NULL },
		   { "text", "\x8c\1x" } };
	struct emit *m = &d->more;

	emit_str(m, "mcore_data");
	emit_op(m, OP_EMPTY_DICT);
	emit_op(m, OP_MARK);
	for (size_t i = 0; i < ARRAY_LEN(of); i++) {
		emit_str(m, of[i].fqn);
		emit_op(m, OP_EMPTY_DICT);
		if (!of[i].shape)
			continue;
		emit_str(m, key);
		emit_bytes(m, of[i].shape, strlen(of[i].shape));
		emit_op(m, OP_SETITEM);
	}
	emit_op(m, OP_SETITEMS);
}

/* In an existing directory: tensors of one chunk each, and common.pt. */
static void put_checkpoint(const char *where)
{
	static const struct {
		const char *fqn;
		uint64_t shape[3];
	} tensors[] = { { "flat", { 2, 3, 4 } },
			{ "odd", { 2, 3, 4 } },
			{ "none", { 2, 3, 4 } },
			{ "text", { 2, 3, 4 } } };
	char path[64];
	struct dcp d;

	dcp_begin(&d, dir_fd);
	for (size_t i = 0; i < ARRAY_LEN(tensors); i++) {
		const uint64_t *s = tensors[i].shape;
		size_t n = strlen(tensors[i].fqn);

		dcp_tensor(&d, tensors[i].fqn, n, "uint8", 3, s, 1, U(0, 0, 0, s[0], s[1], s[2]));
		dcp_stored(&d, tensors[i].fqn, n, 3, U(0, 0, 0), "__0_0.distcp", 0, 10, 0);
	}
	dcp_object(&d, "rng_state/shard_0.1_2.2", 23);
	dcp_stored(&d, "rng_state/shard_0.1_2.2", 23, DCP_NO_OFFSET, NULL, "__0_0.distcp", 10, 5,
		   0);
	put_mcore_data(&d);
	(void)snprintf(path, sizeof(path), "%s.metadata", where);
	dcp_end(&d, path);
	(void)snprintf(path, sizeof(path), "%scommon.pt", where);
	put_text(path, "whatever");
	(void)snprintf(path, sizeof(path), "%smetadata.json", where);
	put_text(path, DIST);
	(void)snprintf(path, sizeof(path), "%s__0_0.distcp", where);
	put_text(path, "0123456789abcde");
}

static struct catalog *scan(void)
{
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };

	ck_assert_msg(!scan_dir(dir_fd, &(struct scan_opts){ 0 }, &c, &e), "%s", e.msg);
	return c;
}

static const char *const places[] = { "", "weights/" };

START_LOOP_TEST(it_is_a_dcp_checkpoint_and_common_pt, ARRAY_LEN(places))
{
	const char *where = places[_i];
	struct buf got = BUF_INIT(10000), want = BUF_INIT(10000);
	const struct catalog_object *o;
	const struct stored_file *s;
	const char *const *enc;
	struct catalog *c;
	size_t n, k;

	put_files("weights/x");
	put_checkpoint(where);
	c = scan();
	o = catalog_objects(c, &n);
	s = catalog_sources(c, &k);
	enc = catalog_encodings(c, &k);
	for (size_t i = 0; i < n; i++)
		buf_printf(&got, "%s %s %llu+%llu %s; ", o[i].fqn, s[o[i].loc.file].path,
			   (unsigned long long)o[i].loc.offset, (unsigned long long)o[i].loc.length,
			   enc[o[i].loc.encoding]);
	buf_printf(
		&want,
		"common.pt %scommon.pt 0+8 raw; rng_state/shard_0.1_2.2 %s__0_0.distcp 10+5 dcp; ",
		where, where);
	ck_assert_str_eq(got.data, want.data);
	(void)catalog_metadata(c, &n);
	ck_assert_uint_eq(n, 3);
	catalog_close(c);
	buf_release(&got);
	buf_release(&want);
}
END_TEST

START_TEST(without_memory_or_a_disk_there_is_a_clean_error)
{
	put_files("weights/x");
	put_checkpoint("weights/");
	scan_failing(dir_fd);
}
END_TEST

START_LOOP_TEST(a_shape_before_flattening_counts_where_it_fits, 2)
{
	const struct catalog_tensor *t;
	struct catalog *c;
	size_t n;

	put_files("x");
	put_checkpoint("");
	if (_i) /* even as a plain DCP checkpoint */
		(void)unlinkat(dir_fd, "metadata.json", 0);
	c = scan();
	t = catalog_tensors(c, &n);
	ck_assert_uint_eq(n, 4);
	for (size_t i = 0; i < n; i++)
		ck_assert_uint_eq(t[i].n_logical, strcmp(t[i].fqn, "flat") ? 0 : 2);
	ck_assert_uint_eq(t[0].logical[0], 4);
	ck_assert_uint_eq(t[0].logical[1], 6);
	catalog_close(c);
}
END_TEST

/* Names of data files stay below the directory that .metadata is in. */
START_LOOP_TEST(a_file_name_that_leaves_the_directory_is_refused, 2)
{
	struct place *place CLEANUP(place_freep) = place_of(dir_fd);
	struct name_list files = { 0 };
	struct catalog_writer *w = NULL;
	const struct format *f;
	struct ckpt_err e = { 0 };
	struct dcp d;

	put_files("weights/x");
	put_text("weights/metadata.json", DIST);
	dcp_begin(&d, dir_fd);
	dcp_object(&d, "o", 1);
	dcp_stored(&d, "o", 1, DCP_NO_OFFSET, NULL, _i ? "/etc/passwd" : "../x", 0, 5, 0);
	dcp_end(&d, "weights/.metadata");
	ck_assert_int_eq(format_detect(place, NULL, &f, &files, &e), 0);
	ck_assert_int_eq(catalog_writer_new(NULL, f->name, dir, &w, &e), 0);
	ck_assert_int_lt(f->scan(place, &files, &(struct scan_opts){ 0 }, w, &e), 0);
	ck_assert_str_eq(e.msg, _i ? "'o': file name 'weights//etc/passwd' refused: an element of "
				     "it is empty, '.' or '..'"
				   : "'o': file name 'weights/../x' refused: an element of it is "
				     "empty, '.' or '..'");
	catalog_writer_free(w);
	name_list_release(&files);
}
END_TEST

/* ---- integrity.json ---- */

static void collect(void *arg, const struct ckpt_fault *f)
{
	struct buf *b = arg;

	if (!f->warning && !f->fqn)
		buf_printf(b, "%s; ", f->what);
}

static uint64_t check(const char *json, const char *want)
{
	struct buf faults = BUF_INIT(10000);
	struct ckpt_check k = { .data = true, .fault = collect, .arg = &faults };
	struct ckpt *c = NULL;
	struct ckpt_err e = { 0 };

	put_text("integrity.json", json);
	ck_assert_msg(!open_typed(dir,
				  &(struct ckpt_opts){ .index = ":memory:", .allow_missing = true },
				  &c, &e),
		      "%s", e.msg);
	ck_assert_int_eq(ckpt_check(c, &k, &e), 0);
	buf_str(&faults, "");
	ck_assert_str_eq(faults.data, want);
	ckpt_close(c);
	buf_release(&faults);
	return k.hashes;
}

#define SHA_COMMON "85738f8f9a7f1b04b5329c590ebcb9e425925c6d0984089c43a022de4f19c281"

START_TEST(hashes_of_files_are_verified)
{
	char hex[65];

	ck_assert_str_eq(sha256_hex("whatever", 8, hex), SHA_COMMON);
	put_files("sub/x");
	put_checkpoint("");
	ck_assert_uint_eq(check("{\"algorithm\":\"sha256\",\"files\":{\"common.pt\":\"" SHA_COMMON
				"\"}}",
				""),
			  1);
	/* All faults are reported, not only the first. */
	ck_assert_uint_eq(
		check("{\"algorithm\":\"sha256\",\"files\":{\"metadata.json\":\"00\",\"gone\":"
		      "\"00\","
		      "\"../up\":\"00\",\"sub\":\"00\",\"number\":1,\"common.pt\":\"" SHA_COMMON
		      "\"}}",
		      "'metadata.json' has SHA-256 "
		      "56b32e2dfbc0255db319bddf6880c9dfd3475135ca8d5ace23b8a6a384ed63c6, "
		      "'integrity.json' says 00; 'integrity.json': open 'gone': No such file or "
		      "directory; 'integrity.json': file name '../up' refused: an element of it is "
		      "empty, '.' or '..'; 'integrity.json': open 'sub': not a regular file; "
		      "'integrity.json': the hash of 'number' is not a string; "),
		1);
}
END_TEST

static const struct {
	const char *json, *msg;
} lists[] = {
	{ "{\"algorithm\":\"md5\",\"files\":{}}",
	  "'integrity.json': algorithm 'md5' is not known; " },
	{ "{\"files\":{}}", "'integrity.json' names no algorithm; " },
	{ "{\"algorithm\":\"sha256\"}", "'integrity.json' has no list of files; " },
	{ "[]", "'integrity.json' names no algorithm; " },
	{ "{", "'integrity.json', line 1: string or '}' expected near end of file; " },
};

START_LOOP_TEST(a_list_that_says_nothing_is_a_fault, ARRAY_LEN(lists))
{
	put_files("x");
	put_checkpoint("");
	ck_assert_uint_eq(check(lists[_i].json, lists[_i].msg), 0);
}
END_TEST

START_TEST(a_path_has_an_end)
{
	char name[PATH_MAX] = "", path[PATH_MAX];
	struct ckpt_err e = { 0 };

	memset(name, 'n', PATH_MAX - 5);
	ck_assert_int_eq(megatron_path("dir/", name, path, &e), 0);
	ck_assert_uint_eq(strlen(path), PATH_MAX - 1);
	memset(name, 'n', PATH_MAX - 4);
	ck_assert_int_eq(megatron_path("dir/", name, path, &e), -ENAMETOOLONG);
	ck_assert_msg(strstr(e.msg, "is too long a name"), "%s", e.msg);
}
END_TEST

SUITE(megatron, .setup = dir_setup, .teardown = dir_teardown, .seconds = 60)
