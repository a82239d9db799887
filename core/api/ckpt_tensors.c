/* SPDX-License-Identifier: Apache-2.0 */
/* What an opened checkpoint says of its tensors and objects. */
#include "api/ckpt.h"

#include "api/ckpt_internal.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "catalog/catalog_path.h"
#include "catalog/catalog_query.h"
#include "model/chunkmap.h"
#include "read/fetch.h"
#include "view/layout.h"
#include "view/view.h"

#include <stdlib.h>
#include <string.h>

uint64_t ckpt_chunks_of(const struct ckpt *c, const struct view_tensor *t)
{
	uint64_t chunks = 0;
	size_t n;

	for (size_t i = 0; i < t->n_sources; i++)
		chunks += catalog_tensors(c->catalog, &n)[t->sources[i]].chunks;
	return chunks;
}

const char *ckpt_fault_of(const struct ckpt *c, const struct view_tensor *t)
{
	const char *fault = NULL;

	for (size_t i = 0; i < t->n_sources && !fault; i++)
		fault = ckpt_tensor_fault(c, t->sources[i]);
	return fault;
}

static void fill_tensor(const struct ckpt *c, const struct view_tensor *v, struct ckpt_tensor *ret)
{
	*ret = (struct ckpt_tensor){ .fqn = v->fqn,
				     .fqn_len = v->fqn_len,
				     .dtype = dtype_info(v->dtype)->name,
				     .element = dtype_info(v->dtype)->size,
				     .n_dims = v->n_dims,
				     .shape = v->shape,
				     .n_logical = v->n_logical,
				     .logical = v->logical,
				     .bytes = v->bytes,
				     .chunks = ckpt_chunks_of(c, v),
				     .fault = ckpt_fault_of(c, v) };
}

void ckpt_tensor(const struct ckpt *c, uint64_t i, struct ckpt_tensor *ret)
{
	struct view_tensor t;

	view_tensor(c->view, i, &t);
	fill_tensor(c, &t, ret);
}

uint64_t ckpt_model_tensors(const struct ckpt *c)
{
	return c->run ? 0 : view_model(c->view);
}

void ckpt_model_tensor(const struct ckpt *c, uint64_t i, struct ckpt_tensor *ret)
{
	struct view_tensor t;

	view_model_tensor(c->view, i, &t);
	fill_tensor(c, &t, ret);
}

bool ckpt_rank_box(const struct ckpt *c, uint64_t rank, uint64_t i, uint64_t *ret_off,
		   uint64_t *ret_len)
{
	size_t low = 0, high = c->layout && !c->run ? layout_ranks(c->layout) : 0, n = high;
	int64_t at;

	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if (layout_rank(c->layout, mid) < rank)
			low = mid + 1;
		else
			high = mid;
	}
	at = n ? view_rank_tensor(c->view, i) : -1;
	return at >= 0 && low < n && layout_rank(c->layout, low) == rank &&
	       layout_box(c->layout, low, (size_t)at, ret_off, ret_len);
}

int64_t ckpt_tensor_find(const struct ckpt *c, const char *fqn, size_t len)
{
	return c->run ? -1 : view_find_tensor(c->view, fqn, len);
}

int64_t ckpt_model_find(const struct ckpt *c, const char *name, size_t len)
{
	return c->run ? -1 : view_find_model_tensor(c->view, name, len);
}

int64_t ckpt_object_find(const struct ckpt *c, const char *fqn, size_t len)
{
	return c->run ? -1 : view_find_object(c->view, fqn, len);
}

static int by_u32(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

int ckpt_tensor_files(struct ckpt *c, uint64_t i, uint64_t *ret, struct ckpt_err *e)
{
	struct view_tensor t;

	view_tensor(c->view, i, &t);
	return ckpt_files_of(c, &t, ret, e);
}

/* Add the files of a stored tensor to the n that *files lists. */
static int add_files(struct ckpt *c, uint32_t number, uint32_t **files, size_t *n,
		     struct ckpt_err *e)
{
	const struct chunkmap *m;
	struct otensor *t;
	uint32_t *grown;
	int rc = otensor_map(c->fetch, number, &t, &m, e);

	if (rc)
		return rc;
	grown = realloc(*files, (*n + m->count + 1) * sizeof(*grown));
	if (grown) {
		*files = grown;
		for (uint32_t k = 0; k < m->count; k++)
			grown[(*n)++] = m->locs[k].file;
	}
	otensor_close(c->fetch, t);
	return grown ? 0 : err_set(e, ENOMEM, "out of memory");
}

int ckpt_files_of(struct ckpt *c, const struct view_tensor *t, uint64_t *ret, struct ckpt_err *e)
{
	autofree uint32_t *files = NULL;
	size_t n = 0;
	uint64_t distinct = 0;

	for (size_t i = 0; i < t->n_sources; i++) {
		int rc = add_files(c, t->sources[i], &files, &n, e);

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
	uint64_t off[64] = { 0 }, len[64] = { 0 };
	size_t n;
	const struct catalog_source *s = catalog_sources(c->catalog, &n);
	const char *const *encodings = catalog_encodings(c->catalog, &n);
	const struct chunkmap *m;
	struct view_tensor shown;
	struct otensor *t;
	int rc;

	view_tensor(c->view, i, &shown);
	rc = otensor_map(c->fetch, shown.sources[0], &t, &m, e);

	if (rc)
		return rc;
	for (uint32_t k = 0; !rc && k < m->count; k++) {
		const struct chunk_loc *l = &m->locs[k];
		struct ckpt_chunk chunk = { .off = off,
					    .len = len,
					    .path = s[l->file].path,
					    .offset = l->offset,
					    .length = l->length,
					    .encoding = encodings[l->encoding] };

		chunkmap_box(m, k, off, len);
		rc = each(arg, &chunk);
	}
	otensor_close(c->fetch, t);
	return rc;
}

void ckpt_object(const struct ckpt *c, uint64_t i, struct ckpt_object *ret)
{
	const char *fqn;
	size_t n, len, number = view_object(c->view, i, &fqn, &len);
	const struct catalog_object *o = &catalog_objects(c->catalog, &n)[number];

	*ret = (struct ckpt_object){ .fqn = fqn,
				     .fqn_len = len,
				     .fault = ckpt_object_fault(c, number),
				     .path = "",
				     .encoding = "" };
	if (o->text) {
		ret->encoding = "text";
		ret->length = o->text_len;
	} else if (!o->fault) {
		ret->path = catalog_sources(c->catalog, &n)[o->loc.file].path;
		ret->encoding = catalog_encodings(c->catalog, &n)[o->loc.encoding];
		ret->offset = o->loc.offset;
		ret->length = o->loc.length;
	}
}

/* ---- paths ---- */

/* renamed: it is at the top, under its new name, whatever the path says. */
static size_t give_path(const char *fqn, size_t len, bool renamed, const uint8_t *path,
			struct ckpt_step *ret, size_t cap)
{
	struct catalog_steps steps =
		catalog_path_begin(renamed ? catalog_path_flat : path, fqn, (uint32_t)len);
	size_t n = steps.left;
	struct catalog_step s;

	while (n <= cap && catalog_path_next(&steps, &s))
		*ret++ = (struct ckpt_step){ .text = s.text,
					     .len = s.len,
					     .is_position = s.is_position,
					     .position = s.position };
	return n;
}

static bool differ(const char *a, size_t a_len, const char *b, size_t b_len)
{
	return a_len != b_len || memcmp(a, b, a_len) != 0;
}

size_t ckpt_tensor_path(const struct ckpt *c, uint64_t i, struct ckpt_step *ret, size_t cap)
{
	const struct catalog_tensor *from;
	struct view_tensor t;
	size_t n;

	view_tensor(c->view, i, &t);
	from = &catalog_tensors(c->catalog, &n)[t.sources[0]];
	return give_path(t.fqn, t.fqn_len, differ(t.fqn, t.fqn_len, from->fqn, from->fqn_len),
			 from->path, ret, cap);
}

size_t ckpt_object_path(const struct ckpt *c, uint64_t i, struct ckpt_step *ret, size_t cap)
{
	const char *fqn;
	size_t n, len, number = view_object(c->view, i, &fqn, &len);
	const struct catalog_object *from = &catalog_objects(c->catalog, &n)[number];

	return give_path(fqn, len, differ(fqn, len, from->fqn, from->fqn_len), from->path, ret,
			 cap);
}
