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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SUITE_ROW(name) { #name, name##_suite },
static const struct {
	const char *name;
	Suite *(*make)(void);
} suites[] = { SUITES(SUITE_ROW) };

enum { N_SUITES = sizeof(suites) / sizeof(suites[0]) };

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

static SRunner *select_suites(int n_names, char *const *names)
{
	SRunner *r = srunner_create(NULL);

	for (size_t i = 0; i < N_SUITES && !n_names; i++)
		srunner_add_suite(r, suites[i].make());
	for (int n = 0; n < n_names; n++) {
		size_t i = 0;

		while (i < N_SUITES && strcmp(suites[i].name, names[n]))
			i++;
		if (i == N_SUITES) {
			(void)fprintf(stderr, "no suite '%s'; there are:", names[n]);
			for (i = 0; i < N_SUITES; i++)
				(void)fprintf(stderr, " %s", suites[i].name);
			(void)fprintf(stderr, "\n");
			srunner_free(r);
			return NULL;
		}
		srunner_add_suite(r, suites[i].make());
	}
	return r;
}

int main(int argc, char **argv)
{
	const char *tmp = getenv("TMPDIR");
	char dir[4096];
	int run, failed;
	SRunner *r = select_suites(argc - 1, argv + 1);

	if (!r)
		return 2;
	(void)snprintf(dir, sizeof(dir), "%s/ckptfs-unit-XXXXXX", tmp && *tmp ? tmp : "/tmp");
	if (!mkdtemp(dir) || setenv("TMPDIR", dir, 1)) {
		perror(dir);
		srunner_free(r);
		return 2;
	}
	print_seed();
	srunner_run_all(r, CK_ENV);
	run = srunner_ntests_run(r);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	(void)nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
	return !run ? 2 : failed ? 1 : 0;
}
