/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unit [SUITE...] - run all unit tests, or the suites named. Exit 0 when all pass, 1 when one
 * fails, 2 when there is nothing to run.
 *
 * Check's own variables work: CK_FORK=no for a debugger, CK_RUN_SUITE, CK_RUN_CASE,
 * CK_VERBOSITY=verbose. TEST_SEED=N repeats the random tests of an earlier run. TEST_DATA names
 * the directory of real checkpoints (default tests/data). Tests find a directory for their files
 * in TMPDIR; it is gone afterwards, whatever the tests left there.
 */
#include "suites.h"

#include <ftw.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SUITE_ROW(name) { #name, name##_suite },
static const struct {
	const char *name;
	Suite *(*make)(void);
} suites[] = { SUITES(SUITE_ROW) };

enum { N_SUITES = sizeof(suites) / sizeof(suites[0]) };

void test_add(TCase *t, const TTest *test, int n, int few)
{
	struct rng r = rng_new();
	int most = rng_most();

	if (rng_long())
		few = most ? (few * most + 1) / 2 : n;
	else if (most && most < 4) /* sanitizers on a slow machine */
		few = (few * most + 3) / 4;
	if (few >= n) {
		tcase_add_loop_test(t, test, 0, n);
		return;
	}
	r.state += (uint64_t)test->line;
	for (int k = 0; k < few; k++) {
		int from = (int)((int64_t)n * k / few), to = (int)((int64_t)n * (k + 1) / few);
		int i = from + (int)rng_below(&r, (uint64_t)(to - from));

		tcase_add_loop_test(t, test, i, i + 1);
	}
}

Suite *suite_make(const char *name, const struct test_row *rows, struct suite_setting how)
{
	Suite *s = suite_create(name);
	TCase *t = tcase_create(name);
	uint64_t n_long = 0;

	/* By name, or the first long tests of all suites would have the same turn. */
	for (const char *c = name; *c; c++)
		n_long = n_long * 31 + (unsigned char)*c;
	if (how.setup || how.teardown)
		tcase_add_checked_fixture(t, how.setup, how.teardown);
	if (how.seconds > 0)
		tcase_set_timeout(t, how.seconds);
	for (; rows; rows = rows->next)
		if (rows->few != TEST_LONG)
			test_add(t, rows->test, rows->times(), rows->few);
		else if (rng_sample(n_long++, LONG_ONE_IN))
			tcase_add_test(t, rows->test);
	suite_add_tcase(s, t);
	return s;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
	(void)st;
	(void)type;
	(void)at;
	return remove(path);
}

static void print_seed(void)
{
	struct timespec t;
	char seed[32];

	(void)clock_gettime(CLOCK_REALTIME, &t);
	(void)snprintf(seed, sizeof(seed), "%llu",
		       (unsigned long long)t.tv_sec * 1000000000u + (unsigned long long)t.tv_nsec);
	(void)setenv("TEST_SEED", seed, 0);
	printf("TEST_SEED=%s\n", getenv("TEST_SEED"));
	(void)fflush(stdout);
}

/* Number of the suite, or -1. */
static int find_suite(const char *name)
{
	for (int i = 0; i < N_SUITES; i++)
		if (!strcmp(suites[i].name, name))
			return i;
	(void)fprintf(stderr, "no suite '%s'; there are:", name);
	for (int i = 0; i < N_SUITES; i++)
		(void)fprintf(stderr, " %s", suites[i].name);
	(void)fprintf(stderr, "\n");
	return -1;
}

enum { PASSED, FAILED, NOTHING_RUN };

static int run_here(int suite)
{
	SRunner *r = srunner_create(suites[suite].make());
	int result;

	srunner_run_all(r, CK_ENV);
	result = !srunner_ntests_run(r) ? NOTHING_RUN : srunner_ntests_failed(r) ? FAILED : PASSED;
	srunner_free(r);
	return result;
}

/* In a process of its own: each test gets a copy of what its suite has in memory, and searches it
 * for leaks at its end. In one process, that would include the memory of all suites before it. */
static int run_apart(int suite)
{
	int status;
	pid_t pid;

	(void)fflush(NULL);
	pid = fork();
	if (!pid)
		exit(run_here(suite));
	if (pid < 0 || waitpid(pid, &status, 0) != pid) {
		perror(suites[suite].name);
		return FAILED;
	}
	return WIFEXITED(status) ? WEXITSTATUS(status) : FAILED;
}

static int run_one(int suite)
{
	const char *fork = getenv("CK_FORK");

	return fork && !strcmp(fork, "no") ? run_here(suite) : run_apart(suite);
}

int main(int argc, char **argv)
{
	const char *tmp = getenv("TMPDIR");
	bool some = false, failed = false;
	char dir[4096];

	for (int i = 1; i < argc; i++)
		if (find_suite(argv[i]) < 0)
			return NOTHING_RUN;
	(void)snprintf(dir, sizeof(dir), "%s/ckptfs-unit-XXXXXX", tmp && *tmp ? tmp : "/tmp");
	if (!mkdtemp(dir) || setenv("TMPDIR", dir, 1)) {
		perror(dir);
		return NOTHING_RUN;
	}
	print_seed();
	for (int i = 0; i < (argc > 1 ? argc - 1 : N_SUITES); i++) {
		int result = run_one(argc > 1 ? find_suite(argv[i + 1]) : i);

		some |= result != NOTHING_RUN;
		failed |= result != PASSED && result != NOTHING_RUN;
	}
	(void)nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
	return !some ? NOTHING_RUN : failed ? FAILED : PASSED;
}
