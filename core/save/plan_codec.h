/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_codec - plans and write results as bytes, which ranks send to each other.
 *
 * An item says only what is different from the item before it, as nearly all of it is the same. The
 * bytes are between ranks of one program; there are no versions of them.
 *
 * Encoding appends to *b and fails with ENOMEM, with EFBIG at b's ceiling, and with EINVAL for
 * an item whose indices have not its number of dimensions. Decoding fails with ERR_CORRUPT for
 * bytes that encoding does not make: values of another kind, no dtype, too many dimensions, counts
 * that the bytes cannot hold. What numbers mean is not looked at. It takes some 100 bytes of the
 * arena for a byte at most; decoded values borrow nothing else.
 *
 * Threads: pure.
 */
#ifndef SAVE_PLAN_CODEC_H
#define SAVE_PLAN_CODEC_H

#include "save/metadata.h"

#include <stddef.h>

struct arena;
struct buf;
struct ckpt_err;

int save_plan_encode(const struct ckpt_save_plan *p, struct buf *b, struct ckpt_err *e);
int save_plan_decode(const void *data, size_t len, struct arena *a, struct ckpt_save_plan *ret,
		     struct ckpt_err *e);

int load_plan_encode(const struct ckpt_load_plan *p, struct buf *b, struct ckpt_err *e);
int load_plan_decode(const void *data, size_t len, struct arena *a, struct ckpt_load_plan *ret,
		     struct ckpt_err *e);

/* path and transform end at their NUL. */
int write_results_encode(const struct ckpt_write_result *v, size_t n, struct buf *b,
			 struct ckpt_err *e);
int write_results_decode(const void *data, size_t len, struct arena *a,
			 const struct ckpt_write_result **ret, size_t *ret_n, struct ckpt_err *e);

#endif
