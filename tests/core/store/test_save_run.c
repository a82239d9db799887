/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole saves and loads by ranks that are threads, through a storage in memory. What is loaded on
 * any mesh is what was saved on another. If one rank fails, all fail, and no rank writes after
 * that. Plans that are kept are not sent again.
 */
#include "base/arena.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "fault.h"
#include "mesh_util.h"
#include "model/mesh.h"
#include "rng.h"
#include "save/checkpointable.h"
#include "save/metadata.h"
#include "store/load_run.h"
#include "store/save_run.h"
#include "suites.h"
#include <ckptfs/ckpt_comm.h>
#include <ckptfs/ckpt_storage.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { RANKS = 16, TENSORS = 5, TIMEOUT = 120 };

/* ---- failures at every step ---- */

enum step {
	S_RESET,
	S_SET_UP,
	S_CONFIGURE,
	S_LOCAL_PLAN,
	S_PREPARE_LOCAL,
	S_FINISH_PLAN,
	S_MOVE,
	S_ITEM,	    /* get_data or acquire_tensor */
	S_METADATA, /* loading */
	N_STEPS_OF_ALL,
	S_GLOBAL_PLAN = N_STEPS_OF_ALL, /* rank 0's */
	S_PREPARE_GLOBAL,
	S_FINISH, /* saving */
	N_STEPS,
};

static const char *const step_names[N_STEPS] = {
	[S_RESET] = "reset",
	[S_SET_UP] = "set_up",
	[S_CONFIGURE] = "configure",
	[S_LOCAL_PLAN] = "local_plan",
	[S_PREPARE_LOCAL] = "prepare_local_plan",
	[S_FINISH_PLAN] = "finish the plan",
	[S_MOVE] = "move data",
	[S_ITEM] = "an item",
	[S_METADATA] = "read_metadata",
	[S_GLOBAL_PLAN] = "global_plan",
	[S_PREPARE_GLOBAL] = "prepare_global_plan",
	[S_FINISH] = "finish",
};

/* Where to fail; nowhere if `on` is false. */
struct trouble {
	bool on;
	enum step step;
	size_t rank;
};

/* ---- a storage in memory, and planners, which fail where they are told to ---- */

struct stored {
	struct ckpt_meta_index index;
	uint64_t len[2]; /* of a chunk */
	void *data;
	size_t bytes;
};

struct store {
	pthread_mutex_t lock;
	struct arena a; /* of what is stored */
	struct stored items[2000];
	size_t n;
	atomic_int moving; /* ranks that are at their data now */
	bool complete;
	struct ckpt_metadata md;
};

struct world;

struct rank {
	struct world *w;
	size_t rank;
	struct ckpt_save_planner save;
	struct ckpt_load_planner load;
	struct ckpt_write_result *results;
	int blobs;
};

struct world {
	size_t ranks, n; /* ranks, tensors */
	uint64_t shape[TENSORS][2];
	struct arena a;
	struct ckpt_state_entry entries[RANKS][TENSORS + 1];
	struct ckpt_local_tensor t[RANKS][TENSORS];
	struct ckpt_state_dict dict[RANKS];
	enum ckpt_planner_system system;
	bool cache, count; /* keep plans; count their bytes */
	int saves;	   /* one after the other */
	struct store *store;
	struct trouble trouble;
	struct ckpt_err end[RANKS];
	struct rank at[RANKS];
	size_t sent[RANKS][8]; /* bytes of plans that a rank sent, and received */
	size_t got[RANKS][8];
};

static int maybe(const struct rank *r, enum step step, struct ckpt_err *e)
{
	const struct trouble *t = &r->w->trouble;

	if (!t->on || t->step != step || t->rank != r->rank)
		return 0;
	return err_set(e, EIO, "told to fail at %s", step_names[step]);
}

static int s_id(void *self, const char *id, struct ckpt_err *e)
{
	REQUIRE(!strcmp(id, "memory")); /* this must not allocate */
	return maybe(self, S_RESET, e);
}

static int s_set_up(void *self, const struct ckpt_storage_ranks *ranks, struct ckpt_err *e)
{
	const struct rank *r = self;

	REQUIRE(ranks->rank == r->rank && ranks->size == r->w->ranks);
	return maybe(r, S_SET_UP, e);
}

static int w_local(void *self, const struct ckpt_save_plan *plan, struct ckpt_save_plan *ret,
		   struct ckpt_err *e)
{
	*ret = *plan;
	return maybe(self, S_PREPARE_LOCAL, e);
}

/* Tells each rank its number, which the rank must find in its plan. */
static int w_global(void *self, struct ckpt_save_plan *parts, size_t n, struct ckpt_err *e)
{
	static const char letters[RANKS + 1] = "abcdefghijklmnop";

	for (size_t i = 0; i < n; i++) {
		parts[i].storage = &letters[i];
		parts[i].storage_len = 1;
	}
	return maybe(self, S_PREPARE_GLOBAL, e);
}

static int keep(struct store *s, const struct ckpt_write_item *w, const struct ckpt_data *src,
		struct ckpt_err *e)
{
	struct stored *to;

	SCOPED_LOCK(&s->lock);
	to = &s->items[s->n];
	*to = (struct stored){ .index = w->index, .bytes = src->len };
	to->index.fqn = arena_dup(&s->a, w->index.fqn, w->index.fqn_len);
	to->index.offset = arena_dup(&s->a, w->index.offset ? w->index.offset : (uint64_t[2]){ 0 },
				     w->index.n_dims * sizeof(uint64_t));
	to->data = arena_dup(&s->a, src->data, src->len);
	if (!to->index.fqn || !to->index.offset || !to->data)
		return err_set(e, ENOMEM, "keep an item: out of memory");
	if (w->type != CKPT_WRITE_BYTE_IO)
		memcpy(to->len, w->chunk.len, sizeof(to->len));
	s->n++;
	return 0;
}

static int write_items(struct rank *r, const struct ckpt_save_plan *plan,
		       struct ckpt_save_planner *planner, struct ckpt_err *e)
{
	for (size_t i = 0; i < plan->n_items; i++) {
		struct ckpt_data src;
		int rc = ckpt_save_planner_get_data(planner, &plan->items[i], &src, e);

		if (rc)
			return rc;
		r->results[i] = (struct ckpt_write_result){
			.index = plan->items[i].index,
			.info = { .path = "memory", .offset = i, .length = src.len }
		};
		rc = keep(r->w->store, &plan->items[i], &src, e);
		ckpt_data_close(&src);
		if (rc)
			return rc;
	}
	return 0;
}

static int w_write(void *self, const struct ckpt_save_plan *plan, struct ckpt_save_planner *planner,
		   struct ckpt_write_results *ret, struct ckpt_err *e)
{
	struct rank *r = self;
	int rc;

	REQUIRE(plan->storage_len == 1 && *(const char *)plan->storage == (char)('a' + r->rank));
	free(r->results);
	r->results = calloc(plan->n_items + 1, sizeof(*r->results));
	if (!r->results)
		return err_set(e, ENOMEM, "results: out of memory");
	rc = maybe(r, S_MOVE, e);
	if (rc)
		return rc; /* the other ranks are writing now */
	atomic_fetch_add(&r->w->store->moving, 1);
	if (r->w->trouble.on)
		usleep(500);
	rc = write_items(r, plan, planner, e);
	atomic_fetch_sub(&r->w->store->moving, 1);
	*ret = (struct ckpt_write_results){ r->results, plan->n_items };
	return rc;
}

/* Copies the entries and chunks, as the planner's do not stay. */
static bool keep_tensor(struct store *s, struct ckpt_tensor_meta *t)
{
	struct ckpt_chunk_meta *chunks = arena_array(&s->a, t->n_chunks, sizeof(*chunks));
	bool ok = chunks != NULL;

	REQUIRE(t->n_dims == 2);
	for (size_t k = 0; ok && k < t->n_chunks; k++) {
		chunks[k].off = arena_dup(&s->a, t->chunks[k].off, 16);
		chunks[k].len = arena_dup(&s->a, t->chunks[k].len, 16);
		ok = chunks[k].off && chunks[k].len;
	}
	t->size = arena_dup(&s->a, t->size, 16);
	t->chunks = chunks;
	return ok && t->size;
}

static int keep_metadata(struct store *s, const struct ckpt_metadata *md, struct ckpt_err *e)
{
	struct ckpt_meta_entry *v = arena_dup(&s->a, md->entries, md->n_entries * sizeof(*v));
	bool ok = v != NULL;

	for (size_t i = 0; ok && i < md->n_entries; i++) {
		v[i].fqn = arena_dup(&s->a, v[i].fqn, v[i].fqn_len);
		ok = v[i].fqn && (!v[i].is_tensor || keep_tensor(s, &v[i].tensor));
	}
	if (!ok)
		return err_set(e, ENOMEM, "keep the metadata: out of memory");
	s->md = (struct ckpt_metadata){ .entries = v, .n_entries = md->n_entries };
	s->complete = true;
	return 0;
}

static int w_finish(void *self, const struct ckpt_metadata *md,
		    const struct ckpt_write_results *all, size_t n, struct ckpt_err *e)
{
	struct rank *r = self;
	size_t results = 0;
	int rc = maybe(r, S_FINISH, e);

	REQUIRE(!r->rank && n == r->w->ranks && !atomic_load(&r->w->store->moving));
	for (size_t i = 0; i < n; i++) {
		for (size_t k = 0; k < all[i].n; k++)
			REQUIRE(!strcmp(all[i].v[k].info.path, "memory") &&
				all[i].v[k].info.offset == k);
		results += all[i].n;
	}
	REQUIRE(results == r->w->store->n);
	return rc ? rc : keep_metadata(r->w->store, md, e);
}

static int r_metadata(void *self, const struct ckpt_metadata **ret, struct ckpt_err *e)
{
	const struct rank *r = self;

	*ret = &r->w->store->md;
	return maybe(r, S_METADATA, e);
}

static int r_set_up(void *self, const struct ckpt_metadata *md,
		    const struct ckpt_storage_ranks *ranks, struct ckpt_err *e)
{
	REQUIRE(md == &((struct rank *)self)->w->store->md);
	return s_set_up(self, ranks, e);
}

static int r_local(void *self, const struct ckpt_load_plan *plan, struct ckpt_load_plan *ret,
		   struct ckpt_err *e)
{
	*ret = *plan;
	return maybe(self, S_PREPARE_LOCAL, e);
}

static int r_global(void *self, struct ckpt_load_plan *parts, size_t n, struct ckpt_err *e)
{
	REQUIRE(parts && n == ((struct rank *)self)->w->ranks);
	return maybe(self, S_PREPARE_GLOBAL, e);
}

static const struct stored *find(const struct store *s, const struct ckpt_meta_index *x)
{
	for (size_t i = 0; i < s->n; i++)
		if (meta_index_equal(&s->items[i].index, x))
			return &s->items[i];
	return NULL;
}

static int read_tensor(struct ckpt_load_planner *p, const struct ckpt_read_item *x,
		       const struct stored *from, struct ckpt_err *e)
{
	struct ckpt_tensor_view v;
	int rc = ckpt_load_planner_acquire_tensor(p, x, &v, e);

	if (rc)
		return rc;
	REQUIRE(x->n_dims == 2);
	for (uint64_t i = 0; i < x->len[0]; i++)
		for (uint64_t k = 0; k < x->len[1]; k++)
			memcpy((char *)v.data + i * v.stride[0] + k * v.stride[1],
			       (uint32_t *)from->data + (x->storage_off[0] + i) * from->len[1] +
				       x->storage_off[1] + k,
			       4);
	return ckpt_load_planner_apply_tensor(p, x, &v, e);
}

static int r_read(void *self, const struct ckpt_load_plan *plan, struct ckpt_load_planner *planner,
		  struct ckpt_err *e)
{
	struct rank *r = self;
	int rc = maybe(r, S_MOVE, e);

	for (size_t i = 0; i < plan->n_items && !rc; i++) {
		const struct ckpt_read_item *x = &plan->items[i];
		const struct stored *from = find(r->w->store, &x->storage);

		REQUIRE(from);
		rc = x->type == CKPT_READ_TENSOR ? read_tensor(planner, x, from, e)
						 : ckpt_load_planner_apply_bytes(
							   planner, x, from->data, from->bytes, e);
	}
	return rc;
}

static void keep_self(void *self)
{
	(void)self;
}

static const struct ckpt_storage_writer_ops writer_ops = {
	s_id, s_id, s_set_up, w_local, w_global, w_write, w_finish, keep_self,
};
static const struct ckpt_storage_reader_ops reader_ops = {
	s_id, s_id, r_metadata, r_set_up, r_local, r_global, r_read, keep_self,
};

/* Planners of the library, which fail where they are told to. */
static int p_configure(void *self, const struct ckpt_state_dict *dict,
		       const struct ckpt_save_planning *opt, struct ckpt_err *e)
{
	struct rank *r = self;
	int rc = maybe(r, S_CONFIGURE, e);

	REQUIRE(opt->rank == r->rank && opt->is_coordinator == !r->rank);
	return rc ? rc : r->save.ops->configure(r->save.self, dict, opt, e);
}

static int p_local(void *self, struct ckpt_save_plan *ret, struct ckpt_err *e)
{
	const struct rank *r = self;
	int rc = maybe(r, S_LOCAL_PLAN, e);

	return rc ? rc : r->save.ops->local_plan(r->save.self, ret, e);
}

static int p_global(void *self, const struct ckpt_save_plan *all, size_t n,
		    struct ckpt_save_plan *parts, struct ckpt_metadata *md, struct ckpt_err *e)
{
	const struct rank *r = self;
	int rc = maybe(r, S_GLOBAL_PLAN, e);

	return rc ? rc : r->save.ops->global_plan(r->save.self, all, n, parts, md, e);
}

static int p_finish(void *self, const struct ckpt_save_plan *part, struct ckpt_save_plan *ret,
		    struct ckpt_err *e)
{
	const struct rank *r = self;
	int rc = maybe(r, S_FINISH_PLAN, e);

	return rc ? rc : r->save.ops->finish(r->save.self, part, ret, e);
}

static int p_data(void *self, const struct ckpt_write_item *item, struct ckpt_data *ret,
		  struct ckpt_err *e)
{
	const struct rank *r = self;
	int rc = maybe(r, S_ITEM, e);

	return rc ? rc : r->save.ops->get_data(r->save.self, item, ret, e);
}

static const struct ckpt_save_planner_ops save_ops = { p_configure, p_local, p_global,
						       p_finish,    p_data,  keep_self };

static int l_configure(void *self, const struct ckpt_state_dict *dict,
		       const struct ckpt_metadata *md, const struct ckpt_load_planning *opt,
		       struct ckpt_err *e)
{
	struct rank *r = self;
	int rc = maybe(r, S_CONFIGURE, e);

	REQUIRE(opt->rank == r->rank && opt->is_coordinator == !r->rank);
	return rc ? rc : r->load.ops->configure(r->load.self, dict, md, opt, e);
}

static int l_local(void *self, struct ckpt_load_plan *ret, struct ckpt_err *e)
{
	const struct rank *r = self;
	int rc = maybe(r, S_LOCAL_PLAN, e);

	return rc ? rc : r->load.ops->local_plan(r->load.self, ret, e);
}

static int l_global(void *self, const struct ckpt_load_plan *all, size_t n,
		    struct ckpt_load_plan *parts, struct ckpt_err *e)
{
	const struct rank *r = self;
	int rc = maybe(r, S_GLOBAL_PLAN, e);

	return rc ? rc : r->load.ops->global_plan(r->load.self, all, n, parts, e);
}

static int l_finish(void *self, const struct ckpt_load_plan *part, struct ckpt_load_plan *ret,
		    struct ckpt_err *e)
{
	const struct rank *r = self;
	int rc = maybe(r, S_FINISH_PLAN, e);

	return rc ? rc : r->load.ops->finish(r->load.self, part, ret, e);
}

static int l_acquire(void *self, const struct ckpt_read_item *item, struct ckpt_tensor_view *ret,
		     struct ckpt_err *e)
{
	const struct rank *r = self;
	int rc = maybe(r, S_ITEM, e);

	return rc ? rc : r->load.ops->acquire_tensor(r->load.self, item, ret, e);
}

static int l_tensor(void *self, const struct ckpt_read_item *item, const struct ckpt_tensor_view *v,
		    struct ckpt_err *e)
{
	const struct rank *r = self;

	return r->load.ops->apply_tensor(r->load.self, item, v, e);
}

static int l_bytes(void *self, const struct ckpt_read_item *item, const void *data, size_t len,
		   struct ckpt_err *e)
{
	const struct rank *r = self;

	return r->load.ops->apply_bytes(r->load.self, item, data, len, e);
}

static const struct ckpt_load_planner_ops load_ops = { l_configure, l_local,  l_global, l_finish,
						       l_acquire,   l_tensor, l_bytes,	keep_self };

/* ---- worlds: tensors of two dimensions, each on a mesh of all ranks ---- */

static uint32_t value_at(size_t tensor, uint64_t row, uint64_t col)
{
	return (uint32_t)(tensor * 10000 + row * 100 + col + 1);
}

static void each_value(size_t tensor, const struct ckpt_local_tensor *t, bool fill)
{
	const struct ckpt_shard *s = t->shards;
	uint32_t *at = s->data;

	for (uint64_t i = 0; i < s->len[0]; i++)
		for (uint64_t k = 0; k < s->len[1]; k++, at++) {
			uint32_t v = value_at(tensor, s->off[0] + i, s->off[1] + k);

			if (fill)
				*at = v;
			REQUIRE(*at == v);
		}
}

static void place(struct rng *r, struct world *w, size_t i)
{
	uint64_t mesh[2] = { w->ranks, 1 };
	struct ckpt_placement p[2] = { { 0, (int8_t)rng_below(r, 2), CKPT_SPLIT_CEIL },
				       { 1, (int8_t)rng_below(r, 2), CKPT_SPLIT_BALANCED } };
	struct ckpt_sharding s = { mesh, p, 2, (uint8_t)rng_below(r, 3) };

	for (uint64_t a = 2; a < w->ranks; a++)
		if (w->ranks % a == 0 && rng_chance(r, 50)) {
			mesh[0] = a;
			mesh[1] = w->ranks / a;
		}
	for (size_t k = 0; k < w->ranks; k++) {
		struct ckpt_local_tensor *t = &w->t[k][i];
		void *data = arena_array(&w->a, w->shape[i][0] * w->shape[i][1] + 1, 4);

		REQUIRE(data && mesh_tensor(&s, k, 2, w->shape[i], CKPT_DTYPE_I32, data, &w->a, t));
	}
}

static const char *const names[] = { "model.layers.0.w", "model.layers.0.b", "model.norm", "a",
				     "" };

/* like: a world with the same tensors, which here other ranks hold in another way. */
static void make_world(struct rng *r, struct world *w, const struct world *like, size_t ranks,
		       struct store *store)
{
	*w = (struct world){ .ranks = ranks,
			     .n = like ? like->n : 1 + rng_below(r, TENSORS),
			     .a = ARENA_INIT(1 << 26),
			     .saves = 1,
			     .store = store };
	for (size_t i = 0; i < w->n; i++) {
		for (size_t d = 0; d < 2; d++)
			w->shape[i][d] = like ? like->shape[i][d] : rng_below(r, 20);
		place(r, w, i);
	}
	for (size_t k = 0; k < ranks; k++) {
		struct ckpt_state_entry *entries = w->entries[k];

		for (size_t i = 0; i < w->n; i++)
			entries[i] =
				(struct ckpt_state_entry){ .fqn = names[i],
							   .fqn_len = (uint32_t)strlen(names[i]),
							   .tensor = &w->t[k][i] };
		entries[w->n] = (struct ckpt_state_entry){ .fqn = "blob",
							   .fqn_len = 4,
							   .bytes = { .data = "bytes", .len = 5 } };
		w->dict[k] = (struct ckpt_state_dict){ entries, w->n + 1 };
	}
}

/* Done before the ranks run, because it must succeed in tests that then run out of memory. */
static void make_planners(struct world *w)
{
	struct ckpt_err e = { 0 };

	for (size_t k = 0; k < w->ranks; k++) {
		struct rank *r = &w->at[k];

		r->w = w;
		r->rank = k;
		REQUIRE(!ckpt_save_planner_new(w->system, &r->save, &e));
		REQUIRE(!ckpt_load_planner_new(w->system, &r->load, &e));
	}
}

static void world_release(struct world *w)
{
	for (size_t k = 0; k < w->ranks; k++) {
		ckpt_save_planner_free(&w->at[k].save);
		ckpt_load_planner_free(&w->at[k].load);
		free(w->at[k].results);
	}
	arena_release(&w->a);
}

static void each_tensor(const struct world *w, bool fill)
{
	for (size_t k = 0; k < w->ranks; k++)
		for (size_t i = 0; i < w->n; i++)
			each_value(i, &w->t[k][i], fill);
}

static void store_init(struct store *s)
{
	memset(s, 0, sizeof(*s));
	REQUIRE(!pthread_mutex_init(&s->lock, NULL));
	s->a = (struct arena)ARENA_INIT(1 << 26);
}

static void store_release(struct store *s)
{
	arena_release(&s->a);
	(void)pthread_mutex_destroy(&s->lock);
}

/* ---- ranks at work ---- */

/* Stands between a rank and its communicator, and counts the bytes of plans. */
struct counter {
	const struct ckpt_comm *inner;
	size_t word; /* bytes of a meeting's word: the first that is gathered */
	size_t sent[8], got[8], n_sent, n_got;
};

static int c_gather(void *self, const void *mine, size_t len, const struct ckpt_comm_bytes *all,
		    struct ckpt_err *e)
{
	struct counter *c = self;

	if (!c->word)
		c->word = len;
	if (len != c->word && c->n_sent < 8)
		c->sent[c->n_sent++] = len;
	return c->inner->ops->gather(c->inner->self, mine, len, all, e);
}

static int c_scatter(void *self, const struct ckpt_comm_bytes *parts, void *mine, size_t len,
		     struct ckpt_err *e)
{
	struct counter *c = self;

	if (c->n_got < 8)
		c->got[c->n_got++] = len;
	return c->inner->ops->scatter(c->inner->self, parts, mine, len, e);
}

static int c_broadcast(void *self, void *data, size_t len, struct ckpt_err *e)
{
	const struct counter *c = self;

	return c->inner->ops->broadcast(c->inner->self, data, len, e);
}

static int save_some(struct world *w, struct rank *r, struct ckpt_comm *c, struct ckpt_err *e)
{
	struct ckpt_storage_writer writer CLEANUP(ckpt_storage_writer_free) = { .ops = &writer_ops,
										.self = r };
	struct ckpt_save_planner planner = { .ops = &save_ops, .self = r };
	struct save_run_args args = { .comm = c,
				      .path = "memory",
				      .dict = &w->dict[c->rank],
				      .planner = &planner,
				      .writer = &writer,
				      .options = { .rank = 77, .cache_plans = w->cache } };
	int rc = 0;

	for (int i = 0; i < w->saves && !rc; i++) {
		if (!c->rank)
			w->store->n = 0; /* nobody writes before rank 0 has sent the plans */
		rc = save_run(&args, e);
		REQUIRE(!atomic_load(&w->store->moving));
	}
	return rc;
}

static int save_counted(struct world *w, struct rank *r, struct ckpt_comm *c, struct ckpt_err *e)
{
	static const struct ckpt_comm_ops ops = { c_gather, c_scatter, c_broadcast };
	struct counter count = { .inner = c };
	struct ckpt_comm counted;
	int rc;

	REQUIRE(!ckpt_comm_init(&counted, &ops, &count, c->rank, c->size, e));
	rc = save_some(w, r, &counted, e);
	memcpy(w->sent[c->rank], count.sent, sizeof(count.sent));
	memcpy(w->got[c->rank], count.got, sizeof(count.got));
	ckpt_comm_release(&counted);
	return rc;
}

static int save_rank(void *arg, struct ckpt_comm *c, struct ckpt_err *e)
{
	struct world *w = arg;
	struct rank *r = &w->at[c->rank];
	int rc = w->count ? save_counted(w, r, c, e) : save_some(w, r, c, e);

	w->end[c->rank] = *e;
	return rc;
}

static int take_blob(void *arg, const struct ckpt_state_entry *entry, const void *data, size_t len,
		     struct ckpt_err *e)
{
	struct rank *r = arg;

	(void)e;
	REQUIRE(entry->fqn_len == 4 && len == 5 && !memcmp(data, "bytes", 5));
	r->blobs++;
	return 0;
}

static int load_rank(void *arg, struct ckpt_comm *c, struct ckpt_err *e)
{
	struct world *w = arg;
	struct rank *r = &w->at[c->rank];
	struct ckpt_storage_reader reader CLEANUP(ckpt_storage_reader_free) = { .ops = &reader_ops,
										.self = r };
	struct ckpt_load_planner planner = { .ops = &load_ops, .self = r };
	struct load_run_args args = { .comm = c,
				      .path = "memory",
				      .dict = &w->dict[c->rank],
				      .planner = &planner,
				      .reader = &reader,
				      .options = { .take_bytes = take_blob, .arg = r } };
	int rc;

	r->blobs = 0;
	rc = load_run(&args, e);
	w->end[c->rank] = *e;
	REQUIRE(rc || r->blobs == 1);
	return rc;
}

/* ---- what is saved is loaded ---- */

static void save_and_load(struct rng *r, size_t from_ranks, size_t to_ranks)
{
	static const enum ckpt_planner_system systems[] = { CKPT_PLANNER_DCP,
							    CKPT_PLANNER_HYPERPARALLEL,
							    CKPT_PLANNER_HYPERPARALLEL_B };
	static struct world from, to;
	static struct store s;
	struct ckpt_err e = { 0 };

	store_init(&s);
	make_world(r, &from, NULL, from_ranks, &s);
	from.system = systems[rng_below(r, 3)];
	from.cache = rng_chance(r, 50);
	from.saves = 1 + (int)rng_below(r, 3);
	make_planners(&from);
	each_tensor(&from, true);
	ck_assert_msg(!ckpt_comm_run_threads(from_ranks, save_rank, &from, &e), "%s", e.msg);
	ck_assert(s.complete);
	make_world(r, &to, &from, to_ranks, &s);
	to.system = from.system;
	make_planners(&to);
	ck_assert_msg(!ckpt_comm_run_threads(to_ranks, load_rank, &to, &e), "%s", e.msg);
	each_tensor(&to, false);
	world_release(&from);
	world_release(&to);
	store_release(&s);
}

START_TEST(what_ranks_save_other_ranks_load)
{
	struct rng r = rng_new();

	for (size_t n = 1; n <= RANKS; n++)
		save_and_load(&r, n, 1 + rng_below(&r, RANKS));
	for (int round = 0; round < 20; round++)
		save_and_load(&r, 1 + rng_below(&r, RANKS), 1 + rng_below(&r, RANKS));
}
END_TEST

/* ---- failures ---- */

static void check_failure(const struct world *w, int rc, const struct ckpt_err *e)
{
	char want[100];
	int n = w->ranks > 1 ? snprintf(want, sizeof(want), "rank %zu: ", w->trouble.rank) : 0;

	(void)snprintf(want + n, sizeof(want) - (size_t)n, "told to fail at %s",
		       step_names[w->trouble.step]);
	ck_assert_int_eq(rc, -EIO);
	ck_assert_str_eq(e->msg, want);
	for (size_t i = 0; i < w->ranks; i++)
		ck_assert_str_eq(w->end[i].msg, want);
}

/* A world in which every rank has something to write and to read. */
static void make_even_world(struct rng *r, struct world *w, size_t ranks, struct store *s)
{
	uint64_t mesh[] = { ranks };
	struct ckpt_placement p = { 0, 0, CKPT_SPLIT_CEIL };
	struct ckpt_sharding even = { mesh, &p, 1, 1 };

	make_world(r, w, NULL, ranks, s);
	w->shape[0][0] = ranks;
	w->shape[0][1] = 3;
	for (size_t k = 0; k < ranks; k++)
		REQUIRE(mesh_tensor(&even, k, 2, w->shape[0], CKPT_DTYPE_I32,
				    arena_array(&w->a, 4, 4), &w->a, &w->t[k][0]));
	make_planners(w);
	each_tensor(w, true);
}

static void fail_each(struct world *w, bool saves)
{
	for (enum step step = S_RESET; step < N_STEPS; step++)
		for (size_t rank = 0; rank < (step < N_STEPS_OF_ALL ? w->ranks : 1); rank++) {
			struct ckpt_err e = { 0 };
			int rc;

			if (step == (saves ? S_METADATA : S_FINISH))
				continue;
			w->trouble = (struct trouble){ true, step, rank };
			w->store->complete = w->store->complete && !saves;
			memset(w->end, 0, sizeof(w->end));
			rc = ckpt_comm_run_threads(w->ranks, saves ? save_rank : load_rank, w, &e);
			check_failure(w, rc, &e);
			if (saves)
				ck_assert(!w->store->complete);
		}
	w->trouble.on = false;
}

START_LONG_TEST(a_failure_at_any_step_of_any_rank_is_everywhere)
{
	static struct world w;
	static struct store s;
	struct rng r = rng_new();

	for (size_t n = 1; n <= 5; n++) {
		struct ckpt_err e = { 0 };

		store_init(&s);
		make_even_world(&r, &w, n, &s);
		fail_each(&w, true);
		ck_assert_msg(!ckpt_comm_run_threads(n, save_rank, &w, &e), "%s", e.msg);
		fail_each(&w, false);
		world_release(&w);
		store_release(&s);
	}
}
END_TEST

/* Once the ranks have started, all of them end with the same message. */
START_LOOP_TEST(without_memory_a_save_or_load_fails_on_all_ranks, 2)
{
	enum { N = 3 };
	static struct world w;
	static struct store s;
	struct rng r = rng_new();
	ckpt_comm_rank_fn *fn = _i ? load_rank : save_rank;
	struct ckpt_err e = { 0 };
	size_t failed = 0;

	store_init(&s);
	make_even_world(&r, &w, N, &s);
	ck_assert_msg(!ckpt_comm_run_threads(N, save_rank, &w, &e), "%s", e.msg);
	FAULT_LOOP(FAULT_ALLOC)
	{
		struct ckpt_err mine = { 0 };
		int rc;

		memset(w.end, 0, sizeof(w.end));
		rc = ckpt_comm_run_threads(N, fn, &w, &mine);
		(void)fault_off();
		REQUIRE(!rc || rc == -ENOMEM);
		for (size_t i = 0; w.end[0].code && i < N; i++) {
			ck_assert_str_eq(w.end[i].msg, mine.msg);
			failed++;
		}
	}
	ck_assert_uint_gt(failed, 10 * N);
	world_release(&w);
	store_release(&s);
}
END_TEST

/* ---- plans that are kept ---- */

START_TEST(plans_that_are_kept_are_not_sent_again)
{
	enum { SAY_UNCHANGED = 40 }; /* at most this many bytes: a header and next to nothing */
	static struct world w;
	static struct store s;
	struct rng r = rng_new();

	for (size_t n = 2; n < 6; n++) {
		struct ckpt_err e = { 0 };

		store_init(&s);
		make_even_world(&r, &w, n, &s);
		w.cache = w.count = true;
		w.saves = 3;
		ck_assert_msg(!ckpt_comm_run_threads(n, save_rank, &w, &e), "%s", e.msg);
		for (size_t i = 0; i < n; i++) {
			/* each time a plan and results; a length and a part */
			ck_assert_uint_gt(w.sent[i][0], SAY_UNCHANGED);
			ck_assert_uint_le(w.sent[i][2], SAY_UNCHANGED);
			ck_assert_uint_le(w.sent[i][4], SAY_UNCHANGED);
			ck_assert_uint_eq(w.sent[i][1], w.sent[i][3]);
			ck_assert_uint_gt(w.got[i][1], SAY_UNCHANGED);
			ck_assert_uint_le(w.got[i][3], SAY_UNCHANGED);
			ck_assert_uint_le(w.got[i][5], SAY_UNCHANGED);
		}
		world_release(&w);
		store_release(&s);
	}
}
END_TEST

SUITE(save_run, .seconds = TIMEOUT)
