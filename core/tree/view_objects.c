/* SPDX-License-Identifier: Apache-2.0 */
/*
 * objects/FQN: a non-tensor item, its stored bytes after undoing transforms.
 * logical/FQN: a tensor that is stored flattened, in the shape that it had before.
 */
#include "tree/view_internal.h"

static const struct namelist *list_of(const struct view *v, struct spot p)
{
	return p.face == FACE_LOGICAL ? &v->logical : &v->objects;
}

static enum view_kind kind(const struct view *v, struct spot p)
{
	if (p.rank || (p.index != SPOT_DIR && p.index >= list_of(v, p)->n))
		return VIEW_NONE;
	return p.index == SPOT_DIR ? VIEW_DIR : VIEW_FILE;
}

static uint64_t entries(const struct view *v, struct spot p)
{
	return list_of(v, p)->n;
}

static struct spot entry(const struct view *v, struct spot p, uint64_t pos)
{
	(void)v;
	p.index = (uint32_t)pos;
	return p;
}

static void name(const struct view *v, struct spot p, char out[static NAME_CAP])
{
	namelist_file(list_of(v, p), p.index, "", out);
}

static bool lookup(const struct view *v, struct spot p, const char *name, struct spot *ret)
{
	int64_t i = namelist_lookup(list_of(v, p), name, "");

	p.index = (uint32_t)i;
	*ret = p;
	return i >= 0;
}

static int describe_object(const struct view *v, struct spot p, struct vfile *ret,
			   struct ckpt_err *e)
{
	size_t number = v->objects.v[p.index].index;
	uint64_t size;
	int rc = v->o.object_size(v->o.arg, number, &size, e);

	if (!rc)
		vfile_object(ret, number, size);
	return rc;
}

static int describe_logical(const struct view *v, struct spot p, struct vfile *ret,
			    struct ckpt_err *e)
{
	struct tensor_info t;

	(void)e;
	view_single_tensor(v, view_logical_id(v, p.index), &t);
	vfile_tensor(ret, t.id, t.bytes);
	return 0;
}

const struct face face_objects = { "objects", false, kind,   entries,
				   entry,     name,  lookup, describe_object };
const struct face face_logical = { "logical", false, kind,   entries,
				   entry,     name,  lookup, describe_logical };
