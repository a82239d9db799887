/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recipes backwards: what they make, whether each element of it is the one that they would take
 * forwards, and which recipes cannot be inverted.
 */
#include "base/checked.h"
#include "base/err.h"
#include "fault.h"
#include "recipe_util.h"
#include "rng.h"
#include "suites.h"
#include "tensor/vtensor.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct fact facts[] = { { RECIPE_CONFIG, "two", 2 }, { 0, NULL, 0 } };

/* "a[2,3] b[4]": tensors. */
static struct store *store_of(const char *given)
{
	struct store *s = calloc(1, sizeof(*s));
	char text[2000], *rest = text;
	struct ckpt_err e = { 0 };

	REQUIRE(s);
	s->facts = facts;
	REQUIRE(strlen(given) < sizeof(text));
	(void)snprintf(text, sizeof(text), "%s", given);
	for (char *word; (word = strsep(&rest, " "));) {
		uint64_t shape[STORE_DIMS];
		char *at = strchr(word, '[');
		size_t n = 0;

		if (!*word)
			continue;
		REQUIRE(at);
		*at++ = 0;
		while (*at && *at != ']') {
			shape[n++] = strtoull(at, &at, 10);
			at += *at == ',';
		}
		store_add(s, word, n, shape);
	}
	ck_assert_msg(!store_finish(s, &e), "%s", e.msg);
	return s;
}

static void free_store(struct store *s)
{
	namelist_release(&s->names);
	free(s);
}

static int invert(struct store *s, const char *text, struct recipe **ret_recipe,
		  struct recipe_out *ret, struct ckpt_err *e)
{
	struct recipe_in in = { &s->names, s->sources, &s->of, NULL, NULL, NULL };
	int rc = recipe_parse(text, strlen(text), "R", ret_recipe, e);

	return rc ? rc : recipe_invert(*ret_recipe, &in, ret, e);
}

/* Finds the element that is element number `at` of v; it must be in exactly one piece. */
static void element(const struct vtensor *v, uint64_t at, const uint64_t *const *shapes,
		    uint32_t *ret_source, uint64_t *ret)
{
	uint64_t x[CKPT_MAX_DIMS] = { 0 }, y[CKPT_MAX_DIMS];
	size_t found = 0;

	for (size_t d = v->n_dims; d-- > 0; at /= v->shape[d])
		x[d] = at % v->shape[d];
	for (uint32_t i = 0; i < v->n_pieces; i++) {
		const struct piece *p = &v->pieces[i];
		bool inside = true;

		for (size_t d = 0; d < v->n_dims; d++)
			inside &= x[d] >= p->off[d] && x[d] - p->off[d] < p->len[d];
		if (!inside)
			continue;
		memcpy(y, p->base, p->n_source * sizeof(*y));
		for (size_t d = 0; d < v->n_dims; d++)
			if (p->dim[d] != PIECE_FIXED)
				y[p->dim[d]] += p->coeff[d] * (x[d] - p->off[d]);
		*ret = 0;
		for (size_t d = 0; d < p->n_source; d++) {
			ck_assert_uint_lt(y[d], shapes[p->source][d]);
			*ret = *ret * shapes[p->source][d] + y[d];
		}
		*ret_source = p->source;
		found++;
	}
	ck_assert_uint_eq(found, 1);
}

/* After going backwards and forwards, every element of every given tensor is itself. */
static void check_identity(const struct store *s, const struct recipe *r,
			   const struct recipe_out *o)
{
	static struct recipe_source sources[STORE_CAP];
	static const uint64_t *made[STORE_CAP], *given[STORE_CAP];
	struct recipe_in in = { &o->names, sources, &s->of, NULL, NULL, NULL };
	struct recipe_out back;
	struct ckpt_err e = { 0 };

	for (size_t i = 0; i < o->names.n; i++) {
		const struct vtensor *v = o->tensors[i];

		made[i] = v->shape;
		sources[i] = (struct recipe_source){ v->shape, (uint32_t)i, v->stored, v->dtype,
						     v->n_dims };
	}
	for (uint32_t i = 0; i < s->n; i++)
		given[i] = s->tensors[i].shape;
	ck_assert_msg(!recipe_apply(r, &in, &back, &e), "%s", e.msg);
	for (uint32_t i = 0; i < s->n; i++) {
		const struct stored *t = &s->tensors[i];
		int64_t at = namelist_find(&back.names, t->name, strlen(t->name));
		const struct vtensor *v;
		uint64_t volume = 1;

		ck_assert_msg(at >= 0, "%s", t->name);
		v = back.tensors[back.names.v[at].index];
		for (size_t d = 0; d < t->n_dims; d++)
			volume *= t->shape[d];
		for (uint64_t k = 0; k < volume; k++) {
			uint32_t source;
			uint64_t x;

			element(v, k, made, &source, &x);
			element(o->tensors[source], x, given, &source, &x);
			if (source != i || x != k)
				ck_abort_msg("%s, element %ju", t->name, (uintmax_t)k);
		}
	}
	recipe_out_release(&back);
}

static const char *show(const struct recipe_out *o)
{
	static char out[4000];
	size_t at = 0;

	out[0] = 0;
	for (size_t i = 0; i < o->names.n; i++) {
		const struct vtensor *v = o->tensors[o->names.v[i].index];

		at += (size_t)sprintf(out + at, "%s%s[", i ? " " : "", o->names.v[i].fqn);
		for (size_t d = 0; d < v->n_dims; d++)
			at += (size_t)sprintf(out + at, "%s%d", d ? "," : "", (int)v->shape[d]);
		at += (size_t)sprintf(out + at, "]");
	}
	return out;
}

#define QKV \
	"for i in 2\n" \
	"l.{i}.q = d.[i].qkv [2 : 0..2 of 4 : 1, 3]\n" \
	"l.{i}.k = d.[i].qkv [2 : 2 of 4 : 1, 3]\n" \
	"l.{i}.v = d.[i].qkv [2 : 3 of 4 : 1, 3]\n" \
	"l.{i}.b ?= d.[i].b [2]\nend\n"
#define LAYERS "l.0.q[4,3] l.0.k[2,3] l.0.v[2,3] l.1.q[4,3] l.1.k[2,3] l.1.v[2,3]"
#define MIXED \
	"for i in 2\nif stored d.[i].router\nl.{i}.gate = d.[i].router [3]\n" \
	"for e in 2\nl.{i}.e.{e} = d.[i].x.[e].w [2]\nend\nelse\nl.{i}.up = d.[i].fc " \
	"[2]\nend\nend\n"

static const struct {
	const char *text, *given, *makes;
} good[] = {
	{ "o = a [4, 3]", "o[4,3]", "a[4,3]" },
	{ "o = a []", "o[]", "a[]" },
	{ "o = a [0, 3]", "o[0,3]", "a[0,3]" },
	{ "o = a [any, any]", "o[4,3]", "a[4,3]" },
	{ "o = a [4, any] order 1 0", "o[3,4]", "a[4,3]" },
	{ "o = a [0..4 of any, 3]", "o[4,3]", "a[4,3]" },
	{ "o = a [0 of 2, 3]\np = a [1 of 2, 3]", "o[3] p[3]", "a[2,3]" },
	{ "o = a [swap 2 : 3, 2]", "o[6,2]", "a[6,2]" },
	{ "o = a [swap 2 : 3, swap 2 : 2] order 1 0", "o[4,6]", "a[6,4]" },
	{ "o = a [4 : swap 2 : 3]", "o[24]", "a[24]" },
	{ "o = a [3] + b [2]", "o[5]", "a[3] b[2]" },
	{ "o = a [4, 3, 2] order 1:2 0", "o[6,4]", "a[4,3,2]" },
	{ "o = a [any, 3, 2] order 2:1 0", "o[6,4]", "a[4,3,2]" },
	{ "o = b [2 : 1 of 2, 3] + b [2 : 0 of 2, 3]", "o[4,3]", "b[4,3]" },
	{ "o = a [4, 3] order 1 0 + b [4, 2] order 1 0", "o[5,4]", "a[4,3] b[4,2]" },
	/* The first alternative is taken, unless nothing is given for it. */
	{ "o = a [3] | b [3]", "o[3]", "a[3]" },
	{ "o = a [3]\nh = b [3] | a [3]", "o[3]", "a[3]" },
	{ "o = a [3]\nh = b [3] | a [3]", "o[3] h[3]", "a[3] b[3]" },
	{ "o = a [3]\nx ?= b [3]", "o[3]", "a[3]" },
	/* A tensor need not be given if others contain everything that is joined in it. */
	{ "o = a [3]\nq = b [2]\nh = a [3] + b [2]", "o[3] q[2]", "a[3] b[2]" },
	{ "o = a [3]\nq = b [2]\nh = a [3] + b [2] | c [3]", "o[3] q[2]", "a[3] b[2]" },
	{ "o = a [3]\nq = b [2]\nh = c [3] + a [3] | a [3] + b [2]", "o[3] q[2]", "a[3] b[2]" },
	/* Layers on a stack, or apart. */
	{ QKV, LAYERS, "d.qkv[2,8,3]" },
	{ QKV, LAYERS " l.0.b[2] l.1.b[2]", "d.b[2,2] d.qkv[2,8,3]" },
	{ QKV, LAYERS " l.1.b[2]", "d.0.qkv[8,3] d.1.b[2] d.1.qkv[8,3]" },
	{ MIXED, "l.0.gate[3] l.0.e.0[2] l.0.e.1[2] l.1.gate[3] l.1.e.0[2] l.1.e.1[2]",
	  "d.router[2,3] d.x.w[2,2,2]" },
	{ MIXED, "l.0.up[2] l.1.gate[3] l.1.e.0[2] l.1.e.1[2]",
	  "d.0.fc[2] d.1.router[3] d.1.x.w[2,2]" },
	{ MIXED, "l.0.up[2] l.1.up[2]", "d.fc[2,2]" },
	{ "for i in 1..3\no.{i} = d.[i].w [2]\nend", "o.1[2] o.2[2]", "d.1.w[2] d.2.w[2]" },
	{ "param n = config.two\nfor i in n\no.{i} = d.[i].w [n, 1]\nend", "o.0[2,1] o.1[2,1]",
	  "d.w[2,2,1]" },
	/* The condition counts as true if all that its rules need is given. */
	{ "if stored a\no = a [2]\np = b [2]\nelse\no = c [2]\nend", "o[2] p[2]", "a[2] b[2]" },
	{ "if stored a\no = a [2]\np = b [2]\nelse\no = c [2]\nend", "o[2]", "c[2]" },
	{ "prefix a m. none\no = a [2]", "o[2]", "a[2]" },
	{ "prefix a m. n.\no = a [2]", "o[2]", "m.a[2]" },
};

START_LOOP_TEST(what_is_made_makes_the_same_again, ARRAY_LEN(good))
{
	struct store *s = store_of(good[_i].given);
	struct recipe *r = NULL;
	struct recipe_out o = { 0 };
	struct ckpt_err e = { 0 };
	int rc = invert(s, good[_i].text, &r, &o, &e);

	ck_assert_msg(!rc, "%s", e.msg);
	ck_assert_str_eq(show(&o), good[_i].makes);
	check_identity(s, r, &o);
	recipe_out_release(&o);
	recipe_free(r);
	free_store(s);
}
END_TEST

#define UNUSED \
	"the recipe cannot be run backwards: no rule uses, or no given tensor fills, some " \
	"elements of "

#define OTHER \
	"the recipe cannot be run backwards: the tensors given are those of one branch, but " \
	"forwards the other would be taken, because "

static const struct {
	const char *text, *given, *says;
} bad[] = {
	{ "o = a [4]", "o[4] p[2]",
	  "R: no rule makes 'p', which would be lost: exclude what is not needed" },
	{ "o = a [4]", "o[4] p[2] q[2] r[2] s[2]",
	  "R: no rule makes 'p', 'q', 'r' and 1 more tensor, which would be lost: exclude what is "
	  "not needed" },
	{ "o = a [4]\nx = b [2]", "o[4]", "R:2: the checkpoint has no 'x'" },
	{ "o = a [4]", "o[5]", "R:1: 'o' is of shape [5], but the recipe makes it [4]" },
	{ "o = a [4]", "o[2,2]", "R:1: 'o' is of shape [2,2], but the recipe makes it [4]" },
	{ "o = a [0..2 of 4]", "o[2]", "R:1: " UNUSED "'a'" },
	{ "o = a [0 of 2, 3]\np ?= a [1 of 2, 3]", "o[3]", "R:1: " UNUSED "'a'" },
	{ "o = a [0..3 of 4]\np = a [1..4 of 4]", "o[3] p[3]",
	  "R:1: the recipe cannot be run backwards: two rules use the same elements of 'a'" },
	{ "o = a [3] + a [3]", "o[6]",
	  "R:1: the recipe cannot be run backwards: two rules use the same elements of 'a'" },
	{ "o = a [4]\np = a [2, 2]", "o[4] p[2,2]",
	  "R:1: the recipe cannot be run backwards: its rules disagree about the shape of 'a'" },
	{ "o = a [1 of any, 3]", "o[3]",
	  "R:1: 'o' cannot be inverted: it drops elements before those it takes, and others whose "
	  "number is not known" },
	{ "o = a [1..3 of any]", "o[2]",
	  "R:1: 'o' cannot be inverted: it drops elements before those it takes, and others whose "
	  "number is not known" },
	{ "o = a [any] + b [2]", "o[4]",
	  "R:1: 'o' cannot be inverted: the length of an axis that it joins is not known" },
	{ "o = a [2]\no = b [2]", "o[2]", "R:2: 'o' cannot be inverted: two rules make it" },
	/* With layers apart it cannot be done either. */
	{ QKV, "l.0.q[4,3] l.0.k[2,3] l.0.v[2,3] l.1.q[4,3]",
	  "R:3: the checkpoint has no 'l.1.k'" },
	{ "o = a [2] times 3", "o[2]", "R:1: 'o' cannot be inverted: it computes, which rounds" },
	{ "o = a [any, 2] order 0:1", "o[4]",
	  "R:1: 'o' cannot be inverted: the length of an axis that it joins is not known" },
	/* Forwards, the recipe would take the other branch. */
	{ "if stored a\no = a [0 of 2]\np = a [1 of 2]\nq = b [] | a [2]\n"
	  "else\no = a [1 of 2]\np = a [0 of 2]\nend",
	  "o[] p[]", "R:1: " OTHER "'a' is stored" },
	{ "for i in 2\nif stored d.[i].a\nfor k in 1\no.{i} = d.[i].a [2]\nend\n"
	  "else\no.{i} = d.[i].a [swap 2 : 1]\nend\nend",
	  "o.0[2] o.1[2]", "R:2: " OTHER "'d.a' is stored" },
	{ "o = a [0 of any, 3]", "o[3]",
	  "R:1: 'o' cannot be inverted: it drops elements before those it takes, and others whose "
	  "number is not known" },
	{ "o = a [4]\np = a [5]", "o[4] p[5]",
	  "R:1: the recipe cannot be run backwards: its rules disagree about the shape of 'a'" },
	{ "o = a [4294967296 : 4294967296 : 2]", "o[2]", "R:1: 'o': an axis of more than 2^64" },
	{ "o = a [0 of 4294967296, 4294967296]", "o[4294967296]",
	  "R:1: 'a' would have more than 2^63 elements" },
	{ "o = a [swap 2000000 : 2]", "o[4000000]",
	  "R:1: 'a' would have more than 1048576 pieces" },
	{ "o = a [swap 600000 : 2]", "o[1200000]", "R:1: 'a' would have more than 1048576 pieces" },
	/* The hole is not in a tensor that is missing. */
	{ "o = a [0..2 of 4]\nx = b [2]", "o[2]", "R:1: " UNUSED "'a'" },
	{ "o = a [0..2 of 4]\nx = b [2] + a [4]", "o[2]", "R:2: the checkpoint has no 'x'" },
	/* Not everything that is joined is there. */
	{ "o = a [3]\nh = a [3] + b [2] | c [3]", "o[3]", "R:2: the checkpoint has no 'h'" },
	{ "o = a [3]\nh = c [3] | b [2] + a [3]", "o[3]", "R:2: the checkpoint has no 'h'" },
	{ "refuse config.two never\no = a [2]", "o[2]", "R:1: never" },
	{ "param n = config.none\no = a [n]", "o[2]",
	  "R:1: no value for 'n': looked for 'none' in config.json" },
};

START_LOOP_TEST(what_cannot_be_turned_back_is_refused, ARRAY_LEN(bad))
{
	struct store *s = store_of(bad[_i].given);
	struct recipe *r = NULL;
	struct recipe_out o = { 0 };
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(invert(s, bad[_i].text, &r, &o, &e), -EINVAL);
	ck_assert_str_eq(e.msg, bad[_i].says);
	recipe_free(r);
	free_store(s);
}
END_TEST

START_LOOP_TEST(tensors_of_two_dtypes_are_not_put_into_one, 2)
{
	struct store *s = store_of("o[2] p[2]");
	struct recipe *r = NULL;
	struct recipe_out o = { 0 };
	struct ckpt_err e = { 0 };

	if (_i)
		s->sources[1].stored = CKPT_DTYPE_F32;
	else
		s->sources[1].shown = CKPT_DTYPE_F32;
	ck_assert_int_eq(invert(s, "o = a [0..2 of 4]\np = a [2..4 of 4]", &r, &o, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "R:1: the recipe cannot be run backwards: tensors of different "
				"dtypes would be in 'a'");
	recipe_free(r);
	free_store(s);
}
END_TEST

/* A random axis of up to three factors. One of them may be cut into two rules, the others
 * swapped. */
static uint64_t random_axis(struct rng *r, size_t most, char *first, char *second, bool cut)
{
	size_t n = 1 + rng_below(r, most), which = rng_below(r, n), a = 0, b = 0;
	uint64_t length = 1;

	for (size_t i = 0; i < n; i++) {
		uint64_t of = 1 + rng_below(r, 3), at = rng_below(r, of + 1);
		const char *colon = i ? " : " : "";
		bool swap = i + 1 < n && !strstr(first, "swap") && rng_chance(r, 30);

		length *= of;
		if (cut && i == which) {
			a += (size_t)sprintf(first + a, "%s0..%d of %d", colon, (int)at, (int)of);
			b += (size_t)sprintf(second + b, "%s%d..%d of %d", colon, (int)at, (int)of,
					     (int)of);
			continue;
		}
		a += (size_t)sprintf(first + a, "%s%s%d", colon, swap ? "swap " : "", (int)of);
		b += (size_t)sprintf(second + b, "%s%s%d", colon, swap ? "swap " : "", (int)of);
	}
	return length;
}

/* If a tensor is cut into two results, with axes in any order, it can be put together again. */
START_TEST(random_cuts_are_turned_back)
{
	struct rng rng = rng_new();

	for (int round = 0; round < 300; round++) {
		char one[4][120] = { { 0 } }, two[4][120] = { { 0 } }, text[1200], given[400];
		size_t n = 1 + rng_below(&rng, 3), cut = rng_below(&rng, n),
		       order[4] = { 0, 1, 2, 3 };
		uint64_t shape[4];
		struct store *forward = calloc(1, sizeof(*forward)), *s;
		struct recipe *r = NULL;
		struct recipe_out o = { 0 };
		struct ckpt_err e = { 0 };
		size_t at = 0, g = 0;

		REQUIRE(forward);
		for (size_t i = 0; i < n; i++)
			shape[i] = random_axis(&rng, n < 3 ? 3 : 2, one[i], two[i], i == cut);
		for (size_t i = n; i-- > 1;) {
			size_t k = rng_below(&rng, i + 1), t = order[i];

			order[i] = order[k];
			order[k] = t;
		}
		for (int k = 0; k < 2; k++) {
			at += (size_t)sprintf(text + at, "%c = a [", "op"[k]);
			for (size_t i = 0; i < n; i++)
				at += (size_t)sprintf(text + at, "%s%s", i ? ", " : "",
						      k ? two[i] : one[i]);
			at += (size_t)sprintf(text + at, "] order");
			for (size_t i = 0; i < n; i++)
				at += (size_t)sprintf(text + at, " %d", (int)order[i]);
			at += (size_t)sprintf(text + at, "\n");
		}
		/* Forwards first, to get the shapes of the results. */
		forward->facts = facts;
		store_add(forward, "a", n, shape);
		ck_assert_int_eq(store_finish(forward, &e), 0);
		ck_assert_msg(!recipe_parse(text, at, "R", &r, &e), "%s\n%s", e.msg, text);
		ck_assert_msg(!store_apply(forward, r, &o, &e), "%s\n%s", e.msg, text);
		recipe_free(r);
		for (size_t i = 0; i < o.names.n; i++) {
			const struct vtensor *v = o.tensors[o.names.v[i].index];

			g += (size_t)sprintf(given + g, "%s[", o.names.v[i].fqn);
			for (size_t d = 0; d < v->n_dims; d++)
				g += (size_t)sprintf(given + g, "%s%d", d ? "," : "",
						     (int)v->shape[d]);
			g += (size_t)sprintf(given + g, "] ");
		}
		recipe_out_release(&o);
		free_store(forward);
		s = store_of(given);
		ck_assert_msg(!invert(s, text, &r, &o, &e), "%s\n%s%s", e.msg, text, given);
		ck_assert_uint_eq(o.names.n, 1);
		check_identity(s, r, &o);
		recipe_out_release(&o);
		recipe_free(r);
		free_store(s);
	}
}
END_TEST

START_LOOP_TEST(without_memory_it_says_so, 2)
{
	static const char *const given[] = { LAYERS, LAYERS " l.1.b[2]" };
	struct store *s = store_of(given[_i]);

	FAULT_LOOP(FAULT_ALLOC)
	{
		struct recipe *r = NULL;
		struct recipe_out o = { 0 };
		struct ckpt_err e = { 0 };
		int rc = invert(s, QKV, &r, &o, &e);

		(void)fault_off();
		ck_assert_msg(rc == -ENOMEM || !rc, "%d: %s", rc, e.msg);
		ck_assert(!rc || fault_hit());
		ck_assert_int_eq(e.code, -rc);
		if (!rc)
			recipe_out_release(&o);
		recipe_free(r);
	}
	free_store(s);
}
END_TEST

/* The same message, or that there is no memory. */
START_LOOP_TEST(without_memory_refusals_say_so, ARRAY_LEN(bad))
{
	struct store *s = store_of(bad[_i].given);

	FAULT_LOOP(FAULT_ALLOC)
	{
		struct recipe *r = NULL;
		struct recipe_out o = { 0 };
		struct ckpt_err e = { 0 };
		int rc = invert(s, bad[_i].text, &r, &o, &e);

		(void)fault_off();
		ck_assert_int_eq(e.code, -rc);
		if (rc == -ENOMEM)
			ck_assert(fault_hit());
		else
			ck_assert_str_eq(e.msg, bad[_i].says);
		recipe_free(r);
	}
	free_store(s);
}
END_TEST

SUITE(recipe_invert)
