/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blend - sums of weighted elements, in an order of operations that is part of the interface.
 *
 *	blend_add(acc, x, 0.25f, n);
 *
 * One fused multiply-add for each element, as torch's acc.add_(x, alpha=weight) does on CPUs with
 * AVX2 or AVX-512 (aten/src/ATen/native/cpu/BinaryOpsKernel.cpp: vec::fmadd). Without AVX2 torch
 * multiplies, rounds and adds; here the result is the same on every CPU.
 *
 * Threads: pure.
 */
#ifndef CODEC_BLEND_H
#define CODEC_BLEND_H

#include <stddef.h>

/* acc[i] = fma(weight, x[i], acc[i]) */
void blend_add(float *acc, const float *x, float weight, size_t n);
void blend_add_f64(double *acc, const double *x, double weight, size_t n);

/*
 * A product of matrices, row by row: out[i, j] is the sum over k of b[i, k] * a[k, j], from 0 and in
 * the order of k, each product and each sum rounded to float32 (never fused), then times `scale`,
 * rounded once more. b is rows x rank, its rows b_stride apart; a is rank x columns, its rows
 * a_stride apart; out is rows x columns, without gaps.
 */
struct blend_product {
	const float *a, *b;
	size_t rows, rank, columns, a_stride, b_stride;
	float scale;
};
void blend_product(const struct blend_product *p, float *out);

#endif
