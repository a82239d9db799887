/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec_util - checks that a value decoded by plan_codec can be used, by reading everything it
 * points to.
 */
#ifndef TESTS_CODEC_UTIL_H
#define TESTS_CODEC_UTIL_H

#include "model/box.h"
#include "save/metadata.h"

#include <string.h>

static inline bool bytes_ok(const char *s, size_t n)
{
	volatile char sum = 0;

	for (size_t i = 0; s && i < n; i++)
		sum = (char)(sum ^ s[i]);
	return s != NULL;
}

static inline bool dims_ok(const uint64_t *v, size_t n)
{
	volatile uint64_t sum = 0;

	for (size_t i = 0; v && i < n; i++)
		sum = sum ^ v[i];
	return v != NULL && n <= CKPT_MAX_DIMS;
}

static inline bool index_ok(const struct ckpt_meta_index *x)
{
	return bytes_ok(x->fqn, x->fqn_len) && x->hint >= CKPT_META_NO_HINT &&
	       (x->has_offset ? dims_ok(x->offset, x->n_dims) : x->n_dims == 0);
}

static inline bool save_plan_ok(const struct ckpt_save_plan *p)
{
	bool ok = p->storage_len ? bytes_ok(p->storage, p->storage_len) : !p->storage;

	for (size_t i = 0; i < p->n_items && ok; i++) {
		const struct ckpt_write_item *w = &p->items[i];
		size_t n = w->index.n_dims;

		ok = index_ok(&w->index) && w->type <= CKPT_WRITE_SHARD;
		if (w->type != CKPT_WRITE_BYTE_IO)
			ok &= dims_ok(w->chunk.off, n) && dims_ok(w->chunk.len, n) &&
			      dims_ok(w->size, n) && w->props.dtype != CKPT_DTYPE_NONE &&
			      w->props.dtype < CKPT_DTYPE_COUNT &&
			      w->props.memory_format <= CKPT_MEMORY_PRESERVE;
	}
	for (size_t i = 0; i < p->n_paths && ok; i++) {
		const struct ckpt_fqn_path *path = &p->paths[i];

		ok = bytes_ok(path->fqn, path->fqn_len);
		for (size_t k = 0; k < path->n_steps && ok; k++)
			ok = !path->steps[k].key ||
			     bytes_ok(path->steps[k].key, path->steps[k].key_len);
	}
	return ok;
}

static inline bool load_plan_ok(const struct ckpt_load_plan *p)
{
	for (size_t i = 0; i < p->n_items; i++) {
		const struct ckpt_read_item *x = &p->items[i];

		if (!index_ok(&x->dest) || !index_ok(&x->storage) || x->type > CKPT_READ_TENSOR ||
		    !dims_ok(x->dest_off, x->n_dims) || !dims_ok(x->storage_off, x->n_dims) ||
		    !dims_ok(x->len, x->n_dims))
			return false;
	}
	return true;
}

static inline bool results_ok(const struct ckpt_write_result *v, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const struct ckpt_storage_info *s = &v[i].info;

		if (!index_ok(&v[i].index) || !s->path || !bytes_ok(s->path, strlen(s->path)) ||
		    (s->tensor_key && !bytes_ok(s->tensor_key, s->tensor_key_len)) ||
		    (s->transform && !bytes_ok(s->transform, strlen(s->transform))))
			return false;
	}
	return true;
}

#endif
