/* SPDX-License-Identifier: Apache-2.0 */
/* The option average=, compared with sums of the stored elements, one at a time. */
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "codec/cast.h"
#include "dir_util.h"
#include "fault.h"
#include "opts_util.h"
#include "rng.h"
#include "st_util.h"
#include "suites.h"
#include "weights_util.h"
#include <ckptfs/ckpt_diff.h>
#include <ckptfs/ckpt_mount.h>

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { STEPS = 4, TYPES = 4, MANY = 91, FEW = 3, COLUMNS = 3001 };

static const struct {
	const char *name;
	enum ckpt_dtype dtype;
} types[TYPES] = {
	{ "bf16", CKPT_DTYPE_BF16 },
	{ "f16", CKPT_DTYPE_F16 },
	{ "f32", CKPT_DTYPE_F32 },
	{ "f64", CKPT_DTYPE_F64 },
};

static const char *const names[STEPS] = { "step-9", "step-10", "step-200", "step-1000" };

/* The floating-point tensors of every step, and where the run is. Many rows are several blocks. */
struct stage {
	uint64_t rows;
	uint8_t *bytes[STEPS][TYPES];
	char step[STEPS][4200];
};

static size_t size_of(size_t type)
{
	return dtype_info(types[type].dtype)->size;
}

static size_t count(const struct stage *g)
{
	return g->rows * COLUMNS;
}

static double element(const struct stage *g, size_t step, size_t type, size_t i)
{
	const uint8_t *at = g->bytes[step][type] + i * size_of(type);
	double d;
	float f;

	if (types[type].dtype == CKPT_DTYPE_F64) {
		memcpy(&d, at, sizeof(d));
		return d;
	}
	cast_run(types[type].dtype, CKPT_DTYPE_F32, at, &f, 1);
	return (double)f;
}

/* Random numbers; some are zeros of both signs, subnormal, infinite or NaN. */
static void fill(struct rng *r, uint8_t *to, size_t n, size_t type)
{
	for (size_t i = 0; i < n; i++) {
		uint64_t any = rng_u64(r);
		double d = ldexp((double)(int64_t)any, -63);
		float f = (float)d;

		if (rng_chance(r, 2))
			f = (any & 1) ? -0.0F : 0x1p-149F * (float)(any % 5);
		if (rng_chance(r, 1))
			f = (any & 1) ? INFINITY : NAN;
		if (types[type].dtype == CKPT_DTYPE_F64) {
			memcpy(to + i * 8, &d, 8);
		} else {
			cast_run(CKPT_DTYPE_F32, types[type].dtype, &f, to + i * size_of(type), 1);
		}
	}
}

static void put_step(const struct stage *g, size_t s)
{
	int64_t number = (int64_t)s;
	const uint64_t shape[] = { g->rows, COLUMNS };
	struct weights_tensor t[TYPES + 2];

	for (size_t k = 0; k < TYPES; k++)
		t[k] = (struct weights_tensor){ .name = types[k].name,
						.dtype = types[k].dtype,
						.n_dims = 2,
						.shape = { shape[0], shape[1] },
						.bytes = g->bytes[s][k] };
	t[TYPES] = (struct weights_tensor){ .name = "number",
					    .dtype = CKPT_DTYPE_I64,
					    .bytes = &number };
	t[TYPES + 1] = (struct weights_tensor){
		.name = "empty", .dtype = CKPT_DTYPE_F32, .n_dims = 2, .shape = { 0, 3 }
	};
	weights_put(dir_fd, names[s], t, TYPES + 2);
}

static void stage_init(struct stage *g, uint64_t rows)
{
	struct rng r = rng_new();

	g->rows = rows;
	for (size_t s = 0; s < STEPS; s++) {
		for (size_t k = 0; k < TYPES; k++) {
			g->bytes[s][k] = malloc(count(g) * size_of(k));
			REQUIRE(g->bytes[s][k]);
			fill(&r, g->bytes[s][k], count(g), k);
		}
		put_step(g, s);
		(void)snprintf(g->step[s], sizeof(g->step[s]), "%s/%s", dir, names[s]);
	}
}

static void stage_release(struct stage *g)
{
	for (size_t s = 0; s < STEPS; s++)
		for (size_t k = 0; k < TYPES; k++)
			free(g->bytes[s][k]);
}

static int open_average(const char *path, const char *average, struct ckpt **ret,
			struct ckpt_err *e)
{
	return open_typed(path, &(struct ckpt_opts){ .index = ":memory:", .average = average }, ret,
			  e);
}

static void must_open(const char *path, const char *average, struct ckpt **ret)
{
	struct ckpt_err e = { 0 };

	ck_assert_msg(!open_average(path, average, ret, &e), "%s", e.msg);
}

/* The bytes of the average of element i, by the definition. */
static void naive(const struct stage *g, const double weights[STEPS], size_t type, size_t i,
		  uint8_t *to)
{
	double wide = 0;
	float acc = 0;

	for (size_t s = 0; s < STEPS; s++) {
		if (isnan(weights[s])) /* it takes no part */
			continue;
		acc = fmaf((float)weights[s], (float)element(g, s, type, i), acc);
		wide = fma(weights[s], element(g, s, type, i), wide);
	}
	if (types[type].dtype == CKPT_DTYPE_F64)
		memcpy(to, &wide, sizeof(wide));
	else
		cast_run(CKPT_DTYPE_F32, types[type].dtype, &acc, to, 1);
}

static bool is_nan(size_t type, const uint8_t *p)
{
	double d;
	float f;

	if (types[type].dtype == CKPT_DTYPE_F64) {
		memcpy(&d, p, sizeof(d));
		return isnan(d);
	}
	cast_run(types[type].dtype, CKPT_DTYPE_F32, p, &f, 1);
	return isnan(f);
}

/* All bytes of one tensor; then ranges around the edges of blocks. */
static void check_type(const struct stage *g, struct ckpt *c, size_t type,
		       const double weights[STEPS])
{
	size_t size = size_of(type), bytes = count(g) * size;
	autofree uint8_t *got = malloc(bytes);
	struct rng r = rng_new();
	struct ckpt_err e = { 0 };
	uint8_t want[8], part[64];

	REQUIRE(got);
	ck_assert_msg(!weights_read(c, types[type].name, got, bytes, 0, &e), "%s", e.msg);
	for (size_t i = 0; i < count(g); i++) {
		naive(g, weights, type, i, want);
		if (memcmp(got + i * size, want, size) != 0 &&
		    !(is_nan(type, want) && is_nan(type, got + i * size)))
			ck_abort_msg("%s: element %zu is wrong", types[type].name, i);
	}
	for (int k = 0; k < 200; k++) {
		size_t edge = rng_below(&r, 1 + (bytes >> 18)) << 18;
		size_t off = k % 2 && edge && edge < bytes ? edge - rng_below(&r, 40)
							   : rng_below(&r, bytes);
		size_t len = 1 + rng_below(&r, sizeof(part));

		len = min_u64(len, bytes - off);
		ck_assert(!weights_read(c, types[type].name, part, len, off, &e));
		ck_assert(!memcmp(part, got + off, len));
	}
}

static void check_all(const struct stage *g, struct ckpt *c, const double weights[STEPS],
		      int64_t number)
{
	struct ckpt_err e = { 0 };
	int64_t got;

	for (size_t k = 0; k < TYPES; k++)
		check_type(g, c, k, weights);
	ck_assert(!weights_read(c, "number", &got, 8, 0, &e));
	ck_assert_int_eq(got, number);
	ck_assert(!weights_read(c, "empty", &got, 0, 0, &e));
}

/* ---- values ---- */

START_FEW_TEST(every_way_to_say_it_has_the_sums_of_the_definition, 7, 3)
{
	static const double none = NAN;
	const struct {
		const char *average;
		double weights[STEPS];
		int64_t number; /* of the base */
	} of[] = {
		{ "step-9:0.5,step-10:0.25,step-200:-2,step-1000:1e-3", { .5, .25, -2, 1e-3 }, 3 },
		{ "step-9:1,step-10:1", { 1, 1, none, none }, 1 },
		{ "step-9,step-10,step-200", { 1.0 / 3, 1.0 / 3, 1.0 / 3, none }, 2 },
		{ "last:2", { none, none, .5, .5 }, 3 },
		{ "last:1", { none, none, none, 1 }, 3 },
		{ "ema:0.9:last:3", { none, .9 * .9, .9 * (1 - .9), 1 - .9 }, 3 },
		{ "step-9:3", { 3, none, none, none }, 0 },
	};
	struct stage g;
	struct ckpt *c;

	stage_init(&g, MANY);
	must_open(dir, of[_i].average, &c);
	check_all(&g, c, of[_i].weights, of[_i].number);
	ckpt_close(c);
	stage_release(&g);
}
END_TEST

START_TEST(the_order_of_the_list_is_the_order_of_the_sum)
{
	const double weights[STEPS] = { .3, .3, .3, .1 };
	const struct {
		const char *average;
		bool same;
	} of[] = { { "step-9:.3,step-10:.3,step-200:.3,step-1000:.1", true },
		   { "step-1000:.1,step-200:.3,step-10:.3,step-9:.3", false } };
	struct stage g;
	struct ckpt *c;
	struct ckpt_err e = { 0 };
	uint8_t got[4], want[4];

	stage_init(&g, FEW);
	for (size_t k = 0; k < 2; k++) {
		bool same = true;

		must_open(dir, of[k].average, &c);
		for (size_t i = 0; i < 1000; i++) {
			ck_assert(!weights_read(c, "f32", got, 4, 4 * i, &e));
			naive(&g, weights, 2, i, want);
			same &= !memcmp(got, want, 4) || (is_nan(2, got) && is_nan(2, want));
		}
		ck_assert(same == of[k].same);
		ckpt_close(c);
	}
	stage_release(&g);
}
END_TEST

START_TEST(a_checkpoint_takes_paths_and_a_dot)
{
	const double weights[STEPS] = { .5, NAN, .5, NAN };
	char average[9000];
	struct stage g;
	struct ckpt *c;

	stage_init(&g, FEW);
	(void)snprintf(average, sizeof(average), "%s:0.5,.:0.5", g.step[0]);
	must_open(g.step[2], average, &c);
	check_all(&g, c, weights, 2);
	ckpt_close(c);
	/* The base need not be one of those averaged. */
	(void)snprintf(average, sizeof(average), "%s:0.5,%s:0.5", g.step[0], g.step[2]);
	must_open(g.step[3], average, &c);
	check_all(&g, c, weights, 3);
	ckpt_close(c);
	stage_release(&g);
}
END_TEST

static int count_path(void *arg, const char *path)
{
	ck_assert_int_eq(*path, '/');
	++*(unsigned *)arg;
	return 0;
}

START_TEST(others_are_told_and_change_the_identity)
{
	struct ckpt_totals a, b;
	unsigned n = 0;
	struct stage g;
	struct ckpt *c;
	struct ckpt_err e = { 0 };
	char first[100];

	stage_init(&g, FEW);
	must_open(dir, "step-9:.5,step-10:.5", &c);
	(void)ckpt_others(c, count_path, &n);
	ck_assert_uint_eq(n, 1); /* the base itself does not count */
	ckpt_totals(c, &a);
	(void)snprintf(first, sizeof(first), "%s", a.identity);
	ckpt_close(c);
	must_open(dir, "step-9:.5,step-10:.6", &c);
	ckpt_totals(c, &b);
	ck_assert_str_ne(first, b.identity);
	ckpt_close(c);
	must_open(dir, "step-200:.5,step-10:.5", &c);
	ckpt_totals(c, &b);
	ck_assert_str_ne(first, b.identity);
	ckpt_close(c);
	must_open(dir, "step-9:.5,step-10:.5", &c);
	ckpt_totals(c, &b);
	ck_assert_str_eq(first, b.identity);
	(void)e;
	ckpt_close(c);
	stage_release(&g);
}
END_TEST

START_TEST(a_source_that_changes_is_an_error)
{
	struct stage g;
	struct ckpt *c;
	struct ckpt_err e = { 0 };
	uint8_t got[4];

	stage_init(&g, MANY); /* the last element's block is one that nobody has */
	must_open(dir, "step-9:.5,step-10:.5", &c);
	ck_assert(!weights_read(c, "f32", got, 4, 0, &e));
	put_step(&g, 0);
	/* Another block: this one is in memory. */
	ck_assert_int_eq(weights_read(c, "f32", got, 4, count(&g) * 4 - 4, &e), -EIO);
	ck_assert_msg(strstr(e.msg, "step-9") || strstr(e.msg, "chang"), "%s", e.msg);
	ckpt_close(c);
	stage_release(&g);
}
END_TEST

/* ---- refusals ---- */

START_LOOP_TEST(what_cannot_be_averaged_is_refused_by_name, 19)
{
	static const struct {
		const char *average, *says;
	} of[] = {
		{ "step-9:1,step-10", "gives a weight to some" },
		{ "step-9:nan", "is not finite" },
		{ "step-9:1e39", "is not finite" },
		{ "step-9,,step-10", "no name before ','" },
		{ ":0.5", "no name before '0.5'" },
		{ "step-11", "did you mean" },
		{ "last:0", "a number from 1 to 64" },
		{ "last:65", "a number from 1 to 64" },
		{ "last:2x", "a number from 1 to 64" },
		{ "last:9", "the last 9 are asked for" },
		{ "ema:last:2", "no decay between 0 and 1" },
		{ "ema:1:last:2", "no decay between 0 and 1" },
		{ "ema:nan:last:2", "no decay between 0 and 1" },
		{ "ema:0.5:step-9", "does not say how many" },
		{ "odd:.5,step-9:.5", "odd' has no tensor 'empty'" },
		{ "step-9:.5,odd:.5", "odd' has no tensor 'empty'" },
		{ "shape:.5,step-9:.5", "has shape (2, 2)" },
		{ "small:.5,step-9:.5", "float8_e4m3fn, whose codes have no average" },
		{ "codes:.5,codes:.5", "is int8, whose codes have no average" },
	};
	const struct weights_tensor odd[] = {
		{ "bf16", CKPT_DTYPE_BF16, 2, { FEW, COLUMNS }, NULL },
		{ "f16", CKPT_DTYPE_F32, 2, { FEW, COLUMNS }, NULL },
	};
	const struct weights_tensor codes[] = {
		{ "w.qdata", CKPT_DTYPE_I8, 2, { FEW, COLUMNS }, NULL },
		{ "w.scale", CKPT_DTYPE_F32, 2, { FEW, 1 }, NULL },
	};
	struct weights_tensor shape[TYPES + 1];
	struct ckpt_err e = { 0 };
	struct stage g;
	struct ckpt *c;

	stage_init(&g, FEW);
	for (size_t k = 0; k < TYPES; k++)
		shape[k] = (struct weights_tensor){
			types[k].name, types[k].dtype, 2, { FEW, COLUMNS }, NULL
		};
	shape[TYPES] = (struct weights_tensor){ "empty", CKPT_DTYPE_F32, 2, { 0, 3 }, NULL };
	weights_put(dir_fd, "odd", odd, 2);
	shape[2].shape[0] = shape[2].shape[1] = 2;
	weights_put(dir_fd, "shape", shape, TYPES + 1);
	shape[2] =
		(struct weights_tensor){ "f32", CKPT_DTYPE_F8_E4M3FN, 2, { FEW, COLUMNS }, NULL };
	weights_put(dir_fd, "small", shape, TYPES + 1);
	weights_put(dir_fd, "codes", codes, 2);
	ck_assert_int_lt(open_average(dir, of[_i].average, &c, &e), 0);
	ck_assert_msg(strstr(e.msg, "option 'average'") && strstr(e.msg, of[_i].says), "%s", e.msg);
	stage_release(&g);
}
END_TEST

START_TEST(a_checkpoint_is_no_run)
{
	struct ckpt_err e = { 0 };
	struct stage g;
	struct ckpt *c;

	stage_init(&g, FEW);
	ck_assert_int_eq(open_average(g.step[0], "last:2", &c, &e), -EINVAL);
	ck_assert_msg(strstr(e.msg, "give the run's directory"), "%s", e.msg);
	ck_assert_int_eq(open_average(g.step[0], "step-9", &c, &e), -EINVAL);
	ck_assert_msg(strstr(e.msg, "write './step-9'"), "%s", e.msg);
	/* A run in place of a checkpoint. */
	ck_assert_int_lt(open_average(g.step[0], "..:1", &c, &e), 0);
	stage_release(&g);
}
END_TEST

/* Tensors that the average leaves out need not be the same in all checkpoints. */
START_TEST(tensors_that_are_left_out_may_differ)
{
	static const char *const only[] = { "bf16", NULL };
	const struct weights_tensor odd[] = {
		{ "bf16", CKPT_DTYPE_F32, 2, { FEW, COLUMNS }, NULL },
		{ "more", CKPT_DTYPE_F32, 1, { 4 }, NULL },
	};
	struct ckpt_opts o = {
		.index = ":memory:", .average = "step-9:.5,odd:0,step-10:.5", .include = only
	};
	const double weights[STEPS] = { .5, .5, NAN, NAN };
	struct ckpt_err e = { 0 };
	struct stage g;
	struct ckpt *c;

	stage_init(&g, FEW);
	weights_put(dir_fd, "odd", odd, 2);
	ck_assert_msg(!open_typed(dir, &o, &c, &e), "%s", e.msg);
	check_type(&g, c, 0, weights);
	ckpt_close(c);
	stage_release(&g);
}
END_TEST

static const struct {
	const char *average, *first, *second; /* tensors of a-1 and a-2 */
	const char *exclude;		      /* NULL: nothing */
	const char *says;		      /* NULL: it can be averaged */
} pairs[] = {
	{ "a-1,a-2", "w F32 6; n I32 2", "w BF16 6; m I32 3", NULL, NULL },
	{ "a-1,a-2", "w I32 6", "w F32 6", NULL, "/a-1', and float32 in" },
	{ "a-1,a-2", "w F32 6", "w F32 6x1", NULL, "'w' has shape (6,) in" },
	{ "a-1,a-2", "w I64 6", "w I64 6", NULL, "has no floating-point tensor" },
	{ "a-1,a-2", "w F32 6", "w F32 6; x F32 2", NULL, "has no tensor 'x', which" },
	{ "a-1,a-2", "w F32 6", "w F32 6; x F32 2", "x", NULL },
	{ "a-1,a-2", "w F32 6; x F32 2", "w F32 6", "x", NULL },
	{ "a-1,a-2", "w F32 6", "w F32 6", "*", "has no floating-point tensor" },
	{ "a-1,a-2", "w I8 3x4; w_scale F16 3x1", "w I8 3x4; w_scale F16 3x1", NULL,
	  "is int8, whose codes" },
	{ "a-1,a-2", "w.weight I8 3x4; w.weight_scale F16 3x1",
	  "w.weight I8 3x4; w.weight_scale F16 3x1", NULL, "'w.weight' of " },
	{ "a-1,a-2", "w.weight F8_E4M3 3", "w.weight F8_E4M3 3", NULL,
	  "is float8_e4m3fn, whose codes have no average" },
	/* The text behind a colon is a weight only if all of it is a number. */
	{ "a-1: 1,a-2: 1", "w F32 6", "w F32 6", NULL, "no such file or checkpoint" },
	{ "a-1:,a-2:", "w F32 6", "w F32 6", NULL, "no such file or checkpoint" },
	{ "a-1:1x,a-2:1x", "w F32 6", "w F32 6", NULL, "no such file or checkpoint" },
	{ "ema:0.5x:last:2", "w F32 6", "w F32 6", NULL, "has no decay between 0 and 1" },
	{ "ema:0:last:2", "w F32 6", "w F32 6", NULL, "has no decay between 0 and 1" },
	{ "ema:0.5:last:2", "w F32 6", "w F32 6", NULL, NULL },
	{ "last:", "w F32 6", "w F32 6", NULL, "must end in a number from 1 to 64" },
	{ "last:12345678901", "w F32 6", "w F32 6", NULL, "must end in a number from 1 to 64" },
	{ "last:3", "w F32 6", "w F32 6", NULL, "the last 3 are asked for" },
};

START_LOOP_TEST(two_are_averaged_if_they_fit, ARRAY_LEN(pairs))
{
	const char *const exclude[] = { pairs[_i].exclude, NULL };
	struct ckpt_opts o = { .index = ":memory:",
			       .average = pairs[_i].average,
			       .exclude = pairs[_i].exclude ? exclude : NULL };
	struct rng r = rng_new();
	struct ckpt_err e = { 0 };
	struct ckpt *c = NULL;
	int rc;

	REQUIRE(!mkdirat(dir_fd, "a-1", 0700) && !mkdirat(dir_fd, "a-2", 0700));
	st_put(dir_fd, "a-1/model.safetensors", &r, pairs[_i].first);
	st_put(dir_fd, "a-2/model.safetensors", &r, pairs[_i].second);
	rc = open_typed(dir, &o, &c, &e);
	if (!pairs[_i].says) {
		ck_assert_msg(!rc, "%s", e.msg);
		ckpt_close(c);
		return;
	}
	ck_assert_int_lt(rc, 0);
	ck_assert_msg(strstr(e.msg, "option 'average'") && strstr(e.msg, pairs[_i].says), "%s",
		      e.msg);
}
END_TEST

START_TEST(only_so_many_are_averaged)
{
	char text[65 * 4 + 1] = "";
	struct rng r = rng_new();
	struct ckpt_err e = { 0 };
	struct ckpt *c = NULL;

	REQUIRE(!mkdirat(dir_fd, "a-1", 0700));
	st_put(dir_fd, "a-1/model.safetensors", &r, "w F32 6");
	for (int i = 0; i < 65; i++)
		(void)strcat(text, i ? ",a-1" : "a-1");
	ck_assert_int_eq(open_average(dir, text, &c, &e), -EINVAL);
	ck_assert_msg(strstr(e.msg, "more than 64 checkpoints") != NULL, "%s", e.msg);
}
END_TEST

/* ---- faults ---- */

static const struct weights_tensor little[] = {
	{ "w", CKPT_DTYPE_F32, 1, { 6 }, (const float[]){ 1, 2, 3, 4, 5, 6 } }
};

START_TEST(whatever_fails_is_an_error_or_has_the_right_bytes)
{
	const float want[] = { .75F, 1.5F, 2.25F, 3, 3.75F, 4.5F };
	struct ckpt_err e;
	float got[6];

	weights_put(dir_fd, "a-1", little, 1);
	weights_put(dir_fd, "a-2", little, 1);
	FAULT_LOOP_SOME(FAULT_ANY, 1)
	{
		struct ckpt *c = NULL;
		int rc;

		e = (struct ckpt_err){ 0 };
		rc = open_average(dir, "a-1:0.5,a-2:0.25", &c, &e);
		if (!rc)
			rc = weights_read(c, "w", got, sizeof(got), 0, &e);
		fault_off();
		ck_assert(!rc || (e.code == -rc && *e.msg));
		ck_assert(rc || !memcmp(got, want, sizeof(got)));
		ckpt_close(c);
	}
}
END_TEST

SUITE(average, .setup = dir_setup, .teardown = dir_teardown, .seconds = 60)
