/* SPDX-License-Identifier: Apache-2.0 */
/*
 * part_names - the names of the files of a model that was split: "X-00002-of-00003.safetensors".
 *
 * Threads: pure.
 */
#ifndef FORMAT_PART_NAMES_H
#define FORMAT_PART_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt_err;

struct part {
	const char *name;
	size_t stem;		/* the length of X */
	size_t width;		/* the digits of its number */
	uint32_t number, count; /* 2, 3 */
};

/* Is this the name of a part with this suffix? ret->name points to it. */
bool part_parse(const char *name, const char *suffix, struct part *ret);
/* Are both parts of the same X? */
bool part_is_beside(const struct part *a, const struct part *b);
/* Where the number of the rank is in the name of a file with a rank's slices of tensors, such as
 * "consolidated.00.pth" and "model-rank-0-part-0.safetensors". */
struct part_rank {
	size_t at, digits;
	uint32_t number;
};
bool part_rank_parse(const char *name, struct part_rank *ret);
/* Are these names of two ranks' files, one of them of rank 0? (There are other ranks, LoRA's.) */
bool part_is_of_ranks(const char *a, const char *b);
/* Fails unless all parts of each X are there and of one save. Sorts them. */
int parts_check(struct part *v, size_t n, struct ckpt_err *e);

#endif
