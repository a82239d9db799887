/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arch_check - whether tensors are those that a model needs: which are missing, which are
 * unexpected, and which have another shape.
 *
 * Each tensor's name is parsed once, so a hostile config.json with huge numbers costs nothing.
 * Names are looked up only if something is missing, until the first few missing ones are known.
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
	bool weight; /* its dtype is one that a weight can have */
};

struct arch_tensors {
	size_t n;
	/* Tensor i. False: it does not exist after all. */
	bool (*get)(const void *arg, size_t i, struct arch_tensor *ret);
	/* The number of the tensor with that name, or -1. */
	int64_t (*find)(const void *arg, const char *name, size_t len);
	const void *arg;
};

#define ARCH_SHOWN 2 /* names of each kind */

struct arch_report {
	uint64_t needed; /* number of tensors the model needs */
	uint64_t missing, unexpected, misshapen, no_weights;
	uint64_t others; /* of other parts of the model, of which nothing is known */
	char missing_names[ARCH_SHOWN][ARCH_NAME_CAP];
	size_t unexpected_at[ARCH_SHOWN], no_weight_at; /* the first one of each */
	size_t misshapen_at;
	uint64_t should_be[3]; /* n_should_be numbers: the shape required of the misshapen tensor */
	size_t n_should_be;
	uint64_t
		/*
		 * number of rows of the embeddings and the head, if larger than the vocabulary; or
		 * 0
		 */
		padded;
	bool bare; /* names lack the prefix, which transformers adds */
};

bool arch_is_complete(const struct arch_report *r);
int arch_check(const struct arch *a, const struct arch_tensors *t, struct arch_report *ret,
	       struct ckpt_err *e);

#endif
