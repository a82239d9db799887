/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans for tensors of any shape, tiling and layout, carried out and compared with copying element
 * by element. The input's bytes are the choices that the unit tests make at random.
 */
#include "base/checked.h"
#include "read/plan.h"

#include <stdlib.h>
#include <string.h>

#include "core/scene_util.c" /* each target is one file and libcore */
#include "core/whole_util.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct choices {
	const uint8_t *p;
	size_t left;
	uint64_t contents; /* the values of elements do not come from the input */
};

static uint64_t take(void *arg, uint64_t n)
{
	struct choices *c = arg;
	uint64_t v = 0;

	if (n == 256)
		return (c->contents = c->contents * 6364136223846793005u + 1442695040888963407u) >>
		       56;
	for (uint64_t max = n - 1; max && c->left; max >>= 8, c->left--)
		v = v << 8 | *c->p++;
	return v % n;
}

static void require(bool ok)
{
	if (!ok)
		abort();
}

static void carry_out(const struct scene *s, const struct plan *p, uint64_t len, uint8_t *out,
		      uint8_t *times)
{
	for (size_t i = 0; i < p->n; i++) {
		const struct copy *c = &p->copies[i];
		const struct copy_dim *dims = c->n_dims ? p->dims + c->dim : NULL;
		uint64_t counts[CKPT_MAX_DIMS + 1], idx[CKPT_MAX_DIMS + 1] = { 0 };

		require(c->chunk < s->count && c->dim + c->n_dims <= p->n_dims && c->run);
		for (uint32_t d = 0; d < c->n_dims; d++)
			counts[d] = dims[d].count;
		do {
			uint64_t src = c->src, dst = c->dst;

			for (uint32_t d = 0; d < c->n_dims; d++) {
				src += idx[d] * dims[d].src_stride;
				dst += idx[d] * dims[d].dst_stride;
			}
			require(range_ok(src, c->run, s->item_len[c->chunk]));
			require(range_ok(dst, c->run, len));
			memcpy(out + dst, s->items[c->chunk] + src, c->run);
			for (uint64_t k = 0; k < c->run; k++)
				times[dst + k] = times[dst + k] ? 2 : 1;
		} while (next_index(c->n_dims, counts, idx));
	}
}

static void check_range(const struct scene *s, struct plan *p, uint64_t off, uint64_t len)
{
	uint8_t *out = calloc(1, len + 1), *times = calloc(1, len + 1);

	require(out && times);
	require(!plan_whole(s->map, s->element, s->payloads, off, len, p));
	carry_out(s, p, len, out, times);
	require(!memcmp(out, s->want + off, len));
	for (uint64_t i = 0; i < len; i++)
		require(times[i] == 1 || (s->overlap && times[i]));
	free(out);
	free(times);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct choices in = { data, size, 1 };
	struct choose c = { take, &in };
	const struct scene_opts o = { 6, 400, 0, TILE_ANY, ROWS_ANY };
	struct plan p = { 0 };
	struct scene s;

	scene_make(&s, &c, &o);
	check_range(&s, &p, 0, s.bytes);
	for (int i = 0; i < 4 && s.bytes; i++) {
		uint64_t off = take(&in, s.bytes);

		check_range(&s, &p, off, 1 + take(&in, s.bytes - off));
	}
	plan_release(&p);
	scene_release(&s);
	return 0;
}
