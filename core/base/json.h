/* SPDX-License-Identifier: Apache-2.0 */
/*
 * json - JSON text as a table of eight bytes a value.
 *
 * A text from outside may be "[0,0,0,...": what is kept for a value decides how much memory a
 * hundred megabytes of it take. So a value is where it begins in the text and one more number;
 * strings are decoded in the text, in place, and numbers when they are asked for.
 *
 *	struct jdoc d = { 0 };
 *
 *	if (jdoc_parse(&d, text, len, 0, e))
 *		return err_wrap(e, "line %zu", d.line);
 *	struct jiter i = jiter(jval_get(jdoc_root(&d), "weight_map"));
 *	while (jiter_next(&i))
 *		printf("%s: %s\n", i.key, jval_str(i.v));
 *	jdoc_release(&d);                  // text is still the caller's
 *
 * What passes is RFC 8259 in UTF-8 without a byte order mark, 2048 levels deep at most. Refused,
 * as the RFC lets one do: an object that has a key twice, lone surrogates, NUL characters, integers
 * beyond int64_t and other numbers beyond double; and more than JDOC_MAX_VALUES.
 *
 * Threads: a parsed document is immutable.
 */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt_err;

/*
 * Values and keys in one document, 192 MiB of them. The largest header that safetensors allows,
 * 100 MB, holds 1.5 million tensors of no dimension or a million of eight: 22 million values.
 */
#define JDOC_MAX_VALUES ((size_t)24 << 20)

enum {
	JDOC_ANY = 1,	     /* the outermost value need be neither object nor array */
	JDOC_NULS = 2,	     /* strings (not keys) may hold NUL */
	JDOC_DUPLICATES = 4, /* an object may have a key twice */
	JDOC_BIG = 8,	     /* integers beyond int64_t are reals */
	JDOC_PREFIX = 16,    /* anything may follow the value */
};

struct jnode {
	uint32_t at; /* where in the text its first byte is, which says what it is */
	uint32_t n;  /* string: bytes; object, array: number of the node behind it; number: enum */
};

struct jdoc {
	char *text;
	struct jnode *v; /* in the order of the text; a key is a string before its value */
	size_t n, cap;
	size_t at, line; /* where parsing ended: byte, line from 1 */
	char *owned;	 /* NULL, or what jdoc_release frees as well: the text */
	size_t max;	 /* values; 0 stands for JDOC_MAX_VALUES */
};

/* A value, or none: .d is NULL. What is asked of no value finds no value. */
struct jval {
	const struct jdoc *d;
	uint32_t i;
};

/*
 * len bytes of text, which are changed, as is text[len]: there must be room for it. All values
 * point into it. *d is empty, or has been used before; where this fails, it is empty but for at and
 * line. Fails with ERR_CORRUPT, EFBIG (too many values) and ENOMEM.
 */
int jdoc_parse(struct jdoc *d, char *text, size_t len, unsigned flags, struct ckpt_err *e);
/* The same for a text that must stay as it is: of a copy, which *d owns. */
int jdoc_parse_copy(struct jdoc *d, const char *text, size_t len, unsigned flags,
		    struct ckpt_err *e);
/* Forget all but this value, which is the root from now on; or all of it where it is no value. */
void jdoc_keep(struct jdoc *d, struct jval v);
void jdoc_release(struct jdoc *d);

enum jtype { J_NONE, J_NULL, J_FALSE, J_TRUE, J_INT, J_REAL, J_STRING, J_ARRAY, J_OBJECT };

struct jval jdoc_root(const struct jdoc *d);
enum jtype jval_type(struct jval v);
static inline bool jval_is(struct jval v, enum jtype t)
{
	return jval_type(v) == t;
}
static inline bool jval_is_bool(struct jval v)
{
	return jval_is(v, J_TRUE) || jval_is(v, J_FALSE);
}
/* None, or null. */
static inline bool jval_is_null(struct jval v)
{
	return jval_type(v) <= J_NULL;
}
/* The value itself, but none for null. */
static inline struct jval jval_given(struct jval v)
{
	if (jval_is_null(v))
		v = (struct jval){ 0 };
	return v;
}

/* NULL when it is no string; with a NUL at its end, that jval_len does not count. */
const char *jval_str(struct jval v);
size_t jval_len(struct jval v);
bool jval_is_str(struct jval v, const char *s);
/* False when it is not an integer; or no number. */
bool jval_int(struct jval v, int64_t *ret);
bool jval_number(struct jval v, double *ret);
/* False when it is not a list of at most max integers, none below 0. */
bool jval_u64s(struct jval v, uint64_t *ret, size_t max, size_t *ret_n);

/* These look at what lies before, so they are for short lists and objects. */
struct jval jval_get(struct jval object, const char *key);
struct jval jval_at(struct jval array, size_t i);
/* Of an object or an array; 0 for anything else. */
size_t jval_size(struct jval v);

/* The values of an object or an array, in the order of the text. */
struct jiter {
	const char *key; /* of an object's */
	size_t key_len;
	struct jval v;
	uint32_t next, end;
	bool keyed;
};
struct jiter jiter(struct jval v);
bool jiter_next(struct jiter *i);

#endif
