/* SPDX-License-Identifier: Apache-2.0 */
/* blend_internal - blend without CPU-specific code. Private to core/codec and its tests. */
#ifndef CODEC_BLEND_INTERNAL_H
#define CODEC_BLEND_INTERNAL_H

#include "codec/blend.h"

void blend_add_portable(float *acc, enum ckpt_dtype dtype, const void *x, float weight, size_t n);
void blend_add_f64_portable(double *acc, enum ckpt_dtype dtype, const void *x, double weight,
			    size_t n);
void blend_product_portable(const struct blend_product *p, void *w);

#endif
