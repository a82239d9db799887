/* SPDX-License-Identifier: Apache-2.0 */
/* The checkpoints of a run that are open: opened by the first who enters, closed when too many are
 * open that nobody uses. */
#include "api/run.h"

#include "api/ckpt_internal.h"
#include "api/model_recipe.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "read/fetch.h"
#include "read/files.h"
#include "view/view.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <xxhash.h>

enum {
	MAX_IDLE = 16,
	IDLE_FDS = 32, /* of one that nobody uses */
	SETTLE_SECONDS = 20,
};
#define RETRY_NS ((uint64_t)5 * 1000000000) /* what cannot be opened is tried that often */

static uint64_t now_ns(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void run_child_free(struct run_child *k)
{
	if (!k)
		return;
	ckpt_close(k->ckpt);
	free(k->name);
	free(k->first);
	free(k->why);
	free(k);
}

/* ---- those that nobody uses; under the lock ---- */

static void idle_remove(struct ckpt_run *r, struct run_child *k)
{
	*(k->newer ? &k->newer->older : &r->newest) = k->older;
	*(k->older ? &k->older->newer : &r->oldest) = k->newer;
	k->newer = k->older = NULL;
	r->n_idle--;
}

static void add_counters(struct ckpt_counters *to, struct ckpt *c)
{
	struct ckpt_counters n;

	ckpt_counters(c, &n);
	to->source_reads += n.source_reads;
	to->source_bytes += n.source_bytes;
	to->mapped_bytes += n.mapped_bytes;
	to->faults += n.faults;
	to->copies += n.copies;
	to->copied_bytes += n.copied_bytes;
	to->cache_hits += n.cache_hits;
	to->cache_misses += n.cache_misses;
	to->cache_evictions += n.cache_evictions;
	to->cache_bytes += n.cache_bytes;
	to->cache_max_bytes += n.cache_max_bytes;
	to->decoded_bytes += n.decoded_bytes;
}

/* c is about to be closed. */
static void keep_counters(struct ckpt_run *r, struct ckpt *c)
{
	add_counters(&r->closed, c);
	r->closed.cache_bytes = r->closed.cache_max_bytes = 0;
}

/* Returns the checkpoint that is to be closed for it. */
static struct ckpt *idle_push(struct ckpt_run *r, struct run_child *k)
{
	struct run_child *last;
	struct ckpt *c;

	k->older = r->newest;
	*(r->newest ? &r->newest->newer : &r->oldest) = k;
	r->newest = k;
	if (++r->n_idle <= MAX_IDLE)
		return NULL;
	last = r->oldest;
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
			add_counters(ret, r->slots[i]->ckpt);
}

/* ---- opening ---- */

static void hash_file(const char *path, uint64_t *h)
{
	uint64_t seen[4] = { 0 };
	struct stat st;

	if (path && !stat(path, &st)) {
		seen[0] = st.st_dev; /* not its inode: see io_keeps_inodes */
		seen[1] = (uint64_t)st.st_size;
		seen[2] = io_mtime_ns(&st);
		seen[3] = io_ctime_ns(&st);
	}
	*h = XXH3_64bits_withSeed(seen, sizeof(seen), *h);
}

/* Of the files that options name. */
static uint64_t hash_options(const struct ckpt_opts *o)
{
	uint64_t h = 0;

	hash_file(o->rename, &h);
	hash_file(o->layout, &h);
	if (o->recipe && model_recipe_is_file(o->recipe))
		hash_file(o->recipe, &h);
	return h;
}

/* Everything that names and bytes of its tree depend on. */
static uint64_t identity_of(const struct ckpt *c, uint64_t options)
{
	uint64_t h = XXH3_64bits_withSeed(c->identity, strlen(c->identity), options);

	for (size_t i = 0; i < c->assets.n; i++) {
		const struct view_asset *a = &c->assets.v[i];
		const uint64_t seen[] = { a->size, a->mtime_ns };

		h = XXH3_64bits_withSeed(a->path, strlen(a->path), h);
		h = XXH3_64bits_withSeed(seen, sizeof(seen), h);
	}
	return h;
}

/*
 * A save over an old checkpoint writes data files while the old metadata still stands, and at some
 * time part of each is there. Data that is newer than the metadata may be a copy as well; but not
 * for long does a save not write anything.
 */
static int check_settled(const struct ckpt *c, struct ckpt_err *e)
{
	uint64_t newest = files_newest_ns(c->files), now;
	struct timespec t;

	(void)clock_gettime(CLOCK_REALTIME, &t);
	now = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
	if (newest <= c->mtime_ns ||
	    max_u64(now, newest) - min_u64(now, newest) > (uint64_t)SETTLE_SECONDS * 1000000000)
		return 0;
	return err_set(e, EAGAIN,
		       "checkpoint '%s': data was written less than %d seconds ago, after the "
		       "metadata; is a save going on?",
		       c->root, SETTLE_SECONDS);
}

static int open_child(const struct ckpt_run *r, const struct run_child *k, struct ckpt **ret,
		      uint64_t *ret_identity, struct ckpt_err *e)
{
	struct ckpt_opts o = r->opts;
	uint64_t options = hash_options(&o);
	int fd = run_open_dir(r, k->name, k->inner), rc;
	autofree char *root = NULL;
	struct ckpt *c = NULL;

	if (fd < 0)
		return err_set(e, ESTALE, "checkpoint '%s' is gone", k->name);
	if (asprintf(&root, "%s/%s%s%s", r->root, k->name, k->inner ? "/" : "",
		     k->inner ? k->inner : "") < 0) {
		root = NULL;
		(void)close(fd);
		return err_set(e, ENOMEM, "out of memory");
	}
	if (k->identified) /* what is odd has been said */
		o.warn = NULL;
	rc = ckpt_open_dir(fd, root, &o, &c, e);
	if (!rc)
		rc = check_settled(c, e);
	if (run_still(r, k, e)) /* whatever it was that failed */
		rc = -e->code;
	if (!rc && options != hash_options(&o))
		rc = err_set(e, EAGAIN, "a file that the options name has just changed");
	if (rc) {
		ckpt_close(c);
		return rc;
	}
	*ret_identity = identity_of(c, options);
	*ret = c;
	return 0;
}

/* ---- using; under the lock ---- */

static int may_open(const struct run_child *k, struct ckpt_err *e)
{
	if (k->gone || k->replaced)
		return err_set(e, ESTALE, "checkpoint '%s' is not what it was", k->name);
	if (k->why && now_ns() < k->retry_ns)
		return err_set(e, k->why_code, "%s", k->why);
	return 0;
}

/* It may be looked at again soon; its sentence is kept for those who ask until then. */
static void note_failure(struct run_child *k, const struct ckpt_err *e)
{
	if (e->code == ESTALE || e->code == ENOMEM || e->code == EMFILE || e->code == ENFILE)
		return;
	free(k->why);
	k->why = strdup(e->msg);
	k->why_code = e->code;
	k->retry_ns = now_ns() + RETRY_NS;
}

/* c is what it has been opened as. Returns c if it is another one than it was. */
static struct ckpt *note_opened(struct run_child *k, struct ckpt *c, uint64_t identity)
{
	free(k->why);
	k->why = NULL;
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

/* k is ours to open: k->opening. */
static int open_for_all(struct ckpt_run *r, struct run_child *k, struct ckpt_err *e)
{
	struct ckpt *c = NULL, *other = NULL;
	uint64_t identity = 0;
	int rc = open_child(r, k, &c, &identity, e);

	{
		SCOPED_LOCK(&r->lock);
		if (rc)
			note_failure(k, e);
		else
			other = note_opened(k, c, identity);
		if (other)
			rc = may_open(k, e);
		k->opening = false;
		(void)pthread_cond_broadcast(&r->opened);
	}
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
		k->opening = open = !k->ckpt && !rc;
	}
	if (open)
		rc = open_for_all(r, k, e);
	if (rc)
		run_done(r, k);
	else
		*ret = k;
	return rc;
}

void run_done(struct ckpt_run *r, struct run_child *k)
{
	struct run_child *end = NULL;
	struct ckpt *close = NULL;
	bool last;

	{
		SCOPED_LOCK(&r->lock);
		last = k->users == 1 && k->ckpt;
	}
	if (last) { /* only who has files open needs a cache */
		blockcache_clear(fetch_blocks(k->ckpt->fetch));
		files_trim(k->ckpt->files, IDLE_FDS);
	}
	{
		SCOPED_LOCK(&r->lock);
		if (!--k->users && k->ckpt)
			close = idle_push(r, k);
		if (!k->users && k->gone)
			end = run_end(r, k);
	}
	ckpt_close(close);
	run_child_free(end);
}
