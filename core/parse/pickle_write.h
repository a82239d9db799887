/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pickle_write - pickles, opcode by opcode, of protocol 2 or 4.
 *
 *	struct pickle_writer w;
 *	pw_begin(&w, &out, 4, true);
 *	pw_op(&w, OP_EMPTY_DICT);
 *	pw_op(&w, OP_MARK);
 *	pw_str(&w, "a", 1);
 *	pw_int(&w, 7);
 *	pw_op(&w, OP_SETITEMS);
 *	rc = pw_end(&w);                // {"a": 7}
 *
 * The caller is responsible for a valid sequence: nothing checks that opcodes find on the stack
 * what they need. pw_op writes opcodes without operands; those that carry values or depend on the
 * protocol have functions of their own.
 *
 * With a memo, pw_memo numbers a value that CPython's pickler would number and pw_get repeats it;
 * strings and globals are memoized automatically, by content. Without one everything is written
 * out, and pw_memo does nothing.
 *
 * The output goes to a struct buf, whose ceiling applies; pw_end returns its error. Sources:
 * CPython Lib/pickletools.py, Modules/_pickle.c.
 * Threads: one at a time.
 */
#ifndef PARSE_PICKLE_WRITE_H
#define PARSE_PICKLE_WRITE_H

#include "parse/pickle_ops.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;

enum { PW_MAX_GLOBALS = 64 }; /* remembered; further ones are written out each time */

struct pickle_writer {
	struct buf *out;
	bool memoize;
	uint8_t protocol;
	uint32_t n_memo; /* numbers given so far */
	struct {
		const char *module, *name;
		uint32_t memo;
	} globals[PW_MAX_GLOBALS];
	uint32_t n_globals;
	struct pw_string *strings; /* a hash table of n_strings in cap places */
	size_t n_strings, cap;
};

/* protocol: 2 or 4. */
void pw_begin(struct pickle_writer *w, struct buf *out, unsigned protocol, bool memoize);
/* Writes STOP. 0, -ENOMEM or -EFBIG; releases w in any case. */
int pw_end(struct pickle_writer *w);

void pw_op(struct pickle_writer *w, enum pk_op op);
void pw_bool(struct pickle_writer *w, bool v);
void pw_int(struct pickle_writer *w, int64_t v); /* the shortest form, like pw_uint */
void pw_uint(struct pickle_writer *w, uint64_t v);
/* Digits after an optional minus sign. False: it is no number, or needs more than 255 bytes. */
bool pw_digits(struct pickle_writer *w, const char *digits, size_t n);
/* UTF-8; lone surrogates are allowed. */
void pw_str(struct pickle_writer *w, const char *s, size_t n);
/* module.name; both must stay valid until pw_end, and neither may contain a newline. */
void pw_global(struct pickle_writer *w, const char *module, const char *name);

/*
 * A tuple of n elements, which are written between the two calls; and a tuple of n numbers. The
 * shortest form: up to three elements need no mark.
 */
void pw_tuple_begin(struct pickle_writer *w, size_t n);
void pw_tuple_end(struct pickle_writer *w, size_t n);
void pw_tuple_of(struct pickle_writer *w, const uint64_t *v, size_t n);

/*
 * n things that go into a list or dict, in batches of at most 1000: call pw_batch before each, with
 * its number i, and pw_batches_end after the last. more: OP_APPENDS or OP_SETITEMS.
 */
void pw_batch(struct pickle_writer *w, enum pk_op more, size_t i);
void pw_batches_end(struct pickle_writer *w, enum pk_op more, size_t n);

/* Numbers the value on top of the stack; returns the number. */
uint32_t pw_memo(struct pickle_writer *w);
/* Writes the value with this number again. */
void pw_get(struct pickle_writer *w, uint32_t memo);

#endif
