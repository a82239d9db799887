/* SPDX-License-Identifier: Apache-2.0 */
#include "format/raw_chunks.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/vec.h"
#include "index/catalog_build.h"

#include <stdlib.h>
#include <string.h>

#define MAX_CHUNKS ((uint64_t)1 << 27)

int raw_encoding(const struct raw_layout *l, struct catalog_writer *w, uint32_t *ret,
		 struct ckpt_err *e)
{
	char text[CKPT_MAX_DIMS * 21 + 64]; /* room for the longest name */
	struct buf name = { .data = text, .cap = sizeof(text), .max = sizeof(text) - 1 };

	raw_name(l, &name);
	return catalog_add_encoding(w, text, ret, e);
}

int raw_item(const struct raw_layout *l, enum ckpt_dtype dtype, size_t n_dims, const uint64_t *len,
	     struct catalog_writer *w, struct chunk_loc *loc, struct ckpt_err *e)
{
	if (!raw_extent(l, dtype, n_dims, len, &loc->length))
		return err_set(e, ERR_CORRUPT, "its sizes are more than 2^63 bytes");
	return raw_encoding(l, w, &loc->encoding, e);
}

static int encoded_item(const struct raw_layout *l, const struct raw_chunk *x,
			struct catalog_writer *w, struct chunk_loc *ret, struct ckpt_err *e)
{
	struct buf name CLEANUP(buf_release) = BUF_INIT(1 << 16);
	int rc;

	if (!x->codecs && !x->shard) {
		rc = raw_item(l, x->dtype, x->n_dims, x->len, w, ret, e);
		if (!rc && x->length) /* too few bytes are reported when the tensor is opened */
			ret->length = min_u64(ret->length, x->length);
		return rc;
	}
	ret->length = x->length;
	buf_str(&name, x->shard ? x->shard : "");
	raw_name(l, &name);
	buf_str(&name, x->codecs ? x->codecs : "");
	if (name.err)
		return err_nomem(e);
	return catalog_add_encoding(w, name.data, &ret->encoding, e);
}

int raw_chunks_add(struct raw_chunks *c, const struct raw_chunk *x, struct catalog_writer *w,
		   uint64_t *total, struct ckpt_err *e)
{
	struct chunk_loc loc = { .file = x->file, .offset = x->offset };
	struct raw_layout l = *x->layout;
	size_t n = x->n_dims;
	uint64_t step = 1;
	int rc;

	l.strided = false;
	l.n_dims = (uint8_t)n;
	for (size_t d = n; d-- > 0; step *= x->len[d]) {
		/* The stride of a dimension with one element is irrelevant. */
		l.stride[d] = x->len[d] > 1 ? l.stride[d] : 0;
		l.strided |= x->len[d] > 1 && l.stride[d] != step;
	}
	if ((*total)++ == MAX_CHUNKS)
		return err_set(e, EFBIG, "the tensors are in more than %llu pieces",
			       (unsigned long long)MAX_CHUNKS);
	if (!VEC_ROOM(c->boxes, c->cap_boxes, (c->n + 1) * 2 * n + 1) ||
	    !VEC_ROOM(c->locs, c->cap_locs, c->n + 1))
		return err_nomem(e);
	rc = encoded_item(&l, x, w, &loc, e);
	if (rc)
		return rc;
	if (n) {
		memcpy(c->boxes + c->n * 2 * n, x->off, n * sizeof(*x->off));
		memcpy(c->boxes + c->n * 2 * n + n, x->len, n * sizeof(*x->len));
	}
	c->locs[c->n++] = loc;
	return 0;
}

void raw_chunks_release(struct raw_chunks *c)
{
	free(c->boxes);
	free(c->locs);
	*c = (struct raw_chunks){ 0 };
}
