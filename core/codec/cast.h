/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cast - converts floating-point elements to another type, bit for bit as torch's Tensor.to() does.
 *
 *	if (cast_possible(CKPT_DTYPE_F32, CKPT_DTYPE_BF16))
 *		cast_run(CKPT_DTYPE_F32, CKPT_DTYPE_BF16, src, dst, n);
 *
 * Rounding is to nearest, ties to even; values that are too large become infinity, subnormals are
 * kept. All conversions go through float32: float64 to a 16-bit type is rounded twice, as in torch.
 *
 * NaNs become what torch makes of them, which differs from pair to pair. Payload: the bits of the
 * mantissa, the highest of which makes the NaN a quiet one.
 *
 *	float32, float64 -> bfloat16           0xffff, always
 *	float16 -> bfloat16                    0x7fc0, always
 *	same type, bfloat16 -> float32         nothing changes, signalling NaNs stay so
 *	all others                             sign and upper payload bits stay, made quiet
 *
 * Measured with torch 2.14.1 (Debian's build, x86-64): all 2^32 patterns of float32, all 2^16 of
 * float16 and bfloat16, random and special float64; tensors of 1 to 4099 elements, contiguous, at
 * odd offsets, with strides, transposed, expanded; ATEN_CPU_CAPABILITY avx512, avx2 and default.
 * tests/torch/cast.py repeats the comparison. Results other than NaNs are the same everywhere. NaNs
 * are as above in contiguous tensors with AVX2 or AVX-512, which agree. In other cases torch is not
 * consistent and differs from this table:
 *
 *	float64 -> bfloat16                    0x7fc0 in the elements after the last whole vector
 *	                                       (of a row, or of a thread's share), and with strides
 *	float32 -> bfloat16                    0x7fc0 with strides, and without dimensions
 *	any -> bfloat16 without AVX2           0x7fc0
 *	any -> float16 without AVX2            0x7e00, sign kept
 *	float32 -> float16 with FBGEMM         FBGEMM's choice in the last n mod 8 elements (read in
 *	                                       its source, not measured)
 *
 * Sources: aten/src/ATen/cpu/vec/vec256/vec256_16bit_float.h (cvtfp32_bf16: 0xffff),
 * torch/headeronly/util/BFloat16.h (round_to_nearest_even: 0x7fc0) and Half.h,
 * aten/src/ATen/native/Copy.cpp (USE_FBGEMM), FBGEMM src/FbgemmFloat16ConvertAvx2.cc.
 *
 * Threads: pure.
 */
#ifndef CODEC_CAST_H
#define CODEC_CAST_H

#include "model/dtype.h"

#include <stdbool.h>
#include <stddef.h>

/* from: float64, float32, float16, bfloat16; to: float32, float16, bfloat16; from may equal to. */
bool cast_possible(enum ckpt_dtype from, enum ckpt_dtype to);
/*
 * n elements, little-endian on both sides; no alignment needed, no overlap allowed. Requires
 * cast_possible.
 */
void cast_run(enum ckpt_dtype from, enum ckpt_dtype to, const void *src, void *dst, size_t n);

#endif
