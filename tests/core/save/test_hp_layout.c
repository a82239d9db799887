/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HyperParallel's layouts, compared with what its own functions answered (planner_golden.json);
 * here with ranks, not with positions.
 */
#include "base/checked.h"
#include "base/err.h"
#include "golden_util.h"
#include "model/box.h"
#include "suites.h"
#include <ckptfs/ckpt_state.h>

#define HP_GOLDEN "hyperparallel/planner_golden.json"

struct layout {
	struct ckpt_hp_layout l;
	uint64_t mesh[8], ranks[128];
	uint8_t axes[8][8];
	struct ckpt_hp_map map[8];
};

/* [mesh, tensor_map, rank_list] */
static void golden_layout(const json_t *j, struct layout *l)
{
	const json_t *map = json_array_get(j, 1), *m;
	size_t d;

	*l = (struct layout){ .l = { .mesh = l->mesh, .map = l->map, .ranks = l->ranks } };
	l->l.n_axes = (uint8_t)golden_numbers(json_array_get(j, 0), l->mesh);
	l->l.n_ranks = golden_numbers(json_array_get(j, 2), l->ranks);
	l->l.n_dims = (uint8_t)json_array_size(map);
	json_array_foreach(map, d, m)
	{
		l->map[d].axes = l->axes[d];
		if (json_is_integer(m) && json_integer_value(m) >= 0)
			l->axes[d][l->map[d].n++] = (uint8_t)json_integer_value(m);
		for (size_t i = 0; i < json_array_size(m); i++)
			l->axes[d][l->map[d].n++] =
				(uint8_t)json_integer_value(json_array_get(m, i));
	}
}

struct sources {
	const json_t *slices, *areas;
	size_t n_dims, found;
};

/* [[start, end], ...] */
static void check_area(const json_t *area, const uint64_t *off, const uint64_t *len, size_t n)
{
	ck_assert_uint_eq(json_array_size(area), n);
	for (size_t d = 0; d < n; d++) {
		const uint64_t range[] = { off[d], off[d] + len[d] };

		golden_check_numbers(json_array_get(area, d), range, 2);
	}
}

static int note(void *arg, uint64_t rank, const uint64_t *off, const uint64_t *len,
		const uint64_t *local_off)
{
	struct sources *s = arg;
	char key[24];

	(void)snprintf(key, sizeof(key), "%llu", (unsigned long long)rank);
	check_area(json_object_get(s->slices, key), local_off, len, s->n_dims);
	check_area(json_object_get(s->areas, key), off, len, s->n_dims);
	s->found++;
	return 0;
}

START_TEST(slices_of_a_reshard_are_those_of_hyperparallel)
{
	json_t *all = golden_load(HP_GOLDEN), *row;
	size_t i;

	json_array_foreach(json_object_get(all, "reshard"), i, row)
	{
		struct sources s = { .slices = json_object_get(row, "source_slices"),
				     .areas = json_object_get(row, "global_areas") };
		uint64_t shape[8];
		struct layout from, to;
		struct ckpt_err e = { 0 };

		s.n_dims = golden_numbers(json_object_get(row, "shape"), shape);
		golden_layout(json_object_get(row, "from"), &from);
		golden_layout(json_object_get(row, "to"), &to);
		ck_assert_msg(!ckpt_hp_reshard(
				      &from.l, &to.l, s.n_dims, shape,
				      (uint64_t)json_integer_value(json_object_get(row, "to_rank")),
				      note, &s, &e),
			      "%s", e.msg);
		ck_assert_uint_eq(s.found, json_object_size(s.slices));
	}
	ck_assert_uint_eq(i, 40);
	json_decref(all);
}
END_TEST

static const uint64_t two[] = { 2 }, pair[] = { 4, 5 }, huge[] = { 2000000 }, three[] = { 3 };
static const uint8_t axis[] = { 0, 0 }, far[] = { 1 };
static const struct ckpt_hp_map cut = { axis, 1 }, twice = { axis, 2 }, outside = { far, 1 };
static const struct ckpt_hp_layout good = { two, 1, 1, &cut, pair, 2 };

START_TEST(the_box_of_a_rank_is_that_of_its_position)
{
	uint64_t off = 42, len = 42;
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(ckpt_hp_layout_box(&good, 5, (const uint64_t[]){ 6 }, &off, &len, &e), 0);
	ck_assert(off == 3 && len == 3);
	ck_assert_int_eq(ckpt_hp_layout_box(&good, 4, (const uint64_t[]){ 6 }, &off, &len, &e), 0);
	ck_assert(off == 0 && len == 3);
	ck_assert_int_eq(ckpt_hp_layout_box(&good, 1, (const uint64_t[]){ 6 }, &off, &len, &e), 1);
	ck_assert_int_eq(ckpt_hp_layout_box(&good, 4, three, &off, &len, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "Shape can not divided along dimension 0 by 2 dev.");
	ck_assert(off == 0 && len == 3);
}
END_TEST

static const struct {
	const char *golden, *text;
	const struct ckpt_hp_layout *from, *to;
	const uint64_t *shape;
	uint64_t to_rank;
} refused[] = {
	{ "both_none", NULL, NULL, NULL, two, 4 },
	{ "rank_not_in_to", NULL, &good, &good, two, 1 },
	{ "rank_list_size", NULL, &good, &(const struct ckpt_hp_layout){ two, 1, 1, &cut, pair, 1 },
	  two, 4 },
	{ NULL, "Layout from_layout rank_list size (1) must match device count (2)",
	  &(const struct ckpt_hp_layout){ two, 1, 1, &cut, pair, 1 }, &good, two, 4 },
	{ NULL, "Shape can not divided along dimension 0 by 2 dev.", &good, NULL, three, 0 },
	{ NULL, "Shape can not divided along dimension 0 by 2 dev.", NULL, &good, three, 4 },
	{ NULL, "Layout to_layout: (2000000,) is not a mesh", NULL,
	  &(const struct ckpt_hp_layout){ huge, 1, 1, &cut, pair, 2 }, two, 4 },
	{ NULL, "Layout to_layout: tensor_map names axis 0 of a mesh of 1 twice", NULL,
	  &(const struct ckpt_hp_layout){ two, 1, 1, &twice, pair, 2 }, two, 4 },
	{ NULL, "Layout to_layout: tensor_map names axis 1 of a mesh of 1", NULL,
	  &(const struct ckpt_hp_layout){ two, 1, 1, &outside, pair, 2 }, two, 4 },
	{ NULL, "Layout to_layout: tensor_map of 65 dimensions, the maximum is 64", NULL,
	  &(const struct ckpt_hp_layout){ two, 1, 65, &cut, pair, 2 }, two, 4 },
	{ NULL, "Layout from_layout: tensor_map of 0 dimensions for a tensor of 1",
	  &(const struct ckpt_hp_layout){ two, 1, 0, NULL, pair, 2 }, NULL, two, 0 },
};

static int never(void *arg, uint64_t rank, const uint64_t *off, const uint64_t *len,
		 const uint64_t *local_off)
{
	(void)arg;
	(void)off;
	(void)len;
	(void)local_off;
	ck_abort_msg("rank %llu", (unsigned long long)rank);
	return 0;
}

START_LOOP_TEST(layouts_that_do_not_fit_are_refused, ARRAY_LEN(refused))
{
	json_t *all = golden_load(HP_GOLDEN);
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(ckpt_hp_reshard(refused[_i].from, refused[_i].to, 1, refused[_i].shape,
					 refused[_i].to_rank, never, NULL, &e),
			 -EINVAL);
	ck_assert_str_eq(e.msg, refused[_i].golden ? golden_text(json_object_get(all, "errors"),
								 refused[_i].golden)
						   : refused[_i].text);
	json_decref(all);
}
END_TEST

struct halves {
	uint64_t rank[2], off[2], len[2], local[2];
	size_t n;
};

static int note_half(void *arg, uint64_t rank, const uint64_t *off, const uint64_t *len,
		     const uint64_t *local_off)
{
	struct halves *h = arg;

	h->rank[h->n] = rank;
	h->off[h->n] = *off;
	h->len[h->n] = *len;
	h->local[h->n++] = *local_off;
	return h->n == 2 ? 77 : 0;
}

START_TEST(without_a_layout_rank_0_has_it_all)
{
	const uint64_t shape[] = { 6 };
	struct halves h = { 0 };
	struct ckpt_err e = { 0 };

	ck_assert(!ckpt_hp_reshard(NULL, &good, 1, shape, 5, note_half, &h, &e));
	ck_assert_uint_eq(h.n, 1);
	ck_assert(h.rank[0] == 0 && h.off[0] == 3 && h.len[0] == 3 && h.local[0] == 3);
	h.n = 0;
	ck_assert_int_eq(ckpt_hp_reshard(&good, NULL, 1, shape, 0, note_half, &h, &e), 77);
	ck_assert(h.rank[0] == 4 && h.off[0] == 0 && h.len[0] == 3 && h.local[0] == 0);
	ck_assert(h.rank[1] == 5 && h.off[1] == 3 && h.len[1] == 3 && h.local[1] == 0);
}
END_TEST

SUITE(hp_layout)
