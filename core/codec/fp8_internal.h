/* SPDX-License-Identifier: Apache-2.0 */
/* fp8_internal - fp8 without CPU-specific code. Private to core/codec and its tests. */
#ifndef CODEC_FP8_INTERNAL_H
#define CODEC_FP8_INTERNAL_H

#include "codec/fp8.h"

float fp8_amax_portable(float most, const float *x, size_t n);
void fp8_divide_portable(enum ckpt_dtype dtype, const float *x, float scale, uint8_t *codes,
			 size_t n);
void fp8_multiply_portable(const float *x, float scale, uint8_t *codes, size_t n);
void fp8_scale_portable(const uint8_t *codes, float scale, float *x, size_t n);

#endif
