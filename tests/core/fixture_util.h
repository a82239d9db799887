/* SPDX-License-Identifier: Apache-2.0 */
/* fixture_util - every checkpoint of tests/data that can be opened, and boxes cut out of tensors'
 * bytes. */
#ifndef TESTS_FIXTURE_UTIL_H
#define TESTS_FIXTURE_UTIL_H

#include "base/cleanup.h"
#include "base/err.h"
#include "data_util.h"
#include "model/box.h"
#include "model/dtype.h"
#include "opts_util.h"
#include "rng.h"
#include "suites.h"
#include <ckptfs/ckpt.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline int fixture_count(void)
{
	return data_count("ckpt");
}

/* NULL: not one, or damaged. */
static inline struct ckpt *fixture_open(int i, const struct ckpt_opts *opts, char path[static 4400])
{
	static const char *const places[] = { "ckpt", "ckpt/model.pt" };
	struct ckpt_opts o = *opts;
	struct ckpt *c = NULL;
	struct ckpt_err e = { 0 };

	o.index = ":memory:";
	o.allow_missing = true;
	for (size_t k = 0; k < 2 && !c; k++) {
		(void)snprintf(path, 4400, "%s/%s/%s", data_dir(), data_name(i), places[k]);
		if (open_typed(path, &o, &c, &e))
			c = NULL;
	}
	return c;
}

/* All bytes of a file, which is closed. */
static inline uint8_t *fixture_read(struct ckpt_file *f)
{
	uint64_t n = ckpt_file_size(f);
	uint8_t *p = malloc(n + 1);
	struct ckpt_err e = { 0 };

	REQUIRE(p);
	ck_assert_msg(ckpt_file_read(f, p, n, 0, &e) == (int64_t)n, "%s", e.msg);
	ckpt_file_close(f);
	return p;
}

/* A random box inside the shape, sometimes empty, sometimes all of it. */
static inline void random_box(struct rng *r, size_t n, const uint64_t *shape, uint64_t *off,
			      uint64_t *len)
{
	bool whole = rng_chance(r, 10);

	for (size_t d = 0; d < n; d++) {
		off[d] = whole ? 0 : rng_below(r, shape[d] + 1);
		len[d] = whole ? shape[d] : rng_below(r, shape[d] - off[d] + 1);
		if (!whole && !len[d] && off[d] < shape[d] && rng_chance(r, 90))
			len[d] = 1 + rng_below(r, shape[d] - off[d]);
	}
}

/* The elements of the box, one by one. */
static inline uint8_t *cut_box(const uint8_t *whole, size_t size, size_t n, const uint64_t *shape,
			       const uint64_t *off, const uint64_t *len, uint64_t *ret_bytes)
{
	uint64_t volume = 0;
	uint8_t *p;

	REQUIRE(box_volume(n, len, &volume));
	p = malloc(volume * size + 1);
	REQUIRE(p);
	for (uint64_t i = 0; i < volume; i++) {
		uint64_t at = 0, left = i, stride = 1;

		for (size_t d = n; d-- > 0; stride *= shape[d]) {
			at += (off[d] + left % len[d]) * stride;
			left /= len[d];
		}
		memcpy(p + i * size, whole + at * size, size);
	}
	*ret_bytes = volume * size;
	return p;
}

/* ckpt_box_open or ckpt_model_box_open. */
typedef int open_box_fn(struct ckpt *c, uint64_t i, const uint64_t *off, const uint64_t *len,
			struct ckpt_file **ret, struct ckpt_err *e);

/* Reads boxes of tensor i, and compares them with its bytes, `whole`. */
static inline void check_boxes(struct ckpt *c, uint64_t i, const struct ckpt_tensor *t,
			       open_box_fn *open, const uint8_t *whole, struct rng *r)
{
	size_t size = dtype_info(ckpt_dtype_by_name(t->dtype, strlen(t->dtype)))->size;

	for (int k = 0; k < 6; k++) {
		uint64_t off[CKPT_MAX_DIMS], len[CKPT_MAX_DIMS], bytes;
		autofree uint8_t *want = NULL, *got = NULL;
		struct ckpt_file *f = NULL;
		struct ckpt_err e = { 0 };

		random_box(r, t->n_dims, t->shape, off, len);
		want = cut_box(whole, size, t->n_dims, t->shape, off, len, &bytes);
		ck_assert_msg(!open(c, i, off, len, &f, &e), "%s", e.msg);
		REQUIRE(ckpt_file_size(f) == bytes);
		if (bytes) { /* a part, which may begin and end within an element */
			uint64_t from = rng_below(r, bytes), n = 1 + rng_below(r, bytes - from);
			autofree uint8_t *part = malloc(n);

			REQUIRE(part && ckpt_file_read(f, part, n, from, &e) == (int64_t)n);
			REQUIRE(!memcmp(part, want + from, n));
		}
		got = fixture_read(f);
		REQUIRE(!memcmp(got, want, bytes));
	}
}

#endif
