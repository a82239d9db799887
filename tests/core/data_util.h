/* SPDX-License-Identifier: Apache-2.0 */
/*
 * data_util - the directories of tests/data, or of $TEST_DATA.
 *
 *	START_LOOP_TEST(each_is_read, data_count("expected.json"))
 *	... data_name(_i) ...
 */
#ifndef TESTS_DATA_UTIL_H
#define TESTS_DATA_UTIL_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static struct dirent **data_found;
static int n_data_found;
static const char *data_wanted;

static inline const char *data_dir(void)
{
	const char *s = getenv("TEST_DATA");

	return s && *s ? s : "tests/data";
}

static inline int data_has(const struct dirent *d)
{
	char path[4400];

	(void)snprintf(path, sizeof(path), "%s/%s/%s", data_dir(), d->d_name, data_wanted);
	return d->d_name[0] != '.' && !access(path, R_OK);
}

/* How many directories have something of that name, which must be the same in all calls. */
static inline int data_count(const char *name)
{
	data_wanted = name;
	if (!data_found)
		n_data_found = scandir(data_dir(), &data_found, data_has, alphasort);
	return n_data_found < 0 ? 0 : n_data_found;
}

/* 0 <= i < data_count() */
static inline const char *data_name(int i)
{
	return data_found[i]->d_name;
}

#endif
