/* SPDX-License-Identifier: Apache-2.0 */
/*
 * name_column - names in an order, in few bytes: each as the length of what it shares with the one before, the
 * length of the rest, and the rest.
 *
 * Threads: one at a time.
 */
#ifndef PAGE_NAME_COLUMN_H
#define PAGE_NAME_COLUMN_H

#include <stddef.h>

struct buf;

struct name_column {
	struct buf *to;
	const char *last; /* borrowed */
	size_t last_len;
};

/* s has to stay until the next name was added. */
void name_column_add(struct name_column *n, const char *s, size_t len);

#endif
