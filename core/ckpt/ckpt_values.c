/* SPDX-License-Identifier: Apache-2.0 */
#include <ckptfs/ckpt_values.h>

#include "base/arena.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "base/vec.h"
#include "ckpt/ckpt_internal.h"
#include "ckpt/pipeline.h"
#include "codec/tally.h"
#include "codec/values.h"
#include "tensor/tensor_info.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(CKPT_VALUES_MAX_JOBS == PIPELINE_MAX_JOBS, "one bound");

enum {
	BLOCK = 4 << 20,      /* bytes that are read at once */
	MAX_GROUPS = 1 << 16, /* of 1 KiB each */
	MAX_NAMES = 64 << 20, /* bytes of their names */
};

/* Tensors whose names make one key. */
struct group {
	const char *key;
	size_t len;
	uint64_t bytes, tensors;
	struct tally tally;
};

/* A tensor under way. */
struct item {
	struct pipeline_item item;
	uint64_t at; /* its number */
	struct tensor_info t;
	uint64_t step, charged; /* elements of a block; bytes */
	struct tally tally;
	struct ckpt_err why;
};

struct result {
	struct tally tally;
	struct ckpt_err why; /* a code if reading failed */
};

struct scan {
	struct ckpt *c;
	struct ckpt_values_scan *s;
	uint64_t n, next; /* tensors */
	uint64_t glob_steps;
	uint64_t done;
	struct tally total;
	struct ckpt_err *e;
	struct arena names;
	struct group *groups; /* sorted by key */
	size_t n_groups, cap_groups;
};

struct worker {
	uint8_t *buf;
	struct tally_work *work;
	struct ckpt_file *file; /* of the item with that serial, if any */
	uint64_t serial;
};

static int tensor_at(const struct scan *r, uint64_t i, struct tensor_info *ret)
{
	struct ckpt_err e;

	return r->s->model ? ckpt_model_at(r->c, i, ret, &e) : ckpt_tensor_at(r->c, i, ret, &e);
}

/* ---- workers ---- */

static int setup(void *arg, void *worker, struct ckpt_err *e)
{
	struct worker *w = worker;

	(void)arg;
	w->buf = malloc(BLOCK);
	w->work = tally_work_new();
	return w->buf && w->work ? 0 : err_nomem(e);
}

static void teardown(void *arg, void *worker)
{
	struct worker *w = worker;

	(void)arg;
	ckpt_file_close(w->file);
	tally_work_free(w->work);
	free(w->buf);
}

static int open_item(const struct scan *r, struct worker *w, const struct item *i,
		     struct ckpt_err *e)
{
	if (w->file && w->serial == i->item.serial)
		return 0;
	ckpt_file_close(w->file);
	w->file = NULL;
	w->serial = i->item.serial;
	return r->s->model ? ckpt_model_open(r->c, i->at, &w->file, e)
			   : ckpt_file_open(r->c, ckpt_tensor_node(r->c, i->at), &w->file, e);
}

static void work(void *arg, void *worker, void *item, uint64_t block, void *result)
{
	const struct item *i = item;
	struct result *s = result;
	struct worker *w = worker;
	size_t size = dtype_info(i->t.dtype)->size;
	uint64_t from = block * i->step, n = min_u64(i->t.bytes / size - from, i->step);
	int64_t got;

	s->tally = (struct tally)TALLY_INIT;
	if (!open_item(arg, w, i, &s->why)) {
		got = ckpt_file_read(w->file, w->buf, (size_t)(n * size), from * size, &s->why);
		if (got >= 0 && (uint64_t)got != n * size)
			(void)err_set(&s->why, EIO, "it ends at %ju of %ju bytes",
				      (uintmax_t)(from * size + (uint64_t)got),
				      (uintmax_t)i->t.bytes);
	}
	if (s->why.code)
		pipeline_stop((struct pipeline_item *)item, block);
	else
		tally_add(&s->tally, w->work, i->t.dtype, w->buf, (size_t)n, from);
}

/* ---- groups ---- */

/* What the name of a tensor belongs to; NULL: no memory. */
static const char *key_of(struct scan *r, const struct tensor_info *t, size_t *ret_len)
{
	char *key = arena_alloc(&r->names, t->fqn_len + 1);
	size_t n = 0;

	for (size_t i = 0; key && i < t->fqn_len;) {
		bool starts = !i || t->fqn[i - 1] == '.';
		size_t digits = 0;

		while (starts && i + digits < t->fqn_len && t->fqn[i + digits] >= '0' &&
		       t->fqn[i + digits] <= '9')
			digits++;
		if (digits && i + digits < t->fqn_len && t->fqn[i + digits] != '.')
			digits = 0; /* a word that begins with a digit */
		if (digits && r->s->by == CKPT_VALUES_LAYER) {
			memcpy(key + n, t->fqn + i, digits);
			n += digits;
			break;
		}
		key[n++] = digits ? '*' : t->fqn[i];
		i += digits ? digits : 1;
	}
	if (key)
		key[n] = 0;
	*ret_len = n;
	return key;
}

/* The group of that key, or where it belongs. */
static size_t find_group(const struct scan *r, const char *key, size_t len, bool *found)
{
	size_t low = 0, high = r->n_groups;

	while (low < high) {
		size_t mid = (low + high) / 2;
		int c = text_natural_cmp(key, len, r->groups[mid].key, r->groups[mid].len);

		if (!c) {
			*found = true;
			return mid;
		}
		if (c < 0)
			high = mid;
		else
			low = mid + 1;
	}
	*found = false;
	return low;
}

static int add_to_group(struct scan *r, const struct item *i)
{
	size_t len, at;
	const char *key = key_of(r, &i->t, &len);
	struct group *g;
	bool found;

	if (!key)
		return err_nomem(r->e);
	at = find_group(r, key, len, &found);
	if (!found) {
		if (r->n_groups == MAX_GROUPS)
			return err_set(r->e, E2BIG, "more than %d groups", MAX_GROUPS);
		if (!VEC_ROOM(r->groups, r->cap_groups, r->n_groups + 1))
			return err_nomem(r->e);
		g = &r->groups[at];
		memmove(g + 1, g, (r->n_groups++ - at) * sizeof(*g));
		*g = (struct group){ .key = key, .len = len, .tally = TALLY_INIT };
	}
	g = &r->groups[at];
	g->tensors++;
	g->bytes += i->t.bytes;
	tally_merge(&g->tally, &i->tally);
	return 0;
}

static int show_groups(struct scan *r)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < r->n_groups; i++) {
		const struct group *g = &r->groups[i];
		struct ckpt_values_item shown = {
			.fqn = g->key, .fqn_len = g->len, .bytes = g->bytes, .tensors = g->tensors
		};

		tally_values(&g->tally, &shown.values);
		rc = r->s->each(r->s->arg, &shown);
	}
	return rc;
}

/* ---- the calling thread ---- */

static bool wanted(struct scan *r, const struct tensor_info *t)
{
	return text_glob_any(r->s->globs, t->fqn, t->fqn_len, &r->glob_steps);
}

static bool next(void *arg, void *item, uint64_t *ret_blocks)
{
	struct scan *r = arg;
	struct item *i = item;

	do {
		if (r->next == r->n)
			return false;
		i->at = r->next++;
	} while (tensor_at(r, i->at, &i->t) || !wanted(r, &i->t));
	i->tally = (struct tally)TALLY_INIT;
	if (!values_known(i->t.dtype) || !i->t.bytes)
		return true;
	i->step = min_u64(BLOCK / dtype_info(i->t.dtype)->size, TALLY_MAX_BLOCK);
	*ret_blocks = (i->t.bytes / dtype_info(i->t.dtype)->size - 1) / i->step + 1;
	return true;
}

static void charge(struct scan *r, struct item *i, uint64_t bytes)
{
	i->charged += bytes;
	r->done += bytes;
	if (r->s->progress)
		r->s->progress(r->s->arg, r->done, r->s->bytes);
}

static int merge(void *arg, void *item, const void *result)
{
	const struct result *s = result;
	struct scan *r = arg;
	struct item *i = item;

	if (!i->why.code)
		i->why = s->why;
	if (!i->why.code)
		tally_merge(&i->tally, &s->tally);
	charge(r, i, min_u64(i->t.bytes - i->charged, BLOCK));
	return 0;
}

static int finish(void *arg, void *item)
{
	struct scan *r = arg;
	struct item *i = item;
	struct ckpt_values_item shown = { .fqn = i->t.fqn,
					  .fqn_len = i->t.fqn_len,
					  .dtype = dtype_info(i->t.dtype)->name,
					  .n_dims = i->t.n_dims,
					  .shape = i->t.shape,
					  .bytes = i->t.bytes,
					  .tensors = 1 };
	int rc = 0;

	charge(r, i, i->t.bytes - i->charged);
	r->s->tensors++;
	if (i->why.code) {
		shown.fault = i->why.msg;
		r->s->failed++;
	} else if (values_known(i->t.dtype)) {
		tally_values(&i->tally, &shown.values);
		tally_merge(&r->total, &i->tally);
		if (r->s->by != CKPT_VALUES_TENSOR)
			rc = add_to_group(r, i);
	}
	if (!rc && (r->s->by == CKPT_VALUES_TENSOR || shown.fault))
		rc = r->s->each(r->s->arg, &shown);
	return rc;
}

static int scan(struct ckpt *c, struct ckpt_values_scan *s, struct ckpt_err *e)
{
	struct scan r = { .c = c,
			  .s = s,
			  .glob_steps = TEXT_GLOB_STEPS,
			  .total = TALLY_INIT,
			  .names = ARENA_INIT(MAX_NAMES),
			  .e = e };
	const struct pipeline pipeline = { .item_size = sizeof(struct item),
					   .result_size = sizeof(struct result),
					   .worker_size = sizeof(struct worker),
					   .jobs = s->jobs,
					   .arg = &r,
					   .next = next,
					   .merge = merge,
					   .finish = finish,
					   .setup = setup,
					   .teardown = teardown,
					   .work = work };
	struct ckpt_totals totals;
	struct tensor_info t;
	int rc;

	if (ckpt_is_run(c))
		return err_set(e, EISDIR, "it is a run");
	ckpt_totals(c, &totals);
	r.n = s->model ? ckpt_model_tensors(c) : totals.tensors;
	if (s->model && !r.n)
		return err_set(e, ENOENT,
			       "it has no model to look at: name its weights with weights=");
	s->tensors = s->failed = s->bytes = 0;
	for (uint64_t i = 0; i < r.n; i++)
		if (!tensor_at(&r, i, &t) && wanted(&r, &t))
			s->bytes += t.bytes;
	rc = text_glob_check(r.glob_steps, "stat", e);
	if (rc)
		return rc;
	r.glob_steps = TEXT_GLOB_STEPS;
	rc = pipeline_run(&pipeline, e);
	if (!rc)
		rc = show_groups(&r);
	tally_values(&r.total, &s->total);
	free(r.groups);
	arena_release(&r.names);
	return rc;
}

int ckpt_values_scan_sized(struct ckpt *c, struct ckpt_values_scan *s, size_t size,
			   struct ckpt_err *e)
{
	struct ckpt_values_scan ours;
	int rc = SIZED_TAKE(ours, s, size, "ckpt_values_scan", e);

	if (rc)
		return rc;
	rc = scan(c, &ours, e);
	SIZED_GIVE(s, size, ours);
	return rc;
}
