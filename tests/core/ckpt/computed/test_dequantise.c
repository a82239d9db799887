/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which tensors dequantize= takes for codes, by their names, shapes and quantization_config, and
 * what it makes of them. tests/torch/dequant.sh compares the bits of all forms with those of other
 * programs.
 */
#include "base/buf.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "ckpt/ckpt_internal.h"
#include "codec/cast.h"
#include "dir_util.h"
#include "fault.h"
#include "index/catalog_query.h"
#include "opts_util.h"
#include "read/fetch.h"
#include "read/tensor_read.h"
#include "rng.h"
#include "st_util.h"
#include "suites.h"
#include "tensor/vtensor.h"
#include "tree_util.h"
#include "weights_util.h"
#include <ckptfs/ckpt.h>

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct ckpt_opts as_fp32 = { .dequantize = "fp32", .index = ":memory:" };
static const struct ckpt_opts as_bf16 = { .dequantize = "bf16", .index = ":memory:" };

#define FP8  "{\"quant_method\":\"fp8\"}"
#define INT4 "{\"config_groups\":{\"g\":{\"weights\":{\"num_bits\":4,\"group_size\":32}}}}"
#define GPTQ "{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":32}"
#define AWQ  "{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":32}"
#define AUTO_ROUND(packing) \
	"{\"quant_method\":\"auto-round\",\"bits\":4,\"group_size\":32,\"packing_format\":" \
	"\"" packing "\"}"
#define ROUND "{\"quant_method\":\"auto-round\",\"bits\":4,\"packing_format\":\"new\"}"

/* config: the value of quantization_config, NULL: there is no config.json. */
static void put_checkpoint(const char *config, const char *tensors)
{
	struct rng r = rng_new();
	char text[1000];
	int n = snprintf(text, sizeof(text), "{\n  \"a\": 1,\n  \"quantization_config\": %s\n}\n",
			 config ? config : "");

	(void)unlinkat(dir_fd, "config.json", 0);
	if (config)
		put_file(dir_fd, "config.json", text, (size_t)n);
	st_put(dir_fd, "model.safetensors", &r, tensors);
}

/* ---- what is found ---- */

static const struct {
	const char *config, *tensors, *want;
} found[] = {
	{ FP8, "a.weight F8_E4M3 300x200; a.weight_scale_inv F32 3x2; b BF16 2",
	  "a.weight f [300,200]; b bfloat16 [2]" },
	{ NULL, "a.weight F8_E4M3 300x200; a.weight_scale_inv F32 3x2", "a.weight f [300,200]" },
	{ "{\"weight_block_size\":[16,32]}", "a.weight F8_E4M3 17x33; a.weight_scale_inv F32 2x2",
	  "a.weight f [17,33]" },
	{ FP8, "a.weight F8_E5M2 3x4; a.weight_scale F32 -; a.input_scale F32 -",
	  "a.weight f [3,4]" },
	{ FP8, "a.weight F8_E4M3 3x4; a.weight_scale BF16 3", "a.weight f [3,4]" },
	{ FP8, "a.weight F8_E4M3 3x64; a.weight_scale U8 3x2", "a.weight f [3,64]" },
	{ FP8, "a.weight F8_E4M3 2x3x64; a.weight_scale F32 2x1x1", "a.weight f [2,3,64]" },
	{ FP8, "a.weight F8_E4M3 3x4; a.scale F32 1x1", "a.weight f [3,4]" },
	{ FP8, "a.weight F8_E4M3 0x4; a.weight_scale F32 1", "a.weight f [0,4]" },
	{ NULL, "a.weight I8 3x4; a.weight_scale F16 3x1", "a.weight f [3,4]" },
	{ NULL, "p_blocks U8 2x3x4x16; p_scales U8 2x3x4", "p f [2,128,3]" },
	{ NULL, "a.weight_packed U8 3x8; a.weight_scale F8_E4M3 3x1; a.weight_global_scale F32 1",
	  "a.weight f [3,16]" },
	{ NULL, "a.weight U8 3x16; a.weight_scale F8_E4M3 3x2; a.weight_scale_2 F32 -",
	  "a.weight f [3,32]" },
	{ INT4, "a.weight_packed I32 3x8; a.weight_scale BF16 3x2; a.weight_zero_point I32 1x2",
	  "a.weight f [3,64]" },
	{ GPTQ, "a.qweight I32 8x16; a.scales F16 2x16; a.qzeros I32 2x2; a.g_idx I32 64",
	  "a.weight f [16,64]" },
	{ AWQ, "a.qweight I32 64x2; a.scales F16 2x16; a.qzeros I32 2x2", "a.weight f [16,64]" },
	{ NULL, "a.qweight I32 64x2; a.scales F16 2x16; a.qzeros I32 2x2", "a.weight f [16,64]" },
	/* the bits of a layer */
	{ "{\"bits\":4,\"dynamic\":{\"+:.*a\":{\"bits\":8,\"group_size\":16}}}",
	  "a.qweight I32 16x16; a.scales F16 4x16; a.qzeros I32 4x4; "
	  "b.qweight I32 8x16; b.scales F16 2x16; b.qzeros I32 2x2",
	  "a.weight f [16,64]; b.weight f [16,64]" },
	{ "{\"bits\":8,\"packing_format\":\"auto_round:auto_gptq\",\"extra_config\":{\"a\":{"
	  "\"bits\":4}}}",
	  "a.qweight I32 8x16; a.scales F16 2x16; a.qzeros I32 2x2; "
	  "b.qweight I32 16x16; b.scales F16 2x16; b.qzeros I32 2x4",
	  "a.weight f [16,64]; b.weight f [16,64]" },
	/* one output: only the configuration or g_idx tells the bits */
	{ "{\"bits\":8}", "a.qweight I32 16x1; a.scales F16 2x1; a.qzeros I32 2x1",
	  "a.weight f [1,64]" },
	{ "{\"quant_method\":\"gptq\"}",
	  "a.qweight I32 16x1; a.scales F16 2x1; a.qzeros I32 2x1; a.g_idx I32 64",
	  "a.weight f [1,64]" },
	{ NULL, "a.k_scale F32 1; a.weight BF16 3x4", "a.k_scale f [1]; a.weight bfloat16 [3,4]" },
};

/* ---- bitsandbytes ---- */

#define NF4 ".quant_state.bitsandbytes__nf4"

static const struct {
	const char *state, *tensors, *want; /* want: an error, or the tensors */
} flat[] = {
	{ "{\"shape\":[3,50],\"blocksize\":64}", "w U8 75x1; w.absmax F32 3; w.quant_map F32 16",
	  "w f [3,50]" },
	{ "{\"shape\":[3,50],\"blocksize\":64,\"nested_blocksize\":2,\"nested_offset\":0.5}",
	  "w U8 75x1; w.absmax U8 3; w.quant_map F32 16; w.nested_absmax F32 2; "
	  "w.nested_quant_map F32 256",
	  "w f [3,50]" },
	{ "{\"shape\":[3,50],\"blocksize\":64}", "w U8 75x1; w.absmax F32 2; w.quant_map F32 16",
	  "'w.absmax' has shape (2,) (float32), but by the state of its weight it should have 3 "
	  "elements (float32)" },
	{ "{\"shape\":[3,50],\"blocksize\":64,\"nested_blocksize\":2,\"nested_offset\":0.5}",
	  "w U8 75x1; w.absmax F32 3; w.quant_map F32 16",
	  "'w.absmax' has shape (3,) (float32), but by the state of its weight it should have 3 "
	  "elements (uint8)" },
	{ "{\"shape\":[3,50],\"blocksize\":64}", "w U8 75x1; w.absmax F32 3",
	  "'w' holds codes (uint8), but 'w.quant_map', which would be their scales, does not "
	  "exist" },
	{ "{\"shape\":[3,51],\"blocksize\":64}", "w U8 75x1; w.absmax F32 3; w.quant_map F32 16",
	  "'w' has shape (75, 1) (uint8), but 'w" NF4
	  "' says that there are 153 codes, two in each "
	  "uint8" },
	{ "{\"shape\":[3,50],\"blocksize\":0}", "w U8 75x1; w.absmax F32 3; w.quant_map F32 16",
	  "'w" NF4 "': it has no 'blocksize'" },
	{ "{\"shape\":[],\"blocksize\":64}", "w U8 75x1; w.absmax F32 3; w.quant_map F32 16",
	  "'w" NF4 "': it has no 'shape' of a weight" },
	{ "{\"shape\":[4294967296,4294967296,4],\"blocksize\":64}",
	  "w U8 75x1; w.absmax F32 3; w.quant_map F32 16",
	  "'w" NF4 "': it has no 'shape' of a weight" },
	{ "{\"shape\":[3,50],\"blocksize\":64,\"nested_blocksize\":2,\"nested_offset\":1e300}",
	  "w U8 75x1; w.absmax U8 3; w.quant_map F32 16",
	  "'w" NF4 "': its 'nested_offset' is not a number that fits a float32" },
	{ "[", "w U8 75x1; w.absmax F32 3; w.quant_map F32 16", "'w" NF4 "': " },
};

START_LOOP_TEST(flattened_codes_are_of_the_shape_that_their_state_has, ARRAY_LEN(flat))
{
	char tensors[500];
	struct ckpt_err e = { 0 };
	struct ckpt *c = NULL;

	(void)snprintf(tensors, sizeof(tensors), "%s; w%s U8 %zu=%s", flat[_i].tensors, NF4,
		       strlen(flat[_i].state), flat[_i].state);
	put_checkpoint(NULL, tensors);
	if (open_typed(dir, &as_fp32, &c, &e)) {
		ck_assert_msg(strstr(e.msg, flat[_i].want) != NULL, "%s", e.msg);
		return;
	}
	autofree char *have = tree_tensors(c);
	ck_assert_str_eq(have, flat[_i].want);
	ckpt_close(c);
}
END_TEST

START_LOOP_TEST(codes_and_scales_become_weights, ARRAY_LEN(found))
{
	struct ckpt_err e = { 0 };
	struct ckpt *c = NULL;

	put_checkpoint(found[_i].config, found[_i].tensors);
	if (open_typed(dir, &as_fp32, &c, &e))
		ck_abort_msg("%s", e.msg);
	autofree char *have = tree_tensors(c);
	ck_assert_str_eq(have, found[_i].want);
	ckpt_close(c);
}
END_TEST

/* ---- what is refused ---- */

#define SAYS "option 'dequantize': "
#define NEITHER \
	"that is not a scale for all, for each row or for each block of quantization_config " \
	"(128 x 128 without one)"

#define QWEIGHT "a.qweight I32 8x16; a.scales F16 2x16; a.qzeros I32 2x2"
#define UNKNOWN_ZEROS \
	"quantization_config does not say in a known way how the zero points of 'a.qweight' are " \
	"stored"
#define NO_ZEROS \
	"'a.qweight' holds codes of GPTQ, whose zero points are stored in two ways: name with " \
	"assets= the directory of its config.json or quantize_config.json, which tells them apart"

static const struct {
	const char *config, *tensors, *want;
} refused[] = {
	{ FP8, "a.weight F8_E4M3 3x4",
	  SAYS "'a.weight' holds codes (float8_e4m3fn), but 'a.weight_scale_inv', which would be "
	       "their scales, does not exist" },
	{ FP8, "a.weight F8_E4M3 300x200; a.weight_scale_inv F32 2x2",
	  SAYS "'a.weight' has codes of shape (300, 200) (float8_e4m3fn), and "
	       "'a.weight_scale_inv' has shape (2, 2) (float32): " NEITHER },
	{ FP8, "a.weight F8_E4M3 300x200; a.weight_scale_inv I64 3x2",
	  SAYS "'a.weight' has codes of shape (300, 200) (float8_e4m3fn), and "
	       "'a.weight_scale_inv' has shape (3, 2) (int64): " NEITHER },
	{ FP8, "a.weight F8_E4M3 2x3x64; a.weight_scale F32 3x3x1",
	  SAYS "'a.weight' has codes of shape (2, 3, 64) (float8_e4m3fn), and 'a.weight_scale' has "
	       "shape (3, 3, 1) (float32): " NEITHER },
	{ FP8, "a.weight F8_E4M3 2x3x64; a.weight_scale F32 2x3",
	  SAYS "'a.weight' has codes of shape (2, 3, 64) (float8_e4m3fn), and 'a.weight_scale' has "
	       "shape (2, 3) (float32): " NEITHER },
	{ FP8, "a.weight F8_E4M3 4; a.weight_scale F32 1",
	  SAYS "'a.weight' has codes of shape (4,) (float8_e4m3fn), and 'a.weight_scale' has shape "
	       "(1,) (float32): codes must have two dimensions or more" },
	{ NULL, "a.qdata F8_E4M3 192x96; a.scale F32 7x1", /* torchao's blocks are all whole */
	  SAYS "'a.qdata' has codes of shape (192, 96) (float8_e4m3fn), and 'a.scale' has shape "
	       "(7, 1) (float32): its dimensions must divide those of the codes" },
	{ NULL, "a.qdata F8_E4M3 4; a.scale F32 1",
	  SAYS "'a.qdata' has codes of shape (4,) (float8_e4m3fn), and 'a.scale' has shape (1,) "
	       "(float32): its dimensions must divide those of the codes" },
	{ NULL, "a.qdata F8_E4M3 4x4",
	  SAYS "'a.qdata' holds codes (float8_e4m3fn), but 'a.scale', which would be their scales, "
	       "does not exist" },
	{ NULL, "p_blocks U8 2x3x4x16",
	  SAYS "'p_blocks' holds codes (uint8), but 'p_scales', which would be their scales, does "
	       "not exist" },
	{ NULL, "p_blocks U8 2x3x4x16; p_scales U8 2x3x5",
	  SAYS "'p_blocks' has codes of shape (2, 3, 4, 16) (uint8), and 'p_scales' has shape "
	       "(2, 3, 5) (uint8): there must be a uint8 for each group of 16 bytes" },
	{ INT4, "a.weight_packed I32 3x8; a.weight_scale BF16 3x3",
	  SAYS
	  "'a.weight_packed' has codes of shape (3, 8) (int32), and 'a.weight_scale' has shape "
	  "(3, 3) (bfloat16): that is not a scale for each group of a row" },
	{ INT4, "a.weight_packed I32 3x8",
	  SAYS "'a.weight_packed' holds codes (int32), but 'a.weight_scale', which would be their "
	       "scales, does not exist" },
	{ INT4, "a.weight_packed I32 3x8; a.weight_scale BF16 3x2; a.weight_zero_point I32 2x2",
	  SAYS "'a.weight_packed' has codes of shape (3, 8) (int32), and 'a.weight_zero_point' has "
	       "shape (2, 2) (int32): the zero points must be packed like the codes" },
	{ "{\"bits\":3}", "a.qweight I32 8x16; a.scales F16 2x16; a.qzeros I32 2x2",
	  SAYS "the codes of 'a.qweight' do not have 4 or 8 bits, according to "
	       "quantization_config" },
	{ GPTQ, "a.qweight I32 8x16; a.scales F16 2x16",
	  SAYS "'a.qweight' holds codes (int32), but 'a.qzeros', which would be their scales, does "
	       "not exist" },
	{ GPTQ, "a.qweight I32 8x16; a.scales F16 2x16; a.qzeros I32 2x2; a.g_idx I32 63",
	  SAYS "'a.qweight' has codes of shape (8, 16) (int32), and 'a.g_idx' has shape (63,) "
	       "(int32): there must be an int32 for each input" },
	{ ROUND, QWEIGHT, SAYS UNKNOWN_ZEROS },
	{ "{\"quant_method\":\"gptq\",\"bits\":4,\"checkpoint_format\":\"marlin\"}", QWEIGHT,
	  SAYS UNKNOWN_ZEROS },
	{ "{\"quant_method\":\"awq\",\"bits\":4,\"version\":\"gemv\"}", QWEIGHT,
	  SAYS UNKNOWN_ZEROS },
	{ NULL, QWEIGHT, SAYS NO_ZEROS },
	{ "{}", QWEIGHT, SAYS NO_ZEROS },
	{ GPTQ, "a.qweight I32 16x16; a.scales F16 2x16; a.qzeros I32 2x4",
	  SAYS "'a.qweight' and what belongs to it have the shapes of 8-bit codes, but "
	       "quantization_config says 4 bits" },
	{ "{\"bits\":8,\"extra_config\":{\"a\":{\"bits\":8},\"b\":{\"bits\":16},\"c\":4}}", QWEIGHT,
	  SAYS "'a.qweight' and what belongs to it have the shapes of 4-bit codes, but "
	       "quantization_config says 8 bits" },
	{ NULL, "a.weight I8 3x4; a.weight_scale F16 3x1; a.weight_zero_point I8 3x1",
	  SAYS "'a.weight' has zero points, which are not known for codes that are not packed" },
	{ FP8, "a.weight F8_E4M3 3x4; a.weight_scale F32 1; b.weight I8 3x4; b.SCB F32 3",
	  SAYS "'b.weight' (int8, shape (3, 4)) holds codes of a form that is not known: there is "
	       "also 'b.SCB'" },
	{ NULL, "a._weight_qdata I8 3x4; a._weight_scale F32 3x1",
	  SAYS "'a._weight_qdata' (int8, shape (3, 4)) holds codes of a form that is not known: "
	       "there is also 'a._weight_scale'" },
	{ NULL, "a._weight_qdata I8 3x4; a._weight_group_scale BF16 3x1",
	  SAYS "'a._weight_qdata' (int8, shape (3, 4)) holds codes of a form that is not known: "
	       "there is also 'a._weight_group_scale'" },
	{ NULL, "a._weight_qdata I32 3x4; a._weight_scale_and_zero BF16 3x1x2",
	  SAYS "'a._weight_qdata' (int32, shape (3, 4)) holds codes of a form that is not known: "
	       "there is also 'a._weight_scale_and_zero'" },
	{ FP8, "a.weight F8_E4M3 3x4; a.weight_scale F32 1; a.pre_quant_scale F32 4",
	  SAYS "'a.pre_quant_scale' is to be multiplied into activations, which is not supported" },
};

START_LOOP_TEST(what_does_not_belong_together_is_refused_by_name, ARRAY_LEN(refused))
{
	const char *why;
	struct ckpt_err e = { 0 };
	struct ckpt *c = NULL;

	put_checkpoint(refused[_i].config, refused[_i].tensors);
	ck_assert(open_typed(dir, &as_bf16, &c, &e));
	why = strstr(e.msg, SAYS);
	ck_assert_str_eq(why ? why : e.msg, refused[_i].want);
}
END_TEST

/* A cast would round the scales and not change the codes. */
START_TEST(a_cast_of_torchaos_files_is_refused)
{
	static const char *const tensors[] = {
		"a._weight_qdata I8 3x4; a._weight_scale F32 3x1",
		"a._weight_qdata I8 3x4; a._weight_group_scale BF16 3x1",
		"a._weight_qdata I32 3x4; a._weight_scale_and_zero BF16 3x1x2",
	};
	const struct ckpt_opts as = { .dtype = "fp16", .index = ":memory:" };

	for (size_t i = 0; i < ARRAY_LEN(tensors); i++) {
		struct ckpt_err e = { 0 };
		struct ckpt *c = NULL;

		put_checkpoint(NULL, tensors[i]);
		ck_assert_msg(open_typed(dir, &as, &c, &e) != 0, "%s", tensors[i]);
		ck_assert_msg(strstr(e.msg, "'a._weight_qdata' holds codes") != NULL, "%s", e.msg);
	}
}
END_TEST

/* What config.json says counts if no scales are found by their names. */
static const struct {
	const char *config, *tensors;
	bool refused;
} said[] = {
	{ "{\"quantization_config\":{\"quant_method\":\"new\"}}", "a.strange U8 3x4; b F32 4",
	  true },
	{ "{\"compression_config\":{\"format\":\"new\"}}", "a.strange I16 3x4; b F32 4", true },
	{ "{\"quantization\":{\"bits\":4}}", "a.strange U32 3x4; b F32 4", true },
	{ "{\"text_config\":{\"quantization_config\":{\"bits\":4}}}", "a.strange I32 3x4; b F32 4",
	  true },
	{ "{\"quantization_config\":{\"quant_method\":\"fp8\"}}", "a.weight F8_E4M3 3x4; b F32 4",
	  true },
	/* the configuration of the model from which the weights were made; buffers; states */
	{ "{\"quantization_config\":{\"quant_method\":\"fp8\"}}",
	  "a.weight BF16 3x4; at I64 3x4; mask BOOL 3x4; rng U8 40; b F32 4", false },
	{ "{\"quantization_config\":{}}", "a.strange U8 3x4; b F32 4", false },
	{ "{\"quantization_config\":null}", "a.strange U8 3x4; b F32 4", false },
	{ "{\"quantization_config\"", "a.strange U8 3x4; b F32 4", false },
	{ "{}", "a.strange U8 3x4; b F32 4", false },
};

START_LOOP_TEST(what_the_configuration_calls_quantised_is_neither_cast_nor_averaged,
		ARRAY_LEN(said))
{
	static const char *const out[] = { "a.*", NULL };
	struct ckpt_opts as[] = { { .dtype = "bf16", .index = ":memory:" },
				  { .average = ".", .index = ":memory:" } };

	put_checkpoint(NULL, said[_i].tensors);
	put_file(dir_fd, "config.json", said[_i].config, strlen(said[_i].config));
	for (size_t i = 0; i < ARRAY_LEN(as); i++) {
		struct ckpt_err e = { 0 };
		struct ckpt *c = NULL;
		int rc = open_typed(dir, &as[i], &c, &e);

		ck_assert_msg(!rc == !said[_i].refused, "%s", e.msg);
		/* float8 has no average, whatever the configuration says */
		if (rc && !strstr(said[_i].tensors, "F8"))
			ck_assert_msg(strstr(e.msg, "config.json") && strstr(e.msg, "'a.strange'"),
				      "%s", e.msg);
		ckpt_close(c);
		c = NULL;
		as[i].exclude = out;
		ck_assert_msg(!open_typed(dir, &as[i], &c, &e), "%s", e.msg);
		ckpt_close(c);
	}
}
END_TEST

/* Without config.json, too, codes whose scales have a known name have no average. */
START_TEST(codes_of_all_forms_have_no_average)
{
	static const char *const tensors[] = {
		"a.weight U32 3x4; a.scales F16 3x1; a.biases F16 3x1",
		"a.weight I8 3x4; a.weight_scales F16 3",
		"a.W_q U8 3x4; a.scale F16 3x1; a.zero F16 3x1",
		"a.weight._data I8 3x4; a.weight._scale F16 3x1",
		"a.B I32 3x4; a.s F16 1x4",
		"a.codes I16 3x4x1; a.codebooks F16 1x16x1x8; a.scales F16 3x1x1x1",
		"a.weight BF16 3x1; a.weight.absmax F32 3; a.weight" NF4 " U8 8",
	};
	const struct ckpt_opts as = { .average = ".", .index = ":memory:" };

	for (size_t i = 0; i < ARRAY_LEN(tensors); i++) {
		struct ckpt_err e = { 0 };
		struct ckpt *c = NULL;

		put_checkpoint(NULL, tensors[i]);
		ck_assert_msg(open_typed(dir, &as, &c, &e) != 0, "%s", tensors[i]);
		ck_assert_msg(strstr(e.msg, "whose codes have no average") != NULL, "%s", e.msg);
	}
}
END_TEST

/* Values of the wrong type, and numbers without a meaning, are ignored. */
START_TEST(a_strange_configuration_is_as_none)
{
	static const char *const configs[] = {
		"null",
		"[]",
		"\"fp8\"",
		"7",
		"true",
		"{}",
		"{\"weight_block_size\":null}",
		"{\"weight_block_size\":[0,128]}",
		"{\"weight_block_size\":[-1,-1]}",
		"{\"weight_block_size\":[128]}",
		"{\"weight_block_size\":[1,1,1]}",
		"{\"weight_block_size\":[1e300,1]}",
		"{\"weight_block_size\":[99999999999999999999,1]}",
		"{\"weight_block_size\":[18446744073709551615,9223372036854775807]}",
		"{\"weight_block_size\":{\"0\":16}}",
		"{\"config_groups\":[]}",
		"{\"config_groups\":{\"a\":3,\"b\":[],\"c\":{\"weights\":7}}}",
		"{\"config_groups\":{\"a\":{\"weights\":{\"block_structure\":[0,0]}}}}",
		"{\"group_size\":-1,\"bits\":4}",
		"{\"group_size\":1e99}",
		"{\"group_size\":9223372036854775807}",
		"{\"bits\":\"\"}",
		"{\"bits\":-4}",
	};
	struct ckpt_err e = { 0 };

	for (size_t i = 0; i < ARRAY_LEN(configs); i++) {
		struct ckpt *c = NULL;

		put_checkpoint(configs[i], "a.weight F8_E4M3 300x200; a.weight_scale_inv F32 3x2; "
					   "b.weight F8_E4M3 128x2; b.weight_scale_inv F32 1x1");
		ck_assert_msg(!open_typed(dir, &as_fp32, &c, &e), "%s: %s", configs[i], e.msg);
		autofree char *have = tree_tensors(c);
		ck_assert_str_eq(have, "a.weight f [300,200]; b.weight f [128,2]");
		ckpt_close(c);
	}
}
END_TEST

/* ---- values ---- */

static float f32_at(const uint8_t *p, uint64_t i)
{
	float f;

	memcpy(&f, p + 4 * i, 4);
	return f;
}

static float f16_at(const uint8_t *p, uint64_t i)
{
	float f;

	cast_run(CKPT_DTYPE_F16, CKPT_DTYPE_F32, p + 2 * i, &f, 1);
	return f;
}

static unsigned nibble_at(const uint8_t *words, uint64_t i)
{
	return words[i / 2] >> 4 * (i % 2) & 15;
}

/* Element (i, j) of a weight with this shape. */
typedef float formula(uint8_t *const *in, uint64_t i, uint64_t j, const uint64_t *shape);

static float fp8_at(uint8_t *const *in, uint64_t i, uint64_t j, const uint64_t *shape)
{
	return e4m3_value(in[0][i * shape[1] + j]) *
	       f32_at(in[1], i / 128 * ((shape[1] + 127) / 128) + j / 128);
}

static float int4_at(uint8_t *const *in, uint64_t i, uint64_t j, const uint64_t *shape)
{
	return ((float)nibble_at(in[0], i * shape[1] + j) - 8) *
	       f32_at(in[1], i * (shape[1] / 32) + j / 32);
}

/* Word r of a group has the zero points of rows 8 r ... 8 r + 7. */
static float zeros_at(uint8_t *const *in, uint64_t i, uint64_t j, const uint64_t *shape)
{
	uint64_t groups = shape[1] / 32;
	unsigned zero = nibble_at(in[2], (i / 8 * groups + j / 32) * 8 + i % 8);

	return ((float)nibble_at(in[0], i * shape[1] + j) - (float)zero) *
	       f32_at(in[1], i * groups + j / 32);
}

/* Word r of column n has the codes of inputs 8 r ... 8 r + 7. */
static float gptq_at(uint8_t *const *in, uint64_t n, uint64_t k, const uint64_t *shape)
{
	uint64_t scale = k / 32 * shape[0] + n;
	unsigned code = nibble_at(in[0], (k / 8 * shape[0] + n) * 8 + k % 8);
	unsigned zero = nibble_at(in[2], scale) + 1;

	return ((float)code - (float)zero) * f16_at(in[1], scale);
}

static float awq_at(uint8_t *const *in, uint64_t n, uint64_t k, const uint64_t *shape)
{
	static const unsigned at[] = { 0, 4, 1, 5, 2, 6, 3, 7 };
	uint64_t column = n / 8 * 8 + at[n % 8];
	unsigned code = nibble_at(in[0], k * shape[0] + column);
	unsigned zero = nibble_at(in[2], k / 32 * shape[0] + column);

	return ((float)code - (float)zero) * f16_at(in[1], k / 32 * shape[0] + n);
}

static const struct {
	const char *config, *tensors, *inputs[3];
	formula *at;
	uint64_t shape[2];
} values[] = {
	{ FP8,
	  "a.weight F8_E4M3 300x200; a.weight_scale_inv F32 3x2",
	  { "a.weight", "a.weight_scale_inv" },
	  fp8_at,
	  { 300, 200 } },
	{ INT4,
	  "a.weight_packed I32 5x8; a.weight_scale F32 5x2",
	  { "a.weight_packed", "a.weight_scale" },
	  int4_at,
	  { 5, 64 } },
	{ GPTQ,
	  "a.qweight I32 8x16; a.scales F16 2x16; a.qzeros I32 2x2",
	  { "a.qweight", "a.scales", "a.qzeros" },
	  gptq_at,
	  { 16, 64 } },
	{ AWQ,
	  "a.qweight I32 64x2; a.scales F16 2x16; a.qzeros I32 2x2",
	  { "a.qweight", "a.scales", "a.qzeros" },
	  awq_at,
	  { 16, 64 } },
};

static void read_inputs(uint8_t **in, const char *const *names, size_t most)
{
	static const struct ckpt_opts plain = { .index = ":memory:" };
	struct ckpt_err e = { 0 };
	struct ckpt *c = NULL;
	size_t n;

	REQUIRE(!open_typed(dir, &plain, &c, &e));
	for (size_t i = 0; i < most && names[i]; i++) {
		char path[100];

		(void)snprintf(path, sizeof(path), "tensors/%s", names[i]);
		in[i] = tree_bytes(c, path, &n);
	}
	ckpt_close(c);
}

/* NaN comes from codes, from scales, and from infinity times 0. */
static void check_value(float got, float want, uint64_t i, uint64_t j)
{
	if (want != want)
		REQUIRE(got != got);
	else
		ck_assert_msg(!memcmp(&want, &got, 4), "(%llu, %llu): %a, not %a",
			      (unsigned long long)i, (unsigned long long)j, (double)got,
			      (double)want);
}

START_LOOP_TEST(weights_are_what_the_formula_says, ARRAY_LEN(values))
{
	const uint64_t *shape = values[_i].shape;
	uint8_t *in[3] = { NULL };
	struct ckpt_err e = { 0 };
	struct ckpt *c = NULL;
	size_t n;

	put_checkpoint(values[_i].config, values[_i].tensors);
	read_inputs(in, values[_i].inputs, 3);
	REQUIRE(!open_typed(dir, &as_fp32, &c, &e));
	autofree uint8_t *have = tree_bytes(c, "tensors/a.weight", &n);
	ck_assert_uint_eq(n, 4 * shape[0] * shape[1]);
	for (uint64_t i = 0; i < shape[0]; i++)
		for (uint64_t j = 0; j < shape[1]; j++)
			check_value(f32_at(have, i * shape[1] + j), values[_i].at(in, i, j, shape),
				    i, j);
	ckpt_close(c);
	for (int i = 0; i < 3; i++)
		free(in[i]);
}
END_TEST

/* Block FP8 in blocks of 16 x 32; a scale for all, for each row, for each 64 columns of a row; and a
 * power of two for each 32. */
static float block_at(uint8_t *const *in, uint64_t i, uint64_t j, const uint64_t *shape)
{
	return e4m3_value(in[0][i * shape[1] + j]) *
	       f32_at(in[1], i / 16 * ((shape[1] + 31) / 32) + j / 32);
}

static float tensor_at(uint8_t *const *in, uint64_t i, uint64_t j, const uint64_t *shape)
{
	return e4m3_value(in[0][i * shape[1] + j]) * f32_at(in[1], 0);
}

static float channel_at(uint8_t *const *in, uint64_t i, uint64_t j, const uint64_t *shape)
{
	return (float)(int8_t)in[0][i * shape[1] + j] * f32_at(in[1], i);
}

static float group_at(uint8_t *const *in, uint64_t i, uint64_t j, const uint64_t *shape)
{
	return e4m3_value(in[0][i * shape[1] + j]) * f32_at(in[1], i * (shape[1] / 64) + j / 64);
}

static float mx_at(uint8_t *const *in, uint64_t i, uint64_t j, const uint64_t *shape)
{
	return e4m3_value(in[0][i * shape[1] + j]) *
	       e8m0_value(in[1][i * ((shape[1] + 31) / 32) + j / 32]);
}

#define WHOLE (1U << 30) /* no blocks in this dimension */

/* Of weights that take several steps to compute, some elements. */
static const struct {
	const char *config, *codes, *scales, *zeros;
	formula *at;
	/* shapes, as numbers of rows and of columns of the weight, divided by these */
	unsigned code_rows, code_columns, scale_rows, scale_columns, zero_rows, zero_columns;
	unsigned unit; /* the number of columns is a multiple of it */
	bool turned;
} large[] = {
	{ FP8, "a.weight F8_E4M3", "a.weight_scale_inv F32", NULL, fp8_at, 1, 1, 128, 128, 0, 0, 1,
	  false },
	{ "{\"weight_block_size\":[16,32]}", "a.weight F8_E4M3", "a.weight_scale_inv F32", NULL,
	  block_at, 1, 1, 16, 32, 0, 0, 1, false },
	{ NULL, "a.weight F8_E4M3", "a.weight_scale F32", NULL, tensor_at, 1, 1, WHOLE, WHOLE, 0, 0,
	  1, false },
	{ NULL, "a.weight I8", "a.weight_scale F32", NULL, channel_at, 1, 1, 1, WHOLE, 0, 0, 1,
	  false },
	{ NULL, "a.weight F8_E4M3", "a.weight_scale F32", NULL, group_at, 1, 1, 1, 64, 0, 0, 64,
	  false },
	{ NULL, "a.weight F8_E4M3", "a.weight_scale U8", NULL, mx_at, 1, 1, 1, 32, 0, 0, 32,
	  false },
	{ INT4, "a.weight_packed I32", "a.weight_scale F32", NULL, int4_at, 1, 8, 1, 32, 0, 0, 32,
	  false },
	{ INT4, "a.weight_packed I32", "a.weight_scale F32", "a.weight_zero_point I32", zeros_at, 1,
	  8, 1, 32, 8, 32, 32, false },
	{ GPTQ, "a.qweight I32", "a.scales F16", "a.qzeros I32", gptq_at, 1, 8, 1, 32, 8, 32, 32,
	  true },
	{ AWQ, "a.qweight I32", "a.scales F16", "a.qzeros I32", awq_at, 8, 1, 1, 32, 8, 32, 32,
	  true },
};

static size_t put_shape(char *to, size_t cap, const char *name, const uint64_t *shape,
			unsigned rows, unsigned columns, bool turned)
{
	uint64_t m = (shape[0] + rows - 1) / rows, n = (shape[1] + columns - 1) / columns;

	return (size_t)snprintf(to, cap, "%s %llux%llu; ", name,
				(unsigned long long)(turned ? n : m),
				(unsigned long long)(turned ? m : n));
}

START_LOOP_TEST(parts_of_large_weights_are_computed, 4 * ARRAY_LEN(large))
{
	size_t kind = (size_t)_i % ARRAY_LEN(large), n = 0;
	const uint64_t rows[] = { 16, 72, 1000, 3200 };
	struct rng r = { rng_new().state + (uint64_t)_i };
	uint64_t shape[2] = { rows[_i / (int)ARRAY_LEN(large)], 0 };
	const char *names[3] = { NULL };
	uint8_t *in[3] = { NULL };
	char text[300], codes[40], scales[40], zeros[40];
	struct ckpt_err e = { 0 };
	struct ckpt *c = NULL;

	shape[0] += large[kind].turned ? 0 : rng_below(&r, 8);
	shape[1] = (300000 / shape[0] / large[kind].unit + rng_below(&r, 9)) * large[kind].unit;
	n = put_shape(text, sizeof(text), large[kind].codes, shape, large[kind].code_rows,
		      large[kind].code_columns, large[kind].turned);
	n += put_shape(text + n, sizeof(text) - n, large[kind].scales, shape,
		       large[kind].scale_rows, large[kind].scale_columns, large[kind].turned);
	if (large[kind].zeros)
		(void)put_shape(text + n, sizeof(text) - n, large[kind].zeros, shape,
				large[kind].zero_rows, large[kind].zero_columns,
				large[kind].turned);
	put_checkpoint(large[kind].config, text);
	REQUIRE(sscanf(large[kind].codes, "%39s", codes) == 1);
	REQUIRE(sscanf(large[kind].scales, "%39s", scales) == 1);
	names[0] = codes;
	names[1] = scales;
	if (large[kind].zeros && sscanf(large[kind].zeros, "%39s", zeros) == 1)
		names[2] = zeros;
	read_inputs(in, names, 3);
	ck_assert_msg(!open_typed(dir, &as_fp32, &c, &e), "%s", e.msg);
	for (int k = 0; k < 60; k++) {
		float got[50];
		uint64_t all = shape[0] * shape[1], from = rng_below(&r, all);
		uint64_t count = min_u64(1 + rng_below(&r, ARRAY_LEN(got)), all - from);

		ck_assert_msg(!weights_read(c, "a.weight", got, 4 * count, 4 * from, &e), "%s",
			      e.msg);
		for (uint64_t x = 0; x < count; x++) {
			uint64_t i = (from + x) / shape[1], j = (from + x) % shape[1];

			check_value(got[x], large[kind].at(in, i, j, shape), i, j);
		}
	}
	ckpt_close(c);
	for (int i = 0; i < 3; i++)
		free(in[i]);
}
END_TEST

/* AutoGPTQ's first repositories have a configuration of their own, and vLLM reads it, too. */
static const struct {
	const char *config, *gptq;
	unsigned more; /* than the stored zero point */
	const char *error;
} zeros[] = {
	{ NULL, "{\"bits\":4,\"group_size\":32}", 1, NULL },
	{ NULL, "{\"bits\":4,\"checkpoint_format\":\"gptq\"}", 1, NULL },
	{ NULL, "{\"bits\":4,\"checkpoint_format\":\"gptq_v2\"}", 0, NULL },
	{ NULL, "{\"bits\":4,\"format\":\"gptq_v2\"}", 0, NULL },
	{ NULL, "{\"bits\":4,\"checkpoint_format\":null,\"format\":\"gptq_v2\"}", 0, NULL },
	{ "null", "{\"bits\":4,\"checkpoint_format\":\"gptq_v2\"}", 0, NULL },
	{ GPTQ, "{\"bits\":4,\"checkpoint_format\":\"gptq_v2\"}", 1, NULL },
	{ GPTQ, "[", 1, NULL },
	{ AUTO_ROUND("auto_round"), "[", 0, NULL },
	{ AUTO_ROUND("auto_round:gptqmodel"), "[", 0, NULL },
	{ AUTO_ROUND("auto_round:auto_gptq"), "[", 1, NULL },
	{ AUTO_ROUND("auto_round:other"), "[", 0,
	  "does not say in a known way how the zero points" },
	{ NULL, "[", 0, "/quantize_config.json', line 1: " },
	{ NULL, "{}", 0, "whose zero points are stored in two ways" },
};

START_LOOP_TEST(either_configuration_tells_what_zero_points_are, ARRAY_LEN(zeros))
{
	static const char *const names[] = { "a.qweight", "a.scales", "a.qzeros" };
	uint8_t *in[3] = { NULL };
	struct ckpt_err e = { 0 };
	struct ckpt *c = NULL;
	size_t n;
	int rc;

	put_checkpoint(zeros[_i].config, QWEIGHT);
	put_file(dir_fd, "quantize_config.json", zeros[_i].gptq, strlen(zeros[_i].gptq));
	rc = open_typed(dir, &as_fp32, &c, &e);
	ck_assert_msg(!rc == !zeros[_i].error, "%s", e.msg);
	if (rc) {
		ck_assert_msg(strstr(e.msg, zeros[_i].error) != NULL, "%s", e.msg);
		return;
	}
	read_inputs(in, names, 3);
	autofree uint8_t *have = tree_bytes(c, "tensors/a.weight", &n);
	ck_assert_uint_eq(n, 4 * 16 * 64);
	for (uint64_t i = 0; i < 16; i++)
		for (uint64_t k = 0; k < 64; k++) {
			unsigned code = nibble_at(in[0], (k / 8 * 16 + i) * 8 + k % 8);
			unsigned zero = nibble_at(in[2], k / 32 * 16 + i) + zeros[_i].more;
			float scale = f16_at(in[1], k / 32 * 16 + i);
			float want = ((float)code - (float)zero) * scale;
			float got = f32_at(have, i * 64 + k);

			ck_assert(want != want ? got != got : !memcmp(&want, &got, 4));
		}
	ckpt_close(c);
	for (int i = 0; i < 3; i++)
		free(in[i]);
}
END_TEST

/* ggml's block of group g: its scale, then element i in the lower half of byte i, and i + 16 in the
 * upper. */
static void moved_block(uint8_t *const *in, uint64_t g, uint8_t *ret)
{
	ret[0] = in[1][g];
	for (unsigned i = 0; i < 16; i++)
		ret[1 + i] = (uint8_t)(nibble_at(in[0] + 16 * g, i) |
				       nibble_at(in[0] + 16 * g, i + 16) << 4);
}

/* gguf/ reads the blocks in place of the weights, from any byte on. */
START_TEST(blocks_of_gpt_oss_are_there_as_ggml_has_them)
{
	enum { GROUPS = 5 * 801 * 9, ALL = GROUPS * 17 }; /* of several blocks of the cache */
	static const char *const names[] = { "p_blocks", "p_scales", NULL };
	struct rng r = rng_new();
	struct ckpt_err e = { 0 };
	struct ckpt *c = NULL;
	struct tensor_reader *t = NULL;
	const struct catalog_tensor *all;
	uint8_t *in[3] = { NULL };
	struct vtensor *v;
	uint32_t number;
	size_t n;

	put_checkpoint(NULL, "p_blocks U8 5x801x9x16; p_scales U8 5x801x9; q F32 3");
	read_inputs(in, names, 3);
	REQUIRE(!open_typed(dir, &as_fp32, &c, &e));
	autofree char *have = tree_tensors(c);
	ck_assert_str_eq(have, "p f [5,288,801]; q f [3]");
	all = catalog_tensors(c->engine->catalog, &n);
	number = all[0].blocks;
	REQUIRE(!all[1].blocks && number >= n);
	ck_assert_uint_eq(all[number].bytes, ALL);
	REQUIRE(!vtensor_whole(&all[number], number, CKPT_DTYPE_U8, &v, &e));
	REQUIRE(!tensor_open(c->engine->fetch, v, &t, &e));
	for (int round = 0; round < 200; round++) {
		uint64_t off = rng_below(&r, ALL), len = 1 + rng_below(&r, min_u64(ALL - off, 999));
		uint8_t got[999], want[17];

		if (tensor_read(c->engine->fetch, t, got, len, off, NULL, &e))
			ck_abort_msg("%s", e.msg);
		for (uint64_t i = 0; i < len; i++) {
			moved_block(in, (off + i) / 17, want);
			ck_assert_uint_eq(got[i], want[(off + i) % 17]);
		}
	}
	tensor_close(c->engine->fetch, t);
	ckpt_close(c);
	free(in[0]);
	free(in[1]);
}
END_TEST

START_TEST(hf_says_nothing_of_codes)
{
	struct ckpt_err e = { 0 };
	struct ckpt *c = NULL;
	size_t n;

	put_checkpoint(FP8, "a.weight F8_E4M3 3x4; a.weight_scale F32 1");
	REQUIRE(!open_typed(dir, &as_bf16, &c, &e));
	autofree uint8_t *config = tree_bytes(c, "hf/config.json", &n);
	ck_assert_str_eq((char *)config, "{\n  \"a\": 1\n}\n");
	ckpt_close(c);
}
END_TEST

static void count_warning(void *arg, const char *text)
{
	ck_assert_str_eq(text, "option 'dequantize' does nothing: no tensor holds codes that have "
			       "scales");
	++*(unsigned *)arg;
}

/* So diff can compare a quantised checkpoint with the one that it was made from. */
START_TEST(a_checkpoint_without_codes_stays_as_it_is)
{
	unsigned warnings = 0;
	struct ckpt_opts o = as_bf16;
	struct ckpt_err e = { 0 };
	struct ckpt *c = NULL;
	size_t n;

	put_checkpoint(FP8, "a.weight BF16 3x4");
	o.warn = count_warning;
	o.warn_arg = &warnings;
	ck_assert_msg(!open_typed(dir, &o, &c, &e), "%s", e.msg);
	ck_assert_uint_eq(warnings, 1);
	autofree uint8_t *config = tree_bytes(c, "hf/config.json", &n);
	ck_assert(strstr((char *)config, FP8) != NULL);
	ckpt_close(c);
}
END_TEST

START_FEW_TEST(whatever_fails_is_an_error, 2, 1)
{
	unsigned failed = 0;

	put_checkpoint(INT4,
		       "a.weight_packed I32 5x8; a.weight_scale F32 5x2; a.weight_g_idx I32 64; "
		       "b.weight F8_E4M3 3x4; b.weight_scale_inv F32 1");
	fault_sqlite();
	FAULT_LOOP_SOME(_i ? FAULT_READ : FAULT_ALLOC, 1)
	{
		struct ckpt_err e = { 0 };
		struct ckpt *c = NULL;
		int rc = open_typed(dir, &as_bf16, &c, &e);

		(void)fault_off();
		failed += rc != 0;
		if (rc)
			REQUIRE(rc == -e.code && e.msg[0]);
		else
			ck_assert_uint_eq(ckpt_tensor_find(c, "b.weight", 8), 1);
		ckpt_close(c);
	}
	ck_assert_uint_gt(failed, 3);
}
END_TEST

/* ---- each form, read whole ---- */

#define INT8 \
	"{\"config_groups\":{\"g\":{\"weights\":{\"num_bits\":8,\"group_size\":32,\"symmetric\":" \
	"false}}}}"
#define GPTQ8  "{\"quant_method\":\"gptq\",\"bits\":8,\"group_size\":32}"
#define NESTED "{\"shape\":[3,50],\"blocksize\":64,\"nested_blocksize\":2,\"nested_offset\":0.5}"
/* Behind a bar: the state of w. */
#define STATE(text) "|" text

static void put_stated(const char *config, const char *tensors)
{
	const char *bar = strchr(tensors, '|');
	char text[500];

	(void)snprintf(text, sizeof(text), "%.*s", (int)strcspn(tensors, "|"), tensors);
	if (bar)
		(void)snprintf(text + strlen(text), sizeof(text) - strlen(text), "; w%s U8 %zu=%s",
			       NF4, strlen(bar + 1), bar + 1);
	put_checkpoint(config, text);
}

/* What the formula gives for an element; other formulas are in values[] above. */
static float row_at(uint8_t *const *in, uint64_t i, uint64_t j, const uint64_t *shape)
{
	return e4m3_value(in[0][i * shape[1] + j]) * f32_at(in[1], i);
}

static float nvfp4_at(uint8_t *const *in, uint64_t i, uint64_t j, const uint64_t *shape)
{
	static const float e2m1[] = { 0, 0.5F, 1, 1.5F, 2, 3, 4, 6 };
	unsigned code = nibble_at(in[0], i * shape[1] + j);
	float scale = e4m3_value(in[1][i * (shape[1] / 16) + j / 16]) * f32_at(in[2], 0);

	return (code & 8 ? -e2m1[code & 7] : e2m1[code & 7]) * scale;
}

/* The zero points of column n are in row n / 4 of the words, group by group. */
static float int8_at(uint8_t *const *in, uint64_t i, uint64_t j, const uint64_t *shape)
{
	uint64_t groups = shape[1] / 32;
	unsigned code = in[0][i * shape[1] + j];
	unsigned zero = in[2][(i / 4 * groups + j / 32) * 4 + i % 4];

	return ((float)code - (float)zero) * f32_at(in[1], i * groups + j / 32);
}

static const struct {
	const char *config, *tensors, *inputs[3];
	formula *at; /* NULL: only that it is the same each time */
	uint64_t shape[2];
	const char *error; /* of reading; NULL: none */
} whole[] = {
	{ FP8,
	  "a.weight F8_E4M3 3x4; a.weight_scale F32 3",
	  { "a.weight", "a.weight_scale" },
	  row_at,
	  { 3, 4 },
	  NULL },
	{ NULL,
	  "a.weight U8 3x16; a.weight_scale F8_E4M3 3x2; a.weight_scale_2 F32 -",
	  { "a.weight", "a.weight_scale", "a.weight_scale_2" },
	  nvfp4_at,
	  { 3, 32 },
	  NULL },
	{ INT8,
	  "a.weight_packed I32 4x16; a.weight_scale F32 4x2; a.weight_zero_point I32 1x2",
	  { "a.weight_packed", "a.weight_scale", "a.weight_zero_point" },
	  int8_at,
	  { 4, 64 },
	  NULL },
	{ GPTQ,
	  "a.qweight I32 8x16; a.scales F16 2x16; a.qzeros I32 2x2; a.g_idx I32 64",
	  { NULL },
	  NULL,
	  { 16, 64 },
	  " groups" },
	{ GPTQ8,
	  "a.qweight I32 16x16; a.scales F16 2x16; a.qzeros I32 2x4",
	  { NULL },
	  NULL,
	  { 16, 64 },
	  NULL },
	{ NULL, "p_blocks U8 2x3x4x16; p_scales U8 2x3x4", { NULL }, NULL, { 2, 128 * 3 }, NULL },
	{ NULL,
	  "w U8 75x1; w.absmax U8 3; w.quant_map F32 16; w.nested_absmax F32 2; "
	  "w.nested_quant_map F32 256" STATE(NESTED),
	  { NULL },
	  NULL,
	  { 3, 50 },
	  NULL },
	{ NULL,
	  "w U8 75x1; w.absmax F32 3; w.quant_map F32 16" STATE(
		  "{\"shape\":[3,50],\"blocksize\":64}"),
	  { NULL },
	  NULL,
	  { 3, 50 },
	  NULL },
	{ FP8,
	  "a.weight F8_E4M3 2x3x64; a.weight_scale F32 2x1x1",
	  { NULL },
	  NULL,
	  { 2, 192 },
	  NULL },
	{ FP8, "a.weight F8_E4M3 3x64; a.weight_scale U8 3x2", { NULL }, NULL, { 3, 64 }, NULL },
	{ AWQ,
	  "a.qweight I32 64x2; a.scales F16 2x16; a.qzeros I32 2x2",
	  { NULL },
	  NULL,
	  { 16, 64 },
	  NULL },
	{ INT4,
	  "a.weight_packed I32 3x8; a.weight_scale BF16 3x2; a.weight_zero_point I32 1x2",
	  { NULL },
	  NULL,
	  { 3, 64 },
	  NULL },
};

/* Reads elements of the first tensor into ret. */
static int read_first(struct ckpt *c, float *ret, size_t len, uint64_t off, struct ckpt_err *e)
{
	struct ckpt_file *f = NULL;
	struct ckpt_tensor t;
	char path[100];
	int64_t got;

	ckpt_tensor(c, 0, &t);
	(void)snprintf(path, sizeof(path), "tensors/%s", t.fqn);
	got = ckpt_file_open_path(c, path, &f, e);
	if (!got)
		got = ckpt_file_read(f, ret, len, off, e);
	ckpt_file_close(f);
	return got < 0 ? (int)got : (size_t)got == len ? 0 : -EPIPE;
}

START_LOOP_TEST(a_form_is_read_whole_or_not_at_all, ARRAY_LEN(whole))
{
	const uint64_t *shape = whole[_i].shape;
	size_t n = 4 * shape[0] * shape[1];
	autofree float *want = malloc(n), *have = malloc(n);
	uint8_t *in[3] = { NULL };
	struct ckpt_err e = { 0 };
	struct ckpt *c = NULL;
	int rc;

	REQUIRE(want && have);
	put_stated(whole[_i].config, whole[_i].tensors);
	ck_assert_msg(!open_typed(dir, &as_fp32, &c, &e), "%s", e.msg);
	rc = read_first(c, want, n, 0, &e);
	ckpt_close(c);
	if (whole[_i].error) {
		ck_assert_int_lt(rc, 0);
		ck_assert_msg(strstr(e.msg, whole[_i].error) != NULL, "%s", e.msg);
		return;
	}
	ck_assert_msg(!rc, "%s", e.msg);
	if (whole[_i].at) {
		read_inputs(in, whole[_i].inputs, 3);
		for (uint64_t i = 0; i < shape[0]; i++)
			for (uint64_t j = 0; j < shape[1]; j++)
				check_value(want[i * shape[1] + j], whole[_i].at(in, i, j, shape),
					    i, j);
		for (int i = 0; i < 3; i++)
			free(in[i]);
	}
	fault_sqlite();
	FAULT_LOOP_SOME(FAULT_ALLOC | FAULT_READ | FAULT_OPEN, 1)
	{
		uint64_t off = 4 * (fault_n % (n / 4)),
			 len = fault_n % 3 ? n - off : min_u64(n - off, 40);

		c = NULL;
		e = (struct ckpt_err){ 0 };
		rc = open_typed(dir, &as_fp32, &c, &e);
		if (!rc)
			rc = read_first(c, have, len, off, &e);
		(void)fault_off();
		ck_assert_int_eq(e.code, -rc);
		if (!rc)
			ck_assert(!memcmp(have, (uint8_t *)want + off, len));
		else
			ck_assert(fault_hit() && e.msg[0]);
		ckpt_close(c);
	}
}
END_TEST

/* A scale for 64 elements one after the other. The first of two codes is in the high bits. */
static float flat_at(uint8_t *const *in, uint64_t i, uint64_t j, const uint64_t *shape)
{
	uint64_t at = i * shape[1] + j;
	unsigned code = nibble_at(in[0], at ^ 1);

	return f32_at(in[2], code) * f32_at(in[1], at / 64);
}

/* The scales are codes, too, of 256 numbers; 32 of them have a scale. */
static float nested_at(uint8_t *const *in, uint64_t i, uint64_t j, const uint64_t *shape)
{
	uint64_t at = i * shape[1] + j, block = at / 64;
	volatile float product = f32_at(in[4], in[1][block]) * f32_at(in[3], block / 32);

	return f32_at(in[2], nibble_at(in[0], at ^ 1)) * (product + 0.5F);
}

static const struct {
	const char *tensors, *inputs[5];
	formula *at;
} flattened[] = {
	{ "w U8 150150x1; w.absmax F32 4693; w.quant_map F32 16" STATE(
		  "{\"shape\":[300,1001],\"blocksize\":64}"),
	  { "w", "w.absmax", "w.quant_map" },
	  flat_at },
	{ "w U8 150150x1; w.absmax U8 4693; w.quant_map F32 16; w.nested_absmax F32 147; "
	  "w.nested_quant_map F32 256" STATE("{\"shape\":[300,1001],\"blocksize\":64,"
					     "\"nested_blocksize\":32,\"nested_offset\":0.5}"),
	  { "w", "w.absmax", "w.quant_map", "w.nested_absmax", "w.nested_quant_map" },
	  nested_at },
};

START_LOOP_TEST(flattened_weights_are_what_the_formula_says, ARRAY_LEN(flattened))
{
	static const uint64_t shape[] = { 300, 1001 };
	struct rng r = rng_new();
	uint8_t *in[5] = { NULL };
	struct ckpt_err e = { 0 };
	struct ckpt *c = NULL;

	put_stated(NULL, flattened[_i].tensors);
	read_inputs(in, flattened[_i].inputs, 5);
	ck_assert_msg(!open_typed(dir, &as_fp32, &c, &e), "%s", e.msg);
	for (int k = 0; k < 200; k++) {
		float got[50];
		uint64_t all = shape[0] * shape[1], from = rng_below(&r, all);
		uint64_t count = min_u64(1 + rng_below(&r, ARRAY_LEN(got)), all - from);

		ck_assert_msg(!read_first(c, got, 4 * count, 4 * from, &e), "%s", e.msg);
		for (uint64_t x = 0; x < count; x++) {
			uint64_t i = (from + x) / shape[1], j = (from + x) % shape[1];

			check_value(got[x], flattened[_i].at(in, i, j, shape), i, j);
		}
	}
	ckpt_close(c);
	for (size_t i = 0; i < ARRAY_LEN(in); i++)
		free(in[i]);
}
END_TEST

/* GPTQ with desc_act: g_idx says which group an input is of. */
START_TEST(groups_of_gptq_may_be_in_any_order)
{
	enum { N = 72, K = 4160, GROUPS = K / 32 };
	static uint8_t codes[K / 8 * N * 4], scales[GROUPS * N * 2], qzeros[GROUPS * N / 8 * 4];
	static uint32_t groups[K];
	const struct weights_tensor t[] = {
		{ "a.g_idx", CKPT_DTYPE_I32, 1, { K }, groups },
		{ "a.qweight", CKPT_DTYPE_I32, 2, { K / 8, N }, codes },
		{ "a.qzeros", CKPT_DTYPE_I32, 2, { GROUPS, N / 8 }, qzeros },
		{ "a.scales", CKPT_DTYPE_F16, 2, { GROUPS, N }, scales },
	};
	struct rng r = rng_new();
	struct ckpt_err e = { 0 };
	struct ckpt *c = NULL;
	char path[4200];

	random_bytes(&r, codes, sizeof(codes));
	random_bytes(&r, scales, sizeof(scales));
	random_bytes(&r, qzeros, sizeof(qzeros));
	for (size_t k = 0; k < K; k++)
		groups[k] = (uint32_t)rng_below(&r, GROUPS);
	weights_put(dir_fd, "act", t, ARRAY_LEN(t));
	weights_put_text(dir_fd, "act", "config.json", "{\"quantization_config\":" GPTQ "}");
	(void)snprintf(path, sizeof(path), "%s/act", dir);
	ck_assert_msg(!open_typed(path, &as_fp32, &c, &e), "%s", e.msg);
	for (int x = 0; x < 3000; x++) {
		uint64_t n = rng_below(&r, N), k = rng_below(&r, K), at = groups[k] * N + n;
		float code = (float)nibble_at(codes, (k / 8 * N + n) * 8 + k % 8);
		float zero = (float)nibble_at(qzeros, at) + 1, got;

		ck_assert(!weights_read(c, "a.weight", &got, 4, 4 * (n * K + k), &e));
		check_value(got, (code - zero) * f16_at(scales, at), n, k);
	}
	ckpt_close(c);
}
END_TEST

/* Two files, of which the second, with a small tensor, has lost its end. */
static void put_cut(const char *config, const char *tensors, const char *small)
{
	static const char cut[] = "model-00002-of-00002.safetensors";
	struct rng r = rng_new();
	struct stat st;

	put_checkpoint(config, tensors);
	REQUIRE(!renameat(dir_fd, "model.safetensors", dir_fd, "model-00001-of-00002.safetensors"));
	st_put(dir_fd, cut, &r, small);
	REQUIRE(!fstatat(dir_fd, cut, &st, 0));
	autoclose int fd = openat(dir_fd, cut, O_RDWR | O_CLOEXEC);
	REQUIRE(fd >= 0 && !ftruncate(fd, st.st_size - 1));
}

/* Without it, a weight is not known, or cannot be read: its columns may be padding. */
START_TEST(a_shape_that_is_missing_is_said)
{
	const struct ckpt_opts as = { .dequantize = "fp32",
				      .allow_missing = true,
				      .index = ":memory:" };
	static const char state[] = "{\"shape\":[3,50],\"blocksize\":64}";
	struct ckpt_err e = { 0 };
	struct ckpt *c = NULL;
	char small_one[200];
	float got[15];

	(void)snprintf(small_one, sizeof(small_one), "w%s U8 %zu=%s", NF4, strlen(state), state);
	put_cut(NULL, "w U8 75x1; w.absmax F32 3; w.quant_map F32 16", small_one);
	ck_assert_int_eq(open_typed(dir, &as, &c, &e), -EINVAL);
	ck_assert_msg(strstr(e.msg, "it is missing, so the shape of the weight is not known") !=
			      NULL,
		      "%s", e.msg);
	put_cut(INT4, "a.weight_packed I32 5x8; a.weight_scale F32 5x2", "a.weight_shape I64 2");
	ck_assert_msg(!open_typed(dir, &as, &c, &e), "%s", e.msg);
	autofree char *have = tree_tensors(c);
	ck_assert_str_eq(have, "a.weight f [5,64]");
	ck_assert_int_lt(weights_read(c, "a.weight", got, sizeof(got), 0, &e), 0);
	ck_assert_msg(strstr(e.msg, "has 91 bytes, items in it reach up to 92") != NULL, "%s",
		      e.msg);
	ckpt_close(c);
}
END_TEST

/* ---- a state in bytes ---- */

static const struct {
	const char *tensors, *want;
} states[] = {
	{ "w U8 75x1; w.absmax F32 3; w.quant_map F32 16; w" NF4 " F32 4",
	  "that is not a short text in bytes" },
	{ "w U8 75x1; w.absmax F32 3; w.quant_map F32 16; w" NF4 " U8 100000",
	  "that is not a short text in bytes" },
	{ "w U8 75x1; w.absmax U8 3; w.quant_map F32 16" STATE(
		  "{\"shape\":[3,50],\"blocksize\":64,\"nested_blocksize\":0}"),
	  "its 'nested_blocksize' is not a number of scales" },
	{ "w U8 75x1; w.absmax U8 3; w.quant_map F32 16" STATE(
		  "{\"shape\":[3,50],\"blocksize\":64,\"nested_blocksize\":\"2\"}"),
	  "its 'nested_blocksize' is not a number of scales" },
	{ "w U8 75x1; w.absmax U8 3; w.quant_map F32 16" STATE(
		  "{\"shape\":[3,50],\"blocksize\":64,\"nested_blocksize\":2}"),
	  "its 'nested_offset' is not a number" },
	{ "w U8 75x1; w.absmax F32 3; w.quant_map F32 16" STATE("{\"blocksize\":64}"),
	  "it has no 'shape' of a weight" },
	{ "w U8 75x1; w.absmax F32 3; w.quant_map F32 16" STATE("{\"shape\":[3,50]}"),
	  "it has no 'blocksize'" },
	{ "w I8 75x1; w.absmax F32 3; w.quant_map F32 16" STATE(
		  "{\"shape\":[3,50],\"blocksize\":64}"),
	  "two in each uint8" },
	{ "w U8 3x25; w.absmax F32 3; w.quant_map F32 16" STATE(
		  "{\"shape\":[3,50],\"blocksize\":64}"),
	  "two in each uint8" },
	{ "w U8 75x1; w.absmax F32 3x1; w.quant_map F32 16" STATE(
		  "{\"shape\":[3,50],\"blocksize\":64}"),
	  "'w.absmax' has shape (3, 1)" },
	{ "w U8 75x1; w.absmax F32 3; w.quant_map F32 15" STATE(
		  "{\"shape\":[3,50],\"blocksize\":64}"),
	  "'w.quant_map' has shape (15,)" },
};

START_LOOP_TEST(a_state_says_what_a_weight_is, ARRAY_LEN(states))
{
	struct ckpt_err e = { 0 };
	struct ckpt *c = NULL;

	put_stated(NULL, states[_i].tensors);
	ck_assert_int_lt(open_typed(dir, &as_fp32, &c, &e), 0);
	ck_assert_msg(strstr(e.msg, states[_i].want) != NULL, "%s", e.msg);
}
END_TEST

SUITE(dequantise, .setup = dir_setup, .teardown = dir_teardown, .seconds = 60)
