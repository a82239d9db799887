/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recipe_parse - parses the recipe language, see recipe/recipe.h.
 */
#include "base/checked.h"
#include "base/err.h"
#include "base/text.h"
#include "base/vec.h"
#include "codec/arith.h"
#include "model/box.h"
#include "recipe/recipe_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct parser {
	struct recipe *r;
	struct ckpt_err *e;
	const char *at, *end;		 /* rest of the line, without its comment */
	const char *next, *stop;	 /* the following lines */
	uint32_t line, depth;		 /* line number; stack depth of the current expression */
	bool facts;			 /* config. and args. are allowed here */
	uint32_t open[RECIPE_MAX_DEPTH]; /* statements without their `end` */
	size_t n_open;
	const char *loops[RECIPE_MAX_DEPTH];
	size_t n_loops;
};

static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_";
static const char digits[] = "0123456789";

int recipe_bad(const struct recipe *r, uint32_t line, struct ckpt_err *e, const char *fmt, ...)
{
	char what[320];
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	return err_set(e, EINVAL, "%.100s:%u: %s", r->file, line, what);
}

#define BAD(p, ...) recipe_bad((p)->r, (p)->line, (p)->e, __VA_ARGS__)

#define RECIPE_ARRAY(type, name) \
	static int add_##name(struct parser *p, type v) \
	{ \
		struct recipe *r = p->r; \
\
		if (!VEC_ROOM(r->name, r->cap_##name, r->n_##name + (size_t)1)) \
			return err_nomem(p->e); \
		r->name[r->n_##name++] = v; \
		return 0; \
	}
RECIPE_ARRAYS(RECIPE_ARRAY)
#undef RECIPE_ARRAY

/* ---- words ---- */

static bool is_one_of(char c, const char *set)
{
	return c && strchr(set, c);
}

static void skip_blanks(struct parser *p)
{
	while (p->at < p->end && is_one_of(*p->at, " \t\r"))
		p->at++;
}

/* The next character that is not blank, or 0. */
static char peek(struct parser *p)
{
	skip_blanks(p);
	return p->at < p->end ? *p->at : 0;
}

static bool skip(struct parser *p, const char *mark)
{
	size_t n = strlen(mark);

	skip_blanks(p);
	if ((size_t)(p->end - p->at) < n || memcmp(p->at, mark, n) != 0)
		return false;
	p->at += n;
	return true;
}

/* Length of the word of letters and digits here, without advancing. */
static size_t word_len(struct parser *p)
{
	size_t n = 0;

	if (!is_one_of(peek(p), letters))
		return 0;
	while (p->at + n < p->end && (is_one_of(p->at[n], letters) || is_one_of(p->at[n], digits)))
		n++;
	return n;
}

static bool is(const char *s, size_t n, const char *word)
{
	return strlen(word) == n && !memcmp(s, word, n);
}

static bool skip_word(struct parser *p, const char *word)
{
	size_t n = word_len(p);

	if (!is(p->at, n, word))
		return false;
	p->at += n;
	return true;
}

/* Everything up to a blank. */
static size_t blank_word_len(struct parser *p)
{
	size_t n = 0;

	skip_blanks(p);
	while (p->at + n < p->end && !is_one_of(p->at[n], " \t\r"))
		n++;
	return n;
}

/* A copy that lives as long as the recipe: all copies together take at most twice the text. */
static const char *string(struct parser *p, const char *s, size_t n)
{
	char *to = p->r->strings + p->r->strings_len;

	if (n)
		memcpy(to, s, n);
	to[n] = 0;
	p->r->strings_len += n + 1;
	return to;
}

/* A description of the current position, for messages. */
static const char *here(struct parser *p, char out[static 60])
{
	size_t n;

	skip_blanks(p);
	n = (size_t)(p->end - p->at);
	if (!n)
		return "the end of the line";
	out[0] = '\'';
	(void)text_show(p->at, n, out + 1, 50);
	(void)strncat(out, "'", 2);
	return out;
}

static int expected(struct parser *p, const char *what)
{
	char tmp[60];

	return BAD(p, "%s expected, not %s", what, here(p, tmp));
}

static int expect(struct parser *p, const char *mark)
{
	char what[16];

	if (skip(p, mark))
		return 0;
	(void)snprintf(what, sizeof(what), "'%s'", mark);
	return expected(p, what);
}

static int expect_end(struct parser *p)
{
	return peek(p) ? expected(p, "the end of the line") : 0;
}

/* ---- lines ---- */

static bool next_line(struct parser *p)
{
	const char *nl, *c;

	if (p->next >= p->stop)
		return false;
	p->line++;
	p->at = p->next;
	nl = memchr(p->at, '\n', (size_t)(p->stop - p->at));
	p->end = nl ? nl : p->stop;
	p->next = nl ? nl + 1 : p->stop;
	for (c = p->at; c < p->end && (*c != '#' || (c > p->at && !is_one_of(c[-1], " \t"))); c++)
		;
	p->end = c;
	return true;
}

/* Skips the mark, here or at the start of the next line. */
static bool skip_on(struct parser *p, const char *mark)
{
	size_t n = strlen(mark);
	const char *s = p->next;

	if (peek(p))
		return skip(p, mark);
	while (s < p->stop && is_one_of(*s, " \t"))
		s++;
	return (size_t)(p->stop - s) >= n && !memcmp(s, mark, n) && next_line(p) && skip(p, mark);
}

/* ---- expressions ---- */

static int find_name(const struct parser *p, const char *s, size_t n, struct rx_token *ret)
{
	for (size_t i = p->n_loops; i-- > 0;)
		if (is(s, n, p->loops[i])) {
			*ret = (struct rx_token){ .op = RX_LOOP, .number = i };
			return 0;
		}
	for (uint32_t i = 0; i < p->r->n_params; i++)
		if (is(s, n, p->r->params[i].name)) {
			*ret = (struct rx_token){ .op = RX_PARAM, .number = i };
			return 0;
		}
	return 1;
}

static int push_value(struct parser *p, const struct rx_token *t)
{
	if (++p->depth > RECIPE_MAX_STACK)
		return BAD(p, "the expression is too long");
	return add_tokens(p, *t);
}

static int parse_integer(struct parser *p)
{
	struct rx_token t = { .op = RX_NUMBER };

	for (; p->at < p->end && is_one_of(*p->at, digits); p->at++)
		if (ckd_mul(&t.number, t.number, 10) ||
		    ckd_add(&t.number, t.number, (uint64_t)(*p->at - '0')))
			return BAD(p, "a number of more than 64 bits");
	return push_value(p, &t);
}

/* Length of KEY.KEY..., without advancing. */
static size_t key_len(struct parser *p)
{
	const char *start = p->at;
	size_t n = word_len(p), all = n;

	while (n && p->end - start > (ptrdiff_t)all + 1 && start[all] == '.' &&
	       is_one_of(start[all + 1], letters)) {
		p->at = start + all + 1;
		n = word_len(p);
		all += 1 + n;
	}
	p->at = start;
	return all;
}

/* The text after `is`: like a name, also with dashes and dots. */
static int parse_text(struct parser *p, const char **ret)
{
	size_t n = 0;

	for (skip_blanks(p);
	     p->at + n < p->end && (is_one_of(p->at[n], letters) || is_one_of(p->at[n], digits) ||
				    is_one_of(p->at[n], "-."));
	     n++)
		;
	if (!n)
		return expected(p, "a word");
	*ret = string(p, p->at, n);
	p->at += n;
	return 0;
}

/* config.KEY or args.KEY, at the dot; or either `is` a text. */
static int parse_fact(struct parser *p, enum recipe_from from)
{
	struct rx_token t = { .op = RX_FACT, .from = from };
	size_t n;

	if (!p->facts)
		return BAD(p, "config. and args. are only allowed in param and refuse");
	p->at++;
	n = p->at < p->end && !is_one_of(*p->at, " \t\r") ? key_len(p) : 0;
	if (!n)
		return expected(p, "a key");
	t.key = string(p, p->at, n);
	p->at += n;
	if (skip_word(p, "is")) {
		int rc = parse_text(p, &t.text);

		if (rc)
			return rc;
		t.op = RX_IS;
	}
	return push_value(p, &t);
}

static int parse_expr(struct parser *p, unsigned parentheses);

static int parse_primary(struct parser *p, unsigned parentheses)
{
	size_t n = word_len(p);
	struct rx_token t;
	char tmp[60];
	int rc;

	if (skip(p, "(")) {
		if (parentheses == RECIPE_MAX_STACK)
			return BAD(p, "the expression is too long");
		rc = parse_expr(p, parentheses + 1);
		return rc ? rc : expect(p, ")");
	}
	if (is_one_of(peek(p), digits))
		return parse_integer(p);
	if (!n)
		return expected(p, "a number or a name");
	if (p->at + n < p->end && p->at[n] == '.' &&
	    (is(p->at, n, "config") || is(p->at, n, "args"))) {
		p->at += n;
		return parse_fact(p, n == 4 ? RECIPE_ARGS : RECIPE_CONFIG);
	}
	if (find_name(p, p->at, n, &t))
		return BAD(p, "there is no param or loop '%s'",
			   text_show(p->at, n, tmp, sizeof(tmp)));
	p->at += n;
	return push_value(p, &t);
}

static int parse_operators(struct parser *p, unsigned parentheses, bool products)
{
	static const enum rx_op ops[][3] = { { RX_ADD, RX_SUB }, { RX_MUL, RX_DIV, RX_MOD } };
	const char *marks = products ? "*/%" : "+-";
	int rc = products ? parse_primary(p, parentheses) : parse_operators(p, parentheses, true);

	while (!rc && is_one_of(peek(p), marks)) {
		enum rx_op op = ops[products][strchr(marks, *p->at) - marks];

		p->at++;
		rc = products ? parse_primary(p, parentheses)
			      : parse_operators(p, parentheses, true);
		if (!rc)
			rc = add_tokens(p, (struct rx_token){ .op = op });
		p->depth--;
	}
	return rc;
}

static int parse_expr(struct parser *p, unsigned parentheses)
{
	return parse_operators(p, parentheses, false);
}

static int parse_whole_expr(struct parser *p, struct run *ret)
{
	uint32_t at = p->r->n_tokens;
	int rc;

	p->depth = 0;
	rc = parse_expr(p, 0);
	*ret = (struct run){ at, p->r->n_tokens - at };
	return rc;
}

/* ---- names ---- */

static int parse_number_part(struct parser *p)
{
	struct name_part part = { .kind = PART_NUMBER };
	int rc;

	p->at++;
	rc = parse_whole_expr(p, &part.expr);
	if (!rc)
		rc = expect(p, "}");
	return rc ? rc : add_parts(p, part);
}

/* Parses "[i]." after a dot; the part includes the dot. */
static int parse_stacked_part(struct parser *p, const char *start)
{
	struct name_part part = { .kind = PART_STACKED };
	struct rx_token t;
	size_t n;

	if (p->at == start || p->at[-1] != '.')
		return BAD(p, "in a name '[' must follow a dot; axes must follow a blank");
	p->at++;
	n = word_len(p);
	if (!n || find_name(p, p->at, n, &t) || t.op != RX_LOOP)
		return expected(p, "the name of a loop");
	part.loop = (uint32_t)t.number;
	p->at += n;
	if (p->end - p->at < 2 || memcmp(p->at, "].", 2) != 0)
		return expected(p, "']' and a dot");
	p->at += 2;
	return add_parts(p, part);
}

static int parse_text_part(struct parser *p)
{
	struct name_part part = { .kind = PART_TEXT };
	const char *s = p->at;

	while (p->at < p->end && !is_one_of(*p->at, " \t\r{}[]"))
		p->at++;
	part.len = (size_t)(p->at - s);
	part.text = string(p, s, part.len);
	return add_parts(p, part);
}

/* A name up to a blank; `stored` names may contain [i]. */
static int parse_name(struct parser *p, bool stored, struct run *ret)
{
	uint32_t at = p->r->n_parts, brackets = 0;
	const char *start;
	int rc = 0;

	if (!peek(p))
		return expected(p, "a name");
	start = p->at;
	while (!rc && p->at < p->end && !is_one_of(*p->at, " \t\r")) {
		if (*p->at == '{') {
			rc = parse_number_part(p);
		} else if (*p->at == '[' && stored) {
			if (++brackets > RECIPE_MAX_BRACKETS)
				return BAD(p, "more than %d brackets in a name",
					   RECIPE_MAX_BRACKETS);
			rc = parse_stacked_part(p, start);
		} else if (is_one_of(*p->at, "}[]")) {
			return BAD(p, "'%c' in a name", *p->at);
		} else {
			rc = parse_text_part(p);
		}
	}
	*ret = (struct run){ at, p->r->n_parts - at };
	return rc;
}

/* ---- OUT = STORED [AXES] | ... ---- */

static int parse_factor(struct parser *p)
{
	struct factor f = { 0 };
	struct run first;
	int rc;

	f.any = skip_word(p, "any");
	if (f.any)
		return add_factors(p, f);
	rc = parse_whole_expr(p, &first);
	if (!rc && skip(p, "..")) {
		f.cut = true;
		rc = parse_whole_expr(p, &f.to);
	} else {
		f.one = true;
	}
	if (rc)
		return rc;
	if (!skip_word(p, "of")) {
		if (f.cut)
			return expected(p, "'of'");
		f.one = false;
		f.of = first;
		return add_factors(p, f);
	}
	f.cut = true;
	f.from = first;
	f.any = skip_word(p, "any");
	if (!f.any)
		rc = parse_whole_expr(p, &f.of);
	return rc ? rc : add_factors(p, f);
}

static int parse_axis(struct parser *p)
{
	struct run axis = { p->r->n_factors, 0 };
	bool any = false, swap = false;

	do {
		bool swapped = swap;
		int rc;

		swap = skip_word(p, "swap");
		if (swap && swapped)
			return BAD(p, "'swap' before a factor that is swapped already");
		rc = parse_factor(p);
		if (rc)
			return rc;
		p->r->factors[p->r->n_factors - 1].swap = swap;
		any |= p->r->factors[p->r->n_factors - 1].any;
		if (++axis.n > RECIPE_MAX_FACTORS)
			return BAD(p, "more than %d factors in an axis", RECIPE_MAX_FACTORS);
	} while (skip(p, ":"));
	if (swap)
		return expected(p, "':' and the factor to swap with");
	if (any && axis.n > 1)
		return BAD(p, "'any' must be alone in its axis");
	return add_axes(p, axis);
}

/* Does an axis remain in the result? */
static bool is_kept(const struct recipe *r, struct run axis)
{
	const struct factor *f = &r->factors[axis.at];

	return axis.n > 1 || !f->cut || !f->one;
}

/* The numbers of all axes of the selection, in the order of the result, joined by colons. */
static int parse_order(struct parser *p, struct rule_source *s)
{
	uint64_t taken = 0;
	uint32_t kept = 0;

	for (uint32_t i = s->axes.at; i < p->r->n_axes; i++)
		kept += is_kept(p->r, p->r->axes[i]);
	if (kept > CKPT_MAX_DIMS)
		return BAD(p, "more than %d axes", CKPT_MAX_DIMS);
	s->order.at = p->r->n_orders;
	for (; s->order.n < kept; s->order.n++) {
		uint8_t joined = s->order.n && skip(p, ":") ? ORDER_JOINED : 0;
		uint64_t v = 0;
		int rc;

		if (!is_one_of(peek(p), digits))
			return expected(p, "the number of an axis");
		for (; p->at < p->end && is_one_of(*p->at, digits); p->at++)
			v = v < CKPT_MAX_DIMS ? 10 * v + (uint64_t)(*p->at - '0') : v;
		if (v >= kept || taken >> v & 1)
			return BAD(p, "'order' needs each number from 0 to %u once", kept - 1);
		taken |= (uint64_t)1 << v;
		rc = add_orders(p, (uint8_t)v | joined);
		if (rc)
			return rc;
	}
	return 0;
}

/* WORD and an opening parenthesis. */
static bool skip_call(struct parser *p, const char *word)
{
	size_t n = word_len(p);

	if (!is(p->at, n, word) || p->end - p->at == (ptrdiff_t)n || p->at[n] != '(')
		return false;
	p->at += n + 1;
	return true;
}

/* The number to compute with; inside parentheses, any expression. */
static int parse_operand(struct parser *p, struct computation *c, bool inside)
{
	uint32_t at = p->r->n_tokens;
	int rc;

	if (!inside && skip_call(p, "bfloat16")) {
		c->bfloat16 = true;
		rc = parse_operand(p, c, true);
		return rc ? rc : expect(p, ")");
	}
	if (skip_call(p, "sqrt")) {
		c->root = true;
		rc = parse_whole_expr(p, &c->number);
		return rc ? rc : expect(p, ")");
	}
	if (inside)
		return parse_whole_expr(p, &c->number);
	p->depth = 0;
	rc = parse_primary(p, 0);
	c->number = (struct run){ at, p->r->n_tokens - at };
	return rc;
}

static int parse_computation(struct parser *p, struct computation *c)
{
	static const struct {
		const char *word;
		enum arith_op op;
		bool minus;
	} known[] = { { "times", ARITH_TIMES, false },
		      { "over", ARITH_OVER, false },
		      { "plus", ARITH_PLUS, false },
		      { "minus", ARITH_PLUS, true } };

	for (size_t i = 0; i < ARRAY_LEN(known); i++)
		if (skip_word(p, known[i].word)) {
			c->op = (uint8_t)known[i].op;
			c->minus = known[i].minus;
			return parse_operand(p, c, false);
		}
	return 0;
}

static int parse_source(struct parser *p, bool joined)
{
	struct rule_source s = { .axes.at = p->r->n_axes, .joined = joined };
	int rc = parse_name(p, true, &s.name);

	if (!rc)
		rc = expect(p, "[");
	if (rc)
		return rc;
	if (!skip(p, "]")) {
		do
			rc = parse_axis(p);
		while (!rc && skip(p, ","));
		if (!rc)
			rc = expect(p, "]");
	}
	s.axes.n = p->r->n_axes - s.axes.at;
	if (!rc && skip_word(p, "order"))
		rc = parse_order(p, &s);
	if (!rc)
		rc = parse_computation(p, &s.compute);
	return rc ? rc : add_sources(p, s);
}

static int parse_rule(struct parser *p)
{
	struct statement s = { .kind = DO_RULE, .line = p->line };
	int rc = parse_name(p, false, &s.name);

	if (rc)
		return rc;
	s.optional = skip_on(p, "?=");
	if (!s.optional && !skip_on(p, "="))
		return expected(p, "'=' or '?='");
	s.sources.at = p->r->n_sources;
	do {
		rc = parse_source(p, false);
		while (!rc && skip_on(p, "+"))
			rc = parse_source(p, true);
	} while (!rc && skip_on(p, "|"));
	if (!rc)
		rc = expect_end(p);
	s.sources.n = p->r->n_sources - s.sources.at;
	return rc ? rc : add_statements(p, s);
}

/* ---- the other statements ---- */

static int parse_new_name(struct parser *p, const char **ret)
{
	static const char *const taken[] = { "any",    "args",	 "config", "else",
					     "end",    "for",	 "if",	   "in",
					     "none",   "of",	 "param",  "prefix",
					     "refuse", "ignore", "stored", "swap" };
	size_t n = word_len(p);
	struct rx_token t;
	char tmp[60];

	if (!n)
		return expected(p, "a name");
	for (size_t i = 0; i < ARRAY_LEN(taken); i++)
		if (is(p->at, n, taken[i]))
			return BAD(p, "'%s' is a reserved word", taken[i]);
	if (!find_name(p, p->at, n, &t))
		return BAD(p, "there is a param or loop '%s' already",
			   text_show(p->at, n, tmp, sizeof(tmp)));
	*ret = string(p, p->at, n);
	p->at += n;
	return 0;
}

static int parse_choice(struct parser *p)
{
	struct choice c = { 0 };
	int rc = parse_whole_expr(p, &c.value);

	if (!rc && skip_word(p, "if"))
		rc = parse_whole_expr(p, &c.condition);
	return rc ? rc : add_choices(p, c);
}

static int parse_param(struct parser *p)
{
	struct param v = { .line = p->line, .choices.at = p->r->n_choices };
	int rc;

	if (p->n_open)
		return BAD(p, "param inside for or if");
	if (p->r->n_params == RECIPE_MAX_PARAMS)
		return BAD(p, "more than %d params", RECIPE_MAX_PARAMS);
	rc = parse_new_name(p, &v.name);
	if (!rc)
		rc = expect(p, "=");
	p->facts = true;
	if (!rc) {
		do
			rc = parse_choice(p);
		while (!rc && skip_on(p, "|"));
	}
	p->facts = false;
	if (!rc)
		rc = expect_end(p);
	v.choices.n = p->r->n_choices - v.choices.at;
	return rc ? rc : add_params(p, v);
}

static int parse_refuse(struct parser *p)
{
	struct statement s = { .kind = DO_REFUSE, .line = p->line };
	int rc;

	p->facts = true;
	rc = parse_whole_expr(p, &s.to);
	p->facts = false;
	if (rc)
		return rc;
	if (!peek(p))
		return expected(p, "a text");
	while (is_one_of(p->end[-1], " \t\r"))
		p->end--;
	s.text = string(p, p->at, (size_t)(p->end - p->at));
	return add_statements(p, s);
}

static int parse_prefix(struct parser *p)
{
	size_t n = blank_word_len(p);
	int rc = 0;

	if (p->r->probe)
		return BAD(p, "a second prefix statement");
	p->r->probe = string(p, p->at, n);
	p->r->probe_line = p->line;
	p->at += n;
	if (!peek(p))
		return expected(p, "a prefix");
	while (!rc && (n = blank_word_len(p))) {
		rc = add_prefixes(p, is(p->at, n, "none") ? "" : string(p, p->at, n));
		p->at += n;
	}
	return rc;
}

static int parse_ignore(struct parser *p)
{
	size_t n;
	int rc = peek(p) ? 0 : expected(p, "a glob");

	while (!rc && (n = blank_word_len(p))) {
		rc = add_ignored(p, string(p, p->at, n));
		p->at += n;
	}
	return rc;
}

static int open_block(struct parser *p, struct statement s)
{
	int rc = expect_end(p);

	if (rc)
		return rc;
	if (p->n_open == RECIPE_MAX_DEPTH)
		return BAD(p, "more than %d nested for and if", RECIPE_MAX_DEPTH);
	p->open[p->n_open++] = p->r->n_statements;
	return add_statements(p, s);
}

static int parse_for(struct parser *p)
{
	struct statement s = { .kind = DO_FOR, .line = p->line, .loop = (uint32_t)p->n_loops };
	const char *name = NULL;
	int rc = parse_new_name(p, &name);

	if (!rc && !skip_word(p, "in"))
		rc = expected(p, "'in'");
	if (!rc)
		rc = parse_whole_expr(p, &s.to);
	if (!rc && skip(p, "..")) {
		s.from = s.to;
		rc = parse_whole_expr(p, &s.to);
	}
	if (!rc)
		rc = open_block(p, s);
	if (!rc)
		p->loops[p->n_loops++] = name;
	return rc;
}

static int parse_if(struct parser *p)
{
	struct statement s = { .kind = DO_IF, .line = p->line };
	int rc = skip_word(p, "stored") ? parse_name(p, true, &s.name) : expected(p, "'stored'");

	return rc ? rc : open_block(p, s);
}

static struct statement *innermost(struct parser *p)
{
	return p->n_open ? &p->r->statements[p->open[p->n_open - 1]] : NULL;
}

static int parse_else(struct parser *p)
{
	struct statement *s = innermost(p);

	if (!s || s->kind != DO_IF || s->other)
		return BAD(p, "'else' without 'if'");
	s->other = p->r->n_statements;
	return expect_end(p);
}

static int parse_end(struct parser *p)
{
	struct statement *s = innermost(p);

	if (!s)
		return BAD(p, "'end' without 'for' or 'if'");
	s->end = p->r->n_statements;
	if (!s->other)
		s->other = s->end;
	p->n_loops -= s->kind == DO_FOR;
	p->n_open--;
	return expect_end(p);
}

static int parse_line(struct parser *p)
{
	static const struct {
		const char *word;
		int (*parse)(struct parser *p);
	} known[] = {
		{ "param", parse_param },   { "refuse", parse_refuse }, { "prefix", parse_prefix },
		{ "ignore", parse_ignore }, { "for", parse_for },	{ "if", parse_if },
		{ "else", parse_else },	    { "end", parse_end },
	};
	size_t n;

	if (memchr(p->at, 0, (size_t)(p->end - p->at)))
		return BAD(p, "a NUL byte");
	n = blank_word_len(p);
	if (!n)
		return 0;
	for (size_t i = 0; i < ARRAY_LEN(known); i++)
		if (is(p->at, n, known[i].word)) {
			p->at += n;
			return known[i].parse(p);
		}
	return parse_rule(p);
}

int recipe_parse(const char *text, size_t len, const char *file, struct recipe **ret,
		 struct ckpt_err *e)
{
	struct recipe *r = calloc(1, sizeof(*r));
	struct parser p = { .r = r, .e = e, .next = text, .stop = text + len };
	int rc = 0;

	if (!r)
		return err_nomem(e);
	r->file = strdup(file);
	if (len > RECIPE_MAX_FILE)
		rc = err_set(e, EFBIG, "%.100s: more than %zu KiB", file, RECIPE_MAX_FILE >> 10);
	else if (!r->file || !(r->strings = malloc(2 * len + 1)))
		rc = err_nomem(e);
	while (!rc && next_line(&p))
		rc = parse_line(&p);
	if (!rc && p.n_open)
		rc = recipe_bad(r, innermost(&p)->line, e, "this has no 'end'");
	if (rc) {
		recipe_free(r);
		return rc;
	}
	*ret = r;
	return 0;
}

void recipe_free(struct recipe *r)
{
	if (!r)
		return;
#define RECIPE_ARRAY(type, name) free(r->name);
	RECIPE_ARRAYS(RECIPE_ARRAY)
#undef RECIPE_ARRAY
	free(r->strings);
	free(r->file);
	free(r);
}
