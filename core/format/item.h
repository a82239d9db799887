/* SPDX-License-Identifier: Apache-2.0 */
/*
 * item - the inside of an item: where its elements are and how they are laid out.
 *
 * A tensor's item is one complete torch.save archive: a pickle with dtype, sizes, strides and
 * storage, then the storage's bytes. torch stores a tensor with the strides it has in memory
 * (transposed, shifted, overlapping), with unresolved conj and neg bits, and in the byte order of
 * the machine. FileSystemWriter(serialization_format=SAFETENSORS) instead puts one safetensors blob
 * with all tensors of a file where the first one's item would begin.
 *
 * Threads: any; see struct item_cache.
 */
#ifndef FORMAT_ITEM_H
#define FORMAT_ITEM_H

#include "base/blob.h"
#include "model/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt_err;

/* Element x of the chunk is at data + sum(x[d] * stride[d]), in bytes from the item's start. */
struct payload {
	uint64_t data;
	uint64_t end;	  /* first byte after the furthest element */
	bool swap;	  /* the bytes of every number are reversed */
	bool neg, conj;	  /* the value is the negative; the complex conjugate */
	uint64_t *stride; /* bytes, one per dimension */
};

/* Do the stored bytes differ from those of the values? */
static inline bool payload_is_odd(const struct payload *p)
{
	return p->swap || p->neg || p->conj;
}
/* Converts `bytes` bytes of whole elements to the values they represent. */
void payload_resolve(const struct payload *p, enum ckpt_dtype dtype, void *elements, size_t bytes);

/* Parsed safetensors headers are shared by the items of a file. */
struct item_cache;
struct item_cache *item_cache_new(void);
void item_cache_free(struct item_cache *c);

struct item_want {
	const char *fqn;
	size_t fqn_len;
	enum ckpt_dtype dtype;
	size_t n_dims;
	const uint64_t *len;	 /* the chunk's sizes */
	uint32_t file;		 /* where the item is, for the cache: its file's number */
	uint64_t offset;	 /* and its first byte there */
	const struct blob *rest; /* from the item's start to the end of its file; NULL if encoded */
};

/*
 * Opens the item that `item` reads (decoded). ret->stride is the caller's array of n_dims numbers.
 * Fails if dtype or sizes are not the expected ones or any element would be outside the item.
 */
int item_open(const struct blob *item, const struct item_want *want, struct item_cache *cache,
	      struct payload *ret, struct ckpt_err *e);

#endif
