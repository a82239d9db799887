/* SPDX-License-Identifier: Apache-2.0 */
/* Describes the tensors and objects of a view, and says which tensors consolidated files
 * contain. */
#include "tree/view.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "file/pt_write.h"
#include "file/st_write.h"
#include "index/catalog_query.h"
#include "layout/layout.h"
#include "model/box.h"
#include "tensor/vtensor.h"
#include "tree/view_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- tensors ---- */

/* The model that `of` refers to; NULL: the tree. */
static const struct model *model_of(const struct view *v, uint32_t of)
{
	return of < OF_HF ? NULL : of == OF_HF ? v->hf : &v->model;
}

enum { ID_SHIFT = 32 };

uint64_t view_id(uint32_t of, size_t i)
{
	return (uint64_t)of << ID_SHIFT | i;
}

bool view_rank_box(const struct view *v, uint32_t rank, size_t i, uint64_t *off, uint64_t *len)
{
	return layout_box(v->o.layout, rank - 1, i, off, len);
}

/* The part that a rank holds, for of >= OF_RANKS. */
static bool part_box(const struct view *v, uint32_t of, size_t i, uint64_t *off, uint64_t *len)
{
	return view_rank_box(v, of - OF_RANKS + 1, i, off, len);
}

/* Describes the stored tensor that has this name in the tree, as it is shown. */
static void describe_stored(const struct view *v, uint32_t of, const struct named *name,
			    struct tensor_info *ret)
{
	const struct catalog_tensor *t = &catalog_tensors(v->c, NULL)[name->index];

	ret->stored = t;
	ret->sources = &name->index;
	ret->n_sources = 1;
	ret->dtype = view_dtype(v, t->dtype);
	ret->n_dims = of == OF_LOGICAL ? t->n_logical : t->n_dims;
	ret->shape = of == OF_LOGICAL ? t->logical : t->shape;
	ret->bytes = t->bytes / dtype_info(t->dtype)->size * dtype_info(ret->dtype)->size;
}

static void describe_made(const struct weight *w, struct tensor_info *ret)
{
	ret->made = w->made;
	ret->sources = w->sources;
	ret->n_sources = w->n_sources;
	ret->dtype = w->made->dtype;
	ret->n_dims = w->made->n_dims;
	ret->shape = w->made->shape;
	ret->bytes = w->made->bytes;
}

/* A tensor of the tree or of the model; for a rank's part, the whole tensor. */
static void find_whole(const struct view *v, uint32_t of, size_t i, struct tensor_info *ret)
{
	const struct model *m = model_of(v, of);
	const struct named *name = m ? &m->names.v[i] : &v->tensors.v[i];
	const struct weight *w = m ? &m->weights[name->index] : NULL;

	*ret = (struct tensor_info){ .fqn = name->fqn, .fqn_len = name->len, .id = view_id(of, i) };
	if (w && w->made)
		describe_made(w, ret);
	else
		describe_stored(v, of, w ? &v->tensors.v[w->at] : name, ret);
}

bool view_info(const struct view *v, uint32_t of, size_t i, struct tensor_info *ret,
	       uint64_t *shape)
{
	uint64_t off[CKPT_MAX_DIMS];

	find_whole(v, of, i, ret);
	if (of < OF_RANKS)
		return true;
	if (!part_box(v, of, i, off, shape))
		return false;
	ret->shape = shape;
	/* cannot overflow: at most the whole tensor's */
	(void)box_volume(ret->n_dims, shape, &ret->bytes);
	ret->bytes *= dtype_info(ret->dtype)->size;
	return true;
}

static int slice(const struct tensor_info *t, const uint64_t *off, const uint64_t *step,
		 const uint64_t *count, struct vtensor **ret, struct ckpt_err *e)
{
	autofree struct vtensor *whole = NULL;
	int rc;

	if (t->made)
		return vtensor_steps(t->made, off, step, count, ret, e);
	rc = vtensor_whole(t->stored, t->sources[0], t->dtype, &whole, e);
	return rc ? rc : vtensor_steps(whole, off, step, count, ret, e);
}

int view_box(const struct view *v, uint64_t id, const uint64_t *off, const uint64_t *step,
	     const uint64_t *count, struct vtensor **ret, struct ckpt_err *e)
{
	struct tensor_info t;

	find_whole(v, (uint32_t)(id >> ID_SHIFT), (uint32_t)id, &t);
	return slice(&t, off, step, count, ret, e);
}

bool view_is_gguf(uint64_t id, uint32_t *ret)
{
	*ret = (uint32_t)id;
	return id >> ID_SHIFT == OF_GGUF;
}

int view_vtensor(const struct view *v, uint64_t id, struct vtensor **ret, struct ckpt_err *e)
{
	uint32_t of = (uint32_t)(id >> ID_SHIFT);
	uint64_t off[CKPT_MAX_DIMS], len[CKPT_MAX_DIMS];
	struct tensor_info t;

	if (of == OF_GGUF)
		return view_gguf_vtensor(v, (uint32_t)id, ret, e);
	find_whole(v, of, (uint32_t)id, &t);
	if (of >= OF_RANKS) {
		/* cannot fail: the rank's part was shown */
		(void)part_box(v, of, (uint32_t)id, off, len);
		return slice(&t, off, NULL, len, ret, e);
	}
	if (t.made)
		return vtensor_copy(t.made, ret, e);
	return of == OF_LOGICAL ? vtensor_logical(t.stored, t.sources[0], t.dtype, ret, e)
				: vtensor_whole(t.stored, t.sources[0], t.dtype, ret, e);
}

size_t view_tensors(const struct view *v)
{
	return v->tensors.n;
}

void view_single_tensor(const struct view *v, uint64_t id, struct tensor_info *ret)
{
	uint64_t shape[CKPT_MAX_DIMS];

	(void)view_info(v, (uint32_t)(id >> ID_SHIFT), (uint32_t)id, ret, shape);
	if (ret->shape == shape)
		ret->shape = NULL;
}

void view_tensor(const struct view *v, size_t i, struct tensor_info *ret)
{
	find_whole(v, OF_TREE, i, ret);
}

size_t view_model(const struct view *v)
{
	return v->hf->names.n;
}

void view_model_tensor(const struct view *v, size_t i, struct tensor_info *ret)
{
	find_whole(v, OF_HF, i, ret);
}

size_t view_objects(const struct view *v)
{
	return v->objects.n;
}

size_t view_object(const struct view *v, size_t i, const char **ret_fqn, size_t *ret_len)
{
	*ret_fqn = v->objects.v[i].fqn;
	*ret_len = v->objects.v[i].len;
	return v->objects.v[i].index;
}

int64_t view_find_tensor(const struct view *v, const char *fqn, size_t len)
{
	return namelist_find(&v->tensors, fqn, len);
}

int64_t view_find_model_tensor(const struct view *v, const char *name, size_t len)
{
	return namelist_find(&v->hf->names, name, len);
}

int64_t view_rank_tensor(const struct view *v, size_t i)
{
	const struct named *name = &v->hf->names.v[i];

	return v->hf == &v->model ? (int64_t)i
				  : namelist_find(&v->model.names, name->fqn, name->len);
}

int64_t view_find_object(const struct view *v, const char *fqn, size_t len)
{
	return namelist_find(&v->objects, fqn, len);
}

bool view_single(const struct view *v, uint64_t node, bool *ret_object, uint64_t *ret_id)
{
	struct spot p = view_spot(node);
	size_t i = p.index;

	if (view_kind(v, node) != VIEW_FILE)
		return false;
	*ret_object = p.face == FACE_OBJECTS;
	(void)view_object_json(v, p, &i);
	*ret_id = view_id(of_rank(p.rank), i);
	if (p.face == FACE_LOGICAL)
		*ret_id = view_logical_id(v, p.index);
	return p.face == FACE_TENSORS || p.face == FACE_NPY || p.face == FACE_OBJECTS ||
	       p.face == FACE_LOGICAL;
}

/* ---- consolidated files ---- */

void members_release(struct members *m)
{
	free(m->v);
	free(m->shapes);
	*m = (struct members){ 0 };
}

/* Why one of the stored tensors it is made of cannot be read, or NULL. */
static const char *fault_of(const struct view *v, const struct tensor_info *t)
{
	const char *fault = NULL;

	for (size_t k = 0; v->o.fault && !fault && k < t->n_sources; k++)
		fault = v->o.fault(v->o.arg, false, t->sources[k]);
	return fault;
}

typedef int check_fn(const struct tensor_info *t, struct ckpt_err *e);

static bool left_out(const struct view *v, const struct tensor_info *t, check_fn *check,
		     struct ckpt_err *why)
{
	const char *fault = fault_of(v, t);

	return fault ? err_set(why, EIO, "%s", fault) : check(t, why);
}

bool view_is_left_out(const struct view *v, uint32_t of, size_t i, struct ckpt_err *why)
{
	struct tensor_info t;

	find_whole(v, of, i, &t);
	return left_out(v, &t, st_check, why);
}

bool view_left_out(const struct view *v, size_t i, struct ckpt_err *why)
{
	return view_is_left_out(v, OF_HF, i, why);
}

void view_about(const struct view *v, struct view_about *ret)
{
	struct ckpt_err why;

	*ret = (struct view_about){ .has_model = v->has_model,
				    .prefix = "",
				    .model_tensors = v->hf->names.n,
				    .shards = v->n_shards,
				    .ranks = v->o.layout ? layout_ranks(v->o.layout) : 0 };
	if (v->prefix && v->prefix_text) {
		ret->prefix = v->prefix_text;
		ret->prefix_len = v->prefix;
	}
	for (size_t i = 0; i < v->hf->names.n; i++) {
		struct tensor_info t;

		view_model_tensor(v, i, &t);
		ret->model_bytes += t.bytes;
		ret->left_out += left_out(v, &t, st_check, &why);
	}
}

void view_left(const struct view *v, enum view_file file, struct view_left *ret)
{
	uint32_t of = file == VIEW_HF			    ? OF_HF
		      : file == VIEW_PT || view_of_model(v) ? OF_MODEL
							    : OF_TREE;
	const struct model *m = model_of(v, of);
	struct tensor_info t;
	struct ckpt_err why;

	*ret = (struct view_left){ .tensors = m ? m->names.n : v->tensors.n };
	for (size_t i = 0; i < ret->tensors; i++) {
		find_whole(v, of, i, &t);
		if (!left_out(v, &t, file == VIEW_PT ? pt_check : st_check, &why))
			continue;
		if (!ret->left_out++) {
			ret->first = t;
			ret->why = why;
		}
	}
}

/* Total number of dimensions in the shapes of a rank's shards. */
static size_t shape_numbers(const struct view *v)
{
	struct tensor_info t;
	size_t n = 0;

	for (size_t i = 0; i < v->model.names.n; i++) {
		find_whole(v, OF_MODEL, i, &t);
		n += t.n_dims;
	}
	return n;
}

int view_members(const struct view *v, uint32_t of,
		 int (*check)(const struct tensor_info *t, struct ckpt_err *e),
		 const struct positions *only, struct members *ret, struct ckpt_err *e)
{
	const struct model *model = model_of(v, of);
	size_t n = only ? only->n : model ? model->names.n : v->tensors.n;
	uint64_t *shape;

	*ret = (struct members){ .v = calloc(n + 1, sizeof(struct tensor_info)) };
	ret->shapes = shape =
		calloc(of >= OF_RANKS ? shape_numbers(v) + CKPT_MAX_DIMS : 1, sizeof(*shape));
	if (!ret->v || !shape) {
		members_release(ret);
		return err_nomem(e);
	}
	for (size_t k = 0; k < n; k++) {
		size_t i = only ? only->v[k] : k;
		struct tensor_info *t = &ret->v[ret->n];
		struct ckpt_err why;

		if (!view_info(v, of, i, t, shape) || fault_of(v, t) || check(t, &why))
			continue;
		if (of >= OF_RANKS)
			shape += t->n_dims;
		ret->n++;
	}
	return 0;
}
