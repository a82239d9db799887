/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rename - the rules of rename=FILE, which give FQNs other names.
 *
 *	# applied in this order, each to what the one before it made
 *	s/^module\.//
 *	s|\.attn/w([qkv])$|.self_attn.\1_proj.weight|
 *	s/_/-/g
 *
 * One sed-like s/REGEX/REPLACEMENT/FLAGS a line; blank lines and lines that begin with # say
 * nothing, nor does what follows a # behind the flags. A line may end in CR LF.
 *
 * REGEX is a POSIX extended regular expression, with the GNU escapes \w \W \s \S \b \B and
 * without back-references; in the C locale it sees bytes, and "." is any byte but NUL. In
 * REPLACEMENT \1 to \9 are groups, & is the whole match, and \ takes the meaning from punctuation.
 * An escape that means something elsewhere (\d, \n, \U) is refused rather than read as that
 * letter. The delimiter is any character of ASCII but a backslash; it stands for itself where it is
 * escaped, and in REGEX between brackets. Flags: g, all matches instead of the first; I, upper and
 * lower case alike.
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
 * Size of a REGEX: atoms and operators, counted as often as "{m,n}" and "+" repeat them. glibc
 * builds an automaton of that size, in up to its cube in time: "(a*)*{255}{255}" would take for
 * ever.
 */
#define RENAME_MAX_REGEX   1024
#define RENAME_MAX_REGEXES (1 << 19) /* of all rules together */
/*
 * What renaming may take, all rules and names together: half a minute or so. A step: a byte of a name,
 * for each way on which an expression may be there; where it matches, more (steps_taken() in
 * rename.c). 500,000 names and ten rules, of which every third matches, take less than half.
 */
#define RENAME_MAX_STEPS ((uint64_t)1 << 33)

/*
 * file: what sentences call the text, copied. Errors are EINVAL with file, line and what is wrong,
 * and ENOMEM.
 */
int rename_parse(const char *text, size_t len, const char *file, struct rename **ret,
		 struct ckpt_err *e);
void rename_free(struct rename *r); /* NULL is fine */

/*
 * Append the new name to *out. EINVAL, with FQN, file and line, when a rule leaves nothing of a
 * name or more than RENAME_MAX_NAME bytes. EFBIG: this and the names before it took more than
 * RENAME_MAX_STEPS. *out is as it was on failure.
 */
int rename_apply(struct rename *r, const char *fqn, size_t len, struct buf *out,
		 struct ckpt_err *e);
/* The same for all names of a list that is not finished yet. */
int rename_list(struct rename *r, struct namelist *t, struct ckpt_err *e);

/* The next rule that has not matched yet, of those behind line `after`; false when there is none.
 */
struct rename_rule {
	const char *text; /* borrowed, like file */
	const char *file;
	unsigned line;
};
bool rename_unmatched(const struct rename *r, unsigned after, struct rename_rule *ret);

#endif
