/* SPDX-License-Identifier: Apache-2.0 */
/* The options lora= and overlay=, compared with the definition, one element at a time. */
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "ckpt/computed/lora_config.h"
#include "codec/cast.h"
#include "dir_util.h"
#include "fault.h"
#include "opts_util.h"
#include "rng.h"
#include "st_util.h"
#include "suites.h"
#include "weights_util.h"
#include <ckptfs/ckpt_mount.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { BIG = 1 << 20, DECODED = 1 << 18 };

static const enum ckpt_dtype dtypes[] = { CKPT_DTYPE_BF16, CKPT_DTYPE_F16, CKPT_DTYPE_F32 };

/* ---- numbers ---- */

static float value(enum ckpt_dtype dtype, const void *p, size_t i)
{
	float f;

	cast_run(dtype, CKPT_DTYPE_F32, (const uint8_t *)p + i * dtype_info(dtype)->size, &f, 1);
	return f;
}

/* n random elements, which the caller frees; some are zeros of both signs, subnormal, infinite or
 * NaN. */
static uint8_t *draw(struct rng *r, enum ckpt_dtype dtype, size_t n)
{
	size_t size = dtype_info(dtype)->size;
	uint8_t *p = malloc(n * size + 1);

	REQUIRE(p);
	for (size_t i = 0; i < n; i++) {
		uint64_t any = rng_u64(r);
		float f = ldexpf((float)(int32_t)any, -31);

		if (rng_chance(r, 2))
			f = (any & 1) ? -0.0F : 0x1p-149F * (float)(any % 9);
		if (any % 5000 == 0)
			f = (any & 8) ? INFINITY : NAN;
		cast_run(CKPT_DTYPE_F32, dtype, &f, p + i * size, 1);
	}
	return p;
}

/* ---- a weight and an adapter ---- */

struct lot {
	enum ckpt_dtype w_dtype, dtype; /* of the weight, of the adapter */
	uint64_t rows, columns, rank;
	bool turned, embeds;
	uint8_t *w, *a, *b;
};

/* For tests that are not about sizes. */
static const struct lot small = {
	.w_dtype = CKPT_DTYPE_F32, .dtype = CKPT_DTYPE_F32, .rows = 5, .columns = 7, .rank = 2
};

static void lot_draw(struct lot *l, struct rng *r)
{
	uint64_t m = l->turned ? l->columns : l->rows, n = l->turned ? l->rows : l->columns;

	l->w = draw(r, l->w_dtype, l->rows * l->columns);
	l->a = draw(r, l->dtype, l->rank * n);
	l->b = draw(r, l->dtype, m * l->rank);
}

static void lot_release(struct lot *l)
{
	free(l->w);
	free(l->a);
	free(l->b);
}

/* base/ has the weight as NAME.weight; lora/ the adapter. more: members of its configuration. */
static void lot_put(const struct lot *l, const char *prefix, const char *more)
{
	uint64_t m = l->turned ? l->columns : l->rows, n = l->turned ? l->rows : l->columns;
	const char *const kinds[] = { l->embeds ? ".lora_embedding_A" : ".lora_A.weight",
				      l->embeds ? ".lora_embedding_B" : ".lora_B.weight" };
	char name[100], a[100], b[100], config[400];
	struct weights_tensor w = { name, l->w_dtype, 2, { l->rows, l->columns }, l->w };
	const struct weights_tensor t[] = { { a, l->dtype, 2, { l->rank, n }, l->a },
					    { b, l->dtype, 2, { m, l->rank }, l->b } };

	(void)snprintf(name, sizeof(name), "%sm.proj.weight", prefix);
	(void)snprintf(a, sizeof(a), "base_model.model.m.proj%s", kinds[0]);
	(void)snprintf(b, sizeof(b), "base_model.model.m.proj%s", kinds[1]);
	(void)snprintf(config, sizeof(config), "{\"peft_type\":\"LORA\",%s%s}",
		       l->turned && !l->embeds ? "\"fan_in_fan_out\":true," : "", more);
	weights_put(dir_fd, "base", &w, 1);
	weights_put_as(dir_fd, "lora", "adapter_model.safetensors", t, 2);
	weights_put_text(dir_fd, "lora", "adapter_config.json", config);
}

/* Element (i, j) with the adapter, by the definition. volatile keeps compilers from fusing
 * operations. */
static void naive(const struct lot *l, float scale, const uint8_t *w, uint64_t i, uint64_t j,
		  uint8_t *to)
{
	uint64_t row = l->turned ? j : i, column = l->turned ? i : j;
	uint64_t n = l->turned ? l->rows : l->columns;
	volatile float sum = 0, one;
	float f;

	for (uint64_t k = 0; k < l->rank; k++) {
		one = value(l->dtype, l->b, row * l->rank + k) *
		      value(l->dtype, l->a, k * n + column);
		sum = sum + one;
	}
	one = sum * scale;
	f = value(l->w_dtype, w, i * l->columns + j) + one;
	cast_run(CKPT_DTYPE_F32, l->w_dtype, &f, to, 1);
}

static int open_with(const char *option, struct ckpt **ret, struct ckpt_err *e)
{
	char base[4200], word[4300];
	const char *const list[] = { word, NULL };
	struct ckpt_opts o = { .index = ":memory:", .lora = list };

	(void)snprintf(base, sizeof(base), "%s/base", dir);
	(void)snprintf(word, sizeof(word), "%s/%s", dir, option);
	return open_typed(base, &o, ret, e);
}

static bool is_nan(enum ckpt_dtype dtype, const uint8_t *p)
{
	return isnan(value(dtype, p, 0));
}

static void check(const struct lot *l, struct ckpt *c, const char *name, float scale)
{
	size_t size = dtype_info(l->w_dtype)->size, bytes = l->rows * l->columns * size;
	autofree uint8_t *got = malloc(bytes + 1);
	struct rng r = rng_new();
	struct ckpt_err e = { 0 };
	uint8_t want[4], part[64];

	REQUIRE(got);
	ck_assert_msg(!weights_read(c, name, got, bytes, 0, &e), "%s", e.msg);
	for (uint64_t i = 0; i < l->rows; i++)
		for (uint64_t j = 0; j < l->columns; j++) {
			uint8_t *at = got + (i * l->columns + j) * size;

			naive(l, scale, l->w, i, j, want);
			if (memcmp(at, want, size) != 0 &&
			    !(is_nan(l->w_dtype, want) && is_nan(l->w_dtype, at)))
				ck_abort_msg("[%llu, %llu] of %llu x %llu, rank %llu: wrong",
					     (unsigned long long)i, (unsigned long long)j,
					     (unsigned long long)l->rows,
					     (unsigned long long)l->columns,
					     (unsigned long long)l->rank);
		}
	for (int k = 0; k < 100 && bytes; k++) {
		size_t edge = rng_below(&r, bytes / DECODED + 1) * DECODED;
		size_t off = k % 2 && edge > 40 ? edge - rng_below(&r, 40) : rng_below(&r, bytes);
		size_t len = min_u64(1 + rng_below(&r, sizeof(part)), bytes - off);

		ck_assert(!weights_read(c, name, part, len, off, &e));
		ck_assert(!memcmp(part, got + off, len));
	}
}

/* ---- values ---- */

START_LOOP_TEST(a_weight_has_the_product_added, 40)
{
	struct rng r = { rng_new().state + (uint64_t)_i };
	struct lot l = { .w_dtype = dtypes[rng_below(&r, 3)],
			 .dtype = dtypes[rng_below(&r, 3)],
			 .rows = 1 + rng_below(&r, 40),
			 .columns = 1 + rng_below(&r, 300),
			 .rank = 1 + rng_below(&r, 9),
			 .turned = _i % 3 > 0,
			 .embeds = _i % 3 > 1 };
	struct ckpt_err e = { 0 };
	struct ckpt *c;
	char config[100];

	lot_draw(&l, &r);
	(void)snprintf(config, sizeof(config), "\"r\":%llu,\"lora_alpha\":7%s",
		       (unsigned long long)l.rank, _i % 2 ? ",\"use_rslora\":true" : "");
	lot_put(&l, "", config);
	ck_assert_msg(!open_with(_i % 4 ? "lora" : "lora:0.75", &c, &e), "%s", e.msg);
	check(&l, c, "m.proj.weight",
	      (float)(7 / (_i % 2 ? sqrt((double)l.rank) : (double)l.rank) * (_i % 4 ? 1 : 0.75)));
	ckpt_close(c);
	lot_release(&l);
}
END_TEST

/* Blocks that end within a row, blocks of many rows, and ranks so large that the matrices are read
 * in tiles. */
START_FEW_TEST(large_ones_are_computed_in_tiles, 6, 3)
{
	static const struct {
		uint64_t rows, columns, rank;
		bool turned;
	} of[] = {
		{ 3, 200003, 2, false }, { 200003, 3, 2, false },  { 3, 200003, 2, true },
		{ 200003, 3, 2, true },	 { 40, 9000, 300, false }, { 300, 1500, 1100, true },
	};
	struct rng r = rng_new();
	struct lot l = { .w_dtype = CKPT_DTYPE_BF16,
			 .dtype = CKPT_DTYPE_F32,
			 .rows = of[_i].rows,
			 .columns = of[_i].columns,
			 .rank = of[_i].rank,
			 .turned = of[_i].turned };
	struct ckpt_err e = { 0 };
	struct ckpt *c;
	char config[100];

	if (l.rows * l.columns * l.rank > 50000000 && !rng_full())
		l.rows /= 8;
	lot_draw(&l, &r);
	(void)snprintf(config, sizeof(config), "\"r\":%llu,\"lora_alpha\":1",
		       (unsigned long long)l.rank);
	lot_put(&l, "", config);
	ck_assert_msg(!open_with("lora", &c, &e), "%s", e.msg);
	check(&l, c, "m.proj.weight", (float)(1 / (double)l.rank));
	ckpt_close(c);
	lot_release(&l);
}
END_TEST

START_LOOP_TEST(patterns_decide_rank_and_alpha, 6)
{
	static const struct {
		const char *config;
		double scale;
	} of[] = {
		{ "\"r\":9,\"lora_alpha\":8,\"rank_pattern\":{\"proj\":2}", 4 },
		{ "\"r\":9,\"lora_alpha\":8,\"rank_pattern\":{\"roj\":5,\"m.proj\":2,\"proj\":7}",
		  4 },
		{ "\"r\":2,\"lora_alpha\":8,\"alpha_pattern\":{\"^m\\\\.proj\":6}", 3 },
		{ "\"r\":2,\"lora_alpha\":8,\"alpha_pattern\":{\"^proj\":6,\"x.m.proj\":1}", 4 },
		{ "\"r\":2,\"lora_alpha\":8,\"alpha_pattern\":{\"p.oj\":-6.5}", -3.25 },
		{ "\"r\":2,\"lora_alpha\":8,\"alpha_pattern\":{},\"rank_pattern\":null", 4 },
	};
	struct rng r = rng_new();
	struct lot l = small;
	struct ckpt_err e = { 0 };
	struct ckpt *c;

	lot_draw(&l, &r);
	lot_put(&l, "", of[_i].config);
	ck_assert_msg(!open_with("lora", &c, &e), "%s", e.msg);
	check(&l, c, "m.proj.weight", (float)of[_i].scale);
	ckpt_close(c);
	lot_release(&l);
}
END_TEST

START_TEST(names_may_be_behind_a_prefix)
{
	struct rng r = rng_new();
	struct lot l = { .w_dtype = CKPT_DTYPE_BF16,
			 .dtype = CKPT_DTYPE_BF16,
			 .rows = 5,
			 .columns = 7,
			 .rank = 2 };
	struct ckpt_err e = { 0 };
	struct ckpt *c;

	lot_draw(&l, &r);
	lot_put(&l, "module.model.", "\"r\":2,\"lora_alpha\":2");
	ck_assert_msg(!open_with("lora", &c, &e), "%s", e.msg);
	check(&l, c, "module.model.m.proj.weight", 1);
	ckpt_close(c);
	lot_release(&l);
}
END_TEST

/* Overlays replace tensors first; then adapters are added one after the other, each time with
 * rounding. */
START_TEST(adapters_and_overlays_follow_each_other)
{
	char base[4200], over[4200], one[4200], two[4300];
	const char *const overlays[] = { over, NULL }, *const adapters[] = { one, two, NULL };
	struct ckpt_opts o = { .index = ":memory:", .overlay = overlays, .lora = adapters };
	struct rng r = rng_new();
	struct lot l = { .w_dtype = CKPT_DTYPE_BF16,
			 .dtype = CKPT_DTYPE_F32,
			 .rows = 11,
			 .columns = 70,
			 .rank = 3 };
	struct weights_tensor put = { "m.proj.weight", CKPT_DTYPE_BF16, 2, { 11, 70 }, NULL };
	uint8_t *other = draw(&r, CKPT_DTYPE_BF16, 770), once[2];
	struct ckpt_totals before, after;
	char first[100];
	struct ckpt_err e = { 0 };
	struct ckpt *c;

	(void)snprintf(base, sizeof(base), "%s/base", dir);
	(void)snprintf(over, sizeof(over), "%s/over", dir);
	(void)snprintf(one, sizeof(one), "%s/lora", dir);
	(void)snprintf(two, sizeof(two), "%s/lora:-0.5", dir);
	lot_draw(&l, &r);
	lot_put(&l, "", "\"r\":3,\"lora_alpha\":3");
	put.bytes = other;
	weights_put(dir_fd, "over", &put, 1);
	ck_assert_msg(!open_typed(base, &o, &c, &e), "%s", e.msg);
	for (uint64_t i = 0; i < 11; i++)
		for (uint64_t j = 0; j < 70; j++) { /* what the first adapter leaves */
			naive(&l, 1, other, i, j, once);
			memcpy(l.w + 2 * (i * 70 + j), once, 2);
		}
	check(&l, c, "m.proj.weight", -0.5F);
	ckpt_totals(c, &before);
	ck_assert_uint_eq(before.tensors, 1);
	(void)snprintf(first, sizeof(first), "%s", before.identity);
	ckpt_close(c);
	o.lora = NULL;
	ck_assert(!open_typed(base, &o, &c, &e));
	ckpt_totals(c, &after);
	ck_assert_str_ne(first, after.identity);
	ckpt_close(c);
	free(other);
	lot_release(&l);
}
END_TEST

START_TEST(what_is_saved_besides_replaces)
{
	const float norm[] = { 1, 2, 3 }, head[] = { 5, 6, 7, 8 };
	const uint16_t narrow[] = { 0x3f80, 0x4000, 0x4040 };
	const struct weights_tensor base[] = {
		{ "model.embed.weight", CKPT_DTYPE_F32, 2, { 2, 2 }, NULL },
		{ "model.norm.weight", CKPT_DTYPE_BF16, 1, { 3 }, NULL },
	};
	const struct weights_tensor t[] = {
		{ "base_model.model.model.embed.base_layer.weight",
		  CKPT_DTYPE_F32,
		  2,
		  { 2, 2 },
		  head },
		{ "base_model.model.model.norm.weight", CKPT_DTYPE_F32, 1, { 3 }, norm },
	};
	struct ckpt_err e = { 0 };
	struct ckpt *c;
	uint8_t got[16];

	weights_put(dir_fd, "base", base, 2);
	weights_put_as(dir_fd, "lora", "adapter_model.safetensors", t, 2);
	weights_put_text(
		dir_fd, "lora", "adapter_config.json",
		"{\"peft_type\":\"LORA\",\"r\":1,\"lora_alpha\":1,\"modules_to_save\":[\"norm\"]}");
	ck_assert_msg(!open_with("lora", &c, &e), "%s", e.msg);
	ck_assert(!weights_read(c, "model.embed.weight", got, 16, 0, &e));
	ck_assert(!memcmp(got, head, 16));
	ck_assert(!weights_read(c, "model.norm.weight", got, 6, 0, &e)); /* in the base's dtype */
	ck_assert(!memcmp(got, narrow, 6));
	ckpt_close(c);
}
END_TEST

/* ---- another vocabulary ---- */

static const float wide[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 }, biases[] = { 1, 2, 3, 4 };

/* An adapter that resizes what base/ has with two rows; output: its bytes, or NULL for none. */
static void put_resized(const char *config, const void *output)
{
	const struct weights_tensor t[] = {
		{ "base_model.model.model.embed_tokens.weight", CKPT_DTYPE_F32, 2, { 4, 3 }, wide },
		{ "base_model.model.model.norm.weight", CKPT_DTYPE_F32, 1, { 2 }, biases },
		{ "base_model.model.lm_head.weight", CKPT_DTYPE_F32, 2, { 4, 3 }, output },
	};

	weights_put_as(dir_fd, "lora", "adapter_model.safetensors", t, output ? 3 : 2);
	weights_put_text(dir_fd, "lora", "adapter_config.json",
			 "{\"peft_type\":\"LORA\",\"r\":1,\"lora_alpha\":1}");
	weights_put_text(dir_fd, "base", "config.json", config);
}

static void put_small(bool tied)
{
	const struct weights_tensor base[] = {
		{ "model.embed_tokens.weight", CKPT_DTYPE_F32, 2, { 2, 3 }, NULL },
		{ "model.norm.weight", CKPT_DTYPE_F32, 1, { 2 }, NULL },
		{ "lm_head.weight", CKPT_DTYPE_F32, 2, { 2, 3 }, NULL },
	};

	weights_put(dir_fd, "base", base, tied ? 2 : 3);
}

static const char *config_of(struct ckpt *c, char got[static 200])
{
	struct ckpt_file *f = NULL;
	struct ckpt_err e = { 0 };
	int64_t n;

	ck_assert_msg(!ckpt_file_open_path(c, "hf/config.json", &f, &e), "%s", e.msg);
	n = ckpt_file_read(f, got, 199, 0, &e);
	ck_assert_int_ge(n, 0);
	got[n] = 0;
	ckpt_file_close(f);
	return got;
}

START_LOOP_TEST(a_resized_vocabulary_is_that_of_the_adapter, 8)
{
	static const struct {
		const char *config, *shown; /* NULL: the same */
	} of[] = {
		{ "{\"vocab_size\": 2}", "{\"vocab_size\": 4}" },
		{ "{\"vocab_size\":2, \"a\":[2]}\n", "{\"vocab_size\":4, \"a\":[2]}\n" },
		{ "{\"b\":\"\\u00e9\",\"text_config\":{\"vocab_size\":2},\"vocab_size\":2}",
		  "{\"b\":\"\\u00e9\",\"text_config\":{\"vocab_size\":4},\"vocab_size\":4}" },
		{ "{\"vocab_size\":3,\"vision_config\":{\"vocab_size\":2}}", NULL },
		{ "{\"vocab_size\":20,\"text_config\":[]}", NULL },
		{ "{\"vocab_size\":\"2\",\"text_config\":2}", NULL },
		{ "{\"vocab_size\":2.0}", NULL },
		{ "{\"vocab_size\":2", NULL },
	};
	struct ckpt_err e = { 0 };
	struct ckpt *c;
	char config[200];
	float got[12];

	put_small(_i % 2);
	put_resized(of[_i].config, _i % 2 ? NULL : wide);
	ck_assert_msg(!open_with("lora", &c, &e), "%s", e.msg);
	ck_assert(!weights_read(c, "model.embed_tokens.weight", got, sizeof(got), 0, &e));
	ck_assert(!memcmp(got, wide, sizeof(got)));
	ck_assert_str_eq(config_of(c, config), of[_i].shown ? of[_i].shown : of[_i].config);
	ckpt_close(c);
}
END_TEST

/* The same matrix is stored once in the checkpoint, twice in the adapter. */
START_TEST(tied_embeddings_are_stored_once)
{
	struct ckpt_err e = { 0 };
	struct ckpt_totals totals;
	struct ckpt *c;
	float got[12], other[12];

	put_small(true);
	put_resized("{}", wide);
	ck_assert_msg(!open_with("lora", &c, &e), "%s", e.msg);
	ck_assert(!weights_read(c, "model.embed_tokens.weight", got, sizeof(got), 0, &e));
	ck_assert(!memcmp(got, wide, sizeof(got)));
	ckpt_totals(c, &totals);
	ck_assert_uint_eq(totals.tensors, 2);
	ckpt_close(c);
	memcpy(other, wide, sizeof(other));
	other[11] = 0;
	put_resized("{}", other);
	ck_assert_int_eq(open_with("lora", &c, &e), -EINVAL);
	ck_assert_msg(strstr(e.msg, "changes 'lm_head.weight', but the checkpoint stores no"), "%s",
		      e.msg);
}
END_TEST

START_TEST(a_resized_vocabulary_whatever_fails)
{
	struct ckpt_err e;
	char config[200];
	float got[12];

	put_small(true);
	put_resized("{\"vocab_size\": 2}", wide);
	FAULT_LOOP_SOME(FAULT_ANY, 1)
	{
		struct ckpt *c = NULL;
		int rc;

		e = (struct ckpt_err){ 0 };
		rc = open_with("lora", &c, &e);
		if (!rc)
			rc = weights_read(c, "model.embed_tokens.weight", got, sizeof(got), 0, &e);
		fault_off();
		ck_assert(!rc || (e.code == -rc && *e.msg));
		ck_assert(rc || !memcmp(got, wide, sizeof(got)));
		if (!rc)
			ck_assert_str_eq(config_of(c, config), "{\"vocab_size\": 4}");
		ckpt_close(c);
	}
}
END_TEST

START_TEST(each_adapter_may_resize)
{
	char base[4200], one[4200], two[4300];
	const char *const adapters[] = { one, two, NULL };
	struct ckpt_opts o = { .index = ":memory:", .lora = adapters };
	const struct weights_tensor t = {
		"base_model.model.model.embed_tokens.weight", CKPT_DTYPE_F32, 2, { 1, 3 }, wide + 9
	};
	struct ckpt_err e = { 0 };
	struct ckpt *c;
	char config[200];
	float got[3];

	(void)snprintf(base, sizeof(base), "%s/base", dir);
	(void)snprintf(one, sizeof(one), "%s/lora", dir);
	(void)snprintf(two, sizeof(two), "%s/less", dir);
	put_small(true);
	put_resized("{\"vocab_size\": 2}", NULL);
	weights_put_as(dir_fd, "less", "adapter_model.safetensors", &t, 1);
	weights_put_text(dir_fd, "less", "adapter_config.json",
			 "{\"peft_type\":\"LORA\",\"r\":1,\"lora_alpha\":1}");
	ck_assert_msg(!open_typed(base, &o, &c, &e), "%s", e.msg);
	ck_assert(!weights_read(c, "model.embed_tokens.weight", got, sizeof(got), 0, &e));
	ck_assert(!memcmp(got, wide + 9, sizeof(got)));
	ck_assert_str_eq(config_of(c, config), "{\"vocab_size\": 1}");
	ckpt_close(c);
}
END_TEST

/* ---- refusals ---- */

START_LOOP_TEST(a_configuration_that_is_not_understood_is_refused, 30)
{
	static const struct {
		const char *config, *says;
	} of[] = {
		{ "\"r\":-2,\"lora_alpha\":1", "r is -2, which is not a rank" },
		{ "\"r\":0,\"lora_alpha\":1", "r is 0" },
		{ "\"r\":2.5,\"lora_alpha\":1", "r is 2.5" },
		{ "\"r\":1e300,\"lora_alpha\":1", "r is 1e+300" },
		{ "\"r\":20000,\"lora_alpha\":1", "not a rank from 1 to 16384" },
		{ "\"r\":NaN,\"lora_alpha\":1", "r is nan" },
		{ "\"r\":\"2\",\"lora_alpha\":1", "r is missing, or is not a number" },
		{ "\"lora_alpha\":1", "r is missing" },
		{ "\"r\":2", "lora_alpha is missing" },
		{ "\"r\":2,\"lora_alpha\":Infinity", "lora_alpha is missing, or is not a number" },
		{ "\"r\":2,\"lora_alpha\":1e39", "is not finite" },
		{ "\"r\":3,\"lora_alpha\":1", "and rank 3: they do not fit" },
		{ "\"r\":2,\"lora_alpha\":1,\"use_dora\":true", "use_dora: DoRA" },
		{ "\"r\":2,\"lora_alpha\":1,\"lora_bias\":true", "lora_bias" },
		{ "\"r\":2,\"lora_alpha\":1,\"alora_invocation_tokens\":[1]", "activated LoRA" },
		{ "\"r\":2,\"lora_alpha\":1,\"layer_replication\":[[0,1]]", "layer_replication" },
		{ "\"r\":2,\"lora_alpha\":1,\"target_parameters\":[\"x\"]", "target_parameters" },
		{ "\"r\":2,\"lora_alpha\":1,\"init_lora_weights\":\"pissa_niter_4\"",
		  "is pissa_niter_4" },
		{ "\"r\":2,\"lora_alpha\":1,\"use_rslora\":1", "use_rslora is neither" },
		{ "\"r\":2,\"lora_alpha\":1,\"fan_in_fan_out\":\"yes\"",
		  "fan_in_fan_out is neither" },
		{ "\"r\":2,\"lora_alpha\":1,\"fan_in_fan_out\":true",
		  "with fan_in_fan_out: they do" },
		{ "\"r\":2,\"lora_alpha\":1,\"rank_pattern\":[]", "rank_pattern is not an object" },
		{ "\"r\":2,\"lora_alpha\":1,\"rank_pattern\":{\"(a|b)\":2}", "regular expression" },
		{ "\"r\":2,\"lora_alpha\":1,\"rank_pattern\":{\"\":2}", "regular expression" },
		{ "\"r\":2,\"lora_alpha\":1,\"rank_pattern\":{\"a\\\\\":2}", "regular expression" },
		{ "\"r\":2,\"lora_alpha\":1,\"rank_pattern\":{\"proj\":0}",
		  "in rank_pattern is 0" },
		{ "\"r\":2,\"lora_alpha\":1,\"alpha_pattern\":{\"proj\":[]}", "has no number" },
		{ "\"r\":2,\"lora_alpha\":1,\"alpha_pattern\":{\"proj\":1e39}", "is not finite" },
		{ "\"r\":2,\"lora_alpha\":1,", "line 1" },
		{ "\"peft_type\":\"IA3\",\"r\":2,\"lora_alpha\":1", "IA3" },
	};
	struct rng r = rng_new();
	struct lot l = small;
	struct ckpt_err e = { 0 };
	struct ckpt *c;

	lot_draw(&l, &r);
	lot_put(&l, "", of[_i].config);
	if (strstr(of[_i].config, "IA3"))
		weights_put_text(dir_fd, "lora", "adapter_config.json",
				 "{\"peft_type\":\"IA3\",\"r\":2}");
	ck_assert_int_lt(open_with("lora", &c, &e), 0);
	ck_assert_msg(strstr(e.msg, "option 'lora'") && strstr(e.msg, of[_i].says), "%s", e.msg);
	lot_release(&l);
}
END_TEST

START_LOOP_TEST(a_tensor_that_fits_nothing_is_refused, 10)
{
	static const char *const a = "base_model.model.m.proj.lora_A.weight",
				 *const b = "base_model.model.m.proj.lora_B.weight";
	const struct {
		struct weights_tensor t[2];
		size_t n;
		const char *says;
	} of[] = {
		{ { { a, CKPT_DTYPE_F32, 2, { 2, 7 }, NULL } },
		  1,
		  "has no 'base_model.model.m.proj.lora_B" },
		{ { { b, CKPT_DTYPE_F32, 2, { 5, 2 }, NULL } },
		  1,
		  "has no 'base_model.model.m.proj.lora_A" },
		{ { { a, CKPT_DTYPE_F32, 2, { 2, 8 }, NULL },
		    { b, CKPT_DTYPE_F32, 2, { 5, 2 }, NULL } },
		  2,
		  "they do not fit" },
		{ { { a, CKPT_DTYPE_F32, 2, { 2, 7 }, NULL },
		    { b, CKPT_DTYPE_F32, 2, { 2, 5 }, NULL } },
		  2,
		  "they do not fit" },
		{ { { a, CKPT_DTYPE_F32, 3, { 2, 7, 1 }, NULL },
		    { b, CKPT_DTYPE_F32, 2, { 5, 2 }, NULL } },
		  2,
		  "they do not fit" },
		{ { { a, CKPT_DTYPE_I32, 2, { 2, 7 }, NULL },
		    { b, CKPT_DTYPE_F32, 2, { 5, 2 }, NULL } },
		  2,
		  "they do not fit" },
		{ { { "model.m.proj.lora_A.weight", CKPT_DTYPE_F32, 2, { 2, 7 }, NULL } },
		  1,
		  "is not below base_model.model" },
		{ { { "base_model.model.m.proj.lora_magnitude_vector",
		      CKPT_DTYPE_F32,
		      1,
		      { 5 },
		      NULL } },
		  1,
		  "kind of adapter" },
		{ { { "base_model.model.m.more.weight", CKPT_DTYPE_F32, 1, { 5 }, NULL } },
		  1,
		  "changes 'm.more.weight', but the checkpoint stores no" },
		{ { { "base_model.model.m.proj.weight", CKPT_DTYPE_F32, 1, { 5 }, NULL } },
		  1,
		  "has shape (5,) in" },
	};
	struct rng r = rng_new();
	struct lot l = small;
	struct ckpt_err e = { 0 };
	struct ckpt *c;

	lot_draw(&l, &r);
	lot_put(&l, "", "\"r\":2,\"lora_alpha\":1");
	weights_put_as(dir_fd, "lora", "adapter_model.safetensors", of[_i].t, of[_i].n);
	ck_assert_int_lt(open_with("lora", &c, &e), 0);
	ck_assert_msg(strstr(e.msg, "option 'lora'") && strstr(e.msg, of[_i].says), "%s", e.msg);
	lot_release(&l);
}
END_TEST

#define PROJ_A "base_model.model.m.proj.lora_A.weight F32 2x7; "
#define PROJ   PROJ_A "base_model.model.m.proj.lora_B.weight F32 5x2"

static const struct {
	const char *base, *adapter; /* tensors */
	const char *suffix, *weights;
	const char *says; /* NULL: it fits */
} words[] = {
	{ "m.proj.weight F32 5x7", PROJ, "", NULL, NULL },
	{ "m.proj.weight F32 5x7", PROJ, ":0.5", NULL, NULL },
	{ "m.proj.weight F32 5x7", PROJ, ":inf", NULL, "the scale is not finite" },
	{ "m.proj.weight F32 5x7", PROJ, ":1e39", NULL,
	  "multiplies 'm.proj.weight' by is not finite" },
	{ "m.proj.weight F32 5x7", PROJ, ":", NULL, "lora:" },
	{ "m.proj.weight F32 5x7", PROJ, ":2x", NULL, "lora:2x" },
	{ "m.proj.weight F32 5x7", PROJ, ":2/..", NULL, "lora:2/.." },
	{ "m.proj.weight F32 5x7", "", "", NULL, "has no tensors" },
	{ "m.proj.weight I32 5x7", PROJ, "", NULL,
	  "'m.proj.weight' is int32, but an adapter can be added only to float32" },
	{ "m.proj.weight F32 35", PROJ, "", NULL, "'m.proj.weight' has shape (35,)" },
	{ "m.proj.weight F32 6x7", PROJ, "", NULL, "they do not fit" },
	{ "m.proj.weight F32 5x7", PROJ_A "base_model.model.m.proj.lora_B.weight F32 5x2x1", "",
	  NULL, "they do not fit" },
	{ "m.proj.weight F32 5x7", PROJ_A "base_model.model.m.proj.lora_B.weight I32 5x2", "", NULL,
	  "they do not fit" },
	{ "m.proj.weight F32 5x7", PROJ_A "base_model.model.m.proj.lora_B.weight F32 5x3", "", NULL,
	  "they do not fit" },
	{ "m.proj.weight F32 5x7",
	  "base_model.model..lora_A.weight F32 2x7; base_model.model..lora_B.weight F32 5x2", "",
	  NULL, "has no module in its name" },
	{ "m.proj.weight F32 5x7", "base_model.model.m.token_adapter.x F32 2", "", NULL,
	  "kind of adapter" },
	{ "m.proj.weight F32 5x7", "base_model.model. F32 2", "", NULL,
	  "is not below base_model.model" },
	/* Prefixes. */
	{ "x.m.proj.weight F32 5x7", PROJ, "", NULL, NULL },
	{ "xm.proj.weight F32 5x7", PROJ, "", NULL,
	  "changes 'm.proj.weight', but the checkpoint stores no tensor" },
	{ "x.m.proj.weight F32 5x7; y.m.proj.weight F32 5x7", PROJ, "", NULL,
	  "exist under several prefixes: choose one with weights=" },
	{ "x.m.proj.weight F32 5x7; y.m.proj.weight F32 5x7", PROJ, "", "y", NULL },
	{ "x.m.proj.weight F32 5x7; m.proj.weight F32 5x7", PROJ, "", NULL, NULL },
	{ "x.m.proj.weight F32 5x7; yy.m.proj.weight F32 5x7", PROJ "; base_model.model.n F32 2",
	  "", NULL, "', but the checkpoint stores no tensor" },
	{ "x.m.proj.weight F32 5x7; y.m.proj.weight F32 5x7; y.n F32 2",
	  PROJ "; base_model.model.n F32 2", "", NULL, NULL },
	/* Only these parts of names are replaced. */
	{ "xbase_layer.weight F32 2", "base_model.model.xbase_layer.weight F32 2", "", NULL, NULL },
	{ "weight F32 2", "base_model.model.base_layer.weight F32 2", "", NULL, NULL },
	{ "a.weight F32 2", "base_model.model.a.base_layer.weight F32 2", "", NULL, NULL },
	/* Another number of rows: that of the vocabulary, for all. */
	{ "a F32 2x3; b F32 2x3", "base_model.model.a F32 5x3; base_model.model.b F32 5x3", "",
	  NULL, NULL },
	{ "a F32 2x3; b F32 2", "base_model.model.a F32 5x3; base_model.model.b F32 5", "", NULL,
	  NULL },
	{ "a F32 2x3; b F32 2x3; n F32 3x2",
	  "base_model.model.a F32 5x3; base_model.model.n F32 3x2", "", NULL, NULL },
	{ "a F32 2x3; b F32 4x3", "base_model.model.a F32 5x3; base_model.model.b F32 5x3", "",
	  NULL, "has shape (5, 3) in" },
	{ "a F32 2x3; b F32 2x3", "base_model.model.a F32 5x3; base_model.model.b F32 6x3", "",
	  NULL, "has shape (6, 3) in" },
	{ "a F32 2x3", "base_model.model.a F32 5x4", "", NULL, "has shape (5, 4) in" },
	{ "a F32 2x3", "base_model.model.a F32 0x3", "", NULL, "has shape (0, 3) in" },
	{ "a F32 0x3", "base_model.model.a F32 5x3", "", NULL, "has shape (5, 3) in" },
	{ "a F32 2x3x1", "base_model.model.a F32 5x3x1", "", NULL, "has shape (5, 3, 1) in" },
	{ "a F32 2", "base_model.model.a F32 5", "", NULL, "has shape (5,) in" },
	{ "a F32 2x3; b F32 2", "base_model.model.a F32 5x3; base_model.model.b F32 4", "", NULL,
	  "has shape (4,) in" },
	/* Output embeddings that the checkpoint does not store. */
	{ "a F32 2x3", "base_model.model.a F32 2x3; base_model.model.lm_head.weight F32 3x2", "",
	  NULL, "changes 'lm_head.weight', but" },
	{ "a F32 2x3", "base_model.model.a F32 2x3; base_model.model.lm_head.weight F16 2x3", "",
	  NULL, "changes 'lm_head.weight', but" },
	{ "a F32 2x3", "base_model.model.lm_head.weight F32 2x3", "", NULL,
	  "changes 'lm_head.weight', but" },
	{ "a F32 0x3", "base_model.model.a F32 0x3; base_model.model.lm_head.weight F32 0x3", "",
	  NULL, NULL },
	{ "a F32 0x3", "base_model.model.a F32 0x3; base_model.model.xlm_head.weight F32 0x3", "",
	  NULL, "changes 'xlm_head.weight', but" },
	{ "x.a F32 0x3; x.lm_head.weight F32 1",
	  "base_model.model.a F32 0x3; base_model.model.lm_head.weight F32 0x3", "", NULL,
	  "has shape (0, 3) in" },
};

START_LOOP_TEST(a_word_names_an_adapter_that_fits, ARRAY_LEN(words))
{
	struct ckpt_opts o = { .index = ":memory:", .weights = words[_i].weights };
	struct rng r = rng_new();
	struct ckpt_err e = { 0 };
	struct ckpt *c = NULL;
	char base[4300], lora[4300];
	const char *const list[] = { lora, NULL };
	int rc;

	(void)snprintf(base, sizeof(base), "%s/base", dir);
	(void)snprintf(lora, sizeof(lora), "%s/lora%s", dir, words[_i].suffix);
	REQUIRE(!mkdirat(dir_fd, "base", 0700) && !mkdirat(dir_fd, "lora", 0700));
	st_put(dir_fd, "base/model.safetensors", &r, words[_i].base);
	st_put(dir_fd, "lora/adapter_model.safetensors", &r, words[_i].adapter);
	weights_put_text(dir_fd, "lora", "adapter_config.json",
			 "{\"peft_type\":\"LORA\",\"r\":2,\"lora_alpha\":1}");
	o.lora = list;
	rc = open_typed(base, &o, &c, &e);
	if (!words[_i].says) {
		ck_assert_msg(!rc, "%s", e.msg);
		ckpt_close(c);
		return;
	}
	ck_assert_int_lt(rc, 0);
	ck_assert_msg(strstr(e.msg, "option 'lora'") && strstr(e.msg, words[_i].says), "%s", e.msg);
}
END_TEST

START_TEST(an_overlay_must_fit)
{
	char base[4200], over[4200];
	const char *const overlays[] = { over, NULL };
	struct ckpt_opts o = { .index = ":memory:", .overlay = overlays };
	const struct weights_tensor w = { "w", CKPT_DTYPE_F32, 1, { 3 }, NULL };
	struct weights_tensor other = { "v", CKPT_DTYPE_F32, 1, { 3 }, NULL };
	struct ckpt_err e = { 0 };
	struct ckpt *c;

	(void)snprintf(base, sizeof(base), "%s/base", dir);
	(void)snprintf(over, sizeof(over), "%s/over", dir);
	weights_put(dir_fd, "base", &w, 1);
	weights_put(dir_fd, "over", &other, 1);
	ck_assert_int_eq(open_typed(base, &o, &c, &e), -EINVAL);
	ck_assert_msg(strstr(e.msg, "has a tensor 'v', but the checkpoint has none"), "%s", e.msg);
	other = (struct weights_tensor){ "w", CKPT_DTYPE_F32, 1, { 4 }, NULL };
	weights_put(dir_fd, "over", &other, 1);
	ck_assert_int_eq(open_typed(base, &o, &c, &e), -EINVAL);
	ck_assert_msg(strstr(e.msg, "has shape (4,) in"), "%s", e.msg);
}
END_TEST

START_TEST(configurations_have_a_bound)
{
	struct rng r = rng_new();
	struct lot l = small;
	autofree char *text = malloc(5 * BIG + 1);
	struct ckpt_err e = { 0 };
	struct ckpt *c;

	REQUIRE(text);
	lot_draw(&l, &r);
	lot_put(&l, "", "\"r\":2,\"lora_alpha\":1");
	memset(text, '[', 5 * BIG);
	text[5 * BIG] = 0;
	weights_put_text(dir_fd, "lora", "adapter_config.json", text);
	ck_assert_int_eq(open_with("lora", &c, &e), -EFBIG);
	text[BIG] = 0;
	weights_put_text(dir_fd, "lora", "adapter_config.json", text);
	ck_assert_int_lt(open_with("lora", &c, &e), 0);
	lot_release(&l);
}
END_TEST

START_TEST(patterns_are_counted_for_all_modules)
{
	static const char text[] =
		"{\"peft_type\": \"LORA\", \"r\": 2, \"lora_alpha\": 1, \"rank_pattern\":"
		" {\"too.long.for.these.names\": 3, \"n\": 4, \"m\": 5}}";
	struct lora_config c;
	struct ckpt_err e = { 0 };
	uint32_t rank = 0;
	uint64_t work;
	double scale;

	ck_assert_msg(!lora_config_read(&c, text, strlen(text), &e), "%s", e.msg);
	work = c.work;
	ck_assert_int_eq(lora_config_of(&c, "a.m", 3, &rank, &scale, &e), 0);
	ck_assert_uint_eq(rank, 5);
	ck_assert_uint_eq(work - c.work, 1 + 2 + 2); /* length + 1, unless it is too long */
	c.work = 25;
	for (int i = 0; i < 5; i++)
		ck_assert_int_eq(lora_config_of(&c, "a.m", 3, &rank, &scale, &e), 0);
	ck_assert_int_eq(lora_config_of(&c, "a.m", 3, &rank, &scale, &e), -EFBIG);
	ck_assert_str_eq(e.msg, "rank_pattern and alpha_pattern have too many patterns for as many "
				"modules");
	lora_config_release(&c);
}
END_TEST

/* ---- faults ---- */

START_TEST(whatever_fails_is_an_error_or_has_the_right_bytes)
{
	struct rng r = rng_new();
	struct lot l = { .w_dtype = CKPT_DTYPE_F32,
			 .dtype = CKPT_DTYPE_BF16,
			 .rows = 2,
			 .columns = 3,
			 .rank = 2,
			 .turned = true };
	struct ckpt_err e;
	uint8_t got[24], want[24];

	lot_draw(&l, &r);
	lot_put(&l, "", "\"r\":2,\"lora_alpha\":4");
	for (uint64_t i = 0; i < 6; i++)
		naive(&l, 2, l.w, i / 3, i % 3, want + 4 * i);
	FAULT_LOOP_SOME(FAULT_ANY, 1)
	{
		struct ckpt *c = NULL;
		int rc;

		e = (struct ckpt_err){ 0 };
		rc = open_with("lora", &c, &e);
		if (!rc)
			rc = weights_read(c, "m.proj.weight", got, sizeof(got), 0, &e);
		fault_off();
		ck_assert(!rc || (e.code == -rc && *e.msg));
		ck_assert(rc || !memcmp(got, want, sizeof(got)));
		ckpt_close(c);
	}
	lot_release(&l);
}
END_TEST

SUITE(lora, .setup = dir_setup, .teardown = dir_teardown, .seconds = 60)
