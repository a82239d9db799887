/* SPDX-License-Identifier: Apache-2.0 */
/* The load planners of the systems; they differ in error texts and in which shapes they accept. */
#include "base/arena.h"
#include "base/buf.h"
#include "base/bytes.h"
#include "base/err.h"
#include "base/text.h"
#include "model/box.h"
#include "model/dtype.h"
#include "save/checkpointable.h"
#include "save/read_items.h"
#include "save/state_index.h"
#include <ckptfs/ckpt_plan.h>

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

struct planner {
	enum ckpt_planner_system system;
	struct ckpt_load_planning opt;
	struct state_index names;
	const struct ckpt_metadata *md;
	struct idtable saved; /* the metadata's names */
	struct arena scratch;
	struct read_list list;
};

struct wanted {
	const struct ckpt_metadata *md;
	const char *fqn;
	uint32_t fqn_len;
};

static bool is_saved(const void *arg, uint32_t id)
{
	const struct wanted *w = arg;
	const struct ckpt_meta_entry *m = &w->md->entries[id];

	return bytes_equal(m->fqn, m->fqn_len, w->fqn, w->fqn_len);
}

static int index_saved(struct planner *p, const struct ckpt_metadata *md, struct ckpt_err *e)
{
	if (!idtable_init(&p->saved, md->n_entries))
		return err_set(e, ENOMEM, "%zu names: out of memory", md->n_entries);
	p->md = md;
	for (size_t i = 0; i < md->n_entries; i++) {
		struct wanted w = { md, md->entries[i].fqn, md->entries[i].fqn_len };
		uint64_t hash = XXH3_64bits(w.fqn, w.fqn_len);
		uint32_t *id = idtable_find(&p->saved, hash, is_saved, &w);

		if (*id != IDTABLE_NONE)
			return err_set(e, ERR_CORRUPT, "metadata has '%s' twice",
				       FQN_TEXT(w.fqn, w.fqn_len));
		(void)idtable_add(&p->saved, id, hash);
	}
	return 0;
}

static void forget(struct planner *p)
{
	state_index_release(&p->names);
	idtable_release(&p->saved);
	read_list_release(&p->list);
	arena_release(&p->scratch);
}

static int configure(void *self, const struct ckpt_state_dict *dict, const struct ckpt_metadata *md,
		     const struct ckpt_load_planning *opt, struct ckpt_err *e)
{
	struct planner *p = self;
	int rc;

	forget(p);
	p->opt = *opt;
	rc = state_index_init(&p->names, dict, p->system, e);
	for (size_t i = 0; !rc && i < dict->count && !opt->take_bytes; i++)
		if (!dict->entries[i].tensor)
			rc = err_set(e, EINVAL, "'%s' is bytes, but take_bytes is not set",
				     FQN_TEXT(dict->entries[i].fqn, dict->entries[i].fqn_len));
	return rc ? rc : index_saved(p, md, e);
}

/* ---- local plan ---- */

static int by_name(const void *ap, const void *bp)
{
	const struct ckpt_meta_entry *const *a = ap, *const *b = bp;
	size_t n = (*a)->fqn_len < (*b)->fqn_len ? (*a)->fqn_len : (*b)->fqn_len;
	int c = n ? memcmp((*a)->fqn, (*b)->fqn, n) : 0;

	return c ? c : (*a)->fqn_len < (*b)->fqn_len ? -1 : (*a)->fqn_len > (*b)->fqn_len;
}

/* Megatron lists all keys, in order; the message has room for the first ones. */
static int missing_in(const struct planner *p, const char *name, struct ckpt_err *e)
{
	const struct ckpt_meta_entry **list =
		calloc(p->md->n_entries + 1, sizeof(struct ckpt_meta_entry *));
	struct buf b = BUF_INIT(2 * sizeof(e->msg));

	for (size_t i = 0; list && i < p->md->n_entries; i++)
		list[i] = &p->md->entries[i];
	if (list)
		qsort(list, p->md->n_entries, sizeof(struct ckpt_meta_entry *), by_name);
	for (size_t i = 0; list && i < p->md->n_entries && b.len < sizeof(e->msg); i++)
		buf_printf(&b, "%s'%s'", i ? ", " : "", FQN_TEXT(list[i]->fqn, list[i]->fqn_len));
	(void)err_set(e, ENOENT, "%s from model not in state dict: [%s]", name,
		      b.data ? b.data : "");
	buf_release(&b);
	free(list);
	return -ENOENT;
}

static int missing(const struct planner *p, const struct ckpt_state_entry *s, struct ckpt_err *e)
{
	const char *name = FQN_TEXT(s->fqn, s->fqn_len);

	if (p->system == CKPT_PLANNER_MEGATRON)
		return missing_in(p, name, e);
	return err_set(e, ENOENT, "Missing key in checkpoint state_dict: %s.", name);
}

static bool same_shape(const struct ckpt_tensor_meta *m, const struct ckpt_local_tensor *t)
{
	return m->n_dims == t->n_dims && dims_equal(t->n_dims, m->size, t->shape);
}

static int check_shape(const struct planner *p, const struct ckpt_state_entry *s,
		       const struct ckpt_tensor_meta *m, struct ckpt_err *e)
{
	const struct ckpt_local_tensor *t = s->tensor;
	const char *name = FQN_TEXT(s->fqn, s->fqn_len);

	if (same_shape(m, t))
		return 0;
	if (p->system != CKPT_PLANNER_MEGATRON)
		return err_set(e, EINVAL, "Size mismatch between saved %s and current: %s for %s",
			       SIZE_TEXT(m->size, m->n_dims), SIZE_TEXT(t->shape, t->n_dims), name);
	if (t->allow_shape_mismatch && m->n_dims == t->n_dims)
		return 0;
	return err_set(e, EINVAL,
		       "Global shape mismatch for loaded (%s) and expected (%s) tensor for key %s",
		       SIZE_TEXT(m->size, m->n_dims), TUPLE_TEXT(t->shape, t->n_dims), name);
}

static const struct ckpt_meta_entry *find_saved(const struct planner *p,
						const struct ckpt_state_entry *s)
{
	struct wanted w = { p->md, s->fqn, s->fqn_len };
	uint32_t id = *idtable_find(&p->saved, XXH3_64bits(s->fqn, s->fqn_len), is_saved, &w);

	return id == IDTABLE_NONE ? NULL : &p->md->entries[id];
}

static int plan_entry(struct planner *p, const struct ckpt_state_entry *s, struct ckpt_err *e)
{
	const struct ckpt_meta_entry *m = find_saved(p, s);
	int rc;

	if (!m)
		return p->opt.allow_partial_load ? 0 : missing(p, s, e);
	if (m->is_tensor && !s->tensor)
		return err_set(e, EINVAL,
			       "Invalid checkpoint metadata for %s, expected BytesStorageMetadata "
			       "but found TensorStorageMetadata",
			       FQN_TEXT(s->fqn, s->fqn_len));
	if (!m->is_tensor && s->tensor)
		return err_set(e, EINVAL,
			       "Invalid checkpoint metadata for %s, expected TensorStorageMetadata "
			       "but found BytesStorageMetadata",
			       FQN_TEXT(s->fqn, s->fqn_len));
	if (!s->tensor)
		return read_list_add_bytes(&p->list, s->fqn, s->fqn_len, e);
	rc = check_shape(p, s, &m->tensor, e);
	if (rc)
		return rc;
	return read_list_add_tensor(&p->list, s->fqn, s->fqn_len, &m->tensor, s->tensor, e);
}

static int local_plan(void *self, struct ckpt_load_plan *ret, struct ckpt_err *e)
{
	struct planner *p = self;

	read_list_release(&p->list);
	arena_release(&p->scratch);
	p->list.a = &p->scratch;
	for (size_t i = 0; i < p->names.dict->count; i++) {
		int rc = plan_entry(p, &p->names.dict->entries[i], e);

		if (rc)
			return rc;
	}
	*ret = (struct ckpt_load_plan){ p->list.items, p->list.count };
	return 0;
}

/* Loading needs no coordination between ranks. */
static int global_plan(void *self, const struct ckpt_load_plan *all, size_t n,
		       struct ckpt_load_plan *ret_parts, struct ckpt_err *e)
{
	(void)self;
	(void)e;
	for (size_t i = 0; i < n; i++)
		ret_parts[i] = all[i];
	return 0;
}

static void zero_shards(const struct ckpt_local_tensor *t)
{
	for (size_t i = 0; i < t->n_shards; i++) {
		uint64_t volume = 0;

		(void)box_volume(t->n_dims, t->shards[i].len, &volume);
		if (volume && t->shards[i].data)
			memset(t->shards[i].data, 0, volume * dtype_info(t->props.dtype)->size);
	}
}

static int finish(void *self, const struct ckpt_load_plan *part, struct ckpt_load_plan *ret,
		  struct ckpt_err *e)
{
	const struct planner *p = self;

	(void)e;
	for (size_t i = 0; i < p->names.dict->count; i++) {
		const struct ckpt_state_entry *s = &p->names.dict->entries[i];
		const struct ckpt_meta_entry *m = s->tensor ? find_saved(p, s) : NULL;

		if (m && !same_shape(&m->tensor, s->tensor))
			zero_shards(s->tensor);
	}
	*ret = *part;
	return 0;
}

/* ---- data ---- */

static int acquire_tensor(void *self, const struct ckpt_read_item *item,
			  struct ckpt_tensor_view *ret, struct ckpt_err *e)
{
	const struct planner *p = self;
	const struct ckpt_local_tensor *t;
	const struct ckpt_shard *s;
	struct ckpt_tensor_view v;
	uint64_t stride, off = 0;
	size_t entry, shard;
	int rc = state_index_find(&p->names, &item->dest, &entry, e);

	if (rc)
		return rc;
	t = p->names.dict->entries[entry].tensor;
	if (!t || item->type != CKPT_READ_TENSOR || item->n_dims != t->n_dims)
		return err_set(e, EINVAL, "'%s': the read item is for something else",
			       FQN_TEXT(item->dest.fqn, item->dest.fqn_len));
	rc = local_tensor_shard(t, &item->dest, &shard, e);
	if (rc)
		return rc;
	s = &t->shards[shard];
	if (!s->data || !box_inside(t->n_dims, item->dest_off, item->len, s->len))
		return err_set(e, EINVAL, "'%s': %s at %s of a local chunk of %s%s",
			       FQN_TEXT(item->dest.fqn, item->dest.fqn_len),
			       TUPLE_TEXT(item->len, t->n_dims),
			       TUPLE_TEXT(item->dest_off, t->n_dims), TUPLE_TEXT(s->len, t->n_dims),
			       s->data ? "" : " without memory");
	v = (struct ckpt_tensor_view){ .dtype = t->props.dtype,
				       .n_dims = t->n_dims,
				       .len = item->len };
	stride = dtype_info(t->props.dtype)->size;
	for (size_t d = t->n_dims; d-- > 0; stride *= s->len[d]) {
		v.stride[d] = stride;
		off += item->dest_off[d] * stride;
	}
	v.data = (char *)s->data + off;
	*ret = v;
	return 0;
}

/* Element by element, or run by run if the last dimension is contiguous in both. */
static void copy_view(const struct ckpt_tensor_view *to, const struct ckpt_tensor_view *from)
{
	size_t n = to->n_dims, size = dtype_info(to->dtype)->size, run = size, outer = n;
	uint64_t at[CKPT_MAX_DIMS] = { 0 };

	for (size_t d = 0; d < n; d++)
		if (!to->len[d])
			return;
	while (outer && to->stride[outer - 1] == run && from->stride[outer - 1] == run)
		run *= to->len[--outer];
	for (;;) {
		const char *src = from->data;
		char *dst = to->data;
		size_t d = outer;

		for (size_t i = 0; i < outer; i++) {
			dst += at[i] * to->stride[i];
			src += at[i] * from->stride[i];
		}
		memcpy(dst, src, run);
		while (d && ++at[d - 1] == to->len[d - 1])
			at[--d] = 0;
		if (!d)
			return;
	}
}

static int apply_tensor(void *self, const struct ckpt_read_item *item,
			const struct ckpt_tensor_view *v, struct ckpt_err *e)
{
	struct ckpt_tensor_view to;
	int rc = acquire_tensor(self, item, &to, e);

	if (rc || v->data == to.data)
		return rc;
	if (v->n_dims != to.n_dims || v->dtype != to.dtype ||
	    !dims_equal(to.n_dims, v->len, to.len))
		return err_set(e, EINVAL, "req %s mismatch sizes %s vs %s",
			       FQN_TEXT(item->dest.fqn, item->dest.fqn_len),
			       SIZE_TEXT(to.len, to.n_dims), SIZE_TEXT(v->len, v->n_dims));
	copy_view(&to, v);
	return 0;
}

static int apply_bytes(void *self, const struct ckpt_read_item *item, const void *data, size_t len,
		       struct ckpt_err *e)
{
	const struct planner *p = self;
	size_t entry;
	int rc = state_index_find(&p->names, &item->dest, &entry, e);

	if (rc)
		return rc;
	if (item->type != CKPT_READ_BYTE_IO || p->names.dict->entries[entry].tensor)
		return err_set(e, EINVAL, "'%s': the read item is for something else",
			       FQN_TEXT(item->dest.fqn, item->dest.fqn_len));
	return p->opt.take_bytes(p->opt.arg, &p->names.dict->entries[entry], data, len, e);
}

static void free_planner(void *self)
{
	forget(self);
	free(self);
}

int ckpt_load_planner_new(enum ckpt_planner_system system, struct ckpt_load_planner *ret,
			  struct ckpt_err *e)
{
	static const struct ckpt_load_planner_ops ops = {
		configure,	local_plan,   global_plan, finish,
		acquire_tensor, apply_tensor, apply_bytes, free_planner,
	};
	struct planner *p;

	if ((unsigned)system > CKPT_PLANNER_HYPERPARALLEL_B) /* of a newer version's header */
		return err_set(e, EINVAL, "unknown system of planners %d", (int)system);
	p = calloc(1, sizeof(*p));
	if (!p)
		return err_set(e, ENOMEM, "load planner: out of memory");
	p->system = system;
	p->scratch = (struct arena)ARENA_INIT(SIZE_MAX);
	*ret = (struct ckpt_load_planner){ .ops = &ops, .self = p };
	return 0;
}
