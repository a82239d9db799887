/* SPDX-License-Identifier: Apache-2.0 */
#include "base/vec.h"
#include "suites.h"

#include <stdlib.h>

START_TEST(room_doubles_and_members_stay)
{
	uint32_t *v = NULL;
	size_t n = 0, cap = 0, grown = 0;

	for (; n < 100000; v[n] = (uint32_t)n, n++) {
		size_t before = cap;

		REQUIRE(VEC_ROOM(v, cap, n + 1));
		REQUIRE(cap > n);
		grown += cap != before;
	}
	for (size_t i = 0; i < n; i++)
		REQUIRE(v[i] == i);
	ck_assert_uint_le(grown, 20);
	ck_assert(VEC_ROOM(v, cap, 1000000));
	ck_assert_uint_ge(cap, 1000000);
	ck_assert_uint_eq(v[99999], 99999);
	free(v);
}
END_TEST

START_TEST(a_bound_holds_and_keeps_the_array)
{
	uint64_t *v = NULL;
	size_t cap = 0;

	ck_assert(VEC_ROOM_WITHIN(v, cap, 2, 3));
	ck_assert_uint_eq(cap, 3);
	v[2] = 7;
	ck_assert(!VEC_ROOM_WITHIN(v, cap, 4, 3));
	ck_assert(!VEC_ROOM(v, cap, SIZE_MAX));
	ck_assert(!VEC_ROOM(v, cap, SIZE_MAX / sizeof(*v) + 1));
	ck_assert_uint_eq(cap, 3);
	ck_assert_uint_eq(v[2], 7);
	free(v);
}
END_TEST

SUITE(vec)
