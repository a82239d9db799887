/* SPDX-License-Identifier: Apache-2.0 */
/*
 * json_numbers - a JSON list of sizes or offsets.
 *
 * Threads: pure.
 */
#ifndef PARSE_JSON_NUMBERS_H
#define PARSE_JSON_NUMBERS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* False when it is not a list of at most `max` integers, none below 0. */
static inline bool json_numbers(const json_t *array, uint64_t *ret, size_t max, size_t *ret_n)
{
	size_t n = json_array_size(array);

	if (!json_is_array(array) || n > max)
		return false;
	for (size_t i = 0; i < n; i++) {
		const json_t *v = json_array_get(array, i);

		if (!json_is_integer(v) || json_integer_value(v) < 0)
			return false;
		ret[i] = (uint64_t)json_integer_value(v);
	}
	*ret_n = n;
	return true;
}

#endif
