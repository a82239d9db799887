/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arch_check - whether tensors are those that a model needs: which are missing, which it has no place
 * for, and which have another shape.
 *
 * Each name is looked at once, and taken apart: what a hostile config.json asks for costs nothing.
 * Only where something is missing are names looked up, until the first few that are missing are known.
 *
 * Threads: pure.
 */
#ifndef TENSOR_ARCH_CHECK_H
#define TENSOR_ARCH_CHECK_H

#include "tensor/arch.h"

struct ckpt_err;

struct arch_tensor {
	const char *name; /* len bytes of any content */
	size_t len;
	size_t n_dims;
	const uint64_t *shape;
	bool weight; /* of a dtype that a weight can have */
};

struct arch_tensors {
	size_t n;
	/* Tensor i. False: it is not there after all. */
	bool (*get)(const void *arg, size_t i, struct arch_tensor *ret);
	/* The number of a name, or -1. */
	int64_t (*find)(const void *arg, const char *name, size_t len);
	const void *arg;
};

#define ARCH_SHOWN 2 /* names of each kind */

struct arch_report {
	uint64_t needed; /* how many tensors it takes */
	uint64_t missing, unexpected, misshapen, no_weights;
	char missing_names[ARCH_SHOWN][ARCH_NAME_CAP];
	size_t unexpected_at[ARCH_SHOWN], no_weight_at; /* the first of each */
	size_t misshapen_at;
	uint64_t should_be[3]; /* n_should_be numbers: the shape of the latter */
	size_t n_should_be;
	uint64_t
		padded; /* rows that the embeddings and the head have, more than the vocabulary; or 0 */
	bool bare;	/* names are without the prefix, which transformers adds */
};

bool arch_is_complete(const struct arch_report *r);
int arch_check(const struct arch *a, const struct arch_tensors *t, struct arch_report *ret,
	       struct ckpt_err *e);

#endif
