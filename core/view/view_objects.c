/* SPDX-License-Identifier: Apache-2.0 */
/*
 * objects/FQN: a non-tensor item, its stored bytes after undoing transforms.
 * logical/FQN: a tensor that is stored flattened, in the shape that it had before.
 */
#include "view/view_internal.h"

static const struct namelist *list_of(const struct view *v, struct place p)
{
	return p.face == FACE_LOGICAL ? &v->logical : &v->objects;
}

static enum view_kind kind(const struct view *v, struct place p)
{
	if (p.rank || (p.index != PLACE_DIR && p.index >= list_of(v, p)->n))
		return VIEW_NONE;
	return p.index == PLACE_DIR ? VIEW_DIR : VIEW_FILE;
}

static uint64_t entries(const struct view *v, struct place p)
{
	return list_of(v, p)->n;
}

static struct place entry(const struct view *v, struct place p, uint64_t pos,
			  char name[static NAME_CAP])
{
	namelist_file(list_of(v, p), pos, "", name);
	p.index = (uint32_t)pos;
	return p;
}

static bool lookup(const struct view *v, struct place p, const char *name, struct place *ret)
{
	int64_t i = namelist_lookup(list_of(v, p), name, "");

	p.index = (uint32_t)i;
	*ret = p;
	return i >= 0;
}

static int describe_object(const struct view *v, struct place p, struct vfile *ret,
			   struct ckpt_err *e)
{
	size_t number = v->objects.v[p.index].index;
	uint64_t size;
	int rc = v->o.object_size(v->o.arg, number, &size, e);

	if (!rc)
		vfile_object(ret, number, size);
	return rc;
}

static int describe_logical(const struct view *v, struct place p, struct vfile *ret,
			    struct ckpt_err *e)
{
	struct view_tensor t;

	(void)e;
	view_single_tensor(v, view_logical_id(v, p.index), &t);
	vfile_tensor(ret, t.id, t.bytes);
	return 0;
}

const struct face face_objects = {
	"objects", false, kind, entries, entry, lookup, describe_object
};
const struct face face_logical = {
	"logical", false, kind, entries, entry, lookup, describe_logical
};
