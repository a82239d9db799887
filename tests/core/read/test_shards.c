/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks in shards, and in shards of shards, with any index, codecs and order; they lie in files or
 * in the index. */
#include "base/buf.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/crc32c.h"
#include "base/err.h"
#include "coding_util.h"
#include "dir_util.h"
#include "format/shard.h"
#include "index/catalog_build.h"
#include "index/catalog_found.h"
#include "index/catalog_query.h"
#include "read/fetch_internal.h"
#include "read/tensor_read.h"
#include "source/files.h"
#include "source/place.h"
#include "suites.h"
#include "tensor/vtensor.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static struct place *place;
static char path[4200];

static void setup(void)
{
	dir_setup();
	place = place_of(dir_fd);
	(void)snprintf(path, sizeof(path), "%s/index.sqlite", dir);
}

static void teardown(void)
{
	place_free(place);
	dir_teardown();
}

/* ---- a checkpoint, opened ---- */

struct stage {
	struct catalog *catalog;
	struct files *files;
	struct fetch *fetch;
};

static void stage_open(struct stage *g)
{
	const struct fetch_opts o = { .cache_bytes = 16 << 20,
				      .map_bytes = 16 << 20,
				      .index = path };
	struct ckpt_err e = { 0 };
	const struct stored_file *s;
	size_t n;

	s = catalog_sources(g->catalog, &n);
	REQUIRE(!files_new(place, s, n, &g->files, &e));
	REQUIRE(!fetch_new(g->catalog, g->files, &o, &g->fetch, &e));
}

static void stage_close(struct stage *g)
{
	fetch_free(g->fetch);
	files_free(g->files);
	catalog_close(g->catalog);
}

static int open_tensor(struct stage *g, struct tensor_reader **ret, struct ckpt_err *e)
{
	const struct catalog_tensor *t = catalog_tensors(g->catalog, NULL);
	struct vtensor *v;

	return vtensor_whole(t, 0, t->dtype, &v, e) || tensor_open(g->fetch, v, ret, e) ? -e->code
											: 0;
}

static uint64_t reads_of(const struct stage *g)
{
	uint64_t counts[FILES_COUNTS] = { 0 };

	files_add_counts(g->files, counts);
	return counts[FILES_READS];
}

/* Makes the file so old that what is found in it is kept. */
static void make_old(const char *name)
{
	const struct timespec t[2] = { { .tv_sec = 1000000000 }, { .tv_sec = 1000000000 } };

	REQUIRE(!utimensat(dir_fd, name, t, 0));
}

/* ---- random arrays ---- */

enum { MAX_LEVELS = 3, MOST = 3 };

struct level {
	uint64_t chunk[MOST], count[MOST], step[MOST];
	bool at_start, swap, crc;
};

struct array {
	struct rng r;
	size_t n;
	uint64_t shape[MOST];
	struct level level[MAX_LEVELS]; /* from the outside */
	size_t n_levels;
	uint64_t stride[MOST]; /* of an innermost chunk, in elements */
	bool big_endian, has_fill;
	uint32_t coding;
	uint16_t *want;
	uint64_t elements;
	char name[800]; /* of the encoding */
};

/* Steps in C order of randomly permuted axes. */
static void draw_steps(struct rng *r, size_t n, const uint64_t *size, uint64_t *step)
{
	size_t axis[MOST];
	uint64_t at = 1;

	for (size_t i = 0; i < n; i++) {
		size_t k = rng_below(r, i + 1);

		axis[i] = axis[k];
		axis[k] = i;
	}
	for (size_t i = n; i-- > 0; at *= size[axis[i]])
		step[axis[i]] = at;
}

static void add_list(struct buf *b, const char *what, const uint64_t *v, size_t n)
{
	buf_str(b, what);
	for (size_t d = 0; d < n; d++) {
		buf_str(b, d ? "," : "");
		buf_u64(b, v[d]);
	}
}

static void name_coding(struct buf *b, uint32_t coding)
{
	static const char *const names[] = { "", "+zstd", "+gzip", "+zlib", "+blosc", "+crc32c" };

	for (int k = CODING_MAX; k-- > 0;)
		buf_str(b, names[coding >> 4 * k & 15]);
}

/* fill: the place of the fill value in the index */
static void name_encoding(struct array *a, uint64_t fill)
{
	struct buf b = { .data = a->name, .cap = sizeof(a->name), .max = sizeof(a->name) - 1 };

	for (size_t i = 0; i < a->n_levels; i++) {
		const struct level *l = &a->level[i];

		add_list(&b, "shard:chunk=", l->chunk, a->n);
		add_list(&b, ":count=", l->count, a->n);
		add_list(&b, ":step=", l->step, a->n);
		buf_str(&b, l->at_start ? ":index=start" : ":index=end");
		buf_str(&b, l->swap ? ":be" : "");
		buf_str(&b, l->crc ? ":crc32c" : "");
		if (a->has_fill)
			buf_printf(&b, ":fill=%llu", (unsigned long long)fill);
		buf_str(&b, "/");
	}
	add_list(&b, a->n ? "raw:strides=" : "raw", a->stride, a->n);
	buf_str(&b, a->big_endian ? ":be" : "");
	name_coding(&b, a->coding);
	REQUIRE(!b.err);
}

static void draw_array(struct array *a)
{
	struct rng *r = &a->r;

	a->n = rng_below(r, MOST + 1);
	a->n_levels = 1 + (rng_below(r, 3) ? 0 : rng_below(r, MAX_LEVELS));
	a->elements = 1;
	for (size_t d = 0; d < a->n; d++) {
		uint64_t size = 1 + rng_below(r, 4);

		for (size_t i = a->n_levels; i-- > 0;) {
			struct level *l = &a->level[i];

			l->chunk[d] = size;
			l->count[d] = 1 + rng_below(r, 3);
			size *= l->count[d];
		}
		a->shape[d] = 1 + rng_below(r, 2 * size + 1);
		a->elements *= a->shape[d];
	}
	for (size_t i = 0; i < a->n_levels; i++) {
		struct level *l = &a->level[i];

		draw_steps(r, a->n, l->count, l->step);
		l->at_start = rng_below(r, 2);
		l->swap = rng_below(r, 2);
		l->crc = rng_below(r, 2);
	}
	draw_steps(r, a->n, a->level[a->n_levels - 1].chunk, a->stride);
	a->big_endian = rng_below(r, 2);
	a->has_fill = rng_below(r, 2);
	a->coding = rng_below(r, 2) ? coding_draw(r, 2) : 0;
	a->want = calloc(a->elements, sizeof(*a->want));
	REQUIRE(a->want);
}

enum { FILL = 0x1234 };

/* The element at x, which may be outside. */
static uint16_t *element(struct array *a, const uint64_t *x)
{
	uint64_t at = 0;

	for (size_t d = 0; d < a->n; d++) {
		if (x[d] >= a->shape[d])
			return NULL;
		at = at * a->shape[d] + x[d];
	}
	return &a->want[at];
}

/* The next position in a box of these sizes; false: that was the last. */
static bool next_position(size_t n, const uint64_t *size, uint64_t *x)
{
	for (size_t d = n; d-- > 0; x[d] = 0)
		if (++x[d] < size[d])
			return true;
	return false;
}

/* Is everything from here on outside, or is it left out at random? Then it has the fill value. */
static bool is_absent(struct array *a, const uint64_t *off)
{
	return a->has_fill && (!element(a, off) || !rng_below(&a->r, 4));
}

static void fill_box(struct array *a, const uint64_t *off, const uint64_t *size)
{
	uint64_t x[MOST] = { 0 }, at[MOST];

	do {
		uint16_t *p;

		for (size_t d = 0; d < a->n; d++)
			at[d] = off[d] + x[d];
		p = element(a, at);
		if (p)
			*p = FILL;
	} while (next_position(a->n, size, x));
}

static void add_leaf(struct array *a, const uint64_t *off, struct buf *b)
{
	const uint64_t *size = a->level[a->n_levels - 1].chunk;
	uint64_t x[MOST] = { 0 }, at[MOST], n = 1;
	autofree uint8_t *bytes = NULL, *packed = NULL;
	size_t packed_n;

	for (size_t d = 0; d < a->n; d++)
		n *= size[d];
	bytes = calloc(n, 2);
	REQUIRE(bytes);
	do {
		uint16_t v = (uint16_t)rng_below(&a->r, 65536), *p;
		uint64_t to = 0;

		for (size_t d = 0; d < a->n; d++) {
			at[d] = off[d] + x[d];
			to += x[d] * a->stride[d];
		}
		p = element(a, at);
		if (p)
			*p = v;
		bytes[2 * to] = (uint8_t)(a->big_endian ? v >> 8 : v);
		bytes[2 * to + 1] = (uint8_t)(a->big_endian ? v : v >> 8);
	} while (next_position(a->n, size, x));
	packed = coding_encode(&a->r, bytes, 2 * n, a->coding, &packed_n);
	buf_add(b, packed, packed_n);
}

static void put_number(const struct level *l, uint8_t *p, uint64_t v)
{
	for (int i = 0; i < 8; i++)
		p[l->swap ? 7 - i : i] = (uint8_t)(v >> 8 * i);
}

static void add_shard(struct array *a, size_t i, const uint64_t *off, struct buf *b);

/* The bytes of a shard at level i, or of a chunk below the last level. */
static void add_unit(struct array *a, size_t i, const uint64_t *off, struct buf *b)
{
	if (i < a->n_levels)
		add_shard(a, i, off, b);
	else
		add_leaf(a, off, b);
}

/* A shard with its chunks in any order, and with gaps. */
static void add_shard(struct array *a, size_t i, const uint64_t *off, struct buf *b)
{
	const struct level *l = &a->level[i];
	uint64_t x[MOST] = { 0 }, at[MOST], chunks = 1, number;
	size_t begin = b->len, size;
	struct buf index = BUF_INIT(1 << 20);
	uint8_t *entries;

	for (size_t d = 0; d < a->n; d++)
		chunks *= l->count[d];
	size = chunks * 16 + (l->crc ? 4 : 0);
	entries = buf_room(&index, size);
	REQUIRE(entries);
	memset(entries, 0xff, size);
	if (l->at_start)
		buf_add(b, entries, size);
	do {
		number = 0;
		for (size_t d = 0; d < a->n; d++) {
			at[d] = off[d] + x[d] * l->chunk[d];
			number += x[d] * l->step[d];
		}
		if (is_absent(a, at)) {
			fill_box(a, at, l->chunk);
			continue;
		}
		buf_add(b, "gap", rng_below(&a->r, 4));
		put_number(l, entries + 16 * number, b->len - begin);
		number = 16 * number + 8;
		size_t from = b->len;

		add_unit(a, i + 1, at, b);
		put_number(l, entries + number, b->len - from);
	} while (next_position(a->n, l->count, x));
	if (l->crc)
		(void)put_le(entries + chunks * 16, crc32c_table(0, entries, chunks * 16), 4);
	if (l->at_start)
		memcpy(b->data + begin, entries, size);
	else
		buf_add(b, entries, size);
	buf_release(&index);
}

struct listed {
	struct buf boxes, locs;
	uint32_t n;
};

/* Lists the chunks of a shard as a format does: each has the place of the shard. */
static void list_chunks(struct array *a, const uint64_t *off, const struct chunk_loc *loc,
			struct listed *l)
{
	const uint64_t *size = a->level[a->n_levels - 1].chunk;
	uint64_t count[MOST] = { 0 }, x[MOST] = { 0 }, box[2 * MOST];

	for (size_t d = 0; d < a->n; d++)
		count[d] = a->level[0].chunk[d] * a->level[0].count[d] / size[d];
	do {
		bool inside = true;

		for (size_t d = 0; d < a->n; d++) {
			box[d] = off[d] + x[d] * size[d];
			inside = inside && box[d] < a->shape[d];
			box[a->n + d] =
				min_u64(size[d], a->shape[d] - min_u64(box[d], a->shape[d]));
		}
		if (!inside)
			continue;
		buf_add(&l->boxes, box, 2 * a->n * sizeof(*box));
		buf_add(&l->locs, loc, sizeof(*loc));
		l->n++;
	} while (next_position(a->n, count, x));
}

static void write_shards(struct array *a, struct catalog_writer *w, uint32_t encoding,
			 struct listed *l)
{
	const struct level *o = &a->level[0];
	uint64_t grid[MOST] = { 0 }, cell[MOST] = { 0 }, off[MOST] = { 0 };
	unsigned number = 0;
	struct ckpt_err e = { 0 };

	for (size_t d = 0; d < a->n; d++)
		grid[d] = (a->shape[d] - 1) / (o->chunk[d] * o->count[d]) + 1;
	do {
		struct buf b = BUF_INIT(1 << 24);
		struct chunk_loc loc = { .offset = rng_below(&a->r, 5), .encoding = encoding };
		char name[16];

		for (size_t d = 0; d < a->n; d++)
			off[d] = cell[d] * o->chunk[d] * o->count[d];
		(void)snprintf(name, sizeof(name), "s%u", number++);
		buf_add(&b, "before", loc.offset);
		add_shard(a, 0, off, &b);
		loc.length = b.len - loc.offset;
		buf_add(&b, "behind", rng_below(&a->r, 5));
		REQUIRE(!b.err);
		if (rng_below(&a->r, 4)) {
			put_file(dir_fd, name, b.data, b.len);
			make_old(name);
			REQUIRE(!catalog_add_source(w, name, strlen(name), &loc.file, &e));
		} else {
			REQUIRE(!catalog_add_inline(w, b.data + loc.offset, loc.length, &loc, &e));
		}
		list_chunks(a, off, &loc, l);
		buf_release(&b);
	} while (next_position(a->n, grid, cell));
}

/* The index at path. */
static void write_array(struct array *a)
{
	const uint8_t fill[] = { FILL & 255, FILL >> 8 };
	struct listed l = { BUF_INIT(1 << 24), BUF_INIT(1 << 24), 0 };
	struct catalog_writer *w = NULL;
	struct catalog *c = NULL;
	struct chunk_loc at = { 0 };
	struct tensor_chunks t;
	struct ckpt_err e = { 0 };
	uint32_t encoding;

	REQUIRE(!catalog_writer_new(path, "test", "/", &w, &e));
	if (a->has_fill) {
		REQUIRE(!catalog_add_inline(w, "other", rng_below(&a->r, 5), &at, &e));
		REQUIRE(!catalog_add_inline(w, fill, 2, &at, &e));
	}
	name_encoding(a, at.offset);
	REQUIRE(!catalog_add_encoding(w, a->name, &encoding, &e));
	write_shards(a, w, encoding, &l);
	t = (struct tensor_chunks){ .fqn = "w",
				    .fqn_len = 1,
				    .dtype = CKPT_DTYPE_U16,
				    .n_dims = a->n,
				    .shape = a->shape,
				    .count = l.n,
				    .boxes = (const uint64_t *)(void *)l.boxes.data,
				    .locs = (const struct chunk_loc *)(void *)l.locs.data };
	if (catalog_add_tensor(w, &t, &e) || catalog_writer_finish(w, &c, &e))
		ck_abort_msg("%s", e.msg);
	catalog_writer_free(w);
	catalog_close(c);
	buf_release(&l.boxes);
	buf_release(&l.locs);
}

/* Returns how many reads opening takes. */
static uint64_t check_array(struct array *a)
{
	autofree uint8_t *out = malloc(2 * a->elements);
	struct tensor_reader *t = NULL;
	struct ckpt_err e = { 0 };
	struct stage g = { 0 };
	uint64_t reads;

	REQUIRE(out && !catalog_open(path, &g.catalog, &e));
	stage_open(&g);
	reads = reads_of(&g);
	if (open_tensor(&g, &t, &e))
		ck_abort_msg("%s: %s", a->name, e.msg);
	reads = reads_of(&g) - reads;
	for (int i = 0; i < 5; i++) {
		uint64_t from = i ? rng_below(&a->r, 2 * a->elements) : 0;
		size_t len = i ? 1 + rng_below(&a->r, 2 * a->elements - from) : 2 * a->elements;

		if (tensor_read(g.fetch, t, out, len, from, NULL, &e))
			ck_abort_msg("%s: %s", a->name, e.msg);
		ck_assert(!memcmp(out, (const uint8_t *)a->want + from, len));
	}
	tensor_close(g.fetch, t);
	stage_close(&g);
	return reads;
}

/* And opened again without reading any index. */
START_LOOP_TEST(arrays_in_shards_are_read, 4)
{
	struct array a = { .r = rng_new() };

	for (unsigned i = 0; i < rng_rounds(200, 20); i++) {
		draw_array(&a);
		write_array(&a);
		(void)check_array(&a);
		ck_assert_uint_eq(check_array(&a), 0);
		free(a.want);
	}
}
END_TEST

/* ---- one shard, byte by byte ---- */

/* "abcd" in two chunks of two elements, and their entries. */
struct shard {
	uint64_t entry[4];
	const char *options; /* behind "shard:chunk=2:count=2:step=1" */
	int crc_change;
	size_t cut;
	const char *msg; /* NULL: reading gives `want` */
	const char *want;
};

#define NONE UINT64_MAX, UINT64_MAX
#define AT   "tensor 'w', shard at 3 of 's': "

#define UNKNOWN ", which is not known"

static const struct shard shards[] = {
	{ { 0, 2, 2, 2 }, ":index=end/raw", 0, 0, NULL, "abcd" },
	{ { 2, 2, 0, 2 }, ":index=end:crc32c/raw", 0, 0, NULL, "cdab" },
	{ { 1, 2, 1, 2 }, ":index=end/raw", 0, 0, NULL, "bcbc" }, /* they may overlap */
	{ { NONE, 0, 2 }, ":index=end:fill=1/raw", 0, 0, NULL, "ffab" },
	{ { NONE, NONE }, ":index=end:crc32c:fill=2/raw", 0, 0, NULL, "gggg" },
	{ { NONE, 0, 2 }, ":index=end/raw", 0, 0, AT "the chunk at (0,) is missing", NULL },
	{ { 0, 2, NONE }, ":index=end/raw", 0, 0, AT "the chunk at (2,) is missing", NULL },
	/* the fill values have three bytes */
	{ { 0, 2, NONE }, ":index=end:fill=3/raw", 0, 0, AT "the chunk at (2,) is missing", NULL },
	{ { 0, 2, NONE },
	  ":index=end:fill=18446744073709551615/raw",
	  0,
	  0,
	  AT "the chunk at (2,) is missing",
	  NULL },
	{ { 0, 2, 2, 2 },
	  ":index=end:crc32c/raw",
	  1,
	  0,
	  AT "the index of its chunks does not match its CRC-32C",
	  NULL },
	{ { 0, 2, 35, 2 },
	  ":index=end/raw",
	  0,
	  0,
	  AT "the chunk at (2,) has 2 bytes at 35, but the shard has only 36",
	  NULL },
	{ { 0, 2, UINT64_MAX, 2 },
	  ":index=end/raw",
	  0,
	  0,
	  AT "the chunk at (2,) has 2 bytes at 18446744073709551615, but the shard has only 36",
	  NULL },
	{ { 0, 2, 2, UINT64_MAX },
	  ":index=end/raw",
	  0,
	  0,
	  AT "the chunk at (2,) has 18446744073709551615 bytes at 2, but the shard has only 36",
	  NULL },
	{ { 0, 2, 2, 1 },
	  ":index=end/raw",
	  0,
	  0,
	  "tensor 'w', item at 5 of 's': its elements do not fit the item's 1 bytes",
	  NULL },
	{ { 0, 2, 2, 2 },
	  ":index=end/raw",
	  0,
	  5,
	  AT "it has 31 bytes, but the index of its 2 chunks has 32",
	  NULL },
	{ { 0, 2, 2, 2 }, ":index=end/dcp", 0, 0, UNKNOWN, NULL },
	{ { 0, 2, 2, 2 }, ":index=end/raw+lz4", 0, 0, UNKNOWN, NULL },
	{ { 0, 2, 2, 2 }, ":index=middle/raw", 0, 0, UNKNOWN, NULL },
	{ { 0, 2, 2, 2 }, ":index=end", 0, 0, UNKNOWN, NULL },
	{ { 0, 2, 2, 2 }, ":index=end:fill=/raw", 0, 0, UNKNOWN, NULL },
	{ { 0, 2, 2, 2 },
	  ":index=end/raw:strides=1,1",
	  0,
	  0,
	  "tensor 'w', item at 3 of 's': its elements do not fit the item's 2 bytes",
	  NULL },
};

/* Writes one shard, and opens the checkpoint. start: the beginning of the encoding's name. */
static void one_shard(struct stage *g, const struct shard *x, const char *start)
{
	const uint64_t shape[] = { 4 }, boxes[] = { 0, 2, 2, 2 };
	struct chunk_loc locs[2] = { { .offset = 3 } }, fill;
	struct tensor_chunks t = { .fqn = "w",
				   .fqn_len = 1,
				   .dtype = CKPT_DTYPE_U8,
				   .n_dims = 1,
				   .shape = shape,
				   .count = 2,
				   .boxes = boxes,
				   .locs = locs };
	struct catalog_writer *w = NULL;
	struct ckpt_err e = { 0 };
	uint8_t b[64] = "...abcd", *p = b + 7;
	char name[1000];

	for (int i = 0; i < 4; i++, p += 8)
		for (int k = 0; k < 8; k++)
			p[k] = (uint8_t)(x->entry[i] >> 8 * k);
	if (strstr(x->options, ":crc32c"))
		p = put_le(p, crc32c(0, p - 32, 32) ^ (uint32_t)x->crc_change, 4);
	locs[0].length = (uint64_t)(p - b) - 3 - x->cut;
	put_file(dir_fd, "s", b, (size_t)(p - b));
	make_old("s");
	(void)snprintf(name, sizeof(name), "%s%s", start, x->options);
	REQUIRE(!catalog_writer_new(path, "test", "/", &w, &e));
	REQUIRE(!catalog_add_inline(w, "efg", 3, &fill, &e));
	REQUIRE(!catalog_add_source(w, "s", 1, &locs[0].file, &e));
	REQUIRE(!catalog_add_encoding(w, name, &locs[0].encoding, &e));
	locs[1] = locs[0];
	REQUIRE(!catalog_add_tensor(w, &t, &e));
	REQUIRE(!catalog_writer_finish(w, &g->catalog, &e));
	catalog_writer_free(w);
	stage_open(g);
}

static const char one_by_two[] = "shard:chunk=2:count=2:step=1";

START_LOOP_TEST(damage_is_named_with_its_place, ARRAY_LEN(shards))
{
	const struct shard *x = &shards[_i];
	struct tensor_reader *t = NULL;
	struct stage g = { 0 };
	struct ckpt_err e = { 0 };
	char out[5] = "";
	int rc;

	one_shard(&g, x, one_by_two);
	rc = open_tensor(&g, &t, &e);
	if (x->msg) {
		ck_assert_int_lt(rc, 0);
		ck_assert_ptr_nonnull(strstr(e.msg, x->msg));
	} else {
		ck_assert_msg(!rc, "%s", e.msg);
		ck_assert_int_eq(tensor_read(g.fetch, t, out, 4, 0, NULL, &e), 0);
		ck_assert_str_eq(out, x->want);
	}
	tensor_close(g.fetch, t);
	stage_close(&g);
}
END_TEST

static const char *const impossible[] = {
	"shard:chunk=0:count=2:step=1",
	"shard:chunk=2:count=0:step=1",
	"shard:chunk=2:count=2:step=2", /* chunk 2 of 2 */
	"shard:chunk=2:count=2:step=18446744073709551615",
	"shard:chunk=2:count=18446744073709551616:step=1",
	"shard:chunk=2:count=16777217:step=1",
	"shard:chunk=2,2:count=4294967296,4294967296:step=0,0",
	"shard:chunk=2,2:count=2:step=1",
	"shard:chunk=2:count=2,1:step=1",
	"shard:chunk=2:count=2:step=",
	"shard:chunk=-2:count=2:step=1",
	"shard:chunk=2,:count=2:step=1",
	"shard:count=2:chunk=2:step=1",
	"shard",
};

START_LOOP_TEST(impossible_shards_are_unknown, ARRAY_LEN(impossible))
{
	static const struct shard plain = { { 0, 2, 2, 2 }, ":index=end/raw", 0, 0, NULL, NULL };
	struct tensor_reader *t = NULL;
	struct stage g = { 0 };
	struct ckpt_err e = { 0 };

	one_shard(&g, &plain, impossible[_i]);
	ck_assert_int_eq(open_tensor(&g, &t, &e), -ERR_UNSUPPORTED);
	ck_assert_ptr_nonnull(strstr(e.msg, "which is not known"));
	stage_close(&g);
}
END_TEST

/* With a CRC, no bit may change; without one, chunks at least stay inside the shard. */
START_FEW_TEST(a_flipped_bit_in_an_index_is_harmless, 2, 1)
{
	static const struct shard with[] = {
		{ { 0, 2, 2, 2 }, ":index=end/raw", 0, 0, NULL, NULL },
		{ { 0, 2, 2, 2 }, ":index=end:crc32c/raw", 0, 0, NULL, NULL },
	};
	size_t n;

	for (size_t bit = 0; bit < 8 * (32 + 4 * (size_t)_i); bit++) {
		struct tensor_reader *t = NULL;
		struct ckpt_err e = { 0 };
		struct stage g = { 0 };
		uint8_t *bytes;
		char out[4];
		int rc;

		one_shard(&g, &with[_i], one_by_two);
		stage_close(&g);
		bytes = get_file(dir_fd, "s", &n);
		bytes[7 + bit / 8] ^= (uint8_t)(1 << bit % 8);
		put_file(dir_fd, "s", bytes, n);
		free(bytes);
		g = (struct stage){ 0 };
		REQUIRE(!catalog_open(path, &g.catalog, &e));
		stage_open(&g);
		rc = open_tensor(&g, &t, &e);
		ck_assert(!_i || rc == -ERR_CORRUPT);
		if (!rc)
			ck_assert_int_eq(tensor_read(g.fetch, t, out, 4, 0, NULL, &e), 0);
		else
			ck_assert(*e.msg);
		tensor_close(g.fetch, t);
		stage_close(&g);
	}
}
END_TEST

/* The only chunk of each shard is the shard itself, as its index says. The number of levels is
 * bounded. */
START_LOOP_TEST(a_tower_of_shards_has_a_bound, 12)
{
	struct buf b = BUF_INIT(10000);
	struct shard x = { { 0, 36, 0, 36 }, NULL, 0, 0, NULL, NULL };
	struct tensor_reader *t = NULL;
	struct stage g = { 0 };
	struct ckpt_err e = { 0 };
	char out[5] = "";

	buf_str(&b, ":index=end/");
	for (int i = 0; i < _i; i++)
		buf_str(&b, "shard:chunk=2:count=2:step=1:index=end/");
	buf_str(&b, "raw");
	x.options = b.data;
	one_shard(&g, &x, one_by_two);
	if (_i < 8) {
		ck_assert_int_eq(open_tensor(&g, &t, &e), 0);
		ck_assert_int_eq(tensor_read(g.fetch, t, out, 4, 0, NULL, &e), 0);
		ck_assert_str_eq(out, "abab");
	} else {
		ck_assert_int_eq(open_tensor(&g, &t, &e), -ERR_UNSUPPORTED);
	}
	tensor_close(g.fetch, t);
	buf_release(&b);
	stage_close(&g);
}
END_TEST

/* Each shard has one chunk of the tensor and an index of 256 MiB, the largest that an index
 * may be. */
START_LONG_TEST(the_indexes_of_a_tensor_have_a_bound)
{
	enum { SHARDS = 17, LENGTH = 2 + (16 << 24) };
	const uint64_t shape[] = { 2 * SHARDS };
	uint64_t boxes[2 * SHARDS];
	struct chunk_loc locs[SHARDS] = { { 0 } };
	struct tensor_chunks t = { .fqn = "w",
				   .fqn_len = 1,
				   .dtype = CKPT_DTYPE_U8,
				   .n_dims = 1,
				   .shape = shape,
				   .count = SHARDS,
				   .boxes = boxes,
				   .locs = locs };
	struct tensor_reader *reader = NULL;
	struct catalog_writer *w = NULL;
	struct stage g = { 0 };
	struct ckpt_err e = { 0 };
	uint8_t entry[16] = { 0 };
	uint32_t file, encoding;
	int fd;

	entry[8] = 2; /* the first two bytes */
	put_file(dir_fd, "s", "", 0);
	fd = openat(dir_fd, "s", O_WRONLY | O_CLOEXEC);
	REQUIRE(fd >= 0 && !ftruncate(fd, (off_t)SHARDS * LENGTH)); /* full of holes */
	REQUIRE(!catalog_writer_new(path, "test", "/", &w, &e));
	REQUIRE(!catalog_add_source(w, "s", 1, &file, &e));
	REQUIRE(!catalog_add_encoding(w, "shard:chunk=2:count=16777216:step=1:index=end/raw",
				      &encoding, &e));
	for (uint64_t i = 0; i < SHARDS; i++) {
		boxes[2 * i] = 2 * i;
		boxes[2 * i + 1] = 2;
		locs[i] = (struct chunk_loc){
			.file = file, .encoding = encoding, .offset = i * LENGTH, .length = LENGTH
		};
		REQUIRE(pwrite(fd, entry, 16, (off_t)(i * LENGTH + 2 + 16 * i)) == 16);
	}
	(void)close(fd);
	make_old("s");
	REQUIRE(!catalog_add_tensor(w, &t, &e) && !catalog_writer_finish(w, &g.catalog, &e));
	catalog_writer_free(w);
	stage_open(&g);
	ck_assert_int_eq(open_tensor(&g, &reader, &e), -EFBIG);
	ck_assert_msg(strstr(e.msg, "the indexes of the tensor's shards are more than 4 GiB"), "%s",
		      e.msg);
	stage_close(&g);
}
END_TEST

/* What is kept about a tensor is only a hint: whatever it says, no byte outside a file is read. */
START_TEST(records_may_say_anything)
{
	static const struct shard x = { { 0, 2, 2, 2 }, ":index=end:fill=0/raw", 0, 0, NULL, NULL };
	struct rng r = rng_new();

	for (unsigned i = 0; i < rng_rounds(3000, 300); i++) {
		struct tensor_reader *t = NULL;
		struct ckpt_err e = { 0 };
		struct stage g = { 0 };
		uint8_t record[12];
		size_t n = rng_below(&r, sizeof(record));
		char out[5] = "";

		if (!i)
			one_shard(&g, &x, one_by_two);
		else if (catalog_open(path, &g.catalog, &e))
			ck_abort_msg("%s", e.msg);
		else
			stage_open(&g);
		for (size_t k = 0; k < n; k++)
			record[k] =
				(uint8_t)(rng_below(&r, 8) ? rng_below(&r, 6) : rng_below(&r, 256));
		catalog_found_add(g.fetch->found, 0, record, n);
		ck_assert_int_eq(open_tensor(&g, &t, &e), 0);
		ck_assert_int_eq(tensor_read(g.fetch, t, out, 4, 0, NULL, &e), 0);
		tensor_close(g.fetch, t);
		stage_close(&g);
	}
}
END_TEST

SUITE(shards, .setup = setup, .teardown = teardown, .seconds = 120)
