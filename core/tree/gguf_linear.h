/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gguf_linear - weights of linear attention in the order that llama.cpp requires.
 *
 * Heads of values share heads of keys, r = v_heads / k_heads each.
 *
 *	in_proj_qkvz of Qwen3-Next has, for each head of keys, the rows of its queries, its keys, the
 *	values of r heads and the gates of these. llama.cpp wants all queries, all keys and all
 *	values in one matrix, and the gates in another.
 *	Qwen 3.5 has these apart; what belongs to heads of values is in the order 0 1 | 2 3 | 4 5 here,
 *	for r = 2 and three heads of keys, and llama.cpp, which repeats keys as a whole, wants
 *	0 2 4 | 1 3 5.
 *
 * The caller frees *ret with free(). Fails with ENOMEM, or as vtensor_copy.
 *
 * Threads: pure.
 */
#ifndef TREE_GGUF_LINEAR_H
#define TREE_GGUF_LINEAR_H

#include <stdbool.h>
#include <stdint.h>

struct arch;
struct arch_weight;
struct ckpt_err;
struct vtensor;

/*
 * Rearranges a weight, v in the model, as its turn (ARCH_KERNEL to ARCH_V_COLUMNS) says; `shape` is
 * its shape, and afterwards that of *ret.
 */
int gguf_linear_rows(const struct arch *a, const struct arch_weight *w, const struct vtensor *v,
		     uint64_t *shape, struct vtensor **ret, struct ckpt_err *e);
/* The first or the second part of an ARCH_MIXED weight. */
int gguf_linear_mixed(const struct arch *a, const struct vtensor *v, bool second, uint64_t *shape,
		      struct vtensor **ret, struct ckpt_err *e);

#endif
