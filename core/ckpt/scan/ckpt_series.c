/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A window of checkpoints is open at a time. An item of the pipeline is a name; for each of its
 * blocks a worker reads the bytes of every checkpoint in the window, one after another, and
 * compares them with those of the previous checkpoint. The last checkpoint of a window is the first
 * of the next.
 */
#include <ckptfs/ckpt_values.h>

#include "base/arena.h"
#include "base/checked.h"
#include "base/err.h"
#include "base/text.h"
#include "base/vec.h"
#include "ckpt/ckpt_internal.h"
#include "ckpt/scan/diff_pairs.h"
#include "ckpt/scan/pipeline.h"
#include "codec/delta.h"
#include "codec/tally.h"
#include "codec/values.h"
#include "model/box.h"
#include "tensor/tensor_info.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
	WINDOW = 16,
	BLOCK = 1 << 20,      /* bytes, for each checkpoint */
	MAX_TEXT = 256 << 20, /* bytes of names, shapes and faults */
};

struct name {
	const char *s;
	size_t len;
};

/* Results for a tensor in one checkpoint, or for a block of it. */
struct part {
	bool any; /* the tally is set */
	struct tally tally;
	struct delta delta;
	struct ckpt_err why; /* code is set if it cannot be read */
};

/* A row, for one checkpoint of the run. */
struct row {
	struct ckpt_series_item item;
	size_t step;
};

struct series {
	struct ckpt *run;
	struct ckpt_series *s;
	struct ckpt_err *e;
	struct arena text;
	const char **steps,
		**faults; /* for all checkpoints: names; why one cannot be opened, or NULL */
	size_t n_steps, cap_steps, cap_faults;
	struct row *rows;
	size_t n_rows, cap_rows;
	uint64_t done, total;

	/* The window: */
	struct ckpt *open[WINDOW]; /* NULL: it cannot be opened */
	size_t first, n;	   /* in checkpoints */
	bool carried; /* the rows of the first one were reported with the previous window */
	struct name *names;
	size_t n_names, cap_names, next;
	struct part parts[WINDOW]; /* for the tensor whose blocks are being merged */
};

/* ---- workers ---- */

/* A tensor in the window. */
struct item {
	struct pipeline_item item;
	struct name name;
	struct tensor_info t[WINDOW];
	int64_t number[WINDOW]; /* -1: the checkpoint does not have it */
	bool compared[WINDOW];	/* with the previous checkpoint */
	uint64_t step;		/* elements per block */
};

struct worker {
	struct diff_buffers bufs;
	struct ckpt_file *files[WINDOW]; /* of the item with that serial number */
	uint64_t serial;
};

static void close_files(struct worker *w)
{
	for (size_t k = 0; k < WINDOW; k++) {
		ckpt_file_close(w->files[k]);
		w->files[k] = NULL;
	}
}

static int setup(void *arg, void *worker, struct ckpt_err *e)
{
	struct worker *w = worker;

	(void)arg;
	return diff_buffers_make(&w->bufs, BLOCK, e);
}

static void teardown(void *arg, void *worker)
{
	struct worker *w = worker;

	(void)arg;
	close_files(w);
	diff_buffers_free(&w->bufs);
}

static int open_one(const struct series *r, struct worker *w, const struct item *i, size_t k,
		    struct ckpt_err *e)
{
	uint64_t number = (uint64_t)i->number[k];

	if (w->files[k])
		return 0;
	return r->s->model ? ckpt_model_open(r->open[k], number, &w->files[k], e)
			   : ckpt_file_open(r->open[k], ckpt_tensor_node(r->open[k], number),
					    &w->files[k], e);
}

static uint64_t elements_of(const struct tensor_info *t)
{
	return t->bytes / dtype_info(t->dtype)->size;
}

/* Reads *ret_n elements, starting at number `from`. */
static int read_one(const struct series *r, struct worker *w, const struct item *i, size_t k,
		    uint64_t from, uint64_t *ret_n, struct ckpt_err *e)
{
	const struct tensor_info *t = &i->t[k];
	uint64_t all = elements_of(t), size = dtype_info(t->dtype)->size;
	int64_t got;
	int rc = open_one(r, w, i, k, e);

	*ret_n = from < all ? min_u64(all - from, i->step) : 0;
	if (rc || !*ret_n)
		return rc;
	got = ckpt_file_read(w->files[k], w->bufs.bytes[k % 2], (size_t)(*ret_n * size),
			     from * size, e);
	if (got < 0)
		return (int)got;
	return (uint64_t)got == *ret_n * size ? 0 : err_set(e, EIO, "it ends early");
}

static void add_tally(struct part *to, const struct tally *from)
{
	if (to->any)
		tally_merge(&to->tally, from);
	else
		to->tally = *from;
	to->any = true;
}

static void work(void *arg, void *worker, void *item, uint64_t block, void *result)
{
	const struct series *r = arg;
	struct worker *w = worker;
	struct item *i = item;
	struct part *parts = result;
	uint64_t from = block * i->step, n;

	if (w->serial != i->item.serial)
		close_files(w);
	w->serial = i->item.serial;
	for (size_t k = 0; k < r->n; k++) {
		const struct tensor_info *t = &i->t[k];

		if (i->number[k] < 0 || read_one(r, w, i, k, from, &n, &parts[k].why))
			continue;
		if (values_known(t->dtype)) {
			struct tally tally = TALLY_INIT;

			tally_add(&tally, w->bufs.tally, t->dtype, w->bufs.bytes[k % 2], (size_t)n,
				  from);
			add_tally(&parts[k], &tally);
		}
		if (i->compared[k] && !parts[k - 1].why.code)
			delta_add(&parts[k].delta, i->t[k - 1].dtype, w->bufs.bytes[(k - 1) % 2],
				  t->dtype, w->bufs.bytes[k % 2], (size_t)n);
	}
}

/* ---- the calling thread ---- */

static int find(const struct series *r, size_t k, const struct name *name, struct tensor_info *ret,
		int64_t *ret_number)
{
	struct ckpt *c = r->open[k];
	struct ckpt_err e;

	*ret_number = -1;
	if (!c)
		return 0;
	*ret_number = r->s->model ? ckpt_model_find(c, name->s, name->len)
				  : ckpt_tensor_find(c, name->s, name->len);
	if (*ret_number < 0)
		return 0;
	return r->s->model ? ckpt_model_at(c, (uint64_t)*ret_number, ret, &e)
			   : ckpt_tensor_at(c, (uint64_t)*ret_number, ret, &e);
}

static bool comparable(const struct tensor_info *a, const struct tensor_info *b)
{
	return a->n_dims == b->n_dims && dims_equal(a->n_dims, a->shape, b->shape) &&
	       (a->dtype == b->dtype || delta_numeric(a->dtype, b->dtype)) &&
	       elements_of(a) == elements_of(b);
}

static bool next(void *arg, void *item, uint64_t *ret_blocks)
{
	struct series *r = arg;
	struct item *i = item;
	uint64_t size = 1, elements = 0;

	if (r->next == r->n_names)
		return false;
	i->name = r->names[r->next++];
	for (size_t k = 0; k < r->n; k++) {
		if (find(r, k, &i->name, &i->t[k], &i->number[k]))
			i->number[k] = -1;
		if (i->number[k] < 0)
			continue;
		size = max_u64(size, dtype_info(i->t[k].dtype)->size);
		elements = max_u64(elements, elements_of(&i->t[k]));
		i->compared[k] = k && i->number[k - 1] >= 0 && comparable(&i->t[k - 1], &i->t[k]);
	}
	i->step = min_u64(BLOCK / size, TALLY_MAX_BLOCK);
	/* Empty tensors are opened too: they may be unreadable. */
	*ret_blocks = elements ? (elements - 1) / i->step + 1 : 1;
	return true;
}

/* Results arrive in order: all those of one tensor, then those of the next. */
static int merge(void *arg, void *item, const void *result)
{
	const struct part *from = result;
	struct series *r = arg;
	const struct item *i = item;

	for (size_t k = 0; k < r->n; k++) {
		if (!r->parts[k].why.code) {
			r->parts[k].why = from[k].why;
			ckpt_drop_name(i->name.s, i->name.len, &r->parts[k].why);
		}
		if (from[k].any)
			add_tally(&r->parts[k], &from[k].tally);
		delta_merge(&r->parts[k].delta, &from[k].delta);
		if (i->number[k] >= 0)
			r->done +=
				min_u64(i->t[k].bytes, i->step * dtype_info(i->t[k].dtype)->size);
	}
	if (r->s->progress)
		r->s->progress(r->s->arg, min_u64(r->done, r->total), r->total);
	return 0;
}

static double relative(const struct delta *d, const struct ckpt_values *before)
{
	double moved = delta_norm(d);

	if (!before->known)
		return (double)NAN;
	return moved > 0 ? moved / before->norm : 0;
}

/* r->text could not grow: is it full, or has memory run out? */
static int no_text(struct series *r)
{
	return errno == EFBIG ? err_set(r->e, E2BIG,
					"more than %d MiB of names, shapes and messages: name "
					"fewer tensors",
					MAX_TEXT >> 20)
			      : err_nomem(r->e);
}

/* The row of a tensor in checkpoint k of the window. */
static int add_row(struct series *r, const struct item *i, size_t k,
		   const struct ckpt_values *values)
{
	const struct tensor_info *t = &i->t[k];
	const struct part *p = &r->parts[k];
	struct ckpt_series_item *to;

	if (r->n_rows == CKPT_SERIES_MAX_ROWS)
		return err_set(r->e, E2BIG, "more than %d rows: name fewer tensors",
			       CKPT_SERIES_MAX_ROWS);
	if (!VEC_ROOM(r->rows, r->cap_rows, r->n_rows + 1))
		return err_nomem(r->e);
	r->rows[r->n_rows] = (struct row){ .step = r->first + k };
	to = &r->rows[r->n_rows++].item;
	to->fqn = i->name.s;
	to->fqn_len = i->name.len;
	to->dtype = dtype_info(t->dtype)->name;
	to->n_dims = t->n_dims;
	to->shape = arena_dup(&r->text, t->shape, t->n_dims * sizeof(*t->shape));
	if (!to->shape)
		return no_text(r);
	if (p->why.code) {
		to->fault = arena_dup(&r->text, p->why.msg, strlen(p->why.msg));
		r->s->failed++;
		return to->fault ? 0 : no_text(r);
	}
	to->values = values[k];
	to->other_shape = k && i->number[k - 1] >= 0 && !i->compared[k];
	if (!i->compared[k] || r->parts[k - 1].why.code)
		return 0;
	to->compared = true;
	to->changed = p->delta.changed;
	to->relative = relative(&p->delta, &values[k - 1]);
	if (!values[k].known)
		to->relative = (double)NAN;
	return 0;
}

static int finish(void *arg, void *item)
{
	struct ckpt_values values[WINDOW] = { { 0 } };
	struct series *r = arg;
	const struct item *i = item;
	int rc = 0;

	for (size_t k = 0; k < r->n; k++)
		if (r->parts[k].any)
			tally_values(&r->parts[k].tally, &values[k]);
	for (size_t k = r->carried; !rc && k < r->n; k++)
		if (i->number[k] >= 0)
			rc = add_row(r, i, k, values);
	memset(r->parts, 0, sizeof(r->parts));
	return rc;
}

/* ---- names ---- */

static int compare_names(const void *a, const void *b)
{
	const struct name *x = a, *y = b;

	return text_natural_cmp(x->s, x->len, y->s, y->len);
}

static int add_names(struct series *r, size_t k, uint64_t *glob_steps, uint64_t *bytes)
{
	struct ckpt *c = r->open[k];
	struct ckpt_totals totals;
	struct tensor_info t;
	struct ckpt_err e;
	uint64_t n;

	if (!c)
		return 0;
	ckpt_totals(c, &totals);
	n = r->s->model ? ckpt_model_tensors(c) : totals.tensors;
	for (uint64_t i = 0; i < n; i++) {
		struct name *to;

		if ((r->s->model ? ckpt_model_at(c, i, &t, &e) : ckpt_tensor_at(c, i, &t, &e)) ||
		    !text_glob_any(r->s->globs, t.fqn, t.fqn_len, glob_steps))
			continue;
		if (!VEC_ROOM(r->names, r->cap_names, r->n_names + 1))
			return err_nomem(r->e);
		to = &r->names[r->n_names++];
		*to = (struct name){ t.fqn, t.fqn_len };
		*bytes += t.bytes;
	}
	return 0;
}

/* All names of the window, each once and sorted; they outlive the window. */
static int collect_names(struct series *r, uint64_t *ret_bytes)
{
	uint64_t glob_steps = TEXT_GLOB_STEPS;
	size_t n = 0;
	int rc = 0;

	r->n_names = 0;
	*ret_bytes = 0;
	for (size_t k = 0; !rc && k < r->n; k++)
		rc = add_names(r, k, &glob_steps, ret_bytes);
	if (!rc)
		rc = text_glob_check(glob_steps, "stat", r->e);
	if (rc)
		return rc;
	if (r->n_names)
		qsort(r->names, r->n_names, sizeof(*r->names), compare_names);
	for (size_t i = 0; i < r->n_names; i++)
		if (!n || compare_names(&r->names[n - 1], &r->names[i]))
			r->names[n++] = r->names[i];
	r->n_names = n;
	for (size_t i = 0; i < n; i++) {
		r->names[i].s = arena_dup(&r->text, r->names[i].s, r->names[i].len);
		if (!r->names[i].s)
			return no_text(r);
	}
	return 0;
}

/* ---- windows ---- */

static int add_step(void *arg, const struct ckpt_run_entry *entry)
{
	struct series *r = arg;

	if (!entry->complete) {
		r->s->incomplete++;
		return 0;
	}
	if (!VEC_ROOM(r->steps, r->cap_steps, r->n_steps + 1) ||
	    !VEC_ROOM(r->faults, r->cap_faults, r->n_steps + 1))
		return err_nomem(r->e);
	r->faults[r->n_steps] = NULL;
	r->steps[r->n_steps] = arena_dup(&r->text, entry->name, strlen(entry->name));
	return r->steps[r->n_steps++] ? 0 : no_text(r);
}

static int open_step(struct series *r, size_t k)
{
	const char *name = r->steps[r->first + k], *rest;
	struct ckpt_err why = { 0 };
	int rc = r->s->open ? r->s->open(r->s->arg, name, &r->open[k], &why)
			    : ckpt_run_open(r->run, name, NULL, NULL, &r->open[k], &rest, &why);

	if (!rc)
		return 0;
	r->open[k] = NULL;
	r->faults[r->first + k] = arena_dup(&r->text, why.msg, strlen(why.msg));
	return r->faults[r->first + k] ? 0 : no_text(r);
}

/* Scans a window that begins at r->first; with r->carried, its first checkpoint is already open. */
static int scan_window(struct series *r, uint64_t read)
{
	const struct pipeline pipeline = { .item_size = sizeof(struct item),
					   .result_size = WINDOW * sizeof(struct part),
					   .worker_size = sizeof(struct worker),
					   .jobs = r->s->jobs,
					   .arg = r,
					   .next = next,
					   .merge = merge,
					   .finish = finish,
					   .setup = setup,
					   .teardown = teardown,
					   .work = work };
	uint64_t bytes;
	int rc = 0;

	r->n = min_u64(r->n_steps - r->first, WINDOW);
	for (size_t k = r->carried; !rc && k < r->n; k++)
		rc = open_step(r, k);
	if (!rc)
		rc = collect_names(r, &bytes);
	if (rc)
		return rc;
	r->next = 0;
	/* Assumes that the other checkpoints are about as large. */
	r->done = read;
	r->total = read + bytes / r->n * (r->n_steps - r->first);
	return pipeline_run(&pipeline, r->e);
}

static void close_all(struct series *r)
{
	for (size_t k = 0; k < WINDOW; k++) {
		ckpt_close(r->open[k]);
		r->open[k] = NULL;
	}
}

static int scan(struct series *r)
{
	int rc = ckpt_run_each(r->run, add_step, r, r->e);

	r->s->checkpoints = r->n_steps;
	while (!rc && r->first + r->carried < r->n_steps) {
		struct ckpt *last;

		rc = scan_window(r, r->done);
		last = r->open[r->n - 1];
		r->open[r->n - 1] = NULL;
		close_all(r);
		r->open[0] = last;
		r->first += r->n - 1;
		r->carried = true;
	}
	return rc;
}

/* ---- rows ---- */

static int compare_rows(const void *a, const void *b)
{
	const struct row *x = a, *y = b;
	int c = text_natural_cmp(x->item.fqn, x->item.fqn_len, y->item.fqn, y->item.fqn_len);

	return c ? c : x->step < y->step ? -1 : x->step > y->step;
}

static bool same_name(const struct row *a, const struct row *b)
{
	return a->item.fqn_len == b->item.fqn_len &&
	       !memcmp(a->item.fqn, b->item.fqn, a->item.fqn_len);
}

static int show_missing(struct series *r, const struct row *of, size_t step)
{
	struct ckpt_series_item missing = {
		.fqn = of->item.fqn,
		.fqn_len = of->item.fqn_len,
		.checkpoint = r->steps[step],
		.fault = r->faults[step] ? r->faults[step] : "it has no such tensor",
	};

	r->s->failed += r->faults[step] != NULL;
	return r->s->each(r->s->arg, &missing);
}

static int show(struct series *r)
{
	int rc = 0;

	if (r->n_rows)
		qsort(r->rows, r->n_rows, sizeof(*r->rows), compare_rows);
	for (size_t i = 0; !rc && i < r->n_rows;) {
		const struct row *first = &r->rows[i];

		r->s->tensors++;
		for (size_t step = 0; !rc && step < r->n_steps; step++) {
			struct row *row = &r->rows[i];

			if (i == r->n_rows || row->step != step || !same_name(row, first)) {
				rc = show_missing(r, first, step);
				continue;
			}
			row->item.checkpoint = r->steps[step];
			rc = r->s->each(r->s->arg, &row->item);
			i++;
		}
	}
	return rc;
}

int ckpt_series_sized(struct ckpt *run, struct ckpt_series *s, size_t size, struct ckpt_err *e)
{
	struct ckpt_series ours;
	struct series r = { .run = run, .s = &ours, .e = e, .text = ARENA_INIT(MAX_TEXT) };
	int rc = SIZED_TAKE(ours, s, size, "ckpt_series", e);

	if (rc)
		return rc;
	ours.checkpoints = ours.incomplete = ours.tensors = ours.failed = 0;
	rc = scan(&r);
	if (!rc)
		rc = show(&r);
	close_all(&r);
	free(r.names);
	free(r.rows);
	free(r.steps);
	free(r.faults);
	arena_release(&r.text);
	SIZED_GIVE(s, size, ours);
	return rc;
}
