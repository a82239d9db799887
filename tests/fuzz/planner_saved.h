/* SPDX-License-Identifier: Apache-2.0 */
/*
 * planner_saved - saves a planner_world with planners that are stepped by hand, and checks the
 * result. Plans are sent as bytes, as between processes.
 */
#ifndef TESTS_FUZZ_PLANNER_SAVED_H
#define TESTS_FUZZ_PLANNER_SAVED_H

#include "base/arena.h"
#include "base/buf.h"
#include "planner_world.h"
#include "save/dedup.h"
#include "save/plan_codec.h"

/* ---- a save ---- */

struct save {
	enum ckpt_planner_system system;
	struct ckpt_save_planning opt;
	struct ckpt_save_planner p[RANKS];
	struct ckpt_save_plan local[RANKS], plan[RANKS];
	struct ckpt_metadata md;
	struct arena wire; /* what other ranks have sent */
};

/* Sends a plan: ret is equal to it, with memory of its own. */
static void send(struct save *s, const struct ckpt_save_plan *p, struct ckpt_save_plan *ret)
{
	struct buf b = BUF_INIT(1 << 24);
	struct ckpt_err e = { 0 };

	require(!save_plan_encode(p, &b, &e));
	require(!save_plan_decode(b.data, b.len, &s->wire, ret, &e) && save_plan_equal(p, ret));
	buf_release(&b);
}

static int save_all(struct save *s, const struct world *w, struct ckpt_err *e)
{
	struct ckpt_save_plan all[RANKS], parts[RANKS];
	int rc = 0;

	arena_release(&s->wire);
	for (size_t r = 0; r < w->ranks; r++) {
		s->opt.rank = r;
		s->opt.is_coordinator = !r;
		if (!s->p[r].ops)
			require(!ckpt_save_planner_new(s->system, &s->p[r], e));
		rc = ckpt_save_planner_configure(&s->p[r], &w->dict[r], &s->opt, e);
		if (!rc)
			rc = ckpt_save_planner_local_plan(&s->p[r], &s->local[r], e);
		if (rc)
			return rc;
		send(s, &s->local[r], &all[r]);
	}
	rc = ckpt_save_planner_global_plan(&s->p[0], all, w->ranks, parts, &s->md, e);
	for (size_t r = 0; r < w->ranks && !rc; r++) {
		send(s, &parts[r], &all[r]);
		rc = ckpt_save_planner_finish(&s->p[r], &all[r], &s->plan[r], e);
	}
	return rc;
}

static void free_save(struct save *s)
{
	for (size_t r = 0; r < RANKS; r++)
		ckpt_save_planner_free(&s->p[r]);
	arena_release(&s->wire);
}

/* ---- what a save must be ---- */

static bool same_name(const struct ckpt_meta_index *x, const char *fqn, size_t len)
{
	return x->fqn_len == len && !memcmp(x->fqn, fqn, len);
}

static const struct ckpt_meta_entry *entry_of(const struct ckpt_metadata *md,
					      const struct ckpt_meta_index *x)
{
	const struct ckpt_meta_entry *found = NULL;

	for (size_t i = 0; i < md->n_entries; i++)
		if (same_name(x, md->entries[i].fqn, md->entries[i].fqn_len)) {
			require(!found);
			found = &md->entries[i];
		}
	return found;
}

static bool same_but_hint(const struct ckpt_write_item *a, const struct ckpt_write_item *b)
{
	struct ckpt_write_item x = *a, y = *b;

	x.index.hint = y.index.hint = 0;
	return save_plan_equal(&(struct ckpt_save_plan){ .items = &x, .n_items = 1 },
			       &(struct ckpt_save_plan){ .items = &y, .n_items = 1 });
}

/* A rank must write some of the items that it offered, in their order. */
static void check_part(const struct ckpt_save_plan *plan, const struct ckpt_save_plan *offered)
{
	size_t k = 0;

	for (size_t i = 0; i < plan->n_items; i++, k++) {
		while (k < offered->n_items && !same_but_hint(&plan->items[i], &offered->items[k]))
			k++;
		require(k < offered->n_items);
	}
}

/* Which item, of which rank, writes an index? If there are two, they write the same. */
static const struct ckpt_write_item *writer_of(const struct save *s, size_t ranks,
					       const struct ckpt_meta_index *x, size_t *ret_rank)
{
	const struct ckpt_write_item *found = NULL;

	for (size_t r = 0; r < ranks; r++)
		for (size_t i = 0; i < s->plan[r].n_items; i++) {
			const struct ckpt_write_item *w = &s->plan[r].items[i];

			if (!meta_index_equal(&w->index, x))
				continue;
			require(!found || box_equal(x->n_dims, found->chunk.off, found->chunk.len,
						    w->chunk.off, w->chunk.len));
			found = w;
			*ret_rank = r;
		}
	return found;
}

static bool is_in(size_t n, const uint64_t *v, const struct ckpt_chunk_meta *c)
{
	for (size_t d = 0; d < n; d++)
		if (v[d] < c->off[d] || v[d] - c->off[d] >= c->len[d])
			return false;
	return true;
}

static size_t times_stored(const struct ckpt_tensor_meta *m, const uint64_t *v)
{
	size_t times = 0;

	for (size_t i = 0; i < m->n_chunks; i++)
		times += is_in(m->n_dims, v, &m->chunks[i]);
	return times;
}

/* Each element that a rank offered must be in some chunk, unless the tensor has another size. */
static void check_kept(const struct ckpt_write_item *w, const struct ckpt_tensor_meta *m)
{
	uint64_t v[CKPT_MAX_DIMS] = { 0 }, at[CKPT_MAX_DIMS], volume;
	size_t n = m->n_dims;

	if (w->type == CKPT_WRITE_BYTE_IO || n != w->index.n_dims ||
	    !box_equal(n, w->size, w->size, m->size, m->size) ||
	    !is_small(n, w->chunk.len, &volume) || !volume)
		return;
	do {
		for (size_t d = 0; d < n; d++)
			at[d] = w->chunk.off[d] + v[d];
		require(times_stored(m, at));
	} while (next_element(n, w->chunk.len, v));
}

/* Nothing that was offered may be lost, and it is written only once if copies are shared out. */
static void check_offers(const struct save *s, const struct world *w,
			 const struct ckpt_save_plan *offered)
{
	bool once = s->system != CKPT_PLANNER_MEGATRON && !s->opt.keep_redundancy;
	size_t rank, other;

	for (size_t i = 0; i < offered->n_items; i++) {
		const struct ckpt_meta_index *x = &offered->items[i].index;

		require(writer_of(s, w->ranks, x, &rank) && entry_of(&s->md, x));
		check_kept(&offered->items[i], &entry_of(&s->md, x)->tensor);
		for (size_t r = 0; once && r < rank; r++)
			require(!writer_of(&(struct save){ .plan = { s->plan[r] } }, 1, x, &other));
	}
}

/* Each item must be at its hint, and each chunk must be that of one item. */
static void check_places(const struct save *s, size_t ranks)
{
	size_t items = 0, chunks = 0;

	for (size_t r = 0; r < ranks; r++)
		for (size_t i = 0; i < s->plan[r].n_items; i++) {
			const struct ckpt_write_item *w = &s->plan[r].items[i];
			const struct ckpt_meta_entry *m = entry_of(&s->md, &w->index);

			require(m && m->is_tensor == (w->type != CKPT_WRITE_BYTE_IO));
			if (!m->is_tensor)
				continue;
			items++;
			require(m->tensor.n_dims == w->index.n_dims && w->index.hint >= 0 &&
				(size_t)w->index.hint < m->tensor.n_chunks);
			require(box_inside(w->index.n_dims, w->chunk.off, w->chunk.len,
					   m->tensor.size));
			require(box_equal(m->tensor.n_dims, m->tensor.chunks[w->index.hint].off,
					  m->tensor.chunks[w->index.hint].len, w->chunk.off,
					  w->chunk.len));
		}
	for (size_t i = 0; i < s->md.n_entries; i++)
		if (s->md.entries[i].is_tensor)
			chunks += s->md.entries[i].tensor.n_chunks;
	require(items == chunks);
}

/* Each element must be there once. This is torch's rule; other systems only keep it if nobody was
 * hostile. */
static void check_fill(const struct save *s, const struct world *w)
{
	bool validated = s->system <= CKPT_PLANNER_MEGATRON;

	for (size_t i = 0; i < s->md.n_entries; i++) {
		const struct ckpt_tensor_meta *m = &s->md.entries[i].tensor;
		uint64_t v[CKPT_MAX_DIMS] = { 0 }, volume;

		if (!s->md.entries[i].is_tensor || !is_small(m->n_dims, m->size, &volume) ||
		    !volume)
			continue;
		do {
			size_t times = times_stored(m, v);

			if (validated && m->n_dims)
				require(times <= 1 && (times || w->ranks == 1));
			if (!w->is_hostile)
				require(times == 1 || (times && s->opt.keep_redundancy));
		} while (next_element(m->n_dims, m->size, v));
	}
}

/* Every name must be there once, if the system keeps names. */
static void check_paths(const struct save *s, const struct world *w)
{
	bool kept = (s->system == CKPT_PLANNER_DCP || s->system == CKPT_PLANNER_HYPERPARALLEL_B) &&
		    !s->opt.no_paths;

	require(kept || !s->md.n_paths);
	for (size_t r = 0; r < w->ranks && kept; r++)
		for (size_t i = 0; i < w->dict[r].count; i++) {
			struct ckpt_meta_index x = index_of(&w->entries[r][i], NULL);
			size_t times = 0;

			for (size_t k = 0; k < s->md.n_paths; k++)
				times += same_name(&x, s->md.paths[k].fqn, s->md.paths[k].fqn_len);
			require(times == 1);
		}
}

/* An item's elements, in row-major order. */
static void check_data(struct save *s, size_t rank, const struct ckpt_write_item *w)
{
	uint64_t bytes, v[CKPT_MAX_DIMS] = { 0 };
	struct ckpt_data data;
	struct ckpt_err e = { 0 };
	size_t size;

	if (failed(ckpt_save_planner_get_data(&s->p[rank], w, &data, &e), &e) ||
	    w->type == CKPT_WRITE_BYTE_IO)
		return;
	require(!write_item_chunk_bytes(w, &bytes, &e) && data.len == bytes);
	size = dtype_info(w->props.dtype)->size;
	for (size_t at = 0; at < bytes; at += size) {
		uint8_t want[16];

		put_element(want, size, &w->index, w->chunk.off, v);
		require(!memcmp((const uint8_t *)data.data + at, want, size));
		(void)next_element(w->index.n_dims, w->chunk.len, v);
	}
}

static void check_save(struct save *s, const struct world *w, const struct ckpt_save_plan *offered)
{
	for (size_t r = 0; r < w->ranks; r++) {
		check_part(&s->plan[r], &offered[r]);
		check_offers(s, w, &offered[r]);
		for (size_t i = 0; i < s->plan[r].n_items; i++)
			check_data(s, r, &s->plan[r].items[i]);
	}
	check_places(s, w->ranks);
	check_fill(s, w);
	check_paths(s, w);
}

static void check_same_md(const struct ckpt_metadata *a, const struct ckpt_metadata *b)
{
	require(a->n_entries == b->n_entries && a->n_paths == b->n_paths);
	for (size_t i = 0; i < a->n_entries; i++) {
		const struct ckpt_tensor_meta *x = &a->entries[i].tensor,
					      *y = &b->entries[i].tensor;
		struct ckpt_meta_index name = { .fqn = a->entries[i].fqn,
						.fqn_len = a->entries[i].fqn_len };

		require(same_name(&name, b->entries[i].fqn, b->entries[i].fqn_len) &&
			a->entries[i].is_tensor == b->entries[i].is_tensor);
		if (!a->entries[i].is_tensor)
			continue;
		require(x->n_dims == y->n_dims && x->n_chunks == y->n_chunks &&
			tensor_props_equal(&x->props, &y->props) &&
			box_equal(x->n_dims, x->size, x->size, y->size, y->size));
		for (size_t k = 0; k < x->n_chunks; k++)
			require(box_equal(x->n_dims, x->chunks[k].off, x->chunks[k].len,
					  y->chunks[k].off, y->chunks[k].len));
	}
}

/* Planners that keep no plans must do the same. Returns whether it was saved. */
static bool save_and_compare(struct save *s, const struct world *w)
{
	struct save fresh = { .system = s->system, .opt = s->opt, .wire = ARENA_INIT(1 << 28) };
	struct ckpt_err e = { 0 }, e2 = { 0 };
	bool bad = failed(save_all(s, w, &e), &e);

	fresh.opt.cache_plans = false;
	require(bad == failed(save_all(&fresh, w, &e2), &e2) && !strcmp(e.msg, e2.msg));
	require(!bad || w->is_hostile);
	if (!bad) {
		for (size_t r = 0; r < w->ranks; r++)
			require(save_plan_equal(&s->plan[r], &fresh.plan[r]));
		check_same_md(&s->md, &fresh.md);
		check_save(s, w, fresh.local);
	}
	free_save(&fresh);
	return !bad;
}

#endif
