/* SPDX-License-Identifier: Apache-2.0 */
#include "base/arena.h"
#include "rng.h"
#include "suites.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

START_TEST(pieces_are_aligned_and_apart)
{
	struct arena a = ARENA_INIT(SIZE_MAX);
	struct rng r = rng_new();
	uint8_t *p[500];
	size_t n[500];

	for (size_t i = 0; i < 500; i++) {
		n[i] = rng_below(&r, rng_chance(&r, 5) ? 100000 : 100);
		p[i] = arena_alloc(&a, n[i]);
		REQUIRE(p[i] && (uintptr_t)p[i] % 8 == 0);
		memset(p[i], (int)i, n[i]);
	}
	for (size_t i = 0; i < 500; i++)
		for (size_t k = 0; k < n[i]; k++)
			REQUIRE(p[i][k] == (uint8_t)i);
	arena_release(&a);
	ck_assert_uint_eq(a.bytes, 0);
}
END_TEST

START_TEST(arrays_are_zeroed_and_copies_end_in_nul)
{
	struct arena a = ARENA_INIT(SIZE_MAX);
	char *dirty = arena_alloc(&a, 4000);
	uint64_t *v;

	memset(dirty, 'x', 4000);
	arena_release(&a);
	v = arena_array(&a, 400, sizeof(*v));
	for (size_t i = 0; i < 400; i++)
		REQUIRE(!v[i]);
	ck_assert_str_eq(arena_dup(&a, "abcdef", 3), "abc");
	ck_assert_str_eq(arena_dup(&a, NULL, 0), "");
	ck_assert_ptr_nonnull(arena_array(&a, 0, 8));
	arena_release(&a);
}
END_TEST

static int take_errno(void)
{
	int was = errno;

	errno = 0;
	return was;
}

START_TEST(a_ceiling_holds_and_keeps_content)
{
	struct arena a = ARENA_INIT(10000);
	char *kept = arena_dup(&a, "kept", 4);

	ck_assert(!arena_alloc(&a, 10001) && take_errno() == EFBIG);
	ck_assert(!arena_array(&a, SIZE_MAX / 2, 3) && take_errno() == EFBIG);
	ck_assert(!arena_alloc(&a, SIZE_MAX) && take_errno() == EFBIG);
	ck_assert(!arena_dup(&a, "", SIZE_MAX) && take_errno() == EFBIG);
	while (arena_alloc(&a, 64))
		ck_assert_uint_le(a.bytes, 10000);
	ck_assert_uint_gt(a.bytes, 9900);
	ck_assert_str_eq(kept, "kept");
	arena_release(&a);
	ck_assert_ptr_nonnull(arena_alloc(&a, 5000));
	arena_release(&a);
}
END_TEST

SUITE(arena)
