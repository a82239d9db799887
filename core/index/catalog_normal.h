/* SPDX-License-Identifier: Apache-2.0 */
/*
 * catalog_normal - normalises a tensor's chunk list for the index.
 *
 * Private to core/index. Empty chunks and replicas (equal boxes) are dropped; a grid is put into
 * row-major cell order; other lists keep their order, because later chunks win.
 *
 * Threads: a struct normal belongs to one thread; its memory is reused from call to call.
 */
#ifndef INDEX_CATALOG_NORMAL_H
#define INDEX_CATALOG_NORMAL_H

#include "index/catalog_query.h"
#include "model/box.h"
#include "model/chunkmap.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt_err;
struct tensor_chunks;

struct normal {
	uint64_t *boxes; /* count rows of offsets and lengths */
	struct chunk_loc *locs;
	uint32_t count;
	bool is_grid;
	uint64_t grid[CKPT_MAX_DIMS]; /* cells per dimension */
	enum tensor_state state;
	char fault[384];     /* why it is incomplete, or where it overlaps; else empty */
	uint64_t cover_work; /* part of BOXES_MAX_WORK used by all calls together */

	struct normal_row *rows; /* scratch */
	uint64_t *starts;
	size_t cap_rows, cap_numbers;
};

int normal_make(struct normal *r, const struct tensor_chunks *t, uint64_t *ret_bytes,
		struct ckpt_err *e);
void normal_release(struct normal *r);

#endif
