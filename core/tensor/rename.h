/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rename - the rules of rename=FILE, which rename FQNs.
 *
 *	# applied in this order, each to the result of the previous one
 *	s/^module\.//
 *	s|\.attn/w([qkv])$|.self_attn.\1_proj.weight|
 *	s/_/-/g
 *
 * One sed-like s/REGEX/REPLACEMENT/FLAGS per line. Blank lines, lines that begin with #, and text
 * after a # following the flags are ignored. Lines may end in CR LF.
 *
 * REGEX is a POSIX extended regular expression, with the GNU escapes \w \W \s \S \b \B and without
 * back-references; in the C locale it sees bytes, and "." is any byte but NUL. In REPLACEMENT \1 to
 * \9 are groups, & is the whole match, and \ escapes punctuation. An escape that has a meaning
 * elsewhere (\d, \n, \U) is rejected rather than read as that letter. The delimiter is any ASCII
 * character except a backslash; escaped, or between brackets in REGEX, it stands for itself. Flags:
 * g, all matches instead of the first; I, ignore case.
 *
 * Threads: one at a time.
 */
#ifndef TENSOR_RENAME_H
#define TENSOR_RENAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;
struct ckpt_err;
struct namelist;
struct rename;

#define RENAME_MAX_NAME 65536 /* bytes of a name before, between and after the rules */
#define RENAME_MAX_RULE 4096  /* bytes of a line */
/*
 * Limit on a REGEX: atoms and operators, counted as often as "{m,n}" and "+" repeat them. glibc
 * builds an automaton of that size, in up to cubic time: "(a*)*{255}{255}" would take forever.
 */
#define RENAME_MAX_REGEX   1024
#define RENAME_MAX_REGEXES (1 << 19) /* of all rules together */
/*
 * Limits on a REGEX that has loops over what may be empty, "(a*)*"; on tests of positions (^ $ \b
 * ...); and on the sum of both, if there are both. They are counted in the same way. Each doubles
 * the time that glibc 2.36 takes: "$(.?)*{20}" would take 5 seconds, "((|||){15}){2,}" minutes, and
 * what is allowed a tenth of a second.
 */
#define RENAME_MAX_LOOPING	   64
#define RENAME_MAX_TESTS	   12
#define RENAME_MAX_TESTS_AND_LOOPS 6
/*
 * Limit on the work of renaming, for all rules and names together: about half a minute. A step: one
 * byte of a name for each active state of an expression; more where it matches (steps_taken() in
 * rename.c). 500,000 names and ten rules, a third of which match, take less than half.
 */
#define RENAME_MAX_STEPS ((uint64_t)1 << 33)

/*
 * file: the name of the text in messages; copied. Errors are EINVAL with file, line and what is
 * wrong, and ENOMEM.
 */
int rename_parse(const char *text, size_t len, const char *file, struct rename **ret,
		 struct ckpt_err *e);
void rename_free(struct rename *r); /* NULL is fine */

/*
 * Appends the new name to *out. EINVAL, with FQN, file and line, if a rule leaves an empty name or
 * one of more than RENAME_MAX_NAME bytes. EFBIG: this and previous names took more than
 * RENAME_MAX_STEPS. On failure *out is unchanged.
 */
int rename_apply(struct rename *r, const char *fqn, size_t len, struct buf *out,
		 struct ckpt_err *e);
/* The same for all names of a list that is not finished yet. */
int rename_list(struct rename *r, struct namelist *t, struct ckpt_err *e);

/* The next rule after line `after` that has not matched yet; false if there is none. */
struct rename_rule {
	const char *text; /* borrowed, like file */
	const char *file;
	unsigned line;
};
bool rename_unmatched(const struct rename *r, unsigned after, struct rename_rule *ret);

#endif
