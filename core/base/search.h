/* SPDX-License-Identifier: Apache-2.0 */
/*
 * search - binary search in anything sorted.
 *
 *	size_t at = PARTITION_POINT(i, n, v[i].key < key);
 *	bool found = at < n && v[at].key == key;
 *
 * Threads: pure.
 */
#ifndef BASE_SEARCH_H
#define BASE_SEARCH_H

#include <stddef.h>

/* The first i from 0 to n - 1 for which `before`, an expression in i, is false, or n. `before` must
 * be true for a (possibly empty) prefix of the range and false for the rest. */
#define PARTITION_POINT(i, n, before) \
	({ \
		size_t lo_ = 0, hi_ = (n); \
		while (lo_ < hi_) { \
			size_t i = lo_ + (hi_ - lo_) / 2; \
			if (before) \
				lo_ = i + 1; \
			else \
				hi_ = i; \
		} \
		lo_; \
	})

#endif
