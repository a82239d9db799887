/* SPDX-License-Identifier: Apache-2.0 */
#include "base/crc32c.h"
#include "rng.h"
#include "suites.h"

#include <string.h>

/* RFC 3720, B.4, and the check value of the catalogue of CRCs. */
START_TEST(it_is_that_of_the_standard)
{
	uint8_t b[32] = { 0 };

	ck_assert_uint_eq(crc32c(0, "123456789", 9), 0xe3069283);
	ck_assert_uint_eq(crc32c(0, NULL, 0), 0);
	ck_assert_uint_eq(crc32c(0, b, 32), 0x8a9136aa);
	memset(b, 0xff, 32);
	ck_assert_uint_eq(crc32c(0, b, 32), 0x62a8ab43);
	for (int i = 0; i < 32; i++)
		b[i] = (uint8_t)i;
	ck_assert_uint_eq(crc32c(0, b, 32), 0x46dd794e);
}
END_TEST

START_TEST(in_pieces_by_table_and_by_instruction_it_is_the_same)
{
	struct rng r = rng_new();
	uint8_t b[200];

	for (int i = 0; i < 2000; i++) {
		size_t n = rng_below(&r, sizeof(b)), at = rng_below(&r, n + 1);
		uint32_t whole;

		for (size_t k = 0; k < n; k++)
			b[k] = (uint8_t)rng_u64(&r);
		whole = crc32c(0, b, n);
		REQUIRE(whole == crc32c(crc32c(0, b, at), b + at, n - at));
		REQUIRE(whole == crc32c_table(crc32c_table(0, b, at), b + at, n - at));
	}
}
END_TEST

SUITE(crc32c)
