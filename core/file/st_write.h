/* SPDX-License-Identifier: Apache-2.0 */
/*
 * st_write - a safetensors file composed of virtual tensors: the header is generated here, the data
 * is only referenced.
 *
 * u64 length, JSON padded with spaces so that the data begins at a multiple of 4096, then tensors
 * without gaps, as the format demands. Padding between tensors is not allowed, so they are sorted
 * by decreasing element size, which aligns each naturally; tensors of the same element size keep
 * the given order.
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

/* Does the format have this element type? */
bool st_holds(enum ckpt_dtype t);
/* Can the format hold this tensor? 0, or ERR_UNSUPPORTED with the reason. */
int st_check(const struct tensor_info *m, struct ckpt_err *e);

/* The order of n tensors in a file: ret[0] is the number of the first one. */
void st_order(const struct tensor_info *m, size_t n, size_t *ret);

struct st_note { /* an entry of __metadata__, in addition to "format": "pt" */
	const char *key, *value;
	size_t len; /* bytes of the value, UTF-8 */
};
/*
 * Everything before the data, including the length, for n tensors in the order of st_order; ret
 * must be empty with room for ST_HEADER_CAP. EFBIG beyond that.
 */
int st_header(const struct tensor_info *m, const size_t *order, size_t n,
	      const struct st_note *notes, size_t n_notes, struct buf *ret, struct ckpt_err *e);

/*
 * The file of these n tensors, whose names differ; the caller releases *ret. Fails with
 * ERR_UNSUPPORTED if st_check would, EFBIG or ENOMEM.
 */
int st_layout(const struct tensor_info *m, size_t n, struct vfile *ret, struct ckpt_err *e);

#endif
