/* SPDX-License-Identifier: Apache-2.0 */
/*
 * msgpack - MessagePack with the extensions of flax.serialization and Orbax for arrays: the shape
 * of a file's contents, without the bytes of arrays, which may be gigabytes.
 *
 *	struct arena a = ARENA_INIT(MSGPACK_MAX_MEMORY);
 *	struct msgpack *root;
 *
 *	rc = msgpack_read(&blob, &a, &root, e);
 *	for (struct msgpack *v = root->first; v; v = v->next)
 *		printf("%s: %d\n", v->key, v->kind);
 *	arena_release(&a);
 *
 * Sources: https://github.com/msgpack/msgpack/blob/master/spec.md; flax/serialization.py and
 * orbax/checkpoint/msgpack_utils.py: extension 1 is an array, 3 a NumPy scalar, 2 a complex number
 * and 4 a tuple.
 *
 * Everything is read once, from the beginning to the end; memory is bounded by the arena's ceiling
 * (EFBIG).
 *
 * Threads: pure apart from the blob.
 */
#ifndef PARSE_MSGPACK_H
#define PARSE_MSGPACK_H

#include "base/blob.h"
#include "model/box.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct arena;

enum {
	MSGPACK_MAX_MEMORY = 256 << 20, /* bytes, for the arena */
	MSGPACK_MAX_TEXT = 65535,	/* bytes of a string that is kept */
	MSGPACK_MAX_DEPTH = 200,
};

enum msgpack_kind {
	MSGPACK_NIL,
	MSGPACK_BOOL,	 /* .integer */
	MSGPACK_INT,	 /* .integer */
	MSGPACK_UINT,	 /* .integer as uint64_t: beyond INT64_MAX */
	MSGPACK_REAL,	 /* .real */
	MSGPACK_COMPLEX, /* .real and .imag */
	MSGPACK_TEXT,	 /* .text, .len; any bytes */
	MSGPACK_BYTES,	 /* .at, .len; also of a longer text */
	MSGPACK_LIST,	 /* .first */
	MSGPACK_MAP,	 /* .first, each with a key */
	MSGPACK_ARRAY,	 /* .array */
	MSGPACK_OTHER,	 /* another extension */
};

/* Elements in C order, little-endian, in the blob. */
struct msgpack_array {
	const char *dtype; /* NumPy's name, or "bfloat16" */
	uint64_t at, len;  /* bytes */
	size_t n_dims;
	uint64_t shape[];
};

struct msgpack {
	enum msgpack_kind kind;
	uint32_t key_len; /* the key in a map; the decimal digits of a number */
	const char *key;  /* and a NUL */
	struct msgpack *next;
	union {
		int64_t integer;
		struct {
			double real, imag;
		};
		struct {
			const char *text; /* and a NUL */
			uint64_t at, len;
		};
		struct {
			struct msgpack *first;
			size_t n;
		};
		const struct msgpack_array *array;
	};
};

/* The blob's size must be known; there is one value in it. */
int msgpack_read(const struct blob *b, struct arena *a, struct msgpack **ret, struct ckpt_err *e);

/* Does it begin like a map of texts, as these files do? */
bool msgpack_begins(const void *p, size_t n);

/* The first value with that key; NULL: it is not a map, or has none. */
const struct msgpack *msgpack_get(const struct msgpack *v, const char *key);
bool msgpack_is_text(const struct msgpack *v, const char *text); /* NULL is none */

#endif
