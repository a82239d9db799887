/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A save planner whose data come from a checkpoint. Each piece that a storage writer requests is a
 * small load of its own: a state dict of the boxes that make up the piece, a load plan for it, and
 * the bytes of its items.
 */
#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "ckpt/ckpt_internal.h"
#include "ckpt/reshard/reshard_internal.h"
#include "model/box.h"
#include "model/dtype.h"
#include "save/metadata.h"

#include <stdlib.h>

#define MAX_OBJECT ((size_t)1 << 30) /* bytes of an object that is converted */

struct planner {
	struct resharding *s;
	struct ckpt_save_planner inner;
};

static int check_stop(const struct resharding *s, struct ckpt_err *e)
{
	return s->r->stop && s->r->stop(s->r->stop_arg) ? err_set(e, ECANCELED, "stopped") : 0;
}

/* ---- tensors ---- */

/* A chunk being written. */
struct pull {
	struct resharding *s;
	const struct reshard_entry *t;
	const uint64_t *off, *len; /* the chunk */
	struct ckpt_file *chunk;   /* kept open, so that opening boxes of it is fast */
	struct ckpt_load_planner planner;
	uint64_t *dims; /* room for the boxes of a requested range */
	struct ckpt_shard *shards;
	size_t n_shards;
	uint8_t *to;
};

static int add_box(void *arg, const uint64_t *off, const uint64_t *len, uint64_t pos)
{
	struct pull *p = arg;
	size_t n = p->t->n_dims;
	uint64_t *dims = p->dims + p->n_shards * 2 * n;

	for (size_t d = 0; d < n; d++) {
		dims[d] = p->off[d] + off[d];
		dims[n + d] = len[d];
	}
	p->shards[p->n_shards++] =
		(struct ckpt_shard){ dims, dims + n, p->to + pos * dtype_info(p->t->dtype)->size };
	return 0;
}

static int open_box(const struct pull *p, const uint64_t *off, const uint64_t *len,
		    struct ckpt_file **ret, struct ckpt_err *e)
{
	if (p->s->r->model)
		return ckpt_model_box_open(p->s->c, p->t->number, off, len, ret, e);
	return ckpt_box_open(p->s->c, p->t->number, off, len, ret, e);
}

/*
 * The tensor is one chunk, so storage offsets are tensor offsets; and the boxes of a range have no
 * gaps, so each item is one contiguous run of memory.
 */
static int read_item(struct pull *p, const struct ckpt_read_item *item, struct ckpt_err *e)
{
	struct ckpt_tensor_view v;
	struct ckpt_file *f;
	int64_t got;
	int rc = ckpt_load_planner_acquire_tensor(&p->planner, item, &v, e);

	if (!rc)
		rc = open_box(p, item->storage_off, item->len, &f, e);
	if (rc)
		return rc;
	got = ckpt_file_read(f, v.data, (size_t)ckpt_file_size(f), 0, e);
	ckpt_file_close(f);
	return got < 0 ? (int)got : ckpt_load_planner_apply_tensor(&p->planner, item, &v, e);
}

/* Loads the boxes of a requested range as a state dict. */
static int load_boxes(struct pull *p, struct ckpt_err *e)
{
	const struct reshard_entry *t = p->t;
	static const uint64_t zeros[CKPT_MAX_DIMS];
	const struct ckpt_chunk_meta whole = { zeros, t->shape };
	struct ckpt_local_tensor local = { .kind = CKPT_LOCAL_SHARDS,
					   .n_dims = t->n_dims,
					   .props = { .dtype = t->dtype },
					   .shape = t->shape,
					   .shards = p->shards,
					   .n_shards = p->n_shards };
	struct ckpt_state_entry entry = { .fqn = t->fqn, .fqn_len = t->fqn_len, .tensor = &local };
	const struct ckpt_state_dict dict = { &entry, 1 };
	/* Present each tensor as one chunk; fetch knows how it is stored. */
	struct ckpt_meta_entry saved = { .fqn = t->fqn,
					 .fqn_len = t->fqn_len,
					 .is_tensor = true,
					 .tensor = { .props = local.props,
						     .n_dims = t->n_dims,
						     .size = t->shape,
						     .chunks = &whole,
						     .n_chunks = 1 } };
	const struct ckpt_metadata md = { .entries = &saved, .n_entries = 1 };
	const struct ckpt_load_planning opt = { .is_coordinator = true };
	struct ckpt_load_plan mine, part, plan;
	int rc = ckpt_load_planner_configure(&p->planner, &dict, &md, &opt, e);

	if (!rc)
		rc = ckpt_load_planner_local_plan(&p->planner, &mine, e);
	if (!rc)
		rc = ckpt_load_planner_global_plan(&p->planner, &mine, 1, &part, e);
	if (!rc)
		rc = ckpt_load_planner_finish(&p->planner, &part, &plan, e);
	for (size_t i = 0; !rc && i < plan.n_items; i++)
		rc = read_item(p, &plan.items[i], e);
	return rc;
}

static int pull_read(void *arg, uint64_t off, void *to, size_t n, struct ckpt_err *e)
{
	struct pull *p = arg;
	size_t size = dtype_info(p->t->dtype)->size;
	int rc;

	if (off % size || n % size)
		return err_set(e, EINVAL, "'%s': part of an element was requested",
			       FQN_TEXT(p->t->fqn, p->t->fqn_len));
	p->to = to;
	p->n_shards = 0;
	(void)box_of_range(p->t->n_dims, p->len, off / size, n / size, add_box, p);
	rc = check_stop(p->s, e);
	if (!rc && load_boxes(p, e)) {
		ckpt_drop_name(p->t->fqn, p->t->fqn_len, e); /* the writer adds it */
		rc = -e->code;
	}
	return rc;
}

static void pull_close(void *arg)
{
	struct pull *p = arg;

	ckpt_load_planner_free(&p->planner);
	ckpt_file_close(p->chunk);
	free(p->dims);
	free(p->shards);
	free(p);
}

static int open_tensor(struct resharding *s, const struct reshard_entry *t,
		       const struct ckpt_write_item *item, struct ckpt_data *ret,
		       struct ckpt_err *e)
{
	/* the most that box_of_range returns */
	size_t boxes = t->n_dims ? 2 * (size_t)t->n_dims : 1;
	struct pull *p = calloc(1, sizeof(*p));
	uint64_t bytes;
	int rc = write_item_chunk_bytes(item, &bytes, e);

	if (rc || !p) {
		free(p);
		return rc ? rc : err_nomem(e);
	}
	*p = (struct pull){ .s = s, .t = t, .off = item->chunk.off, .len = item->chunk.len };
	p->dims = calloc(boxes * 2 * boxes, sizeof(*p->dims));
	p->shards = calloc(boxes, sizeof(*p->shards));
	rc = p->dims && p->shards ? ckpt_load_planner_new(CKPT_PLANNER_DCP, &p->planner, e)
				  : err_nomem(e);
	if (!rc)
		rc = open_box(p, p->off, p->len, &p->chunk, e);
	if (rc) {
		ckpt_drop_name(t->fqn, t->fqn_len, e);
		pull_close(p);
		return rc;
	}
	*ret = (struct ckpt_data){ .len = bytes, .read = pull_read, .close = pull_close, .arg = p };
	return 0;
}

/* ---- objects ---- */

static int object_read(void *arg, uint64_t off, void *to, size_t n, struct ckpt_err *e)
{
	int64_t got = ckpt_file_read(arg, to, n, off, e);

	return got < 0 ? (int)got : (size_t)got == n ? 0 : err_set(e, EIO, "the object ends early");
}

static void object_close(void *arg)
{
	ckpt_file_close(arg);
}

static int convert(enum object_form from, enum object_form to, struct ckpt_file *f,
		   struct ckpt_data *ret, struct ckpt_err *e)
{
	size_t len = (size_t)ckpt_file_size(f);
	struct buf made = BUF_INIT(MAX_OBJECT);
	autofree void *text = NULL;
	int64_t got;
	int rc;

	if (ckpt_file_size(f) > MAX_OBJECT)
		return err_set(e, EFBIG, "an object of %zu bytes cannot be put into another form",
			       len);
	text = malloc(len + 1);
	if (!text)
		return err_set(e, ENOMEM, "object of %zu bytes: out of memory", len);
	got = ckpt_file_read(f, text, len, 0, e);
	rc = got < 0 ? (int)got : object_convert(from, to, text, (size_t)got, &made, e);
	if (rc) {
		buf_release(&made);
		return rc;
	}
	*ret = (struct ckpt_data){
		.data = made.data, .len = made.len, .close = free, .arg = made.data
	};
	return 0;
}

static int open_object(struct resharding *s, const struct reshard_entry *t, struct ckpt_data *ret,
		       struct ckpt_err *e)
{
	struct ckpt_file *f;
	int rc = ckpt_file_open(s->c, ckpt_object_node(s->c, t->number), &f, e);

	if (rc)
		return rc;
	if (t->form == t->to) {
		*ret = (struct ckpt_data){ .len = ckpt_file_size(f),
					   .read = object_read,
					   .close = object_close,
					   .arg = f };
		return 0;
	}
	rc = convert((enum object_form)t->form, (enum object_form)t->to, f, ret, e);
	ckpt_file_close(f);
	return rc ? err_wrap(e, "'%s'", FQN_TEXT(t->fqn, t->fqn_len)) : 0;
}

/* ---- the planner ---- */

static int configure(void *self, const struct ckpt_state_dict *dict,
		     const struct ckpt_save_planning *opt, struct ckpt_err *e)
{
	return ckpt_save_planner_configure(&((struct planner *)self)->inner, dict, opt, e);
}

static int local_plan(void *self, struct ckpt_save_plan *ret, struct ckpt_err *e)
{
	return ckpt_save_planner_local_plan(&((struct planner *)self)->inner, ret, e);
}

struct wanted {
	const char *fqn;
	size_t len;
	bool is_tensor;
};

static int compare(const void *key, const void *element)
{
	const struct wanted *w = key;
	const struct reshard_entry *const *t = element;

	return reshard_compare(w->fqn, w->len, w->is_tensor, *t);
}

const struct reshard_entry *reshard_find(const struct resharding *s, const char *fqn, size_t len,
					 bool is_tensor)
{
	const struct wanted w = { fqn, len, is_tensor };
	const struct reshard_entry *const *found =
		bsearch(&w, s->by_name, s->n, sizeof(*s->by_name), compare);

	return found ? *found : NULL;
}

/* Metadata that record the shapes of flattened tensors need them. */
static int global_plan(void *self, const struct ckpt_save_plan *all, size_t n,
		       struct ckpt_save_plan *ret_parts, struct ckpt_metadata *ret_md,
		       struct ckpt_err *e)
{
	struct planner *p = self;
	int rc = ckpt_save_planner_global_plan(&p->inner, all, n, ret_parts, ret_md, e);

	for (size_t i = 0; !rc && i < ret_md->n_entries; i++) {
		struct ckpt_meta_entry *x = &ret_md->entries[i];
		const struct reshard_entry *t =
			x->is_tensor ? reshard_find(p->s, x->fqn, x->fqn_len, true) : NULL;

		if (t) {
			x->tensor.logical = t->logical;
			x->tensor.n_logical = t->n_logical;
		}
	}
	return rc;
}

static int finish(void *self, const struct ckpt_save_plan *part, struct ckpt_save_plan *ret,
		  struct ckpt_err *e)
{
	return ckpt_save_planner_finish(&((struct planner *)self)->inner, part, ret, e);
}

static int get_data(void *self, const struct ckpt_write_item *item, struct ckpt_data *ret,
		    struct ckpt_err *e)
{
	const struct planner *p = self;
	bool is_tensor = item->type != CKPT_WRITE_BYTE_IO;
	const struct reshard_entry *found =
		reshard_find(p->s, item->index.fqn, item->index.fqn_len, is_tensor);
	int rc = check_stop(p->s, e);

	if (rc)
		return rc;
	if (!found)
		return err_set(e, EINVAL, "'%s': there is nothing of that name and kind to write",
			       FQN_TEXT(item->index.fqn, item->index.fqn_len));
	return is_tensor ? open_tensor(p->s, found, item, ret, e)
			 : open_object(p->s, found, ret, e);
}

static void free_planner(void *self)
{
	struct planner *p = self;

	ckpt_save_planner_free(&p->inner);
	free(p);
}

int reshard_planner(struct resharding *s, struct ckpt_save_planner *inner,
		    struct ckpt_save_planner *ret, struct ckpt_err *e)
{
	static const struct ckpt_save_planner_ops ops = { configure, local_plan, global_plan,
							  finish,    get_data,	 free_planner };
	struct planner *p = calloc(1, sizeof(*p));

	if (!p) {
		ckpt_save_planner_free(inner);
		return err_set(e, ENOMEM, "save planner: out of memory");
	}
	*p = (struct planner){ .s = s, .inner = *inner };
	*inner = (struct ckpt_save_planner){ 0 };
	*ret = (struct ckpt_save_planner){ .ops = &ops, .self = p };
	return 0;
}
