/* SPDX-License-Identifier: Apache-2.0 */
#include "view/view.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "catalog/catalog_query.h"

#include <stdlib.h>
#include <string.h>

/* In the order of the root directory. */
static const struct face *const faces[] = { &face_tensors, &face_npy, &face_objects };

static const char control_dir[] = ".ckptfs";
static const char info_name[] = "info.json";

enum {
	NODE_FACES = 2,	     /* face directories: 2, 3, ... room for more faces */
	NODE_CONTROL = 1022, /* .ckptfs */
	NODE_INFO = 1023,    /* .ckptfs/info.json */
	FILE_SHIFT = 36,     /* file: (face + 1) << 36 | number */
};

struct cut {
	uint64_t hash;
	uint32_t index;
};

/* The tensors or the objects of the catalog that are shown. */
struct listed {
	uint32_t *shown; /* catalog numbers, in natural order */
	size_t n;
	struct cut *cut; /* those whose name does not fit a file name, by hash */
	size_t n_cut;
};

struct view {
	const struct catalog *c;
	struct listed tensors, objects;
};

static void fqn_of(const struct catalog *c, bool object, size_t i, const char **ret,
		   size_t *ret_len)
{
	size_t n;

	if (object) {
		const struct catalog_object *o = &catalog_objects(c, &n)[i];

		*ret = o->fqn;
		*ret_len = o->fqn_len;
	} else {
		const struct catalog_tensor *t = &catalog_tensors(c, &n)[i];

		*ret = t->fqn;
		*ret_len = t->fqn_len;
	}
}

static bool matches(const char *const *globs, const char *fqn, size_t len)
{
	for (; globs && *globs; globs++)
		if (text_glob(*globs, fqn, len))
			return true;
	return false;
}

static int by_hash(const void *ap, const void *bp)
{
	const struct cut *a = ap, *b = bp;

	return a->hash < b->hash ? -1 : a->hash > b->hash;
}

/* Cut names differ by hash alone; an attacker may make two hashes equal, not two files of one name. */
static int check_cut(const struct view *v, bool object, const struct listed *l, struct err *e)
{
	if (l->n_cut)
		qsort(l->cut, l->n_cut, sizeof(*l->cut), by_hash);
	for (size_t i = 1; i < l->n_cut; i++) {
		const char *a, *b;
		size_t an, bn;

		if (l->cut[i - 1].hash != l->cut[i].hash)
			continue;
		fqn_of(v->c, object, l->cut[i - 1].index, &a, &an);
		fqn_of(v->c, object, l->cut[i].index, &b, &bn);
		return err_set(e, ERR_UNSUPPORTED,
			       "two FQNs have the same file name: '%.80s...' and '%.80s...'", a, b);
	}
	return 0;
}

static int list(struct view *v, bool object, size_t n, const struct view_opts *opts,
		struct listed *l, struct err *e)
{
	l->shown = malloc((n + 1) * sizeof(*l->shown));
	l->cut = malloc((n + 1) * sizeof(*l->cut));
	if (!l->shown || !l->cut)
		return err_set(e, ENOMEM, "out of memory");
	for (size_t i = 0; i < n; i++) {
		char name[NAME_CAP];
		const char *fqn;
		size_t len;
		bool cut = false;

		fqn_of(v->c, object, i, &fqn, &len);
		if ((opts->include && !matches(opts->include, fqn, len)) ||
		    matches(opts->exclude, fqn, len))
			continue;
		l->shown[l->n++] = (uint32_t)i;
		if (len > (NAME_CAP - 8) / 3) /* shorter ones fit however they are written */
			(void)name_encode(fqn, len, object ? "" : ".npy", name, &cut);
		if (cut)
			l->cut[l->n_cut++] = (struct cut){ name_hash(fqn, len), (uint32_t)i };
	}
	return check_cut(v, object, l, e);
}

int view_new(const struct catalog *c, const struct view_opts *opts, struct view **ret,
	     struct err *e)
{
	struct view *v = calloc(1, sizeof(*v));
	size_t n_tensors, n_objects;
	int rc;

	if (!v)
		return err_set(e, ENOMEM, "out of memory");
	v->c = c;
	(void)catalog_tensors(c, &n_tensors);
	(void)catalog_objects(c, &n_objects);
	rc = list(v, false, n_tensors, opts, &v->tensors, e);
	if (!rc)
		rc = list(v, true, n_objects, opts, &v->objects, e);
	if (rc) {
		view_free(v);
		return rc;
	}
	*ret = v;
	return 0;
}

void view_free(struct view *v)
{
	if (!v)
		return;
	free(v->tensors.shown);
	free(v->tensors.cut);
	free(v->objects.shown);
	free(v->objects.cut);
	free(v);
}

static const struct listed *listed_of(const struct view *v, const struct face *f)
{
	return f->of_objects ? &v->objects : &v->tensors;
}

static uint64_t file_node(size_t face, size_t index)
{
	return (uint64_t)(face + 1) << FILE_SHIFT | index;
}

uint64_t view_file(const struct face *f, size_t index)
{
	for (size_t i = 0; i < ARRAY_LEN(faces); i++)
		if (faces[i] == f)
			return file_node(i, index);
	return 0;
}

struct view_node view_resolve(const struct view *v, uint64_t node)
{
	struct view_node r = { .kind = VIEW_NONE };
	size_t face = (size_t)(node >> FILE_SHIFT) - 1, n;

	if (node == VIEW_ROOT_NODE) {
		r.kind = VIEW_ROOT;
	} else if (node == NODE_CONTROL) {
		r.kind = VIEW_CONTROL;
	} else if (node == NODE_INFO) {
		r.kind = VIEW_INFO;
	} else if (node >= NODE_FACES && node < NODE_FACES + ARRAY_LEN(faces)) {
		r.kind = VIEW_FACE;
		r.face = faces[node - NODE_FACES];
	} else if (face < ARRAY_LEN(faces)) {
		if (faces[face]->of_objects)
			(void)catalog_objects(v->c, &n);
		else
			(void)catalog_tensors(v->c, &n);
		r.index = (size_t)(node & (((uint64_t)1 << FILE_SHIFT) - 1));
		r.face = faces[face];
		r.kind = r.index < n ? VIEW_FILE : VIEW_NONE;
	}
	return r;
}

uint64_t view_parent(const struct view *v, uint64_t node)
{
	(void)v;
	if (node >> FILE_SHIFT)
		return NODE_FACES + (node >> FILE_SHIFT) - 1;
	return node == NODE_INFO ? NODE_CONTROL : VIEW_ROOT_NODE;
}

/* ---- names ---- */

/* The first shown entry that does not come before fqn, which *ret_same says is fqn. */
static size_t search(const struct view *v, bool object, const char *fqn, size_t len, bool *ret_same)
{
	const struct listed *l = object ? &v->objects : &v->tensors;
	size_t lo = 0, hi = l->n;

	*ret_same = false;
	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2, n;
		const char *s;
		int c;

		fqn_of(v->c, object, l->shown[mid], &s, &n);
		c = text_natural_cmp(s, n, fqn, len);
		if (!c)
			*ret_same = true;
		if (c < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

int64_t view_find(const struct view *v, bool object, const char *fqn, size_t len)
{
	bool same;
	size_t at = search(v, object, fqn, len, &same);

	return same ? (int64_t)(object ? v->objects : v->tensors).shown[at] : -1;
}

static uint64_t lookup_cut(const struct view *v, size_t face, const char *name, uint64_t hash)
{
	const struct listed *l = listed_of(v, faces[face]);

	const struct cut key = { .hash = hash };
	const struct cut *c =
		l->n_cut ? bsearch(&key, l->cut, l->n_cut, sizeof(key), by_hash) : NULL;
	char full[NAME_CAP];
	const char *fqn;
	size_t len;

	if (!c)
		return 0;
	fqn_of(v->c, faces[face]->of_objects, c->index, &fqn, &len);
	(void)name_encode(fqn, len, faces[face]->suffix, full, NULL);
	return strcmp(full, name) != 0 ? 0 : file_node(face, c->index);
}

static uint64_t lookup_file(const struct view *v, size_t face, const char *name)
{
	const struct face *f = faces[face];
	size_t len = strlen(name), suffix = strlen(f->suffix), n;
	char fqn[NAME_CAP], again[NAME_CAP];
	uint64_t hash;
	int64_t at;

	if (len >= NAME_CAP || len < suffix + 1 || strcmp(name + len - suffix, f->suffix) != 0)
		return 0;
	if (name_is_cut(name, len - suffix, &hash))
		return lookup_cut(v, face, name, hash);
	if (!name_decode(name, len - suffix, fqn, &n))
		return 0;
	/* One name per file: "%41" is not another way to say "A". */
	(void)name_encode(fqn, n, f->suffix, again, NULL);
	if (strcmp(again, name) != 0)
		return 0;
	at = view_find(v, f->of_objects, fqn, n);
	return at < 0 ? 0 : file_node(face, (size_t)at);
}

uint64_t view_lookup(const struct view *v, uint64_t dir, const char *name)
{
	if (dir == VIEW_ROOT_NODE) {
		for (size_t i = 0; i < ARRAY_LEN(faces); i++)
			if (!strcmp(name, faces[i]->dir))
				return NODE_FACES + i;
		return strcmp(name, control_dir) != 0 ? 0 : NODE_CONTROL;
	}
	if (dir == NODE_CONTROL)
		return strcmp(name, info_name) != 0 ? 0 : NODE_INFO;
	if (dir >= NODE_FACES && dir < NODE_FACES + ARRAY_LEN(faces))
		return lookup_file(v, (size_t)(dir - NODE_FACES), name);
	return 0;
}

static uint64_t name_of(char name[static NAME_CAP], const char *s, uint64_t node)
{
	(void)stpcpy(name, s);
	return node;
}

uint64_t view_entry(const struct view *v, uint64_t dir, uint64_t pos, char name[static NAME_CAP])
{
	const struct listed *l;
	const struct face *f;
	const char *fqn;
	size_t len;

	if (pos >= view_entries(v, dir))
		return 0;
	if (dir == NODE_CONTROL)
		return name_of(name, info_name, NODE_INFO);
	if (dir == VIEW_ROOT_NODE)
		return pos < ARRAY_LEN(faces) ? name_of(name, faces[pos]->dir, NODE_FACES + pos)
					      : name_of(name, control_dir, NODE_CONTROL);
	f = faces[dir - NODE_FACES];
	l = listed_of(v, f);
	fqn_of(v->c, f->of_objects, l->shown[pos], &fqn, &len);
	(void)name_encode(fqn, len, f->suffix, name, NULL);
	return file_node((size_t)(dir - NODE_FACES), l->shown[pos]);
}

uint64_t view_entries(const struct view *v, uint64_t dir)
{
	if (dir == VIEW_ROOT_NODE)
		return ARRAY_LEN(faces) + 1;
	if (dir == NODE_CONTROL)
		return 1;
	if (dir >= NODE_FACES && dir < NODE_FACES + ARRAY_LEN(faces))
		return listed_of(v, faces[dir - NODE_FACES])->n;
	return 0;
}

const uint32_t *view_tensors(const struct view *v, size_t *ret_n)
{
	*ret_n = v->tensors.n;
	return v->tensors.shown;
}

const uint32_t *view_objects(const struct view *v, size_t *ret_n)
{
	*ret_n = v->objects.n;
	return v->objects.shown;
}
