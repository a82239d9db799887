/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The save planners of the systems: one procedure with four sets of rules.
 *
 * Plans are made in `scratch`, which lives from one configure to the next. With cache_plans, three
 * things outlive it, as copies that borrow nothing: the local plan last sent, the finished one, and
 * on the coordinator a generation: all ranks' plans and the resulting global plan.
 */
#include "base/arena.h"
#include "base/err.h"
#include "base/text.h"
#include "model/box.h"
#include "model/dtype.h"
#include "save/checkpointable.h"
#include "save/merge.h"
#include "save/state_index.h"
#include <ckptfs/ckpt_plan.h>

#include <stdlib.h>

struct kept_plan {
	struct arena a;
	struct ckpt_save_plan plan;
	bool is_set;
};

struct generation {
	struct arena a;
	size_t n; /* ranks; 0: none yet */
	struct ckpt_save_plan *all, *parts;
	struct ckpt_metadata md;
};

struct planner {
	enum ckpt_planner_system system;
	struct ckpt_save_planning opt;
	struct state_index names;
	struct idtable shards; /* shards of all entries, numbered in order, by fqn and offset */
	struct where {
		uint32_t entry, shard;
	} * where;
	struct arena scratch;
	struct kept_plan local, finished;
	bool is_open; /* a local plan was made, but finish has not been called */
	struct generation gen;
};

static const struct merge_rules rules[] = {
	[CKPT_PLANNER_DCP] = { .dedup = true,
			       .rule = DEDUP_DCP,
			       .validate = true,
			       .version = "1.0.0" },
	[CKPT_PLANNER_MEGATRON] = { .validate = true, .version = "1.0.0" },
	[CKPT_PLANNER_HYPERPARALLEL] = { .dedup = true,
					 .rule = DEDUP_HYPERPARALLEL,
					 .same_props = true,
					 .version = "1.0" },
	[CKPT_PLANNER_HYPERPARALLEL_B] = { .dedup = true,
					   .rule = DEDUP_HYPERPARALLEL_B,
					   .same_props = true,
					   .version = "2.0" },
};

/* ---- state kept between saves ---- */

static void drop_kept(struct kept_plan *k)
{
	arena_release(&k->a);
	k->plan = (struct ckpt_save_plan){ 0 };
	k->is_set = false;
}

static int keep_plan(struct kept_plan *k, const struct ckpt_save_plan *p, struct ckpt_err *e)
{
	struct kept_plan fresh = { .a = ARENA_INIT(SIZE_MAX), .is_set = true };
	int rc = save_plan_copy(p, &fresh.a, &fresh.plan, e);

	if (rc) {
		arena_release(&fresh.a);
		return rc;
	}
	drop_kept(k); /* p may be its own plan */
	*k = fresh;
	return 0;
}

static void drop_generation(struct generation *g)
{
	arena_release(&g->a);
	*g = (struct generation){ .a = ARENA_INIT(SIZE_MAX) };
}

/* ---- configure ---- */

struct wanted_shard {
	const struct planner *p;
	const struct ckpt_meta_index *index;
};

static struct ckpt_meta_index index_of(const struct planner *p, struct where w)
{
	const struct ckpt_state_entry *s = &p->names.dict->entries[w.entry];

	return (struct ckpt_meta_index){ .fqn = s->fqn,
					 .fqn_len = s->fqn_len,
					 .offset = s->tensor->shards[w.shard].off,
					 .n_dims = s->tensor->n_dims,
					 .has_offset = true,
					 .hint = CKPT_META_NO_HINT };
}

static bool is_shard(const void *arg, uint32_t id)
{
	const struct wanted_shard *s = arg;
	struct ckpt_meta_index x = index_of(s->p, s->p->where[id]);

	return meta_index_equal(&x, s->index);
}

/* For get_data: by then, a plan's hints are positions in other lists. */
static int index_shards(struct planner *p, struct ckpt_err *e)
{
	const struct ckpt_state_dict *dict = p->names.dict;
	size_t total = 0;

	for (size_t i = 0; i < dict->count; i++)
		total += dict->entries[i].tensor ? dict->entries[i].tensor->n_shards : 0;
	p->where = malloc((total + 1) * sizeof(*p->where));
	if (!p->where || !idtable_init(&p->shards, total))
		return err_set(e, ENOMEM, "%zu shards: out of memory", total);
	for (size_t i = 0; i < dict->count; i++) {
		const struct ckpt_local_tensor *t = dict->entries[i].tensor;

		for (size_t k = 0; t && k < t->n_shards; k++) {
			struct where w = { (uint32_t)i, (uint32_t)k };
			struct ckpt_meta_index x = index_of(p, w);
			struct wanted_shard s = { p, &x };
			uint64_t hash = meta_index_hash(&x);
			uint32_t *id = idtable_find(&p->shards, hash, is_shard, &s);

			if (*id == IDTABLE_NONE) /* keep the first of equal ones, as in torch */
				p->where[idtable_add(&p->shards, id, hash)] = w;
		}
	}
	return 0;
}

static void forget(struct planner *p)
{
	state_index_release(&p->names);
	idtable_release(&p->shards);
	free(p->where);
	p->where = NULL;
	arena_release(&p->scratch);
}

static int configure(void *self, const struct ckpt_state_dict *dict,
		     const struct ckpt_save_planning *opt, struct ckpt_err *e)
{
	struct planner *p = self;
	bool same_rules = opt->keep_redundancy == p->opt.keep_redundancy &&
			  opt->save_to_minimum_rank == p->opt.save_to_minimum_rank;
	int rc;

	forget(p);
	if (!opt->cache_plans || !same_rules) {
		drop_kept(&p->local);
		drop_kept(&p->finished);
		drop_generation(&p->gen);
	}
	if (opt->keep_redundancy && p->system < CKPT_PLANNER_HYPERPARALLEL)
		return err_set(e, EINVAL, "keep_redundancy is HyperParallel's alone");
	p->opt = *opt;
	rc = state_index_init(&p->names, dict, p->system, e);
	return rc ? rc : index_shards(p, e);
}

/* ---- local plan ---- */

static bool has_paths(enum ckpt_planner_system system)
{
	return system == CKPT_PLANNER_DCP || system == CKPT_PLANNER_HYPERPARALLEL_B;
}

/* An entry without a path was at the top level: its name is the only step. */
static bool make_paths(struct planner *p, struct ckpt_save_plan *plan)
{
	const struct ckpt_state_dict *dict = p->names.dict;
	struct ckpt_fqn_path *paths = arena_array(&p->scratch, dict->count, sizeof(*paths));
	struct ckpt_path_step *steps = arena_array(&p->scratch, dict->count, sizeof(*steps));

	if (!paths || !steps)
		return false;
	for (size_t i = 0; i < dict->count; i++) {
		const struct ckpt_state_entry *s = &dict->entries[i];

		steps[i] = (struct ckpt_path_step){ .key = s->fqn, .key_len = s->fqn_len };
		paths[i] = (struct ckpt_fqn_path){ .fqn = s->fqn,
						   .fqn_len = s->fqn_len,
						   .steps = s->path ? s->path : &steps[i],
						   .n_steps = s->path ? s->n_steps : 1 };
	}
	plan->paths = paths;
	plan->n_paths = dict->count;
	return true;
}

static int make_local(struct planner *p, struct ckpt_save_plan *ret, struct ckpt_err *e)
{
	const struct ckpt_state_dict *dict = p->names.dict;
	struct ckpt_save_plan plan = { 0 };
	struct ckpt_write_item *items;

	for (size_t i = 0; i < dict->count; i++)
		plan.n_items += dict->entries[i].tensor ? dict->entries[i].tensor->n_shards : 1;
	items = arena_array(&p->scratch, plan.n_items, sizeof(*items));
	if (!items || (has_paths(p->system) && !p->opt.no_paths && !make_paths(p, &plan)))
		return err_set(e, ENOMEM, "plan of %zu items: out of memory", plan.n_items);
	plan.items = items;
	for (size_t i = 0; i < dict->count; i++) {
		const struct ckpt_state_entry *s = &dict->entries[i];

		if (s->tensor) {
			local_tensor_write_items(s->tensor, s->fqn, s->fqn_len, items);
			items += s->tensor->n_shards;
		} else {
			*items++ = (struct ckpt_write_item){ .index = { .fqn = s->fqn,
									.fqn_len = s->fqn_len,
									.hint = CKPT_META_NO_HINT },
							     .type = CKPT_WRITE_BYTE_IO };
		}
	}
	*ret = plan;
	return 0;
}

static int local_plan(void *self, struct ckpt_save_plan *ret, struct ckpt_err *e)
{
	struct planner *p = self;
	struct ckpt_save_plan plan;
	int rc = make_local(p, &plan, e);

	if (p->is_open) { /* the coordinator's copy may not match: send the plan in full */
		drop_kept(&p->local);
		drop_kept(&p->finished);
	}
	p->is_open = true;
	if (!rc && p->opt.cache_plans && p->local.is_set &&
	    save_plan_equal(&plan, &p->local.plan)) {
		*ret = (struct ckpt_save_plan){ .unchanged = true };
		return 0;
	}
	if (!rc && p->opt.cache_plans)
		rc = keep_plan(&p->local, &plan, e);
	if (!rc)
		*ret = plan;
	return rc;
}

/* ---- global plan ---- */

static struct merge_rules rules_of(const struct planner *p)
{
	struct merge_rules r = rules[p->system];

	r.dedup = r.dedup && !p->opt.keep_redundancy;
	r.to_lowest_rank = p->opt.save_to_minimum_rank;
	return r;
}

static int not_kept(size_t rank, struct ckpt_err *e)
{
	return err_set(e, EINVAL, "the plan of rank %zu is marked unchanged, but none was kept",
		       rank);
}

/* Copies each rank's plan: the one sent now or, if unchanged, the previous one. */
static int copy_all(const struct generation *old, const struct ckpt_save_plan *all,
		    struct generation *g, struct ckpt_err *e)
{
	for (size_t i = 0; i < g->n; i++) {
		const struct ckpt_save_plan *from = &all[i];
		int rc;

		if (from->unchanged && i >= old->n)
			return not_kept(i, e);
		if (from->unchanged)
			from = &old->all[i];
		rc = save_plan_copy(from, &g->a, &g->all[i], e);
		if (rc)
			return rc;
	}
	return 0;
}

static int next_generation(struct planner *p, const struct ckpt_save_plan *all,
			   struct generation *g, struct ckpt_err *e)
{
	struct merge_rules r = rules_of(p);
	int rc;

	g->all = arena_array(&g->a, g->n, sizeof(*g->all));
	g->parts = arena_array(&g->a, g->n, sizeof(*g->parts));
	if (!g->all || !g->parts)
		return err_set(e, ENOMEM, "plans of %zu ranks: out of memory", g->n);
	rc = copy_all(&p->gen, all, g, e);
	return rc ? rc : merge_plans(g->all, g->n, &r, &g->a, g->parts, &g->md, e);
}

static int global_cached(struct planner *p, const struct ckpt_save_plan *all, size_t n,
			 struct ckpt_save_plan *ret_parts, struct ckpt_metadata *ret_md,
			 struct ckpt_err *e)
{
	struct generation g = { .a = ARENA_INIT(SIZE_MAX), .n = n };
	bool same = p->gen.n == n;
	int rc;

	for (size_t i = 0; i < n && same; i++)
		same = all[i].unchanged;
	if (same) {
		for (size_t i = 0; i < n; i++)
			ret_parts[i] = (struct ckpt_save_plan){ .unchanged = true };
		*ret_md = p->gen.md;
		return 0;
	}
	rc = next_generation(p, all, &g, e);
	if (rc) {
		arena_release(&g.a);
		return rc;
	}
	for (size_t i = 0; i < n; i++) {
		/* A rank that sent its plan has lost or changed its copy, so it gets everything. */
		bool known = i < p->gen.n && all[i].unchanged &&
			     save_plan_equal(&g.parts[i], &p->gen.parts[i]);

		ret_parts[i] = g.parts[i];
		if (known)
			ret_parts[i] = (struct ckpt_save_plan){ .unchanged = true };
	}
	drop_generation(&p->gen);
	p->gen = g;
	*ret_md = g.md;
	return 0;
}

static int global_plan(void *self, const struct ckpt_save_plan *all, size_t n,
		       struct ckpt_save_plan *ret_parts, struct ckpt_metadata *ret_md,
		       struct ckpt_err *e)
{
	struct planner *p = self;
	struct merge_rules r = rules_of(p);

	if (!p->opt.is_coordinator && p->system < CKPT_PLANNER_HYPERPARALLEL)
		return err_set(e, EPERM, "rank %zu makes a global plan and is not the coordinator",
			       p->opt.rank);
	if (p->opt.cache_plans)
		return global_cached(p, all, n, ret_parts, ret_md, e);
	for (size_t i = 0; i < n; i++)
		if (all[i].unchanged)
			return not_kept(i, e);
	return merge_plans(all, n, &r, &p->scratch, ret_parts, ret_md, e);
}

static int finish(void *self, const struct ckpt_save_plan *part, struct ckpt_save_plan *ret,
		  struct ckpt_err *e)
{
	struct planner *p = self;
	int rc = 0;

	if (part->unchanged && !p->finished.is_set)
		return not_kept(p->opt.rank, e);
	if (p->opt.cache_plans && !part->unchanged)
		rc = keep_plan(&p->finished, part, e);
	if (rc)
		return rc;
	p->is_open = false;
	*ret = p->opt.cache_plans ? p->finished.plan : *part;
	ret->storage = part->storage; /* the storage writer's data is new each time */
	ret->storage_len = part->storage_len;
	return 0;
}

/* ---- data ---- */

static int find_shard(const struct planner *p, const struct ckpt_meta_index *x, size_t *ret_entry,
		      size_t *ret_shard, struct ckpt_err *e)
{
	struct wanted_shard s = { p, x };
	uint32_t id = *idtable_find(&p->shards, meta_index_hash(x), is_shard, &s);
	int rc;

	if (id != IDTABLE_NONE) {
		*ret_entry = p->where[id].entry;
		*ret_shard = p->where[id].shard;
		return 0;
	}
	rc = state_index_find(&p->names, x, ret_entry, e);
	if (rc)
		return rc;
	if (!p->names.dict->entries[*ret_entry].tensor)
		return err_set(e, EINVAL, "'%s' is bytes, but a tensor was requested",
			       FQN_TEXT(x->fqn, x->fqn_len));
	return local_tensor_shard(p->names.dict->entries[*ret_entry].tensor, x, ret_shard, e);
}

static int get_bytes(const struct planner *p, const struct ckpt_write_item *item,
		     struct ckpt_data *ret, struct ckpt_err *e)
{
	size_t entry;
	int rc = state_index_find(&p->names, &item->index, &entry, e);

	if (rc)
		return rc;
	if (p->names.dict->entries[entry].tensor)
		return err_set(e, EINVAL, "'%s' is a tensor, but bytes were requested",
			       FQN_TEXT(item->index.fqn, item->index.fqn_len));
	*ret = p->names.dict->entries[entry].bytes;
	return 0;
}

static int get_data(void *self, const struct ckpt_write_item *item, struct ckpt_data *ret,
		    struct ckpt_err *e)
{
	const struct planner *p = self;
	const struct ckpt_local_tensor *t;
	struct ckpt_data s = { 0 };
	size_t entry, shard;
	uint64_t volume = 0;
	int rc;

	if (item->type == CKPT_WRITE_BYTE_IO)
		return get_bytes(p, item, ret, e);
	rc = find_shard(p, &item->index, &entry, &shard, e);
	if (rc)
		return rc;
	t = p->names.dict->entries[entry].tensor;
	s.data = t->shards[shard].data;
	/* The shard is inside the tensor, whose volume local_tensor_check has checked. */
	(void)box_volume(t->n_dims, t->shards[shard].len, &volume);
	s.len = volume * dtype_info(t->props.dtype)->size;
	*ret = s;
	return 0;
}

static void free_planner(void *self)
{
	struct planner *p = self;

	forget(p);
	drop_kept(&p->local);
	drop_kept(&p->finished);
	drop_generation(&p->gen);
	free(p);
}

int ckpt_save_planner_new(enum ckpt_planner_system system, struct ckpt_save_planner *ret,
			  struct ckpt_err *e)
{
	static const struct ckpt_save_planner_ops ops = { configure, local_plan, global_plan,
							  finish,    get_data,	 free_planner };
	struct planner *p;

	if ((unsigned)system > CKPT_PLANNER_HYPERPARALLEL_B) /* of a newer version's header */
		return err_set(e, EINVAL, "unknown system of planners %d", (int)system);
	p = calloc(1, sizeof(*p));
	if (!p)
		return err_set(e, ENOMEM, "save planner: out of memory");
	p->system = system;
	p->scratch = (struct arena)ARENA_INIT(SIZE_MAX);
	p->local.a = p->finished.a = p->gen.a = p->scratch;
	*ret = (struct ckpt_save_planner){ .ops = &ops, .self = p };
	return 0;
}
