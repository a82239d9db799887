/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recipe_eval - the numbers of a recipe.
 *
 * A parameter is looked up when it is first needed, so a model without experts need not say how
 * many it has. Parameters depend only on those above them, so the recursion ends.
 */
#include "base/checked.h"
#include "base/err.h"
#include "recipe/recipe_internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

int recipe_count_steps(struct eval *x, uint64_t steps, uint32_t line, struct ckpt_err *e)
{
	if (steps > RECIPE_MAX_STEPS - x->steps)
		return err_set(e, EFBIG,
			       "%.100s:%u: the recipe needs more than %llu steps: rounds of loops, "
			       "times alternatives, times the length of names and expressions",
			       x->r->file, line, (unsigned long long)RECIPE_MAX_STEPS);
	x->steps += steps;
	return 0;
}

int recipe_count_result(struct eval *x, uint64_t bytes, uint32_t line, struct ckpt_err *e)
{
	if (bytes > RECIPE_MAX_RESULTS - x->results)
		return err_set(
			e, EFBIG,
			"%.100s:%u: the names and pieces of the recipe's results need more than "
			"%llu MiB",
			x->r->file, line, (unsigned long long)(RECIPE_MAX_RESULTS >> 20));
	x->results += bytes;
	return 0;
}

static int operate(const struct recipe *r, uint32_t line, enum rx_op op, uint64_t a, uint64_t b,
		   uint64_t *ret, struct ckpt_err *e)
{
	static const char marks[] = {
		[RX_ADD] = '+', [RX_SUB] = '-', [RX_MUL] = '*', [RX_DIV] = '/', [RX_MOD] = '%'
	};
	const char *why;
	uint64_t v = 0;
	bool bad;

	switch (op) {
	case RX_ADD:
		bad = ckd_add(&v, a, b);
		why = "more than 64 bits";
		break;
	case RX_MUL:
		bad = ckd_mul(&v, a, b);
		why = "more than 64 bits";
		break;
	case RX_SUB:
		bad = ckd_sub(&v, a, b);
		why = "negative";
		break;
	case RX_MOD:
		bad = !b;
		why = "not a number";
		if (!bad)
			v = a % b;
		break;
	default:
		bad = !b || a % b;
		why = "not a whole number";
		if (!bad)
			v = a / b;
	}
	if (bad)
		return recipe_bad(r, line, e, "%llu %c %llu is %s", (unsigned long long)a,
				  marks[op], (unsigned long long)b, why);
	*ret = v;
	return 0;
}

static int lookup(struct eval *x, const struct rx_token *t, uint32_t line, uint64_t *ret,
		  struct ckpt_err *e)
{
	const struct recipe_facts *facts = x->facts;
	struct ckpt_err why = { 0 };
	int rc;

	if (t->op == RX_IS) {
		const char *s = facts->text ? facts->text(facts->arg, t->from, t->key) : NULL;

		*ret = s && !strcmp(s, t->text);
		return !s;
	}
	rc = facts->number(facts->arg, t->from, t->key, ret, &why);
	return rc < 0 ? recipe_bad(x->r, line, e, "%s", why.msg) : rc;
}

/* "'num_layers' in the checkpoint's args, ...": the places where a parameter was looked up. */
static void list_places(const struct eval *x, const struct param *p, char *out, size_t cap)
{
	static const char *const places[] = { "config.json", "the checkpoint's args" };
	size_t at = 0;

	out[0] = 0;
	for (uint32_t c = p->choices.at; c < p->choices.at + p->choices.n; c++) {
		struct run v = x->r->choices[c].value;

		for (uint32_t i = v.at; i < v.at + v.n && at < cap; i++) {
			const struct rx_token *t = &x->r->tokens[i];

			if (t->op == RX_FACT || t->op == RX_IS)
				at += (size_t)snprintf(out + at, cap - at, "%s'%.60s' in %s%s",
						       at ? ", " : "", t->key, places[t->from],
						       x->facts->has[t->from] ? ""
									      : " (there is none)");
		}
	}
}

static int find_param(struct eval *x, uint32_t number, uint64_t *ret, struct ckpt_err *e)
{
	const struct param *p = &x->r->params[number];
	char places[260];
	uint64_t condition;
	int rc = 1;

	for (uint32_t i = 0; rc == 1 && i < p->choices.n; i++) {
		const struct choice *c = &x->r->choices[p->choices.at + i];

		if (c->condition.n) {
			rc = recipe_eval(x, c->condition, p->line, &condition, e);
			if (!rc && !condition)
				rc = 1;
			if (rc)
				continue;
		}
		rc = recipe_eval(x, c->value, p->line, ret, e);
	}
	if (rc != 1)
		return rc;
	list_places(x, p, places, sizeof(places));
	return recipe_bad(x->r, p->line, e, "no value for '%.40s': looked for %s", p->name, places);
}

static int param(struct eval *x, uint32_t number, uint64_t *ret, struct ckpt_err *e)
{
	struct param_value *v = &x->params[number];

	if (!v->known) {
		int rc = find_param(x, number, &v->value, e);

		if (rc)
			return rc;
		v->known = true;
	}
	*ret = v->value;
	return 0;
}

int recipe_eval(struct eval *x, struct run expr, uint32_t line, uint64_t *ret, struct ckpt_err *e)
{
	uint64_t stack[RECIPE_MAX_STACK] = { 0 };
	size_t n = 0;
	int rc = recipe_count_steps(x, 4 * (uint64_t)expr.n, line, e);

	for (uint32_t i = expr.at; !rc && i < expr.at + expr.n; i++) {
		const struct rx_token *t = &x->r->tokens[i];

		switch (t->op) {
		case RX_NUMBER:
			stack[n++] = t->number;
			break;
		case RX_LOOP:
			stack[n++] = x->loops[t->number];
			break;
		case RX_PARAM:
			rc = param(x, (uint32_t)t->number, &stack[n++], e);
			break;
		case RX_FACT:
		case RX_IS:
			rc = lookup(x, t, line, &stack[n++], e);
			break;
		default:
			n--;
			rc = operate(x->r, line, t->op, stack[n - 1], stack[n], &stack[n - 1], e);
		}
	}
	if (!rc)
		*ret = stack[0];
	return rc;
}
