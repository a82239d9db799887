/* SPDX-License-Identifier: Apache-2.0 */
#include "read/gather.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "model/box.h"
#include "read/scatter.h"
#include "source/guard.h"
#include "source/parts.h"

#include <stdlib.h>
#include <string.h>

enum {
	/* Bytes read at once to scatter from. */
	MAX_BAND = 8 << 20,
	/* Read even if most of it is not wanted: one call, a few pages. */
	SMALL_BAND = 64 * 1024,
	/* Distance between runs: a disk reads this much in the time of one seek. */
	CLOSE = 128 * 1024,
	MANY_RUNS = 16,
};

#define MAX_MAPPED ((uint64_t)1 << 30) /* bytes mapped at once if they are in memory */

/* Dimensions by falling source stride, so that splitting the first keeps the rest close together.
 */
struct job {
	const struct gather *g;
	struct copy_dim dims[CKPT_MAX_DIMS];
	uint32_t n;
	uint64_t run;
};

static uint64_t span_of(const struct job *j, uint32_t from)
{
	uint64_t span = j->run;

	for (uint32_t d = from; d < j->n; d++)
		span += (j->dims[d].count - 1) * j->dims[d].src_stride;
	return span;
}

static uint64_t wanted_of(const struct job *j, uint32_t from)
{
	uint64_t bytes = j->run;

	for (uint32_t d = from; d < j->n; d++)
		bytes *= j->dims[d].count;
	return bytes;
}

static int read_band(const struct job *j, uint32_t from, uint64_t src, uint8_t *to, uint64_t span,
		     struct ckpt_err *e)
{
	const struct gather *g = j->g;
	autofree uint8_t *band = malloc(span);
	int rc;

	if (!band)
		return err_nomem(e);
	rc = item_read(&g->item, band, span, src, e);
	if (!rc)
		scatter(j->dims + from, j->n - from, j->run, to, band);
	return rc;
}

/* ---- from the page cache ---- */

struct scattering {
	const struct job *j;
	uint32_t from;
	uint8_t *to;
	const uint8_t *data;
};

static void scatter_guarded(void *arg)
{
	const struct scattering *s = arg;

	scatter(s->j->dims + s->from, s->j->n - s->from, s->j->run, s->to, s->data);
}

/* Are the runs so close together that a disk reads the whole span in order sooner than the runs one
 * by one? The bytes between them are likely to be requested next. */
static bool is_close(const struct job *j, uint32_t from, uint64_t span)
{
	uint64_t runs = wanted_of(j, from) / j->run;

	return runs >= MANY_RUNS && span / runs <= CLOSE;
}

/* 1: the bytes are not in memory, or the file has become shorter. */
static int from_pages(const struct job *j, uint32_t from, uint64_t src, uint8_t *to, uint64_t span,
		      bool bring, struct ckpt_err *e)
{
	const struct gather *g = j->g;
	struct scattering s = { j, from, to, NULL };
	int rc;

	s.data = item_map(&g->item, src, span, bring);
	if (!s.data)
		return 1;
	rc = guard_run(scatter_guarded, &s) ? item_check(&g->item, e) : 1;
	item_unmap(&g->item);
	return rc;
}

/* ---- gathering from cached blocks ---- */

static void gather_held(const struct item_held *h, const struct copy_dim *d, uint32_t n,
			uint64_t run, uint64_t src, uint8_t *to)
{
	for (uint64_t i = 0; i < d->count; i++) {
		if (n > 1)
			gather_held(h, d + 1, n - 1, run, src + i * d->src_stride,
				    copy_to(to, i * d->dst_stride));
		else
			item_held_copy(h, src + i * d->src_stride, copy_to(to, i * d->dst_stride),
				       run);
	}
}

static int from_blocks(const struct job *j, uint32_t from, uint64_t src, uint8_t *to, uint64_t span,
		       struct ckpt_err *e)
{
	struct item_held h;
	int rc = item_hold(&j->g->item, src, span, &h, e);

	if (!rc)
		gather_held(&h, j->dims + from, j->n - from, j->run, src, to);
	item_let_go(&h);
	return rc;
}

/* ---- choosing ---- */

static int read_run(const struct gather *g, uint64_t src, uint8_t *to, uint64_t run,
		    struct ckpt_err *e)
{
	int rc = item_leave(&g->item, g->parts, src, to, run, e);

	return rc <= 0 ? rc : item_read(&g->item, to, run, src, e);
}

static int run_job(const struct job *j, uint32_t from, uint64_t src, uint8_t *to,
		   struct ckpt_err *e);

/* Runs over the dimension in batches of `step`. */
static int run_batches(const struct job *j, uint64_t step, uint32_t from, uint64_t src, uint8_t *to,
		       struct ckpt_err *e)
{
	const struct copy_dim *d = &j->dims[from];
	struct job batch = *j;
	int rc = 0;

	for (uint64_t i = 0; !rc && i < d->count; i += step) {
		batch.dims[from].count = min_u64(step, d->count - i);
		rc = run_job(&batch, from, src + i * d->src_stride, copy_to(to, i * d->dst_stride),
			     e);
	}
	return rc;
}

static int run_each(const struct job *j, uint32_t from, uint64_t src, uint8_t *to,
		    struct ckpt_err *e)
{
	const struct copy_dim *d = &j->dims[from];
	int rc = 0;

	for (uint64_t i = 0; !rc && i < d->count; i++)
		rc = run_job(j, from + 1, src + i * d->src_stride, copy_to(to, i * d->dst_stride),
			     e);
	return rc;
}

static int split(const struct job *j, uint32_t from, uint64_t src, uint8_t *to, struct ckpt_err *e)
{
	uint64_t inner = span_of(j, from + 1), max = item_max_held(&j->g->item);
	uint64_t step = inner < max ? 1 + (max - inner) / j->dims[from].src_stride : 1;

	return step > 1 && step < j->dims[from].count ? run_batches(j, step, from, src, to, e)
						      : run_each(j, from, src, to, e);
}

static int run_job(const struct job *j, uint32_t from, uint64_t src, uint8_t *to,
		   struct ckpt_err *e)
{
	const struct gather *g = j->g;
	uint64_t span = span_of(j, from), wanted = wanted_of(j, from);
	bool plain = item_is_plain(&g->item), may_map = plain && span <= MAX_MAPPED;
	int rc = 1;

	if (from == j->n)
		return read_run(g, src, to, j->run, e);
	if (may_map)
		rc = from_pages(j, from, src, to, span, false, e);
	if (rc <= 0)
		return rc;
	if (plain && span <= MAX_BAND && (span <= SMALL_BAND || span <= 2 * wanted))
		return read_band(j, from, src, to, span, e);
	if (may_map && is_close(j, from, span))
		rc = from_pages(j, from, src, to, span, true, e);
	if (rc <= 0)
		return rc;
	if (span > item_max_held(&g->item))
		return split(j, from, src, to, e);
	if (item_may_hold(&g->item))
		return from_blocks(j, from, src, to, span, e);
	return run_each(j, from, src, to, e);
}

static void sort_dims(struct job *j)
{
	for (uint32_t i = 1; i < j->n; i++) {
		struct copy_dim d = j->dims[i];
		uint32_t k = i;

		for (; k && j->dims[k - 1].src_stride < d.src_stride; k--)
			j->dims[k] = j->dims[k - 1];
		j->dims[k] = d;
	}
}

static void add_runs(struct parts *p, const struct copy_dim *d, uint32_t n, uint64_t run,
		     uint8_t *to, const uint8_t *from)
{
	if (!n) {
		parts_add(p, to, from, run);
		return;
	}
	for (uint64_t i = 0; i < d->count; i++)
		add_runs(p, d + 1, n - 1, run, copy_to(to, i * d->dst_stride),
			 from + i * d->src_stride);
}

/* The bytes of a job with long runs, if they are in memory and may be left in place. */
static const uint8_t *lend(const struct job *j, uint64_t src)
{
	const struct gather *g = j->g;
	uint64_t span = span_of(j, 0);

	if (!g->parts || j->run < g->parts->min_run || span > MAX_MAPPED)
		return NULL;
	return item_lend(&g->item, g->parts, wanted_of(j, 0) / j->run, src, span);
}

int gather(const struct gather *g, const struct copy *c, const struct copy_dim *dims,
	   struct ckpt_err *e)
{
	struct job j = { .g = g, .n = c->n_dims, .run = c->run };
	const uint8_t *data;

	if (c->n_dims) /* a plan without dimensions has no array */
		memcpy(j.dims, dims + c->dim, c->n_dims * sizeof(*dims));
	sort_dims(&j);
	data = lend(&j, c->src);
	if (data) {
		add_runs(g->parts, j.dims, j.n, j.run, copy_to(g->out, c->dst), data);
		parts_pin(g->parts, item_file(&g->item));
		return 0;
	}
	if (j.n)
		return run_job(&j, 0, c->src, copy_to(g->out, c->dst), e);
	return read_run(g, c->src, copy_to(g->out, c->dst), j.run, e);
}

static void each_run(const struct copy_dim *d, uint32_t n, uint64_t len, uint8_t *p,
		     void (*run)(void *arg, uint8_t *p, uint64_t len), void *arg)
{
	if (!n) {
		run(arg, p, len);
		return;
	}
	for (uint64_t i = 0; i < d->count; i++)
		each_run(d + 1, n - 1, len, copy_to(p, i * d->dst_stride), run, arg);
}

void gather_each_run(const struct copy *c, const struct copy_dim *dims, uint8_t *out,
		     void (*run)(void *arg, uint8_t *p, uint64_t len), void *arg)
{
	/* A plan without dimensions has no array of them. */
	each_run(c->n_dims ? dims + c->dim : NULL, c->n_dims, c->run, copy_to(out, c->dst), run,
		 arg);
}
