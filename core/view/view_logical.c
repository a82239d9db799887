/* SPDX-License-Identifier: Apache-2.0 */
/* logical/FQN: a tensor that is stored flattened, in the shape that it had before. */
#include "view/view_internal.h"

static enum view_kind kind(const struct view *v, struct place p)
{
	if (p.rank || (p.index != PLACE_DIR && p.index >= v->logical.n))
		return VIEW_NONE;
	return p.index == PLACE_DIR ? VIEW_DIR : VIEW_FILE;
}

static uint64_t entries(const struct view *v, struct place p)
{
	(void)p;
	return v->logical.n;
}

static struct place entry(const struct view *v, struct place p, uint64_t pos,
			  char name[static NAME_CAP])
{
	namelist_file(&v->logical, pos, "", name);
	p.index = (uint32_t)pos;
	return p;
}

static bool lookup(const struct view *v, struct place p, const char *name, struct place *ret)
{
	int64_t i = namelist_lookup(&v->logical, name, "");

	p.index = (uint32_t)i;
	*ret = p;
	return i >= 0;
}

static int describe(const struct view *v, struct place p, struct vfile *ret, struct err *e)
{
	struct view_tensor t;

	(void)e;
	view_single_tensor(v, view_logical_id(v, p.index), &t);
	vfile_tensor(ret, t.id, t.bytes);
	return 0;
}

const struct face face_logical = { "logical", false, kind, entries, entry, lookup, describe };
