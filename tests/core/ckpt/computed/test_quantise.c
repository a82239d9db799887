/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which weights quantize= turns into codes in hf/, their values, and what a small read computes.
 * tests/torch/quantise.sh compares the bytes with those of other programs.
 */
#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "codec/cast.h"
#include "codec/codes.h"
#include "dir_util.h"
#include "fault.h"
#include "opts_util.h"
#include "rng.h"
#include "st_util.h"
#include "suites.h"
#include "tree_util.h"
#include <ckptfs/ckpt.h>
#include <ckptfs/ckpt_mount.h>

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ROWS   "fp8_dynamic"
#define BLOCKS "fp8_block"

static void put_checkpoint(const char *config, const char *tensors)
{
	struct rng r = rng_new();

	(void)unlinkat(dir_fd, "config.json", 0);
	if (config)
		put_file(dir_fd, "config.json", config, strlen(config));
	st_put(dir_fd, "model.safetensors", &r, tensors);
}

static struct ckpt_opts opts_of(const char *quantize)
{
	return (struct ckpt_opts){ .quantize = quantize, .index = ":memory:" };
}

/* Opens ./ with the option. */
static struct ckpt *open_as(const char *quantize)
{
	struct ckpt_opts o = opts_of(quantize);
	struct ckpt_err e = { 0 };
	struct ckpt *c = NULL;

	if (open_typed(dir, &o, &c, &e))
		ck_abort_msg("%s", e.msg);
	return c;
}

static struct ckpt_file *open_weight(struct ckpt *c, const char *name)
{
	int64_t i = ckpt_model_find(c, name, strlen(name));
	struct ckpt_file *f = NULL;
	struct ckpt_err e = { 0 };

	REQUIRE(i >= 0);
	if (ckpt_model_open(c, (uint64_t)i, &f, &e))
		ck_abort_msg("%s: %s", name, e.msg);
	return f;
}

static uint8_t *read_weight(struct ckpt *c, const char *name)
{
	return tree_bytes_of(open_weight(c, name), NULL);
}

/* "NAME dtype [shape]; ..." of the model. */
static char *shown(const struct ckpt *c)
{
	struct buf b = BUF_INIT(1 << 16);
	struct ckpt_tensor t;

	buf_str(&b, "");
	for (uint64_t i = 0; i < ckpt_model_tensors(c); i++) {
		ckpt_model_tensor(c, i, &t);
		buf_printf(&b, "%s%s %s [", i ? "; " : "", t.fqn, t.dtype);
		for (size_t d = 0; d < t.n_dims; d++)
			buf_printf(&b, "%s%llu", d ? "," : "", (unsigned long long)t.shape[d]);
		buf_str(&b, "]");
	}
	REQUIRE(!b.err);
	return (char *)b.data;
}

/* ---- which ---- */

static const struct {
	const char *quantize, *tensors, *want, *left; /* left: as config.json names it */
} found[] = {
	{ ROWS, "a.weight BF16 3x5; b.weight F16 7",
	  "a.weight float8_e4m3fn [3,5]; a.weight_scale bfloat16 [3,1]; b.weight float16 [7]",
	  "lm_head" },
	{ ROWS, "a.weight F32 3x5; lm_head.weight F32 3x5",
	  "a.weight float8_e4m3fn [3,5]; a.weight_scale float32 [3,1]; lm_head.weight float32 "
	  "[3,5]",
	  "lm_head" },
	{ ROWS,
	  "a.weight F16 2x2; embed_tokens.weight F16 2x2; k_norm.weight F16 2x2; l.gate.weight F16 "
	  "2x2; "
	  "router.x.weight F16 2x2; visual.q.weight F16 2x2; wte.weight F16 2x2; z F16 2x2; "
	  "e.weight F16 0x2",
	  "a.weight float8_e4m3fn [2,2]; a.weight_scale float16 [2,1]; e.weight float16 [0,2]; "
	  "embed_tokens.weight float16 [2,2]; k_norm.weight float16 [2,2]; l.gate.weight float16 "
	  "[2,2]; "
	  "router.x.weight float16 [2,2]; visual.q.weight float16 [2,2]; wte.weight float16 [2,2]; "
	  "z float16 [2,2]",
	  "e l.gate router.x visual.q lm_head" },
	{ BLOCKS, "a.weight BF16 128x256; b.weight BF16 128x257; c.weight BF16 127x128",
	  "a.weight float8_e4m3fn [128,256]; a.weight_scale_inv float32 [1,2]; b.weight bfloat16 "
	  "[128,257]; c.weight bfloat16 [127,128]",
	  "b c lm_head" },
};

static void check_config(const char *text, bool rows, const char *want)
{
	struct jdoc d CLEANUP(jdoc_release) = { 0 };
	struct buf b CLEANUP(buf_release) = BUF_INIT(1000);
	struct ckpt_err e = { 0 };
	struct jval q;
	struct jiter i;

	ck_assert_msg(!jdoc_parse_copy(&d, text, strlen(text), 0, &e), "%s: %s", text, e.msg);
	q = jval_get(jdoc_root(&d), "quantization_config");
	ck_assert_str_eq(jval_str(jval_get(q, "quant_method")),
			 rows ? "compressed-tensors" : "fp8");
	buf_str(&b, "");
	i = jiter(jval_get(q, rows ? "ignore" : "modules_to_not_convert"));
	while (jiter_next(&i))
		buf_printf(&b, "%s%s", b.len ? " " : "", jval_str(i.v));
	ck_assert_str_eq((char *)b.data, want);
}

START_LOOP_TEST(linear_layers_become_codes_and_scales, ARRAY_LEN(found))
{
	struct ckpt *c;

	put_checkpoint("{\"model_type\": \"x\"}", found[_i].tensors);
	c = open_as(found[_i].quantize);
	autofree char *have = shown(c);
	autofree char *config = (char *)tree_bytes(c, "hf/config.json", NULL);
	ck_assert_str_eq(have, found[_i].want);
	check_config(config, !strcmp(found[_i].quantize, ROWS), found[_i].left);
	ckpt_close(c);
}
END_TEST

/* The text of config.json stays, whatever it looks like; only a member is added. */
START_TEST(the_rest_of_the_configuration_stays)
{
	static const struct {
		const char *text, *begins;
	} tries[] = {
		{ "{}", "{\n  \"quantization_config\": {\n" },
		{ "{\n  \"a\": [1, 2]\n}\n",
		  "{\n  \"a\": [1, 2],\n  \"quantization_config\": {\n" },
		{ "{\"a\": \"}\", \"b\": Infinity}",
		  "{\"a\": \"}\", \"b\": Infinity,\n  \"quantization_config\": {\n" },
		{ "{\"quantization_config\": null}", "{\n  \"quantization_config\": {\n" },
		{ "{\"a\": {}}", "{\"a\": {},\n  \"quantization_config\": {\n" },
		{ "{\"quantization_config\": null, \"a\": 1}  \n",
		  "{ \"a\": 1,\n  \"quantization_config\": {\n" },
	};

	for (size_t i = 0; i < ARRAY_LEN(tries); i++) {
		struct ckpt *c;

		put_checkpoint(tries[i].text, "a.weight BF16 3x5");
		c = open_as(ROWS);
		autofree char *have = (char *)tree_bytes(c, "hf/config.json", NULL);
		ck_assert_msg(!strncmp(have, tries[i].begins, strlen(tries[i].begins)), "%s", have);
		ckpt_close(c);
	}
}
END_TEST

#define SAYS "option 'quantize': "

static const struct {
	const char *quantize, *config, *tensors, *want;
} refused[] = {
	{ "fp8", "{}", "a.weight BF16 3x5", SAYS "'fp8' is not one of fp8_dynamic, fp8_block" },
	{ ROWS, NULL, "a.weight BF16 3x5",
	  SAYS "there is no config.json beside the checkpoint or in assets=, which would have to "
	       "say how "
	       "weights are quantised" },
	{ ROWS, "[]", "a.weight BF16 3x5", "line 1: it is not an object" },
	{ ROWS, "{\"quantization_config\": {}}", "a.weight BF16 3x5",
	  "has a quantization_config: the model is quantised already, use dequantize=, or remove "
	  "it" },
	{ ROWS, "{\"model_type\": \"gpt2\"}", "a.weight BF16 3x5",
	  SAYS "the layers of gpt2 are convolutions, which nothing loads as float8" },
	{ ROWS, "{}", "a.weight F64 3x5",
	  SAYS "'a.weight' is float64, shape (3, 5): cast it with dtype=" },
	{ ROWS, "{}", "a.weight F8_E4M3 3x5; a.weight_scale F32 1",
	  SAYS "'a.weight' is float8_e4m3fn, shape (3, 5): only float32, float16 and bfloat16 are "
	       "quantised; dequantize= makes these from codes" },
	{ ROWS, "{}", "a.experts.down_proj BF16 2x3x4",
	  SAYS "'a.experts.down_proj' is bfloat16, shape (2, 3, 4): fused experts are not linear "
	       "layers; experts=split separates those of known models" },
	{ ROWS, "{}", "a.weight BF16 3; lm_head.weight BF16 3x4",
	  "no matrix that can be quantised" },
	{ BLOCKS, "{}", "a.weight BF16 128x129", "no matrix that can be quantised" },
	{ ROWS, "{}", "a.weight BF16 3x5; a.weight_scale BF16 3x5", "a.weight_scale" },
};

START_LOOP_TEST(what_cannot_be_quantised_is_refused_by_name, ARRAY_LEN(refused))
{
	struct ckpt_opts o = opts_of(refused[_i].quantize);
	struct ckpt_err e = { 0 };
	struct ckpt *c = NULL;

	put_checkpoint(refused[_i].config, refused[_i].tensors);
	ck_assert(open_typed(dir, &o, &c, &e));
	ck_assert_msg(strstr(e.msg, refused[_i].want) != NULL, "%s", e.msg);
}
END_TEST

/* Other directories show the weights, and their config.json. */
START_TEST(only_hf_has_codes)
{
	struct ckpt_tensor t;
	struct ckpt *c;
	uint64_t n = 0;

	put_checkpoint("{}", "a.weight BF16 3x5; b.weight BF16 2x2");
	c = open_as(ROWS);
	while (ckpt_tensor(c, n, &t), *t.dtype) {
		ck_assert_str_eq(t.dtype, "bfloat16");
		n++;
	}
	ck_assert_uint_eq(n, 2);
	ck_assert_uint_eq(ckpt_model_tensors(c), 4);
	autofree char *file = (char *)tree_bytes(c, "safetensors/model.safetensors", NULL);
	ck_assert(!strstr(file + 8, "F8_E4M3"));
	ckpt_close(c);
}
END_TEST

/* ---- values ---- */

static const struct {
	const char *quantize, *dtype;
	enum ckpt_dtype as;
	uint64_t m, n;
} matrices[] = {
	{ ROWS, "BF16", CKPT_DTYPE_BF16, 3, 5 },      { ROWS, "F16", CKPT_DTYPE_F16, 70, 1111 },
	{ ROWS, "F32", CKPT_DTYPE_F32, 300, 1003 },   { ROWS, "BF16", CKPT_DTYPE_BF16, 2, 300001 },
	{ ROWS, "BF16", CKPT_DTYPE_BF16, 5000, 3 },   { BLOCKS, "BF16", CKPT_DTYPE_BF16, 128, 128 },
	{ BLOCKS, "F16", CKPT_DTYPE_F16, 256, 2432 }, { BLOCKS, "F32", CKPT_DTYPE_F32, 384, 1152 },
};

static void put_matrix(size_t i)
{
	char tensors[100];

	(void)snprintf(tensors, sizeof(tensors), "a.weight %s %llux%llu", matrices[i].dtype,
		       (unsigned long long)matrices[i].m, (unsigned long long)matrices[i].n);
	put_checkpoint("{}", tensors);
}

/* x rounded to the dtype, as float32. */
static float rounded(enum ckpt_dtype dtype, float x)
{
	uint8_t raw[4];

	cast_run(CKPT_DTYPE_F32, dtype, &x, raw, 1);
	cast_run(dtype, CKPT_DTYPE_F32, raw, &x, 1);
	return x;
}

static uint8_t code_of(const float *values, float x)
{
	int low = 0, high = 0x7e;
	float size = fminf(fabsf(x), 448);

	if (isnan(x))
		return 0x7f;
	while (high - low > 1)
		*(values[(low + high) / 2] <= size ? &low : &high) = (low + high) / 2;
	if (values[high] - size < size - values[low] ||
	    (values[high] - size == size - values[low] && !(high & 1)))
		low = high;
	return (uint8_t)(low | (signbit(x) ? 0x80 : 0));
}

/* Checks one scale, and the codes that it applies to. */
static void check_group(size_t k, const float *x, const uint8_t *codes, float scale, uint64_t a,
			uint64_t b, uint64_t m, uint64_t n)
{
	enum ckpt_dtype dtype = matrices[k].as;
	bool rows = !strcmp(matrices[k].quantize, ROWS), nan = false;
	float most = 0, want, values[256];

	codes_values(CODES_E4M3, values);
	for (uint64_t i = a; i < a + m; i++)
		for (uint64_t j = b; j < b + n; j++) {
			nan |= isnan(x[i * matrices[k].n + j]);
			most = fmaxf(most, fabsf(x[i * matrices[k].n + j]));
		}
	most = nan ? NAN : most;
	want = rows ? rounded(dtype, most / 448) : most > 0 ? 1 / (1 / most * 448) : 1;
	if (rows && want == 0)
		want = dtype == CKPT_DTYPE_BF16	 ? 0x1p-7F
		       : dtype == CKPT_DTYPE_F16 ? 0x1p-10F
						 : 0x1p-23F;
	ck_assert_msg(isnan(want) ? isnan(scale) : want == scale, "%a, not %a", (double)scale,
		      (double)want);
	for (uint64_t i = a; i < a + m; i++)
		for (uint64_t j = b; j < b + n; j++) {
			float w = x[i * matrices[k].n + j];
			float q = rows ? rounded(dtype, w / want)
				       : w * (most > 0 ? 1 / most * 448 : 1);
			uint8_t have = codes[i * matrices[k].n + j], code = code_of(values, q);

			REQUIRE(have == code || (code == 0x7f && (have & 0x7f) == 0x7f));
		}
}

START_LOOP_TEST(codes_and_scales_are_what_the_formula_says, ARRAY_LEN(matrices))
{
	static const struct ckpt_opts plain = { .index = ":memory:" };
	bool rows = !strcmp(matrices[_i].quantize, ROWS);
	uint64_t m = matrices[_i].m, n = matrices[_i].n, wide = rows ? n : 128,
		 high = rows ? 1 : 128;
	enum ckpt_dtype scales_as = rows ? matrices[_i].as : CKPT_DTYPE_F32;
	struct ckpt_err e = { 0 };
	struct ckpt *c = NULL;

	put_matrix((size_t)_i);
	REQUIRE(!open_typed(dir, &plain, &c, &e));
	autofree uint8_t *raw = read_weight(c, "a.weight");
	ckpt_close(c);
	c = open_as(matrices[_i].quantize);
	autofree uint8_t *codes = read_weight(c, "a.weight");
	autofree uint8_t *packed = read_weight(c, rows ? "a.weight_scale" : "a.weight_scale_inv");
	autofree float *x = calloc(m * n, sizeof(*x));
	autofree float *scales = calloc(m * n, sizeof(*scales));
	REQUIRE(x && scales);
	cast_run(matrices[_i].as, CKPT_DTYPE_F32, raw, x, m * n);
	cast_run(scales_as, CKPT_DTYPE_F32, packed, scales, m / high * (n / wide));
	for (uint64_t a = 0; a < m / high; a++)
		for (uint64_t b = 0; b < n / wide; b++)
			check_group((size_t)_i, x, codes, scales[a * (n / wide) + b], a * high,
				    b * wide, high, wide);
	ckpt_close(c);
}
END_TEST

/* ---- parts ---- */

static void check_part(struct ckpt_file *f, const uint8_t *whole, uint64_t off, uint64_t len)
{
	uint64_t all = ckpt_file_size(f), want = off < all ? min_u64(len, all - off) : 0;
	struct ckpt_err e = { 0 };
	uint8_t part[5000];

	REQUIRE(len <= sizeof(part));
	ck_assert_msg(ckpt_file_read(f, part, len, off, &e) == (int64_t)want, "%s", e.msg);
	REQUIRE(!memcmp(part, whole + off, want));
}

/* Reads around the edges of rows, of blocks of scales, and of what is computed at once. */
START_LOOP_TEST(a_part_is_a_part_of_the_whole, ARRAY_LEN(matrices))
{
	static const char *const names[] = { "a.weight", "a.weight_scale", "a.weight_scale_inv" };
	const uint64_t n = matrices[_i].n,
		       edges[] = { 0, 1, 32, 64, 128, n, 2 * n, 128 * n, 1 << 18, UINT64_MAX };
	struct rng r = rng_new();

	put_matrix((size_t)_i);
	for (size_t k = 0; k < ARRAY_LEN(names); k++) {
		struct ckpt *c = open_as(matrices[_i].quantize),
			    *other = open_as(matrices[_i].quantize);
		struct ckpt_file *f;

		if (ckpt_model_find(c, names[k], strlen(names[k])) < 0) {
			ckpt_close(c);
			ckpt_close(other);
			continue;
		}
		autofree uint8_t *whole = read_weight(other, names[k]);
		f = open_weight(c, names[k]);
		for (int round = 0; round < 300; round++) {
			uint64_t all = ckpt_file_size(f),
				 edge = edges[rng_below(&r, ARRAY_LEN(edges))];
			uint64_t at =
				rng_chance(&r, 30) ? rng_below(&r, all + 1) : min_u64(edge, all);

			check_part(f, whole, at - min_u64(at, rng_below(&r, 5)),
				   rng_below(&r, rng_chance(&r, 10) ? 5000 : 9));
		}
		ckpt_file_close(f);
		ckpt_close(c);
		ckpt_close(other);
	}
}
END_TEST

/* 4 KiB of codes lie in one or two blocks; each block, and the maxima of its rows, is computed
 * once. */
START_TEST(a_small_read_computes_what_it_touches_once)
{
	enum { M = 896, N = 1024 };
	static const uint64_t offs[] = { 0, 100 * N, 600 * N + 17, M * N - 4096 };

	put_checkpoint("{}", "a.weight BF16 896x1024");
	for (int k = 0; k < 2; k++) {
		struct ckpt *c = open_as(k ? BLOCKS : ROWS);
		struct ckpt_file *f = open_weight(c, "a.weight");

		for (size_t i = 0; i < ARRAY_LEN(offs); i++) {
			struct ckpt_counters before, after, again;
			struct ckpt_err e = { 0 };
			uint8_t part[4096];

			ckpt_counters(c, &before);
			REQUIRE(ckpt_file_read(f, part, sizeof(part), offs[i], &e) == sizeof(part));
			ckpt_counters(c, &after);
			/* 256 rows have 1 KiB of maxima; blocks of 128 rows have 64. */
			ck_assert_uint_le(after.decoded_bytes - before.decoded_bytes,
					  (256 << 10) + 2048);
			ck_assert_uint_le(after.source_bytes - before.source_bytes,
					  3 * (512 << 10) + 65536);
			REQUIRE(ckpt_file_read(f, part, sizeof(part), offs[i], &e) == sizeof(part));
			ckpt_counters(c, &again);
			ck_assert_uint_eq(again.decoded_bytes, after.decoded_bytes);
		}
		ckpt_file_close(f);
		ckpt_close(c);
	}
}
END_TEST

/* Every element and every maximum is computed once. */
START_TEST(a_whole_read_computes_each_block_once)
{
	enum { M = 896, N = 1024 };

	put_checkpoint("{}", "a.weight BF16 896x1024");
	for (int k = 0; k < 2; k++) {
		uint64_t scales = k ? 4ul * (M / 128) * (N / 128) : 4ul * M;
		struct ckpt *c = open_as(k ? BLOCKS : ROWS);
		struct ckpt_counters n;

		free(read_weight(c, "a.weight"));
		ckpt_counters(c, &n);
		ck_assert_uint_eq(n.decoded_bytes, (uint64_t)M * N + scales);
		ckpt_close(c);
	}
}
END_TEST

/* ---- damage ---- */

/* Two weights with scales; n: their layer. */
static void put_layer(struct buf *b, int n)
{
	for (char w = 'a'; w <= 'b'; w++)
		buf_printf(b, "%sl.%d.%c.weight F8_E4M3 8x8; l.%d.%c.weight_scale_inv F32 1x1",
			   b->len ? "; " : "", n, w, n, w);
}

/* Removes the last n bytes. */
static void cut_file(const char *name, off_t n)
{
	autoclose int fd = openat(dir_fd, name, O_WRONLY | O_CLOEXEC);
	struct stat st;

	REQUIRE(fd >= 0 && !fstat(fd, &st) && !ftruncate(fd, st.st_size - n));
}

/* The tensors that are computed twice have other numbers than when the files were examined. */
START_TEST(a_damaged_file_spoils_what_is_quantised_from_it_alone)
{
	struct ckpt_opts o = {
		.quantize = ROWS, .dequantize = "bf16", .allow_missing = true, .index = ":memory:"
	};
	struct buf whole CLEANUP(buf_release) = BUF_INIT(1 << 16);
	struct buf damaged CLEANUP(buf_release) = BUF_INIT(1 << 16);
	struct rng r = rng_new();
	struct ckpt_err e = { 0 };
	struct ckpt_tensor t;
	struct ckpt *c = NULL;

	put_checkpoint("{\"quantization_config\": {\"quant_method\": \"fp8\", "
		       "\"weight_block_size\": [128, 128]}}",
		       "norm.weight BF16 4");
	for (int i = 0; i < 6; i++)
		put_layer(i == 1 ? &damaged : &whole, i);
	REQUIRE(!renameat(dir_fd, "model.safetensors", dir_fd, "model-00001-of-00003.safetensors"));
	st_put(dir_fd, "model-00002-of-00003.safetensors", &r, (char *)whole.data);
	st_put(dir_fd, "model-00003-of-00003.safetensors", &r, (char *)damaged.data);
	cut_file("model-00003-of-00003.safetensors", 100);
	ck_assert_msg(!open_typed(dir, &o, &c, &e), "%s", e.msg);
	ck_assert_uint_eq(ckpt_model_tensors(c), 25);
	for (uint64_t i = 0; i < ckpt_model_tensors(c); i++) {
		struct ckpt_file *f = NULL;

		ckpt_model_tensor(c, i, &t);
		ck_assert_msg(!ckpt_model_open(c, i, &f, &e) == !!strncmp(t.fqn, "l.1.", 4), "%s",
			      t.fqn);
		ckpt_file_close(f);
	}
	ckpt_close(c);
}
END_TEST

/* Reads the first bytes of a tensor of the model. */
static int read_some(struct ckpt *c, const char *name, uint8_t *to, size_t len, struct ckpt_err *e)
{
	int64_t i = ckpt_model_find(c, name, strlen(name)), n;
	struct ckpt_file *f = NULL;
	int rc;

	REQUIRE(i >= 0);
	rc = ckpt_model_open(c, (uint64_t)i, &f, e);
	if (rc)
		return rc;
	n = ckpt_file_read(f, to, len, 0, e);
	ckpt_file_close(f);
	return n < 0 ? (int)n : (size_t)n == len ? 0 : -EPIPE;
}

START_LOOP_TEST(whatever_fails_is_an_error, 4)
{
	const char *quantize = _i / 2 ? BLOCKS : ROWS;
	const char *scale = _i / 2 ? "b.weight_scale_inv" : "b.weight_scale";
	uint8_t want[8], got[8];
	unsigned failed = 0;
	struct ckpt_err e = { 0 };
	struct ckpt *c;

	put_checkpoint("{}", _i / 2 ? "b.weight BF16 128x256"
				    : "a.weight BF16 3x5; b.weight F16 7x4; c BF16 4; "
				      "lm_head.weight BF16 2x2");
	c = open_as(quantize);
	REQUIRE(!read_some(c, scale, want, 4, &e) && !read_some(c, "b.weight", want + 4, 4, &e));
	ckpt_close(c);
	fault_sqlite();
	FAULT_LOOP_SOME(_i % 2 ? FAULT_READ : FAULT_ALLOC, 1)
	{
		struct ckpt_opts o = opts_of(quantize);
		int rc;

		e = (struct ckpt_err){ 0 };
		c = NULL;
		rc = open_typed(dir, &o, &c, &e);
		if (!rc)
			rc = read_some(c, scale, got, 4, &e);
		if (!rc)
			rc = read_some(c, "b.weight", got + 4, 4, &e);
		(void)fault_off();
		failed += rc != 0;
		if (rc)
			REQUIRE(rc == -e.code && e.msg[0]);
		else
			ck_assert(!memcmp(want, got, sizeof(got)));
		ckpt_close(c);
	}
	ck_assert_uint_gt(failed, 3);
}
END_TEST

SUITE(quantise, .setup = dir_setup, .teardown = dir_teardown, .seconds = 60)
