/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers of layers and experts in the whole model.
 *
 * Each stage counts its layers from 0. Its first one follows the last of the stage before: stages
 * are passed in the order of virtual stages, and of pipeline stages within each. So a stage's first
 * layer is the number of layers in all stages before it, however unevenly they are divided. Each
 * expert-parallel rank counts its experts from 0, and all have as many.
 */
#include "base/cleanup.h"
#include "base/text.h"
#include "base/vec.h"
#include "format/megatron_ranks/mranks.h"

#include <stdio.h>
#include <stdlib.h>

/* The things of one kind in one stage: what precedes their number in the name, and how many. */
struct tally {
	uint32_t key, stage;
	uint64_t n, before; /* before: in all earlier stages */
};
struct tallies {
	struct tally *v;
	size_t n, cap;
};

static void tallies_release(struct tallies *t)
{
	free(t->v);
}

static int by_key(const void *ap, const void *bp)
{
	const struct tally *a = ap, *b = bp;

	if (a->key != b->key)
		return a->key < b->key ? -1 : 1;
	return (a->stage > b->stage) - (a->stage < b->stage);
}

static uint32_t stage_of(const struct mr *d, const struct mr_part *p)
{
	return p->v * d->pp + p->file->p;
}

static const struct pk_str *intern(struct mr *d, const char *s, size_t len, struct ckpt_err *e)
{
	const struct pk_str *r = pk_intern(d->names, s, len);

	if (!r)
		(void)err_set(e, errno, "the names of all tensors take too much memory");
	return r;
}

typedef bool find_fn(const char *name, struct mr_number *ret);

/* Counts what `find` finds in the names; by stage, or in all of them together. */
static int count(struct mr *d, find_fn *find, bool by_stage, struct tallies *ret,
		 struct ckpt_err *e)
{
	size_t n = 0;

	for (size_t i = 0; i < d->n_parts; i++) {
		const struct mr_part *p = &d->parts[i];
		const struct pk_str *key;
		struct mr_number x;

		if (!find(p->name->data, &x))
			continue;
		key = intern(d, p->name->data, x.at, e);
		if (!key)
			return -e->code;
		if (!VEC_ROOM(ret->v, ret->cap, ret->n + 1))
			return err_nomem(e);
		ret->v[ret->n++] = (struct tally){ .key = key->id,
						   .stage = by_stage ? stage_of(d, p) : 0,
						   .n = x.value + (uint64_t)1 };
	}
	if (ret->n)
		qsort(ret->v, ret->n, sizeof(*ret->v), by_key);
	for (size_t i = 0; i < ret->n; i++) {
		struct tally *last = n ? &ret->v[n - 1] : NULL;
		const struct tally x = ret->v[i];

		if (last && !by_key(last, &x)) {
			last->n = x.n > last->n ? x.n : last->n;
			continue;
		}
		ret->v[n] = x;
		if (last && last->key == x.key)
			ret->v[n].before = last->before + last->n;
		n++;
	}
	ret->n = n;
	return 0;
}

/* Puts the number n in place of x in the part's name. */
static int rename_part(struct mr *d, struct mr_part *p, const struct mr_number *x, uint64_t n,
		       struct ckpt_err *e)
{
	const char *s = p->name->data;
	char name[MR_MAX_FQN + 32];
	int len = snprintf(name, sizeof(name), "%.*s%llu%s", (int)x->at, s, (unsigned long long)n,
			   s + x->at + x->len);

	p->name = intern(d, name, (size_t)len, e);
	return p->name ? 0 : -e->code;
}

static const struct tally *tally_of(struct mr *d, const struct tallies *t, const char *name,
				    size_t at, uint32_t stage, struct ckpt_err *e)
{
	const struct pk_str *key = intern(d, name, at, e);
	const struct tally want = { .key = key ? key->id : 0, .stage = stage };

	return key ? bsearch(&want, t->v, t->n, sizeof(want), by_key) : NULL;
}

static int number_layers(struct mr *d, struct ckpt_err *e)
{
	struct tallies layers CLEANUP(tallies_release) = { 0 };
	uint64_t most = 0;
	int rc = count(d, mr_layer_in, true, &layers, e);

	for (size_t i = 0; !rc && i < d->n_parts; i++) {
		struct mr_part *p = &d->parts[i];
		const struct tally *t;
		struct mr_number x;

		if (!mr_layer_in(p->name->data, &x))
			continue;
		t = tally_of(d, &layers, p->name->data, x.at, stage_of(d, p), e);
		rc = t ? rename_part(d, p, &x, t->before + x.value, e) : -e->code;
	}
	for (size_t i = 0; i < layers.n; i++)
		most = layers.v[i].before + layers.v[i].n > most
			       ? layers.v[i].before + layers.v[i].n
			       : most;
	if (!rc && most && d->layers != UINT64_MAX && most < d->layers)
		(void)format_note(d->not_shown,
				  "some layers: the args in '%.100s' have num_layers=%llu, but the "
				  "files have %llu",
				  d->files->path, (unsigned long long)d->layers,
				  (unsigned long long)most);
	return rc;
}

static int number_experts(struct mr *d, struct ckpt_err *e)
{
	struct tallies experts CLEANUP(tallies_release) = { 0 };
	int rc = d->ep > 1 ? count(d, mr_expert_in, false, &experts, e) : 0;

	for (size_t i = 0; !rc && d->ep > 1 && i < d->n_parts; i++) {
		struct mr_part *p = &d->parts[i];
		const struct tally *t;
		struct mr_number x;

		if (!mr_expert_in(p->name->data, &x))
			continue;
		t = tally_of(d, &experts, p->name->data, x.at, 0, e);
		rc = t ? rename_part(d, p, &x, p->file->e * t->n + x.value, e) : -e->code;
	}
	return rc;
}

static int by_name(const void *ap, const void *bp)
{
	const struct mr_part *a = ap, *b = bp;
	const uint32_t x[] = { a->name->id, a->v, a->file->p, a->file->t, a->file->e };
	const uint32_t y[] = { b->name->id, b->v, b->file->p, b->file->t, b->file->e };

	for (size_t i = 0; i < sizeof(x) / sizeof(*x); i++)
		if (x[i] != y[i])
			return x[i] < y[i] ? -1 : 1;
	return 0;
}

int mr_number_parts(struct mr *d, struct ckpt_err *e)
{
	int rc = number_layers(d, e);

	if (!rc)
		rc = number_experts(d, e);
	if (rc || !d->n_parts)
		return rc;
	qsort(d->parts, d->n_parts, sizeof(*d->parts), by_name);
	for (size_t i = 1; i < d->n_parts; i++)
		if (!by_name(&d->parts[i - 1], &d->parts[i]))
			return err_set(e, ERR_CORRUPT, "'%.100s' has two tensors called '%s'",
				       d->parts[i].file->path,
				       FQN_TEXT(d->parts[i].name->data, d->parts[i].name->len));
	return 0;
}
