/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replace - a tensor of another checkpoint in place of one, as a derived tensor: its elements as
 * they are, or cast (codec/cast.h).
 *
 * Threads: see derived.h.
 */
#ifndef READ_REPLACE_H
#define READ_REPLACE_H

#include "read/derived.h"

struct replace {
	enum ckpt_dtype dtype; /* the input's, or one that it can be cast to */
	uint8_t n_dims;
};

/* For derived.run; how is a struct replace. The input has the shape of the result. */
derived_fn replace_run;

#endif
