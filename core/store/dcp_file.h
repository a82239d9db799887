/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dcp_file - one data file of a DCP checkpoint, written item after item.
 *
 * Uncompressed items and their data are aligned to 64 bytes, for readers that map the file; torch
 * finds items by their offset. Compressed items are one zstd frame each, without gaps.
 *
 * However large an item is, only the buffer is held in memory: sources with a read function are
 * read in pieces, and data in memory is written directly. The same items give the same bytes,
 * whatever the buffer and the kind of source.
 *
 * Threads: a file belongs to one thread at a time.
 */
#ifndef STORE_DCP_FILE_H
#define STORE_DCP_FILE_H

#include <stddef.h>
#include <stdint.h>

struct dcp_file;
struct ckpt_err;
struct ckpt_data;
struct ckpt_write_item;
struct staging_file;

#define DCP_TRANSFORM_ZSTD "stream.zstd/1"

struct dcp_file_opts {
	int zstd_level; /* 0: no compression */
	size_t buffer;	/* bytes, at least DCP_FILE_MIN_BUFFER */
	/* `bytes` more of data have been written; may be NULL. */
	void (*progress)(void *arg, uint64_t bytes);
	void *arg;
};

enum { DCP_FILE_MIN_BUFFER = 128 * 1024 };

/* Takes over *to in any case; dcp_file_free drops it. */
int dcp_file_new(struct staging_file *to, const struct dcp_file_opts *opts, struct dcp_file **ret,
		 struct ckpt_err *e);
/* Writes the next item: a chunk as an archive, or an object's bytes unchanged. Returns its position
 * in the file. */
int dcp_file_add(struct dcp_file *f, const struct ckpt_write_item *item, const struct ckpt_data *s,
		 uint64_t *ret_offset, uint64_t *ret_length, struct ckpt_err *e);
/* To be called after the last item; then the file is on disk, and closed. */
int dcp_file_finish(struct dcp_file *f, struct ckpt_err *e);
void dcp_file_free(struct dcp_file *f); /* NULL is fine */

#endif
