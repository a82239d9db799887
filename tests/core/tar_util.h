/* SPDX-License-Identifier: Apache-2.0 */
/* tar_util - makes tar archives. */
#ifndef TESTS_TAR_UTIL_H
#define TESTS_TAR_UTIL_H

#include "base/buf.h"

#include <stdio.h>
#include <string.h>

enum { TAR_HEADER = 512 };

/* Sets the sum of the header at `at`. */
static inline void tar_seal(struct buf *b, size_t at)
{
	unsigned sum = 0;
	char *h = b->data + at, digits[8];

	memset(h + 148, ' ', 8);
	for (size_t i = 0; i < TAR_HEADER; i++)
		sum += (unsigned char)h[i];
	(void)snprintf(digits, sizeof(digits), "%06o", sum);
	memcpy(h + 148, digits, 7);
}

/* A member with a header in POSIX's form; returns where the header is. */
static inline size_t tar_add(struct buf *b, const char *name, char type, const void *data, size_t n)
{
	static const char zeros[TAR_HEADER];
	char h[TAR_HEADER] = { 0 }, digits[32];
	size_t at = b->len;

	(void)snprintf(h, 101, "%.100s", name);
	(void)snprintf(digits, sizeof(digits), "%011o", (unsigned)n);
	memcpy(h + 124, digits, 12);
	h[156] = type;
	memcpy(h + 257, "ustar\00000", 8);
	buf_add(b, h, sizeof(h));
	if (n)
		buf_add(b, data, n);
	buf_add(b, zeros, (TAR_HEADER - n % TAR_HEADER) % TAR_HEADER);
	tar_seal(b, at);
	return at;
}

static inline void tar_end(struct buf *b)
{
	static const char zeros[2 * TAR_HEADER];

	buf_add(b, zeros, sizeof(zeros));
}

#endif
