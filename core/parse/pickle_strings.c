/* SPDX-License-Identifier: Apache-2.0 */
#include "parse/pickle_strings.h"

#include "base/arena.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

struct pk_strings {
	struct pk_str **table; /* open addressing, a power of two, at most half full */
	struct pk_str **by_id;
	struct arena texts;
	uint32_t n, cap, ids_cap;
	uint64_t seed; /* so that a file cannot contain names that all hash to one slot */
};

struct pk_strings *pk_strings_new(size_t max_bytes)
{
	struct pk_strings *t = calloc(1, sizeof(*t));

	if (!t)
		return NULL;
	t->texts.max_bytes = max_bytes;
	if (getrandom(&t->seed, sizeof(t->seed), GRND_NONBLOCK) < 0)
		t->seed = (uintptr_t)t;
	return t;
}

void pk_strings_free(struct pk_strings *t)
{
	if (!t)
		return;
	arena_release(&t->texts);
	free(t->table);
	free(t->by_id);
	free(t);
}

/* Bytes of `table` and `by_id`, which take most of the memory if strings are short. */
static size_t table_bytes(uint32_t cap)
{
	return ((size_t)cap + cap / 2) * sizeof(struct pk_str *);
}

static int grow(struct pk_strings *t)
{
	uint32_t cap = t->cap ? t->cap * 2 : 256;
	struct pk_str **table, **by_id;

	if (cap < t->cap || !arena_charge(&t->texts, table_bytes(cap) - table_bytes(t->cap)))
		return -1;
	by_id = realloc(t->by_id, cap / 2 * sizeof(struct pk_str *));
	if (!by_id)
		return -1;
	t->by_id = by_id;
	t->ids_cap = cap / 2;
	table = calloc(cap, sizeof(struct pk_str *));
	if (!table)
		return -1;
	for (uint32_t i = 0; i < t->n; i++) {
		uint32_t at = (uint32_t)by_id[i]->hash & (cap - 1);

		while (table[at])
			at = (at + 1) & (cap - 1);
		table[at] = by_id[i];
	}
	free(t->table);
	t->table = table;
	t->cap = cap;
	return 0;
}

/* Where the string is, or belongs. */
static struct pk_str **slot_of(const struct pk_strings *t, const void *s, size_t len, uint64_t hash)
{
	uint32_t at = (uint32_t)hash & (t->cap - 1);
	const struct pk_str *r;

	while ((r = t->table[at]) &&
	       (r->hash != hash || r->len != len || (len && memcmp(r->data, s, len) != 0)))
		at = (at + 1) & (t->cap - 1);
	return &t->table[at];
}

const struct pk_str *pk_intern(struct pk_strings *t, const void *s, size_t len)
{
	uint64_t hash = XXH3_64bits_withSeed(s, len, t->seed);
	struct pk_str **slot = t->cap ? slot_of(t, s, len, hash) : NULL;
	struct pk_str *r = slot ? *slot : NULL;

	if (r)
		return r;
	errno = EFBIG; /* unless memory runs out */
	if (len > UINT32_MAX)
		return NULL;
	if (t->n >= t->cap / 2 || t->n >= t->ids_cap) {
		if (grow(t))
			return NULL;
		slot = slot_of(t, s, len, hash);
	}
	r = arena_alloc(&t->texts, sizeof(*r) + len + 1);
	if (!r)
		return NULL;
	r->len = (uint32_t)len;
	r->id = t->n;
	r->hash = hash;
	if (len) /* s may be NULL */
		memcpy(r->data, s, len);
	r->data[len] = 0;
	t->by_id[t->n++] = r;
	*slot = r;
	return r;
}

const struct pk_str *pk_find(const struct pk_strings *t, const void *s, size_t len)
{
	return t->n ? *slot_of(t, s, len, XXH3_64bits_withSeed(s, len, t->seed)) : NULL;
}

const struct pk_str *pk_string(const struct pk_strings *t, uint32_t id)
{
	return t->by_id[id];
}

uint32_t pk_strings_count(const struct pk_strings *t)
{
	return t->n;
}
