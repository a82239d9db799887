/* SPDX-License-Identifier: Apache-2.0 */
#include "page/heats.h"

#include "base/checked.h"
#include "suites.h"

#include <math.h>

static float cells[3] = { 1, -1e-45F, 0 };
static const struct ckpt_diff_heat heat = { 1, 3, cells };

static void add(struct heats *h, uint64_t row, double l2, double norm_a)
{
	const struct ckpt_diff_values v = { .l2 = l2, .norm_a = norm_a, .heat = &heat };

	ck_assert(!heats_add(h, row, false, &v));
}

START_TEST(order_is_by_relative_change)
{
	static const uint64_t want[] = { 3, 5, 1, 2, 0, 4 };
	struct heats h = { 0 };

	add(&h, 0, 1e-50, 1e-49);
	add(&h, 1, 1e300, 1e300);
	add(&h, 2, 1e-300, 2e-300);
	add(&h, 3, INFINITY, INFINITY);
	add(&h, 4, 1e-3, 1);
	add(&h, 5, 1, 0);
	ck_assert_uint_eq(h.lists[0].n, ARRAY_LEN(want));
	for (size_t i = 0; i < ARRAY_LEN(want); i++)
		ck_assert_uint_eq(h.lists[0].entries[i].row, want[i]);
	heats_release(&h);
}
END_TEST

START_TEST(what_changed_has_a_code)
{
	struct heats h = { 0 };

	add(&h, 0, 1, 1);
	ck_assert_int_eq(h.lists[0].entries[0].codes[0], 127);
	ck_assert_int_eq(h.lists[0].entries[0].codes[1], -1);
	ck_assert_int_eq(h.lists[0].entries[0].codes[2], 0);
	heats_release(&h);
}
END_TEST

SUITE(heats)
