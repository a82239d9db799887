/* SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/counters.h"
#include "base/err.h"
#include "base/text.h"
#include "catalog/catalog_query.h"
#include "codec/cast.h"
#include "codec/q8_0.h"
#include "read/fetch_internal.h"
#include "read/gather.h"
#include "read/parts.h"
#include "read/plan.h"
#include "view/vtensor.h"

#include <stdlib.h>
#include <string.h>

#define CAST_BLOCK ((uint64_t)1 << 17) /* elements cast at once */

struct vreader {
	struct vtensor *v;
	struct otensor **tensors; /* piece by piece */
	struct plan_source *sources;
	bool odd; /* some payload needs payload_resolve */
	bool encoded;
};

bool vreader_is_encoded(const struct vreader *r)
{
	return r->encoded;
}

void vreader_close(struct fetch *f, struct vreader *r)
{
	if (!r)
		return;
	for (uint32_t i = 0; r->tensors && i < r->v->n_pieces; i++)
		otensor_close(f, r->tensors[i]);
	free(r->tensors);
	free(r->sources);
	free(r->v);
	free(r);
}

int vreader_open(struct fetch *f, struct vtensor *v, struct vreader **ret, struct ckpt_err *e)
{
	struct vreader *r = calloc(1, sizeof(*r));
	int rc = 0;

	if (!r) {
		free(v);
		return err_set(e, ENOMEM, "out of memory");
	}
	r->v = v;
	r->tensors = calloc(v->n_pieces + 1u, sizeof(struct otensor *));
	r->sources = calloc(v->n_pieces + 1u, sizeof(*r->sources));
	if (!r->tensors || !r->sources)
		rc = err_set(e, ENOMEM, "out of memory");
	for (uint32_t i = 0; !rc && i < v->n_pieces; i++) {
		rc = otensor_open(f, v->pieces[i].source, &r->tensors[i], e);
		if (rc)
			break;
		r->sources[i].map = r->tensors[i]->map;
		r->sources[i].payloads = r->tensors[i]->payloads;
		r->odd |= r->tensors[i]->odd;
		r->encoded |= r->tensors[i]->encoded;
	}
	if (rc) {
		vreader_close(f, r);
		return rc;
	}
	*ret = r;
	return 0;
}

static const char *show_fqn(const struct catalog_tensor *t, char out[static 120])
{
	return text_show(t->fqn, t->fqn_len, out, 120);
}

struct resolve {
	const struct payload *payload;
	enum ckpt_dtype dtype;
};

static void resolve_run(void *arg, uint8_t *p, uint64_t len)
{
	const struct resolve *r = arg;

	payload_resolve(r->payload, r->dtype, p, len);
}

static uint64_t copied_bytes(const struct copy *c, const struct copy_dim *dims)
{
	uint64_t bytes = c->run;

	for (uint32_t d = c->dim; d < c->dim + c->n_dims; d++)
		bytes *= dims[d].count;
	return bytes;
}

static int read_copy(struct fetch *f, const struct vreader *r, const struct copy *c,
		     const struct copy_dim *dims, uint8_t *buf, struct parts *parts,
		     struct ckpt_err *e)
{
	const struct plan_source *s = &r->sources[c->piece];
	struct gather g = { .files = f->files, .blocks = f->blocks, .out = buf };
	struct resolve resolve = { &s->payloads[c->chunk], r->v->stored };
	int rc = fetch_item(f, &s->map->locs[c->chunk], &g.item, e);

	if (!rc && !g.item.zstd_layers) /* safetensors payloads lie behind the recorded length */
		g.item.length = max_u64(g.item.length, resolve.payload->end);
	if (!payload_is_odd(resolve.payload))
		g.parts = parts;
	if (!rc)
		rc = gather_copy(&g, c, dims, e);
	if (!rc && payload_is_odd(resolve.payload))
		gather_each_run(c, dims, buf, resolve_run, &resolve);
	if (!rc) {
		counters_add(f->counts, FETCH_COPIES, 1);
		counters_add(f->counts, FETCH_COPIED, copied_bytes(c, dims));
	}
	if (rc && r->v->n_pieces > 1) {
		char fqn[120];

		return err_wrap(e, "tensor '%s'", show_fqn(r->tensors[c->piece]->t, fqn));
	}
	return rc;
}

/* Bytes that all copies together have: more than the range where chunks overlap. */
static uint64_t bytes_of(const struct plan *p)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < p->n; i++)
		sum += copied_bytes(&p->copies[i], p->dims);
	return sum;
}

/* Bytes before any cast. */
static int read_planned(struct fetch *f, const struct vreader *r, uint8_t *buf, uint64_t len,
			uint64_t off, struct parts *parts, struct ckpt_err *e)
{
	struct plan plan = { 0 };
	int rc = plan_read(r->v, r->sources, off, len, &plan);

	if (rc)
		rc = err_set(e, ENOMEM, "out of memory");
	else if (parts && bytes_of(&plan) != len)
		parts = NULL;
	for (size_t i = 0; !rc && i < plan.n; i++)
		rc = read_copy(f, r, &plan.copies[i], plan.dims, buf, parts, e);
	plan_release(&plan);
	return rc;
}

/* The whole elements of `size` bytes that [off, off+len) touches. */
static void whole_elements(uint64_t size, uint64_t off, uint64_t len, uint64_t *ret_first,
			   uint64_t *ret_n)
{
	*ret_first = off / size;
	*ret_n = (off + len + size - 1) / size - *ret_first;
}

static int read_stored(struct fetch *f, const struct vreader *r, uint8_t *buf, uint64_t len,
		       uint64_t off, struct parts *parts, struct ckpt_err *e)
{
	uint64_t size = dtype_info(r->v->stored)->size, first, n;
	autofree uint8_t *whole = NULL;
	int rc;

	whole_elements(size, off, len, &first, &n);
	if (!r->odd || n * size == len) /* else values exist as wholes only */
		return read_planned(f, r, buf, len, off, parts, e);
	whole = malloc(n * size);
	if (!whole)
		return err_set(e, ENOMEM, "out of memory");
	rc = read_planned(f, r, whole, n * size, first * size, NULL, e);
	if (!rc)
		memcpy(buf, whole + (off - first * size), len);
	return rc;
}

/* Elements [first, first+n), cast. */
static int cast_elements(struct fetch *f, const struct vreader *r, uint8_t *to, uint64_t first,
			 uint64_t n, uint8_t *raw, struct ckpt_err *e)
{
	uint64_t size = dtype_info(r->v->stored)->size;
	int rc = read_stored(f, r, raw, n * size, first * size, NULL, e);

	if (!rc)
		cast_run(r->v->stored, r->v->dtype, raw, to, n);
	return rc;
}

/* Bytes [skip, skip+len) of one element. */
static int cast_part(struct fetch *f, const struct vreader *r, uint8_t *to, uint64_t element,
		     uint64_t skip, uint64_t len, uint8_t *raw, struct ckpt_err *e)
{
	uint8_t whole[16];
	int rc = cast_elements(f, r, whole, element, 1, raw, e);

	if (!rc)
		memcpy(to, whole + skip, len);
	return rc;
}

static int read_cast(struct fetch *f, const struct vreader *r, uint8_t *buf, uint64_t len,
		     uint64_t off, struct ckpt_err *e)
{
	uint64_t size = dtype_info(r->v->dtype)->size, at = off / size, skip = off % size, n;
	autofree uint8_t *raw =
		malloc(min_u64(len / size + 1, CAST_BLOCK) * dtype_info(r->v->stored)->size);
	int rc = 0;

	if (!raw)
		return err_set(e, ENOMEM, "out of memory");
	if (skip) {
		n = min_u64(size - skip, len);
		rc = cast_part(f, r, buf, at++, skip, n, raw, e);
		buf += n;
		len -= n;
	}
	for (; !rc && len >= size; at += n, buf += n * size, len -= n * size) {
		n = min_u64(len / size, CAST_BLOCK);
		rc = cast_elements(f, r, buf, at, n, raw, e);
	}
	if (!rc && len)
		rc = cast_part(f, r, buf, at, 0, len, raw, e);
	return rc;
}

/* Bytes of the dtype that is shown. */
static int read_elements(struct fetch *f, const struct vreader *r, uint8_t *buf, uint64_t len,
			 uint64_t off, struct parts *parts, struct ckpt_err *e)
{
	return r->v->dtype == r->v->stored ? read_stored(f, r, buf, len, off, parts, e)
					   : read_cast(f, r, buf, len, off, e);
}

/* Blocks exist as wholes only. */
static int read_q8_0(struct fetch *f, const struct vreader *r, uint8_t *buf, uint64_t len,
		     uint64_t off, struct ckpt_err *e)
{
	enum { ROUND = CAST_BLOCK / Q8_0_ELEMENTS, ELEMENTS = Q8_0_ELEMENTS * 4 };
	uint64_t first = off / Q8_0_BYTES, skip = off % Q8_0_BYTES;
	uint64_t room = min_u64((skip + len + Q8_0_BYTES - 1) / Q8_0_BYTES, ROUND);
	autofree uint8_t *raw = malloc(room * (ELEMENTS + Q8_0_BYTES));
	int rc = 0;

	if (!raw)
		return err_set(e, ENOMEM, "out of memory");
	while (!rc && len) {
		uint64_t n = min_u64((skip + len + Q8_0_BYTES - 1) / Q8_0_BYTES, room);
		uint64_t got = min_u64(n * Q8_0_BYTES - skip, len);
		uint8_t *blocks = raw + room * ELEMENTS;

		rc = read_elements(f, r, raw, n * ELEMENTS, first * ELEMENTS, NULL, e);
		if (rc)
			break;
		q8_0_run(raw, blocks, n);
		memcpy(buf, blocks + skip, got);
		first += n;
		skip = 0;
		buf += got;
		len -= got;
	}
	return rc;
}

int vreader_read(struct fetch *f, const struct vreader *r, void *buf, size_t len, uint64_t off,
		 struct parts *parts, struct ckpt_err *e)
{
	int rc;

	if (!len)
		return 0;
	rc = r->v->q8_0 ? read_q8_0(f, r, buf, len, off, e)
			: read_elements(f, r, buf, len, off, parts, e);
	if (rc && r->v->n_pieces == 1) {
		char fqn[120];

		return err_wrap(e, "tensor '%s', bytes %llu to %llu",
				show_fqn(r->tensors[0]->t, fqn), (unsigned long long)off,
				(unsigned long long)(off + len));
	}
	return rc;
}

/* ---- where it comes from ---- */

static uint64_t span_of(const struct copy *c, const struct copy_dim *dims)
{
	uint64_t span = c->run;

	for (uint32_t d = c->dim; d < c->dim + c->n_dims; d++)
		span += (dims[d].count - 1) * dims[d].src_stride;
	return span;
}

int vreader_spans(struct fetch *f, const struct vreader *r, fetch_span_fn *each, void *arg,
		  struct ckpt_err *e)
{
	uint64_t elements = r->v->q8_0 ? r->v->bytes / Q8_0_BYTES * Q8_0_ELEMENTS
				       : r->v->bytes / dtype_info(r->v->dtype)->size;
	uint64_t len = elements * dtype_info(r->v->stored)->size;
	struct plan plan = { 0 };
	int rc = len && plan_read(r->v, r->sources, 0, len, &plan)
			 ? err_set(e, ENOMEM, "out of memory")
			 : 0;

	for (size_t i = 0; !rc && i < plan.n; i++) {
		const struct copy *c = &plan.copies[i];
		struct block_item item = { 0 };

		rc = fetch_item(f, &r->sources[c->piece].map->locs[c->chunk], &item, e);
		if (!rc && item.zstd_layers) /* nothing of it without all before */
			rc = each(arg, item.file, item.offset, item.length);
		else if (!rc)
			rc = each(arg, item.file, item.offset + c->src, span_of(c, plan.dims));
	}
	plan_release(&plan);
	return rc;
}

int vreader_in_place(const struct vreader *r, uint64_t off, uint32_t *ret_file, struct ckpt_err *e)
{
	struct plan plan = { 0 };
	bool yes;

	if (r->encoded || r->odd || r->v->q8_0 || r->v->dtype != r->v->stored || !r->v->bytes)
		return 1;
	if (plan_read(r->v, r->sources, 0, r->v->bytes, &plan)) {
		plan_release(&plan);
		return err_set(e, ENOMEM, "out of memory");
	}
	yes = plan_in_place(&plan, r->sources, off, ret_file);
	plan_release(&plan);
	return yes ? 0 : 1;
}
