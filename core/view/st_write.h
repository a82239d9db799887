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
#ifndef VIEW_ST_WRITE_H
#define VIEW_ST_WRITE_H

#include "model/dtype.h"

#include <stdbool.h>
#include <stddef.h>

struct err;
struct member;
struct vfile;

/* Has the format such elements? */
bool st_holds(enum dtype t);
/* Can it hold this tensor? 0, or ERR_UNSUPPORTED and why not. */
int st_check(const struct member *m, struct err *e);

/*
 * The file of these n tensors of different names; *ret is the caller's to release. Fails with
 * ERR_UNSUPPORTED where st_check would, EFBIG, ENOMEM.
 */
int st_layout(const struct member *m, size_t n, struct vfile *ret, struct err *e);

#endif
