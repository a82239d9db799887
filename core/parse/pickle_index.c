/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys of dicts. Strings are interned, so the one that is wanted is known by its address.
 */
#include "parse/pickle_internal.h"

#include <string.h>

struct pk_index {
	const struct pk_strings *strings;
	uint32_t n, n_slots; /* pairs that are in the table already */
	uint32_t slot[];     /* open addressing: number of the pair + 1; at most half full */
};

/* Two slots, of which the fields above take some, for each pair: a power of two, as `cap` is. */
static unsigned class_of(const struct pk_node *n)
{
	return pool_class(n->cap * sizeof(uint32_t));
}

bool pk_index_add(struct pickle *p, struct pk_node *n)
{
	struct pk_index *x;

	if (n->cap / 2 <= PK_FEW)
		return true;
	x = pool_get(&p->pool, class_of(n));
	if (!x)
		return false;
	*x = (struct pk_index){ .strings = p->strings,
				.n_slots = n->cap - (uint32_t)(sizeof(*x) / sizeof(uint32_t)) };
	*pk_index_of(n) = x;
	return true;
}

void pk_index_free(struct pickle *p, struct pk_node *n)
{
	if (*pk_index_of(n))
		pool_put(&p->pool, *pk_index_of(n), class_of(n));
	*pk_index_of(n) = NULL;
}

/* The slot of the key, or the free one where it belongs. */
static uint32_t *slot_of(struct pk_index *x, const struct pk_node *n, const struct pk_str *s)
{
	uint32_t at = (uint32_t)((s->hash >> 32) * x->n_slots >> 32);

	while (x->slot[at] && n->v[2 * (size_t)(x->slot[at] - 1)].s != s)
		at = at + 1 < x->n_slots ? at + 1 : 0;
	return &x->slot[at];
}

/* Adds what has come since. The last of duplicates counts. */
static void fill(struct pk_index *x, const struct pk_node *n)
{
	if (!x->n)
		memset(x->slot, 0, x->n_slots * sizeof(*x->slot));
	for (; x->n < n->len; x->n++) {
		const struct pk_value *k = &n->v[2 * (size_t)x->n];

		if (k->type == PK_STR)
			*slot_of(x, n, k->s) = x->n + 1;
	}
}

const struct pk_value *pk_get_n(const struct pk_value *dict, const char *key, size_t len)
{
	struct pk_node *n = dict && dict->type == PK_DICT ? dict->n : NULL;
	struct pk_index *x = n ? *pk_index_of(n) : NULL;
	const struct pk_str *s;
	uint32_t at;

	if (x) {
		s = pk_find(x->strings, key, len);
		if (!s)
			return NULL;
		fill(x, n);
		at = *slot_of(x, n, s);
		return at ? &n->v[2 * (size_t)(at - 1) + 1] : NULL;
	}
	for (size_t i = n ? n->len : 0; i-- > 0;) { /* the last duplicate counts */
		const struct pk_value *k = &n->v[2 * i];

		if (k->type == PK_STR && bytes_equal(k->s->data, k->s->len, key, len))
			return k + 1;
	}
	return NULL;
}

const struct pk_value *pk_attr_n(const struct pk_value *obj, const char *name, size_t len)
{
	const struct pk_value *state;

	if (!obj || obj->type != PK_OBJECT)
		return NULL;
	state = &obj->n->own[PK_STATE];
	if (state->type == PK_TUPLE && pk_len(state))
		state = &state->n->own[0];
	return pk_get_n(state, name, len);
}
