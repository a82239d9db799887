/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch_tensor - a tensor as torch.save's data.pkl has it: the call that rebuilds it.
 *
 *	_rebuild_tensor_v2(('storage', FloatStorage, '0', 'cpu', 64), offset, size, stride, ...)
 *
 * with parameters, subclasses and what other versions of torch wrote. The storage is a record of
 * the same archive, data/0; numbers are checked by torch_tensor_reach. Private to core/format.
 *
 * Threads: pure.
 */
#ifndef FORMAT_TORCH_TENSOR_H
#define FORMAT_TORCH_TENSOR_H

#include "model/box.h"
#include "model/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt_err;
struct pk_value;
struct raw_layout;

struct torch_tensor {
	enum ckpt_dtype dtype;
	char key[64];		/* of the storage: "0" */
	uint64_t storage_bytes; /* as data.pkl counts them */
	uint64_t storage_first; /* of legacy files: it begins so many bytes into its root's */
	uint64_t offset, size[CKPT_MAX_DIMS], stride[CKPT_MAX_DIMS]; /* elements */
	size_t n_dims;
	bool untyped; /* _rebuild_tensor_v3 */
	bool neg, conj;
};

int torch_tensor_read(const struct pk_value *v, struct torch_tensor *ret, struct ckpt_err *e);

/* First byte of the storage behind the furthest element, 0 where there is no element; fails when
 * that lies outside. */
int torch_tensor_reach(const struct torch_tensor *t, uint64_t *ret, struct ckpt_err *e);

/* How its elements lie from the first one on; big_endian: the archive's byteorder says so. The
 * tensor has been through torch_tensor_reach. */
void torch_tensor_layout(const struct torch_tensor *t, bool big_endian, struct raw_layout *ret);

#endif
