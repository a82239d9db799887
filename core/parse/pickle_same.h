/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pickle_same - have two pickles the same value?
 *
 * Protocols, memos, frames and the forms of strings and numbers do not matter, nor does the order
 * of a dict's keys. Types do: 1, 1.0 and True are three values, a list is no tuple, and two floats
 * are the same when their bits are. Objects are the same when their class, its arguments, state
 * and items are; what objects of two classes have in common, only the classes know.
 *
 * Work is bounded: values that are shared a thousandfold, and dicts in another order, may cost more
 * than what is compared.
 *
 * Threads: pure.
 */
#ifndef PARSE_PICKLE_SAME_H
#define PARSE_PICKLE_SAME_H

#include "parse/pickle.h"

enum pk_verdict { PK_SAME, PK_DIFFERENT, PK_UNKNOWN };

/* *ret_why is set where it cannot be told: a clause, as "sets are not compared". */
enum pk_verdict pk_compare(const struct pk_value *a, const struct pk_value *b,
			   const char **ret_why);

#endif
