/* SPDX-License-Identifier: Apache-2.0 */
#include "read/fetch.h"

#include "base/buf.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/counters.h"
#include "base/err.h"
#include "base/text.h"
#include "base/vec.h"
#include "format/item.h"
#include "index/catalog_found.h"
#include "index/catalog_query.h"
#include "read/derived.h"
#include "read/fetch_internal.h"
#include "source/files.h"

#include <stdlib.h>
#include <string.h>

#define MAX_RECORD ((size_t)4 << 20) /* bytes of the record of one tensor */

/* ---- encodings ---- */

enum { MAX_LEVELS = 8 }; /* of shards in shards */

static int add_encoding(struct fetch *f, const struct encoding *x, struct ckpt_err *e)
{
	if (!VEC_ROOM(f->encodings, f->cap_encodings, f->n_encodings + 1))
		return err_nomem(e);
	f->encodings[f->n_encodings++] = *x;
	return 0;
}

/* The names are those that core/format passes to catalog_add_encoding. */
static int parse_encoding(struct fetch *f, const char *name, struct ckpt_err *e)
{
	struct encoding x = { .name = name };
	struct shard_layout shard;

	if (text_take(&name, "dcp"))
		x.kind = ENC_DCP;
	else if (raw_take(&name, &x.raw))
		x.kind = ENC_RAW;
	if (x.kind == ENC_UNKNOWN && shard_take(&name, &shard)) {
		x.kind = ENC_SHARD;
		x.chunks = name;
		x.shard = malloc(sizeof(shard));
		if (!x.shard)
			return err_nomem(e);
		*x.shard = shard;
	} else if (!coding_parse(name, &x.coding)) {
		x.kind = ENC_UNKNOWN;
	}
	if (add_encoding(f, &x, e)) {
		free(x.shard);
		return -e->code;
	}
	return 0;
}

/*
 * Adds the encodings of the chunks in shards of encoding i: of those that exist, and of those that
 * do not, whose elements are all the fill value.
 */
static int add_chunks(struct fetch *f, size_t i, struct ckpt_err *e)
{
	struct encoding absent = { .name = "raw",
				   .kind = ENC_RAW,
				   .raw = { .strided = true,
					    .n_dims = f->encodings[i].shard->n_dims } };

	f->encodings[i].absent = (uint32_t)f->n_encodings;
	f->encodings[i].inner = (uint32_t)f->n_encodings + 1;
	return add_encoding(f, &absent, e) ? -e->code
					   : parse_encoding(f, f->encodings[i].chunks, e);
}

static int parse_encodings(struct fetch *f, const struct catalog *c, struct ckpt_err *e)
{
	size_t n;
	const char *const *names = catalog_encodings(c, &n);
	int rc = 0;

	for (size_t i = 0; !rc && i < n; i++)
		rc = parse_encoding(f, names[i], e);
	for (size_t i = 0; !rc && i < n; i++) {
		size_t at = i;

		for (int levels = 0; !rc && f->encodings[at].kind == ENC_SHARD; levels++) {
			rc = add_chunks(f, at, e);
			at = f->n_encodings - 1;
			if (levels == MAX_LEVELS || f->encodings[at].kind == ENC_DCP)
				f->encodings[at].kind = ENC_UNKNOWN;
		}
	}
	return rc;
}

static void find_inline(struct fetch *f, const struct catalog *c)
{
	size_t n;
	const struct stored_file *s = catalog_sources(c, &n);

	for (size_t i = 0; i < n; i++)
		if (s[i].bytes) {
			f->inline_file = (uint32_t)i;
			f->inline_size = s[i].min_size;
		}
}

int fetch_item(struct fetch *f, const struct chunk_loc *loc, struct item_source *ret,
	       struct ckpt_err *e)
{
	const struct encoding *x = &f->encodings[loc->encoding];

	if (x->kind == ENC_UNKNOWN || x->kind == ENC_SHARD)
		return err_set(e, ERR_UNSUPPORTED, "stored as '%s', which is not known", x->name);
	*ret = item_source_at(
		&f->store, x->kind == ENC_COMPUTED ? derived_coding(f, loc->file) : x->coding, loc);
	return 0;
}

bool fetch_is_elements(const struct fetch *f, const struct chunk_loc *loc)
{
	return f->encodings[loc->encoding].kind == ENC_RAW;
}

const struct derived *fetch_derived(const struct fetch *f, size_t i)
{
	return f->derived ? f->derived[i] : NULL;
}

struct blockcache *fetch_blocks(struct fetch *f)
{
	return f->store.blocks;
}

void fetch_counts(const struct fetch *f, uint64_t ret[static FETCH_COUNTS])
{
	counters_read(f->counts, ret);
}

/* ---- life ---- */

/* Numbers after those of the tensors are the caller's. */
static int compute(void *arg, uint32_t number, void *buf, size_t len, uint64_t off,
		   struct ckpt_err *e)
{
	struct fetch *f = arg;

	if (number < f->n_tensors)
		return derived_compute(f, number, buf, len, off, e);
	return f->opts.compute(f->opts.compute_arg, (uint32_t)(number - f->n_tensors), buf, len,
			       off, e);
}

static struct item_source kept_item(struct fetch *f, uint32_t number, uint64_t bytes)
{
	const struct chunk_loc loc = { .offset = BLOCK_DEAR,
				       .length = bytes,
				       .file = (uint32_t)(f->n_tensors + number) };

	return item_source_at(&f->store, CODING_COMPUTED(DECODED_SHIFT), &loc);
}

int fetch_read_kept(struct fetch *f, uint32_t number, uint64_t bytes, void *buf, size_t len,
		    uint64_t off, struct parts *parts, struct ckpt_err *e)
{
	struct item_source item = kept_item(f, number, bytes);
	int rc = item_leave(&item, parts, off, buf, len, e);

	return rc <= 0 ? rc : item_decode(&item, buf, len, off, e);
}

bool fetch_keep(struct fetch *f, uint32_t number, uint64_t bytes, uint64_t off, uint64_t len)
{
	struct item_source item = kept_item(f, number, bytes);

	return item_keep(&item, off, len);
}

static int add_derived(struct fetch *f, struct ckpt_err *e)
{
	struct encoding computed = { .name = "computed", .kind = ENC_COMPUTED };

	if (!f->opts.n_derived)
		return 0;
	f->derived = calloc(f->n_tensors + 1, sizeof(*f->derived));
	if (!f->derived)
		return err_nomem(e);
	for (size_t i = 0; i < f->opts.n_derived; i++)
		f->derived[f->opts.derived[i].number] = &f->opts.derived[i];
	f->computed = (uint32_t)f->n_encodings;
	return add_encoding(f, &computed, e);
}

int fetch_new(struct catalog *catalog, struct files *files, const struct fetch_opts *opts,
	      struct fetch **ret, struct ckpt_err *e)
{
	struct fetch *f = calloc(1, sizeof(*f));

	if (!f)
		return err_set(e, ENOMEM, "out of memory");
	(void)pthread_mutex_init(&f->lock, NULL);
	(void)pthread_mutex_init(&f->renew_lock, NULL);
	(void)pthread_cond_init(&f->idle, NULL);
	f->opts = *opts;
	helpers_init(&f->helpers);
	f->maps = catalog;
	f->tensors = catalog_tensors(catalog, NULL);
	f->n_tensors = catalog_all_tensors(catalog);
	f->items = item_cache_new();
	f->counts = counters_new(FETCH_COUNTS);
	f->open = calloc(f->n_tensors + 1, sizeof(struct otensor *));
	f->looked = calloc(f->n_tensors + 1, sizeof(*f->looked));
	find_inline(f, catalog);
	if (item_store_init(&f->store, files, opts->cache_bytes, e) || !f->items || !f->counts ||
	    !f->open || !f->looked || parse_encodings(f, catalog, e) || add_derived(f, e)) {
		fetch_free(f);
		return err_set(e, ENOMEM, "out of memory");
	}
	f->store.compute = compute;
	f->store.want = derived_want;
	f->store.arg = f;
	if (catalog_found_new(catalog, opts->index, files, &f->found, e)) {
		fetch_free(f);
		return -e->code;
	}
	*ret = f;
	return 0;
}

static void otensor_free(struct fetch *f, struct otensor *t)
{
	if (!t)
		return;
	derived_close(f, t);
	if (t->map && t->locs != t->map->locs)
		free(t->locs);
	free(t->map);
	free(t->payloads);
	free(t);
}

void fetch_free(struct fetch *f)
{
	if (!f)
		return;
	for (size_t i = 0; f->open && i < f->n_tensors; i++)
		if (f->open[i])
			derived_close(f, f->open[i]);
	for (size_t i = 0; f->open && i < f->n_tensors; i++)
		otensor_free(f, f->open[i]);
	item_store_release(&f->store);
	item_cache_free(f->items);
	if (f->found)
		catalog_found_keep(f->found);
	catalog_found_free(f->found);
	counters_free(f->counts);
	catalog_close(f->renewed);
	(void)pthread_cond_destroy(&f->idle);
	(void)pthread_mutex_destroy(&f->lock);
	(void)pthread_mutex_destroy(&f->renew_lock);
	free(f->open);
	free(f->looked);
	for (size_t i = 0; i < f->n_encodings; i++)
		free(f->encodings[i].shard);
	free(f->encodings);
	free(f->derived);
	free(f);
}

/* ---- chunk maps ---- */

/* The index is damaged: replaces it with another of the same contents, once. */
static int renew(struct fetch *f, struct catalog *broken, struct ckpt_err *e)
{
	SCOPED_OUTER_LOCK(&f->renew_lock);
	struct ckpt_err why = *e;
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

static int load_map(struct fetch *f, size_t i, struct chunkmap **ret, struct ckpt_err *e)
{
	const struct catalog_tensor *t = &f->tensors[i];

	if (fetch_derived(f, i))
		return derived_map(f, i, ret, e);
	for (;;) {
		struct catalog *c = f->maps;
		struct ckpt_err why;
		int rc;

		/* Another catalog has all tensors in the order of the index. (It is not compared
		 * with f->renewed, which another thread may be setting.) */
		if (catalog_tensors(c, NULL) != f->tensors)
			t = &catalog_tensors(c, NULL)[t->row];
		rc = catalog_load_map(c, t, ret, &why);

		if (!rc)
			return 0;
		if (rc != -ERR_CORRUPT || renew(f, c, &why)) {
			*e = why;
			return -why.code;
		}
	}
}

/* ---- items ---- */

static int open_item(struct fetch *f, const struct otensor *t, uint32_t i, struct payload *ret,
		     struct ckpt_err *e)
{
	const struct chunk_loc *loc = &t->locs[i];
	uint64_t off[CKPT_MAX_DIMS], len[CKPT_MAX_DIMS];
	struct item_source item, rest;
	struct blob blob = item_blob(&item, BLOB_SIZE_UNKNOWN);
	struct blob rest_blob = item_blob(&rest, 0);
	struct item_want want = { .fqn = t->t->fqn,
				  .fqn_len = t->t->fqn_len,
				  .dtype = t->t->dtype,
				  .n_dims = t->t->n_dims,
				  .len = len,
				  .file = loc->file,
				  .offset = loc->offset };
	bool opened = false;
	char fqn[120];
	struct ckpt_err why;
	int rc;

	chunkmap_box(t->map, i, off, len);
	rc = files_fault(f->store.files, loc->file, &why) ? err_set(e, why.code, "%s", why.msg)
							  : fetch_item(f, loc, &item, e);
	if (!rc && f->encodings[loc->encoding].kind == ENC_RAW) {
		uint64_t room = item_is_plain(&item) ? loc->length : INT64_MAX;

		rc = raw_open(&f->encodings[loc->encoding].raw, &want, room, ret, e);
		opened = true;
	} else if (!rc && item_is_plain(&item)) {
		uint64_t size = files_size(f->store.files, loc->file);

		blob.size = loc->length;
		rest_blob.size = size - min_u64(size, loc->offset);
		rest = item;
		item_reach(&rest, rest_blob.size);
		want.rest = &rest_blob;
	}
	if (!rc && !opened)
		rc = item_open(&blob, &want, f->items, ret, e);
	if (rc) {
		size_t n;

		return err_wrap(e, "tensor '%s', item at %llu of '%s'",
				text_show(t->t->fqn, t->t->fqn_len, fqn, sizeof(fqn)),
				(unsigned long long)loc->offset,
				catalog_sources(f->maps, &n)[loc->file].path);
	}
	return 0;
}

/*
 * A record of catalog_found.h has, for each chunk whose item must be examined: a byte of these
 * flags, the position of element 0 and, with FOUND_STRIDED, the stride of each dimension in
 * elements; and for each chunk in a shard where it is (shards_add_found).
 */
enum { FOUND_SWAP = 1, FOUND_NEG = 2, FOUND_CONJ = 4, FOUND_STRIDED = 8, FOUND_ALL = 15 };

static bool is_of(const struct fetch *f, const struct chunk_loc *loc, int kind)
{
	return (int)f->encodings[loc->encoding].kind == kind;
}

/* Every number is checked: the record is from a file. */
static int open_found(struct fetch *f, const struct otensor *t, uint32_t i, struct cursor *d,
		      struct payload *ret, struct ckpt_err *e)
{
	const struct chunk_loc *loc = &t->map->locs[i];
	uint64_t off[CKPT_MAX_DIMS], len[CKPT_MAX_DIMS];
	unsigned flags = (unsigned)cursor_varint_to(d, FOUND_ALL);
	struct raw_layout l = { .strided = flags & FOUND_STRIDED,
				.swap = flags & FOUND_SWAP,
				.neg = flags & FOUND_NEG,
				.conj = flags & FOUND_CONJ,
				.n_dims = (uint8_t)t->t->n_dims };
	struct item_want want = { .dtype = t->t->dtype, .n_dims = t->t->n_dims, .len = len };
	uint64_t data = cursor_varint(d), room = INT64_MAX;
	int rc;

	for (size_t k = 0; l.strided && k < l.n_dims; k++)
		l.stride[k] = cursor_varint(d);
	if (!f->encodings[loc->encoding].coding)
		room = loc->length;
	chunkmap_box(t->map, i, off, len);
	if (d->bad || data > room)
		return err_set(e, ERR_CORRUPT,
			       "the data kept in the index does not match the chunk");
	rc = raw_open(&l, &want, room - data, ret, e);
	if (!rc) {
		ret->data += data;
		ret->end += data;
	}
	return rc;
}

/* False: the payload cannot be expressed in a record. */
static bool add_found(struct buf *b, const struct otensor *t, uint32_t i, bool plain)
{
	const struct payload *p = &t->payloads[i];
	uint64_t off[CKPT_MAX_DIMS], len[CKPT_MAX_DIMS], size = dtype_info(t->t->dtype)->size;
	uint8_t *to = buf_room(b, (CKPT_MAX_DIMS + 2) * 10), *at = to;
	uint64_t row = size;
	bool strided = false;

	chunkmap_box(t->map, i, off, len);
	for (size_t d = t->t->n_dims; d-- > 0; row *= len[d])
		strided |= len[d] > 1 && p->stride[d] != row;
	/* A payload that extends beyond its item is safetensors, whose header is read once per
	 * file. */
	if (!to || (plain && p->end > t->map->locs[i].length))
		return false;
	at += put_varint(at, (p->swap ? FOUND_SWAP : 0) | (p->neg ? FOUND_NEG : 0) |
				     (p->conj ? FOUND_CONJ : 0) | (strided ? FOUND_STRIDED : 0));
	at += put_varint(at, p->data);
	for (size_t d = 0; strided && d < t->t->n_dims; d++)
		at += put_varint(at, p->stride[d] / size);
	b->len += (size_t)(at - to);
	return true;
}

static void keep_found(struct fetch *f, const struct otensor *t)
{
	struct buf b CLEANUP(buf_release) = BUF_INIT(MAX_RECORD);

	for (uint32_t i = 0; i < t->map->count; i++) {
		const struct chunk_loc *loc = &t->map->locs[i];

		if (is_of(f, loc, ENC_SHARD))
			shards_add_found(f, t, i, &b);
		if (is_of(f, loc, ENC_DCP) &&
		    !add_found(&b, t, i, !f->encodings[loc->encoding].coding))
			return;
	}
	if (b.len)
		catalog_found_add(f->found, t->t->row, b.data, b.len);
}

/* Opens each payload, from the record if there is one; 1: the record is wrong. */
static int open_each(struct fetch *f, struct otensor *t, struct cursor *record, struct ckpt_err *e)
{
	for (uint32_t i = 0; i < t->map->count; i++) {
		const struct chunk_loc *loc = &t->map->locs[i];
		struct payload *p = &t->payloads[i];
		struct ckpt_err ignored;
		int rc;

		if (record && is_of(f, loc, ENC_SHARD) && !shards_found(f, t, i, record))
			return 1;
		if (record && is_of(f, loc, ENC_DCP))
			rc = files_fault(f->store.files, loc->file, &ignored)
				     ? 1
				     : open_found(f, t, i, record, p, e);
		else
			rc = open_item(f, t, i, p, e);
		if (rc)
			return record ? 1 : rc;
		t->odd |= payload_is_odd(p);
		t->encoded |= f->encodings[t->locs[i].encoding].coding;
	}
	return record && (record->bad || record->p != record->end);
}

/* The places of the chunks, as the map has them. */
static int copy_locs(struct fetch *f, struct otensor *t, struct ckpt_err *e)
{
	size_t n = t->map->count, sharded = 0;

	for (size_t i = 0; i < n; i++)
		sharded += is_of(f, &t->map->locs[i], ENC_SHARD);
	if (!sharded) {
		t->locs = t->map->locs;
		return 0;
	}
	if (!t->locs)
		t->locs = reallocarray(NULL, n, sizeof(*t->locs));
	if (!t->locs)
		return err_nomem(e);
	memcpy(t->locs, t->map->locs, n * sizeof(*t->locs));
	return 0;
}

static int open_items(struct fetch *f, struct otensor *t, struct ckpt_err *e)
{
	size_t n = t->map->count, dims = t->map->n_dims, len;
	size_t bytes = n * (sizeof(struct payload) + dims * sizeof(uint64_t));
	bool stored = !fetch_derived(f, t->index);
	const uint8_t *found =
		stored ? catalog_found_get(f->found, t->t->row, &len) : (len = 0, NULL);
	struct cursor record = cursor_of(found, len);
	uint64_t *strides;
	struct ckpt_err ignored;
	int rc = 1;

	if (copy_locs(f, t, e))
		return -e->code;
	t->payloads = calloc(1, bytes + 1);
	if (!t->payloads)
		return err_nomem(e);
	strides = (uint64_t *)(t->payloads + n);
	for (uint32_t i = 0; i < n; i++)
		t->payloads[i].stride = strides + i * dims;
	if (!stored)
		rc = derived_open(f, t, e);
	else if (found)
		rc = open_each(f, t, &record, &ignored);
	if (stored && rc) {
		t->odd = t->encoded = false;
		rc = copy_locs(f, t, e);
		if (!rc && t->locs != t->map->locs)
			rc = shards_resolve(f, t, e);
		if (!rc)
			rc = open_each(f, t, NULL, e);
		if (!rc)
			keep_found(f, t);
	}
	if (rc) {
		free(t->payloads);
		t->payloads = NULL;
	}
	return rc;
}

/* ---- opened tensors ---- */

/* Tensor i, pinned; created empty if necessary. Under the lock. */
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
		LIST_REMOVE(&f->unused, t);
	}
	t->pins++;
	return t;
}

void otensor_close(struct fetch *f, struct otensor *t)
{
	LIST(struct otensor) gone = { 0 };

	if (!t)
		return;
	{
		SCOPED_LOCK(&f->lock);
		if (!--t->pins)
			LIST_PUSH(&f->unused, t);
		while (f->unused.last &&
		       (f->bytes > f->opts.map_bytes || f->unused.last->state == OT_EMPTY)) {
			struct otensor *old = f->unused.last;

			LIST_REMOVE(&f->unused, old);
			f->open[old->index] = NULL;
			f->bytes -= old->bytes;
			LIST_PUSH(&gone, old);
		}
	}
	while (gone.last) {
		struct otensor *old = gone.last;

		LIST_REMOVE(&gone, old);
		otensor_free(f, old);
	}
}

/* Brings t to the wanted state: one thread does it, others wait. */
static int reach_state(struct fetch *f, struct otensor *t, enum otensor_state want,
		       struct ckpt_err *e)
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
	if (t->map && t->locs && t->locs != t->map->locs)
		bytes += t->map->count * sizeof(*t->locs);
	SCOPED_LOCK(&f->lock);
	t->busy = false;
	t->state = t->payloads ? OT_ITEMS : t->map ? OT_MAP : OT_EMPTY;
	f->bytes += bytes - t->bytes;
	t->bytes = bytes;
	(void)pthread_cond_broadcast(&f->idle);
	return rc;
}

static int open_to(struct fetch *f, size_t i, enum otensor_state want, struct otensor **ret,
		   struct ckpt_err *e)
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

/* Are the files still what they were? What has been opened before may have been changed since. */
static int look_at_files(struct fetch *f, const struct otensor *t, struct ckpt_err *e)
{
	const struct derived *d = fetch_derived(f, t->index);
	struct otensor *input;
	int rc = 0;

	for (uint32_t i = 0; !rc && !d && i < t->map->count; i++)
		if (!i || t->locs[i].file != t->locs[i - 1].file)
			rc = files_look(f->store.files, t->locs[i].file, e);
	for (size_t k = 0; !rc && d && k < d->n_inputs; k++)
		for (uint32_t s = 0; !rc && s < derived_n_sources(&d->inputs[k]); s++) {
			struct fetch *of = d->inputs[k].fetch ? d->inputs[k].fetch : f;

			rc = otensor_open(of, derived_source(&d->inputs[k], s), &input, e);
			if (!rc)
				otensor_close(of, input);
		}
	return rc;
}

int otensor_open(struct fetch *f, size_t i, struct otensor **ret, struct ckpt_err *e)
{
	struct otensor *t;
	int rc = open_to(f, i, OT_ITEMS, &t, e);

	if (rc)
		return rc;
	rc = look_at_files(f, t, e);
	if (rc) {
		otensor_close(f, t);
		return rc;
	}
	f->looked[i] = 1;
	*ret = t;
	return 0;
}

const struct chunk_loc *otensor_locs(const struct otensor *t)
{
	return t->locs;
}

uint64_t otensor_needs(const struct otensor *t, uint32_t i)
{
	return t->payloads[i].end;
}

int otensor_map(struct fetch *f, size_t i, struct otensor **ret, const struct chunkmap **ret_map,
		struct ckpt_err *e)
{
	int rc = open_to(f, i, OT_MAP, ret, e);

	if (!rc)
		*ret_map = (*ret)->map;
	return rc;
}

/* ---- objects ---- */

static int object_item(struct fetch *f, const struct catalog_object *o, struct item_source *ret,
		       struct ckpt_err *e)
{
	return o->fault ? err_set(e, EIO, "%s", o->fault) : fetch_item(f, &o->loc, ret, e);
}

int object_size(struct fetch *f, const struct catalog_object *o, uint64_t *ret, struct ckpt_err *e)
{
	struct item_source s;
	int rc;

	if (o->text) {
		*ret = o->text_len;
		return 0;
	}
	rc = object_item(f, o, &s, e);
	return rc ? rc : item_size(&s, ret, e);
}

int64_t object_read(struct fetch *f, const struct catalog_object *o, void *buf, size_t len,
		    uint64_t off, struct ckpt_err *e)
{
	struct item_source s;
	size_t n;
	int rc;

	if (!o->text) {
		rc = object_item(f, o, &s, e);
		return rc ? rc : item_read_some(&s, buf, len, off, e);
	}
	n = (size_t)min_u64(len, off < o->text_len ? o->text_len - off : 0);
	if (n)
		memcpy(buf, o->text + off, n);
	return (int64_t)n;
}
