/* SPDX-License-Identifier: Apache-2.0 */
/*
 * writer_zarr - a storage writer for directories of zarr arrays, version 3.
 *
 *	CKPT/zarr.json          a group
 *	CKPT/NAME/zarr.json     an array: shape, data type, chunks
 *	CKPT/NAME/c.2.0.0       a chunk: its elements, little-endian, not compressed
 *
 * Tensors are whole, and cut along their first dimension into chunks of at most chunk_size bytes,
 * as far as one row is not larger. The last chunk is as large as the others; what is beyond the
 * array is zero. Each rank writes its tensors alone.
 *
 * Refused are objects, parts of tensors, dtypes that zarr lacks, and names that cannot be those of
 * directories or that the specification forbids (ERR_UNSUPPORTED).
 *
 * Source: https://zarr-specs.readthedocs.io/en/latest/v3/core/ 3.1. Threads: see ckpt_storage.h.
 */
#ifndef STORE_WRITER_ZARR_H
#define STORE_WRITER_ZARR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt_err;
struct ckpt_storage_writer;

struct writer_zarr_opts {
	bool overwrite;	     /* replace an existing checkpoint */
	uint64_t chunk_size; /* bytes of a chunk; 0: 256 MiB */
	size_t buffer;	     /* 0: 4 MiB */
	/* `bytes` more have been written; called from any thread; may be NULL. */
	void (*progress)(void *arg, uint64_t bytes);
	void *arg;
};

int writer_zarr_new(const struct writer_zarr_opts *opts, struct ckpt_storage_writer *ret,
		    struct ckpt_err *e);

#endif
