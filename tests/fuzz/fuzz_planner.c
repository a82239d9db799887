/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole saves and loads by the planners: ranks with random state dicts, some of them hostile. What
 * a planner accepts is compared with a model that looks at each element; what it refuses, it
 * refuses in a sentence, and it refuses nothing that is in order. The input's bytes are the
 * choices.
 *
 * Fuzzes: save/
 */
#include "planner_saved.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* ---- loads ---- */

struct load {
	const struct save *from;
	size_t from_ranks;
	const struct ckpt_metadata *md;
	struct ckpt_load_planner p;
	bool is_hostile; /* the metadata */
};

static int take_bytes(void *arg, const struct ckpt_state_entry *x, const void *data, size_t len,
		      struct ckpt_err *e)
{
	(void)arg;
	(void)e;
	require(!x->tensor && len == x->fqn_len && !memcmp(data, x->fqn, len));
	return 0;
}

static void send_load(const struct ckpt_load_plan *p, struct arena *a, struct ckpt_load_plan *ret)
{
	struct buf b[2] = { BUF_INIT(1 << 24), BUF_INIT(1 << 24) };
	struct ckpt_err e = { 0 };

	require(!load_plan_encode(p, &b[0], &e));
	require(!load_plan_decode(b[0].data, b[0].len, a, ret, &e));
	require(!load_plan_encode(ret, &b[1], &e) && b[0].len == b[1].len &&
		!memcmp(b[0].data, b[1].data, b[0].len));
	buf_release(&b[0]);
	buf_release(&b[1]);
}

/* Writes every byte that the view claims to have; a sanitizer checks that. */
static void fill_view(const struct ckpt_tensor_view *v, const struct ckpt_meta_index *x,
		      const uint64_t *off)
{
	uint64_t at[CKPT_MAX_DIMS] = { 0 };
	size_t size = dtype_info(v->dtype)->size;

	for (size_t d = 0; d < v->n_dims; d++)
		if (!v->len[d])
			return;
	do {
		uint8_t *to = v->data;

		for (size_t d = 0; d < v->n_dims; d++)
			to += at[d] * v->stride[d];
		put_element(to, size, x, off, at);
	} while (next_element(v->n_dims, v->len, at));
}

/* Does what a reader does: copies the item's box of what was written to where the planner says. */
static void carry_out(struct choices *c, struct load *l, const struct ckpt_read_item *x)
{
	uint64_t off[CKPT_MAX_DIMS], volume;
	struct ckpt_tensor_view to, own;
	struct ckpt_err e = { 0 };

	if (x->type == CKPT_READ_BYTE_IO) {
		require(!ckpt_load_planner_apply_bytes(&l->p, x, x->dest.fqn, x->dest.fqn_len, &e));
		return;
	}
	if (failed(ckpt_load_planner_acquire_tensor(&l->p, x, &to, &e), &e))
		return;
	for (size_t d = 0; d < x->n_dims; d++) {
		off[d] = x->storage.offset[d] + x->storage_off[d];
		require(off[d] == x->dest.offset[d] + x->dest_off[d]);
	}
	fill_view(&to, &x->dest, off);
	if (!take(c, 2) || !is_small(x->n_dims, x->len, &volume) || !volume)
		return;
	own = to;
	own.data = malloc(volume * dtype_info(to.dtype)->size);
	volume = dtype_info(to.dtype)->size;
	for (size_t d = x->n_dims; d-- > 0; volume *= x->len[d])
		own.stride[d] = volume;
	require(own.data);
	fill_view(&own, &x->dest, off);
	require(!ckpt_load_planner_apply_tensor(&l->p, x, &own, &e));
	free(own.data);
}

/* A planner that gets an item that it did not make must refuse it, or return memory that exists. */
static void try_other_item(struct choices *c, struct load *l, const struct ckpt_read_item *item)
{
	uint64_t dims[3][CKPT_MAX_DIMS] = { 0 };
	struct ckpt_read_item x = *item;
	struct ckpt_tensor_view to;
	struct ckpt_err e = { 0 };

	memcpy(dims[0], x.dest_off, x.n_dims * sizeof(dims[0][0]));
	memcpy(dims[1], x.len, x.n_dims * sizeof(dims[0][0]));
	if (x.dest.has_offset)
		memcpy(dims[2], x.dest.offset, x.dest.n_dims * sizeof(dims[0][0]));
	dims[take(c, 3)][take(c, 4)] = odd_number(c);
	x.dest_off = dims[0];
	x.len = dims[1];
	x.dest.offset = x.dest.has_offset ? dims[2] : NULL;
	if (!take(c, 4))
		x.n_dims = (uint8_t)take(c, CKPT_MAX_DIMS + 1);
	if (!take(c, 4))
		x.type ^= 1;
	if (!failed(ckpt_load_planner_acquire_tensor(&l->p, &x, &to, &e), &e))
		fill_view(&to, &x.dest, dims[0]);
}

/* What is read must have been written, and lie inside of that. */
static void check_read(const struct load *l, const struct ckpt_read_item *x)
{
	const struct ckpt_meta_entry *m = entry_of(l->md, &x->storage);
	const struct ckpt_write_item *w;
	size_t rank;

	require(m && m->is_tensor == (x->type == CKPT_READ_TENSOR));
	if (!m->is_tensor)
		return;
	require(x->n_dims == m->tensor.n_dims && x->storage.hint >= 0 &&
		(size_t)x->storage.hint < m->tensor.n_chunks);
	require(box_inside(x->n_dims, m->tensor.chunks[x->storage.hint].off,
			   m->tensor.chunks[x->storage.hint].len, m->tensor.size));
	require(box_inside(x->n_dims, x->storage_off, x->len,
			   m->tensor.chunks[x->storage.hint].len));
	if (l->is_hostile)
		return;
	w = writer_of(l->from, l->from_ranks, &x->storage, &rank);
	require(w && box_inside(x->n_dims, x->storage_off, x->len, w->chunk.len));
}

/* Each element that a rank now holds must be what was saved, or untouched. */
static void check_shard(const struct ckpt_state_entry *x, const struct ckpt_shard *s,
			const struct ckpt_tensor_meta *m)
{
	struct ckpt_meta_index name = index_of(x, s->off);
	size_t n = name.n_dims, size = dtype_info(x->tensor->props.dtype)->size;
	bool zeroed = !box_equal(n, m->size, m->size, x->tensor->shape, x->tensor->shape);
	uint64_t v[CKPT_MAX_DIMS] = { 0 }, at[CKPT_MAX_DIMS], volume;
	const uint8_t *got = s->data;

	if (!is_small(n, s->len, &volume) || !volume || !got)
		return;
	do {
		uint8_t want[16];

		for (size_t d = 0; d < n; d++)
			at[d] = s->off[d] + v[d];
		memset(want, zeroed ? 0 : 0xee, sizeof(want));
		if (times_stored(m, at))
			put_value(want, size, &name, at);
		require(!memcmp(got, want, size));
		got += size;
	} while (next_element(n, s->len, v));
}

static int load_rank(struct choices *c, struct load *l, const struct world *w, size_t rank,
		     const struct ckpt_load_planning *opt, struct ckpt_err *e)
{
	struct arena wire = ARENA_INIT(1 << 26);
	struct ckpt_load_plan plan, part;
	int rc = ckpt_load_planner_configure(&l->p, &w->dict[rank], l->md, opt, e);

	if (!rc)
		rc = ckpt_load_planner_local_plan(&l->p, &plan, e);
	if (!rc) {
		send_load(&plan, &wire, &plan);
		rc = ckpt_load_planner_global_plan(&l->p, &plan, 1, &part, e);
	}
	if (!rc)
		rc = ckpt_load_planner_finish(&l->p, &part, &plan, e);
	for (size_t i = 0; !rc && i < plan.n_items; i++) {
		check_read(l, &plan.items[i]);
		if (l->is_hostile)
			try_other_item(c, l, &plan.items[i]);
		carry_out(c, l, &plan.items[i]);
	}
	arena_release(&wire);
	return rc;
}

static bool all_saved(const struct load *l, const struct ckpt_state_dict *dict)
{
	for (size_t i = 0; i < dict->count; i++) {
		struct ckpt_meta_index x = index_of(&dict->entries[i], NULL);

		if (!entry_of(l->md, &x))
			return false;
	}
	return true;
}

static void load_and_check(struct choices *c, struct load *l, const struct world *w, bool in_order)
{
	for (size_t r = 0; r < w->ranks; r++) {
		const struct ckpt_load_planning opt = { .rank = r,
							.is_coordinator = !r,
							.allow_partial_load = take(c, 2),
							.take_bytes = take_bytes };
		struct ckpt_err e = { 0 };

		require(!ckpt_load_planner_new(l->from->system, &l->p, &e));
		if (failed(load_rank(c, l, w, r, &opt, &e), &e))
			require(!in_order ||
				(!opt.allow_partial_load && !all_saved(l, &w->dict[r])));
		else
			for (size_t i = 0; i < w->dict[r].count && !l->is_hostile; i++) {
				const struct ckpt_state_entry *x = &w->entries[r][i];
				struct ckpt_meta_index name = index_of(x, NULL);
				const struct ckpt_meta_entry *m = entry_of(l->md, &name);

				for (size_t k = 0; m && x->tensor && k < x->tensor->n_shards; k++)
					check_shard(x, &x->tensor->shards[k], &m->tensor);
			}
		ckpt_load_planner_free(&l->p);
	}
}

/* ---- all of it ---- */

static void make_shapes(struct choices *c, struct shape *shapes)
{
	for (size_t i = 0; i < TENSORS; i++) {
		shapes[i] = (struct shape){ .n = (uint8_t)take(c, 4) };
		shapes[i].dtype = (uint8_t)(1 + take(c, CKPT_DTYPE_COUNT - 1));
		for (size_t d = 0; d < shapes[i].n; d++)
			shapes[i].v[d] = take(c, 9);
	}
}

/* Makes metadata as somebody else may have written it: a copy with an odd number or name. */
static struct ckpt_metadata spoil_metadata(struct choices *c, const struct ckpt_metadata *md,
					   struct arena *a)
{
	struct ckpt_metadata ret = *md;
	struct ckpt_meta_entry *m = arena_array(a, md->n_entries, sizeof(*m));
	struct ckpt_tensor_meta *t;
	struct ckpt_chunk_meta *chunks;
	uint64_t *dims[3]; /* size, off, len */
	size_t one;

	require(m);
	ret.entries = m;
	if (!md->n_entries)
		return ret;
	memcpy(m, md->entries, md->n_entries * sizeof(*m));
	m += take(c, md->n_entries);
	if (!m->is_tensor || !m->tensor.n_chunks)
		return ret;
	t = &m->tensor;
	chunks = arena_dup(a, t->chunks, t->n_chunks * sizeof(*chunks));
	one = take(c, t->n_chunks);
	require(chunks);
	for (size_t k = 0; k < 3; k++) {
		const uint64_t *from = k == 0	? t->size
				       : k == 1 ? chunks[one].off
						: chunks[one].len;

		dims[k] = arena_array(a, CKPT_MAX_DIMS, sizeof(*dims[k]));
		require(dims[k]);
		memcpy(dims[k], from, t->n_dims * sizeof(*from));
	}
	dims[take(c, 3)][take(c, 4)] = odd_number(c);
	t->size = dims[0];
	chunks[one] = (struct ckpt_chunk_meta){ dims[1], dims[2] };
	t->chunks = chunks;
	if (!take(c, 4))
		m->is_tensor = false;
	if (!take(c, 4)) {
		m->fqn = md->entries[0].fqn;
		m->fqn_len = md->entries[0].fqn_len;
	}
	return ret;
}

static void load_again(struct choices *c, const struct save *s, const struct world *saved,
		       const struct shape *shapes)
{
	static struct world w;
	struct load l = { .from = s, .from_ranks = saved->ranks, .md = &s->md };
	struct arena a = ARENA_INIT(1 << 24);
	struct ckpt_metadata md;

	make_world(c, &w, 1 + take(c, RANKS), shapes, false, false);
	load_and_check(c, &l, &w, !w.is_hostile && !saved->is_hostile);
	l.is_hostile = true;
	md = spoil_metadata(c, &s->md, &a);
	l.md = &md;
	load_and_check(c, &l, &w, false);
	arena_release(&a);
	release_world(&w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct world w[ROUNDS];
	struct choices c = { data, size };
	struct save s = { .system = (enum ckpt_planner_system)take(&c, 4),
			  .wire = ARENA_INIT(1 << 28) };
	struct shape shapes[TENSORS];
	size_t ranks = 1 + take(&c, RANKS), rounds = 1, n = 0;

	s.opt = (struct ckpt_save_planning){ .keep_redundancy = s.system > CKPT_PLANNER_MEGATRON &&
								take(&c, 2),
					     .no_paths = take(&c, 2),
					     .save_to_minimum_rank = take(&c, 2),
					     .cache_plans = take(&c, 2) };
	if (s.opt.cache_plans)
		rounds += take(&c, ROUNDS);
	make_shapes(&c, shapes);
	for (size_t i = 0; i < rounds; i++) {
		if (!i || take(&c, 2)) /* otherwise the same dicts again */
			make_world(&c, &w[n++], ranks, shapes, s.system == CKPT_PLANNER_MEGATRON,
				   true);
		if (save_and_compare(&s, &w[n - 1]))
			load_again(&c, &s, &w[n - 1], shapes);
	}
	free_save(&s);
	while (n)
		release_world(&w[--n]);
	return 0;
}
