/* SPDX-License-Identifier: Apache-2.0 */
/*
 * json - JSON text parsed into a table of eight bytes per value.
 *
 * Untrusted text may be "[0,0,0,...": the number of bytes kept per value then decides how much
 * memory a hundred megabytes of it take. So a value is only its position in the text and one more
 * number; strings are decoded in place in the text, and numbers when they are read.
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
 * Accepted: RFC 8259 in UTF-8 without a byte order mark, at most 2048 levels deep. Refused, as the
 * RFC permits: objects with duplicate keys, lone surrogates, NUL characters, integers beyond
 * int64_t and other numbers beyond double; and more than JDOC_MAX_VALUES values.
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
 * Maximum number of values and keys in one document: 192 MiB of table. The largest header that
 * safetensors allows, 100 MB, holds 1.5 million tensors with no dimensions or a million with eight:
 * 22 million values.
 */
#define JDOC_MAX_VALUES ((size_t)24 << 20)

enum {
	JDOC_ANY = 1,	     /* the outermost value may be a scalar */
	JDOC_NULS = 2,	     /* strings (not keys) may hold NUL */
	JDOC_DUPLICATES = 4, /* an object may repeat a key */
	JDOC_BIG = 8,	     /* integers beyond int64_t are reals */
	JDOC_PREFIX = 16,    /* anything may follow the value */
	JDOC_PYTHON = 32,    /* NaN, Infinity and -Infinity, which Python writes, are reals */
	JDOC_PICKLED = 64,   /* what pickle_json writes: lone surrogates, NULs, in keys too, and
				integers of any size, which are J_BIG_INT if int64_t cannot hold them */
};

struct jnode {
	uint32_t at; /* position of its first byte in the text, which tells its type */
	uint32_t n;  /* string: bytes; object, array: index of the node behind it; number: enum */
};

struct jdoc {
	char *text;
	struct jnode *v; /* in the order of the text; a key is a string before its value */
	size_t n, cap;
	size_t at, line; /* where parsing ended: byte offset, and line from 1 */
	char *owned;	 /* NULL, or the text, if jdoc_release is to free it */
	size_t max;	 /* limit on values; 0 means JDOC_MAX_VALUES */
};

/* A value, or "none" (.d is NULL). Looking something up in "none" gives none. */
struct jval {
	const struct jdoc *d;
	uint32_t i;
};

/*
 * Parses len bytes of text, which are modified, as is text[len], so there must be room for it. All
 * values point into the text. *d must be empty or have been used before; on failure it is empty
 * except for at and line. Fails with ERR_CORRUPT, EFBIG (too many values) or ENOMEM.
 */
int jdoc_parse(struct jdoc *d, char *text, size_t len, unsigned flags, struct ckpt_err *e);
/* The same for a text that must not change: parses a copy, which *d owns. */
int jdoc_parse_copy(struct jdoc *d, const char *text, size_t len, unsigned flags,
		    struct ckpt_err *e);
/* Drops everything but this value, which becomes the root; if it is none, drops all. */
void jdoc_keep(struct jdoc *d, struct jval v);
void jdoc_release(struct jdoc *d);

enum jtype {
	J_NONE,
	J_NULL,
	J_FALSE,
	J_TRUE,
	J_INT,
	J_BIG_INT, /* beyond int64_t; only with JDOC_PICKLED */
	J_REAL,
	J_STRING,
	J_ARRAY,
	J_OBJECT
};

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
/* None or null. */
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

/* NULL if it is not a string; NUL-terminated, jval_len does not count the NUL. */
const char *jval_str(struct jval v);
size_t jval_len(struct jval v);
bool jval_is_str(struct jval v, const char *s);
/* False if it is not an integer. */
bool jval_int(struct jval v, int64_t *ret);
/* False if it is not an integer from 0 to 2^64-1 (beyond 2^63-1: only with JDOC_BIG). */
bool jval_u64(struct jval v, uint64_t *ret);
bool jval_number(struct jval v, double *ret);
/* The digits of an integer of any size, after a minus sign if it is negative; NULL for others. */
const char *jval_digits(struct jval v, size_t *ret_len);
/* False if it is not a list of at most max non-negative integers. */
bool jval_u64s(struct jval v, uint64_t *ret, size_t max, size_t *ret_n);

/* Linear searches: for short lists and objects, and few keys. */
struct jval jval_get(struct jval object, const char *key);
struct jval jval_at(struct jval array, size_t i);
/* Members of an object or an array; 0 for anything else. */
size_t jval_size(struct jval v);

/* Iterates over the values of an object or an array, in the order of the text. */
struct jiter {
	const char *key; /* for members of an object */
	size_t key_len;
	struct jval v;
	uint32_t next, end;
	bool keyed;
};
struct jiter jiter(struct jval v);
bool jiter_next(struct jiter *i);
/* The key of a member of an object. */
const char *jval_key(struct jval member, size_t *ret_len);

#endif
