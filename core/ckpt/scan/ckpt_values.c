/* SPDX-License-Identifier: Apache-2.0 */
#include <ckptfs/ckpt_values.h>

#include "base/arena.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/search.h"
#include "base/text.h"
#include "base/vec.h"
#include "ckpt/ckpt_internal.h"
#include "ckpt/scan/pipeline.h"
#include "ckpt/scan/tensor_scan.h"
#include "ckpt/scan/values_state.h"
#include "codec/hist.h"
#include "codec/tally.h"
#include "codec/values.h"
#include "tensor/tensor_info.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(CKPT_HIST_MAX == HIST_MAX_BINS, "one bound");
_Static_assert(CKPT_VALUES_MAX_JOBS == PIPELINE_MAX_JOBS, "one bound");

enum {
	MAX_GROUPS = 1 << 16,	   /* of 1 KiB each */
	MAX_NAMES = 64 << 20,	   /* bytes of group names */
	MAX_HIST_GROUPS = 1 << 10, /* with histograms, of 512 KiB each */
};

/* Tensors whose names map to the same key. */
struct group {
	const char *key;
	size_t len;
	uint64_t bytes, tensors;
	struct tally tally;
	struct hist *hist;
};

/* A histogram in the form that programs get. */
struct shown_hist {
	struct hist_bins bins;
	struct ckpt_hist hist;
};

struct scan {
	struct ckpt_values_scan *s;
	struct tally total;
	struct ckpt_err *e;
	struct arena names;
	struct group *groups; /* sorted by key */
	size_t n_groups, cap_groups;
	struct hist *hist; /* for the tensor being merged; NULL: histograms were not requested */
	struct ckpt *c;
	const struct tensor_scan *tensors;
	struct digest asked; /* digest of everything that the contents of .state depend on */
	struct values_state state;
	uint64_t known;	  /* number of coming tensors whose results it has */
	bool interrupted; /* a tensor could not be read, so results after it are not stored */
	struct shown_hist linear, logarithmic;
};

/* ---- threads ---- */

struct worker {
	struct tally_work *tally;
	uint32_t *hist; /* NULL: histograms were not requested */
};

/* The result of a block and the state of a tensor: a tally, once there is one. */
struct part {
	bool any;
	struct tally tally;
};

struct result {
	struct part part;
	size_t n_entries;
	struct hist_entry entries[]; /* HIST_KEYS entries with histograms, else none */
};

static void add(struct part *to, const struct tally *from)
{
	if (to->any)
		tally_merge(&to->tally, from);
	else
		to->tally = *from;
	to->any = true;
}

static int setup(void *arg, void *worker, struct ckpt_err *e)
{
	const struct scan *r = arg;
	struct worker *w = worker;

	w->tally = tally_work_new();
	w->hist = r->hist ? calloc(HIST_KEYS, sizeof(*w->hist)) : NULL;
	return w->tally && (w->hist || !r->hist) ? 0 : err_nomem(e);
}

static void teardown(void *arg, void *worker)
{
	struct worker *w = worker;

	(void)arg;
	tally_work_free(w->tally);
	free(w->hist);
}

static void block(void *arg, void *worker, const struct tensor_info *t, const void *bytes, size_t n,
		  uint64_t from, void *result)
{
	struct tally tally = TALLY_INIT;
	struct result *to = result;
	struct worker *w = worker;

	(void)arg;
	tally_add(&tally, w->tally, t->dtype, bytes, n, from);
	add(&to->part, &tally);
	if (!w->hist || !hist_known(t->dtype))
		return;
	hist_count(w->hist, t->dtype, bytes, n);
	to->n_entries = hist_take(w->hist, to->entries);
}

/* Results arrive in order: all those of one tensor, then those of the next. */
static void merge(void *arg, void *state, const void *result)
{
	const struct result *from = result;
	struct scan *r = arg;

	add(state, &from->part.tally);
	if (r->hist)
		hist_add(r->hist, from->entries, from->n_entries);
}

static bool wanted(const struct tensor_info *t)
{
	return values_known(t->dtype);
}

/* ---- groups ---- */

/* The key of a tensor's group; NULL: out of memory. */
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
			digits = 0; /* the word only begins with digits */
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

/* Index of the group with that key, or where to insert it. */
static size_t find_group(const struct scan *r, const char *key, size_t len, bool *found)
{
	size_t at = PARTITION_POINT(
		i, r->n_groups, text_natural_cmp(r->groups[i].key, r->groups[i].len, key, len) < 0);

	*found = at < r->n_groups && bytes_equal(r->groups[at].key, r->groups[at].len, key, len);
	return at;
}

static void show_hist(struct shown_hist *s)
{
	s->hist = (struct ckpt_hist){ s->bins.n, s->bins.edges, s->bins.counts };
}

/* For real numbers, adds the histograms. */
static void show_hists(struct scan *r, const struct hist *h, struct ckpt_values_item *shown)
{
	if (!h || shown->values.is_complex)
		return;
	hist_linear(h, r->s->bins, &r->linear.bins);
	hist_log(h, r->s->bins, &r->logarithmic.bins);
	show_hist(&r->linear);
	show_hist(&r->logarithmic);
	shown->linear = &r->linear.hist;
	shown->logarithmic = &r->logarithmic.hist;
}

static int add_hist(struct scan *r, struct group *g)
{
	if (!g->hist) {
		if (r->n_groups > MAX_HIST_GROUPS)
			return err_set(r->e, E2BIG, "more than %d groups with histograms",
				       MAX_HIST_GROUPS);
		g->hist = calloc(1, sizeof(*g->hist));
		if (!g->hist)
			return err_nomem(r->e);
		hist_init(g->hist);
	}
	hist_merge(g->hist, r->hist);
	return 0;
}

/* The key for the chunk that tensor_scan is reporting. */
static const char *rank_key(struct scan *r, size_t *ret_len)
{
	char key[32];

	*ret_len = (size_t)snprintf(key, sizeof(key), "rank %ld",
				    ckpt_rank_of(r->tensors->chunk_path));
	return arena_dup(&r->names, key, *ret_len);
}

static int add_to_group(struct scan *r, const struct tensor_info *t, const struct tally *tally)
{
	size_t len, at;
	const char *key = r->s->by == CKPT_VALUES_RANK ? rank_key(r, &len) : key_of(r, t, &len);
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
	g->bytes += t->bytes;
	tally_merge(&g->tally, tally);
	return r->hist ? add_hist(r, g) : 0;
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
		show_hists(r, g->hist, &shown);
		rc = r->s->each(r->s->arg, &shown);
	}
	return rc;
}

/* ---- the calling thread ---- */

static void list(void *arg, const struct tensor_info *t)
{
	const uint64_t numbers[] = { t->dtype, t->bytes, t->n_dims };
	struct scan *r = arg;

	digest_add(&r->asked, t->fqn, t->fqn_len);
	digest_add(&r->asked, numbers, sizeof(numbers));
	digest_add(&r->asked, t->shape, t->n_dims * sizeof(*t->shape));
}

static void add_text(struct digest *d, const char *text)
{
	digest_add(d, text, text ? strlen(text) : 0);
}

static int begin(void *arg, uint64_t *ret_known, struct ckpt_err *e)
{
	struct scan *r = arg;
	const uint64_t how[] = { r->s->model, r->s->bins != 0, sizeof(struct tally),
				 r->s->by == CKPT_VALUES_RANK };
	struct ckpt_origin o;
	int rc = ckpt_origin(r->c, &o, e);

	if (rc)
		return rc;
	digest_add(&r->asked, &o, sizeof(o));
	digest_add(&r->asked, how, sizeof(how));
	add_text(&r->asked, CKPTFS_VERSION);
	add_text(&r->asked, r->s->resume_key);
	rc = values_state_open(&r->state, r->s->resume, &r->asked, e);
	r->known = *ret_known = r->state.known;
	return rc;
}

/* Stores the results of a tensor in the file, or loads them if they are known. */
static int keep(struct scan *r, struct part *p, bool fault)
{
	if (r->known) {
		r->known--;
		return values_state_next(&r->state, &p->any, &p->tally, r->hist, r->e);
	}
	r->interrupted |= fault;
	return r->interrupted ? 0 : values_state_add(&r->state, p->any, &p->tally, r->hist, r->e);
}

static int finish(void *arg, const struct tensor_info *t, bool read, const char *fault,
		  const void *state)
{
	struct part part = *(const struct part *)state;
	const struct tally *tally = &part.tally;
	struct scan *r = arg;
	struct ckpt_values_item shown = { .fqn = t->fqn,
					  .fqn_len = t->fqn_len,
					  .dtype = dtype_info(t->dtype)->name,
					  .n_dims = t->n_dims,
					  .shape = t->shape,
					  .bytes = t->bytes,
					  .tensors = 1,
					  .fault = fault };
	int rc = r->s->resume ? keep(r, &part, fault) : 0;

	if (!rc && read && !fault) {
		tally_values(tally, &shown.values);
		tally_merge(&r->total, tally);
		if (r->s->by != CKPT_VALUES_TENSOR)
			rc = add_to_group(r, t, tally);
	}
	if (!rc && (r->s->by == CKPT_VALUES_TENSOR || fault)) {
		if (shown.values.known)
			show_hists(r, r->hist, &shown);
		rc = r->s->each(r->s->arg, &shown);
	}
	if (r->hist)
		hist_init(r->hist);
	return rc;
}

static int check_ranks(const struct ckpt *c, const struct ckpt_values_scan *s, struct ckpt_err *e)
{
	struct ckpt_totals totals;

	ckpt_totals(c, &totals);
	if (s->model)
		return err_set(
			e, EINVAL,
			"option 'by': ranks are for stored tensors, not for those of the model");
	return totals.ranks || ckpt_is_run(c) ? 0
					      : err_set(e, ENOTSUP,
							"option 'by': the names of the data files "
							"do not tell which rank wrote them");
}

static int scan(struct ckpt *c, struct ckpt_values_scan *s, struct ckpt_err *e)
{
	struct scan r = { .s = s,
			  .c = c,
			  .total = TALLY_INIT,
			  .state.fd = -1,
			  .names = ARENA_INIT(MAX_NAMES),
			  .e = e };
	struct tensor_scan tensors = { .c = c,
				       .globs = s->globs,
				       .model = s->model,
				       .by_chunk = s->by == CKPT_VALUES_RANK,
				       .max = TALLY_MAX_BLOCK,
				       .jobs = s->jobs,
				       .cmd = "stat",
				       .progress = s->progress,
				       .progress_arg = s->arg,
				       .arg = &r,
				       .worker_size = sizeof(struct worker),
				       .setup = setup,
				       .teardown = teardown,
				       .wanted = wanted,
				       .result_size = sizeof(struct result),
				       .result_clear = sizeof(struct result),
				       .block = block,
				       .state_size = sizeof(struct part),
				       .merge = merge,
				       .finish = finish };
	int rc = tensors.by_chunk ? check_ranks(c, s, e) : 0;

	if (rc)
		return rc;
	r.tensors = &tensors;
	if (s->resume) {
		tensors.list = list;
		tensors.begin = begin;
	}
	if (s->bins) {
		tensors.result_size += HIST_KEYS * sizeof(struct hist_entry);
		r.hist = calloc(1, sizeof(*r.hist));
		rc = r.hist ? 0 : err_nomem(e);
		if (!rc)
			hist_init(r.hist);
	}
	if (!rc)
		rc = tensor_scan_run(&tensors, e);
	if (!rc)
		rc = show_groups(&r);
	tally_values(&r.total, &s->total);
	s->tensors = tensors.tensors;
	s->failed = tensors.failed;
	s->bytes = tensors.bytes;
	values_state_close(&r.state, !rc && !tensors.failed);
	for (size_t i = 0; i < r.n_groups; i++)
		free(r.groups[i].hist);
	free(r.groups);
	free(r.hist);
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
	if (ours.bins && (ours.bins < CKPT_HIST_MIN || ours.bins > CKPT_HIST_MAX))
		return err_set(e, EINVAL, "histograms of %u bins: they can have %d to %d",
			       ours.bins, CKPT_HIST_MIN, CKPT_HIST_MAX);
	if ((unsigned)ours.by > CKPT_VALUES_RANK)
		return err_set(e, EINVAL, "unknown kind of group %d", (int)ours.by);
	rc = scan(c, &ours, e);
	SIZED_GIVE(s, size, ours);
	return rc;
}
