/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every allocation and every read of opening and reading a checkpoint fails once (one allocation in
 * 16, unless CHECK_FULL is set): the result is a clean error, or the right bytes. AddressSanitizer
 * finds leaks.
 */
#include "archive_util.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "data_util.h"
#include "dcp_util.h"
#include "dir_util.h"
#include "fault.h"
#include "opts_util.h"
#include "rng.h"
#include "scene_util.h"
#include "suites.h"
#include <ckptfs/ckpt_mount.h>

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char index_path[4200];

enum { OUT_MAX = 1 << 19 }; /* bytes of all files */

static void setup(void)
{
	dir_setup();
	(void)snprintf(index_path, sizeof(index_path), "%s/index", dir);
	fault_sqlite();
}

/* ---- walking through everything ---- */

static int read_file(struct ckpt *c, ckpt_node n, uint64_t size, bool keep, struct buf *out,
		     struct ckpt_err *e)
{
	struct ckpt_file *f = NULL;
	int64_t got = ckpt_file_open(c, n, &f, e);

	if (got)
		return (int)got;
	REQUIRE(ckpt_file_size(f) == size && out->len + size <= OUT_MAX);
	got = ckpt_file_read(f, out->data + out->len, size, 0, e);
	if (got > 0 && keep)
		out->len += (size_t)got;
	ckpt_file_close(f);
	return got < 0 ? (int)got : 0;
}

/* Files below a directory in order, their bytes one after the other, as far as no error comes. */
static int read_below(struct ckpt *c, ckpt_node dir_node, bool keep, struct buf *out,
		      struct ckpt_err *e)
{
	char name[CKPT_NAME_MAX + 1], value[300];
	struct ckpt_stat st;
	ckpt_node n;
	int rc = 0;

	for (uint64_t pos = 0; !rc && !ckpt_entry(c, dir_node, pos, name, &n); pos++) {
		int64_t got = ckpt_xattr(c, n, "user.ckptfs.files", value, sizeof(value), e);

		if (got < 0 && got != -ENODATA)
			return (int)got;
		*e = (struct ckpt_err){ 0 };
		rc = ckpt_stat(c, n, &st, e);
		if (rc || st.is_link)
			continue;
		/* info.json says where the index is. */
		rc = st.is_dir ? read_below(c, n, strcmp(name, ".ckptfs") != 0, out, e)
			       : read_file(c, n, st.size, keep, out, e);
	}
	return rc;
}

static void ignore(void *arg, const struct ckpt_fault *f)
{
	(void)arg;
	(void)f;
}

static int use(const char *path, const struct ckpt_opts *o, struct buf *out, struct ckpt_err *e)
{
	struct ckpt_check k = { .data = true, .fault = ignore };
	struct ckpt *c = NULL;
	int rc = open_typed(path, o, &c, e);

	out->len = 0;
	REQUIRE(!rc == (c != NULL));
	if (!rc)
		rc = read_below(c, CKPT_ROOT, true, out, e);
	if (!rc)
		rc = ckpt_check(c, &k, e);
	ckpt_close(c);
	return rc;
}

static const struct {
	const char *ckpt; /* of tests/data, or one of our own */
	bool file;	  /* the index is a file, not in memory */
	bool there;	  /* and exists already */
	enum fault_kind kind;
	bool rest;    /* all calls from there on fail */
	bool options; /* all there are */
} runs[] = {
	{ "plain", false, false, FAULT_ALLOC, false, false },
	{ "plain", true, true, FAULT_ALLOC, false, false },
	{ "plain", false, false, FAULT_READ, false, false },
	{ "plain", true, false, FAULT_READ, true, false },
	{ "plain", true, true, FAULT_READ, false, false },
	{ "plain", true, false, FAULT_WRITE, false, false },
	{ "plain", true, false, FAULT_SYNC, false, false },
	{ "mp4_ranklocal", false, false, FAULT_READ, false, false },
	{ NULL, false, false, FAULT_ALLOC, false, false },
	{ NULL, true, false, FAULT_ALLOC, true, false },
	{ NULL, true, true, FAULT_ALLOC, false, false },
	{ NULL, false, false, FAULT_READ, false, false },
	{ NULL, true, true, FAULT_READ, true, false },
	{ NULL, true, true, FAULT_ALLOC, false, true },
	{ NULL, true, true, FAULT_READ, false, true },
};

/* n irregular, transposed and compressed tensors, a conjugated one, a compressed object. */
static void put_checkpoint(unsigned n)
{
	struct rng r = { 7 };
	struct choose choose = choose_rng(&r);
	const struct scene_opts o[] = { { 3, 60, 4, TILE_CUTS, ROWS_PERMUTED },
					{ 2, 30, 2, TILE_GRID, ROWS_DENSE } };
	const int64_t size[] = { 2 };
	const float odd[] = { 1, 2, 3, 4 };
	struct saved t = { .dtype = CKPT_DTYPE_C64,
			   .n_dims = 1,
			   .size = size,
			   .storage = odd,
			   .storage_bytes = 16,
			   .conj = true,
			   .order = ORDER_REVERSED };
	struct buf b = BUF_INIT(0);
	struct chunk_loc l;
	struct dcp d;

	dcp_begin(&d, dir_fd);
	for (unsigned i = 0; i < n; i++) {
		struct scene s;
		char fqn[16];

		do
			scene_make(&s, &choose, &o[i % 2]);
		while (s.count > 6 && (scene_release(&s), true));
		(void)snprintf(fqn, sizeof(fqn), "t%u", i);
		dcp_scene(&d, fqn, strlen(fqn), &s, i, i / 2);
		scene_release(&s);
	}
	(void)saved_item(&b, &t);
	l = dcp_item(&d, 0, b.data, b.len, 0);
	dcp_tensor(&d, "odd", 3, "complex64", 1, (const uint64_t[]){ 2 }, 1,
		   (const uint64_t[]){ 0, 2 });
	dcp_stored(&d, "odd", 3, 1, (const uint64_t[]){ 0 }, "__0_0.distcp", (int64_t)l.offset,
		   (int64_t)l.length, 0);
	dcp_bytes(&d, "packed", 6, "some bytes", 10, 1, 2);
	dcp_end(&d, ".metadata");
	buf_release(&b);
}

/* All options that take files; the files lie beside the data. */
static void put_options(struct ckpt_opts *o)
{
	static const char rules[] = "s/^t([0-9])$/layer.\\1/\ns/never/x/\n";
	static const char layout[] = "mesh dp=1 tp=2\nlayer.0 tp:0\nodd tp:0\n";
	static char rules_path[4200], layout_path[4200], assets[4200];

	(void)snprintf(rules_path, sizeof(rules_path), "%s/rules", dir);
	(void)snprintf(layout_path, sizeof(layout_path), "%s/layout", dir);
	(void)snprintf(assets, sizeof(assets), "%s/assets", dir);
	put_file(dir_fd, "rules", rules, sizeof(rules) - 1);
	put_file(dir_fd, "layout", layout, sizeof(layout) - 1);
	REQUIRE(!mkdirat(dir_fd, "assets", 0700));
	put_file(dir_fd, "assets/config.json", "{}", 2);
	put_file(dir_fd, "assets/vocab.txt", "words", 5);
	o->rename = rules_path;
	o->layout = layout_path;
	o->assets = assets;
	o->weights = "";
	o->dtype = "bf16";
	o->shard_size = 150;
	o->maps = 1;
}

START_FEW_TEST(nothing_that_fails_gives_wrong_bytes, ARRAY_LEN(runs), 5)
{
	struct ckpt_opts o = { .index = runs[_i].file ? index_path : ":memory:" };
	struct buf want = BUF_INIT(1 << 20), got = BUF_INIT(1 << 20);
	struct ckpt_err e = { 0 };
	unsigned failed = 0, rounds = 0;
	char path[4500];

	if (runs[_i].ckpt) {
		(void)snprintf(path, sizeof(path), "%s/%s/ckpt", data_dir(), runs[_i].ckpt);
	} else {
		put_checkpoint(runs[_i].options ? 2 : 4); /* options make each round longer */
		(void)snprintf(path, sizeof(path), "%s", dir);
	}
	if (runs[_i].options)
		put_options(&o);
	REQUIRE(buf_room(&want, OUT_MAX) && buf_room(&got, OUT_MAX)); /* once and for all */
	ck_assert_msg(!use(path, &o, &want, &e), "%s", e.msg);
	ck_assert_uint_gt(want.len, 100);
	FAULT_LOOP_SOME(runs[_i].kind, runs[_i].rest ? UINT64_MAX : 1)
	{
		int rc;

		e = (struct ckpt_err){ 0 };
		if (!runs[_i].there)
			(void)unlink(index_path);
		rc = use(path, &o, &got, &e);
		(void)fault_off();
		if (rc) {
			REQUIRE(rc < 0 && e.code == -rc && e.msg[0]);
			failed++;
		} else {
			REQUIRE(!e.code);
			REQUIRE(got.len == want.len && !memcmp(got.data, want.data, want.len));
		}
		/* Whatever happened, the next attempt works. */
		if (++rounds % 64 == 0) {
			e = (struct ckpt_err){ 0 };
			ck_assert_msg(!use(path, &o, &got, &e), "%s", e.msg);
		}
	}
	ck_assert_uint_ge(failed, 1);
	buf_release(&want);
	buf_release(&got);
}
END_TEST

/* Directories inside a checkpoint: one that cannot be looked at does not count as absent. */
START_TEST(an_inner_directory_that_cannot_be_opened_is_not_absent)
{
	static const char config[] = "{\"model_type\": \"x\"}";
	static const char *const files[] = { ".metadata", "__0_0.distcp", "__0_1.distcp" };
	const struct ckpt_opts o = { .index = ":memory:" };
	struct buf want = BUF_INIT(1 << 20), got = BUF_INIT(1 << 20);
	struct ckpt_err e = { 0 };
	unsigned failed = 0;

	put_checkpoint(1);
	REQUIRE(!mkdirat(dir_fd, "weights", 0700) && !mkdirat(dir_fd, "weights/huggingface", 0700));
	for (size_t i = 0; i < ARRAY_LEN(files); i++) {
		char inner[40];

		(void)snprintf(inner, sizeof(inner), "weights/%s", files[i]);
		(void)renameat(dir_fd, files[i], dir_fd, inner);
	}
	put_file(dir_fd, "weights/huggingface/config.json", config, sizeof(config) - 1);
	REQUIRE(buf_room(&want, OUT_MAX) && buf_room(&got, OUT_MAX));
	ck_assert_msg(!use(dir, &o, &want, &e), "%s", e.msg);
	FAULT_LOOP(FAULT_ALLOC | FAULT_OPEN | FAULT_READ)
	{
		int rc;

		e = (struct ckpt_err){ 0 };
		rc = use(dir, &o, &got, &e);
		(void)fault_off();
		failed += rc != 0;
		ck_assert_msg(!rc || rc == -ENOMEM || rc == -EMFILE || rc == -EIO, "%s: %s",
			      fault_name(), e.msg);
		ck_assert_msg(rc || (got.len == want.len && !memcmp(got.data, want.data, want.len)),
			      "%s: other bytes", fault_name());
	}
	ck_assert_uint_ge(failed, 10);
	buf_release(&want);
	buf_release(&got);
}
END_TEST

/* ---- others write ---- */

static size_t root_len;

static int copy_one(const char *path, const struct stat *st, int what, struct FTW *at)
{
	const char *name = path + root_len;

	(void)st;
	(void)at;
	if (what == FTW_D) {
		REQUIRE(!*name || !mkdirat(dir_fd, name + 1, 0755));
	} else {
		size_t len;
		autofree uint8_t *data = get_file(AT_FDCWD, path, &len);

		put_file(dir_fd, name + 1, data, len);
	}
	return 0;
}

static time_t written;

static int write_one(const char *path, const struct stat *st, int what, struct FTW *at)
{
	const struct timespec then[] = { { 1, 0 }, { written, 0 } };

	(void)st;
	(void)at;
	REQUIRE(what != FTW_F || !utimensat(AT_FDCWD, path, then, 0));
	return 0;
}

static void write_all(void *arg)
{
	(void)arg;
	written++;
	REQUIRE(!nftw(dir, write_one, 8, FTW_PHYS));
}

static const char *const changing[] = {
	"plain/ckpt",	   "old_112/ckpt",    "ds_z1_bf16_ga32_w4/ckpt", "fsdp_placed/ckpt",
	"mranks_moe/ckpt", "mcore_zarr/ckpt", "fsw_safetensors/ckpt",	 "orbax/data_files/ckpt"
};

/* If a file is written to between two looks at it, what they found might not belong together. */
START_LOOP_TEST(what_changes_while_it_is_opened_is_refused, ARRAY_LEN(changing))
{
	const struct ckpt_opts o = { .index = ":memory:" };
	unsigned refused = 0, rounds = 0;
	char from[4500];

	(void)snprintf(from, sizeof(from), "%s/%s", data_dir(), changing[_i]);
	root_len = strlen(from);
	REQUIRE(!nftw(from, copy_one, 8, FTW_PHYS));
	fault_act(write_all, NULL);
	FAULT_LOOP_SOME(FAULT_READ, 1)
	{
		struct ckpt_err e = { 0 };
		struct ckpt *c = NULL;
		int rc = open_typed(dir, &o, &c, &e);

		(void)fault_off();
		ck_assert_msg(!rc || rc == -EAGAIN, "%s", e.msg);
		refused += rc != 0;
		rounds++;
		ckpt_close(c);
	}
	fault_act(NULL, NULL);
	/* What was not looked at before, or is not looked at again, may change. */
	ck_assert_msg(2 * refused >= rounds, "%u of %u", refused, rounds);
}
END_TEST

SUITE(ckpt_fault, .setup = setup, .teardown = dir_teardown, .seconds = 240)
