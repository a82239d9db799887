/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random arrays, whose chunks are only described, not stored. The place that the index gives for an
 * element (file, number in the indexes of shards, offset in the innermost chunk) is compared with
 * what follows from the specification. This file follows that codec by codec: a transpose permutes
 * an element's coordinates, a shard divides them.
 */
#include "format/zarr/zarr_array.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "format/raw.h"
#include "format/zarr/zarr_store.h"
#include "index/catalog_build.h"
#include "index/catalog_query.h"
#include "model/box.h"
#include "parse/zarr_metadata.h"
#include "rng.h"
#include "suites.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIMS = 3, LEVELS = 3, CELLS = 8 * 8 * 8 };

/* ---- an array ---- */

struct level {
	unsigned transposes;
	size_t order[2][DIMS];
	uint64_t chunk
		[DIMS]; /* of what a shard of this level has, in the order of its encoded axes */
};

struct array {
	size_t n;
	uint64_t shape[DIMS], chunk[DIMS], grid[DIMS];
	unsigned levels;
	struct level level[LEVELS];
	bool v3, keys_v2, fortran, fill, sharded;
	char separator;
	const char *codecs; /* as in the encoding */
	bool stored[CELLS];
	uint64_t offset[CELLS], length[CELLS];
};

static void draw_order(struct rng *r, size_t n, size_t *ret)
{
	for (size_t i = 0; i < n; i++) {
		size_t k = rng_below(r, i + 1);

		ret[i] = ret[k];
		ret[k] = i;
	}
}

static uint64_t divisor(struct rng *r, uint64_t n)
{
	uint64_t d;

	do
		d = 1 + rng_below(r, n);
	while (n % d);
	return d;
}

static void draw(struct rng *r, struct array *a)
{
	static const char *const v2[] = { "", "+zstd", "+blosc", "+gzip", "+zlib" };
	static const char *const v3[] = { "", "+zstd", "+crc32c", "+gzip+crc32c", "+blosc+zstd" };
	uint64_t size[DIMS];

	*a = (struct array){ .n = rng_below(r, DIMS + 1),
			     .v3 = rng_chance(r, 70),
			     .fill = rng_chance(r, 50),
			     .separator = rng_chance(r, 50) ? '/' : '.' };
	a->codecs = (a->v3 ? v3 : v2)[rng_below(r, 5)];
	a->fortran = !a->v3 && rng_chance(r, 50);
	a->keys_v2 = !a->v3 || rng_chance(r, 30);
	a->levels = a->v3 ? 1 + (unsigned)rng_below(r, LEVELS) : 1;
	for (size_t d = 0; d < a->n; d++) {
		a->shape[d] = rng_below(r, 9);
		a->chunk[d] = 1 + rng_below(r, 8);
		a->grid[d] = (a->shape[d] + a->chunk[d] - 1) / a->chunk[d];
		size[d] = a->chunk[d];
	}
	for (unsigned l = 0; l < a->levels; l++) {
		struct level *v = &a->level[l];

		v->transposes = a->v3 ? (unsigned)rng_below(r, 3) : a->fortran;
		for (unsigned t = 0; t < v->transposes; t++) {
			uint64_t was[DIMS];

			memcpy(was, size, sizeof(was));
			draw_order(r, a->n, v->order[t]);
			for (size_t i = 0; i < a->n; i++) {
				if (a->fortran)
					v->order[t][i] = a->n - 1 - i;
				size[i] = was[v->order[t][i]];
			}
		}
		for (size_t i = 0; i < a->n; i++)
			v->chunk[i] = size[i] = l + 1 < a->levels ? divisor(r, size[i]) : size[i];
	}
	for (int c = 0; c < CELLS; c++) {
		a->stored[c] = rng_chance(r, 85);
		a->offset[c] = rng_below(r, 1000000);
		a->length[c] = 16 * CELLS + 4 + rng_below(r, 1000);
		for (size_t d = 0; a->levels == 1 && !*a->codecs && d <= a->n; d++)
			a->length[c] = d ? a->length[c] * a->chunk[d - 1] : sizeof(int16_t);
	}
}

/* ---- its metadata ---- */

static void put_list(struct buf *b, const char *key, const size_t *v, size_t n)
{
	buf_printf(b, "\"%s\":[", key);
	for (size_t i = 0; i < n; i++)
		buf_printf(b, i ? ",%zu" : "%zu", v[i]);
	buf_str(b, "]");
}

static void put_codecs(struct buf *b, const struct array *a, unsigned l)
{
	const struct level *v = &a->level[l];

	buf_str(b, "[");
	for (unsigned t = 0; t < v->transposes; t++) {
		buf_str(b, "{\"name\":\"transpose\",\"configuration\":{");
		put_list(b, "order", v->order[t], a->n);
		buf_str(b, "}},");
	}
	if (l + 1 < a->levels) {
		buf_str(b, "{\"name\":\"sharding_indexed\",\"configuration\":{\"chunk_shape\":");
		buf_json_u64s(b, v->chunk, a->n);
		buf_str(b, ",\"index_codecs\":[\"bytes\",\"crc32c\"],\"codecs\":");
		put_codecs(b, a, l + 1);
		buf_str(b, "}}");
	} else {
		buf_str(b, "{\"name\":\"bytes\",\"configuration\":{\"endian\":\"big\"}}");
		for (const char *c = a->codecs; *c;) {
			size_t len = strcspn(c + 1, "+");

			buf_printf(b, ",{\"name\":\"%.*s\"}", (int)len, c + 1);
			c += 1 + len;
		}
	}
	buf_str(b, "]");
}

static void put_metadata(struct buf *b, const struct array *a)
{
	buf_printf(b, "{\"zarr_format\":%d,\"shape\":", a->v3 ? 3 : 2);
	buf_json_u64s(b, a->shape, a->n);
	if (a->v3) {
		buf_str(b, ",\"node_type\":\"array\",\"data_type\":\"int16\",\"fill_value\":-2,"
			   "\"chunk_grid\":{\"name\":\"regular\",\"configuration\":"
			   "{\"chunk_shape\":");
		buf_json_u64s(b, a->chunk, a->n);
		buf_printf(b,
			   "}},\"chunk_key_encoding\":{\"name\":\"%s\",\"configuration\":"
			   "{\"separator\":\"%c\"}},\"codecs\":",
			   a->keys_v2 ? "v2" : "default", a->separator);
		put_codecs(b, a, 0);
	} else {
		buf_str(b, ",\"chunks\":");
		buf_json_u64s(b, a->chunk, a->n);
		buf_printf(b,
			   ",\"dtype\":\">i2\",\"fill_value\":-2,\"order\":\"%c\",\"filters\":null,"
			   "\"dimension_separator\":\"%c\",\"compressor\":",
			   a->fortran ? 'F' : 'C', a->separator);
		buf_printf(b, *a->codecs ? "{\"id\":\"%s\"}" : "null", a->codecs + 1);
	}
	buf_str(b, "}");
	REQUIRE(!b->err);
}

/* ---- its store: one file ---- */

struct store {
	struct zarr_store s;
	const struct array *a;
};

static int each_array(struct zarr_store *s, zarr_value_fn *fn, void *arg, struct ckpt_err *e)
{
	(void)s;
	(void)fn;
	(void)arg;
	return err_set(e, EINVAL, "not called");
}

static int each_chunk(struct zarr_store *s, const char *prefix, size_t len, zarr_value_fn *fn,
		      void *arg, struct ckpt_err *e)
{
	const struct array *a = ((struct store *)s)->a;
	int rc = fn(arg, "w/other", 7, &(struct zarr_value){ .file = "x", .length = 1 }, e);
	uint64_t cells = 1;

	ck_assert(len == 2 && !memcmp(prefix, "w/", 2));
	for (size_t d = 0; d < a->n; d++)
		cells *= a->grid[d];
	for (uint64_t i = cells; !rc && i-- > 0;) {
		char key[100] = "w/";
		size_t at = 2;
		uint64_t number = i, size = cells;

		if (!a->stored[i])
			continue;
		if (!a->keys_v2)
			key[at++] = 'c';
		for (size_t d = 0; d < a->n; d++) {
			size /= a->grid[d];
			if (d || !a->keys_v2)
				key[at++] = a->separator;
			at += (size_t)sprintf(key + at, "%" PRIu64, number / size);
			number %= size;
		}
		if (!a->n && a->keys_v2)
			key[at++] = '0';
		rc = fn(arg, key, at,
			&(struct zarr_value){
				.file = "d", .offset = a->offset[i], .length = a->length[i] },
			e);
	}
	return rc;
}

static const struct zarr_store_ops ops = { .arrays = each_array, .chunks = each_chunk };

/* ---- where an element is ---- */

struct place_of {
	bool absent;		 /* the chunk is not stored */
	uint64_t offset;	 /* of the chunk, or the shard */
	uint64_t number[LEVELS]; /* in the index of each level of shards */
	uint64_t element;	 /* in the innermost chunk */
};

static struct place_of by_specification(const struct array *a, const uint64_t *x)
{
	uint64_t at[DIMS], size[DIMS], cell = 0;
	struct place_of p = { 0 };

	for (size_t d = 0; d < a->n; d++) {
		cell = cell * a->grid[d] + x[d] / a->chunk[d];
		at[d] = x[d] % a->chunk[d];
		size[d] = a->chunk[d];
	}
	p.absent = !a->stored[cell];
	p.offset = a->offset[cell];
	for (unsigned l = 0; l < a->levels; l++) {
		const struct level *v = &a->level[l];

		for (unsigned t = 0; t < v->transposes; t++) {
			uint64_t was[DIMS], had[DIMS];

			memcpy(was, at, sizeof(was));
			memcpy(had, size, sizeof(had));
			for (size_t i = 0; i < a->n; i++) {
				at[i] = was[v->order[t][i]];
				size[i] = had[v->order[t][i]];
			}
		}
		for (size_t i = 0; l + 1 < a->levels && i < a->n; i++) {
			p.number[l] = p.number[l] * (size[i] / v->chunk[i]) + at[i] / v->chunk[i];
			at[i] %= v->chunk[i];
			size[i] = v->chunk[i];
		}
	}
	for (size_t i = 0; i < a->n; i++)
		p.element = p.element * size[i] + at[i];
	return p;
}

static const char *take_list(const char *s, const char *what, size_t n, uint64_t *ret)
{
	char *end;

	REQUIRE(text_take(&s, what));
	for (size_t d = 0; d < n; d++) {
		REQUIRE(!d || text_take(&s, ","));
		ret[d] = strtoull(s, &end, 10);
		s = end;
	}
	return s;
}

/* off: that of the box which the encoding describes */
static struct place_of by_encoding(const struct array *a, const char *name, const uint64_t *off,
				   const uint64_t *len, const uint64_t *x)
{
	uint64_t chunk[DIMS], count[DIMS], step[DIMS];
	struct place_of p = { 0 };
	struct raw_layout l;

	for (unsigned k = 0; k + 1 < a->levels; k++) {
		name = take_list(name, "shard:chunk=", a->n, chunk);
		name = take_list(name, ":count=", a->n, count);
		name = take_list(name, ":step=", a->n, step);
		REQUIRE(text_take(&name, ":index=end:crc32c"));
		REQUIRE(text_take(&name, ":fill=") == a->fill);
		REQUIRE(!a->fill || strcspn(name, "/") == strspn(name, "0123456789"));
		name += strcspn(name, "/") + 1;
		for (size_t d = 0; d < a->n; d++)
			p.number[k] += off[d] / chunk[d] % count[d] * step[d];
	}
	REQUIRE(raw_take(&name, &l) && l.swap && !l.neg && !l.conj);
	ck_assert_str_eq(name, a->codecs);
	for (size_t d = a->n, row = 1; d-- > 0; row *= len[d])
		p.element += (x[d] - off[d]) * (l.strided ? l.stride[d] : row);
	return p;
}

/* ---- the tests ---- */

static struct catalog *scan(const struct array *a, struct ckpt_err *e)
{
	struct buf b CLEANUP(buf_release) = BUF_INIT(1 << 16);
	struct store s = { .s.ops = &ops, .a = a };
	struct zarr_name name = { .name = "w", .name_len = 1, .fqn = "w", .fqn_len = 1 };
	const char *key = a->v3 ? "w/zarr.json" : "w/.zarray";
	struct catalog_writer *w = NULL;
	struct catalog *c = NULL;
	struct zarr_array z;
	uint64_t total = 0;
	int rc;

	put_metadata(&b, a);
	rc = zarr_read(&s.s, key, strlen(key),
		       &(struct zarr_value){ .bytes = (const uint8_t *)b.data, .length = b.len },
		       &z, e);
	ck_assert_msg(rc == 1, "%s: %s", b.data, e->msg);
	ck_assert_str_eq(z.unsupported, "");
	rc = catalog_writer_new(NULL, "x", "/", &w, e);
	if (!rc)
		rc = zarr_add_array(&s.s, &name, &z, !a->fill, w, &total, e);
	if (!rc)
		rc = catalog_writer_finish(w, &c, e);
	ck_assert_msg(!rc, "%s: %s", b.data, e->msg);
	catalog_writer_free(w);
	return c;
}

struct found {
	size_t dims;
	uint32_t chunk, n;
	uint64_t off[DIMS], len[DIMS];
};

static int note(void *arg, uint32_t chunk, const uint64_t *off, const uint64_t *len,
		const uint64_t *at, const uint64_t *size)
{
	struct found *f = arg;

	(void)at;
	(void)size;
	f->chunk = chunk;
	f->n++;
	for (size_t d = 0; d < f->dims; d++) {
		f->off[d] = off[d];
		f->len[d] = len[d];
	}
	return 0;
}

static void check_element(struct catalog *c, const struct array *a, const struct chunkmap *m,
			  const uint64_t *x)
{
	static const uint64_t ones[DIMS] = { 1, 1, 1 };
	const char *const *names = catalog_encodings(c, NULL);
	const struct stored_file *files = catalog_sources(c, NULL);
	struct place_of want = by_specification(a, x), got;
	const struct chunk_loc *loc;
	struct found f = { .dims = m->n_dims };

	REQUIRE(!chunkmap_find(m, x, ones, note, &f));
	REQUIRE(f.n == (want.absent && !a->fill ? 0 : 1));
	if (!f.n)
		return;
	loc = &m->locs[f.chunk];
	if (want.absent) {
		const char *name = names[loc->encoding];
		struct raw_layout l;

		REQUIRE(raw_take(&name, &l) && !*name && !l.swap && loc->length == 2);
		REQUIRE(files[loc->file].bytes &&
			!memcmp(files[loc->file].bytes + loc->offset, "\xfe\xff", 2));
		for (size_t d = 0; d < a->n; d++)
			REQUIRE(f.len[d] == 1 || (l.strided && !l.stride[d]));
		return;
	}
	ck_assert_str_eq(files[loc->file].path, "d");
	got = by_encoding(a, names[loc->encoding], f.off, f.len, x);
	REQUIRE(loc->offset == want.offset && got.element == want.element);
	REQUIRE(!memcmp(got.number, want.number, sizeof(want.number)));
}

START_TEST(every_element_is_where_the_specification_says)
{
	struct rng r = rng_new();

	for (int round = 0; round < 200; round++) {
		static struct array a;
		struct ckpt_err e = { 0 };
		struct catalog *c;
		struct chunkmap *m = NULL;
		const struct catalog_tensor *t;
		uint64_t x[DIMS] = { 0 }, volume;
		size_t n;

		draw(&r, &a);
		c = scan(&a, &e);
		t = catalog_tensors(c, &n);
		REQUIRE(n == 1 && t->n_dims == a.n && t->dtype == CKPT_DTYPE_I16);
		REQUIRE(!a.fill || t->state == TENSOR_COMPLETE);
		REQUIRE(!catalog_load_map(c, t, &m, &e));
		REQUIRE(box_volume(a.n, a.shape, &volume));
		while (volume--) {
			check_element(c, &a, m, x);
			for (size_t d = a.n; d-- > 0; x[d] = 0)
				if (++x[d] < a.shape[d])
					break;
		}
		free(m);
		catalog_close(c);
	}
}
END_TEST

/* ---- bounds ---- */

static void one(struct array *a, uint64_t shape, uint64_t chunk, uint64_t inner, uint64_t length)
{
	*a = (struct array){
		.n = 1, .shape = { shape }, .chunk = { chunk }, .v3 = true, .codecs = ""
	};
	a->grid[0] = (shape + chunk - 1) / chunk;
	a->grid[0] = min_u64(a->grid[0], CELLS);
	a->levels = inner ? 2 : 1;
	a->level[0].chunk[0] = inner;
	a->separator = '/';
	a->length[0] = length;
	a->stored[0] = true;
}

START_TEST(a_shard_too_short_for_its_index_is_a_fault)
{
	static struct array a;
	struct ckpt_err e = { 0 };
	struct catalog *c;
	const struct catalog_tensor *t;

	one(&a, (uint64_t)1 << 40, (uint64_t)1 << 40, 1, 1000);
	c = scan(&a, &e);
	t = catalog_tensors(c, NULL);
	ck_assert_int_eq(t->state, TENSOR_INCOMPLETE);
	ck_assert_str_eq(t->fault, "its shard 'w/c/0' has 1000 bytes, too few for the index of its "
				   "1099511627776 chunks");
	catalog_close(c);
}
END_TEST

START_TEST(what_is_absent_takes_few_boxes)
{
	static struct array a;
	struct ckpt_err e = { 0 };
	struct catalog *c;
	const struct catalog_tensor *t;

	one(&a, (uint64_t)1 << 60, 1, 0, sizeof(int16_t));
	a.stored[3] = a.fill = true;
	a.length[3] = a.length[0];
	c = scan(&a, &e);
	t = catalog_tensors(c, NULL);
	ck_assert_int_eq(t->state, TENSOR_COMPLETE);
	ck_assert_uint_eq(t->chunks, 4);
	catalog_close(c);
}
END_TEST

SUITE(zarr_array)
