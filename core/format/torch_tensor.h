/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch_tensor - a tensor in torch.save's data.pkl: the call that rebuilds it.
 *
 *	_rebuild_tensor_v2(('storage', FloatStorage, '0', 'cpu', 64), offset, size, stride, ...)
 *
 * including parameters, subclasses and the forms of other torch versions. The storage is a record
 * of the same archive, data/0; numbers are checked by torch_tensor_reach. Private to core/format.
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
	uint64_t storage_bytes; /* as counted in data.pkl */
	uint64_t storage_first; /* legacy files: its offset in bytes within its root storage */
	uint64_t offset, size[CKPT_MAX_DIMS], stride[CKPT_MAX_DIMS]; /* elements */
	size_t n_dims;
	bool untyped; /* _rebuild_tensor_v3 */
	bool neg, conj;
};

/* The persistent id that stands for a storage. */
struct torch_storage_id {
	char key[64], class[100]; /* "0", "FloatStorage" */
	uint64_t count;		  /* elements of the class; of UntypedStorage bytes */
	bool is_window;
	uint64_t window[2]; /* offset and count in its root storage, which has the key */
};

bool torch_is_storage_id(const struct pk_value *id);
int torch_storage_id_read(const struct pk_value *id, struct torch_storage_id *ret,
			  struct ckpt_err *e);

enum { TORCH_MAX_WRAPPERS = 4 };

/* The call that makes a tensor, without what wraps it: Parameter(tensor), a subclass's class. */
struct torch_call {
	const struct pk_value *value;	  /* the call; NULL: a subclass has only its parts */
	const struct pk_value *fn, *args; /* NULL: the value is not a call */
	const struct pk_value *class;	  /* the subclass, or NULL */
	const struct pk_value *dtype;	  /* which it is converted to when it is loaded, or NULL */
	const struct pk_value *state[TORCH_MAX_WRAPPERS]; /* attributes of the wrappers */
	size_t n_states;
};

/* Is it a value that torch rebuilds, any kind of tensor? v may be NULL. */
bool torch_is_tensor(const struct pk_value *v);
/* False: it is no such value. */
bool torch_call_of(const struct pk_value *v, struct torch_call *ret);
int torch_call_read(const struct torch_call *c, struct torch_tensor *ret, struct ckpt_err *e);
/* The tensor whose elements are meant, if the class is one that only changes how they are used,
 * such as torchao's for training in float8; or NULL. torch_call_read reads it. */
const struct pk_value *torch_call_plain(const struct torch_call *c);
/* Both at once. */
int torch_tensor_read(const struct pk_value *v, struct torch_tensor *ret, struct ckpt_err *e);

/* First byte of the storage after the furthest element; 0 if there are no elements. Fails if it is
 * outside the storage. */
int torch_tensor_reach(const struct torch_tensor *t, uint64_t *ret, struct ckpt_err *e);

/* Layout of its elements from the first one on; big_endian: according to the archive's byteorder.
 * The tensor must have passed torch_tensor_reach. */
void torch_tensor_layout(const struct torch_tensor *t, bool big_endian, struct raw_layout *ret);

#endif
