/* SPDX-License-Identifier: Apache-2.0 */
#include "read/fetch.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/counters.h"
#include "base/err.h"
#include "base/text.h"
#include "catalog/catalog_query.h"
#include "codec/cast.h"
#include "format/item.h"
#include "format/raw.h"
#include "model/box.h"
#include "read/files.h"
#include "read/gather.h"
#include "read/plan.h"
#include "view/vtensor.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CAST_BLOCK ((uint64_t)1 << 17) /* elements cast at once */
#define MAX_OBJECT ((uint64_t)4 << 30) /* decoded bytes of one compressed object */

enum otensor_state { OT_EMPTY, OT_MAP, OT_ITEMS };

/* A tensor whose chunk map is in memory. */
struct otensor {
	const struct catalog_tensor *t;
	struct chunkmap *map;
	struct payload *payloads; /* one per chunk, their strides behind them */
	bool odd;		  /* some payload needs payload_resolve */

	/* Under fetch.lock: */
	size_t index;
	uint32_t pins;
	enum otensor_state state;
	bool busy; /* a thread is bringing it to a higher state */
	size_t bytes;
	struct otensor *newer, *older; /* only while not pinned */
};

struct fetch {
	const struct catalog_tensor *tensors;
	size_t n_tensors;
	struct files *files;
	struct blockcache *blocks;
	struct item_cache *items;
	struct encoding *encodings;
	const char *const *encoding_names;
	struct fetch_opts opts;
	struct counters *counts; /* enum fetch_count */

	pthread_mutex_t renew_lock;
	_Atomic(struct catalog *) maps; /* where chunk maps are read from */
	struct catalog *renewed;	/* ours to close */

	pthread_mutex_t lock;
	pthread_cond_t idle;
	struct otensor **open;	 /* by tensor number */
	_Atomic uint8_t *looked; /* by tensor number: all its items have been looked into */
	struct otensor *newest, *oldest;
	size_t bytes;
};

/* ---- encodings ---- */

struct encoding {
	enum { ENC_UNKNOWN, ENC_DCP, ENC_RAW } kind;
	uint32_t zstd_layers;
	struct raw_layout raw;
};

/* "dcp+stream.zstd/1+stream.zstd/1" -> 2; false when it is something else. */
static bool parse_dcp(const char *name, uint32_t *ret_layers)
{
	static const char dcp[] = "dcp", zstd[] = "+stream.zstd/1";
	const size_t n = sizeof(zstd) - 1;
	uint32_t layers = 0;

	if (strncmp(name, dcp, sizeof(dcp) - 1) != 0)
		return false;
	for (name += sizeof(dcp) - 1; *name; layers++) {
		if (strncmp(name, zstd, n) != 0)
			return false;
		name += n;
		if (*name == '.') /* only the version's first number matters to torch */
			name += strcspn(name, "+");
	}
	*ret_layers = layers;
	return layers <= 8;
}

/* Names: catalog_add_encoding's callers in core/format. */
static void parse_encoding(const char *name, struct encoding *ret)
{
	*ret = (struct encoding){ 0 };
	if (parse_dcp(name, &ret->zstd_layers))
		ret->kind = ENC_DCP;
	else if (raw_parse(name, &ret->raw))
		ret->kind = ENC_RAW;
}

int fetch_item(struct fetch *f, const struct chunk_loc *loc, struct block_item *ret, struct err *e)
{
	const struct encoding *x = &f->encodings[loc->encoding];

	if (x->kind == ENC_UNKNOWN)
		return err_set(e, ERR_UNSUPPORTED, "stored as '%s', which is not known",
			       f->encoding_names[loc->encoding]);
	*ret = (struct block_item){ .offset = loc->offset,
				    .length = loc->length,
				    .file = loc->file,
				    .zstd_layers = x->zstd_layers };
	return 0;
}

struct blockcache *fetch_blocks(struct fetch *f)
{
	return f->blocks;
}

void fetch_counts(const struct fetch *f, uint64_t ret[static FETCH_COUNTS])
{
	counters_read(f->counts, ret);
}

/* ---- life ---- */

static int read_source(void *arg, uint32_t file, void *buf, size_t len, uint64_t off, struct err *e)
{
	const struct fetch *f = arg;

	return files_read(f->files, file, buf, len, off, e);
}

int fetch_new(struct catalog *catalog, struct files *files, const struct fetch_opts *opts,
	      struct fetch **ret, struct err *e)
{
	struct fetch *f = calloc(1, sizeof(*f));
	struct block_source src = { read_source, f };
	size_t n = 0;

	if (!f)
		return err_set(e, ENOMEM, "out of memory");
	(void)pthread_mutex_init(&f->lock, NULL);
	(void)pthread_mutex_init(&f->renew_lock, NULL);
	(void)pthread_cond_init(&f->idle, NULL);
	f->files = files;
	f->opts = *opts;
	f->maps = catalog;
	f->tensors = catalog_tensors(catalog, &f->n_tensors);
	f->encoding_names = catalog_encodings(catalog, &n);
	f->blocks = blockcache_new(opts->cache_bytes, &src);
	f->items = item_cache_new();
	f->counts = counters_new(FETCH_COUNTS);
	f->open = calloc(f->n_tensors + 1, sizeof(struct otensor *));
	f->looked = calloc(f->n_tensors + 1, sizeof(*f->looked));
	f->encodings = calloc(n + 1, sizeof(*f->encodings));
	if (!f->blocks || !f->items || !f->counts || !f->open || !f->looked || !f->encodings) {
		fetch_free(f);
		return err_set(e, ENOMEM, "out of memory");
	}
	for (size_t i = 0; i < n; i++)
		parse_encoding(f->encoding_names[i], &f->encodings[i]);
	*ret = f;
	return 0;
}

static void otensor_free(struct otensor *t)
{
	if (!t)
		return;
	free(t->map);
	free(t->payloads);
	free(t);
}

void fetch_free(struct fetch *f)
{
	if (!f)
		return;
	for (size_t i = 0; f->open && i < f->n_tensors; i++)
		otensor_free(f->open[i]);
	blockcache_free(f->blocks);
	item_cache_free(f->items);
	counters_free(f->counts);
	catalog_close(f->renewed);
	(void)pthread_cond_destroy(&f->idle);
	(void)pthread_mutex_destroy(&f->lock);
	(void)pthread_mutex_destroy(&f->renew_lock);
	free(f->open);
	free(f->looked);
	free(f->encodings);
	free(f);
}

/* ---- chunk maps ---- */

/* The index is damaged: get another one of the same contents, once. */
static int renew(struct fetch *f, struct catalog *broken, struct err *e)
{
	SCOPED_LOCK(&f->renew_lock);
	struct err why = *e;
	int rc;

	if (f->maps != broken)
		return 0; /* another thread has done it */
	if (f->renewed || !f->opts.renew)
		return -e->code;
	rc = f->opts.renew(f->opts.renew_arg, &f->renewed, &why);
	if (rc) {
		*e = why;
		return rc;
	}
	f->maps = f->renewed;
	return 0;
}

static int load_map(struct fetch *f, size_t i, struct chunkmap **ret, struct err *e)
{
	for (;;) {
		struct catalog *c = f->maps;
		struct err why;
		size_t n;
		int rc = catalog_load_map(c, &catalog_tensors(c, &n)[i], ret, &why);

		if (!rc)
			return 0;
		if (rc != -ERR_CORRUPT || renew(f, c, &why)) {
			*e = why;
			return -why.code;
		}
	}
}

/* ---- items ---- */

struct stored_item {
	struct fetch *f;
	struct block_item item;
};

static int64_t read_item(void *arg, uint64_t off, void *buf, size_t len, struct err *e)
{
	const struct stored_item *s = arg;
	size_t n;
	int rc;

	if (s->item.zstd_layers)
		return blockcache_read(s->f->blocks, &s->item, off, buf, len, e);
	n = (size_t)min_u64(len, off < s->item.length ? s->item.length - off : 0);
	rc = n ? files_read(s->f->files, s->item.file, buf, n, s->item.offset + off, e) : 0;
	return rc ? rc : (int64_t)n;
}

static int open_item(struct fetch *f, const struct otensor *t, uint32_t i, struct payload *ret,
		     struct err *e)
{
	const struct chunk_loc *loc = &t->map->locs[i];
	uint64_t off[MAX_DIMS], len[MAX_DIMS];
	struct stored_item item = { .f = f }, rest = { .f = f };
	struct blob item_blob = { read_item, &item, BLOB_SIZE_UNKNOWN };
	struct blob rest_blob = { read_item, &rest, 0 };
	struct item_want want = { .fqn = t->t->fqn,
				  .fqn_len = t->t->fqn_len,
				  .dtype = t->t->dtype,
				  .n_dims = t->t->n_dims,
				  .len = len,
				  .file_key = loc->offset ^ (uint64_t)loc->file << 40 };
	bool opened = false;
	char fqn[120];
	struct err why;
	int rc;

	chunkmap_box(t->map, i, off, len);
	rc = files_fault(f->files, loc->file, &why) ? err_set(e, why.code, "%s", why.msg)
						    : fetch_item(f, loc, &item.item, e);
	if (!rc && f->encodings[loc->encoding].kind == ENC_RAW) {
		rc = raw_open(&f->encodings[loc->encoding].raw, &want, loc->length, ret, e);
		opened = true;
	} else if (!rc && !item.item.zstd_layers) {
		uint64_t size = files_size(f->files, loc->file);

		item_blob.size = loc->length;
		rest.item = item.item;
		rest.item.length = rest_blob.size = size - min_u64(size, loc->offset);
		want.rest = &rest_blob;
	}
	if (!rc && !opened)
		rc = item_open(&item_blob, &want, f->items, ret, e);
	if (rc) {
		size_t n;

		return err_wrap(e, "tensor '%s', item at %llu of '%s'",
				text_show(t->t->fqn, t->t->fqn_len, fqn, sizeof(fqn)),
				(unsigned long long)loc->offset,
				catalog_sources(f->maps, &n)[loc->file].path);
	}
	return 0;
}

static int open_items(struct fetch *f, struct otensor *t, struct err *e)
{
	size_t n = t->map->count, dims = t->map->n_dims;
	size_t bytes = n * (sizeof(struct payload) + dims * sizeof(uint64_t));
	autofree struct payload *p = calloc(1, bytes + 1);
	uint64_t *strides;

	if (!p)
		return err_set(e, ENOMEM, "out of memory");
	strides = (uint64_t *)(p + n);
	for (uint32_t i = 0; i < n; i++) {
		int rc;

		p[i].stride = strides + i * dims;
		rc = open_item(f, t, i, &p[i], e);
		if (rc)
			return rc;
		t->odd |= payload_is_odd(&p[i]);
	}
	t->payloads = steal_ptr(&p);
	return 0;
}

/* ---- opened tensors ---- */

static void lru_remove(struct fetch *f, struct otensor *t)
{
	*(t->newer ? &t->newer->older : &f->newest) = t->older;
	*(t->older ? &t->older->newer : &f->oldest) = t->newer;
	t->newer = t->older = NULL;
}

static void lru_push(struct fetch *f, struct otensor *t)
{
	t->newer = NULL;
	t->older = f->newest;
	*(f->newest ? &f->newest->newer : &f->oldest) = t;
	f->newest = t;
}

/* Tensor i, pinned; new and empty if need be. Under the lock. */
static struct otensor *pin_tensor(struct fetch *f, size_t i)
{
	struct otensor *t = f->open[i];

	if (!t) {
		t = calloc(1, sizeof(*t));
		if (!t)
			return NULL;
		t->t = &f->tensors[i];
		t->index = i;
		f->open[i] = t;
	} else if (!t->pins) {
		lru_remove(f, t);
	}
	t->pins++;
	return t;
}

void otensor_close(struct fetch *f, struct otensor *t)
{
	struct otensor *gone = NULL;

	if (!t)
		return;
	{
		SCOPED_LOCK(&f->lock);
		if (!--t->pins)
			lru_push(f, t);
		while (f->oldest &&
		       (f->bytes > f->opts.map_bytes || f->oldest->state == OT_EMPTY)) {
			struct otensor *old = f->oldest;

			lru_remove(f, old);
			f->open[old->index] = NULL;
			f->bytes -= old->bytes;
			old->newer = gone;
			gone = old;
		}
	}
	while (gone) {
		struct otensor *next = gone->newer;

		otensor_free(gone);
		gone = next;
	}
}

/* Bring t to the wanted state; one thread does it, others wait. */
static int reach_state(struct fetch *f, struct otensor *t, enum otensor_state want, struct err *e)
{
	enum otensor_state state;
	size_t bytes = sizeof(*t);
	int rc = 0;

	{
		SCOPED_LOCK(&f->lock);
		while (t->state < want && t->busy)
			(void)pthread_cond_wait(&f->idle, &f->lock);
		if (t->state >= want)
			return 0;
		t->busy = true;
		state = t->state;
	}
	if (state < OT_MAP)
		rc = load_map(f, t->index, &t->map, e);
	if (!rc && want >= OT_ITEMS)
		rc = open_items(f, t, e);
	if (t->map)
		bytes += t->map->bytes;
	if (t->payloads)
		bytes += t->map->count *
			 (sizeof(struct payload) + t->map->n_dims * sizeof(uint64_t));
	SCOPED_LOCK(&f->lock);
	t->busy = false;
	t->state = t->payloads ? OT_ITEMS : t->map ? OT_MAP : OT_EMPTY;
	f->bytes += bytes - t->bytes;
	t->bytes = bytes;
	(void)pthread_cond_broadcast(&f->idle);
	return rc;
}

static int open_to(struct fetch *f, size_t i, enum otensor_state want, struct otensor **ret,
		   struct err *e)
{
	struct otensor *t;
	int rc;

	{
		SCOPED_LOCK(&f->lock);
		t = pin_tensor(f, i);
	}
	if (!t)
		return err_set(e, ENOMEM, "out of memory");
	rc = reach_state(f, t, want, e);
	if (rc) {
		otensor_close(f, t);
		return rc;
	}
	*ret = t;
	return 0;
}

int otensor_open(struct fetch *f, size_t i, struct otensor **ret, struct err *e)
{
	int rc = open_to(f, i, OT_ITEMS, ret, e);

	if (!rc)
		f->looked[i] = 1;
	return rc;
}

int otensor_map(struct fetch *f, size_t i, struct otensor **ret, const struct chunkmap **ret_map,
		struct err *e)
{
	int rc = open_to(f, i, OT_MAP, ret, e);

	if (!rc)
		*ret_map = (*ret)->map;
	return rc;
}

/* ---- looking ahead ---- */

/* Items lie anywhere: on storage with latency it is the number of requests on their way that
 * counts. */
enum { MAX_LOOKERS = 8, TENSORS_PER_LOOKER = 32 };

struct look {
	struct fetch *f;
	vtensor_make_fn *make;
	void *arg;
	size_t n;
	_Atomic size_t next;
	pthread_mutex_t lock;
	struct err *e; /* of the first that failed */
	atomic_bool failed;
};

static int look_at(struct look *l, size_t i, struct err *e)
{
	autofree struct vtensor *v = NULL;
	int rc = l->make(l->arg, i, &v, e);

	for (uint32_t k = 0; !rc && k < v->n_pieces; k++) {
		uint32_t number = v->pieces[k].source;
		struct otensor *t = NULL;

		if (l->f->looked[number])
			continue;
		rc = otensor_open(l->f, number, &t, e);
		otensor_close(l->f, t);
	}
	return rc;
}

static void *look(void *arg)
{
	struct look *l = arg;
	size_t i;

	while (!l->failed && (i = l->next++) < l->n) {
		struct err e = { 0 };

		if (!look_at(l, i, &e))
			continue;
		SCOPED_LOCK(&l->lock);
		if (!l->failed)
			*l->e = e;
		l->failed = true;
	}
	return NULL;
}

int fetch_look(struct fetch *f, size_t n, vtensor_make_fn *make, void *arg, struct err *e)
{
	struct look l = { .f = f, .make = make, .arg = arg, .n = n, .e = e };
	pthread_t threads[MAX_LOOKERS];
	size_t started = 0;

	(void)pthread_mutex_init(&l.lock, NULL);
	/* Where no thread can be had, this one does it. */
	while (started < MAX_LOOKERS && started < n / TENSORS_PER_LOOKER &&
	       !pthread_create(&threads[started], NULL, look, &l))
		started++;
	(void)look(&l);
	while (started)
		(void)pthread_join(threads[--started], NULL);
	(void)pthread_mutex_destroy(&l.lock);
	return l.failed ? -e->code : 0;
}

/* ---- reading ---- */

struct vreader {
	struct vtensor *v;
	struct otensor **tensors; /* piece by piece */
	struct plan_source *sources;
	bool odd; /* some payload needs payload_resolve */
};

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

int vreader_open(struct fetch *f, struct vtensor *v, struct vreader **ret, struct err *e)
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
	enum dtype dtype;
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
		     const struct copy_dim *dims, uint8_t *buf, struct err *e)
{
	const struct plan_source *s = &r->sources[c->piece];
	struct gather g = { .files = f->files, .blocks = f->blocks, .out = buf };
	struct resolve resolve = { &s->payloads[c->chunk], r->v->stored };
	int rc = fetch_item(f, &s->map->locs[c->chunk], &g.item, e);

	if (!rc && !g.item.zstd_layers) /* safetensors payloads lie behind the recorded length */
		g.item.length = max_u64(g.item.length, resolve.payload->end);
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

/* Bytes before any cast. */
static int read_planned(struct fetch *f, const struct vreader *r, uint8_t *buf, uint64_t len,
			uint64_t off, struct err *e)
{
	struct plan plan = { 0 };
	int rc = plan_read(r->v, r->sources, off, len, &plan);

	if (rc)
		rc = err_set(e, ENOMEM, "out of memory");
	for (size_t i = 0; !rc && i < plan.n; i++)
		rc = read_copy(f, r, &plan.copies[i], plan.dims, buf, e);
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
		       uint64_t off, struct err *e)
{
	uint64_t size = dtype_info(r->v->stored)->size, first, n;
	autofree uint8_t *whole = NULL;
	int rc;

	whole_elements(size, off, len, &first, &n);
	if (!r->odd || n * size == len) /* else values exist as wholes only */
		return read_planned(f, r, buf, len, off, e);
	whole = malloc(n * size);
	if (!whole)
		return err_set(e, ENOMEM, "out of memory");
	rc = read_planned(f, r, whole, n * size, first * size, e);
	if (!rc)
		memcpy(buf, whole + (off - first * size), len);
	return rc;
}

/* Elements [first, first+n), cast. */
static int cast_elements(struct fetch *f, const struct vreader *r, uint8_t *to, uint64_t first,
			 uint64_t n, uint8_t *raw, struct err *e)
{
	uint64_t size = dtype_info(r->v->stored)->size;
	int rc = read_stored(f, r, raw, n * size, first * size, e);

	if (!rc)
		cast_run(r->v->stored, r->v->dtype, raw, to, n);
	return rc;
}

/* Bytes [skip, skip+len) of one element. */
static int cast_part(struct fetch *f, const struct vreader *r, uint8_t *to, uint64_t element,
		     uint64_t skip, uint64_t len, uint8_t *raw, struct err *e)
{
	uint8_t whole[16];
	int rc = cast_elements(f, r, whole, element, 1, raw, e);

	if (!rc)
		memcpy(to, whole + skip, len);
	return rc;
}

static int read_cast(struct fetch *f, const struct vreader *r, uint8_t *buf, uint64_t len,
		     uint64_t off, struct err *e)
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

int vreader_read(struct fetch *f, const struct vreader *r, void *buf, size_t len, uint64_t off,
		 struct err *e)
{
	int rc;

	if (!len)
		return 0;
	rc = r->v->dtype == r->v->stored ? read_stored(f, r, buf, len, off, e)
					 : read_cast(f, r, buf, len, off, e);
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
		  struct err *e)
{
	uint64_t len = r->v->bytes / dtype_info(r->v->dtype)->size * dtype_info(r->v->stored)->size;
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

/* ---- objects ---- */

int item_size(struct fetch *f, const struct chunk_loc *loc, uint64_t *ret, struct err *e)
{
	autofree uint8_t *buf = NULL;
	struct block_item item;
	uint64_t at = 0;
	int64_t n;
	int rc = fetch_item(f, loc, &item, e);

	if (rc)
		return rc;
	if (!item.zstd_layers) {
		*ret = loc->length;
		return 0;
	}
	buf = malloc(BLOCK_SIZE);
	if (!buf)
		return err_set(e, ENOMEM, "out of memory");
	do {
		n = blockcache_read(f->blocks, &item, at, buf, BLOCK_SIZE, e);
		if (n < 0)
			return (int)n;
		at += (uint64_t)n;
		if (at > MAX_OBJECT)
			return err_set(e, EFBIG, "the object decodes to more than %llu GiB",
				       (unsigned long long)(MAX_OBJECT >> 30));
	} while (n == (int64_t)BLOCK_SIZE);
	*ret = at;
	return 0;
}

int64_t item_read(struct fetch *f, const struct chunk_loc *loc, void *buf, size_t len, uint64_t off,
		  struct err *e)
{
	struct stored_item s = { .f = f };
	int rc = fetch_item(f, loc, &s.item, e);

	return rc ? rc : read_item(&s, off, buf, len, e);
}

int object_size(struct fetch *f, const struct catalog_object *o, uint64_t *ret, struct err *e)
{
	if (!o->text)
		return item_size(f, &o->loc, ret, e);
	*ret = o->text_len;
	return 0;
}

int64_t object_read(struct fetch *f, const struct catalog_object *o, void *buf, size_t len,
		    uint64_t off, struct err *e)
{
	size_t n;

	if (!o->text)
		return item_read(f, &o->loc, buf, len, off, e);
	n = (size_t)min_u64(len, off < o->text_len ? o->text_len - off : 0);
	if (n)
		memcpy(buf, o->text + off, n);
	return (int64_t)n;
}
