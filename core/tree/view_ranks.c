/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ranks/NNNNN/: the part of the model that a rank of the layout holds: tensors/, npy/,
 * model.safetensors. ranks/model-rank-N-part-0.safetensors: links to the latter under the names of
 * vLLM's sharded_state, and the assets beside them, so that vLLM can use ranks/ as a model
 * directory.
 *
 * Entries of ranks/: R directories, R links, the assets. For a rank's directory, see rank_entry.
 */
#include "base/checked.h"
#include "base/err.h"
#include "base/search.h"
#include "base/vec.h"
#include "layout/layout.h"
#include "tree/view_internal.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t n_ranks(const struct view *v)
{
	return (uint32_t)layout_ranks(v->o.layout);
}

static enum view_kind kind(const struct view *v, struct spot p)
{
	if (p.index == SPOT_DIR)
		return VIEW_DIR;
	if (p.rank)
		return VIEW_NONE; /* those entries belong to other faces */
	if (p.index < n_ranks(v))
		return VIEW_LINK;
	return p.index - n_ranks(v) < v->o.n_assets ? VIEW_FILE : VIEW_NONE;
}

static const struct {
	const char *name;
	unsigned face;
	uint32_t index;
} in_rank[] = {
	{ "model.safetensors", FACE_SAFETENSORS, 0 },
	{ "npy", FACE_NPY, SPOT_DIR },
	{ "tensors", FACE_TENSORS, SPOT_DIR },
};

static uint64_t entries(const struct view *v, struct spot p)
{
	return p.rank ? ARRAY_LEN(in_rank) : 2ull * n_ranks(v) + v->o.n_assets;
}

static void dir_name(const struct view *v, uint32_t i, char name[static NAME_CAP])
{
	(void)snprintf(name, NAME_CAP, "%05llu", (unsigned long long)layout_rank(v->o.layout, i));
}

static void link_name(const struct view *v, uint32_t i, char name[static NAME_CAP])
{
	(void)snprintf(name, NAME_CAP, "model-rank-%llu-part-0.safetensors",
		       (unsigned long long)layout_rank(v->o.layout, i));
}

static struct spot entry(const struct view *v, struct spot p, uint64_t pos)
{
	if (p.rank)
		return (struct spot){ in_rank[pos].face, p.rank, in_rank[pos].index };
	if (pos < n_ranks(v))
		return (struct spot){ FACE_RANKS, (uint32_t)pos + 1, SPOT_DIR };
	p.index = (uint32_t)(pos - n_ranks(v));
	return p;
}

static void name(const struct view *v, struct spot p, char out[static NAME_CAP])
{
	if (p.index == SPOT_DIR)
		dir_name(v, p.rank - 1, out);
	else if (p.index < n_ranks(v))
		link_name(v, p.index, out);
	else
		(void)stpcpy(out, v->o.assets[p.index - n_ranks(v)].name);
}

/* Parses a rank's number at s; returns the rank as in spot.rank; 0: there is no such rank. */
static uint32_t rank_named(const struct view *v, const char *s)
{
	uint64_t number;
	uint32_t at;
	char *end;

	if (!isdigit((unsigned char)*s))
		return 0;
	errno = 0;
	number = strtoull(s, &end, 10);
	if (errno)
		return 0;
	at = (uint32_t)PARTITION_POINT(i, n_ranks(v), layout_rank(v->o.layout, i) < number);
	return at < n_ranks(v) && layout_rank(v->o.layout, at) == number ? at + 1 : 0;
}

/* Looks up a rank's directory or link. */
static bool lookup_rank(const struct view *v, const char *name, struct spot *ret)
{
	static const char link[] = "model-rank-";
	bool is_link = !strncmp(name, link, sizeof(link) - 1);
	uint32_t r = rank_named(v, is_link ? name + sizeof(link) - 1 : name);
	char again[NAME_CAP];

	if (!r)
		return false;
	*ret = is_link ? (struct spot){ FACE_RANKS, 0, r - 1 }
		       : (struct spot){ FACE_RANKS, r, SPOT_DIR };
	if (is_link)
		link_name(v, r - 1, again);
	else
		dir_name(v, r - 1, again);
	return !strcmp(name, again); /* else the name only contains the number of a rank */
}

static bool lookup_top(const struct view *v, const char *name, struct spot *ret)
{
	if (lookup_rank(v, name, ret))
		return true;
	for (size_t i = 0; i < v->o.n_assets; i++)
		if (!strcmp(name, v->o.assets[i].name)) {
			*ret = (struct spot){ FACE_RANKS, 0, n_ranks(v) + (uint32_t)i };
			return true;
		}
	return false;
}

static bool lookup(const struct view *v, struct spot p, const char *name, struct spot *ret)
{
	if (!p.rank)
		return lookup_top(v, name, ret);
	for (size_t i = 0; i < ARRAY_LEN(in_rank); i++)
		if (!strcmp(name, in_rank[i].name)) {
			*ret = (struct spot){ in_rank[i].face, p.rank, in_rank[i].index };
			return true;
		}
	return false;
}

static int list_held(struct view *v, struct ckpt_err *e)
{
	uint32_t n = n_ranks(v);
	size_t k = 0, cap = 0;

	v->held_at = calloc(n + 1ul, sizeof(*v->held_at));
	if (!v->held_at)
		return err_nomem(e);
	for (uint32_t r = 1; r <= n; r++) {
		if (!VEC_ROOM(v->held, cap, k + v->model.names.n))
			return err_nomem(e);
		k += layout_held(v->o.layout, r - 1, v->held + k);
		v->held_at[r] = k;
	}
	return 0;
}

int view_ranks_init(struct view *v, struct ckpt_err *e)
{
	struct spot p;

	for (size_t i = 0; i < v->o.n_assets; i++)
		if (lookup_rank(v, v->o.assets[i].name, &p))
			return err_set(e, EEXIST,
				       "ranks/: the file '%s' of assets= has a name that is taken",
				       v->o.assets[i].name);
	return layout_holds_all(v->o.layout) ? 0 : list_held(v, e);
}

static int describe(const struct view *v, struct spot p, struct vfile *ret, struct ckpt_err *e)
{
	size_t i = p.index - n_ranks(v);

	(void)e;
	vfile_file(ret, i, 0, v->o.assets[i].size);
	return 0;
}

int64_t view_ranks_asset(const struct view *v, uint32_t index)
{
	return index >= n_ranks(v) ? (int64_t)index - n_ranks(v) : -1;
}

void view_target(const struct view *v, uint64_t node, char out[static NAME_CAP])
{
	size_t n;

	dir_name(v, view_spot(node).index, out);
	n = strlen(out);
	(void)snprintf(out + n, NAME_CAP - n, "/model.safetensors");
}

const struct face face_ranks = { "ranks", true, kind, entries, entry, name, lookup, describe };
