/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chunk_index - a search structure over a list of chunks in any order, which may include empty
 * ones. Private to core/save.
 *
 * Threads: any number may read one.
 */
#ifndef SAVE_CHUNK_INDEX_H
#define SAVE_CHUNK_INDEX_H

#include "model/chunkmap.h"
#include "save/metadata.h"

#include <stddef.h>
#include <stdint.h>

struct ckpt_err;

struct chunk_index {
	struct chunkmap *map; /* of the non-empty ones */
	uint32_t *number;     /* chunk i of the map is number[i] of the list */
};

/* Fails with ENOMEM, and ERR_CORRUPT if a chunk is not inside the tensor. */
int chunk_index_init(struct chunk_index *x, const struct ckpt_tensor_meta *t, const char *fqn,
		     size_t fqn_len, struct ckpt_err *e);
void chunk_index_release(struct chunk_index *x);

/* ERR_CORRUPT: chunk i is not inside the tensor; torch's text. */
int chunk_outside(const struct ckpt_tensor_meta *t, size_t i, const char *fqn, size_t fqn_len,
		  struct ckpt_err *e);

#endif
