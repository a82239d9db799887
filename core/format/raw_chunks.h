/* SPDX-License-Identifier: Apache-2.0 */
/*
 * raw_chunks - the chunks of a tensor whose elements lie uncompressed in data files, for the chunk
 * index.
 *
 *	struct raw_chunks c = { 0 };
 *	uint64_t total = 0;                      // of all tensors
 *
 *	rc = raw_chunks_add(&c, &chunk, w, &total, &e);  // for each
 *	... .count = c.n, .boxes = c.boxes, .locs = c.locs ...
 *	raw_chunks_release(&c);
 *
 * Private to core/format. Threads: a struct raw_chunks belongs to one thread.
 */
#ifndef FORMAT_RAW_CHUNKS_H
#define FORMAT_RAW_CHUNKS_H

#include "format/raw.h"
#include "model/chunkmap.h"

struct catalog_writer;

int raw_encoding(const struct raw_layout *l, struct catalog_writer *w, uint32_t *ret,
		 struct ckpt_err *e);
/* Sets length and encoding of an item with these sizes. */
int raw_item(const struct raw_layout *l, enum ckpt_dtype dtype, size_t n_dims, const uint64_t *len,
	     struct catalog_writer *w, struct chunk_loc *loc, struct ckpt_err *e);

/* A box of the tensor. */
struct raw_chunk {
	enum ckpt_dtype dtype;
	size_t n_dims;
	const uint64_t *off, *len;
	/* stride: of its elements in the file; .strided and .n_dims are ignored */
	const struct raw_layout *layout;
	uint32_t file;
	uint64_t offset; /* of its first element, in bytes */
	/* If the elements are encoded: "+gzip"; if they are somewhere in a shard: "shard:.../", see
	 * read/. NULL: neither. */
	const char *codecs, *shard;
	uint64_t length; /* of what is stored; 0: of the elements */
};

struct raw_chunks {
	uint64_t *boxes;
	struct chunk_loc *locs;
	size_t n, cap_boxes, cap_locs;
};

/* *total counts the chunks of all tensors; EFBIG if there are too many. */
int raw_chunks_add(struct raw_chunks *c, const struct raw_chunk *x, struct catalog_writer *w,
		   uint64_t *total, struct ckpt_err *e);
void raw_chunks_release(struct raw_chunks *c);

#endif
