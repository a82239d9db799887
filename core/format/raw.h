/* SPDX-License-Identifier: Apache-2.0 */
/*
 * raw - items that consist only of elements: a tensor's bytes in a safetensors file, in the storage
 * of an archive that was opened for indexing, or in a file of their own.
 *
 * The encoding's name in the chunk index gives the layout:
 *
 *	raw                          C order, little-endian
 *	raw:strides=1,64             elements between neighbours along each dimension
 *	raw:be                       every number's bytes are in reverse order
 *	raw:neg, raw:conj            the values are the negatives, the complex conjugates
 *
 * in this order if several apply: "raw:strides=1,64:be". Codecs may follow (codec/coding.h):
 * "raw:be+gzip". The item, decoded, begins at element 0 and ends after the furthest one, or later.
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
/* Steps over the name of a layout, up to the codecs behind it. False: it is another encoding, or
 * not an encoding. */
bool raw_take(const char **name, struct raw_layout *ret);

/*
 * Length of an item with these sizes; false if it does not fit 63 bits, or the strides are for
 * another number of dimensions.
 */
bool raw_extent(const struct raw_layout *l, enum ckpt_dtype dtype, size_t n_dims,
		const uint64_t *len, uint64_t *ret);
/* The payload of an item of `length` bytes; of *want only dtype and sizes are used. ret->stride as
 * for item_open. */
int raw_open(const struct raw_layout *l, const struct item_want *want, uint64_t length,
	     struct payload *ret, struct ckpt_err *e);

#endif
