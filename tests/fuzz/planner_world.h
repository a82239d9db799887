/* SPDX-License-Identifier: Apache-2.0 */
/*
 * planner_world - makes state dicts of some ranks from a fuzzer's bytes: tensors are whole, on a
 * mesh, or in pieces here and there. Then something may be spoilt.
 */
#ifndef TESTS_FUZZ_PLANNER_WORLD_H
#define TESTS_FUZZ_PLANNER_WORLD_H

#include "base/checked.h"
#include "base/err.h"
#include "box_util.h"
#include "model/box.h"
#include "model/dtype.h"
#include <ckptfs/ckpt_plan.h>

#include <stdlib.h>
#include <string.h>

enum { RANKS = 4, TENSORS = 4, ENTRIES = TENSORS + 2, SHARDS = 8, CELLS = 1024, ROUNDS = 3 };

static void require(bool ok)
{
	if (!ok)
		abort();
}

/* Did it fail? Then there must be a reason. */
static bool failed(int rc, const struct ckpt_err *e)
{
	require(rc <= 0 && (!rc || (e->code == -rc && *e->msg)));
	return rc;
}

struct choices {
	const uint8_t *p;
	size_t left;
};

static uint64_t take(struct choices *c, uint64_t n)
{
	uint64_t v = 0;

	for (uint64_t max = n - 1; max && c->left; max >>= 8, c->left--)
		v = v << 8 | *c->p++;
	return v % n;
}

/* ---- what ranks hold ---- */

struct held {
	struct ckpt_local_tensor t;
	uint64_t shape[CKPT_MAX_DIMS], off[SHARDS][CKPT_MAX_DIMS], len[SHARDS][CKPT_MAX_DIMS];
	struct ckpt_shard shards[SHARDS];
};

struct world {
	size_t ranks;
	bool is_hostile;
	struct held held[RANKS][TENSORS];
	struct ckpt_state_entry entries[RANKS][ENTRIES];
	struct ckpt_state_dict dict[RANKS];
};

struct shape {
	uint64_t v[3];
	uint8_t n, dtype;
};

static const struct {
	const char *s;
	uint32_t len;
} names[ENTRIES] = { { "a", 1 },	  { "a.b", 3 },	 { "", 0 },
		     { "x\n\0\x1b[", 5 }, { "blob", 4 }, { "o", 1 } };

/* Are there few enough elements to look at each? There may be none. */
static bool is_small(size_t n, const uint64_t *len, uint64_t *ret_volume)
{
	return n <= CKPT_MAX_DIMS && box_volume(n, len, ret_volume) && *ret_volume <= CELLS;
}

/* Each element of each name has bytes of its own. */
static void put_value(uint8_t *to, size_t size, const struct ckpt_meta_index *name,
		      const uint64_t *v)
{
	uint64_t x = 1 + name->fqn_len;

	for (size_t d = 0; d < name->n_dims; d++)
		x = (x * 0x9e3779b97f4a7c15u + v[d]) ^ x >> 29;
	for (size_t i = 0; i < size; i++, x = x * 0x9e3779b97f4a7c15u + 1)
		to[i] = (uint8_t)(x >> 56);
}

/* The element at v of a box, where v is counted from the box's first element. */
static void put_element(uint8_t *to, size_t size, const struct ckpt_meta_index *name,
			const uint64_t *off, const uint64_t *v)
{
	uint64_t at[CKPT_MAX_DIMS];

	for (size_t d = 0; d < name->n_dims; d++)
		at[d] = off[d] + v[d];
	put_value(to, size, name, at);
}

static struct ckpt_meta_index index_of(const struct ckpt_state_entry *x, const uint64_t *off)
{
	return (struct ckpt_meta_index){ .fqn = x->fqn,
					 .fqn_len = x->fqn_len,
					 .offset = off,
					 .n_dims = x->tensor ? x->tensor->n_dims : 0,
					 .has_offset = x->tensor };
}

/* Allocates exactly as much memory as the shard needs; none for one that is too large. */
static void add_data(const struct ckpt_state_entry *x, struct ckpt_shard *s, bool fill)
{
	uint64_t volume, v[CKPT_MAX_DIMS] = { 0 };
	const struct ckpt_meta_index name = index_of(x, s->off);
	uint8_t *to;
	size_t size;

	if (x->tensor->props.dtype >= CKPT_DTYPE_COUNT || !is_small(name.n_dims, s->len, &volume))
		return;
	size = dtype_info(x->tensor->props.dtype)->size;
	s->data = to = malloc(volume * size + !volume);
	require(to);
	memset(to, 0xee, volume * size);
	if (fill && volume)
		do {
			put_element(to, size, &name, s->off, v);
			to += size;
		} while (next_element(name.n_dims, s->len, v));
}

static void add_shard(struct held *h, const uint64_t *off, const uint64_t *len)
{
	size_t i = h->t.n_shards, n = h->t.n_dims * sizeof(*off);

	if (i == SHARDS)
		return;
	memcpy(h->off[i], off, n);
	memcpy(h->len[i], len, n);
	h->t.n_shards++;
}

static bool is_held(const struct held *h, const uint64_t *off, const uint64_t *len)
{
	for (size_t i = 0; i < h->t.n_shards; i++)
		if (box_equal(h->t.n_dims, h->off[i], h->len[i], off, len))
			return true;
	return false;
}

/* Cuts a box in halves, and these again, and gives each to some ranks. */
static void deal_cuts(struct choices *c, struct world *w, size_t i, const uint64_t *off,
		      const uint64_t *len, int depth)
{
	uint64_t at[2][3], part[2][3];
	const struct held *h = &w->held[0][i];
	size_t n = h->t.n_dims * sizeof(*off), d = n ? take(c, h->t.n_dims) : 0, first, more;

	if (depth && n && len[d] > 1) {
		for (size_t k = 0; k < 2; k++) {
			memcpy(at[k], off, n);
			memcpy(part[k], len, n);
		}
		part[0][d] = 1 + take(c, len[d] - 1);
		at[1][d] = off[d] + part[0][d];
		part[1][d] = len[d] - part[0][d];
		deal_cuts(c, w, i, at[0], part[0], depth - 1);
		deal_cuts(c, w, i, at[1], part[1], depth - 1);
		return;
	}
	first = take(c, w->ranks);
	more = take(c, w->ranks);
	add_shard(&w->held[first][i], off, len);
	if (more != first)
		add_shard(&w->held[more][i], off, len);
}

static void place_on_mesh(struct choices *c, struct world *w, size_t i, const struct shape *s)
{
	uint64_t mesh[2] = { w->ranks, 1 };
	struct ckpt_placement p[2] = { { 0, 0, CKPT_SPLIT_CEIL }, { 1, 0, CKPT_SPLIT_BALANCED } };
	struct ckpt_sharding of = { mesh, p, 2, (uint8_t)(s->n ? take(c, 3) : 0) };
	uint64_t off[3], len[3];
	struct ckpt_err e = { 0 };

	if (w->ranks == 4 && take(c, 2))
		mesh[0] = mesh[1] = 2;
	for (size_t k = 0; k < of.n; k++)
		p[k].dim = (int8_t)((int)take(c, 2 * s->n) - s->n);
	for (size_t r = 0; r < w->ranks; r++) {
		require(!ckpt_sharding_box(&of, r, s->n, s->v, off, len, &e));
		add_shard(&w->held[r][i], off, len);
	}
}

/* A tensor that all ranks or one rank have whole, or that is on a mesh of all ranks, or in
 * shards. */
static void hold(struct choices *c, struct world *w, size_t i, const struct shape *s)
{
	static const uint64_t zero[3];
	static const uint8_t kinds[] = { CKPT_LOCAL_WHOLE, CKPT_LOCAL_BOX, CKPT_LOCAL_SHARDS,
					 CKPT_LOCAL_WHOLE };
	size_t how = take(c, 4), one = take(c, w->ranks);
	struct ckpt_tensor_props props = { .dtype = s->dtype };

	for (size_t r = 0; r < w->ranks; r++) {
		struct held *h = &w->held[r][i];

		h->t = (struct ckpt_local_tensor){ .kind = kinds[how],
						   .n_dims = s->n,
						   .props = props,
						   .shape = h->shape,
						   .shards = h->shards };
		memcpy(h->shape, s->v, sizeof(s->v));
		if (how == 0 || (how == 3 && r == one))
			add_shard(h, zero, s->v);
	}
	if (how == 1)
		place_on_mesh(c, w, i, s);
	if (how == 2)
		deal_cuts(c, w, i, zero, s->v, 3);
}

/* Megatron's dicts hold only main replicas: what a lower rank has is dropped. */
static void drop_copies(struct world *w, size_t i)
{
	for (size_t r = w->ranks; r-- > 1;) {
		struct held *h = &w->held[r][i];
		size_t n = h->t.n_shards;

		h->t.n_shards = 0;
		for (size_t k = 0; k < n; k++) {
			bool found = false;

			for (size_t low = 0; low < r; low++)
				found |= is_held(&w->held[low][i], h->off[k], h->len[k]);
			if (!found)
				add_shard(h, h->off[k], h->len[k]);
		}
		if (h->t.kind == CKPT_LOCAL_WHOLE && n)
			h->t.kind = CKPT_LOCAL_BOX;
	}
}

static uint64_t odd_number(struct choices *c)
{
	static const uint64_t odd[] = {
		0, 1, 2, 5, UINT64_MAX, 1ull << 63, 1ull << 60, UINT32_MAX
	};

	return odd[take(c, ARRAY_LEN(odd))] - take(c, 2);
}

/* Adds something that no rank should hold, or that other ranks hold differently. */
static void spoil(struct choices *c, struct world *w)
{
	size_t r = take(c, w->ranks), i = take(c, TENSORS), k = take(c, SHARDS), d = take(c, 4);
	struct held *h = &w->held[r][i];
	struct ckpt_state_entry *x = &w->entries[r][take(c, ENTRIES)];

	switch (take(c, 13)) {
	case 0:
		h->shape[d] = odd_number(c);
		break;
	case 1:
		h->off[k][d] = odd_number(c);
		break;
	case 2:
		h->len[k][d] = odd_number(c);
		break;
	case 3:
		h->t.kind = (uint8_t)take(c, 4);
		break;
	case 4:
		h->t.n_shards = k;
		break;
	case 5:
		h->t.n_dims = (uint8_t)(take(c, 2) ? take(c, 256) : d);
		break;
	case 6:
		h->t.props.dtype = (uint8_t)take(c, CKPT_DTYPE_COUNT + 1);
		break;
	case 7:
		h->t.props.requires_grad = true;
		break;
	case 8:
		x->tensor = NULL;
		x->bytes = (struct ckpt_data){ .data = x->fqn, .len = x->fqn_len };
		break;
	case 9:
		x->fqn = names[i].s;
		x->fqn_len = names[i].len;
		break;
	case 10:
		w->dict[r].count = take(c, w->dict[r].count + 1);
		break;
	case 11: /* only Megatron has this, for loading */
		h->t.allow_shape_mismatch = true;
		h->shape[d] += k;
		for (size_t j = 0; j < h->t.n_shards; j++)
			h->len[j][d] += k;
		break;
	default: /* the same box again, or one that begins where it does */
		memcpy(h->off[k], h->off[0], sizeof(h->off[0]));
		memcpy(h->len[k], h->len[take(c, SHARDS)], sizeof(h->len[0]));
		h->t.n_shards = max_u64(h->t.n_shards, k + 1);
	}
	w->is_hostile = true;
}

static const struct ckpt_path_step path[] = { { .key = "k", .key_len = 1 }, { .position = 7 } };

static void make_dicts(struct choices *c, struct world *w, bool no_copies)
{
	for (size_t r = 0; r < w->ranks; r++) {
		struct ckpt_state_entry *x = w->entries[r];

		for (size_t i = 0; i < ENTRIES; i++) {
			if (i >= TENSORS && no_copies && r)
				continue;
			if (i < TENSORS && w->held[r][i].t.kind == CKPT_LOCAL_WHOLE &&
			    !w->held[r][i].t.n_shards)
				continue; /* another rank's */
			*x = (struct ckpt_state_entry){ .fqn = names[i].s,
							.fqn_len = names[i].len };
			if (i < TENSORS)
				x->tensor = &w->held[r][i].t;
			else
				x->bytes = (struct ckpt_data){ .data = names[i].s,
							       .len = names[i].len };
			if (!take(c, 4)) {
				x->path = path;
				x->n_steps = ARRAY_LEN(path);
			}
			x++;
		}
		w->dict[r] = (struct ckpt_state_dict){ w->entries[r], (size_t)(x - w->entries[r]) };
	}
}

static void make_world(struct choices *c, struct world *w, size_t ranks, const struct shape *shapes,
		       bool no_copies, bool fill)
{
	memset(w, 0, sizeof(*w));
	w->ranks = ranks;
	for (size_t i = 0; i < TENSORS; i++) {
		hold(c, w, i, &shapes[i]);
		if (no_copies)
			drop_copies(w, i);
	}
	make_dicts(c, w, no_copies);
	for (uint64_t n = take(c, 2) ? take(c, 4) : 0; n; n--)
		spoil(c, w);
	for (size_t r = 0; r < ranks; r++)
		for (size_t i = 0; i < TENSORS; i++)
			for (size_t k = 0; k < SHARDS; k++)
				w->held[r][i].shards[k] =
					(struct ckpt_shard){ w->held[r][i].off[k],
							     w->held[r][i].len[k], NULL };
	for (size_t r = 0; r < ranks; r++)
		for (size_t i = 0; i < w->dict[r].count; i++) {
			struct ckpt_state_entry *x = &w->entries[r][i];
			struct held *h = (struct held *)(uintptr_t)x->tensor; /* its first member */

			for (size_t k = 0; h && k < h->t.n_shards; k++)
				if (!h->shards[k].data)
					add_data(x, &h->shards[k], fill);
		}
}

static void release_world(struct world *w)
{
	for (size_t r = 0; r < RANKS; r++)
		for (size_t i = 0; i < TENSORS; i++)
			for (size_t k = 0; k < SHARDS; k++)
				free(w->held[r][i].shards[k].data);
}

#endif
