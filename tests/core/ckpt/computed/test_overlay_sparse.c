/* SPDX-License-Identifier: Apache-2.0 */
/* overlay= of single elements, compared with a loop over all pairs. */
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "codec/cast.h"
#include "dir_util.h"
#include "fault.h"
#include "gguf_made.h"
#include "opts_util.h"
#include "rng.h"
#include "suites.h"
#include "weights_util.h"
#include <ckptfs/ckpt_mount.h>

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How the indices of a patch are stored. */
enum kind { IDX, GAPS16, GAPS32, INDICES, INDICES64, MANIFEST, N_KINDS };

static enum ckpt_dtype index_dtype(enum kind k)
{
	switch (k) {
	case GAPS16:
		return CKPT_DTYPE_U16;
	case GAPS32:
		return CKPT_DTYPE_U32;
	case INDICES64:
		return CKPT_DTYPE_I64;
	default:
		return CKPT_DTYPE_I32;
	}
}

/* A tensor "w", and a patch of it. */
struct lot {
	enum kind kind;
	enum ckpt_dtype dtype, values_dtype;
	size_t n_dims;
	uint64_t shape[3];
	uint64_t n, pairs;
	uint8_t *w, *indices, *values;
};

static uint8_t *draw(struct rng *r, enum ckpt_dtype dtype, uint64_t n)
{
	size_t size = dtype_info(dtype)->size;
	uint8_t *p = malloc(n * size + 1);

	REQUIRE(p);
	for (uint64_t i = 0; i < n; i++) {
		float f = (float)(int32_t)rng_u64(r);

		if (cast_possible(CKPT_DTYPE_F32, dtype))
			cast_run(CKPT_DTYPE_F32, dtype, &f, p + i * size, 1);
		else
			memset(p + i * size, (int)(rng_u64(r) & 0xff), size);
	}
	return p;
}

/* Each element is in the patch with a chance of one in `one_in`; w becomes the expected result. */
static void lot_draw(struct lot *l, struct rng *r, uint64_t one_in)
{
	size_t size = dtype_info(l->dtype)->size;
	size_t from = dtype_info(l->values_dtype)->size,
	       width = dtype_info(index_dtype(l->kind))->size;
	uint64_t next = 0;

	l->n = 1;
	for (size_t d = 0; d < l->n_dims; d++)
		l->n *= l->shape[d];
	l->w = draw(r, l->dtype, l->n);
	l->values = draw(r, l->values_dtype, l->n);
	l->indices = malloc(l->n * width + 1);
	REQUIRE(l->indices);
	l->pairs = 0;
	for (uint64_t i = 0; i < l->n; i++) {
		/* 16 bits must do. */
		bool far = l->kind == GAPS16 && i - next == UINT16_MAX;
		uint64_t stored = l->kind == GAPS16 || l->kind == GAPS32 ? i - next : i;

		if (!far && rng_below(r, one_in))
			continue;
		memcpy(l->indices + l->pairs * width, &stored, width); /* little-endian */
		l->pairs++;
		next = i + 1;
	}
	weights_put(
		dir_fd, "base",
		&(struct weights_tensor){
			"w", l->dtype, l->n_dims, { l->shape[0], l->shape[1], l->shape[2] }, l->w },
		1);
	next = 0;
	for (uint64_t k = 0; k < l->pairs; k++) {
		uint64_t at = 0;

		memcpy(&at, l->indices + k * width, width);
		if (l->kind == GAPS16 || l->kind == GAPS32) {
			at += next;
			next = at + 1;
		}
		if (l->dtype == l->values_dtype)
			memcpy(l->w + at * size, l->values + k * from, size);
		else
			cast_run(l->values_dtype, l->dtype, l->values + k * from, l->w + at * size,
				 1);
	}
}

static void lot_put(const struct lot *l)
{
	static const char *const names[][2] = {
		[IDX] = { "w.idx", "w.val" },
		[GAPS16] = { "w.idx", "w.val" },
		[GAPS32] = { "w.idx", "w.val" },
		[INDICES] = { "w.indices", "w.values" },
		[INDICES64] = { "w.indices", "w.values" },
		[MANIFEST] = { "tensor_0.indices", "tensor_0.values" },
	};
	const struct weights_tensor t[] = {
		{ names[l->kind][0], index_dtype(l->kind), 1, { l->pairs }, l->indices },
		{ names[l->kind][1], l->values_dtype, 1, { l->pairs }, l->values },
	};
	char text[400], shape[80];
	size_t at = 0;

	weights_put_as(dir_fd, "over", "patch.safetensors", t, 2);
	if (l->kind != MANIFEST)
		return;
	for (size_t d = 0; d < l->n_dims; d++)
		at += (size_t)snprintf(shape + at, sizeof(shape) - at, "%s%llu", d ? ", " : "",
				       (unsigned long long)l->shape[d]);
	(void)snprintf(text, sizeof(text),
		       "{\"format\": \"prime-rl-sparse-update\", \"version\": 1, \"step\": 2, "
		       "\"base_step\": 1, \"tensors\": [{\"name\": \"w\", \"shape\": [%s], "
		       "\"indices\": \"tensor_0.indices\", \"values\": \"tensor_0.values\"}]}",
		       shape);
	weights_put_text(dir_fd, "over", "sparse_update_manifest.json", text);
}

static void lot_release(struct lot *l)
{
	free(l->w);
	free(l->indices);
	free(l->values);
}

static int open_base(const char *over, struct ckpt **ret, struct ckpt_err *e)
{
	char base[4200], path[4300];
	const char *const overlays[] = { path, NULL };
	struct ckpt_opts o = { .index = ":memory:", .overlay = overlays };

	(void)snprintf(base, sizeof(base), "%s/base", dir);
	(void)snprintf(path, sizeof(path), "%s/%s", dir, over);
	return open_typed(base, &o, ret, e);
}

static void check(const struct lot *l, struct ckpt *c, struct rng *r)
{
	size_t bytes = l->n * dtype_info(l->dtype)->size;
	autofree uint8_t *got = malloc(bytes + 1);
	struct ckpt_err e = { 0 };

	REQUIRE(got);
	for (int k = 0; k < 20; k++) { /* the first reads are of parts */
		size_t off = rng_below(r, bytes),
		       len = 1 + rng_below(r, min_u64(bytes - off, 5000));

		ck_assert_msg(!weights_read(c, "w", got, len, off, &e), "%s", e.msg);
		ck_assert(!memcmp(got, l->w + off, len));
	}
	ck_assert_msg(!weights_read(c, "w", got, bytes, 0, &e), "%s", e.msg);
	ck_assert(!memcmp(got, l->w, bytes));
}

START_LOOP_TEST(elements_are_those_of_the_pairs, 60)
{
	static const enum ckpt_dtype dtypes[][2] = {
		{ CKPT_DTYPE_BF16, CKPT_DTYPE_BF16 },
		{ CKPT_DTYPE_F32, CKPT_DTYPE_BF16 },
		{ CKPT_DTYPE_F32, CKPT_DTYPE_F16 },
		{ CKPT_DTYPE_I64, CKPT_DTYPE_I64 },
		{ CKPT_DTYPE_F8_E4M3FN, CKPT_DTYPE_F8_E4M3FN },
		{ CKPT_DTYPE_C64, CKPT_DTYPE_C64 },
	};
	static const uint64_t chances[] = { 1, 2, 100, 5000 };
	struct rng r = { rng_new().state + (uint64_t)_i };
	size_t type = rng_below(&r, ARRAY_LEN(dtypes));
	struct lot l = { .kind = (enum kind)(_i % N_KINDS),
			 .dtype = dtypes[type][0],
			 .values_dtype = dtypes[type][1],
			 .n_dims = 1 + rng_below(&r, 3) };
	struct ckpt_err e = { 0 };
	struct ckpt *c;

	for (size_t d = 0; d < l.n_dims; d++)
		l.shape[d] = 1 + rng_below(&r, l.n_dims == 1 ? 100000 : l.n_dims == 2 ? 500 : 50);
	lot_draw(&l, &r, chances[rng_below(&r, ARRAY_LEN(chances))]);
	lot_put(&l);
	ck_assert_msg(!open_base(_i % 2 ? "over" : "over/patch.safetensors", &c, &e), "%s", e.msg);
	check(&l, c, &r);
	ckpt_close(c);
	lot_release(&l);
}
END_TEST

START_TEST(a_scalar_has_one_element)
{
	const int32_t zero = 0;
	const float one = 1, two = 2;
	const struct weights_tensor w = { "w", CKPT_DTYPE_F32, 0, { 0 }, &one };
	const struct weights_tensor t[] = { { "w.idx", CKPT_DTYPE_I32, 1, { 1 }, &zero },
					    { "w.val", CKPT_DTYPE_F32, 1, { 1 }, &two } };
	struct ckpt_err e = { 0 };
	struct ckpt *c;
	float got;

	weights_put(dir_fd, "base", &w, 1);
	weights_put_as(dir_fd, "over", "patch.safetensors", t, 2);
	ck_assert_msg(!open_base("over", &c, &e), "%s", e.msg);
	ck_assert_msg(!weights_read(c, "w", &got, 4, 0, &e), "%s", e.msg);
	ck_assert_float_eq(got, 2);
	ckpt_close(c);
}
END_TEST

/* One file with patches and whole tensors, then that of the next step. */
START_TEST(one_overlay_follows_another)
{
	char base[4200], one[4300], two[4300];
	const char *const overlays[] = { one, two, NULL };
	struct ckpt_opts o = { .index = ":memory:", .overlay = overlays };
	const float w[] = { 1, 2, 3, 4 }, v[] = { 5, 6 }, whole[] = { 7, 8 };
	const int32_t first[] = { 0, 2 }, second[] = { 2, 3 };
	const float a[] = { 10, 20 }, b[] = { 30, 40 };
	const struct weights_tensor stored[] = { { "v", CKPT_DTYPE_F32, 1, { 2 }, v },
						 { "w", CKPT_DTYPE_F32, 2, { 2, 2 }, w },
						 { "x.val", CKPT_DTYPE_F32, 1, { 2 }, v } };
	const struct weights_tensor step1[] = { { "v", CKPT_DTYPE_F32, 1, { 2 }, whole },
						{ "w.idx", CKPT_DTYPE_I32, 1, { 2 }, first },
						{ "w.val", CKPT_DTYPE_F32, 1, { 2 }, a },
						/* A tensor of the checkpoint has this name, so it
						 * is not part of a patch. */
						{ "x.val", CKPT_DTYPE_F32, 1, { 2 }, whole } };
	const struct weights_tensor step2[] = { { "v.idx", CKPT_DTYPE_I32, 1, { 0 }, NULL },
						{ "v.val", CKPT_DTYPE_F32, 1, { 0 }, NULL },
						{ "w.idx", CKPT_DTYPE_I32, 1, { 2 }, second },
						{ "w.val", CKPT_DTYPE_F32, 1, { 2 }, b } };
	struct ckpt_err e = { 0 };
	struct ckpt *c;
	float got[4];

	(void)snprintf(base, sizeof(base), "%s/base", dir);
	(void)snprintf(one, sizeof(one), "%s/one", dir);
	(void)snprintf(two, sizeof(two), "%s/two", dir);
	weights_put(dir_fd, "base", stored, 3);
	weights_put(dir_fd, "one", step1, 4);
	weights_put(dir_fd, "two", step2, 4);
	ck_assert_msg(!open_typed(base, &o, &c, &e), "%s", e.msg);
	ck_assert(!weights_read(c, "w", got, 16, 0, &e));
	ck_assert(got[0] == 10 && got[1] == 2 && got[2] == 30 && got[3] == 40);
	ck_assert(!weights_read(c, "v", got, 8, 0, &e));
	ck_assert(got[0] == 7 && got[1] == 8);
	ck_assert(!weights_read(c, "x.val", got, 8, 0, &e));
	ck_assert(got[0] == 7 && got[1] == 8);
	ckpt_close(c);
}
END_TEST

static void put_gguf(const char *name, enum ggml_type type)
{
	const uint64_t ne[] = { 64, 2 };
	struct buf b = BUF_INIT(4096);

	made_head(&b, 3, 1, 0);
	made_tensor(&b, "w", 2, ne, type, 0);
	made_padding(&b, 32);
	for (int i = 0; i < 4 * 18; i++)
		made_number(&b, (uint64_t)(type + i) % 50, 1);
	REQUIRE(!b.err);
	put_file(dir_fd, name, b.data, b.len);
	buf_release(&b);
}

/* Blocks of these two types have the same size. */
START_TEST(blocks_of_another_type_do_not_take_the_place_of_blocks)
{
	char base[4200], over[4300];
	const char *const overlays[] = { over, NULL };
	struct ckpt_opts o = { .index = ":memory:", .overlay = overlays };
	struct ckpt_err e = { 0 };
	struct ckpt *c;

	(void)snprintf(base, sizeof(base), "%s/base.gguf", dir);
	(void)snprintf(over, sizeof(over), "%s/over.gguf", dir);
	put_gguf("base.gguf", GGML_Q4_0);
	put_gguf("over.gguf", GGML_IQ4_NL);
	ck_assert_int_eq(open_typed(base, &o, &c, &e), -EINVAL);
	ck_assert_msg(strstr(e.msg, "option 'overlay': 'w' is of ggml's type IQ4_NL in '") &&
			      strstr(e.msg, "and of Q4_0 in the checkpoint"),
		      "%s", e.msg);
	o.dequantize = "float32";
	ck_assert_msg(!open_typed(base, &o, &c, &e), "%s", e.msg);
	ckpt_close(c);
	o.dequantize = NULL;
	put_gguf("over.gguf", GGML_Q4_0);
	ck_assert_msg(!open_typed(base, &o, &c, &e), "%s", e.msg);
	ckpt_close(c);
}
END_TEST

static const int32_t falling[] = { 3, 2 }, twice[] = { 2, 2 }, outside[] = { 2, 4 },
		     negative[] = { -1, 2 };
static const uint16_t wide[] = { 3, 0 };

/* Indices and values: their names, types and lengths. */
#define PAIR(indices, dtype, n, values, values_dtype, n_values) \
	{ indices, CKPT_DTYPE_##dtype, 1, { n }, NULL }, \
	{ \
		values, CKPT_DTYPE_##values_dtype, 1, { n_values }, NULL \
	}

static const struct {
	struct weights_tensor t[3];
	size_t n;
	const char *says;
} unfit[] = {
	{ { PAIR("v.idx", I32, 2, "v.val", F32, 2) },
	  2,
	  "it changes elements of 'v', but the checkpoint has none" },
	{ { { "w.val", CKPT_DTYPE_F32, 1, { 2 }, NULL } }, 1, "has a tensor 'w.val'" },
	{ { { "w.idx", CKPT_DTYPE_I32, 1, { 2 }, NULL } }, 1, "has a tensor 'w.idx'" },
	{ { PAIR("w.idx", I32, 3, "w.val", F32, 2) }, 2, "they are not indices and values" },
	{ { PAIR("w.idx", U8, 2, "w.val", F32, 2) }, 2, "they are not indices and values" },
	{ { PAIR("w.indices", U32, 2, "w.values", F32, 2) }, 2, "they are not indices and values" },
	{ { PAIR("w.idx", I32, 2, "w.val", I64, 2) }, 2, "'w.val' is int64" },
	{ { PAIR("w.idx", I32, 5, "w.val", F32, 5) }, 2, "they are not indices and values" },
	{ { { "w", CKPT_DTYPE_F32, 1, { 4 }, NULL }, PAIR("w.idx", I32, 1, "w.val", F32, 1) },
	  3,
	  "changes 'w' twice" },
	/* A patch that was cut short does not pass for one without elements. */
	{ { PAIR("w.idx", I32, 0, "w.val", F32, 2) }, 2, "they are not indices and values" },
	{ { PAIR("w.idx", I32, 1, "w.val", F64, 1) }, 2, "'w.val' is float64" },
};

START_LOOP_TEST(a_patch_that_does_not_fit_is_refused, (int)ARRAY_LEN(unfit))
{
	const struct weights_tensor w = { "w", CKPT_DTYPE_F32, 1, { 4 }, NULL };
	struct ckpt_err e = { 0 };
	struct ckpt *c;

	weights_put(dir_fd, "base", &w, 1);
	weights_put_as(dir_fd, "over", "patch.safetensors", unfit[_i].t, unfit[_i].n);
	ck_assert_int_eq(open_base("over", &c, &e), -EINVAL);
	ck_assert_msg(strstr(e.msg, "option 'overlay'") && strstr(e.msg, unfit[_i].says), "%s",
		      e.msg);
}
END_TEST

static const struct {
	enum ckpt_dtype dtype;
	const void *indices;
	const char *says;
} disorder[] = { { CKPT_DTYPE_I32, falling, "index 1 " },
		 { CKPT_DTYPE_I32, twice, "index 1 " },
		 { CKPT_DTYPE_I32, outside, "index 1 " },
		 { CKPT_DTYPE_I32, negative, "index 0 " },
		 { CKPT_DTYPE_U16, wide, "index 1 " } };

START_LOOP_TEST(indices_out_of_order_are_errors, (int)ARRAY_LEN(disorder))
{
	const struct weights_tensor w = { "w", CKPT_DTYPE_F32, 1, { 4 }, NULL };
	const struct weights_tensor t[] = {
		{ "w.idx", disorder[_i].dtype, 1, { 2 }, disorder[_i].indices },
		{ "w.val", CKPT_DTYPE_F32, 1, { 2 }, NULL }
	};
	struct ckpt_err e = { 0 };
	struct ckpt *c;
	float got;

	weights_put(dir_fd, "base", &w, 1);
	weights_put_as(dir_fd, "over", "patch.safetensors", t, 2);
	ck_assert_msg(!open_base("over", &c, &e), "%s", e.msg);
	for (int k = 0; k < 2; k++) { /* said again */
		e = (struct ckpt_err){ 0 };
		ck_assert_int_eq(weights_read(c, "w", &got, 4, 0, &e), -EIO);
		ck_assert_msg(strstr(e.msg, disorder[_i].says) && strstr(e.msg, "'w.idx'"), "%s",
			      e.msg);
	}
	ckpt_close(c);
}
END_TEST

static const struct {
	const char *text, *says;
} manifests[] = {
	{ "[", "sparse_update_manifest.json'" },
	{ "{}", "it is not of the format" },
	{ "{\"format\": \"prime-rl-sparse-update\", \"version\": 2, \"tensors\": []}",
	  "it is not of the format" },
	{ "{\"format\": \"prime-rl-sparse-update\", \"version\": 1, \"tensors\": [1, 2, 3]}",
	  "names more tensors" },
	{ "{\"format\": \"prime-rl-sparse-update\", \"version\": 1, \"tensors\": [1]}",
	  "has no name" },
	{ "{\"format\": \"prime-rl-sparse-update\", \"version\": 1, \"tensors\": [{\"name\": "
	  "\"v\"}]}",
	  "has none of that name" },
	{ "{\"format\": \"prime-rl-sparse-update\", \"version\": 1, \"tensors\": [{\"name\": "
	  "\"w\", "
	  "\"shape\": [5]}]}",
	  "does not have the shape" },
	{ "{\"format\": \"prime-rl-sparse-update\", \"version\": 1, \"tensors\": [{\"name\": "
	  "\"w\", "
	  "\"shape\": [4], \"indices\": \"a\", \"values\": \"c\"}]}",
	  "'values' of 'w' names no tensor" },
	{ "{\"format\": \"prime-rl-sparse-update\", \"version\": 1, \"tensors\": [{\"name\": "
	  "\"w\", "
	  "\"shape\": [4], \"indices\": \"a\", \"values\": \"a\"}]}",
	  "named twice" },
};

START_LOOP_TEST(a_manifest_that_does_not_fit_is_refused, (int)ARRAY_LEN(manifests))
{
	const struct weights_tensor w = { "w", CKPT_DTYPE_F32, 1, { 4 }, NULL };
	const struct weights_tensor t[] = { { "a", CKPT_DTYPE_I32, 1, { 1 }, NULL },
					    { "b", CKPT_DTYPE_F32, 1, { 1 }, NULL } };
	struct ckpt_err e = { 0 };
	struct ckpt *c;

	weights_put(dir_fd, "base", &w, 1);
	weights_put_as(dir_fd, "over", "patch.safetensors", t, 2);
	weights_put_text(dir_fd, "over", "sparse_update_manifest.json", manifests[_i].text);
	ck_assert_int_lt(open_base("over", &c, &e), 0);
	ck_assert_msg(strstr(e.msg, "option 'overlay'") && strstr(e.msg, manifests[_i].says), "%s",
		      e.msg);
}
END_TEST

struct reader {
	const struct lot *l;
	struct ckpt *c;
	pthread_t thread;
	uint64_t number;
	int rc;
};

/* Reads the whole tensor; each reader begins at another place. */
static void *read_whole(void *arg)
{
	struct reader *x = arg;
	size_t size = dtype_info(x->l->dtype)->size, bytes = x->l->n * size;
	size_t first = bytes / 8 * x->number;
	uint8_t *got = malloc(bytes);
	struct ckpt_err e;

	x->rc = !got || weights_read(x->c, "w", got, bytes - first, first, &e) ||
		memcmp(got, x->l->w + first, bytes - first) != 0 ||
		weights_read(x->c, "w", got, first, 0, &e) || memcmp(got, x->l->w, first) != 0;
	free(got);
	return NULL;
}

START_LOOP_TEST(readers_at_once_have_the_same, 4)
{
	struct rng r = { rng_new().state + (uint64_t)_i };
	struct lot l = { .kind = _i % 2 ? GAPS32 : INDICES64,
			 .dtype = CKPT_DTYPE_BF16,
			 .values_dtype = CKPT_DTYPE_BF16,
			 .n_dims = 2,
			 .shape = { 300, 1000 } };
	struct reader v[8];
	struct ckpt_err e = { 0 };
	struct ckpt *c;

	lot_draw(&l, &r, 3);
	if (_i / 2) /* one is out of order */
		memset(l.indices + l.pairs / 2 * dtype_info(index_dtype(l.kind))->size, 0xff, 4);
	lot_put(&l);
	ck_assert_msg(!open_base("over", &c, &e), "%s", e.msg);
	for (uint64_t i = 0; i < ARRAY_LEN(v); i++) {
		v[i] = (struct reader){ .l = &l, .c = c, .number = i };
		ck_assert(!pthread_create(&v[i].thread, NULL, read_whole, &v[i]));
	}
	for (size_t i = 0; i < ARRAY_LEN(v); i++) {
		ck_assert(!pthread_join(v[i].thread, NULL));
		ck_assert(!v[i].rc == !(_i / 2));
	}
	ckpt_close(c);
	lot_release(&l);
}
END_TEST

START_TEST(whatever_fails_is_an_error_or_has_the_right_bytes)
{
	struct rng r = rng_new();
	struct lot l = { .kind = MANIFEST,
			 .dtype = CKPT_DTYPE_F32,
			 .values_dtype = CKPT_DTYPE_BF16,
			 .n_dims = 2,
			 .shape = { 3, 5 } };
	uint8_t got[60];

	lot_draw(&l, &r, 2);
	lot_put(&l);
	FAULT_LOOP_SOME(FAULT_ANY, 1)
	{
		struct ckpt_err e = { 0 };
		struct ckpt *c = NULL;
		int rc = open_base("over", &c, &e);

		if (!rc)
			rc = weights_read(c, "w", got, sizeof(got), 0, &e);
		fault_off();
		ck_assert(!rc || (e.code == -rc && *e.msg));
		ck_assert(rc || !memcmp(got, l.w, sizeof(got)));
		ckpt_close(c);
	}
	lot_release(&l);
}
END_TEST

SUITE(overlay_sparse, .setup = dir_setup, .teardown = dir_teardown, .seconds = 60)
