/* SPDX-License-Identifier: Apache-2.0 */
#include "format/zarr/zarr_lost.h"

#include "base/bytes.h"

#include <stdbool.h>
#include <string.h>

/* Bytes before the last part, without the slash; 0: there are none. */
static size_t parent(const char *key, size_t len)
{
	const char *slash = memrchr(key, '/', len);

	return slash ? (size_t)(slash - key) : 0;
}

/* "0", "0.0" */
static bool is_number(const char *s, size_t len)
{
	bool digit = false;

	for (size_t i = 0; i < len; i++) {
		if (s[i] == '.' ? !digit : s[i] < '0' || s[i] > '9')
			return false;
		digit = s[i] != '.';
	}
	return digit;
}

size_t zarr_lost_name(const char *key, size_t len)
{
	size_t n = parent(key, len), up;
	const char *last = key + n + 1;

	if (!n)
		return 0;
	if (bytes_are(last, len - n - 1, "c"))
		return n;
	if (bytes_begin(last, len - n - 1, "c."))
		return is_number(last + 2, len - n - 3) ? n : 0;
	if (!is_number(last, len - n - 1))
		return 0;
	/* Version 3 has "c" between the name and the numbers. */
	for (size_t at = n; (up = parent(key, at)) > 0; at = up) {
		if (bytes_are(key + up + 1, at - up - 1, "c"))
			return up;
		if (!is_number(key + up + 1, at - up - 1))
			break;
	}
	return n;
}
