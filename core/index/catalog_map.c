/* SPDX-License-Identifier: Apache-2.0 */
/* Chunk maps: our own JSON, and nothing but what put_map in catalog_build.c writes. */
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "index/catalog_internal.h"
#include "index/catalog_schema.h"
#include "model/box.h"

#include <stdlib.h>
#include <string.h>

static void get_char(struct cursor *d, char want)
{
	const uint8_t *p = cursor_take(d, 1);

	d->bad |= !p || *p != (uint8_t)want;
}

static uint64_t get_decimal(struct cursor *d)
{
	const uint8_t *from = d->p;
	uint64_t v = 0;

	for (; d->p < d->end && *d->p >= '0' && *d->p <= '9'; d->p++)
		d->bad |= ckd_mul(&v, v, 10) || ckd_add(&v, v, (uint64_t)(*d->p - '0'));
	d->bad |= d->p == from;
	return v;
}

static void get_list(struct cursor *d, uint64_t *v, size_t n)
{
	get_char(d, '[');
	for (size_t i = 0; i < n; i++) {
		if (i)
			get_char(d, ',');
		v[i] = get_decimal(d);
	}
	get_char(d, ']');
}

/* Reads a chunk of a tensor. The hash proves only that the text is complete, not that its numbers
 * are correct. */
static void get_chunk(const struct catalog *c, const struct catalog_tensor *t, struct cursor *d,
		      uint64_t *box, struct chunk_loc *loc)
{
	size_t n = t->n_dims;
	uint64_t v[4], end;

	get_char(d, '[');
	get_list(d, box, n);
	get_char(d, ',');
	get_list(d, box + n, n);
	for (size_t k = 0; k < ARRAY_LEN(v); k++) {
		get_char(d, ',');
		v[k] = get_decimal(d);
	}
	get_char(d, ']');
	if (d->bad || !box_inside(n, box, box + n, t->shape) || v[0] >= c->n_sources ||
	    v[3] >= c->n_encodings || ckd_add(&end, v[1], v[2]) || end > c->sources[v[0]].min_size)
		d->bad = true;
	else
		*loc = (struct chunk_loc){ .file = (uint32_t)v[0],
					   .offset = v[1],
					   .length = v[2],
					   .encoding = (uint32_t)v[3] };
}

/*
 * A grid always covers its tensor. For other chunks the index only claims so: they are checked when
 * the tensor is first read. The work for all tensors together has the builder's limit, so it
 * suffices for a genuine index, and reading a forged one repeatedly cannot cost more.
 */
static int check_cover(struct catalog *c, const struct catalog_tensor *t, const uint64_t *boxes,
		       struct ckpt_err *e)
{
	uint64_t off[CKPT_MAX_DIMS], len[CKPT_MAX_DIMS], before, work;
	uint8_t *covered = &c->covered[t->row];
	enum boxes_verdict verdict;
	size_t pair[2];

	{
		SCOPED_LOCK(&c->lock);
		if (*covered)
			return 0;
		before = work = c->cover_work;
	}
	verdict = boxes_cover(t->n_dims, t->shape, boxes, t->chunks, &work, off, len, pair);
	SCOPED_LOCK(&c->lock);
	if (!*covered) /* another thread may have done, and counted, the same work */
		c->cover_work -= min_u64(c->cover_work, before - work);
	if (verdict == BOXES_UNKNOWN) /* the builder would have marked the tensor as incomplete */
		return catalog_damaged(e,
				       "chunk map with a hole, or too irregular for one of ours");
	if (verdict == BOXES_HOLE)
		return catalog_damaged(e, "chunk map with a hole");
	*covered = 1;
	return 0;
}

static int map_from_text(struct catalog *c, const struct catalog_tensor *t, const char *text,
			 struct chunkmap **ret, struct ckpt_err *e)
{
	struct cursor d = cursor_of(text, t->map_bytes);
	size_t n = t->n_dims, row = n ? 2 * n : 1, count = t->chunks;
	/* The map's length, given in the directory, bounds count. */
	autofree uint64_t *boxes = reallocarray(NULL, count ? count : 1, row * sizeof(*boxes));
	autofree struct chunk_loc *locs = reallocarray(NULL, count ? count : 1, sizeof(*locs));
	autofree struct chunkmap *m = NULL;

	if (!boxes || !locs)
		return catalog_no_memory(e);
	get_char(&d, '[');
	for (size_t i = 0; i < count && !d.bad; i++) {
		if (i) {
			get_char(&d, ',');
			get_char(&d, '\n');
		}
		get_chunk(c, t, &d, boxes + i * 2 * n, &locs[i]);
	}
	get_char(&d, ']');
	if (d.bad || d.p != d.end)
		return catalog_damaged(e, "chunk map");
	m = chunkmap_new(n, t->shape, boxes, t->chunks);
	if (!m)
		return catalog_no_memory(e);
	if (!m->counts && t->state != TENSOR_INCOMPLETE && check_cover(c, t, boxes, e))
		return -e->code;
	if (count)
		memcpy(m->locs, locs, count * sizeof(*locs));
	*ret = steal_ptr(&m);
	return 0;
}

/* Moves c->map to the map of a tensor. Call with the lock held. */
static int seek_map(struct catalog *c, const struct catalog_tensor *t, struct ckpt_err *e)
{
	int rc =
		c->map ? sqlite3_blob_reopen(c->map, t->map)
		       : sqlite3_blob_open(c->db, "main", "chunkmap", "chunks", t->map, 0, &c->map);

	if (rc)
		rc = catalog_no_value(c, "no chunk map", e);
	else if ((size_t)sqlite3_blob_bytes(c->map) != t->map_bytes)
		rc = catalog_damaged(e, "chunk map of another length");
	if (rc) {
		(void)sqlite3_blob_close(c->map);
		c->map = NULL;
	}
	return rc;
}

int catalog_load_map(struct catalog *c, const struct catalog_tensor *t, struct chunkmap **ret,
		     struct ckpt_err *e)
{
	autofree char *text = malloc(t->map_bytes ? t->map_bytes : 1);
	int rc;

	if (!text)
		return catalog_no_memory(e);
	{
		SCOPED_LOCK(&c->lock);

		rc = seek_map(c, t, e);
		if (!rc && sqlite3_blob_read(c->map, text, (int)t->map_bytes, 0))
			rc = sql_err(c->db, e, "chunk index");
	}
	if (rc)
		return rc;
	if (catalog_hash(text, t->map_bytes) != t->map_xxh64)
		return catalog_damaged(e, "chunk map does not match its hash");
	return map_from_text(c, t, text, ret, e);
}
