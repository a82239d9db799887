/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dequantise_parts - what the families of codes have in common: finding the tensors that belong
 * together, and adding what was found.
 *
 * deq_find_* look at one tensor. If it holds codes of their form, they add the weight with deq_add
 * and hide what belongs to it; otherwise they do nothing. Codes whose scales are missing or have
 * another shape are an error.
 *
 * Private to core/ckpt/computed. Threads: a finder is used by one.
 */
#ifndef CKPT_DEQUANTISE_PARTS_H
#define CKPT_DEQUANTISE_PARTS_H

#include "base/text.h"
#include "ckpt/computed/dequantise.h"
#include "ckpt/computed/peek.h"
#include "index/catalog_query.h"
#include "read/derived/dequant.h"
#include "read/derived/dequant_flat.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a quantization_config says, read once: it may be long, and there may be many tensors. */
struct deq_config {
	const char *says;    /* the member or file that it is from */
	uint64_t block[2];   /* rows and columns; 128 x 128 if it has none */
	unsigned bits;	     /* of integers: 4 (also if it has none) or 8; 0: others */
	unsigned widths;     /* the sum of those of 2, 4, 8 that it names for any layer; 14: none */
	uint64_t group_size; /* 0: it has none */
	bool is_empty;	     /* it says nothing, or there is none */
	bool zero_known;     /* does it say how GPTQ's zero points are stored? */
	uint8_t zero_more;   /* what is added to them */
};

/* As for dequantise(). */
void deq_config_read(struct jval config, struct jval gptq, struct deq_config *ret);

enum { DEQ_MAX_INPUTS = 6 };

/* A tensor of codes, and what belongs to it. */
struct deq_found {
	struct dequant q;
	struct dequant_flat flat;	 /* in place of q if it has a block */
	uint32_t inputs[DEQ_MAX_INPUTS]; /* numbers of the catalog */
	uint8_t n_inputs;
	char *name;
	uint32_t name_len;
	uint64_t shape[CKPT_MAX_DIMS];
	uint8_t n_dims;
	bool mxfp4; /* inputs are those of mxfp4_blocks_run */
};

struct deq_finder {
	const struct catalog *catalog;
	const struct catalog_tensor *t;
	size_t n_tensors;
	struct deq_config config;
	enum ckpt_dtype dtype;
	const struct peek *peek;
	struct arena *mem; /* of names */
	bool *hide;
	struct deq_found *v;
	size_t n, cap;
	struct ckpt_err *e;
};

/* For messages. */
#define SHOWN(t)      FQN_TEXT((t)->fqn, (t)->fqn_len)
#define SHAPE_TEXT(t) TUPLE_TEXT((t)->shape, (t)->n_dims)
#define DTYPE_TEXT(t) dtype_info((enum ckpt_dtype)(t)->dtype)->name

extern const char deq_scale[], deq_scale_inv[]; /* "_scale", "_scale_inv" */

bool deq_ends(const struct catalog_tensor *t, const char *end);
/* The tensor whose name is that of t with `end` replaced by `by`; -1: there is none. */
int64_t deq_sibling(const struct deq_finder *f, const struct catalog_tensor *t, const char *end,
		    const char *by);
/* Errors: the codes t lack that sibling; s, which belongs to them, has the wrong shape. */
int deq_no_scales(const struct deq_finder *f, const struct catalog_tensor *t, const char *end,
		  const char *by);
int deq_bad_scales(const struct deq_finder *f, const struct catalog_tensor *t,
		   const struct catalog_tensor *s, const char *want);
/*
 * Adds the codes t; the weight has this shape, and t's name with `end` replaced by `by`. NULL: out
 * of memory, and the error is set. The pointer is valid until the next call.
 */
struct deq_found *deq_add(struct deq_finder *f, const struct catalog_tensor *t, const char *end,
			  const char *by, const uint64_t *shape, size_t n_dims);
/* The same with the weight's name. */
struct deq_found *deq_add_named(struct deq_finder *f, const char *name, size_t len,
				const uint64_t *shape, size_t n_dims);
/* Adds a tensor that the weight is computed from; returns its number among these. */
uint8_t deq_add_input(struct deq_finder *f, struct deq_found *x, const struct catalog_tensor *t);

bool deq_is_one(const struct catalog_tensor *t);
/* The number of blocks that n things fill; the last may not be full. */
uint64_t deq_blocks_in(uint64_t n, uint64_t block);
/*
 * Sets the grid of scales s over planes of m x n codes; `prefix` dimensions, those of `shape`, come
 * before. Tried in this order: one scale for a plane, one for each row, blocks as in the
 * configuration, blocks of 128 x 128, groups of 32 for scales that are exponents, groups that
 * divide the row. False: s has the shape of none of these.
 */
bool deq_set_grid(const struct deq_finder *f, struct dequant *q, const struct catalog_tensor *s,
		  size_t prefix, const uint64_t *shape, uint64_t m, uint64_t n);

typedef int deq_find_fn(struct deq_finder *f, const struct catalog_tensor *t);

deq_find_fn deq_find_float8, deq_find_int8, deq_find_blocks, deq_find_fp4; /* dequantise_float.c */
deq_find_fn deq_find_bnb;						   /* dequantise_flat.c */
deq_find_fn deq_find_packed, deq_find_qweight;				   /* dequantise_packed.c */
deq_find_fn deq_find_wrapped; /* dequantise_wrapped.c */
/* Error: t, whose name has this end, is part of a tensor subclass that is not torchao's
 * Float8Tensor. */
int deq_check_float8(const struct deq_finder *f, const struct catalog_tensor *t, const char *end);
/* Hides the objects that describe what x is made of: NAME and, for example, NAME.tensor_impl. */
void deq_hide_owners(struct catalog *c, const struct deq_finder *f, const struct deq_found *x);
/* Error: t, which may hold codes, is part of a tensor subclass that is not known. */
int deq_refuse_wrapped(const struct deq_finder *f, const struct catalog_tensor *t);

#endif
