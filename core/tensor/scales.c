/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/scales.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "codec/cast.h"
#include "index/catalog_query.h"

#include <string.h>

enum { MAX_NAME = 1024 };

/* Scales have the name of their codes with the first end replaced by the second. */
static const struct {
	const char *codes, *scales;
	enum {
		BY_NAME,
		ANY,   /* whatever the dtype is: a quantiser may store codes as those of another */
		PARTS, /* of a tensor subclass or of one of torch's own quantised tensors */
	} kind;
} names[] = {
	/* DeepSeek, compressed-tensors, ModelOpt, Mistral, ComfyUI, TensorRT-LLM */
	{ "", "_scale_inv", BY_NAME },
	{ "", "_scale", BY_NAME },
	{ "_packed", "_scale", BY_NAME },
	{ ".weight", ".scale", BY_NAME },
	{ ".weight", ".qscale_weight", BY_NAME },
	{ ".weight", ".scale_weight", BY_NAME },
	{ ".weight", ".weights_scaling_factor", BY_NAME },
	/* torch's own quantised tensors, quanto */
	{ "", ".scale", PARTS },
	{ "._data", "._scale", BY_NAME },
	{ "._data._data", "._scale", BY_NAME },
	/* MLX and HIGGS; EETQ; the MXFP4 of gpt-oss; GPTQ and AWQ; Marlin; bitsandbytes; HQQ */
	{ ".weight", ".scales", BY_NAME },
	{ "", "_scales", BY_NAME },
	{ "_blocks", "_scales", BY_NAME },
	{ ".qweight", ".scales", BY_NAME },
	{ ".B", ".s", BY_NAME },
	{ ".weight", ".SCB", BY_NAME },
	{ "", ".absmax", BY_NAME },
	{ "", ".quant_state.bitsandbytes__nf4", ANY },
	{ "", ".quant_state.bitsandbytes__fp4", ANY },
	{ ".W_q", ".scale", ANY },
	/* AQLM, VPTQ, QuIP#, ExLlamaV2 and V3 */
	{ ".codes", ".codebooks", BY_NAME },
	{ ".codes", ".scales", BY_NAME },
	{ ".indices", ".centroids.weight", BY_NAME },
	{ ".Qidxs", ".Wscale", ANY },
	{ ".q_weight", ".q_scale_max", BY_NAME },
	{ ".trellis", ".suh", BY_NAME },
	{ ".trellis", ".svh", BY_NAME },
	/* tensor subclasses of torchao, also in safetensors files, and of Transformer Engine */
	{ ".qdata", ".scale", PARTS },
	{ ".int_data", ".scale", PARTS },
	{ ".codes", ".scale", PARTS },
	{ "_qdata", "_scale", BY_NAME },
	{ "_qdata", "_group_scale", BY_NAME },
	{ "_qdata", "_scale_and_zero", BY_NAME },
	{ "._data", "._scale_inv", PARTS },
	{ "._rowwise_data", "._rowwise_scale_inv", PARTS },
};

bool scales_possible(const struct catalog_tensor *t)
{
	const struct dtype_info *info = dtype_info((enum ckpt_dtype)t->dtype);

	return !cast_possible((enum ckpt_dtype)t->dtype, CKPT_DTYPE_F32) &&
	       t->dtype != CKPT_DTYPE_BOOL && info->size <= 4 && info->unit == info->size;
}

bool scales_likely(const struct catalog_tensor *t)
{
	unsigned long_dims = 0;

	for (size_t i = 0; i < t->n_dims; i++)
		long_dims += t->shape[i] > 1;
	return scales_possible(t) && long_dims > 1 && t->shape[0] > 1;
}

int64_t scales_of(const struct catalog *c, const struct catalog_tensor *t, size_t *at)
{
	bool possible = scales_possible(t);
	char name[MAX_NAME];

	while (*at < ARRAY_LEN(names)) {
		size_t i = (*at)++, end = strlen(names[i].codes), more = strlen(names[i].scales);
		int64_t found;

		if ((!possible && names[i].kind != ANY) || t->fqn_len <= end ||
		    t->fqn_len - end + more > sizeof(name) ||
		    !bytes_end(t->fqn, t->fqn_len, names[i].codes))
			continue;
		memcpy(name, t->fqn, t->fqn_len - end);
		memcpy(name + t->fqn_len - end, names[i].scales, more);
		found = catalog_find_tensor(c, name, t->fqn_len - end + more);
		if (found >= 0)
			return found;
	}
	return -1;
}

bool scales_are_parts(size_t at)
{
	return names[at - 1].kind == PARTS;
}
