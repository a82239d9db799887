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
 * What is put together is the caller's affair: nothing checks that opcodes find on the stack what
 * they need. Opcodes without operands are written by pw_op; those that carry values, and those
 * that depend on the protocol, have functions.
 *
 * With a memo, what CPython's pickler would number can be numbered with pw_memo and repeated with
 * pw_get; strings and globals are so by themselves, by content. Without one everything is written
 * out, and pw_memo does nothing.
 *
 * The output is that of a struct buf: its ceiling holds, and its error comes out of pw_end.
 * Sources: CPython Lib/pickletools.py, Modules/_pickle.c. Threads: one at a time.
 */
#ifndef PARSE_PICKLE_WRITE_H
#define PARSE_PICKLE_WRITE_H

#include "parse/pickle_ops.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;

enum { PW_MAX_GLOBALS = 64 }; /* that are remembered; more are written out each time */

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
/* STOP. 0, -ENOMEM or -EFBIG; w is gone either way. */
int pw_end(struct pickle_writer *w);

void pw_op(struct pickle_writer *w, enum pk_op op);
void pw_bool(struct pickle_writer *w, bool v);
void pw_int(struct pickle_writer *w, int64_t v); /* the shortest form, as of pw_uint */
void pw_uint(struct pickle_writer *w, uint64_t v);
/* UTF-8, in which surrogates may stand alone. */
void pw_str(struct pickle_writer *w, const char *s, size_t n);
/* module.name; both must stay until pw_end, and neither may have a newline in it. */
void pw_global(struct pickle_writer *w, const char *module, const char *name);

/*
 * A tuple of n elements, which stand between the two, and of n numbers. The shortest form: of up
 * to three there is no mark.
 */
void pw_tuple_begin(struct pickle_writer *w, size_t n);
void pw_tuple_end(struct pickle_writer *w, size_t n);
void pw_tuple_of(struct pickle_writer *w, const uint64_t *v, size_t n);

/*
 * n things that go into a list or dict, in batches of at most 1000: pw_batch before each, with its
 * number i, and pw_batches_end behind all. more: OP_APPENDS or OP_SETITEMS.
 */
void pw_batch(struct pickle_writer *w, enum pk_op more, size_t i);
void pw_batches_end(struct pickle_writer *w, enum pk_op more, size_t n);

/* Number what is on top of the stack; the number. */
uint32_t pw_memo(struct pickle_writer *w);
/* Once more what has this number. */
void pw_get(struct pickle_writer *w, uint32_t memo);

#endif
