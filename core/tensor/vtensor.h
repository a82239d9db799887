/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vtensor - a virtual tensor: what a file shows, as pieces of stored tensors.
 *
 * A piece is a box of the virtual tensor and the affine region of one stored tensor that fills it.
 * A renamed tensor is one piece, a rank's shard is one piece with another base, a layer out of a
 * stack is a piece that keeps one dimension of its source fixed. Pieces do not overlap and cover
 * the virtual tensor; they are resolved to chunks by the routine that resolves everything.
 *
 * Boxes are those of `shape`, which need not be what a reader sees: a tensor may be described in
 * any shape that has its elements in the same C order. Of (4, 6, 8) with a last dimension that is
 * stored in two halves, (4, 6, 2, 4) says where every element is.
 *
 * Threads: immutable once made.
 */
#ifndef TENSOR_VTENSOR_H
#define TENSOR_VTENSOR_H

#include "model/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct catalog_tensor;
struct ckpt_err;

#define PIECE_FIXED UINT8_MAX

/*
 * Element x of the box comes from source element y: y = base, then for every dimension d of the
 * virtual tensor y[dim[d]] += coeff[d] * (x[d] - off[d]). dim[d] is PIECE_FIXED where the box is 1
 * long and moves nowhere. Where several dimensions move along the same one of the source, as a
 * flattened box does, reads are planned for each index of all but the last of them.
 */
struct piece {
	uint32_t source;	   /* number of a tensor in the catalog */
	uint8_t n_source;	   /* its dimensions */
	const uint64_t *off, *len; /* n_dims of the virtual tensor */
	const uint64_t *coeff;	   /* n_dims, each >= 1 */
	const uint8_t *dim;	   /* n_dims */
	const uint64_t *base;	   /* n_source */
};

struct vtensor {
	uint8_t stored; /* enum ckpt_dtype of all sources */
	uint8_t dtype;	/* enum ckpt_dtype that is shown: stored, or what it is cast to */
	uint8_t n_dims;
	uint8_t n_shown;
	/* Shown as blocks of codec/q8_0.h; dtype is CKPT_DTYPE_F32, what they are made from. */
	bool q8_0;
	uint32_t n_pieces;
	uint64_t bytes; /* as shown */
	const uint64_t *shape;
	const uint64_t *shown; /* n_shown: the shape that a reader sees; mostly `shape` itself */
	const struct piece *pieces;
};

/* Tensor `number` of the catalog as it is, shown as `dtype`. *ret is the caller's, free() it. */
int vtensor_whole(const struct catalog_tensor *t, uint32_t number, enum ckpt_dtype dtype,
		  struct vtensor **ret, struct ckpt_err *e);
/* The same, in the shape that it had before it was flattened: t->n_logical is not 0. */
int vtensor_logical(const struct catalog_tensor *t, uint32_t number, enum ckpt_dtype dtype,
		    struct vtensor **ret, struct ckpt_err *e);
/* A copy of v in one block, pieces and all; v's arrays may be anybody's. EFBIG: it has more bytes
 * than a file. v->bytes is not looked at, and it is shown in its shape. Of blocks there must be
 * whole ones. */
int vtensor_copy(const struct vtensor *v, struct vtensor **ret, struct ckpt_err *e);
/* The box (off, len) of v's shape as a tensor of its own. */
int vtensor_slice(const struct vtensor *v, const uint64_t *off, const uint64_t *len,
		  struct vtensor **ret, struct ckpt_err *e);
/* The same of every step-th element: off, off + step, ..., of each dimension `count`. step: NULL is
 * 1; each >= 1. */
int vtensor_steps(const struct vtensor *v, const uint64_t *off, const uint64_t *step,
		  const uint64_t *count, struct vtensor **ret, struct ckpt_err *e);

#endif
