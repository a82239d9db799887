/* SPDX-License-Identifier: Apache-2.0 */
#include "save/merge.h"

#include "base/arena.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "model/box.h"
#include "save/chunk_index.h"
#include "save/idtable.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* One name in the checkpoint, while plans are counted. */
struct entry {
	const struct ckpt_write_item *item; /* its first */
	size_t n_chunks;
};

struct merge {
	const struct ckpt_save_plan *plans;
	size_t n, total; /* plans, items */
	const struct merge_rules *rules;
	struct arena *a;
	bool *keep;	    /* for each item */
	uint32_t *entry_of; /* for each item that is kept */
	struct entry *entries;
	struct idtable names;
	struct ckpt_chunk_meta *chunks; /* of all tensors */
};

static void merge_release(struct merge *m)
{
	idtable_release(&m->names);
	free(m->keep);
	free(m->entry_of);
	free(m->entries);
}

struct same_name {
	const struct entry *entries;
	const struct ckpt_write_item *item;
};

static bool is_same_name(const void *arg, uint32_t id)
{
	const struct same_name *s = arg;
	const struct ckpt_meta_index *a = &s->entries[id].item->index, *b = &s->item->index;

	return bytes_equal(a->fqn, a->fqn_len, b->fqn, b->fqn_len);
}

static bool same_size(const struct ckpt_write_item *a, const struct ckpt_write_item *b)
{
	size_t n = a->index.n_dims;

	return n == b->index.n_dims && (!n || !memcmp(a->size, b->size, n * sizeof(*a->size)));
}

/* May w join the entry that `first` started? */
static int check_joins(const struct merge *m, const struct ckpt_write_item *first,
		       const struct ckpt_write_item *w, size_t rank, struct ckpt_err *e)
{
	const char *name = FQN_TEXT(w->index.fqn, w->index.fqn_len);
	bool bytes = w->type == CKPT_WRITE_BYTE_IO;

	if (bytes != (first->type == CKPT_WRITE_BYTE_IO))
		return err_set(e, EINVAL, "'%s' is %s, on rank %zu it is %s", name,
			       bytes ? "a tensor" : "bytes", rank, bytes ? "bytes" : "a tensor");
	if (!m->rules->same_props && w->type != CKPT_WRITE_SHARD)
		return err_set(e, EINVAL, "'%s' is not sharded, and rank %zu has one more", name,
			       rank);
	if (bytes)
		return 0;
	if (m->rules->same_props &&
	    !(tensor_props_equal(&first->props, &w->props) && same_size(first, w)))
		return err_set(e, EINVAL,
			       "The %s in different rank has different properties and size.", name);
	if (first->index.n_dims != w->index.n_dims)
		return err_set(e, EINVAL, "'%s' has %u dimensions, on rank %zu it has %u", name,
			       first->index.n_dims, rank, w->index.n_dims);
	return 0;
}

static int check_item(const struct ckpt_write_item *w, struct ckpt_err *e)
{
	const char *name = FQN_TEXT(w->index.fqn, w->index.fqn_len);

	if (w->type > CKPT_WRITE_SHARD)
		return err_set(e, EINVAL, "'%s': write item of type %u", name, w->type);
	if (w->type == CKPT_WRITE_BYTE_IO)
		return 0;
	if (w->index.n_dims > CKPT_MAX_DIMS || !w->index.has_offset ||
	    w->props.dtype >= CKPT_DTYPE_COUNT)
		return err_set(e, EINVAL, "'%s': %u dimensions, dtype %u, %s offset", name,
			       w->index.n_dims, w->props.dtype, w->index.has_offset ? "an" : "no");
	return 0;
}

static int count_item(struct merge *m, const struct ckpt_write_item *w, size_t rank, size_t k,
		      struct ckpt_err *e)
{
	struct same_name s = { m->entries, w };
	uint64_t hash = XXH3_64bits(w->index.fqn, w->index.fqn_len);
	uint32_t *id = idtable_find(&m->names, hash, is_same_name, &s);
	int rc = 0;

	if (*id == IDTABLE_NONE) {
		(void)idtable_add(&m->names, id, hash);
		m->entries[*id] = (struct entry){ .item = w };
	} else {
		rc = check_joins(m, m->entries[*id].item, w, rank, e);
	}
	m->entries[*id].n_chunks += w->type != CKPT_WRITE_BYTE_IO;
	m->entry_of[k] = *id;
	return rc;
}

/* Numbers names in order of appearance, and counts the chunks of each. */
static int count_entries(struct merge *m, struct ckpt_err *e)
{
	for (size_t p = 0, i = 0, k = 0; p < m->n; p++)
		for (size_t j = 0; j < m->plans[p].n_items; j++) {
			int rc = 0;

			if (m->keep[i++])
				rc = count_item(m, &m->plans[p].items[j], p, k++, e);
			if (rc)
				return rc;
		}
	return 0;
}

/* Makes entries with room for their chunks, which place_items fills in. */
static bool make_entries(struct merge *m, struct ckpt_metadata *md)
{
	size_t n = m->names.count, n_chunks = 0, at = 0;

	for (size_t i = 0; i < n; i++)
		n_chunks += m->entries[i].n_chunks;
	md->entries = arena_array(m->a, n, sizeof(*md->entries));
	m->chunks = arena_array(m->a, n_chunks, sizeof(*m->chunks));
	if (!md->entries || !m->chunks)
		return false;
	md->n_entries = n;
	for (size_t i = 0; i < n; i++) {
		const struct ckpt_write_item *w = m->entries[i].item;
		struct ckpt_meta_entry *t = &md->entries[i];

		t->fqn = w->index.fqn;
		t->fqn_len = w->index.fqn_len;
		t->is_tensor = w->type != CKPT_WRITE_BYTE_IO;
		if (t->is_tensor)
			t->tensor = (struct ckpt_tensor_meta){ .props = w->props,
							       .n_dims = w->index.n_dims,
							       .size = w->size,
							       .chunks = m->chunks + at };
		at += m->entries[i].n_chunks;
	}
	return true;
}

/* Copies the plans' items, each with its position among its tensor's chunks. */
static int place_items(struct merge *m, struct ckpt_metadata *md, struct ckpt_save_plan *ret,
		       struct ckpt_err *e)
{
	for (size_t p = 0, i = 0, k = 0; p < m->n; p++) {
		const struct ckpt_save_plan *plan = &m->plans[p];
		struct ckpt_write_item *items;
		size_t kept = 0;

		for (size_t j = 0; j < plan->n_items; j++)
			kept += m->keep[i + j];
		items = arena_array(m->a, kept, sizeof(*items));
		if (!items)
			return err_set(e, ENOMEM, "%zu items of rank %zu: out of memory", kept, p);
		ret[p] = *plan;
		ret[p].items = items;
		ret[p].n_items = kept;
		for (size_t j = 0; j < plan->n_items; j++) {
			struct ckpt_tensor_meta *t;

			if (!m->keep[i++])
				continue;
			*items = plan->items[j];
			t = &md->entries[m->entry_of[k++]].tensor;
			if (items->type != CKPT_WRITE_BYTE_IO) {
				items->index.hint = (int32_t)t->n_chunks;
				m->chunks[t->chunks - m->chunks + t->n_chunks++] = items->chunk;
			}
			items++;
		}
	}
	return 0;
}

/* ---- planner_data ---- */

struct same_path {
	const struct ckpt_fqn_path *list, *path;
};

static bool is_same_path(const void *arg, uint32_t id)
{
	const struct same_path *s = arg;
	const struct ckpt_fqn_path *a = &s->list[id], *b = s->path;

	return bytes_equal(a->fqn, a->fqn_len, b->fqn, b->fqn_len);
}

/* Each name once, with the path given by the first rank that has one. */
static int merge_paths(const struct merge *m, struct ckpt_metadata *md, struct ckpt_err *e)
{
	struct idtable seen CLEANUP(idtable_release) = { 0 };
	autofree struct ckpt_fqn_path *list = NULL;
	size_t total = 0;

	for (size_t p = 0; p < m->n; p++)
		total += m->plans[p].n_paths;
	if (!total)
		return 0;
	list = malloc(total * sizeof(*list));
	if (!list || !idtable_init(&seen, total))
		return err_set(e, ENOMEM, "%zu paths: out of memory", total);
	for (size_t p = 0; p < m->n; p++)
		for (size_t i = 0; i < m->plans[p].n_paths; i++) {
			const struct ckpt_fqn_path *f = &m->plans[p].paths[i];
			struct same_path s = { list, f };
			uint64_t hash = XXH3_64bits(f->fqn, f->fqn_len);
			uint32_t *id = idtable_find(&seen, hash, is_same_path, &s);

			if (*id == IDTABLE_NONE)
				list[idtable_add(&seen, id, hash)] = *f;
		}
	md->paths = arena_dup(m->a, list, seen.count * sizeof(*list));
	if (!md->paths)
		return err_set(e, ENOMEM, "%zu paths: out of memory", total);
	md->n_paths = seen.count;
	return 0;
}

/* ---- all of it ---- */

static bool shares_out(const struct merge *m)
{
	return m->rules->dedup && m->n > 1;
}

static int merge_init(struct merge *m, struct ckpt_err *e)
{
	for (size_t p = 0; p < m->n; p++)
		for (size_t i = 0; i < m->plans[p].n_items; i++, m->total++) {
			int rc = check_item(&m->plans[p].items[i], e);

			if (rc)
				return rc;
		}
	m->keep = malloc(m->total + 1);
	m->entry_of = malloc((m->total + 1) * sizeof(*m->entry_of));
	m->entries = malloc((m->total + 1) * sizeof(*m->entries));
	if (!m->keep || !m->entry_of || !m->entries || !idtable_init(&m->names, m->total))
		return err_set(e, ENOMEM, "%zu items of %zu plans: out of memory", m->total, m->n);
	memset(m->keep, true, m->total);
	if (!shares_out(m))
		return 0;
	return dedup_plans(m->plans, m->n, m->rules->rule, m->rules->to_lowest_rank, m->keep, e);
}

int merge_plans(const struct ckpt_save_plan *plans, size_t n, const struct merge_rules *rules,
		struct arena *a, struct ckpt_save_plan *ret_plans, struct ckpt_metadata *ret_md,
		struct ckpt_err *e)
{
	struct merge m CLEANUP(merge_release) = { .plans = plans, .n = n, .rules = rules, .a = a };
	struct ckpt_metadata md = { .version = rules->version };
	int rc = merge_init(&m, e);

	if (!rc)
		rc = count_entries(&m, e);
	/* Stored items are identified by their index: one would hide the other. */
	if (!rc && !shares_out(&m))
		rc = dedup_check(plans, n, e);
	if (!rc && !make_entries(&m, &md))
		rc = err_set(e, ENOMEM, "metadata of %u names: out of memory", m.names.count);
	if (!rc)
		rc = place_items(&m, &md, ret_plans, e);
	if (!rc)
		rc = merge_paths(&m, &md, e);
	if (!rc && rules->validate) {
		rc = metadata_validate(&md, n > 1, e);
		if (rc)
			rc = err_wrap(e, "Failed to validate global plan");
	}
	if (!rc)
		*ret_md = md;
	return rc;
}

/* ---- validation ---- */

struct overlap {
	uint32_t self, other;
};

static int visit_other(void *arg, uint32_t chunk, const uint64_t *chunk_off,
		       const uint64_t *chunk_len, const uint64_t *off, const uint64_t *len)
{
	struct overlap *o = arg;

	(void)chunk_off;
	(void)chunk_len;
	(void)off;
	(void)len;
	o->other = chunk;
	return chunk != o->self;
}

static int check_overlap(const struct ckpt_meta_entry *t, const struct chunk_index *x,
			 struct ckpt_err *e)
{
	uint64_t off[CKPT_MAX_DIMS], len[CKPT_MAX_DIMS];
	size_t n = t->tensor.n_dims;

	if (x->map->counts) /* the cells of a grid do not overlap */
		return 0;
	for (uint32_t i = 0; i < x->map->count; i++) {
		struct overlap o = { .self = i };
		const struct ckpt_chunk_meta *a, *b;
		int rc;

		chunkmap_box(x->map, i, off, len);
		rc = chunkmap_find(x->map, off, len, visit_other, &o);
		if (!rc)
			continue;
		if (rc < 0)
			return err_set(e, -rc, "'%s': %zu chunks: out of memory",
				       FQN_TEXT(t->fqn, t->fqn_len), t->tensor.n_chunks);
		a = &t->tensor.chunks[min_u64(x->number[i], x->number[o.other])];
		b = &t->tensor.chunks[max_u64(x->number[i], x->number[o.other])];
		return err_set(e, ERR_CORRUPT, "key:%s has overlapping chunks: %s at %s, %s at %s",
			       FQN_TEXT(t->fqn, t->fqn_len), SIZE_TEXT(a->len, n),
			       SIZE_TEXT(a->off, n), SIZE_TEXT(b->len, n), SIZE_TEXT(b->off, n));
	}
	return 0;
}

static int check_fill(const struct ckpt_meta_entry *t, struct ckpt_err *e)
{
	uint64_t want, v, got = 0;

	if (!box_volume(t->tensor.n_dims, t->tensor.size, &want))
		return err_set(e, ERR_CORRUPT, "key:%s has more than 2^63 - 1 elements",
			       FQN_TEXT(t->fqn, t->fqn_len));
	/* All are inside and do not overlap, so the sum cannot exceed the whole. */
	for (size_t i = 0; i < t->tensor.n_chunks; i++)
		if (box_volume(t->tensor.n_dims, t->tensor.chunks[i].len, &v))
			got += v;
	if (got == want)
		return 0;
	return err_set(e, ERR_CORRUPT,
		       "key:%s invalid fill tensor-volume: %" PRIu64 " chunks-volume: %" PRIu64,
		       FQN_TEXT(t->fqn, t->fqn_len), want, got);
}

/* Most tensors are one chunk and need no search structure. */
static int check_chunks(const struct ckpt_meta_entry *t, struct ckpt_err *e)
{
	struct chunk_index x CLEANUP(chunk_index_release) = { 0 };
	const struct ckpt_chunk_meta *c = t->tensor.chunks;
	int rc;

	if (t->tensor.n_chunks == 1 && box_inside(t->tensor.n_dims, c->off, c->len, t->tensor.size))
		return 0;
	rc = chunk_index_init(&x, &t->tensor, t->fqn, t->fqn_len, e);
	return rc ? rc : check_overlap(t, &x, e);
}

int metadata_validate(const struct ckpt_metadata *md, bool must_fill, struct ckpt_err *e)
{
	for (size_t i = 0; i < md->n_entries; i++) {
		const struct ckpt_meta_entry *t = &md->entries[i];
		int rc;

		if (!t->is_tensor || !t->tensor.n_dims)
			continue;
		rc = check_chunks(t, e);
		if (!rc && must_fill)
			rc = check_fill(t, e);
		if (rc)
			return rc;
	}
	return 0;
}
