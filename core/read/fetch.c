/* SPDX-License-Identifier: Apache-2.0 */
#include "read/fetch.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/counters.h"
#include "base/err.h"
#include "base/text.h"
#include "format/item.h"
#include "index/catalog_query.h"
#include "read/fetch_internal.h"
#include "source/files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_OBJECT ((uint64_t)4 << 30) /* decoded bytes of one compressed object */

/* ---- encodings ---- */

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

int fetch_item(struct fetch *f, const struct chunk_loc *loc, struct block_item *ret,
	       struct ckpt_err *e)
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

static int read_source(void *arg, uint32_t file, void *buf, size_t len, uint64_t off,
		       struct ckpt_err *e)
{
	const struct fetch *f = arg;

	return files_read(f->files, file, buf, len, off, e);
}

int fetch_new(struct catalog *catalog, struct files *files, const struct fetch_opts *opts,
	      struct fetch **ret, struct ckpt_err *e)
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
	for (;;) {
		struct catalog *c = f->maps;
		struct ckpt_err why;
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

static int64_t read_item(void *arg, uint64_t off, void *buf, size_t len, struct ckpt_err *e)
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
		     struct ckpt_err *e)
{
	const struct chunk_loc *loc = &t->map->locs[i];
	uint64_t off[CKPT_MAX_DIMS], len[CKPT_MAX_DIMS];
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
	struct ckpt_err why;
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

static int open_items(struct fetch *f, struct otensor *t, struct ckpt_err *e)
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
		t->encoded |= f->encodings[t->map->locs[i].encoding].zstd_layers > 0;
	}
	t->payloads = steal_ptr(&p);
	return 0;
}

/* ---- opened tensors ---- */

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
		otensor_free(old);
	}
}

/* Bring t to the wanted state; one thread does it, others wait. */
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

int otensor_open(struct fetch *f, size_t i, struct otensor **ret, struct ckpt_err *e)
{
	int rc = open_to(f, i, OT_ITEMS, ret, e);

	if (!rc)
		f->looked[i] = 1;
	return rc;
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

int item_size(struct fetch *f, const struct chunk_loc *loc, uint64_t *ret, struct ckpt_err *e)
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
		  struct ckpt_err *e)
{
	struct stored_item s = { .f = f };
	int rc = fetch_item(f, loc, &s.item, e);

	return rc ? rc : read_item(&s, off, buf, len, e);
}

int object_size(struct fetch *f, const struct catalog_object *o, uint64_t *ret, struct ckpt_err *e)
{
	if (!o->text)
		return item_size(f, &o->loc, ret, e);
	*ret = o->text_len;
	return 0;
}

int64_t object_read(struct fetch *f, const struct catalog_object *o, void *buf, size_t len,
		    uint64_t off, struct ckpt_err *e)
{
	size_t n;

	if (!o->text)
		return item_read(f, &o->loc, buf, len, off, e);
	n = (size_t)min_u64(len, off < o->text_len ? o->text_len - off : 0);
	if (n)
		memcpy(buf, o->text + off, n);
	return (int64_t)n;
}
