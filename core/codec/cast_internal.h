/* SPDX-License-Identifier: Apache-2.0 */
/* cast_internal - cast_run without CPU-specific code. Private to core/codec and its tests. */
#ifndef CODEC_CAST_INTERNAL_H
#define CODEC_CAST_INTERNAL_H

#include "codec/cast.h"

void cast_run_portable(enum ckpt_dtype from, enum ckpt_dtype to, const void *src, void *dst,
		       size_t n);

#endif
