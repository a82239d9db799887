/* SPDX-License-Identifier: Apache-2.0 */
/*
 * raw - items that are nothing but elements: a tensor's bytes inside a safetensors file, inside the
 * storage of an archive that has been looked into, or in a file of their own.
 *
 * How they lie is the encoding's name in the chunk index:
 *
 *	raw                          C order, little-endian
 *	raw:strides=1,64             elements between neighbours along each dimension
 *	raw:be                       every number's bytes are in reverse order
 *	raw:neg, raw:conj            the values are the negatives, the complex conjugates
 *
 * in this order where several apply: "raw:strides=1,64:be". The item begins at element 0 and ends
 * behind the furthest one.
 *
 * Threads: pure.
 */
#ifndef FORMAT_RAW_H
#define FORMAT_RAW_H

#include "format/item.h"
#include "model/box.h"

struct buf;

struct raw_layout {
	bool strided, swap, neg, conj;
	uint8_t n_dims; /* of stride */
	uint64_t stride[CKPT_MAX_DIMS];
};

/* Append the encoding's name. */
void raw_name(const struct raw_layout *l, struct buf *ret);
/* False: it is another encoding, or none. */
bool raw_parse(const char *name, struct raw_layout *ret);

/*
 * Bytes of an item with these sizes; false when that does not fit 63 bits, or the strides are for
 * another number of dimensions.
 */
bool raw_extent(const struct raw_layout *l, enum ckpt_dtype dtype, size_t n_dims,
		const uint64_t *len, uint64_t *ret);
/* The payload of an item of `length` bytes; want->fqn and the rest that is not dtype and sizes is
 * not needed. ret->stride as for item_open. */
int raw_open(const struct raw_layout *l, const struct item_want *want, uint64_t length,
	     struct payload *ret, struct ckpt_err *e);

#endif
