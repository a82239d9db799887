/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pickle_strings - interned strings: equal ones are one, and they are numbered from 0 in the order
 * in which they came. The strings of pickles live here, so that they can outlive the pickle; others
 * use it for names.
 *
 * Threads: one at a time; any number while none adds.
 */
#ifndef PARSE_PICKLE_STRINGS_H
#define PARSE_PICKLE_STRINGS_H

#include "base/bytes.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pk_str {
	uint32_t len;
	uint32_t id;
	uint64_t hash; /* differs between interners */
	char data[];   /* followed by a NUL; aligned like uint64_t */
};

struct pk_strings;
/* max_bytes: of all strings, and of the tables that find them. */
struct pk_strings *pk_strings_new(size_t max_bytes);
void pk_strings_free(struct pk_strings *t); /* NULL is fine */
/* The string, which is added if it is new; NULL, with errno EFBIG (over max_bytes) or ENOMEM. */
const struct pk_str *pk_intern(struct pk_strings *t, const void *s, size_t len);
/* NULL: it does not exist. */
const struct pk_str *pk_find(const struct pk_strings *t, const void *s, size_t len);
const struct pk_str *pk_string(const struct pk_strings *t, uint32_t id);
uint32_t pk_strings_count(const struct pk_strings *t);

/* Is it this string? */
static inline bool pk_str_is(const struct pk_str *s, const char *text)
{
	return bytes_are(s->data, s->len, text);
}

#endif
