/* SPDX-License-Identifier: Apache-2.0 */
/*
 * derived - tensors that are not stored but computed, element by element, from others.
 *
 * A derived tensor has a number, a name, a dtype and a shape in the catalog (catalog_compute) like
 * any other, and everything that reads tensors reads it: it has one chunk, a computed item that
 * holds its elements in row-major order. The block cache computes a block of the item
 * (DECODED_SIZE, or less if an element depends on many) once, however many readers wait for it, and
 * keeps it within its limit; so a small read computes the blocks that it touches.
 *
 * An element must depend on a bounded part of the inputs: rows of codes and their scales, the same
 * element of other checkpoints. A block is computed box by box: the parts of whole rows that a
 * range of elements consists of. Inputs may be derived tensors too, but not of each other in a
 * circle.
 *
 * Threads: what is described here is immutable; `run` is called by any thread, several at once.
 */
#ifndef READ_DERIVED_H
#define READ_DERIVED_H

#include "model/dtype.h"
#include "tensor/vtensor.h"

#include <stddef.h>
#include <stdint.h>

struct ckpt_err;
struct derived_in;
struct fetch;

struct derived_input {
	struct fetch
		*fetch;	 /* of another checkpoint, which outlives this one; NULL: the same one */
	uint32_t tensor; /* its catalog number there */
	/* NULL, or what is read in place of that tensor, of the same checkpoint; borrowed. */
	const struct vtensor *made;
};

/* The tensors that an input is made of: catalog numbers. */
static inline uint32_t derived_n_sources(const struct derived_input *in)
{
	return in->made ? in->made->n_pieces : 1;
}

static inline uint32_t derived_source(const struct derived_input *in, uint32_t k)
{
	return in->made ? in->made->pieces[k].source : in->tensor;
}

/*
 * Computes the elements of the box (off, len), which is not empty, to out: in row-major order, of
 * the tensor's dtype, without any alignment.
 */
typedef int derived_fn(const void *how, const struct derived_in *in, const uint64_t *off,
		       const uint64_t *len, void *out, struct ckpt_err *e);

struct derived {
	uint32_t number; /* in the catalog of its fetch */
	derived_fn *run;
	const void *how; /* for run */
	const struct derived_input *inputs;
	size_t n_inputs;
	uint8_t shift; /* it is computed in blocks of 1 << shift bytes, whole elements; 0: DECODED_SIZE */
};

/* Reads the box (off, len) of input i, in its dtype and row-major order. */
int derived_read(const struct derived_in *in, size_t i, const uint64_t *off, const uint64_t *len,
		 void *to, struct ckpt_err *e);
enum ckpt_dtype derived_dtype(const struct derived_in *in, size_t i);

#endif
