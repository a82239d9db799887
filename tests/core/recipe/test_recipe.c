/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buf.h"
#include "base/checked.h"
#include "base/err.h"
#include "fault.h"
#include "model/box.h"
#include "recipe_util.h"
#include "rng.h"
#include "suites.h"
#include "tensor/vtensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define U(...) \
	(const uint64_t[]) \
	{ \
		__VA_ARGS__ \
	}
#define TEXT(s) s, sizeof(s) - 1

/* ---- the language ---- */

#define STEPS \
	"the recipe needs more than 2147483648 steps: rounds of loops, times alternatives, times " \
	"the length of names and expressions"
#define RESULTS "the names and pieces of the recipe's results need more than 512 MiB"

static const struct {
	const char *text;
	size_t len;
	const char *says;
} wrong[] = {
	{ TEXT("\n\nend"), "R:3: 'end' without 'for' or 'if'" },
	{ TEXT("# x\nelse"), "R:2: 'else' without 'if'" },
	{ TEXT("for i in 3\nelse\nend"), "R:2: 'else' without 'if'" },
	{ TEXT("if stored a\nelse\nelse\nend"), "R:3: 'else' without 'if'" },
	{ TEXT("for i in 3\nif stored a\nend\n"), "R:1: this has no 'end'" },
	{ TEXT("if stored a\n"), "R:1: this has no 'end'" },
	{ TEXT("if a"), "R:1: 'stored' expected, not 'a'" },
	{ TEXT("for i"), "R:1: 'in' expected, not the end of the line" },
	{ TEXT("for 3 in 3"), "R:1: a name expected, not '3 in 3'" },
	{ TEXT("for any in 3"), "R:1: 'any' is a reserved word" },
	{ TEXT("for i in 3 4"), "R:1: the end of the line expected, not '4'" },
	{ TEXT("for i in 3\nfor i in 3"), "R:2: there is a param or loop 'i' already" },
	{ TEXT("param i = 1\nfor i in 3"), "R:2: there is a param or loop 'i' already" },
	{ TEXT("for a in 1\nfor b in 1\nfor c in 1\nfor d in 1\nfor e in 1\nfor f in 1\n"
	       "for g in 1\nfor h in 1\nfor k in 1\n"),
	  "R:9: more than 8 nested for and if" },
	{ TEXT("param a"), "R:1: '=' expected, not the end of the line" },
	{ TEXT("param a = "), "R:1: a number or a name expected, not the end of the line" },
	{ TEXT("param a = b"), "R:1: there is no param or loop 'b'" },
	{ TEXT("param a = config.x |"),
	  "R:1: a number or a name expected, not the end of the line" },
	{ TEXT("param a = config. x"), "R:1: a key expected, not 'x'" },
	{ TEXT("param a = (1 + 2"), "R:1: ')' expected, not the end of the line" },
	{ TEXT("param a = 1 ? 2"), "R:1: the end of the line expected, not '? 2'" },
	{ TEXT("param a = 18446744073709551616"), "R:1: a number of more than 64 bits" },
	{ TEXT("param a = 1\nparam a = 2"), "R:2: there is a param or loop 'a' already" },
	{ TEXT("for i in 2\nparam a = 2"), "R:2: param inside for or if" },
	{ TEXT("param a = 1 if"), "R:1: a number or a name expected, not the end of the line" },
	{ TEXT("refuse args.x"), "R:1: a text expected, not the end of the line" },
	{ TEXT("prefix a"), "R:1: a prefix expected, not the end of the line" },
	{ TEXT("prefix a none\nprefix a none"), "R:2: a second prefix statement" },
	{ TEXT("ignore # a"), "R:1: a glob expected, not the end of the line" },
	{ TEXT("out"), "R:1: '=' or '?=' expected, not the end of the line" },
	{ TEXT("out in [1]"), "R:1: '=' or '?=' expected, not 'in [1]'" },
	{ TEXT("out = "), "R:1: a name expected, not the end of the line" },
	{ TEXT("out = in"), "R:1: '[' expected, not the end of the line" },
	{ TEXT("out = in[3]"), "R:1: in a name '[' must follow a dot; axes must follow a blank" },
	{ TEXT("out = in [3"), "R:1: ']' expected, not the end of the line" },
	{ TEXT("out = in [,]"), "R:1: a number or a name expected, not ',]'" },
	{ TEXT("out = in [0..3]"), "R:1: 'of' expected, not ']'" },
	{ TEXT("out = in [0..3 of]"), "R:1: a number or a name expected, not ']'" },
	{ TEXT("out = in [any : 2]"), "R:1: 'any' must be alone in its axis" },
	{ TEXT("out = in [2 : 1 of any]"), "R:1: 'any' must be alone in its axis" },
	{ TEXT("out = in [1:1:1:1:1:1:1:1:1]"), "R:1: more than 8 factors in an axis" },
	{ TEXT("out = in [swap 2]"), "R:1: ':' and the factor to swap with expected, not ']'" },
	{ TEXT("out = in [swap 2 : swap 2 : 2]"),
	  "R:1: 'swap' before a factor that is swapped already" },
	{ TEXT("out = in [2, 3] order"),
	  "R:1: the number of an axis expected, not the end of the line" },
	{ TEXT("out = in [2, 3] order 1"),
	  "R:1: the number of an axis expected, not the end of the line" },
	{ TEXT("out = in [2, 3] order 1 1"), "R:1: 'order' needs each number from 0 to 1 once" },
	{ TEXT("out = in [2, 3] order 0 2"), "R:1: 'order' needs each number from 0 to 1 once" },
	{ TEXT("out = in [2, 3] order 0 18446744073709551617"),
	  "R:1: 'order' needs each number from 0 to 1 once" },
	{ TEXT("out = in [2, 3] order 1 0 0"), "R:1: the end of the line expected, not '0'" },
	{ TEXT("out = in [1 of 2, 3] order 1 0"),
	  "R:1: 'order' needs each number from 0 to 0 once" },
	{ TEXT("out = in [2, 3] order 0:0"), "R:1: 'order' needs each number from 0 to 1 once" },
	{ TEXT("out = in [2, 3] order 0:"),
	  "R:1: the number of an axis expected, not the end of the line" },
	{ TEXT("out = in [2, 3] order :0 1"), "R:1: the number of an axis expected, not ':0 1'" },
	{ TEXT("out = in [2, 3] order 0 1:"), "R:1: the end of the line expected, not ':'" },
	{ TEXT("out = in [2] times"), "R:1: a number or a name expected, not the end of the line" },
	{ TEXT("out = in [2] times 1.5"), "R:1: the end of the line expected, not '.5'" },
	{ TEXT("out = in [2] times -1"), "R:1: a number or a name expected, not '-1'" },
	{ TEXT("out = in [2] over sqrt(2"), "R:1: ')' expected, not the end of the line" },
	{ TEXT("out = in [2] over sqrt 2"), "R:1: there is no param or loop 'sqrt'" },
	{ TEXT("out = in [2] over bfloat16(sqrt(2)"),
	  "R:1: ')' expected, not the end of the line" },
	{ TEXT("out = in [2] over bfloat16(bfloat16(2))"),
	  "R:1: there is no param or loop 'bfloat16'" },
	{ TEXT("out = in [2] times 2 plus 1"), "R:1: the end of the line expected, not 'plus 1'" },
	{ TEXT("out = in [2] times 2 order 0"),
	  "R:1: the end of the line expected, not 'order 0'" },
	{ TEXT("param a = config.x is"), "R:1: a word expected, not the end of the line" },
	{ TEXT("param a = 1 is x"), "R:1: the end of the line expected, not 'is x'" },
	{ TEXT("param a = config.x. y"), "R:1: the end of the line expected, not '. y'" },
	{ TEXT("out = in [2, 3] order 0, 1"), "R:1: the number of an axis expected, not ', 1'" },
	{ TEXT("out = in [2] +"), "R:1: a name expected, not the end of the line" },
	{ TEXT("out = in [2] + | in [2]"), "R:1: '[' expected, not 'in [2]'" },
	{ TEXT("out = + in [2]"), "R:1: '[' expected, not 'in [2]'" },
	{ TEXT("param swap = 1"), "R:1: 'swap' is a reserved word" },
	{ TEXT("out = in [1] 2"), "R:1: the end of the line expected, not '2'" },
	{ TEXT("out = in [config.x]"),
	  "R:1: config. and args. are only allowed in param and refuse" },
	{ TEXT("out{1 = in [1]"), "R:1: '}' expected, not '= in [1]'" },
	{ TEXT("out} = in [1]"), "R:1: '}' in a name" },
	{ TEXT("a.[i].b = in [1]"), "R:1: '[' in a name" },
	{ TEXT("out = a.[i].b [1]"), "R:1: the name of a loop expected, not 'i].b [1]'" },
	{ TEXT("param i = 1\nout = a.[i].b [1]"),
	  "R:2: the name of a loop expected, not 'i].b [1]'" },
	{ TEXT("for i in 2\nout = a.[i] [1]"), "R:2: ']' and a dot expected, not '] [1]'" },
	{ TEXT("for i in 2\nout = a.[i].[i].[i].[i].[i].b [1]"),
	  "R:2: more than 4 brackets in a name" },
	{ TEXT("a = b [1]\n\0"), "R:2: a NUL byte" },
};

START_LOOP_TEST(what_is_wrong_is_named_with_its_line, ARRAY_LEN(wrong))
{
	struct recipe *r = NULL;
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(recipe_parse(wrong[_i].text, wrong[_i].len, "R", &r, &e), -EINVAL);
	ck_assert_str_eq(e.msg, wrong[_i].says);
	ck_assert_int_eq(e.code, EINVAL);
	ck_assert_ptr_null(r);
}
END_TEST

START_TEST(expressions_and_files_are_bounded)
{
	static char text[RECIPE_MAX_FILE + 1];
	struct recipe *r = NULL;
	struct ckpt_err e = { 0 };
	size_t n;

	memset(text, '\n', sizeof(text));
	ck_assert_int_eq(recipe_parse(text, sizeof(text), "R", &r, &e), -EFBIG);
	ck_assert_str_eq(e.msg, "R: more than 1024 KiB");
	n = (size_t)sprintf(text, "param a = ");
	memset(text + n, '(', 1000);
	ck_assert_int_eq(recipe_parse(text, n + 1000, "R", &r, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "R:1: the expression is too long");
	for (int i = 0; i < 100; i++) /* to the right: each number has to wait for the next */
		n += (size_t)sprintf(text + n, "1+(");
	ck_assert_int_eq(recipe_parse(text, n, "R", &r, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "R:1: the expression is too long");
	n = (size_t)sprintf(text, "param a = 1");
	for (int i = 0; i < 10000; i++) /* to the left: they need not */
		n += (size_t)sprintf(text + n, "+1");
	ck_assert_int_eq(recipe_parse(text, n, "R", &r, &e), 0);
	recipe_free(r);
}
END_TEST

/* ---- what is made ---- */

static struct store *new_store(const struct fact *facts)
{
	struct store *s = calloc(1, sizeof(*s));

	REQUIRE(s);
	s->facts = facts;
	return s;
}

static void free_store(struct store *s)
{
	namelist_release(&s->names);
	free(s);
}

static struct recipe *parse(const char *text)
{
	struct recipe *r = NULL;
	struct ckpt_err e = { 0 };

	ck_assert_msg(!recipe_parse(text, strlen(text), "R", &r, &e), "%s", e.msg);
	return r;
}

/* For each result, "NAME[SHAPE] = STORED@ELEMENT ELEMENT ...": the stored element that each of its
 * elements is. */
static void show_element(const struct store *s, const struct vtensor *v, const uint64_t *x,
			 uint32_t *ret_source, uint64_t *ret_element)
{
	size_t found = 0;

	for (uint32_t i = 0; i < v->n_pieces; i++) {
		const struct piece *p = &v->pieces[i];
		const struct stored *t = &s->tensors[p->source];
		uint64_t y[CKPT_MAX_DIMS], at = 0;
		bool inside = true;

		REQUIRE(p->n_source == t->n_dims);
		for (size_t d = 0; d < v->n_dims; d++)
			inside &= x[d] >= p->off[d] && x[d] - p->off[d] < p->len[d];
		if (!inside)
			continue;
		memcpy(y, p->base, p->n_source * sizeof(*y));
		for (size_t d = 0; d < v->n_dims; d++)
			y[p->dim[d]] += p->coeff[d] * (x[d] - p->off[d]);
		for (size_t d = 0; d < t->n_dims; d++) {
			REQUIRE(y[d] < t->shape[d]);
			at = at * t->shape[d] + y[d];
		}
		*ret_source = p->source;
		*ret_element = at;
		found++;
	}
	REQUIRE(found == 1);
}

static bool step(size_t n, const uint64_t *shape, uint64_t *x)
{
	for (size_t d = n; d-- > 0;) {
		if (++x[d] < shape[d])
			return true;
		x[d] = 0;
	}
	return false;
}

static bool empty(const struct vtensor *v)
{
	bool none = false;

	for (size_t d = 0; d < v->n_dims; d++)
		none |= !v->shape[d];
	return none;
}

/* "out[2,3]=in:0 1 2 3 4 5; ...", with a name only where it changes. */
static const char *show(const struct store *s, const struct recipe_out *o)
{
	static char out[4000];
	size_t at = 0;

	out[0] = 0;
	for (size_t i = 0; i < o->names.n; i++) {
		const struct vtensor *v = o->tensors[o->names.v[i].index];
		uint64_t x[CKPT_MAX_DIMS] = { 0 }, element;
		uint32_t source, last;

		at += (size_t)sprintf(out + at, "%s%s[", i ? "; " : "", o->names.v[i].fqn);
		for (size_t d = 0; d < v->n_dims; d++)
			at += (size_t)sprintf(out + at, "%s%d", d ? "," : "", (int)v->shape[d]);
		at += (size_t)sprintf(out + at, "]");
		if (v->arith.op)
			at += (size_t)sprintf(out + at, "%c%g", "?*/+"[v->arith.op],
					      (double)v -> arith.number);
		at += (size_t)sprintf(out + at, "=");
		if (empty(v))
			continue;
		show_element(s, v, x, &source, &element);
		at += (size_t)sprintf(out + at, "%s:", s->tensors[source].name);
		last = source;
		do {
			show_element(s, v, x, &source, &element);
			if (source != last)
				at += (size_t)sprintf(out + at, " %s:", s->tensors[source].name);
			last = source;
			at += (size_t)sprintf(out + at, " %d", (int)element);
		} while (step(v->n_dims, v->shape, x));
	}
	return out;
}

static void add_sample(struct store *s)
{
	store_add(s, "a", 2, U(4, 3));
	store_add(s, "m.s.w", 2, U(2, 3)); /* stacked by 2 */
	store_add(s, "m.0.k.w", 1, U(3));
	store_add(s, "m.1.k.w", 1, U(3));
	store_add(s, "both.w", 1, U(2));
	store_add(s, "both.0.w", 0, NULL);
	store_add(s, "e.0.x.w", 2, U(2, 1)); /* experts numbered after the layer */
	store_add(s, "e.1.x.w", 2, U(2, 1));
	store_add(s, "f.x.w", 3, U(2, 2, 1)); /* layers, experts */
	store_add(s, "scalar", 0, NULL);
	store_add(s, "none", 2, U(0, 5));
	store_add(s, "four", 4, U(2, 3, 2, 2));
}

#define REST "ignore *\n"

static const struct fact facts[] = { { RECIPE_CONFIG, "two", 2 },
				     { RECIPE_CONFIG, "zero", 0 },
				     { RECIPE_ARGS, "two", 5 },
				     { RECIPE_CONFIG, "kind=some-3.1", 0 },
				     { RECIPE_CONFIG, "a.b_2.c", 4 },
				     { RECIPE_CONFIG, "a.kind=x", 0 },
				     { RECIPE_ARGS, "three", 3 },
				     { RECIPE_ARGS, "odd", UINT64_MAX },
				     { 0, NULL, 0 } };

static const struct {
	const char *text, *shows;
} makes[] = {
	{ "o = a [4, 3]", "o[4,3]=a: 0 1 2 3 4 5 6 7 8 9 10 11" },
	{ "o = a [any, any]", "o[4,3]=a: 0 1 2 3 4 5 6 7 8 9 10 11" },
	{ "o = a [1..3 of 4, 3]", "o[2,3]=a: 3 4 5 6 7 8" },
	{ "o = a [0..1 of any, 1..3 of 3]", "o[1,2]=a: 1 2" },
	{ "o = a [1 of 4, 3]", "o[3]=a: 3 4 5" },
	{ "o = a [3, 2 of any]", NULL },
	{ "o = a [4, 2 of any]", "o[4]=a: 2 5 8 11" },
	{ "o = a [3 of 4, 2 of 3]", "o[]=a: 11" },
	{ "o = a [2 : 0 of 2, 3]", "o[2,3]=a: 0 1 2 6 7 8" },
	{ "o = a [1 of 2 : 2, 3]", "o[2,3]=a: 6 7 8 9 10 11" },
	{ "o = a [1 of 2 : 0 of 2, 3]", "o[1,3]=a: 6 7 8" },
	{ "o = a [2 : 1 of 2, 0 of 3]", "o[2]=a: 3 9" },
	{ "o = a [2 : 1 of 2, 3 : 1]", "o[2,3]=a: 3 4 5 9 10 11" },
	/* Swapped. */
	{ "o = a [swap 2 : 2, 3]", "o[4,3]=a: 0 1 2 6 7 8 3 4 5 9 10 11" },
	{ "o = a [swap 1 : 4, 3]", "o[4,3]=a: 0 1 2 3 4 5 6 7 8 9 10 11" },
	{ "o = a [swap 2 : 1 of 2, swap 3 : 1]", "o[2,3]=a: 3 4 5 9 10 11" },
	{ "o = a [swap 1 of 2 : 2, 1..3 of 3]", "o[2,2]=a: 7 8 10 11" },
	{ "o = a [swap 2 : 1..1 of 2, 3]", "o[0,3]=" },
	{ "o = none [swap 0 : 3, 5]", "o[0,5]=" },
	/* Axes exchanged. */
	{ "o = a [4, 3] order 1 0", "o[3,4]=a: 0 3 6 9 1 4 7 10 2 5 8 11" },
	{ "o = a [4, 3] order 0 1", "o[4,3]=a: 0 1 2 3 4 5 6 7 8 9 10 11" },
	{ "o = a [swap 2 : 2, 1..3 of 3] order 1 0", "o[2,4]=a: 1 7 4 10 2 8 5 11" },
	{ "o = a [1 of 4, 3] order 0", "o[3]=a: 3 4 5" },
	{ "o = scalar [] order", "o[]=scalar: 0" },
	{ "o = none [0, 5] order 1 0", "o[5,0]=" },
	{ "for i in 2\no.{i} = f.[i].x.w [2, 1] order 1 0\nend",
	  "o.0[1,2]=f.x.w: 0 1; o.1[1,2]=f.x.w: 2 3" },
	/* Axes joined. */
	{ "o = a [4, 3] order 0:1", "o[12]=a: 0 1 2 3 4 5 6 7 8 9 10 11" },
	{ "o = a [4, 3] order 1:0", "o[12]=a: 0 3 6 9 1 4 7 10 2 5 8 11" },
	{ "o = a [2 : 1 of 2, swap 1 : 3] order 1 : 0", "o[6]=a: 3 9 4 10 5 11" },
	{ "o = a [1..3 of 4, 2..3 of 3] order 0:1", "o[2]=a: 5 8" },
	{ "o = a [1 of 4, 3] order 0", "o[3]=a: 3 4 5" },
	{ "o = four [2, 3, 2, 2] order 1:2 0:3",
	  "o[6,4]=four: 0 1 12 13 2 3 14 15 4 5 16 17 6 7 18 19 8 9 20 21 10 11 22 23" },
	{ "o = four [2, 1 of 3, 2, 2] order 1:2 0", "o[4,2]=four: 4 16 5 17 6 18 7 19" },
	{ "o = four [2, 3, 2, swap 1 : 2] order 3:2:1 0",
	  "o[12,2]=four: 0 12 4 16 8 20 2 14 6 18 10 22 1 13 5 17 9 21 3 15 7 19 11 23" },
	{ "o = none [0, 5] order 0:1", "o[0]=" },
	{ "o = none [0, 5] order 1:0", "o[0]=" },
	{ "for i in 2\no.{i} = f.[i].x.w [2, 1] order 1:0\nend",
	  "o.0[2]=f.x.w: 0 1; o.1[2]=f.x.w: 2 3" },
	{ "o = a [4, 3] order 1:0 + a [1 of 4, 3]", "o[15]=a: 0 3 6 9 1 4 7 10 2 5 8 11 3 4 5" },
	/* Computed. */
	{ "o = a [1 of 4, 3] times 3", "o[3]*3=a: 3 4 5" },
	{ "param x = config.two\no = a [1 of 4, 3] order 0 over x", "o[3]/2=a: 3 4 5" },
	{ "param x = 2\no = a [1 of 4, 3] times sqrt(x + 1)", "o[3]*1.73205=a: 3 4 5" },
	{ "o = a [1 of 4, 3] over bfloat16(sqrt(2048))", "o[3]/45.25=a: 3 4 5" },
	{ "o = a [1 of 4, 3] over bfloat16( 257 )", "o[3]/256=a: 3 4 5" },
	{ "o = a [1 of 4, 3] minus 1", "o[3]+-1=a: 3 4 5" },
	{ "o = a [1 of 4, 3] minus (2 * 3)", "o[3]+-6=a: 3 4 5" },
	{ "o = a [1 of 4, 3] plus 2 + a [0 of 4, 3] plus 2\n | b []", "o[6]+2=a: 3 4 5 0 1 2" },
	{ "param sqrt = 2\nparam times = 3\no = a [1 of 4, 3] times times", "o[3]*3=a: 3 4 5" },
	/* One after the other. */
	{ "o = m.0.k.w [3] + m.1.k.w [3]", "o[6]=m.0.k.w: 0 1 2 m.1.k.w: 0 1 2" },
	{ "o = a [3 of 4, 3] + a [0 of 4, 3]\n  + m.0.k.w [1..3 of 3] # there\n",
	  "o[8]=a: 9 10 11 0 1 2 m.0.k.w: 1 2" },
	{ "o = a [0..1 of 4, 3] + m.s.w [2, 3]\n\t+ a [2 : 1 of 2, 3]",
	  "o[5,3]=a: 0 1 2 m.s.w: 0 1 2 3 4 5 a: 3 4 5 9 10 11" },
	{ "o = a [4, 3] order 1 0 + a [4, 3] order 1 0",
	  "o[6,4]=a: 0 3 6 9 1 4 7 10 2 5 8 11 0 3 6 9 1 4 7 10 2 5 8 11" },
	{ "o = a [4, 1 of 3] + a [4, 0 of 3] + a [1..1 of 4, 2 of 3]", "o[8]=a: 1 4 7 10 0 3 6 9" },
	{ "o = none [0, 5] + none [0, 5]", "o[0,5]=" },
	{ "o = b [3] + a [4, 3] | a [4, 3] | c []", "o[4,3]=a: 0 1 2 3 4 5 6 7 8 9 10 11" },
	{ "o ?= b [3] + a [4, 3] + scalar []", "" },
	{ "o = m.0.k.w [3] + m.1.k.w [3] | b []", "o[6]=m.0.k.w: 0 1 2 m.1.k.w: 0 1 2" },
	{ "o = a [2..2 of 4, 3]", "o[0,3]=" },
	{ "o = a [2 : 1..1 of 2, 3]", "o[0,3]=" },
	{ "o = none [0, 5]", "o[0,5]=" },
	{ "o = none [any, 2..4 of 5]", "o[0,2]=" },
	{ "o = scalar []", "o[]=scalar: 0" },
	/* Numbers. */
	{ "param x = config.two * 2\no = a [x, (1 + 2) * 1]",
	  "o[4,3]=a: 0 1 2 3 4 5 6 7 8 9 10 11" },
	{ "param x = args.two\no = a [x - 1, any]", "o[4,3]=a: 0 1 2 3 4 5 6 7 8 9 10 11" },
	{ "param x = config.three | args.three\no.{x} = scalar []", "o.3[]=scalar: 0" },
	{ "param x = config.two if config.zero | args.three\no.{x} = scalar []",
	  "o.3[]=scalar: 0" },
	{ "param x = config.two if args.none | args.three\no.{x} = scalar []", "o.3[]=scalar: 0" },
	{ "param x = config.zero if config.two | 7\no.{x} = scalar []", "o.0[]=scalar: 0" },
	{ "param x = args.none + 1 | 7 - 2 - 1\no.{x * 2 + 8 / 4} = scalar []",
	  "o.10[]=scalar: 0" },
	{ "o.{7 % 4}{8 % 4} = scalar []", "o.30[]=scalar: 0" },
	{ "param x = config.a.b_2.c\no.{x} = scalar []", "o.4[]=scalar: 0" },
	{ "param x = 5 if config.kind is some-3.1 | 6\no.{x} = scalar []", "o.5[]=scalar: 0" },
	{ "param x = 5 if config.kind is some | 6\no.{x} = scalar []", "o.6[]=scalar: 0" },
	{ "param x = 5 if config.kind.kind is some | 6\no.{x} = scalar []", "o.6[]=scalar: 0" },
	{ "param x = (config.a.kind is x) + 2\no.{x} = scalar []", "o.3[]=scalar: 0" },
	{ "param x = config.none is x | 7\no.{x} = scalar []", "o.7[]=scalar: 0" },
	{ "param x = args.none\nparam y = args.odd\no = scalar []",
	  "o[]=scalar: 0" }, /* not needed */
	{ "refuse args.none no\nrefuse config.zero no\no = scalar []", "o[]=scalar: 0" },
	/* Names. */
	{ "o = b [3] | a [4, 3] # not there\n", "o[4,3]=a: 0 1 2 3 4 5 6 7 8 9 10 11" },
	{ "o\n  = b [3] # one\n  | scalar [] # two\n", "o[]=scalar: 0" },
	{ "o\r\n\t?= b [3]\r\n\t| scalar []\r\n", "o[]=scalar: 0" },
	{ "o ?= b [3] | c []", "" },
	{ "for i in 2\no.{i} = m.[i].s.w [3]\nend", "o.0[3]=m.s.w: 0 1 2; o.1[3]=m.s.w: 3 4 5" },
	{ "for i in 1..2\no.{i + 1} = m.[i].s.w [3]\nend", "o.2[3]=m.s.w: 3 4 5" },
	{ "for i in 2\no.{i} = m.[i].k.w [3]\nend",
	  "o.0[3]=m.0.k.w: 0 1 2; o.1[3]=m.1.k.w: 0 1 2" },
	{ "for i in 2\no.{i} = m.{i}.k.w [3]\nend",
	  "o.0[3]=m.0.k.w: 0 1 2; o.1[3]=m.1.k.w: 0 1 2" },
	{ "for i in 2\nfor j in 2\no.{i}{j} = e.[i].x.[j].w [1]\nend\nend",
	  "o.00[1]=e.0.x.w: 0; o.01[1]=e.0.x.w: 1; o.10[1]=e.1.x.w: 0; o.11[1]=e.1.x.w: 1" },
	{ "for i in 2\nfor j in 2\no.{i}{j} = f.[i].x.[j].w [1]\nend\nend",
	  "o.00[1]=f.x.w: 0; o.01[1]=f.x.w: 1; o.10[1]=f.x.w: 2; o.11[1]=f.x.w: 3" },
	{ "for i in 0\no.{i} = b []\nend\no = scalar []", "o[]=scalar: 0" },
	{ "for i in 3..2\no.{i} = b []\nend\no = scalar []", "o[]=scalar: 0" },
	{ "if stored b\no = a [4, 3]\nelse\np = scalar []\nend", "p[]=scalar: 0" },
	{ "if stored a\nif stored b\no = b []\nend\nelse\np = scalar []\nend", "" },
	{ "for i in 2\nif stored m.[i].s.w\no.{i} = scalar []\nend\nend",
	  "o.0[]=scalar: 0; o.1[]=scalar: 0" },
	{ "prefix 0.w none both.\no = w [2]", "o[2]=both.w: 0 1" },
	{ "prefix scalar none both.\no = scalar []", "o[]=scalar: 0" },
	/* The same twice. */
	{ "o = a [0..1 of 4, 3]\np = a [0 of 4, 3]", "o[1,3]=a: 0 1 2; p[3]=a: 0 1 2" },
	{ "", "" },
};

START_LOOP_TEST(results_are_the_elements_that_the_axes_choose, ARRAY_LEN(makes))
{
	struct store *s = new_store(facts);
	struct recipe_out o;
	struct recipe *r;
	struct ckpt_err e = { 0 };
	char text[500];
	int rc;

	(void)snprintf(text, sizeof(text), "%s\n%s", makes[_i].text, REST);
	add_sample(s);
	ck_assert_int_eq(store_finish(s, &e), 0);
	r = parse(text);
	rc = store_apply(s, r, &o, &e);
	if (makes[_i].shows) {
		ck_assert_msg(!rc, "%s", e.msg);
		ck_assert_str_eq(show(s, &o), makes[_i].shows);
		ck_assert_str_eq(s->warning, "");
		recipe_out_release(&o);
	} else {
		ck_assert_int_eq(rc, -EINVAL);
	}
	recipe_free(r);
	free_store(s);
}
END_TEST

static const struct {
	const char *text;
	int code;
	const char *says;
} refused[] = {
	{ "\no = a [4, 4]", EINVAL, "R:2: 'o' needs 'a' of shape [4,4], but that is [4,3]" },
	{ "o = a [4]", EINVAL, "R:1: 'o' needs 'a' of shape [4], but that is [4,3]" },
	{ "o = a [4, 3, 1]", EINVAL, "R:1: 'o' needs 'a' of shape [4,3,1], but that is [4,3]" },
	{ "o = a []", EINVAL, "R:1: 'o' needs 'a' of shape [], but that is [4,3]" },
	{ "o = scalar [1]", EINVAL, "R:1: 'o' needs 'scalar' of shape [1], but that is []" },
	{ "o = a [0..5 of any, 3]", EINVAL,
	  "R:1: 'o' needs 'a' of shape [>=5,3], but that is [4,3]" },
	{ "o = a [4 of any, 3]", EINVAL, "R:1: 'o' needs 'a' of shape [>=5,3], but that is [4,3]" },
	{ "o = a [2 : 1 of 3, 3]", EINVAL, "R:1: 'o' needs 'a' of shape [6,3], but that is [4,3]" },
	{ "o = a [0..5 of 4, 3]", EINVAL, "R:1: 'o': there is no range 0..5 in an axis of 4" },
	{ "o = a [4 of 4, 3]", EINVAL, "R:1: 'o': there is no range 4..5 in an axis of 4" },
	{ "o = a [3..2 of 4, 3]", EINVAL, "R:1: 'o': there is no range 3..2 in an axis of 4" },
	{ "param h = 9223372036854775808\no = a [h : 2, 3]", EINVAL,
	  "R:2: 'o': an axis of more than 2^64" },
	{ "o = a [4, 3] times 0", EINVAL, "R:1: 'o' multiplies or divides by 0" },
	{ "o = a [4, 3] minus (3 - 3)", EINVAL, "R:1: 'o' multiplies or divides by 0" },
	{ "o = a [4, 3] plus 1 + a [4, 3]", EINVAL,
	  "R:1: 'o': its parts are computed in different ways" },
	{ "o = a [4, 3] plus 1 + a [4, 3] plus 2", EINVAL,
	  "R:1: 'o': its parts are computed in different ways" },
	{ "param z = config.zero\no = a [4 % z, 3]", EINVAL, "R:2: 4 % 0 is not a number" },
	{ "param k = args.kind is x\no = a [k, 3]", EINVAL,
	  "R:1: no value for 'k': looked for 'kind' in the checkpoint's args (there is none)" },
	{ "param h = 1\no = a [h - 2, 3]", EINVAL, "R:2: 1 - 2 is negative" },
	{ "o = a [7 / 2, 3]", EINVAL, "R:1: 7 / 2 is not a whole number" },
	{ "o = a [7 / 0, 3]", EINVAL, "R:1: 7 / 0 is not a whole number" },
	{ "param h = 4294967296\no = a [h * h, 3]", EINVAL,
	  "R:2: 4294967296 * 4294967296 is more than 64 bits" },
	{ "for i in 3\no.{i} = m.[i].s.w [3]\nend", EINVAL,
	  "R:2: 'o.0' needs 'm.s.w' of shape [3,3], but that is [2,3]" },
	{ "for i in 1\no.{i} = both.[i].w []\nend", EINVAL,
	  "R:2: there are both 'both.0.w' and 'both.w'" },
	{ "for i in 1\nif stored both.[i].w\nend\nend", EINVAL,
	  "R:2: there are both 'both.0.w' and 'both.w'" },
	{ "o = b []", EINVAL, "R:1: 'o' needs a tensor that does not exist: 'b'" },
	{ "for i in 1\no = b.[i].w [] | c []\nend", EINVAL,
	  "R:2: 'o' needs a tensor that does not exist: 'b.0.w', 'b.w', 'c'" },
	{ "param x = config.none | args.none | args.other if config.none\no.{x} = a [4, 3]", EINVAL,
	  "R:1: no value for 'x': looked for 'none' in config.json, 'none' in the checkpoint's "
	  "args "
	  "(there is none), 'other' in the checkpoint's args (there is none)" },
	{ "param x = args.odd\no.{x} = a [4, 3]", EINVAL, "R:1: 'odd' is odd" },
	{ "refuse config.two * 2 this and that  # why\n", EINVAL, "R:1: this and that" },
	{ "prefix b none x. y.\n", EINVAL,
	  "R:1: there is no tensor 'b' with any of the prefixes none, x., y." },
	{ "o = a [4, 3] + scalar []", EINVAL,
	  "R:1: 'o': its parts differ in shape beyond the first axis" },
	{ "o = a [4, 3] + a [4, 3] order 1 0", EINVAL,
	  "R:1: 'o': its parts differ in shape beyond the first axis" },
	{ "o = scalar [] + scalar []", EINVAL,
	  "R:1: 'o': its parts have no axis to be joined along" },
	{ "o = a [4, 3] + b [3]", EINVAL, "R:1: 'o' needs a tensor that does not exist: 'b'" },
	{ "o ?= a [4, 3] + b [3] | scalar []", EINVAL,
	  "R:1: 'o' needs a tensor that does not exist: 'b'" },
	{ "o = a [4, 3] + a [4, 4] order 1 0", EINVAL,
	  "R:1: 'o' needs 'a' of shape [4,4], but that is [4,3]" },
	{ "o = a [4, 3]\no = scalar []", EEXIST, "R: 'a' and 'scalar' would both be called 'o'" },
	{ "for i in 4194304\no.{i} = scalar []\nend\n", EFBIG, "R:2: " RESULTS },
	{ "for i in 1024\nfor j in 1024\nfor k in 1024\nend\nend\nend\n", EFBIG, "R:3: " STEPS },
};

START_LOOP_TEST(what_does_not_fit_is_refused, ARRAY_LEN(refused))
{
	struct store *s = new_store(facts);
	struct recipe *r = parse(refused[_i].text);
	struct recipe_out o;
	struct ckpt_err e = { 0 };

	add_sample(s);
	ck_assert_int_eq(store_finish(s, &e), 0);
	if (refused[_i].code == EFBIG && !rng_turn((uint64_t)_i, 3)) /* a second */
		goto out;
	ck_assert_int_eq(store_apply(s, r, &o, &e), -refused[_i].code);
	if (refused[_i].code == EEXIST) { /* in any order */
		ck_assert_ptr_nonnull(strstr(e.msg, "would both be called 'o'"));
		ck_assert_ptr_eq(strstr(e.msg, "R: '"), e.msg);
	} else {
		ck_assert_str_eq(e.msg, refused[_i].says);
	}
out:
	recipe_free(r);
	free_store(s);
}
END_TEST

/* A recipe in which a part is repeated, and which makes `rounds` rounds. */
static struct recipe *grown(unsigned rounds, const char *head, const char *part, size_t times,
			    const char *tail)
{
	struct buf b = BUF_INIT(RECIPE_MAX_FILE);
	struct recipe *r;

	buf_printf(&b, "for i in %u\n%s", rounds, head);
	for (size_t i = 0; i < times; i++)
		buf_str(&b, part);
	buf_printf(&b, "%s\nend\n", tail);
	ck_assert_int_eq(b.err, 0);
	r = parse(b.data);
	buf_release(&b);
	return r;
}

/* Recipes of some kilobytes, or a megabyte, that once took gigabytes or hours. */
static const struct {
	const char *head, *part, *tail;
	size_t times;
	const char *says;
	bool slow; /* takes seconds: only with CHECK_FULL */
} multiplied[] = {
	{ "", "0123456789", "{i} = scalar []", 400, RESULTS, false },
	{ "o.{i} ?= scalar", "0123456789", " [7]", 400, STEPS, false },
	{ "if stored x.[i].[i].[i].[i].", "0123456789", "\nend", 400, STEPS, false },
	{ "o.{i} ?= x []", "\n| x []", "", 100000, STEPS, true },
	{ "o.{i + 0", " + 0", "} = scalar []", 200000, STEPS, true },
	{ "o.{i} = a [0..4 of 4", " + 0", ", 3]", 200000, STEPS, true },
	{ "", "refuse 0 x\n", "", 80000, STEPS, false },
	{ "o.{i} = a [4, 3]", " + a [4, 3] order 0 1", "", 40000, RESULTS, false },
	{ "o.{i} = a [1..1 of 4, 3]", " + none [0..0 of 0, 1..4 of 5]", "", 30000, RESULTS, false },
};

START_FEW_TEST(what_multiplies_is_counted_in_all, ARRAY_LEN(multiplied), 3)
{
	struct store *s;
	struct recipe *r;
	struct recipe_out o;
	struct ckpt_err e = { 0 };

	if (multiplied[_i].slow ? !CHECK_FULL() : !rng_turn((uint64_t)_i, 8))
		return;
	s = new_store(facts);
	r = grown(2000000, multiplied[_i].head, multiplied[_i].part, multiplied[_i].times,
		  multiplied[_i].tail);

	add_sample(s);
	ck_assert_int_eq(store_finish(s, &e), 0);
	ck_assert_int_eq(store_apply(s, r, &o, &e), -EFBIG);
	if (!strstr(e.msg, multiplied[_i].says))
		ck_abort_msg("%s", e.msg);
	recipe_free(r);
	free_store(s);
}
END_TEST

/* Each is made from the one above, so that evaluating one evaluates all. */
START_TEST(params_made_of_params_end)
{
	struct buf b = BUF_INIT(RECIPE_MAX_FILE);
	struct store *s = new_store(facts);
	struct recipe *r;
	struct recipe_out o;
	struct ckpt_err e = { 0 };

	buf_str(&b, "param p1 = 1\n");
	for (unsigned i = 2; i <= RECIPE_MAX_PARAMS; i++)
		buf_printf(&b, "param p%u = p%u + 1\n", i, i - 1);
	buf_printf(&b, "o.{p%u} = scalar []\n", RECIPE_MAX_PARAMS);
	r = parse(b.data);
	add_sample(s);
	ck_assert_int_eq(store_finish(s, &e), 0);
	ck_assert_msg(!store_apply(s, r, &o, &e), "%s", e.msg);
	ck_assert_str_eq(o.names.v[0].fqn, "o.1000");
	recipe_out_release(&o);
	recipe_free(r);
	buf_str(&b, "param one_more = 1\n");
	ck_assert_int_eq(recipe_parse(b.data, b.len, "R", &r, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "R:1002: more than 1000 params");
	buf_release(&b);
	free_store(s);
}
END_TEST

#define LARGE \
	"for j in 1000\n" \
	"model.layers.{i}.mlp.experts.{j}.gate_up_proj.weight\n" \
	"= decoder.layers.[i].mlp.experts.[j].linear_fc1.elsewhere [8]\n" \
	"| decoder.layers.[i].mlp.experts.[j].linear_fc1.weight [8]\n" \
	"end\nend\n"

/* 500,000 tensors (without CHECK_FULL, 20,000) from stacks; each is looked for under two names in
 * four forms. */
START_TEST(a_large_model_stays_far_below_the_bounds)
{
	const unsigned layers = CHECK_FULL() ? 500 : 20;
	struct store *s = new_store(NULL);
	struct recipe *r = parse(layers == 500 ? "for i in 500\n" LARGE : "for i in 20\n" LARGE);
	struct recipe_out o;
	struct ckpt_err e = { 0 };

	for (unsigned i = 0; i < STORE_CAP - 1; i++) {
		char name[80];

		(void)snprintf(name, sizeof(name), "decoder.layers.self_attention.%u", i);
		store_add(s, name, 1, U(8));
	}
	store_add(s, "decoder.layers.mlp.experts.linear_fc1.weight", 3, U(layers, 1000, 8));
	ck_assert_int_eq(store_finish(s, &e), 0);
	ck_assert_msg(!store_apply(s, r, &o, &e), "%s", e.msg);
	ck_assert_uint_eq(o.names.n, layers * 1000);
	recipe_out_release(&o);
	recipe_free(r);
	free_store(s);
}
END_TEST

START_TEST(a_tensor_of_too_many_pieces_is_refused)
{
	struct store *s = new_store(NULL);
	struct recipe *r = parse("o = a [65537 : 0 of 2]\n");
	struct recipe_out o;
	struct ckpt_err e = { 0 };

	store_add(s, "a", 1, U(2 * 65537));
	ck_assert_int_eq(store_finish(s, &e), 0);
	ck_assert_int_eq(store_apply(s, r, &o, &e), -EFBIG);
	ck_assert_str_eq(e.msg, "R:1: 'o' has more than 65536 pieces");
	recipe_free(r);
	free_store(s);
}
END_TEST

START_TEST(parts_of_too_many_pieces_or_other_dtypes_are_refused)
{
	static const struct {
		const char *text, *says;
		int code;
	} rows[] = {
		{ "o = a [40000 : 0 of 2] + a [40000 : 1 of 2]\n",
		  "R:1: 'o' has more than 65536 pieces", EFBIG },
		{ "o = a [80000] + b [1]\n", "R:1: 'o': its parts are of different dtypes",
		  EINVAL },
		{ "o = d [1] over 2",
		  "R:1: 'o' computes with 'd', which is int8: only float16, "
		  "bfloat16, float32 and float64 can be computed with",
		  EINVAL },
		{ "o = vast [0, 4, any] order 0:1:2\n", "R:1: 'o': an axis of more than 2^64",
		  EINVAL },
		{ "o = a [80000] + c [1]\n", "R:1: 'o': its parts are of different dtypes",
		  EINVAL },
		{ "o = huge [any, 0] + huge [any, 0]\n", "R:1: 'o': an axis of more than 2^64",
		  EINVAL },
	};
	struct store *s = new_store(NULL);
	struct ckpt_err e = { 0 };

	store_add(s, "a", 1, U(80000));
	store_add(s, "b", 1, U(1));
	store_add(s, "c", 1, U(1));
	store_add(s, "huge", 2, U(UINT64_MAX / 2 + 1, 0));
	store_add(s, "d", 1, U(1));
	store_add(s, "vast", 3, U(0, 4, UINT64_MAX / 2));
	ck_assert_int_eq(store_finish(s, &e), 0);
	s->sources[4].stored = CKPT_DTYPE_I8;
	s->sources[1].stored = CKPT_DTYPE_F16; /* shown alike */
	s->sources[2].shown = CKPT_DTYPE_F32;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct recipe *r = parse(rows[i].text);
		struct recipe_out o;

		ck_assert_int_eq(store_apply(s, r, &o, &e), -rows[i].code);
		ck_assert_str_eq(e.msg, rows[i].says);
		recipe_free(r);
	}
	free_store(s);
}
END_TEST

START_TEST(tensors_that_no_rule_uses_are_a_warning)
{
	struct store *s = new_store(NULL);
	static const struct {
		const char *text, *says;
	} rows[] = {
		{ "", "R: no rule uses 'a', 'both.0.w', 'both.w' and 9 more tensors" },
		{ "ignore [em].* both.* f*\no = a [4, any]", "R: no rule uses 'none', 'scalar'" },
		{ "ignore [!s]*\n", "R: no rule uses 'scalar'" },
		{ "ignore [!s]*\no = scalar []\n", "" },
	};
	struct ckpt_err e = { 0 };

	add_sample(s);
	ck_assert_int_eq(store_finish(s, &e), 0);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct recipe *r = parse(rows[i].text);
		struct recipe_out o;

		ck_assert_int_eq(store_apply(s, r, &o, &e), 0);
		ck_assert_str_eq(s->warning, rows[i].says);
		recipe_out_release(&o);
		recipe_free(r);
	}
	free_store(s);
}
END_TEST

/* ---- the built-in ones, with models of any size ---- */

struct gpt {
	uint64_t layers, hidden, vocab, padded, heads, groups, d, ffn, experts, moe_ffn, shared;
	uint64_t dense; /* the first layers without experts */
	bool in_key;	/* layers have names of their own, not a stack */
	bool own_norms, bias, qk_norm, tied, by_args, prefixed;
};

static struct gpt random_gpt(struct rng *r, bool moe)
{
	struct gpt g = { .layers = 1 + rng_below(r, 3),
			 .hidden = 1 + rng_below(r, 4),
			 .vocab = 1 + rng_below(r, 9),
			 .groups = 1 + rng_below(r, 3),
			 .d = 1 + rng_below(r, 3),
			 .ffn = 1 + rng_below(r, 4) };

	g.padded = g.vocab + rng_below(r, 4);
	g.heads = g.groups * (1 + rng_below(r, 3));
	g.own_norms = rng_chance(r, 50);
	g.bias = rng_chance(r, 50);
	g.qk_norm = rng_chance(r, 50);
	g.tied = rng_chance(r, 30);
	g.by_args = rng_chance(r, 50);
	g.prefixed = rng_chance(r, 30);
	g.in_key = rng_chance(r, 50);
	if (moe) {
		g.experts = 1 + rng_below(r, 4);
		g.moe_ffn = 1 + rng_below(r, 4);
		g.shared = rng_below(r, 3);
		g.dense = g.in_key ? rng_below(r, g.layers + 1) : 0;
	}
	return g;
}

static void add_named(struct store *s, const struct gpt *g, const char *name, size_t n,
		      const uint64_t *shape)
{
	char full[140];

	(void)snprintf(full, sizeof(full), "%s%s", g->prefixed ? "model." : "", name);
	store_add(s, full, n, shape);
}

/* A weight of layer l: a tensor of its own, or a stack that comes with the first layer. */
static void add_layer(struct store *s, const struct gpt *g, uint64_t l, const char *name, size_t n,
		      const uint64_t *shape)
{
	uint64_t stacked[STORE_DIMS] = { g->layers };
	char full[100];

	memcpy(stacked + 1, shape, n * sizeof(*shape));
	if (g->in_key)
		(void)snprintf(full, sizeof(full), "decoder.layers.%d.%s", (int)l, name);
	else
		(void)snprintf(full, sizeof(full), "decoder.layers.%s", name);
	if (g->in_key)
		add_named(s, g, full, n, shape);
	else if (!l)
		add_named(s, g, full, n + 1, stacked);
}

static void add_gpt(struct store *s, const struct gpt *g)
{
	uint64_t qkv = (g->heads + 2 * g->groups) * g->d;

	add_named(s, g, "embedding.word_embeddings.weight", 2, U(g->padded, g->hidden));
	add_named(s, g, "decoder.final_layernorm.weight", 1, U(g->hidden));
	if (!g->tied)
		add_named(s, g, "output_layer.weight", 2, U(g->padded, g->hidden));
	for (uint64_t l = 0; l < g->layers; l++) {
		bool moe = g->experts && l >= g->dense;

		add_layer(s, g, l,
			  g->own_norms ? "input_layernorm.weight"
				       : "self_attention.linear_qkv.layer_norm_weight",
			  1, U(g->hidden));
		add_layer(s, g, l, "self_attention.linear_qkv.weight", 2, U(qkv, g->hidden));
		if (g->bias)
			add_layer(s, g, l, "self_attention.linear_qkv.bias", 1, U(qkv));
		if (g->qk_norm) {
			add_layer(s, g, l, "self_attention.q_layernorm.weight", 1, U(g->d));
			add_layer(s, g, l, "self_attention.k_layernorm.weight", 1, U(g->d));
		}
		add_layer(s, g, l, "self_attention.linear_proj.weight", 2,
			  U(g->hidden, g->heads * g->d));
		add_layer(s, g, l,
			  g->own_norms ? "pre_mlp_layernorm.weight"
				       : "mlp.linear_fc1.layer_norm_weight",
			  1, U(g->hidden));
		if (!moe) {
			add_layer(s, g, l, "mlp.linear_fc1.weight", 2, U(2 * g->ffn, g->hidden));
			add_layer(s, g, l, "mlp.linear_fc2.weight", 2, U(g->hidden, g->ffn));
			continue;
		}
		add_layer(s, g, l, "mlp.router.weight", 2, U(g->experts, g->hidden));
		add_layer(s, g, l, "mlp.experts.experts.linear_fc1.weight", 3,
			  U(g->experts, 2 * g->moe_ffn, g->hidden));
		add_layer(s, g, l, "mlp.experts.experts.linear_fc2.weight", 3,
			  U(g->experts, g->hidden, g->moe_ffn));
		if (!g->shared)
			continue;
		add_layer(s, g, l, "mlp.shared_experts.linear_fc1.weight", 2,
			  U(2 * g->shared, g->hidden));
		add_layer(s, g, l, "mlp.shared_experts.linear_fc2.weight", 2,
			  U(g->hidden, g->shared));
		add_layer(s, g, l, "mlp.shared_experts.gate_weight", 2, U(1, g->hidden));
	}
}

/* All facts are in config.json, or all but the vocabulary in the args. */
static void tell(const struct gpt *g, bool mixtral, struct fact out[static 16])
{
	size_t n = 0;
	enum recipe_from from = g->by_args ? RECIPE_ARGS : RECIPE_CONFIG;
#define TELL(config, args, value) \
	out[n++] = (struct fact){ from, g->by_args ? args : config, value }
	TELL("num_hidden_layers", "num_layers", g->layers);
	TELL("hidden_size", "hidden_size", g->hidden);
	TELL("num_attention_heads", "num_attention_heads", g->heads);
	TELL("num_key_value_heads", "num_query_groups",
	     g->by_args && g->groups == g->heads ? 99 : g->groups);
	if (g->by_args)
		TELL("", "group_query_attention", g->groups != g->heads);
	TELL("head_dim", "kv_channels", g->d);
	TELL("intermediate_size", "ffn_hidden_size", mixtral ? g->moe_ffn : g->ffn);
	TELL(mixtral ? "num_local_experts" : "num_experts", "num_experts", g->experts);
	TELL("moe_intermediate_size", "moe_ffn_hidden_size", g->moe_ffn);
	TELL("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", g->shared);
	out[n++] = (struct fact){ RECIPE_CONFIG, "vocab_size", g->vocab };
	out[n] = (struct fact){ 0 };
#undef TELL
}

struct check {
	const struct store *s;
	const struct gpt *g;
	const struct recipe_out *o;
	size_t seen;
};

/* Rows of a layer's weight must be these stored rows; `name` is without the layer. */
static void expect_rows(struct check *c, const char *out, uint64_t rows, uint64_t columns,
			bool vector, const char *name, int64_t layer, int64_t expert,
			uint64_t (*row)(const struct gpt *g, uint64_t i, uint64_t half),
			uint64_t half, uint64_t source_rows)
{
	int64_t at = namelist_find(&c->o->names, out, strlen(out));
	const struct vtensor *v;
	char stored[120];

	ck_assert_msg(at >= 0, "no '%s'", out);
	c->seen++;
	v = c->o->tensors[c->o->names.v[at].index];
	REQUIRE(v->n_dims == (vector ? 1 : 2) && v->shape[0] == rows);
	REQUIRE(vector || v->shape[1] == columns);
	REQUIRE(v->bytes == rows * columns * 2);
	if (layer < 0)
		(void)snprintf(stored, sizeof(stored), "%s%s", c->g->prefixed ? "model." : "",
			       name);
	else if (c->g->in_key)
		(void)snprintf(stored, sizeof(stored), "%sdecoder.layers.%d.%s",
			       c->g->prefixed ? "model." : "", (int)layer, name);
	else
		(void)snprintf(stored, sizeof(stored), "%sdecoder.layers.%s",
			       c->g->prefixed ? "model." : "", name);
	for (uint64_t i = 0; i < rows; i++)
		for (uint64_t j = 0; j < columns; j++) {
			uint64_t want = row(c->g, i, half) * columns + j, element;
			uint32_t source;

			show_element(c->s, v, U(i, j), &source, &element);
			if (expert > 0)
				want += (uint64_t)expert * source_rows * columns;
			if (layer >= 0 && !c->g->in_key)
				want += (uint64_t)layer * source_rows * columns *
					(expert >= 0 ? c->g->experts : 1);
			REQUIRE(!strcmp(c->s->tensors[source].name, stored));
			REQUIRE(element == want);
		}
}

static uint64_t same_row(const struct gpt *g, uint64_t i, uint64_t half)
{
	(void)g;
	(void)half;
	return i;
}
static uint64_t half_row(const struct gpt *g, uint64_t i, uint64_t half)
{
	(void)g;
	return half + i;
}
/* Rows are, for each group, its queries, its key, its value. */
static uint64_t q_row(const struct gpt *g, uint64_t i, uint64_t half)
{
	uint64_t each = g->heads / g->groups, head = i / g->d;

	(void)half;
	return (head / each * (each + 2) + head % each) * g->d + i % g->d;
}
static uint64_t kv_row(const struct gpt *g, uint64_t i, uint64_t value)
{
	uint64_t each = g->heads / g->groups, group = i / g->d;

	return (group * (each + 2) + each + value) * g->d + i % g->d;
}

static const char *in_layer(uint64_t l, const char *rest)
{
	static char out[120];

	(void)snprintf(out, sizeof(out), "model.layers.%d.%s", (int)l, rest);
	return out;
}

static void expect_attention(struct check *c, uint64_t l)
{
	const struct gpt *g = c->g;
	const char *qkv = "self_attention.linear_qkv.weight",
		   *bias = "self_attention.linear_qkv.bias";
	uint64_t q = g->heads * g->d, kv = g->groups * g->d, all = q + 2 * kv, h = g->hidden;
	int64_t i = (int64_t)l;

	expect_rows(c, in_layer(l, "self_attn.q_proj.weight"), q, h, false, qkv, i, -1, q_row, 0,
		    all);
	expect_rows(c, in_layer(l, "self_attn.k_proj.weight"), kv, h, false, qkv, i, -1, kv_row, 0,
		    all);
	expect_rows(c, in_layer(l, "self_attn.v_proj.weight"), kv, h, false, qkv, i, -1, kv_row, 1,
		    all);
	expect_rows(c, in_layer(l, "self_attn.o_proj.weight"), h, q, false,
		    "self_attention.linear_proj.weight", i, -1, same_row, 0, h);
	expect_rows(c, in_layer(l, "input_layernorm.weight"), h, 1, true,
		    g->own_norms ? "input_layernorm.weight"
				 : "self_attention.linear_qkv.layer_norm_weight",
		    i, -1, same_row, 0, h);
	expect_rows(c, in_layer(l, "post_attention_layernorm.weight"), h, 1, true,
		    g->own_norms ? "pre_mlp_layernorm.weight" : "mlp.linear_fc1.layer_norm_weight",
		    i, -1, same_row, 0, h);
	if (g->bias) {
		expect_rows(c, in_layer(l, "self_attn.q_proj.bias"), q, 1, true, bias, i, -1, q_row,
			    0, all);
		expect_rows(c, in_layer(l, "self_attn.k_proj.bias"), kv, 1, true, bias, i, -1,
			    kv_row, 0, all);
		expect_rows(c, in_layer(l, "self_attn.v_proj.bias"), kv, 1, true, bias, i, -1,
			    kv_row, 1, all);
	}
	if (g->qk_norm) {
		expect_rows(c, in_layer(l, "self_attn.q_norm.weight"), g->d, 1, true,
			    "self_attention.q_layernorm.weight", i, -1, same_row, 0, g->d);
		expect_rows(c, in_layer(l, "self_attn.k_norm.weight"), g->d, 1, true,
			    "self_attention.k_layernorm.weight", i, -1, same_row, 0, g->d);
	}
}

static void expect_mlp(struct check *c, uint64_t l, const char *out, const char *stored,
		       int64_t expert, uint64_t ffn, const char *const names[3])
{
	char name[100], from[100];

	(void)snprintf(from, sizeof(from), "%s.linear_fc1.weight", stored);
	for (uint64_t k = 0; k < 2; k++) {
		(void)snprintf(name, sizeof(name), "%s.%s.weight", out, names[k]);
		expect_rows(c, in_layer(l, name), ffn, c->g->hidden, false, from, (int64_t)l,
			    expert, half_row, k * ffn, 2 * ffn);
	}
	(void)snprintf(name, sizeof(name), "%s.%s.weight", out, names[2]);
	(void)snprintf(from, sizeof(from), "%s.linear_fc2.weight", stored);
	expect_rows(c, in_layer(l, name), c->g->hidden, ffn, false, from, (int64_t)l, expert,
		    same_row, 0, c->g->hidden);
}

static void expect_experts(struct check *c, uint64_t l, bool mixtral)
{
	static const char *const qwen[] = { "gate_proj", "up_proj", "down_proj" }, *const mix[] = {
		"w1", "w3", "w2"
	};
	const struct gpt *g = c->g;
	const char *block = mixtral ? "block_sparse_moe" : "mlp";
	char name[100];

	(void)snprintf(name, sizeof(name), "%s.gate.weight", block);
	expect_rows(c, in_layer(l, name), g->experts, g->hidden, false, "mlp.router.weight",
		    (int64_t)l, -1, same_row, 0, g->experts);
	for (uint64_t e = 0; e < g->experts; e++) {
		(void)snprintf(name, sizeof(name), "%s.experts.%d", block, (int)e);
		expect_mlp(c, l, name, "mlp.experts.experts", (int64_t)e, g->moe_ffn,
			   mixtral ? mix : qwen);
	}
	if (!g->shared)
		return;
	expect_mlp(c, l, "mlp.shared_expert", "mlp.shared_experts", -1, g->shared, qwen);
	expect_rows(c, in_layer(l, "mlp.shared_expert_gate.weight"), 1, g->hidden, false,
		    "mlp.shared_experts.gate_weight", (int64_t)l, -1, same_row, 0, 1);
}

static void expect_gpt(struct check *c, bool mixtral)
{
	static const char *const mlp[] = { "gate_proj", "up_proj", "down_proj" };
	const struct gpt *g = c->g;

	expect_rows(c, "model.embed_tokens.weight", g->vocab, g->hidden, false,
		    "embedding.word_embeddings.weight", -1, -1, same_row, 0, g->padded);
	expect_rows(c, "lm_head.weight", g->vocab, g->hidden, false,
		    g->tied ? "embedding.word_embeddings.weight" : "output_layer.weight", -1, -1,
		    same_row, 0, g->padded);
	expect_rows(c, "model.norm.weight", g->hidden, 1, true, "decoder.final_layernorm.weight",
		    -1, -1, same_row, 0, g->hidden);
	for (uint64_t l = 0; l < g->layers; l++) {
		expect_attention(c, l);
		if (g->experts && l >= g->dense)
			expect_experts(c, l, mixtral);
		else
			expect_mlp(c, l, "mlp", "mlp", -1, g->ffn, mlp);
	}
	ck_assert_uint_eq(c->seen, c->o->names.n);
}

START_LOOP_TEST(megatron_recipes_agree_with_a_naive_splitting, 3)
{
	struct rng rng = rng_new();
	const struct recipe_builtin *b = recipe_builtin(1 + (size_t)_i);
	bool mixtral = !strcmp(b->name, "megatron-mixtral"),
	     dense = !strcmp(b->name, "megatron-llama");
	struct recipe *r = NULL;
	struct ckpt_err e = { 0 };

	ck_assert_msg(!recipe_parse(b->text, (size_t)(b->end - b->text), b->name, &r, &e), "%s",
		      e.msg);
	for (int i = 0; i < 150; i++) {
		struct gpt g = random_gpt(&rng, !dense);
		struct fact told[16];
		struct recipe_out o;
		struct store *s;
		struct check c;

		if (mixtral)
			g.dense = g.shared = 0;
		tell(&g, mixtral, told);
		s = new_store(told);
		add_gpt(s, &g);
		store_add(s, "optimizer.x", 1, U(3));
		ck_assert_int_eq(store_finish(s, &e), 0);
		ck_assert_msg(!store_apply(s, r, &o, &e), "%s", e.msg);
		ck_assert_str_eq(s->warning, "");
		c = (struct check){ s, &g, &o, 0 };
		expect_gpt(&c, mixtral);
		recipe_out_release(&o);
		free_store(s);
	}
	recipe_free(r);
}
END_TEST

/* ---- axes, compared with loops over their factors ---- */

enum { MOST_FACTORS = 5 };

struct random_factor {
	uint64_t of, from, to;
	bool swap;
};

/* An axis, and which rows of the source it selects, in the order of the result. */
struct rows {
	size_t n, rows;
	struct random_factor f[MOST_FACTORS];
	uint64_t steps[MOST_FACTORS], length;
	uint64_t v[4096];
};

/* Selects for factor i and those behind it; at: the index that those before it give. */
static void select_rows(struct rows *r, size_t i, uint64_t at)
{
	const struct random_factor *f = &r->f[i];

	if (i == r->n) {
		r->v[r->rows++] = at;
	} else if (f->swap) {
		for (uint64_t k = f[1].from; k < f[1].to; k++)
			for (uint64_t l = f->from; l < f->to; l++)
				select_rows(r, i + 2, at + l * r->steps[i] + k * r->steps[i + 1]);
	} else {
		for (uint64_t k = f->from; k < f->to; k++)
			select_rows(r, i + 1, at + k * r->steps[i]);
	}
}

/* A random axis; its text is appended. */
static void random_axis(struct rng *rng, struct rows *r, char *text)
{
	*r = (struct rows){ .n = 2 + rng_below(rng, MOST_FACTORS - 1), .length = 1 };
	for (size_t i = 0; i < r->n; i++) {
		struct random_factor *f = &r->f[i];
		bool cut = !rng_below(rng, 3);

		f->of = 1 + rng_below(rng, 5);
		f->from = cut ? rng_below(rng, f->of) : 0;
		f->to = cut ? f->from + rng_below(rng, f->of - f->from + 1) : f->of;
		f->swap = i + 1 < r->n && !(i && f[-1].swap) && rng_below(rng, 2);
		text += sprintf(text, "%s%s", i ? " : " : "", f->swap ? "swap " : "");
		text += cut ? sprintf(text, "%u..%u of %u", (unsigned)f->from, (unsigned)f->to,
				      (unsigned)f->of)
			    : sprintf(text, "%u", (unsigned)f->of);
	}
	for (size_t i = r->n; i-- > 0; r->length *= r->f[i].of)
		r->steps[i] = r->length;
	select_rows(r, 0, 0);
}

START_TEST(axes_are_what_loops_over_their_factors_select)
{
	struct rng rng = rng_new();
	unsigned rounds = rng_rounds(400, 100);

	for (unsigned round = 0; round < rounds; round++) {
		struct store *s = new_store(facts);
		char text[1000] = "o = a [", again[500], columns[200];
		bool turned, joined, flat;
		struct ckpt_err e = { 0 };
		struct recipe_out o;
		struct recipe *recipe;
		const struct vtensor *v;
		struct rows r, c;
		uint64_t first, width;

		random_axis(&rng, &r, text + strlen(text));
		do /* each element may be a piece, and the number of pieces is bounded */
			random_axis(&rng, &c, columns);
		while (r.rows * c.rows > 4096);
		(void)strcat(strcat(strcat(text, ", "), columns), "]");
		turned = rng_chance(&rng, 50);
		flat = rng_chance(&rng, 30); /* both axes are one */
		(void)strcat(text, flat			  ? turned ? " order 1:0" : " order 0:1"
				   : turned		  ? " order 1 0"
				   : rng_chance(&rng, 20) ? " order 0 1"
							  : "");
		joined = rng_chance(&rng, 30);
		(void)strcpy(again, text + strlen("o ="));
		if (joined)
			(void)strcat(strcat(text, "\n+"), again);
		store_add(s, "a", 2, U(r.length, c.length));
		REQUIRE(!store_finish(s, &e));
		recipe = parse(text);
		ck_assert_msg(!store_apply(s, recipe, &o, &e), "%s: %s", text, e.msg);
		v = o.tensors[0];
		first = turned ? c.rows : r.rows;
		width = turned ? r.rows : c.rows;
		REQUIRE(v->n_dims == 2 - flat &&
			v->shape[0] == first * (1 + joined) * (flat ? width : 1));
		REQUIRE(flat || v->shape[1] == width);
		for (uint64_t i = 0; i < (1 + (uint64_t)joined) * r.rows * c.rows; i++) {
			const uint64_t x[2] = { i / width, i % width };
			const uint64_t row = turned ? x[1] : x[0] % first;
			const uint64_t column = turned ? x[0] % first : x[1];
			uint64_t element;
			uint32_t source;

			show_element(s, v, flat ? &i : x, &source, &element);
			if (element != r.v[row] * c.length + c.v[column])
				ck_abort_msg("%s: element %d", text, (int)i);
		}
		recipe_out_release(&o);
		recipe_free(recipe);
		free_store(s);
	}
}
END_TEST

START_TEST(built_in_recipes_are_found_by_name_and_model)
{
	const struct recipe_builtin *b, *choice = NULL;

	ck_assert_ptr_null(recipe_builtin_named("megatron-"));
	ck_assert_ptr_null(recipe_builtin_for("megatron", "bert"));
	ck_assert_ptr_null(recipe_builtin_for("mega", "llama"));
	ck_assert_str_eq(recipe_builtin_for("megatron", "qwen3_moe")->name, "megatron-qwen-moe");
	ck_assert_str_eq(recipe_builtin_for("megatron", "llama")->name, "megatron-llama");
	ck_assert_str_eq(recipe_builtin_for("torchtitan", "llama")->name, "torchtitan-llama");
	ck_assert_str_eq(recipe_builtin_for("olmo", "olmo3")->name, "olmo-olmo2");
	ck_assert_str_eq(recipe_builtin_for("maxtext", "gemma")->name, "maxtext-gemma");
	ck_assert_str_eq(recipe_builtin_for("maxtext", "gemma2")->name, "maxtext-gemma2");
	for (size_t i = 0; (b = recipe_builtin(i)); i++) {
		struct recipe *r = NULL;
		struct ckpt_err e = { 0 };

		ck_assert_ptr_eq(recipe_builtin_named(b->name), b);
		ck_assert_uint_eq(strlen(b->text), (size_t)(b->end - b->text));
		ck_assert_int_eq(!*b->text, !*b->models);
		choice = *b->text ? choice : b;
		for (const char *const *m = b->models; *m; m++)
			ck_assert_ptr_eq(recipe_builtin_for(choice->name, *m), b);
		ck_assert_msg(!recipe_parse(b->text, strlen(b->text), b->name, &r, &e), "%s",
			      e.msg);
		recipe_free(r);
	}
}
END_TEST

#define LAYERS "params.params.decoder.layers."
#define Q_IS   "model.layers.0.self_attn.q_proj.weight[4,2]*2=" LAYERS "self_attention.query.kernel: "
#define K_IS   "model.layers.1.self_attn.k_proj.weight[4,2]=" LAYERS "self_attention.key.kernel: "
#define SMALL_LLAMA(rope) \
	{ RECIPE_CONFIG, "num_hidden_layers", 2 }, { RECIPE_CONFIG, "hidden_size", 2 }, \
		{ RECIPE_CONFIG, "vocab_size", 1 }, { RECIPE_CONFIG, "num_attention_heads", 1 }, \
		{ RECIPE_CONFIG, "head_dim", 4 }, { RECIPE_CONFIG, "intermediate_size", 1 }, \
		{ RECIPE_CONFIG, rope, 0 }, \
	{ \
		0 \
	}

static const struct {
	struct fact facts[8];
	const char *q, *k;
} rotary[] = {
	{ { SMALL_LLAMA("rope_scaling.rope_type=llama3") },
	  Q_IS "0 8 2 10 1 9 3 11",
	  K_IS "4 12 6 14 5 13 7 15" },
	{ { SMALL_LLAMA("rope_parameters.rope_type=llama3") },
	  Q_IS "0 8 2 10 1 9 3 11",
	  K_IS "4 12 6 14 5 13 7 15" },
	{ { SMALL_LLAMA("rope_parameters.rope_type=default") },
	  Q_IS "0 8 1 9 2 10 3 11",
	  K_IS "4 12 5 13 6 14 7 15" },
	{ { SMALL_LLAMA("rope_scaling.type=linear") },
	  Q_IS "0 8 1 9 2 10 3 11",
	  K_IS "4 12 5 13 6 14 7 15" },
};

static void show_named(const struct store *s, const struct recipe_out *o, const char *name,
		       const char *says)
{
	struct recipe_out one = { .tensors = o->tensors };
	int64_t at = namelist_find(&o->names, name, strlen(name));

	ck_assert_msg(at >= 0, "no %s", name);
	one.names.v = &o->names.v[at];
	one.names.n = 1;
	ck_assert_str_eq(show(s, &one), says);
}

/* Layers are on the second axis. Only Llama 3.1 stores the rows of a head in pairs. */
START_LOOP_TEST(the_rotary_embeddings_decide_the_rows_of_maxtext, ARRAY_LEN(rotary))
{
	static const struct {
		const char *name;
		size_t n_dims;
		uint64_t shape[4];
	} tensors[] = {
		{ LAYERS "mlp.wi_0.kernel", 3, { 2, 2, 1 } },
		{ LAYERS "mlp.wi_1.kernel", 3, { 2, 2, 1 } },
		{ LAYERS "mlp.wo.kernel", 3, { 1, 2, 2 } },
		{ LAYERS "pre_self_attention_layer_norm.scale", 2, { 2, 2 } },
		{ LAYERS "post_self_attention_layer_norm.scale", 2, { 2, 2 } },
		{ LAYERS "self_attention.query.kernel", 4, { 2, 2, 1, 4 } },
		{ LAYERS "self_attention.key.kernel", 4, { 2, 2, 1, 4 } },
		{ LAYERS "self_attention.value.kernel", 4, { 2, 2, 1, 4 } },
		{ LAYERS "self_attention.out.kernel", 4, { 1, 2, 4, 2 } },
	};
	struct recipe *r = parse(recipe_builtin_named("maxtext-llama")->text);
	struct store *s = new_store(rotary[_i].facts);
	struct recipe_out o;
	struct ckpt_err e = { 0 };

	for (size_t i = 0; i < ARRAY_LEN(tensors); i++)
		store_add(s, tensors[i].name, tensors[i].n_dims, tensors[i].shape);
	store_add(s, "params.params.decoder.decoder_norm.scale", 1, U(2));
	store_add(s, "params.params.token_embedder.embedding", 2, U(3, 2));
	store_add(s, "opt_state.0.mu.params.decoder.decoder_norm.scale", 1, U(2));
	ck_assert_int_eq(store_finish(s, &e), 0);
	ck_assert_msg(!store_apply(s, r, &o, &e), "%s", e.msg);
	ck_assert_str_eq(s->warning, "");
	ck_assert_uint_eq(o.names.n, 3 + 2 * 9);
	show_named(s, &o, "model.layers.0.self_attn.q_proj.weight", rotary[_i].q);
	show_named(s, &o, "model.layers.1.self_attn.k_proj.weight", rotary[_i].k);
	show_named(s, &o, "model.layers.1.self_attn.o_proj.weight",
		   "model.layers.1.self_attn.o_proj.weight[2,4]=" LAYERS
		   "self_attention.out.kernel: 8 10 12 14 9 11 13 15");
	show_named(s, &o, "lm_head.weight",
		   "lm_head.weight[1,2]=params.params.token_embedder.embedding: 0 1");
	recipe_out_release(&o);
	recipe_free(r);
	free_store(s);
}
END_TEST

/* What copying tensors cannot undo, as config.json or the args record it. */
static const struct {
	const char *recipe;
	struct fact fact;
	const char *says;
} cannot[] = {
	{ "megatron-llama",
	  { RECIPE_ARGS, "apply_layernorm_1p", 1 },
	  "the norms are stored minus 1" },
	{ "megatron-gpt2",
	  { RECIPE_ARGS, "apply_layernorm_1p", 1 },
	  "the norms are stored minus 1" },
	{ "megatron-gpt2", { RECIPE_ARGS, "swiglu", 1 }, "swiglu: this model has no gate" },
	{ "megatron-gemma",
	  { RECIPE_ARGS, "apply_layernorm_1p", 0 },
	  "the norms are stored plus 1" },
	{ "megatron-gemma",
	  { RECIPE_ARGS, "layernorm_zero_centered_gamma", 0 },
	  "the norms are stored plus 1" },
	{ "megatron-gemma", { RECIPE_ARGS, "apply_layernorm_1p", 1 }, "no value for " },
	{ "megatron-gemma", { RECIPE_ARGS, "rotary_interleaved", 1 }, "rotary_interleaved: " },
	{ "megatron-glm4",
	  { RECIPE_ARGS, "rotary_interleaved", 0 },
	  "without rotary_interleaved " },
	{ "megatron-glm4", { RECIPE_ARGS, "rotary_interleaved", 1 }, "no value for " },
	{ "megatron-deepseek-v3",
	  { RECIPE_CONFIG, "rope_interleave", 0 },
	  "rope_interleave is false" },
	{ "megatron-deepseek-v3", { RECIPE_CONFIG, "rope_interleave", 1 }, "no value for " },
	{ "torchtitan-deepseek-v3",
	  { RECIPE_CONFIG, "rope_interleave", 0 },
	  "rope_interleave is false" },
	{ "megatron-gpt-neox",
	  { RECIPE_CONFIG, "use_parallel_residual", 1 },
	  "use_parallel_residual: " },
};

START_LOOP_TEST(built_in_recipes_refuse_what_they_cannot_undo, ARRAY_LEN(cannot))
{
	const struct recipe_builtin *b = recipe_builtin_named(cannot[_i].recipe);
	const struct fact told[] = { cannot[_i].fact, { 0 } };
	struct store *s = new_store(told);
	struct recipe *r = NULL;
	struct recipe_out o;
	struct ckpt_err e = { 0 };

	ck_assert_msg(!recipe_parse(b->text, strlen(b->text), "R", &r, &e), "%s", e.msg);
	/* The prefix is looked for first; then a recipe that refuses nothing needs numbers. */
	store_add(s, "embedding.word_embeddings.weight", 0, NULL);
	store_add(s, "tok_embeddings.weight", 0, NULL);
	ck_assert_int_eq(store_finish(s, &e), 0);
	ck_assert_int_eq(store_apply(s, r, &o, &e), -EINVAL);
	if (!strstr(e.msg, cannot[_i].says))
		ck_abort_msg("%s", e.msg);
	recipe_free(r);
	free_store(s);
}
END_TEST

START_TEST(without_memory_it_says_so)
{
	struct store *s = new_store(facts);
	struct ckpt_err e = { 0 };

	add_sample(s);
	ck_assert_int_eq(store_finish(s, &e), 0);
	FAULT_LOOP(FAULT_ALLOC)
	{
		static const char text[] = "for i in 2\no.{i} = m.[i].s.w [3]\nend\np ?= b []\n"
					   "q = a [4, 3] order 1 0 + a [4, 3] order 1 0\n";
		struct recipe *r = NULL;
		struct recipe_out o = { 0 };
		struct ckpt_err why = { 0 };
		int rc = recipe_parse(text, sizeof(text) - 1, "R", &r, &why);

		if (!rc)
			rc = store_apply(s, r, &o, &why);
		(void)fault_off();
		/* If memory is too short for a warning, that is not an error. */
		ck_assert(rc == -ENOMEM || !rc);
		ck_assert(!rc || fault_hit());
		ck_assert_int_eq(why.code, -rc);
		recipe_out_release(&o);
		recipe_free(r);
	}
	free_store(s);
}
END_TEST

SUITE(recipe, .seconds = 240)
