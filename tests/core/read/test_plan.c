/* SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "fault.h"
#include "read/plan.h"
#include "rng.h"
#include "scene_util.h"
#include "suites.h"
#include "whole_util.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- carrying a plan out in memory, and checking all that plan.h promises ---- */

struct carried {
	uint8_t *out;
	uint8_t *times; /* how often each byte of the destination was written */
	uint64_t first; /* where the range begins in these */
};

static void carry_out(const struct scene *s, const struct plan *p, uint64_t len, bool whole,
		      struct carried *r)
{
	for (size_t i = 0; i < p->n; i++) {
		const struct copy *c = &p->copies[i];
		const struct copy_dim *dims = c->n_dims ? p->dims + c->dim : NULL;
		uint64_t counts[CKPT_MAX_DIMS + 1], idx[CKPT_MAX_DIMS + 1] = { 0 };

		REQUIRE(c->chunk < s->count);
		REQUIRE(c->dim + c->n_dims <= p->n_dims);
		REQUIRE(c->run > 0);
		REQUIRE(!whole || c->run % s->element == 0);
		for (uint32_t d = 0; d < c->n_dims; d++) {
			counts[d] = dims[d].count;
			REQUIRE(counts[d] > 1); /* a dimension of one is none */
		}
		do {
			uint64_t src = c->src, dst = r->first + c->dst;

			for (uint32_t d = 0; d < c->n_dims; d++) {
				src += idx[d] * dims[d].src_stride;
				dst += idx[d] * dims[d].dst_stride;
			}
			REQUIRE(range_ok(src, c->run, s->item_len[c->chunk]));
			REQUIRE(range_ok(dst, c->run, len));
			memcpy(r->out + dst, s->items[c->chunk] + src, c->run);
			for (uint64_t k = 0; k < c->run; k++)
				if (r->times[dst + k] < 2)
					r->times[dst + k]++;
		} while (next_index(c->n_dims, counts, idx));
	}
}

static void check_range(const struct scene *s, struct plan *p, struct carried *r, uint64_t off,
			uint64_t len)
{
	bool whole = off % s->element == 0 && len % s->element == 0;

	memset(r->out, 0x55, len);
	memset(r->times, 0, len);
	REQUIRE(plan_whole(s->map, s->element, s->payloads, off, len, p) == 0);
	carry_out(s, p, len, whole, r);
	REQUIRE(!memcmp(r->out, s->want + off, len));
	for (uint64_t i = 0; i < len; i++)
		REQUIRE(s->overlap ? r->times[i] >= 1 : r->times[i] == 1);
}

static void check_ranges(struct rng *r, const struct scene *s, unsigned some)
{
	struct plan p = { 0 };
	struct carried c = { malloc(s->bytes + 1), malloc(s->bytes + 1), 0 };

	REQUIRE(c.out && c.times);
	if (s->bytes <= 40) {
		for (uint64_t off = 0; off <= s->bytes; off++)
			for (uint64_t len = 0; len <= s->bytes - off; len++)
				check_range(s, &p, &c, off, len);
		some = 0;
	}
	check_range(s, &p, &c, 0, s->bytes);
	while (some-- && s->bytes) {
		uint64_t off = rng_below(r, s->bytes), len = 1 + rng_below(r, s->bytes - off);

		if (rng_chance(r, 30)) /* short ones cross few borders */
			len = 1 + (len - 1) % (4 * s->element);
		check_range(s, &p, &c, off, len);
	}
	plan_release(&p);
	REQUIRE(!p.copies && !p.dims && !p.cap && !p.cap_dims);
	free(c.out);
	free(c.times);
}

static void check_scenes(unsigned n, const struct scene_opts *o, unsigned some)
{
	struct rng r = rng_new();
	struct choose c = choose_rng(&r);

	n = rng_rounds(n, n / 5);
	while (n--) {
		struct scene s;

		scene_make(&s, &c, o);
		check_ranges(&r, &s, some);
		scene_release(&s);
	}
}

static void check_memory(struct rng *r, const struct scene *s, uint64_t off, uint64_t len)
{
	bool whole = off % s->element == 0 && len % s->element == 0;
	struct scene_memory m;
	struct plan p = { 0 };
	struct carried c;
	uint8_t *want;

	scene_memory_make(&m, s, r);
	c = (struct carried){ malloc(m.bytes), calloc(1, m.bytes), m.first };
	want = malloc(m.bytes);
	REQUIRE(c.out && c.times && want);
	memset(c.out, 0x55, m.bytes);
	memset(want, 0x55, m.bytes);
	scene_memory_fill(&m, s, off, len, want);
	REQUIRE(!plan_whole_to(s->map, s->element, s->payloads, off, len, m.stride, &p));
	carry_out(s, &p, m.bytes, whole, &c);
	REQUIRE(!memcmp(c.out, want, m.bytes));
	for (uint64_t i = 0; !s->overlap && i < m.bytes; i++)
		REQUIRE(c.times[i] <= 1);
	plan_release(&p);
	free(c.out);
	free(c.times);
	free(want);
}

START_TEST(memory_with_strides_is_filled_as_element_by_element)
{
	struct rng r = rng_new();
	struct choose c = choose_rng(&r);
	struct scene_opts o = { 5, 600, 0, TILE_ANY, ROWS_ANY };

	for (int i = 0; i < 1500; i++) {
		struct scene s;

		scene_make(&s, &c, &o);
		check_memory(&r, &s, 0, s.bytes);
		for (int k = 0; k < 6 && s.bytes; k++) {
			uint64_t off = rng_below(&r, s.bytes);

			check_memory(&r, &s, off, 1 + rng_below(&r, s.bytes - off));
		}
		scene_release(&s);
	}
}
END_TEST

START_TEST(every_range_of_small_tensors_reads_as_element_by_element)
{
	check_scenes(4000, &(struct scene_opts){ 6, 12, 0, TILE_ANY, ROWS_ANY }, 20);
}
END_TEST

START_TEST(ranges_of_grids_read_as_element_by_element)
{
	check_scenes(2500, &(struct scene_opts){ 6, 2000, 0, TILE_GRID, ROWS_ANY }, 25);
}
END_TEST

START_TEST(ranges_of_irregular_tilings_read_as_element_by_element)
{
	check_scenes(2500, &(struct scene_opts){ 6, 2000, 0, TILE_CUTS, ROWS_ANY }, 25);
}
END_TEST

START_TEST(where_chunks_overlap_the_later_one_is_read)
{
	check_scenes(2500, &(struct scene_opts){ 6, 2000, 0, TILE_OVERLAPS, ROWS_ANY }, 25);
}
END_TEST

START_LOOP_TEST(each_way_of_laying_out_an_item_is_undone, ROWS_ANY)
{
	check_scenes(500, &(struct scene_opts){ 4, 3000, 0, TILE_ANY, (enum scene_strides)_i }, 25);
}
END_TEST

START_TEST(many_dimensions_are_no_different)
{
	uint64_t shape[CKPT_MAX_DIMS], boxes[4 * CKPT_MAX_DIMS] = { 0 };
	struct rng r = rng_new();
	struct choose c = choose_rng(&r);
	struct scene_opts o = { .element = 4, .strides = ROWS_PERMUTED };

	for (int i = 0; i < 20; i++) {
		uint64_t *a = boxes, *b = boxes + 2 * CKPT_MAX_DIMS;
		struct scene s;

		for (size_t d = 0; d < CKPT_MAX_DIMS; d++)
			shape[d] = a[CKPT_MAX_DIMS + d] = b[CKPT_MAX_DIMS + d] = d % 6 ? 1 : 2;
		memset(b, 0, CKPT_MAX_DIMS * sizeof(*b));
		a[CKPT_MAX_DIMS] = b[CKPT_MAX_DIMS] = b[0] = 1; /* cut in two along the first */
		scene_make_of(&s, &c, &o, CKPT_MAX_DIMS, shape, 2, boxes);
		check_ranges(&r, &s, 30);
		scene_release(&s);
	}
}
END_TEST

/* ---- numbers near the limits: only planned, not carried out ---- */

START_TEST(offsets_near_2_to_the_63_are_planned_right)
{
	const uint64_t rows = (uint64_t)1 << 40, cols = (uint64_t)1 << 20;
	const uint64_t shape[] = { rows, cols };
	const uint64_t boxes[] = { 0, 0, rows, cols / 2, 0, cols / 2, rows, cols / 2 };
	uint64_t strides[] = { cols * 2, 4, cols * 2, 4 };
	struct payload pl[] = { { .data = 704, .stride = strides },
				{ .data = 768, .stride = strides + 2 } };
	struct chunkmap *m = chunkmap_new(2, shape, boxes, 2);
	struct plan p = { 0 };
	uint64_t last_row = (rows - 1) * cols * 4;

	ck_assert_ptr_nonnull(m);
	ck_assert_int_eq(plan_whole(m, 4, pl, last_row + cols * 2 - 3, 6, &p), 0);
	ck_assert_uint_eq(p.n, 2);
	ck_assert_uint_eq(p.copies[0].chunk, 0);
	ck_assert_uint_eq(p.copies[0].src, 704 + (rows - 1) * cols * 2 + cols * 2 - 3);
	ck_assert_uint_eq(p.copies[0].dst, 0);
	ck_assert_uint_eq(p.copies[0].run, 3);
	ck_assert_uint_eq(p.copies[1].chunk, 1);
	ck_assert_uint_eq(p.copies[1].src, 768 + (rows - 1) * cols * 2);
	ck_assert_uint_eq(p.copies[1].dst, 3);
	ck_assert_uint_eq(p.copies[1].run, 3);
	ck_assert_int_eq(plan_whole(m, 4, pl, 0, 4 * rows * cols, &p), 0);
	ck_assert_uint_eq(p.n, 2);
	ck_assert_uint_eq(p.copies[1].n_dims, 1);
	ck_assert_uint_eq(p.dims[p.copies[1].dim].count, rows);
	plan_release(&p);
	free(m);
}
END_TEST

/* ---- few copies ---- */

struct layout {
	const char *what;
	size_t n;
	uint64_t shape[3], cells[3];
	uint64_t perm[3];  /* the item's dimensions, outermost first */
	uint64_t off, len; /* bytes; len 0: to the end */
	size_t copies;
	uint32_t dims; /* of each copy */
	uint64_t run;  /* of the first */
};

/* Elements of 4 bytes. */
static const struct layout layouts[] = {
	{ "one chunk", 2, { 8, 6 }, { 1, 1 }, { 0, 1 }, 0, 0, 1, 0, 192 },
	{ "one chunk, from the middle of a row on",
	  2,
	  { 8, 6 },
	  { 1, 1 },
	  { 0, 1 },
	  13,
	  100,
	  1,
	  0,
	  100 },
	{ "Shard(0)", 2, { 8, 6 }, { 4, 1 }, { 0, 1 }, 0, 0, 4, 0, 48 },
	{ "Shard(0), some bytes", 2, { 8, 6 }, { 4, 1 }, { 0, 1 }, 41, 100, 3, 0, 7 },
	{ "Shard(0) of three dimensions",
	  3,
	  { 8, 6, 5 },
	  { 2, 1, 1 },
	  { 0, 1, 2 },
	  0,
	  0,
	  2,
	  0,
	  480 },
	{ "Shard(1)", 2, { 8, 6 }, { 1, 2 }, { 0, 1 }, 0, 0, 2, 1, 12 },
	{ "Shard(1) of three dimensions",
	  3,
	  { 4, 6, 5 },
	  { 1, 3, 1 },
	  { 0, 1, 2 },
	  0,
	  0,
	  3,
	  1,
	  40 },
	{ "a grid", 2, { 8, 6 }, { 2, 2 }, { 0, 1 }, 0, 0, 4, 1, 12 },
	{ "transposed", 2, { 8, 6 }, { 1, 1 }, { 1, 0 }, 0, 0, 1, 2, 4 },
	{ "channels last", 3, { 4, 6, 5 }, { 1, 1, 1 }, { 1, 2, 0 }, 0, 0, 1, 2, 4 },
	{ "outer dimensions swapped", 3, { 4, 6, 5 }, { 1, 1, 1 }, { 1, 0, 2 }, 0, 0, 1, 2, 20 },
	{ "a row of Shard(1)", 2, { 8, 6 }, { 1, 2 }, { 0, 1 }, 24, 24, 2, 0, 12 },
};

START_LOOP_TEST(what_is_contiguous_takes_few_copies, ARRAY_LEN(layouts))
{
	const struct layout *l = &layouts[_i];
	uint64_t boxes[16 * 6], cell[3] = { 0 }, strides[16 * 3], len[3];
	struct payload pl[16];
	struct chunkmap *m;
	struct plan p = { 0 };
	uint32_t count = 0;
	uint64_t bytes = 4;

	for (size_t d = 0; d < l->n; d++) {
		len[d] = l->shape[d] / l->cells[d];
		bytes *= l->shape[d];
	}
	do {
		uint64_t *b = boxes + count * 2 * l->n, step = 4;

		pl[count] = (struct payload){ .data = 704, .stride = strides + count * l->n };
		for (size_t d = 0; d < l->n; d++) {
			b[d] = cell[d] * len[d];
			b[l->n + d] = len[d];
		}
		for (size_t i = l->n; i-- > 0; step *= len[l->perm[i]])
			pl[count].stride[l->perm[i]] = step;
		count++;
	} while (next_index(l->n, l->cells, cell));
	m = chunkmap_new(l->n, l->shape, boxes, count);
	ck_assert_ptr_nonnull(m);
	ck_assert_int_eq(plan_whole(m, 4, pl, l->off, l->len ? l->len : bytes, &p), 0);
	ck_assert_msg(p.n == l->copies, "%s: %zu copies", l->what, p.n);
	for (size_t i = 0; i < p.n; i++)
		ck_assert_msg(p.copies[i].n_dims == l->dims, "%s: %u dimensions", l->what,
			      p.copies[i].n_dims);
	ck_assert_msg(p.copies[0].run == l->run, "%s: runs of %llu", l->what,
		      (unsigned long long)p.copies[0].run);
	plan_release(&p);
	free(m);
}
END_TEST

START_TEST(any_range_of_one_dense_item_is_one_copy)
{
	struct rng r = rng_new();
	struct choose c = choose_rng(&r);
	struct scene_opts o = { .element = 2, .strides = ROWS_DENSE };
	const uint64_t shape[] = { 3, 4, 5 }, box[] = { 0, 0, 0, 3, 4, 5 };
	struct scene s;
	struct plan p = { 0 };

	scene_make_of(&s, &c, &o, 3, shape, 1, box);
	for (uint64_t off = 0; off < s.bytes; off++) {
		for (uint64_t len = 1; len <= s.bytes - off; len++) {
			REQUIRE(plan_whole(s.map, 2, s.payloads, off, len, &p) == 0);
			REQUIRE(p.n == 1 && !p.copies[0].n_dims && p.copies[0].run == len);
			REQUIRE(p.copies[0].src == s.payloads[0].data + off);
		}
	}
	plan_release(&p);
	scene_release(&s);
}
END_TEST

START_TEST(a_range_of_nothing_is_no_copy)
{
	const uint64_t shape[] = { 3, 0 };
	struct chunkmap *m = chunkmap_new(2, shape, shape, 0);
	struct payload none;
	struct plan p = { 0 };

	ck_assert_ptr_nonnull(m);
	ck_assert_int_eq(plan_whole(m, 8, &none, 0, 0, &p), 0);
	ck_assert_uint_eq(p.n, 0);
	plan_release(&p);
	free(m);
}
END_TEST

/* ---- where the reply lies ---- */

/* Compares byte by byte: is the tensor at `off` of the file of its first chunk? */
static bool lies_in_place(const struct scene *s, uint64_t off)
{
	for (uint32_t i = 0; i < s->count; i++) {
		const uint64_t *box = s->boxes + i * 2 * s->n, *len = box + s->n;
		uint64_t idx[CKPT_MAX_DIMS] = { 0 };

		do {
			uint64_t at = 0, src = s->map->locs[i].offset + s->payloads[i].data;

			for (size_t d = 0; d < s->n; d++) {
				at = at * s->shape[d] + box[d] + idx[d];
				src += idx[d] * s->payloads[i].stride[d];
			}
			if (src != off + at * s->element ||
			    s->map->locs[i].file != s->map->locs[0].file)
				return false;
		} while (next_index(s->n, len, idx));
	}
	return true;
}

/* Puts most items where a file of the whole tensor would have their first elements. */
static void put_items(struct rng *r, const struct scene *s, uint64_t off)
{
	uint32_t file = (uint32_t)rng_below(r, 9);

	for (uint32_t i = 0; i < s->count; i++) {
		uint64_t at = 0;

		for (size_t d = 0; d < s->n; d++)
			at = at * s->shape[d] + s->boxes[i * 2 * s->n + d];
		s->map->locs[i] = (struct chunk_loc){
			.offset = off + at * s->element - s->payloads[i].data + rng_chance(r, 3),
			.file = file + rng_chance(r, 3),
		};
	}
}

START_TEST(what_lies_in_place_is_found_as_byte_by_byte)
{
	struct rng r = rng_new();
	struct choose c = choose_rng(&r);
	unsigned found[2] = { 0 };

	for (unsigned i = 0; i < 4000; i++) {
		const struct scene_opts o = { 1 + rng_below(&r, 4), 200, 0,
					      rng_chance(&r, 50) ? TILE_GRID : TILE_CUTS,
					      rng_chance(&r, 70) ? ROWS_DENSE : ROWS_ANY };
		uint64_t off = (1 << 20) + rng_below(&r, 1 << 20);
		struct plan p = { 0 };
		struct scene s;
		struct whole w;
		uint64_t at = 77;
		uint32_t file = 77;
		bool want, got;

		scene_make(&s, &c, &o);
		put_items(&r, &s, off);
		whole_init(&w, s.map, s.element, s.payloads);
		REQUIRE(!plan_read(&w.v, &w.source, 0, s.bytes, NULL, &p));
		want = s.bytes && lies_in_place(&s, off);
		got = plan_in_place(&p, &w.source, &file, &at);
		REQUIRE(!want || (got && at == off));
		REQUIRE(!got || lies_in_place(&s, at));
		REQUIRE(got ? file == s.map->locs[0].file : file == 77 && at == 77);
		found[got]++;
		plan_release(&p);
		scene_release(&s);
	}
	ck_assert_uint_gt(found[0], 500);
	ck_assert_uint_gt(found[1], 500);
}
END_TEST

/* Every allocation of a plan fails once; the plan can be used again afterwards. */
START_TEST(without_memory_it_says_so)
{
	struct rng r = rng_new();
	struct choose c = choose_rng(&r);
	struct scene_opts o = { 3, 4000, 3, TILE_OVERLAPS, ROWS_PADDED };
	unsigned failed = 0;

	for (int i = 0; i < 20; i++) {
		struct scene s;

		scene_make(&s, &c, &o);
		FAULT_LOOP(FAULT_ALLOC)
		{
			struct plan p = { 0 };
			int rc = plan_whole(s.map, s.element, s.payloads, 0, s.bytes, &p);

			(void)fault_off();
			ck_assert_int_eq(rc, fault_hit() ? -ENOMEM : 0);
			failed += rc != 0;
			ck_assert_int_eq(plan_whole(s.map, s.element, s.payloads, 0, s.bytes, &p),
					 0);
			plan_release(&p);
		}
		scene_release(&s);
	}
	ck_assert_uint_gt(failed, 20);
}
END_TEST

SUITE(plan, .seconds = 120)
