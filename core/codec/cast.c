/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every function below handles one element, without a branch. With constant `from` and `to`,
 * everything that depends on them folds away, and compilers turn what remains of loop() into vector
 * instructions (at -O3; see the Makefile). run() holds one such loop for each pair of types, and is
 * compiled once for any CPU and once for those with AVX2.
 */
#include "codec/cast.h"

#include "codec/cast_internal.h"
#include "codec/floats.h"

#include <stdint.h>

INLINE void loop(enum ckpt_dtype from, enum ckpt_dtype to, const uint8_t *restrict src,
		 uint8_t *restrict dst, size_t n)
{
	uint16_t nan = from == CKPT_DTYPE_F16 ? 0x7fc0 : BF16_NAN;

	for (size_t i = 0; i < n; i++)
		store_f32_as(to, load_as_f32(from, src, i), dst, i, nan);
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
