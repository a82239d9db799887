/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vtensor - a virtual tensor: what a file shows, as pieces of stored tensors.
 *
 * A piece is a box of the virtual tensor and the affine region of one stored tensor that fills it.
 * A renamed tensor is one piece, a rank's shard is one piece with another base, a layer of a stack
 * is a piece that fixes one dimension of its source. Pieces do not overlap and cover the virtual
 * tensor.
 *
 * Boxes refer to `shape`, which need not be the shape that readers see: a tensor may be described
 * in any shape with the same elements in the same C order. For example (4, 6, 8) whose last
 * dimension is stored in two halves is described as (4, 6, 2, 4).
 *
 * Threads: immutable once made.
 */
#ifndef TENSOR_VTENSOR_H
#define TENSOR_VTENSOR_H

#include "codec/arith.h"
#include "model/dtype.h"

#include <stdbool.h>
#include <stdint.h>

struct block_type;
struct catalog_tensor;
struct ckpt_err;

#define PIECE_FIXED UINT8_MAX

/*
 * Element x of the box comes from source element y: y = base, then for every dimension d of the
 * virtual tensor y[dim[d]] += coeff[d] * (x[d] - off[d]). dim[d] is PIECE_FIXED if the box has
 * length 1 there and does not move. If several dimensions move along the same source dimension, as
 * in a flattened box, reads are planned for each index of all but the last of them.
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
	/* Shown as blocks of this type, which are made from float32, the dtype; NULL: as
	 * elements. */
	const struct block_type *blocks;
	struct arith arith; /* done to each element as it is stored, before it is cast */
	uint32_t n_pieces;
	uint64_t bytes; /* as shown */
	const uint64_t *shape;
	const uint64_t *shown; /* n_shown: the shape that readers see; mostly `shape` itself */
	const struct piece *pieces;
	struct arith after; /* done to each element as it is shown; not of blocks */
};

/* Can pieces of both form one tensor: are elements stored, and computed, in the same way? */
bool vtensor_alike(const struct vtensor *a, const struct vtensor *b);

/* Tensor `number` of the catalog unchanged, shown as `dtype`. The caller frees *ret with free(). */
int vtensor_whole(const struct catalog_tensor *t, uint32_t number, enum ckpt_dtype dtype,
		  struct vtensor **ret, struct ckpt_err *e);
/* The same, in the shape that it had before it was flattened: t->n_logical must not be 0. */
int vtensor_logical(const struct catalog_tensor *t, uint32_t number, enum ckpt_dtype dtype,
		    struct vtensor **ret, struct ckpt_err *e);
/*
 * A copy of v in one block, including its pieces; v's arrays may belong to anything. EFBIG: it has
 * more bytes than a file can. v->bytes is ignored, and it is shown in its own shape. A quantised
 * one must consist of whole blocks.
 */
int vtensor_copy(const struct vtensor *v, struct vtensor **ret, struct ckpt_err *e);
/* The box (off, len) of v's shape as a tensor of its own. */
int vtensor_slice(const struct vtensor *v, const uint64_t *off, const uint64_t *len,
		  struct vtensor **ret, struct ckpt_err *e);
/* The same for every step-th element: off, off + step, ..., `count` of them in each dimension.
 * step: each >= 1; NULL: 1. */
int vtensor_steps(const struct vtensor *v, const uint64_t *off, const uint64_t *step,
		  const uint64_t *count, struct vtensor **ret, struct ckpt_err *e);

#endif
