/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole saves and loads by planners, compared with a model that asks for each element who wrote it
 * and what was loaded; also the order of calls, messages, and plans that are kept.
 */
#include "base/arena.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "box_util.h"
#include "fault.h"
#include "mesh_util.h"
#include "model/box.h"
#include "model/mesh.h"
#include "plan_util.h"
#include "rng.h"
#include "suites.h"
#include <ckptfs/ckpt_plan.h>

#include <string.h>

static struct arena arena = ARENA_INIT(1 << 28);

static const uint64_t zero[2], two[] = { 2, 2 }, four[] = { 4, 4 };

/* ---- whole saves and loads ---- */

enum { RANKS = 6, TENSORS = 6, DIMS = 3 };

/* Each element of a tensor has a value of its own. */
static uint32_t value_at(size_t tensor, size_t n, const uint64_t *v)
{
	uint32_t x = (uint32_t)tensor + 1;

	for (size_t d = 0; d < n; d++)
		x = x * 13 + (uint32_t)v[d];
	return x;
}

static bool is_empty(size_t n, const uint64_t *len)
{
	uint64_t v = 1;

	for (size_t d = 0; d < n; d++)
		v *= len[d];
	return !v;
}

/* Fills a shard with its values (fill), or checks that they are there. */
static void each_value(size_t tensor, const struct ckpt_local_tensor *t, const struct ckpt_shard *s,
		       bool fill)
{
	uint64_t v[DIMS] = { 0 }, g[DIMS];
	uint32_t *at = s->data;

	if (is_empty(t->n_dims, s->len))
		return;
	do {
		for (size_t d = 0; d < t->n_dims; d++)
			g[d] = s->off[d] + v[d];
		if (fill)
			*at = value_at(tensor, t->n_dims, g);
		REQUIRE(*at++ == value_at(tensor, t->n_dims, g));
	} while (next_element(t->n_dims, s->len, v));
}

struct world {
	size_t ranks, n; /* ranks, tensors */
	uint64_t shape[TENSORS][DIMS];
	size_t n_dims[TENSORS];
	struct ckpt_local_tensor t[RANKS][TENSORS];
	struct ckpt_state_entry entries[RANKS][TENSORS + 1];
	struct ckpt_state_dict dict[RANKS];
};

static const char *const world_names[] = { "a", "a.b", "a/b", "", "x", "layers.0.w" };

static void add_data(struct ckpt_local_tensor *t)
{
	for (size_t i = 0; i < t->n_shards; i++) {
		struct ckpt_shard *s = (struct ckpt_shard *)(uintptr_t)&t->shards[i];
		uint64_t volume;

		REQUIRE(box_volume(t->n_dims, s->len, &volume));
		s->data = arena_array(&arena, volume + 1, sizeof(uint32_t));
	}
}

/* How the ranks hold the tensors: whole, on a mesh of all of them, or rows dealt out as shards. */
static void hold_tensor(struct rng *r, struct world *w, size_t i)
{
	uint64_t mesh[2] = { w->ranks, 1 };
	struct ckpt_placement p[2] = { { 0, 0, CKPT_SPLIT_CEIL }, { 1, 0, CKPT_SPLIT_BALANCED } };
	struct ckpt_sharding s = { mesh, p, 2, 0 };
	size_t how = w->n_dims[i] && w->shape[i][0] ? rng_below(r, 3) : 0;

	for (uint64_t a = 2; a < w->ranks; a++)
		if (w->ranks % a == 0 && rng_chance(r, 50)) {
			mesh[0] = a;
			mesh[1] = w->ranks / a;
		}
	s.n = w->n_dims[i] && how == 1 ? (uint8_t)rng_below(r, 3) : 0;
	for (size_t k = 0; k < s.n; k++)
		p[k].dim = (int8_t)rng_below(r, w->n_dims[i]);
	for (size_t rank = 0; rank < w->ranks; rank++) {
		struct ckpt_local_tensor *t = &w->t[rank][i];

		REQUIRE(mesh_tensor(&s, rank, w->n_dims[i], w->shape[i], CKPT_DTYPE_I32, NULL,
				    &arena, t));
		if (how == 0)
			t->kind = CKPT_LOCAL_WHOLE;
		if (how == 2) { /* each row is a shard; row k is on rank k % ranks */
			struct ckpt_shard *rows = arena_array(&arena, 12, sizeof(*rows));

			t->kind = CKPT_LOCAL_SHARDS;
			t->n_shards = 0;
			t->shards = rows;
			for (uint64_t k = rank; k < w->shape[i][0]; k += w->ranks) {
				uint64_t *dims = arena_array(&arena, 2 * DIMS, sizeof(*dims));

				memcpy(dims + DIMS, w->shape[i], sizeof(w->shape[i]));
				dims[0] = k;
				dims[DIMS] = 1;
				rows[t->n_shards++] =
					(struct ckpt_shard){ dims, dims + DIMS, NULL };
			}
		}
		add_data(t);
	}
}

/* The tensors of `like`, or new ones, held by a random number of ranks in random ways. */
static void make_world(struct rng *r, struct world *w, const struct world *like)
{
	*w = (struct world){ .ranks = 1 + rng_below(r, RANKS), .n = 1 + rng_below(r, TENSORS) };
	if (like)
		w->n = like->n;
	for (size_t i = 0; i < w->n; i++) {
		w->n_dims[i] = like ? like->n_dims[i] : rng_below(r, DIMS + 1);
		for (size_t d = 0; d < w->n_dims[i]; d++)
			w->shape[i][d] = like ? like->shape[i][d] : rng_below(r, 9);
		hold_tensor(r, w, i);
	}
	for (size_t rank = 0; rank < w->ranks; rank++) {
		for (size_t i = 0; i < w->n; i++)
			w->entries[rank][i] =
				(struct ckpt_state_entry){ .fqn = world_names[i],
							   .fqn_len =
								   (uint32_t)strlen(world_names[i]),
							   .tensor = &w->t[rank][i] };
		w->entries[rank][w->n] = (struct ckpt_state_entry){
			.fqn = "blob", .fqn_len = 4, .bytes = { .data = "bytes", .len = 5 }
		};
		w->dict[rank] = (struct ckpt_state_dict){ w->entries[rank], w->n + 1 };
	}
}

static bool is_held(const struct ckpt_local_tensor *t, const struct ckpt_shard *s)
{
	for (size_t i = 0; i < t->n_shards; i++)
		if (box_equal(t->n_dims, t->shards[i].off, t->shards[i].len, s->off, s->len))
			return true;
	return false;
}

/* Megatron's dicts hold only main replicas: a rank drops what a lower rank has, and all ranks but 0
 * drop the bytes. */
static void drop_copies(struct world *w)
{
	for (size_t rank = w->ranks; rank-- > 1;) {
		w->dict[rank].count = w->n;
		for (size_t i = 0; i < w->n; i++) {
			struct ckpt_local_tensor *t = &w->t[rank][i];
			bool held = false;

			for (size_t k = 0; k < rank && t->n_shards == 1; k++)
				held |= is_held(&w->t[k][i], &t->shards[0]);
			if (held) {
				t->kind = CKPT_LOCAL_BOX;
				t->n_shards = 0;
			}
		}
	}
}

/* What a storage would keep: the data of every item written. */
struct stored {
	struct ckpt_meta_index index;
	const void *data;
	const uint64_t *len;
};

struct store {
	struct stored items[RANKS * TENSORS * 12];
	size_t n;
};

static const struct stored *stored_at(const struct store *s, const struct ckpt_meta_index *x)
{
	for (size_t i = 0; i < s->n; i++)
		if (meta_index_equal(&s->items[i].index, x))
			return &s->items[i];
	return NULL;
}

static void write_items(struct ckpt_save_planner *p, const struct ckpt_save_plan *plan,
			struct store *s)
{
	struct ckpt_err e = { 0 };

	for (size_t i = 0; i < plan->n_items; i++) {
		const struct ckpt_write_item *w = &plan->items[i];
		struct ckpt_data src;
		uint64_t bytes = 5;

		REQUIRE(!stored_at(s, &w->index)); /* each item is written once */
		REQUIRE(!ckpt_save_planner_get_data(p, w, &src, &e));
		if (w->type != CKPT_WRITE_BYTE_IO)
			REQUIRE(!write_item_chunk_bytes(w, &bytes, &e));
		REQUIRE(src.len == bytes && !src.read);
		s->items[s->n++] = (struct stored){ w->index, src.data, w->chunk.len };
	}
}

static const struct ckpt_meta_entry *entry_of(const struct ckpt_metadata *md, const char *fqn)
{
	for (size_t i = 0; i < md->n_entries; i++)
		if (md->entries[i].fqn_len == strlen(fqn) &&
		    !memcmp(md->entries[i].fqn, fqn, strlen(fqn)))
			return &md->entries[i];
	return NULL;
}

/* Every element of every tensor must be in exactly one chunk that was written, which is at its
 * hint's place. */
static void check_metadata(const struct world *w, const struct ckpt_metadata *md,
			   const struct store *s)
{
	REQUIRE(md->n_entries == w->n + 1);
	for (size_t i = 0; i <= w->n; i++) {
		const struct ckpt_meta_entry *m = entry_of(md, i < w->n ? world_names[i] : "blob");
		uint64_t v[DIMS] = { 0 };

		REQUIRE(m && m->is_tensor == (i < w->n));
		for (size_t c = 0; c < m->tensor.n_chunks; c++) {
			struct ckpt_meta_index x = { m->fqn, m->tensor.chunks[c].off, m->fqn_len,
						     0,	     m->tensor.n_dims,	      true };

			REQUIRE(stored_at(s, &x) && stored_at(s, &x)->index.hint == (int32_t)c);
		}
		if (!m->is_tensor || is_empty(m->tensor.n_dims, m->tensor.size))
			continue;
		do {
			size_t times = 0;

			for (size_t c = 0; c < m->tensor.n_chunks; c++) {
				const struct ckpt_chunk_meta *k = &m->tensor.chunks[c];
				bool in = true;

				for (size_t d = 0; d < m->tensor.n_dims; d++)
					in &= v[d] >= k->off[d] && v[d] < k->off[d] + k->len[d];
				times += in;
			}
			REQUIRE(times == 1);
		} while (next_element(m->tensor.n_dims, m->tensor.size, v));
	}
}

static void save_world(enum ckpt_planner_system system, const struct ckpt_save_planning *opt,
		       const struct world *w, struct ckpt_save_planner *p, struct ckpt_metadata *md,
		       struct store *s)
{
	struct ckpt_save_plan all[RANKS], parts[RANKS], plan;
	struct ckpt_err e = { 0 };

	s->n = 0;
	for (size_t r = 0; r < w->ranks; r++) {
		struct ckpt_save_planning o = *opt;

		o.rank = r;
		o.is_coordinator = !r;
		if (!p[r].ops)
			ck_assert(!ckpt_save_planner_new(system, &p[r], &e));
		ck_assert_msg(!ckpt_save_planner_configure(&p[r], &w->dict[r], &o, &e), "%s",
			      e.msg);
		ck_assert_msg(!ckpt_save_planner_local_plan(&p[r], &all[r], &e), "%s", e.msg);
	}
	ck_assert_msg(!ckpt_save_planner_global_plan(&p[0], all, w->ranks, parts, md, &e), "%s",
		      e.msg);
	for (size_t r = 0; r < w->ranks; r++) {
		ck_assert_msg(!ckpt_save_planner_finish(&p[r], &parts[r], &plan, &e), "%s", e.msg);
		write_items(&p[r], &plan, s);
	}
}

static int note_bytes(void *arg, const struct ckpt_state_entry *entry, const void *data, size_t len,
		      struct ckpt_err *e)
{
	(void)e;
	REQUIRE(entry->fqn_len == 4 && len == 5 && !memcmp(data, "bytes", 5));
	++*(int *)arg;
	return 0;
}

/* The item's box of what is stored is either copied into the view, or lent for apply to copy. */
static void read_tensor(struct rng *r, struct ckpt_load_planner *p,
			const struct ckpt_read_item *item, const struct stored *s)
{
	uint64_t stride = sizeof(uint32_t), off = 0, v[DIMS] = { 0 };
	struct ckpt_tensor_view to,
		from = { .dtype = CKPT_DTYPE_I32, .n_dims = item->n_dims, .len = item->len };
	struct ckpt_err e = { 0 };

	for (size_t d = item->n_dims; d-- > 0; stride *= s->len[d]) {
		from.stride[d] = stride;
		off += item->storage_off[d] * stride;
	}
	from.data = (char *)(uintptr_t)s->data + off;
	REQUIRE(!ckpt_load_planner_acquire_tensor(p, item, &to, &e));
	if (rng_chance(r, 50)) {
		REQUIRE(!ckpt_load_planner_apply_tensor(p, item, &from, &e));
		return;
	}
	do {
		char *dst = to.data;
		const char *src = from.data;

		for (size_t d = 0; d < item->n_dims; d++) {
			dst += v[d] * to.stride[d];
			src += v[d] * from.stride[d];
		}
		memcpy(dst, src, sizeof(uint32_t));
	} while (next_element(item->n_dims, item->len, v));
	REQUIRE(!ckpt_load_planner_apply_tensor(p, item, &to, &e));
}

static void load_world(struct rng *r, enum ckpt_planner_system system, const struct world *w,
		       const struct ckpt_metadata *md, const struct store *s)
{
	struct ckpt_err e = { 0 };

	for (size_t rank = 0; rank < w->ranks; rank++) {
		int blobs = 0;
		struct ckpt_load_planning opt = { .rank = rank,
						  .is_coordinator = !rank,
						  .take_bytes = note_bytes,
						  .arg = &blobs };
		struct ckpt_load_planner p CLEANUP(ckpt_load_planner_free) = { 0 };
		struct ckpt_load_plan plan, part;

		REQUIRE(!ckpt_load_planner_new(system, &p, &e));
		REQUIRE(!ckpt_load_planner_configure(&p, &w->dict[rank], md, &opt, &e));
		REQUIRE(!ckpt_load_planner_local_plan(&p, &plan, &e));
		REQUIRE(!ckpt_load_planner_global_plan(&p, &plan, 1, &part, &e));
		REQUIRE(!ckpt_load_planner_finish(&p, &part, &plan, &e));
		for (size_t i = 0; i < plan.n_items; i++) {
			const struct stored *from = stored_at(s, &plan.items[i].storage);

			REQUIRE(from);
			if (plan.items[i].type == CKPT_READ_TENSOR)
				read_tensor(r, &p, &plan.items[i], from);
			else
				REQUIRE(!ckpt_load_planner_apply_bytes(&p, &plan.items[i],
								       from->data, 5, &e));
		}
		REQUIRE(blobs == 1);
		for (size_t i = 0; i < w->n; i++)
			for (size_t k = 0; k < w->t[rank][i].n_shards; k++)
				each_value(i, &w->t[rank][i], &w->t[rank][i].shards[k], false);
	}
}

static void fill_world(const struct world *w)
{
	for (size_t rank = 0; rank < w->ranks; rank++)
		for (size_t i = 0; i < w->n; i++)
			for (size_t k = 0; k < w->t[rank][i].n_shards; k++)
				each_value(i, &w->t[rank][i], &w->t[rank][i].shards[k], true);
}

static void free_planners(struct ckpt_save_planner *p)
{
	for (size_t r = 0; r < RANKS; r++)
		ckpt_save_planner_free(&p[r]);
}

START_TEST(what_is_saved_on_one_mesh_is_loaded_on_another)
{
	static struct world from, to;
	static struct store s;
	struct rng r = rng_new();

	for (int round = 0; round < 120; round++) {
		struct ckpt_save_planner p[RANKS] = { 0 };
		struct ckpt_save_planning opt = { .save_to_minimum_rank = rng_chance(&r, 30),
						  .cache_plans = rng_chance(&r, 30) };
		enum ckpt_planner_system system = (enum ckpt_planner_system)rng_below(&r, 4);
		struct ckpt_metadata md;

		make_world(&r, &from, NULL);
		fill_world(&from);
		if (system == CKPT_PLANNER_MEGATRON)
			drop_copies(&from);
		save_world(system, &opt, &from, p, &md, &s);
		check_metadata(&from, &md, &s);
		make_world(&r, &to, &from);
		load_world(&r, system, &to, &md, &s);
		free_planners(p);
		arena_release(&arena);
	}
}
END_TEST

/* ---- the order of calls, and what is refused ---- */

static const uint64_t six[] = { 6 };
static int32_t six_values[] = { 1, 2, 3, 4, 5, 6 };
static const struct ckpt_shard six_shard = { zero, six, six_values };
static const struct ckpt_local_tensor six_tensor = { .kind = CKPT_LOCAL_WHOLE,
						     .n_dims = 1,
						     .props = { .dtype = CKPT_DTYPE_I32 },
						     .shape = six,
						     .shards = &six_shard,
						     .n_shards = 1 };
static const struct ckpt_state_entry six_entries[] = {
	{ .fqn = "w", .fqn_len = 1, .tensor = &six_tensor },
	{ .fqn = "b", .fqn_len = 1, .bytes = { .data = "bytes", .len = 5 } }
};
static const struct ckpt_state_dict six_dict = { six_entries, 2 };
static const struct ckpt_save_planning alone = { .is_coordinator = true };

START_TEST(calls_in_the_wrong_order_are_refused)
{
	struct ckpt_save_planner p CLEANUP(ckpt_save_planner_free) = { 0 };
	struct ckpt_load_planner l CLEANUP(ckpt_load_planner_free) = { 0 };
	struct ckpt_load_planning opt = { .take_bytes = note_bytes };
	struct ckpt_save_plan plan = { .n_items = 42 }, part;
	struct ckpt_load_plan load = { .n_items = 42 };
	struct ckpt_write_item item = whole("w", 1, six, CKPT_DTYPE_I32);
	struct ckpt_read_item read = { .type = CKPT_READ_TENSOR };
	struct ckpt_tensor_view view;
	struct ckpt_metadata md = { 0 };
	struct ckpt_data src;
	struct ckpt_err e = { 0 };

	ck_assert(!ckpt_save_planner_new(CKPT_PLANNER_DCP, &p, &e));
	ck_assert_int_eq(ckpt_save_planner_local_plan(&p, &plan, &e), -EPERM);
	ck_assert_str_eq(e.msg, "Planner not set up");
	ck_assert_int_eq(ckpt_save_planner_get_data(&p, &item, &src, &e), -EPERM);
	ck_assert_str_eq(e.msg, "Planner not set up");
	ck_assert(!ckpt_save_planner_configure(&p, &six_dict, &alone, &e));
	ck_assert_int_eq(ckpt_save_planner_global_plan(&p, &plan, 1, &part, &md, &e), -EPERM);
	ck_assert_str_eq(e.msg, "Planner has no local plan");
	ck_assert_int_eq(ckpt_save_planner_finish(&p, &plan, &part, &e), -EPERM);
	ck_assert_uint_eq(plan.n_items, 42);
	ck_assert(!ckpt_save_planner_local_plan(&p, &plan, &e));
	ck_assert_int_eq(ckpt_save_planner_get_data(&p, &item, &src, &e), -EPERM);
	ck_assert_str_eq(e.msg, "Planner has no finished plan");
	ck_assert(!ckpt_save_planner_finish(&p, &plan, &part, &e));
	ck_assert(!ckpt_save_planner_configure(&p, &six_dict, &alone, &e)); /* and from the start */
	ck_assert_int_eq(ckpt_save_planner_get_data(&p, &item, &src, &e), -EPERM);

	ck_assert(!ckpt_load_planner_new(CKPT_PLANNER_HYPERPARALLEL, &l, &e));
	ck_assert_int_eq(ckpt_load_planner_local_plan(&l, &load, &e), -EPERM);
	ck_assert_str_eq(e.msg, "Planner not configured");
	ck_assert(!ckpt_load_planner_configure(&l, &six_dict, &md, &opt, &e));
	ck_assert_int_eq(ckpt_load_planner_global_plan(&l, &load, 1, &load, &e), -EPERM);
	ck_assert_int_eq(ckpt_load_planner_finish(&l, &load, &load, &e), -EPERM);
	ck_assert_int_eq(ckpt_load_planner_acquire_tensor(&l, &read, &view, &e), -EPERM);
	ck_assert_int_eq(ckpt_load_planner_apply_tensor(&l, &read, &view, &e), -EPERM);
	ck_assert_int_eq(ckpt_load_planner_apply_bytes(&l, &read, "", 0, &e), -EPERM);
	ck_assert_str_eq(e.msg, "Planner has no finished plan");
}
END_TEST

/* A program with the header of a newer version. */
START_TEST(a_system_that_is_not_known_is_refused)
{
	const enum ckpt_planner_system next = CKPT_PLANNER_HYPERPARALLEL_B + 1;
	struct ckpt_save_planner p = { 0 };
	struct ckpt_load_planner l = { 0 };
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(ckpt_save_planner_new(next, &p, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "unknown system of planners 4");
	ck_assert_int_eq(ckpt_load_planner_new((enum ckpt_planner_system) - 1, &l, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "unknown system of planners -1");
	ck_assert(!p.ops && !l.ops);
}
END_TEST

START_TEST(names_may_not_come_twice)
{
	static const struct ckpt_state_entry twice[] = { { .fqn = "b", .fqn_len = 1 },
							 { .fqn = "b", .fqn_len = 1 } };
	static const struct ckpt_state_dict dict = { twice, 2 };
	static const char *const texts[] = { "duplicated flatten key b", "duplicated flatten key b",
					     "Duplicate flattened FQN b",
					     "Duplicate flattened FQN b" };
	struct ckpt_save_plan plan;

	for (int system = CKPT_PLANNER_DCP; system <= CKPT_PLANNER_HYPERPARALLEL_B; system++) {
		struct ckpt_save_planner p CLEANUP(ckpt_save_planner_free) = { 0 };
		struct ckpt_err e = { 0 };

		ck_assert(!ckpt_save_planner_new((enum ckpt_planner_system)system, &p, &e));
		ck_assert_int_eq(ckpt_save_planner_configure(&p, &dict, &alone, &e), -EEXIST);
		ck_assert_str_eq(e.msg, texts[system]);
		ck_assert_int_eq(ckpt_save_planner_local_plan(&p, &plan, &e), -EPERM);
	}
}
END_TEST

START_TEST(a_save_planner_refuses_what_it_does_not_hold)
{
	struct ckpt_save_planner p CLEANUP(ckpt_save_planner_free) = { 0 };
	struct ckpt_write_item item = whole("v", 1, six, CKPT_DTYPE_I32);
	const struct ckpt_shard nowhere = { zero, six, NULL };
	struct ckpt_local_tensor without = six_tensor;
	const struct ckpt_state_entry entry = { .fqn = "w", .fqn_len = 1, .tensor = &without };
	const struct ckpt_state_dict dict = { &entry, 1 };
	const struct ckpt_state_entry bytes = { .fqn = "o", .fqn_len = 1, .bytes = { .len = 5 } };
	const struct ckpt_state_dict bytes_dict = { &bytes, 1 };
	struct ckpt_save_planning opt = { .rank = 3 };
	struct ckpt_save_plan plan, part;
	struct ckpt_metadata md;
	struct ckpt_data src = { .len = 42 };
	struct ckpt_err e = { 0 };

	ck_assert(!ckpt_save_planner_new(CKPT_PLANNER_DCP, &p, &e));
	ck_assert(!ckpt_save_planner_configure(&p, &six_dict, &opt, &e));
	ck_assert(!ckpt_save_planner_local_plan(&p, &plan, &e));
	ck_assert_int_eq(ckpt_save_planner_global_plan(&p, &plan, 1, &part, &md, &e), -EPERM);
	ck_assert_str_eq(e.msg, "rank 3 makes a global plan and is not the coordinator");
	ck_assert(!ckpt_save_planner_finish(&p, &plan, &part, &e));
	ck_assert_int_eq(ckpt_save_planner_get_data(&p, &item, &src, &e), -ENOENT);
	ck_assert_str_eq(e.msg, "Key v not found in state_dict");
	item.index.fqn = "w";
	item.index.offset = six;
	ck_assert_int_eq(ckpt_save_planner_get_data(&p, &item, &src, &e), -ENOENT);
	ck_assert_str_eq(
		e.msg, "FQN: 'w' is not a ShardedTensor, can't find by offset: 'torch.Size([6])'");
	item.index.fqn = "b";
	ck_assert_int_eq(ckpt_save_planner_get_data(&p, &item, &src, &e), -EINVAL);
	item.index.fqn = "w";
	item.type = CKPT_WRITE_BYTE_IO;
	ck_assert_int_eq(ckpt_save_planner_get_data(&p, &item, &src, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "'w' is a tensor, but bytes were requested");
	ck_assert_uint_eq(src.len, 42);
	without.shards = &nowhere;
	ck_assert(!ckpt_save_planner_configure(&p, &dict, &opt, &e));
	ck_assert(!ckpt_save_planner_local_plan(&p, &plan, &e));
	ck_assert(!ckpt_save_planner_finish(&p, &plan, &part, &e));
	ck_assert_int_eq(ckpt_save_planner_get_data(&p, &plan.items[0], &src, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "'w': no data");
	ck_assert_uint_eq(src.len, 42);
	ck_assert(!ckpt_save_planner_configure(&p, &bytes_dict, &opt, &e));
	ck_assert(!ckpt_save_planner_local_plan(&p, &plan, &e));
	ck_assert(!ckpt_save_planner_finish(&p, &plan, &part, &e));
	ck_assert_int_eq(ckpt_save_planner_get_data(&p, &plan.items[0], &src, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "'o': no data");
	ck_assert_uint_eq(src.len, 42);
	opt.keep_redundancy = true;
	ck_assert_int_eq(ckpt_save_planner_configure(&p, &six_dict, &opt, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "keep_redundancy is HyperParallel's alone");
}
END_TEST

START_TEST(paths_of_the_state_dict_are_kept)
{
	static const struct ckpt_path_step steps[] = { { "m", 1, 0 }, { NULL, 0, 7 } };
	const struct ckpt_state_entry entries[] = {
		{ .fqn = "m.7", .fqn_len = 3, .path = steps, .n_steps = 2 },
		{ .fqn = "top", .fqn_len = 3 },
	};
	const struct ckpt_state_dict dict = { entries, 2 };
	struct ckpt_save_planner p CLEANUP(ckpt_save_planner_free) = { 0 };
	struct ckpt_save_plan plan, part;
	struct ckpt_metadata md;
	struct ckpt_err e = { 0 };

	ck_assert(!ckpt_save_planner_new(CKPT_PLANNER_DCP, &p, &e));
	ck_assert(!ckpt_save_planner_configure(&p, &dict, &alone, &e));
	ck_assert(!ckpt_save_planner_local_plan(&p, &plan, &e));
	ck_assert(!ckpt_save_planner_global_plan(&p, &plan, 1, &part, &md, &e));
	ck_assert_uint_eq(md.n_paths, 2);
	ck_assert_uint_eq(md.paths[0].n_steps, 2);
	ck_assert_uint_eq(md.paths[0].steps[1].position, 7);
	ck_assert_str_eq(md.paths[1].steps[0].key, "top");
	ck_assert_str_eq(md.version, "1.0.0");
}
END_TEST

/* ---- loading: texts ---- */

static const struct {
	enum ckpt_planner_system system;
	const char *fqn;
	uint8_t n_dims, is_tensor, wanted_tensor;
	const char *text;
} load_errors[] = {
	{ CKPT_PLANNER_DCP, "v", 1, 1, 1, "Missing key in checkpoint state_dict: w." },
	{ CKPT_PLANNER_HYPERPARALLEL, "v", 1, 1, 1, "Missing key in checkpoint state_dict: w." },
	{ CKPT_PLANNER_MEGATRON, "v", 1, 1, 1, "w from model not in state dict: ['a', 'v']" },
	{ CKPT_PLANNER_DCP, "w", 2, 1, 1,
	  "Size mismatch between saved torch.Size([4, 4]) and current: torch.Size([6]) for w" },
	{ CKPT_PLANNER_HYPERPARALLEL_B, "w", 1, 1, 1,
	  "Size mismatch between saved torch.Size([4]) and current: torch.Size([6]) for w" },
	{ CKPT_PLANNER_MEGATRON, "w", 1, 1, 1,
	  "Global shape mismatch for loaded (torch.Size([4])) and expected ((6,)) tensor for key "
	  "w" },
	{ CKPT_PLANNER_DCP, "w", 1, 0, 1,
	  "Invalid checkpoint metadata for w, expected TensorStorageMetadata but found "
	  "BytesStorageMetadata" },
	{ CKPT_PLANNER_DCP, "w", 1, 1, 0,
	  "Invalid checkpoint metadata for w, expected BytesStorageMetadata but found "
	  "TensorStorageMetadata" },
};

static int plan_load(enum ckpt_planner_system system, const struct ckpt_state_dict *dict,
		     const struct ckpt_metadata *md, const struct ckpt_load_planning *opt,
		     size_t *ret_items, struct ckpt_err *e)
{
	struct ckpt_load_planner p CLEANUP(ckpt_load_planner_free) = { 0 };
	struct ckpt_load_plan plan = { 0 };
	int rc = ckpt_load_planner_new(system, &p, e);

	if (!rc)
		rc = ckpt_load_planner_configure(&p, dict, md, opt, e);
	if (!rc)
		rc = ckpt_load_planner_local_plan(&p, &plan, e);
	*ret_items = plan.n_items;
	return rc;
}

START_LOOP_TEST(what_cannot_be_loaded_is_named_as_the_system_names_it, ARRAY_LEN(load_errors))
{
	const struct ckpt_chunk_meta chunk = { zero, four };
	struct ckpt_meta_entry saved[] = {
		{ .fqn = load_errors[_i].fqn,
		  .fqn_len = 1,
		  .is_tensor = load_errors[_i].is_tensor,
		  .tensor = { .n_dims = load_errors[_i].n_dims,
			      .size = four,
			      .chunks = &chunk,
			      .n_chunks = 1 } },
		{ .fqn = "a", .fqn_len = 1 },
	};
	const struct ckpt_metadata md = { .entries = saved, .n_entries = 2 };
	struct ckpt_state_entry entry = { .fqn = "w", .fqn_len = 1 };
	const struct ckpt_state_dict dict = { &entry, 1 };
	struct ckpt_load_planning opt = { .take_bytes = note_bytes };
	struct ckpt_err e = { 0 };
	size_t n;

	entry.tensor = load_errors[_i].wanted_tensor ? &six_tensor : NULL;
	ck_assert_int_lt(plan_load(load_errors[_i].system, &dict, &md, &opt, &n, &e), 0);
	ck_assert_str_eq(e.msg, load_errors[_i].text);
	opt.allow_partial_load = true; /* only a tensor that is missing may be left out */
	ck_assert_int_eq(plan_load(load_errors[_i].system, &dict, &md, &opt, &n, &e) == 0,
			 load_errors[_i].fqn[0] == 'v');
	ck_assert_uint_eq(n, 0);
}
END_TEST

START_TEST(bytes_need_somebody_to_take_them)
{
	struct ckpt_load_planning opt = { 0 };
	const struct ckpt_metadata md = { 0 };
	struct ckpt_err e = { 0 };
	size_t n;

	ck_assert_int_eq(plan_load(CKPT_PLANNER_DCP, &six_dict, &md, &opt, &n, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "'b' is bytes, but take_bytes is not set");
}
END_TEST

START_TEST(metadata_may_not_have_a_name_twice)
{
	struct ckpt_meta_entry saved[] = { { .fqn = "b", .fqn_len = 1 },
					   { .fqn = "b", .fqn_len = 1 } };
	const struct ckpt_metadata md = { .entries = saved, .n_entries = 2 };
	struct ckpt_load_planning opt = { .take_bytes = note_bytes };
	struct ckpt_err e = { 0 };
	size_t n;

	ck_assert_int_eq(plan_load(CKPT_PLANNER_DCP, &six_dict, &md, &opt, &n, &e), -ERR_CORRUPT);
	ck_assert_str_eq(e.msg, "metadata has 'b' twice");
}
END_TEST

/* The vocabulary has grown or shrunk: rows in common are read, and all others are zero. */
START_TEST(megatron_loads_what_shapes_have_in_common)
{
	static const uint64_t starts[] = { 0, 2 }, sizes[] = { 2, 4 }, saved_sizes[] = { 4, 8 };
	static int32_t stored[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };

	for (size_t i = 0; i < ARRAY_LEN(saved_sizes); i++) {
		int32_t memory[] = { 9, 9, 9, 9, 9, 9 };
		const struct ckpt_shard shards[] = { { &starts[0], &sizes[0], memory },
						     { &starts[1], &sizes[1], memory + 2 } };
		const struct ckpt_local_tensor t = { .kind = CKPT_LOCAL_SHARDS,
						     .n_dims = 1,
						     .props = { .dtype = CKPT_DTYPE_I32 },
						     .shape = six,
						     .shards = shards,
						     .n_shards = 2,
						     .allow_shape_mismatch = true };
		const struct ckpt_state_entry entry = { .fqn = "w", .fqn_len = 1, .tensor = &t };
		const struct ckpt_state_dict dict = { &entry, 1 };
		const struct ckpt_chunk_meta chunk = { zero, &saved_sizes[i] };
		struct ckpt_meta_entry m = { .fqn = "w",
					     .fqn_len = 1,
					     .is_tensor = true,
					     .tensor = { .n_dims = 1,
							 .size = &saved_sizes[i],
							 .chunks = &chunk,
							 .n_chunks = 1 } };
		const struct ckpt_metadata md = { .entries = &m, .n_entries = 1 };
		struct ckpt_load_planner p CLEANUP(ckpt_load_planner_free) = { 0 };
		struct ckpt_load_planning opt = { 0 };
		struct ckpt_load_plan plan;
		struct ckpt_tensor_view v;
		struct ckpt_err e = { 0 };

		ck_assert(!ckpt_load_planner_new(CKPT_PLANNER_MEGATRON, &p, &e));
		ck_assert(!ckpt_load_planner_configure(&p, &dict, &md, &opt, &e));
		ck_assert(!ckpt_load_planner_local_plan(&p, &plan, &e));
		ck_assert(!ckpt_load_planner_finish(&p, &plan, &plan, &e));
		for (size_t k = 0; k < plan.n_items; k++) {
			ck_assert(!ckpt_load_planner_acquire_tensor(&p, &plan.items[k], &v, &e));
			v.data = stored + plan.items[k].storage_off[0];
			ck_assert(!ckpt_load_planner_apply_tensor(&p, &plan.items[k], &v, &e));
		}
		for (int32_t k = 0; k < 6; k++)
			ck_assert_int_eq(memory[k], (uint64_t)k < saved_sizes[i] ? k + 1 : 0);
	}
}
END_TEST

START_TEST(views_that_do_not_fit_are_refused)
{
	const struct ckpt_chunk_meta chunk = { zero, six };
	struct ckpt_meta_entry m = {
		.fqn = "w",
		.fqn_len = 1,
		.is_tensor = true,
		.tensor = { .n_dims = 1, .size = six, .chunks = &chunk, .n_chunks = 1 }
	};
	const struct ckpt_metadata md = { .entries = &m, .n_entries = 1 };
	const struct ckpt_state_dict dict = { six_entries, 1 };
	struct ckpt_load_planner p CLEANUP(ckpt_load_planner_free) = { 0 };
	struct ckpt_load_planning opt = { 0 };
	struct ckpt_load_plan plan;
	struct ckpt_read_item item;
	struct ckpt_tensor_view v, other;
	int32_t memory[6];
	struct ckpt_err e = { 0 };

	ck_assert(!ckpt_load_planner_new(CKPT_PLANNER_DCP, &p, &e));
	ck_assert(!ckpt_load_planner_configure(&p, &dict, &md, &opt, &e));
	ck_assert(!ckpt_load_planner_local_plan(&p, &plan, &e));
	ck_assert(!ckpt_load_planner_finish(&p, &plan, &plan, &e));
	ck_assert_uint_eq(plan.n_items, 1);
	item = plan.items[0];
	ck_assert(!ckpt_load_planner_acquire_tensor(&p, &item, &v, &e));
	other = v;
	other.data = memory;
	other.len = four;
	ck_assert_int_eq(ckpt_load_planner_apply_tensor(&p, &item, &other, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "req w mismatch sizes torch.Size([6]) vs torch.Size([4])");
	item.dest_off = two;
	ck_assert_int_eq(ckpt_load_planner_acquire_tensor(&p, &item, &v, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "'w': (6,) at (2,) of a local chunk of (6,)");
	ck_assert_int_eq(ckpt_load_planner_apply_bytes(&p, &item, "", 0, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "'w': the read item is for something else");
	item.dest.fqn = "x";
	ck_assert_int_eq(ckpt_load_planner_acquire_tensor(&p, &item, &v, &e), -ENOENT);
	ck_assert_str_eq(e.msg, "Key x not found in state_dict");
}
END_TEST

/* ---- cached plans ---- */

START_TEST(unchanged_plans_are_not_sent_again)
{
	static struct world w;
	static struct store s;
	struct ckpt_save_planner p[RANKS] = { 0 };
	const struct ckpt_save_planning opt = { .cache_plans = true };
	struct rng r = rng_new();

	for (int round = 0; round < 40; round++) {
		struct ckpt_save_plan all[RANKS], parts[RANKS], plan;
		struct ckpt_metadata md;
		struct ckpt_err e = { 0 };
		size_t lost;

		make_world(&r, &w, NULL);
		fill_world(&w);
		save_world(CKPT_PLANNER_DCP, &opt, &w, p, &md, &s);
		save_world(CKPT_PLANNER_DCP, &opt, &w, p, &md, &s);
		check_metadata(&w, &md, &s); /* the same result, from plans that were kept */
		lost = rng_below(&r, w.ranks + 1);
		if (lost < w.ranks) /* a rank starts anew */
			ckpt_save_planner_free(&p[lost]);
		s.n = 0;
		for (size_t k = 0; k < w.ranks; k++) {
			struct ckpt_save_planning o = { .rank = k,
							.is_coordinator = !k,
							.cache_plans = true };

			if (!p[k].ops)
				REQUIRE(!ckpt_save_planner_new(CKPT_PLANNER_DCP, &p[k], &e));
			REQUIRE(!ckpt_save_planner_configure(&p[k], &w.dict[k], &o, &e));
			REQUIRE(!ckpt_save_planner_local_plan(&p[k], &all[k], &e));
			REQUIRE(all[k].unchanged == (k != lost));
			REQUIRE(!all[k].unchanged == (all[k].n_items > 0));
		}
		/* The coordinator has lost what all others keep. */
		if (lost == 0 && w.ranks > 1) {
			REQUIRE(ckpt_save_planner_global_plan(&p[0], all, w.ranks, parts, &md,
							      &e) == -EINVAL);
			ck_assert_str_eq(e.msg, "the plan of rank 1 is marked unchanged, but none "
						"was kept");
			save_world(CKPT_PLANNER_DCP, &opt, &w, p, &md, &s); /* so all send theirs */
		} else {
			REQUIRE(!ckpt_save_planner_global_plan(&p[0], all, w.ranks, parts, &md,
							       &e));
			for (size_t k = 0; k < w.ranks; k++) {
				REQUIRE(parts[k].unchanged == (k != lost));
				REQUIRE(!ckpt_save_planner_finish(&p[k], &parts[k], &plan, &e));
				write_items(&p[k], &plan, &s);
			}
		}
		check_metadata(&w, &md, &s);
		free_planners(p);
		arena_release(&arena);
	}
}
END_TEST

/* Planners live on while the state dict changes and saves break off. */
START_TEST(changed_plans_are_noticed)
{
	static struct world w;
	static struct store s;
	const struct ckpt_save_planning opt = { .cache_plans = true };
	struct ckpt_save_planner p[RANKS] = { 0 };
	struct rng r = rng_new();
	size_t ranks = 0;

	for (int round = 0; round < 100; round++) {
		struct ckpt_save_plan plan;
		struct ckpt_metadata md;
		struct ckpt_err e = { 0 };

		make_world(&r, &w, NULL);
		if (w.ranks != ranks) /* another job */
			free_planners(p);
		ranks = w.ranks;
		fill_world(&w);
		save_world(CKPT_PLANNER_DCP, &opt, &w, p, &md, &s);
		check_metadata(&w, &md, &s);
		if (rng_chance(&r, 50)) /* this rank begins a plan that is never finished */
			REQUIRE(!ckpt_save_planner_local_plan(&p[rng_below(&r, w.ranks)], &plan,
							      &e));
		arena_release(&arena);
	}
	free_planners(p);
}
END_TEST

/* Two ranks hold the same tensor; with another rule, another rank writes it. */
START_TEST(other_rules_make_other_plans)
{
	static struct world w = { .ranks = 2 };
	static struct store s;
	struct ckpt_save_planning opt = { .cache_plans = true };
	struct ckpt_save_planner p[RANKS] = { 0 };
	struct ckpt_metadata md;

	for (size_t rank = 0; rank < 2; rank++) {
		memcpy(w.entries[rank], six_entries, sizeof(six_entries));
		w.dict[rank] = (struct ckpt_state_dict){ w.entries[rank], 2 };
	}
	for (int round = 0; round < 6; round++) {
		bool lowest = round / 2 % 2;
		struct ckpt_save_plan plan;
		struct ckpt_data src;
		struct ckpt_err e = { 0 };

		opt.save_to_minimum_rank = lowest;
		save_world(CKPT_PLANNER_DCP, &opt, &w, p, &md,
			   &s); /* w is rank 0's, b then is not */
		ck_assert_uint_eq(s.n, 2);
		ck_assert_str_eq(s.items[1].index.fqn, "b");
		ck_assert(!ckpt_save_planner_configure(
			&p[1], &w.dict[1],
			&(struct ckpt_save_planning){
				.rank = 1, .cache_plans = true, .save_to_minimum_rank = lowest },
			&e));
		ck_assert(!ckpt_save_planner_local_plan(&p[1], &plan, &e));
		ck_assert(plan.unchanged);
		ck_assert(!ckpt_save_planner_finish(&p[1], &plan, &plan, &e));
		ck_assert_uint_eq(plan.n_items, lowest ? 0 : 1);
		ck_assert(lowest || !ckpt_save_planner_get_data(&p[1], &plan.items[0], &src, &e));
	}
	free_planners(p);
}
END_TEST

/* ---- memory ---- */

enum { MANY = 100000 };

START_TEST(a_plan_of_many_items_takes_few_allocations)
{
	struct ckpt_save_planner p CLEANUP(ckpt_save_planner_free) = { 0 };
	struct ckpt_shard *shards = arena_array(&arena, MANY, sizeof(*shards));
	uint64_t *offs = arena_array(&arena, MANY, sizeof(*offs)), many[] = { MANY }, calls;
	const uint64_t one[] = { 1 };
	struct ckpt_local_tensor t = { .kind = CKPT_LOCAL_SHARDS,
				       .n_dims = 1,
				       .shape = many,
				       .props = { .dtype = CKPT_DTYPE_U8 },
				       .shards = shards,
				       .n_shards = MANY };
	struct ckpt_state_entry entry = { .fqn = "w", .fqn_len = 1, .tensor = &t };
	const struct ckpt_state_dict dict = { &entry, 1 };
	struct ckpt_save_plan plan, part;
	struct ckpt_metadata md;
	struct ckpt_err e = { 0 };

	for (uint64_t i = 0; i < MANY; i++) {
		offs[i] = i;
		shards[i] = (struct ckpt_shard){ &offs[i], one, &offs[i] };
	}
	ck_assert(!ckpt_save_planner_new(CKPT_PLANNER_DCP, &p, &e));
	fault_on(FAULT_ALLOC, 0, 0);
	ck_assert(!ckpt_save_planner_configure(&p, &dict, &alone, &e));
	ck_assert(!ckpt_save_planner_local_plan(&p, &plan, &e));
	ck_assert_msg(!ckpt_save_planner_global_plan(&p, &plan, 1, &part, &md, &e), "%s", e.msg);
	ck_assert(!ckpt_save_planner_finish(&p, &part, &plan, &e));
	for (size_t i = 0; i < MANY; i++) {
		struct ckpt_data src;

		REQUIRE(!ckpt_save_planner_get_data(&p, &plan.items[i], &src, &e));
		REQUIRE(src.data == &offs[i] && src.len == 1);
	}
	calls = fault_off();
	ck_assert_uint_lt(calls, 100);
	arena_release(&arena);
}
END_TEST

/* A save and a load by two ranks, in which every allocation may fail. */
static int save_and_load(const struct ckpt_save_planning *opt, const struct world *w,
			 struct ckpt_err *e)
{
	struct ckpt_save_planner p CLEANUP(ckpt_save_planner_free) = { 0 };
	struct ckpt_load_planner l CLEANUP(ckpt_load_planner_free) = { 0 };
	int blobs = 0;
	const struct ckpt_load_planning load = { .take_bytes = note_bytes, .arg = &blobs };
	struct ckpt_save_plan all[RANKS], parts[RANKS], plan;
	struct ckpt_load_plan items;
	struct ckpt_metadata md;
	int rc = ckpt_save_planner_new(CKPT_PLANNER_DCP, &p, e);

	if (!rc)
		rc = ckpt_save_planner_configure(&p, &w->dict[0], opt, e);
	if (!rc)
		rc = ckpt_save_planner_local_plan(&p, &all[0], e);
	all[1] = all[0];
	if (!rc)
		rc = ckpt_save_planner_global_plan(&p, all, 2, parts, &md, e);
	if (!rc)
		rc = ckpt_save_planner_finish(&p, &parts[0], &plan, e);
	if (!rc)
		rc = ckpt_load_planner_new(CKPT_PLANNER_DCP, &l, e);
	if (!rc)
		rc = ckpt_load_planner_configure(&l, &w->dict[0], &md, &load, e);
	return rc ? rc : ckpt_load_planner_local_plan(&l, &items, e);
}

START_TEST(every_allocation_may_fail)
{
	struct ckpt_save_planning opt = { .is_coordinator = true };
	const uint64_t offs[] = { 0, 3, 4 }, lens[] = { 3, 1, 2 };
	const struct ckpt_shard shards[] = { { &offs[0], &lens[0], six_values },
					     { &offs[1], &lens[1], six_values },
					     { &offs[2], &lens[2], six_values } };
	const struct ckpt_local_tensor t = { .kind = CKPT_LOCAL_SHARDS,
					     .n_dims = 1,
					     .shape = six,
					     .props = { .dtype = CKPT_DTYPE_I32 },
					     .shards = shards,
					     .n_shards = 3 };
	struct world w = { .entries = { { { .fqn = "w", .fqn_len = 1, .tensor = &t },
					  six_entries[1] } } };

	w.dict[0] = (struct ckpt_state_dict){ w.entries[0], 2 };
	for (int cache = 0; cache < 2; cache++) {
		opt.cache_plans = cache;
		FAULT_LOOP(FAULT_ALLOC)
		{
			struct ckpt_err e = { 0 };
			int rc = save_and_load(&opt, &w, &e);

			fault_off();
			ck_assert_int_eq(rc, fault_hit() ? -ENOMEM : 0);
			ck_assert_msg(!rc || strstr(e.msg, "out of memory"), "%s", e.msg);
		}
	}
}
END_TEST

SUITE(planner, .seconds = 30)
