/* SPDX-License-Identifier: Apache-2.0 */
/* Describes the tensors and objects of an opened checkpoint. */
#include <ckptfs/ckpt.h>

#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/search.h"
#include "ckpt/ckpt_internal.h"
#include "index/catalog_path.h"
#include "index/catalog_query.h"
#include "layout/layout.h"
#include "model/chunkmap.h"
#include "read/derived.h"
#include "read/fetch.h"
#include "tree/view.h"

#include <stdlib.h>
#include <string.h>

uint64_t ckpt_chunks_of(const struct engine *eng, const struct tensor_info *t)
{
	uint64_t chunks = 0;

	for (size_t i = 0; i < t->n_sources; i++)
		chunks += catalog_tensors(eng->catalog, NULL)[t->sources[i]].chunks;
	return chunks;
}

const char *ckpt_fault_of(const struct engine *eng, const struct tensor_info *t)
{
	const char *fault = NULL;

	for (size_t i = 0; i < t->n_sources && !fault; i++)
		fault = ckpt_tensor_fault(eng, t->sources[i]);
	return fault;
}

static void fill_tensor(const struct ckpt *c, const struct tensor_info *v, struct ckpt_tensor *ret)
{
	*ret = (struct ckpt_tensor){ .fqn = v->fqn,
				     .fqn_len = v->fqn_len,
				     .dtype = dtype_info(v->dtype)->name,
				     .element = dtype_info(v->dtype)->size,
				     .n_dims = v->n_dims,
				     .shape = v->shape,
				     .n_logical = v->stored ? v->stored->n_logical : 0,
				     .logical = v->stored ? v->stored->logical : NULL,
				     .bytes = v->bytes,
				     .chunks = ckpt_chunks_of(c->engine, v),
				     .fault = ckpt_fault_of(c->engine, v) };
}

static int no_such_tensor(const struct ckpt *c, uint64_t i, const char *of, uint64_t n,
			  struct ckpt_err *e)
{
	if (!c->engine)
		return err_set(e, EINVAL, "it is a run, which has no tensors of its own");
	return err_set(e, EINVAL, "tensor %llu does not exist: %s has %llu", (unsigned long long)i,
		       of, (unsigned long long)n);
}

int ckpt_tensor_at(const struct ckpt *c, uint64_t i, struct tensor_info *ret, struct ckpt_err *e)
{
	if (i >= c->totals.tensors)
		return no_such_tensor(c, i, "the checkpoint", c->totals.tensors, e);
	view_tensor(c->engine->view, i, ret);
	return 0;
}

int ckpt_model_at(const struct ckpt *c, uint64_t i, struct tensor_info *ret, struct ckpt_err *e)
{
	if (i >= ckpt_model_tensors(c))
		return no_such_tensor(c, i, "the model", ckpt_model_tensors(c), e);
	view_model_tensor(c->engine->view, i, ret);
	return 0;
}

static const char no_tensor[] = "no tensor has this number";

void ckpt_tensor_sized(const struct ckpt *c, uint64_t i, struct ckpt_tensor *ret, size_t size)
{
	struct ckpt_tensor told = { .fqn = "", .dtype = "", .fault = no_tensor };
	struct tensor_info t;
	struct ckpt_err ignored;

	if (!ckpt_tensor_at(c, i, &t, &ignored))
		fill_tensor(c, &t, &told);
	SIZED_GIVE(ret, size, told);
}

uint64_t ckpt_model_tensors(const struct ckpt *c)
{
	return c->totals.model_tensors;
}

void ckpt_model_tensor_sized(const struct ckpt *c, uint64_t i, struct ckpt_tensor *ret, size_t size)
{
	struct ckpt_tensor told = { .fqn = "", .dtype = "", .fault = no_tensor };
	struct tensor_info t;
	struct ckpt_err ignored;

	if (!ckpt_model_at(c, i, &t, &ignored))
		fill_tensor(c, &t, &told);
	SIZED_GIVE(ret, size, told);
}

bool ckpt_rank_box(const struct ckpt *c, uint64_t rank, uint64_t i, uint64_t *ret_off,
		   uint64_t *ret_len)
{
	struct layout *layout = c->totals.model_tensors ? c->engine->layout : NULL;
	size_t n = layout ? layout_ranks(layout) : 0;
	size_t low = PARTITION_POINT(k, n, layout_rank(layout, k) < rank);
	int64_t at;

	at = n && i < ckpt_model_tensors(c) ? view_rank_tensor(c->engine->view, i) : -1;
	return at >= 0 && low < n && layout_rank(layout, low) == rank &&
	       layout_box(layout, low, (size_t)at, ret_off, ret_len);
}

int64_t ckpt_tensor_find(const struct ckpt *c, const char *fqn, size_t len)
{
	return !c->totals.tensors ? -1 : view_find_tensor(c->engine->view, fqn, len);
}

int64_t ckpt_model_find(const struct ckpt *c, const char *name, size_t len)
{
	return !c->totals.model_tensors ? -1 : view_find_model_tensor(c->engine->view, name, len);
}

int64_t ckpt_model_stored(const struct ckpt *c, const char *name, size_t len)
{
	const struct ckpt_totals *t = &c->totals;
	int64_t shown = ckpt_model_find(c, name, len), i;
	autofree char *fqn = malloc(t->model_prefix_len + len + 1);
	struct tensor_info stored, model;

	if (shown < 0 || !fqn || c->engine->recipe.recipe)
		return -1;
	memcpy(fqn, t->model_prefix, t->model_prefix_len);
	memcpy(fqn + t->model_prefix_len, name, len);
	i = ckpt_tensor_find(c, fqn, t->model_prefix_len + len);
	if (i < 0)
		return -1;
	view_tensor(c->engine->view, (size_t)i, &stored);
	view_model_tensor(c->engine->view, (size_t)shown, &model);
	return model.n_sources == 1 && model.sources[0] == stored.sources[0] &&
			       model.n_dims == stored.n_dims && model.bytes == stored.bytes
		       ? i
		       : -1;
}

int64_t ckpt_object_find(const struct ckpt *c, const char *fqn, size_t len)
{
	return !c->totals.objects ? -1 : view_find_object(c->engine->view, fqn, len);
}

static int by_u32(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

int ckpt_tensor_files(struct ckpt *c, uint64_t i, uint64_t *ret, struct ckpt_err *e)
{
	struct tensor_info t;
	int rc = ckpt_tensor_at(c, i, &t, e);

	return rc ? rc : ckpt_files_of(c->engine, &t, ret, e);
}

/* Adds the files of a stored tensor to the n files in *files. */
static int add_files(struct engine *eng, uint32_t number, uint32_t **files, size_t *n,
		     struct ckpt_err *e)
{
	const struct stored_file *s = catalog_sources(eng->catalog, NULL);
	const struct chunkmap *m;
	struct otensor *t;
	uint32_t *grown;
	const struct derived *d = fetch_derived(eng->fetch, number);
	int rc = 0;

	for (size_t i = 0; !rc && d && i < d->n_inputs; i++)
		for (uint32_t k = 0;
		     !rc && !d->inputs[i].fetch && k < derived_n_sources(&d->inputs[i]); k++)
			rc = add_files(eng, derived_source(&d->inputs[i], k), files, n, e);
	if (rc || d)
		return rc;
	rc = otensor_map(eng->fetch, number, &t, &m, e);
	if (rc)
		return rc;
	grown = realloc(*files, (*n + m->count + 1) * sizeof(*grown));
	if (grown) {
		*files = grown;
		for (uint32_t k = 0; k < m->count; k++)
			if (!s[m->locs[k].file].bytes)
				grown[(*n)++] = m->locs[k].file;
	}
	otensor_close(eng->fetch, t);
	return grown ? 0 : err_nomem(e);
}

int ckpt_files_of(struct engine *eng, const struct tensor_info *t, uint64_t *ret,
		  struct ckpt_err *e)
{
	autofree uint32_t *files = NULL;
	size_t n = 0;
	uint64_t distinct = 0;

	for (size_t i = 0; i < t->n_sources; i++) {
		int rc = add_files(eng, t->sources[i], &files, &n, e);

		if (rc)
			return rc;
	}
	if (n)
		qsort(files, n, sizeof(*files), by_u32);
	for (size_t k = 0; k < n; k++)
		distinct += !k || files[k] != files[k - 1];
	*ret = distinct;
	return 0;
}

int ckpt_tensor_chunks(struct ckpt *c, uint64_t i,
		       int (*each)(void *arg, const struct ckpt_chunk *chunk), void *arg,
		       struct ckpt_err *e)
{
	uint64_t off[CKPT_MAX_DIMS] = { 0 }, len[CKPT_MAX_DIMS] = { 0 };
	const char *const *encodings;
	const struct stored_file *s;
	const struct chunkmap *m;
	struct tensor_info shown;
	struct otensor *t;
	bool computed;
	int rc = ckpt_tensor_at(c, i, &shown, e);

	if (!rc)
		rc = otensor_map(c->engine->fetch, shown.sources[0], &t, &m, e);
	if (rc)
		return rc;
	s = catalog_sources(c->engine->catalog, NULL);
	encodings = catalog_encodings(c->engine->catalog, NULL);
	computed = fetch_derived(c->engine->fetch, shown.sources[0]) != NULL;
	for (uint32_t k = 0; !rc && k < m->count; k++) {
		const struct chunk_loc *l = &m->locs[k];
		struct ckpt_chunk chunk = { .off = off,
					    .len = len,
					    .path = computed ? "" : s[l->file].path,
					    .offset = l->offset,
					    .length = l->length,
					    .encoding = computed ? "computed"
								 : encodings[l->encoding] };

		chunkmap_box(m, k, off, len);
		rc = each(arg, &chunk);
	}
	otensor_close(c->engine->fetch, t);
	return rc;
}

static void fill_object(const struct ckpt *c, uint64_t i, struct ckpt_object *ret)
{
	const struct catalog_object *o;
	const char *fqn;
	size_t len, number;

	if (i >= c->totals.objects) {
		*ret = (struct ckpt_object){ .fqn = "",
					     .path = "",
					     .encoding = "",
					     .fault = "there is no object with that number" };
		return;
	}
	number = view_object(c->engine->view, i, &fqn, &len);
	o = &catalog_objects(c->engine->catalog, NULL)[number];
	*ret = (struct ckpt_object){ .fqn = fqn,
				     .fqn_len = len,
				     .fault = ckpt_object_fault(c->engine, number),
				     .path = "",
				     .encoding = "" };
	if (o->text) {
		ret->encoding = "text";
		ret->length = o->text_len;
	} else if (!o->fault) {
		ret->path = catalog_sources(c->engine->catalog, NULL)[o->loc.file].path;
		ret->encoding = catalog_encodings(c->engine->catalog, NULL)[o->loc.encoding];
		ret->offset = o->loc.offset;
		ret->length = o->loc.length;
	}
}

void ckpt_object_sized(const struct ckpt *c, uint64_t i, struct ckpt_object *ret, size_t size)
{
	struct ckpt_object told;

	fill_object(c, i, &told);
	SIZED_GIVE(ret, size, told);
}

enum object_form ckpt_object_form(const struct engine *eng, const struct ckpt_object *o)
{
	if (!strcmp(o->encoding, "text"))
		return OBJECT_JSON;
	return eng->format == &format_hyperparallel ? OBJECT_PICKLE : OBJECT_TORCH;
}

/* ---- paths ---- */

/* renamed: the entry is at the top level, under its new name, whatever the stored path. */
static size_t give_path(const char *fqn, size_t len, bool renamed, const uint8_t *path,
			struct ckpt_step *ret, size_t size, size_t cap)
{
	struct catalog_steps steps =
		catalog_path_begin(renamed ? catalog_path_flat : path, fqn, (uint32_t)len);
	size_t n = steps.left;
	struct catalog_step s;

	for (char *at = (char *)ret; n <= cap && catalog_path_next(&steps, &s); at += size) {
		const struct ckpt_step step = { .text = s.text,
						.len = s.len,
						.is_position = s.is_position,
						.position = s.position };

		SIZED_GIVE(at, size, step);
	}
	return n;
}

size_t ckpt_tensor_path_sized(const struct ckpt *c, uint64_t i, struct ckpt_step *ret, size_t size,
			      size_t cap)
{
	const struct catalog_tensor *from;
	struct ckpt_err ignored;
	struct tensor_info t;

	if (ckpt_tensor_at(c, i, &t, &ignored))
		return 0;
	from = &catalog_tensors(c->engine->catalog, NULL)[t.sources[0]];
	return give_path(t.fqn, t.fqn_len, !bytes_equal(t.fqn, t.fqn_len, from->fqn, from->fqn_len),
			 from->path, ret, size, cap);
}

size_t ckpt_object_path_sized(const struct ckpt *c, uint64_t i, struct ckpt_step *ret, size_t size,
			      size_t cap)
{
	const struct catalog_object *from;
	const char *fqn;
	size_t len;

	if (i >= c->totals.objects)
		return 0;
	i = view_object(c->engine->view, i, &fqn, &len);
	from = &catalog_objects(c->engine->catalog, NULL)[i];
	return give_path(fqn, len, !bytes_equal(fqn, len, from->fqn, from->fqn_len), from->path,
			 ret, size, cap);
}

uint64_t ckpt_parameters(const struct ckpt *c)
{
	uint64_t n = 0;

	for (uint64_t i = 0; i < ckpt_model_tensors(c); i++) {
		struct ckpt_tensor t;

		ckpt_model_tensor(c, i, &t);
		if (t.element && ckd_add(&n, n, t.bytes / t.element))
			return UINT64_MAX;
	}
	return n;
}
