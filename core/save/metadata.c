/* SPDX-License-Identifier: Apache-2.0 */
#include "save/metadata.h"

#include "base/arena.h"
#include "base/checked.h"
#include "base/err.h"
#include "base/text.h"
#include "model/box.h"
#include "model/dtype.h"

#include <string.h>
#include <xxhash.h>

static bool same_bytes(const char *a, size_t an, const char *b, size_t bn)
{
	return an == bn && (!an || !memcmp(a, b, an));
}

static bool same_dims(const uint64_t *a, const uint64_t *b, size_t n)
{
	return !n || !memcmp(a, b, n * sizeof(*a));
}

bool meta_index_equal(const struct ckpt_meta_index *a, const struct ckpt_meta_index *b)
{
	return same_bytes(a->fqn, a->fqn_len, b->fqn, b->fqn_len) &&
	       a->has_offset == b->has_offset && a->n_dims == b->n_dims &&
	       same_dims(a->offset, b->offset, a->n_dims);
}

uint64_t meta_index_hash(const struct ckpt_meta_index *x)
{
	uint64_t h = XXH3_64bits(x->fqn, x->fqn_len);

	return x->has_offset
		       ? XXH3_64bits_withSeed(x->offset, x->n_dims * sizeof(*x->offset), h + 1)
		       : h;
}

bool tensor_props_equal(const struct ckpt_tensor_props *a, const struct ckpt_tensor_props *b)
{
	return a->dtype == b->dtype && a->memory_format == b->memory_format &&
	       a->requires_grad == b->requires_grad && a->pin_memory == b->pin_memory;
}

/* ---- comparing plans ---- */

static bool same_item(const struct ckpt_write_item *a, const struct ckpt_write_item *b)
{
	size_t n = a->index.n_dims;

	if (a->type != b->type || a->index.hint != b->index.hint ||
	    !meta_index_equal(&a->index, &b->index))
		return false;
	return a->type == CKPT_WRITE_BYTE_IO ||
	       (tensor_props_equal(&a->props, &b->props) && same_dims(a->size, b->size, n) &&
		same_dims(a->chunk.off, b->chunk.off, n) &&
		same_dims(a->chunk.len, b->chunk.len, n));
}

static bool same_path(const struct ckpt_fqn_path *a, const struct ckpt_fqn_path *b)
{
	if (!same_bytes(a->fqn, a->fqn_len, b->fqn, b->fqn_len) || a->n_steps != b->n_steps)
		return false;
	for (size_t i = 0; i < a->n_steps; i++) {
		const struct ckpt_path_step *s = &a->steps[i], *t = &b->steps[i];

		if (!s->key != !t->key)
			return false;
		if (s->key ? !same_bytes(s->key, s->key_len, t->key, t->key_len)
			   : s->position != t->position)
			return false;
	}
	return true;
}

bool save_plan_equal(const struct ckpt_save_plan *a, const struct ckpt_save_plan *b)
{
	if (a->n_items != b->n_items || a->n_paths != b->n_paths || a->unchanged != b->unchanged)
		return false;
	for (size_t i = 0; i < a->n_items; i++)
		if (!same_item(&a->items[i], &b->items[i]))
			return false;
	for (size_t i = 0; i < a->n_paths; i++)
		if (!same_path(&a->paths[i], &b->paths[i]))
			return false;
	return true;
}

/* ---- copying plans ---- */

/* Offset, length, shape; an index has its chunk's offset, usually the same array. */
static bool copy_item(const struct ckpt_write_item *from, struct arena *a,
		      struct ckpt_write_item *to)
{
	size_t n = from->index.n_dims, bytes = n * sizeof(uint64_t);
	bool shared = from->index.offset == from->chunk.off;
	uint64_t *dims;

	*to = *from;
	to->index.fqn = arena_dup(a, from->index.fqn, from->index.fqn_len);
	if (!to->index.fqn)
		return false;
	if (from->type == CKPT_WRITE_BYTE_IO)
		return true;
	dims = arena_alloc(a, (shared ? 3 : 4) * bytes);
	if (!dims)
		return false;
	to->chunk = (struct ckpt_chunk_meta){ dims, dims + n };
	to->size = dims + 2 * n;
	to->index.offset = shared ? dims : dims + 3 * n;
	if (!n)
		return true;
	memcpy(dims, from->chunk.off, bytes);
	memcpy(dims + n, from->chunk.len, bytes);
	memcpy(dims + 2 * n, from->size, bytes);
	if (!shared)
		memcpy(dims + 3 * n, from->index.offset, bytes);
	return true;
}

static bool copy_path(const struct ckpt_fqn_path *from, struct arena *a, struct ckpt_fqn_path *to)
{
	struct ckpt_path_step *steps = arena_array(a, from->n_steps, sizeof(*steps));

	*to = *from;
	to->fqn = arena_dup(a, from->fqn, from->fqn_len);
	to->steps = steps;
	if (!steps || !to->fqn)
		return false;
	for (size_t i = 0; i < from->n_steps; i++) {
		steps[i] = from->steps[i];
		if (!steps[i].key)
			continue;
		steps[i].key = arena_dup(a, from->steps[i].key, from->steps[i].key_len);
		if (!steps[i].key)
			return false;
	}
	return true;
}

int save_plan_copy(const struct ckpt_save_plan *p, struct arena *a, struct ckpt_save_plan *ret,
		   struct ckpt_err *e)
{
	struct ckpt_write_item *items = arena_array(a, p->n_items, sizeof(*items));
	struct ckpt_fqn_path *paths = arena_array(a, p->n_paths, sizeof(*paths));
	void *storage = arena_dup(a, p->storage, p->storage_len);
	bool ok = items && paths && storage;

	for (size_t i = 0; ok && i < p->n_items; i++)
		ok = copy_item(&p->items[i], a, &items[i]);
	for (size_t i = 0; ok && i < p->n_paths; i++)
		ok = copy_path(&p->paths[i], a, &paths[i]);
	if (!ok)
		return err_set(e, ENOMEM, "copy a plan of %zu items: out of memory", p->n_items);
	*ret = *p;
	ret->items = items;
	ret->paths = paths;
	ret->storage = p->storage_len ? storage : NULL;
	return 0;
}

/* ---- sizes ---- */

static int bytes_of(const struct ckpt_write_item *w, const uint64_t *len, uint64_t *ret,
		    struct ckpt_err *e)
{
	uint64_t v;

	if (!box_volume(w->index.n_dims, len, &v) ||
	    ckd_mul(&v, v, dtype_info(w->props.dtype)->size) || v > INT64_MAX)
		return err_set(e, EINVAL, "'%s': more than 2^63 - 1 bytes",
			       FQN_TEXT(w->index.fqn, w->index.fqn_len));
	*ret = v;
	return 0;
}

int write_item_tensor_bytes(const struct ckpt_write_item *w, uint64_t *ret, struct ckpt_err *e)
{
	return bytes_of(w, w->size, ret, e);
}

int write_item_chunk_bytes(const struct ckpt_write_item *w, uint64_t *ret, struct ckpt_err *e)
{
	return bytes_of(w, w->chunk.len, ret, e);
}
