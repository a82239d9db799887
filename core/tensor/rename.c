/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/rename.h"

#include "base/buf.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/err.h"
#include "base/text.h"
#include "base/vec.h"
#include "tensor/namelist.h"
#include "tensor/regex_start.h"

#include <regex.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
	GROUPS = 10,	/* the whole match and \1 to \9 */
	MAX_DEPTH = 32, /* of nested groups */
	SHOWN = 96,	/* bytes of a name in a message */
	/* Bytes after which expressions are recompiled: for each byte, glibc may keep a state of
	 * its automaton, a few kilobytes. */
	MAX_SCANNED = 1 << 16,
	TOO_MUCH = -1, /* in addition to regexec's results: out of steps */
};

struct rule {
	regex_t re;
	struct regex_start *start;
	char *expr, *text;
	uint64_t size; /* of the expression: steps that a byte of a name may take */
	int cflags;
	/* A backslash is followed by the digit of a group (0: the whole match) or by a
	 * backslash. */
	char *to;
	size_t to_len;
	size_t n_groups; /* needed by .to, including the whole match */
	unsigned line;
	bool global, matched, used; /* used: since it was compiled */
};

struct rename {
	char *file;
	struct rule *rules;
	size_t n, cap;
	uint64_t size;	    /* of all expressions */
	uint64_t steps;	    /* left, of RENAME_MAX_STEPS */
	uint64_t scanned;   /* since the expressions were compiled */
	struct buf work[2]; /* input and output of a rule */
};

/* ---- the size of an expression ---- */

static uint64_t read_count(const char **p)
{
	uint64_t n = 0;

	for (; **p >= '0' && **p <= '9'; ++*p)
		n = min_u64(n * 10 + (uint64_t)(**p - '0'), UINT16_MAX);
	return n;
}

/* How often glibc repeats what precedes the "+" or "{m,n}" at p; 0 if p is neither. */
static uint64_t read_repeat(const char *p, const char **ret_end)
{
	uint64_t n;

	if (*p == '+') {
		*ret_end = p + 1;
		return 2;
	}
	if (*p++ != '{')
		return 0;
	n = read_count(&p);
	if (*p == ',') {
		p++;
		n = *p == '}' ? n + 1 : read_count(&p);
	}
	if (*p != '}')
		return 0;
	*ret_end = p + 1;
	return max_u64(n, 1);
}

/* The cost of an expression or a part of it; what is repeated counts each time. */
struct cost {
	uint64_t size;
	uint64_t tests; /* of positions: ^ $ \b */
	uint64_t loops; /* over what may be empty */
};

/* An expression as far as it has been read. */
struct reading {
	struct cost all, atom; /* atom: the last part, which what follows may repeat */
	bool atom_is_empty;    /* may it match nothing? Likewise below. */
	bool alternative_is;   /* what is before it, up to the | or ( */
	bool others_are;       /* one of the alternatives before it */
};

static void repeat(struct reading *r, uint64_t times, bool loops)
{
	const struct cost before = r->atom;

	r->atom.size = (before.size + 1) * times;
	r->atom.tests *= times;
	r->atom.loops = (before.loops + (loops && r->atom_is_empty)) * times;
	r->all.size += r->atom.size - before.size;
	r->all.tests += r->atom.tests - before.tests;
	r->all.loops += r->atom.loops - before.loops;
}

static void begin_atom(struct reading *r, struct cost cost, bool is_empty)
{
	r->alternative_is = r->alternative_is && r->atom_is_empty;
	r->atom = cost;
	r->atom_is_empty = is_empty;
	r->all.size += cost.size;
	r->all.tests += cost.tests;
}

static void begin_alternative(struct reading *r)
{
	r->others_are |= r->alternative_is && r->atom_is_empty;
	r->alternative_is = r->atom_is_empty = true;
}

/* outer: what it was before the group. */
static void end_group(struct reading *r, const struct reading *outer)
{
	begin_alternative(r);
	r->atom_is_empty = r->others_are;
	r->alternative_is = outer->alternative_is && outer->atom_is_empty;
	r->others_are = outer->others_are;
	r->atom.size = r->all.size - outer->all.size;
	r->atom.tests = r->all.tests - outer->all.tests;
	r->atom.loops = r->all.loops - outer->all.loops;
}

static bool is_test(const char *p)
{
	return *p == '^' || *p == '$' || (*p == '\\' && p[1] && strchr("bB<>`'", p[1]));
}

static bool is_too_large(const struct cost *c)
{
	return c->size > (c->loops ? RENAME_MAX_LOOPING : RENAME_MAX_REGEX) ||
	       c->tests > RENAME_MAX_TESTS ||
	       (c->loops && c->tests && c->tests + c->loops > RENAME_MAX_TESTS_AND_LOOPS);
}

static int check_size(const char *p, uint64_t *ret, struct ckpt_err *e)
{
	struct reading r = { .alternative_is = true, .atom_is_empty = true }, outer[MAX_DEPTH];
	size_t depth = 0;

	while (*p) {
		const char *end = *p == '[' ? regex_bracket_end(p) : NULL;
		uint64_t times = read_repeat(p, &end);

		if (!end)
			end = p + (*p == '\\' && p[1] ? 2 : 1);
		if (times) {
			repeat(&r, times, *p == '+' || memchr(p, ',', (size_t)(end - p)));
			r.atom_is_empty |= *p == '{' && (p[1] == '0' || p[1] == ',');
		} else if (*p == '*' || *p == '?') {
			repeat(&r, 1, *p == '*');
			r.atom_is_empty = true;
		} else if (*p == '(') {
			if (depth == MAX_DEPTH)
				return err_set(e, EINVAL, "more than %d nested groups", MAX_DEPTH);
			outer[depth++] = r;
			r.all.size++;
			r.alternative_is = r.atom_is_empty = true;
			r.others_are = false;
		} else if (*p == '|') {
			r.all.size++;
			begin_alternative(&r);
		} else if (*p == ')' && depth) {
			end_group(&r, &outer[--depth]);
		} else {
			begin_atom(&r, (struct cost){ .size = 1, .tests = is_test(p) }, is_test(p));
		}
		p = end;
		if (is_too_large(&r.all))
			return err_set(e, EINVAL, "the expression is too large");
	}
	*ret = r.all.size;
	return 0;
}

/* ---- a line ---- */

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static bool is_alnum(char c)
{
	return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static void add_char(struct buf *b, char c)
{
	buf_add(b, &c, 1);
}

/* Copies [p, end) without the backslashes before delimiters. Returns end. */
static const char *read_bracket(const char *p, const char *end, char delim, struct buf *re)
{
	for (; p < end; p++)
		if (p[0] != '\\' || p[1] != delim || p + 2 == end)
			add_char(re, *p);
	return end;
}

/* Reads up to the delimiter and sets *pp after it. */
static int read_regex(const char **pp, char delim, struct buf *re, struct ckpt_err *e)
{
	const char *p = *pp, *end;

	while (*p && *p != delim) {
		if (*p == '[' && (end = regex_bracket_end(p))) {
			p = read_bracket(p, end, delim, re);
		} else if (*p != '\\') {
			add_char(re, *p++);
		} else if (p[1] == delim) {
			if (strchr(".[\\()*+?{|^$", delim))
				add_char(re, '\\');
			add_char(re, delim);
			p += 2;
		} else if (is_alnum(p[1]) && !strchr("wWsSbB", p[1])) {
			return err_set(e, EINVAL, "'\\%c' has no meaning in the expression", p[1]);
		} else {
			add_char(re, *p++);
			if (*p)
				add_char(re, *p++);
		}
	}
	if (!*p)
		return err_set(e, EINVAL, "no '%c' after the expression", delim);
	if (!re->len)
		return err_set(e, EINVAL, "the expression is empty");
	*pp = p + 1;
	return 0;
}

static void add_literal(struct buf *to, char c)
{
	if (c == '\\')
		add_char(to, '\\');
	add_char(to, c);
}

static int read_replacement(const char **pp, char delim, struct rule *r, struct buf *to,
			    struct ckpt_err *e)
{
	const char *p = *pp;

	buf_str(to, ""); /* an empty one is a string, too */
	r->n_groups = 1;
	for (; *p && *p != delim; p++) {
		if (*p == '&') {
			buf_str(to, "\\0");
		} else if (*p != '\\' || !p[1]) { /* NOLINT(bugprone-branch-clone): ++p */
			add_literal(to, *p);
		} else if (*++p == delim || !is_alnum(*p)) {
			add_literal(to, *p);
		} else if (is_digit(*p) && *p != '0') {
			add_char(to, '\\');
			add_char(to, *p);
			r->n_groups = max_u64(r->n_groups, (uint64_t)(*p - '0') + 1);
		} else {
			return err_set(e, EINVAL, "'\\%c' has no meaning in the replacement", *p);
		}
	}
	if (!*p)
		return err_set(e, EINVAL, "no '%c' after the replacement", delim);
	*pp = p + 1;
	return 0;
}

static int read_flags(const char *p, struct rule *r, int *cflags, struct ckpt_err *e)
{
	for (; *p == 'g' || *p == 'I'; p++) {
		if (*p == 'g')
			r->global = true;
		else
			*cflags |= REG_ICASE;
	}
	p += strspn(p, " \t");
	if (*p && *p != '#')
		return err_set(e, EINVAL, "'%.20s' after the rule: the flags are g and I", p);
	return 0;
}

static int compile(struct rule *r, const char *re, struct ckpt_err *e)
{
	char why[128];
	int rc = regcomp(&r->re, re, r->cflags);

	if (rc == REG_ESPACE)
		return err_nomem(e);
	if (rc) {
		(void)regerror(rc, &r->re, why, sizeof(why));
		return err_set(e, EINVAL, "%s", why);
	}
	if (r->n_groups > r->re.re_nsub + 1) {
		err_set(e, EINVAL, "'\\%zu' in the replacement, but the expression has %zu group%s",
			r->n_groups - 1, r->re.re_nsub, text_s(r->re.re_nsub));
		regfree(&r->re);
		return -e->code;
	}
	r->expr = strdup(re);
	rc = r->expr ? regex_start_new(re, r->cflags & REG_ICASE, &r->start, e) : err_nomem(e);
	if (rc) {
		regfree(&r->re);
		free(r->expr);
	}
	return rc;
}

/* Parses r->text into the rest of r. */
static int parse_rule(struct rule *r, struct buf *re, struct buf *to, struct ckpt_err *e)
{
	const char *p = r->text;
	char delim;
	int rc;

	if (p[0] != 's' || p[1] < ' ' || p[1] > '~' || p[1] == '\\')
		return err_set(e, EINVAL, "not a rule (s/REGEX/REPLACEMENT/)");
	delim = p[1];
	p += 2;
	r->cflags = REG_EXTENDED;
	rc = read_regex(&p, delim, re, e);
	if (!rc)
		rc = read_replacement(&p, delim, r, to, e);
	if (!rc)
		rc = read_flags(p, r, &r->cflags, e);
	if (re->err || to->err) /* takes precedence over other errors */
		rc = err_nomem(e);
	if (!rc)
		rc = check_size(re->data, &r->size, e);
	if (rc)
		return rc;
	rc = compile(r, re->data, e);
	if (rc)
		return rc;
	r->to_len = to->len;
	r->to = to->data;
	*to = (struct buf){ 0 };
	return 0;
}

static void release_rule(struct rule *r)
{
	regfree(&r->re);
	regex_start_free(r->start);
	free(r->expr);
	free(r->text);
	free(r->to);
}

static int add_rule(struct rename *r, const char *s, size_t len, unsigned line, struct ckpt_err *e)
{
	struct buf re = BUF_INIT(2 * RENAME_MAX_RULE), to = BUF_INIT(2 * RENAME_MAX_RULE);
	struct rule rule = { .line = line };
	int rc;

	rule.text = VEC_ROOM(r->rules, r->cap, r->n + 1) ? malloc(len + 1) : NULL;
	if (!rule.text)
		return err_nomem(e);
	*(char *)mempcpy(rule.text, s, len) = 0;
	rc = parse_rule(&rule, &re, &to, e);
	if (!rc && rule.size > RENAME_MAX_REGEXES - r->size) {
		rc = err_set(e, EINVAL, "the expressions of all rules together are too large");
		release_rule(&rule);
		rule.text = NULL;
	}
	r->size += rc ? 0 : rule.size;
	buf_release(&re);
	buf_release(&to);
	if (rc) {
		free(rule.text);
		return rc;
	}
	r->rules[r->n++] = rule;
	return 0;
}

static int parse_line(struct rename *r, const char *s, size_t len, unsigned line,
		      struct ckpt_err *e)
{
	if (len && s[len - 1] == '\r')
		len--;
	while (len && (*s == ' ' || *s == '\t')) {
		s++;
		len--;
	}
	if (!len || *s == '#')
		return 0;
	if (len > RENAME_MAX_RULE)
		return err_set(e, EINVAL, "longer than %d bytes", RENAME_MAX_RULE);
	if (memchr(s, 0, len))
		return err_set(e, EINVAL, "a NUL byte");
	return add_rule(r, s, len, line, e);
}

static int parse_lines(struct rename *r, const char *text, size_t len, struct ckpt_err *e)
{
	const char *s = text, *end = text + len;

	for (unsigned line = 1; s < end; line++) {
		const char *nl = memchr(s, '\n', (size_t)(end - s)), *stop = nl ? nl : end;

		if (parse_line(r, s, (size_t)(stop - s), line, e))
			return err_wrap(e, "'%.150s' line %u", r->file, line);
		s = nl ? nl + 1 : end;
	}
	return 0;
}

int rename_parse(const char *text, size_t len, const char *file, struct rename **ret,
		 struct ckpt_err *e)
{
	struct rename *r = calloc(1, sizeof(*r));
	int rc;

	if (!r)
		return err_nomem(e);
	r->work[0].max = r->work[1].max = RENAME_MAX_NAME;
	r->steps = RENAME_MAX_STEPS;
	r->file = strdup(file);
	rc = r->file ? parse_lines(r, text, len, e) : err_nomem(e);
	if (rc) {
		rename_free(r);
		return rc;
	}
	*ret = r;
	return 0;
}

void rename_free(struct rename *r)
{
	if (!r)
		return;
	for (size_t i = 0; i < r->n; i++)
		release_rule(&r->rules[i]);
	free(r->rules);
	free(r->file);
	buf_release(&r->work[0]);
	buf_release(&r->work[1]);
	free(r);
}

/* ---- a name ---- */

static void add_replacement(const struct rule *r, const char *s, const regmatch_t *m,
			    struct buf *out)
{
	const char *p = r->to, *end = p + r->to_len;

	while (p < end) {
		const char *slash = memchr(p, '\\', (size_t)(end - p)), *stop = slash ? slash : end;

		buf_add(out, p, (size_t)(stop - p));
		if (!slash)
			break;
		p = slash + 2;
		if (slash[1] == '\\') {
			add_char(out, '\\');
		} else {
			const regmatch_t *g = &m[slash[1] - '0'];

			if (g->rm_so >= 0)
				buf_add(out, s + g->rm_so, (size_t)(g->rm_eo - g->rm_so));
		}
	}
}

static bool take_steps(struct rename *r, uint64_t n)
{
	r->steps -= min_u64(r->steps, n);
	return r->steps;
}

/* Drops what glibc has cached about the names it has seen. */
static int forget(struct rename *r)
{
	for (size_t i = 0; i < r->n; i++) {
		struct rule *rule = &r->rules[i];

		if (!rule->used)
			continue;
		regfree(&rule->re);
		rule->used = false;
		if (regcomp(&rule->re, rule->expr, rule->cflags)) {
			memset(&rule->re, 0, sizeof(rule->re)); /* regfree has released it */
			return REG_ESPACE;
		}
	}
	r->scanned = 0;
	return 0;
}

/*
 * The work of re_match for a match of n bytes with `left` bytes before it. As measured with glibc
 * 2.36: up to 20 ns for each byte and part of the expression, to find the end of the match; and
 * within the match, to find its groups, for each byte and pair of parts.
 */
static uint64_t steps_taken(const struct rule *r, size_t left, size_t n)
{
	uint64_t size = r->size + 2;

	return left * size + n * size * size / 4;
}

/* regexec with a single start, `at`. */
static int match_at(struct rename *r, struct rule *rule, const char *s, size_t at, size_t len,
		    regmatch_t *m)
{
	regoff_t start[GROUPS], end[GROUPS], n;
	struct re_registers groups = { .num_regs = (unsigned)rule->n_groups,
				       .start = start,
				       .end = end };

	r->scanned += len - at + 1;
	if (r->scanned > MAX_SCANNED && forget(r))
		return REG_ESPACE;
	rule->used = true;
	rule->re.regs_allocated = REGS_FIXED;
	n = re_match(&rule->re, s, (regoff_t)len, (regoff_t)at, &groups);
	if (!take_steps(r, steps_taken(rule, len - at + 1, n < 0 ? 0 : (size_t)n + 1)))
		return TOO_MUCH;
	for (size_t i = 0; i < rule->n_groups && n >= 0; i++)
		m[i] = (regmatch_t){ start[i], end[i] };
	return n >= 0 ? 0 : n == -1 ? REG_NOMATCH : REG_ESPACE;
}

/*
 * Like regexec on s from `from` on, which would try one start after another in quadratic time.
 * Names may contain NUL.
 */
static int match(struct rename *r, struct rule *rule, const char *s, size_t from, size_t len,
		 regmatch_t *m)
{
	int rc = REG_NOMATCH;

	for (; rc == REG_NOMATCH && from <= len; from++) {
		from = regex_start_find(rule->start, s, from, len, &r->steps);
		if (!r->steps)
			return TOO_MUCH;
		if (from == SIZE_MAX)
			return REG_NOMATCH;
		rc = match_at(r, rule, s, from, len, m);
	}
	return rc;
}

/*
 * Applies the rule to s, writing to *out. As in sed, an empty match directly after another match is
 * not one: s/b*$/x/g makes "ax" of "ab". Returns the last result of match().
 */
static int apply_rule(struct rename *all, struct rule *r, const char *s, size_t len,
		      struct buf *out)
{
	size_t from = 0, copied = 0;
	regmatch_t m[GROUPS];
	bool any = false;
	int rc = 0;

	while (!out->err && !(rc = match(all, r, s, from, len, m))) {
		size_t so = (size_t)m[0].rm_so, eo = (size_t)m[0].rm_eo;

		if (any && so == eo && so == copied) {
			from = so + 1;
			if (from > len)
				break;
			continue;
		}
		any = true;
		buf_add(out, s + copied, so - copied);
		add_replacement(r, s, m, out);
		copied = from = eo;
		if (!r->global)
			break;
	}
	buf_add(out, s + copied, len - copied);
	r->matched |= any;
	return rc;
}

static int refuse(const struct rename *r, const struct rule *rule, const char *fqn, size_t len,
		  const char *what, struct ckpt_err *e)
{
	char shown[SHOWN];

	return err_set(e, EINVAL, "'%.150s' line %u: '%s' becomes %s", r->file, rule->line,
		       text_show(fqn, len, shown, sizeof(shown)), what);
}

static int too_much(const struct rename *r, const struct rule *rule, const char *fqn, size_t len,
		    struct ckpt_err *e)
{
	char shown[SHOWN];

	return err_set(e, EFBIG,
		       "'%.150s' line %u: at '%s', renaming all names by all rules takes more than "
		       "%llu steps: use fewer or simpler rules",
		       r->file, rule->line, text_show(fqn, len, shown, sizeof(shown)),
		       (unsigned long long)RENAME_MAX_STEPS);
}

static void start_work(struct buf *b, const char *s, size_t len)
{
	b->len = 0;
	b->err = 0;
	buf_add(b, s, len);
}

int rename_apply(struct rename *r, const char *fqn, size_t len, struct buf *out, struct ckpt_err *e)
{
	struct buf *from = &r->work[0], *to = &r->work[1];
	char shown[SHOWN];

	if (len > RENAME_MAX_NAME)
		return err_set(e, EINVAL, "'%.150s': '%s' has %zu bytes, renaming takes %d",
			       r->file, text_show(fqn, len, shown, sizeof(shown)), len,
			       RENAME_MAX_NAME);
	/* A copy, because with sanitizers regexec reads on to a NUL, which a buf provides. */
	start_work(from, fqn, len);
	for (size_t i = 0; i < r->n && !from->err; i++) {
		struct rule *rule = &r->rules[i];
		struct buf *done = from;

		start_work(to, NULL, 0);
		switch (apply_rule(r, rule, from->data, from->len, to)) {
		case REG_ESPACE:
			to->err = ENOMEM;
			break;
		case TOO_MUCH:
			return too_much(r, rule, fqn, len, e);
		default:
			break;
		}
		if (to->err == EFBIG || (!to->err && from->len && !to->len))
			return refuse(r, rule, fqn, len, to->err ? "too long" : "nothing", e);
		from = to;
		to = done;
	}
	if (from->err)
		return err_set(e, from->err, "out of memory");
	buf_add(out, from->data, from->len);
	return buf_check(out, e, "rename: a name is too long");
}

int rename_list(struct rename *r, struct namelist *t, struct ckpt_err *e)
{
	struct buf to = BUF_INIT(RENAME_MAX_NAME);
	int rc = 0;

	for (size_t i = 0; i < t->n && !rc; i++) {
		struct named *d = &t->v[i];

		to.len = 0;
		rc = rename_apply(r, d->fqn, d->len, &to, e);
		if (rc || (bytes_equal(to.data, to.len, d->fqn, d->len)))
			continue;
		d->fqn = namelist_copy(t, to.data, to.len);
		d->len = (uint32_t)to.len;
		if (!d->fqn)
			rc = err_nomem(e);
	}
	buf_release(&to);
	return rc;
}

bool rename_unmatched(const struct rename *r, unsigned after, struct rename_rule *ret)
{
	for (size_t i = 0; i < r->n; i++) {
		const struct rule *rule = &r->rules[i];

		if (rule->matched || rule->line <= after)
			continue;
		*ret = (struct rename_rule){ rule->text, r->file, rule->line };
		return true;
	}
	return false;
}
