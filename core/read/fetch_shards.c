/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the chunks of a tensor are inside its shards (format/shard.h).
 *
 * The index of each shard is read once, in the order of the file; a shard of shards takes a pass
 * over all chunks for each level. A forged chunk map could have every chunk in a shard of its own
 * with an index of 256 MiB, so what a tensor's indexes may take together is bounded.
 */
#include "base/buf.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "format/shard.h"
#include "index/catalog_query.h"
#include "read/fetch_internal.h"
#include "source/files.h"

#include <stdlib.h>

#define MAX_INDEXES ((uint64_t)4 << 30) /* bytes of the indexes that opening a tensor reads */
enum { AHEAD = 32 };			/* shards whose indexes are requested in advance */

struct resolving {
	struct fetch *f;
	struct otensor *t;
	uint32_t *order; /* the chunks that are in a shard */
	size_t n;
	uint64_t left; /* of MAX_INDEXES */
	uint8_t *index;
	size_t cap;
};

static const struct encoding *encoding_of(const struct resolving *r, size_t i)
{
	return &r->f->encodings[r->t->locs[r->order[i]].encoding];
}

static int same_shard(const struct chunk_loc *a, const struct chunk_loc *b)
{
	const uint64_t x[] = { a->file, a->offset, a->length, a->encoding };
	const uint64_t y[] = { b->file, b->offset, b->length, b->encoding };

	for (size_t i = 0; i < ARRAY_LEN(x); i++)
		if (x[i] != y[i])
			return x[i] < y[i] ? -1 : 1;
	return 0;
}

static int by_shard(const void *ap, const void *bp, void *arg)
{
	const struct chunk_loc *locs = arg;

	return same_shard(&locs[*(const uint32_t *)ap], &locs[*(const uint32_t *)bp]);
}

/* The chunks that are in a shard still, by shard. */
static void list_chunks(struct resolving *r)
{
	struct otensor *t = r->t;

	r->n = 0;
	for (uint32_t i = 0; i < t->map->count; i++)
		if (r->f->encodings[t->locs[i].encoding].kind == ENC_SHARD)
			r->order[r->n++] = i;
	if (r->n)
		qsort_r(r->order, r->n, sizeof(*r->order), by_shard, t->locs);
}

/* Where the index of a shard is; false: the shard has fewer bytes. */
static bool index_at(const struct shard_layout *l, const struct chunk_loc *loc, uint64_t *ret)
{
	uint64_t size = shard_index_size(l);

	*ret = loc->offset + (l->at_start ? 0 : loc->length - min_u64(size, loc->length));
	return size <= loc->length;
}

static void request_index(struct resolving *r, size_t i)
{
	const struct chunk_loc *loc = &r->t->locs[r->order[i]];
	const struct shard_layout *l = encoding_of(r, i)->shard;
	uint64_t at;

	if (index_at(l, loc, &at))
		(void)files_want(r->f->store.files, loc->file, at, shard_index_size(l));
}

static int read_index(struct resolving *r, const struct shard_layout *l,
		      const struct chunk_loc *loc, struct ckpt_err *e)
{
	size_t size = shard_index_size(l);
	uint64_t at;
	int rc;

	if (!index_at(l, loc, &at))
		return err_set(e, ERR_CORRUPT,
			       "it has %llu bytes, but the index of its %llu chunks has %zu",
			       (unsigned long long)loc->length, (unsigned long long)l->chunks,
			       size);
	if (size > r->left)
		return err_set(e, EFBIG,
			       "the indexes of the tensor's shards are more than %llu GiB",
			       (unsigned long long)(MAX_INDEXES >> 30));
	r->left -= size;
	if (size > r->cap) {
		free(r->index);
		r->index = malloc(size);
		r->cap = r->index ? size : 0;
	}
	if (!r->index)
		return err_nomem(e);
	rc = files_read(r->f->store.files, loc->file, r->index, size, at, e);
	if (!rc && !shard_index_ok(l, r->index))
		return err_set(e, ERR_CORRUPT,
			       "the index of its chunks does not match its CRC-32C");
	return rc;
}

/* ---- chunks ---- */

/* The place of a chunk that a shard of encoding x lacks; false: it may not lack any. */
static bool shard_absent(const struct fetch *f, const struct encoding *x,
			 const struct catalog_tensor *t, struct chunk_loc *ret)
{
	uint64_t element = dtype_info(t->dtype)->size, end;

	if (!x->shard->has_fill || ckd_add(&end, x->shard->fill, element) || end > f->inline_size)
		return false;
	*ret = (struct chunk_loc){ .file = f->inline_file,
				   .offset = x->shard->fill,
				   .length = element,
				   .encoding = x->absent };
	return true;
}

/* The place of a chunk that a shard has; false: it is not inside the shard. */
static bool shard_present(const struct chunk_loc *shard, uint32_t encoding, uint64_t offset,
			  uint64_t length, struct chunk_loc *ret)
{
	if (offset > shard->length || length > shard->length - offset)
		return false;
	*ret = (struct chunk_loc){ .file = shard->file,
				   .offset = shard->offset + offset,
				   .length = length,
				   .encoding = encoding };
	return true;
}

static int find_chunk(struct resolving *r, const struct encoding *x, const struct chunk_loc *shard,
		      uint32_t chunk, struct ckpt_err *e)
{
	uint64_t off[CKPT_MAX_DIMS], len[CKPT_MAX_DIMS];
	size_t n = r->t->map->n_dims;
	struct chunk_loc *ret = &r->t->locs[chunk];
	struct shard_chunk c;

	chunkmap_box(r->t->map, chunk, off, len);
	c = shard_entry(x->shard, r->index, shard_number(x->shard, off));
	if (c.absent ? shard_absent(r->f, x, r->t->t, ret)
		     : shard_present(shard, x->inner, c.offset, c.length, ret))
		return 0;
	if (c.absent)
		return err_set(e, ERR_CORRUPT, "the chunk at %s is missing", TUPLE_TEXT(off, n));
	return err_set(e, ERR_CORRUPT,
		       "the chunk at %s has %llu bytes at %llu, but the shard has only %llu",
		       TUPLE_TEXT(off, n), (unsigned long long)c.length,
		       (unsigned long long)c.offset, (unsigned long long)shard->length);
}

/* Finds the chunks of the shard that chunk i of the list is in; *ret is the first of another. */
static int find_in_shard(struct resolving *r, size_t i, size_t *ret, struct ckpt_err *e)
{
	const struct otensor *t = r->t;
	const struct chunk_loc shard = t->locs[r->order[i]];
	const struct encoding *x = encoding_of(r, i);
	struct ckpt_err why;
	size_t dims;
	char fqn[120];
	int rc = 0;

	if (files_fault(r->f->store.files, shard.file, &why))
		rc = err_set(e, why.code, "%s", why.msg);
	else if (x->shard->n_dims != t->map->n_dims)
		rc = err_set(e, ERR_CORRUPT, "it has %u dimensions", x->shard->n_dims);
	else
		rc = read_index(r, x->shard, &shard, e);
	while (!rc && i < r->n && !same_shard(&shard, &t->locs[r->order[i]]))
		rc = find_chunk(r, x, &shard, r->order[i++], e);
	*ret = i;
	return rc ? err_wrap(e, "tensor '%s', shard at %llu of '%s'",
			     text_show(t->t->fqn, t->t->fqn_len, fqn, sizeof(fqn)),
			     (unsigned long long)shard.offset,
			     catalog_sources(r->f->maps, &dims)[shard.file].path)
		  : 0;
}

static int find_in_shards(struct resolving *r, struct ckpt_err *e)
{
	size_t asked = 0, waiting = 0; /* chunks; shards */
	int rc = 0;

	for (size_t i = 0; !rc && i < r->n; waiting--) {
		for (; waiting < AHEAD && asked < r->n; waiting++) {
			const struct chunk_loc *shard = &r->t->locs[r->order[asked]];

			request_index(r, asked);
			while (asked < r->n && !same_shard(shard, &r->t->locs[r->order[asked]]))
				asked++;
		}
		rc = find_in_shard(r, i, &i, e);
	}
	return rc;
}

int shards_resolve(struct fetch *f, struct otensor *t, struct ckpt_err *e)
{
	struct resolving r = { .f = f, .t = t, .left = MAX_INDEXES };
	int rc = 0;

	r.order = reallocarray(NULL, t->map->count + (size_t)1, sizeof(*r.order));
	if (!r.order)
		return err_nomem(e);
	do {
		list_chunks(&r);
		rc = find_in_shards(&r, e);
	} while (!rc && r.n); /* each pass leaves one level of shards less */
	free(r.order);
	free(r.index);
	return rc;
}

/* ---- records; see fetch.c ---- */

/*
 * 0, the chunk's offset in the (outermost) shard, its length; or, if it is absent, how many levels
 * of shards are around its place.
 */
void shards_add_found(const struct fetch *f, const struct otensor *t, uint32_t i, struct buf *b)
{
	const struct chunk_loc *shard = &t->map->locs[i], *loc = &t->locs[i];
	const struct encoding *x = &f->encodings[shard->encoding];

	for (uint64_t levels = 1; x->kind == ENC_SHARD; x = &f->encodings[x->inner], levels++)
		if (loc->encoding == x->absent) {
			buf_varint(b, levels);
			return;
		}
	buf_varint(b, 0);
	buf_varint(b, loc->offset - shard->offset);
	buf_varint(b, loc->length);
}

bool shards_found(const struct fetch *f, struct otensor *t, uint32_t i, struct cursor *d)
{
	const struct chunk_loc *shard = &t->map->locs[i];
	const struct encoding *x = &f->encodings[shard->encoding];
	uint64_t levels = cursor_varint(d), offset, length;
	uint32_t encoding = shard->encoding;

	if (levels) {
		while (--levels && x->kind == ENC_SHARD)
			x = &f->encodings[x->inner];
		return !d->bad && x->kind == ENC_SHARD && shard_absent(f, x, t->t, &t->locs[i]);
	}
	offset = cursor_varint(d);
	length = cursor_varint(d);
	while (f->encodings[encoding].kind == ENC_SHARD)
		encoding = f->encodings[encoding].inner;
	return !d->bad && shard_present(shard, encoding, offset, length, &t->locs[i]);
}
