/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/sched.h"

#include "base/checked.h"
#include "base/clock.h"
#include "remote/store.h"
#include "rng.h"
#include "source/wire.h"
#include "suites.h"

#define MIB ((uint64_t)1 << 20)

enum { BLOCKS = 200 };

struct blocks {
	bool missing[BLOCKS + 64];
};

static bool is_missing(void *arg, uint64_t block)
{
	const struct blocks *b = arg;

	return block < BLOCKS && b->missing[block];
}

static bool in_any(const struct span *v, size_t n, uint64_t block)
{
	for (size_t i = 0; i < n; i++)
		if (block >= v[i].first && block < v[i].end)
			return true;
	return false;
}

/* ---- what a reader waits for ---- */

START_LOOP_TEST(an_exact_request_is_the_first_run_that_is_missing, 200)
{
	struct rng r = rng_new();
	struct blocks b;
	struct span in, got = { 0, 0 };
	uint64_t most = 1 + rng_below(&r, 12), first, end;
	unsigned percent = (unsigned)rng_below(&r, 101);

	for (uint64_t i = 0; i < BLOCKS; i++)
		b.missing[i] = rng_chance(&r, percent);
	in.first = rng_below(&r, BLOCKS);
	in.end = in.first + rng_below(&r, BLOCKS - in.first + 1);
	for (first = in.first; first < in.end && !b.missing[first];)
		first++;
	for (end = first; end < in.end && b.missing[end] && end - first < most;)
		end++;
	ck_assert_int_eq(sched_exact(in, most, is_missing, &b, &got), first < in.end);
	ck_assert(first >= in.end || (got.first == first && got.end == end));
	(void)_i;
}
END_TEST

/* ---- what is wanted ---- */

/* What must be true of every request, wherever the blocks lie. */
START_LOOP_TEST(a_request_for_what_is_wanted_takes_no_more_than_it_may, 500)
{
	struct rng r = rng_new();
	struct blocks b;
	struct span wants[5], got;
	size_t n = 1 + (size_t)rng_below(&r, ARRAY_LEN(wants));
	uint64_t most = 1 + rng_below(&r, 40), gap = rng_below(&r, 6), first, run = 0;
	unsigned percent = (unsigned)rng_below(&r, 101);

	for (uint64_t i = 0; i < BLOCKS; i++)
		b.missing[i] = rng_chance(&r, percent);
	for (size_t i = 0; i < n; i++) {
		wants[i].first = rng_below(&r, BLOCKS);
		wants[i].end = wants[i].first + 1 + rng_below(&r, BLOCKS - wants[i].first);
	}
	for (first = wants[0].first; first < wants[0].end && !b.missing[first];)
		first++;
	if (!sched_wanted(wants, n, most, gap, is_missing, &b, &got)) {
		ck_assert_uint_eq(first, wants[0].end);
		return;
	}
	ck_assert_uint_eq(got.first, first);
	ck_assert_uint_le(got.end - got.first, most);
	ck_assert(b.missing[got.end - 1] && in_any(wants, n, got.end - 1));
	for (uint64_t i = got.first; i < got.end; i++) {
		run = b.missing[i] && in_any(wants, n, i) ? 0 : run + 1;
		ck_assert_uint_le(run, gap);
	}
	/* The request goes on as far as it may. */
	run = 0;
	for (uint64_t i = got.end; i < BLOCKS && i - got.first < most && i - got.end <= gap; i++)
		ck_assert(!b.missing[i] || !in_any(wants, n, i));
	(void)_i;
}
END_TEST

START_TEST(wants_that_adjoin_are_one_request)
{
	struct blocks b;
	const struct span wants[] = { { 10, 20 }, { 40, 50 }, { 20, 30 }, { 33, 36 } };
	struct span got;

	memset(b.missing, true, sizeof(b.missing));
	ck_assert(sched_wanted(wants, 4, 128, 0, is_missing, &b, &got));
	ck_assert(got.first == 10 && got.end == 30);
	ck_assert(sched_wanted(wants, 4, 128, 3, is_missing, &b, &got));
	ck_assert(got.first == 10 && got.end == 36);
	ck_assert(sched_wanted(wants, 4, 128, 4, is_missing, &b, &got));
	ck_assert(got.first == 10 && got.end == 50);
	ck_assert(sched_wanted(wants, 4, 16, 4, is_missing, &b, &got));
	ck_assert(got.first == 10 && got.end == 26);
}
END_TEST

/* ---- how large they become ---- */

/* 1, 2, 4, 8, 8 MiB; also at the very first block, where no request has ended yet. */
START_LOOP_TEST(requests_that_follow_each_other_become_larger, 3)
{
	static const uint64_t first[] = { 0, 7, 4000 };
	const uint64_t per = MIB / WIRE_BLOCK;
	struct steps s = { 0 };
	uint64_t at = first[_i];

	for (uint64_t mib = 1; mib <= 16; mib *= 2) {
		uint64_t n = min_u64(mib, 8) * per;

		ck_assert_uint_eq(steps_most(&s, at), n);
		steps_sent(&s, at, at + n);
		at += n;
	}
	/* A request that was cut short, and blocks that were there already. */
	steps_sent(&s, at, at + 1);
	ck_assert_uint_eq(steps_most(&s, at + 1 + per), 8 * per);
	/* Another place. */
	ck_assert_uint_eq(steps_most(&s, at + 2 + per), per);
	ck_assert_uint_eq(steps_most(&s, at), per);
}
END_TEST

/* ---- gaps ---- */

START_TEST(a_gap_is_read_through_while_the_link_is_idle)
{
	struct net_pace p = { .latency_us = 20000, .connection_bps = 50000000 };
	uint64_t before = UINT64_MAX;

	/* In 20 ms, 50 MB/s bring 1 MB: 15 whole blocks of 64 KiB. If that much is on its way
	 * already, the link is busy in that time anyway. */
	ck_assert_uint_eq(sched_gap(&p, 0), 15);
	ck_assert_uint_eq(sched_gap(&p, 500000), 7);
	ck_assert_uint_eq(sched_gap(&p, 1000000), 0);
	p.total_bps = 125000000; /* more than one connection carries */
	for (uint64_t busy = 0; busy <= 2500000; busy += 125000) {
		uint64_t gap = sched_gap(&p, busy);

		ck_assert_uint_le(gap, before);
		ck_assert(busy > 1250000 || gap >= 7);
		before = gap;
	}
	ck_assert_uint_eq(before, 0);
	ck_assert_uint_eq(sched_gap(&(struct net_pace){ 0 }, 0), 0); /* not known */
	p.latency_us = UINT64_MAX;
	ck_assert_uint_eq(sched_gap(&p, 0), SCHED_MAX / (64 << 10));
}
END_TEST

/* ---- the window ---- */

/* A second in which so many bytes arrive. */
static void arrive(struct window *w, uint64_t *now, uint64_t bytes, bool full,
		   const struct net_pace *p, uint64_t ram)
{
	for (int i = 0; i < 5; i++) {
		*now += 201 * CLOCK_MS;
		window_arrived(w, bytes / 5, *now, full, p, ram);
	}
}

/* 10 Gbit/s and 30 ms: 1.7 times what is on its way is far more than the window may be. */
static const struct net_pace fast = { .latency_us = 30000,
				      .connection_bps = 80000000,
				      .total_bps = 1250000000 };

START_TEST(the_window_grows_while_more_arrives_and_stops)
{
	struct window w;
	uint64_t now = CLOCK_SECOND, at[8], rate = 100 * MIB;

	window_init(&w);
	ck_assert_uint_eq(w.bytes, 16 * MIB);
	arrive(&w, &now, rate, true, &fast, UINT64_MAX);
	at[0] = w.bytes;
	ck_assert_uint_eq(at[0], 32 * MIB);
	/* The same again: no larger. */
	arrive(&w, &now, rate, true, &fast, UINT64_MAX);
	ck_assert_uint_eq(w.bytes, at[0]);
	arrive(&w, &now, rate + rate / 20, true, &fast, UINT64_MAX);
	ck_assert_uint_eq(w.bytes, at[0]);
	/* More arrives, but only because less was asked for before. */
	arrive(&w, &now, 2 * rate, false, &fast, UINT64_MAX);
	ck_assert_uint_eq(w.bytes, at[0]);
	for (unsigned i = 0; i < 6; i++) {
		rate *= 2;
		arrive(&w, &now, rate, true, &fast, UINT64_MAX);
	}
	ck_assert_uint_eq(w.bytes, 256 * MIB);
}
END_TEST

START_TEST(the_window_has_ceilings_and_a_floor)
{
	struct window w;
	uint64_t now = CLOCK_SECOND, rate = 100 * MIB;
	/* 1 Gbit/s and 20 ms: 1.7 * 125 MB/s * (20 ms + 8 MiB / 50 MB/s) */
	const struct net_pace slow = { .latency_us = 20000,
				       .connection_bps = 50000000,
				       .total_bps = 125000000 };

	window_init(&w);
	for (unsigned i = 0; i < 8; i++, rate *= 2)
		arrive(&w, &now, rate, true, &fast, 512 * MIB);
	ck_assert_uint_eq(w.bytes, 64 * MIB); /* an eighth of the memory */
	for (unsigned i = 0; i < 4; i++, rate *= 2)
		arrive(&w, &now, rate, true, &slow, UINT64_MAX);
	ck_assert_uint_gt(w.bytes, 37 * MIB);
	ck_assert_uint_lt(w.bytes, 39 * MIB);
	arrive(&w, &now, rate, true, &fast, MIB);
	ck_assert_uint_eq(w.bytes, 16 * MIB);
	arrive(&w, &now, 0, true, &(struct net_pace){ 0 }, UINT64_MAX);
	ck_assert_uint_eq(w.bytes, 16 * MIB);
}
END_TEST

/* What a link of 1 Gbit/s carries with this window, if each connection has 400 Mbit/s. */
static struct net_pace carried(const struct window *w)
{
	const double seconds = 0.02 + (double)(8 * MIB) / 50e6;
	double bps = (double)w->bytes / seconds;

	return (struct net_pace){ .latency_us = 20000,
				  .connection_bps = 50000000,
				  .total_bps = bps < 125e6 ? (uint64_t)bps : 125000000 };
}

START_TEST(the_window_grows_though_the_pace_is_known_late)
{
	struct window w;
	uint64_t now = CLOCK_SECOND;
	struct net_pace p;

	window_init(&w);
	p = carried(&w);
	arrive(&w, &now, p.total_bps, true, &(struct net_pace){ .latency_us = 20000 }, UINT64_MAX);
	ck_assert_uint_eq(w.bytes, 16 * MIB);
	for (unsigned i = 0; i < 10; i++) {
		p = carried(&w);
		arrive(&w, &now, p.total_bps, true, &p, UINT64_MAX);
	}
	ck_assert_uint_gt(w.bytes, 30 * MIB);
	ck_assert_uint_lt(w.bytes, 39 * MIB);
}
END_TEST

SUITE(sched)
