/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dcp_file - one data file of a DCP checkpoint, written item after item.
 *
 * Items that are not compressed begin on multiples of 64 bytes, and so does their data, for
 * readers that map the file; torch finds items by their offset. Compressed ones are a zstd frame
 * each, without gaps between them.
 *
 * However large an item is, no more than the buffer is held: a source that reads is read in
 * pieces, and memory is written from where it is. The same items give the same bytes, whatever the
 * buffer and the kind of source.
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

#define DCP_TRANSFORM_ZSTD "stream.zstd/1"

struct dcp_file_opts {
	int zstd_level; /* 0: nothing is compressed */
	size_t buffer;	/* bytes, at least DCP_FILE_MIN_BUFFER */
	/* So many more bytes of data have been written; or NULL. */
	void (*progress)(void *arg, uint64_t bytes);
	void *arg;
};

enum { DCP_FILE_MIN_BUFFER = 128 * 1024 };

/* Takes fd, which dcp_file_free closes, in any case. */
int dcp_file_new(int fd, const struct dcp_file_opts *opts, struct dcp_file **ret,
		 struct ckpt_err *e);
/* The next item: a chunk as an archive, or an object's bytes as they are. Which of the file's bytes
 * it has become. */
int dcp_file_add(struct dcp_file *f, const struct ckpt_write_item *item, const struct ckpt_data *s,
		 uint64_t *ret_offset, uint64_t *ret_length, struct ckpt_err *e);
/* All of it to disk. */
int dcp_file_sync(struct dcp_file *f, struct ckpt_err *e);
void dcp_file_free(struct dcp_file *f); /* NULL is fine */

#endif
