/* SPDX-License-Identifier: Apache-2.0 */
/*
 * regex_start - finds where the leftmost match of a POSIX extended regular expression begins.
 *
 * regexec() tries one start after another and may scan the rest of the string for each: quadratic
 * time, half a minute for a name of 60 KB. This scans the string once, with all starts in parallel,
 * and counts its steps. regexec(), called afterwards at that start, succeeds at its first try.
 *
 *	rc = regex_start_new("(.*)z", false, &x, &e);
 *	at = regex_start_find(x, s, 0, len, &steps);    // SIZE_MAX: there is no match
 *	regex_start_free(x);
 *
 * Private to core/tensor. Threads: one at a time.
 */
#ifndef TENSOR_REGEX_START_H
#define TENSOR_REGEX_START_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt_err;
struct regex_start;

/* The end of the bracket expression that begins at p, or NULL if it has none. */
const char *regex_bracket_end(const char *p);

/*
 * re: an expression that regcomp(3) accepts with REG_EXTENDED, and with REG_ICASE if icase; in the
 * C locale, without back-references. EFBIG: larger than RENAME_MAX_REGEX of rename.h, counting
 * repeated parts as often as they repeat; ENOMEM.
 */
int regex_start_new(const char *re, bool icase, struct regex_start **ret, struct ckpt_err *e);
void regex_start_free(struct regex_start *x); /* NULL is fine */

/*
 * The first byte of [from, len] of s at which a match begins, or SIZE_MAX. The string begins at s:
 * bytes before `from` matter for ^ and \b. *steps is the budget, reduced by the steps taken; 0
 * afterwards means that it ran out and the result is undefined. Each byte takes one step per active
 * state. If the expression tests positions (^ $ \b and the like, except ^ at the start and $ at the
 * end), the result may be before the actual match, because glibc does not always honour such tests.
 */
size_t regex_start_find(struct regex_start *x, const char *s, size_t from, size_t len,
			uint64_t *steps);

#endif
