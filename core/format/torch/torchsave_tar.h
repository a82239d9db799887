/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torchsave_tar - the tar files of torch 0.1.0 to 0.1.9, in which tensors and storages both are
 * persistent ids (torch/serialization.py, _legacy_load, legacy_load):
 *
 *	sys_info	pickle, not read
 *	pickle		what was saved
 *	tensors		pickle: count; per tensor a pickle (key, storage's key, class), the number
 *			of dimensions in 32 bits, 32 bits more, and in 64 bits each sizes, strides
 *			and offset
 *	storages	pickle: count; per storage a pickle (key, location, class), and in 64 bits
 *			the number of elements, and the elements; then a pickle, list of (key, root's
 *			key, offset, count), of storages that are parts of others
 *
 * Python wrote each member behind an extended header, for the fractions of its time. Private to
 * core/format/torch.
 *
 * Threads: one at a time.
 */
#ifndef TORCH_TORCHSAVE_TAR_H
#define TORCH_TORCHSAVE_TAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct blob;
struct ckpt_err;
struct pk_value;
struct torch_tensor;
struct torchsave;

enum { TAR_PICKLE, TAR_TENSORS, TAR_STORAGES, TAR_MEMBERS };

struct tar_members {
	struct {
		uint64_t at, len;
	} m[TAR_MEMBERS];
	unsigned found; /* a bit for each */
};

/* The members of those names; not an error if the file is no tar. */
int tar_members_find(const struct blob *file, struct tar_members *ret, struct ckpt_err *e);
static inline bool tar_members_complete(const struct tar_members *t)
{
	return t->found == (1u << TAR_MEMBERS) - 1;
}

struct torchsave_tar;

/* Reads the tables and enters the storages. The pickle is read by the caller. */
int torchsave_tar_open(struct torchsave *t, const struct tar_members *m, struct ckpt_err *e);
void torchsave_tar_free(struct torchsave_tar *x);
/* Is it the persistent id of a tensor, or of a storage? */
bool torchsave_tar_has(struct torchsave *t, const struct pk_value *v, bool tensor);
int torchsave_tar_tensor(struct torchsave *t, const struct pk_value *v, struct torch_tensor *ret,
			 struct ckpt_err *e);

#endif
