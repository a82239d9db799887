/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/ls.h"

#include "cmd/cmd.h"

#include "base/err.h"
#include "base/text.h"
#include "base/vec.h"

#include <stdlib.h>
#include <string.h>

static void take_tensor(struct ls_walk *w, const struct ckpt_tensor *t, struct ls_item *ret)
{
	*ret = (struct ls_item){
		.fqn = t->fqn,
		.fqn_len = t->fqn_len,
		.dtype = t->dtype,
		.n_dims = t->n_dims,
		.shape = t->shape,
		.n_logical = t->n_logical,
		.logical = t->logical,
		.number = w->next_tensor++,
		.bytes = t->bytes,
		.elements = t->element ? t->bytes / t->element : 0,
		.chunks = t->chunks,
		.copies = 1,
		.fault = t->fault,
	};
}

static void take_object(struct ls_walk *w, const struct ckpt_object *o, struct ls_item *ret)
{
	*ret = (struct ls_item){
		.is_object = true,
		.fqn = o->fqn,
		.fqn_len = o->fqn_len,
		.dtype = "object",
		.number = w->next_object++,
		.bytes = o->length,
		.chunks = 1,
		.copies = 1,
		.fault = o->fault,
	};
}

static bool next_any(struct ls_walk *w, struct ls_item *ret)
{
	bool tensor = w->next_tensor < w->totals.tensors,
	     object = w->next_object < w->totals.objects;
	struct ckpt_tensor t;
	struct ckpt_object o;

	if (!tensor && !object)
		return false;
	if (tensor)
		ckpt_tensor(w->ckpt, w->next_tensor, &t);
	if (object)
		ckpt_object(w->ckpt, w->next_object, &o);
	if (tensor && object)
		tensor = text_natural_cmp(t.fqn, t.fqn_len, o.fqn, o.fqn_len) <= 0;
	if (tensor)
		take_tensor(w, &t, ret);
	else
		take_object(w, &o, ret);
	return true;
}

bool ls_next(struct ls_walk *w, struct ls_item *ret)
{
	if (w->items) {
		if (w->at < w->n_items)
			*ret = w->items[w->at];
		return w->at++ < w->n_items;
	}
	while (next_any(w, ret))
		if (text_glob_any(w->globs, ret->fqn, ret->fqn_len, &w->glob_steps))
			return true;
	return false;
}

struct ls_walk ls_walk(const struct ckpt *c, const char *const *globs)
{
	struct ls_walk w = { .ckpt = c, .globs = globs, .glob_steps = TEXT_GLOB_STEPS };

	ckpt_totals(c, &w.totals);
	return w;
}

void ls_walk_release(struct ls_walk *w)
{
	free(w->items);
}

int ls_check_globs(uint64_t steps)
{
	struct ckpt_err e = { 0 };

	return text_glob_check(steps, "ls", &e) ? cmd_fail(&e) : 0;
}

static int by_name(const void *ap, const void *bp)
{
	const struct ls_item *a = ap, *b = bp;
	int c = text_natural_cmp(a->fqn, a->fqn_len, b->fqn, b->fqn_len);

	return c ? c : a->is_object - b->is_object;
}

static int by_size(const void *ap, const void *bp)
{
	const struct ls_item *a = ap, *b = bp;

	return a->bytes == b->bytes ? by_name(a, b) : a->bytes < b->bytes ? 1 : -1;
}

static int by_dtype(const void *ap, const void *bp)
{
	const struct ls_item *a = ap, *b = bp;
	int c = strcmp(a->dtype, b->dtype);

	return c ? c : by_name(a, b);
}

int ls_collect(struct ls_walk *w, const char *sort)
{
	struct ls_item *items = NULL, i;
	struct ckpt_err e = { 0 };
	size_t n = 0, cap = 0;

	while (ls_next(w, &i)) {
		if (!VEC_ROOM(items, cap, n + 1)) {
			free(items);
			(void)err_nomem(&e);
			return cmd_fail(&e);
		}
		items[n++] = i;
	}
	if (n && sort && strcmp(sort, "name") != 0)
		qsort(items, n, sizeof(*items), strcmp(sort, "size") ? by_dtype : by_size);
	w->items = items;
	w->n_items = n;
	return ls_check_globs(w->glob_steps);
}
