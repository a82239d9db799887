/* SPDX-License-Identifier: Apache-2.0 */
/* logical/FQN: a tensor that is stored flattened, in its original shape. */
#include "tree/view_internal.h"

static enum view_kind kind(const struct view *v, struct spot p)
{
	if (p.rank || (p.index != SPOT_DIR && p.index >= v->logical.n))
		return VIEW_NONE;
	return p.index == SPOT_DIR ? VIEW_DIR : VIEW_FILE;
}

static uint64_t entries(const struct view *v, struct spot p)
{
	(void)p;
	return v->logical.n;
}

static void name(const struct view *v, struct spot p, char out[static NAME_CAP])
{
	namelist_file(&v->logical, p.index, "", out);
}

static bool lookup(const struct view *v, struct spot p, const char *name, struct spot *ret)
{
	int64_t i = namelist_lookup(&v->logical, name, "");

	p.index = (uint32_t)i;
	*ret = p;
	return i >= 0;
}

static int describe(const struct view *v, struct spot p, struct vfile *ret, struct ckpt_err *e)
{
	struct tensor_info t;

	(void)e;
	view_single_tensor(v, view_logical_id(v, p.index), &t);
	vfile_tensor(ret, t.id, t.bytes);
	return 0;
}

const struct face face_logical = { "logical", false, kind, entries, NULL, name, lookup, describe };
