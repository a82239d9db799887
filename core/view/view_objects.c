/* SPDX-License-Identifier: Apache-2.0 */
/* objects/FQN: a non-tensor item, its stored bytes after undoing transforms. */
#include "view/view_internal.h"

static enum view_kind kind(const struct view *v, struct place p)
{
	if (p.rank || (p.index != PLACE_DIR && p.index >= v->objects.n))
		return VIEW_NONE;
	return p.index == PLACE_DIR ? VIEW_DIR : VIEW_FILE;
}

static uint64_t entries(const struct view *v, struct place p)
{
	(void)p;
	return v->objects.n;
}

static struct place entry(const struct view *v, struct place p, uint64_t pos,
			  char name[static NAME_CAP])
{
	namelist_file(&v->objects, pos, "", name);
	p.index = (uint32_t)pos;
	return p;
}

static bool lookup(const struct view *v, struct place p, const char *name, struct place *ret)
{
	int64_t i = namelist_lookup(&v->objects, name, "");

	p.index = (uint32_t)i;
	*ret = p;
	return i >= 0;
}

static int describe(const struct view *v, struct place p, struct vfile *ret, struct err *e)
{
	size_t number = v->objects.v[p.index].index;
	uint64_t size;
	int rc = v->o.object_size(v->o.arg, number, &size, e);

	if (!rc)
		vfile_object(ret, number, size);
	return rc;
}

const struct face face_objects = { "objects", false, kind, entries, entry, lookup, describe };
