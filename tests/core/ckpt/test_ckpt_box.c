/* SPDX-License-Identifier: Apache-2.0 */
/* Boxes of tensors, compared with the same boxes cut out of the whole. */
#include "base/checked.h"
#include "base/cleanup.h"
#include "fixture_util.h"

static const struct ckpt_opts options[] = { { .runs = false },
					    { .dtype = "bf16" },
					    { .dtype = "fp32" } };

static void check_outside(struct ckpt *c, uint64_t i, const struct ckpt_tensor *t,
			  open_box_fn *open, struct rng *r)
{
	uint64_t off[CKPT_MAX_DIMS], len[CKPT_MAX_DIMS], more;
	struct ckpt_file *f = NULL;
	struct ckpt_err e = { 0 };
	size_t d;

	if (!t->n_dims)
		return;
	d = rng_below(r, t->n_dims);
	random_box(r, t->n_dims, t->shape, off, len);
	more = 1 + t->shape[d] - off[d] - len[d];
	if (rng_chance(r, 50))
		len[d] += rng_chance(r, 30) ? UINT64_MAX - len[d] : more;
	else
		off[d] += rng_chance(r, 30) ? UINT64_MAX - off[d] : more;
	if (box_inside(t->n_dims, off, len, t->shape)) /* it is empty, and at the end */
		return;
	REQUIRE(open(c, i, off, len, &f, &e) == -EINVAL && !f && strstr(e.msg, "is outside"));
}

START_LOOP_TEST(a_box_holds_what_the_whole_has_there, fixture_count() * (int)ARRAY_LEN(options))
{
	const struct ckpt_opts *o = &options[_i % ARRAY_LEN(options)];
	struct rng r = rng_new();
	struct ckpt_totals totals;
	struct ckpt_file *f;
	struct ckpt_err e = { 0 };
	char path[4400];
	struct ckpt *c;

	c = fixture_open(_i / (int)ARRAY_LEN(options), o, path);
	if (!c)
		return;
	ckpt_totals(c, &totals);
	for (uint64_t i = 0; i < totals.tensors; i++) {
		autofree uint8_t *whole = NULL;
		struct ckpt_tensor t;

		ckpt_tensor(c, i, &t);
		if (t.fault) {
			REQUIRE(ckpt_box_open(c, i, (uint64_t[CKPT_MAX_DIMS]){ 0 },
					      (uint64_t[CKPT_MAX_DIMS]){ 0 }, &f, &e) == -EIO);
			continue;
		}
		ck_assert_msg(!ckpt_file_open(c, ckpt_tensor_node(c, i), &f, &e), "%s", e.msg);
		whole = fixture_read(f);
		check_boxes(c, i, &t, ckpt_box_open, whole, &r);
		check_outside(c, i, &t, ckpt_box_open, &r);
	}
	for (uint64_t i = 0; i < ckpt_model_tensors(c); i++) {
		autofree uint8_t *whole = NULL;
		struct ckpt_tensor t;

		ckpt_model_tensor(c, i, &t);
		if (t.fault)
			continue;
		ck_assert_msg(!ckpt_model_open(c, i, &f, &e), "%s", e.msg);
		whole = fixture_read(f);
		check_boxes(c, i, &t, ckpt_model_box_open, whole, &r);
		check_outside(c, i, &t, ckpt_model_box_open, &r);
	}
	ckpt_close(c);
}
END_TEST

START_TEST(the_fixtures_can_be_opened)
{
	unsigned opened[ARRAY_LEN(options)] = { 0 };

	for (int i = 0; i < fixture_count() * (int)ARRAY_LEN(options); i++) {
		char path[4400];
		struct ckpt *c = fixture_open(i / (int)ARRAY_LEN(options),
					      &options[i % (int)ARRAY_LEN(options)], path);

		opened[i % (int)ARRAY_LEN(options)] += c != NULL;
		ckpt_close(c);
	}
	ck_assert_uint_ge(opened[0], 50);
	ck_assert_uint_ge(opened[1], 50);
	ck_assert_uint_ge(opened[2], 50);
}
END_TEST

SUITE(ckpt_box, .seconds = 60)
