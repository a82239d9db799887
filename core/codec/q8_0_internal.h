/* SPDX-License-Identifier: Apache-2.0 */
/* q8_0_internal - q8_0_run without CPU-specific code. Private to core/codec and its tests. */
#ifndef CODEC_Q8_0_INTERNAL_H
#define CODEC_Q8_0_INTERNAL_H

#include "codec/q8_0.h"

void q8_0_run_portable(const void *src, void *dst, size_t n);

#endif
