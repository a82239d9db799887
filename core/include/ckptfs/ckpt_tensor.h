/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt_tensor - what tensors are made of: element types, and how the ranks of a mesh share them.
 *
 * A mesh is an array of ranks in row-major order: in a mesh of 2 x 4, rank 6 is at (1, 2). Here a
 * rank is a position in the mesh; for files that number their ranks differently (rank_list) the
 * caller translates.
 *
 * A sharding says which mesh axes split which dimensions of a tensor. Placements are applied in
 * order, each to what the previous ones left of its dimension; along axes that no placement names,
 * ranks hold copies. DTensor's [Shard(0), Replicate(), Shard(1)] on a mesh of three axes is
 *
 *	{ .axis = 0, .dim = 0, .how = CKPT_SPLIT_CEIL },
 *	{ .axis = 2, .dim = 1, .how = CKPT_SPLIT_CEIL }
 *
 * and HyperParallel's tensor_map entry (1, 0) of dimension d on a mesh of two axes, numbered from
 * the right, is { .axis = 0, .dim = d }, { .axis = 1, .dim = d }.
 *
 * Threads: plain values and pure functions.
 */
#ifndef CKPTFS_CKPT_TENSOR_H
#define CKPTFS_CKPT_TENSOR_H

#include "ckpt_base.h"

#include <stddef.h>
#include <stdint.h>

CKPT_BEGIN

#define CKPT_MAX_DIMS 64 /* torch's limit (c10 dispatches at most 64 dimensions) */

enum ckpt_dtype {
	CKPT_DTYPE_NONE,
	CKPT_DTYPE_F64,
	CKPT_DTYPE_F32,
	CKPT_DTYPE_F16,
	CKPT_DTYPE_BF16,
	CKPT_DTYPE_I64,
	CKPT_DTYPE_I32,
	CKPT_DTYPE_I16,
	CKPT_DTYPE_I8,
	CKPT_DTYPE_U64,
	CKPT_DTYPE_U32,
	CKPT_DTYPE_U16,
	CKPT_DTYPE_U8,
	CKPT_DTYPE_BOOL,
	CKPT_DTYPE_C128,
	CKPT_DTYPE_C64,
	CKPT_DTYPE_C32,
	CKPT_DTYPE_BC32,
	CKPT_DTYPE_F8_E4M3FN,
	CKPT_DTYPE_F8_E4M3FNUZ,
	CKPT_DTYPE_F8_E5M2,
	CKPT_DTYPE_F8_E5M2FNUZ,
	CKPT_DTYPE_F8_E8M0FNU,
	CKPT_DTYPE_F4_E2M1FN_X2,
	CKPT_DTYPE_QI8,
	CKPT_DTYPE_QU8,
	CKPT_DTYPE_QI32,
	CKPT_DTYPE_QU4X2,
	CKPT_DTYPE_QU2X4,
	CKPT_DTYPE_BITS8,
	CKPT_DTYPE_BITS16,
	CKPT_DTYPE_BITS1X8,
	CKPT_DTYPE_BITS2X4,
	CKPT_DTYPE_BITS4X2,
	/* JAX's types that torch lacks. An element takes a byte, even if it has only 4 or 2
	 * bits. */
	CKPT_DTYPE_F8_E3M4,
	CKPT_DTYPE_F8_E4M3B11FNUZ,
	CKPT_DTYPE_F4_E2M1FN,
	CKPT_DTYPE_I4,
	CKPT_DTYPE_I2,
	CKPT_DTYPE_COUNT
};

/* torch's name, or JAX's if torch has none: "bfloat16". NULL: not a dtype. */
CKPT_API const char *ckpt_dtype_name(enum ckpt_dtype t);
/* Bytes per element; 0: not a dtype. */
CKPT_API size_t ckpt_dtype_size(enum ckpt_dtype t);
/* CKPT_DTYPE_NONE if unknown; the name need not be NUL-terminated. */
CKPT_API enum ckpt_dtype ckpt_dtype_by_name(const char *name, size_t len);

/* ---- meshes ---- */

#define CKPT_MESH_MAX_RANKS 1000000u /* bounds the work that a hostile layout can cause */
#define CKPT_MESH_MAX_AXES  64

enum ckpt_split {
	/* ceil(len / parts) each, the last ones short or empty: as in torch.chunk and DTensor */
	CKPT_SPLIT_CEIL,
	CKPT_SPLIT_BALANCED, /* floor(len / parts) each, plus one in the first len % parts */
	CKPT_SPLIT_EVEN,     /* parts must divide len */
};

struct ckpt_placement {
	uint8_t axis; /* of the mesh, from the left */
	int8_t dim;   /* of the tensor; negative counts from the end, as in torch */
	uint8_t how;  /* enum ckpt_split */
};

/* No axis may appear twice, so n <= n_axes <= CKPT_MESH_MAX_AXES. */
struct ckpt_sharding {
	const uint64_t *mesh;
	const struct ckpt_placement *placements;
	uint8_t n_axes, n;
};

CKPT_END

#endif
