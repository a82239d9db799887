/* SPDX-License-Identifier: Apache-2.0 */
/*
 * search - binary search in whatever is sorted.
 *
 *	size_t at = PARTITION_POINT(i, n, v[i].key < key);
 *	bool found = at < n && v[at].key == key;
 *
 * Threads: pure.
 */
#ifndef BASE_SEARCH_H
#define BASE_SEARCH_H

#include <stddef.h>

/* The first i of 0 to n - 1 that is not before the point, or n: `before`, an expression of i, is
 * true of some at the beginning and false of all others. */
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
