/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verdict - whether each face shows what programs that load it need, in one sentence.
 *
 *	hf: complete for LlamaForCausalLM (config.json from assets)
 *	hf: not loadable as LlamaForCausalLM: 20 tensors missing (model.embed_tokens.weight, ...)
 *	gguf: absent: no config.json beside the checkpoint or in assets=
 *
 * Which tensors a model needs comes from config.json and the table of tensor/arch.h. What that does
 * not know is "not checked", never "complete". Where tensors have other names, the recipes that come
 * with the program are tried on them.
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

/* now: leave out what takes long to find out: a gguf/ that has not been looked up yet. *ret is
 * VERDICT_INIT, and to be released in any case. */
int verdict_find(struct engine *eng, enum verdict_of of, bool now, struct verdict *ret,
		 struct ckpt_err *e);
/* An error with the sentence where hf/ does not serve. */
int verdict_refuse(struct engine *eng, struct ckpt_err *e);

#endif
