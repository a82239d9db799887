/* SPDX-License-Identifier: Apache-2.0 */
/*
 * catalog_names - interned names of data files and encodings, numbered in order of arrival.
 *
 * Private to core/index. Threads: one at a time.
 */
#ifndef INDEX_CATALOG_NAMES_H
#define INDEX_CATALOG_NAMES_H

#include <stddef.h>
#include <stdint.h>

struct ckpt_err;

struct name {
	uint32_t id;
	uint64_t min_size; /* of a source */
	char text[];
};

struct names {
	struct name **by_id;
	uint32_t *table; /* id + 1, 0 = free */
	uint32_t n, cap;
	uint64_t seed; /* so that a file cannot contain names that all hash to one slot */
};

/* The number of a name, which is added if new. The table must be zero-initialised. */
int names_add(struct names *t, const char *s, size_t len, uint32_t *ret, struct ckpt_err *e);
void names_release(struct names *t);

#endif
