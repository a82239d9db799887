/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every function below handles one element, without a branch. With constant `from` and `to`,
 * everything that depends on them folds away, and compilers turn what remains of loop() into vector
 * instructions (at -O3; see the Makefile). run() holds one such loop for each pair of types, and is
 * compiled once for any CPU and once for those with AVX2.
 */
#include "codec/cast.h"

#include "base/bytes.h"
#include "codec/cast_internal.h"
#include "codec/floats.h"

#include <endian.h>
#include <stdint.h>
#include <string.h>

/* Element i, as float32. */
INLINE uint32_t load(enum ckpt_dtype from, const uint8_t *src, size_t i)
{
	switch (from) {
	case CKPT_DTYPE_F64:
		return f64_to_f32(load_le64(src + 8 * i));
	case CKPT_DTYPE_F16:
		return f16_to_f32(load_le16(src + 2 * i));
	case CKPT_DTYPE_BF16:
		return (uint32_t)load_le16(src + 2 * i) << 16;
	default:
		return load_le32(src + 4 * i);
	}
}

INLINE void loop(enum ckpt_dtype from, enum ckpt_dtype to, const uint8_t *restrict src,
		 uint8_t *restrict dst, size_t n)
{
	uint16_t nan = from == CKPT_DTYPE_F16 ? 0x7fc0 : 0xffff; /* the bfloat16 NaN */

	for (size_t i = 0; i < n; i++) {
		uint32_t u = load(from, src, i);

		if (to == CKPT_DTYPE_F32) {
			u = htole32(u);
			memcpy(dst + 4 * i, &u, 4);
		} else {
			uint16_t h =
				htole16(to == CKPT_DTYPE_F16 ? f32_to_f16(u) : f32_to_bf16(u, nan));

			memcpy(dst + 2 * i, &h, 2);
		}
	}
}

INLINE void run_from(enum ckpt_dtype from, enum ckpt_dtype to, const void *src, void *dst, size_t n)
{
	if (to == from)
		memcpy(dst, src, n * dtype_info(from)->size);
	else if (to == CKPT_DTYPE_F32)
		loop(from, CKPT_DTYPE_F32, src, dst, n);
	else if (to == CKPT_DTYPE_F16)
		loop(from, CKPT_DTYPE_F16, src, dst, n);
	else
		loop(from, CKPT_DTYPE_BF16, src, dst, n);
}

INLINE void run(enum ckpt_dtype from, enum ckpt_dtype to, const void *src, void *dst, size_t n)
{
	if (from == CKPT_DTYPE_F64)
		run_from(CKPT_DTYPE_F64, to, src, dst, n);
	else if (from == CKPT_DTYPE_F32)
		run_from(CKPT_DTYPE_F32, to, src, dst, n);
	else if (from == CKPT_DTYPE_F16)
		run_from(CKPT_DTYPE_F16, to, src, dst, n);
	else
		run_from(CKPT_DTYPE_BF16, to, src, dst, n);
}

void cast_run_portable(enum ckpt_dtype from, enum ckpt_dtype to, const void *src, void *dst,
		       size_t n)
{
	run(from, to, src, dst, n);
}

#ifdef __x86_64__
__attribute__((target("avx2"))) static void run_avx2(enum ckpt_dtype from, enum ckpt_dtype to,
						     const void *src, void *dst, size_t n)
{
	run(from, to, src, dst, n);
}
#endif

void cast_run(enum ckpt_dtype from, enum ckpt_dtype to, const void *src, void *dst, size_t n)
{
#ifdef __x86_64__
	if (__builtin_cpu_supports("avx2")) {
		run_avx2(from, to, src, dst, n);
		return;
	}
#endif
	cast_run_portable(from, to, src, dst, n);
}

bool cast_possible(enum ckpt_dtype from, enum ckpt_dtype to)
{
	bool is_target = to == CKPT_DTYPE_F32 || to == CKPT_DTYPE_F16 || to == CKPT_DTYPE_BF16;

	return is_target && (from == CKPT_DTYPE_F64 || from == CKPT_DTYPE_F32 ||
			     from == CKPT_DTYPE_F16 || from == CKPT_DTYPE_BF16);
}
