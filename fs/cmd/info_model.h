/* SPDX-License-Identifier: Apache-2.0 */
/*
 * info_model - the composition and the family of the model: lines of `ckptfs info`. Each begins
 * with the newline of the line before it.
 *
 * Private to info.
 *
 * Threads: one.
 */
#ifndef FS_CMD_INFO_MODEL_H
#define FS_CMD_INFO_MODEL_H

struct buf;
struct ckpt;
struct ckpt_totals;

/* "dtypes      bfloat16 7.24 B, float32 128": elements of the model, or of all tensors if there is
 * none. */
void info_add_dtypes(struct buf *b, const struct ckpt *c, const struct ckpt_totals *t);
/* If there is a config.json: "family      qwen3 (Qwen3ForCausalLM), ..." */
void info_add_family(struct buf *b, struct ckpt *c);

#endif
