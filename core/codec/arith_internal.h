/* SPDX-License-Identifier: Apache-2.0 */
/* arith_internal - arith_run without CPU-specific code. Private to core/codec and its tests. */
#ifndef CODEC_ARITH_INTERNAL_H
#define CODEC_ARITH_INTERNAL_H

#include "codec/arith.h"

void arith_run_portable(enum ckpt_dtype type, struct arith a, void *elements, size_t n);

#endif
