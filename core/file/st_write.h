/* SPDX-License-Identifier: Apache-2.0 */
/*
 * st_write - a safetensors file made of virtual tensors: the header is written here, the data only
 * named.
 *
 * u64 length, JSON padded with spaces so that the data begins on a multiple of 4096, tensors
 * without holes, as the format demands. Between tensors nothing can be padded, so they stand by
 * falling element size, which aligns each naturally; within one size in the order given.
 *
 * Source: safetensors 0.8. Threads: pure.
 */
#ifndef FILE_ST_WRITE_H
#define FILE_ST_WRITE_H

#include "model/dtype.h"
#include "parse/safetensors.h"

#include <stdbool.h>
#include <stddef.h>

struct buf;
struct ckpt_err;
struct tensor_info;
struct vfile;

#define ST_HEADER_CAP (8 + (size_t)ST_MAX_HEADER)

/* Has the format such elements? */
bool st_holds(enum ckpt_dtype t);
/* Can it hold this tensor? 0, or ERR_UNSUPPORTED and why not. */
int st_check(const struct tensor_info *m, struct ckpt_err *e);

/* The order in which n tensors stand in a file: ret[0] is the first one's number. */
void st_order(const struct tensor_info *m, size_t n, size_t *ret);

struct st_note { /* an entry of __metadata__, beside "format": "pt" */
	const char *key, *value;
	size_t len; /* bytes of the value, UTF-8 */
};
/*
 * What stands in front of the data, the length included, of n tensors in the order st_order has
 * put them; ret is empty and has room for ST_HEADER_CAP. EFBIG beyond that.
 */
int st_header(const struct tensor_info *m, const size_t *order, size_t n,
	      const struct st_note *notes, size_t n_notes, struct buf *ret, struct ckpt_err *e);

/*
 * The file of these n tensors of different names; *ret is the caller's to release. Fails with
 * ERR_UNSUPPORTED where st_check would, EFBIG, ENOMEM.
 */
int st_layout(const struct tensor_info *m, size_t n, struct vfile *ret, struct ckpt_err *e);

#endif
