/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensors/FQN: the whole tensor, C order, little-endian, no header. npy/FQN.npy: the same after a
 * NumPy header. ranks/NNNNN/tensors and npy: the same for the parts that a rank holds.
 */
#include "file/npy.h"
#include "tree/view_internal.h"

/*
 * A rank's directory lists the model's tensors that it holds; the tree's directory lists all
 * tensors.
 */
static const struct namelist *names_of(const struct view *v, uint32_t rank)
{
	return rank ? &v->model.names : &v->tensors;
}

static const char *suffix_of(struct spot p)
{
	return p.face == FACE_NPY ? ".npy" : "";
}

static bool held(const struct view *v, uint32_t rank, size_t i)
{
	uint64_t off[CKPT_MAX_DIMS], len[CKPT_MAX_DIMS];

	return !rank || view_rank_box(v, rank, i, off, len);
}

static enum view_kind kind(const struct view *v, struct spot p)
{
	if (p.index == SPOT_DIR)
		return VIEW_DIR;
	return p.index < names_of(v, p.rank)->n && held(v, p.rank, p.index) ? VIEW_FILE : VIEW_NONE;
}

static uint64_t entries(const struct view *v, struct spot p)
{
	if (p.rank && v->held_at)
		return v->held_at[p.rank] - v->held_at[p.rank - 1];
	return names_of(v, p.rank)->n;
}

static struct spot entry(const struct view *v, struct spot p, uint64_t pos)
{
	p.index = p.rank && v->held_at ? v->held[v->held_at[p.rank - 1] + pos] : (uint32_t)pos;
	return p;
}

static void name(const struct view *v, struct spot p, char out[static NAME_CAP])
{
	namelist_file(names_of(v, p.rank), p.index, suffix_of(p), out);
}

static bool lookup(const struct view *v, struct spot p, const char *name, struct spot *ret)
{
	int64_t i = namelist_lookup(names_of(v, p.rank), name, suffix_of(p));

	if (i < 0 || !held(v, p.rank, (size_t)i))
		return false;
	p.index = (uint32_t)i;
	*ret = p;
	return true;
}

static int describe(const struct view *v, struct spot p, struct vfile *ret, struct ckpt_err *e)
{
	uint64_t shape[CKPT_MAX_DIMS];
	char head[NPY_MAX_HEADER];
	struct tensor_info m;

	(void)e;
	(void)view_info(v, of_rank(p.rank), p.index, &m, shape);
	if (p.face == FACE_NPY)
		vfile_bytes(ret, head, npy_header(m.dtype, m.n_dims, m.shape, head));
	vfile_tensor(ret, m.id, m.bytes);
	return 0;
}

const struct face face_tensors = { "tensors", false, kind, entries, entry, name, lookup, describe };
const struct face face_npy = { "npy", false, kind, entries, entry, name, lookup, describe };
