/* SPDX-License-Identifier: Apache-2.0 */
#include "api/ckpt_reader.h"

#include "api/ckpt_internal.h"
#include "base/arena.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "codec/cast.h"
#include "model/box.h"
#include "model/chunkmap.h"
#include "read/fetch.h"
#include "save/ckpt_plan.h"
#include "store/ckpt_storage.h"
#include "view/view.h"

#include <stdlib.h>
#include <string.h>

#define WINDOW	   ((uint64_t)4 << 20) /* bytes of elements on their way to where they have gaps */
#define MAX_OBJECT ((uint64_t)1 << 30) /* bytes of an object, which comes as a whole */
#define MAX_ARENA  ((size_t)16 << 30)

/* The tensor whose items come one after the other. */
struct at_hand {
	struct view_tensor t;
	struct ckpt_file *whole; /* keeps its chunks from being looked for at every item */
	uint64_t number;
};

struct reader {
	struct ckpt_opts opts;
	struct ckpt *given, *opened; /* ours to close is the second */
	struct ckpt *c;		     /* either of them */
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

/* The whole tensor: what planners see of one that is not read chunk by chunk. */
static int one_chunk(const struct view_tensor *t, struct arena *a, struct ckpt_tensor_meta *ret,
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

static int stored_chunks(struct ckpt *c, const struct view_tensor *t, struct arena *a,
			 struct ckpt_tensor_meta *ret, struct ckpt_err *e)
{
	const struct chunkmap *m;
	struct otensor *o;
	struct ckpt_chunk_meta *chunks;
	uint64_t *numbers;
	size_t n = t->n_dims;
	int rc = otensor_map(c->fetch, t->sources[0], &o, &m, e);

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
	otensor_close(c->fetch, o);
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
	struct view_tensor t;
	struct ckpt_meta_entry m;
	int rc;

	view_tensor(c->view, i, &t);
	m = (struct ckpt_meta_entry){ .fqn = t.fqn,
				      .fqn_len = (uint32_t)t.fqn_len,
				      .is_tensor = true,
				      .tensor = { .props = { .dtype = (uint8_t)t.dtype },
						  .n_dims = (uint8_t)t.n_dims,
						  .size = t.shape } };
	rc = t.n_sources == 1 && !ckpt_fault_of(c, &t) ? stored_chunks(c, &t, a, &m.tensor, e)
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

	(void)view_object(c->view, i, &fqn, &len);
	m = (struct ckpt_meta_entry){ .fqn = fqn, .fqn_len = (uint32_t)len };
	rc = path_of(c, i, ckpt_object_path, &m, a, ret_path, e);
	if (!rc)
		*ret = m;
	return rc;
}

static int read_metadata(void *self, const struct ckpt_metadata **ret, struct ckpt_err *e)
{
	struct reader *r = self;
	size_t tensors = view_tensors(r->c->view), n = tensors + view_objects(r->c->view);
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

/* ---- which checkpoint ---- */

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
	ckpt_close(r->opened);
	r->opened = r->c = NULL;
}

static int reset(void *self, const char *id, struct ckpt_err *e)
{
	struct reader *r = self;
	struct ckpt *c = r->given;
	int rc = 0;

	forget(r);
	if (id) {
		rc = ckpt_open(id, &r->opts, &r->opened, e);
		c = r->opened;
	}
	if (rc)
		return rc;
	if (!c)
		return err_set(e, EINVAL, "no checkpoint to read is named");
	if (c->run) /* opts.runs lets one be opened */
		return err_set(e, EISDIR, "'%s' is a run, not a checkpoint", c->root);
	r->c = c;
	return 0;
}

/* ---- plans: everybody reads what it wants ---- */

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
	view_tensor(c->view, h->number, &h->t);
	return ckpt_box_open(c, h->number, zeros, h->t.shape, &h->whole, e);
}

/* Where the item's box begins in the whole tensor. */
static int box_of(const struct ckpt_read_item *item, const struct view_tensor *t, uint64_t *ret,
		  struct ckpt_err *e)
{
	if (!item->storage.has_offset)
		return err_set(e, EINVAL, "an item of bytes, and it is a tensor");
	if (item->n_dims != t->n_dims || item->storage.n_dims != t->n_dims)
		return err_set(e, EINVAL, "an item of %u dimensions, the tensor has %zu",
			       item->n_dims, t->n_dims);
	for (size_t d = 0; d < t->n_dims; d++)
		if (ckd_add(&ret[d], item->storage.offset[d], item->storage_off[d]))
			return err_set(e, EINVAL, "an item outside the tensor");
	return 0;
}

static void dense_strides(struct ckpt_tensor_view *v)
{
	uint64_t stride = dtype_info(v->dtype)->size;

	for (size_t d = v->n_dims; d-- > 0; stride *= v->len[d])
		v->stride[d] = stride;
}

static bool is_dense(const struct ckpt_tensor_view *v)
{
	struct ckpt_tensor_view dense = *v;

	dense_strides(&dense);
	for (size_t d = 0; d < v->n_dims; d++)
		if (v->len[d] != 1 && v->stride[d] != dense.stride[d])
			return false;
	return true;
}

static int read_exactly(struct ckpt_file *f, void *buf, uint64_t len, uint64_t off,
			struct ckpt_err *e)
{
	int64_t n = ckpt_file_read(f, buf, len, off, e);

	if (n < 0)
		return (int)n;
	return (uint64_t)n == len ? 0 : err_set(e, EIO, "it became shorter");
}

/* Elements on their way: a run of the box in row-major order. */
struct window {
	const struct ckpt_read_item *item;
	struct ckpt_load_planner *planner;
	uint8_t *elements; /* as the planner wants them */
	uint8_t dtype;
	struct ckpt_err *e;
};

/* A box of the run, which is one run of the window. */
static int apply_box(void *arg, const uint64_t *off, const uint64_t *len, uint64_t pos)
{
	const struct window *w = arg;
	struct ckpt_read_item part = *w->item;
	uint64_t dest[CKPT_MAX_DIMS], storage[CKPT_MAX_DIMS];
	struct ckpt_tensor_view v = { .data = w->elements + pos * dtype_info(w->dtype)->size,
				      .dtype = w->dtype,
				      .n_dims = part.n_dims,
				      .len = len };

	for (size_t d = 0; d < part.n_dims; d++) {
		dest[d] = part.dest_off[d] + off[d];
		storage[d] = part.storage_off[d] + off[d];
	}
	part.dest_off = dest;
	part.storage_off = storage;
	part.len = len;
	dense_strides(&v);
	return ckpt_load_planner_apply_tensor(w->planner, &part, &v, w->e);
}

/* Window by window: the view has gaps, or another dtype. */
static int read_windows(struct ckpt_file *f, enum ckpt_dtype from,
			const struct ckpt_read_item *item, struct ckpt_load_planner *planner,
			const struct ckpt_tensor_view *v, struct ckpt_err *e)
{
	size_t size = dtype_info(from)->size;
	uint64_t total = ckpt_file_size(f) / size, step = min_u64(WINDOW / size, total), n;
	autofree uint8_t *raw = malloc(step * size + 1), *cast = NULL;
	struct window w = { item, planner, raw, v->dtype, e };
	int rc = 0;

	if (v->dtype != from)
		w.elements = cast = malloc(step * dtype_info(v->dtype)->size + 1);
	if (!raw || !w.elements)
		return err_set(e, ENOMEM, "out of memory");
	for (uint64_t at = 0; !rc && at < total; at += n) {
		n = min_u64(step, total - at);
		rc = read_exactly(f, raw, n * size, at * size, e);
		if (!rc && cast)
			cast_run(from, v->dtype, raw, cast, n);
		if (!rc)
			rc = box_of_range(item->n_dims, item->len, at, n, apply_box, &w);
	}
	return rc;
}

static int read_box(struct ckpt_file *f, enum ckpt_dtype from, const struct ckpt_read_item *item,
		    struct ckpt_load_planner *planner, struct ckpt_err *e)
{
	struct ckpt_tensor_view v;
	int rc = ckpt_load_planner_acquire_tensor(planner, item, &v, e);

	if (rc)
		return rc;
	if (v.n_dims != item->n_dims ||
	    (v.n_dims && memcmp(v.len, item->len, v.n_dims * sizeof(*v.len)) != 0))
		return err_set(e, EINVAL, "the planner gives room for something else");
	if (v.dtype != from && !cast_possible(from, v.dtype))
		return err_set(e, EINVAL, "it is %s in the checkpoint and %s in the state dict",
			       dtype_info(from)->name, dtype_info(v.dtype)->name);
	if (v.dtype != from || !is_dense(&v))
		return read_windows(f, from, item, planner, &v, e);
	rc = read_exactly(f, v.data, ckpt_file_size(f), 0, e);
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
	int rc;

	if (size > MAX_OBJECT)
		return err_set(e, EFBIG, "an object of %llu bytes; up to %llu are loaded",
			       (unsigned long long)size, (unsigned long long)MAX_OBJECT);
	bytes = malloc(size + 1);
	if (!bytes)
		return err_set(e, ENOMEM, "out of memory");
	rc = read_exactly(f, bytes, size, 0, e);
	return rc ? rc : ckpt_load_planner_apply_bytes(planner, item, bytes, size, e);
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
	*ret = (struct ckpt_storage_reader){ .ops = &ops, .self = r };
	return r;
}

int ckpt_reader_new(const struct ckpt_opts *opts, struct ckpt_storage_reader *ret,
		    struct ckpt_err *e)
{
	struct reader *r = make(ret, e);

	if (!r)
		return -ENOMEM;
	if (opts)
		r->opts = *opts;
	return 0;
}

int ckpt_reader_of(struct ckpt *c, struct ckpt_storage_reader *ret, struct ckpt_err *e)
{
	struct reader *r = make(ret, e);

	if (!r)
		return -ENOMEM;
	r->given = r->c = c;
	return 0;
}
