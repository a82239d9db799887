/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensor_info - what is known about a tensor without opening it: a tensor of the tree or of the
 * model, or the part of one that a rank holds. Writers of checkpoints, which have no catalog, leave
 * the sources empty.
 *
 * Threads: a plain value; its pointers are borrowed.
 */
#ifndef TENSOR_TENSOR_INFO_H
#define TENSOR_TENSOR_INFO_H

#include "model/dtype.h"

#include <stddef.h>
#include <stdint.h>

struct catalog_tensor;
struct vtensor;

struct tensor_info {
	const char *fqn; /* fqn_len bytes of any content, NUL-terminated */
	size_t fqn_len;
	/* As shown: */
	enum ckpt_dtype dtype;
	size_t n_dims;
	const uint64_t *shape; /* n_dims, elements */
	uint64_t bytes;
	uint64_t id; /* of its SEG_TENSOR segment */

	/* The stored tensors that it is made of, as catalog numbers. */
	const uint32_t *sources;
	size_t n_sources;
	/* the only source, if it is used as a whole; or NULL: */
	const struct catalog_tensor *stored;
	const struct vtensor *made; /* made by a recipe, or by regrouping experts */
};

#endif
