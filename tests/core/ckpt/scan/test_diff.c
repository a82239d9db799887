/* SPDX-License-Identifier: Apache-2.0 */
#include "archive_util.h"
#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "blob_util.h"
#include "codec/delta.h"
#include "codec/heat.h"
#include "codec/values.h"
#include "dcp_util.h"
#include "fault.h"
#include "opts_util.h"
#include "rng.h"
#include "suites.h"
#include <ckptfs/ckpt_diff.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char dirs[2][4096];
static int fds[2];
static struct dcp dcps[2];
static struct ckpt *ckpts[2];

static void setup(void)
{
	for (size_t i = 0; i < 2; i++) {
		fds[i] = new_dir(dirs[i]);
		dcp_begin(&dcps[i], fds[i]);
	}
}

static void teardown(void)
{
	for (size_t i = 0; i < 2; i++) {
		ckpt_close(ckpts[i]);
		(void)close(fds[i]);
	}
}

/* ---- writing ---- */

/* n elements in chunks of `step`, on side 0 or 1, starting with data file `file`. */
static void put(size_t side, const char *fqn, enum ckpt_dtype t, const void *data, uint64_t n,
		uint64_t step, unsigned file)
{
	struct dcp *d = &dcps[side];
	size_t size = dtype_info(t)->size;
	uint64_t boxes[80] = { 0 };
	uint32_t count = 0;
	char path[32];

	for (uint64_t at = 0; at < n; at += step, count++) {
		boxes[2 * count] = at;
		boxes[2 * count + 1] = min_u64(step, n - at);
	}
	dcp_tensor(d, fqn, strlen(fqn), dtype_info(t)->name, 1, &n, count, boxes);
	for (uint32_t i = 0; i < count; i++) {
		const int64_t len = (int64_t)boxes[2 * i + 1];
		struct saved s = { .how = saved_way(t),
				   .dtype = t,
				   .n_dims = 1,
				   .size = &len,
				   .storage = (const uint8_t *)data + boxes[2 * i] * size,
				   .storage_bytes = (size_t)len * size };
		struct buf b = BUF_INIT(0);
		struct chunk_loc l;

		(void)saved_item(&b, &s);
		l = dcp_item(d, file + i, b.data, b.len, 0);
		(void)snprintf(path, sizeof(path), "%s%u.distcp", d->prefix, l.file);
		dcp_stored(d, fqn, strlen(fqn), 1, &boxes[2 * i], path, (int64_t)l.offset,
			   (int64_t)l.length, 0);
		buf_release(&b);
	}
}

static void put_object(size_t side, const char *fqn, const char *text, unsigned layers)
{
	dcp_bytes(&dcps[side], fqn, strlen(fqn), text, strlen(text), 0, layers);
}

static void open_both(void)
{
	const struct ckpt_opts o = { .index = ":memory:", .allow_missing = true };
	struct ckpt_err e = { 0 };

	for (size_t i = 0; i < 2; i++) {
		dcp_end(&dcps[i], ".metadata");
		ck_assert_msg(!open_typed(dirs[i], &o, &ckpts[i], &e), "%s", e.msg);
	}
}

/* ---- running ---- */

struct seen {
	struct buf text;
	uint64_t items, done, total;
	uint64_t stop_after; /* items; 0: never */
};

static void note_heat(struct buf *b, const struct ckpt_diff_heat *h)
{
	buf_printf(b, " heat %zux%zu", h->rows, h->columns);
	for (size_t i = 0; i < h->rows * h->columns; i++)
		if (h->cells[i] != 0)
			buf_printf(b, " %zu:%g", i, (double)h->cells[i]);
}

static int note(void *arg, const struct ckpt_diff_item *i)
{
	static const char *const names[] = { "equal", "only a", "only b", "kind",
					     "shape", "dtype",	"bytes",  "failed" };
	struct seen *s = arg;
	struct buf *b = &s->text;

	buf_printf(b, "%s %.*s", names[i->result], (int)i->fqn_len, i->fqn);
	if (i->result == CKPT_DIFF_BYTES)
		buf_printf(b, " at %ju", (uintmax_t)i->first);
	if (i->values)
		buf_printf(b, " %ju/%ju", (uintmax_t)i->values->changed,
			   (uintmax_t)i->values->elements);
	if (i->values && i->values->numeric)
		buf_printf(b, " max %g mean %.17g", i->values->max_abs, i->values->mean_abs);
	if (i->values && i->values->norm_a > 0)
		buf_printf(b, " l2 %.17g of %.17g", i->values->l2, i->values->norm_a);
	if (i->values && i->values->heat)
		note_heat(b, i->values->heat);
	if (i->fault)
		buf_printf(b, " in %c", i->fault_in_b ? 'b' : 'a');
	buf_str(b, "\n");
	REQUIRE(!i->fault == (i->result != CKPT_DIFF_FAILED));
	return ++s->items == s->stop_after ? 77 : 0;
}

static void note_progress(void *arg, uint64_t done, uint64_t total)
{
	struct seen *s = arg;

	REQUIRE(s->done <= done && done <= total && (!s->total || s->total == total));
	s->done = done;
	s->total = total;
}

/* What a comparison reports; the caller frees it. */
static char *diff_of(struct ckpt_diff d)
{
	struct seen s = { .text = BUF_INIT(1 << 20) };
	struct ckpt_err e = { 0 };
	uint64_t sum = 0;

	d.each = note;
	d.progress = note_progress;
	d.arg = &s;
	buf_str(&s.text, "");
	ck_assert_msg(!ckpt_diff(ckpts[0], ckpts[1], &d, &e), "%s", e.msg);
	for (size_t i = 0; i < CKPT_DIFF_RESULTS; i++)
		sum += d.counts[i];
	REQUIRE(sum == d.names && d.names == s.items && s.done == s.total);
	return s.text.data;
}

static void expect(struct ckpt_diff d, const char *want)
{
	static const unsigned jobs[] = { 1, 2, 7, 0 };

	for (size_t i = 0; i < ARRAY_LEN(jobs); i++) {
		autofree char *got = NULL;

		d.jobs = jobs[i];
		got = diff_of(d);
		ck_assert_str_eq(got, want);
	}
}

/* One of every kind of result. */
static void put_sample(void)
{
	static const float f[] = { 1, 2, 3, 4, 5, 6 }, g[] = { 1, 2, 3.5f, 4, 5, 7 };
	static const double wide[] = { 1, 2, 3, 4, 5, 8 };
	static const uint8_t u[] = { 1, 2, 3, 4, 5, 6 };

	put(0, "same.10", CKPT_DTYPE_F32, f, 6, 4, 0);
	put(1, "same.10", CKPT_DTYPE_F32, f, 6, 1, 1);
	put(0, "same.9", CKPT_DTYPE_U8, u, 6, 6, 0);
	put(1, "same.9", CKPT_DTYPE_U8, u, 6, 5, 1);
	put(0, "a", CKPT_DTYPE_U8, u, 6, 6, 0);
	put(1, "z", CKPT_DTYPE_U8, u, 6, 6, 0);
	put(0, "w", CKPT_DTYPE_F32, f, 6, 2, 0);
	put(1, "w", CKPT_DTYPE_F32, g, 6, 3, 0);
	put(0, "wide", CKPT_DTYPE_F32, f, 6, 6, 0);
	put(1, "wide", CKPT_DTYPE_F64, wide, 6, 6, 0);
	put(0, "packed", CKPT_DTYPE_QU8, u, 6, 6, 0);
	put(1, "packed", CKPT_DTYPE_U8, u, 6, 6, 0);
	put(0, "short", CKPT_DTYPE_U8, u, 6, 6, 0);
	put(1, "short", CKPT_DTYPE_F32, f, 5, 5, 0);
	put(0, "empty", CKPT_DTYPE_U8, u, 0, 1, 0);
	put(1, "empty", CKPT_DTYPE_U8, u, 0, 1, 0);
	put(0, "k", CKPT_DTYPE_U8, u, 6, 6, 0);
	put_object(1, "k", "k", 0);
	put_object(0, "o.same", "text", 0);
	put_object(1, "o.same", "text", 2);
	put_object(0, "o.first", "text", 0);
	put_object(1, "o.first", "tent", 1);
	put_object(0, "o.longer", "text", 0);
	put_object(1, "o.longer", "texts", 0);
}

START_TEST(every_result_in_natural_order)
{
	put_sample();
	open_both();
	expect((struct ckpt_diff){ 0 }, "only a a\n"
					"equal empty\n"
					"kind k\n"
					"bytes o.first at 2\n"
					"bytes o.longer at 4\n"
					"equal o.same\n"
					"dtype packed\n"
					"equal same.9\n"
					"equal same.10\n"
					"shape short\n"
					"bytes w at 2\n"
					"dtype wide\n"
					"only b z\n");
	expect((struct ckpt_diff){ .values = true }, "only a a\n"
						     "equal empty 0/0 max 0 mean 0\n"
						     "kind k\n"
						     "bytes o.first at 2\n"
						     "bytes o.longer at 4\n"
						     "equal o.same\n"
						     "dtype packed\n"
						     "equal same.9 0/6 max 0 mean 0\n"
						     "equal same.10 0/6 max 0 mean 0\n"
						     "shape short\n"
						     "bytes w at 2 2/6 max 1 mean 0.25\n"
						     "dtype wide 1/6 max 2 "
						     "mean 0.33333333333333331\n"
						     "only b z\n");
}
END_TEST

START_TEST(globs_choose_what_is_compared)
{
	const char *const some[] = { "same.*", "z", NULL }, *const none[] = { "nothing", NULL };
	const char *const all[] = { NULL };
	autofree char *everything = NULL;

	put_sample();
	open_both();
	expect((struct ckpt_diff){ .globs = some }, "equal same.9\nequal same.10\nonly b z\n");
	expect((struct ckpt_diff){ .globs = none }, "");
	everything = diff_of((struct ckpt_diff){ 0 });
	expect((struct ckpt_diff){ .globs = all }, everything);
}
END_TEST

/* The heat of "w" must be that of a single block. */
static void expect_heat(enum ckpt_dtype t, const void *a, const void *b, uint64_t n, unsigned jobs)
{
	static float cells[HEAT_MAX_CELLS];
	struct buf want CLEANUP(buf_release) = BUF_INIT(1 << 20);
	struct ckpt_diff d = { .values = true, .norms = true, .heat = 64, .jobs = jobs };
	autofree char *got = diff_of(d);
	struct delta delta = { 0 };
	struct heat heat;

	memset(cells, 0, sizeof(cells));
	REQUIRE(heat_init(&heat, &n, 1, 64));
	if (values_numbers(t) == 1) {
		delta_add_heat(&delta, t, a, t, b, n, &heat, cells, 0);
		note_heat(&want, &(struct ckpt_diff_heat){ 1, 64, cells });
	}
	buf_str(&want, "\n");
	ck_assert_msg(strlen(got) > want.len &&
			      !memcmp(got + strlen(got) - want.len, want.data, want.len),
		      "%s instead of %.*s", got, (int)want.len, want.data);
}

START_TEST(norms_and_heat_are_told_on_request)
{
	struct ckpt_diff d = { .values = true, .norms = true, .heat = 65 };
	struct ckpt_err e = { 0 };

	put_sample();
	open_both();
	ck_assert_int_eq(ckpt_diff(ckpts[0], ckpts[1], &d, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "heat of 65 rows: there can be at most 64");
	d.heat = 4;
	d.globs = (const char *const[]){ "w*", "same.9", "packed", "empty", "a", NULL };
	expect(d, "only a a\n"
		  "equal empty 0/0 max 0 mean 0\n"
		  "dtype packed\n"
		  "equal same.9 0/6 max 0 mean 0 l2 0 of 9.5393920141694561\n"
		  "bytes w at 2 2/6 max 1 mean 0.25 l2 1.1180339887498949 of 9.5393920141694561 "
		  "heat 1x3 1:0.5 2:1\n"
		  "dtype wide 1/6 max 2 mean 0.33333333333333331 l2 2 of 9.5393920141694561 "
		  "heat 1x3 2:2\n");
	d.heat = 0;
	d.globs = (const char *const[]){ "w", NULL };
	expect(d, "bytes w at 2 2/6 max 1 mean 0.25 l2 1.1180339887498949 of 9.5393920141694561\n");
}
END_TEST

/* Tensors of several blocks, cut differently on both sides; differences anywhere. */
START_FEW_TEST(large_tensors_are_compared_in_parts, 4, 1)
{
	static const enum ckpt_dtype types[] = { CKPT_DTYPE_U8, CKPT_DTYPE_BF16, CKPT_DTYPE_F32,
						 CKPT_DTYPE_C128 };
	enum ckpt_dtype t = types[_i];
	size_t bytes = (9 << 20) + 4000, size = dtype_info(t)->size, n = bytes / size;
	autofree uint8_t *a = malloc(bytes), *b = malloc(bytes);
	struct rng r = rng_new();
	struct delta d = { 0 };
	uint64_t first = UINT64_MAX;
	char want[200];

	REQUIRE(a && b);
	random_bytes(&r, a, bytes);
	memcpy(b, a, bytes);
	put(0, "same", t, a, n, n / 3, 0);
	put(1, "same", t, a, n, n / 7, 1);
	for (int i = 0; i < 3; i++) {
		uint64_t at = rng_below(&r, bytes);

		b[at] ^= 0x10;
		first = min_u64(first, at / size);
	}
	put(0, "w", t, a, n, n / 5 + 1, 0);
	put(1, "w", t, b, n, n / 2, 2);
	open_both();
	(void)snprintf(want, sizeof(want), "equal same\nbytes w at %ju\n", (uintmax_t)first);
	expect((struct ckpt_diff){ 0 }, want);
	delta_add(&d, t, a, t, b, n);
	for (unsigned jobs = 1; jobs < 6; jobs += rng_rounds(1, 3)) {
		autofree char *got = diff_of((struct ckpt_diff){ .values = true, .jobs = jobs });
		autofree char *again = diff_of((struct ckpt_diff){ .values = true });

		(void)snprintf(want, sizeof(want), "\nbytes w at %ju %ju/%zu max %g mean ",
			       (uintmax_t)first, (uintmax_t)d.changed, n, d.max);
		ck_assert_msg(strstr(got, want) != NULL, "%s", got);
		ck_assert_str_eq(got, again); /* to the last digit of the mean */
		expect_heat(t, a, b, n, jobs);
	}
}
END_TEST

START_LONG_TEST(a_difference_at_the_start_saves_the_rest)
{
	size_t n = 64 << 20;
	autofree uint8_t *a = calloc(n, 1);
	uint64_t before;
	autofree char *got = NULL;

	REQUIRE(a);
	put(0, "w", CKPT_DTYPE_U8, a, n, n, 0);
	a[5] = 1;
	put(1, "w", CKPT_DTYPE_U8, a, n, n, 0);
	open_both();
	before = fault_read_bytes();
	got = diff_of((struct ckpt_diff){ .jobs = 2 });
	ck_assert_str_eq(got, "bytes w at 5\n");
	/* At most the blocks that were being read: four for each job. */
	ck_assert_uint_lt(fault_read_bytes() - before, 36 << 20);
}
END_TEST

START_LONG_TEST(many_small_ones_go_through_a_small_ring)
{
	char fqn[32];
	struct buf want = BUF_INIT(1 << 20);

	for (int i = 0; i < 300; i++) {
		uint8_t v[2] = { (uint8_t)i, 0 };

		(void)snprintf(fqn, sizeof(fqn), "t.%d", i);
		if (i % 5 != 1)
			put(0, fqn, CKPT_DTYPE_U8, v, 2, 2, (unsigned)i);
		v[1] = i % 7 == 2;
		if (i % 5 != 2)
			put(1, fqn, CKPT_DTYPE_U8, v, 2, 1, (unsigned)i);
		buf_printf(&want, "%s %s%s\n",
			   i % 5 == 1	? "only b"
			   : i % 5 == 2 ? "only a"
			   : v[1]	? "bytes"
					: "equal",
			   fqn, i % 5 != 1 && i % 5 != 2 && v[1] ? " at 1" : "");
	}
	open_both();
	for (int i = 0; i < 20; i++)
		expect((struct ckpt_diff){ 0 }, want.data);
	buf_release(&want);
}
END_TEST

START_TEST(what_cannot_be_read_is_told_and_the_rest_compared)
{
	static const uint8_t u[4000] = { 1 };

	for (size_t i = 0; i < 2; i++) {
		put(i, "a", CKPT_DTYPE_U8, u, 4000, 4000, 0);
		put(i, "b", CKPT_DTYPE_U8, u, 4000, 4000, 1);
		put(i, "c", CKPT_DTYPE_U8, u, 4000, 4000, 2);
	}
	open_both();
	ck_assert_int_eq(unlinkat(fds[0], "__0_0.distcp", 0), 0);
	ck_assert_int_eq(ftruncate(openat(fds[1], "__0_2.distcp", O_RDWR), 100), 0);
	expect((struct ckpt_diff){ 0 }, "failed a in a\nequal b\nfailed c in b\n");
	/* Holes that were already known when the checkpoint was opened. */
	ckpt_close(ckpts[1]);
	ck_assert_int_eq(unlinkat(fds[1], "__0_1.distcp", 0), 0);
	ck_assert_int_eq(
		open_typed(dirs[1],
			   &(struct ckpt_opts){ .index = ":memory:", .allow_missing = true },
			   &ckpts[1], &(struct ckpt_err){ 0 }),
		0);
	expect((struct ckpt_diff){ .values = true },
	       "failed a in a\nfailed b in b\nfailed c in b\n");
}
END_TEST

START_TEST(the_caller_can_stop_it)
{
	struct seen s = { .text = BUF_INIT(1 << 20), .stop_after = 3 };
	struct ckpt_diff d = { .each = note, .arg = &s, .jobs = 3 };
	struct ckpt_err e = { 0 };

	put_sample();
	open_both();
	ck_assert_int_eq(ckpt_diff(ckpts[0], ckpts[1], &d, &e), 77);
	ck_assert(s.items == 3 && d.names == 3 && !e.code);
	d.jobs = CKPT_DIFF_MAX_JOBS + 1;
	ck_assert_int_eq(ckpt_diff(ckpts[0], ckpts[1], &d, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "65 jobs are too many: at most 64 are possible");
	buf_release(&s.text);
}
END_TEST

/* If memory runs out or a read fails, there is an error, a name that failed, or no effect
 * at all. */
START_LOOP_TEST(every_allocation_and_read_may_fail, 2)
{
	static const enum fault_kind kinds[] = { FAULT_ALLOC, FAULT_READ };
	autofree char *whole = NULL;

	put_sample();
	open_both();
	whole = diff_of((struct ckpt_diff){ .values = true });
	FAULT_LOOP(kinds[_i])
	{
		struct seen s = { .text = BUF_INIT(1 << 20) };
		struct ckpt_diff d = {
			.values = true, .each = note, .arg = &s, .jobs = 1 + (unsigned)(fault_n % 3)
		};
		struct ckpt_err e = { 0 };
		int rc = ckpt_diff(ckpts[0], ckpts[1], &d, &e);

		fault_off();
		REQUIRE(rc ? e.code == -rc && *e.msg : !e.code);
		if (!rc && !s.text.err && !d.counts[CKPT_DIFF_FAILED])
			ck_assert_str_eq(s.text.data, whole);
		buf_release(&s.text);
	}
}
END_TEST

SUITE(diff, .setup = setup, .teardown = teardown, .seconds = 60)
