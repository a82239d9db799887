/* SPDX-License-Identifier: Apache-2.0 */
#include "base/cleanup.h"
#include "suites.h"

#include <errno.h>
#include <signal.h>

static pthread_mutex_t a = PTHREAD_MUTEX_INITIALIZER, b = PTHREAD_MUTEX_INITIALIZER,
		       outer = PTHREAD_MUTEX_INITIALIZER;

static void with_lock(pthread_mutex_t *m)
{
	SCOPED_LOCK(m);

	ck_assert_int_eq(pthread_mutex_trylock(m), EBUSY);
}

static void with_outer_lock(pthread_mutex_t *m, pthread_mutex_t *inner)
{
	SCOPED_OUTER_LOCK(m);

	ck_assert_int_eq(pthread_mutex_trylock(m), EBUSY);
	with_lock(inner);
}

START_TEST(a_lock_ends_with_its_scope)
{
	for (int i = 0; i < 2; i++) {
		with_lock(&a);
		with_outer_lock(&outer, &b);
	}
	ck_assert_int_eq(pthread_mutex_trylock(&a), 0);
	ck_assert_int_eq(pthread_mutex_trylock(&b), 0);
	ck_assert_int_eq(pthread_mutex_trylock(&outer), 0);
}
END_TEST

/* Another thread that has the lock is not waited for forever. */
static void *in_vain(void *arg)
{
	SCOPED_OUTER_LOCK_WITHIN(arg, 1);

	return outer_lock;
}

START_TEST(a_lock_is_waited_for_within_a_time)
{
	pthread_t thread;
	void *got = &outer;

	for (int i = 0; i < 2; i++) {
		SCOPED_OUTER_LOCK_WITHIN(&outer, 1);
		ck_assert_ptr_eq(outer_lock, &outer);
		ck_assert_int_eq(pthread_create(&thread, NULL, in_vain, &outer), 0);
		ck_assert_int_eq(pthread_join(thread, &got), 0);
		ck_assert_ptr_null(got);
	}
	ck_assert_ptr_eq(in_vain(&outer), &outer);
	ck_assert_int_eq(pthread_mutex_trylock(&outer), 0);
}
END_TEST

#ifdef CHECK_LOCKS
/* Mistakes that only builds with sanitizers find. */
static void inner_twice(void)
{
	SCOPED_LOCK(&a);

	with_lock(&b);
}

static void outer_under_inner(void)
{
	SCOPED_LOCK(&a);

	with_outer_lock(&outer, &b);
}

static void outer_twice(void)
{
	SCOPED_OUTER_LOCK(&outer);

	with_outer_lock(&a, &b);
}

static void give_what_is_not_held(void)
{
	lock_give(&a);
}

static void (*const mistakes[])(void) = { inner_twice, outer_under_inner, outer_twice,
					  give_what_is_not_held };

START_TEST(a_second_lock_is_the_end)
{
	mistakes[_i]();
}
END_TEST
#endif

Suite *cleanup_suite(void)
{
	Suite *s = suite_create("cleanup");
	TCase *t = tcase_create("cleanup");

	tcase_add_test(t, a_lock_ends_with_its_scope);
	tcase_add_test(t, a_lock_is_waited_for_within_a_time);
#ifdef CHECK_LOCKS
	tcase_add_loop_test_raise_signal(t, a_second_lock_is_the_end, SIGABRT, 0,
					 sizeof(mistakes) / sizeof(mistakes[0]));
#endif
	suite_add_tcase(s, t);
	return s;
}
