/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Directories with one consolidated file: safetensors/model.safetensors: every tensor of the tree,
 * or with weights= or recipe= the model. pt/model.pt: the model, for torch.load. Also
 * ranks/NNNNN/model.safetensors: the tensors that a rank holds.
 */
#include "file/pt_write.h"
#include "file/st_write.h"
#include "tree/view_internal.h"

#include <string.h>

static const char *file_of(struct spot p)
{
	return p.face == FACE_PT ? "model.pt" : "model.safetensors";
}

static enum view_kind kind(const struct view *v, struct spot p)
{
	(void)v;
	if (p.index == SPOT_DIR)
		return p.rank ? VIEW_NONE : VIEW_DIR;
	return p.index || (p.rank && p.face == FACE_PT) ? VIEW_NONE : VIEW_FILE;
}

static uint64_t entries(const struct view *v, struct spot p)
{
	(void)v;
	(void)p;
	return 1;
}

static void name(const struct view *v, struct spot p, char out[static NAME_CAP])
{
	(void)v;
	(void)stpcpy(out, file_of(p));
}

static bool lookup(const struct view *v, struct spot p, const char *name, struct spot *ret)
{
	(void)v;
	*ret = p;
	ret->index = 0;
	return !strcmp(name, file_of(p));
}

static int describe(const struct view *v, struct spot p, struct vfile *ret, struct ckpt_err *e)
{
	bool model = p.face == FACE_PT || view_of_model(v);
	uint32_t of = model && !p.rank ? OF_MODEL : of_rank(p.rank);
	struct members m;
	int rc = view_members(v, of, p.face == FACE_PT ? pt_check : st_check, NULL, &m, e);

	if (!rc)
		rc = p.face == FACE_PT ? pt_layout(m.v, m.n, ret, e) : st_layout(m.v, m.n, ret, e);
	members_release(&m);
	return rc;
}

const struct face face_safetensors = { "safetensors", false, kind,   entries,
				       NULL,	      name,  lookup, describe };
const struct face face_pt = { "pt", true, kind, entries, NULL, name, lookup, describe };
