/* SPDX-License-Identifier: Apache-2.0 */
/*
 * objects/FQN: a non-tensor item, its stored bytes after undoing transforms. objects/FQN.json: its
 * value, as text. If another object has this name, the name shows that object, and the value has no
 * file. Nodes of values are numbered after those of all objects, listed or not.
 */
#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "index/catalog_query.h"
#include "tree/view_internal.h"

#include <stdlib.h>

static const char suffix[] = ".json";

/* ---- which values have a file ---- */

/* The object whose name is that of the value's file, or -1. */
static int64_t owner_of(const struct view *v, size_t i)
{
	char file[NAME_CAP];

	(void)namelist_file(&v->objects, i, suffix, file);
	return namelist_lookup(&v->objects, file, "");
}

/* Usually all values have a file: only an object whose name ends in the suffix can conflict. */
static bool any_in_the_way(const struct view *v)
{
	for (size_t i = 0; i < v->objects.n; i++)
		if (bytes_end(v->objects.v[i].fqn, v->objects.v[i].len, suffix))
			return true;
	return false;
}

int view_objects_init(struct view *v, struct ckpt_err *e)
{
	v->n_json = v->objects.n;
	if (!any_in_the_way(v))
		return 0;
	v->json = calloc(v->objects.n, sizeof(*v->json));
	if (!v->json)
		return err_nomem(e);
	v->n_json = 0;
	for (uint32_t i = 0; i < v->objects.n; i++)
		if (owner_of(v, i) < 0)
			v->json[v->n_json++] = i;
	return 0;
}

bool view_object_json(const struct view *v, struct spot p, size_t *ret)
{
	size_t i = p.index - v->objects.n;

	if (p.face != FACE_OBJECTS || p.rank || p.index < v->objects.n || i >= v->objects.n ||
	    (v->json && owner_of(v, i) >= 0))
		return false;
	*ret = i;
	return true;
}

/* ---- objects/ ---- */

static enum view_kind object_kind(const struct view *v, struct spot p)
{
	size_t i;

	if (p.index == SPOT_DIR)
		return p.rank ? VIEW_NONE : VIEW_DIR;
	return !p.rank && (p.index < v->objects.n || view_object_json(v, p, &i)) ? VIEW_FILE
										 : VIEW_NONE;
}

static uint64_t object_entries(const struct view *v, struct spot p)
{
	(void)p;
	return v->objects.n + v->n_json;
}

/*
 * Stored bytes are listed first: programs stat the first entries of a listing, and the size of a
 * value is known only after it has been generated.
 */
static struct spot object_entry(const struct view *v, struct spot p, uint64_t pos)
{
	if (v->json && pos >= v->objects.n)
		pos = v->objects.n + v->json[pos - v->objects.n];
	p.index = (uint32_t)pos;
	return p;
}

static void object_name(const struct view *v, struct spot p, char out[static NAME_CAP])
{
	size_t i = p.index;
	bool value = view_object_json(v, p, &i);

	(void)namelist_file(&v->objects, i, value ? suffix : "", out);
}

static bool object_lookup(const struct view *v, struct spot p, const char *name, struct spot *ret)
{
	int64_t i = namelist_lookup(&v->objects, name, "");
	int64_t value = i < 0 ? namelist_lookup(&v->objects, name, suffix) : -1;

	p.index = (uint32_t)(value < 0 ? i : value + (int64_t)v->objects.n);
	*ret = p;
	return i >= 0 || value >= 0;
}

static int describe_stored(const struct view *v, size_t number, struct vfile *ret,
			   struct ckpt_err *e)
{
	uint64_t size;
	int rc = v->o.object_size(v->o.arg, number, &size, e);

	if (!rc)
		vfile_object(ret, number, size);
	return rc;
}

static int describe_value(const struct view *v, size_t number, struct vfile *ret,
			  struct ckpt_err *e)
{
	struct buf text CLEANUP(buf_release) = BUF_INIT(VFILE_MAX_TEXT);
	int rc = v->o.object_json(v->o.arg, number, &text, e);

	if (!rc)
		vfile_bytes(ret, text.data, text.len);
	return rc;
}

static int describe_object(const struct view *v, struct spot p, struct vfile *ret,
			   struct ckpt_err *e)
{
	size_t i = p.index, n;
	bool value = view_object_json(v, p, &i);
	size_t number = v->objects.v[i].index;

	/* An object that is stored as such text is its own value. */
	return value && !catalog_objects(v->c, &n)[number].text
		       ? describe_value(v, number, ret, e)
		       : describe_stored(v, number, ret, e);
}

const struct face face_objects = { "objects",	 false,	      object_kind,   object_entries,
				   object_entry, object_name, object_lookup, describe_object };
