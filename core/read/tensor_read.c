/* SPDX-License-Identifier: Apache-2.0 */
#include "read/tensor_read.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/counters.h"
#include "base/err.h"
#include "base/text.h"
#include "codec/blocks.h"
#include "codec/cast.h"
#include "index/catalog_query.h"
#include "model/box.h"
#include "read/derived.h"
#include "read/fetch_internal.h"
#include "read/gather.h"
#include "read/plan.h"
#include "read/scatter.h"
#include "source/parts.h"
#include "tensor/vtensor.h"

#include <stdlib.h>
#include <string.h>

#define MAX_ELEMENTS ((uint64_t)1 << 17) /* converted at once */

enum { MAX_COPIES = 1 << 16 }; /* planned at once: about 8 MiB of memory */

/* Limits on what is announced of a copy whose runs are not contiguous. */
enum { SMALL_SPAN = 128 * 1024, LONG_RUN = 16 * 1024, MANY_RUNS = 256 };

struct tensor_reader {
	struct vtensor *v;
	struct otensor **tensors; /* piece by piece */
	struct plan_source *sources;
	bool odd; /* some payload needs payload_resolve */
	bool encoded;
};

bool tensor_is_encoded(const struct tensor_reader *r)
{
	return r->encoded;
}

static bool is_slow(const struct block_type *b)
{
	return b->elements == 256;
}

uint64_t tensor_slow_bytes(const struct tensor_reader *r)
{
	return r->v->blocks && is_slow(r->v->blocks) ? r->v->bytes : 0;
}

void tensor_close(struct fetch *f, struct tensor_reader *r)
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

int tensor_open(struct fetch *f, struct vtensor *v, struct tensor_reader **ret, struct ckpt_err *e)
{
	struct tensor_reader *r = calloc(1, sizeof(*r));
	int rc = 0;

	if (!r) {
		free(v);
		return err_nomem(e);
	}
	r->v = v;
	r->tensors = calloc((size_t)v->n_pieces + 1, sizeof(struct otensor *));
	r->sources = calloc((size_t)v->n_pieces + 1, sizeof(*r->sources));
	if (!r->tensors || !r->sources)
		rc = err_nomem(e);
	for (uint32_t i = 0; !rc && i < v->n_pieces; i++) {
		rc = otensor_open(f, v->pieces[i].source, &r->tensors[i], e);
		if (rc)
			break;
		r->sources[i].map = r->tensors[i]->map;
		r->sources[i].payloads = r->tensors[i]->payloads;
		r->sources[i].locs = r->tensors[i]->locs;
		r->odd |= r->tensors[i]->odd;
		r->encoded |= r->tensors[i]->encoded;
	}
	if (rc) {
		tensor_close(f, r);
		return rc;
	}
	*ret = r;
	return 0;
}

static const char *show_fqn(const struct catalog_tensor *t, char out[static 120])
{
	return text_show(t->fqn, t->fqn_len, out, 120);
}

static uint64_t copied_bytes(const struct copy *c, const struct copy_dim *dims)
{
	uint64_t bytes = c->run;

	for (uint32_t d = c->dim; d < c->dim + c->n_dims; d++)
		bytes *= dims[d].count;
	return bytes;
}

/* The bytes of all copies together: more than the range if chunks overlap. */
static uint64_t bytes_of(const struct plan *p)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < p->n; i++)
		sum += copied_bytes(&p->copies[i], p->dims);
	return sum;
}

/* The item that a copy is made from. */
static int item_of(struct fetch *f, const struct plan_source *s, const struct copy *c,
		   struct item_source *ret, struct ckpt_err *e)
{
	int rc = fetch_item(f, &s->locs[c->chunk], ret, e);

	if (!rc)
		item_reach(ret, s->payloads[c->chunk].end);
	return rc;
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

/* Resolves an odd payload once its bytes are in the reply. */
static void resolve(const struct tensor_reader *r, const struct copy *c,
		    const struct copy_dim *dims, uint8_t *buf)
{
	struct resolve how = { &r->sources[c->piece].payloads[c->chunk], r->v->stored };

	if (payload_is_odd(how.payload))
		gather_each_run(c, dims, buf, resolve_run, &how);
}

/* Plans bytes [off, off + *n) as they are stored, or as many of them as need no more than
 * MAX_COPIES copies: every index of a flattened tensor may be a separate copy. */
static int plan_some(const struct tensor_reader *r, uint64_t off, uint64_t *n,
		     const int64_t *strides, struct plan *plan, struct ckpt_err *e)
{
	uint64_t element = dtype_info(r->v->stored)->size;
	int rc;

	do {
		plan->max = *n > element ? MAX_COPIES : 0;
		rc = plan_read(r->v, r->sources, off, *n, strides, plan);
		if (rc > 0)
			*n = max_u64(*n / 2 / element, 1) * element;
	} while (rc > 0);
	return rc ? err_nomem(e) : 0;
}

/* Reads bytes as they are stored to the destinations of plan_read; for odd payloads, whole
 * elements. */
static int read_stored(struct fetch *f, const struct tensor_reader *r, uint8_t *buf, uint64_t len,
		       uint64_t off, const int64_t *strides, struct parts *parts,
		       struct ckpt_err *e)
{
	struct gather g = { .out = buf };
	uint64_t window = len, n;
	struct plan plan = { 0 };
	int rc = 0;

	for (uint64_t done = 0; !rc && done < len; done += n) {
		bool whole;

		n = min_u64(window, len - done);
		rc = plan_some(r, off + done, &n, strides, &plan, e);
		whole = !rc && parts && bytes_of(&plan) == n;
		g.out = strides ? buf : buf + done;
		for (size_t i = 0; !rc && i < plan.n; i++) {
			const struct copy *c = &plan.copies[i];
			const struct plan_source *s = &r->sources[c->piece];
			char fqn[120];

			g.parts = whole && !payload_is_odd(&s->payloads[c->chunk]) ? parts : NULL;
			rc = item_of(f, s, c, &g.item, e);
			if (!rc)
				rc = gather(&g, c, plan.dims, e);
			if (rc && r->v->n_pieces > 1)
				rc = err_wrap(e, "tensor '%s'",
					      show_fqn(r->tensors[c->piece]->t, fqn));
			if (rc)
				break;
			resolve(r, c, plan.dims, g.out);
			counters_add(f->counts, FETCH_COPIES, 1);
			counters_add(f->counts, FETCH_COPIED, copied_bytes(c, plan.dims));
		}
		window = plan.n < MAX_COPIES / 4 ? 2 * n : n;
	}
	plan_release(&plan);
	return rc;
}

/* ---- values that are not shown as they are stored ---- */

/* The smallest part that can be converted: a block or an element. */
struct unit {
	uint64_t elements, bytes; /* as shown */
};

static struct unit unit_of(const struct vtensor *v)
{
	if (v->blocks)
		return (struct unit){ v->blocks->elements, v->blocks->bytes };
	return (struct unit){ 1, dtype_info(v->dtype)->size };
}

/* Converts n elements from their stored to their shown form, changing `stored`; blocks are made
 * from floats, for which there is room. */
static void convert(const struct vtensor *v, uint8_t *stored, uint8_t *floats, uint8_t *shown,
		    uint64_t n)
{
	bool same = v->dtype == v->stored;

	arith_run(v->stored, v->arith, stored, n);
	if (!same)
		cast_run(v->stored, v->dtype, stored, v->blocks ? floats : shown, n);
	if (v->blocks)
		v->blocks->encode(same ? stored : floats, shown, n / v->blocks->elements);
	else if (same)
		memcpy(shown, stored, n * dtype_info(v->stored)->size);
	if (!v->blocks)
		arith_run(v->dtype, v->after, shown, n);
}

static int read_units(struct fetch *f, const struct tensor_reader *r, uint8_t *buf, uint64_t len,
		      uint64_t off, struct ckpt_err *e)
{
	const struct unit u = unit_of(r->v);
	uint64_t size = u.elements * dtype_info(r->v->stored)->size;
	uint64_t first = off / u.bytes, skip = off % u.bytes;
	uint64_t room = min_u64((skip + len + u.bytes - 1) / u.bytes, MAX_ELEMENTS / u.elements);
	uint64_t floats = r->v->blocks ? u.elements * sizeof(float) : 0;
	autofree uint8_t *stored = malloc(room * (size + floats + u.bytes));
	int rc = stored ? 0 : err_nomem(e);

	while (!rc && len) {
		uint64_t n = min_u64((skip + len + u.bytes - 1) / u.bytes, room);
		uint64_t got = min_u64(n * u.bytes - skip, len);
		uint8_t *work = stored + room * size, *spare = work + room * floats;
		uint8_t *shown = got == n * u.bytes ? buf : spare;

		rc = read_stored(f, r, stored, n * size, first * size, NULL, NULL, e);
		if (rc)
			break;
		convert(r->v, stored, work, shown, n * u.elements);
		if (r->v->blocks)
			counters_add(f->counts, FETCH_QUANTISED, n * u.bytes);
		if (shown == spare)
			memcpy(buf, spare + skip, got);
		first += n;
		skip = 0;
		buf += got;
		len -= got;
	}
	return rc;
}

/* ---- blocks, by several threads ---- */

/* Elements that take about as long to quantise as a few threads take to start. */
enum { ENOUGH_LARGE = 1 << 15, ENOUGH_SMALL = 1 << 17 };

struct block_range {
	struct fetch *f;
	const struct tensor_reader *r;
	uint8_t *buf;
	uint64_t len, off; /* all bytes */
	uint64_t first;	   /* block that they begin in */
};

static int read_blocks(void *arg, uint64_t from, uint64_t n, struct ckpt_err *e)
{
	const struct block_range *all = arg;
	uint64_t bytes = all->r->v->blocks->bytes, start = (all->first + from) * bytes;
	uint64_t at = max_u64(start, all->off),
		 end = min_u64(start + n * bytes, all->off + all->len);

	return read_units(all->f, all->r, all->buf + (at - all->off), end - at, at, e);
}

static int read_all_blocks(struct block_range *all, struct ckpt_err *e)
{
	const struct block_type *b = all->r->v->blocks;
	uint64_t end = (all->off + all->len + b->bytes - 1) / b->bytes;
	uint64_t enough = is_slow(b) ? ENOUGH_LARGE : ENOUGH_SMALL;

	all->first = all->off / b->bytes;
	return helpers_run(&all->f->helpers, end - all->first, enough / b->elements, read_blocks,
			   all, e);
}

static bool is_shown_as_stored(const struct vtensor *v)
{
	return !v->blocks && v->arith.op == ARITH_NONE && v->after.op == ARITH_NONE &&
	       v->dtype == v->stored;
}

/* Are bytes [off, off+len) shown as they are stored, and do they consist of whole elements if there
 * are odd payloads? */
static bool as_stored(const struct tensor_reader *r, uint64_t len, uint64_t off)
{
	uint64_t size = dtype_info(r->v->stored)->size;

	return is_shown_as_stored(r->v) && (!r->odd || (off % size == 0 && len % size == 0));
}

/* Whole elements that are shown in the dtype that they are stored in are computed where they are
 * read to: a plan for all of them jumps less often than one for each window of read_units. */
static bool in_stored_dtype(const struct vtensor *v, uint64_t len, uint64_t off)
{
	uint64_t size = dtype_info(v->stored)->size;

	return !v->blocks && v->dtype == v->stored && off % size == 0 && len % size == 0;
}

/* Reads bytes as they are shown, in one piece. */
static int read_shown(struct fetch *f, const struct tensor_reader *r, uint8_t *buf, uint64_t len,
		      uint64_t off, struct parts *parts, struct ckpt_err *e)
{
	const struct vtensor *v = r->v;
	int rc;

	if (as_stored(r, len, off))
		return read_stored(f, r, buf, len, off, NULL, parts, e);
	if (v->blocks)
		return read_all_blocks(&(struct block_range){ f, r, buf, len, off, 0 }, e);
	if (!in_stored_dtype(v, len, off))
		return read_units(f, r, buf, len, off, e);
	rc = read_stored(f, r, buf, len, off, NULL, NULL, e);
	if (!rc) {
		arith_run(v->stored, v->arith, buf, len / dtype_info(v->stored)->size);
		arith_run(v->stored, v->after, buf, len / dtype_info(v->stored)->size);
	}
	return rc;
}

/* Adds the name of the tensor and the range to the error rc. */
static int name_tensor(const struct tensor_reader *r, uint64_t len, uint64_t off, int rc,
		       struct ckpt_err *e)
{
	char fqn[120];

	if (r->v->n_pieces != 1)
		return rc;
	return err_wrap(e, "tensor '%s', bytes %llu to %llu", show_fqn(r->tensors[0]->t, fqn),
			(unsigned long long)off, (unsigned long long)(off + len));
}

int tensor_read(struct fetch *f, const struct tensor_reader *r, void *buf, size_t len, uint64_t off,
		struct parts *parts, struct ckpt_err *e)
{
	int rc;

	if (!len)
		return 0;
	rc = read_shown(f, r, buf, len, off, parts, e);
	return rc ? name_tensor(r, len, off, rc, e) : 0;
}

/* ---- scattering elements ---- */

struct spreading {
	size_t n;
	uint64_t size; /* bytes of an element */
	const int64_t *strides;
	uint8_t *to;
	const uint8_t *from; /* in row-major order */
};

static int spread_box(void *arg, const uint64_t *off, const uint64_t *len, uint64_t pos)
{
	const struct spreading *s = arg;
	struct copy_dim dims[CKPT_MAX_DIMS], *d = dims + CKPT_MAX_DIMS;
	uint64_t dst = 0, row = s->size, run = row;
	uint32_t n = 0;

	for (size_t k = s->n; k-- > 0; row *= len[k]) {
		dst += off[k] * (uint64_t)s->strides[k];
		if (len[k] == 1)
			continue;
		if (!n && (uint64_t)s->strides[k] == run) {
			run *= len[k];
		} else {
			*--d = (struct copy_dim){ len[k], row, (uint64_t)s->strides[k] };
			n++;
		}
	}
	if (n)
		scatter(d, n, run, copy_to(s->to, dst), s->from + pos * s->size);
	else
		memcpy(copy_to(s->to, dst), s->from + pos * s->size, run);
	return 0;
}

/* Reads through a window, for values that are converted or cast again. */
static int read_windows(struct fetch *f, const struct tensor_reader *r, uint8_t *to,
			const int64_t *strides, enum ckpt_dtype dtype, struct ckpt_err *e)
{
	enum ckpt_dtype from = r->v->dtype;
	uint64_t size = dtype_info(from)->size, total = r->v->bytes / size, n;
	uint64_t room = min_u64(total, MAX_ELEMENTS);
	struct spreading s = { r->v->n_dims, dtype_info(dtype)->size, strides, to, NULL };
	autofree uint8_t *window = malloc(room * (size + s.size));
	int rc = window ? 0 : err_nomem(e);

	s.from = dtype == from ? window : window + room * size;
	for (uint64_t at = 0; !rc && at < total; at += n) {
		n = min_u64(total - at, room);
		rc = read_shown(f, r, window, n * size, at * size, NULL, e);
		if (!rc && dtype != from)
			cast_run(from, dtype, window, window + room * size, n);
		if (!rc)
			rc = box_of_range(s.n, r->v->shape, at, n, spread_box, &s);
	}
	return rc;
}

static bool is_row_major(const struct vtensor *v, const int64_t *strides)
{
	uint64_t row = dtype_info(v->dtype)->size;

	for (size_t d = v->n_dims; d-- > 0; row *= v->shape[d])
		if (v->shape[d] > 1 && (uint64_t)strides[d] != row)
			return false;
	return true;
}

int tensor_scatter(struct fetch *f, const struct tensor_reader *r, void *to, const int64_t *strides,
		   enum ckpt_dtype dtype, struct ckpt_err *e)
{
	const struct vtensor *v = r->v;
	uint64_t len = v->bytes;
	int rc;

	if (!len)
		return 0;
	if (dtype == v->dtype && is_row_major(v, strides))
		rc = read_shown(f, r, to, len, 0, NULL, e);
	else if (dtype == v->dtype && as_stored(r, len, 0))
		rc = read_stored(f, r, to, len, 0, strides, NULL, e);
	else
		rc = read_windows(f, r, to, strides, dtype, e);
	return rc ? name_tensor(r, len, 0, rc, e) : 0;
}

/* ---- sources ---- */

static uint64_t span_of(const struct copy *c, const struct copy_dim *dims)
{
	uint64_t span = c->run;

	for (uint32_t d = c->dim; d < c->dim + c->n_dims; d++)
		span += (dims[d].count - 1) * dims[d].src_stride;
	return span;
}

/* The inputs of a computed tensor, as far as they are of this checkpoint. */
static int input_spans(struct fetch *f, const struct otensor *t, fetch_span_fn *each, void *arg,
		       struct ckpt_err *e)
{
	const struct derived *d = t->inputs ? fetch_derived(f, t->index) : NULL;
	int rc = 0;

	for (size_t i = 0; !rc && d && i < d->n_inputs; i++)
		if (!d->inputs[i].fetch)
			rc = tensor_spans(f, t->inputs[i], each, arg, e);
	return rc;
}

int tensor_spans(struct fetch *f, const struct tensor_reader *r, fetch_span_fn *each, void *arg,
		 struct ckpt_err *e)
{
	const struct unit u = unit_of(r->v);
	uint64_t elements = r->v->bytes / u.bytes * u.elements;
	uint64_t len = elements * dtype_info(r->v->stored)->size, window = len, n;
	struct plan plan = { 0 };
	int rc = 0;

	for (uint32_t i = 0; !rc && i < r->v->n_pieces; i++)
		rc = input_spans(f, r->tensors[i], each, arg, e);
	for (uint64_t done = 0; !rc && done < len; done += n) {
		n = min_u64(window, len - done);
		rc = plan_some(r, done, &n, NULL, &plan, e);
		window = n;
		for (size_t i = 0; !rc && i < plan.n; i++) {
			const struct copy *c = &plan.copies[i];
			struct item_source item;
			uint64_t at, size;

			if (r->tensors[c->piece]->inputs)
				continue;
			rc = item_of(f, &r->sources[c->piece], c, &item, e);
			if (rc)
				break;
			item_stored(&item, c->src, span_of(c, plan.dims), &at, &size);
			rc = each(arg, item_file(&item), at, size);
		}
	}
	plan_release(&plan);
	return rc;
}

/* Announces runs that are so far apart that most of the span would be gaps. */
static bool want_runs(const struct item_source *s, const struct copy_dim *d, uint32_t n,
		      uint64_t run, uint64_t src)
{
	bool missing = false;

	if (!n)
		return item_want(s, src, run);
	for (uint64_t i = 0; i < d->count; i++)
		missing |= want_runs(s, d + 1, n - 1, run, src + i * d->src_stride);
	return missing;
}

static bool want_copy(const struct item_source *s, const struct copy *c,
		      const struct copy_dim *dims)
{
	uint64_t span = span_of(c, dims), bytes = copied_bytes(c, dims);

	if (span <= SMALL_SPAN || span <= 2 * bytes)
		return item_want(s, c->src, span);
	/* Other runs are fetched by gather, or there are too many to announce. */
	return c->run >= LONG_RUN && bytes / c->run <= MANY_RUNS &&
	       want_runs(s, dims + c->dim, c->n_dims, c->run, c->src);
}

bool tensor_want(struct fetch *f, const struct tensor_reader *r, uint64_t off, uint64_t len)
{
	const struct unit u = unit_of(r->v);
	uint64_t size = u.elements * dtype_info(r->v->stored)->size, first = off / u.bytes;
	uint64_t n = (off + len + u.bytes - 1) / u.bytes - first;
	struct plan plan = { .max = MAX_COPIES };
	bool missing = false;

	if (len && !plan_read(r->v, r->sources, first * size, n * size, NULL, &plan)) {
		for (size_t i = 0; i < plan.n; i++) {
			const struct copy *c = &plan.copies[i];
			struct item_source item;
			struct ckpt_err ignored;

			if (!item_of(f, &r->sources[c->piece], c, &item, &ignored))
				missing |= want_copy(&item, c, plan.dims);
		}
	}
	plan_release(&plan);
	return missing;
}

int tensor_in_place(const struct tensor_reader *r, uint32_t *ret_file, uint64_t *ret_off,
		    struct ckpt_err *e)
{
	struct plan plan = { .max = MAX_COPIES };
	bool yes;
	int rc;

	if (r->encoded || r->odd || !is_shown_as_stored(r->v) || !r->v->bytes)
		return 1;
	rc = plan_read(r->v, r->sources, 0, r->v->bytes, NULL, &plan);
	if (rc) { /* 1: too many copies, so it is not in place */
		plan_release(&plan);
		return rc < 0 ? err_nomem(e) : rc;
	}
	yes = plan_in_place(&plan, r->sources, ret_file, ret_off);
	plan_release(&plan);
	return yes ? 0 : 1;
}
