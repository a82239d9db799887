/* SPDX-License-Identifier: Apache-2.0 */
#include "read/gather.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "model/box.h"
#include "read/scatter.h"
#include "source/files.h"
#include "source/guard.h"
#include "source/parts.h"

#include <stdlib.h>
#include <string.h>

enum {
	/* Bytes read, or blocks pinned, at once to scatter from. */
	MAX_BAND = 8 << 20,
	/* Read even where most of it is not wanted: one call, a few pages. */
	SMALL_BAND = 64 * 1024,
	/* From run to run: reading so much takes a disk as long as finding a place does. */
	CLOSE = 128 * 1024,
	MANY_RUNS = 16,
};

#define MAX_MAPPED ((uint64_t)1 << 30) /* bytes looked at at once where they are in memory */

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
		return err_set(e, ENOMEM, "out of memory");
	rc = files_read(g->files, g->item.file, band, span, g->item.offset + src, e);
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

/*
 * Are the runs so close together that all of the span, read in order, is there sooner than they
 * would be one by one from a disk? What lies between them is likely to be asked for next.
 */
static bool is_close(const struct job *j, uint32_t from, uint64_t span)
{
	uint64_t runs = wanted_of(j, from) / j->run;

	return runs >= MANY_RUNS && span / runs <= CLOSE;
}

/* 1: it is not in memory, or not as long as it was. */
static int from_pages(const struct job *j, uint32_t from, uint64_t src, uint8_t *to, uint64_t span,
		      bool bring, struct ckpt_err *e)
{
	const struct gather *g = j->g;
	struct scattering s = { j, from, to, NULL };
	int rc;

	s.data = (bring ? files_bring : files_map)(g->files, g->item.file, g->item.offset + src,
						   span);
	if (!s.data)
		return 1;
	rc = guard_run(scatter_guarded, &s) ? files_check(g->files, g->item.file, e) : 1;
	files_unmap(g->files, g->item.file);
	return rc;
}

/* ---- gathering from cached blocks ---- */

struct pinned {
	struct blockcache *cache;
	unsigned shift; /* of a block's size */
	uint64_t first; /* index of blocks[0] */
	size_t n;
	struct block *blocks;
	void **pins;
};

static void pinned_release(struct pinned *p)
{
	for (size_t i = 0; i < p->n; i++)
		blockcache_put(p->cache, p->pins[i]);
	free(p->blocks);
	free(p->pins);
}

static int short_item(const struct gather *g, struct ckpt_err *e)
{
	return err_set(e, ERR_CORRUPT,
		       "the item at %llu decodes to fewer bytes than its tensor needs",
		       (unsigned long long)g->item.offset);
}

static int pin_blocks(struct pinned *p, const struct gather *g, uint64_t src, uint64_t span,
		      struct ckpt_err *e)
{
	unsigned shift = block_shift(&g->item);
	size_t n = (size_t)(((src + span - 1) >> shift) - (src >> shift)) + 1;
	int rc;

	p->cache = g->blocks;
	p->shift = shift;
	p->first = src >> shift;
	p->blocks = calloc(n, sizeof(*p->blocks));
	p->pins = calloc(n, sizeof(*p->pins));
	if (!p->blocks || !p->pins)
		return err_set(e, ENOMEM, "out of memory");
	rc = blockcache_get(g->blocks, &g->item, p->first, n, p->blocks, p->pins, e);
	if (rc)
		return rc;
	p->n = n;
	/* Only the last block may be short, and it must reach the end of the span. */
	if (p->blocks[n - 1].len < ((src + span - 1) & (block_size(&g->item) - 1)) + 1)
		return short_item(g, e);
	return 0;
}

/* Decoded bytes that stay where they are, until the reply has been sent. 1: not these. */
static int leave_blocks(const struct gather *g, uint64_t src, uint8_t *to, uint64_t run,
			struct ckpt_err *e)
{
	struct pinned p = { 0 };
	uint64_t size = block_size(&g->item);
	int rc;

	if (!g->parts || run < g->parts->min_run ||
	    !parts_room(g->parts, (run >> block_shift(&g->item)) + 2))
		return 1;
	rc = pin_blocks(&p, g, src, run, e);
	for (size_t i = 0; !rc && i < p.n; i++) {
		uint64_t skip = src & (size - 1), n = min_u64(run, size - skip);

		parts_add(g->parts, to, p.blocks[i].data + skip, n);
		parts_pin_block(g->parts, g->blocks, p.pins[i]);
		p.pins[i] = NULL;
		src += n;
		to += n;
		run -= n;
	}
	pinned_release(&p);
	return rc;
}

static void copy_pinned(const struct pinned *p, uint64_t src, uint8_t *to, uint64_t run)
{
	uint64_t size = (uint64_t)1 << p->shift;

	while (run) {
		uint64_t skip = src & (size - 1), n = min_u64(run, size - skip);

		memcpy(to, p->blocks[(src >> p->shift) - p->first].data + skip, n);
		src += n;
		to += n;
		run -= n;
	}
}

static void gather_pinned(const struct pinned *p, const struct copy_dim *d, uint32_t n,
			  uint64_t run, uint64_t src, uint8_t *to)
{
	for (uint64_t i = 0; i < d->count; i++) {
		if (n > 1)
			gather_pinned(p, d + 1, n - 1, run, src + i * d->src_stride,
				      copy_to(to, i * d->dst_stride));
		else
			copy_pinned(p, src + i * d->src_stride, copy_to(to, i * d->dst_stride),
				    run);
	}
}

static int from_blocks(const struct job *j, uint32_t from, uint64_t src, uint8_t *to, uint64_t span,
		       struct ckpt_err *e)
{
	struct pinned p = { 0 };
	int rc = pin_blocks(&p, j->g, src, span, e);

	if (!rc)
		gather_pinned(&p, j->dims + from, j->n - from, j->run, src, to);
	pinned_release(&p);
	return rc;
}

/* ---- choosing ---- */

static int read_run(const struct gather *g, uint64_t src, uint8_t *to, uint64_t run,
		    struct ckpt_err *e)
{
	int64_t n;
	int rc;

	if (!g->item.zstd_layers)
		return files_read(g->files, g->item.file, to, run, g->item.offset + src, e);
	rc = leave_blocks(g, src, to, run, e);
	if (rc <= 0)
		return rc;
	n = blockcache_read(g->blocks, &g->item, src, to, run, e);
	if (n < 0)
		return (int)n;
	return (uint64_t)n == run ? 0 : short_item(g, e);
}

/* How far apart the runs may be that are taken at once: every thread that reads holds so much. */
static uint64_t max_span(const struct gather *g)
{
	return g->item.zstd_layers ? min_u64(MAX_BAND, blockcache_max(g->blocks) / 2) : MAX_BAND;
}

static int run_job(const struct job *j, uint32_t from, uint64_t src, uint8_t *to,
		   struct ckpt_err *e);

/* `step` of the dimension at a time. */
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
	uint64_t inner = span_of(j, from + 1), max = max_span(j->g);
	uint64_t step = inner < max ? 1 + (max - inner) / j->dims[from].src_stride : 1;

	return step > 1 && step < j->dims[from].count ? run_batches(j, step, from, src, to, e)
						      : run_each(j, from, src, to, e);
}

static int run_job(const struct job *j, uint32_t from, uint64_t src, uint8_t *to,
		   struct ckpt_err *e)
{
	const struct gather *g = j->g;
	uint64_t span = span_of(j, from), wanted = wanted_of(j, from);
	bool may_map = !g->item.zstd_layers && span <= MAX_MAPPED;
	int rc = 1;

	if (from == j->n)
		return read_run(g, src, to, j->run, e);
	if (may_map)
		rc = from_pages(j, from, src, to, span, false, e);
	if (rc <= 0)
		return rc;
	if (!g->item.zstd_layers && span <= MAX_BAND && (span <= SMALL_BAND || span <= 2 * wanted))
		return read_band(j, from, src, to, span, e);
	if (may_map && is_close(j, from, span))
		rc = from_pages(j, from, src, to, span, true, e);
	if (rc <= 0)
		return rc;
	if (span > max_span(g))
		return split(j, from, src, to, e);
	if (g->item.zstd_layers || g->item.length <= blockcache_max(g->blocks) / 2)
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

/* The bytes of a job whose runs are long, if they are in memory and may stay there. */
static const uint8_t *lend(const struct job *j, uint64_t src)
{
	const struct gather *g = j->g;
	uint64_t span = span_of(j, 0);

	if (!g->parts || g->item.zstd_layers || j->run < g->parts->min_run || span > MAX_MAPPED ||
	    !parts_room(g->parts, wanted_of(j, 0) / j->run))
		return NULL;
	return files_lend(g->files, g->item.file, g->item.offset + src, span);
}

int gather(const struct gather *g, const struct copy *c, const struct copy_dim *dims,
	   struct ckpt_err *e)
{
	struct job j = { .g = g, .n = c->n_dims, .run = c->run };
	const uint8_t *data;

	if (c->n_dims) /* a plan without any dimension has no array of them */
		memcpy(j.dims, dims + c->dim, c->n_dims * sizeof(*dims));
	sort_dims(&j);
	data = lend(&j, c->src);
	if (data) {
		add_runs(g->parts, j.dims, j.n, j.run, copy_to(g->out, c->dst), data);
		parts_pin(g->parts, g->item.file);
		return 0;
	}
	if (j.n || g->item.zstd_layers)
		return run_job(&j, 0, c->src, copy_to(g->out, c->dst), e);
	return files_read(g->files, g->item.file, copy_to(g->out, c->dst), j.run,
			  g->item.offset + c->src, e);
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
	/* A plan without any dimension has no array of them. */
	each_run(c->n_dims ? dims + c->dim : NULL, c->n_dims, c->run, copy_to(out, c->dst), run,
		 arg);
}
