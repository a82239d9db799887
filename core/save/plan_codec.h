/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_codec - serialises plans and write results, which ranks send to each other.
 *
 * Fixed-size records and one table of texts, mostly in one zstd frame (plan_codec.c describes the
 * format). The bytes are exchanged only between ranks of one program, so there are no versions.
 *
 * Encoding appends to *b and fails with ENOMEM, with EFBIG at b's ceiling or beyond 4 GiB of texts,
 * numbers or records, and with EINVAL for an item whose indices do not have its number of
 * dimensions. Decoding fails with ERR_CORRUPT for bytes that encoding does not produce: another
 * kind, an unknown dtype, too many dimensions, counts larger than the message, a frame that expands
 * more than 1,024 times. The meaning of numbers is not checked. Decoding uses at most about 5 bytes
 * of the arena per decoded byte; decoded values borrow nothing else.
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

/* path and transform are NUL-terminated. */
int write_results_encode(const struct ckpt_write_result *v, size_t n, struct buf *b,
			 struct ckpt_err *e);
int write_results_decode(const void *data, size_t len, struct arena *a,
			 const struct ckpt_write_result **ret, size_t *ret_n, struct ckpt_err *e);

#endif
