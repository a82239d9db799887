/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt_upload - writes files to an object store, where they appear all at once or not at all.
 *
 *	rc = ckpt_upload_begin("s3://bucket/model", false, NULL, &u, &e);
 *	for (unsigned i = 1; i <= parts; i++)                     // in any order, by any threads
 *		rc = ckpt_upload_part(u, file, "model.safetensors", size, i, read, arg, &e);
 *	rc = ckpt_upload_commit(u, &e);
 *	ckpt_upload_end(u, left, sizeof(left));
 *
 * Addresses are s3://BUCKET/KEY and gs://BUCKET/KEY; see ckptfs-remote(7). Bytes go through
 * ckptfs-fetch, a separate process. What is not committed is removed, even if the program is
 * killed.
 *
 * Threads: ckpt_upload_part from any; the others from one.
 */
#ifndef CKPTFS_CKPT_UPLOAD_H
#define CKPTFS_CKPT_UPLOAD_H

#include "ckpt_base.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

CKPT_BEGIN

struct ckpt_upload;

/*
 * is_file: the address is that of a single file, rather than one below which files are written.
 * EEXIST: something exists there.
 * opts: as for ckpt_open (endpoint=, region=, profile=, anonymous, retry=); NULL: none.
 */
CKPT_API int ckpt_upload_begin(const char *address, bool is_file, const char *const opts[],
			       struct ckpt_upload **ret, struct ckpt_err *e);

/* Bytes of each part, except the last, of a file of that size; an empty file has one part. */
CKPT_API uint64_t ckpt_upload_part_size(uint64_t size);

/*
 * Sends part `number`, counted from 1, of file `file`, which is any number below 2^22 that is
 * different for each path. read() supplies bytes [off, off + n) of the file and returns 0, or a
 * negative errno with a sentence. Returns when the part has been read, and waits while too much is
 * in transit. An error may be that of an earlier part. path is relative, and ignored if the address
 * is that of a file.
 */
CKPT_API int ckpt_upload_part(struct ckpt_upload *u, uint32_t file, const char *path, uint64_t size,
			      unsigned number,
			      int (*read)(void *arg, uint64_t off, void *to, size_t n,
					  struct ckpt_err *e),
			      void *arg, struct ckpt_err *e);

/* Makes this file appear after all others; several such files appear in the order of the calls. */
CKPT_API int ckpt_upload_last(struct ckpt_upload *u, const char *path, struct ckpt_err *e);

/* Makes the files appear. To be called when all parts of all files have been sent. */
CKPT_API int ckpt_upload_commit(struct ckpt_upload *u, struct ckpt_err *e);
/* Removes what is not committed, and frees u; NULL is fine. Writes a sentence about what could not
 * be removed to left, truncated to cap bytes, or ""; left may be NULL if cap is 0. */
CKPT_API void ckpt_upload_end(struct ckpt_upload *u, char *left, size_t cap);

CKPT_END

#endif
