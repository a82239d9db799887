/* SPDX-License-Identifier: Apache-2.0 */
/*
 * golden_util - results of other programs' own functions, from JSON files in tests/data.
 */
#ifndef TESTS_GOLDEN_UTIL_H
#define TESTS_GOLDEN_UTIL_H

#include "data_util.h"
#include "suites.h"

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* tests/data/NAME; json_decref it. */
static inline json_t *golden_load(const char *name)
{
	char path[4096];
	json_error_t why;
	json_t *j;

	(void)snprintf(path, sizeof(path), "%s/%s", data_dir(), name);
	j = json_load_file(path, 0, &why);
	ck_assert_msg(j != NULL, "%s: %s", path, why.text);
	return j;
}

/* A list of numbers; returns how many. */
static inline size_t golden_numbers(const json_t *list, uint64_t *ret)
{
	for (size_t i = 0; i < json_array_size(list); i++)
		ret[i] = (uint64_t)json_integer_value(json_array_get(list, i));
	return json_array_size(list);
}

static inline void golden_check_numbers(const json_t *want, const uint64_t *got, size_t n)
{
	ck_assert_uint_eq(json_array_size(want), n);
	for (size_t i = 0; i < n; i++)
		ck_assert_int_eq(json_integer_value(json_array_get(want, i)), (int64_t)got[i]);
}

/* ["ValueError", "text"]: the text, which is cut at 300 characters. */
static inline const char *golden_text(const json_t *errors, const char *name)
{
	const json_t *pair = json_object_get(errors, name);

	ck_assert_msg(json_array_size(pair) == 2, "no error %s", name);
	return json_string_value(json_array_get(pair, 1));
}

#endif
