/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verdict - one sentence on whether each face shows what programs that load it need.
 *
 *	hf: complete for LlamaForCausalLM (config.json from assets)
 *	hf: not loadable as LlamaForCausalLM: 20 tensors missing (model.embed_tokens.weight, ...)
 *	gguf: absent: no config.json beside the checkpoint or in assets=
 *
 * config.json and the table of tensor/arch.h tell which tensors a model needs. A model that they do
 * not cover is "not checked", never "complete". If tensors have other names, the built-in recipes
 * are tried on them.
 *
 * Private to core/ckpt. Threads: any.
 */
#ifndef CKPT_VERDICT_H
#define CKPT_VERDICT_H

#include "base/buf.h"
#include <ckptfs/ckpt.h>

struct engine;

struct verdict {
	enum ckpt_serves serves;
	struct buf text;
};
#define VERDICT_INIT \
	{ \
		.text = BUF_INIT(4096) \
	}
static inline void verdict_release(struct verdict *v)
{
	buf_release(&v->text);
}

enum verdict_of { VERDICT_HF, VERDICT_GGUF, VERDICT_PT, VERDICT_SAFETENSORS, N_VERDICTS };
extern const char *const verdict_face[N_VERDICTS];

/*
 * now: skip what takes long, a gguf/ that has not been looked up yet. *ret must be VERDICT_INIT;
 * the caller releases it, also after a failure.
 */
int verdict_find(struct engine *eng, enum verdict_of of, bool now, struct verdict *ret,
		 struct ckpt_err *e);
/* Fails with the sentence if hf/ cannot be loaded. */
int verdict_refuse(struct engine *eng, struct ckpt_err *e);

#endif
