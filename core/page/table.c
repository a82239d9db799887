/* SPDX-License-Identifier: Apache-2.0 */
#include "page/table.h"

#include "page/name_column.h"
#include "page/page.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/vec.h"
#include <ckptfs/ckpt_report.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { HIST_BINS = 24 };

int table_read(struct table *t, struct ckpt *c, struct ckpt_err *e)
{
	t->c = c;
	ckpt_totals(c, &t->totals);
	t->model_of = malloc((t->totals.tensors + 1) * sizeof(*t->model_of));
	if (!t->model_of)
		return err_nomem(e);
	for (uint64_t i = 0; i < t->totals.tensors; i++)
		t->model_of[i] = -1;
	for (uint64_t i = 0; i < ckpt_model_tensors(c); i++) {
		struct ckpt_tensor x;
		int64_t stored;

		ckpt_model_tensor(c, i, &x);
		stored = ckpt_model_stored(c, x.fqn, x.fqn_len);
		if (stored >= 0 && (uint64_t)stored < t->totals.tensors) {
			t->model_of[stored] = (int64_t)i;
			continue;
		}
		if (!VEC_ROOM(t->made, t->cap_made, t->n_made + 1))
			return err_nomem(e);
		t->made[t->n_made++] = i;
	}
	return 0;
}

/* ---- values ---- */

struct taking {
	struct table *t;
	const struct ckpt_report *o;
};

static void show_progress(void *arg, uint64_t done, uint64_t total)
{
	const struct ckpt_report *o = ((struct taking *)arg)->o;

	if (o->progress)
		o->progress(o->arg, done, total);
}

/* Heights up to 255, in proportion to the counts. Counts above 0 are always visible. */
static void add_heights(struct buf *b, const struct ckpt_hist *h)
{
	uint64_t most = 1;

	for (size_t i = 0; i < h->n; i++)
		most = h->counts[i] > most ? h->counts[i] : most;
	for (size_t i = 0; i < h->n; i++) {
		double share = (double)h->counts[i] / (double)most;
		unsigned char height = (unsigned char)ceil(255 * share);

		buf_add(b, &height, 1);
	}
}

/* Bins of equal width 2^e, starting at k * 2^e. */
static void add_linear(struct buf *b, const struct ckpt_hist *h)
{
	size_t n = h ? h->n : 0;
	int e = n ? ilogb(h->edges[1] - h->edges[0]) : 0;

	page_add_uint(b, n);
	if (!n)
		return;
	page_add_int(b, e);
	page_add_int(b, (int64_t)ldexp(h->edges[0], -e));
	add_heights(b, h);
}

/* Bins between powers of two: the index of the smallest positive edge, 2^k, and k. */
static void add_logarithmic(struct buf *b, const struct ckpt_hist *h)
{
	size_t n = h ? h->n : 0, positive = 0;

	while (positive <= n && n && h->edges[positive] <= 0)
		positive++;
	if (positive > n)
		n = 0;
	page_add_uint(b, n);
	if (!n)
		return;
	page_add_uint(b, positive);
	page_add_int(b, ilogb(h->edges[positive]));
	add_heights(b, h);
}

static int take_values(void *arg, const struct ckpt_values_item *item)
{
	const struct ckpt_values *v = &item->values;
	struct table *t = ((struct taking *)arg)->t;
	int64_t i = ckpt_tensor_find(t->c, item->fqn, item->fqn_len);

	if (i < 0 || (uint64_t)i >= t->totals.tensors || item->fault || !v->known)
		return 0;
	t->values[i] = (struct row_values){ .known = true,
					    .nan = v->nan,
					    .infinite = v->infinite,
					    .zero = v->zero,
					    .elements = v->elements,
					    .min = (float)v->min,
					    .max = (float)v->max,
					    .mean = (float)v->mean[0],
					    .std = (float)v->std,
					    .norm = (float)v->norm };
	if (item->linear && item->linear->n) {
		t->values[i].hist_at = t->hists.len;
		add_linear(&t->hists, item->linear);
		add_logarithmic(&t->hists, item->logarithmic);
		t->values[i].hist_len = t->hists.len - t->values[i].hist_at;
	}
	return 0;
}

int table_read_values(struct table *t, const struct ckpt_report *o, struct ckpt_err *e)
{
	struct taking taking = { t, o };
	struct ckpt_values_scan s = { .jobs = o->jobs,
				      .bins = HIST_BINS,
				      .each = take_values,
				      .progress = show_progress,
				      .arg = &taking };
	int rc;

	t->values = calloc(t->totals.tensors + 1, sizeof(*t->values));
	if (!t->values)
		return err_nomem(e);
	rc = ckpt_values_scan(t->c, &s, e);
	t->all_values = s.total;
	t->unreadable = s.failed;
	return rc;
}

static void add_counts(struct buf *b, const struct table *t, size_t offset)
{
	for (uint64_t i = 0; i < t->totals.tensors; i++)
		page_add_uint(
			b, *(const uint64_t *)(const void *)((const char *)&t->values[i] + offset));
}

/* Histograms of each tensor in turn; a tensor without one has no bins. */
static int write_hists(const struct table *t, struct page *p, struct ckpt_err *e)
{
	struct buf b = BUF_INIT(p->out.max);
	int rc = t->hists.err ? err_nomem(e) : 0;

	for (uint64_t i = 0; !rc && i < t->totals.tensors; i++) {
		const struct row_values *v = &t->values[i];

		if (v->hist_len)
			buf_add(&b, t->hists.data + v->hist_at, v->hist_len);
		else
			buf_add(&b, "\0", 2);
	}
	if (!rc)
		rc = page_section(p, "hists", &b, e);
	buf_release(&b);
	return rc;
}

static int write_values(const struct table *t, struct page *p, struct ckpt_err *e)
{
	static const size_t counts[] = { offsetof(struct row_values, nan),
					 offsetof(struct row_values, infinite),
					 offsetof(struct row_values, zero) };
	static const size_t floats[] = { offsetof(struct row_values, min),
					 offsetof(struct row_values, max),
					 offsetof(struct row_values, mean),
					 offsetof(struct row_values, std),
					 offsetof(struct row_values, norm) };
	struct buf b = BUF_INIT(p->out.max);
	int rc;

	if (!t->values)
		return 0;
	for (uint64_t i = 0; i < t->totals.tensors; i++)
		page_add_uint(&b, t->values[i].known);
	for (size_t k = 0; k < sizeof(counts) / sizeof(*counts); k++)
		add_counts(&b, t, counts[k]);
	for (size_t k = 0; k < sizeof(floats) / sizeof(*floats); k++)
		page_add_floats(&b, (const char *)t->values + floats[k], t->totals.tensors,
				sizeof(*t->values));
	rc = page_section(p, "values", &b, e);
	buf_release(&b);
	return rc ? rc : write_hists(t, p, e);
}

/* ---- rows ---- */

static bool has_word(const char *s, size_t n, const char *word)
{
	return memmem(s, n, word, strlen(word));
}

/* For rows outside the model, the name decides: frameworks agree on nothing better. */
enum row_role table_role(const struct table *t, uint64_t i, const struct ckpt_tensor *x)
{
	static const char *const words[] = { "optim",	   "exp_avg", "master", "momentum",
					     "fp32_param", "adam",    "moment" };

	if (t->model_of[i] >= 0)
		return ROLE_MODEL;
	for (size_t k = 0; k < sizeof(words) / sizeof(*words); k++)
		if (has_word(x->fqn, x->fqn_len, words[k]))
			return ROLE_OPTIMIZER;
	return t->n_made ? ROLE_MODEL : ROLE_OTHER;
}

static int add_rows(const struct table *t, struct rows *rows)
{
	struct ckpt_tensor x;
	struct ckpt_object o;
	int rc = 0;

	for (uint64_t i = 0; !rc && i < t->totals.tensors; i++) {
		ckpt_tensor(t->c, i, &x);
		rc = rows_add_tensor(rows, table_role(t, i, &x), &x, x.fault);
	}
	for (size_t i = 0; !rc && i < t->n_made; i++) {
		ckpt_model_tensor(t->c, t->made[i], &x);
		rc = rows_add_tensor(rows, ROLE_MADE, &x, x.fault);
	}
	for (uint64_t i = 0; !rc && i < t->totals.objects; i++) {
		ckpt_object(t->c, i, &o);
		rc = rows_add_object(rows, &o, o.fault);
	}
	return rc;
}

/* The model's names of stored tensors: 0: the stored name without the prefix; 1 + name: this name;
 * 2: none. */
static void add_model_names(const struct table *t, struct buf *b)
{
	size_t cut = t->totals.model_prefix_len;
	struct name_column names = { .to = b };

	for (uint64_t i = 0; i < t->totals.tensors; i++) {
		struct ckpt_tensor x, m;

		ckpt_tensor(t->c, i, &x);
		if (t->model_of[i] < 0) {
			page_add_uint(b, 2);
			continue;
		}
		ckpt_model_tensor(t->c, (uint64_t)t->model_of[i], &m);
		if (x.fqn_len == cut + m.fqn_len && !memcmp(x.fqn + cut, m.fqn, m.fqn_len)) {
			page_add_uint(b, 0);
			continue;
		}
		page_add_uint(b, 1);
		name_column_add(&names, m.fqn, m.fqn_len);
	}
}

int table_write(struct table *t, struct page *p, struct ckpt_err *e)
{
	struct rows rows CLEANUP(rows_release) = ROWS_INIT(p->out.max);
	struct buf names CLEANUP(buf_release) = BUF_INIT(p->out.max);
	int rc;

	if (add_rows(t, &rows))
		return err_nomem(e);
	add_model_names(t, &names);
	rc = rows_write(&rows, &names, p, e);
	return rc ? rc : write_values(t, p, e);
}

void table_release(struct table *t)
{
	free(t->model_of);
	free(t->made);
	free(t->values);
	buf_release(&t->hists);
}
