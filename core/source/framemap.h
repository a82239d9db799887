/* SPDX-License-Identifier: Apache-2.0 */
/*
 * framemap - the known beginnings of an item's frames: places where decoding can begin.
 *
 * For an item with many frames an evenly spread selection is kept.
 *
 * Threads: one at a time.
 */
#ifndef SOURCE_FRAMEMAP_H
#define SOURCE_FRAMEMAP_H

#include "codec/zstd_frames.h"

#include <stddef.h>

enum {
	FRAMEMAP_GAP = 64 * 1024, /* minimum distance of two places, in decoded bytes */
	FRAMEMAP_MAX = 1024,	  /* places; beyond that every other one is dropped */
};

struct framemap {
	struct zstd_place *v; /* in order; without the item's beginning */
	size_t n, cap;
	uint64_t gap;
};

void framemap_release(struct framemap *m);
/* Does nothing if memory runs out. */
void framemap_add(struct framemap *m, struct zstd_place at);
/* The last place at or before `decoded`. */
struct zstd_place framemap_find(const struct framemap *m, uint64_t decoded);

#endif
