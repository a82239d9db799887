/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A chart needs three digits of a number, so its logarithm is stored, as an integer, less that of
 * the checkpoint before. Norms change slowly: most of these integers are small and similar, and are
 * compressed to a few bits.
 */
#include "page/series.h"

#include "page/name_column.h"
#include "page/page.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/vec.h"
#include <ckptfs/ckpt_values.h>

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Codes of numbers: 0: unknown; 1: zero; else the logarithm, in parts of an octave. */
enum { PARTS = 512, ZERO = 1, LEAST = 2, LEAST_OCTAVE = -149 /* of float */ };

/* ---- reading ---- */

struct reading {
	struct series *s;
	struct ckpt *run, *latest;
	const struct ckpt_report *o;
	char *fqn; /* of the first tensor, whose rows name the checkpoints */
	size_t fqn_len;
};

static int open_step(void *arg, const char *name, struct ckpt **ret, struct ckpt_err *e)
{
	const struct reading *r = arg;
	const char *rest;

	return r->o->open ? r->o->open(r->o->arg, name, ret, e)
			  : ckpt_run_open(r->run, name, r->o->options, NULL, ret, &rest, e);
}

static void show_progress(void *arg, uint64_t done, uint64_t total)
{
	const struct reading *r = arg;

	if (r->o->progress)
		r->o->progress(r->o->arg, done, total);
}

static uint64_t elements(const struct ckpt_series_item *i)
{
	uint64_t n = 1;

	for (size_t d = 0; d < i->n_dims; d++)
		n *= i->shape[d];
	return n;
}

static struct series_point point_of(const struct ckpt_series_item *i)
{
	const struct ckpt_values *v = &i->values;
	struct series_point p = { .nan = v->nan };

	for (size_t k = 0; k < SERIES_NUMBERS; k++)
		p.numbers[k] = NAN;
	if (v->finite)
		p.numbers[SERIES_RMS] = (float)(v->norm / sqrt((double)v->finite));
	if (v->finite && !v->is_complex)
		p.numbers[SERIES_MAX] = (float)fmax(fabs(v->min), fabs(v->max));
	if (i->compared) {
		p.numbers[SERIES_RELATIVE] = (float)i->relative;
		p.numbers[SERIES_SHARE] =
			i->changed ? (float)((double)i->changed / (double)elements(i)) : 0;
	}
	return p;
}

/* A row of the first tensor: each tensor has as many, in the same order. */
static int add_name(struct reading *r, const struct ckpt_series_item *i)
{
	struct series *s = r->s;

	if (!r->fqn) {
		r->fqn = malloc(i->fqn_len + 1);
		if (!r->fqn)
			return -ENOMEM;
		memcpy(r->fqn, i->fqn, i->fqn_len);
		r->fqn_len = i->fqn_len;
	}
	if (!VEC_ROOM(s->names, s->cap_names, s->n_names + 1))
		return -ENOMEM;
	s->names[s->n_names] = strdup(i->checkpoint);
	return s->names[s->n_names++] ? 0 : -ENOMEM;
}

static int take(void *arg, const struct ckpt_series_item *i)
{
	struct reading *r = arg;
	struct series *s = r->s;
	bool names = !r->fqn || (i->fqn_len == r->fqn_len && !memcmp(i->fqn, r->fqn, r->fqn_len));

	if ((names && add_name(r, i)) || !VEC_ROOM(s->points, s->cap_points, s->n_points + 1))
		return -ENOMEM;
	if (names ? s->n_names == 1 : s->n_points % s->n_names == 0) {
		int64_t at = ckpt_tensor_find(r->latest, i->fqn, i->fqn_len);

		if (at >= 0 && (uint64_t)at < s->tensors)
			s->first[at] = s->n_points + 1;
	}
	s->points[s->n_points++] = point_of(i);
	return 0;
}

int series_read(struct series *s, struct ckpt *run, size_t n, struct ckpt *latest,
		const struct ckpt_report *o, struct ckpt_err *e)
{
	struct reading r = { .s = s, .run = run, .latest = latest, .o = o };
	struct ckpt_series x = { .jobs = o->jobs,
				 .open = open_step,
				 .each = take,
				 .progress = show_progress,
				 .arg = &r };
	struct ckpt_totals t;
	int rc;

	ckpt_totals(latest, &t);
	if (n < 2 || t.tensors > CKPT_SERIES_MAX_ROWS / n)
		return 0;
	s->tensors = t.tensors;
	s->first = calloc(t.tensors + 1, sizeof(*s->first));
	if (!s->first)
		return err_nomem(e);
	rc = ckpt_series(run, &x, e);
	free(r.fqn);
	if (rc == -ENOMEM && !e->code)
		return err_nomem(e);
	if (rc != -E2BIG)
		return rc;
	*e = (struct ckpt_err){ 0 };
	return 0;
}

/* ---- writing ---- */

static int64_t code_of(float v)
{
	if (isnan(v) || isinf(v))
		return 0;
	return v > 0 ? LEAST + lround(PARTS * (log2((double)v) - LEAST_OCTAVE)) : ZERO;
}

/* Every step-th checkpoint, the last one included. */
static size_t first_of(const struct series *s, size_t step)
{
	return (s->n_names - 1) % step;
}

static void add_numbers(const struct series *s, struct buf *b, size_t step, size_t column)
{
	for (uint64_t t = 0; t < s->tensors; t++) {
		int64_t last = 0;

		if (!s->first[t])
			continue;
		for (size_t i = first_of(s, step); i < s->n_names; i += step) {
			int64_t code = code_of(s->points[s->first[t] - 1 + i].numbers[column]);

			page_add_int(b, code - last);
			last = code;
		}
	}
}

static void add_all(const struct series *s, struct buf *b, size_t step)
{
	struct name_column names = { .to = b };

	page_add_uint(b, s->n_names);
	page_add_uint(b, (s->n_names - 1) / step + 1);
	for (size_t i = first_of(s, step); i < s->n_names; i += step)
		name_column_add(&names, s->names[i], strlen(s->names[i]));
	for (uint64_t t = 0; t < s->tensors; t++)
		page_add_uint(b, s->first[t] != 0);
	for (size_t k = 0; k < SERIES_NUMBERS; k++)
		add_numbers(s, b, step, k);
	for (uint64_t t = 0; t < s->tensors; t++)
		for (size_t i = first_of(s, step); s->first[t] && i < s->n_names; i += step)
			page_add_uint(b, s->points[s->first[t] - 1 + i].nan);
}

int series_write(const struct series *s, struct page *p, size_t room, struct ckpt_err *e)
{
	for (size_t step = 1; step < s->n_names; step *= 2) {
		struct buf b CLEANUP(buf_release) = BUF_INIT(p->out.max);
		size_t size;

		add_all(s, &b, step);
		if (b.err == EFBIG)
			continue;
		size = b.err ? 0 : page_section_size(&b);
		if (!size)
			return err_nomem(e);
		if (size + 100 <= room) /* and its tag */
			return page_section(p, "series", &b, e);
	}
	return 0;
}

void series_release(struct series *s)
{
	for (size_t i = 0; i < s->n_names; i++)
		free(s->names[i]);
	free(s->names);
	free(s->points);
	free(s->first);
}
