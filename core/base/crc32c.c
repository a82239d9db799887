/* SPDX-License-Identifier: Apache-2.0 */
#include "base/crc32c.h"

#include "base/bytes.h"

#include <stdbool.h>
#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>
#endif

#define POLYNOMIAL 0x82f63b78 /* reflected */

/* The processors that have an instruction for it: eight bytes at a time. */
#if defined(__x86_64__)
#define WITH_INSTRUCTION __attribute__((target("sse4.2")))
#define STEP_8(crc, v)	 (uint32_t) _mm_crc32_u64(crc, v)
#define STEP_1(crc, v)	 _mm_crc32_u8(crc, v)
static bool has_instruction(void)
{
	return __builtin_cpu_supports("sse4.2");
}
#elif defined(__aarch64__)
#ifdef __clang__
#define WITH_INSTRUCTION __attribute__((target("crc")))
#else
#define WITH_INSTRUCTION __attribute__((target("+crc")))
#endif
#define STEP_8(crc, v) __crc32cd(crc, v)
#define STEP_1(crc, v) __crc32cb(crc, v)
static bool has_instruction(void)
{
	return getauxval(AT_HWCAP) & (1UL << 7); /* HWCAP_CRC32 */
}
#endif

/* table[k][b]: the CRC of the byte b and k zeros behind it. */
static uint32_t table[8][256];

__attribute__((constructor)) static void make_table(void)
{
	for (uint32_t b = 0; b < 256; b++) {
		uint32_t c = b;

		for (int i = 0; i < 8; i++)
			c = c >> 1 ^ (c & 1 ? POLYNOMIAL : 0);
		table[0][b] = c;
	}
	for (int k = 1; k < 8; k++)
		for (int b = 0; b < 256; b++)
			table[k][b] = table[k - 1][b] >> 8 ^ table[0][table[k - 1][b] & 0xff];
}

uint32_t crc32c_table(uint32_t crc, const void *p, size_t n)
{
	const uint8_t *at = p;

	crc = ~crc;
	for (; n >= 8; n -= 8, at += 8) {
		uint32_t low = crc ^ load_le32(at), high = load_le32(at + 4);

		crc = table[7][low & 0xff] ^ table[6][low >> 8 & 0xff] ^
		      table[5][low >> 16 & 0xff] ^ table[4][low >> 24] ^ table[3][high & 0xff] ^
		      table[2][high >> 8 & 0xff] ^ table[1][high >> 16 & 0xff] ^
		      table[0][high >> 24];
	}
	while (n--)
		crc = crc >> 8 ^ table[0][(crc ^ *at++) & 0xff];
	return ~crc;
}

#ifdef WITH_INSTRUCTION
WITH_INSTRUCTION static uint32_t crc_fast(uint32_t crc, const uint8_t *at, size_t n)
{
	crc = ~crc;
	for (; n >= 8; n -= 8, at += 8)
		crc = STEP_8(crc, load_le64(at));
	while (n--)
		crc = STEP_1(crc, *at++);
	return ~crc;
}
#endif

uint32_t crc32c(uint32_t crc, const void *p, size_t n)
{
#ifdef WITH_INSTRUCTION
	if (has_instruction())
		return crc_fast(crc, p, n);
#endif
	return crc32c_table(crc, p, n);
}
