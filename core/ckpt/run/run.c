/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/run/run.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/search.h"
#include "base/text.h"
#include "base/vec.h"
#include "ckpt/model/model_recipe.h"
#include "format/format.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

enum {
	MAX_ENTRIES = 1000000, /* directory entries */
	SCAN_PAUSE_NS = 1000000000,
	SCAN_SHARE = 10,   /* at most 1/10 of the time is spent on scanning */
	PATIENCE_MS = 100, /* before the table is used while another thread scans */
};
#define LOST_NS	 CLOCK_SECOND	    /* an error that takes longer is the storage's, not a name's */
#define BLIND_NS (5 * CLOCK_SECOND) /* for how long such storage is left alone */

static const char *const inner_dirs[] = { NULL, "weights", "pytorch_model_fsdp_0",
					  "model_and_optim" };

const char *run_inner_dir(size_t i)
{
	return i + 1 < ARRAY_LEN(inner_dirs) ? inner_dirs[i + 1] : NULL;
}

/* ---- classifying a subdirectory; without locks, or under scan_lock ---- */

/* What was found under a name. */
struct look {
	enum { LOOK_OTHER, LOOK_INCOMPLETE, LOOK_COMPLETE } what;
	bool unread; /* LOOK_INCOMPLETE because it cannot be read */
	const char *inner;
	char *first;
	struct place_id dir, first_seen;
	uint64_t signature, mtime_ns;
	char why[sizeof(((struct ckpt_err *)NULL)->msg)];
};

static void look_release(struct look *l)
{
	free(l->first);
}

/* It may be complete or not. */
static void not_read(struct look *l, const struct ckpt_err *why)
{
	struct ckpt_err e = *why;

	l->what = LOOK_INCOMPLETE;
	l->unread = true;
	(void)err_wrap(&e, "cannot be read");
	(void)snprintf(l->why, sizeof(l->why), "%s", e.msg);
}

/* Refuse links anywhere on the way: what is shown must lie in the run. */
int run_open_dir(const struct ckpt_run *r, const char *name, const char *inner, struct place **ret,
		 struct ckpt_err *e)
{
	struct place *outer;
	int rc = place_sub(r->place, name, &outer, e);

	if (rc || !inner) {
		if (!rc)
			*ret = outer;
		return rc;
	}
	rc = place_sub(outer, inner, ret, e);
	place_free(outer);
	return rc;
}

/* Records that place is a complete checkpoint with these metadata files. */
static int sign(struct place *place, const struct name_list *files, struct look *l,
		struct ckpt_err *e)
{
	struct place_seen s;
	uint64_t h = 0;

	for (size_t i = 0; i < files->n; i++) {
		if (place_find(place, files->v[i], &s, e))
			return -e->code;
		if (!i)
			l->first_seen = s.id;
		l->mtime_ns = max_u64(l->mtime_ns, s.mtime_ns);
		h = XXH3_64bits_withSeed(s.id.v, s.id.len, h);
		h = XXH3_64bits_withSeed(files->v[i], strlen(files->v[i]), h);
	}
	l->signature = h;
	l->first = strdup(files->n ? files->v[0] : ".");
	return l->first ? 0 : err_set(e, ENOMEM, "out of memory");
}

/* The directory does not exist (it may have just been removed). */
static bool is_absence(int rc)
{
	return rc == -ENOENT || rc == -ENOTDIR || rc == -ELOOP;
}

/*
 * Has the storage failed after so many nanoseconds? Each further name would cost as much again. A
 * quick error may be of one bad directory on a disk.
 */
static bool is_lost(int rc, uint64_t spent_ns)
{
	return rc == -ETIMEDOUT || (err_is_io(rc) && spent_ns >= LOST_NS);
}

/* Is the subdirectory, or `inner` in it, a checkpoint? */
static int look_into(const struct ckpt_run *r, const char *name, const char *inner, struct look *l,
		     struct ckpt_err *e)
{
	struct name_list files CLEANUP(name_list_release) = { 0 };
	const struct format *format;
	struct place *place = NULL;
	struct place_seen seen;
	struct ckpt_err why, ignored;
	int rc = run_open_dir(r, name, inner, &place, &why);

	if (rc)
		return is_absence(rc) && inner ? 0 : err_sys(e, -rc, "open '%s/%s'", r->root, name);
	rc = format_probe(place, NULL, &format, &files, &why);
	if (rc > 0)
		rc = sign(place, &files, l, &why) ? -why.code : 1;
	place_free(place);
	if (err_if_external(rc, &why, e))
		return rc;
	if (rc > 0)
		l->what = LOOK_COMPLETE;
	if (rc < 0) {
		if (!place_look_at(r->place, name, &seen, &ignored))
			return 0; /* it was removed while it was examined */
		l->what = LOOK_INCOMPLETE;
		(void)snprintf(l->why, sizeof(l->why), "%s", why.msg);
	}
	l->inner = inner;
	return 0;
}

/* A failure says nothing about the subdirectory. */
static int look_at(const struct ckpt_run *r, const char *name, struct look *l, struct ckpt_err *e)
{
	struct place_seen seen;
	int rc;

	if (*name == '.' || strlen(name) > CKPT_NAME_MAX)
		return 0; /* hidden directories are being created or removed */
	rc = place_look_at(r->place, name, &seen, e);
	if (rc < 0)
		return err_wrap(e, "'%s'", r->root);
	if (!rc || seen.kind != PLACE_DIR)
		return 0;
	l->dir = seen.id;
	if (format_is_unfinished(name)) {
		l->what = LOOK_INCOMPLETE;
		(void)snprintf(l->why, sizeof(l->why),
			       "its name is that of an Orbax save that "
			       "has not finished");
		return 0;
	}
	for (size_t i = 0; i < ARRAY_LEN(inner_dirs) && l->what == LOOK_OTHER; i++) {
		rc = look_into(r, name, inner_dirs[i], l, e);

		if (is_absence(rc))
			return 0;
		if (rc == -EACCES) {
			not_read(l, e);
			return 0;
		}
		if (rc)
			return rc;
	}
	return 0;
}

/*
 * Checks without asking the format: are the subdirectory and one metadata file unchanged? 1: yes;
 * < 0: that cannot be known now.
 */
static int untouched(const struct ckpt_run *r, const struct run_child *k, struct ckpt_err *e)
{
	char path[3 * (CKPT_NAME_MAX + 1)];
	struct place_seen dir, first;
	int rc = place_look_at(r->place, k->name, &dir, e);

	if (rc > 0 && snprintf(path, sizeof(path), "%s/%s%s%s", k->name, k->inner ? k->inner : "",
			       k->inner ? "/" : "", k->first) >= (int)sizeof(path))
		rc = 0;
	if (rc > 0)
		rc = place_look(r->place, path, &first, e);
	if (err_is_external(rc))
		return err_wrap(e, "'%s'", r->root);
	return rc > 0 && place_id_equal(&dir.id, &k->dir) &&
	       place_id_equal(&first.id, &k->first_seen);
}

int run_still(const struct ckpt_run *r, const struct run_child *k, struct ckpt_err *e)
{
	struct look l CLEANUP(look_release) = { 0 };
	int rc = look_at(r, k->name, &l, e);

	if (!rc && (l.what != LOOK_COMPLETE || l.inner != k->inner || l.signature != k->signature))
		rc = err_set(e, ESTALE, "it was replaced while it was opened");
	return rc;
}

/* ---- the table; under the lock ---- */

/* Index of the name, or where to insert it. */
static size_t place_of(const struct ckpt_run *r, const char *name)
{
	return PARTITION_POINT(i, r->n_names, strcmp(r->names[i]->name, name) < 0);
}

static struct run_child *find(const struct ckpt_run *r, const char *name)
{
	size_t i = place_of(r, name);

	return i < r->n_names && !strcmp(r->names[i]->name, name) ? r->names[i] : NULL;
}

/* Is there memory for add()? */
static bool has_room(struct ckpt_run *r)
{
	return VEC_ROOM(r->names, r->cap_names, r->n_names + 1) &&
	       VEC_ROOM(r->slots, r->cap_slots, r->n_slots + 1);
}

/* Takes over k. */
static void add(struct ckpt_run *r, struct run_child *k)
{
	size_t at = place_of(r, k->name);

	memmove(r->names + at + 1, r->names + at, (r->n_names - at) * sizeof(*r->names));
	r->names[at] = k;
	r->n_names++;
	r->n_complete += k->complete;
	if (k->complete && r->n_slots <= RUN_MAX_SLOT) {
		k->slot = (unsigned)r->n_slots;
		r->slots[r->n_slots++] = k;
	}
}

/* Removes k from the names. Returns what the caller must free: k, unless it is in use. */
static struct run_child *take_out(struct ckpt_run *r, struct run_child *k)
{
	size_t at = place_of(r, k->name);

	r->n_names--;
	memmove(r->names + at, r->names + at + 1, (r->n_names - at) * sizeof(*r->names));
	r->n_complete -= k->complete;
	k->gone = true;
	return k->users ? NULL : run_end(r, k);
}

/* ---- scanning; under scan_lock ---- */

static struct run_child *child_new(const char *name, const struct look *l)
{
	struct run_child *k = calloc(1, sizeof(*k));

	if (!k)
		return NULL;
	k->name = strdup(name);
	k->why = l->what == LOOK_INCOMPLETE ? strdup(l->why) : NULL;
	k->first = l->first ? strdup(l->first) : NULL;
	k->complete = l->what == LOOK_COMPLETE;
	k->unread = l->unread;
	k->inner = l->inner;
	k->signature = l->signature;
	k->dir = l->dir;
	k->first_seen = l->first_seen;
	k->mtime_ns = l->mtime_ns;
	if (!k->name || (!k->complete && !k->why) || (l->first && !k->first)) {
		run_child_free(k);
		return NULL;
	}
	return k;
}

/* Replaces `old` (NULL: there was none) by what was found. */
static int put(struct ckpt_run *r, const char *name, struct run_child *old, const struct look *l,
	       struct ckpt_err *e)
{
	struct run_child *k = NULL, *end = NULL;
	bool room;

	if (l->what != LOOK_OTHER) {
		k = child_new(name, l);
		if (!k)
			return err_set(e, ENOMEM, "out of memory");
		k->scan = r->scans;
	}
	{
		SCOPED_LOCK(&r->lock);
		room = !k || has_room(r);
		if (room && old)
			end = take_out(r, old);
		if (room && k)
			add(r, k);
	}
	run_child_free(end);
	if (!room) {
		run_child_free(k);
		return err_set(e, ENOMEM, "out of memory");
	}
	if (k && k->complete && !k->slot && !r->full_told && r->opts.warn) {
		r->full_told = true;
		r->opts.warn(r->opts.warn_arg,
			     "there are no inode numbers left for more checkpoints of this run; "
			     "mount it again to see them");
	}
	return 0;
}

/* Examines what the name refers to now. After a failure the table is unchanged. */
static int look_again(struct ckpt_run *r, const char *name, struct ckpt_err *e)
{
	struct look l CLEANUP(look_release) = { 0 };
	/* no lock needed: only the holder of scan_lock changes the table */
	struct run_child *k = find(r, name);
	bool replaced = false;
	int rc = 0;

	if (k) {
		SCOPED_LOCK(&r->lock);
		replaced = k->replaced;
	}
	if (k && k->complete && !replaced)
		rc = untouched(r, k, e);
	if (rc > 0)
		k->scan = r->scans;
	if (rc)
		return rc > 0 ? 0 : rc;
	rc = look_at(r, name, &l, e);
	if (rc || (!k && l.what == LOOK_OTHER))
		return rc;
	if (!k || replaced || k->complete != (l.what == LOOK_COMPLETE) || k->inner != l.inner ||
	    (k->complete ? k->signature != l.signature : !k->why || strcmp(k->why, l.why) != 0))
		return put(r, name, k, &l, e);
	k->dir = l.dir; /* changed by an index written there, for example */
	k->first_seen = l.first_seen;
	k->scan = r->scans;
	return 0;
}

struct listing {
	const struct ckpt_run *r;
	struct name_list *names;
	size_t n; /* number of entries */
};

static int add_name(void *arg, const char *name, enum place_kind kind, struct ckpt_err *e)
{
	struct listing *l = arg;

	if (l->n++ == MAX_ENTRIES)
		return err_set(e, EFBIG, "'%s' has more than %d entries", l->r->root, MAX_ENTRIES);
	if (*name == '.' || (kind != PLACE_DIR && kind != PLACE_UNKNOWN))
		return 0;
	return name_list_add(l->names, name, e);
}

/* Names that may be checkpoints, in natural order. */
static int list_names(const struct ckpt_run *r, struct name_list *ret, struct ckpt_err *e)
{
	struct listing l = { .r = r, .names = ret };
	int rc = place_list(r->place, ".", add_name, &l, e);

	if (rc && rc != -EFBIG) /* that message already names the directory */
		rc = err_sys(e, -rc, "list '%s'", r->root);
	name_list_sort(ret);
	return rc;
}

/*
 * The name may be a checkpoint: a known one is kept as it is, another one is listed with the
 * reason.
 */
static int cannot_look(struct ckpt_run *r, const char *name, const struct ckpt_err *why,
		       struct ckpt_err *e)
{
	struct look l = { 0 };
	struct run_child *k = find(r, name);

	if (k) {
		k->scan = r->scans;
		return 0;
	}
	not_read(&l, why);
	return put(r, name, NULL, &l, e);
}

/* Nanoseconds added to *spent: what a look at the name cost in vain. */
static int look_timed(struct ckpt_run *r, const char *name, uint64_t *spent, struct ckpt_err *e)
{
	uint64_t start = clock_ns();
	int rc = look_again(r, name, e);

	*spent += rc ? clock_ns() - start : 0;
	return rc;
}

/* *ret_lost: it has ended early because the storage failed. */
static int scan(struct ckpt_run *r, bool *ret_lost, struct ckpt_err *e)
{
	struct name_list names CLEANUP(name_list_release) = { 0 };
	struct ckpt_err why;
	uint64_t spent = 0;
	int rc = list_names(r, &names, e);

	if (!rc)
		r->scans++;
	for (size_t i = 0; !rc && i < names.n; i++) {
		rc = look_timed(r, names.v[i], &spent, &why);
		*ret_lost = is_lost(rc, spent);
		if (err_is_shortage(rc) || *ret_lost)
			*e = why;
		else if (rc)
			rc = is_absence(rc) ? 0 : cannot_look(r, names.v[i], &why, e);
	}
	for (size_t i = r->n_names; !rc && i-- > 0;) {
		if (r->names[i]->scan == r->scans)
			continue;
		*ret_lost = is_lost(look_timed(r, r->names[i]->name, &spent, &why), spent);
		if (*ret_lost) {
			*e = why;
			rc = -why.code;
		}
	}
	return rc;
}

static void become_blind(struct ckpt_run *r, int rc)
{
	r->blind_until_ns = clock_ns() + BLIND_NS;
	r->blind_code = rc;
}

static int refresh(struct ckpt_run *r, bool now, struct ckpt_err *e)
{
	uint64_t start = clock_ns();
	bool lost = false;
	int rc;

	if (!now && start < max_u64(r->next_scan_ns, r->blind_until_ns))
		return 0;
	rc = scan(r, &lost, e);
	r->next_scan_ns = clock_ns();
	if (is_lost(rc, r->next_scan_ns - start)) {
		become_blind(r, rc);
		r->next_scan_ns = r->blind_until_ns;
	} else {
		r->next_scan_ns += max_u64(SCAN_PAUSE_NS, (r->next_scan_ns - start) * SCAN_SHARE);
	}
	return lost && !now ? 0 : rc;
}

int run_refresh(struct ckpt_run *r, bool now, struct ckpt_err *e)
{
	if (!now) {
		SCOPED_OUTER_LOCK_WITHIN(&r->scan_lock, PATIENCE_MS);
		return outer_lock ? refresh(r, false, e) : 0;
	}
	SCOPED_OUTER_LOCK(&r->scan_lock);
	return refresh(r, true, e);
}

/* ---- queries ---- */

/* Slot of a name in the table, 1 if it has none; -ENOENT: the name is not there. */
static int known(struct ckpt_run *r, const char *name, unsigned *ret)
{
	const struct run_child *k;
	SCOPED_LOCK(&r->lock);

	k = find(r, name);
	if (!k)
		return -ENOENT;
	if (!k->slot)
		return 1;
	*ret = k->slot;
	return 0;
}

/* Under scan_lock. */
static int find_now(struct ckpt_run *r, const char *name, unsigned *ret)
{
	uint64_t start = clock_ns(), spent = 0;
	struct ckpt_err ignored;
	int rc = r->blind_code, is;

	if (start >= r->blind_until_ns || *name == '.') { /* hidden names cost nothing */
		rc = look_timed(r, name, &spent, &ignored);
		if (is_lost(rc, spent))
			become_blind(r, rc);
	}
	is = known(r, name, ret); /* after a failure, use what was known */
	return is != -ENOENT ? is : rc < 0 ? rc : 1;
}

int run_find(struct ckpt_run *r, const char *name, unsigned *ret)
{
	int rc;

	{
		SCOPED_OUTER_LOCK_WITHIN(&r->scan_lock, PATIENCE_MS);
		if (outer_lock)
			return find_now(r, name, ret);
	}
	rc = known(r, name, ret);
	if (rc != -ENOENT)
		return rc;
	SCOPED_OUTER_LOCK(&r->scan_lock);
	return find_now(r, name, ret);
}

bool run_incomplete(struct ckpt_run *r, const char *name, struct ckpt_err *e)
{
	const struct run_child *k;
	SCOPED_LOCK(&r->lock);

	k = find(r, name);
	if (!k || k->complete)
		return false;
	(void)err_set(e, ENOENT, "checkpoint '%s' %s%s", name,
		      k->unread ? "" : "is not complete: ", k->why);
	return true;
}

static void tell(const struct run_child *k, struct run_about *ret)
{
	(void)snprintf(ret->name, sizeof(ret->name), "%s", k->name);
	ret->inner = k->inner;
	ret->mtime_ns = k->mtime_ns;
	ret->gone = k->gone;
}

int run_about(struct ckpt_run *r, unsigned slot, struct run_about *ret)
{
	SCOPED_LOCK(&r->lock);

	if (slot >= r->n_slots || !r->slots[slot])
		return 1;
	tell(r->slots[slot], ret);
	return 0;
}

int run_next(struct ckpt_run *r, unsigned *slot, struct run_about *ret)
{
	SCOPED_LOCK(&r->lock);

	for (; *slot < r->n_slots; (*slot)++)
		if (r->slots[*slot] && !r->slots[*slot]->gone) {
			tell(r->slots[*slot], ret);
			return 0;
		}
	return 1;
}

/* ---- life ---- */

/* The same for an option that may be there several times. */
static int own_list(struct ckpt_run *r, const struct ckpt_option *x, struct ckpt_err *e)
{
	const char *const **at = ckpt_opts_at(&r->opts, x);
	const char **list;
	size_t n = 0;

	while (*at && (*at)[n])
		n++;
	if (!n)
		return 0;
	list = arena_array(&r->paths, n + 1, sizeof(*list));
	if (!list)
		return err_nomem(e);
	for (size_t i = 0; i < n; i++) {
		autofree char *path = ckpt_opts_absolute(x, (*at)[i]);

		if (!path && errno == ENOMEM)
			return err_nomem(e);
		list[i] = path ? arena_dup(&r->paths, path, strlen(path)) : (*at)[i];
		if (!list[i])
			return err_nomem(e);
	}
	*at = list;
	return 0;
}

/*
 * Makes the file names in options absolute, so that they stay valid if the process changes its
 * directory.
 */
static int own_paths(struct ckpt_run *r, struct ckpt_err *e)
{
	const struct ckpt_option *x;

	for (size_t i = 0; (x = ckpt_option(i)); i++) {
		const char **at = ckpt_opts_at(&r->opts, x);
		autofree char *path = NULL;

		if (x->form == CKPT_OPTION_LIST && own_list(r, x, e))
			return -e->code;
		if (x->form != CKPT_OPTION_FILE || !*at || place_is_remote(*at) ||
		    (at == &r->opts.recipe && !model_recipe_is_file(*at)))
			continue;
		path = realpath(*at, NULL);
		if (!path && errno == ENOENT && at == &r->opts.recipe) {
			(void)model_recipe_none(*at, e);
			return err_wrap(e, "option 'recipe'");
		}
		if (!path)
			return err_sys(e, errno, "option '%s': '%s'", x->name, *at);
		*at = arena_dup(&r->paths, path, strlen(path));
		if (!*at)
			return err_set(e, ENOMEM, "out of memory");
	}
	return 0;
}

int run_new(struct place *place, const char *root, const struct ckpt_opts *opts,
	    struct ckpt_run **ret, struct ckpt_err *e)
{
	struct ckpt_run *r = calloc(1, sizeof(*r));
	int rc;

	if (!r)
		return err_set(e, ENOMEM, "out of memory");
	r->place = place;
	r->root = root;
	r->opts = *opts;
	r->paths = (struct arena)ARENA_INIT(CKPT_MAX_WORDS);
	r->opts.need_index = false;
	r->opts.progress = NULL; /* checkpoints are opened long after this call has returned */
	(void)pthread_mutex_init(&r->scan_lock, NULL);
	(void)pthread_mutex_init(&r->lock, NULL);
	(void)pthread_cond_init(&r->opened, NULL);
	rc = VEC_ROOM(r->slots, r->cap_slots, 1) ? 0 : err_nomem(e);
	if (!rc) {
		r->slots[0] = NULL;
		r->n_slots = 1; /* slot 0 is the run's own */
		rc = run_refresh(r, true, e);
	}
	if (!rc && !r->n_names)
		rc = 1;
	if (!rc)
		rc = own_paths(r, e);
	if (rc) {
		run_free(r);
		return rc;
	}
	*ret = r;
	return 0;
}

void run_free(struct ckpt_run *r)
{
	if (!r)
		return;
	for (size_t i = 0; i < r->n_names; i++)
		run_child_free(r->names[i]);
	free(r->names);
	free(r->slots);
	arena_release(&r->paths);
	(void)pthread_cond_destroy(&r->opened);
	(void)pthread_mutex_destroy(&r->lock);
	(void)pthread_mutex_destroy(&r->scan_lock);
	free(r);
}
