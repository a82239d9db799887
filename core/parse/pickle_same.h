/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pickle_same - do two pickles hold the same value?
 *
 * Protocols, memos, frames, the encodings of strings and numbers, and the order of a dict's keys
 * are ignored. Types are not: 1, 1.0 and True are three values, a list is not a tuple, and two
 * floats are equal if their bits are. Objects are equal if their classes, arguments, states and
 * items are; instances of different classes cannot be compared, because only the classes know what
 * they mean.
 *
 * Work is bounded: values that are shared a thousand times, and dicts in different orders, may cost
 * more than their size.
 *
 * Threads: pure.
 */
#ifndef PARSE_PICKLE_SAME_H
#define PARSE_PICKLE_SAME_H

#include "parse/pickle.h"

enum pk_verdict { PK_SAME, PK_DIFFERENT, PK_UNKNOWN };

/* For PK_UNKNOWN *ret_why is set to a clause such as "sets are not compared". */
enum pk_verdict pk_compare(const struct pk_value *a, const struct pk_value *b,
			   const char **ret_why);

#endif
