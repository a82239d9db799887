/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/namelist.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "base/err.h"
#include "base/search.h"
#include "base/text.h"
#include "base/vec.h"

#include <stdlib.h>
#include <string.h>

enum {
	SHOWN = 96, /* bytes of a name in a message */
};

/* A name that does not fit a file name. */
struct namelist_cut {
	uint64_t hash;
	uint32_t pos;
};

void namelist_release(struct namelist *t)
{
	arena_release(&t->texts);
	free(t->v);
	free(t->cut);
	*t = (struct namelist){ 0 };
}

const char *namelist_copy(struct namelist *t, const char *s, size_t len)
{
	t->texts.max_bytes = SIZE_MAX;
	return len ? arena_dup(&t->texts, s, len) : "";
}

int namelist_add(struct namelist *t, const char *fqn, size_t len, uint32_t index,
		 struct ckpt_err *e)
{
	if (len > UINT32_MAX || t->n == UINT32_MAX)
		return err_set(e, ERR_UNSUPPORTED, "%s",
			       len > UINT32_MAX ? "a name of 4 GiB" : "more than 4294967295 names");
	if (!VEC_ROOM(t->v, t->cap, t->n + 1))
		return err_nomem(e);
	t->v[t->n++] = (struct named){ fqn, (uint32_t)len, index };
	return 0;
}

/* ---- order ---- */

static int by_name(const void *ap, const void *bp)
{
	const struct named *a = ap, *b = bp;

	return text_natural_cmp(a->fqn, a->len, b->fqn, b->len);
}

/* The first entry that does not sort before its successor, or n - 1. */
static size_t first_unordered(const struct namelist *t)
{
	size_t i = 0;

	while (i + 1 < t->n && by_name(&t->v[i], &t->v[i + 1]) < 0)
		i++;
	return i;
}

static int refuse_twins(const struct named *twin, namelist_stored_fn *stored, const void *arg,
			struct ckpt_err *e)
{
	char name[SHOWN], shown[2][SHOWN];

	for (int i = 0; i < 2; i++) {
		const char *fqn;
		size_t len;

		stored(arg, twin[i].index, &fqn, &len);
		(void)text_show(fqn, len, shown[i], SHOWN);
	}
	return err_set(e, EEXIST, "'%s' and '%s' would both be called '%s'", shown[0], shown[1],
		       text_show(twin->fqn, twin->len, name, SHOWN));
}

/* ---- names that do not fit a file name ---- */

static int by_hash(const void *ap, const void *bp)
{
	const struct namelist_cut *a = ap, *b = bp;

	return a->hash < b->hash ? -1 : a->hash > b->hash;
}

static int add_cut(struct namelist *t, size_t *cap, size_t pos, struct ckpt_err *e)
{
	const struct named *d = &t->v[pos];

	if (!VEC_ROOM(t->cut, *cap, t->n_cut + 1))
		return err_nomem(e);
	t->cut[t->n_cut++] = (struct namelist_cut){ name_hash(d->fqn, d->len), (uint32_t)pos };
	return 0;
}

/* Lists names that are cut with the longest suffix; with any other a name is here or fits. */
static int list_cut(struct namelist *t, struct ckpt_err *e)
{
	size_t cap = 0;

	for (size_t i = 0; i < t->n; i++)
		if (!name_fits(t->v[i].fqn, t->v[i].len, NAMELIST_MAX_SUFFIX) &&
		    add_cut(t, &cap, i, e))
			return -e->code;
	if (t->n_cut)
		qsort(t->cut, t->n_cut, sizeof(*t->cut), by_hash);
	return 0;
}

/* Cut names differ only by hash; an attacker may cause a collision, but not two files with one
 * name. */
static int check_cut(const struct namelist *t, struct ckpt_err *e)
{
	for (size_t i = 1; i < t->n_cut; i++) {
		const struct named *a = &t->v[t->cut[i - 1].pos], *b = &t->v[t->cut[i].pos];
		char shown[2][SHOWN];

		if (t->cut[i - 1].hash == t->cut[i].hash)
			return err_set(e, ERR_UNSUPPORTED,
				       "two FQNs have the same file name: '%s' and '%s'",
				       text_show(a->fqn, a->len, shown[0], SHOWN),
				       text_show(b->fqn, b->len, shown[1], SHOWN));
	}
	return 0;
}

int namelist_finish(struct namelist *t, namelist_stored_fn *stored, const void *arg,
		    struct ckpt_err *e)
{
	size_t i = first_unordered(t);
	int rc;

	/* Names from a catalog are sorted already. */
	if (i + 1 < t->n) {
		qsort(t->v, t->n, sizeof(*t->v), by_name);
		i = first_unordered(t);
	}
	if (i + 1 < t->n)
		return refuse_twins(&t->v[i], stored, arg, e);
	rc = list_cut(t, e);
	return rc ? rc : check_cut(t, e);
}

/* ---- lookup ---- */

int64_t namelist_find(const struct namelist *t, const char *fqn, size_t len)
{
	size_t at =
		PARTITION_POINT(i, t->n, text_natural_cmp(t->v[i].fqn, t->v[i].len, fqn, len) < 0);

	return at < t->n && bytes_equal(t->v[at].fqn, t->v[at].len, fqn, len) ? (int64_t)at : -1;
}

size_t namelist_file(const struct namelist *t, size_t pos, const char *suffix,
		     char out[static NAME_CAP])
{
	return name_encode(t->v[pos].fqn, t->v[pos].len, suffix, out, NULL);
}

static int64_t find_hash(const struct namelist *t, uint64_t hash)
{
	const struct namelist_cut key = { .hash = hash }, *c = NULL;

	if (t->n_cut)
		c = bsearch(&key, t->cut, t->n_cut, sizeof(key), by_hash);
	return c ? (int64_t)c->pos : -1;
}

int64_t namelist_lookup(const struct namelist *t, const char *file, const char *suffix)
{
	size_t len = strlen(file), n_suffix = strlen(suffix), n;
	char fqn[NAME_CAP], again[NAME_CAP];
	uint64_t hash;
	int64_t pos;

	if (len >= NAME_CAP || len <= n_suffix || strcmp(file + len - n_suffix, suffix) != 0)
		return -1;
	len -= n_suffix;
	if (name_is_cut(file, len, &hash))
		pos = find_hash(t, hash);
	else if (name_decode(file, len, fqn, &n))
		pos = namelist_find(t, fqn, n);
	else
		return -1;
	if (pos < 0)
		return -1;
	(void)namelist_file(t, (size_t)pos, suffix, again);
	return strcmp(again, file) != 0 ? -1 : pos;
}
