/* SPDX-License-Identifier: Apache-2.0 */
/*
 * regex_start - where the leftmost match of a POSIX extended regular expression begins.
 *
 * regexec() tries one start after the other and may go through the rest of the string for each: the
 * square of its length, half a minute for a name of 60 KB. This goes through the string once, with
 * all starts side by side, and counts what it does. What regexec() is asked afterwards, from that
 * start on, it answers at its first try.
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

/* Behind the bracket expression that begins at p, or NULL when it has no end. */
const char *regex_bracket_end(const char *p);

/* re: what regcomp(3) accepts with REG_EXTENDED, and with REG_ICASE if icase; in the C locale, without
 * back-references. EFBIG: more than RENAME_MAX_REGEX of rename.h, with what repeats counted as often
 * as it does; ENOMEM. */
int regex_start_new(const char *re, bool icase, struct regex_start **ret, struct ckpt_err *e);
void regex_start_free(struct regex_start *x); /* NULL is fine */

/*
 * The first byte of [from, len] of s at which a match begins, or SIZE_MAX. The string begins at s: what
 * is before `from` counts for ^ and \b. *steps is what it may take, less what it took afterwards: 0 is
 * too much, and the answer means nothing. A byte takes a step for each way on which the expression may
 * be there. Where the
 * expression asks what is at a place (^ $ \b and their like, but for ^ in front and $ at the end) the
 * answer may be one before the match, as glibc sometimes finds what is not there.
 */
size_t regex_start_find(struct regex_start *x, const char *s, size_t from, size_t len,
			uint64_t *steps);

#endif
