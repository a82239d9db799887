/* SPDX-License-Identifier: Apache-2.0 */
/* json_same - compares what base/json makes of a text with what jansson makes of it. */
#ifndef TESTS_JSON_SAME_H
#define TESTS_JSON_SAME_H

#include "base/err.h"
#include "base/json.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

/* Not for documents with a key twice. */
static inline bool json_same(struct jval v, const json_t *want)
{
	struct jiter i = jiter(v);
	size_t n = 0, key_len;
	int64_t number;
	double real;

	switch (json_typeof(want)) {
	case JSON_OBJECT:
		for (; jiter_next(&i); n++)
			if (strlen(i.key) != i.key_len || /* keys hold no NUL */
			    jval_key(i.v, &key_len) != i.key || key_len != i.key_len ||
			    !json_same(i.v, json_object_get(want, i.key)))
				return false;
		return jval_is(v, J_OBJECT) && n == json_object_size(want);
	case JSON_ARRAY:
		for (; jiter_next(&i); n++)
			if (n == json_array_size(want) || !json_same(i.v, json_array_get(want, n)))
				return false;
		return jval_is(v, J_ARRAY) && n == json_array_size(want);
	case JSON_STRING:
		return jval_is(v, J_STRING) && jval_len(v) == json_string_length(want) &&
		       !memcmp(jval_str(v), json_string_value(want), jval_len(v) + 1);
	case JSON_INTEGER:
		return jval_int(v, &number) && number == json_integer_value(want) &&
		       jval_number(v, &real) && real == (double)number;
	case JSON_REAL:
		real = NAN;
		return !jval_int(v, &number) && jval_number(v, &real) &&
		       !memcmp(&real, &(double){ json_real_value(want) }, sizeof(real));
	default:
		return jval_type(v) == (json_is_null(want)   ? J_NULL
					: json_is_true(want) ? J_TRUE
							     : J_FALSE);
	}
}

/* Both accept the text, with the same value, or both refuse it; but jansson accepts a NUL at the
 * end of some. flags: JDOC_ANY, _NULS. */
static inline bool json_agrees(const char *text, size_t len, unsigned flags)
{
	size_t theirs = JSON_REJECT_DUPLICATES | (flags & JDOC_ANY ? JSON_DECODE_ANY : 0) |
			(flags & JDOC_NULS ? JSON_ALLOW_NUL : 0);
	json_t *want = json_loadb(text, len, theirs, NULL);
	struct jdoc d = { 0 };
	struct ckpt_err e = { 0 };
	int rc = jdoc_parse_copy(&d, text, len, flags, &e);
	bool same;

	if (want && !rc)
		same = json_same(jdoc_root(&d), want);
	else
		same = (!want || memchr(text, 0, len)) && rc == -ERR_CORRUPT && e.code == -rc &&
		       *e.msg;
	json_decref(want);
	jdoc_release(&d);
	return same;
}

#endif
