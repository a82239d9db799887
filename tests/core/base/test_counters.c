/* SPDX-License-Identifier: Apache-2.0 */
#include "base/counters.h"

#include "rng.h"
#include "suites.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

enum { N = 37, THREADS = 8, WAVES = 4, ADDS = 20000 };

START_TEST(counters_begin_at_zero_and_add_up)
{
	struct counters *c = counters_new(3);
	uint64_t sum[3] = { 7, 7, 7 };

	ck_assert_ptr_nonnull(c);
	counters_read(c, sum);
	ck_assert(!sum[0] && !sum[1] && !sum[2]);
	counters_add(c, 0, 1);
	counters_add(c, 2, 5);
	counters_add(c, 2, (uint64_t)1 << 40);
	counters_read(c, sum);
	ck_assert_uint_eq(sum[0], 1);
	ck_assert_uint_eq(sum[1], 0);
	ck_assert_uint_eq(sum[2], ((uint64_t)1 << 40) + 5);
	counters_free(c);
	counters_free(NULL);
}
END_TEST

struct adder {
	struct counters *c;
	uint64_t seed, sum[N];
	pthread_t thread;
};

static void *add_many(void *arg)
{
	struct adder *a = arg;
	struct rng r = { a->seed };

	for (int k = 0; k < ADDS; k++) {
		size_t i = (size_t)(rng_below(&r, N));
		uint64_t by = rng_below(&r, 1000);

		counters_add(a->c, i, by);
		a->sum[i] += by;
		if (k % 1024 == 0) /* so that it moves to another CPU now and then */
			(void)sched_yield();
	}
	return NULL;
}

static void *watch(void *arg)
{
	struct adder *a = arg;
	uint64_t last[N] = { 0 }, now[N];

	for (int k = 0; k < 200; k++) {
		counters_read(a->c, now);
		for (size_t i = 0; i < N; i++)
			REQUIRE(now[i] >= last[i]);
		memcpy(last, now, sizeof(last));
	}
	return NULL;
}

/* Threads end and others begin; meanwhile a reader must see the numbers grow. */
START_TEST(nothing_is_lost_whoever_adds)
{
	struct counters *c = counters_new(N);
	struct adder reader = { .c = c };
	struct rng r = rng_new();
	uint64_t want[N] = { 0 }, got[N];

	ck_assert_ptr_nonnull(c);
	ck_assert_int_eq(pthread_create(&reader.thread, NULL, watch, &reader), 0);
	for (int wave = 0; wave < WAVES; wave++) {
		struct adder a[THREADS] = { 0 };

		for (int t = 0; t < THREADS; t++) {
			a[t].c = c;
			a[t].seed = rng_u64(&r);
			ck_assert_int_eq(pthread_create(&a[t].thread, NULL, add_many, &a[t]), 0);
		}
		for (int t = 0; t < THREADS; t++) {
			ck_assert_int_eq(pthread_join(a[t].thread, NULL), 0);
			for (size_t i = 0; i < N; i++)
				want[i] += a[t].sum[i];
		}
	}
	ck_assert_int_eq(pthread_join(reader.thread, NULL), 0);
	counters_read(c, got);
	for (size_t i = 0; i < N; i++)
		ck_assert_uint_eq(got[i], want[i]);
	counters_free(c);
}
END_TEST

SUITE(counters, .seconds = 60)
