/* SPDX-License-Identifier: Apache-2.0 */
#include "read/scatter.h"

#include "base/checked.h"

#include <string.h>

enum {
	TILE_LINE = 128, /* bytes of a tile's lines, in both directions */
	MAX_TURNED = 16, /* bytes; longer elements fill cache lines by themselves */
};

/* One element, or a few, as single moves; longer runs by a call. */
#define EACH_RUN(run, copy) \
	switch (run) { \
	case 1: \
		copy(1); \
		break; \
	case 2: \
		copy(2); \
		break; \
	case 4: \
		copy(4); \
		break; \
	case 8: \
		copy(8); \
		break; \
	case 16: \
		copy(16); \
		break; \
	default: \
		copy(run); \
	}

static void copy_runs(const struct copy_dim *d, uint64_t run, uint8_t *to, const uint8_t *from)
{
#define COPY(n) \
	for (uint64_t i = 0; i < d->count; i++) \
	memcpy(copy_to(to, i * d->dst_stride), from + i * d->src_stride, n)
	EACH_RUN(run, COPY)
#undef COPY
}

/* Copies a tile of a matrix whose columns (along `down`) are laid out in `from` like its rows in
 * `to`. */
static void turn_tile(const struct copy_dim *across, const struct copy_dim *down, uint64_t run,
		      uint8_t *to, const uint8_t *from)
{
	uint8_t columns[TILE_LINE][TILE_LINE];

	for (uint64_t i = 0; i < across->count; i++)
		memcpy(columns[i], from + i * across->src_stride, down->count * run);
#define COPY(n) \
	for (uint64_t j = 0; j < down->count; j++) \
		for (uint64_t i = 0; i < across->count; i++) \
	memcpy(copy_to(to, j * down->dst_stride) + i * (n), columns[i] + j * (n), n)
	EACH_RUN(run, COPY)
#undef COPY
}

/* Each cache line is used completely while it is in the cache, on both sides. */
static void turn(const struct copy_dim *across, const struct copy_dim *down, uint64_t run,
		 uint8_t *to, const uint8_t *from)
{
	const uint64_t tile = TILE_LINE / run;
	struct copy_dim a = *across, d = *down;

	for (uint64_t i = 0; i < across->count; i += tile)
		for (uint64_t j = 0; j < down->count; j += tile) {
			a.count = min_u64(tile, across->count - i);
			d.count = min_u64(tile, down->count - j);
			turn_tile(&a, &d, run, copy_to(to, j * down->dst_stride) + i * run,
				  from + i * across->src_stride + j * run);
		}
}

void scatter(const struct copy_dim *d, uint32_t n, uint64_t run, uint8_t *to, const uint8_t *from)
{
	if (n == 1)
		copy_runs(d, run, to, from);
	else if (n == 2 && run <= MAX_TURNED && d[0].dst_stride == run && d[1].src_stride == run)
		turn(&d[0], &d[1], run, to, from);
	else
		for (uint64_t i = 0; i < d->count; i++)
			scatter(d + 1, n - 1, run, copy_to(to, i * d->dst_stride),
				from + i * d->src_stride);
}
