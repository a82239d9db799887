/* SPDX-License-Identifier: Apache-2.0 */
/*
 * st_pieces - the tensors of a model from the headers of several safetensors files.
 *
 * A file holds whole tensors or, if written by torch's HuggingFaceStorageWriter, pieces of them.
 * Then its __metadata__ has the position of each, in a JSON text within the JSON,
 *
 *	"DCP_SHARDING_INFO": "{\"TENSOR\": {\"saved_offsets\": [2, 0]}, ...}"
 *
 * in elements of the full tensor, whose size is not recorded; it ends with the furthest piece.
 * Private to core/format/safetensors.
 *
 * Threads: one at a time.
 */
#ifndef SAFETENSORS_ST_PIECES_H
#define SAFETENSORS_ST_PIECES_H

#include "format/format.h"
#include "parse/safetensors.h"

#include <stdbool.h>
#include <stddef.h>

struct catalog_writer;
struct ckpt_err;
struct st_index;
struct st_piece;

struct st_pieces {
	struct name_list files;
	struct st_piece **v;
	size_t n, cap, bytes;
};

/* Does the file hold pieces, with their positions? */
bool st_is_sharded(const struct st_header *h);

/* Keeps what the header of `file` lists. */
int st_pieces_add(struct st_pieces *p, const char *file, const struct st_header *h,
		  struct ckpt_err *e);
/*
 * Reports everything. index: NULL if there is none; if several files have a tensor, its entry
 * counts. A tensor that only the index has, or of an unknown dtype, becomes an object with a fault:
 * it has a name, but no shape that could be shown.
 */
int st_pieces_join(struct st_pieces *p, const struct st_index *index, const char *index_name,
		   struct catalog_writer *w, struct ckpt_err *e);
void st_pieces_release(struct st_pieces *p);

#endif
