/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dict - numbers byte strings in order of first appearance.
 *
 * Threads: one at a time.
 */
#ifndef PAGE_DICT_H
#define PAGE_DICT_H

#include "base/buf.h"

#include <stddef.h>
#include <stdint.h>

struct dict {
	struct buf bytes; /* all strings, concatenated */
	size_t *ends;	  /* n offsets in .bytes: the end of each string */
	size_t n, cap;
	uint32_t *slots; /* numbers + 1, by hash; 0: free */
	size_t n_slots;	 /* a power of two */
	uint64_t seed;	 /* prevents an attacker from choosing strings that collide */
};

#define DICT_INIT(limit) \
	{ \
		.bytes = BUF_INIT(limit) \
	}

/* The number of the string, or -ENOMEM. */
int64_t dict_number(struct dict *d, const void *s, size_t len);
const char *dict_string(const struct dict *d, size_t i, size_t *ret_len);
void dict_release(struct dict *d);

#endif
