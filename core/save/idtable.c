/* SPDX-License-Identifier: Apache-2.0 */
#include "save/idtable.h"

#include <assert.h>
#include <stdlib.h>

bool idtable_init(struct idtable *t, size_t most)
{
	size_t cap = 16;

	if (most > INT32_MAX)
		return false;
	while (cap < most * 2)
		cap *= 2;
	t->slots = malloc(cap * sizeof(*t->slots));
	if (!t->slots)
		return false;
	for (size_t i = 0; i < cap; i++)
		t->slots[i] = (struct idtable_slot){ .id = IDTABLE_NONE };
	t->cap = cap;
	t->count = 0;
	return true;
}

void idtable_release(struct idtable *t)
{
	free(t->slots);
	*t = (struct idtable){ 0 };
}

uint32_t *idtable_find(const struct idtable *t, uint64_t hash, idtable_equal_fn *equal,
		       const void *arg)
{
	uint32_t high = (uint32_t)(hash >> 32);
	size_t at = hash & (t->cap - 1);

	for (;; at = (at + 1) & (t->cap - 1)) {
		struct idtable_slot *s = &t->slots[at];

		if (s->id == IDTABLE_NONE || (s->hash == high && equal(arg, s->id)))
			return &s->id;
	}
}

uint32_t idtable_add(struct idtable *t, uint32_t *place, uint64_t hash)
{
	struct idtable_slot *s = (struct idtable_slot *)place; /* its first member */

	assert(s->id == IDTABLE_NONE && t->count < t->cap / 2);
	*s = (struct idtable_slot){ .id = t->count++, .hash = (uint32_t)(hash >> 32) };
	return s->id;
}
