/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/arch_check.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "model/box.h"

#include <stdlib.h>
#include <string.h>

#define NOT_KNOWN 0xff /* in no row of the table */

struct checking {
	const struct arch *a;
	const struct arch_tensors *t;
	struct arch_report *r;
	const struct arch_prefix *prefix;
	uint8_t rows[ARCH_MAX_WEIGHTS], n_rows; /* the rows that apply to this model */
	uint64_t lacks[ARCH_MAX_WEIGHTS]; /* number of missing tensors for each row of the table */
	uint64_t seen[ARCH_MAX_WEIGHTS];  /* number of tensors for each row of the table */
	uint8_t *row_of;		  /* by tensor: its row */
	bool fused, fused_router;	  /* which of the two styles the model uses */
	bool strange;			  /* some names are in no row, or both styles occur */
};

/* ---- parsing names ---- */

/* Parses a number without leading zeros, which must be followed by `behind`. */
static bool take_number(const char **s, const char *end, const char *behind, uint64_t *ret)
{
	const char *p = *s;
	size_t n = strlen(behind);

	*ret = 0;
	while (p < end && *p >= '0' && *p <= '9' && p - *s < 10)
		*ret = *ret * 10 + (uint64_t)(*p++ - '0');
	if (p == *s || (**s == '0' && p - *s > 1) || (size_t)(end - p) < n ||
	    memcmp(p, behind, n) != 0)
		return false;
	*s = p + n;
	return true;
}

static bool take_text(const char **s, const char *end, const char *text, size_t len)
{
	if ((size_t)(end - *s) < len || memcmp(*s, text, len) != 0)
		return false;
	*s += len;
	return true;
}

/* Is the rest of the name this weight's, in which {} is the number of an expert? */
static bool is_name(const struct arch_weight *w, const char *s, const char *end, uint64_t experts)
{
	const char *brace = w->scope == ARCH_EXPERT ? strchr(w->name, '{') : NULL;
	uint64_t expert;

	if (!brace)
		return !strncmp(w->name, s, (size_t)(end - s)) && !w->name[end - s];
	return take_text(&s, end, w->name, (size_t)(brace - w->name)) &&
	       take_number(&s, end, brace + strlen("{}"), &expert) && s == end && expert < experts;
}

/* The row of a tensor's name, or NOT_KNOWN. */
static uint8_t row_of(const struct checking *c, const struct arch_tensor *t)
{
	const char *s = t->name, *head = s, *end = s + t->len, *layers = arch_layers(c->a);
	uint64_t layer = 0;
	bool is_head = take_text(&head, end, c->prefix->head, strlen(c->prefix->head));
	bool below = take_text(&s, end, c->prefix->most, strlen(c->prefix->most));
	bool in_layer = below && take_text(&s, end, layers, strlen(layers)) &&
			take_number(&s, end, ".", &layer);

	if (in_layer && layer >= c->a->layers)
		return NOT_KNOWN;
	for (size_t i = 0; i < c->n_rows; i++) {
		const struct arch_weight *w = &arch_weights[c->rows[i]];
		bool of_layer = w->scope == ARCH_LAYER || w->scope == ARCH_EXPERT;
		bool here = of_layer		    ? in_layer
			    : w->scope == ARCH_ONCE ? below && !in_layer
						    : is_head;

		if (here && is_name(w, w->scope == ARCH_TOP ? head : s, end, c->a->experts) &&
		    arch_needs(c->a, w, layer) != ARCH_NONE)
			return c->rows[i];
	}
	return NOT_KNOWN;
}

/* ---- counting ---- */

static bool is_other_style(const struct checking *c, const struct arch_weight *w)
{
	switch ((enum arch_style)w->style) {
	case ARCH_SPLIT:
		return c->fused;
	case ARCH_FUSED:
		return !c->fused;
	case ARCH_SPLIT_ROUTER:
		return c->fused_router;
	case ARCH_FUSED_ROUTER:
		return !c->fused_router;
	case ARCH_ALWAYS:
		break;
	}
	return false;
}

static uint64_t seen_in(const struct checking *c, enum arch_style style)
{
	uint64_t n = 0;

	for (size_t i = 0; i < c->n_rows; i++)
		if (arch_weights[c->rows[i]].style == style)
			n += c->seen[c->rows[i]];
	return n;
}

static uint64_t count_needed(const struct checking *c, const struct arch_weight *w)
{
	uint64_t n = 0;

	if (is_other_style(c, w))
		return 0;
	if (w->scope == ARCH_ONCE || w->scope == ARCH_TOP)
		return arch_needs(c->a, w, 0) == ARCH_MUST;
	for (uint64_t i = 0; i < c->a->layers; i++)
		n += arch_needs(c->a, w, i) == ARCH_MUST;
	/* cannot overflow: below 2^16 * 2^31 */
	return w->scope == ARCH_EXPERT ? n * c->a->experts : n;
}

static void note_shape(struct checking *c, const struct arch_weight *w, const struct arch_tensor *t,
		       size_t i)
{
	struct arch_report *r = c->r;
	uint64_t want[3];

	arch_shape(c->a, w, want);
	if (t->n_dims == w->n_dims && dims_equal(t->n_dims, t->shape, want))
		return;
	if (!r->misshapen++) {
		r->misshapen_at = i;
		r->n_should_be = w->n_dims;
		memcpy(r->should_be, want, sizeof(want));
	}
	if (t->n_dims == 2 && want[0] == c->a->vocab && want[1] == t->shape[1] &&
	    t->shape[0] > want[0])
		r->padded = t->shape[0];
}

/* Collects unexpected names; the style that the model uses must be known. */
static void name_unexpected(struct checking *c)
{
	struct arch_report *r = c->r;
	struct arch_tensor t;

	for (size_t i = 0; i < c->t->n; i++) {
		uint8_t row = c->row_of[i];

		if (row != NOT_KNOWN && !is_other_style(c, &arch_weights[row]))
			continue;
		if (!c->t->get(c->t->arg, i, &t) || arch_ignores(c->a, t.name, t.len) ||
		    arch_is_other(c->a, t.name, t.len))
			continue;
		if (r->unexpected < ARCH_SHOWN)
			r->unexpected_at[r->unexpected] = i;
		r->unexpected++;
	}
}

/* ---- what is missing ---- */

/* Records the name if it is missing; returns whether enough missing names are known. */
static bool try_name(struct checking *c, const struct arch_weight *w, uint64_t layer,
		     uint64_t expert, size_t *n)
{
	struct arch_tensor t;
	char name[ARCH_NAME_CAP];
	int64_t at;

	arch_name(c->a, w, c->prefix, layer, expert, name);
	at = c->t->find(c->t->arg, name, strlen(name));
	if (at < 0 || !c->t->get(c->t->arg, (size_t)at, &t))
		memcpy(c->r->missing_names[(*n)++], name, sizeof(name));
	return *n == ARCH_SHOWN || *n == c->r->missing;
}

static bool name_missing_in(struct checking *c, const struct arch_weight *w, uint64_t layer,
			    size_t *n)
{
	bool enough = false;

	for (uint64_t x = 0; !enough && x < (w->scope == ARCH_EXPERT ? c->a->experts : 1); x++)
		enough = try_name(c, w, layer, x, n);
	return enough;
}

/*
 * Stops after the first few missing names, so that it takes time proportional to the number of
 * tensors.
 */
static void name_missing(struct checking *c)
{
	const uint64_t layers = c->a->layers;
	bool enough = !c->r->missing;
	size_t n = 0;

	for (uint64_t layer = 0; !enough && layer <= layers; layer++)
		for (size_t i = 0; !enough && i < c->n_rows; i++) {
			const struct arch_weight *w = &arch_weights[c->rows[i]];
			bool of_layer = w->scope == ARCH_LAYER || w->scope == ARCH_EXPERT;
			/* Follow the order of a model: the head comes last. */
			bool now = of_layer		   ? layer < layers
				   : w->scope == ARCH_ONCE ? !layer
							   : layer == layers;

			if (now && c->lacks[c->rows[i]] &&
			    arch_needs(c->a, w, of_layer ? layer : 0) == ARCH_MUST)
				enough = name_missing_in(c, w, of_layer ? layer : 0, &n);
		}
}

/* ---- entry points ---- */

static void begin(struct checking *c)
{
	struct arch_tensor t;

	c->prefix = arch_find_prefix(c->a, c->t->find, c->t->arg);
	c->r->bare = !*c->prefix->most;
	for (size_t i = 0; i < arch_n_weights; i++)
		if (arch_weights[i].kinds & c->a->kind)
			c->rows[c->n_rows++] = (uint8_t)i;
	for (size_t i = 0; i < c->t->n; i++) {
		bool there = c->t->get(c->t->arg, i, &t);
		uint8_t row = c->row_of[i] = there ? row_of(c, &t) : NOT_KNOWN;

		if (there && arch_is_other(c->a, t.name, t.len)) {
			c->r->others++;
			continue;
		}
		if (row == NOT_KNOWN) {
			c->strange |= there;
			continue;
		}
		c->seen[row]++;
		note_shape(c, &arch_weights[row], &t, i);
		if (!t.weight && !c->r->no_weights++)
			c->r->no_weight_at = i;
	}
	c->fused = seen_in(c, ARCH_FUSED) && !seen_in(c, ARCH_SPLIT);
	/* If both styles occur, tensors of the unused one are unexpected. */
	for (int i = ARCH_SPLIT; i < ARCH_FUSED_ROUTER; i += 2)
		c->strange |=
			seen_in(c, (enum arch_style)i) && seen_in(c, (enum arch_style)(i + 1));
	c->fused_router = seen_in(c, ARCH_FUSED_ROUTER) && !seen_in(c, ARCH_SPLIT_ROUTER);
}

bool arch_is_complete(const struct arch_report *r)
{
	return !r->missing && !r->unexpected && !r->misshapen && !r->no_weights;
}

int arch_check(const struct arch *a, const struct arch_tensors *t, struct arch_report *ret,
	       struct ckpt_err *e)
{
	autofree uint8_t *rows = malloc(t->n + 1);
	struct checking c = { .a = a, .t = t, .r = ret, .row_of = rows };

	*ret = (struct arch_report){ 0 };
	if (!rows)
		return err_nomem(e);
	begin(&c);
	for (size_t i = 0; i < c.n_rows; i++) {
		const struct arch_weight *w = &arch_weights[c.rows[i]];
		uint64_t needed = count_needed(&c, w);

		ret->needed += needed;
		/*
		 * Names are unique, so none is counted twice; there may be more tensors than needed
		 * if some are optional.
		 */
		if (needed > c.seen[c.rows[i]])
			c.lacks[c.rows[i]] = needed - c.seen[c.rows[i]];
		ret->missing += c.lacks[c.rows[i]];
	}
	if (c.strange)
		name_unexpected(&c);
	name_missing(&c);
	return 0;
}
