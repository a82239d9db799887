/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A shard and a stored chunk are compared by one intersection. Few pairs are tried one by one; for
 * many, a search structure of the stored chunks is built and queried for each shard.
 */
#include "save/read_items.h"

#include "base/arena.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "base/vec.h"
#include "model/box.h"
#include "save/chunk_index.h"

#include <stdlib.h>

enum { FEW_PAIRS = 64 }; /* fewer are not worth sorting */

void read_list_release(struct read_list *l)
{
	free(l->items);
	l->items = NULL;
	l->count = l->cap = 0;
}

/* A zeroed item with room for its numbers: dest_off, storage_off, len. */
static struct ckpt_read_item *add_item(struct read_list *l, size_t n, uint64_t **ret_dims)
{
	uint64_t *dims = arena_array(l->a, 3 * n, sizeof(*dims));
	struct ckpt_read_item *r;

	if (!dims || !VEC_ROOM(l->items, l->cap, l->count + 1))
		return NULL;
	r = &l->items[l->count++];
	*r = (struct ckpt_read_item){
		.dest_off = dims, .storage_off = dims + n, .len = dims + 2 * n, .n_dims = (uint8_t)n
	};
	*ret_dims = dims;
	return r;
}

int read_list_add_bytes(struct read_list *l, const char *fqn, uint32_t fqn_len, struct ckpt_err *e)
{
	uint64_t *dims;
	struct ckpt_read_item *r = add_item(l, 1, &dims);

	if (!r)
		return err_set(e, ENOMEM, "'%s': read item: out of memory", FQN_TEXT(fqn, fqn_len));
	r->type = CKPT_READ_BYTE_IO;
	r->dest = (struct ckpt_meta_index){ .fqn = fqn,
					    .fqn_len = fqn_len,
					    .hint = CKPT_META_NO_HINT };
	r->storage = r->dest;
	return 0;
}

struct request {
	struct read_list *list;
	const char *fqn;
	uint32_t fqn_len;
	const struct ckpt_tensor_meta *saved;
	const struct ckpt_local_tensor *t;
	const uint32_t *number; /* of the search structure, or NULL */
	size_t shard;		/* being looked for */
};

/* Adds the overlap [off, off + len), in the whole tensor, of the shard with stored chunk
 * `chunk`. */
static int add_overlap(const struct request *q, size_t chunk, const uint64_t *off,
		       const uint64_t *len)
{
	const struct ckpt_shard *s = &q->t->shards[q->shard];
	const struct ckpt_chunk_meta *c = &q->saved->chunks[chunk];
	size_t n = q->saved->n_dims;
	uint64_t *dims;
	struct ckpt_read_item *r = add_item(q->list, n, &dims);

	if (!r)
		return -ENOMEM;
	for (size_t d = 0; d < n; d++) {
		dims[d] = off[d] - s->off[d];
		dims[n + d] = off[d] - c->off[d];
		dims[2 * n + d] = len[d];
	}
	r->type = CKPT_READ_TENSOR;
	r->dest = (struct ckpt_meta_index){ q->fqn,	s->off, q->fqn_len, (int32_t)q->shard,
					    (uint8_t)n, true };
	r->storage = (struct ckpt_meta_index){ q->fqn,	       c->off,	   q->fqn_len,
					       (int32_t)chunk, (uint8_t)n, true };
	return 0;
}

static int visit(void *arg, uint32_t chunk, const uint64_t *chunk_off, const uint64_t *chunk_len,
		 const uint64_t *off, const uint64_t *len)
{
	const struct request *q = arg;

	(void)chunk_off;
	(void)chunk_len;
	return add_overlap(q, q->number[chunk], off, len);
}

static int by_chunk(const void *ap, const void *bp)
{
	const struct ckpt_read_item *a = ap, *b = bp;

	return a->storage.hint < b->storage.hint ? -1 : a->storage.hint > b->storage.hint;
}

/* The part of the shard inside a tensor of the saved shape; false: none. */
static bool clip(const struct request *q, uint64_t *off, uint64_t *len)
{
	static const uint64_t zero[CKPT_MAX_DIMS];
	const struct ckpt_shard *s = &q->t->shards[q->shard];

	return box_intersect(q->saved->n_dims, s->off, s->len, zero, q->saved->size, off, len);
}

static int search_all(struct request *q, struct ckpt_err *e)
{
	struct chunk_index x CLEANUP(chunk_index_release) = { 0 };
	int rc = chunk_index_init(&x, q->saved, q->fqn, q->fqn_len, e);

	if (rc)
		return rc;
	q->number = x.number;
	for (q->shard = 0; q->shard < q->t->n_shards; q->shard++) {
		uint64_t off[CKPT_MAX_DIMS], len[CKPT_MAX_DIMS];
		size_t from = q->list->count;

		if (!x.map->count || !clip(q, off, len))
			continue;
		rc = chunkmap_find(x.map, off, len, visit, q);
		if (rc)
			return err_set(e, -rc, "'%s': read items: out of memory",
				       FQN_TEXT(q->fqn, q->fqn_len));
		if (q->list->count > from)
			qsort(q->list->items + from, q->list->count - from, sizeof(*q->list->items),
			      by_chunk);
	}
	return 0;
}

static int try_all(struct request *q, struct ckpt_err *e)
{
	size_t n = q->saved->n_dims;

	for (size_t i = 0; i < q->saved->n_chunks; i++)
		if (!box_inside(n, q->saved->chunks[i].off, q->saved->chunks[i].len,
				q->saved->size))
			return chunk_outside(q->saved, i, q->fqn, q->fqn_len, e);
	for (q->shard = 0; q->shard < q->t->n_shards; q->shard++)
		for (size_t i = 0; i < q->saved->n_chunks; i++) {
			const struct ckpt_chunk_meta *c = &q->saved->chunks[i];
			const struct ckpt_shard *s = &q->t->shards[q->shard];
			uint64_t off[CKPT_MAX_DIMS], len[CKPT_MAX_DIMS];

			if (box_intersect(n, s->off, s->len, c->off, c->len, off, len) &&
			    add_overlap(q, i, off, len))
				return err_set(e, ENOMEM, "'%s': read items: out of memory",
					       FQN_TEXT(q->fqn, q->fqn_len));
		}
	return 0;
}

int read_list_add_tensor(struct read_list *l, const char *fqn, uint32_t fqn_len,
			 const struct ckpt_tensor_meta *saved, const struct ckpt_local_tensor *t,
			 struct ckpt_err *e)
{
	struct request q = { .list = l, .fqn = fqn, .fqn_len = fqn_len, .saved = saved, .t = t };

	if (saved->n_dims != t->n_dims || saved->n_dims > CKPT_MAX_DIMS)
		return err_set(e, EINVAL, "'%s': %u dimensions, saved with %u",
			       FQN_TEXT(fqn, fqn_len), t->n_dims, saved->n_dims);
	if (saved->n_chunks > INT32_MAX || t->n_shards > INT32_MAX)
		return err_set(e, EINVAL, "'%s': more than 2^31 - 1 chunks",
			       FQN_TEXT(fqn, fqn_len));
	if (!saved->n_dims || t->n_shards < 2 || saved->n_chunks < 2 ||
	    saved->n_chunks < FEW_PAIRS / t->n_shards)
		return try_all(&q, e);
	return search_all(&q, e);
}
