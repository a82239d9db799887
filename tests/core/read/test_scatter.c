/* SPDX-License-Identifier: Apache-2.0 */
#include "read/scatter.h"
#include "rng.h"
#include "suites.h"

#include "base/cleanup.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_COUNT = 300 };

static void copy_one_by_one(const struct copy_dim *d, uint32_t n, uint64_t run, uint8_t *to,
			    const uint8_t *from)
{
	if (!n) {
		memcpy(to, from, run);
		return;
	}
	for (uint64_t i = 0; i < d->count; i++)
		copy_one_by_one(d + 1, n - 1, run, to + i * d->dst_stride,
				from + i * d->src_stride);
}

static uint64_t end_of(const struct copy_dim *d, uint64_t run, bool src)
{
	return (d[0].count - 1) * (src ? d[0].src_stride : d[0].dst_stride) +
	       (d[1].count - 1) * (src ? d[1].src_stride : d[1].dst_stride) + run;
}

static void check_scatter(const struct copy_dim d[static 2], uint64_t run, struct rng *r)
{
	uint64_t n = end_of(d, run, false), m = end_of(d, run, true);
	/* Exactly as long as needed, so that sanitizers notice overruns. */
	autofree uint8_t *to = calloc(1, n), *want = calloc(1, n), *from = malloc(m);

	REQUIRE(to && want && from);
	for (uint64_t i = 0; i < m; i++)
		from[i] = (uint8_t)rng_below(r, 256);
	copy_one_by_one(d, 2, run, want, from);
	scatter(d, 2, run, to, from);
	REQUIRE(!memcmp(to, want, n)); /* what lies between must be unchanged */
}

/* Columns become rows: of whole matrices, of parts with gaps on either side, and of all sizes near
 * that of a tile. */
START_TEST(a_turned_matrix_is_that_of_one_element_after_another)
{
	struct rng r = rng_new();

	for (int k = 0; k < 40; k++) {
		uint64_t run = (uint64_t)1 << rng_below(&r, 6);
		uint64_t across = 1 + rng_below(&r, MAX_COUNT), down = 1 + rng_below(&r, MAX_COUNT);
		uint64_t src_gap = rng_below(&r, 2) * rng_below(&r, 40);
		uint64_t dst_gap = rng_below(&r, 2) * rng_below(&r, 40);
		const struct copy_dim d[2] = {
			{ .count = across, .src_stride = down * run + src_gap, .dst_stride = run },
			{ .count = down, .src_stride = run, .dst_stride = across * run + dst_gap },
		};

		check_scatter(d, run, &r);
	}
}
END_TEST

/* Not a matrix, though it looks like one: on one side, elements do not touch. */
START_TEST(elements_with_gaps_are_not_taken_for_a_matrix)
{
	struct rng r = rng_new();

	for (int k = 0; k < 40; k++) {
		uint64_t run = 1 + rng_below(&r, 20), count = 1 + rng_below(&r, 100);
		uint64_t src = run + rng_below(&r, 3), dst = run + rng_below(&r, 3);
		const struct copy_dim d[2] = {
			{ .count = count, .src_stride = src * 50, .dst_stride = dst },
			{ .count = 50, .src_stride = src, .dst_stride = dst * count },
		};

		check_scatter(d, run, &r);
	}
}
END_TEST

SUITE(scatter)
