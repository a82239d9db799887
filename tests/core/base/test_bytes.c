/* SPDX-License-Identifier: Apache-2.0 */
#include "base/bytes.h"
#include "base/checked.h"
#include "rng.h"
#include "suites.h"

#include <string.h>

START_TEST(loads_are_little_and_big_endian_at_any_address)
{
	const uint8_t b[] = { 0xff, 1, 2, 3, 4, 5, 6, 7, 8 };

	ck_assert_uint_eq(load_le16(b + 1), 0x0201);
	ck_assert_uint_eq(load_le32(b + 1), 0x04030201);
	ck_assert_uint_eq(load_le64(b + 1), 0x0807060504030201);
	ck_assert_uint_eq(load_be64(b + 1), 0x0102030405060708);
}
END_TEST

START_TEST(cursor_gives_all_bytes_then_nothing)
{
	const uint8_t b[] = { 1, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 'x' };
	struct cursor c = cursor_of(b, sizeof(b));

	ck_assert_uint_eq(cursor_le16(&c), 1);
	ck_assert_uint_eq(cursor_le32(&c), 2);
	ck_assert_uint_eq(cursor_le64(&c), 3);
	ck_assert_ptr_eq(cursor_take(&c, 1), b + 14);
	ck_assert(!c.bad);
	ck_assert_ptr_nonnull(cursor_take(&c, 0));
	ck_assert_ptr_null(cursor_take(&c, 1));
	ck_assert(c.bad);
}
END_TEST

START_TEST(first_read_past_the_end_sticks_and_yields_zero)
{
	const uint8_t b[] = { 0xff, 0xff, 0xff };
	struct cursor c = cursor_of(b, sizeof(b));

	ck_assert_uint_eq(cursor_le32(&c), 0);
	ck_assert(c.bad);
	ck_assert_uint_eq(cursor_le16(&c), 0); /* would have fitted */
	ck_assert_uint_eq(cursor_le64(&c), 0);
	ck_assert_ptr_null(cursor_take(&c, SIZE_MAX));
}
END_TEST

START_TEST(numbers_are_stored_low_first)
{
	uint8_t b[11];

	for (size_t n = 0; n <= 9; n++) {
		memset(b, 0xee, sizeof(b));
		ck_assert_ptr_eq(put_le(b + 1, 0x8877665544332211, n), b + 1 + n);
		for (size_t i = 0; i < sizeof(b); i++)
			ck_assert_uint_eq(b[i], i < 1 || i > n ? 0xee : i == 9 ? 0 : 0x11 * i);
	}
}
END_TEST

static void check_varint(uint64_t v)
{
	uint8_t b[10];
	const uint8_t *p = b;
	size_t want = 1, n = put_varint(b, v);

	for (uint64_t rest = v >> 7; rest; rest >>= 7)
		want++;
	REQUIRE(n == want);
	REQUIRE(get_varint(&p) == v);
	REQUIRE(p == b + n);
}

START_TEST(varint_reads_back_what_was_put)
{
	struct rng r = rng_new();

	check_varint(0);
	check_varint(UINT64_MAX);
	for (unsigned bit = 0; bit < 64; bit++) {
		check_varint((uint64_t)1 << bit);
		check_varint(((uint64_t)1 << bit) - 1);
	}
	for (int i = 0; i < 100000; i++)
		check_varint(rng_u64(&r) >> rng_below(&r, 64));
}
END_TEST

START_TEST(a_varint_beyond_64_bits_is_bad)
{
	uint8_t b[10];
	struct cursor c = cursor_of(b, sizeof(b));

	memset(b, 0x80, sizeof(b)); /* no bits at all, in as many groups as there may be */
	b[9] = 1;
	ck_assert_uint_eq(cursor_varint(&c), (uint64_t)1 << 63);
	ck_assert(!c.bad);
	b[9] = 2;
	c = cursor_of(b, sizeof(b));
	ck_assert_uint_eq(cursor_varint(&c), 0);
	ck_assert(c.bad);
}
END_TEST

START_TEST(range_ok_knows_the_limit_and_does_not_wrap)
{
	ck_assert(range_ok(0, 0, 0));
	ck_assert(range_ok(10, 0, 10));
	ck_assert(range_ok(3, 7, 10));
	ck_assert(!range_ok(3, 8, 10));
	ck_assert(!range_ok(11, 0, 10));
	ck_assert(!range_ok(UINT64_MAX, 2, UINT64_MAX));
	ck_assert(!range_ok(2, UINT64_MAX, UINT64_MAX));
}
END_TEST

START_TEST(checked_sums_say_when_they_wrap)
{
	uint64_t v;

	ck_assert(!ckd_add(&v, (uint64_t)1, (uint64_t)2));
	ck_assert_uint_eq(v, 3);
	ck_assert(ckd_add(&v, UINT64_MAX, (uint64_t)1));
	ck_assert(ckd_sub(&v, (uint64_t)1, (uint64_t)2));
	ck_assert(ckd_mul(&v, (uint64_t)1 << 32, (uint64_t)1 << 32));
}
END_TEST

SUITE(bytes)
