/* SPDX-License-Identifier: Apache-2.0 */
/*
 * .ckptfs/info.json: describes the checkpoint and what is shown of it. The directory view, which is
 * there but not listed, is described in view_page.c.
 */
#include "tree/view_internal.h"

#include <string.h>

static const char *const names[] = { "info.json" };

static enum view_kind kind(const struct view *v, struct spot p)
{
	(void)v;
	if (p.rank || (p.index != SPOT_DIR && p.index))
		return VIEW_NONE;
	return p.index == SPOT_DIR ? VIEW_DIR : VIEW_FILE;
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
	(void)stpcpy(out, names[p.index]);
}

static bool lookup(const struct view *v, struct spot p, const char *name, struct spot *ret)
{
	p.index = 0;
	if (v->o.page && !strcmp(name, face_view.dir))
		p = (struct spot){ FACE_VIEW, 0, SPOT_DIR };
	*ret = p;
	return p.face == FACE_VIEW || !strcmp(name, names[0]);
}

static int describe(const struct view *v, struct spot p, struct vfile *ret, struct ckpt_err *e)
{
	const char *text = "";
	size_t len = 0;
	int rc = v->o.info ? v->o.info(v->o.arg, &text, &len, e) : 0;

	(void)p;
	if (!rc)
		vfile_lent(ret, text, len);
	return rc;
}

const struct face face_control = { ".ckptfs", false, kind, entries, NULL, name, lookup, describe };
