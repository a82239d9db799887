/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensor_read - the bytes of virtual tensors: a range is planned, the plan's copies are gathered
 * from items, and values that are shown in another dtype are converted.
 *
 * A virtual tensor is read through the stored ones behind its pieces, which stay open as long as it
 * does.
 *
 * Threads: all functions from any thread.
 */
#ifndef READ_TENSOR_READ_H
#define READ_TENSOR_READ_H

#include "model/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt_err;
struct fetch;
struct parts;
struct tensor_reader;
struct vtensor;

/* Opens a virtual tensor. Takes ownership of v, even on failure. */
int tensor_open(struct fetch *f, struct vtensor *v, struct tensor_reader **ret, struct ckpt_err *e);
void tensor_close(struct fetch *f, struct tensor_reader *r); /* NULL is fine */
bool tensor_is_encoded(const struct tensor_reader *r); /* some of its items have to be decoded */
/* How many bytes it has if computing them takes long: blocks of 256 elements, for which many scales
 * are tried; else 0. */
uint64_t tensor_slow_bytes(const struct tensor_reader *r);
/* Reads exactly len bytes at off, inside the tensor as it is shown. If parts is not NULL, buf is in
 * its buffer, and parts may take some of the bytes in place; all others are written to buf. */
int tensor_read(struct fetch *f, const struct tensor_reader *r, void *buf, size_t len, uint64_t off,
		struct parts *parts, struct ckpt_err *e);

/*
 * Reads the whole tensor into memory where element x is at sum(x[d] * strides[d]) bytes, over the
 * dimensions of the virtual tensor's shape, with strides of any sign. The elements are cast to
 * dtype: the dtype that the tensor is shown as, or one that it can be cast to. Not for blocks.
 */
int tensor_scatter(struct fetch *f, const struct tensor_reader *r, void *to, const int64_t *strides,
		   enum ckpt_dtype dtype, struct ckpt_err *e);

/* Bytes [off, off+len), which lie inside, will be read soon: the parts of items that they are made
 * of are announced to the sources. False: all of them are in memory, see source_want. */
bool tensor_want(struct fetch *f, const struct tensor_reader *r, uint64_t off, uint64_t len);

/* The parts of source files that the whole tensor is read or computed from, as stored, in no order;
 * they may overlap. A non-zero return value of `each` stops the listing and is returned. */
typedef int fetch_span_fn(void *arg, uint32_t file, uint64_t off, uint64_t len);
int tensor_spans(struct fetch *f, const struct tensor_reader *r, fetch_span_fn *each, void *arg,
		 struct ckpt_err *e);

/* Is byte i of the tensor, as it is shown, at *ret_off + i of source file *ret_file, for all i? 0:
 * yes; 1: no. */
int tensor_in_place(const struct tensor_reader *r, uint32_t *ret_file, uint64_t *ret_off,
		    struct ckpt_err *e);

#endif
