/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values that several others refer to, and values that lead back to themselves. What is known of
 * one is kept here, so that a search comes to it once, and so that the walk ends:
 *
 *	cfg = {"a": leaf}, leaf.parent = cfg
 *
 * While the parts of a value are listed, what leads back to it is left out. More generally, values
 * that lead to each other (a strongly connected component of the graph) are listed once, each where
 * the walk first comes to it, whenever one of them is reached from outside. Otherwise objects that
 * all know each other would be listed once for each path through them. The stack is that of
 * Tarjan's algorithm: a value is on it until all that lead back to it, or to values below it, are
 * done.
 *
 * A list, dict or tuple with one reference can be reached only through the value around it, and
 * nothing need be known of it. That is not so for objects, because their states and arguments are
 * not values of the walk.
 */
#include "base/checked.h"
#include "base/err.h"
#include "base/vec.h"
#include "format/torch/torchsave_walk.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { FIRST_SLOTS = 64 };
static const uint32_t none = UINT32_MAX;

struct known {
	const struct pk_node *n;
	uint32_t queued; /* its place in the queue of the last search that came to it */
	uint32_t height; /* its place in the stack, from 1; 0: it is not there */
	uint8_t answer;	 /* of a search */
	bool listed;	 /* at least once */
	bool open;	 /* its parts are being listed */
};
enum { NOT_SEARCHED, HAS_TENSOR, HAS_NONE };

struct torchsave_shared {
	struct known *v;
	size_t n, cap;
	uint32_t *slots; /* by hash of the pointer: 1 + place in v */
	size_t n_slots;	 /* 0, or a power of 2 */
	struct queued {
		const struct pk_value *v;
		uint32_t from, known; /* where in the queue what it is a part of is; place in v */
	} * queue;
	size_t queue_cap;
	uint32_t *stack; /* places in v */
	size_t on_stack, stack_cap;
	uint32_t low; /* the lowest place in the stack that the parts of the open value lead to */
};

void walk_shared_free(struct torchsave_shared *s)
{
	if (!s)
		return;
	free(s->v);
	free(s->slots);
	free(s->queue);
	free(s->stack);
	free(s);
}

/* ---- what is known of a node ---- */

static size_t slot_of(const struct torchsave_shared *s, const struct pk_node *n)
{
	size_t at = (size_t)XXH3_64bits(&n, sizeof(n)) & (s->n_slots - 1);

	while (s->slots[at] && s->v[s->slots[at] - 1].n != n)
		at = (at + 1) & (s->n_slots - 1);
	return at;
}

/* At most half of the slots are used. */
static bool make_slots(struct torchsave_shared *s)
{
	size_t n = s->n_slots ? 2 * s->n_slots : FIRST_SLOTS;
	uint32_t *grown;

	if (s->n < s->n_slots / 2)
		return true;
	grown = s->n < UINT32_MAX / 4 ? calloc(n, sizeof(*grown)) : NULL;
	if (!grown)
		return false;
	free(s->slots);
	s->slots = grown;
	s->n_slots = n;
	for (size_t i = 0; i < s->n; i++)
		s->slots[slot_of(s, s->v[i].n)] = (uint32_t)i + 1;
	return true;
}

static bool is_container(const struct pk_value *v)
{
	return (v->type == PK_TUPLE || v->type == PK_LIST || v->type == PK_DICT ||
		v->type == PK_OBJECT) &&
	       v->n; /* () has none */
}

/* The place of v's node, or `none` if nothing need be known of it. */
static int find_known(struct torchsave *t, const struct pk_value *v, uint32_t *ret,
		      struct ckpt_err *e)
{
	struct torchsave_shared *s = t->shared;
	size_t at;

	*ret = none;
	if (!s)
		s = t->shared = calloc(1, sizeof(*s));
	if (!s)
		return err_nomem(e);
	if (!is_container(v) || (v->type != PK_OBJECT && v->n->refs < 2))
		return 0;
	if (!make_slots(s) || !VEC_ROOM(s->v, s->cap, s->n + 1))
		return err_nomem(e);
	at = slot_of(s, v->n);
	if (!s->slots[at]) {
		s->v[s->n++] = (struct known){ .n = v->n };
		s->slots[at] = (uint32_t)s->n;
	}
	*ret = s->slots[at] - 1;
	return 0;
}

/* ---- is there a tensor in it? ---- */

/* A search level by level, so that depth costs no stack. */
struct search {
	struct walk *w;
	size_t n;    /* in the queue */
	uint32_t at; /* what is being looked at */
};

/* 1: it contains a tensor, or an unreadable one. Otherwise it is looked into later. */
static int look_at(void *arg, const struct pk_value *key, size_t number, const struct pk_value *v,
		   struct ckpt_err *e)
{
	struct search *s = arg;
	struct torchsave_shared *x;
	uint32_t at;
	int rc = walk_charge(s->w->t, 1, e);

	(void)key;
	(void)number;
	if (rc)
		return rc;
	if (walk_is_tensor(s->w, v) || walk_is_storage(s->w, v))
		return 1;
	rc = find_known(s->w->t, v, &at, e);
	if (rc || !is_container(v))
		return rc;
	x = s->w->t->shared;
	if (at != none) {
		struct known *k = &x->v[at];

		if (k->answer != NOT_SEARCHED)
			return k->answer == HAS_TENSOR;
		if (k->queued < s->n && x->queue[k->queued].known == at)
			return 0;
		k->queued = (uint32_t)s->n;
	}
	if (s->n >= UINT32_MAX || !VEC_ROOM(x->queue, x->queue_cap, s->n + 1))
		return err_nomem(e);
	x->queue[s->n++] = (struct queued){ v, s->at, at };
	return 0;
}

static void answer(struct torchsave_shared *x, size_t i, uint8_t what)
{
	if (x->queue[i].known != none)
		x->v[x->queue[i].known].answer = what;
}

int walk_has_tensor(struct walk *w, const struct pk_value *v, struct ckpt_err *e)
{
	struct search s = { .w = w };
	int rc = look_at(&s, NULL, 0, v, e);

	for (bool more = !rc && s.n; more;) {
		rc = walk_parts(w->t, w->t->shared->queue[s.at].v, look_at, &s, e);
		more = !rc && ++s.at < s.n;
	}
	/* It is also in all that led there. */
	for (size_t i = s.at; rc > 0 && s.n; i = w->t->shared->queue[i].from) {
		answer(w->t->shared, i, HAS_TENSOR);
		if (!i)
			break;
	}
	for (size_t i = 0; !rc && i < s.n; i++)
		answer(w->t->shared, i, HAS_NONE);
	return rc;
}

/* ---- the walk ---- */

int walk_enter(struct walk *w, const struct pk_value *v, struct walk_visit *ret, struct ckpt_err *e)
{
	struct torchsave_shared *s;
	struct known *k;
	int rc;

	*ret = (struct walk_visit){ 0 };
	rc = find_known(w->t, v, &ret->known, e);
	if (rc || ret->known == none)
		return rc;
	s = w->t->shared;
	k = &s->v[ret->known];
	/* A tensor may have several names. */
	if (k->open || (k->height && !walk_is_tensor(w, v))) {
		s->low = (uint32_t)min_u64(s->low, k->height);
		return 1;
	}
	ret->low = s->low;
	ret->again = k->listed;
	if (k->height) { /* a tensor that is listed once more, while what leads back to it is open */
		s->low = (uint32_t)min_u64(s->low, k->height);
	} else {
		if (!VEC_ROOM(s->stack, s->stack_cap, s->on_stack + 1))
			return err_nomem(e);
		s->stack[s->on_stack++] = ret->known;
		k->height = (uint32_t)s->on_stack;
		s->low = k->height;
		ret->pushed = true;
	}
	k->open = k->listed = true;
	return 0;
}

void walk_leave(struct walk *w, const struct walk_visit *visit)
{
	struct torchsave_shared *s = w->t->shared;
	uint32_t height;

	if (visit->known == none)
		return;
	s->v[visit->known].open = false;
	height = s->v[visit->known].height;
	if (visit->pushed && s->low >= height) /* what it leads to does not lead below it */
		while (s->on_stack >= height)
			s->v[s->stack[--s->on_stack]].height = 0;
	s->low = (uint32_t)min_u64(visit->low, s->low);
}
