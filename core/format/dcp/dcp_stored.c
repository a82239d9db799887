/* SPDX-License-Identifier: Apache-2.0 */
#include "format/dcp/dcp_stored.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/search.h"
#include "base/vec.h"
#include "format/dcp/dcp_records.h"
#include "index/catalog_build.h"
#include "model/box.h"

#include <stdlib.h>
#include <string.h>

int dcp_storage_init(struct dcp_storage *x, struct ckpt_err *e)
{
	const struct byte_store *s = &x->r->storage;
	uint32_t n_strings = pk_strings_count(x->r->strings);

	x->first = calloc((size_t)n_strings + 2, sizeof(*x->first));
	x->at = malloc((x->r->n_storage + 1) * sizeof(*x->at));
	x->sources = calloc((size_t)n_strings + 1, sizeof(*x->sources));
	if (!x->first || !x->at || !x->sources)
		return err_nomem(e);
	/* A counting sort, which keeps their order. */
	for (int pass = 0; s->len && pass < 2; pass++) {
		const uint8_t *p = s->data, *end = p + s->len;

		while (p < end) {
			uint64_t here = (uint64_t)(p - s->data), fqn = get_varint(&p), dims;

			skip_varints(&p, 5);
			dims = get_varint(&p);
			skip_varints(&p, dims ? dims - 1 : 0);
			if (x->r->sized && dims && get_varint(&p) != CKPT_DTYPE_NONE)
				skip_varints(&p, dims - 1);
			if (pass == 0)
				x->first[fqn + 2]++;
			else
				x->at[x->first[fqn + 1]++] = here;
		}
		/* After the sums first[id+1] is where id begins; filling moves it to where it
		 * ends. */
		for (uint32_t i = 2; pass == 0 && i < n_strings + 2u; i++)
			x->first[i] += x->first[i - 1];
	}
	return 0;
}

void dcp_storage_release(struct dcp_storage *x)
{
	free(x->first);
	free(x->at);
	free(x->sources);
	free(x->v);
	free(x->offs);
}

char *dcp_storage_path(const struct dcp_storage *x, uint32_t path)
{
	const struct pk_str *name = pk_string(x->r->strings, path);
	char *full = malloc(x->dir_len + name->len + 1);

	if (!full)
		return NULL;
	if (x->dir_len)
		memcpy(full, x->dir, x->dir_len);
	memcpy(full + x->dir_len, name->data, name->len + 1u);
	return full;
}

static int source_of(struct dcp_storage *x, uint32_t path, const char *fqn, uint32_t *ret,
		     struct ckpt_err *e)
{
	if (!x->sources[path]) {
		autofree char *full = dcp_storage_path(x, path);
		uint32_t id;

		if (!full)
			return err_nomem(e);
		if (catalog_add_source(x->w, full, strlen(full), &id, e))
			return err_wrap(e, "'%.100s'", fqn);
		x->sources[path] = id + 1;
	}
	*ret = x->sources[path] - 1;
	return 0;
}

int dcp_storage_load(struct dcp_storage *x, const struct pk_str *fqn, struct ckpt_err *e)
{
	uint64_t from = x->first[fqn->id], to = x->first[fqn->id + 1u];
	size_t n = (size_t)(to - from), used = 0, total = 0;
	int rc = 0;

	for (size_t i = 0; i < n; i++) {
		const uint8_t *p = x->r->storage.data + x->at[from + i];

		skip_varints(&p, 6);
		total += (x->r->sized ? 2 : 1) * get_varint(&p);
	}
	if (!VEC_ROOM(x->v, x->cap, n) || !VEC_ROOM(x->offs, x->cap_offs, total + 1))
		return err_nomem(e);
	for (size_t i = 0; !rc && i < n; i++) {
		const uint8_t *p = x->r->storage.data + x->at[from + i];
		struct dcp_stored *s = &x->v[i];
		uint64_t dims;

		(void)get_varint(&p);
		*s = (struct dcp_stored){ .rank = (uint32_t)get_varint(&p), .order = (uint32_t)i };
		s->path = (uint32_t)get_varint(&p);
		s->loc.encoding = (uint32_t)get_varint(&p);
		s->loc.offset = get_varint(&p);
		s->loc.length = get_varint(&p);
		dims = get_varint(&p);
		s->is_bytes = !dims;
		s->n_dims = (uint8_t)(dims ? dims - 1 : 0);
		s->off = x->offs + used;
		for (size_t d = 0; d < s->n_dims; d++)
			x->offs[used++] = get_varint(&p);
		s->size = x->offs + used;
		s->dtype = x->r->sized && dims ? (uint8_t)get_varint(&p) : CKPT_DTYPE_NONE;
		for (size_t d = 0; s->dtype && d < s->n_dims; d++)
			x->offs[used++] = get_varint(&p);
		rc = source_of(x, s->path, fqn->data, &s->loc.file, e);
	}
	x->n = n;
	x->sorted = false;
	return rc;
}

static int by_key(const struct dcp_stored *a, const struct dcp_stored *b)
{
	if (a->rank != b->rank)
		return a->rank < b->rank ? -1 : 1;
	if (a->is_bytes != b->is_bytes)
		return a->is_bytes ? -1 : 1;
	if (a->n_dims != b->n_dims)
		return a->n_dims < b->n_dims ? -1 : 1;
	return box_compare_off(a->n_dims, a->off, b->off);
}

static int by_key_and_order(const void *ap, const void *bp)
{
	const struct dcp_stored *a = ap, *b = bp;
	int c = by_key(a, b);

	return c ? c : a->order < b->order ? -1 : a->order > b->order;
}

/* Position in x->v, which is then sorted, where entries with a key like this begin or, if `beyond`,
 * end. */
static size_t find_bound(struct dcp_storage *x, const struct dcp_stored *key, bool beyond)
{
	if (!x->sorted && x->n)
		qsort(x->v, x->n, sizeof(*x->v), by_key_and_order);
	x->sorted = true;
	return PARTITION_POINT(i, x->n, by_key(&x->v[i], key) < (beyond ? 1 : 0));
}

const struct dcp_stored *dcp_storage_find(struct dcp_storage *x, const struct dcp_stored *key)
{
	size_t end = find_bound(x, key, true);

	return end && !by_key(&x->v[end - 1], key) ? &x->v[end - 1] : NULL;
}

bool dcp_stored_is(const struct dcp_stored *s, enum ckpt_dtype dtype, const uint64_t *len)
{
	return !s->dtype || (s->dtype == dtype && !box_compare_off(s->n_dims, s->size, len));
}

const struct dcp_stored *dcp_storage_find_sized(struct dcp_storage *x, const struct dcp_stored *key,
						enum ckpt_dtype dtype, const uint64_t *len)
{
	const struct dcp_stored *best = NULL;

	for (size_t i = find_bound(x, key, false); i < x->n; i++) {
		const struct dcp_stored *s = &x->v[i];

		if (by_key(s, key))
			break;
		if (!best || (dcp_stored_is(s, dtype, len) && !dcp_stored_is(best, dtype, len)))
			best = s;
		if (s->dtype && dcp_stored_is(s, dtype, len))
			return s;
	}
	return best;
}

bool dcp_storage_in_step(const struct dcp_storage *x, const uint64_t *boxes, const uint32_t *ranks,
			 size_t n, size_t count)
{
	if (x->n != count)
		return false;
	for (size_t i = 0; i < count; i++) {
		const struct dcp_stored *s = &x->v[i];

		if (s->is_bytes || s->rank != ranks[i] || s->n_dims != n ||
		    box_compare_off(n, s->off, boxes + i * 2 * n) != 0)
			return false;
	}
	return true;
}
