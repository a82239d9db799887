/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of calls, which is checked for every storage. From every state that can be reached,
 * each call is tried; only those that may come next must reach the storage.
 */
#include "base/checked.h"
#include "base/err.h"
#include "suites.h"
#include <ckptfs/ckpt_plan.h>
#include <ckptfs/ckpt_storage.h>

#include <stdio.h>
#include <string.h>

/* A storage that counts the calls that reach it, and fails once if told to. */
struct fake {
	int calls, freed;
	bool fails;
};

static int arrive(void *self, struct ckpt_err *e)
{
	struct fake *f = self;

	f->calls++;
	return f->fails ? err_set(e, EIO, "told to fail") : 0;
}

static int w_id(void *self, const char *id, struct ckpt_err *e)
{
	ck_assert_str_eq(id, "a/b");
	return arrive(self, e);
}

static int w_set_up(void *self, const struct ckpt_storage_ranks *ranks, struct ckpt_err *e)
{
	ck_assert_uint_eq(ranks->size, 4);
	return arrive(self, e);
}

static int w_local(void *self, const struct ckpt_save_plan *plan, struct ckpt_save_plan *ret,
		   struct ckpt_err *e)
{
	*ret = *plan;
	return arrive(self, e);
}

static int w_global(void *self, struct ckpt_save_plan *parts, size_t n, struct ckpt_err *e)
{
	ck_assert(parts && n == 4);
	return arrive(self, e);
}

static int w_write(void *self, const struct ckpt_save_plan *plan, struct ckpt_save_planner *planner,
		   struct ckpt_write_results *ret, struct ckpt_err *e)
{
	ck_assert(plan && planner && ret);
	return arrive(self, e);
}

static int w_finish(void *self, const struct ckpt_metadata *md,
		    const struct ckpt_write_results *all, size_t n, struct ckpt_err *e)
{
	ck_assert(md && all && n == 4);
	return arrive(self, e);
}

static int r_metadata(void *self, const struct ckpt_metadata **ret, struct ckpt_err *e)
{
	*ret = NULL;
	return arrive(self, e);
}

static int r_set_up(void *self, const struct ckpt_metadata *md,
		    const struct ckpt_storage_ranks *ranks, struct ckpt_err *e)
{
	(void)md;
	return w_set_up(self, ranks, e);
}

static int r_local(void *self, const struct ckpt_load_plan *plan, struct ckpt_load_plan *ret,
		   struct ckpt_err *e)
{
	*ret = *plan;
	return arrive(self, e);
}

static int r_global(void *self, struct ckpt_load_plan *parts, size_t n, struct ckpt_err *e)
{
	ck_assert(parts && n == 4);
	return arrive(self, e);
}

static int r_read(void *self, const struct ckpt_load_plan *plan, struct ckpt_load_planner *planner,
		  struct ckpt_err *e)
{
	ck_assert(plan && planner);
	return arrive(self, e);
}

static void count_free(void *self)
{
	((struct fake *)self)->freed++;
}

static const struct ckpt_storage_writer_ops writer_ops = {
	.validate_checkpoint_id = w_id,
	.reset = w_id,
	.set_up = w_set_up,
	.prepare_local_plan = w_local,
	.prepare_global_plan = w_global,
	.write_data = w_write,
	.finish = w_finish,
	.free = count_free,
};
static const struct ckpt_storage_reader_ops reader_ops = {
	.validate_checkpoint_id = w_id,
	.reset = w_id,
	.read_metadata = r_metadata,
	.set_up = r_set_up,
	.prepare_local_plan = r_local,
	.prepare_global_plan = r_global,
	.read_data = r_read,
	.free = count_free,
};

/* ---- one call by its number ---- */

static struct ckpt_save_planner save_planner;
static struct ckpt_load_planner load_planner;

static const char *const writer_calls[] = {
	"reset", "set_up", "prepare_local_plan", "prepare_global_plan", "write_data", "finish"
};
static const char *const reader_calls[] = {
	"reset", "read_metadata", "set_up", "prepare_local_plan", "prepare_global_plan", "read_data"
};
enum { N_CALLS = 6 };

static int call_writer(struct ckpt_storage_writer *w, int call, size_t rank, struct ckpt_err *e)
{
	struct ckpt_storage_ranks ranks = { rank, 4 };
	struct ckpt_write_results results = { 0 };
	struct ckpt_save_plan plan = { 0 };
	struct ckpt_metadata md = { 0 };

	switch (call) {
	case 0:
		return ckpt_storage_writer_reset(w, "a/b", e);
	case 1:
		return ckpt_storage_writer_set_up(w, &ranks, e);
	case 2:
		return ckpt_storage_writer_prepare_local_plan(w, &plan, &plan, e);
	case 3:
		return ckpt_storage_writer_prepare_global_plan(w, &plan, 4, e);
	case 4:
		return ckpt_storage_writer_write_data(w, &plan, &save_planner, &results, e);
	default:
		return ckpt_storage_writer_finish(w, &md, &results, 4, e);
	}
}

static int call_reader(struct ckpt_storage_reader *r, int call, size_t rank, struct ckpt_err *e)
{
	struct ckpt_storage_ranks ranks = { rank, 4 };
	const struct ckpt_metadata *md = NULL;
	struct ckpt_load_plan plan = { 0 };

	switch (call) {
	case 0:
		return ckpt_storage_reader_reset(r, "a/b", e);
	case 1:
		return ckpt_storage_reader_read_metadata(r, &md, e);
	case 2:
		return ckpt_storage_reader_set_up(r, md, &ranks, e);
	case 3:
		return ckpt_storage_reader_prepare_local_plan(r, &plan, &plan, e);
	case 4:
		return ckpt_storage_reader_prepare_global_plan(r, &plan, 4, e);
	default:
		return ckpt_storage_reader_read_data(r, &plan, &load_planner, e);
	}
}

/* A writer or a reader. */
struct either {
	bool writes;
	struct ckpt_storage_writer w;
	struct ckpt_storage_reader r;
	struct fake f;
	size_t rank;
};

static struct either either_new(bool writes, size_t rank)
{
	struct either x = { .writes = writes, .rank = rank };

	x.w.ops = &writer_ops;
	x.r.ops = &reader_ops;
	return x;
}

static int call(struct either *x, int number, struct ckpt_err *e)
{
	x->w.self = x->r.self = &x->f;
	return x->writes ? call_writer(&x->w, number, x->rank, e)
			 : call_reader(&x->r, number, x->rank, e);
}

/* ---- the orders ---- */

/*
 * Which calls may come after `done`, the last that succeeded (-1: none)? reset is always allowed.
 * The coordinator makes all calls in their order; other ranks leave out the global plan and finish.
 */
static bool may_follow(bool writes, bool is_coordinator, int done, int next)
{
	const int global = writes ? 3 : 4;

	if (next == 0)
		return true;
	if (is_coordinator)
		return next == done + 1;
	if (next == global || (writes && next == N_CALLS - 1))
		return false;
	return next == (done + 1 == global ? global + 1 : done + 1);
}

static const char *state_of(bool writes, int done)
{
	static const char *const texts[] = {
		"reset",
		"set up",
		"after the local plan",
		"after the global plan",
		"after the data has been moved",
		"finished",
	};

	if (done < 0)
		return "made";
	if (writes || done == 0)
		return texts[done];
	return done == 1 ? "after the metadata has been read" : texts[done - 1];
}

static void try_all(bool writes, size_t rank, int done)
{
	const char *const *names = writes ? writer_calls : reader_calls;

	for (int next = 0; next < N_CALLS; next++) {
		struct either x = either_new(writes, rank);
		struct ckpt_err e = { 0 };
		char want[200];
		int before, rc;

		for (int i = 0; i <= done; i++)
			if (rank == 0 || i == 0 || may_follow(writes, false, i - 1, i) ||
			    may_follow(writes, false, i - 2, i))
				ck_assert_msg(!call(&x, i, &e), "%s", e.msg);
		before = x.f.calls;
		rc = call(&x, next, &e);
		if (may_follow(writes, rank == 0, done, next)) {
			ck_assert(!rc && x.f.calls == before + 1);
			continue;
		}
		(void)snprintf(want, sizeof(want), "storage %s: %s out of order: it is %s",
			       writes ? "writer" : "reader", names[next], state_of(writes, done));
		ck_assert_int_eq(rc, -EPERM);
		ck_assert_int_eq(x.f.calls, before);
		ck_assert_str_eq(e.msg, want);
	}
}

START_LOOP_TEST(only_the_next_call_is_let_through, 2)
{
	bool writes = _i & 1;

	for (int done = -1; done < N_CALLS; done++) {
		bool is_others = may_follow(writes, false, done - 1, done) ||
				 may_follow(writes, false, done - 2, done);

		try_all(writes, 0, done);
		if (done < 0 || is_others)
			try_all(writes, 3, done);
	}
}
END_TEST

START_LOOP_TEST(a_call_that_failed_is_not_the_one_before_the_next, 2)
{
	bool writes = _i & 1;

	for (int bad = 0; bad < N_CALLS; bad++) {
		struct either x = either_new(writes, 0);
		struct ckpt_err e = { 0 };

		for (int i = 0; i < bad; i++)
			ck_assert(!call(&x, i, &e));
		x.f.fails = true;
		ck_assert_int_eq(call(&x, bad, &e), -EIO);
		ck_assert_str_eq(e.msg, "told to fail");
		x.f.fails = false;
		for (int i = bad; i < N_CALLS && i < bad + 2; i++)
			if (i) {
				ck_assert_int_eq(call(&x, i, &e), -EPERM);
				ck_assert(strstr(e.msg, "it is after a call that failed"));
			}
		for (int i = 0; i < N_CALLS; i++) /* and from the start */
			ck_assert(!call(&x, i, &e));
	}
}
END_TEST

/* Otherwise a checkpoint could replace another, and have metadata but no data. */
START_LOOP_TEST(plans_and_results_are_those_of_all_ranks, 2)
{
	static const struct ckpt_storage_ranks bad[] = { { 4, 4 }, { 5, 2 }, { 0, 0 } };
	bool writes = _i & 1;
	struct either x = either_new(writes, 0);
	struct ckpt_write_results results = { 0 };
	struct ckpt_save_plan parts = { 0 };
	struct ckpt_load_plan loads = { 0 };
	struct ckpt_metadata md = { 0 };
	struct ckpt_err e = { 0 };
	int n = 0;

	for (; n < (writes ? 1 : 2); n++)
		ck_assert(!call(&x, n, &e));
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		ck_assert_int_eq(writes ? ckpt_storage_writer_set_up(&x.w, &bad[i], &e)
					: ckpt_storage_reader_set_up(&x.r, NULL, &bad[i], &e),
				 -EINVAL);
		ck_assert(strstr(e.msg, "set_up for rank "));
	}
	for (; n < (writes ? 3 : 4); n++)
		ck_assert(!call(&x, n, &e));
	for (size_t few = 0; few < 6; few++) {
		if (few == 4)
			continue;
		ck_assert_int_eq(
			writes ? ckpt_storage_writer_prepare_global_plan(&x.w, &parts, few, &e)
			       : ckpt_storage_reader_prepare_global_plan(&x.r, &loads, few, &e),
			-EINVAL);
		ck_assert(strstr(e.msg, "but it is set up for 4"));
	}
	for (; n < (writes ? 5 : 6); n++)
		ck_assert(!call(&x, n, &e));
	if (!writes)
		return;
	for (size_t few = 0; few < 6; few++)
		if (few != 4)
			ck_assert_int_eq(ckpt_storage_writer_finish(&x.w, &md, &results, few, &e),
					 -EINVAL);
	ck_assert(strstr(e.msg, "finish of 5 ranks, but it is set up for 4"));
	ck_assert(!call(&x, 5, &e));
}
END_TEST

START_TEST(an_id_is_validated_at_any_time)
{
	struct either x = either_new(true, 0), y = either_new(false, 0);
	struct ckpt_err e = { 0 };

	ck_assert(!call(&x, 0, &e) && !call(&y, 0, &e));
	ck_assert(!ckpt_storage_writer_validate_checkpoint_id(&x.w, "a/b", &e));
	ck_assert(!ckpt_storage_reader_validate_checkpoint_id(&y.r, "a/b", &e));
	x.f.fails = y.f.fails = true;
	ck_assert_int_eq(ckpt_storage_writer_validate_checkpoint_id(&x.w, "a/b", &e), -EIO);
	ck_assert_int_eq(ckpt_storage_reader_validate_checkpoint_id(&y.r, "a/b", &e), -EIO);
	x.f.fails = y.f.fails = false;
	ck_assert(!call(&x, 1, &e) && !call(&y, 1, &e));
	ckpt_storage_writer_free(&x.w);
	ckpt_storage_writer_free(&x.w);
	ckpt_storage_reader_free(&y.r);
	ckpt_storage_reader_free(&y.r);
	ck_assert(x.f.freed == 1 && y.f.freed == 1);
}
END_TEST

SUITE(storage)
