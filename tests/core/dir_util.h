/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dir_util - a new directory for each test, gone after the run.
 *
 *	SUITE(dcp, .setup = dir_setup, .teardown = dir_teardown)
 */
#ifndef TESTS_DIR_UTIL_H
#define TESTS_DIR_UTIL_H

#include "blob_util.h"

#include <unistd.h>

static char dir[4096];
static int dir_fd = -1;

static inline void dir_setup(void)
{
	dir_fd = new_dir(dir);
}

static inline void dir_teardown(void)
{
	(void)close(dir_fd);
}

#endif
