/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blend - sums of weighted elements, in an order of operations that is part of the interface.
 *
 *	blend_add(acc, CKPT_DTYPE_BF16, x, 0.25f, n);
 *
 * One fused multiply-add for each element, as torch's acc.add_(x, alpha=weight) does on CPUs with
 * AVX2 or AVX-512 (aten/src/ATen/native/cpu/BinaryOpsKernel.cpp: vec::fmadd). Without AVX2 torch
 * multiplies, rounds and adds; here the result is the same on every CPU.
 *
 * Threads: pure.
 */
#ifndef CODEC_BLEND_H
#define CODEC_BLEND_H

#include "model/dtype.h"

#include <stddef.h>

/* acc[i] = fma(weight, x[i], acc[i]), where x is little-endian, of any alignment, and of a type
 * that cast_possible accepts. blend_add_f64 does the same in float64, but converts x to float32
 * first unless it is float64. */
void blend_add(float *acc, enum ckpt_dtype dtype, const void *x, float weight, size_t n);
void blend_add_f64(double *acc, enum ckpt_dtype dtype, const void *x, double weight, size_t n);

/*
 * Adds a product of matrices to w: w[i, j] becomes w[i, j] + scale * the sum over k of b[i, k] *
 * a[k, j], from 0 and in the order of k. Each product, each sum, the scaled sum and the new element
 * are rounded to float32 (never fused), and the element then to w's dtype, to which cast_run must
 * be able to cast. b is rows x rank, its rows b_stride apart; a is rank x columns, its rows
 * a_stride apart; w is rows x columns, its rows w_stride elements apart, little-endian and of any
 * alignment.
 */
struct blend_product {
	const float *a, *b;
	size_t rows, rank, columns, a_stride, b_stride, w_stride;
	float scale;
	enum ckpt_dtype dtype;
};
void blend_product(const struct blend_product *p, void *w);

#endif
