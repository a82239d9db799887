/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Splits and shards, compared with naive versions that ask for each element who owns it, and with
 * what HyperParallel's own functions answered (tests/data/hyperparallel).
 */
#include "base/checked.h"
#include "box_util.h"
#include "golden_util.h"
#include "model/box.h"
#include "model/mesh.h"
#include "rng.h"
#include "suites.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { AXES = 4, DIMS = 3 }; /* of random cases */

/* ---- meshes ---- */

START_TEST(mesh_size_is_bounded)
{
	uint64_t n = 42, many[CKPT_MESH_MAX_AXES + 1];

	ck_assert(!mesh_size(0, NULL, &n));
	ck_assert(!mesh_size(2, (const uint64_t[]){ 4, 0 }, &n));
	ck_assert(!mesh_size(2, (const uint64_t[]){ 1000, 1001 }, &n));
	ck_assert(!mesh_size(2, (const uint64_t[]){ (uint64_t)1 << 63, 2 }, &n)); /* wraps to 0 */
	for (size_t i = 0; i < ARRAY_LEN(many); i++)
		many[i] = 1;
	ck_assert(!mesh_size(CKPT_MESH_MAX_AXES + 1, many, &n));
	ck_assert_uint_eq(n, 42);
	ck_assert(mesh_size(CKPT_MESH_MAX_AXES, many, &n));
	ck_assert_uint_eq(n, 1);
	ck_assert(mesh_size(2, (const uint64_t[]){ 1000, 1000 }, &n));
	ck_assert_uint_eq(n, 1000000);
}
END_TEST

START_TEST(coordinates_count_like_digits)
{
	const uint64_t mesh[] = { 2, 1, 4, 3 };
	uint64_t want[4] = { 0 }, got[4];

	for (uint64_t rank = 0; rank < 24; rank++) {
		mesh_coords(4, mesh, rank, got);
		ck_assert_mem_eq(got, want, sizeof(want));
		for (size_t i = 4; i-- > 0; want[i] = 0)
			if (++want[i] < mesh[i])
				break;
	}
}
END_TEST

/* ---- splits ---- */

static const struct {
	enum ckpt_split how;
	uint64_t len, parts;
	uint64_t off[5], part_len[5];
} split_rows[] = {
	/* torch.arange(10).chunk(4), torch.arange(5).chunk(4), (4).chunk(5), (0).chunk(2) */
	{ CKPT_SPLIT_CEIL, 10, 4, { 0, 3, 6, 9 }, { 3, 3, 3, 1 } },
	{ CKPT_SPLIT_CEIL, 5, 4, { 0, 2, 4, 5 }, { 2, 2, 1, 0 } },
	{ CKPT_SPLIT_CEIL, 4, 5, { 0, 1, 2, 3, 4 }, { 1, 1, 1, 1, 0 } },
	{ CKPT_SPLIT_CEIL, 9, 4, { 0, 3, 6, 9 }, { 3, 3, 3, 0 } },
	{ CKPT_SPLIT_CEIL, 0, 2, { 0, 0 }, { 0, 0 } },
	{ CKPT_SPLIT_BALANCED, 10, 4, { 0, 3, 6, 8 }, { 3, 3, 2, 2 } },
	{ CKPT_SPLIT_BALANCED, 5, 4, { 0, 2, 3, 4 }, { 2, 1, 1, 1 } },
	{ CKPT_SPLIT_BALANCED, 2, 4, { 0, 1, 2, 2 }, { 1, 1, 0, 0 } },
	{ CKPT_SPLIT_BALANCED, 0, 2, { 0, 0 }, { 0, 0 } },
	{ CKPT_SPLIT_EVEN, 12, 4, { 0, 3, 6, 9 }, { 3, 3, 3, 3 } },
	{ CKPT_SPLIT_EVEN, 0, 2, { 0, 0 }, { 0, 0 } },
};

START_LOOP_TEST(parts_are_where_torch_puts_them, ARRAY_LEN(split_rows))
{
	for (uint64_t k = 0; k < split_rows[_i].parts; k++) {
		uint64_t off = 100, len = split_rows[_i].len;

		ck_assert(split_part(split_rows[_i].how, split_rows[_i].parts, k, &off, &len));
		ck_assert_uint_eq(off, 100 + split_rows[_i].off[k]);
		ck_assert_uint_eq(len, split_rows[_i].part_len[k]);
	}
}
END_TEST

START_TEST(an_even_split_must_divide)
{
	uint64_t off = 7, len = 10;

	ck_assert(!split_part(CKPT_SPLIT_EVEN, 4, 1, &off, &len));
	ck_assert_uint_eq(off, 7);
	ck_assert_uint_eq(len, 10);
}
END_TEST

START_TEST(parts_follow_each_other_up_to_the_largest_numbers)
{
	static const uint64_t lens[] = {
		0, 1, INT64_MAX, (uint64_t)INT64_MAX + 1, UINT64_MAX - 1, UINT64_MAX
	};
	struct rng r = rng_new();

	for (int i = 0; i < 3000; i++) {
		enum ckpt_split how = rng_chance(&r, 50) ? CKPT_SPLIT_CEIL : CKPT_SPLIT_BALANCED;
		uint64_t parts = 1 + rng_below(&r, rng_chance(&r, 90) ? 9 : 3000), end = 0, least,
			 most;
		uint64_t total = rng_chance(&r, 90) ? rng_below(&r, 40)
						    : lens[rng_below(&r, ARRAY_LEN(lens))];

		least = total / parts;
		most = least + (total % parts > 0);
		for (uint64_t k = 0; k < parts; k++) {
			uint64_t off = 0, len = total;

			REQUIRE(split_part(how, parts, k, &off, &len));
			REQUIRE(off == end && len <= most);
			REQUIRE(how == CKPT_SPLIT_CEIL ? len == most || off + len == total
						       : len >= least);
			end = off + len;
		}
		REQUIRE(end == total);
	}
}
END_TEST

/* ---- shards ---- */

struct scene {
	struct ckpt_sharding s;
	uint64_t mesh[AXES], ranks, shape[DIMS];
	struct ckpt_placement p[AXES];
	size_t n_dims;
};

static void make_scene(struct rng *r, struct scene *sc)
{
	uint8_t axes[AXES];

	*sc = (struct scene){ .n_dims = rng_below(r, DIMS + 1) };
	sc->s.n_axes = (uint8_t)(1 + rng_below(r, AXES));
	for (uint8_t i = 0; i < sc->s.n_axes; i++) {
		sc->mesh[i] = 1 + rng_below(r, 4);
		axes[i] = i;
	}
	for (size_t d = 0; d < sc->n_dims; d++)
		sc->shape[d] = rng_below(r, 9);
	sc->s.n = sc->n_dims ? (uint8_t)rng_below(r, sc->s.n_axes + 1u) : 0;
	for (size_t i = 0; i < sc->s.n; i++) {
		size_t k = i + rng_below(r, sc->s.n_axes - i);
		int d = (int)rng_below(r, sc->n_dims);

		sc->p[i].axis = axes[k];
		axes[k] = axes[i];
		sc->p[i].dim = (int8_t)(rng_chance(r, 50) ? d : d - (int)sc->n_dims);
		sc->p[i].how = (uint8_t)rng_below(r, 2);
	}
	sc->s.mesh = sc->mesh;
	sc->s.placements = sc->p;
	REQUIRE(mesh_size(sc->s.n_axes, sc->mesh, &sc->ranks));
}

/* The part that element x of len falls into, and how many elements of that part come before it. */
static uint64_t owner(enum ckpt_split how, uint64_t len, uint64_t parts, uint64_t *x,
		      uint64_t *ret_len)
{
	uint64_t part = 0, room = 0;

	for (uint64_t i = 0, at = 0;; i++, at++) {
		while (at == room) { /* the next part, which takes `room` elements */
			uint64_t ceil = (len + parts - 1) / parts;

			room = how == CKPT_SPLIT_CEIL ? min_u64(ceil, len - i)
						      : len / parts + (part < len % parts);
			at = 0;
			part++;
			if (!room)
				continue;
		}
		if (i == *x) {
			*x = at;
			*ret_len = room;
			return part - 1;
		}
	}
}

/* Does the rank hold this element? Then *ret_local is where in its own tensor. */
static bool holds(const struct scene *sc, uint64_t rank, const uint64_t *v, uint64_t *ret_local)
{
	uint64_t len[DIMS], at[AXES];

	mesh_coords(sc->s.n_axes, sc->mesh, rank, at);
	memcpy(len, sc->shape, sizeof(len));
	memcpy(ret_local, v, sc->n_dims * sizeof(*v));
	for (size_t i = 0; i < sc->s.n; i++) {
		const struct ckpt_placement *p = &sc->p[i];
		size_t d = p->dim < 0 ? sc->n_dims - (size_t)-p->dim : (size_t)p->dim;

		if (owner((enum ckpt_split)p->how, len[d], sc->mesh[p->axis], &ret_local[d],
			  &len[d]) != at[p->axis])
			return false;
	}
	return true;
}

static bool is_empty(size_t n, const uint64_t *len)
{
	for (size_t d = 0; d < n; d++)
		if (!len[d])
			return true;
	return false;
}

START_TEST(a_rank_holds_the_elements_that_the_splits_give_it)
{
	struct rng r = rng_new();

	for (int i = 0; i < 1500; i++) {
		struct scene sc;

		make_scene(&r, &sc);
		for (uint64_t rank = 0; rank < sc.ranks; rank++) {
			uint64_t off[DIMS], len[DIMS], v[DIMS] = { 0 }, local[DIMS];

			REQUIRE(shard_box(&sc.s, rank, sc.n_dims, sc.shape, off, len));
			REQUIRE(box_inside(sc.n_dims, off, len, sc.shape));
			if (is_empty(sc.n_dims, sc.shape))
				continue;
			do {
				bool in = contains(sc.n_dims, off, len, v);

				REQUIRE(in == holds(&sc, rank, v, local));
				for (size_t d = 0; d < sc.n_dims && in; d++)
					REQUIRE(local[d] == v[d] - off[d]);
			} while (next_element(sc.n_dims, sc.shape, v));
		}
	}
}
END_TEST

/* Is the rank at 0 on all axes that no placement names? */
static bool is_first(const struct ckpt_sharding *s, uint64_t rank)
{
	uint64_t at[CKPT_MESH_MAX_AXES], sum = 0;

	mesh_coords(s->n_axes, s->mesh, rank, at);
	for (size_t i = 0; i < s->n; i++)
		at[s->placements[i].axis] = 0;
	for (size_t i = 0; i < s->n_axes; i++)
		sum += at[i];
	return !sum;
}

/* For every element of the wanted box: how often it came, and from whom. */
struct hits {
	const struct scene *sc;
	uint8_t times[9 * 9 * 9];
	int stop_after;
};

static int note(void *arg, uint64_t rank, const uint64_t *off, const uint64_t *len,
		const uint64_t *local_off)
{
	struct hits *h = arg;
	uint64_t x[DIMS] = { 0 }, v[DIMS] = { 0 }, local[DIMS];

	if (!h->stop_after--)
		return 77;
	REQUIRE(is_first(&h->sc->s, rank) && !is_empty(h->sc->n_dims, len));
	do {
		uint64_t at = 0;

		for (size_t d = 0; d < h->sc->n_dims; d++) {
			v[d] = off[d] + x[d];
			at = at * 9 + v[d];
		}
		REQUIRE(holds(h->sc, rank, v, local));
		for (size_t d = 0; d < h->sc->n_dims; d++)
			REQUIRE(local[d] == local_off[d] + x[d]);
		h->times[at]++;
	} while (next_element(h->sc->n_dims, len, x));
	return 0;
}

START_TEST(every_element_of_a_box_is_found_once)
{
	struct rng r = rng_new();

	for (int i = 0; i < 4000; i++) {
		struct hits h = { .stop_after = -1 };
		uint64_t off[DIMS], len[DIMS], v[DIMS] = { 0 };
		struct scene sc;

		make_scene(&r, &sc);
		h.sc = &sc;
		for (size_t d = 0; d < sc.n_dims; d++) {
			off[d] = rng_below(&r, sc.shape[d] + 1);
			len[d] = rng_below(&r, sc.shape[d] - off[d] + 1);
		}
		REQUIRE(!shard_find(&sc.s, sc.n_dims, sc.shape, off, len, note, &h));
		if (is_empty(sc.n_dims, sc.shape))
			continue;
		do {
			uint64_t at = 0;

			for (size_t d = 0; d < sc.n_dims; d++)
				at = at * 9 + v[d];
			REQUIRE(h.times[at] == contains(sc.n_dims, off, len, v));
		} while (next_element(sc.n_dims, sc.shape, v));
	}
}
END_TEST

static int note_rank(void *arg, uint64_t rank, const uint64_t *off, const uint64_t *len,
		     const uint64_t *local_off)
{
	(void)off;
	(void)len;
	(void)local_off;
	*(uint64_t *)arg |= (uint64_t)1 << rank;
	return 0;
}

START_TEST(one_rank_of_those_with_the_same_box_is_the_first)
{
	const uint64_t mesh[] = { 2, 3, 2 }, zero = 0, three = 3;
	const struct ckpt_placement p[] = { { .axis = 1, .dim = 0, .how = CKPT_SPLIT_CEIL } };
	const struct ckpt_sharding s = { mesh, p, 3, 1 };
	uint64_t ranks = 0;

	ck_assert_int_eq(shard_find(&s, 1, &three, &zero, &three, note_rank, &ranks), 0);
	ck_assert_uint_eq(ranks, 1 << 0 | 1 << 2 | 1 << 4);
}
END_TEST

START_TEST(what_does_not_fit_is_refused)
{
	static const struct ckpt_placement rows[] = {
		{ 0, 2, CKPT_SPLIT_CEIL },	  { 0, -3, CKPT_SPLIT_CEIL },
		{ 0, INT8_MIN, CKPT_SPLIT_CEIL }, { 0, 1, CKPT_SPLIT_EVEN },
		{ 0, -1, CKPT_SPLIT_EVEN },
	};
	const uint64_t mesh[] = { 4 }, shape[] = { 8, 6 };
	uint64_t off[2], len[2];

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		const struct ckpt_sharding s = { mesh, &rows[i], 1, 1 };
		struct hits h = { .stop_after = -1 };

		ck_assert(!shard_box(&s, 1, 2, shape, off, len));
		ck_assert_int_eq(
			shard_find(&s, 2, shape, (const uint64_t[]){ 0, 0 }, shape, note, &h),
			-EINVAL);
	}
}
END_TEST

START_TEST(a_search_stops_where_visit_says_so)
{
	struct scene sc = { .mesh = { 4 }, .shape = { 8 }, .n_dims = 1 };
	struct hits h = { .sc = &sc, .stop_after = 2 };

	sc.s = (struct ckpt_sharding){ sc.mesh, sc.p, 1, 1 };
	ck_assert_int_eq(shard_find(&sc.s, 1, sc.shape, (const uint64_t[]){ 1 },
				    (const uint64_t[]){ 7 }, note, &h),
			 77);
	ck_assert_uint_eq(h.times[1] + h.times[2] + h.times[3], 3);
	ck_assert_uint_eq(h.times[0] + h.times[4], 0);
}
END_TEST

/* ---- HyperParallel's answers ---- */

struct golden {
	struct ckpt_sharding s;
	uint64_t mesh[8], shape[CKPT_MAX_DIMS];
	struct ckpt_placement p[8];
	size_t n_dims;
};

static size_t numbers(const json_t *list, uint64_t *ret)
{
	for (size_t i = 0; i < json_array_size(list); i++)
		ret[i] = (uint64_t)json_integer_value(json_array_get(list, i));
	return json_array_size(list);
}

static void golden_axis(struct golden *g, int64_t from_right, size_t d)
{
	if (from_right < 0)
		return;
	g->p[g->s.n++] = (struct ckpt_placement){ (uint8_t)(g->s.n_axes - 1 - from_right),
						  (int8_t)d, CKPT_SPLIT_EVEN };
}

static void golden_sharding(struct golden *g, const json_t *mesh, const json_t *map,
			    const json_t *shape)
{
	*g = (struct golden){ 0 };
	g->n_dims = numbers(shape, g->shape);
	g->s = (struct ckpt_sharding){ g->mesh, g->p, (uint8_t)numbers(mesh, g->mesh), 0 };
	ck_assert_uint_eq(json_array_size(map), g->n_dims);
	for (size_t d = 0; d < g->n_dims; d++) {
		const json_t *m = json_array_get(map, d);

		if (json_is_integer(m))
			golden_axis(g, json_integer_value(m), d);
		for (size_t i = 0; i < json_array_size(m); i++)
			golden_axis(g, json_integer_value(json_array_get(m, i)), d);
	}
}

/* [[start, end], ...] */
static void check_area(const json_t *area, size_t n, const uint64_t *off, const uint64_t *len)
{
	ck_assert_uint_eq(json_array_size(area), n);
	for (size_t d = 0; d < n; d++) {
		uint64_t range[2];

		ck_assert_uint_eq(numbers(json_array_get(area, d), range), 2);
		ck_assert_uint_eq(range[0], off[d]);
		ck_assert_uint_eq(range[1], off[d] + len[d]);
	}
}

START_TEST(areas_are_those_of_hyperparallel)
{
	json_t *all = golden_load("hyperparallel/planner_golden.json"), *row;
	size_t i;

	json_array_foreach(json_object_get(all, "slice_area"), i, row)
	{
		const json_t *areas = json_object_get(row, "areas");
		uint64_t off[CKPT_MAX_DIMS], len[CKPT_MAX_DIMS], ranks = 0;
		struct golden g;

		golden_sharding(&g, json_object_get(row, "mesh"),
				json_object_get(row, "tensor_map"), json_object_get(row, "shape"));
		ck_assert(mesh_size(g.s.n_axes, g.mesh, &ranks));
		ck_assert_uint_eq(json_array_size(areas), ranks);
		for (uint64_t rank = 0; rank < ranks; rank++) {
			ck_assert(shard_box(&g.s, rank, g.n_dims, g.shape, off, len));
			check_area(json_array_get(areas, rank), g.n_dims, off, len);
		}
	}
	ck_assert_uint_eq(i, 40);
	json_decref(all);
}
END_TEST

struct reshard {
	const json_t *rank_list, *slices, *areas;
	size_t n_dims, found;
};

static int check_source(void *arg, uint64_t rank, const uint64_t *off, const uint64_t *len,
			const uint64_t *local_off)
{
	struct reshard *rs = arg;
	char key[24];

	(void)snprintf(key, sizeof(key), "%lld",
		       (long long)json_integer_value(json_array_get(rs->rank_list, rank)));
	ck_assert_msg(json_object_get(rs->slices, key) != NULL, "rank %s is no source", key);
	check_area(json_object_get(rs->slices, key), rs->n_dims, local_off, len);
	check_area(json_object_get(rs->areas, key), rs->n_dims, off, len);
	rs->found++;
	return 0;
}

static void check_first(const struct golden *g, const json_t *want)
{
	uint64_t ranks = 0, n = 0;

	ck_assert(mesh_size(g->s.n_axes, g->mesh, &ranks));
	for (uint64_t rank = 0; rank < ranks; rank++)
		if (is_first(&g->s, rank))
			ck_assert_uint_eq((uint64_t)json_integer_value(json_array_get(want, n++)),
					  rank);
	ck_assert_uint_eq(n, json_array_size(want));
}

static uint64_t position(const json_t *rank_list, json_int_t rank)
{
	size_t i = 0;

	while (json_integer_value(json_array_get(rank_list, i)) != rank)
		ck_assert_uint_lt(i++, json_array_size(rank_list));
	return i;
}

START_TEST(sources_of_a_reshard_are_those_of_hyperparallel)
{
	json_t *all = golden_load("hyperparallel/planner_golden.json"), *row;
	size_t i;

	json_array_foreach(json_object_get(all, "reshard"), i, row)
	{
		const json_t *from = json_object_get(row, "from"), *to = json_object_get(row, "to");
		const json_t *shape = json_object_get(row, "shape");
		uint64_t off[CKPT_MAX_DIMS], len[CKPT_MAX_DIMS];
		struct golden source, target;
		struct reshard rs = { .rank_list = json_array_get(from, 2),
				      .slices = json_object_get(row, "source_slices"),
				      .areas = json_object_get(row, "global_areas") };

		golden_sharding(&source, json_array_get(from, 0), json_array_get(from, 1), shape);
		golden_sharding(&target, json_array_get(to, 0), json_array_get(to, 1), shape);
		rs.n_dims = target.n_dims;
		ck_assert(shard_box(&target.s,
				    position(json_array_get(to, 2),
					     json_integer_value(json_object_get(row, "to_rank"))),
				    target.n_dims, target.shape, off, len));
		check_area(json_object_get(row, "to_area"), target.n_dims, off, len);
		check_first(&source, json_object_get(row, "dedup_inner_ranks"));
		ck_assert_int_eq(shard_find(&source.s, source.n_dims, source.shape, off, len,
					    check_source, &rs),
				 0);
		ck_assert_uint_eq(rs.found, json_object_size(rs.slices));
	}
	ck_assert_uint_eq(i, 40);
	json_decref(all);
}
END_TEST

SUITE(mesh, .seconds = 60)
