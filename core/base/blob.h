/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blob - bytes that can be read at any offset: a range of a file, or its decoded contents.
 *
 * Threads: see the implementation of .read.
 */
#ifndef BASE_BLOB_H
#define BASE_BLOB_H

#include <stddef.h>
#include <stdint.h>

struct ckpt_err;

#define BLOB_SIZE_UNKNOWN UINT64_MAX

struct blob {
	/* Reads up to len bytes at off; fewer only at the end of the blob. Returns the count, or a
	 * negative errno. */
	int64_t (*read)(void *arg, uint64_t off, void *buf, size_t len, struct ckpt_err *e);
	void *arg;
	uint64_t size; /* bytes, or BLOB_SIZE_UNKNOWN */
};

#endif
