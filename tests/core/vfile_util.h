/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vfile_util - reads virtual files, whose tensors and objects hold made-up bytes, and makes up
 * tensors to put into them.
 *
 *	struct members l = members_random(&r, 100, st_holds);
 *	...
 *	b = vfile_blob(&f);
 *	members_free(&l);
 */
#ifndef TESTS_VFILE_UTIL_H
#define TESTS_VFILE_UTIL_H

#include "base/blob.h"
#include "base/buf.h"
#include "file/vfile.h"
#include "model/dtype.h"
#include "rng.h"
#include "tensor/tensor_info.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Byte `off` of tensor, object or asset `id`. */
uint8_t fake_byte(uint64_t id, uint64_t off);
/* Borrows f. Reading checks that the segments follow each other. */
struct blob vfile_blob(const struct vfile *f);
/* All of it, for the caller to release. */
struct buf vfile_all(const struct vfile *f);

struct members {
	struct tensor_info *m;
	size_t n;
};

/*
 * n tensors with varied names (quotes, blanks, any Unicode but NUL), of dtypes that `holds`
 * accepts, of 0 to 5 dimensions, some without elements. Their ids are 1000, 1001, ...
 */
struct members members_random(struct rng *r, size_t n, bool (*holds)(enum ckpt_dtype));
void members_free(struct members *l);
/* One tensor; its size in bytes follows from shape and dtype. */
struct tensor_info member_of(const char *name, enum ckpt_dtype t, size_t n_dims,
			     const uint64_t *shape, uint64_t id);

typedef int layout_fn(const struct tensor_info *m, size_t n, struct vfile *ret, struct ckpt_err *e);
/* Lays out a file of random tensors while each allocation fails in turn: each time there must be a
 * clean error, and more than `least` of them in all. */
void layout_without_memory(layout_fn *layout, bool (*holds)(enum ckpt_dtype), unsigned least);

#endif
