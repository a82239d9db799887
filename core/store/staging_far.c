/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints in object stores. What a directory of this machine is for staging.c, the objects
 * below an address are here: DEST/NAME, and DEST/DIR/NAME for zarr arrays.
 */
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/list.h"
#include "base/text.h"
#include "base/vec.h"
#include "source/place.h"
#include "source/source.h"
#include "source/writing.h"
#include "store/megatron_form.h"
#include "store/staging.h"
#include "store/staging_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct far {
	LIST_LINK(struct far) link;
	char *dest;
	unsigned users; /* under the lock of all */
	struct writing *w;
	struct staging_how how;
	bool committed;
	char **old; /* the objects that are there, if they are replaced; sorted at the commit */
	size_t n_old, cap_old;
	pthread_mutex_t lock;
	char **made; /* so far; under the lock */
	size_t n_made, cap_made;
	bool has_last;
};

/* So that other ranks, threads of this process, find the coordinator's. */
static struct {
	pthread_mutex_t lock;
	LIST(struct far) all;
} begun = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* ---- may it be replaced ---- */

static bool add_name(char ***v, size_t *n, size_t *cap, const char *dir, const char *name)
{
	char *copy = text_format("%s%s%s", dir, *dir ? "/" : "", name);

	if (!copy)
		return false;
	if (!VEC_ROOM(*v, *cap, *n + 1)) {
		free(copy);
		return false;
	}
	(*v)[(*n)++] = copy;
	return true;
}

struct search {
	struct far *f;
	struct place *place;
	const char *const *over;
	const char *dir; /* of an array; "" at the top */
	struct site_seen seen;
	bool metadata, others;
};

/* Does metadata.json say that it is Megatron-core's? */
static bool is_megatron(struct place *p)
{
	struct source *s = NULL;
	char text[SITE_MEGATRON_TEXT];
	struct ckpt_err ignored;
	struct place_seen seen;
	int64_t n;

	if (place_look(p, MEGATRON_JSON_NAME, &seen, &ignored) <= 0 ||
	    place_file(p, MEGATRON_JSON_NAME, &s, &ignored))
		return false;
	n = source_read(s, text, min_u64(sizeof(text), seen.size), 0, &ignored);
	source_free(s);
	return n > 0 && site_is_megatron_text(text, (size_t)n);
}

static int take_array_entry(void *arg, const char *name, enum place_kind kind, struct ckpt_err *e)
{
	struct search *s = arg;

	if (kind != PLACE_FILE || (strcmp(name, "zarr.json") != 0 && !site_is_array_chunk(name)))
		s->others = true;
	s->metadata |= !strcmp(name, "zarr.json");
	return add_name(&s->f->old, &s->f->n_old, &s->f->cap_old, s->dir, name) ? 0 : err_nomem(e);
}

/* 1: an array of zarr, 0: something else */
static int take_array(struct search *s, const char *name, struct ckpt_err *e)
{
	struct search in = { .f = s->f, .place = s->place, .dir = name };
	int rc = place_list(s->place, name, take_array_entry, &in, e);

	return rc ? rc : in.metadata && !in.others;
}

static int take_entry(void *arg, const char *name, enum place_kind kind, struct ckpt_err *e)
{
	struct search *s = arg;
	enum site_part of = site_part_of(name);
	int rc = 0;

	if (!s->over)
		return site_refuse_existing(s->f->dest, e);
	if (kind == PLACE_DIR) {
		rc = take_array(s, name, e);
		of = rc > 0 ? SITE_ZARR : SITE_NOTHING;
	} else if (site_is_megatron_name(name) && is_megatron(s->place)) {
		of = SITE_SHARED;
	}
	if (rc >= 0)
		rc = site_see(&s->seen, s->f->dest, name, of, e);
	if (rc < 0)
		return rc;
	for (const char *const *other = s->over; !rc && kind != PLACE_DIR && *other; other++)
		rc = !strcmp(*other, name);
	if (!rc)
		return site_refuse_loss(s->f->dest, name, e);
	if (kind == PLACE_DIR) /* its files have been added */
		return 0;
	return add_name(&s->f->old, &s->f->n_old, &s->f->cap_old, "", name) ? 0 : err_nomem(e);
}

static int search(struct far *f, const char *const *over, struct ckpt_err *e)
{
	struct search s = { .f = f, .place = writing_place(f->w), .over = over, .dir = "" };
	struct ckpt_err why = { 0 };
	int rc = place_list(s.place, ".", take_entry, &s, &why);

	if (rc == -ENOENT) /* no key begins like that */
		return 0;
	if (rc)
		*e = why;
	return rc;
}

/* ---- beginning ---- */

static void free_names(char **v, size_t n)
{
	for (size_t i = 0; i < n; i++)
		free(v[i]);
	free(v);
}

static void far_free(struct far *f)
{
	free_names(f->old, f->n_old);
	free_names(f->made, f->n_made);
	(void)pthread_mutex_destroy(&f->lock);
	free(f->dest);
	free(f);
}

/* Ends the writing, and reports what is left behind. */
static void close_writing(struct far *f)
{
	char left[900];

	writing_close(f->w, left, sizeof(left));
	f->w = NULL;
	if (*left && !f->committed && f->how.warn) {
		char text[1200];

		(void)snprintf(text, sizeof(text), "'%.200s': %s", f->dest, left);
		f->how.warn(f->how.warn_arg, text);
	}
}

static int far_open(const char *dest, const char *const *over, const struct staging_how *how,
		    struct far **ret, struct ckpt_err *e)
{
	struct far *f = calloc(1, sizeof(*f));
	int rc;

	if (!f || !(f->dest = strdup(dest))) {
		free(f);
		return err_nomem(e);
	}
	(void)pthread_mutex_init(&f->lock, NULL);
	f->users = 1;
	if (how)
		f->how = *how;
	rc = writing_open(dest, f->how.place, &f->w, e);
	if (!rc) {
		writing_stop(f->w, f->how.stop, f->how.stop_arg);
		rc = writing_begin(f->w, !over, e);
	}
	if (!rc)
		rc = search(f, over, e);
	if (rc) {
		close_writing(f);
		far_free(f);
		return rc;
	}
	*ret = f;
	return 0;
}

int far_check(const char *dest, const char *const *over, const struct staging_how *how,
	      struct ckpt_err *e)
{
	struct far *f;
	int rc = far_open(dest, over, how, &f, e);

	if (rc)
		return rc;
	close_writing(f);
	far_free(f);
	return 0;
}

/* Under the lock. */
static struct far *find(const char *dest)
{
	LIST_EACH (f, &begun.all)
		if (!strcmp(f->dest, dest))
			return f;
	return NULL;
}

int far_begin(const char *dest, const char *const *over, const struct staging_how *how,
	      struct far **ret, struct ckpt_err *e)
{
	struct far *f;
	int rc = far_open(dest, over, how, &f, e);

	if (rc)
		return rc;
	{
		SCOPED_LOCK(&begun.lock);
		if (find(dest))
			rc = err_set(e, EBUSY, "this process is already saving to '%s'", dest);
		else
			LIST_PUSH(&begun.all, f);
	}
	if (rc) {
		close_writing(f);
		far_free(f);
		return rc;
	}
	*ret = f;
	return 0;
}

int far_join(const char *dest, struct far **ret, struct ckpt_err *e)
{
	SCOPED_LOCK(&begun.lock);
	struct far *f = find(dest);

	if (!f)
		return err_set(e, ENOTSUP,
			       "'%s': ranks that are processes of their own cannot write to an "
			       "object store together: write to a directory, or from one process",
			       dest);
	f->users++;
	*ret = f;
	return 0;
}

/* ---- files ---- */

int far_file(struct far *f, const char *name, bool last, struct writing_file **ret,
	     struct ckpt_err *e)
{
	int rc = 0;

	{
		SCOPED_LOCK(&f->lock);
		if (!add_name(&f->made, &f->n_made, &f->cap_made, "", name))
			rc = err_nomem(e);
		f->has_last |= last;
	}
	if (!rc)
		rc = writing_file(f->w, name, ret, e);
	/* Only the coordinator has such files. */
	return rc || !last ? rc : writing_name(f->w, WRITING_LAST, name, e);
}

/* The files by which readers find a checkpoint, and single files that are one. */
static bool leads_to_it(const char *name)
{
	static const char *const patterns[] = { ".metadata",	"*.metadata",	 "metadata.json",
						"*.index.json", "*.safetensors", "zarr.json",
						"*/zarr.json" };

	for (size_t i = 0; i < ARRAY_LEN(patterns); i++)
		if (text_glob(patterns[i], name, strlen(name)))
			return true;
	return false;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

int far_commit(struct far *f, struct ckpt_err *e)
{
	int rc = f->has_last || !f->n_made ? 0 : writing_name(f->w, WRITING_LAST, f->made[0], e);

	if (f->n_made)
		qsort(f->made, f->n_made, sizeof(*f->made), by_name);
	for (size_t i = 0; !rc && i < f->n_old; i++)
		if (leads_to_it(f->old[i]))
			rc = writing_name(f->w, WRITING_REMOVED_FIRST, f->old[i], e);
		else if (!bsearch(&f->old[i], f->made, f->n_made, sizeof(*f->made), by_name))
			rc = writing_name(f->w, WRITING_REMOVED, f->old[i], e);
	if (!rc)
		rc = writing_commit(f->w, e);
	f->committed = !rc;
	return rc ? err_wrap(e, "write '%s'", f->dest) : 0;
}

void far_end(struct far *f, bool begins)
{
	bool last;

	if (!f)
		return;
	if (begins) {
		{
			SCOPED_LOCK(&begun.lock);
			LIST_REMOVE(&begun.all, f);
		}
		close_writing(f);
	}
	{
		SCOPED_LOCK(&begun.lock);
		last = !--f->users;
	}
	if (last)
		far_free(f);
}
