/* SPDX-License-Identifier: Apache-2.0 */
#include "format/zarr/zarr_array.h"

#include "base/buf.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "base/vec.h"
#include "format/raw_chunks.h"
#include "format/zarr/zarr_store.h"
#include "index/catalog_build.h"
#include "index/catalog_query.h"
#include "model/box.h"
#include "parse/zarr_metadata.h"
#include "source/source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- metadata ---- */

static int read_value(struct zarr_store *s, const struct zarr_value *v, uint8_t *to,
		      struct ckpt_err *e)
{
	struct source *file CLEANUP(source_freep) = NULL;
	int rc = place_file(s->place, v->file, &file, e);
	int64_t n;

	if (rc)
		return rc;
	n = source_read(file, to, (size_t)v->length, v->offset, e);
	if (n < 0)
		return err_wrap(e, "read '%s'", v->file);
	return (uint64_t)n == v->length
		       ? 0
		       : err_set(e, ERR_CORRUPT, "'%s' ends before the value at %llu", v->file,
				 (unsigned long long)v->offset);
}

int zarr_read(struct zarr_store *s, const char *key, size_t key_len, const struct zarr_value *v,
	      struct zarr_array *ret, struct ckpt_err *e)
{
	bool v3 = bytes_end(key, key_len, "zarr.json");
	autofree uint8_t *copy = NULL;
	int rc = 0;

	if (v->length > ZARR_MAX_METADATA)
		rc = err_set(e, EFBIG, "it has more than %zu MiB", ZARR_MAX_METADATA >> 20);
	if (!rc && !v->bytes) {
		copy = malloc((size_t)v->length + 1);
		rc = copy ? read_value(s, v, copy, e) : err_nomem(e);
	}
	if (!rc)
		rc = zarr_parse((const char *)(copy ? copy : v->bytes), (size_t)v->length, v3, ret,
				e);
	return rc < 0 ? err_wrap(e, "'%s'", FQN_TEXT(key, key_len)) : rc;
}

/* ---- the encoding of chunks ---- */

struct stored {
	uint64_t cell; /* its number in the grid */
	struct chunk_loc loc;
};

struct adding {
	const struct zarr_array *a;
	const struct zarr_level *leaf; /* of the innermost chunks */
	struct catalog_writer *w;
	uint64_t grid[CKPT_MAX_DIMS]; /* cells by axis */
	struct raw_layout layout;     /* of a chunk that is whole */
	uint64_t leaves;	      /* chunks in a shard, at the edges too */
	struct buf shard, codecs;     /* see struct raw_chunk; empty if there is none */
	struct chunk_loc fill;	      /* an element of the fill value */
	bool has_fill;
	char fault[160];
	struct stored *v; /* in the order of the store, then of the grid */
	size_t n, cap;
	struct raw_chunks found;
	uint64_t *total;
};

static const struct zarr_level *leaf_of(const struct zarr_array *a)
{
	return &a->level[a->n_levels - 1];
}

static bool is_sharded(const struct zarr_array *a)
{
	return a->n_levels > 1;
}

/* Strides, by axis of the array, of something with these sizes in C order of the encoded axes. */
static void strides_of(const struct zarr_level *l, size_t n, const uint64_t *size, uint64_t *ret)
{
	uint64_t step = 1;

	for (size_t i = n; i-- > 0; step *= size[l->axis[i]])
		ret[l->axis[i]] = step;
}

static void add_numbers(struct buf *b, const char *what, const uint64_t *v, size_t n)
{
	buf_str(b, what);
	for (size_t d = 0; d < n; d++) {
		buf_str(b, d ? "," : "");
		buf_u64(b, v[d]);
	}
}

static bool add_fill(struct adding *x, struct ckpt_err *e)
{
	if (!x->has_fill &&
	    catalog_add_inline(x->w, x->a->fill, dtype_info(x->a->dtype)->size, &x->fill, e))
		return false;
	x->has_fill = true;
	return true;
}

/* "shard:chunk=8,16:count=2,4:step=4,1:index=end:crc32c/" for each level of shards. */
static int name_shards(struct adding *x, bool absent_is_damage, struct ckpt_err *e)
{
	const struct zarr_array *a = x->a;
	size_t n = a->n_dims;

	x->leaves = 1;
	for (size_t i = 0; i + 1 < a->n_levels; i++) {
		const struct zarr_level *l = &a->level[i];
		uint64_t count[CKPT_MAX_DIMS], step[CKPT_MAX_DIMS];

		for (size_t d = 0; d < n; d++) {
			count[d] = l->chunk[d] / l[1].chunk[d];
			x->leaves *= count[d]; /* at most elements in a chunk: no overflow */
		}
		strides_of(l, n, count, step);
		add_numbers(&x->shard, "shard:chunk=", l[1].chunk, n);
		add_numbers(&x->shard, ":count=", count, n);
		add_numbers(&x->shard, ":step=", step, n);
		buf_str(&x->shard, l->index_first ? ":index=start" : ":index=end");
		buf_str(&x->shard, l->swap ? ":be" : "");
		buf_str(&x->shard, l->index_crc ? ":crc32c" : "");
		if (!absent_is_damage) {
			if (!add_fill(x, e))
				return -e->code;
			buf_str(&x->shard, ":fill=");
			buf_u64(&x->shard, x->fill.offset);
		}
		buf_str(&x->shard, "/");
	}
	for (size_t i = 0; i < x->leaf->n_codecs; i++) {
		buf_str(&x->codecs, "+");
		buf_str(&x->codecs, x->leaf->codec[i]);
	}
	return x->shard.err || x->codecs.err ? err_nomem(e) : 0;
}

/* ---- chunks that are stored ---- */

/* An index takes 16 bytes for each chunk, which bounds the work by what is stored. In a shard of
 * shards a few may be absent. */
static void check_shard(struct adding *x, const char *key, size_t key_len, uint64_t length)
{
	const struct zarr_level *l = x->a->level;
	uint64_t count = 1, spare = x->a->n_levels > 2 ? 1 << 16 : 0;

	for (size_t d = 0; d < x->a->n_dims; d++)
		count *= l->chunk[d] / l[1].chunk[d];
	if (!*x->fault && (length / 16 < count || length / 16 + spare < x->leaves))
		(void)snprintf(x->fault, sizeof(x->fault),
			       "its shard '%.60s' has %llu bytes, too few for the index of its "
			       "%llu chunks",
			       FQN_TEXT(key, key_len), (unsigned long long)length,
			       (unsigned long long)count);
}

/* Without a codec a chunk has the bytes of its elements, at the array's edges too: fewer would take
 * in what is stored behind them. */
static void check_plain(struct adding *x, const char *key, size_t key_len, uint64_t length)
{
	uint64_t need = dtype_info(x->a->dtype)->size;

	for (size_t d = 0; d < x->a->n_dims; d++)
		need *= x->leaf->chunk[d];
	if (!*x->fault && length != need)
		(void)snprintf(x->fault, sizeof(x->fault),
			       "its chunk '%.60s' has %llu bytes instead of %llu",
			       FQN_TEXT(key, key_len), (unsigned long long)length,
			       (unsigned long long)need);
}

struct listing {
	struct adding *x;
	size_t prefix;
};

/* The length of a file matters unless its bytes are elements: if it is written to in place, the
 * index no longer describes it. */
static int check_length(struct adding *x, const char *key, size_t key_len,
			const struct zarr_value *v, struct ckpt_err *e)
{
	bool plain = !is_sharded(x->a) && !x->leaf->n_codecs;

	if (is_sharded(x->a))
		check_shard(x, key, key_len, v->length);
	else if (plain)
		check_plain(x, key, key_len, v->length);
	return !v->seen || (plain && !*x->fault)
		       ? 0
		       : catalog_add_metadata(x->w, v->file, v->seen, NULL, e);
}

static int add_stored(void *arg, const char *key, size_t key_len, const struct zarr_value *v,
		      struct ckpt_err *e)
{
	const struct listing *l = arg;
	struct adding *x = l->x;
	uint64_t cell[CKPT_MAX_DIMS], number = 0;
	struct stored s = { .loc = { .offset = v->offset, .length = v->length } };
	int rc;

	if (!zarr_cell(x->a, key + l->prefix, key_len - l->prefix, cell))
		return 0; /* of another array, or left over from a larger one of that name */
	for (size_t d = 0; d < x->a->n_dims; d++)
		number = number * x->grid[d] + cell[d];
	s.cell = number;
	rc = check_length(x, key, key_len, v, e);
	if (!rc && v->bytes)
		rc = catalog_add_inline(x->w, v->bytes, (size_t)v->length, &s.loc, e);
	else if (!rc)
		rc = catalog_add_source(x->w, v->file, strlen(v->file), &s.loc.file, e);
	if (rc)
		return err_wrap(e, "'%s'", FQN_TEXT(key, key_len));
	if (!VEC_ROOM(x->v, x->cap, x->n + 1))
		return err_nomem(e);
	x->v[x->n++] = s;
	return 0;
}

static int by_cell(const void *ap, const void *bp)
{
	const struct stored *a = ap, *b = bp;

	return a->cell < b->cell ? -1 : a->cell > b->cell;
}

/* ---- chunks of the tensor ---- */

static int add_box(struct adding *x, const uint64_t *off, const uint64_t *len,
		   const struct chunk_loc *loc, struct ckpt_err *e)
{
	struct raw_chunk c = { .dtype = x->a->dtype,
			       .n_dims = x->a->n_dims,
			       .off = off,
			       .len = len,
			       .layout = &x->layout,
			       .file = loc->file,
			       .offset = loc->offset,
			       .length = loc->length,
			       .codecs = x->codecs.len ? x->codecs.data : NULL,
			       .shard = x->shard.len ? x->shard.data : NULL };

	return raw_chunks_add(&x->found, &c, x->w, x->total, e);
}

/* Adds a stored chunk, or the chunks of a shard; those outside the array are left out. */
static int add_cell(struct adding *x, const struct stored *s, struct ckpt_err *e)
{
	const struct zarr_array *a = x->a;
	size_t n = a->n_dims, d;
	uint64_t from[CKPT_MAX_DIMS], len[CKPT_MAX_DIMS];
	uint64_t off[CKPT_MAX_DIMS] = { 0 }, end[CKPT_MAX_DIMS] = { 0 };
	uint64_t number = s->cell;
	int rc;

	for (d = n; d-- > 0; number /= x->grid[d]) {
		from[d] = off[d] = number % x->grid[d] * a->level[0].chunk[d];
		end[d] = from[d] + min_u64(a->level[0].chunk[d], a->shape[d] - from[d]);
	}
	do {
		for (d = 0; d < n; d++)
			len[d] = min_u64(x->leaf->chunk[d], end[d] - off[d]);
		rc = add_box(x, off, len, &s->loc, e);
		for (d = n; !rc && d-- > 0; off[d] = from[d]) {
			off[d] += len[d]; /* less than a chunk only at the end */
			if (off[d] < end[d])
				break;
		}
	} while (!rc && d < n);
	return rc;
}

/* Adds a box of the fill value. */
static int add_filled(struct adding *x, const uint64_t *off, const uint64_t *len,
		      struct ckpt_err *e)
{
	static const struct raw_layout one = { 0 }; /* all strides 0 */
	struct raw_chunk c = {
		.dtype = x->a->dtype, .n_dims = x->a->n_dims, .off = off, .len = len, .layout = &one
	};

	if (!add_fill(x, e))
		return -e->code;
	c.file = x->fill.file;
	c.offset = x->fill.offset;
	return raw_chunks_add(&x->found, &c, x->w, x->total, e);
}

/* Adds the cells [at, end), which are not stored, as few boxes: from each position as many whole
 * rows, or planes, as there are. */
static int add_absent(struct adding *x, uint64_t at, uint64_t end, struct ckpt_err *e)
{
	const struct zarr_array *a = x->a;
	size_t n = a->n_dims;
	int rc = 0;

	while (!rc && at < end) {
		uint64_t off[CKPT_MAX_DIMS], len[CKPT_MAX_DIMS], size = 1, many = 1;
		uint64_t number = at;
		size_t d = n; /* the box has `many` cells along d, and all of those behind it */

		while (d > 0) {
			d--;
			many = min_u64((end - at) / size, x->grid[d] - at / size % x->grid[d]);
			if (many < x->grid[d] || !d)
				break;
			size *= x->grid[d];
		}
		for (size_t k = n; k-- > 0; number /= x->grid[k]) {
			uint64_t cells = k > d ? x->grid[k] : k == d ? many : 1;

			off[k] = number % x->grid[k] * a->level[0].chunk[k];
			len[k] = min_u64(cells * a->level[0].chunk[k], a->shape[k] - off[k]);
		}
		rc = add_filled(x, off, len, e);
		at += many * size;
	}
	return rc;
}

static int add_chunks(struct adding *x, bool absent_is_damage, struct ckpt_err *e)
{
	uint64_t at = 0, cells = 1;
	int rc = 0;

	for (size_t d = 0; d < x->a->n_dims; d++)
		cells *= x->grid[d];
	if (x->n)
		qsort(x->v, x->n, sizeof(*x->v), by_cell);
	for (size_t i = 0; !rc && i < x->n; i++) {
		if (x->v[i].cell < at)
			continue; /* twice */
		if (!absent_is_damage)
			rc = add_absent(x, at, x->v[i].cell, e);
		if (!rc)
			rc = add_cell(x, &x->v[i], e);
		at = x->v[i].cell + 1;
	}
	return rc || absent_is_damage ? rc : add_absent(x, at, cells, e);
}

/* ---- the tensor ---- */

static int add_tensor(struct adding *x, const struct zarr_name *n, const char *fault,
		      struct ckpt_err *e)
{
	bool ok = !fault;

	return catalog_add_tensor(x->w,
				  &(struct tensor_chunks){ .fqn = n->fqn,
							   .fqn_len = n->fqn_len,
							   .path = n->path,
							   .dtype = x->a->dtype,
							   .n_dims = x->a->n_dims,
							   .shape = x->a->shape,
							   .count = ok ? (uint32_t)x->found.n : 0,
							   .boxes = x->found.boxes,
							   .locs = x->found.locs,
							   .fault = fault },
				  e);
}

/* One without a dtype cannot be a tensor. */
static int add_unsupported(struct adding *x, const struct zarr_name *n, struct ckpt_err *e)
{
	char why[200];

	(void)snprintf(why, sizeof(why), CATALOG_UNSUPPORTED "%s", x->a->unsupported);
	if (x->a->dtype != CKPT_DTYPE_NONE)
		return add_tensor(x, n, why, e);
	return catalog_add_object(
		x->w,
		&(struct object_item){
			.fqn = n->fqn, .fqn_len = n->fqn_len, .path = n->path, .fault = why },
		e);
}

static int add_supported(struct adding *x, struct zarr_store *s, const struct zarr_name *n,
			 bool absent_is_damage, struct ckpt_err *e)
{
	const struct zarr_array *a = x->a;
	struct listing l = { x, n->name_len ? n->name_len + 1 : 0 };
	struct buf prefix CLEANUP(buf_release) = BUF_INIT((size_t)1 << 20);
	int rc;

	for (size_t d = 0; d < a->n_dims; d++)
		x->grid[d] = a->shape[d] ? (a->shape[d] - 1) / a->level[0].chunk[d] + 1 : 0;
	x->layout.swap = x->leaf->swap;
	strides_of(x->leaf, a->n_dims, x->leaf->chunk, x->layout.stride);
	buf_add(&prefix, n->name, n->name_len);
	buf_str(&prefix, n->name_len ? "/" : "");
	if (prefix.err)
		return err_nomem(e);
	rc = name_shards(x, absent_is_damage, e);
	if (!rc)
		rc = s->ops->chunks(s, prefix.len ? prefix.data : "", prefix.len, add_stored, &l,
				    e);
	if (!rc && !*x->fault && add_chunks(x, absent_is_damage, e))
		rc = err_wrap(e, "array '%s'", FQN_TEXT(n->name, n->name_len));
	return rc ? rc : add_tensor(x, n, *x->fault ? x->fault : NULL, e);
}

int zarr_add_array(struct zarr_store *s, const struct zarr_name *n, const struct zarr_array *a,
		   bool absent_is_damage, struct catalog_writer *w, uint64_t *total,
		   struct ckpt_err *e)
{
	struct adding x = { .a = a,
			    .leaf = leaf_of(a),
			    .w = w,
			    .total = total,
			    .shard = BUF_INIT(1 << 15),
			    .codecs = BUF_INIT(1 << 10) };
	uint64_t volume;
	int rc;

	if (!box_volume(a->n_dims, a->shape, &volume))
		rc = err_set(e, ERR_CORRUPT, "array '%s': its shape has more than 2^63 elements",
			     FQN_TEXT(n->name, n->name_len));
	else if (*a->unsupported)
		rc = add_unsupported(&x, n, e);
	else
		rc = add_supported(&x, s, n, absent_is_damage, e);
	raw_chunks_release(&x.found);
	buf_release(&x.shard);
	buf_release(&x.codecs);
	free(x.v);
	return rc;
}
