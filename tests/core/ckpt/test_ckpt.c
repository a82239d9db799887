/* SPDX-License-Identifier: Apache-2.0 */
#include "archive_util.h"
#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "dcp_util.h"
#include "dir_util.h"
#include "opts_util.h"
#include "scene_util.h"
#include "suites.h"
#include "tree_util.h"
#include <ckptfs/ckpt_mount.h>

#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
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

/* A uint8 tensor of one dimension whose elements are text[0..], in chunks of `step`. */
static void put_text(struct dcp *d, const char *fqn, const char *text, uint64_t step, unsigned file,
		     unsigned layers)
{
	uint64_t n = strlen(text), boxes[40] = { 0 };
	uint32_t count = 0;
	char path[32];

	for (uint64_t at = 0; at < n; at += step, count++) {
		boxes[2 * count] = at;
		boxes[2 * count + 1] = at + step < n ? step : n - at;
	}
	dcp_tensor(d, fqn, strlen(fqn), "uint8", 1, &n, count, boxes);
	for (uint32_t i = 0; i < count; i++) {
		const int64_t size = (int64_t)boxes[2 * i + 1];
		struct saved t = { .dtype = CKPT_DTYPE_U8,
				   .n_dims = 1,
				   .size = &size,
				   .storage = text + boxes[2 * i],
				   .storage_bytes = (size_t)size };
		struct buf b = BUF_INIT(0);
		struct chunk_loc l;

		(void)saved_item(&b, &t);
		l = dcp_item(d, file + i, b.data, b.len, layers);
		(void)snprintf(path, sizeof(path), "%s%u.distcp", d->prefix, l.file);
		dcp_stored(d, fqn, strlen(fqn), 1, &boxes[2 * i], path, (int64_t)l.offset,
			   (int64_t)l.length, layers);
		buf_release(&b);
	}
}

/* a.b in 2 chunks of files 0 and 1, a/c compressed in file 2, objects step and packed. */
static void put_sample(void)
{
	struct dcp d;

	dcp_begin(&d, dir_fd);
	put_text(&d, "a.b", "0123456789", 6, 0, 0);
	put_text(&d, "a/c", "abcdefgh", 8, 2, 1);
	dcp_bytes(&d, "step", 4, "seven", 5, 0, 0);
	dcp_bytes(&d, "packed", 6, "seventyseven", 12, 2, 2);
	dcp_end(&d, ".metadata");
}

static struct ckpt *open_with(const struct ckpt_opts *o)
{
	struct ckpt_opts in_memory = *o;
	struct ckpt *c = NULL;
	struct ckpt_err e = { 0 };

	in_memory.index = in_memory.index ? in_memory.index : ":memory:";
	if (open_typed(dir, &in_memory, &c, &e))
		ck_abort_msg("%s", e.msg);
	REQUIRE(!e.code);
	return c;
}

static int open_code(const struct ckpt_opts *o, struct ckpt_err *e)
{
	struct ckpt_opts in_memory = *o;
	struct ckpt *c = NULL;
	int rc;

	in_memory.index = ":memory:";
	*e = (struct ckpt_err){ 0 };
	rc = open_typed(dir, &in_memory, &c, e);
	REQUIRE(rc ? !c && e->code == -rc : c && !e->code);
	ckpt_close(c);
	return rc;
}

static const struct ckpt_opts plain = { 0 };

static void expect_file(struct ckpt *c, const char *path, const char *want)
{
	autofree char *got = tree_text(c, path);

	ck_assert_str_eq(got, want);
}

/* ---- opening ---- */

START_TEST(what_cannot_be_opened_is_told)
{
	struct ckpt *c = NULL;
	struct ckpt_err e = { 0 };
	char path[4200];

	(void)snprintf(path, sizeof(path), "%s/missing", dir);
	ck_assert_int_eq(open_typed(path, &plain, &c, &e), -ENOENT);
	expect_at(dir, e.msg, "open '@/missing': No such file or directory");
	put_file(dir_fd, "file", "", 0);
	(void)snprintf(path, sizeof(path), "%s/file", dir);
	ck_assert_int_eq(open_typed(path, &plain, &c, &e), -ENOENT);
	ck_assert_ptr_nonnull(strstr(e.msg, "/file': not a checkpoint: 'file' is "));
	ck_assert_int_eq(open_typed(dir, &plain, &c, &e), -ENOENT);
	ck_assert_ptr_nonnull(strstr(e.msg, "': not a checkpoint: found 'file'; PyTorch DCP has "));
	ck_assert_ptr_null(c);
	ckpt_close(NULL);
}
END_TEST

START_TEST(totals_say_what_it_holds)
{
	struct ckpt *c;
	struct ckpt_totals t;
	struct ckpt_tensor x;
	struct ckpt_object o;
	struct ckpt_err e = { 0 };
	uint64_t files = 0;
	struct stat st;

	put_sample();
	ck_assert_int_eq(fstatat(dir_fd, ".metadata", &st, 0), 0);
	c = open_with(&plain);
	ckpt_totals(c, &t);
	ck_assert_str_eq(t.format, "dcp");
	ck_assert_str_eq(t.index, ":memory:");
	ck_assert(t.index_built);
	ck_assert_uint_eq(t.tensors, 2);
	ck_assert_uint_eq(t.objects, 2);
	ck_assert_uint_eq(t.chunks, 3);
	ck_assert_uint_eq(t.files, 3);
	ck_assert_uint_eq(t.tensor_bytes, 18);
	ck_assert_uint_eq(t.incomplete, 0);
	ck_assert_uint_eq(t.mtime_ns,
			  (uint64_t)st.st_mtim.tv_sec * 1000000000 + (uint64_t)st.st_mtim.tv_nsec);
	ckpt_tensor(c, 0, &x);
	ck_assert_str_eq(x.fqn, "a.b");
	ck_assert_str_eq(x.dtype, "uint8");
	ck_assert(x.n_dims == 1 && x.shape[0] == 10 && x.bytes == 10 && x.chunks == 2 && !x.fault);
	ck_assert_int_eq(ckpt_tensor_files(c, 0, &files, &e), 0);
	ck_assert_uint_eq(files, 2);
	ck_assert_int_eq(ckpt_tensor_find(c, "a/c", 3), 1);
	ck_assert_int_eq(ckpt_tensor_find(c, "step", 4), -1);
	ck_assert_int_eq(ckpt_object_find(c, "step", 4), 1);
	ckpt_object(c, 0, &o);
	ck_assert_str_eq(o.fqn, "packed");
	ck_assert_str_eq(o.encoding, "dcp+stream.zstd/1+stream.zstd/1");
	ck_assert_str_eq(o.path, "__0_2.distcp");
	ckpt_close(c);
}
END_TEST

START_TEST(include_and_exclude_choose_what_exists)
{
	static const char *const include[] = { "a*", "step", NULL }, *const exclude[] = { "*c",
											  NULL };
	struct ckpt *c;
	struct ckpt_totals t;
	struct ckpt_tensor x;
	ckpt_node n;

	put_sample();
	c = open_with(&(struct ckpt_opts){ .include = include, .exclude = exclude });
	ckpt_totals(c, &t);
	ck_assert_uint_eq(t.tensors, 1);
	ck_assert_uint_eq(t.objects, 1);
	ck_assert_uint_eq(t.tensor_bytes, 10);
	ckpt_tensor(c, 0, &x);
	ck_assert_str_eq(x.fqn, "a.b");
	ck_assert_int_eq(ckpt_tensor_find(c, "a.b", 3), 0);
	ck_assert_int_eq(ckpt_tensor_find(c, "a/c", 3), -1);
	ck_assert_int_eq(ckpt_object_find(c, "packed", 6), -1);
	ck_assert_int_eq(ckpt_fqn_node(c, "a/c", 3, &n), 1);
	ck_assert_int_eq(ckpt_fqn_node(c, "packed", 6, &n), 1);
	expect_file(c, "tensors/a.b", "0123456789");
	expect_file(c, "tensors/a%2Fc",
		    "error 2: 'tensors/a%2Fc': there is no such file in the tree");
	ckpt_close(c);
}
END_TEST

/* ---- the tree ---- */

#define BYTES_JSON(hex) "{\"__class__\": \"builtins.bytes\", \"hex\": \"" hex "\"}\n"

static const struct {
	const char *path;
	const char *content; /* NULL: a directory */
} paths[] = {
	{ "", NULL },
	{ "/", NULL },
	{ "tensors", NULL },
	{ "tensors/", NULL },
	{ "./npy/.", NULL },
	{ ".ckptfs", NULL },
	{ "tensors/a.b", "0123456789" },
	{ "/tensors//./a.b", "0123456789" },
	{ "tensors/a%2Fc", "abcdefgh" },
	{ "objects/step", "seven" },
	{ "objects/packed", "seventyseven" },
	{ "objects/step.json", BYTES_JSON("736576656e") },
	{ "objects/packed.json", BYTES_JSON("736576656e7479736576656e") },
	{ "tensors/a", "error 2: 'tensors/a': there is no such file in the tree" },
	{ "tensors/a/c", "error 2: 'tensors/a/c': there is no such file in the tree" },
	{ "tensors/a%2fc", "error 2: 'tensors/a%2fc': there is no such file in the tree; did you "
			   "mean 'tensors/a%2Fc'?" },
	{ "tensors/%61.b", "error 2: 'tensors/%61.b': there is no such file in the tree" },
	{ "tensors/..", "error 2: 'tensors/..': there is no such file in the tree" },
	{ "tensors/a.b/", "0123456789" },
	{ "tensors/a.b/x", "error 2: 'tensors/a.b/x': there is no such file in the tree" },
	{ "objects/a.b", "error 2: 'objects/a.b': there is no such file in the tree" },
	{ ".metadata", "error 2: '.metadata': there is no such file in the tree" },
};

START_LOOP_TEST(paths_lead_where_they_lead_in_a_mount, ARRAY_LEN(paths))
{
	struct ckpt *c;
	struct ckpt_stat st;
	struct ckpt_err e = { 0 };
	ckpt_node n = 0;

	put_sample();
	c = open_with(&plain);
	if (paths[_i].content) {
		expect_file(c, paths[_i].path, paths[_i].content);
	} else {
		ck_assert_int_eq(ckpt_walk(c, paths[_i].path, &n, &e), 0);
		ck_assert_int_eq(ckpt_stat(c, n, &st, &e), 0);
		ck_assert(st.is_dir);
		ck_assert_uint_ge(st.size, 1);
		ck_assert_uint_eq(st.node, n);
	}
	ckpt_close(c);
}
END_TEST

START_TEST(an_fqn_leads_to_its_file)
{
	struct ckpt *c;
	struct ckpt_err e = { 0 };
	ckpt_node n = 0, want = 1;

	put_sample();
	c = open_with(&plain);
	ck_assert_int_eq(ckpt_fqn_node(c, "a/c", 3, &n), 0);
	ck_assert_int_eq(ckpt_walk(c, "tensors/a%2Fc", &want, &e), 0);
	ck_assert_uint_eq(n, want);
	ck_assert_int_eq(ckpt_fqn_node(c, "packed", 6, &n), 0);
	ck_assert_int_eq(ckpt_walk(c, "objects/packed", &want, &e), 0);
	ck_assert_uint_eq(n, want);
	ck_assert_int_eq(ckpt_fqn_node(c, "pack", 4, &n), 1);
	ck_assert_int_eq(ckpt_fqn_node(c, "", 0, &n), 1);
	ck_assert_uint_eq(n, want);
	ckpt_close(c);
}
END_TEST

START_TEST(names_too_long_for_a_file_are_not_found)
{
	struct ckpt *c;
	struct ckpt_err e = { 0 };
	char path[1000] = "tensors/";
	ckpt_node n = 42;

	put_sample();
	c = open_with(&plain);
	for (size_t len = 250; len < 262; len++) {
		memset(path + 8, 'x', len);
		path[8 + len] = 0;
		ck_assert_int_eq(ckpt_walk(c, path, &n, &e), -ENOENT);
	}
	ck_assert_uint_eq(n, 42);
	ckpt_close(c);
}
END_TEST

START_TEST(directories_and_strangers_cannot_be_opened)
{
	static const uint64_t none[] = {
		0, 99, 1024, (uint64_t)1 << 36 | 2, (uint64_t)9 << 36, UINT64_MAX
	};
	struct ckpt *c;
	struct ckpt_file *f = NULL;
	struct ckpt_stat st;
	struct ckpt_err e = { 0 };
	char name[CKPT_NAME_MAX + 1];
	ckpt_node n;

	put_sample();
	c = open_with(&plain);
	ck_assert_int_eq(ckpt_file_open(c, CKPT_ROOT, &f, &e), -EISDIR);
	ck_assert_int_eq(ckpt_file_open_path(c, "tensors", &f, &e), -EISDIR);
	ck_assert_str_eq(e.msg, "'tensors': it is a directory");
	for (size_t i = 0; i < ARRAY_LEN(none); i++) {
		ck_assert_int_eq(ckpt_file_open(c, none[i], &f, &e), -ENOENT);
		ck_assert_int_eq(ckpt_stat(c, none[i], &st, &e), -ENOENT);
		ck_assert_int_eq(ckpt_entry(c, none[i], 0, name, &n), 1);
		ck_assert_int_eq(ckpt_lookup(c, none[i], "x", &n), 1);
		ck_assert_int_eq(ckpt_xattr(c, none[i], "user.ckptfs.fqn", name, 10, &e), -ENODATA);
		ck_assert_int_eq(ckpt_xattr_names(c, none[i], name, 10), 0);
	}
	ck_assert_ptr_null(f);
	ckpt_file_close(NULL);
	ckpt_close(c);
}
END_TEST

START_TEST(stat_knows_every_size_and_the_checkpoints_time)
{
	static const struct {
		const char *path;
		uint64_t size;
	} rows[] = {
		{ "", 7 },
		{ "tensors", 2 },
		{ "npy", 2 },
		{ "objects", 4 },
		{ ".ckptfs", 1 },
		{ "tensors/a.b", 10 },
		{ "npy/a.b.npy", 138 },
		{ "objects/step", 5 },
		{ "objects/packed", 12 },
		{ "objects/step.json", 53 },
		{ "objects/packed.json", 67 },
	};
	struct ckpt *c;
	struct ckpt_totals t;

	put_sample();
	c = open_with(&plain);
	ckpt_totals(c, &t);
	for (int again = 0; again < 2; again++) {
		for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
			struct ckpt_stat st;
			struct ckpt_err e = { 0 };
			ckpt_node n;

			ck_assert_int_eq(ckpt_walk(c, rows[i].path, &n, &e), 0);
			ck_assert_int_eq(ckpt_stat(c, n, &st, &e), 0);
			ck_assert_uint_eq(st.size, rows[i].size);
			ck_assert_uint_eq(st.mtime_ns, t.mtime_ns);
			ck_assert_int_eq(st.is_dir, i < 5);
		}
	}
	ckpt_close(c);
}
END_TEST

START_LOOP_TEST(every_range_of_a_file_is_right, 5)
{
	static const char *const files[] = { "tensors/a.b", "npy/a%2Fc.npy", "objects/packed",
					     "objects/packed.json", ".ckptfs/info.json" };
	struct ckpt *c;
	struct ckpt_file *f = NULL;
	struct ckpt_err e = { 0 };
	char whole[2000], part[2000];
	uint64_t n;

	put_sample();
	c = open_with(&plain);
	ck_assert_int_eq(ckpt_file_open_path(c, files[_i], &f, &e), 0);
	n = ckpt_file_size(f);
	ck_assert_uint_lt(n, 2000);
	ck_assert_int_eq(ckpt_file_read(f, whole, 2000, 0, &e), (int64_t)n);
	for (uint64_t off = 0; off < n + 3; off++) {
		for (uint64_t len = 0; len < n - (off < n ? off : n) + 3; len += 1 + n / 100) {
			uint64_t want = off < n ? (len < n - off ? len : n - off) : 0;

			memset(part, 0x55, sizeof(part));
			REQUIRE(ckpt_file_read(f, part, len, off, &e) == (int64_t)want);
			REQUIRE(!memcmp(part, whole + off, want) && part[want] == 0x55);
		}
	}
	ckpt_file_close(f);
	ckpt_close(c);
}
END_TEST

START_TEST(attributes_describe_tensors)
{
	static const struct {
		const char *path, *name, *value; /* NULL: none */
	} rows[] = {
		{ "tensors/a%2Fc", "user.ckptfs.fqn", "a/c" },
		{ "npy/a%2Fc.npy", "user.ckptfs.fqn", "a/c" },
		{ "tensors/a.b", "user.ckptfs.dtype", "uint8" },
		{ "tensors/a.b", "user.ckptfs.shape", "[10]" },
		{ "tensors/a.b", "user.ckptfs.chunks", "2" },
		{ "tensors/a.b", "user.ckptfs.files", "2" },
		{ "objects/step", "user.ckptfs.fqn", "step" },
		{ "objects/step", "user.ckptfs.dtype", NULL },
		{ "tensors/a.b", "user.ckptfs.nothing", NULL },
		{ "tensors/a.b", "user.ckptfs.", NULL },
		{ "tensors/a.b", "security.selinux", NULL },
		{ "tensors", "user.ckptfs.fqn", NULL },
		{ ".ckptfs/info.json", "user.ckptfs.fqn", NULL },
	};
	struct ckpt *c;
	char value[100];

	put_sample();
	c = open_with(&plain);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct ckpt_err e = { 0 };
		int64_t len = rows[i].value ? (int64_t)strlen(rows[i].value) : -ENODATA;
		ckpt_node n;

		ck_assert_int_eq(ckpt_walk(c, rows[i].path, &n, &e), 0);
		ck_assert_int_eq(ckpt_xattr(c, n, rows[i].name, value, sizeof(value), &e), len);
		if (!rows[i].value)
			continue;
		ck_assert_mem_eq(value, rows[i].value, (size_t)len);
		/* A short buffer gets what fits; the length is returned all the same. */
		memset(value, 'x', sizeof(value));
		ck_assert_int_eq(ckpt_xattr(c, n, rows[i].name, value, 1, &e), len);
		ck_assert(value[0] == rows[i].value[0] && value[1] == 'x');
		ck_assert_int_eq(ckpt_xattr(c, n, rows[i].name, NULL, 0, &e), len);
	}
	ckpt_close(c);
}
END_TEST

START_TEST(attribute_names_are_listed)
{
	static const char all[] =
		"user.ckptfs.fqn\0user.ckptfs.dtype\0user.ckptfs.shape\0user.ckptfs.chunks\0"
		"user.ckptfs.files";
	struct ckpt *c;
	struct ckpt_err e = { 0 };
	ckpt_node tensor, object, tensors;

	put_sample();
	c = open_with(&plain);
	ck_assert_int_eq(ckpt_walk(c, "tensors/a.b", &tensor, &e), 0);
	ck_assert_int_eq(ckpt_walk(c, "objects/step", &object, &e), 0);
	ck_assert_int_eq(ckpt_walk(c, "tensors", &tensors, &e), 0);
	for (size_t cap = 0; cap <= sizeof(all) + 5; cap++) {
		char *names = malloc(cap ? cap : 1); /* nothing behind cap is written */

		ck_assert_int_eq(ckpt_xattr_names(c, tensor, names, cap), sizeof(all));
		ck_assert(!memcmp(names, all, cap < sizeof(all) ? cap : sizeof(all)));
		ck_assert_int_eq(ckpt_xattr_names(c, object, names, cap), 16);
		ck_assert(!memcmp(names, all, cap < 16 ? cap : 16));
		free(names);
	}
	ck_assert_int_eq(ckpt_xattr_names(c, tensor, NULL, 0), sizeof(all));
	ck_assert_int_eq(ckpt_xattr_names(c, tensors, NULL, 0), 0);
	ckpt_close(c);
}
END_TEST

START_TEST(info_json_is_json_and_tells_the_totals)
{
	struct ckpt *c;
	autofree char *text = NULL;
	json_error_t why;
	json_t *j;

	put_sample();
	c = open_with(&plain);
	text = tree_text(c, ".ckptfs/info.json");
	j = json_loads(text, JSON_REJECT_DUPLICATES, &why);
	ck_assert_msg(j != NULL, "%s in %s", why.text, text);
	ck_assert_str_eq(json_string_value(json_object_get(j, "checkpoint")), dir);
	ck_assert_str_eq(json_string_value(json_object_get(j, "format")), "dcp");
	ck_assert_str_eq(json_string_value(json_object_get(j, "index")), ":memory:");
	ck_assert_int_eq(json_integer_value(json_object_get(j, "tensors")), 2);
	ck_assert_int_eq(json_integer_value(json_object_get(j, "tensor_bytes")), 18);
	ck_assert(json_is_true(json_object_get(j, "complete")));
	ck_assert_uint_eq(json_array_size(json_object_get(j, "faults")), 0);
	json_decref(j);
	ckpt_close(c);
}
END_TEST

static int stop_at_second(void *arg, const struct ckpt_chunk *chunk)
{
	struct buf *b = arg;

	buf_printf(b, "%llu+%llu %s:%llu %s; ", (unsigned long long)chunk->off[0],
		   (unsigned long long)chunk->len[0], chunk->path,
		   (unsigned long long)chunk->offset, chunk->encoding);
	return chunk->off[0] == 6 ? 55 : 0;
}

START_TEST(chunks_are_listed_until_one_says_stop)
{
	struct buf b = BUF_INIT(1000);
	struct ckpt *c;
	struct ckpt_err e = { 0 };

	put_sample();
	c = open_with(&plain);
	ck_assert_int_eq(ckpt_tensor_chunks(c, 0, stop_at_second, &b, &e), 55);
	ck_assert_str_eq(b.data, "0+6 __0_0.distcp:0 dcp; 6+4 __0_1.distcp:0 dcp; ");
	b.len = 0;
	ck_assert_int_eq(ckpt_tensor_chunks(c, 1, stop_at_second, &b, &e), 0);
	ck_assert_str_eq(b.data, "0+8 __0_2.distcp:0 dcp+stream.zstd/1; ");
	buf_release(&b);
	ckpt_close(c);
}
END_TEST

/* ---- holes ---- */

/* Tensors whole, half (which has a hole) and lost (a chunk stored nowhere), and an object stored
 * nowhere. */
static void put_holes(void)
{
	struct dcp d;

	dcp_begin(&d, dir_fd);
	put_text(&d, "whole", "0123456789", 5, 0, 0);
	dcp_tensor(&d, "half", 4, "uint8", 1, U(4), 1, U(0, 2));
	dcp_stored(&d, "half", 4, 1, U(0), "__0_0.distcp", 0, 100, 0);
	dcp_tensor(&d, "lost", 4, "uint8", 1, U(4), 1, U(0, 4));
	dcp_object(&d, "nowhere", 7);
	dcp_bytes(&d, "step", 4, "seven", 5, 1, 0);
	dcp_end(&d, ".metadata");
}

START_LOOP_TEST(holes_are_refused_unless_allowed, 2)
{
	static const struct ckpt_opts allowed[] = { { .allow_missing = true },
						    { .allow_holes = true } };
	struct ckpt_err e;
	struct ckpt *c;
	struct ckpt_totals t;
	struct ckpt_tensor x;
	struct ckpt_object o;

	put_holes();
	ck_assert_int_eq(open_code(&plain, &e), -EBADMSG);
	expect_at(dir, e.msg,
		  "checkpoint '@': tensor 'half': no chunk holds the elements at [2] of "
		  "size [2] (and 2 more are incomplete); with the option allow_missing, "
		  "the rest can be read");
	c = open_with(&allowed[_i]);
	ckpt_totals(c, &t);
	ck_assert_uint_eq(t.tensors, 3);
	ck_assert_uint_eq(t.incomplete, 3);
	ckpt_tensor(c, 0, &x);
	ck_assert_str_eq(x.fault, "no chunk holds the elements at [2] of size [2]");
	ckpt_tensor(c, 1, &x);
	ck_assert_str_eq(
		x.fault,
		"1 of its chunks is listed but stored nowhere: the one at [0] of size [4]");
	ckpt_tensor(c, 2, &x);
	ck_assert_ptr_null(x.fault);
	ckpt_object(c, 0, &o);
	ck_assert_str_eq(o.fault, "it is listed but stored nowhere");
	ck_assert_str_eq(o.path, "");
	expect_file(c, "tensors/whole", "0123456789");
	expect_file(c, "objects/step", "seven");
	expect_file(c, "tensors/half",
		    "error 5: 'tensors/half': tensor 'half' cannot be read: no chunk holds the "
		    "elements at [2] of size [2]");
	expect_file(c, "npy/lost.npy",
		    "error 5: 'npy/lost.npy': tensor 'lost' cannot be read: 1 of its chunks is "
		    "listed but stored nowhere: the one at [0] of size [4]");
	expect_file(c, "objects/nowhere",
		    "error 5: 'objects/nowhere': object 'nowhere' cannot be read: it is listed "
		    "but stored nowhere");
	ckpt_close(c);
}
END_TEST

START_TEST(holes_in_what_is_excluded_do_not_matter)
{
	static const char *const exclude[] = { "half", "lost", "nowhere", NULL }, *const most[] = {
		"half", "lost", NULL
	};
	struct ckpt_err e;

	put_holes();
	ck_assert_int_eq(open_code(&(struct ckpt_opts){ .exclude = exclude }, &e), 0);
	ck_assert_int_eq(open_code(&(struct ckpt_opts){ .exclude = most }, &e), -EBADMSG);
	expect_at(dir, e.msg,
		  "checkpoint '@': object 'nowhere': it is listed but stored nowhere; with "
		  "the option allow_missing, the rest can be read");
}
END_TEST

START_TEST(holes_can_be_listed_and_looked_at)
{
	struct ckpt *c;
	struct ckpt_stat st;
	struct ckpt_err e = { 0 };
	autofree char *text = NULL;
	ckpt_node n;
	json_t *j;

	put_holes();
	c = open_with(&(struct ckpt_opts){ .allow_missing = true });
	ck_assert_int_eq(ckpt_walk(c, "tensors/half", &n, &e), 0);
	ck_assert_int_eq(ckpt_stat(c, n, &st, &e), 0);
	ck_assert_uint_eq(st.size, 4);
	ck_assert_int_eq(ckpt_walk(c, "objects/nowhere", &n, &e), 0);
	ck_assert_int_eq(ckpt_stat(c, n, &st, &e), 0);
	ck_assert_uint_eq(st.size, 0);
	text = tree_text(c, ".ckptfs/info.json");
	j = json_loads(text, 0, NULL);
	ck_assert_ptr_nonnull(j);
	ck_assert(json_is_false(json_object_get(j, "complete")));
	ck_assert_int_eq(json_integer_value(json_object_get(j, "incomplete")), 3);
	ck_assert_uint_eq(json_array_size(json_object_get(j, "faults")), 3);
	json_decref(j);
	ckpt_close(c);
}
END_TEST

/* ---- missing and short files ---- */

static void remove_one(void)
{
	ck_assert_int_eq(unlinkat(dir_fd, "__0_1.distcp", 0), 0);
}

static void cut_one(void)
{
	size_t n;
	autofree uint8_t *p = get_file(dir_fd, "__0_1.distcp", &n);

	put_file(dir_fd, "__0_1.distcp", p, 10);
}

static void link_one(void)
{
	remove_one();
	ck_assert_int_eq(symlinkat("/etc/passwd", dir_fd, "__0_1.distcp"), 0);
}

static void remove_two(void)
{
	remove_one();
	ck_assert_int_eq(unlinkat(dir_fd, "__0_2.distcp", 0), 0);
}

static const struct {
	void (*damage)(void);
	const char *msg; /* the error if nothing may be missing; its beginning */
	bool packed_too; /* the object "packed" and the tensor "a/c" are lost as well */
} damages[] = {
	{ remove_one, "data file '__0_1.distcp' is missing", false },
	{ cut_one, "data file '__0_1.distcp' has 10 bytes, items in it reach up to ", false },
	{ link_one, "data file '__0_1.distcp' is not a regular file of the checkpoint", false },
	{ remove_two, "data file '__0_1.distcp' is missing (and more files like it)", true },
};

static void check_victims(const struct ckpt_opts *o, bool packed_too)
{
	struct ckpt *c = open_with(o);
	autofree char *ab = tree_text(c, "tensors/a.b"), *ac = tree_text(c, "tensors/a%2Fc"),
		      *packed = tree_text(c, "objects/packed");
	struct ckpt_totals t;

	ckpt_totals(c, &t);
	ck_assert_uint_eq(t.incomplete, packed_too ? 3 : 1);
	ck_assert_msg(!strncmp(ab,
			       "error 5: 'tensors/a.b': tensor 'a.b' cannot be read: data file "
			       "'__0_1.distcp'",
			       75),
		      "%s", ab);
	ck_assert_str_eq(
		ac, packed_too ? "error 5: 'tensors/a%2Fc': tensor 'a/c' cannot be read: data file "
				 "'__0_2.distcp' is missing"
			       : "abcdefgh");
	ck_assert_str_eq(
		packed,
		packed_too ? "error 5: 'objects/packed': object 'packed' cannot be read: data file "
			     "'__0_2.distcp' is missing"
			   : "seventyseven");
	expect_file(c, "objects/step", "seven");
	ckpt_close(c);
}

START_LOOP_TEST(missing_files_take_their_tensors_with_them, ARRAY_LEN(damages))
{
	struct ckpt_err e;
	char want[4400];

	put_sample();
	damages[_i].damage();
	ck_assert_int_eq(open_code(&plain, &e), -EBADMSG);
	(void)snprintf(want, sizeof(want), "checkpoint '%s': %s", dir, damages[_i].msg);
	ck_assert_msg(!strncmp(e.msg, want, strlen(want)), "%s", e.msg);
	ck_assert_int_eq(open_code(&(struct ckpt_opts){ .allow_holes = true }, &e), -EBADMSG);
	check_victims(&(struct ckpt_opts){ .allow_missing = true }, damages[_i].packed_too);
}
END_TEST

/* The same with an index whose chunk maps are damaged. */
START_TEST(missing_files_and_a_damaged_index_together_are_no_obstacle)
{
	static const uint8_t junk[16384] = { 0xff, 0xff };
	char index[4200];
	struct ckpt *c;
	struct ckpt_opts o = { .index = index, .allow_missing = true };
	struct stat st;
	size_t hits = 0;

	put_sample();
	(void)snprintf(index, sizeof(index), "%s/index", dir);
	c = open_with(&o);
	ckpt_close(c);
	remove_one();
	ck_assert_int_eq(fstatat(dir_fd, "index", &st, 0), 0);
	/* Page by page: some pages hold chunk maps, others what every open reads. */
	for (off_t at = 16384; at < st.st_size; at += 16384) {
		autoclose int fd = openat(dir_fd, "index", O_RDWR | O_CLOEXEC);

		ck_assert_int_eq((int)pwrite(fd, junk, sizeof(junk), at), (int)sizeof(junk));
		check_victims(&o, false);
		hits++;
	}
	ck_assert_uint_gt(hits, 5);
}
END_TEST

/* A file that no entry names, and an empty file without items. */
START_TEST(files_that_nobody_needs_may_be_missing)
{
	struct dcp d;
	struct ckpt *c;

	dcp_begin(&d, dir_fd);
	put_text(&d, "w", "0123456789", 10, 0, 0);
	dcp_tensor(&d, "empty", 5, "uint8", 1, U(0), 1, U(0, 0));
	dcp_stored(&d, "empty", 5, 1, U(0), "gone", 0, 0, 0);
	dcp_end(&d, ".metadata");
	put_file(dir_fd, "__7_0.distcp", "stale", 5);
	c = open_with(&plain);
	expect_file(c, "tensors/w", "0123456789");
	expect_file(c, "tensors/empty", "");
	ckpt_close(c);
}
END_TEST

START_TEST(a_damaged_compressed_object_has_no_size_and_fails_when_opened)
{
	struct ckpt *c;
	struct ckpt_stat st;
	struct ckpt_err e = { 0 };
	struct dcp d;
	ckpt_node n;

	dcp_begin(&d, dir_fd);
	dcp_object(&d, "o", 1);
	dcp_stored(&d, "o", 1, DCP_NO_OFFSET, NULL, "__0_0.distcp", 0, 20, 1);
	(void)dcp_item(&d, 0, "this is no zstd frame", 21, 0);
	dcp_end(&d, ".metadata");
	c = open_with(&plain);
	ck_assert_int_eq(ckpt_walk(c, "objects/o", &n, &e), 0);
	ck_assert_int_eq(ckpt_stat(c, n, &st, &e), 0);
	ck_assert_uint_eq(st.size, 0);
	expect_file(c, "objects/o", "error 74: 'objects/o': zstd: Unknown frame descriptor");
	/* Its value cannot be read either, even if it is asked for first. */
	expect_file(c, "objects/o.json",
		    "error 74: 'objects/o.json': zstd: Unknown frame descriptor");
	ck_assert_int_eq(ckpt_walk(c, "objects/o.json", &n, &e), 0);
	ck_assert_int_eq(ckpt_stat(c, n, &st, &e), 0);
	ck_assert_uint_eq(st.size, 0);
	ckpt_close(c);
}
END_TEST

/* A compressed item that ends before its elements do is an error; it does not hang. */
START_LOOP_TEST(a_compressed_item_that_is_too_short_is_an_error, 4)
{
	const int64_t size[] = { 3000000 };
	const uint64_t shape[] = { 3000000 }, box[] = { 0, 3000000 };
	static const size_t keep[] = { 800, 1 << 20, 2000000, 3000000 };
	autofree uint8_t *bytes = calloc(1, 3000000);
	struct saved t = { .dtype = CKPT_DTYPE_U8,
			   .n_dims = 1,
			   .size = size,
			   .storage = bytes,
			   .storage_bytes = 3000000 };
	struct buf b = BUF_INIT(0);
	struct ckpt *c;
	struct ckpt_file *f = NULL;
	struct ckpt_err e = { 0 };
	struct chunk_loc l;
	struct dcp d;

	(void)saved_item(&b, &t);
	dcp_begin(&d, dir_fd);
	l = dcp_item(&d, 0, b.data, keep[_i], 1);
	dcp_tensor(&d, "w", 1, "uint8", 1, shape, 1, box);
	dcp_stored(&d, "w", 1, 1, box, "__0_0.distcp", 0, (int64_t)l.length, 1);
	dcp_end(&d, ".metadata");
	c = open_with(&plain);
	ck_assert_int_eq(ckpt_file_open_path(c, "tensors/w", &f, &e), 0);
	ck_assert_int_eq(ckpt_file_read(f, bytes, 10, 2999990, &e), -EBADMSG);
	ck_assert_str_eq(e.msg, "tensor 'w', bytes 2999990 to 3000000: the item at 0 decodes to "
				"fewer bytes than its "
				"tensor needs");
	ck_assert_int_eq(ckpt_file_read(f, bytes, 3000000, 0, &e), -EBADMSG);
	ck_assert_int_eq(ckpt_file_read(f, bytes, 50, 0, &e), 50);
	ckpt_file_close(f);
	ckpt_close(c);
	buf_release(&b);
}
END_TEST

/* ---- proof ---- */

struct faults {
	struct buf b;
	uint64_t last, total;
};

static void add_fault(void *arg, const struct ckpt_fault *f)
{
	struct faults *x = arg;

	buf_printf(&x->b, "%s%s: %s; ", f->warning ? "warning " : "", f->fqn ? f->fqn : "file",
		   f->what);
}

static void add_progress(void *arg, uint64_t done, uint64_t total)
{
	struct faults *x = arg;

	ck_assert(done >= x->last && done <= total);
	x->last = done;
	x->total = total;
}

/* The faults as text; how many items and CRCs were looked at. */
static char *check(const struct ckpt_opts *o, bool data, struct ckpt_check *ret)
{
	struct faults x = { .b = BUF_INIT(10000) };
	struct ckpt *c = open_with(o);
	struct ckpt_err e = { 0 };

	*ret = (struct ckpt_check){
		.data = data, .fault = add_fault, .progress = add_progress, .arg = &x
	};
	buf_str(&x.b, "");
	ck_assert_msg(!ckpt_check(c, ret, &e), "%s", e.msg);
	ck_assert_uint_eq(x.last, x.total);
	ck_assert(ret->bytes ? x.total == ret->bytes : !x.total);
	ckpt_close(c);
	return x.b.data;
}

/* Makes the data files older than the metadata, as they are after a finished save. */
static void age_files(void)
{
	static const char *const names[] = { "__0_0.distcp", "__0_1.distcp", "__0_2.distcp" };

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		(void)utimensat(dir_fd, names[i], (const struct timespec[]){ { 1, 0 }, { 1, 0 } },
				0);
}

START_TEST(a_sound_checkpoint_has_no_faults)
{
	struct ckpt_check k;
	autofree char *structure = NULL, *data = NULL;

	put_sample();
	age_files();
	structure = check(&plain, false, &k);
	ck_assert_str_eq(structure, "");
	ck_assert_uint_eq(k.items, 5);
	ck_assert_uint_eq(k.bytes, 0);
	data = check(&plain, true, &k);
	ck_assert_str_eq(data, "");
	ck_assert_uint_eq(k.items, 5);
	ck_assert_uint_eq(k.crcs, 3 * 7); /* records of the tensors' archives */
	ck_assert_uint_gt(k.bytes, 1000);
}
END_TEST

START_TEST(flipped_data_is_found_by_its_crc)
{
	struct ckpt_check k;
	size_t n;
	autofree uint8_t *p = NULL;
	autofree char *structure = NULL, *data = NULL;

	put_sample();
	p = get_file(dir_fd, "__0_0.distcp", &n);
	p[704] ^= 1; /* data/0 of the first item */
	ck_assert_uint_eq(p[705], '1');
	put_file(dir_fd, "__0_0.distcp", p, n);
	age_files();
	structure = check(&plain, false, &k);
	ck_assert_str_eq(structure, "");
	data = check(&plain, true, &k);
	ck_assert_msg(
		strstr(data,
		       "a.b: item at 0 of '__0_0.distcp': record 'archive/data/0' has CRC ") ==
			data,
		"%s", data);
	ck_assert_uint_eq(k.faults, 1);
}
END_TEST

START_TEST(all_that_is_wrong_is_reported)
{
	struct ckpt_check k;
	autofree char *got = NULL;

	put_holes();
	ck_assert_int_eq(unlinkat(dir_fd, "__0_1.distcp", 0), 0); /* of whole and step */
	age_files();
	got = check(&(struct ckpt_opts){ .allow_missing = true }, true, &k);
	ck_assert_str_eq(
		got,
		"file: data file '__0_1.distcp' is missing; half: no chunk holds the elements at "
		"[2] of size [2]; lost: 1 of its chunks is listed but stored nowhere: the one at "
		"[0] of size [4]; whole: data file '__0_1.distcp' is missing; nowhere: it is "
		"listed but stored nowhere; step: data file '__0_1.distcp' is missing; ");
	ck_assert_uint_eq(k.faults, 6);
}
END_TEST

START_TEST(data_newer_than_the_metadata_is_a_warning)
{
	struct ckpt_check k;
	autofree char *got = NULL;

	put_sample();
	age_files();
	ck_assert_int_eq(
		utimensat(dir_fd, "__0_1.distcp",
			  (const struct timespec[]){ { 4000000000, 0 }, { 4000000000, 0 } }, 0),
		0);
	got = check(&plain, false, &k);
	ck_assert_str_eq(got, "warning file: data file '__0_1.distcp' is newer than the metadata: "
			      "overwritten by an "
			      "unfinished save, or copied without its times; ");
	ck_assert_uint_eq(k.faults, 0);
}
END_TEST

START_TEST(overlaps_are_read_and_reported)
{
	struct ckpt_check k;
	struct dcp d;
	struct ckpt *c;
	const int64_t size[] = { 4 };
	struct saved t = { .dtype = CKPT_DTYPE_U8,
			   .n_dims = 1,
			   .size = size,
			   .storage = "abcd",
			   .storage_bytes = 4 };
	struct buf b = BUF_INIT(0);
	struct chunk_loc l;
	autofree char *got = NULL;

	dcp_begin(&d, dir_fd);
	dcp_tensor(&d, "w", 1, "uint8", 1, U(6), 2, U(2, 4, 0, 4));
	(void)saved_item(&b, &t);
	l = dcp_item(&d, 0, b.data, b.len, 0);
	dcp_stored(&d, "w", 1, 1, U(2), "__0_0.distcp", (int64_t)l.offset, (int64_t)l.length, 0);
	t.storage = "wxyz";
	(void)saved_item(&b, &t);
	l = dcp_item(&d, 0, b.data, b.len, 0);
	dcp_stored(&d, "w", 1, 1, U(0), "__0_0.distcp", (int64_t)l.offset, (int64_t)l.length, 0);
	dcp_end(&d, ".metadata");
	age_files();
	c = open_with(&plain);
	expect_file(c, "tensors/w", "wxyzcd");
	ckpt_close(c);
	got = check(&plain, true, &k);
	ck_assert_str_eq(got, "w: chunks at [2] and [0] overlap; the one listed later is read; ");
	buf_release(&b);
}
END_TEST

/* ---- threads ---- */

struct crowd {
	struct ckpt *c;
	atomic_uint turn;
	atomic_bool bad;
};

static void *use_everything(void *arg)
{
	static const struct {
		const char *path, *content;
	} files[] = { { "tensors/a.b", "0123456789" },
		      { "tensors/a%2Fc", "abcdefgh" },
		      { "objects/step", "seven" },
		      { "objects/packed", "seventyseven" } };
	struct crowd *w = arg;
	struct rng r = { ++w->turn };

	for (int k = 0; k < 200; k++) {
		size_t i = rng_below(&r, ARRAY_LEN(files));
		autofree char *got = tree_text(w->c, files[i].path);
		char name[CKPT_NAME_MAX + 1], value[50];
		struct ckpt_stat st;
		struct ckpt_err e = { 0 };
		ckpt_node n = 0;

		w->bad = w->bad || strcmp(got, files[i].content) != 0 ||
			 ckpt_walk(w->c, files[i].path, &n, &e) || ckpt_stat(w->c, n, &st, &e) ||
			 st.size != strlen(files[i].content) ||
			 ckpt_xattr(w->c, n, "user.ckptfs.fqn", value, sizeof(value), &e) < 0 ||
			 ckpt_entry(w->c, ckpt_parent(w->c, n), 0, name, &n);
	}
	return NULL;
}

START_LOOP_TEST(everything_may_be_called_from_many_threads, 2)
{
	struct crowd w = { 0 };
	pthread_t threads[8];

	put_sample();
	w.c = open_with(&(struct ckpt_opts){ .maps = 1, .cache = _i ? 0 : 1 });
	for (int i = 0; i < 8; i++)
		ck_assert_int_eq(pthread_create(&threads[i], NULL, use_everything, &w), 0);
	for (int i = 0; i < 8; i++)
		(void)pthread_join(threads[i], NULL);
	ck_assert(!w.bad);
	ckpt_close(w.c);
}
END_TEST

SUITE(ckpt, .setup = dir_setup, .teardown = dir_teardown, .seconds = 60)
