/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Models that recipes make from what Megatron-core saved, compared with what they are at Hugging
 * Face.
 */
#include "archive_util.h"
#include "base/buf.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "blob_util.h"
#include "codec/arith.h"
#include "codec/cast.h"
#include "data_util.h"
#include "dcp_util.h"
#include "fault.h"
#include "fixture_util.h"
#include "opts_util.h"
#include "pickle_util.h"
#include "sha256_util.h"
#include "st_util.h"
#include "suites.h"
#include "tree_util.h"
#include <ckptfs/ckpt_diff.h>
#include <ckptfs/ckpt_mount.h>

#include <dirent.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[4096]; /* a copy of a checkpoint */
static int dir_fd = -1;
static char warnings[1000];

static void setup(void)
{
	dir_fd = new_dir(dir);
	warnings[0] = 0;
}

static void teardown(void)
{
	(void)close(dir_fd);
}

static void warn(void *arg, const char *what)
{
	(void)arg;
	(void)snprintf(warnings + strlen(warnings), sizeof(warnings) - strlen(warnings), "%s\n",
		       what);
}

static int data_fd(const char *name, const char *sub)
{
	char path[4400];
	int fd;

	(void)snprintf(path, sizeof(path), "%s/%s/%s", data_dir(), name, sub);
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	ck_assert_msg(fd >= 0, "%s is not there", path);
	return fd;
}

static json_t *expected(const char *name)
{
	autoclose int fd = data_fd(name, "");
	size_t n;
	autofree char *text = (char *)get_file(fd, "expected_hf.json", &n);
	json_t *j = json_loadb(text, n, 0, NULL);

	ck_assert_ptr_nonnull(j);
	return j;
}

/* Copies a checkpoint into dir, where config.json and common.pt may be added. */
static void copy_checkpoint(const char *name)
{
	int fd = data_fd(name, "ckpt");
	DIR *d = fdopendir(fd);
	const struct dirent *x;

	REQUIRE(d);
	while ((x = readdir(d))) {
		autofree uint8_t *bytes = NULL;
		size_t n;

		if (!strcmp(x->d_name, ".") || !strcmp(x->d_name, ".."))
			continue;
		bytes = get_file(fd, x->d_name, &n);
		put_file(dir_fd, x->d_name, bytes, n);
	}
	(void)closedir(d);
}

/* ---- what recipes are told ---- */

static void put_text(const char *name, const char *text)
{
	put_file(dir_fd, name, text, strlen(text));
}

static void put_config(const char *name, const char *model_type)
{
	json_t *j = expected(name), *c = json_object_get(j, "arch");
	char *text;

	json_object_set_new(c, "model_type", json_string(model_type));
	json_object_set_new(c, "shared_expert_intermediate_size", json_integer(14));
	text = json_dumps(c, 0);
	put_text("config.json", text);
	free(text);
	json_decref(j);
}

static void put_number(struct emit *m, const char *key, int64_t v)
{
	emit_str(m, key);
	emit_int(m, v);
}

/* What the models of tests/data were made with. */
static void put_args(struct emit *m, bool in_list, int64_t experts)
{
	emit_proto(m);
	if (in_list)
		emit_op(m, ']');
	emit_op(m, '}');
	emit_str(m, "args");
	emit_object(m, "argparse", "Namespace");
	emit_attrs(m);
	put_number(m, "num_layers", 4);
	put_number(m, "hidden_size", 16);
	put_number(m, "num_attention_heads", 4);
	emit_str(m, "group_query_attention");
	emit_op(m, 0x88);
	put_number(m, "num_query_groups", 2);
	put_number(m, "kv_channels", 6);
	put_number(m, "ffn_hidden_size", 24);
	put_number(m, "vocab_size", 61);
	put_number(m, "padded_vocab_size", 64);
	emit_str(m, "num_experts");
	if (experts)
		emit_int(m, experts);
	else
		emit_op(m, 'N');
	put_number(m, "moe_ffn_hidden_size", 10);
	put_number(m, "moe_shared_expert_intermediate_size", 14);
	emit_attrs_end(m);
	emit_op(m, 's');
	if (in_list)
		emit_op(m, 'a');
	emit_op(m, '.');
}

static void put_common(int64_t experts)
{
	struct archive a = { .style.prefix = "common" };
	struct emit m = EMIT_INIT(2, true);

	put_args(&m, false, experts);
	archive_add(&a, "data.pkl", m.b.data, m.b.len);
	archive_end(&a);
	put_file(dir_fd, "common.pt", a.b.data, a.b.len);
	archive_release(&a);
	buf_release(&m.b);
}

/* ---- reading ---- */

static struct ckpt *open_with(struct ckpt_opts o)
{
	struct ckpt *c = NULL;
	struct ckpt_err e = { 0 };

	o.index = ":memory:";
	o.warn = warn;
	ck_assert_msg(!open_typed(dir, &o, &c, &e), "%s", e.msg);
	return c;
}

static void refused(struct ckpt_opts o, int code, const char *says)
{
	struct ckpt *c = NULL;
	struct ckpt_err e = { 0 };

	o.index = ":memory:";
	ck_assert_int_eq(open_typed(dir, &o, &c, &e), -code);
	ck_assert_msg(strstr(e.msg, says) != NULL, "%s", e.msg);
	ck_assert_ptr_null(c);
}

/* Each tensor of a safetensors file must be an expected one. Returns how many there are. */
static size_t check_safetensors(struct ckpt *c, const char *path, const json_t *want)
{
	size_t n, head, count = 0;
	autofree uint8_t *bytes = tree_bytes(c, path, &n);
	json_t *j, *t;
	const char *name;

	head = (size_t)load_le64(bytes);
	j = json_loadb((const char *)bytes + 8, head, 0, NULL);
	REQUIRE(j);
	json_object_foreach (j, name, t) {
		const json_t *w = json_object_get(want, name), *o;
		char hex[65];
		size_t from, to;

		if (!strcmp(name, "__metadata__"))
			continue;
		ck_assert_msg(w != NULL, "'%s' is not expected", name);
		o = json_object_get(t, "data_offsets");
		from = (size_t)json_integer_value(json_array_get(o, 0));
		to = (size_t)json_integer_value(json_array_get(o, 1));
		REQUIRE(json_equal(json_object_get(t, "shape"), json_object_get(w, "shape")));
		ck_assert_str_eq(json_string_value(json_object_get(t, "dtype")), "BF16");
		ck_assert_msg(!strcmp(sha256_hex(bytes + 8 + head + from, to - from, hex),
				      json_string_value(json_object_get(w, "sha256"))),
			      "'%s' has other bytes", name);
		count++;
	}
	json_decref(j);
	return count;
}

static void check_model(struct ckpt *c, const json_t *want)
{
	struct ckpt_totals totals;

	ckpt_totals(c, &totals);
	ck_assert(totals.has_model && !totals.model_prefix_len);
	ck_assert_uint_eq(totals.model_tensors, json_object_size(want));
	ck_assert_uint_eq(check_safetensors(c, "hf/model.safetensors", want),
			  json_object_size(want));
	ck_assert_uint_eq(check_safetensors(c, "safetensors/model.safetensors", want),
			  json_object_size(want));
	for (uint64_t i = 0; i < ckpt_model_tensors(c); i++) {
		struct ckpt_tensor t;
		struct ckpt_file *f;
		struct ckpt_err e = { 0 };
		const json_t *w;
		char hex[65];
		size_t n;
		autofree uint8_t *bytes = NULL;

		ckpt_model_tensor(c, i, &t);
		w = json_object_get(want, t.fqn);
		ck_assert_str_eq(t.dtype, json_string_value(json_object_get(w, "dtype")));
		REQUIRE(t.n_dims == json_array_size(json_object_get(w, "shape")) && t.chunks);
		ck_assert_int_eq(ckpt_model_open(c, i, &f, &e), 0);
		bytes = tree_bytes_of(f, &n);
		ck_assert_uint_eq(n, t.bytes);
		ck_assert_str_eq(sha256_hex(bytes, n, hex),
				 json_string_value(json_object_get(w, "sha256")));
	}
}

/* ---- tests ---- */

static const struct {
	const char *name, *recipe, *model_type; /* no type: from the args */
	int64_t experts;
} models[] = {
	{ "mcore_gpt_dense", "megatron-llama", "qwen3", 0 },
	{ "mcore_gpt_dense", "megatron-llama", NULL, 0 },
	{ "mcore_gpt_dense", "megatron", "qwen2", 0 },
	{ "mcore_gpt_dense", "megatron", NULL, 0 },
	{ "mcore_gpt_moe", "megatron-qwen-moe", "qwen3_moe", 4 },
	{ "mcore_gpt_moe", "megatron-qwen-moe", NULL, 4 },
	{ "mcore_gpt_moe", "megatron", "qwen2_moe", 4 },
};

static void tell(int i)
{
	copy_checkpoint(models[i].name);
	if (models[i].model_type)
		put_config(models[i].name, models[i].model_type);
	else
		put_common(models[i].experts);
}

START_LOOP_TEST(boxes_are_those_of_the_whole, ARRAY_LEN(models))
{
	struct rng r = rng_new();
	struct ckpt *c;

	tell(_i);
	c = open_with(
		(struct ckpt_opts){ .recipe = models[_i].recipe, .dtype = _i % 2 ? "fp32" : NULL });
	for (uint64_t i = 0; i < ckpt_model_tensors(c); i++) {
		autofree uint8_t *whole = NULL;
		struct ckpt_file *f = NULL;
		struct ckpt_tensor t;
		struct ckpt_err e = { 0 };

		ckpt_model_tensor(c, i, &t);
		ck_assert_msg(!ckpt_model_open(c, i, &f, &e), "%s", e.msg);
		whole = fixture_read(f);
		check_boxes(c, i, &t, ckpt_model_box_open, whole, &r);
	}
	ckpt_close(c);
}
END_TEST

START_LOOP_TEST(the_model_is_what_it_is_at_hugging_face, ARRAY_LEN(models))
{
	json_t *want = expected(models[_i].name);
	struct ckpt *c;

	tell(_i);
	c = open_with((struct ckpt_opts){ .recipe = models[_i].recipe });
	check_model(c, json_object_get(want, "tensors"));
	ck_assert_str_eq(warnings, "");
	ckpt_close(c);
	json_decref(want);
}
END_TEST

START_TEST(a_text_of_the_same_recipe_is_the_same_recipe)
{
	json_t *want = expected("mcore_gpt_dense");
	const char *summary, *text;
	char path[4200];
	struct ckpt *c;

	tell(0);
	ck_assert_str_eq(ckpt_recipe(0, &summary, &text), "megatron");
	ck_assert_str_eq(text, "");
	ck_assert_str_eq(ckpt_recipe(1, &summary, &text), "megatron-llama");
	put_text("mine", text);
	(void)snprintf(path, sizeof(path), "%s/mine", dir);
	c = open_with((struct ckpt_opts){ .recipe = path });
	check_model(c, json_object_get(want, "tensors"));
	ckpt_close(c);
	json_decref(want);
}
END_TEST

/* Rank r of two holds half the rows of each projection. */
START_TEST(ranks_hold_parts_of_what_a_recipe_makes)
{
	static const char *const names[] = { "model.layers.1.self_attn.q_proj.weight",
					     "model.layers.3.self_attn.v_proj.weight",
					     "model.layers.0.mlp.up_proj.weight" };
	char layout[4200], path[200], shape[64] = { 0 }, want_shape[64];
	struct ckpt_err e = { 0 };
	struct ckpt *c;

	tell(0);
	put_text("tp2", "mesh tp=2\n*_proj.weight tp:0\n");
	(void)snprintf(layout, sizeof(layout), "%s/tp2", dir);
	c = open_with((struct ckpt_opts){ .recipe = "megatron", .layout = layout });
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		struct ckpt_file *f;
		struct ckpt_tensor t;
		uint64_t at = 0;
		size_t n, part;
		autofree uint8_t *whole = NULL;
		ckpt_node node;

		while (ckpt_model_tensor(c, at, &t), strcmp(t.fqn, names[i]) != 0)
			at++;
		ck_assert_int_eq(ckpt_model_open(c, at, &f, &e), 0);
		whole = tree_bytes_of(f, &n);
		for (size_t r = 0; r < 2; r++) {
			autofree uint8_t *bytes = NULL;

			(void)snprintf(path, sizeof(path), "ranks/%05zu/tensors/%s", r, names[i]);
			bytes = tree_bytes(c, path, &part);
			ck_assert_uint_eq(part, n / 2);
			ck_assert_mem_eq(bytes, whole + r * part, part);
			ck_assert_int_eq(ckpt_walk(c, path, &node, &e), 0);
			ck_assert_int_gt(ckpt_xattr(c, node, "user.ckptfs.shape", shape,
						    sizeof(shape) - 1, &e),
					 0);
			(void)snprintf(want_shape, sizeof(want_shape), "[%d,16]",
				       (int)t.shape[0] / 2);
			ck_assert_str_eq(shape, want_shape);
			ck_assert_int_eq(ckpt_xattr(c, node, "user.ckptfs.files", shape, 60, &e),
					 1);
			memset(shape, 0, sizeof(shape));
		}
	}
	ckpt_close(c);
}
END_TEST

START_TEST(casts_see_the_model)
{
	struct ckpt *a, *b;
	struct ckpt_tensor t;
	struct ckpt_err e = { 0 };
	size_t n;
	autofree uint8_t *whole = NULL, *cast = NULL;
	struct ckpt_file *f;

	tell(0);
	a = open_with((struct ckpt_opts){ .recipe = "megatron" });
	b = open_with((struct ckpt_opts){ .recipe = "megatron", .dtype = "fp32" });
	ckpt_model_tensor(b, 9, &t);
	ck_assert_str_eq(t.dtype, "float32");
	ck_assert_int_eq(ckpt_model_open(a, 9, &f, &e), 0);
	whole = tree_bytes_of(f, &n);
	ck_assert_int_eq(ckpt_model_open(b, 9, &f, &e), 0);
	cast = tree_bytes_of(f, &n);
	for (size_t i = 0; i < n; i += 4)
		REQUIRE(!load_le16(cast + i) &&
			load_le16(cast + i + 2) == load_le16(whole + i / 2));
	ckpt_close(b);
	ckpt_close(a);
}
END_TEST

static int count_equal(void *arg, const struct ckpt_diff_item *i)
{
	*(size_t *)arg += i->result == CKPT_DIFF_EQUAL;
	return 0;
}

START_TEST(two_ways_to_tell_it_make_equal_models)
{
	struct ckpt *a, *b;
	size_t equal = 0;
	struct ckpt_diff d = { .model = true, .values = true, .each = count_equal, .arg = &equal };
	struct ckpt_err e = { 0 };

	tell(4);
	a = open_with((struct ckpt_opts){ .recipe = "megatron" });
	(void)unlinkat(dir_fd, "config.json", 0);
	put_common(4);
	b = open_with((struct ckpt_opts){ .recipe = "megatron-qwen-moe" });
	ck_assert_int_eq(ckpt_diff(a, b, &d, &e), 0);
	ck_assert_uint_eq(d.names, 86);
	ck_assert_uint_eq(equal, 86);
	ckpt_close(a);
	ckpt_close(b);
}
END_TEST

START_TEST(what_is_made_of_a_missing_file_is_left_out)
{
	json_t *want = expected("mcore_gpt_moe");
	size_t n, left, faults = 0;
	struct ckpt *c;

	tell(4);
	(void)unlinkat(dir_fd, "__3_0.distcp", 0);
	c = open_with((struct ckpt_opts){ .recipe = "megatron", .allow_missing = true });
	n = ckpt_model_tensors(c);
	ck_assert_uint_eq(n, 86);
	left = check_safetensors(c, "hf/model.safetensors", json_object_get(want, "tensors"));
	for (size_t i = 0; i < n; i++) {
		struct ckpt_file *f;
		struct ckpt_tensor t;
		struct ckpt_err e = { 0 };

		ckpt_model_tensor(c, i, &t);
		faults += t.fault != NULL;
		if (t.fault)
			ck_assert_int_eq(ckpt_model_open(c, i, &f, &e), -EIO);
	}
	ck_assert(faults > 0 && left > 0);
	ck_assert_uint_eq(left + faults, n);
	ckpt_close(c);
	json_decref(want);
}
END_TEST

/* As core_v0.19 saves it: a list of one dict, in an item of the checkpoint. */
/* Each of the tensors that are joined can be the one that is cut off. */
START_LOOP_TEST(what_is_joined_needs_all_of_its_parts, 3)
{
	struct rng r = rng_new();
	struct ckpt_err e = { 0 };
	struct ckpt *c;
	struct stat st;
	char recipe[4200], cut[4300];

	for (int i = 0; i < 3; i++) {
		char name[60], tensor[20];

		(void)snprintf(name, sizeof(name), "model-0000%d-of-00003.safetensors", i + 1);
		(void)snprintf(tensor, sizeof(tensor), "%c F32 2x3", 'a' + i);
		st_put(dir_fd, name, &r, tensor);
	}
	put_text("model.safetensors.index.json",
		 "{\"weight_map\": {\"a\": \"model-00001-of-00003.safetensors\", \"b\": "
		 "\"model-00002-of-00003.safetensors\", \"c\": "
		 "\"model-00003-of-00003.safetensors\"}}");
	put_text("r.recipe", "all = a [2, 3] + b [2, 3] + c [2, 3]\na = a [2, 3]\n"
			     "b = b [2, 3]\nc = c [2, 3]\n");
	(void)snprintf(recipe, sizeof(recipe), "%s/r.recipe", dir);
	(void)snprintf(cut, sizeof(cut), "%s/model-0000%d-of-00003.safetensors", dir, _i + 1);
	REQUIRE(!stat(cut, &st) && !truncate(cut, st.st_size - 1));
	c = open_with((struct ckpt_opts){ .recipe = recipe, .allow_missing = true });
	ck_assert_uint_eq(ckpt_model_tensors(c), 4);
	for (uint64_t i = 0; i < 4; i++) {
		struct ckpt_file *f = NULL;
		struct ckpt_tensor t;
		bool whole;

		ckpt_model_tensor(c, i, &t);
		whole = strcmp(t.fqn, "all") != 0 && *t.fqn != 'a' + _i;
		ck_assert_msg(!t.fault == whole, "%s", t.fqn);
		ck_assert_int_eq(ckpt_model_open(c, i, &f, &e), whole ? 0 : -EIO);
		ckpt_file_close(f);
	}
	ckpt_close(c);
}
END_TEST

START_LOOP_TEST(args_may_lie_in_an_object, 2)
{
	struct archive a = { 0 };
	struct emit m = EMIT_INIT(2, true);
	struct dcp d;
	struct ckpt *c;
	char recipe[4200], path[32];
	const uint64_t box[] = { 0, 0, 6, 2 };
	const int64_t size[] = { 6, 2 };
	static const uint8_t bytes[12] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 };
	struct saved t = { .dtype = CKPT_DTYPE_U8,
			   .n_dims = 2,
			   .size = size,
			   .storage = bytes,
			   .storage_bytes = sizeof(bytes) };
	struct buf item = BUF_INIT(0);
	struct chunk_loc l;
	size_t n;
	autofree uint8_t *got = NULL;

	put_args(&m, true, 0);
	archive_add(&a, "data.pkl", m.b.data, m.b.len);
	archive_end(&a);
	dcp_begin(&d, dir_fd);
	dcp_bytes(&d, "common_state/shard_0_1", 22, a.b.data, a.b.len, 0, (unsigned)_i);
	dcp_tensor(&d, "w", 1, "uint8", 2, box + 2, 1, box);
	(void)saved_item(&item, &t);
	l = dcp_item(&d, 1, item.data, item.len, 0);
	(void)snprintf(path, sizeof(path), "%s%u.distcp", d.prefix, l.file);
	dcp_stored(&d, "w", 1, 2, box, path, (int64_t)l.offset, (int64_t)l.length, 0);
	dcp_end(&d, ".metadata");
	put_text("r", "param groups = args.num_query_groups\nv = w [groups : 2 of 3, 1 of 2]\n");
	(void)snprintf(recipe, sizeof(recipe), "%s/r", dir);
	c = open_with((struct ckpt_opts){ .recipe = recipe });
	got = tree_bytes(c, "pt/model.pt", &n);
	ck_assert_ptr_nonnull(memmem(got, n, (const uint8_t[]){ 5, 11 }, 2));
	ck_assert_uint_eq(ckpt_model_tensors(c), 1);
	ckpt_close(c);
	buf_release(&item);
	buf_release(&m.b);
	archive_release(&a);
}
END_TEST

START_TEST(what_is_wrong_is_said)
{
	struct ckpt_opts o = { .recipe = "megatron" };

	copy_checkpoint("mcore_gpt_dense");
	refused(o, EINVAL, "': option 'recipe': 'megatron' needs a config.json with a model_type");
	put_common(4);
	refused(o, EINVAL, "': option 'recipe': 'megatron' needs a config.json with a model_type");
	put_config("mcore_gpt_dense", "bert");
	refused(o, EINVAL, "': option 'recipe': 'megatron' has no recipe for model_type 'bert'");
	o.recipe = "megatron-gpt";
	refused(o, ENOENT, "': option 'recipe': ");
	o.recipe = "megatron-llama";
	put_text("config.json", "[]");
	refused(o, EINVAL, "config.json', line 1: it is not an object");
	put_text("config.json", "{\n\"a\": 1,\n\"a\": 2}");
	refused(o, EINVAL, "config.json', line 3: duplicate object key");
	put_text("config.json", "{\"num_hidden_layers\": \"4\"}");
	refused(o, EINVAL, "config.json: 'num_hidden_layers' is not a whole number");
	put_text("config.json", "{\"hidden_size\": 32}");
	refused(o, EINVAL,
		"megatron-llama:26: 'model.embed_tokens.weight' needs "
		"'embedding.word_embeddings.weight' of shape [64,32], but that is [64,16]");
	(void)unlinkat(dir_fd, "common.pt", 0);
	refused(o, EINVAL,
		"megatron-llama:10: no value for 'vocab': looked for 'vocab_size' in config.json, "
		"'vocab_size' in the checkpoint's args (there is none)");
	put_text("common.pt", "abc");
	refused(o, EBADMSG, "': option 'recipe': the args in 'common.pt': ");
}
END_TEST

/* ---- what recipes compute ---- */

enum { ROWS = 6, COLUMNS = 40, ELEMENTS = ROWS * COLUMNS };

static const struct {
	const char *name, *dtype;
	enum ckpt_dtype type;
	struct arith arith;
} computed[] = {
	{ "a", "BF16", CKPT_DTYPE_BF16, { ARITH_TIMES, 2.8284271F } },
	{ "b", "F16", CKPT_DTYPE_F16, { ARITH_OVER, 6.3125F } },
	{ "c", "F32", CKPT_DTYPE_F32, { ARITH_PLUS, -1 } },
	{ "d", "F64", CKPT_DTYPE_F64, { ARITH_PLUS, 5 } },
	{ "e", "I32", CKPT_DTYPE_I32, { ARITH_NONE, 0 } },
};
#define COMPUTING \
	"a = a [6, 40] order 1 0 times sqrt(8)\n" \
	"b = b [6, 40] over bfloat16(sqrt(40))\n" \
	"c = c [3 of 6, 40] minus 1 + c [5 of 6, 40] minus 1\n" \
	"d = d [swap 2 : 3, 40] order 1:0 plus 5\n" \
	"e = e [6, 40]\n"

/* A checkpoint with random bits, NaNs too. */
static void put_random(struct rng *r, uint8_t *data)
{
	char head[1000] = "{";
	uint8_t file[1000 + 8 * ELEMENTS * ARRAY_LEN(computed)] = { 0 };
	size_t at = 0, n;

	for (size_t i = 0; i < ARRAY_LEN(computed); i++) {
		size_t bytes = ELEMENTS * dtype_info(computed[i].type)->size;

		n = strlen(head);
		(void)snprintf(head + n, sizeof(head) - n,
			       "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[6,40],\"data_offsets\":[%zu,"
			       "%zu]}",
			       i ? "," : "", computed[i].name, computed[i].dtype, at, at + bytes);
		at += bytes;
	}
	(void)strcat(head, "}");
	for (size_t i = 0; i < at; i++)
		data[i] = (uint8_t)rng_u64(r);
	n = strlen(head);
	file[0] = (uint8_t)n;
	file[1] = (uint8_t)(n >> 8);
	memcpy(file + 8, head, n);
	memcpy(file + 8 + n, data, at);
	put_file(dir_fd, "model.safetensors", file, 8 + n + at);
}

/* The number of the stored element that is element i of the result. */
static size_t element_of(char name, size_t i)
{
	switch (name) {
	case 'a':
		return i % ROWS * COLUMNS + i / ROWS;
	case 'c':
		return i < COLUMNS ? 3 * COLUMNS + i : 5 * COLUMNS + i - COLUMNS;
	case 'd':
		return (i % ROWS % 2 * 3 + i % ROWS / 2) * COLUMNS + i / ROWS;
	default:
		return i;
	}
}

/* The bytes of result k, shown as dtype. */
static uint8_t *compute(size_t k, const uint8_t *data, enum ckpt_dtype dtype, size_t *ret_n)
{
	size_t n = computed[k].name[0] == 'c' ? 2 * COLUMNS : ELEMENTS;
	size_t size = dtype_info(computed[k].type)->size;
	autofree uint8_t *elements = malloc(n * size);
	uint8_t *shown = malloc(n * 8);

	REQUIRE(elements && shown);
	for (size_t i = 0; i < k; i++)
		data += ELEMENTS * dtype_info(computed[i].type)->size;
	for (size_t i = 0; i < n; i++)
		memcpy(elements + i * size, data + element_of(computed[k].name[0], i) * size, size);
	arith_run(computed[k].type, computed[k].arith, elements, n);
	if (dtype == computed[k].type)
		memcpy(shown, elements, n * size);
	else
		cast_run(computed[k].type, dtype, elements, shown, n);
	*ret_n = n * dtype_info(dtype)->size;
	return shown;
}

/* Reads result k in all ways. */
static void check_computed(struct ckpt *c, size_t k, const uint8_t *data, struct rng *r)
{
	autofree uint8_t *want = NULL, *got = NULL, *turned = NULL;
	int64_t stride[2] = { 0 };
	struct ckpt_tensor t;
	struct ckpt_file *f;
	struct ckpt_err e = { 0 };
	size_t n, n_want, size;

	ckpt_model_tensor(c, k, &t);
	size = dtype_info(ckpt_dtype_by_name(t.dtype, strlen(t.dtype)))->size;
	want = compute(k, data, ckpt_dtype_by_name(t.dtype, strlen(t.dtype)), &n_want);
	ck_assert_int_eq(ckpt_model_open(c, k, &f, &e), 0);
	for (int i = 0; i < 30; i++) { /* from the middle of an element to that of another */
		uint64_t from = rng_below(r, n_want + 1), len = rng_below(r, n_want - from + 1);
		uint8_t part[8 * ELEMENTS];

		REQUIRE(ckpt_file_read(f, part, len, from, &e) == (int64_t)len);
		REQUIRE(!memcmp(part, want + from, len));
	}
	got = tree_bytes_of(f, &n);
	REQUIRE(n == n_want && !memcmp(got, want, n));
	check_boxes(c, k, &t, ckpt_model_box_open, want, r);
	turned = malloc(n);
	REQUIRE(turned);
	for (size_t d = 0, step = size; d < t.n_dims; step *= t.shape[d++])
		stride[d] = (int64_t)step;
	ck_assert_int_eq(
		ckpt_model_slice_read(c, k, &(struct ckpt_slice){ .stride = stride }, turned, &e),
		0);
	for (size_t i = 0; i < n / size; i++) {
		size_t to = t.n_dims < 2 ? i : i / t.shape[1] + i % t.shape[1] * t.shape[0];

		REQUIRE(!memcmp(turned + to * size, want + i * size, size));
	}
}

START_TEST(what_a_recipe_computes_is_read_in_every_way)
{
	static const char *const dtypes[] = { NULL, "fp32", "fp16", "bf16" };
	uint8_t data[8 * ELEMENTS * ARRAY_LEN(computed)];
	struct rng r = rng_new();

	put_random(&r, data);
	put_text("r.recipe", COMPUTING);
	for (size_t i = 0; i < ARRAY_LEN(dtypes); i++) {
		char recipe[4200];
		struct ckpt *c;

		(void)snprintf(recipe, sizeof(recipe), "%s/r.recipe", dir);
		c = open_with((struct ckpt_opts){ .recipe = recipe, .dtype = dtypes[i] });
		ck_assert_uint_eq(ckpt_model_tensors(c), ARRAY_LEN(computed));
		for (size_t k = 0; k < ARRAY_LEN(computed); k++)
			check_computed(c, k, data, &r);
		ckpt_close(c);
	}
}
END_TEST

/* Whether hf/model.safetensors is the stored file itself. */
static int is_backed(const char *text, uint8_t **ret, size_t *ret_n)
{
	char recipe[4200];
	struct ckpt_file *f;
	struct ckpt_err e = { 0 };
	struct ckpt *c;
	int fd = -1, rc;

	put_text("r.recipe", text);
	(void)snprintf(recipe, sizeof(recipe), "%s/r.recipe", dir);
	c = open_with((struct ckpt_opts){ .recipe = recipe });
	ck_assert_msg(!ckpt_file_open_path(c, "hf/model.safetensors", &f, &e), "%s", e.msg);
	rc = ckpt_file_backing(f, &fd, &e);
	if (!rc)
		(void)close(fd);
	*ret = tree_bytes_of(f, ret_n);
	ckpt_close(c);
	return rc;
}

START_TEST(a_file_that_would_be_as_stored_is_not_when_computed)
{
	uint8_t data[8 * ELEMENTS * ARRAY_LEN(computed)], *plain, *same, *other;
	struct rng r = rng_new();
	size_t n, n_same, n_other;

	put_random(&r, data);
	(void)is_backed("c = c [6, 40]\nignore *\n", &plain, &n);
	put_file(dir_fd, "model.safetensors", plain, n);
	ck_assert_int_eq(is_backed("c = c [6, 40]\n", &same, &n_same), 0);
	ck_assert_int_eq(is_backed("c = c [6, 40] plus 1\n", &other, &n_other), 1);
	REQUIRE(n_same == n && !memcmp(plain, same, n));
	REQUIRE(n_other == n && memcmp(plain, other, n) != 0);
	free(plain);
	free(same);
	free(other);
}
END_TEST

/* Allocations and reads fail in turn: a model or a sentence. */
START_LOOP_TEST(whatever_fails_is_said, 4)
{
	const struct ckpt_opts o = { .recipe = "megatron", .index = ":memory:" };

	tell(_i < 2 ? 2 : 3); /* told by config.json, by the args */
	FAULT_LOOP(_i % 2 ? FAULT_READ : FAULT_ALLOC)
	{
		struct ckpt *c = NULL;
		struct ckpt_err e = { 0 };
		int rc = open_typed(dir, &o, &c, &e);

		(void)fault_off();
		ck_assert(rc ? !c && e.code == -rc && *e.msg && fault_hit() : c && !e.code);
		if (c)
			ck_assert_uint_eq(ckpt_model_tensors(c), 59);
		ckpt_close(c);
	}
}
END_TEST

SUITE(ckpt_recipe, .setup = setup, .teardown = teardown, .seconds = 30)
