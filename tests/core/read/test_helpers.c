/* SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "fault.h"
#include "read/helpers.h"
#include "suites.h"

#include <stdatomic.h>
#include <stdio.h>

enum { UNITS = 1000 };

struct job {
	_Atomic uint8_t done[UNITS]; /* how often */
	uint64_t n, least, fails;    /* fails: the ranges from this unit on */
	_Atomic unsigned calls;
};

static int work(void *arg, uint64_t from, uint64_t n, struct ckpt_err *e)
{
	struct job *j = arg;

	j->calls++;
	REQUIRE(n >= (j->n < j->least ? j->n : j->least) || from + n == j->n);
	for (uint64_t i = from; i < from + n; i++)
		j->done[i]++;
	if (from + n > j->fails)
		return err_set(e, EIO, "unit %u", (unsigned)(from > j->fails ? from : j->fails));
	return 0;
}

static int run(struct helpers *h, struct job *j, uint64_t n, uint64_t least, struct ckpt_err *e)
{
	int rc;

	j->n = n;
	j->least = least;
	j->calls = 0;
	for (uint64_t i = 0; i < UNITS; i++)
		j->done[i] = 0;
	rc = helpers_run(h, n, least, work, j, e);
	REQUIRE(h->busy == 0);
	for (uint64_t i = 0; i < UNITS; i++)
		REQUIRE(j->done[i] == (i < n));
	return rc;
}

START_TEST(every_unit_is_done_once)
{
	static const uint64_t least[] = { 1, 2, 3, 7, 100, 500, 501, 1000, 2000 };
	struct helpers h;
	struct job j = { .fails = UINT64_MAX };
	struct ckpt_err e = { 0 };

	helpers_init(&h);
	REQUIRE(h.most >= 1);
	for (unsigned most = 0; most < 33; most += most < 5 ? 1 : 9)
		for (size_t k = 0; k < sizeof(least) / sizeof(least[0]); k++)
			for (uint64_t n = 1; n <= UNITS; n += n < 40 ? 1 : 137) {
				h.most = most;
				REQUIRE(!run(&h, &j, n, least[k], &e));
				REQUIRE(j.calls <= most + 1);
				if (n < 2 * least[k])
					ck_assert_uint_eq(j.calls, 1);
			}
}
END_TEST

/* It does not matter which thread is the fastest. */
START_TEST(the_first_range_that_fails_says_why)
{
	struct helpers h;

	helpers_init(&h);
	h.most = 7;
	for (unsigned at = 0; at < UNITS; at += 50) {
		struct job j = { .fails = at };
		struct ckpt_err e = { 0 };
		char want[32];

		(void)snprintf(want, sizeof(want), "unit %u", at);
		ck_assert_int_eq(run(&h, &j, UNITS, 1, &e), -EIO);
		ck_assert_str_eq(e.msg, want);
	}
}
END_TEST

START_TEST(without_threads_the_caller_does_it)
{
	struct helpers h;

	helpers_init(&h);
	h.most = 7;
	FAULT_LOOP(FAULT_THREAD)
	{
		struct job j = { .fails = UINT64_MAX };
		struct ckpt_err e = { 0 };
		int rc = run(&h, &j, UNITS, 1, &e);

		(void)fault_off();
		REQUIRE(!rc && j.calls == 8);
	}
}
END_TEST

SUITE(helpers, .seconds = 60)
