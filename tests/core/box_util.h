/* SPDX-License-Identifier: Apache-2.0 */
/* box_util - the elements of boxes, one by one. */
#ifndef TESTS_BOX_UTIL_H
#define TESTS_BOX_UTIL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Count v up through all of [0, shape), last dimension fastest; false after the last. */
static inline bool next_element(size_t n, const uint64_t *shape, uint64_t *v)
{
	for (size_t d = n; d-- > 0; v[d] = 0)
		if (++v[d] < shape[d])
			return true;
	return false;
}

static inline bool contains(size_t n, const uint64_t *off, const uint64_t *len, const uint64_t *v)
{
	for (size_t d = 0; d < n; d++)
		if (v[d] < off[d] || v[d] - off[d] >= len[d])
			return false;
	return true;
}

#endif
