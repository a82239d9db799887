/* SPDX-License-Identifier: Apache-2.0 */
/*
 * framemap - where frames of an item begin, as far as that is known: places to begin decoding at.
 *
 * Of an item of many frames not all are kept, but some of each stretch.
 *
 * Threads: one at a time.
 */
#ifndef SOURCE_FRAMEMAP_H
#define SOURCE_FRAMEMAP_H

#include "codec/zstd_frames.h"

#include <stddef.h>

enum {
	FRAMEMAP_GAP = 64 * 1024, /* decoded bytes between two places, at least */
	FRAMEMAP_MAX = 1024,	  /* places; then every other one goes */
};

struct framemap {
	struct zstd_place *v; /* in order; the item's beginning is not among them */
	size_t n, cap;
	uint64_t gap;
};

void framemap_release(struct framemap *m);
/* Without memory it is not kept. */
void framemap_add(struct framemap *m, struct zstd_place at);
/* The last place at or before `decoded`. */
struct zstd_place framemap_find(const struct framemap *m, uint64_t decoded);

#endif
