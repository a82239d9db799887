/* SPDX-License-Identifier: Apache-2.0 */
/* The open checkpoints of a run: opened on first access, and closed, if unused, when too many are
 * open. */
#include "ckpt/run/run.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/text.h"
#include "ckpt/ckpt_internal.h"
#include "ckpt/open/index.h"
#include "index/catalog_query.h"
#include "layout/layout.h"
#include "source/files.h"
#include "tree/view.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
	MAX_IDLE = 16,
	IDLE_FDS = 32, /* descriptors that an unused checkpoint may keep */
	SETTLE_SECONDS = 20,
	RETRY_SHARE = 10,
};
#define COPY_STEP CLOCK_SECOND /* between the creation of a directory, its metadata and its data */
/* Interval between attempts to open a failing checkpoint: a copy may be complete soon, but at most
 * 1/RETRY_SHARE of the time is spent on them, unless they take longer than the longest interval. */
#define RETRY_NS      CLOCK_SECOND
#define RETRY_MOST_NS (5 * CLOCK_SECOND)

void run_child_free(struct run_child *k)
{
	if (!k)
		return;
	ckpt_close(k->ckpt);
	free(k->name);
	free(k->first);
	free(k->why);
	free(k->lacks);
	free(k);
}

/* ---- unused checkpoints; under the lock ---- */

static void idle_remove(struct ckpt_run *r, struct run_child *k)
{
	LIST_REMOVE(&r->idle, k);
	r->n_idle--;
}

/* Called before c is closed. */
static void keep_counters(struct ckpt_run *r, struct ckpt *c)
{
	ckpt_counters_add(&r->closed, c);
	r->closed.cache_bytes = r->closed.cache_max_bytes = 0;
}

static struct run_child *longest_idle(const struct ckpt_run *r)
{
	struct run_child *last = r->idle.first;

	LIST_EACH (k, &r->idle)
		if (k->left_ns < last->left_ns)
			last = k;
	return last;
}

/* Returns the checkpoint to close in its place. */
static struct ckpt *idle_push(struct ckpt_run *r, struct run_child *k)
{
	struct run_child *last;
	struct ckpt *c;

	LIST_PUSH(&r->idle, k);
	if (++r->n_idle <= MAX_IDLE)
		return NULL;
	last = longest_idle(r);
	idle_remove(r, last);
	c = last->ckpt;
	last->ckpt = NULL;
	keep_counters(r, c);
	return c;
}

struct run_child *run_end(struct ckpt_run *r, struct run_child *k)
{
	if (k->ckpt) {
		idle_remove(r, k);
		keep_counters(r, k->ckpt);
	}
	if (k->slot)
		r->slots[k->slot] = NULL;
	return k;
}

void run_counters(struct ckpt_run *r, struct ckpt_counters *ret)
{
	SCOPED_LOCK(&r->lock);

	*ret = r->closed;
	for (size_t i = 1; i < r->n_slots; i++)
		if (r->slots[i] && r->slots[i]->ckpt)
			ckpt_counters_add(ret, r->slots[i]->ckpt);
}

/* ---- opening ---- */

/* Digest of everything that the names and bytes of its tree depend on. */
static uint64_t identity_of(const struct engine *eng)
{
	struct digest d = eng->renaming;

	digest_add(&d, eng->identity, strlen(eng->identity));
	files_digest(eng->files, &d);
	if (eng->assets.files)
		files_digest(eng->assets.files, &d);
	digest_add(&d, &eng->recipe.digest, sizeof(eng->recipe.digest));
	if (eng->layout)
		digest_add(&d, layout_digest(eng->layout), sizeof(struct digest));
	for (size_t i = 0; i < eng->assets.n; i++) {
		const struct view_asset *a = &eng->assets.v[i];
		const uint64_t seen[] = { a->size, a->mtime_ns };

		digest_add(&d, a->path, strlen(a->path));
		digest_add(&d, seen, sizeof(seen));
	}
	return d.low;
}

bool run_is_copy(uint64_t dir, uint64_t metadata, uint64_t first_data)
{
	return dir && dir <= metadata && metadata < first_data && metadata - dir <= COPY_STEP &&
	       first_data - metadata <= COPY_STEP;
}

/*
 * Is this a complete copy, rather than a save in progress over an older checkpoint? That all files
 * are long enough proves nothing: halfway through such a save they are, too. But both saves wrote
 * their metadata after the data. A copy that began with the metadata has created the directory, the
 * metadata and the data in that order and in quick succession; and it is complete once no byte is
 * missing.
 */
static bool is_whole_copy(const struct engine *eng)
{
	uint64_t metadata = 0, first = UINT64_MAX;
	struct place *place = eng->c->place;
	const struct stored_file *sources;
	struct place_made dir, file;
	struct ckpt_err ignored;
	size_t n;

	if (engine_is_whole(eng, &ignored) || !place_made(place, ".", &dir))
		return false;
	for (size_t i = 0; i < eng->metadata.n; i++) {
		if (!place_made(place, eng->metadata.v[i], &file) || file.born_ns < dir.born_ns)
			return false;
		metadata = max_u64(metadata, file.born_ns);
	}
	sources = catalog_sources(eng->catalog, &n);
	for (size_t i = 0; i < n; i++) {
		if (sources[i].bytes)
			continue;
		if (!place_made(place, sources[i].path, &file) || !file.filled)
			return false;
		first = min_u64(first, file.born_ns);
	}
	return run_is_copy(dir.born_ns, metadata, first);
}

/*
 * A save over an old checkpoint writes data files while the old metadata still exists, and for a
 * time the directory holds parts of both. Data that is newer than the metadata may also have been
 * copied. A save does not pause for long, so a while without writes settles the question.
 */
static int check_settled(const struct engine *eng, struct ckpt_err *e)
{
	uint64_t newest = files_newest_ns(eng->files), now = clock_wall_ns();
	uint64_t age = max_u64(now, newest) - min_u64(now, newest);

	if (newest <= eng->metadata_ns || age > SETTLE_SECONDS * CLOCK_SECOND || is_whole_copy(eng))
		return 0;
	return err_set(e, EAGAIN,
		       "checkpoint '%s': its data is newer than its metadata, and was written less "
		       "than %d seconds ago, perhaps by a save that is not finished: try again in "
		       "%d seconds, or copy with the files' times (cp -a)",
		       eng->c->root, SETTLE_SECONDS, SETTLE_SECONDS);
}

/* Opens by descriptors, so that a link that has replaced a directory is not followed. */
static int open_named(const struct ckpt_run *r, const char *name, const char *inner,
		      const struct ckpt_opts *o, struct ckpt **ret, struct ckpt_err *e)
{
	autofree char *root = NULL;
	struct place *place;

	if (run_open_dir(r, name, inner, &place, e))
		return err_set(e, ESTALE, "checkpoint '%s' is gone", name);
	root = text_format("%s/%s%s%s", r->root, name, inner ? "/" : "", inner ? inner : "");
	if (!root) {
		place_free(place);
		return err_set(e, ENOMEM, "out of memory");
	}
	return ckpt_open_place(place, root, o, ret, e);
}

int run_open(struct ckpt_run *r, unsigned slot, const struct ckpt_opts *o, struct ckpt **ret,
	     struct ckpt_err *e)
{
	struct run_about about;

	if (run_about(r, slot, &about))
		return err_set(e, ESTALE, "the checkpoint is gone");
	return open_named(r, about.name, about.inner, o, ret, e);
}

static int open_child(const struct ckpt_run *r, const struct run_child *k, struct ckpt **ret,
		      uint64_t *ret_identity, struct ckpt_err *e)
{
	struct ckpt_opts o = r->opts;
	struct ckpt *c = NULL;
	int rc;

	if (k->identified) /* warnings were already issued on the first open */
		o.warn = NULL;
	rc = open_named(r, k->name, k->inner, &o, &c, e);
	if (!c && e->code == ESTALE)
		return rc;
	if (!rc)
		rc = check_settled(c->engine, e);
	if (run_still(r, k, e)) /* the checkpoint has changed, whatever failed */
		rc = -e->code;
	if (rc) {
		ckpt_close(c);
		return rc;
	}
	*ret_identity = identity_of(c->engine);
	*ret = c;
	return 0;
}

/* ---- using; under the lock ---- */

static int may_open(const struct run_child *k, struct ckpt_err *e)
{
	if (k->gone || k->replaced)
		return err_set(e, ESTALE, "checkpoint '%s' has been replaced", k->name);
	if (k->why && clock_ns() < k->retry_ns)
		return err_set(e, k->why_code, "%s", k->why);
	return 0;
}

/* Opening it has failed and has taken so long. */
static void retry_later(struct run_child *k, uint64_t spent_ns)
{
	k->retry_ns =
		clock_ns() + min_u64(max_u64(RETRY_NS, spent_ns * RETRY_SHARE), RETRY_MOST_NS);
}

/* It may be tried again soon; until then its error message is kept. */
static void note_failure(struct run_child *k, uint64_t spent_ns, const struct ckpt_err *e)
{
	if (e->code == ESTALE || e->code == ENOMEM || e->code == EMFILE || e->code == ENFILE)
		return;
	free(k->why);
	k->why = strdup(e->msg);
	k->why_code = e->code;
	retry_later(k, spent_ns);
}

/* Records that c was opened. Returns c if it is not the same checkpoint as before. */
static struct ckpt *note_opened(struct run_child *k, struct ckpt *c, uint64_t identity)
{
	struct ckpt_err e;

	free(k->why);
	free(k->lacks);
	k->why = NULL;
	k->lacks = engine_is_whole(c->engine, &e) ? strdup(e.msg) : NULL;
	k->is_told = !k->lacks && (c->totals.missing || c->totals.not_shown);
	if (k->is_told)
		k->lacks =
			c->totals.missing
				? text_format("not everything is there: %s", c->totals.missing)
				: text_format("not everything is shown: %s", c->totals.not_shown);
	if (k->identified && k->identity != identity) {
		k->replaced = true;
		return c;
	}
	k->identified = true;
	k->identity = identity;
	k->ckpt = c;
	return NULL;
}

/* ---- using ---- */

/* Has a file changed since it was opened, and is it time to open it again? */
static bool is_stale(const struct run_child *k)
{
	const struct engine *eng = k->ckpt ? k->ckpt->engine : NULL;

	return eng && k->users == 1 && clock_ns() >= k->retry_ns &&
	       (files_changed(eng->files) || others_changed(eng));
}

/*
 * The caller has set k->opening. If k->ckpt is set, it is stale, and nobody else uses it; if it
 * cannot be opened again it is kept, because its other files may be unchanged.
 */
static int open_for_all(struct ckpt_run *r, struct run_child *k, struct ckpt_err *e)
{
	struct ckpt *c = NULL, *other = NULL, *old = NULL;
	struct ckpt_err why = { 0 };
	uint64_t identity = 0, start = clock_ns(), spent;
	int rc = open_child(r, k, &c, &identity, &why);

	spent = clock_ns() - start;
	if (!rc)
		c->in_run = true;
	{
		SCOPED_LOCK(&r->lock);
		if (rc && k->ckpt) {
			retry_later(k, spent);
			rc = 0;
		} else if (rc) {
			note_failure(k, spent, &why);
			*e = why;
		} else {
			old = steal_ptr(&k->ckpt);
			if (old)
				keep_counters(r, old);
			other = note_opened(k, c, identity);
		}
		if (other)
			rc = may_open(k, e);
		k->opening = false;
		(void)pthread_cond_broadcast(&r->opened);
	}
	ckpt_close(old);
	ckpt_close(other);
	return rc;
}

int run_use(struct ckpt_run *r, unsigned slot, struct run_child **ret, struct ckpt_err *e)
{
	struct run_child *k;
	bool open = false;
	int rc = 0;

	{
		SCOPED_LOCK(&r->lock);
		k = slot < r->n_slots ? r->slots[slot] : NULL;
		if (!k)
			return err_set(e, ESTALE, "the checkpoint is gone");
		if (!k->users++ && k->ckpt)
			idle_remove(r, k);
		while (k->opening)
			(void)pthread_cond_wait(&r->opened, &r->lock);
		if (!k->ckpt)
			rc = may_open(k, e);
		k->opening = open = !rc && (!k->ckpt || is_stale(k));
	}
	if (open)
		rc = open_for_all(r, k, e);
	if (rc)
		run_done(r, k);
	else
		*ret = k;
	return rc;
}

bool run_was_open(struct ckpt_run *r, unsigned slot)
{
	SCOPED_LOCK(&r->lock);

	return slot < r->n_slots && r->slots[slot] && r->slots[slot]->identified;
}

/* left_ns: when it was used for the last time. */
static void end_use(struct ckpt_run *r, struct run_child *k, uint64_t left_ns, bool let_go)
{
	struct run_child *end = NULL;
	struct ckpt *close = NULL;

	{
		SCOPED_LOCK(&r->lock);
		k->left_ns = max_u64(k->left_ns, left_ns);
		k->let_go = let_go && k->left_ns == left_ns;
		if (!--k->users && k->ckpt)
			close = idle_push(r, k);
		if (!k->users && k->gone)
			end = run_end(r, k);
	}
	ckpt_close(close);
	run_child_free(end);
}

void run_done(struct ckpt_run *r, struct run_child *k)
{
	bool last;

	{
		SCOPED_LOCK(&r->lock);
		last = k->users == 1 && k->ckpt;
	}
	if (last) /* the cache is only useful while files are open */
		engine_trim(k->ckpt->engine, IDLE_FDS);
	end_use(r, k, clock_ns(), false);
}

/* Closes the checkpoint, unless it is used again. */
static void close_unused(struct ckpt_run *r, struct run_child *k)
{
	struct ckpt *close = NULL;

	{
		SCOPED_LOCK(&r->lock);
		if (k->users == 1) {
			close = k->ckpt;
			k->ckpt = NULL;
			keep_counters(r, close);
		}
	}
	ckpt_close(close);
}

void run_close(struct ckpt_run *r, struct run_child *k)
{
	close_unused(r, k);
	end_use(r, k, clock_ns(), false);
}

/*
 * On a local disk an open file keeps its space after it has been deleted. On NFS and on libfuse
 * file systems it also keeps a name (.nfs..., .fuse_hidden...), and `rm -r` of the checkpoint
 * fails.
 */
bool run_let_go(struct ckpt_run *r, uint64_t unused_ns)
{
	const uint64_t now = clock_ns();

	for (;;) {
		struct run_child *k = NULL;
		uint64_t left_ns;
		bool later = false;

		{
			SCOPED_LOCK(&r->lock);
			LIST_EACH (x, &r->idle)
				if (!x->let_go) {
					bool due = x->left_ns + unused_ns <= now;

					k = due ? x : k;
					later |= !due;
				}
			if (!k)
				return later;
			idle_remove(r, k);
			k->users++;
			left_ns = k->left_ns;
		}
		/* SQLite closes the file of an index only together with the connection. */
		if (index_is_beside(k->ckpt->root, k->ckpt->engine->index))
			close_unused(r, k);
		else
			engine_trim(k->ckpt->engine, 0);
		end_use(r, k, left_ns, true);
	}
}

/* A checkpoint that cannot be opened records the reason itself. */
int run_look(struct ckpt_run *r, void (*progress)(void *arg, uint64_t done, uint64_t total),
	     void *arg, struct ckpt_err *e)
{
	uint64_t done = 0, total = 0;
	struct run_about about;
	struct run_child *k;
	struct ckpt_err why;

	for (unsigned slot = 1; !run_next(r, &slot, &about); slot++)
		total++;
	for (unsigned slot = 1; !run_next(r, &slot, &about); slot++) {
		int rc = run_use(r, slot, &k, &why);

		if (!rc) {
			run_done(r, k);
		} else if (rc == -ENOMEM || rc == -EMFILE || rc == -ENFILE) {
			*e = why;
			return rc;
		}
		done++;
		if (progress) /* more checkpoints may have appeared since they were counted */
			progress(arg, done, max_u64(done, total));
	}
	return 0;
}
