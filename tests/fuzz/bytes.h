/* SPDX-License-Identifier: Apache-2.0 */
/* bytes - makes an input a blob (base/blob.h): struct blob b = { read_bytes, &bytes, bytes.n }. */
#ifndef TESTS_FUZZ_BYTES_H
#define TESTS_FUZZ_BYTES_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct bytes {
	const uint8_t *p;
	size_t n;
};

static inline int64_t read_bytes(void *arg, uint64_t off, void *buf, size_t len, struct ckpt_err *e)
{
	const struct bytes *b = arg;
	size_t n = off < b->n ? b->n - (size_t)off : 0;

	(void)e;
	n = n < len ? n : len;
	if (n)
		memcpy(buf, b->p + off, n);
	return (int64_t)n;
}

#endif
