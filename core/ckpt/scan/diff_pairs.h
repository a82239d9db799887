/* SPDX-License-Identifier: Apache-2.0 */
/*
 * diff_pairs - what two checkpoints have under each name, and how far that can be compared.
 * Private to core/ckpt/scan.
 *
 *	struct diff_side sides[] = { diff_side_of(a, d), diff_side_of(b, d) };
 *	while (diff_next(sides, d, &glob_steps, &pair)) ...
 *
 * Blocks of a GGUF are equal if A's elements, encoded, are the same bytes.
 *
 * To compare another list of names, such as tensors under other names, use another diff_side.
 *
 * Threads: one per walk.
 */
#ifndef CKPT_DIFF_PAIRS_H
#define CKPT_DIFF_PAIRS_H

#include "ckpt/scan/diff_gguf.h"
#include "model/dtype.h"
#include <ckptfs/ckpt_diff.h>

struct tally_work;

enum { DIFF_BLOCK = 2 << 20 /* bytes of one side compared at once */ };

/* The tensors and objects of a checkpoint, merged in natural order; or the tensors of its model. */
struct diff_side {
	struct ckpt *ckpt;
	bool model;
	struct diff_gguf_side gguf; /* if it has tensors, they are the list */
	uint64_t n_tensors, n_objects;
	uint64_t tensor, object; /* the next ones */
};

/* What a thread that compares tensors has. */
struct diff_buffers {
	uint8_t *bytes[2];
	struct tally_work *tally;
};

/* Room for that many bytes of each side. Free it even after an error. */
int diff_buffers_make(struct diff_buffers *b, size_t size, struct ckpt_err *e);
void diff_buffers_free(struct diff_buffers *b);

/* All strings are borrowed from the checkpoints. */
struct diff_pair {
	struct ckpt_diff_item item; /* .result: what is known without reading */
	uint64_t at[2];		    /* for diff_open, if both sides have the name */
	bool read;		    /* the rest must be read, which yields: */
	bool is_object;
	bool same_type;
	bool values;		  /* count elements and compare them by value */
	enum ckpt_dtype types[2]; /* for an object: bytes */
	uint64_t elements; /* of a tensor; an object's size is known only once it is opened */
	uint64_t step;	   /* number of elements that fit a block on both sides */
	uint64_t cost;	   /* bytes to read */
	/* B's elements are in blocks of this type, and A's are float32; types has it. */
	const struct ggml_info *blocks;
};

struct diff_side diff_side_of(struct ckpt *c, const struct ckpt_diff *d);
struct diff_side diff_side_of_gguf(const struct diff_gguf *g, size_t side);
/* `at` is a value of .at; it numbers objects if is_object. */
int diff_open(const struct diff_side *s, bool is_object, uint64_t at, struct ckpt_file **ret,
	      struct ckpt_err *e);
/* The next name of either side among those that d->globs match; false after the last. */
bool diff_next(struct diff_side sides[2], const struct ckpt_diff *d, uint64_t *glob_steps,
	       struct diff_pair *ret);

#endif
