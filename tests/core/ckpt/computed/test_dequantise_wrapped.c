/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensor subclasses of torchao and Transformer Engine with dequantize=: what their class and
 * attributes say, and what is refused. The bits of all forms are compared with torch's in
 * tests/torch/dequant.sh.
 *
 * Files are written down much as Python would show what is in them:
 *
 *	{w: VALUE, ...}			the dict that is saved
 *	torchao.X<2,4>{a: VALUE, ...}	a subclass of that shape with these attributes
 *	F32[2,4]			a tensor of random bytes; F32[2]=0.5,-3 of these numbers
 *	m.f(VALUE, ...)			a call, also of what another one returns
 *	m.C!7				an object with this state
 *	m.C, (1, 2), 5, T, F, N, 'text'
 */
#include "archive_util.h"
#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "ckpt/ckpt_internal.h"
#include "codec/cast.h"
#include "dir_util.h"
#include "fault.h"
#include "model/box.h"
#include "opts_util.h"
#include "pickle_util.h"
#include "rng.h"
#include "suites.h"
#include "tree_util.h"
#include "weights_util.h"
#include <ckptfs/ckpt.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct ckpt_opts as_fp32 = { .dequantize = "fp32", .index = ":memory:" };
static const struct ckpt_opts as_bf16 = { .dequantize = "bf16", .index = ":memory:" };
static const struct ckpt_opts as_they_are = { .index = ":memory:" };

/* ---- files ---- */

struct writing {
	const char *s;
	struct emit m;
	struct archive a;
	struct rng r;
	unsigned storages;
};

static int64_t take_int(struct writing *w)
{
	char *end;
	int64_t v = strtoll(w->s, &end, 10);

	REQUIRE(end > w->s);
	w->s = end;
	return v;
}

static void skip(struct writing *w)
{
	w->s += strspn(w->s, " \n");
}

static bool take(struct writing *w, char c)
{
	skip(w);
	if (*w->s != c)
		return false;
	w->s++;
	return true;
}

static size_t take_dims(struct writing *w, char close, uint64_t *ret)
{
	size_t n = 0;

	while (!take(w, close)) {
		ret[n++] = (uint64_t)take_int(w);
		(void)take(w, ',');
	}
	return n;
}

static void emit_dims(struct emit *m, size_t n, const uint64_t *v)
{
	emit_op(m, '(');
	for (size_t d = 0; d < n; d++)
		emit_int(m, (int64_t)v[d]);
	emit_op(m, 't');
}

static void emit_strides(struct emit *m, size_t n, const uint64_t *shape)
{
	uint64_t v[CKPT_MAX_DIMS] = { 0 }, step = 1;

	for (size_t d = n; d-- > 0; step *= shape[d])
		v[d] = step;
	emit_dims(m, n, v);
}

static const struct {
	const char *name, *torch;
	enum ckpt_dtype dtype;
} dtypes[] = {
	{ "F32", "float32", CKPT_DTYPE_F32 },
	{ "BF16", "bfloat16", CKPT_DTYPE_BF16 },
	{ "F16", "float16", CKPT_DTYPE_F16 },
	{ "F64", "float64", CKPT_DTYPE_F64 },
	{ "I8", "int8", CKPT_DTYPE_I8 },
	{ "U8", "uint8", CKPT_DTYPE_U8 },
	{ "I16", "int16", CKPT_DTYPE_I16 },
	{ "I32", "int32", CKPT_DTYPE_I32 },
	{ "I64", "int64", CKPT_DTYPE_I64 },
	{ "E4", "float8_e4m3fn", CKPT_DTYPE_F8_E4M3FN },
	{ "E5", "float8_e5m2", CKPT_DTYPE_F8_E5M2 },
};

/* The bytes of n elements: random ones, or the numbers that follow in the text. */
static void put_bytes(struct writing *w, enum ckpt_dtype dtype, uint8_t *p, uint64_t n)
{
	size_t size = dtype_info(dtype)->size;
	bool numbers = take(w, '=');

	for (uint64_t i = 0; i < n * size && !numbers; i++)
		p[i] = (uint8_t)rng_below(&w->r, 256);
	for (uint64_t i = 0; i < n && numbers; i++) {
		char *end;
		double v = strtod(w->s, &end);
		int64_t whole = (int64_t)v;

		w->s = end;

		if (cast_possible(CKPT_DTYPE_F64, dtype))
			cast_run(CKPT_DTYPE_F64, dtype, &v, p + i * size, 1);
		else
			memcpy(p + i * size, &whole, size);
		if (i + 1 < n)
			REQUIRE(take(w, ','));
	}
}

/* Returns false if the text does not begin with a dtype. */
static bool put_tensor(struct writing *w)
{
	uint64_t shape[CKPT_MAX_DIMS], count;
	size_t n, len = strcspn(w->s, "["), i = 0;
	char key[16], name[32];
	uint8_t *p;

	while (i < ARRAY_LEN(dtypes) &&
	       (strlen(dtypes[i].name) != len || strncmp(dtypes[i].name, w->s, len) != 0))
		i++;
	if (i == ARRAY_LEN(dtypes))
		return false;
	w->s += len + 1;
	n = take_dims(w, ']', shape);
	REQUIRE(box_volume(n, shape, &count));
	p = calloc(count + 1, dtype_info(dtypes[i].dtype)->size);
	REQUIRE(p);
	put_bytes(w, dtypes[i].dtype, p, count);
	(void)snprintf(key, sizeof(key), "%u", w->storages++);
	(void)snprintf(name, sizeof(name), "data/%s", key);
	count *= dtype_info(dtypes[i].dtype)->size;
	archive_add(&w->a, name, p, count);
	free(p);
	emit_global(&w->m, "torch._utils", "_rebuild_tensor_v3");
	emit_bytes(&w->m, "((", 2);
	emit_str(&w->m, "storage");
	emit_global(&w->m, "torch.storage", "UntypedStorage");
	emit_str(&w->m, key);
	emit_str(&w->m, "cpu");
	emit_int(&w->m, (int64_t)count);
	emit_bytes(&w->m, "tQ", 2);
	emit_int(&w->m, 0);
	emit_dims(&w->m, n, shape);
	emit_strides(&w->m, n, shape);
	emit_op(&w->m, 0x89);
	emit_global(&w->m, "collections", "OrderedDict");
	emit_bytes(&w->m, ")R", 2);
	emit_global(&w->m, "torch", dtypes[i].torch);
	emit_bytes(&w->m, "tR", 2);
	return true;
}

static void put_value(struct writing *w);

static void put_dict(struct writing *w)
{
	REQUIRE(take(w, '{'));
	emit_bytes(&w->m, "}(", 2);
	while (!take(w, '}')) {
		size_t len;
		char key[100];

		skip(w);
		len = strcspn(w->s, ":");
		(void)snprintf(key, sizeof(key), "%.*s", (int)len, w->s);
		w->s += len + 1;
		emit_str(&w->m, key);
		put_value(w);
		(void)take(w, ',');
	}
	emit_op(&w->m, 'u');
}

static void put_tuple(struct writing *w)
{
	REQUIRE(take(w, '('));
	emit_op(&w->m, '(');
	while (!take(w, ')')) {
		put_value(w);
		(void)take(w, ',');
	}
	emit_op(&w->m, 't');
}

/* _rebuild_from_type_v2(_rebuild_wrapper_subclass, class, (class, dtype, size, ...), attributes) */
static void put_subclass(struct writing *w, const char *module, const char *class)
{
	uint64_t shape[CKPT_MAX_DIMS];
	size_t n = take_dims(w, '>', shape);

	emit_global(&w->m, "torch._tensor", "_rebuild_from_type_v2");
	emit_op(&w->m, '(');
	emit_global(&w->m, "torch._utils", "_rebuild_wrapper_subclass");
	emit_global(&w->m, module, class);
	emit_op(&w->m, '(');
	emit_global(&w->m, module, class);
	emit_global(&w->m, "torch", "bfloat16");
	emit_dims(&w->m, n, shape);
	emit_strides(&w->m, n, shape);
	emit_int(&w->m, 0);
	emit_bytes(&w->m, "NN\x89t", 4);
	put_dict(w);
	emit_bytes(&w->m, "tR", 2);
}

static void put_class(struct writing *w)
{
	size_t len =
		strspn(w->s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.");
	char name[200];
	char *dot;

	(void)snprintf(name, sizeof(name), "%.*s", (int)len, w->s);
	dot = strrchr(name, '.');
	ck_assert_msg(dot != NULL, "'%s'", w->s);
	*dot = 0;
	w->s += len;
	if (take(w, '<')) {
		put_subclass(w, name, dot + 1);
		return;
	}
	emit_global(&w->m, name, dot + 1);
	for (bool again = true; again;) {
		again = *w->s == '(';
		if (!again)
			break;
		put_tuple(w);
		emit_op(&w->m, 'R');
	}
	if (take(w, '!')) {
		emit_bytes(&w->m, ")\x81", 2);
		put_value(w);
		emit_op(&w->m, 'b');
	}
}

static void put_value(struct writing *w)
{
	static const char words[] = "NTF";
	const char *word;

	skip(w);
	word = *w->s ? strchr(words, *w->s) : NULL;
	if (put_tensor(w))
		return;
	if (*w->s == '(') {
		put_tuple(w);
	} else if (*w->s == '\'') {
		char text[100];
		size_t len = strcspn(w->s + 1, "'");

		(void)snprintf(text, sizeof(text), "%.*s", (int)len, w->s + 1);
		w->s += len + 2;
		emit_str(&w->m, text);
	} else if (*w->s == '-' || (*w->s >= '0' && *w->s <= '9')) {
		emit_int(&w->m, take_int(w));
	} else if (word) {
		emit_op(&w->m, (uint8_t) "N\x88\x89"[word - words]);
		w->s++;
	} else {
		put_class(w);
	}
}

static void put_saved(const char *text)
{
	struct writing w = { .s = text, .m = EMIT_INIT(2, false), .r = rng_new() };

	emit_proto(&w.m);
	put_dict(&w);
	emit_op(&w.m, '.');
	REQUIRE(!w.m.b.err);
	archive_add(&w.a, "data.pkl", w.m.b.data, w.m.b.len);
	archive_add(&w.a, "version", "3\n", 2);
	archive_end(&w.a);
	put_file(dir_fd, "f.pt", w.a.b.data, w.a.b.len);
	archive_release(&w.a);
	buf_release(&w.m.b);
}

static int open_saved(const char *text, const struct ckpt_opts *o, struct ckpt **ret,
		      struct ckpt_err *e)
{
	char path[4200];

	put_saved(text);
	(void)snprintf(path, sizeof(path), "%s/f.pt", dir);
	return open_typed(path, o, ret, e);
}

/* ---- what is found ---- */

#define INT8  "torchao.quantization.Int8Tensor"
#define INTX  "torchao.quantization.IntxUnpackedToInt8Tensor"
#define INT4  "torchao.quantization.Int4Tensor"
#define AQT   "torchao.dtypes.affine_quantized_tensor.AffineQuantizedTensor"
#define PLAIN "torchao.dtypes.uintx.plain_layout.PlainAQTTensorImpl"
#define OLD   "torchao.dtypes.affine_quantized_tensor.PlainAQTLayout"
#define ACT \
	"torchao.quantization.linear_activation_quantized_tensor.LinearActivationQuantizedTensor"
#define DOMAIN "torchao.quantization.quant_primitives.ZeroPointDomain"
#define LAYOUT "_layout: torchao.dtypes.utils.PlainLayout()"
#define STATE8 "torchao.optim.subclass_8bit.OptimState8bit"
#define STATE4 "torchao.optim.subclass_4bit.OptimState4bit"
#define STATEF "torchao.optim.subclass_fp8.OptimStateFp8"
#define TE     "transformer_engine.pytorch.tensor."
#define FP8_0  "__builtin__.getattr(" TE "float8_tensor.Float8Tensor, '_make_in_reduce_ex')"
#define FP8    TE "float8_tensor._make_float8_tensor_in_reduce_ex"
#define MX_0   "__builtin__.getattr(" TE "mxfp8_tensor.MXFP8Tensor, '_make_in_reduce_ex')"
#define MX     TE "mxfp8_tensor._make_mxfp8_tensor_in_reduce_ex"
#define BLOCKS TE "float8_blockwise_tensor._make_float8_blockwise_tensor_in_reduce_ex"
#define BLOCKS_0 \
	"__builtin__.getattr(" TE "float8_blockwise_tensor.Float8BlockwiseQTensor, " \
	"'_make_in_reduce_ex')"
#define NVFP4 TE "nvfp4_tensor._make_nvfp4_tensor_in_reduce_ex"
#define ENUM  "transformer_engine_torch.DType"

static const struct {
	const char *saved, *want;
} found[] = {
	{ "{w: " INT8 "<6,8>{qdata: I8[6,8], scale: F32[6,1], block_size: (1,8), zero_point: N}, "
	  "v: F32[2]}",
	  "v f [2]; w f [6,8]" },
	{ "{w: " INT8 "<6,8>{qdata: I8[6,8], scale: BF16[1,1], block_size: (6,8), zero_point: "
	  "I8[1,1], act_quant_scale: F32[1], act_quant_zero_point: I8[1]}}",
	  "w f [6,8]" },
	{ "{w: " INT8 "<2,6,8>{qdata: I8[2,6,8], scale: F32[2,6,2], block_size: (1,1,4)}}",
	  "w f [2,6,8]" },
	{ "{w: " INT8 "<2,6,8>{qdata: I8[2,6,8], scale: F32[], block_size: (2,6,8)}}",
	  "w f [2,6,8]" },
	{ "{w: " INT8 "<0,8>{qdata: I8[0,8], scale: F32[0,1], block_size: (1,8)}}", "w f [0,8]" },
	{ "{w: torchao.quantization.Float8Tensor<6,8>{qdata: E4[6,8], scale: F32[6,1]}, x: "
	  "torchao.prototype.quantization.PrototypeFloat8Tensor<6,8>{qdata: E5[6,8], scale: "
	  "F32[1,1]}, y: torchao.quantization.Float8Tensor<3,6,8>{qdata: E4[3,6,8], scale: "
	  "F32[1,1,1]}}",
	  "w f [6,8]; x f [6,8]; y f [3,6,8]" },
	{ "{w: " INTX "<6,8>{qdata: I8[6,8], scale: F16[3,2], block_size: (2,4), zero_point: "
	  "F16[3,2], target_dtype: torch.int4}}",
	  "w f [6,8]" },
	{ "{w: " INT4
	  "<6,64>{qdata: I8[6,32], scale: BF16[2,6], zero_point: BF16[2,6], block_size: "
	  "(1,32), act_pre_scale: N}}",
	  "w f [6,64]" },
	{ "{w: " AQT "<6,8>{tensor_impl: " PLAIN
	  "<6,8>{int_data: I8[6,8], scale: F32[6], zero_point: "
	  "I64[6], " LAYOUT "}, block_size: (1,8), quant_min: N, quant_max: N, "
	  "zero_point_domain: " DOMAIN "(1)}}",
	  "w f [6,8]" },
	{ "{w: " AQT "<6,8>{tensor_impl: torchao.dtypes.uintx.q_dq_layout.QDQTensorImpl"
	  "<6,8>{int_data: I8[6,8], scale: F32[6,2], zero_point: "
	  "I8[6,2], _layout: torchao.dtypes.uintx.q_dq_layout.QDQLayout()}, block_size: (1,4), "
	  "quant_min: -8, quant_max: 7, zero_point_domain: " DOMAIN "(1)}}",
	  "w f [6,8]" },
	{ "{w: " ACT "<6,8>{original_weight_tensor: " AQT "<6,8>{layout_tensor: " OLD
	  "<6,8>{int_data: U8[6,8], scale: F32[6,2], zero_point: F32[6,2], layout_type: m.L()}, "
	  "block_size: (1,4), quant_min: 0, quant_max: 15, zero_point_domain: "
	  "__builtin__.getattr(" DOMAIN ", 'FLOAT')}, quant_kwargs: N}}",
	  "w f [6,8]" },
	{ "{w: " ACT "<6,8>{original_weight_tensor: " INT8
	  "<6,8>{qdata: I8[6,8], scale: F32[6,1], block_size: (1,8)}}}",
	  "w f [6,8]" },
	/* 0.3 counted from 0, and layouts had no name for what they are */
	{ "{w: " AQT "<6,8>{layout_tensor: " OLD
	  "<6,8>{int_data: I8[6,8], scale: F32[6], zero_point: "
	  "I64[6]}, block_size: (1,8), zero_point_domain: " DOMAIN "(0)}}",
	  "w f [6,8]" },
	{ "{w: " AQT
	  "<6,8>{tensor_impl: torchao.dtypes.floatx.float8_layout.Float8AQTTensorImpl<6,8>"
	  "{float8_data: E5[6,8], scale: F32[6,1], transposed: F, " LAYOUT "}, block_size: (1,8)}}",
	  "w f [6,8]" },
	{ "{s: " STATE8
	  "<6,8>{codes: U8[6,8], scale: F32[3], qmap: F32[256], signed: T}, t: " STATE4
	  "<3,4>{codes: U8[6], scale: F32[3], qmap: F32[16], signed: F}, u: " STATEF
	  "<48>{codes: E4[48], scale: F32[2]}}",
	  "s f [6,8]; t f [3,4]; u f [48]" },
	/* torchao's classes that have no codes stay as they are, and so do other libraries'
	 * classes */
	{ "{w: torchao.float8.W<2,2>{_tensor: BF16[2,2]}, x: m.Int8Tensor<2,2>{qdata: I8[2,2], "
	  "scale: "
	  "F32[2], block_size: 7}, y: " INT8 "<6,8>{qdata: I8[6,8], scale: F32[6,1], block_size: "
	  "(1,8)}}",
	  "w._tensor bfloat16 [2,2]; x.qdata int8 [2,2]; x.scale f [2]; y f [6,8]" },
	/* the enum of Transformer Engine */
	{ "{w: " FP8_0 "(U8[6,8], " ENUM "!7, F32[1], torch.bfloat16)}", "w f [6,8]" },
	{ "{w: " FP8_0 "(U8[6,8], " ENUM "!8, F32[1], torch.bfloat16, (6,8))}", "w f [6,8]" },
	{ "{w: " FP8 "(U8[2,6,8], " ENUM "(7), F32[], torch.bfloat16, (2,6,8), U8[8,12])}",
	  "w f [2,6,8]" },
	{ "{w: " MX "(U8[6,64], U8[128,4], U8[6,64], U8[4,128], 7, torch.bfloat16, (6,64), N, F)}",
	  "w f [6,64]" },
	{ "{w: " MX_0 "(U8[6,64], U8[128,4], N, N, " ENUM "!6, torch.bfloat16)}", "w f [6,64]" },
	{ "{w: " BLOCKS "((6,200), U8[6,200], F32[1,4], U8[200,6], F32[2,4], 7, torch.bfloat16, N, "
	  "T, N)}",
	  "w f [6,200]" },
	{ "{w: " BLOCKS "((6,200), U8[6,200], F32[2,8], N, N, 7, torch.bfloat16, N, F, N)}",
	  "w f [6,200]" },
};

START_LOOP_TEST(a_subclass_is_the_tensor_that_it_stands_for, ARRAY_LEN(found))
{
	struct ckpt_err e = { 0 };
	struct ckpt *c = NULL;

	if (open_saved(found[_i].saved, &as_fp32, &c, &e))
		ck_abort_msg("%s", e.msg);
	autofree char *have = tree_tensors(c);
	ck_assert_str_eq(have, found[_i].want);
	ckpt_close(c);
}
END_TEST

/* ---- what is refused ---- */

#define IS_7 \
	"'w', of class Float8Tensor: 7, the number of its dtype, is float8_e5m2 before version " \
	"2.4 " \
	"and float8_e4m3fn since, and nothing else says which version saved it: load it with " \
	"that, " \
	"and save it with 2.16 or a later one"
#define AQT_OF(data, zero, more) \
	"{w: " AQT "<6,8>{tensor_impl: " PLAIN "<6,8>{int_data: " data "[6,8], scale: F32[6], " \
	"zero_point: " zero ", " LAYOUT "}, " more "}}"

static const struct {
	const char *saved, *want;
} refused[] = {
	{ "{w: " INT8 "<6,8>{qdata: I8[6,8], scale: F32[6,1]}}",
	  "'w', of class Int8Tensor: it has no block_size for each of its dimensions" },
	{ "{w: " INT8 "<6,8>{qdata: I8[6,8], scale: F32[6,1], block_size: (1,8,1)}}",
	  "'w', of class Int8Tensor: it has no block_size for each of its dimensions" },
	{ "{w: " INT8 "<6,8>{qdata: I8[6,8], scale: F32[6,1], block_size: (1,-8)}}",
	  "'w', of class Int8Tensor: it has no block_size for each of its dimensions" },
	{ "{w: " INT8 "<8>{qdata: I8[8], scale: F32[1], block_size: (8)}}",
	  "'w', of class Int8Tensor: it has fewer than two dimensions" },
	{ "{w: " INT8 "<6,8>{qdata: I8[6,8], scale: F32[6,1], block_size: (1,0)}}",
	  "'w.scale' has shape (6, 1) (float32): that is not a scale for each block of "
	  "block_size" },
	{ "{w: " INT8 "<6,8>{qdata: I8[6,8], scale: F32[6,1], block_size: (1,16)}}",
	  "'w.scale' has shape (6, 1) (float32): that is not a scale for each block of "
	  "block_size" },
	{ "{w: " INT8 "<6,8>{qdata: I8[6,8], scale: F32[6,2], block_size: (1,3)}}",
	  "'w.scale' has shape (6, 2) (float32): that is not a scale for each block of "
	  "block_size" },
	{ "{w: " INT8 "<6,8>{qdata: I8[6,8], scale: F32[2,6], block_size: (1,4)}}",
	  "'w.scale' has shape (2, 6) (float32): that is not a scale for each block of "
	  "block_size" },
	{ "{w: " INT8 "<2,6,8>{qdata: I8[2,6,8], scale: F32[1,6,1], block_size: (2,1,8)}}",
	  "'w.scale' has shape (1, 6, 1) (float32): that is not a scale for each block of "
	  "block_size" },
	{ "{w: " INT8 "<6,8>{qdata: I8[6,8], scale: F32[6,1], block_size: "
	  "(1,9223372036854775807)}}",
	  "that is not a scale for each block of block_size" },
	{ "{w: " INT8 "<6,8>{qdata: I8[6,8], block_size: (1,8)}}",
	  "'w.qdata' holds codes (int8), but 'w.scale', which would be their scales, does not "
	  "exist" },
	{ "{w: " INT8 "<6,8>{qdata: I8[6,8], scale: F64[6,1], block_size: (1,8)}}",
	  "'w', of class Int8Tensor: its scales are neither float32, float16 nor bfloat16" },
	{ "{w: " INT8 "<6,8>{qdata: U8[6,8], scale: F32[6,1], block_size: (1,8)}}",
	  "'w', of class Int8Tensor: its codes are not int8" },
	{ "{w: " INT8
	  "<6,8>{qdata: I8[6,8], scale: F32[6,1], zero_point: I8[6], block_size: (1,8)}}",
	  "'w.zero_point' has shape (6,) (int8): there must be as many zero points as scales" },
	{ "{w: " INT8 "<6,8>{qdata: I8[6,8], scale: F32[6,1], zero_point: E4[6,1], block_size: "
	  "(1,8)}}",
	  "'w.zero_point' has shape (6, 1) (float8_e4m3fn): zero points of that type are not "
	  "known" },
	{ "{w: " INT8 "<6,8>{qdata: I8[6,8], scale: F32[6,1], block_size: (1,8), act_pre_scale: "
	  "F32[8]}}",
	  "'w.act_pre_scale' is to be multiplied into activations, which is not supported" },
	{ "{w: " INT4 "<6,64>{qdata: I8[6,32], scale: F32[2,6], zero_point: F32[2,6]}}",
	  "'w', of class Int4Tensor: it has no block_size for each of its dimensions" },
	{ "{w: " INT4 "<6,64>{qdata: I8[6,32], scale: F32[6,2], zero_point: F32[6,2], block_size: "
	  "(1,32)}}",
	  "'w.scale' has shape (6, 2) (float32): that is not a scale for each group, rows last" },
	{ "{w: " INT4 "<6,64>{qdata: I8[6,64], scale: F32[2,6], zero_point: F32[2,6], block_size: "
	  "(1,32)}}",
	  "'w', of class Int4Tensor: its codes are not bytes with two elements of a row in each" },
	{ "{w: " INT4 "<6,64>{qdata: I8[6,32], scale: F32[2,6], zero_point: F32[2,6], block_size: "
	  "(32,1)}}",
	  "'w', of class Int4Tensor: block_size is not that of groups of a row" },
	{ "{w: " INT4 "<6,64>{qdata: I8[6,32], scale: F32[2,6], zero_point: F32[2,6], block_size: "
	  "(1,48)}}",
	  "'w', of class Int4Tensor: its groups do not divide its rows" },
	{ "{w: " INT4 "<6,64>{qdata: I8[6,32], scale: F32[2,6], zero_point: F32[2,6], block_size: "
	  "(1,0)}}",
	  "'w', of class Int4Tensor: its groups do not divide its rows" },
	{ "{w: " INT4 "<6,64>{qdata: I8[6,32], scale: F32[2,6], zero_point: I8[2,6], block_size: "
	  "(1,32)}}",
	  "'w.zero_point' has shape (2, 6) (int8): zero points of that type are not known" },
	{ "{w: " INT4 "<6,64>{qdata: I8[6,32], scale: F32[2,6], block_size: (1,32)}}",
	  "'w.zero_point', which would be their scales, does not exist" },
	{ "{w: torchao.quantization.Int4TilePackedTo4dTensor<6,64>{qdata: I32[1,1,32,4], "
	  "scale_and_zero: BF16[2,6,2], block_size: (1,32)}}",
	  "'w.qdata' (int32, shape (1, 1, 32, 4)) holds codes of torchao's class "
	  "Int4TilePackedTo4dTensor, whose layout is not known" },
	{ "{w: " AQT "<6,8>{tensor_impl: torchao.dtypes.uintx.tensor_core_tiled_layout."
	  "TensorCoreTiledAQTTensorImpl<6,8>{packed_weight: I32[1,1,32,4], scale_and_zero: "
	  "BF16[2,6,2]}}}",
	  "'w.tensor_impl.packed_weight' (int32, shape (1, 1, 32, 4)) holds codes of torchao's "
	  "class "
	  "TensorCoreTiledAQTTensorImpl, whose layout is not known" },
	{ AQT_OF("I32", "I64[6]", "block_size: (1,8), zero_point_domain: " DOMAIN "(1)"),
	  "of class PlainAQTTensorImpl: its codes are neither int8 nor uint8" },
	{ AQT_OF("I8", "I64[6]", "block_size: (1,8), zero_point_domain: " DOMAIN "(4)"),
	  "'w', of class PlainAQTTensorImpl: its zero_point_domain does not say what its zero "
	  "points "
	  "are" },
	{ AQT_OF("I8", "I64[6]", "block_size: (1,8), zero_point_domain: N"),
	  "its zero_point_domain does not say what its zero points are" },
	{ AQT_OF("I8", "I64[6]", "block_size: (1,8), zero_point_domain: " DOMAIN "(3)"),
	  "its zero_point_domain does not say what its zero points are" },
	{ AQT_OF("I8", "I64[6]", "block_size: (1,8), zero_point_domain: " DOMAIN "(2)"),
	  "its zero_point_domain is FLOAT, but they are integers" },
	{ AQT_OF("U8", "F32[6]",
		 "block_size: (1,8), quant_min: -1, zero_point_domain: " DOMAIN "(2)"),
	  "its quant_min and quant_max are not among its codes" },
	{ AQT_OF("U8", "F32[6]",
		 "block_size: (1,8), quant_max: 256, zero_point_domain: " DOMAIN "(2)"),
	  "its quant_min and quant_max are not among its codes" },
	{ AQT_OF("U8", "F32[6]",
		 "block_size: (1,8), quant_min: 15, quant_max: 0, zero_point_domain: " DOMAIN
		 "(2)"),
	  "its quant_min and quant_max are not among its codes" },
	{ "{w: m.C<6,8>{tensor_impl: " PLAIN "<6,8>{int_data: I8[6,8], scale: F32[6]}}}",
	  "of class PlainAQTTensorImpl: it is not part of an AffineQuantizedTensor" },
	{ "{w: torchao.x.Other<6,8>{original_weight_tensor: " INT8
	  "<6,8>{qdata: I8[6,8], scale: F32[6,1], block_size: (1,8)}}}",
	  "'w', of class Other: what it does to the weight inside it is not known" },
	{ "{w: m.Other<6,8>{original_weight_tensor: " INT8
	  "<6,8>{qdata: I8[6,8], scale: F32[6,1], block_size: (1,8)}}}",
	  "'w', of class unknown: what it does to the weight inside it is not known" },
	{ "{w: " AQT
	  "<6,8>{tensor_impl: torchao.dtypes.floatx.float8_layout.Float8AQTTensorImpl<6,8>"
	  "{float8_data: E4[6,8], scale: F32[6,1], transposed: T}, block_size: (1,8)}}",
	  "of class Float8AQTTensorImpl: it is transposed" },
	{ "{w: " STATE8 "<6,8>{codes: U8[6,8], scale: F32[5], qmap: F32[256]}}",
	  "'w.scale' has shape (5,) (float32): that is not a float32 for each block of codes" },
	{ "{w: " STATE8 "<6,8>{codes: U8[6,8], scale: F32[0], qmap: F32[256]}}",
	  "'w.scale' has shape (0,) (float32): that is not a float32 for each block of codes" },
	{ "{w: " STATE8 "<6,8>{codes: U8[6,8], scale: F32[3], qmap: F32[16]}}",
	  "'w.qmap' has shape (16,) (float32): that is not a float32 for each code" },
	{ "{w: " STATE8 "<6,8>{codes: U8[6,8], scale: F32[3]}}",
	  "'w.qmap', which would be their scales, does not exist" },
	{ "{w: " STATE4 "<6,8>{codes: U8[23], scale: F32[3], qmap: F32[16]}}",
	  "'w', of class OptimState4bit: it does not have as many codes as elements" },
	{ "{w: " STATE4 "<6,8>{codes: U8[6,4], scale: F32[3], qmap: F32[16]}}",
	  "'w', of class OptimState4bit: its codes are not a line of bytes, or it has no shape" },
	{ "{w: " STATEF "<6,8>{codes: E5[6,8], scale: F32[3]}}",
	  "'w', of class OptimStateFp8: it does not have as many codes as elements" },
	{ "{w: " FP8_0 "(U8[6,8], " ENUM "!7, F32[1], torch.bfloat16, (6,8))}", IS_7 },
	{ "{w: " FP8_0 "(U8[6,8], 7, F32[1], torch.bfloat16, (6,8))}", IS_7 },
	{ "{w: " FP8 "(U8[6,8], " ENUM "(9), F32[1], torch.bfloat16, (6,8))}",
	  "'w', of class Float8Tensor: the dtype of its codes is not known" },
	{ "{w: " FP8_0 "(U8[6,8], " ENUM "!8, F32[1], torch.bfloat16)}",
	  "'w', of class Float8Tensor: the dtype of its codes is not known" },
	{ "{w: " FP8 "(U8[6,8], 'x', F32[1], torch.bfloat16, (6,8))}",
	  "'w', of class Float8Tensor: the dtype of its codes is not known" },
	{ "{w: " FP8 "(U8[6,8], 7, F32[6], torch.bfloat16, (6,8))}",
	  "'w._scale_inv' has shape (6,) (float32): that is not one float32" },
	{ "{w: " FP8 "(U8[6,8], 7, N, torch.bfloat16, (6,8))}",
	  "'w._scale_inv', which would be their scales, does not exist" },
	/* Classes other than Float8Tensor, whose bytes are in the order that a kernel needs. */
	{ "{w: torchao.prototype.float8_opaque_tensor.Float8OpaqueTensor<6,8>{qdata: E4[6,8], "
	  "scale: F32[6,1], block_size: (1,8)}}",
	  "'w.qdata' (float8_e4m3fn, shape (6, 8)) holds codes of torchao's class "
	  "Float8OpaqueTensor, whose layout is not known" },
	{ "{w: torchao.prototype.mx_formats.mx_tensor.MXTensor<6,64>{qdata: E4[6,64], scale: "
	  "U8[6,2], block_size: 32}}",
	  "holds codes of torchao's class MXTensor, whose layout is not known" },
	{ "{w: " FP8 "(I8[6,8], 7, F32[1], torch.bfloat16, (6,8))}",
	  "'w', of class Float8Tensor: its codes are not bytes of two dimensions or more" },
	{ "{w: " FP8 "(N, 7, F32[1], torch.bfloat16, (6,8), U8[8,6])}",
	  "'w._transpose' (uint8, shape (8, 6)) holds codes of transformer_engine's class "
	  "Float8Tensor, whose layout is not known" },
	{ "{w: " MX_0 "(U8[6,64], U8[128,4], N, N, " ENUM "!7, torch.bfloat16, (6,64))}",
	  "'w', of class MXFP8Tensor: 7, the number of its dtype, is float8_e5m2 before" },
	{ "{w: " MX "(U8[6,64], U8[128,4], N, N, 7, torch.bfloat16, (6,64), N, T)}",
	  "'w', of class MXFP8Tensor: its scales are in the order of a kernel" },
	{ "{w: " MX "(U8[6,64], U8[128,1], N, N, 7, torch.bfloat16, (6,64), N, F)}",
	  "'w._rowwise_scale_inv' has shape (128, 1) (uint8): that is not a scale for each block" },
	{ "{w: " MX "(N, N, U8[6,64], U8[4,128], 7, torch.bfloat16, (6,64), N, F)}",
	  "'w._columnwise_data' (uint8, shape (6, 64)) holds codes of transformer_engine's class "
	  "MXFP8Tensor, whose layout is not known" },
	{ "{w: " MX "(U8[2,6,64], U8[128,4], N, N, 7, torch.bfloat16, (2,6,64), N, F)}",
	  "'w', of class MXFP8Tensor: it has more than two dimensions" },
	{ "{w: " BLOCKS_0 "((6,200), U8[6,200], F32[1,4], N, N, " ENUM "!7, torch.bfloat16, N, T)}",
	  "'w', of class Float8BlockwiseQTensor: 7, the number of its dtype" },
	{ "{w: " BLOCKS
	  "((6,200), U8[6,200], F32[2,8], N, N, 7, torch.bfloat16, N, F, m.Format!1)}",
	  "'w', of class Float8BlockwiseQTensor: the order of its scales, data_format, is not "
	  "known" },
	{ "{w: " BLOCKS "((300,200), U8[300,200], F32[2,4], N, N, 7, torch.bfloat16, N, T, N)}",
	  "'w._rowwise_scale_inv' has shape (2, 4) (float32): that is not a scale for each block" },
	{ "{w: " NVFP4 "((6,64), U8[6,32], U8[128,4], N, N, F32[1], N, 10, torch.bfloat16, N, F)}",
	  "'w._rowwise_data' (uint8, shape (6, 32)) holds codes of transformer_engine's class "
	  "NVFP4Tensor, whose layout is not known" },
};

START_LOOP_TEST(what_is_not_known_is_refused_by_name, ARRAY_LEN(refused))
{
	struct ckpt_err e = { 0 };
	struct ckpt *c = NULL;

	ck_assert_msg(open_saved(refused[_i].saved, &as_bf16, &c, &e) != 0, "case %d", _i);
	ck_assert_msg(strstr(e.msg, refused[_i].want) != NULL, "%s\n%s", e.msg, refused[_i].want);
	ck_assert_ptr_nonnull(strstr(e.msg, "option 'dequantize': "));
	/* Without the option, its parts can still be seen. */
	ck_assert_msg(!open_saved(refused[_i].saved, &as_they_are, &c, &e), "%s", e.msg);
	ckpt_close(c);
}
END_TEST

/* Each '.' in a name may end the name of a tensor that it is a part of; a name may have a
 * million. */
START_TEST(what_it_is_a_part_of_is_a_few_levels_up)
{
	static const char *const saved[] = {
		"{w: torchao.X<4>{a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.b: U8[4]}}",
		"{w: torchao.X<4>{a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.b: U8[4]}}",
	};

	for (int i = 0; i < 2; i++) {
		struct ckpt_err e = { 0 };
		struct ckpt *c = NULL;

		ck_assert_int_eq(open_saved(saved[i], &as_bf16, &c, &e), i ? 0 : -ERR_UNSUPPORTED);
		ckpt_close(c);
	}
}
END_TEST

/* ---- values ---- */

/* Numbers that the order of roundings changes. */
static const struct {
	const char *saved;
	const struct ckpt_opts *as;
	float want[4];
} computed[] = {
	{ "{w: " INT8
	  "<1,4>{qdata: I8[1,4]=-128,-1,0,127, scale: F32[1,1]=0.3, block_size: (1,4)}}",
	  &as_fp32,
	  { -128 * 0.3F, -0.3F, 0, 127 * 0.3F } },
	{ "{w: " INT8 "<1,4>{qdata: I8[1,4]=-128,-1,0,127, scale: F32[1,2]=0.5,2, zero_point: "
	  "I8[1,2]=127,-128, block_size: (1,2)}}",
	  &as_bf16,
	  { -127.5F, -64, 256, 510 } },
	/* In bfloat16, 0.3 is 0.30078125; 100 minus that is 99.5, not 99.7. */
	{ "{w: " INTX "<1,4>{qdata: I8[1,4]=5,0,100,1, scale: BF16[1,2]=1,3, zero_point: "
	  "F32[1,2]=0.01,0.3, block_size: (1,2)}}",
	  &as_bf16,
	  { 5, -0.010009765625F, 298, 2.09375F } },
	/* In bfloat16, 7 * 0.3 is 2.09375, and adding 0.005 leaves that; it is not 2.1. */
	{ "{w: " AQT "<1,4>{tensor_impl: " PLAIN
	  "<1,4>{int_data: U8[1,4]=15,0,8,9, scale: F32[1]=0.3, zero_point: F32[1]=0.005, " LAYOUT
	  "}, block_size: (1,4), quant_min: 0, quant_max: 15, zero_point_domain: " DOMAIN "(2)}}",
	  &as_bf16,
	  { 2.09375F, -2.40625F, 0.0050048828125F, 0.306640625F } },
	/* Zero points that are whole numbers in a floating-point dtype. */
	{ "{w: " AQT "<1,4>{tensor_impl: " PLAIN
	  "<1,4>{int_data: I8[1,4]=-8,7,-1,3, scale: BF16[1,2]=0.5,3, zero_point: "
	  "BF16[1,2]=2,-3, " LAYOUT
	  "}, block_size: (1,2), quant_min: -8, quant_max: 7, zero_point_domain: " DOMAIN "(1)}}",
	  &as_bf16,
	  { -5, 2.5F, 6, 18 } },
	{ "{w: " INT4 "<1,4>{qdata: U8[1,2]=24,127, scale: BF16[2,1]=0.5,2, zero_point: "
	  "BF16[2,1]=1,-1, block_size: (1,2)}}",
	  &as_fp32,
	  { -3, 1.5F, -3, 13 } },
	{ "{w: " FP8_0 "(U8[1,4]=56,60,184,0, 6, F32[1]=3, torch.bfloat16, (1,4))}",
	  &as_fp32,
	  { 3, 4.5F, -3, 0 } },
	{ "{w: " FP8_0 "(U8[1,4]=60,61,188,0, 8, F32[1]=3, torch.bfloat16, (1,4))}",
	  &as_fp32,
	  { 3, 3.75F, -3, 0 } },
	{ "{w: torchao.quantization.Float8Tensor<2,1,2>{qdata: E4[2,1,2]=56,60,184,0, scale: "
	  "F32[1,1,1]=3}}",
	  &as_fp32,
	  { 3, 4.5F, -3, 0 } },
	{ "{w: " STATE4 "<2,2>{codes: U8[2]=16,35, scale: F32[2]=2,3, qmap: "
	  "F32[16]=7,5,4,-1,0,0,0,0,0,0,0,0,0,0,0,0, signed: T}}",
	  &as_fp32,
	  { 10, 14, 12, -3 } },
	{ "{w: " STATEF "<2,2>{codes: E4[2,2]=56,60,184,0, scale: F32[2]=3,5}}",
	  &as_fp32,
	  { 3, 4.5F, -5, 0 } },
};

static float element(const uint8_t *p, const struct ckpt_opts *as, size_t i)
{
	float f;

	if (as == &as_fp32)
		memcpy(&f, p + 4 * i, 4);
	else
		cast_run(CKPT_DTYPE_BF16, CKPT_DTYPE_F32, p + 2 * i, &f, 1);
	return f;
}

START_LOOP_TEST(operations_round_as_torch_rounds_them, ARRAY_LEN(computed))
{
	struct ckpt_err e = { 0 };
	struct ckpt *c = NULL;
	struct ckpt_file *f = NULL;
	uint8_t p[16];

	if (open_saved(computed[_i].saved, computed[_i].as, &c, &e) ||
	    ckpt_file_open_path(c, "tensors/w", &f, &e))
		ck_abort_msg("%s", e.msg);
	ck_assert_int_eq(ckpt_file_read(f, p, sizeof(p), 0, &e),
			 computed[_i].as == &as_fp32 ? 16 : 8);
	for (size_t i = 0; i < 4; i++)
		ck_assert_msg(element(p, computed[_i].as, i) == computed[_i].want[i],
			      "element %zu is %.9g, not %.9g", i,
			      (double)element(p, computed[_i].as, i), (double)computed[_i].want[i]);
	ckpt_file_close(f);
	ckpt_close(c);
}
END_TEST

/* Transformer Engine's scales are of blocks, or of parts of rows and then in columns; padding follows
 * those that count. */
#define ROWWISE "tensors/w._rowwise_data", "tensors/w._rowwise_scale_inv"

static const struct {
	const char *saved, *codes, *scales;
	bool powers;		/* of two are the scales, and not float32 */
	unsigned rows, columns; /* of a block */
	uint64_t stride;	/* of scales, from one row of theirs to the next */
	bool turned;
} engine[] = {
	{ "{w: " FP8_0 "(U8[200,300], 6, F32[1], torch.bfloat16, (200,300))}", "tensors/w._data",
	  "tensors/w._scale_inv", false, 200, 300, 1, false },
	{ "{w: " MX "(U8[200,300], U8[256,12], N, N, 7, torch.bfloat16, (200,300), N, F)}", ROWWISE,
	  true, 1, 32, 12, false },
	{ "{w: " BLOCKS "((200,300), U8[200,300], F32[2,4], N, N, 7, torch.bfloat16, N, T, N)}",
	  ROWWISE, false, 128, 128, 4, false },
	{ "{w: " BLOCKS "((200,300), U8[200,300], F32[3,208], N, N, 7, torch.bfloat16, N, F, N)}",
	  ROWWISE, false, 1, 128, 208, true },
};

static float f32_at(const uint8_t *p, uint64_t i)
{
	float f;

	memcpy(&f, p + 4 * i, 4);
	return f;
}

START_LOOP_TEST(scales_of_transformer_engine_are_of_their_blocks, ARRAY_LEN(engine))
{
	char path[4200];
	struct ckpt_err e = { 0 };
	struct ckpt *c = NULL;

	if (open_saved(engine[_i].saved, &as_they_are, &c, &e))
		ck_abort_msg("%s", e.msg);
	autofree uint8_t *codes = tree_bytes(c, engine[_i].codes, NULL);
	autofree uint8_t *scales = tree_bytes(c, engine[_i].scales, NULL);
	ckpt_close(c);
	(void)snprintf(path, sizeof(path), "%s/f.pt", dir);
	if (open_typed(path, &as_fp32, &c, &e))
		ck_abort_msg("%s", e.msg);
	autofree uint8_t *got = tree_bytes(c, "tensors/w", NULL);
	ckpt_close(c);
	for (uint64_t i = 0; i < 200; i++)
		for (uint64_t j = 0; j < 300; j++) {
			uint64_t a = i / engine[_i].rows, b = j / engine[_i].columns;
			uint64_t at = engine[_i].turned ? b * engine[_i].stride + a
							: a * engine[_i].stride + b;
			float scale =
				engine[_i].powers ? e8m0_value(scales[at]) : f32_at(scales, at);
			float want = e4m3_value(codes[300 * i + j]) * scale;
			float have = f32_at(got, 300 * i + j);

			ck_assert_msg(have == want || (have != have && want != want),
				      "(%d, %d): %g, not %g", (int)i, (int)j, (double)have,
				      (double)want);
		}
}
END_TEST

/* Where versions of torchao differ, there are no values. */
START_TEST(integer_zero_points_are_among_the_codes)
{
	static const char *const saved[] = {
		AQT_OF("U8", "I64[6]=0,1,255,2,256,3",
		       "block_size: (1,8), zero_point_domain: " DOMAIN "(1)"),
		AQT_OF("I8", "I32[6]=0,1,127,2,-129,3",
		       "block_size: (1,8), zero_point_domain: " DOMAIN "(1)"),
		AQT_OF("I8", "F32[6]=0,1,127,2,-128,3.5",
		       "block_size: (1,8), zero_point_domain: " DOMAIN "(1)"),
		AQT_OF("U8", "F32[6]=0,1,127,2,-1,3",
		       "block_size: (1,8), zero_point_domain: " DOMAIN "(1)"),
	};
	static const char *const want[] = {
		"a zero point is 256, outside the codes, 0 to 255",
		"a zero point is -129, outside the codes, -128 to 127",
		"a zero point is 3.5, and not an integer from -128 to 127",
		"a zero point is -1, and not an integer from 0 to 255",
	};

	for (size_t i = 0; i < ARRAY_LEN(saved); i++) {
		struct ckpt_err e = { 0 };
		struct ckpt *c = NULL;
		struct ckpt_file *f = NULL;
		uint8_t p[192];

		if (open_saved(saved[i], &as_fp32, &c, &e) ||
		    ckpt_file_open_path(c, "tensors/w", &f, &e))
			ck_abort_msg("%s", e.msg);
		ck_assert_int_lt(ckpt_file_read(f, p, sizeof(p), 0, &e), 0);
		ck_assert_msg(strstr(e.msg, want[i]) != NULL, "%s", e.msg);
		ckpt_file_close(f);
		ckpt_close(c);
	}
}
END_TEST

/* A cast would round the scales and not change the codes. */
START_TEST(a_cast_of_their_parts_is_refused)
{
	static const char *const saved[] = {
		"{w: " INT8 "<6,8>{qdata: I8[6,8], scale: F32[6,1], block_size: (1,8)}}",
		AQT_OF("U8", "F32[6]", "block_size: (1,8), zero_point_domain: " DOMAIN "(2)"),
		"{w: " STATEF "<48>{codes: E4[48], scale: F32[2]}}",
		"{w: " BLOCKS "((6,200), U8[6,200], F32[1,4], N, N, 7, torch.bfloat16, N, T, N)}",
	};
	const struct ckpt_opts as = { .dtype = "bf16", .index = ":memory:" };

	for (size_t i = 0; i < ARRAY_LEN(saved); i++) {
		struct ckpt_err e = { 0 };
		struct ckpt *c = NULL;

		ck_assert_msg(open_saved(saved[i], &as, &c, &e) != 0, "case %zu", i);
		ck_assert_msg(strstr(e.msg, "codes") != NULL, "%s", e.msg);
	}
}
END_TEST

START_TEST(whatever_fails_is_an_error)
{
	unsigned failed = 0;

	fault_sqlite();
	FAULT_LOOP_SOME(FAULT_ALLOC, 1)
	{
		struct ckpt_err e = { 0 };
		struct ckpt *c = NULL;
		struct ckpt_file *f = NULL;
		uint8_t p[64];
		char path[4200];
		int rc;

		(void)snprintf(path, sizeof(path), "%s/f.pt", dir);
		rc = open_typed(path, &as_bf16, &c, &e);
		if (!rc)
			rc = ckpt_file_open_path(c, "tensors/v", &f, &e);
		if (!rc)
			rc = ckpt_file_read(f, p, sizeof(p), 0, &e) < 0 ? -e.code : 0;
		(void)fault_off();
		failed += rc != 0;
		ck_assert(!rc || (rc == -e.code && e.msg[0]));
		ckpt_file_close(f);
		ckpt_close(c);
	}
	ck_assert_uint_gt(failed, 3);
}
END_TEST

static void set_up(void)
{
	dir_setup();
	put_saved("{v: " INT4
		  "<6,64>{qdata: I8[6,32], scale: F32[2,6], zero_point: F32[2,6], block_size: "
		  "(1,32)}, w: " STATE8 "<6,8>{codes: U8[6,8], scale: F32[3], qmap: F32[256]}}");
}

SUITE(dequantise_wrapped, .setup = set_up, .teardown = dir_teardown, .seconds = 60)
