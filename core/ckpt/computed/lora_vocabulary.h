/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lora_vocabulary - what an adapter means that was trained with more tokens, or fewer, than the
 * checkpoint has: PEFT stores the embeddings whole.
 *
 * Private to core/ckpt.
 *
 * Threads: the one that opens.
 */
#ifndef CKPT_LORA_VOCABULARY_H
#define CKPT_LORA_VOCABULARY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt_err;
struct engine;

/* Is this the name of a language model's output embeddings in transformers? */
bool lora_is_output(const char *name, size_t len);
/* Have two tensors of an opened checkpoint, of the same dtype and shape, the same bytes? Those of
 * more than 16 GiB are not compared, and count as different. */
int lora_same_tensor(const struct engine *other, uint32_t i, uint32_t k, bool *ret,
		     struct ckpt_err *e);
/* Makes config.json, if it says that there are `before` tokens, say `after`. */
int lora_resize(struct engine *eng, uint64_t before, uint64_t after, struct ckpt_err *e);

#endif
