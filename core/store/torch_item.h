/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch_item - an item of a DCP data file: the archive that torch.save writes for one tensor or
 * object, produced in pieces, so that the tensor need not be in memory.
 *
 *	struct torch_item t;
 *	torch_item_begin(&t, CKPT_DTYPE_BF16, 2, shape, &head, &e);
 *	...                             // write head, then t.data_len bytes of data
 *	torch_item_end(&t, crc, &tail);
 *	...                             // write tail: t.at bytes in all
 *
 *	archive/data.pkl                the tensor, pickle protocol 2
 *	archive/.format_version         "1"
 *	archive/.storage_alignment      "64"
 *	archive/byteorder               "little"
 *	archive/data/0                  the elements in row-major order; tensors only
 *	archive/version                 "3\n"
 *	archive/.data/serialization_id  of the records' names and CRCs
 *
 * Each record is aligned to 64 bytes, relative to the item's start. The bytes are those that torch
 * 2.14 writes for a contiguous tensor, including serialization_id.
 *
 * Sources: torch 2.14 serialization.py, caffe2/serialize/inline_container.cc, miniz; PKWARE APPNOTE
 * 6.3.
 * Threads: pure.
 */
#ifndef STORE_TORCH_ITEM_H
#define STORE_TORCH_ITEM_H

#include "model/dtype.h"

#include <stddef.h>
#include <stdint.h>

struct buf;
struct ckpt_err;

enum { TORCH_ITEM_RECORDS = 7, TORCH_ITEM_ALIGN = 64 };

struct torch_item {
	uint64_t at;	   /* bytes of the item so far, including data */
	uint64_t data_len; /* bytes between head and tail; 0: an object */
	struct torch_record {
		const char *name; /* without "archive/" */
		uint64_t header, size;
		uint32_t crc;
	} records[TORCH_ITEM_RECORDS];
	size_t n;
};

/*
 * Appends everything before the data. ERR_UNSUPPORTED for quantised dtypes, whose tensors consist
 * of more than elements; EOVERFLOW, ENOMEM, EFBIG.
 */
int torch_item_begin(struct torch_item *t, enum ckpt_dtype dtype, size_t n_dims,
		     const uint64_t *shape, struct buf *ret, struct ckpt_err *e);
/* Appends everything after the data; crc is the CRC-32 of the data. */
int torch_item_end(struct torch_item *t, uint32_t crc, struct buf *ret, struct ckpt_err *e);

/* Appends a whole item with a pickle of any protocol that has no persistent ids. */
int torch_item_wrap(const void *pickle, size_t n, struct buf *ret, struct ckpt_err *e);
/* The pickle in an item without tensors: 1, and *ret points into the item; 0: it is something else;
 * or -ENOMEM. */
int torch_item_unwrap(const void *item, size_t n, const void **ret, size_t *ret_n,
		      struct ckpt_err *e);
/* The same for an item that may have tensors, whose types and shapes are then in the pickle. */
int torch_item_pickle(const void *item, size_t n, const void **ret, size_t *ret_n,
		      struct ckpt_err *e);
/* Is it an item, with or without tensors? 1, 0, or -ENOMEM. */
int torch_item_is(const void *item, size_t n, struct ckpt_err *e);

#endif
