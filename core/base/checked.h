/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checked - arithmetic on numbers from a checkpoint.
 *
 * ckd_add, ckd_sub, ckd_mul carry C23's names and meaning: true on overflow.
 * Threads: pure.
 */
#ifndef BASE_CHECKED_H
#define BASE_CHECKED_H

#include <stdbool.h>
#include <stdint.h>

#define ckd_add(ret, a, b) __builtin_add_overflow(a, b, ret)
#define ckd_sub(ret, a, b) __builtin_sub_overflow(a, b, ret)
#define ckd_mul(ret, a, b) __builtin_mul_overflow(a, b, ret)

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

/* Does [off, off+len) lie inside [0, limit)? */
static inline bool range_ok(uint64_t off, uint64_t len, uint64_t limit)
{
	return off <= limit && len <= limit - off;
}

static inline uint64_t min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static inline uint64_t max_u64(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

#endif
