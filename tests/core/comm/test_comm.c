/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that are threads: what they send arrives, and if one fails, all are told, wherever it
 * happens. If a rank waits for ever, Check's timeout kills it.
 */
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "comm/comm.h"
#include "fault.h"
#include "rng.h"
#include "suites.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#ifndef __has_feature /* clang's word for what gcc has macros for */
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__) || \
	__has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
enum { IS_SANITIZED = 1, MANY = 200 };
#else
enum { IS_SANITIZED = 0, MANY = 2000 };
#endif

enum { RANKS = 16, TIMEOUT = 60 };

/* ---- what is sent arrives ---- */

struct world {
	uint64_t seed;
	size_t most; /* bytes */
};

/* What `from` sends to `to` in a round: any bytes of any length, but always the same ones. */
static size_t bytes_of(const struct world *w, uint64_t round, size_t from, size_t to,
		       unsigned char **ret)
{
	struct rng r = { w->seed + round * 1000003 + from * 1009 + to };
	size_t n = rng_chance(&r, 20) ? 0 : rng_below(&r, w->most);

	*ret = malloc(n + 1);
	REQUIRE(*ret);
	for (size_t i = 0; i < n; i++)
		(*ret)[i] = (unsigned char)rng_u64(&r);
	return n;
}

static void is_what(const struct world *w, uint64_t round, size_t from, size_t to,
		    const struct ckpt_comm_bytes *got)
{
	autofree unsigned char *want = NULL;

	REQUIRE(bytes_of(w, round, from, to, &want) == got->len);
	REQUIRE(!got->len || !memcmp(want, got->data, got->len));
}

static int gather_all(const struct world *w, struct ckpt_comm *c, uint64_t round,
		      struct ckpt_err *e)
{
	struct ckpt_comm_all all = { 0 };
	autofree unsigned char *mine = NULL;
	size_t n = bytes_of(w, round, c->rank, 0, &mine);
	int rc = ckpt_comm_gather(c, 0, mine, n, &all, e);

	if (rc)
		return rc;
	REQUIRE(all.n == (c->rank ? 0 : c->size));
	for (size_t i = 0; i < all.n; i++)
		is_what(w, round, i, 0, &all.v[i]);
	ckpt_comm_all_release(&all);
	return 0;
}

static int scatter_all(const struct world *w, struct ckpt_comm *c, uint64_t round,
		       struct ckpt_err *e)
{
	struct ckpt_comm_bytes parts[RANKS], got = { 0 };
	int rc;

	for (size_t i = 0; !c->rank && i < c->size; i++) {
		unsigned char *p;

		parts[i].len = bytes_of(w, round, 0, i, &p);
		parts[i].data = p;
	}
	rc = ckpt_comm_scatter(c, 0, c->rank ? NULL : parts, &got, e);
	for (size_t i = 0; !c->rank && i < c->size; i++)
		free(parts[i].data);
	if (!rc)
		is_what(w, round, 0, c->rank, &got);
	free(got.data);
	return rc;
}

static int broadcast_all(const struct world *w, struct ckpt_comm *c, uint64_t round,
			 struct ckpt_err *e)
{
	struct ckpt_comm_bytes got = { 0 };
	autofree unsigned char *mine = NULL;
	size_t n = bytes_of(w, round, 0, 0, &mine);
	int rc = ckpt_comm_broadcast(c, 0, c->rank ? NULL : mine, c->rank ? 0 : n, &got, e);

	if (!rc)
		is_what(w, round, 0, 0, &got);
	free(got.data);
	return rc;
}

/* What was sent, and to whom. */
static int echo(void *arg, const struct ckpt_comm_all *all, struct buf *ret, struct ckpt_err *e)
{
	(void)arg;
	(void)e;
	for (size_t i = 0; i < all->n; i++) {
		buf_printf(&ret[i], "%zu: ", i);
		buf_add(&ret[i], all->v[i].data, all->v[i].len);
	}
	return 0;
}

static int exchange_all(const struct world *w, struct ckpt_comm *c, uint64_t round,
			struct ckpt_err *e)
{
	struct buf mine = BUF_INIT(SIZE_MAX), want = BUF_INIT(SIZE_MAX);
	struct ckpt_comm_bytes got = { 0 };
	autofree unsigned char *bytes = NULL;
	size_t n = bytes_of(w, round, c->rank, 0, &bytes);
	int rc;

	buf_add(&mine, bytes, n);
	buf_printf(&want, "%zu: ", c->rank);
	buf_add(&want, bytes, n);
	REQUIRE(!mine.err && !want.err);
	rc = comm_exchange(c, 0, &mine, echo, NULL, &got, e);
	if (!rc)
		REQUIRE(got.len == want.len && !memcmp(got.data, want.data, want.len));
	buf_release(&want);
	free(got.data);
	return rc;
}

static int one_round(const struct world *w, struct ckpt_comm *c, uint64_t round, struct ckpt_err *e)
{
	struct rng r = { w->seed + round };

	switch (rng_below(&r, 5)) {
	case 0:
		return gather_all(w, c, round, e);
	case 1:
		return scatter_all(w, c, round, e);
	case 2:
		return broadcast_all(w, c, round, e);
	case 3:
		return exchange_all(w, c, round, e);
	default:
		return ckpt_comm_barrier(c, e);
	}
}

static int rounds(void *arg, struct ckpt_comm *c, struct ckpt_err *e)
{
	struct world *w = arg;
	int rc = 0;

	for (uint64_t i = 0; i < 30 && !rc; i++)
		rc = one_round(w, c, i, e);
	return rc;
}

START_TEST(every_rank_gets_what_was_sent_to_it)
{
	struct rng r = rng_new();

	for (size_t n = 1; n <= RANKS; n++) {
		struct world w = { .seed = rng_u64(&r), .most = 1 + rng_below(&r, 5000) };
		struct ckpt_err e = { 0 };

		ck_assert_msg(!ckpt_comm_run_threads(n, rounds, &w, &e), "%s", e.msg);
	}
}
END_TEST

static int count_ranks(void *arg, struct ckpt_comm *c, struct ckpt_err *e)
{
	struct ckpt_comm_all all = { 0 };
	int rc = ckpt_comm_gather(c, 0, &c->rank, sizeof(c->rank), &all, e);

	for (size_t i = 0; i < all.n; i++)
		*(size_t *)arg += !memcmp(all.v[i].data, &i, sizeof(i));
	ckpt_comm_all_release(&all);
	return rc ? rc : ckpt_comm_barrier(c, e);
}

START_LONG_TEST(there_may_be_thousands_of_ranks)
{
	struct ckpt_err e = { 0 };
	size_t n = 0;

	ck_assert_msg(!ckpt_comm_run_threads(MANY, count_ranks, &n, &e), "%s", e.msg);
	ck_assert_uint_eq(n, MANY);
	ck_assert_int_eq(ckpt_comm_run_threads(0, count_ranks, &n, &e), -EINVAL);
}
END_TEST

static int never(void *arg, struct ckpt_comm *c, struct ckpt_err *e)
{
	(void)arg;
	(void)c;
	(void)e;
	ck_abort_msg("a rank runs, though not all are there");
}

/* There is room for the stacks of some ranks, but not of all. */
START_TEST(without_enough_threads_nobody_starts)
{
	unsigned long pages = 0;
	struct rlimit lim;
	struct ckpt_err e = { 0 };
	FILE *f = fopen("/proc/self/statm", "re");

	if (IS_SANITIZED) { /* a sanitizer takes terabytes of addresses */
		(void)fclose(f);
		return;
	}
	ck_assert(f && fscanf(f, "%lu", &pages) == 1 && !fclose(f));
	lim.rlim_cur = lim.rlim_max = pages * 4096 + (256 << 20);
	ck_assert(!setrlimit(RLIMIT_AS, &lim));
	ck_assert_int_eq(ckpt_comm_run_threads(4000, never, NULL, &e), -EAGAIN);
	ck_assert_msg(strstr(e.msg, "start rank ") && strstr(e.msg, " of 4000: "), "%s", e.msg);
}
END_TEST

/* ---- failures ---- */

/* How a rank ended. */
struct ending {
	int rc;
	struct ckpt_err e;
};

enum how {
	FAIL_AGREE,
	FAIL_GATHER,
	FAIL_SCATTER,
	FAIL_BROADCAST,
	FAIL_EXCHANGE,
	FAIL_RETURN, /* while the others gather */
	N_HOWS
};

struct trial {
	enum how how;
	uint64_t who; /* bit r: rank r fails */
	struct ending end[RANKS];
};

static int do_it(enum how how, struct ckpt_comm *c, int rc, struct ckpt_err *e)
{
	struct ckpt_comm_bytes got = { 0 }, parts[RANKS] = { { 0 } };
	struct buf mine = BUF_INIT(100);
	struct ckpt_comm_all all = { 0 };

	switch (how) {
	case FAIL_AGREE:
		return ckpt_comm_agree(c, rc, e);
	case FAIL_GATHER:
	case FAIL_RETURN:
		rc = ckpt_comm_gather(c, rc, "x", 1, &all, e);
		break;
	case FAIL_SCATTER:
		rc = ckpt_comm_scatter(c, rc, parts, &got, e);
		break;
	case FAIL_BROADCAST:
		rc = ckpt_comm_broadcast(c, rc, "x", 1, &got, e);
		break;
	default:
		rc = comm_exchange(c, rc, &mine, echo, NULL, &got, e);
	}
	ckpt_comm_all_release(&all);
	free(got.data);
	return rc;
}

static int fail_some(void *arg, struct ckpt_comm *c, struct ckpt_err *e)
{
	struct trial *t = arg;
	struct ending *end = &t->end[c->rank];
	int rc = ckpt_comm_barrier(c, e);

	REQUIRE(!rc);
	if (t->who >> c->rank & 1)
		rc = err_set(e, ENOSPC, "no room on %zu", c->rank);
	if (!rc || t->how != FAIL_RETURN)
		rc = do_it(t->how, c, rc, e);
	*end = (struct ending){ rc, *e };
	return rc;
}

/* A rank that returns before its turn has the plain message, all others one that names the rank. */
static void check_trial(const struct trial *t, size_t n, int rc, const struct ckpt_err *e)
{
	size_t lowest = 0;
	char want[64];

	while (!(t->who >> lowest & 1))
		lowest++;
	(void)snprintf(want, sizeof(want), n > 1 ? "rank %zu: no room on %zu" : "no room on 0",
		       lowest, lowest);
	ck_assert_int_eq(rc, -ENOSPC);
	ck_assert_str_eq(e->msg, want);
	for (size_t i = 0; i < n; i++) {
		ck_assert_int_eq(t->end[i].rc, -ENOSPC);
		if (t->how != FAIL_RETURN || !(t->who >> i & 1))
			ck_assert_str_eq(t->end[i].e.msg, want);
	}
}

START_FEW_TEST(a_rank_that_fails_fails_all_with_its_sentence, N_HOWS, 2)
{
	struct trial t = { .how = (enum how)_i };

	for (size_t n = 1; n <= 7; n++)
		for (size_t rank = 0; rank < n; rank++) {
			struct ckpt_err e = { 0 };
			int rc;

			t.who = 1u << rank;
			rc = ckpt_comm_run_threads(n, fail_some, &t, &e);
			check_trial(&t, n, rc, &e);
		}
}
END_TEST

START_FEW_TEST(of_several_failures_the_lowest_ranks_is_told, N_HOWS, 2)
{
	struct rng r = rng_new();

	for (int round = 0; round < 20; round++) {
		size_t n = 1 + rng_below(&r, RANKS);
		struct trial t = { .how = (enum how)_i, .who = 1 + rng_below(&r, (1u << n) - 1) };
		struct ckpt_err e = { 0 };
		int rc = ckpt_comm_run_threads(n, fail_some, &t, &e);

		check_trial(&t, n, rc, &e);
	}
}
END_TEST

/* Rank 2 makes another call than the others, which no rank should do. */
static int differ(void *arg, struct ckpt_comm *c, struct ckpt_err *e)
{
	struct trial *t = arg;
	struct ending *end = &t->end[c->rank];
	int rc = 0;

	if (c->rank != 2)
		rc = do_it(FAIL_GATHER, c, 0, e);
	else if (t->how != FAIL_RETURN)
		rc = do_it(t->how, c, 0, e);
	*end = (struct ending){ rc, *e };
	return rc;
}

START_LOOP_TEST(a_rank_that_does_something_else_fails_all, N_HOWS)
{
	static const char *const text[N_HOWS] = {
		[FAIL_AGREE] = "rank 0 gathers, rank 2 agrees",
		[FAIL_SCATTER] = "rank 0 gathers, rank 2 scatters",
		[FAIL_BROADCAST] = "rank 0 gathers, rank 2 broadcasts",
		[FAIL_RETURN] = "rank 0 gathers, rank 2 has ended",
	};
	struct trial t = { .how = (enum how)_i };
	struct ckpt_err e = { 0 };

	if (!text[_i])
		return;
	ck_assert_int_eq(ckpt_comm_run_threads(4, differ, &t, &e), -EPROTO);
	ck_assert_str_eq(e.msg, text[_i]);
	for (size_t i = 0; i < 4; i++)
		if (i != 2 || t.how != FAIL_RETURN)
			ck_assert_str_eq(t.end[i].e.msg, text[_i]);
}
END_TEST

/* A failure that all ranks know is passed on as it is. A new one gets the number of its rank, even
 * after older ones. */
static int fail_again(void *arg, struct ckpt_comm *c, struct ckpt_err *e)
{
	struct ending *end = arg;
	struct ckpt_err first = { 0 }, mine = { 0 };
	int rc = c->rank == 1 ? err_set(&first, EIO, "first") : 0;

	rc = ckpt_comm_agree(c, rc, &first);
	REQUIRE(rc == -EIO && !strcmp(first.msg, "rank 1: first"));
	rc = ckpt_comm_agree(c, err_wrap(&first, "together"), &first);
	REQUIRE(rc == -EIO && !strcmp(first.msg, "together: rank 1: first"));
	rc = ckpt_comm_agree(c, rc, &first);
	REQUIRE(rc == -EIO && !strcmp(first.msg, "together: rank 1: first"));
	rc = c->rank == 2 ? err_set(&mine, ENOSPC, "second") : 0;
	rc = ckpt_comm_agree(c, rc, &mine);
	REQUIRE(rc == -ENOSPC && !strcmp(mine.msg, "rank 2: second"));
	REQUIRE(!ckpt_comm_barrier(c, e));
	end[c->rank].rc = 1;
	return 0;
}

START_TEST(after_a_failure_the_ranks_can_go_on)
{
	struct ending end[RANKS] = { { 0 } };
	struct ckpt_err e = { 0 };

	ck_assert(!ckpt_comm_run_threads(5, fail_again, end, &e));
	ck_assert(!e.code && end[4].rc);
}
END_TEST

static int exchange_ending(void *arg, struct ckpt_comm *c, struct ckpt_err *e)
{
	struct ending *end = arg;
	int rc = 0;

	for (enum how how = FAIL_AGREE; how < FAIL_RETURN && !rc; how++)
		rc = do_it(how, c, 0, e);
	end[c->rank] = (struct ending){ rc, *e };
	return rc;
}

START_TEST(a_rank_without_memory_fails_all)
{
	enum { N = 3 };
	uint64_t failed = 0;

	FAULT_LOOP(FAULT_ALLOC)
	{
		struct ending end[RANKS] = { { 0 } };
		struct ckpt_err e = { 0 };
		int rc = ckpt_comm_run_threads(N, exchange_ending, end, &e);

		(void)fault_off();
		ck_assert(!rc || rc == -ENOMEM);
		for (size_t i = 0; i < N && end[0].rc; i++) {
			ck_assert_int_eq(end[i].rc, -ENOMEM);
			ck_assert_str_eq(end[i].e.msg, end[0].e.msg);
			ck_assert_str_eq(end[i].e.msg, e.msg);
			failed++;
		}
	}
	ck_assert_uint_gt(failed, 10);
}
END_TEST

/* ---- ways to move bytes that fail ---- */

static int left_to_move;

static int move(struct ckpt_err *e)
{
	return left_to_move-- > 0 ? 0 : err_set(e, EPIPE, "the wire is cut");
}

static int cut_gather(void *self, const void *mine, size_t len, const struct ckpt_comm_bytes *all,
		      struct ckpt_err *e)
{
	(void)self;
	if (all && len) {
		memcpy(all[0].data, mine, len);
		memcpy(all[1].data, mine, len);
	}
	return move(e);
}

static int cut_scatter(void *self, const struct ckpt_comm_bytes *parts, void *mine, size_t len,
		       struct ckpt_err *e)
{
	(void)self;
	if (len)
		memcpy(mine, parts[0].data, len);
	return move(e);
}

static int cut_broadcast(void *self, void *data, size_t len, struct ckpt_err *e)
{
	(void)self;
	(void)data;
	(void)len;
	return move(e);
}

START_TEST(when_bytes_cannot_be_moved_it_is_over)
{
	static const struct ckpt_comm_ops ops = { cut_gather, cut_scatter, cut_broadcast };

	for (enum how how = FAIL_AGREE; how < FAIL_RETURN; how++)
		for (int n = 0;; n++) {
			struct ckpt_comm c = { 0 };
			struct ckpt_err e = { 0 }, again = { 0 };
			int rc;

			ck_assert(!ckpt_comm_init(&c, &ops, NULL, 0, 2, &e));
			left_to_move = n;
			rc = do_it(how, &c, 0, &e);
			if (!rc) {
				ckpt_comm_release(&c);
				ck_assert_int_gt(n, 1);
				break;
			}
			ck_assert_int_eq(rc, -EPIPE);
			ck_assert_str_eq(e.msg, "the wire is cut");
			left_to_move = 1000;
			ck_assert_int_eq(ckpt_comm_agree(&c, 0, &again), -EPIPE);
			ck_assert_int_eq(ckpt_comm_leave(&c, 0, &again), -EPIPE);
			ck_assert_str_eq(again.msg, "the wire is cut");
			ckpt_comm_release(&c);
		}
}
END_TEST

/* ---- MPI ---- */

START_TEST(mpi_is_used_where_mpirun_has_started_it)
{
	static const char *const names[] = { "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK" };
	struct ckpt_comm c = ckpt_comm_self();
	struct ckpt_err e = { 0 };

	for (size_t i = 0; i < 3; i++)
		ck_assert(!unsetenv(names[i]));
	ck_assert(!ckpt_comm_mpi_started());
	ck_assert_int_eq(ckpt_comm_mpi_start(&c, &e), 1);
	ck_assert(!e.code && c.size == 1);
#ifndef CKPTFS_MPI
	for (size_t i = 0; i < 3; i++) {
		ck_assert(!setenv(names[i], "4", 1));
		ck_assert(ckpt_comm_mpi_started());
		ck_assert_int_eq(ckpt_comm_mpi_start(&c, &e), -ENOTSUP);
		ck_assert_str_eq(e.msg, "started by mpirun, but built without MPI: build it with "
					"'make MPI=1'");
		ck_assert(!unsetenv(names[i]));
	}
#endif
}
END_TEST

SUITE(comm, .seconds = TIMEOUT)
