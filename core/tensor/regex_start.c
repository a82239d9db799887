/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A Thompson automaton, simulated with all states in parallel; each knows the earliest start from
 * which it can be reached, and earlier starts take precedence.
 *
 * Which bytes a bracket expression matches is found by calling regexec() for each byte.
 */
#include "tensor/regex_start.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/vec.h"
#include "tensor/rename.h"

#include <ctype.h>
#include <regex.h>
#include <stdlib.h>
#include <string.h>

enum kind { ONE_OF, EITHER, ONLY_IF, DONE };

struct state {
	enum kind kind;
	char where;	 /* ONLY_IF: ^ or $; other tests are taken to hold */
	int next, other; /* other: of EITHER */
	uint64_t set[4]; /* ONE_OF: bytes */
};

struct way {
	int state;
	size_t start;
};

struct regex_start {
	struct state *states;
	int n, first;
	size_t cap;
	struct way *ways[2], *stack; /* room for all states, and twice as many */
	uint64_t *seen;		     /* by state: the round in which it was last reached */
	uint64_t begins[4];	     /* bytes that can begin a match; if it may be empty, any: */
	bool anywhere;
	/* Tests of positions are taken to hold, because glibc forgets some of them, except ^ at the
	 * start and $ at the end. */
	bool lenient;
	uint64_t round;
};

/* ---- construction ---- */

const char *regex_bracket_end(const char *p)
{
	p += p[1] == '^' ? 2 : 1;
	if (*p == ']')
		p++;
	for (; *p != ']'; p++) {
		if (!*p)
			return NULL;
		if (p[0] == '[' && p[1] && strchr(":.=", p[1])) {
			const char close[] = { p[1], ']', 0 };

			p = strstr(p + 2, close);
			if (!p)
				return NULL;
			p++;
		}
	}
	return p + 1;
}

struct parser {
	struct regex_start *x;
	const char *text, *p;
	struct ckpt_err *e;
	unsigned depth, asked; /* asked: position tests inside the expression */
	bool icase;
};

/* Part of an automaton: entered at `first`, left through `last` (an EITHER without a next). */
struct part {
	int first, last;
};

static int add(struct parser *p, const struct state *s)
{
	struct regex_start *x = p->x;

	if (!VEC_ROOM(x->states, x->cap, (size_t)x->n + 1))
		return err_nomem(p->e);
	if (x->n > 8 * RENAME_MAX_REGEX)
		return err_set(p->e, EFBIG, "the expression is too large");
	x->states[x->n] = *s;
	return x->n++;
}

/* An empty part. */
static int add_empty(struct parser *p)
{
	return add(p, &(struct state){ .kind = EITHER, .next = -1, .other = -1 });
}

static int empty(struct parser *p, struct part *ret)
{
	int n = add_empty(p);

	*ret = (struct part){ n, n };
	return n < 0 ? n : 0;
}

static void include(struct state *s, unsigned char c)
{
	s->set[c / 64] |= (uint64_t)1 << c % 64;
}

static int add_set(struct parser *p, struct state *s, struct part *ret)
{
	int end = add_empty(p), n;

	s->kind = ONE_OF;
	s->next = end;
	n = end < 0 ? end : add(p, s);
	*ret = (struct part){ n, end };
	return n < 0 ? n : 0;
}

static int only_if(struct parser *p, char where, struct part *ret)
{
	int end = add_empty(p), n = end;

	if (end >= 0)
		n = add(p, &(struct state){ .kind = ONLY_IF, .where = where, .next = end });
	*ret = (struct part){ n, end };
	return n < 0 ? n : 0;
}

static void include_char(struct parser *p, struct state *s, unsigned char c)
{
	include(s, c);
	if (p->icase) {
		include(s, (unsigned char)tolower(c));
		include(s, (unsigned char)toupper(c));
	}
}

static int one_char(struct parser *p, unsigned char c, struct part *ret)
{
	struct state s = { 0 };

	include_char(p, &s, c);
	return add_set(p, &s, ret);
}

static int any_char(struct parser *p, struct part *ret)
{
	struct state s = { .set = { ~(uint64_t)1, ~(uint64_t)0, ~(uint64_t)0, ~(uint64_t)0 } };

	return add_set(p, &s, ret);
}

/* [...], \w and the like: n bytes that are an expression by themselves. */
static int one_of(struct parser *p, const char *text, size_t n, struct part *ret)
{
	autofree char *copy = strndup(text, n);
	struct state s = { 0 };
	regex_t re;
	int rc = copy ? regcomp(&re, copy, REG_EXTENDED | (p->icase ? REG_ICASE : 0)) : REG_ESPACE;

	if (rc) /* it was part of a valid expression */
		return err_nomem(p->e);
	for (unsigned c = 0; c < 256; c++) {
		const char one[2] = { (char)c, 0 };
		regmatch_t m = { 0, 1 };

		if (!regexec(&re, one, 1, &m, REG_STARTEND))
			include(&s, (unsigned char)c);
	}
	regfree(&re);
	return add_set(p, &s, ret);
}

static int parse_either(struct parser *p, struct part *ret);

static int parse_group(struct parser *p, struct part *ret)
{
	int rc;

	p->depth++;
	rc = parse_either(p, ret);
	p->depth--;
	p->p += *p->p == ')';
	return rc;
}

static int parse_escape(struct parser *p, struct part *ret)
{
	const char *at = p->p;
	char c = at[1];

	p->p += 2; /* a backslash at the end is refused by regcomp() */
	if (strchr("wWsS", c))
		return one_of(p, at, 2, ret);
	if (!strchr("bB<>`'", c))
		return one_char(p, (unsigned char)c, ret);
	p->asked++;
	return only_if(p, c, ret);
}

static int parse_atom(struct parser *p, struct part *ret)
{
	const char *at = p->p;
	const char *end = *at == '[' ? regex_bracket_end(at) : NULL;

	if (end) {
		p->p = end;
		return one_of(p, at, (size_t)(end - at), ret);
	}
	if (*at == '\\')
		return parse_escape(p, ret);
	p->p++;
	if (*at == '(')
		return parse_group(p, ret);
	if (*at == '^' || *at == '$') {
		p->asked += !(*at == '^' ? at == p->text : !at[1]);
		return only_if(p, *at, ret);
	}
	return *at == '.' ? any_char(p, ret) : one_char(p, (unsigned char)*at, ret);
}

static void join(struct parser *p, struct part *a, struct part b)
{
	p->x->states[a->last].next = b.first;
	a->last = b.last;
}

/* Makes the part optional; and repeatable, if `again`. */
static int make_optional(struct parser *p, struct part *a, bool again)
{
	int end = add_empty(p), n = end;

	if (end >= 0)
		n = add(p, &(struct state){ .kind = EITHER, .next = a->first, .other = end });
	if (n < 0)
		return n;
	p->x->states[a->last].next = again ? n : end;
	*a = (struct part){ n, end };
	return 0;
}

/* Copies the states [from, to), which contain the part. */
static int copy_part(struct parser *p, int from, int to, struct part *part)
{
	int by = p->x->n - from;

	for (int i = from; i < to; i++) {
		struct state s = p->x->states[i];
		int n;

		s.next += s.next >= from ? by : 0;
		s.other += s.other >= from ? by : 0;
		n = add(p, &s);
		if (n < 0)
			return n;
	}
	part->first += by;
	part->last += by;
	return 0;
}

static unsigned read_number(struct parser *p)
{
	unsigned n = 0;

	for (; isdigit((unsigned char)*p->p); p->p++)
		n = n > RENAME_MAX_REGEX ? n : n * 10 + (unsigned)(*p->p - '0');
	return n;
}

/* Parses {m,n}, {m,} and {m} after the part, whose states are all those from `from` on. */
static int parse_times(struct parser *p, int from, struct part *a)
{
	unsigned least, most;
	int to = p->x->n, rc;
	struct part one = *a, rest, next;
	bool endless = false;

	p->p++;
	least = most = read_number(p);
	if (*p->p == ',') {
		p->p++;
		endless = *p->p == '}';
		most = endless ? least + 1 : read_number(p);
	}
	p->p += *p->p == '}';
	rc = empty(p, &rest);
	for (unsigned i = 1; !rc && i < most; i++) {
		next = one;
		rc = copy_part(p, from, to, &next);
		if (!rc && i >= least)
			rc = make_optional(p, &next, endless);
		if (!rc)
			join(p, &rest, next);
	}
	if (!rc && !least && most)
		rc = make_optional(p, &one, endless);
	if (!rc && most) {
		join(p, &one, rest);
		rest = one;
	}
	*a = rest;
	return rc;
}

static int parse_repeated(struct parser *p, struct part *ret)
{
	const char *at = p->p;
	int from = p->x->n, rc = parse_atom(p, ret);

	if (*at == '^' || *at == '$') /* an anchor cannot be repeated */
		return rc;
	while (!rc && *p->p && strchr("*+?{", *p->p)) {
		struct part more = *ret;

		for (int i = from; i < p->x->n; i++)
			p->x->lenient |= p->x->states[i].kind == ONLY_IF;
		if (*p->p == '{') {
			rc = parse_times(p, from, ret);
			continue;
		}
		if (*p->p == '+')
			rc = copy_part(p, from, p->x->n, &more);
		if (!rc)
			rc = make_optional(p, &more, *p->p != '?');
		if (!rc && *p->p == '+')
			join(p, ret, more);
		else
			*ret = more;
		p->p++;
	}
	return rc;
}

static int parse_row(struct parser *p, struct part *ret)
{
	struct part next;
	int rc = empty(p, ret);

	while (!rc && *p->p && *p->p != '|' && !(*p->p == ')' && p->depth)) {
		rc = parse_repeated(p, &next);
		if (!rc)
			join(p, ret, next);
	}
	return rc;
}

static int parse_either(struct parser *p, struct part *ret)
{
	struct part next;
	int rc = parse_row(p, ret);

	while (!rc && *p->p == '|') {
		int end, n;

		p->p++;
		rc = parse_row(p, &next);
		if (rc)
			break;
		end = add_empty(p);
		n = end < 0 ? end
			    : add(p, &(struct state){ .kind = EITHER,
						      .next = ret->first,
						      .other = next.first });
		if (n < 0)
			return n;
		p->x->states[ret->last].next = p->x->states[next.last].next = end;
		*ret = (struct part){ n, end };
	}
	return rc;
}

/* Any position test before the first byte may hold. */
static void find_begins(struct regex_start *x)
{
	size_t depth = 0;

	x->round++;
	x->stack[depth++].state = x->first;
	while (depth) {
		int at = x->stack[--depth].state;
		const struct state *s = &x->states[at];

		if (x->seen[at] == x->round)
			continue;
		x->seen[at] = x->round;
		x->anywhere |= s->kind == DONE;
		for (size_t i = 0; i < 4 && s->kind == ONE_OF; i++)
			x->begins[i] |= s->set[i];
		if (s->kind == EITHER && s->other >= 0)
			x->stack[depth++].state = s->other;
		if ((s->kind == EITHER || s->kind == ONLY_IF) && s->next >= 0)
			x->stack[depth++].state = s->next;
	}
}

int regex_start_new(const char *re, bool icase, struct regex_start **ret, struct ckpt_err *e)
{
	struct regex_start *x = calloc(1, sizeof(*x));
	struct parser p = { .x = x, .text = re, .p = re, .e = e, .icase = icase };
	struct part all;
	int rc = x ? parse_either(&p, &all) : err_nomem(e);

	if (!rc) {
		int done = add(&p, &(struct state){ .kind = DONE });

		rc = done < 0 ? done : 0;
		if (!rc)
			x->states[all.last].next = done;
	}
	if (!rc) {
		size_t n = (size_t)x->n;

		x->first = all.first;
		x->ways[0] = calloc(n, sizeof(*x->ways[0]));
		x->ways[1] = calloc(n, sizeof(*x->ways[1]));
		x->stack = calloc(2 * n + 1, sizeof(*x->stack));
		x->seen = calloc(n, sizeof(*x->seen));
		if (!x->ways[0] || !x->ways[1] || !x->stack || !x->seen)
			rc = err_nomem(e);
	}
	if (rc) {
		regex_start_free(x);
		return rc;
	}
	x->lenient |= p.asked;
	find_begins(x);
	*ret = x;
	return 0;
}

void regex_start_free(struct regex_start *x)
{
	if (!x)
		return;
	free(x->states);
	free(x->ways[0]);
	free(x->ways[1]);
	free(x->stack);
	free(x->seen);
	free(x);
}

/* ---- search ---- */

/* Does the state's position test hold before byte `at`? The others are all lenient. */
static bool holds(char where, size_t at, size_t len)
{
	return where == '^' ? !at : at == len;
}

struct search {
	struct regex_start *x;
	size_t len, best; /* SIZE_MAX: no match yet */
	uint64_t steps;
};

/* Adds all states reachable without consuming a byte to the n that are in `to`. */
static size_t follow(struct search *f, struct way way, size_t at, struct way *to, size_t n)
{
	struct regex_start *x = f->x;
	size_t depth = 0;

	x->stack[depth++] = way;
	while (depth) {
		struct way w = x->stack[--depth];
		const struct state *s = &x->states[w.state];

		f->steps++;
		if (x->seen[w.state] == x->round)
			continue;
		x->seen[w.state] = x->round;
		if (s->kind == DONE)
			f->best = w.start < f->best ? w.start : f->best;
		else if (s->kind == ONE_OF)
			to[n++] = w;
		if (s->kind == EITHER && s->other >= 0)
			x->stack[depth++] = (struct way){ s->other, w.start };
		if ((s->kind == EITHER && s->next >= 0) ||
		    (s->kind == ONLY_IF && (x->lenient || holds(s->where, at, f->len))))
			x->stack[depth++] = (struct way){ s->next, w.start };
	}
	return n;
}

static bool takes(const uint64_t set[4], unsigned char c)
{
	return set[c / 64] >> c % 64 & 1;
}

size_t regex_start_find(struct regex_start *x, const char *s, size_t from, size_t len,
			uint64_t *steps)
{
	struct search f = { .x = x, .len = len, .best = SIZE_MAX };
	struct way *now = x->ways[0], *next = x->ways[1];
	size_t n = 0;

	x->round++;
	for (size_t at = from; f.steps < *steps; at++) {
		struct way *swap = now;
		size_t kept = 0;

		f.steps++;
		/* Last, so that every state is reached from the earliest start first. */
		if (f.best == SIZE_MAX &&
		    (x->anywhere || (at < len && takes(x->begins, (unsigned char)s[at]))))
			n = follow(&f, (struct way){ x->first, at }, at, now, n);
		if (at == len || (!n && f.best != SIZE_MAX))
			break;
		x->round++;
		for (size_t i = 0; i < n && now[i].start < f.best; i++) {
			const struct state *state = &x->states[now[i].state];

			f.steps++;
			if (takes(state->set, (unsigned char)s[at]))
				kept = follow(&f, (struct way){ state->next, now[i].start }, at + 1,
					      next, kept);
		}
		n = kept;
		now = next;
		next = swap;
	}
	*steps -= min_u64(*steps, f.steps);
	return f.best;
}
