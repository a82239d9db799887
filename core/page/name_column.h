/* SPDX-License-Identifier: Apache-2.0 */
/*
 * name_column - a sequence of names in compact form: for each, the length of the prefix shared with
 * the previous one, the length of the rest, and the rest.
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

/* s must stay valid until the next name has been added. */
void name_column_add(struct name_column *n, const char *s, size_t len);

#endif
