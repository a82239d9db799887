/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/ckpt_reader.h"

#include "base/arena.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "ckpt/ckpt_internal.h"
#include "codec/cast.h"
#include "model/box.h"
#include "model/chunkmap.h"
#include "read/fetch.h"
#include "read/tensor_read.h"
#include "tree/view.h"
#include <ckptfs/ckpt_plan.h>
#include <ckptfs/ckpt_storage.h>

#include <stdlib.h>
#include <string.h>

#define MAX_OBJECT ((uint64_t)1 << 30) /* bytes of an object, which is read as a whole */
#define MAX_ARENA  ((size_t)16 << 30)

/* The tensor whose items are being read. */
struct at_hand {
	struct tensor_info t;
	struct ckpt_file *whole; /* avoids looking up its chunks for every item */
	uint64_t number;
};

struct reader {
	struct ckpt_opts opts;
	struct arena words; /* storage that opts points to */
	struct ckpt *c;	    /* NULL until reset */
	struct at_hand hand;
	struct arena arena;
	struct ckpt_metadata md;
};

/* ---- metadata ---- */

static int out_of_memory(const char *fqn, size_t len, struct ckpt_err *e)
{
	char shown[120];

	return err_set(e, ENOMEM, "'%s': out of memory", text_show(fqn, len, shown, sizeof(shown)));
}

/* Describes the whole tensor as one chunk, for planners, if it is not read chunk by chunk. */
static int one_chunk(const struct tensor_info *t, struct arena *a, struct ckpt_tensor_meta *ret,
		     struct ckpt_err *e)
{
	uint64_t *off = arena_array(a, t->n_dims, sizeof(*off));
	struct ckpt_chunk_meta *chunk = arena_array(a, 1, sizeof(*chunk));

	if (!off || !chunk)
		return out_of_memory(t->fqn, t->fqn_len, e);
	*chunk = (struct ckpt_chunk_meta){ off, t->shape };
	ret->chunks = chunk;
	ret->n_chunks = 1;
	return 0;
}

static int stored_chunks(struct engine *eng, const struct tensor_info *t, struct arena *a,
			 struct ckpt_tensor_meta *ret, struct ckpt_err *e)
{
	const struct chunkmap *m;
	struct otensor *o;
	struct ckpt_chunk_meta *chunks;
	uint64_t *numbers;
	size_t n = t->n_dims;
	int rc = otensor_map(eng->fetch, t->sources[0], &o, &m, e);

	if (rc)
		return rc;
	chunks = arena_array(a, m->count, sizeof(*chunks));
	numbers = arena_array(a, m->count, 2 * n * sizeof(*numbers));
	for (uint32_t i = 0; chunks && numbers && i < m->count; i++) {
		uint64_t *box = numbers + i * 2 * n;

		chunkmap_box(m, i, box, box + n);
		chunks[i] = (struct ckpt_chunk_meta){ box, box + n };
	}
	ret->chunks = chunks;
	ret->n_chunks = m->count;
	otensor_close(eng->fetch, o);
	return chunks && numbers ? 0 : out_of_memory(t->fqn, t->fqn_len, e);
}

typedef size_t path_fn(const struct ckpt *c, uint64_t i, struct ckpt_step *ret, size_t cap);

static int path_of(const struct ckpt *c, uint64_t i, path_fn *get,
		   const struct ckpt_meta_entry *entry, struct arena *a, struct ckpt_fqn_path *ret,
		   struct ckpt_err *e)
{
	size_t n = get(c, i, NULL, 0);
	autofree struct ckpt_step *from = calloc(n + 1, sizeof(*from));
	struct ckpt_path_step *to = arena_array(a, n, sizeof(*to));

	if (!from || !to)
		return out_of_memory(entry->fqn, entry->fqn_len, e);
	(void)get(c, i, from, n);
	for (size_t k = 0; k < n; k++) {
		if (from[k].is_position) {
			to[k].position = from[k].position;
		} else {
			to[k].key = from[k].text;
			to[k].key_len = (uint32_t)from[k].len;
		}
	}
	*ret = (struct ckpt_fqn_path){ entry->fqn, to, entry->fqn_len, (uint32_t)n };
	return 0;
}

int ckpt_reader_tensor(struct ckpt *c, uint64_t i, struct arena *a, struct ckpt_meta_entry *ret,
		       struct ckpt_fqn_path *ret_path, struct ckpt_err *e)
{
	struct tensor_info t;
	struct ckpt_meta_entry m;
	int rc;

	view_tensor(c->engine->view, i, &t);
	m = (struct ckpt_meta_entry){ .fqn = t.fqn,
				      .fqn_len = (uint32_t)t.fqn_len,
				      .is_tensor = true,
				      .tensor = { .props = { .dtype = (uint8_t)t.dtype },
						  .n_dims = (uint8_t)t.n_dims,
						  .size = t.shape } };
	rc = t.n_sources == 1 && !ckpt_fault_of(c->engine, &t)
		     ? stored_chunks(c->engine, &t, a, &m.tensor, e)
		     : one_chunk(&t, a, &m.tensor, e);
	if (!rc)
		rc = path_of(c, i, ckpt_tensor_path, &m, a, ret_path, e);
	if (!rc)
		*ret = m;
	return rc;
}

int ckpt_reader_object(struct ckpt *c, uint64_t i, struct arena *a, struct ckpt_meta_entry *ret,
		       struct ckpt_fqn_path *ret_path, struct ckpt_err *e)
{
	const char *fqn;
	size_t len;
	struct ckpt_meta_entry m;
	int rc;

	(void)view_object(c->engine->view, i, &fqn, &len);
	m = (struct ckpt_meta_entry){ .fqn = fqn, .fqn_len = (uint32_t)len };
	rc = path_of(c, i, ckpt_object_path, &m, a, ret_path, e);
	if (!rc)
		*ret = m;
	return rc;
}

static int read_metadata(void *self, const struct ckpt_metadata **ret, struct ckpt_err *e)
{
	struct reader *r = self;
	size_t tensors = view_tensors(r->c->engine->view),
	       n = tensors + view_objects(r->c->engine->view);
	struct ckpt_meta_entry *entries = arena_array(&r->arena, n, sizeof(*entries));
	struct ckpt_fqn_path *paths = arena_array(&r->arena, n, sizeof(*paths));
	size_t n_paths = 0;

	if (!entries || !paths)
		return err_set(e, ENOMEM, "metadata of %zu names: out of memory", n);
	for (size_t i = 0; i < n; i++) {
		int rc = i < tensors ? ckpt_reader_tensor(r->c, i, &r->arena, &entries[i],
							  &paths[n_paths], e)
				     : ckpt_reader_object(r->c, i - tensors, &r->arena, &entries[i],
							  &paths[n_paths], e);

		if (rc)
			return rc;
		n_paths += paths[n_paths].n_steps > 0;
	}
	r->md = (struct ckpt_metadata){
		.entries = entries, .n_entries = n, .paths = paths, .n_paths = n_paths
	};
	*ret = &r->md;
	return 0;
}

/* ---- choosing the checkpoint ---- */

static int validate(void *self, const char *id, struct ckpt_err *e)
{
	(void)self;
	return ckpt_probe(id, e);
}

static void forget(struct reader *r)
{
	arena_release(&r->arena);
	ckpt_file_close(r->hand.whole);
	r->hand.whole = NULL;
	ckpt_close(r->c);
	r->c = NULL;
}

static int reset(void *self, const char *id, struct ckpt_err *e)
{
	struct reader *r = self;
	struct ckpt *c;
	int rc;

	forget(r);
	if (!id)
		return err_set(e, EINVAL, "no checkpoint was named");
	rc = ckpt_open_with(id, &r->opts, &c, e);
	if (rc)
		return rc;
	if (!ckpt_engine(c, e)) { /* opts.runs allows opening one */
		rc = err_wrap(e, "'%s'", c->root);
		ckpt_close(c);
		return rc;
	}
	r->c = c;
	return 0;
}

/* ---- plans: each rank reads its own items ---- */

static int set_up(void *self, const struct ckpt_metadata *md,
		  const struct ckpt_storage_ranks *ranks, struct ckpt_err *e)
{
	(void)self;
	(void)md;
	(void)ranks;
	(void)e;
	return 0;
}

static int local_plan(void *self, const struct ckpt_load_plan *plan, struct ckpt_load_plan *ret,
		      struct ckpt_err *e)
{
	(void)self;
	(void)e;
	*ret = *plan;
	return 0;
}

static int global_plan(void *self, struct ckpt_load_plan *parts, size_t n, struct ckpt_err *e)
{
	(void)self;
	(void)parts;
	(void)n;
	(void)e;
	return 0;
}

/* ---- tensors ---- */

static bool is_at_hand(const struct at_hand *h, const struct ckpt_meta_index *x)
{
	return h->whole && h->t.fqn_len == x->fqn_len && !memcmp(h->t.fqn, x->fqn, x->fqn_len);
}

static int take_in_hand(struct ckpt *c, const struct ckpt_meta_index *x, struct at_hand *h,
			struct ckpt_err *e)
{
	uint64_t zeros[CKPT_MAX_DIMS] = { 0 };
	int64_t i;

	if (is_at_hand(h, x))
		return 0;
	ckpt_file_close(h->whole);
	h->whole = NULL;
	i = ckpt_tensor_find(c, x->fqn, x->fqn_len);
	if (i < 0)
		return err_set(e, ENOENT, "the checkpoint has no such tensor");
	h->number = (uint64_t)i;
	view_tensor(c->engine->view, h->number, &h->t);
	return ckpt_box_open(c, h->number, zeros, h->t.shape, &h->whole, e);
}

/* The offset of the item's box in the whole tensor. */
static int box_of(const struct ckpt_read_item *item, const struct tensor_info *t, uint64_t *ret,
		  struct ckpt_err *e)
{
	if (!item->storage.has_offset)
		return err_set(e, EINVAL, "the item is for bytes, but this is a tensor");
	if (item->n_dims != t->n_dims || item->storage.n_dims != t->n_dims)
		return err_set(e, EINVAL, "an item of %u dimensions, the tensor has %zu",
			       item->n_dims, t->n_dims);
	for (size_t d = 0; d < t->n_dims; d++)
		if (ckd_add(&ret[d], item->storage.offset[d], item->storage_off[d]))
			return err_set(e, EINVAL, "an item outside the tensor");
	return 0;
}

static int read_box(struct ckpt_file *f, enum ckpt_dtype from, const struct ckpt_read_item *item,
		    struct ckpt_load_planner *planner, struct ckpt_err *e)
{
	int64_t strides[CKPT_MAX_DIMS];
	struct ckpt_tensor_view v;
	int rc = ckpt_load_planner_acquire_tensor(planner, item, &v, e);

	if (rc)
		return rc;
	if (v.n_dims != item->n_dims || !dims_equal(v.n_dims, v.len, item->len))
		return err_set(e, EINVAL, "the planner gives room for something else");
	if (v.dtype != from && !cast_possible(from, v.dtype))
		return err_set(e, EINVAL, "it is %s in the checkpoint and %s in the state dict",
			       dtype_info(from)->name, dtype_info(v.dtype)->name);
	for (size_t d = 0; d < v.n_dims; d++)
		strides[d] = (int64_t)v.stride[d];
	rc = tensor_scatter(f->engine->fetch, f->reader, v.data, strides, v.dtype, e);
	return rc ? rc : ckpt_load_planner_apply_tensor(planner, item, &v, e);
}

static int read_tensor(struct ckpt *c, const struct ckpt_read_item *item,
		       struct ckpt_load_planner *planner, struct at_hand *h, struct ckpt_err *e)
{
	uint64_t off[CKPT_MAX_DIMS];
	struct ckpt_file *f;
	int rc = take_in_hand(c, &item->storage, h, e);

	if (!rc)
		rc = box_of(item, &h->t, off, e);
	if (!rc)
		rc = ckpt_box_open(c, h->number, off, item->len, &f, e);
	if (rc)
		return rc;
	rc = read_box(f, h->t.dtype, item, planner, e);
	ckpt_file_close(f);
	return rc;
}

/* ---- objects ---- */

static int apply_object(struct ckpt_file *f, const struct ckpt_read_item *item,
			struct ckpt_load_planner *planner, struct ckpt_err *e)
{
	uint64_t size = ckpt_file_size(f);
	autofree uint8_t *bytes = NULL;
	int64_t n;

	if (size > MAX_OBJECT)
		return err_set(e, EFBIG, "an object of %llu bytes; up to %llu are loaded",
			       (unsigned long long)size, (unsigned long long)MAX_OBJECT);
	bytes = malloc(size + 1);
	if (!bytes)
		return err_nomem(e);
	n = ckpt_file_read(f, bytes, size, 0, e);
	return n < 0 ? (int)n : ckpt_load_planner_apply_bytes(planner, item, bytes, size, e);
}

static int read_object(struct ckpt *c, const struct ckpt_read_item *item,
		       struct ckpt_load_planner *planner, struct ckpt_err *e)
{
	int64_t i = ckpt_object_find(c, item->storage.fqn, item->storage.fqn_len);
	struct ckpt_file *f;
	int rc;

	if (i < 0)
		return err_set(e, ENOENT, "the checkpoint has no such object");
	rc = ckpt_file_open(c, ckpt_object_node(c, (uint64_t)i), &f, e);
	if (rc)
		return rc;
	rc = apply_object(f, item, planner, e);
	ckpt_file_close(f);
	return rc;
}

static int read_data(void *self, const struct ckpt_load_plan *plan,
		     struct ckpt_load_planner *planner, struct ckpt_err *e)
{
	struct reader *r = self;
	int rc = 0;

	for (size_t i = 0; !rc && i < plan->n_items; i++) {
		const struct ckpt_read_item *item = &plan->items[i];
		char shown[120];

		rc = item->type == CKPT_READ_TENSOR ? read_tensor(r->c, item, planner, &r->hand, e)
						    : read_object(r->c, item, planner, e);
		if (rc)
			rc = err_wrap(e, "load '%s'",
				      text_show(item->storage.fqn, item->storage.fqn_len, shown,
						sizeof(shown)));
	}
	return rc;
}

/* ---- life ---- */

static void free_reader(void *self)
{
	struct reader *r = self;

	forget(r);
	arena_release(&r->words);
	free(r);
}

static struct reader *make(struct ckpt_storage_reader *ret, struct ckpt_err *e)
{
	static const struct ckpt_storage_reader_ops ops = {
		validate,   reset,	 read_metadata, set_up,
		local_plan, global_plan, read_data,	free_reader,
	};
	struct reader *r = calloc(1, sizeof(*r));

	if (!r) {
		(void)err_set(e, ENOMEM, "storage reader: out of memory");
		return NULL;
	}
	r->arena = (struct arena)ARENA_INIT(MAX_ARENA);
	r->words = (struct arena)ARENA_INIT(CKPT_MAX_WORDS);
	*ret = (struct ckpt_storage_reader){ .ops = &ops, .self = r };
	return r;
}

int ckpt_reader_new(const char *const opts[], struct ckpt_storage_reader *ret, struct ckpt_err *e)
{
	struct ckpt_storage_reader made = { 0 };
	struct reader *r = make(&made, e);
	int rc = r ? ckpt_opts_parse(opts, NULL, 0, &r->words, &r->opts, e) : -ENOMEM;

	if (rc)
		ckpt_storage_reader_free(&made);
	else
		*ret = made;
	return rc;
}
