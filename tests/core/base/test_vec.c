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

START_TEST(new_members_are_zeroed_and_old_ones_stay)
{
	uint32_t *v = NULL;
	size_t cap = 0, used = 0;

	for (size_t need = 1; need < 5000; need += need / 3 + 1) {
		REQUIRE(VEC_ROOM_ZEROED(v, cap, need));
		for (size_t i = 0; i < cap; i++)
			REQUIRE(v[i] == (i < used ? 7 : 0));
		for (used = cap; used-- > 0;)
			v[used] = 7;
		used = cap;
	}
	ck_assert(!VEC_ROOM_ZEROED(v, cap, SIZE_MAX));
	ck_assert_uint_eq(used, cap);
	free(v);
}
END_TEST

SUITE(vec)
