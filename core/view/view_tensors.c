/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensors/FQN: the whole tensor, C order, little-endian, no header.
 * npy/FQN.npy: the same behind a NumPy header.
 * objects/FQN: a non-tensor item, its stored bytes after undoing transforms.
 */
#include "catalog/catalog_query.h"
#include "view/npy.h"
#include "view/view.h"

#include <string.h>

static void describe_tensor(const struct catalog *c, size_t index, struct vfile *ret)
{
	size_t n;
	const struct catalog_tensor *t = &catalog_tensors(c, &n)[index];

	ret->size = t->bytes;
	ret->n = 1;
	ret->seg[0] = (struct segment){ .kind = SEG_TENSOR, .len = t->bytes, .index = index };
}

static void describe_npy(const struct catalog *c, size_t index, struct vfile *ret)
{
	size_t n;
	const struct catalog_tensor *t = &catalog_tensors(c, &n)[index];
	uint64_t head = npy_header(t->dtype, t->n_dims, t->shape, ret->literal);

	ret->size = head + t->bytes;
	ret->n = 2;
	ret->seg[0] = (struct segment){ .kind = SEG_BYTES, .len = head, .bytes = ret->literal };
	ret->seg[1] = (struct segment){
		.kind = SEG_TENSOR, .off = head, .len = t->bytes, .index = index
	};
}

static void describe_object(const struct catalog *c, size_t index, struct vfile *ret)
{
	size_t n;
	const struct catalog_object *o = &catalog_objects(c, &n)[index];
	const char *encoding = catalog_encodings(c, &n)[o->loc.encoding];

	/* The decoded length of a compressed object is recorded nowhere. */
	ret->size = n && strchr(encoding, '+') ? VIEW_SIZE_UNKNOWN : o->loc.length;
	ret->n = 1;
	ret->seg[0] = (struct segment){ .kind = SEG_OBJECT, .len = ret->size, .index = index };
}

const struct face face_tensors = { "tensors", "", false, describe_tensor };
const struct face face_npy = { "npy", ".npy", false, describe_npy };
const struct face face_objects = { "objects", "", true, describe_object };
