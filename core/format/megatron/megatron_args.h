/* SPDX-License-Identifier: Apache-2.0 */
/*
 * megatron_args - the training arguments that Megatron-core keeps in a checkpoint.
 *
 * They are the entry "args" (an argparse.Namespace) of its common state, a dict written by
 * torch.save: the file common.pt up to core_v0.18, since then the object common_state/shard_0_1, a
 * list with the dict as its only element. Pickles are read as data.
 *
 *	struct megatron_args *a;
 *	if (!megatron_args_read(&blob, &a, &e) && !megatron_args_number(a, "num_layers", &n, &e)) ...
 *
 * Threads: immutable once read.
 */
#ifndef MEGATRON_MEGATRON_ARGS_H
#define MEGATRON_MEGATRON_ARGS_H

#include <stdint.h>

struct blob;
struct ckpt_err;
struct megatron_args;

#define MEGATRON_COMMON_FILE   "common.pt"
#define MEGATRON_COMMON_OBJECT "common_state/shard_0_1"

/*
 * The blob's size must be known. The caller frees *ret; NULL if the common state has no args.
 * ERR_CORRUPT, ERR_UNSUPPORTED: it is not a dict written by torch.save.
 */
int megatron_args_read(const struct blob *b, struct megatron_args **ret, struct ckpt_err *e);
void megatron_args_free(struct megatron_args *a); /* NULL is fine */

/* A non-negative integer; False and True are 0 and 1. 1: there is none with that name, or it is
 * None. EINVAL: it is something else. */
int megatron_args_number(const struct megatron_args *a, const char *name, uint64_t *ret,
			 struct ckpt_err *e);

#endif
