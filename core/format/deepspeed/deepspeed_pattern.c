/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An automaton whose states are simulated all at once (Thompson's construction): matching takes at
 * most the length of the pattern times that of the text.
 */
#include "format/deepspeed/deepspeed_pattern.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"

#include <stdlib.h>
#include <string.h>

enum {
	MAX_TEXT = 4096,  /* bytes */
	MAX_ATOMS = 500,  /* in a row */
	STATE_WORK = 512, /* so that the budget bounds the memory of all patterns, too */
	MAX_STATES = 2000,
	MAX_DEPTH = 50,	  /* of nested groups */
	MAX_COPIES = 100, /* of a repeated atom */
	MAX_PARSED = 10000,
};

/* Consumes a byte of the set, then continues at `next`; or, without a set, at next and other. */
struct state {
	enum { S_SET, S_SPLIT, S_BEGIN, S_END, S_MATCH } what;
	uint16_t next, other;
	uint64_t set[4]; /* 256 bits */
};

struct ds_pattern {
	size_t n;
	uint16_t first;
	uint16_t *list[2]; /* active states */
	uint32_t *mark;	   /* by state: when it was last put on a list */
	uint32_t step;
	struct state v[];
};

/* ---- parsing ---- */

/*
 * A repeated atom is parsed again for each copy, so that no state has to be copied; what is read is
 * therefore counted. States are built from the end of the pattern backwards: each is given its
 * successor.
 */
struct parser {
	struct ds_pattern *p;
	/* atoms that may still be parsed; needed because empty groups have no state */
	unsigned left;
	uint64_t *work; /* budget */
	bool bad;
	bool no_memory;
};

static void spend(struct parser *x, uint64_t n)
{
	*x->work -= min_u64(n, *x->work);
	x->bad |= !*x->work;
}

static uint16_t add(struct parser *x, struct state s)
{
	spend(x, STATE_WORK);
	if (x->p->n == MAX_STATES) {
		x->bad = true;
		return 0;
	}
	x->p->v[x->p->n] = s;
	return (uint16_t)x->p->n++;
}

static void set_add(uint64_t set[4], unsigned c)
{
	set[c / 64] |= (uint64_t)1 << c % 64;
}

static void set_range(uint64_t set[4], unsigned from, unsigned to)
{
	for (unsigned c = from; c <= to; c++)
		set_add(set, c);
}

static void set_invert(uint64_t set[4])
{
	for (int i = 0; i < 4; i++)
		set[i] = ~set[i];
}

/*
 * The set of bytes that \c stands for. Bytes beyond ASCII count as letters, which nearly all of
 * them are in Python.
 */
static bool escape(char c, uint64_t set[4])
{
	uint64_t more[4] = { 0 };

	switch (c | 0x20) {
	case 'd':
		set_range(more, '0', '9');
		break;
	case 'w':
		set_range(more, '0', '9');
		set_range(more, 'a', 'z');
		set_range(more, 'A', 'Z');
		set_range(more, 0x80, 0xff);
		set_add(more, '_');
		break;
	case 's':
		set_range(more, '\t', '\r');
		set_add(more, ' ');
		break;
	default:
		if (!c || (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z'))
			return false;
		set_add(set, (unsigned char)c);
		return true;
	}
	if (!(c & 0x20))
		set_invert(more);
	for (int i = 0; i < 4; i++)
		set[i] |= more[i];
	return true;
}

/* [...]; sets *s after the bracket. */
static bool parse_class(const char **s, uint64_t set[4])
{
	bool negated = **s == '^', first = true;

	*s += negated;
	for (; **s && (first || **s != ']'); first = false) {
		unsigned from = (unsigned char)*(*s)++;

		if (from == '\\') {
			if (!escape(*(*s)++, set))
				return false;
			continue;
		}
		if (**s == '-' && (*s)[1] && (*s)[1] != ']') {
			unsigned to = (unsigned char)(*s)[1];

			if (to == '\\' || to < from || to > 0x7f)
				return false;
			*s += 2;
			set_range(set, from, to);
		} else if (from > 0x7f) {
			return false;
		} else {
			set_add(set, from);
		}
	}
	if (!**s)
		return false;
	(*s)++;
	if (negated)
		set_invert(set);
	return true;
}

/* The end of the atom that begins at s; NULL: it is not an atom. */
static const char *skip_atom(struct parser *x, const char *s)
{
	const char *from = s;
	unsigned depth = 0;

	do {
		if (*s == '\\') {
			s++;
			if (!*s)
				return NULL;
		} else if (*s == '[') {
			uint64_t ignored[4] = { 0 };

			s++;
			if (!parse_class(&s, ignored))
				return NULL;
			s--;
		} else if (*s == '(') {
			if (++depth > MAX_DEPTH)
				return NULL;
		} else if (*s == ')') {
			if (!depth--)
				return NULL;
		} else if (!*s) {
			return NULL;
		}
		s++;
	} while (depth);
	spend(x, (uint64_t)(s - from));
	return s;
}

static bool number(const char **s, unsigned *ret)
{
	const char *from = *s;

	for (*ret = 0; **s >= '0' && **s <= '9' && *s - from < 4; (*s)++)
		*ret = *ret * 10 + (unsigned)(**s - '0');
	return *s > from;
}

/* Parses a repetition after an atom and sets *s after it. most 0: no limit. */
static bool parse_repeat(const char **s, unsigned *least, unsigned *most)
{
	*least = *most = 1;
	switch (**s) {
	case '*':
		*least = *most = 0;
		break;
	case '+':
		*most = 0;
		break;
	case '?':
		*least = 0;
		break;
	case '{':
		(*s)++;
		if (!number(s, least))
			return false;
		*most = *least;
		if (**s == ',') {
			(*s)++;
			*most = 0;
			if (**s != '}' && (!number(s, most) || !*most))
				return false;
		} else if (!*most) {
			return false;
		}
		if (**s != '}' || (*most && *most < *least) || *least > MAX_COPIES ||
		    *most > MAX_COPIES)
			return false;
		break;
	default:
		return true;
	}
	(*s)++;
	if (**s == '?') /* lazy: matches the same names */
		(*s)++;
	return !**s || !strchr("*+?{", **s);
}

static uint16_t parse_either(struct parser *x, const char *s, const char *end, uint16_t next,
			     unsigned depth);

/* Parses one atom, between s and end. */
static uint16_t parse_atom(struct parser *x, const char *s, const char *end, uint16_t next,
			   unsigned depth)
{
	struct state a = { .what = S_SET, .next = next };

	spend(x, (uint64_t)(end - s));
	if (!x->left--) {
		x->bad = true;
		x->left = 0;
		return 0;
	}
	switch (*s) {
	case '(':
		s++;
		if (*s == '?') {
			if (s[1] != ':') {
				x->bad = true;
				return 0;
			}
			s += 2;
		}
		return parse_either(x, s, end - 1, next, depth + 1);
	case '[':
		s++;
		x->bad |= !parse_class(&s, a.set);
		break;
	case '\\':
		x->bad |= !escape(s[1], a.set);
		break;
	case '.':
		set_add(a.set, '\n');
		set_invert(a.set);
		break;
	case '^':
		a.what = S_BEGIN;
		break;
	case '$':
		a.what = S_END;
		break;
	default:
		x->bad |= strchr("*+?{)", *s) != NULL;
		set_add(a.set, (unsigned char)*s);
	}
	return add(x, a);
}

/* Repeats an atom. */
static uint16_t parse_copies(struct parser *x, const char *s, const char *end, unsigned least,
			     unsigned most, uint16_t next, unsigned depth)
{
	if (!most) {
		uint16_t loop = add(x, (struct state){ .what = S_SPLIT, .other = next });
		uint16_t body = x->bad ? 0 : parse_atom(x, s, end, loop, depth);

		x->p->v[loop].next = body;
		next = loop;
	} else {
		for (unsigned i = least; !x->bad && i < most; i++) {
			uint16_t body = parse_atom(x, s, end, next, depth);

			/* Each of these may be left out. */
			next = add(x,
				   (struct state){ .what = S_SPLIT, .next = body, .other = next });
		}
	}
	for (unsigned i = 0; !x->bad && i < least; i++)
		next = parse_atom(x, s, end, next, depth);
	return next;
}

/* Parses consecutive atoms, up to end. */
static uint16_t parse_row(struct parser *x, const char *s, const char *end, uint16_t next,
			  unsigned depth)
{
	struct atom {
		const char *s, *end;
		unsigned least, most;
	};
	autofree struct atom *v = calloc(MAX_ATOMS, sizeof(*v));
	size_t n = 0;

	spend(x, MAX_ATOMS);
	x->bad |= !v;
	x->no_memory |= !v;
	while (!x->bad && s < end) {
		const char *stop = skip_atom(x, s), *after = stop;

		if (!stop || stop > end || n == MAX_ATOMS ||
		    !parse_repeat(&after, &v[n].least, &v[n].most) || after > end ||
		    ((*s == '^' || *s == '$') && after != stop)) {
			x->bad = true;
			break;
		}
		v[n].s = s;
		v[n++].end = stop;
		s = after;
	}
	while (!x->bad && n-- > 0)
		next = parse_copies(x, v[n].s, v[n].end, v[n].least, v[n].most, next, depth);
	return next;
}

/* Parses alternatives separated by |, up to end. */
static uint16_t parse_either(struct parser *x, const char *s, const char *end, uint16_t next,
			     unsigned depth)
{
	uint16_t r = 0;
	bool first = true;

	if (depth > MAX_DEPTH) {
		x->bad = true;
		return 0;
	}
	while (!x->bad) {
		const char *bar = s;
		uint16_t row;

		while (bar && bar < end && *bar != '|')
			bar = skip_atom(x, bar);
		if (!bar || bar > end) {
			x->bad = true;
			return 0;
		}
		row = parse_row(x, s, bar, next, depth);
		r = first ? row
			  : add(x, (struct state){ .what = S_SPLIT, .next = r, .other = row });
		first = false;
		if (bar == end)
			break;
		s = bar + 1;
	}
	return r;
}

int ds_pattern_new(const char *text, uint64_t *work, struct ds_pattern **ret, struct ckpt_err *e)
{
	struct ds_pattern *p = calloc(1, sizeof(*p) + MAX_STATES * sizeof(*p->v));
	size_t len = strlen(text);
	struct parser x = { .p = p, .left = MAX_PARSED, .work = work, .bad = len > MAX_TEXT };
	struct ds_pattern *less;
	uint16_t match;

	if (!p)
		return err_nomem(e);
	match = add(&x, (struct state){ .what = S_MATCH });
	p->first = parse_either(&x, text, text + len, match, 0);
	if (x.bad) {
		free(p);
		return x.no_memory ? err_nomem(e)
				   : err_set(e, ERR_UNSUPPORTED,
					     "pattern '%.100s' is not understood", text);
	}
	less = realloc(p, sizeof(*p) + p->n * sizeof(*p->v));
	p = less ? less : p;
	p->list[0] = calloc(p->n, sizeof(uint16_t));
	p->list[1] = calloc(p->n, sizeof(uint16_t));
	p->mark = calloc(p->n, sizeof(*p->mark));
	if (!p->list[0] || !p->list[1] || !p->mark) {
		ds_pattern_free(p);
		return err_nomem(e);
	}
	*ret = p;
	return 0;
}

void ds_pattern_free(struct ds_pattern *p)
{
	if (!p)
		return;
	free(p->list[0]);
	free(p->list[1]);
	free(p->mark);
	free(p);
}

/* ---- matching ---- */

/* Adds all states reachable without consuming a byte; the list serves as its own stack. */
static size_t reach(struct ds_pattern *p, uint16_t *list, size_t n, uint16_t state, bool begin,
		    bool end, bool *matched)
{
	size_t at = n;

	if (p->mark[state] == p->step)
		return n;
	p->mark[state] = p->step;
	list[n++] = state;
	for (; at < n; at++) {
		const struct state *s = &p->v[list[at]];
		uint16_t to[2] = { s->next, s->other };
		size_t k = s->what == S_SPLIT	? 2
			   : s->what == S_BEGIN ? begin
			   : s->what == S_END	? end
						: 0;

		*matched |= s->what == S_MATCH;
		for (size_t i = 0; i < k; i++)
			if (p->mark[to[i]] != p->step) {
				p->mark[to[i]] = p->step;
				list[n++] = to[i];
			}
	}
	return n;
}

bool ds_pattern_match(struct ds_pattern *p, const char *s, size_t len, uint64_t *work)
{
	uint64_t most = (len + 1) * p->n;
	bool matched = false;
	size_t n;

	if (*work < most) {
		*work = 0;
		return false;
	}
	*work -= most;
	memset(p->mark, 0, p->n * sizeof(*p->mark));
	p->step = 1;
	n = reach(p, p->list[0], 0, p->first, true, !len, &matched);
	for (size_t i = 0; i < len && n && !matched; i++) {
		uint16_t *now = p->list[i % 2], *then = p->list[(i + 1) % 2];
		unsigned char c = (unsigned char)s[i];
		size_t k = 0;

		p->step++;
		for (size_t j = 0; j < n; j++)
			if (p->v[now[j]].what == S_SET && p->v[now[j]].set[c / 64] >> c % 64 & 1)
				k = reach(p, then, k, p->v[now[j]].next, false, i + 1 == len,
					  &matched);
		n = k;
	}
	return matched;
}
