/* SPDX-License-Identifier: Apache-2.0 */
/*
 * suites - the list of Check suites. A new suite is one line here and a function NAME_suite in
 * tests/core/test_NAME.c.
 */
#ifndef TESTS_SUITES_H
#define TESTS_SUITES_H

#include <check.h>

#define SUITES(X) \
	X(box) \
	X(box_cover) \
	X(buf) \
	X(bytes) \
	X(chunkmap) \
	X(dtype) \
	X(err) \
	X(io) \
	X(text)

#define SUITE_DECLARE(name) Suite *name##_suite(void);
SUITES(SUITE_DECLARE)

#endif
