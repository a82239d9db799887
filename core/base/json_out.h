/* SPDX-License-Identifier: Apache-2.0 */
/*
 * json_out - JSON for people and programs: commas, keys, brackets and indentation.
 *
 *	struct json_out j = { .to = &b };
 *
 *	json_open(&j, NULL, '{');                  // {
 *	json_u64(&j, "tensors", 12);               //   "tensors": 12,
 *	json_open(&j, "faults", '[');              //   "faults": [
 *	json_open_line(&j, NULL, '{');             //     {"tensor": "a.weight"}
 *	json_str(&j, "tensor", "a.weight");
 *	json_close(&j);
 *	json_close(&j);                            //   ]
 *	json_close(&j);                            // }
 *
 * Errors are recorded in the buffer, which may be emptied between calls.
 *
 * Threads: one at a time.
 */
#ifndef BASE_JSON_OUT_H
#define BASE_JSON_OUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;

enum { JSON_OUT_DEPTH = 8 };

struct json_out {
	struct buf *to;
	unsigned depth;
	unsigned line; /* from this depth on everything is on one line; 0: nothing is */
	bool some;     /* the current object or array already has a member */
	char close[JSON_OUT_DEPTH];
};

/* In all of these, `key` names the value in an object; it is NULL in an array and for the root. */

/* Begins an object '{' or an array '[' with each member on a line of its own. */
void json_open(struct json_out *j, const char *key, char bracket);
/* The same, all on one line. */
void json_open_line(struct json_out *j, const char *key, char bracket);
/* Ends the object or array begun last. */
void json_close(struct json_out *j);

/* NULL is written as null. */
void json_str(struct json_out *j, const char *key, const char *s);
void json_str_n(struct json_out *j, const char *key, const char *s, size_t n);
void json_u64(struct json_out *j, const char *key, uint64_t v);
void json_u64s(struct json_out *j, const char *key, const uint64_t *v, size_t n);
void json_bool(struct json_out *j, const char *key, bool v);
/* null if it is not known, or infinite or NaN, which JSON does not have. */
void json_real(struct json_out *j, const char *key, bool known, double v);
/* A value written as is: a number with a fraction, null. */
void json_raw(struct json_out *j, const char *key, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* The same of n bytes, which are JSON. */
void json_raw_n(struct json_out *j, const char *key, const char *text, size_t n);

#endif
