/* SPDX-License-Identifier: Apache-2.0 */
/* The checkpoints of tests/data/orbax, directory layouts made from them, and stores made here. */
#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "data_util.h"
#include "dir_util.h"
#include "model/box.h"
#include "msgpack_util.h"
#include "ocdbt_util.h"
#include "opts_util.h"
#include "scan_util.h"
#include "sha256_util.h"
#include "suites.h"
#include <ckptfs/ckpt.h>

#include <dirent.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int open_at(const char *path, bool allow, struct ckpt **ret, struct ckpt_err *e)
{
	return open_typed(path, &(struct ckpt_opts){ .index = ":memory:", .allow_missing = allow },
			  ret, e);
}

/* ---- the checkpoints ---- */

static const char *const good[] = {
	"v3_sharded",
	"v3_codecs",
	"dtypes",
	"unsupported_parts",
	"v2_two_processes",
	"v2_files",
	"deep_tree",
	"uncompressed_nodes",
	"subtree_references",
	"versions",
	"numbered_manifest",
	"split_prefixes",
	"msgpack_aggregate",
	"names",
	"data_files",
	"empty_store",
};

/* What is wrong, and which key and file the error names. */
static const struct {
	const char *name;
	int code;
	const char *says[3];
} damaged[] = {
	{ "bad_manifest_crc", ERR_CORRUPT, { "'manifest.ocdbt': ", "CRC-32C" } },
	{ "bad_node_crc",
	  ERR_CORRUPT,
	  { "'d/39fb717b5cd66cbbdedb2196d7af275e' at byte 0", "CRC-32C" } },
	{ "data_file_missing", ENOENT, { "'d/bb4b718546b7f782faef730043edb185'", "No such file" } },
	{ "path_escapes",
	  ERR_CORRUPT,
	  { "'d/9dd4e461268c8034f5c8564e155c67a6'", "../tmp/d/", "is outside the checkpoint" } },
	{ "entry_count_lies", ERR_CORRUPT, { "1048576 entries" } },
	{ "keys_out_of_order", ERR_CORRUPT, { "('w9/1.0'): its keys do not increase" } },
	{ "root_manifest_missing",
	  ENOENT,
	  { "'manifest.ocdbt' is missing", "the save has not finished" } },
	{ "data_truncated",
	  ERR_CORRUPT,
	  { "'ocdbt.process_0/d/6d6fe97b5a5a1137c5e39aa3edc7e7f0' has 500 bytes" } },
};

/* The fault is found when the tensor is read. */
static const struct {
	const char *name, *tensor, *says[2];
} unreadable[] = {
	{ "bad_shard_index", "w", { "CRC" } },
	{ "chunk_wrong_length", "w", { "w" } },
};

static json_t *expected(const char *name)
{
	char path[600];
	json_error_t why;
	json_t *j;

	(void)snprintf(path, sizeof(path), "%s/orbax/%s/expected.json", data_dir(), name);
	j = json_load_file(path, 0, &why);
	ck_assert_msg(j != NULL, "%s: %s", path, why.text);
	return j;
}

static const char *text_of(const json_t *j, const char *key)
{
	const char *s = json_string_value(json_object_get(j, key));

	REQUIRE(s);
	return s;
}

/* All bytes, which the caller frees; NULL, and *e says why. */
static uint8_t *read_tensor(struct ckpt *c, const char *name, uint64_t *ret_n, struct ckpt_err *e)
{
	int64_t i = ckpt_tensor_find(c, name, strlen(name));
	struct ckpt_file *f;
	uint8_t *p;

	ck_assert_msg(i >= 0, "there is no tensor '%s'", name);
	if (ckpt_file_open(c, ckpt_tensor_node(c, (uint64_t)i), &f, e))
		return NULL;
	*ret_n = ckpt_file_size(f);
	p = malloc(*ret_n + 1);
	REQUIRE(p);
	if (ckpt_file_read(f, p, *ret_n + 1, 0, e) != (int64_t)*ret_n) {
		free(p);
		p = NULL;
	}
	ckpt_file_close(f);
	return p;
}

static void check_tensor(struct ckpt *c, const char *name, const json_t *want)
{
	const json_t *shape = json_object_get(want, "shape");
	int64_t i = ckpt_tensor_find(c, name, strlen(name));
	autofree uint8_t *p = NULL;
	struct ckpt_tensor t;
	struct ckpt_err e = { 0 };
	char hex[65];
	uint64_t n;

	ck_assert_msg(i >= 0, "there is no tensor '%s'", name);
	ckpt_tensor(c, (uint64_t)i, &t);
	ck_assert_str_eq(t.dtype, text_of(want, "dtype"));
	REQUIRE(t.n_dims == json_array_size(shape));
	for (size_t d = 0; d < t.n_dims; d++)
		REQUIRE((json_int_t)t.shape[d] == json_integer_value(json_array_get(shape, d)));
	if (json_object_get(want, "missing") && t.fault)
		return; /* chunks that should be there */
	p = read_tensor(c, name, &n, &e);
	ck_assert_msg(p != NULL, "%s: %s", name, e.msg);
	ck_assert_msg(!strcmp(sha256_hex(p, n, hex), text_of(want, "sha256")), "%s differs", name);
}

START_LOOP_TEST(what_jax_wrote_is_read, ARRAY_LEN(good))
{
	json_t *want = expected(good[_i]), *v;
	const char *key;
	char path[600];
	struct ckpt *c = NULL;
	struct ckpt_totals totals;
	struct ckpt_err e = { 0 };
	size_t i, unsupported = 0;

	/* Directories of arrays are kept in archives, which can be opened like directories. */
	(void)snprintf(path, sizeof(path), "%s/orbax/%s/ckpt", data_dir(), good[_i]);
	if (access(path, F_OK))
		(void)snprintf(path, sizeof(path), "%s/orbax/%s/ckpt.nemo", data_dir(), good[_i]);
	ck_assert_msg(!open_at(path, true, &c, &e), "%s", e.msg);
	ckpt_totals(c, &totals);
	ck_assert_str_eq(totals.format, "orbax");
	json_object_foreach (json_object_get(want, "tensors"), key, v)
		check_tensor(c, key, v);
	json_array_foreach(json_object_get(want, "unsupported"), i, v)
	{
		const char *name = json_string_value(v);
		int64_t t = ckpt_tensor_find(c, name, strlen(name));

		unsupported += t >= 0;
		ck_assert(t >= 0 || ckpt_object_find(c, name, strlen(name)) >= 0);
	}
	ck_assert_uint_eq(totals.tensors,
			  json_object_size(json_object_get(want, "tensors")) + unsupported);
	json_object_foreach (json_object_get(want, "strings"), key, v) {
		char *json = NULL, text[200];
		size_t n;
		int64_t at = ckpt_object_find(c, key, strlen(key));

		ck_assert_int_ge(at, 0);
		ck_assert_msg(!ckpt_object_json(c, (uint64_t)at, &json, &n, &e), "%s", e.msg);
		(void)snprintf(text, sizeof(text), "\"%s\"\n", json_string_value(v));
		ck_assert_str_eq(json, text);
		free(json);
	}
	ckpt_close(c);
	json_decref(want);
}
END_TEST

START_LOOP_TEST(what_is_damaged_is_refused_in_one_sentence, ARRAY_LEN(damaged))
{
	char path[600];
	struct ckpt *c = NULL;
	struct ckpt_err e = { 0 };

	(void)snprintf(path, sizeof(path), "%s/orbax/%s/ckpt", data_dir(), damaged[_i].name);
	ck_assert_msg(open_at(path, false, &c, &e) == -damaged[_i].code, "%d: %s", e.code, e.msg);
	for (size_t i = 0; i < 3 && damaged[_i].says[i]; i++)
		ck_assert_msg(strstr(e.msg, damaged[_i].says[i]) != NULL, "%s", e.msg);
}
END_TEST

static void ignore_fault(void *arg, const struct ckpt_fault *f)
{
	(void)arg;
	(void)f;
}

START_LOOP_TEST(a_damaged_chunk_is_an_error_of_its_tensor, ARRAY_LEN(unreadable))
{
	char path[600];
	struct ckpt *c = NULL;
	struct ckpt_check check = { .data = true, .fault = ignore_fault };
	struct ckpt_err e = { 0 };
	uint64_t n;

	(void)snprintf(path, sizeof(path), "%s/orbax/%s/ckpt", data_dir(), unreadable[_i].name);
	ck_assert_msg(!open_at(path, false, &c, &e), "%s", e.msg);
	ck_assert_ptr_null(read_tensor(c, unreadable[_i].tensor, &n, &e));
	for (size_t i = 0; i < 2 && unreadable[_i].says[i]; i++)
		ck_assert_msg(strstr(e.msg, unreadable[_i].says[i]) != NULL, "%s", e.msg);
	ck_assert_int_eq(ckpt_check(c, &check, &e), 0);
	ck_assert_uint_gt(check.faults, 0);
	ckpt_close(c);
}
END_TEST

/* ---- stores made here ---- */

static void put_text(const char *name, const char *text)
{
	put_file(dir_fd, name, text, strlen(text));
}

static void put_buf(const char *name, struct buf *b)
{
	REQUIRE(!b->err);
	put_file(dir_fd, name, b->data, b->len);
	buf_release(b);
}

static void make(const char *name)
{
	ck_assert(!mkdirat(dir_fd, name, 0700));
}

#define ZARRAY(dtype, shape, chunks) \
	"{\"chunks\":" chunks ",\"compressor\":null,\"dtype\":\"" dtype \
	"\",\"fill_value\":null,\"filters\":null,\"order\":\"C\",\"shape\":" shape \
	",\"zarr_format\":2}"

static const char byte_of_two[] = ZARRAY("|u1", "[2]", "[2]");

/* A store in TOP ("" or "DIR/") with the array w, whose bytes are `text`, and one node. */
static void put_store(const char *top, const char *array, const char *text)
{
	char zarray[100], chunk[100], path[200];
	struct buf b = BUF_INIT(1 << 20);
	const struct ocdbt_path here = { 0, "root", 0 };
	const struct ocdbt_row rows[] = { { .rest = zarray, .text = byte_of_two },
					  { .rest = chunk, .text = text } };
	size_t n;

	(void)snprintf(zarray, sizeof(zarray), "%s/.zarray", array);
	(void)snprintf(chunk, sizeof(chunk), "%s/0", array);
	ocdbt_node(&b, 0, NULL, 0, rows, 2);
	n = b.len;
	(void)snprintf(path, sizeof(path), "%sroot", top);
	put_buf(path, &b);
	ocdbt_manifest(&b, 0, 1, 0, &here, 0, n);
	(void)snprintf(path, sizeof(path), "%smanifest.ocdbt", top);
	put_buf(path, &b);
}

/* "name name ", of tensors and then of objects. */
static const char *names_in(const char *sub)
{
	static char text[1000];
	char path[4200];
	struct ckpt *c = NULL;
	struct ckpt_err e = { 0 };
	struct ckpt_totals totals;
	size_t at = 0;

	(void)snprintf(path, sizeof(path), "%s%s", dir, sub);
	*text = 0;
	if (open_at(path, true, &c, &e)) {
		(void)snprintf(text, sizeof(text), "%s", e.msg);
		return text;
	}
	ckpt_totals(c, &totals);
	ck_assert_str_eq(totals.format, "orbax");
	for (uint64_t i = 0; i < totals.tensors + totals.objects; i++) {
		struct ckpt_tensor t;
		struct ckpt_object o;

		ckpt_tensor(c, i, &t);
		ckpt_object(c, i - totals.tensors, &o);
		at += (size_t)snprintf(text + at, sizeof(text) - at, "%s ",
				       i < totals.tensors ? t.fqn : o.fqn);
	}
	ckpt_close(c);
	return text;
}

#define EXPECT_NAMES(sub, want) ck_assert_str_eq(names_in(sub), want)
#define EXPECT_SAYS(sub, want) \
	ck_assert_msg(strstr(names_in(sub), want) != NULL, "%s", names_in(sub))

START_TEST(items_are_found_wherever_they_are)
{
	put_store("", "w", "ab"); /* the directory itself */
	EXPECT_NAMES("", "w ");
	make("300");
	make("300/default");
	put_store("300/default/", "a.b", "ab"); /* the step's only item, whose name is left off */
	EXPECT_NAMES("/300", "a.b ");
	EXPECT_NAMES("/300/default", "a.b ");
	make("300/metrics");
	put_text("300/metrics/metrics", "{}");
	make("300/dummy"); /* of something else */
	put_text("300/dummy/_METADATA", "dummy");
	put_text("300/_CHECKPOINT_METADATA", "{}");
	EXPECT_NAMES("/300", "a.b ");
	make("300/opt_7"); /* a name like that of a step, beside the step's own file */
	put_store("300/opt_7/", "m", "cd");
	EXPECT_NAMES("/300", "default.a.b opt_7.m ");
}
END_TEST

START_TEST(steps_are_a_run)
{
	make("run");
	make("run/300");
	make("run/ckpt_1000");
	make("run/400.orbax-checkpoint-tmp-17");
	put_store("run/300/", "w", "ab");
	make("run/ckpt_1000/state");
	put_store("run/ckpt_1000/state/", "w", "ab");
	put_store("run/400.orbax-checkpoint-tmp-17/", "w", "ab");
	put_text("run/_ROOT_METADATA", "{}");
	EXPECT_SAYS("/run", "it is a run with 2 checkpoints; name one, as in '");
	EXPECT_NAMES("/run/300", "w ");
	EXPECT_NAMES("/run/latest", "w ");
	EXPECT_SAYS("/run/400.orbax-checkpoint-tmp-17", "an Orbax save that has not finished");
	/* A step by itself, whatever it is called. */
	put_text("run/300/_CHECKPOINT_METADATA", "{}");
	ck_assert(!renameat(dir_fd, "run/300", dir_fd, "run/final"));
	EXPECT_NAMES("/run/final", "w ");
	EXPECT_SAYS("/run", "it is a run with 2 checkpoints");
}
END_TEST

START_TEST(what_is_not_finished_is_refused_with_its_reason)
{
	make("a");
	make("a/default");
	make("a/default/ocdbt.process_0");
	put_store("a/default/ocdbt.process_0/", "w", "ab");
	EXPECT_SAYS("/a", "'default/manifest.ocdbt' is missing");
	EXPECT_SAYS("/a/default", "'manifest.ocdbt' is missing");
	EXPECT_NAMES("/a/default/ocdbt.process_0", "w "); /* as asked for */
	make("b");
	make("b/default.orbax-checkpoint-tmp-1");
	put_text("b/_CHECKPOINT_METADATA", "{}");
	EXPECT_SAYS("/b", "'default.orbax-checkpoint-tmp-1' in it is an item whose save");
	make("c");
	make("c/metrics");
	put_text("c/_CHECKPOINT_METADATA", "{}");
	EXPECT_SAYS("/c", "none of its items has arrays");
}
END_TEST

/* A chunk without bytes would otherwise get those that follow it. */
START_TEST(a_plain_chunk_has_the_bytes_of_its_elements)
{
	static const struct {
		const char *text, *fault;
	} cases[] = {
		{ "ab", NULL },
		{ "", "its chunk 'w/0' has 0 bytes instead of 2" },
		{ "a", "its chunk 'w/0' has 1 bytes instead of 2" },
		{ "abc", "its chunk 'w/0' has 3 bytes instead of 2" },
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct ckpt *c = NULL;
		struct ckpt_err e = { 0 };
		struct ckpt_tensor t;

		put_store("", "w", cases[i].text);
		ck_assert_msg(!open_at(dir, true, &c, &e), "%s", e.msg);
		ckpt_tensor(c, 0, &t);
		ck_assert_pstr_eq(t.fault, cases[i].fault);
		ckpt_close(c);
	}
}
END_TEST

static void put_array(const char *path, const char *file, const char *metadata, const char *chunk)
{
	char name[200];

	make(path);
	(void)snprintf(name, sizeof(name), "%s/%s", path, file);
	put_text(name, metadata);
	(void)snprintf(name, sizeof(name), "%s/%s", path, chunk);
	put_text(name, "ab");
}

static const char v3_of_two[] =
	"{\"zarr_format\":3,\"node_type\":\"array\",\"shape\":[2],\"data_type\":\"uint8\","
	"\"chunk_grid\":{\"name\":\"regular\",\"configuration\":{\"chunk_shape\":[2]}},"
	"\"chunk_key_encoding\":{\"name\":\"v2\"},\"codecs\":[\"bytes\"],\"fill_value\":0}";

START_TEST(arrays_of_a_group_may_be_called_like_chunks)
{
	static const char group[] = "{\"zarr_format\":3,\"node_type\":\"group\"}";

	put_text("zarr.json", group);
	make("layers");
	put_text("layers/zarr.json", group);
	put_array("c", "zarr.json", v3_of_two, "0");
	put_array("0", "zarr.json", v3_of_two, "0");
	put_array("layers/0", "zarr.json", v3_of_two, "0");
	put_array("layers/10", ".zarray", byte_of_two, "0");
	EXPECT_NAMES("", "0 c layers/0 layers/10 ");
}
END_TEST

START_TEST(metadata_of_both_versions_is_one_array)
{
	put_array("w", ".zarray", byte_of_two, "0");
	put_text("w/zarr.json", v3_of_two);
	put_text("_METADATA", "{}");
	EXPECT_NAMES("", "w ");
}
END_TEST

START_TEST(arrays_beside_steps_do_not_hide_the_run)
{
	make("run");
	make("run/1");
	make("run/2");
	put_store("run/1/", "w", "ab");
	put_store("run/2/", "w", "ab");
	put_array("run/data", ".zarray", byte_of_two, "0");
	EXPECT_SAYS("/run", "it is a run with 3 checkpoints");
	make("run/more.zarr");
	put_text("run/more.zarr/.zgroup", "{}");
	put_array("run/more.zarr/x", ".zarray", byte_of_two, "0");
	EXPECT_SAYS("/run", "it is a run with 4 checkpoints");
	put_array("1", ".zarray", byte_of_two, "0"); /* not steps, but elements of a list */
	put_array("2", ".zarray", byte_of_two, "0");
	EXPECT_NAMES("", "1 2 run/data run/more.zarr/x ");
}
END_TEST

/* Chunks are written in place, so that the directory's time stays the same. */
START_TEST(a_repaired_chunk_is_noticed)
{
	char path[4200], index[4200];
	const struct ckpt_opts o = { .index = index, .allow_missing = true };
	const char *const text[] = { "a", "ab", "", "ab" };

	(void)snprintf(path, sizeof(path), "%s/c", dir);
	(void)snprintf(index, sizeof(index), "%s/index", dir);
	make("c");
	put_array("c/w", ".zarray", byte_of_two, "0");
	for (size_t i = 0; i < ARRAY_LEN(text); i++) {
		struct ckpt *c = NULL;
		struct ckpt_err e = { 0 };
		struct ckpt_tensor t;

		put_text("c/w/0", text[i]);
		ck_assert_msg(!open_typed(path, &o, &c, &e), "%s", e.msg);
		ckpt_tensor(c, 0, &t);
		ck_assert_msg((t.fault == NULL) == (strlen(text[i]) == 2), "%s: %s", text[i],
			      t.fault ? t.fault : "no fault");
		ckpt_close(c);
	}
}
END_TEST

/* The index of a shard is at its end, so where its chunks are depends on its length. */
START_TEST(a_shard_written_over_in_place_is_noticed)
{
	static const char zarr[] =
		"{\"zarr_format\":3,\"node_type\":\"array\",\"shape\":[2],\"data_type\":\"uint8\","
		"\"chunk_grid\":{\"name\":\"regular\",\"configuration\":{\"chunk_shape\":[2]}},"
		"\"chunk_key_encoding\":{\"name\":\"v2\"},\"codecs\":[{\"name\":\"sharding_"
		"indexed\","
		"\"configuration\":{\"chunk_shape\":[2],\"codecs\":[\"bytes\"],"
		"\"index_codecs\":[\"bytes\"]}}],\"fill_value\":0}";
	static const char shards[][33] = { "ab\0\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0",
					   "....cd\4\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0",
					   "..ef\2\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0" };
	static const size_t bytes[] = { 18, 22, 20 };
	char path[4200], index[4200];
	const struct ckpt_opts o = { .index = index };

	(void)snprintf(path, sizeof(path), "%s/c", dir);
	(void)snprintf(index, sizeof(index), "%s/index", dir);
	make("c");
	make("c/w");
	put_text("c/w/zarr.json", zarr);
	for (size_t i = 0; i < ARRAY_LEN(bytes); i++) {
		const char *want = shards[i] + bytes[i] - 18;
		struct ckpt *c = NULL;
		struct ckpt_err e = { 0 };
		autofree uint8_t *p = NULL;
		uint64_t n;

		put_file(dir_fd, "c/w/0", shards[i], bytes[i]);
		ck_assert_msg(!open_typed(path, &o, &c, &e), "%s", e.msg);
		p = read_tensor(c, "w", &n, &e);
		ck_assert_msg(p && n == 2, "%s", e.msg);
		ck_assert(!memcmp(p, want, 2));
		ckpt_close(c);
	}
}
END_TEST

START_TEST(arrays_are_found_below_names_with_slashes)
{
	make("default");
	make("default/a");
	make("default/a/b");
	put_text("default/_METADATA", "{}");
	put_array("default/a/b/w", ".zarray", byte_of_two, "0");
	EXPECT_NAMES("", "a/b/w ");
	EXPECT_NAMES("/default", "a/b/w ");
	put_text("_CHECKPOINT_METADATA", "{}");
	EXPECT_NAMES("", "a/b/w ");
}
END_TEST

static const char tree[] = "{\"tree_metadata\": {"
			   "\"('a', 'w')\": {\"key_metadata\": [{\"key\": \"a\", \"key_type\": 2}, "
			   "{\"key\": \"w\", \"key_type\": 2}],"
			   " \"value_metadata\": {\"value_type\": \"jax.Array\"}},"
			   "\"('s/x',)\": {\"key_metadata\": [{\"key\": \"s/x\", \"key_type\": 2}],"
			   " \"value_metadata\": {\"value_type\": \"string\"}},"
			   "\"('l', '0')\": {\"key_metadata\": [{\"key\": \"l\", \"key_type\": 2}, "
			   "{\"key\": \"0\", \"key_type\": 1}],"
			   " \"value_metadata\": {\"value_type\": \"jax.Array\"}},"
			   "\"('n',)\": {\"key_metadata\": [{\"key\": \"n\", \"key_type\": 2}],"
			   " \"value_metadata\": {\"value_type\": \"None\"}},"
			   "\"('c',)\": {\"key_metadata\": [{\"key\": \"c\", \"key_type\": 2}],"
			   " \"value_metadata\": {\"value_type\": \"my.Type\"}}"
			   "}}";

START_TEST(leaves_have_the_keys_of_the_tree)
{
	struct ckpt *c = NULL;
	struct ckpt_err e = { 0 };
	struct ckpt_step steps[4];
	struct ckpt_object o;

	put_store("", "a.w", "ab");
	put_text("_METADATA", tree);
	put_text("_strings.json", "{\"s\": {\"x\": \"hi\"}}");
	EXPECT_NAMES("", "a.w c l.0 s/x ");
	ck_assert_int_lt(open_at(dir, false, &c, &e), 0);
	ck_assert_msg(strstr(e.msg, "l.0") != NULL, "%s", e.msg);
	ck_assert_msg(!open_at(dir, true, &c, &e), "%s", e.msg);
	ck_assert_uint_eq(ckpt_tensor_path(c, 0, steps, 4), 2);
	ckpt_object(c, (uint64_t)ckpt_object_find(c, "c", 1), &o);
	ck_assert_str_eq(o.fault, "not supported: a leaf of type 'my.Type'");
	ckpt_object(c, (uint64_t)ckpt_object_find(c, "l.0", 3), &o);
	ck_assert_str_eq(o.fault, "_METADATA lists it, but there is no such array");
	ckpt_close(c);
}
END_TEST

START_TEST(flax_files_are_opened_by_name_or_directory)
{
	static const char map[] = "\x81\xa1"
				  "w\xc7\x0d\1\x93\x91\x02\xa5uint8\xc4\x02"
				  "ab";

	put_file(dir_fd, "flax_model.msgpack", map, sizeof(map) - 1);
	EXPECT_NAMES("", "w ");
	EXPECT_NAMES("/flax_model.msgpack", "w ");
	ck_assert(!renameat(dir_fd, "flax_model.msgpack", dir_fd, "checkpoint_3"));
	EXPECT_NAMES("", "w ");
	put_file(dir_fd, "checkpoint_20", map, sizeof(map) - 1);
	EXPECT_SAYS("", "'checkpoint_3' and 'checkpoint_20' are two checkpoints");
	EXPECT_NAMES("/checkpoint_20", "w ");
	put_file(dir_fd, "checkpoint_20", map, sizeof(map) - 2);
	EXPECT_SAYS("/checkpoint_20", "read 'checkpoint_20': msgpack: ");
}
END_TEST

/* T5X describes arrays in msgpack, and in 2021 wrote no .zarray. */
START_TEST(arrays_are_read_as_msgpack_describes_them)
{
	static const char spec[] = "\x83\xa1"
				   "a\x84\xa6"
				   "driver\xa4"
				   "zarr\xa5"
				   "dtype\xa5uint8\xa7kvstore\x81\xa4path\xa6x/t.a/"
				   "\xa8metadata\x82\xa5shape\x81\xa1"
				   "0\x02\xa6"
				   "chunks\x81\xa1"
				   "0\x01\xa1"
				   "b\xb1PLACEHOLDER://t.b\xa1"
				   "c\xb1PLACEHOLDER://t.c";
	autofree uint8_t *p = NULL;
	struct ckpt *c = NULL;
	struct ckpt_err e = { 0 };
	struct ckpt_object o;
	uint64_t n;

	put_file(dir_fd, "checkpoint", spec, sizeof(spec) - 1);
	make("t.a");
	put_text("t.a/0", "x");
	put_text("t.a/1", "y");
	make("t.b");
	put_text("t.b/.zarray", byte_of_two);
	put_text("t.b/0", "zz");
	EXPECT_NAMES("", "t.a t.b c ");
	ck_assert_msg(!open_at(dir, true, &c, &e), "%s", e.msg);
	p = read_tensor(c, "t.a", &n, &e);
	ck_assert_msg(p && n == 2 && !memcmp(p, "xy", 2), "%s", e.msg);
	ckpt_object(c, 0, &o);
	ck_assert_str_eq(o.fault, "it is in the array 't.c' beside the file, which is missing");
	ckpt_close(c);
}
END_TEST

/* ---- hostile trees ---- */

static size_t put_leaf(struct buf *b, const char *key)
{
	const struct ocdbt_row row = { .rest = key, .text = "" };
	size_t at = b->len;

	ocdbt_node(b, 0, NULL, 0, &row, 1);
	return b->len - at;
}

static const struct ocdbt_path nodes[] = { { 0, "nodes", 0 } };

/* Interior nodes with two entries for the same child: 2^60 leaves, whose keys would increase. */
START_TEST(a_tree_that_unfolds_without_end_is_refused)
{
	struct buf b = BUF_INIT(1 << 20), m = BUF_INIT(1 << 20);
	size_t at = 0, len = put_leaf(&b, "x");
	unsigned height;

	for (height = 1; height < 60; height++) {
		const struct ocdbt_row rows[] = {
			{ .rest = "a", .common = 1, .offset = at, .length = len },
			{ .rest = "b", .common = 1, .offset = at, .length = len },
		};

		at = b.len;
		ocdbt_node(&b, height, nodes, 1, rows, 2);
		len = b.len - at;
	}
	put_buf("nodes", &b);
	ocdbt_manifest(&m, 0, 1, height - 1, nodes, at, len);
	put_buf("manifest.ocdbt", &m);
	EXPECT_SAYS("", "MiB");
}
END_TEST

START_TEST(children_are_what_their_parents_say)
{
	struct buf b = BUF_INIT(1 << 20), m = BUF_INIT(1 << 20);
	size_t leaf = put_leaf(&b, "k"), at = b.len, len;
	const struct ocdbt_row high[] = { { .rest = "pl", .common = 1, .length = leaf } };
	const struct ocdbt_row itself[] = { { .rest = "k", .offset = at, .length = 10 } };
	const struct ocdbt_row beyond[] = { { .rest = "k", .offset = 1 << 20, .length = 10 } };
	const struct {
		unsigned height;
		const struct ocdbt_row *row;
		const char *says;
	} wrong[] = {
		{ 1, high, "keys from 'pl' on: B+tree node: its first key is below" },
		{ 2, high, "B+tree node: its height is 0, and should be 1" },
		{ 1, itself, "B+tree node: it " },
		{ 1, beyond, "it needs 10 bytes at 1048576, but the file has " },
	};

	for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
		b.len = at;
		ocdbt_node(&b, wrong[i].height, nodes, 1, wrong[i].row, 1);
		len = b.len - at;
		put_file(dir_fd, "nodes", b.data, b.len);
		buf_restart(&m);
		ocdbt_manifest(&m, 0, 1, wrong[i].height, nodes, at, len);
		put_file(dir_fd, "manifest.ocdbt", m.data, m.len);
		EXPECT_SAYS("", wrong[i].says);
		buf_restart(&m);
		ocdbt_manifest(&m, 0, 1, wrong[i].height + 1, nodes, at, len);
		put_file(dir_fd, "manifest.ocdbt", m.data, m.len);
		EXPECT_SAYS("", "its height is ");
	}
	buf_release(&b);
	buf_release(&m);
}
END_TEST

/* ---- msgpack ---- */

static void put_msgpack(const char *name, const char *text)
{
	struct buf b = BUF_INIT(1 << 20);

	msgpack_put(&b, text);
	put_buf(name, &b);
}

/* "name[shape] ", " name=JSON" of objects, "name!FAULT" of what is missing; or why it is not
 * opened. */
static const char *shown(const char *sub)
{
	static char text[3000];
	char path[4200];
	struct ckpt *c = NULL;
	struct ckpt_err e = { 0 };
	struct ckpt_totals totals;
	struct buf b = BUF_INIT(sizeof(text) - 1);

	(void)snprintf(path, sizeof(path), "%s%s", dir, sub);
	if (open_at(path, true, &c, &e)) {
		(void)snprintf(text, sizeof(text), "%s", e.msg);
		return text;
	}
	ckpt_totals(c, &totals);
	buf_str(&b, "");
	for (uint64_t i = 0; i < totals.tensors; i++) {
		struct ckpt_tensor t;

		ckpt_tensor(c, i, &t);
		buf_str(&b, t.fqn);
		buf_json_u64s(&b, t.shape, t.n_dims);
		buf_printf(&b, "%s%s ", t.fault ? "!" : "", t.fault ? t.fault : "");
	}
	for (uint64_t i = 0; i < totals.objects; i++) {
		struct ckpt_object o;
		char *json = NULL;
		size_t n;

		ckpt_object(c, i, &o);
		if (o.fault) {
			buf_printf(&b, "%s!%s ", o.fqn, o.fault);
			continue;
		}
		ck_assert_msg(!ckpt_object_json(c, i, &json, &n, &e), "%s", e.msg);
		buf_printf(&b, "%s=%.*s ", o.fqn, (int)n - 1, json);
		free(json);
	}
	REQUIRE(!b.err);
	(void)snprintf(text, sizeof(text), "%s", b.data);
	buf_release(&b);
	ckpt_close(c);
	return text;
}

#define EXPECT_SHOWN(sub, want)	  ck_assert_str_eq(shown(sub), want)
#define EXPECT_REFUSED(sub, want) ck_assert_msg(strstr(shown(sub), want) != NULL, "%s", shown(sub))

#define CHUNKED(shape, chunks) \
	"{'w': {'__msgpack_chunked_array__': T, 'shape': " shape ", 'chunks': " chunks "}}"
#define NO_NUMBERS "array 'w': it has no shape, or no numbered pieces"
#define NO_ARRAY   "w!not supported: a value that is neither an array, a number nor a text "

START_TEST(values_of_msgpack_are_objects)
{
	static const struct {
		const char *text, *want;
	} v[] = {
		{ "{'w': @uint8(2,3)}", "w[2,3] " },
		{ "{'w': {'x': [@uint8(1), @bfloat16()]}, 'n': N}", "w.x.0[1] w.x.1[] " },
		{ "{'w': @int8(0,9)}", "w[0,9] " },
		{ "{'a': T, 'b': F, 'c': -5, 'd': 1.5, 'e': 'x\"', 'f': u18446744073709551615}",
		  "a=true b=false c=-5 d=1.5 e=\"x\\\"\" f=18446744073709551615 " },
		{ "{'a': c1.5,-2, 'b': c1,inf, 'c': nan}",
		  "a=[1.5, -2] b=[1, \"inf\"] c=\"nan\" " },
		{ "{'w': b5}", NO_ARRAY },
		{ "{'w': x}", NO_ARRAY },
		{ "{'w': @strange(2)8}", "w!not supported: dtype 'strange' " },
		{ CHUNKED("{'0': 4}", "{'0': @uint8(2), '1': @uint8(1,2)}"), "w[4] " },
		{ CHUNKED("{'1': 3, '0': 2}", "{'1': @uint8(1), '0': @uint8(5), '2': @uint8(0)}"),
		  "w[2,3] " },
		{ CHUNKED("{}", "{'0': @uint8(1)}"), "w[] " },
		{ CHUNKED("{'0': 0}", "{'0': @uint8(0)}"), "w[0] " },
		{ CHUNKED("{'0': 1}", "{'0': @strange(1)1}"), "w!not supported: dtype 'strange' " },
		{ "{'w': 'PLACEHOLDER://w'}",
		  "w!it is in the array 'w' beside the file, which is missing " },
		{ "{'w': {'driver': 'zarr', 'kvstore': {'path': 'a/b//'}}}",
		  "w!it is in the array 'b' beside the file, which is missing " },
		{ "{'w': {'driver': 'zarr', 'kvstore': {'path': 'b'}}}",
		  "w!it is in the array 'b' beside the file, which is missing " },
		{ "{'w': {'driver': 'zarr', 'kvstore': {'path': '/'}}}",
		  "w!it is in the array '' beside the file, which is missing " },
		/* These only look like a reference to an array. */
		{ "{'w': {'driver': 'zarr', 'kvstore': {'path': 5}}}",
		  "w.driver=\"zarr\" w.kvstore.path=5 " },
		{ "{'w': {'driver': 'file', 'kvstore': {'path': 'x'}}}",
		  "w.driver=\"file\" w.kvstore.path=\"x\" " },
		{ "{'w': {'driver': 5}}", "w.driver=5 " },
	};

	for (size_t i = 0; i < ARRAY_LEN(v); i++) {
		put_msgpack("flax_model.msgpack", v[i].text);
		EXPECT_SHOWN("", v[i].want);
	}
}
END_TEST

START_TEST(arrays_of_msgpack_that_contradict_themselves_are_refused)
{
	static const struct {
		const char *text, *says;
	} v[] = {
		{ "{'w': @float32(2)7}",
		  "array 'w': it does not have as many bytes as its shape needs" },
		{ "{'w': @float32(9223372036854775807,9)8}", "array 'w': its shape is impossible" },
		{ "{'w': @float64(4611686018427387904)8}",
		  "array 'w': it does not have as many bytes as its shape needs" },
		{ CHUNKED("5", "{'0': @uint8(2)}"), NO_NUMBERS },
		{ CHUNKED("{'0': 2}", "5"), NO_NUMBERS },
		{ CHUNKED("{'0': 2}", "{}"), NO_NUMBERS },
		{ CHUNKED("{'0': 2}", "[@uint8(2)]"), NO_NUMBERS },
		{ CHUNKED("{'0': 2}", "{'x': @uint8(2)}"), NO_NUMBERS },
		{ CHUNKED("{'0': 2}", "{'0x': @uint8(2)}"), NO_NUMBERS },
		{ CHUNKED("{'0': 2}", "{'1': @uint8(2)}"), NO_NUMBERS },
		{ CHUNKED("{'0': 2, '00': 1}", "{'0': @uint8(2)}"), NO_NUMBERS },
		{ CHUNKED("{'0': 'x'}", "{'0': @uint8(2)}"),
		  "array 'w': its shape does not consist of numbers" },
		{ CHUNKED("{'0': -2}", "{'0': @uint8(2)}"),
		  "array 'w': its shape does not consist of numbers" },
		{ CHUNKED("{'0': 2}", "{'0': 5}"), "array 'w': a piece of it is not an array" },
		{ CHUNKED("{'0': 2}", "{'0': @uint8(1), '1': @int8(1)}"),
		  "array 'w': its pieces have several dtypes" },
		{ CHUNKED("{'0': 2}", "{'0': @uint8(1), '1': @uint8(1)2}"),
		  "array 'w': it does not have as many bytes as its shape needs" },
		{ CHUNKED("{'0': 2}", "{'0': @uint8(1), '1': @uint8(2)}"),
		  "array 'w': its pieces have more elements than it has" },
		{ CHUNKED("{'0': 2}", "{'0': @uint8(1)}"),
		  "array 'w': its pieces have fewer elements than it has" },
		{ CHUNKED("{'0': 9223372036854775807, '1': 9}", "{'0': @uint8(1)}"),
		  "array 'w': its shape is impossible" },
		{ "{'w': @uint8(-1)0}", "is not a shape, a dtype and bytes" },
	};
	struct buf b = BUF_INIT(1 << 20);

	for (size_t i = 0; i < ARRAY_LEN(v); i++) {
		put_msgpack("flax_model.msgpack", v[i].text);
		EXPECT_REFUSED("", v[i].says);
	}
	/* More dimensions than are allowed. */
	buf_str(&b, "{'w': {'__msgpack_chunked_array__': T, 'shape': {");
	for (unsigned i = 0; i <= CKPT_MAX_DIMS; i++)
		buf_printf(&b, "'%u': 1,", i);
	buf_str(&b, "}, 'chunks': {'0': @uint8(1)}}}");
	put_msgpack("flax_model.msgpack", b.data);
	EXPECT_REFUSED("", NO_NUMBERS);
	b.len = 0;
	buf_str(&b, "{'w': @uint8(");
	for (unsigned i = 0; i <= CKPT_MAX_DIMS; i++)
		buf_str(&b, "1,");
	buf_str(&b, ")}");
	put_msgpack("flax_model.msgpack", b.data);
	EXPECT_REFUSED("", "dimensions");
	/* A name that is too long, and one nested too deep. */
	b.len = 0;
	buf_str(&b, "{'a': {'");
	for (unsigned i = 0; i < 65535; i++)
		buf_str(&b, "x");
	buf_str(&b, "': 1}}");
	put_msgpack("flax_model.msgpack", b.data);
	EXPECT_REFUSED("", "a name has more than 65535 bytes");
	buf_release(&b);
}
END_TEST

/* In 2021 T5X wrote no .zarray. */
START_TEST(descriptions_of_t5x)
{
#define SPEC(dtype, about) \
	"{'w': {'driver': 'zarr', 'dtype': " dtype \
	", 'kvstore': {'path': 'x/a'}, 'metadata': {" about "}}}"
#define TWO "'shape': {'0': 2}, 'chunks': {'0': 2}"
	static const struct {
		const char *text, *want;
	} v[] = {
		{ SPEC("'uint8'", TWO), "a[2] " },
		{ SPEC("'uint8'", "'shape': [2], 'chunks': [1]"), "a[2] " },
		{ SPEC("'uint8'", "'shape': [], 'chunks': []"), "a[] " },
		{ SPEC("'uint8'", TWO ", 'compressor': {'id': 'zlib'}"), "a[2] " },
		{ SPEC("'uint8'", TWO ", 'compressor': {'id': 5}"), "a[2] " },
		{ SPEC("'uint8'", TWO ", 'compressor': N"), "a[2] " },
		{ SPEC("'bfloat16'", "'shape': {'0': 1}, 'chunks': {'0': 1}"), "a[1] " },
		{ SPEC("'strange'", TWO), "?a!not supported: the dtype 'strange'" },
		{ SPEC("5", TWO), "?a!not supported: the dtype ''" },
		{ SPEC("'uint8'", "'shape': {'1': 2}, 'chunks': {'0': 2}"),
		  "?the description of array 'a'" },
		{ SPEC("'uint8'", "'shape': 5, 'chunks': {'0': 2}"),
		  "?the description of array 'a'" },
		{ SPEC("'uint8'", "'shape': {'0': 2}"), "?the description of array 'a'" },
		{ SPEC("'uint8'", "'shape': ['x'], 'chunks': [1]"),
		  "?the description of array 'a'" },
	};
	struct buf b = BUF_INIT(1 << 20);

	make("a");
	put_text("a/0", "xy");
	for (size_t i = 0; i < ARRAY_LEN(v); i++) {
		put_msgpack("checkpoint", v[i].text);
		if (*v[i].want == '?')
			EXPECT_REFUSED("", v[i].want + 1);
		else
			EXPECT_NAMES("", "a ");
	}
	for (int list = 0; list < 2; list++) {
		b.len = 0;
		buf_printf(&b,
			   "{'w': {'driver': 'zarr', 'dtype': 'uint8', 'kvstore': {'path': 'a'}, "
			   "'metadata':"
			   " {'chunks': [1], 'shape': %s",
			   list ? "[" : "{");
		for (unsigned i = 0; i <= CKPT_MAX_DIMS; i++)
			buf_printf(&b, list ? "1," : "'%u': 1,", i);
		buf_str(&b, list ? "]}}}" : "}}}}");
		put_msgpack("checkpoint", b.data);
		EXPECT_REFUSED("", "the description of array 'a'");
	}
	buf_release(&b);
}
END_TEST

START_TEST(items_with_msgpack_have_their_names_in_front)
{
	make("a");
	make("b");
	put_text("_CHECKPOINT_METADATA", "{}");
	put_msgpack("a/checkpoint", "{'w': @uint8(2), 'o': 5, 'p': 'PLACEHOLDER://v'}");
	put_array("a/v", ".zarray", byte_of_two, "0");
	put_msgpack("b/checkpoint", "{'w': {'x': @uint8(2)}}");
	EXPECT_SHOWN("", "a.v[2] a.w[2] b.w.x[2] a.o=5 ");
	put_text("a/_METADATA",
		 "{\"tree_metadata\": {\"w\": {\"key_metadata\": [{\"key\": \"w\", \"key_type\": "
		 "2}]},"
		 " \"y\": {\"key_metadata\": [{\"key\": \"y\", \"key_type\": 2}]},"
		 " \"z\": {\"key_metadata\": [{\"key\": \"y\", \"key_type\": 2}]}}}");
	EXPECT_SHOWN(
		"",
		"a.v[2] a.w[2] b.w.x[2] a.o=5 a.y!_METADATA lists it, but there is no such array ");
	put_text("a/checkpoint", "x");
	EXPECT_NAMES("", "a.v b.w.x a.w a.y ");
}
END_TEST

/* Nothing else tells of it. */
START_TEST(an_array_that_lost_its_metadata_is_told)
{
	static const char fault[] = "!its .zarray or zarr.json is missing, but it has chunks ";
	char want[400];

	put_array("a", ".zarray", byte_of_two, "0");
	make("b");
	put_text("b/0", "ab");
	put_text("b/1", "ab");
	make("l");
	make("l/0");
	put_text("l/0/0.0", "ab");
	make("v");
	make("v/c");
	make("v/c/0");
	make("v/c/1");
	put_text("v/c/0/0", "ab");
	put_text("v/c/1/0", "ab");
	make("b.sync");
	put_text("b.sync/0", "");
	make(".x");
	put_text(".x/0", "");
	make("g");
	put_text("g/.zgroup", "{}");
	put_text("g/0", "");
	make("n");
	put_text("n/0.x", "");
	put_text("n/0..0", "");
	put_text("7", "");
	(void)snprintf(want, sizeof(want), "a[2] b%sl/0%sv%s", fault, fault, fault);
	EXPECT_SHOWN("", want);
}
END_TEST

START_TEST(an_array_of_a_store_that_lost_its_metadata_is_told)
{
	static const char fault[] = "!its .zarray or zarr.json is missing, but it has chunks ";
	static const char v3[] =
		"{\"zarr_format\":3,\"node_type\":\"array\",\"shape\":[2],\"data_type\":\"uint8\","
		"\"chunk_grid\":{\"name\":\"regular\",\"configuration\":{\"chunk_shape\":[2]}},"
		"\"chunk_key_encoding\":{\"name\":\"default\"},\"codecs\":[\"bytes\"],"
		"\"fill_value\":0}";
	struct buf b = BUF_INIT(1 << 20);
	const struct ocdbt_path here = { 0, "root", 0 };
	const struct ocdbt_row rows[] = {
		{ .rest = "0", .text = "x" },	       { .rest = "a/.zarray", .text = byte_of_two },
		{ .rest = "a/0", .text = "ab" },       { .rest = "b/0.0", .text = "ab" },
		{ .rest = "b/0.1", .text = "ab" },     { .rest = "d/c/0", .text = "ab" },
		{ .rest = "d/zarr.json", .text = v3 }, { .rest = "info", .text = "x" },
		{ .rest = "n/0-1", .text = "x" },      { .rest = "v/c/0/0", .text = "ab" },
		{ .rest = "v/c/1/0", .text = "ab" },
	};
	const struct ocdbt_row only[] = { { .rest = "w/0", .text = "ab" } };
	char want[400];
	size_t n;

	ocdbt_node(&b, 0, NULL, 0, rows, ARRAY_LEN(rows));
	n = b.len;
	put_buf("root", &b);
	ocdbt_manifest(&b, 0, 1, 0, &here, 0, n);
	put_buf("manifest.ocdbt", &b);
	(void)snprintf(want, sizeof(want), "a[2] d[2] b%sv%s", fault, fault);
	EXPECT_SHOWN("", want);
	/* An item that has nothing else. */
	make("s");
	make("s/a");
	make("s/b");
	put_text("s/_CHECKPOINT_METADATA", "{}");
	put_store("s/a/", "w", "ab");
	ocdbt_node(&b, 0, NULL, 0, only, 1);
	n = b.len;
	put_buf("s/b/root", &b);
	ocdbt_manifest(&b, 0, 1, 0, &here, 0, n);
	put_buf("s/b/manifest.ocdbt", &b);
	(void)snprintf(want, sizeof(want), "a.w[2] b.w%s", fault);
	EXPECT_SHOWN("/s", want);
}
END_TEST

/* It must not vanish, nor the others lose its name in front of theirs. */
START_TEST(an_item_that_lost_its_manifest_is_told)
{
	static const char file[] = "s/opt/d/0123456789abcdef0123456789abcdef";

	make("s");
	make("s/params");
	put_store("s/params/", "w", "ab");
	make("s/opt");
	put_text("s/_CHECKPOINT_METADATA", "{}");
	put_text("s/opt/_METADATA",
		 "{\"tree_metadata\": {\"m\": {\"key_metadata\": [{\"key\": \"m\", \"key_type\": "
		 "2}], \"value_metadata\": {\"value_type\": \"jax.Array\"}}}}");
	EXPECT_SHOWN("/s", "params.w[2] opt.m!_METADATA lists it, but there is no such array ");
	make("s/opt/d");
	EXPECT_NAMES("/s", "params.w opt.m ");
	put_text(file, "x");
	EXPECT_SAYS("/s", "'opt/manifest.ocdbt' is missing, but data files that it describes are "
			  "there (d/): the save has not finished, or the file was lost");
	EXPECT_SAYS("/s/opt", "'manifest.ocdbt' is missing, but data files");
	REQUIRE(!unlinkat(dir_fd, "s/opt/_METADATA", 0));
	EXPECT_SAYS("/s", "'opt/manifest.ocdbt' is missing, but data files");
	REQUIRE(!unlinkat(dir_fd, "s/_CHECKPOINT_METADATA", 0));
	EXPECT_NAMES("/s", "w "); /* of something else */
	/* An array may be called d. */
	REQUIRE(!unlinkat(dir_fd, file, 0) && !unlinkat(dir_fd, "s/opt/d", AT_REMOVEDIR));
	put_text("s/_CHECKPOINT_METADATA", "{}");
	put_array("s/opt/d", ".zarray", byte_of_two, "0");
	EXPECT_NAMES("/s", "opt.d params.w ");
}
END_TEST

START_TEST(shards_of_a_flax_model_are_one)
{
	put_msgpack("flax_model-00001-of-00002.msgpack", "{'a': @uint8(2)}");
	put_msgpack("flax_model-00002-of-00002.msgpack", "{'b': @uint8(2)}");
	put_msgpack("other.msgpack", "{'c': @uint8(2)}");
	EXPECT_NAMES("", "a b ");
	EXPECT_NAMES("/other.msgpack", "c ");
	put_msgpack("flax_model.msgpack", "{'d': @uint8(2)}");
	EXPECT_NAMES("", "d ");
	put_text("checkpoint_3", "x"); /* of something else */
	put_text("checkpoint_4", "x");
	EXPECT_NAMES("", "d ");
	put_text("flax_model.msgpack", "\1");
	EXPECT_SAYS("",
		    "it is a directory with a file that is named like a Flax checkpoint (msgpack), "
		    "but does not begin like one ('checkpoint_3' is in it)");
	REQUIRE(!unlinkat(dir_fd, "checkpoint_3", 0) && !unlinkat(dir_fd, "checkpoint_4", 0));
	EXPECT_SAYS("", "does not begin like one ('flax_model.msgpack' is in it)");
	put_text("flax_model.msgpack", "[5]");
	EXPECT_SAYS("",
		    "'flax_model.msgpack': it is a text, as servers send instead of a file: '[5]'");
	REQUIRE(!unlinkat(dir_fd, "flax_model.msgpack", 0));
	put_text("flax_model-00002-of-00002.msgpack", "[5]");
	EXPECT_SAYS("", "'flax_model-00002-of-00002.msgpack' does not begin like a Flax checkpoint "
			"(msgpack), as 'flax_model-00001-of-00002.msgpack' does: save or download "
			"it again");
}
END_TEST

START_TEST(missing_shards_of_a_flax_model_are_told)
{
	put_msgpack("flax_model-00001-of-00003.msgpack", "{'a': @uint8(2)}");
	put_msgpack("flax_model-00002-of-00003.msgpack", "{'b': {'c': @uint8(2)}}");
	EXPECT_SAYS("", "'flax_model-00003-of-00003.msgpack' is missing: the model is in 3 files; "
			"add the file, or name one of the others");
	EXPECT_NAMES("/flax_model-00001-of-00003.msgpack", "a ");
	put_msgpack("flax_model-00003-of-00003.msgpack", "{'d': @uint8(2)}");
	EXPECT_NAMES("", "a b.c d ");
	REQUIRE(!unlinkat(dir_fd, "flax_model-00001-of-00003.msgpack", 0));
	EXPECT_SAYS("", "'flax_model-00001-of-00003.msgpack' is missing: the model is in 3 files");
	put_msgpack("flax_model-00001-of-00002.msgpack", "{'a': @uint8(2)}");
	EXPECT_SAYS("", "'flax_model-00001-of-00002.msgpack' and "
			"'flax_model-00002-of-00003.msgpack' are of two saves");
}
END_TEST

/* Others, of an earlier save, are not read. */
START_TEST(an_index_names_the_shards_of_a_flax_model)
{
	static const char first[] = "flax_model-00001-of-00002.msgpack";

	put_msgpack(first, "{'a': @uint8(2)}");
	put_msgpack("flax_model-00001-of-00003.msgpack", "{'old': @uint8(2)}");
	put_text("flax_model.msgpack.index.json",
		 "{\"weight_map\": {\"a\": \"flax_model-00001-of-00002.msgpack\", \"b/c\": "
		 "\"flax_model-00002-of-00002.msgpack\"}}");
	EXPECT_SHOWN("",
		     "a[2] b.c!a tensor of 'flax_model-00002-of-00002.msgpack', which is missing ");
	put_msgpack("flax_model-00002-of-00002.msgpack", "{'b': {'c': @uint8(2)}}");
	EXPECT_SHOWN("", "a[2] b.c[2] ");
	put_msgpack("flax_model-00002-of-00002.msgpack", "{'b': {'d': @uint8(2)}}");
	EXPECT_SHOWN("",
		     "a[2] b.d[2] b.c!the index places it in 'flax_model-00002-of-00002.msgpack', "
		     "which lacks it ");
	REQUIRE(!unlinkat(dir_fd, first, 0));
	REQUIRE(!unlinkat(dir_fd, "flax_model-00002-of-00002.msgpack", 0));
	EXPECT_SAYS("", "'flax_model-00001-of-00002.msgpack', which "
			"'flax_model.msgpack.index.json' names, is missing, and so are all others");
	put_text("flax_model.msgpack.index.json", "{\"weight_map\": {\"a\": \"../x\"}}");
	EXPECT_SAYS("", "weight_map: 'a'");
	put_msgpack("flax_model.msgpack", "{'d': @uint8(2)}"); /* the model in one file */
	EXPECT_NAMES("", "d ");
}
END_TEST

/* ---- leaves ---- */

START_TEST(odd_leaves_are_refused)
{
#define LEAF(v) "{\"tree_metadata\": {\"('w',)\": " v "}}"
#define KEYS(v) \
	LEAF("{\"key_metadata\": [" v "], \"value_metadata\": {\"value_type\": \"string\"}}")
	static const struct {
		const char *text, *want;
	} v[] = {
		{ LEAF("{}"), "?'_METADATA': leaf '('w',)': it has no key_metadata" },
		{ LEAF("5"), "?leaf '('w',)': it has no key_metadata" },
		{ LEAF("{\"key_metadata\": 5}"), "?leaf '('w',)': it has no key_metadata" },
		{ KEYS("5"), "?leaf '('w',)': a key is not a string" },
		{ KEYS("{\"key\": 5}"), "?leaf '('w',)': a key is not a string" },
		{ KEYS("{\"key\": \"s\"}"), "w[2] s=\"S\" " },
		{ KEYS("{\"key\": \"m\"}, {\"key\": \"~/x\"}"),
		  "w[2] m.~/x!_METADATA lists it as a string, but _strings.json lacks it " },
		{ KEYS("{\"key\": \"m~0/~1a~\"}"), "w[2] m~0/~1a~=\"M\" " },
		{ KEYS("{\"key\": \"n\"}"),
		  "w[2] n!_METADATA lists it as a string, but _strings.json lacks it " },
		{ KEYS("{\"key\": \"s/t\"}"),
		  "w[2] s/t!_METADATA lists it as a string, but _strings.json lacks it " },
		{ KEYS(""), "w[2] !_METADATA lists it as a string, but _strings.json lacks it " },
		{ "{\"tree_metadata\": 5}", "w[2] " },
		{ "[", "?_METADATA" },
	};
	struct buf b = BUF_INIT(1 << 20);

	put_store("", "w", "ab");
	put_text("_strings.json", "{\"s\": \"S\", \"m~\": {\"/a~\": \"M\"}, \"n\": 5}");
	for (size_t i = 0; i < ARRAY_LEN(v); i++) {
		put_text("_METADATA", v[i].text);
		if (*v[i].want == '?')
			EXPECT_REFUSED("", v[i].want + 1);
		else
			EXPECT_SHOWN("", v[i].want);
	}
	/* A key longer than any in _strings.json, which makes a name that is too long; and one too
	 * deep. */
	for (unsigned n = 2000; n < 70000; n += 65000) {
		b.len = 0;
		buf_str(&b, "{\"tree_metadata\": {\"x\": {\"key_metadata\": [{\"key\": \"");
		for (unsigned i = 0; i < n; i++)
			buf_str(&b, "k");
		buf_str(&b, "\"}], \"value_metadata\": {\"value_type\": \"string\"}}}}");
		put_text("_METADATA", b.data);
		EXPECT_REFUSED("", n < 3000 ? "kkk!_METADATA lists it as a string"
					    : "a name has more than 65535 bytes");
	}
	b.len = 0;
	buf_str(&b, "{\"tree_metadata\": {\"x\": {\"key_metadata\": [");
	for (unsigned i = 0; i < 257; i++)
		buf_printf(&b, "%s{\"key\": \"k\"}", i ? "," : "");
	buf_str(&b, "]}}}");
	put_text("_METADATA", b.data);
	EXPECT_REFUSED("", "is nested more than 256 deep");
	put_text("_METADATA", KEYS("{\"key\": \"s\"}"));
	put_text("_strings.json", "[");
	EXPECT_REFUSED("", "_strings.json");
	buf_release(&b);
}
END_TEST

/* ---- directories of arrays ---- */

START_TEST(links_lead_to_arrays_once)
{
	make("run");
	make("run/a");
	make("run/elsewhere");
	put_text("run/_METADATA", "{}");
	put_array("run/elsewhere/w", ".zarray", byte_of_two, "0");
	ck_assert(!symlinkat("../elsewhere", dir_fd, "run/a/link"));
	EXPECT_NAMES("/run", "a/link/w elsewhere/w ");
	ck_assert(!symlinkat("w", dir_fd, "run/elsewhere/again"));
	EXPECT_SAYS("/run", "a link to a directory in one that is itself reached by a link");
	ck_assert(!unlinkat(dir_fd, "run/elsewhere/again", 0));
	ck_assert(!symlinkat("/etc", dir_fd, "run/a/etc"));
	EXPECT_REFUSED("/run", "open 'a/etc': refused, a link leads out of the checkpoint");
}
END_TEST

START_TEST(directories_are_not_deeper_than_128)
{
	char path[600] = "d";

	put_text("_METADATA", "{}");
	put_array("w", ".zarray", byte_of_two, "0");
	make("d");
	for (unsigned i = 0; i < 127; i++) {
		strcat(path, "/d");
		make(path);
	}
	EXPECT_NAMES("", "w ");
	strcat(path, "/d");
	make(path);
	EXPECT_REFUSED("", "more than 128 directories deep");
}
END_TEST

START_TEST(metadata_of_an_array_is_not_without_end)
{
	char path[4200];

	put_text("_METADATA", "{}");
	put_array("w", ".zarray", byte_of_two, "0");
	put_array("v", ".zarray", byte_of_two, "0");
	(void)snprintf(path, sizeof(path), "%s/w/.zarray", dir);
	ck_assert(!truncate(path, (64 << 20) + 1)); /* sparse */
	EXPECT_REFUSED("", "'w/.zarray' has more than ");
}
END_TEST

START_TEST(what_is_no_chunk_of_an_array_may_lie_beside_them)
{
	make("w");
	put_text("w/.zarray", byte_of_two);
	put_text("w/0", "ab");
	put_text("w/.5", "x");
	put_text("w/0.tmp", "x");
	put_text("w/note", "x");
	make("w/c");
	put_text("w/c/0", "x");
	EXPECT_NAMES("", "w ");
}
END_TEST

/* ---- manifests ---- */

START_TEST(numbered_manifests_are_of_their_store)
{
	static const char name[] = "manifest.0000000000000002";
	struct buf b = BUF_INIT(1 << 20), m = BUF_INIT(1 << 20);
	const struct ocdbt_path here = { 0, "root", 0 };
	const struct ocdbt_row row = { .rest = "w/.zarray", .text = byte_of_two };
	size_t n;

	ocdbt_node(&b, 0, NULL, 0, &row, 1);
	n = b.len;
	put_buf("root", &b);
	ocdbt_manifest(&b, 1, 0, 0, NULL, 0, 0);
	put_buf("manifest.ocdbt", &b);
	EXPECT_REFUSED("",
		       "says that there is a manifest.NUMBER for each version, but there is none");
	ocdbt_manifest(&m, 0, 2, 0, &here, 0, n);
	put_file(dir_fd, name, m.data, m.len);
	put_file(dir_fd, "manifest.0000000000000001", "x", 1);
	put_file(dir_fd, "manifest.000000000000000x", "x", 1);
	put_file(dir_fd, "manifest.00000000000000009", "x", 1);
	EXPECT_NAMES("", "w ");
	put_file(dir_fd, "manifest.0000000000000003", m.data, m.len);
	EXPECT_REFUSED("", "'manifest.0000000000000003' does not belong to this store, or has "
			   "another version");
	ck_assert(!unlinkat(dir_fd, "manifest.0000000000000003", 0));
	ocdbt_manifest(&b, 1, 0, 0, NULL, 0, 0);
	put_buf(name, &b);
	EXPECT_REFUSED("", "'manifest.0000000000000002' does not belong to this store, or has "
			   "another version");
	m.data[15] ^= 1; /* in its UUID */
	ocdbt_seal((uint8_t *)m.data, m.len);
	put_buf(name, &m);
	EXPECT_REFUSED("", "'manifest.0000000000000002' does not belong to this store, or has "
			   "another version");
	ck_assert(!unlinkat(dir_fd, name, 0));
	ck_assert(!mkdirat(dir_fd, name, 0700));
	EXPECT_REFUSED("", name);
}
END_TEST

START_TEST(keys_of_all_leaves_increase)
{
	struct buf b = BUF_INIT(1 << 20), m = BUF_INIT(1 << 20);
	size_t first = put_leaf(&b, "b"), second = b.len, len = put_leaf(&b, "b"), at = b.len;
	const struct ocdbt_row rows[] = { { .rest = "a", .length = first },
					  { .rest = "b", .offset = second, .length = len } };

	ocdbt_node(&b, 1, nodes, 1, rows, 2);
	ocdbt_manifest(&m, 0, 1, 1, nodes, at, b.len - at);
	put_buf("nodes", &b);
	put_buf("manifest.ocdbt", &m);
	EXPECT_REFUSED("", "its key 'b' is not above 'b' before it");
}
END_TEST

START_TEST(a_manifest_of_more_than_64_mib_is_refused)
{
	char path[4200];

	put_text("manifest.ocdbt", "x");
	(void)snprintf(path, sizeof(path), "%s/manifest.ocdbt", dir);
	ck_assert(!truncate(path, (64 << 20) + 1)); /* sparse */
	EXPECT_REFUSED("", "'manifest.ocdbt' has more than 64 MiB");
	put_text("manifest.ocdbt", "");
	EXPECT_REFUSED("", "'manifest.ocdbt': ");
}
END_TEST

START_TEST(without_memory_or_a_disk_a_store_is_a_clean_error)
{
	struct buf b = BUF_INIT(1 << 20), m = BUF_INIT(1 << 20);
	const struct ocdbt_row leaf[] = { { .rest = "w/.zarray", .text = byte_of_two },
					  { .rest = "w/0", .length = 2 } };
	struct ocdbt_row up[] = { { .rest = "w/.zarray" } };
	size_t at;

	buf_str(&b, "ab");
	at = b.len;
	ocdbt_node(&b, 0, nodes, 1, leaf, 2);
	up[0].offset = at;
	up[0].length = b.len - at;
	at = b.len;
	ocdbt_node(&b, 1, nodes, 1, up, 1);
	ocdbt_manifest(&m, 0, 1, 1, nodes, at, b.len - at);
	put_buf("nodes", &b);
	put_buf("manifest.ocdbt", &m);
	put_text("_METADATA", tree);
	put_text("_strings.json", "{\"s\": {\"x\": \"hi\"}}");
	scan_failing(dir_fd);
}
END_TEST

START_TEST(without_memory_or_a_disk_a_file_of_flax_is_a_clean_error)
{
	make("t.a");
	put_text("t.a/0", "xy");
	put_array("t.b", ".zarray", byte_of_two, "0");
	put_msgpack("checkpoint", "{'a': {'driver': 'zarr', 'dtype': 'uint8', 'kvstore': {'path': "
				  "'x/t.a'}, 'metadata':"
				  " {'shape': [2], 'chunks': [2]}}, 'b': 'PLACEHOLDER://t.b', 'c': "
				  "1.5, 'd': @uint8(2),"
				  " 'e': {'__msgpack_chunked_array__': T, 'shape': {'0': 2}, "
				  "'chunks': {'0': @uint8(2)}},"
				  " 5: c1,2, 'f': x}");
	scan_failing(dir_fd);
}
END_TEST

START_TEST(without_memory_or_a_disk_shards_of_flax_are_a_clean_error)
{
	put_msgpack("flax_model-00001-of-00003.msgpack", "{'a': @uint8(2)}");
	put_msgpack("flax_model-00002-of-00003.msgpack", "{'b': @uint8(2)}");
	put_text("flax_model.msgpack.index.json",
		 "{\"weight_map\": {\"a\": \"flax_model-00001-of-00003.msgpack\", \"b\": "
		 "\"flax_model-00002-of-00003.msgpack\", \"c/d\": "
		 "\"flax_model-00003-of-00003.msgpack\"}}");
	scan_failing(dir_fd);
}
END_TEST

START_TEST(without_memory_or_a_disk_what_is_lost_is_a_clean_error)
{
	make("a");
	put_store("a/", "w", "ab");
	make("b");
	put_text("b/_METADATA", tree);
	make("b/d");
	make("c");
	put_array("c/x", ".zarray", byte_of_two, "0");
	make("c/y");
	put_text("c/y/0", "ab");
	put_text("_CHECKPOINT_METADATA", "{}");
	scan_failing(dir_fd);
}
END_TEST

SUITE(orbax, .setup = dir_setup, .teardown = dir_teardown, .seconds = 120)
