/* SPDX-License-Identifier: Apache-2.0 */
/* Globs; text.h describes them. */
#include "base/err.h"
#include "base/text.h"

#include <string.h>

/* Counts the comparison of one byte of a pattern; false if the steps have run out. */
static bool glob_step(uint64_t *steps)
{
	return *steps && --*steps;
}

/* The rest of a pattern: one piece and the text after it. */
struct glob_rest {
	const char *p, *end;
	const struct glob_rest *next;
};

enum { MAX_BRACES = 64 }; /* in sequence or nested */

/* One [...] class at *pp (past the '['); moves *pp past the ']'. False for no match or no ']'. */
static bool glob_class(const char **pp, const char *end, char c, uint64_t *steps)
{
	const char *p = *pp;
	bool invert = p < end && (*p == '!' || *p == '^'), hit = false;

	if (invert)
		p++;
	for (bool first = true; p < end && (*p != ']' || first) && glob_step(steps);
	     first = false) {
		unsigned char lo = (unsigned char)*p++, hi = lo;

		if (end - p > 1 && p[0] == '-' && p[1] != ']') {
			hi = (unsigned char)p[1];
			p += 2;
		}
		hit |= (unsigned char)c >= lo && (unsigned char)c <= hi;
	}
	if (p == end || *p != ']' || !*steps)
		return false;
	*pp = p + 1;
	return hit != invert;
}

/* Where the alternative at p ends: at its ',' or '}'. NULL: it has no end, or the steps have run
 * out. */
static const char *alternative_end(const char *p, const char *end, uint64_t *steps)
{
	size_t depth = 0;

	for (; p < end && glob_step(steps); p++) {
		if (*p == '\\' && end - p > 1)
			p++;
		else if (*p == '{')
			depth++;
		else if (!depth && (*p == ',' || *p == '}'))
			return p;
		else if (*p == '}')
			depth--;
	}
	return NULL;
}

/* The '}' of a brace that contains a comma; NULL: the brace is a literal. */
static const char *braces_end(const char *p, const char *end, uint64_t *steps)
{
	const char *at = alternative_end(p + 1, end, steps);

	if (!at || *at != ',')
		return NULL;
	while (at && *at == ',')
		at = alternative_end(at + 1, end, steps);
	return at;
}

static bool glob_rest(struct glob_rest at, const char *s, const char *end, unsigned braces,
		      uint64_t *steps);

/* Tries each alternative at at->p, followed by what comes after the '}' at close. */
static bool glob_braces(const struct glob_rest *at, const char *close, const char *s,
			const char *end, unsigned braces, uint64_t *steps)
{
	const struct glob_rest behind = { close + 1, at->end, at->next };
	const char *from = at->p, *to;

	if (braces == MAX_BRACES)
		*steps = 0;
	do {
		from++;
		to = alternative_end(from, at->end, steps);
		if (!to)
			return false;
		if (glob_rest((struct glob_rest){ from, to, &behind }, s, end, braces + 1, steps))
			return true;
		from = to;
	} while (*to == ',');
	return false;
}

/* Matches byte c against at->p, which is not a '*' or a brace, and advances past it. */
static bool glob_byte(struct glob_rest *at, char c, uint64_t *steps)
{
	char p = *at->p++;

	if (p == '?')
		return true;
	if (p == '[')
		return glob_class(&at->p, at->end, c, steps);
	if (p == '\\' && at->p < at->end)
		p = *at->p++;
	return p == c;
}

/* Greedy with one backtracking point: linear in practice, at worst the product of both lengths;
 * braces multiply that by the number of ways through them. */
static bool glob_rest(struct glob_rest at, const char *s, const char *end, unsigned braces,
		      uint64_t *steps)
{
	struct glob_rest star = { 0 };
	const char *retry = NULL;

	while (glob_step(steps)) {
		const char *close = NULL;
		bool ok;

		while (at.p == at.end && at.next)
			at = *at.next;
		if (at.p < at.end && *at.p == '*') {
			at.p++;
			star = at;
			retry = s;
			continue;
		}
		if (at.p < at.end && *at.p == '{')
			close = braces_end(at.p, at.end, steps);
		if (close && glob_braces(&at, close, s, end, braces, steps))
			return true;
		if (s == end)
			return !close && at.p == at.end;
		ok = !close && at.p < at.end && glob_byte(&at, *s, steps);
		if (ok) {
			s++;
		} else {
			if (!retry)
				return false;
			at = star;
			s = ++retry;
		}
	}
	return false;
}

bool text_glob_within(const char *p, const char *s, size_t n, uint64_t *steps)
{
	return glob_rest((struct glob_rest){ .p = p, .end = p + strlen(p) }, s, s + n, 0, steps);
}

bool text_glob(const char *p, const char *s, size_t n)
{
	uint64_t steps = UINT64_MAX;

	return text_glob_within(p, s, n, &steps);
}

bool text_glob_any(const char *const *patterns, const char *s, size_t n, uint64_t *steps)
{
	for (const char *const *p = patterns; p && *p; p++)
		if (text_glob_within(*p, s, n, steps))
			return true;
	return !patterns || !*patterns;
}

int text_glob_check(uint64_t steps, const char *what, struct ckpt_err *e)
{
	return steps ? 0
		     : err_set(e, EFBIG,
			       "%s: matching all names with the globs takes more than %llu steps: "
			       "use fewer or simpler globs",
			       what, (unsigned long long)TEXT_GLOB_STEPS);
}
