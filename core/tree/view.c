/* SPDX-License-Identifier: Apache-2.0 */
/* The nodes of the tree, and the files that its faces describe. */
#include "tree/view.h"

#include "base/err.h"
#include "layout/layout.h"
#include "tree/view_internal.h"

#include <string.h>

/* In the order of the root directory; numbered by the enum in view_internal.h. */
static const struct face *const faces[N_FACES] = {
	[FACE_CONTROL] = &face_control,
	[FACE_GGUF] = &face_gguf,
	[FACE_HF] = &face_hf,
	[FACE_LOGICAL] = &face_logical,
	[FACE_NPY] = &face_npy,
	[FACE_OBJECTS] = &face_objects,
	[FACE_PT] = &face_pt,
	[FACE_RANKS] = &face_ranks,
	[FACE_SAFETENSORS] = &face_safetensors,
	[FACE_TENSORS] = &face_tensors,
	[FACE_VIEW] = &face_view,
};

/* ---- nodes ---- */

enum { INDEX_BITS = 24, RANK_BITS = 20, FACE_SHIFT = INDEX_BITS + RANK_BITS };

_Static_assert(SPOT_DIR == (1u << INDEX_BITS) - 1, "the largest index");
_Static_assert(CKPT_MESH_MAX_RANKS < 1u << RANK_BITS, "ranks are numbered from 1");
_Static_assert((uint64_t)(N_FACES + 1) << FACE_SHIFT <= (uint64_t)1 << VIEW_NODE_BITS,
	       "faces are numbered from 1");

static uint64_t node_of(struct spot p)
{
	return (uint64_t)(p.face + 1) << FACE_SHIFT | (uint64_t)p.rank << INDEX_BITS | p.index;
}

struct spot view_spot(uint64_t node)
{
	return (struct spot){ (unsigned)(node >> FACE_SHIFT) - 1,
			      (uint32_t)(node >> INDEX_BITS) & ((1u << RANK_BITS) - 1),
			      (uint32_t)node & SPOT_DIR };
}

uint64_t view_tensor_node(size_t i)
{
	return node_of((struct spot){ FACE_TENSORS, 0, (uint32_t)i });
}

uint64_t view_object_node(size_t i)
{
	return node_of((struct spot){ FACE_OBJECTS, 0, (uint32_t)i });
}

static bool shown(const struct view *v, unsigned face)
{
	if (face == FACE_RANKS)
		return v->o.layout;
	if (face == FACE_LOGICAL)
		return v->logical.n;
	if (face == FACE_GGUF)
		return v->has_model && view_has_gguf(v);
	return face < N_FACES && (v->has_model || !faces[face]->of_model);
}

enum view_kind view_kind(const struct view *v, uint64_t node)
{
	struct spot p = view_spot(node);

	if (node == VIEW_ROOT_NODE)
		return VIEW_DIR;
	if (!shown(v, p.face))
		return VIEW_NONE;
	if (p.rank && p.face != FACE_VIEW && (!v->o.layout || p.rank > layout_ranks(v->o.layout)))
		return VIEW_NONE;
	return faces[p.face]->kind(v, p);
}

uint64_t view_parent(const struct view *v, uint64_t node)
{
	struct spot p = view_spot(node), up = { p.face, p.rank, SPOT_DIR };

	if (view_kind(v, node) == VIEW_NONE || node == VIEW_ROOT_NODE)
		return VIEW_ROOT_NODE;
	if (p.face == FACE_VIEW) {
		up = (struct spot){ p.index == SPOT_DIR && !p.rank ? FACE_CONTROL : FACE_VIEW, 0,
				    SPOT_DIR };
		return node_of(up);
	}
	if (p.rank && (p.index == SPOT_DIR || p.face == FACE_SAFETENSORS)) {
		up.face = FACE_RANKS;
		up.rank = p.face == FACE_RANKS ? 0 : p.rank;
	} else if (p.index == SPOT_DIR) {
		return VIEW_ROOT_NODE;
	}
	return node_of(up);
}

static uint64_t root_entry(const struct view *v, uint64_t pos, const char *name,
			   char out[static NAME_CAP])
{
	for (unsigned i = 0; i < N_ROOT_FACES; i++) {
		if ((name && strcmp(name, faces[i]->dir) != 0) || !shown(v, i))
			continue;
		if (!name && pos--)
			continue;
		(void)stpcpy(out, faces[i]->dir);
		return node_of((struct spot){ i, 0, SPOT_DIR });
	}
	return 0;
}

uint64_t view_lookup(const struct view *v, uint64_t dir, const char *name)
{
	struct spot p = view_spot(dir), found;
	char ignored[NAME_CAP];

	if (dir == VIEW_ROOT_NODE)
		return root_entry(v, 0, name, ignored);
	if (view_kind(v, dir) != VIEW_DIR || !faces[p.face]->lookup(v, p, name, &found))
		return 0;
	return node_of(found);
}

uint64_t view_entries(const struct view *v, uint64_t dir)
{
	struct spot p = view_spot(dir);
	uint64_t n = 0;
	bool gguf;

	if (dir == VIEW_ROOT_NODE) {
		/* A stat of the root must not cause gguf/ to be prepared. */
		for (unsigned i = 0; i < N_ROOT_FACES; i++)
			n += i == FACE_GGUF ? view_gguf_known(v, &gguf) && gguf : shown(v, i);
		return n;
	}
	return view_kind(v, dir) == VIEW_DIR ? faces[p.face]->entries(v, p) : 0;
}

bool view_is_partial(const struct view *v, uint64_t dir)
{
	bool ignored;

	return dir == VIEW_ROOT_NODE && v->has_model && !view_gguf_known(v, &ignored);
}

/* p must exist and not be the root. */
static void name_of(const struct view *v, struct spot p, char out[static NAME_CAP])
{
	if (p.index == SPOT_DIR && !(p.rank && (p.face == FACE_RANKS || p.face == FACE_VIEW)))
		(void)stpcpy(out, faces[p.face]->dir);
	else
		faces[p.face]->name(v, p, out);
}

uint64_t view_entry(const struct view *v, uint64_t dir, uint64_t pos, char name[static NAME_CAP])
{
	struct spot p = view_spot(dir);

	if (dir == VIEW_ROOT_NODE)
		return root_entry(v, pos, NULL, name);
	if (pos >= view_entries(v, dir))
		return 0;
	if (faces[p.face]->entry)
		p = faces[p.face]->entry(v, p, pos);
	else
		p.index = (uint32_t)pos;
	name_of(v, p, name);
	return node_of(p);
}

bool view_name(const struct view *v, uint64_t node, char out[static NAME_CAP])
{
	if (node == VIEW_ROOT_NODE || view_kind(v, node) == VIEW_NONE)
		return false;
	name_of(v, view_spot(node), out);
	return true;
}

/* ---- files ---- */

int view_describe(const struct view *v, uint64_t node, struct vfile *ret, struct ckpt_err *e)
{
	struct spot p = view_spot(node);
	int rc;

	if (view_kind(v, node) != VIEW_FILE)
		return err_set(e, EISDIR, "not a file");
	rc = faces[p.face]->describe(v, p, ret, e);
	return rc ? rc : vfile_done(ret, e);
}

/* Describing consolidated files takes long, so their sizes are cached in v->sizes. */
static _Atomic uint64_t *remembered(const struct view *v, struct spot p)
{
	if (p.rank || !v->sizes)
		return NULL;
	switch (p.face) {
	case FACE_SAFETENSORS:
		return &v->sizes[0];
	case FACE_PT:
		return &v->sizes[1];
	case FACE_HF:
		return p.index < v->n_shards ? &v->sizes[2 + p.index] : NULL;
	default:
		return NULL;
	}
}

int view_size(const struct view *v, uint64_t node, uint64_t *ret, struct ckpt_err *e)
{
	_Atomic uint64_t *known = remembered(v, view_spot(node));
	struct vfile f = VFILE_INIT;
	size_t i;
	int rc;

	if (known && *known) {
		*ret = *known;
		return 0;
	}
	if (view_page_size(v, view_spot(node), ret))
		return 0;
	if (view_object_json(v, view_spot(node), &i))
		return v->o.object_json_size(v->o.arg, v->objects.v[i].index, ret, e);
	rc = view_describe(v, node, &f, e);
	*ret = f.size;
	vfile_release(&f);
	if (!rc && known)
		*known = *ret;
	return rc;
}

int64_t view_asset(const struct view *v, uint64_t node)
{
	struct spot p = view_spot(node);

	if (view_kind(v, node) != VIEW_FILE)
		return -1;
	return p.face == FACE_HF      ? view_hf_asset(v, p.index)
	       : p.face == FACE_RANKS ? view_ranks_asset(v, p.index)
				      : -1;
}
