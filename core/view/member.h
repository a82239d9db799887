/* SPDX-License-Identifier: Apache-2.0 */
/*
 * member - the tensors of a consolidated file, as its writers take them.
 */
#ifndef VIEW_MEMBER_H
#define VIEW_MEMBER_H

#include "model/dtype.h"

#include <stddef.h>
#include <stdint.h>

struct member {
	const char *name; /* name_len bytes of any content, followed by a NUL */
	size_t name_len;
	const uint64_t *shape; /* n_dims, elements */
	uint64_t bytes;
	uint64_t id; /* of its SEG_TENSOR segment */
	uint8_t dtype, n_dims;
};

#endif
