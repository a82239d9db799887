/* SPDX-License-Identifier: Apache-2.0 */
/* What config.json says about codes and scales. It is of no use without their shapes. */
#include "ckpt/computed/dequantise_parts.h"

#include "base/checked.h"

#include <string.h>

/* transformers and compressed-tensors; the last is MLX's. */
const char *const dequantise_keys[3] = { "quantization_config", "compression_config",
					 "quantization" };

/*
 * The object under one of the keys, and the key; no value and NULL: there is none. In models of
 * several parts it may be in the configuration of the language model (Kimi-K2.5).
 */
static struct jval quantization_of(struct jval config, const char **ret_key)
{
	const struct jval in[] = { config, jval_get(config, "text_config") };

	for (size_t i = 0; i < ARRAY_LEN(in); i++)
		for (size_t k = 0; k < ARRAY_LEN(dequantise_keys); k++) {
			struct jval v = jval_get(in[i], dequantise_keys[k]);

			*ret_key = dequantise_keys[k];
			if (jval_is(v, J_OBJECT))
				return v;
		}
	*ret_key = NULL;
	return (struct jval){ 0 };
}

const char *dequantise_key_of(struct jval config)
{
	const char *key;
	struct jiter members = jiter(quantization_of(config, &key));

	return key && jiter_next(&members) ? key : NULL;
}

/* Two sizes, neither of which is 0. */
static bool is_block(struct jval v, uint64_t ret[2])
{
	uint64_t size[2];
	size_t n;

	if (!jval_u64s(v, size, 2, &n) || n != 2 || !size[0] || !size[1])
		return false;
	ret[0] = size[0];
	ret[1] = size[1];
	return true;
}

/* The sizes of blocks in quantization_config, if it has any. */
static void read_block(struct jval config, uint64_t ret[2])
{
	struct jiter groups = jiter(jval_get(config, "config_groups"));
	bool found = is_block(jval_get(config, "weight_block_size"), ret);

	while (!found && jiter_next(&groups))
		found = is_block(jval_get(jval_get(groups.v, "weights"), "block_structure"), ret);
}

/* The configuration's width of codes, 4 if it has none; 0: one that is not known here. */
static unsigned bits_of(struct jval config)
{
	struct jiter groups = jiter(jval_get(config, "config_groups"));
	struct jval bits = jval_get(config, "bits");
	uint64_t n = 4;

	while (!bits.d && jiter_next(&groups))
		bits = jval_get(jval_get(groups.v, "weights"), "num_bits");
	if (bits.d && !jval_u64(bits, &n))
		n = 0;
	return n == 4 || n == 8 ? (unsigned)n : 0;
}

/* Of a number of bits: 2, 4 or 8; 0: another one, or none. */
static unsigned width_of(struct jval bits)
{
	uint64_t n;

	return jval_u64(bits, &n) && (n == 2 || n == 4 || n == 8) ? (unsigned)n : 0;
}

/* GPTQModel and AutoRound let layers differ from `bits`, by patterns or names of these. */
static unsigned widths_of(struct jval config)
{
	struct jval bits = jval_get(config, "bits");
	unsigned widths = bits.d ? width_of(bits) : 2 | 4 | 8;
	static const char *const others[] = { "dynamic", "extra_config" };

	for (size_t i = 0; i < ARRAY_LEN(others); i++) {
		struct jiter layers = jiter(jval_get(config, others[i]));

		while (jiter_next(&layers))
			widths |= width_of(jval_get(layers.v, "bits"));
	}
	return widths;
}

static uint64_t group_size_of(struct jval config)
{
	struct jiter groups = jiter(jval_get(config, "config_groups"));
	struct jval size = jval_get(config, "group_size");
	uint64_t n;

	while (!size.d && jiter_next(&groups))
		size = jval_get(jval_get(groups.v, "weights"), "group_size");
	return jval_u64(size, &n) ? n : 0;
}

/*
 * What is added to GPTQ's zero points. AutoGPTQ stores them less 1; "gptq_v2" and two of
 * AutoRound's packings (auto_round/inference/backend.py: GPTQ_FORMAT_NO_ZP) as they are. False: not
 * known.
 */
static bool zero_more(struct jval config, uint8_t *ret)
{
	static const char *const others[] = { "auto-round", "intel/auto-round", "awq" };
	struct jval packing = jval_get(config, "packing_format");
	const char *form = jval_str(jval_get(config, "checkpoint_format"));
	bool plain =
		jval_is_str(packing, "auto_round") || jval_is_str(packing, "auto_round:gptqmodel");
	bool known = true;

	if (!form) /* GPTQModel's own name for it */
		form = jval_str(jval_get(config, "format"));
	*ret = !plain && !(form && !strcmp(form, "gptq_v2"));
	for (size_t i = 0; i < ARRAY_LEN(others); i++)
		known &= !jval_is_str(jval_get(config, "quant_method"), others[i]);
	known &= !form || !strcmp(form, "gptq") || !strcmp(form, "gptq_v2");
	return plain || jval_is_str(packing, "auto_round:auto_gptq") || known;
}

void deq_config_read(struct jval config, struct jval gptq, struct deq_config *ret)
{
	const char *key = dequantise_key_of(config);
	struct jval c = key ? quantization_of(config, &key) : gptq;
	struct jiter members = jiter(c);

	*ret = (struct deq_config){ .block = { 128, 128 } };
	ret->says = key ? key : "quantize_config.json";
	ret->is_empty = !jiter_next(&members);
	read_block(c, ret->block);
	ret->bits = bits_of(c);
	ret->widths = widths_of(c);
	ret->group_size = group_size_of(c);
	ret->zero_known = zero_more(c, &ret->zero_more);
}
