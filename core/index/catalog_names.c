/* SPDX-License-Identifier: Apache-2.0 */
#include "index/catalog_names.h"

#include "base/bytes.h"
#include "base/err.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <xxhash.h>

void names_release(struct names *t)
{
	for (uint32_t i = 0; i < t->n; i++)
		free(t->by_id[i]);
	free(t->by_id);
	free(t->table);
}

static uint64_t slot_of(const struct names *t, const char *s, size_t len, uint32_t cap)
{
	return XXH3_64bits_withSeed(s, len, t->seed) & (cap - 1);
}

static int names_grow(struct names *t, struct ckpt_err *e)
{
	uint32_t cap = t->cap ? t->cap * 2 : 64;
	struct name **by_id;
	uint32_t *table;

	if (t->n < t->cap / 2)
		return 0;
	if (!t->cap && getrandom(&t->seed, sizeof(t->seed), GRND_NONBLOCK) < 0)
		t->seed = (uintptr_t)t;
	by_id = realloc(t->by_id, cap / 2 * sizeof(*by_id));
	table = by_id ? calloc(cap, sizeof(*table)) : NULL;
	if (by_id)
		t->by_id = by_id;
	if (!table)
		return err_set(e, ENOMEM, "chunk index: out of memory");
	for (uint32_t i = 0; i < t->n; i++) {
		const char *s = by_id[i]->text;
		uint64_t at = slot_of(t, s, strlen(s), cap);

		while (table[at])
			at = (at + 1) & (cap - 1);
		table[at] = i + 1;
	}
	free(t->table);
	t->table = table;
	t->cap = cap;
	return 0;
}

int names_add(struct names *t, const char *s, size_t len, uint32_t *ret, struct ckpt_err *e)
{
	struct name *n;
	uint64_t at;
	int rc = names_grow(t, e);

	if (rc)
		return rc;
	for (at = slot_of(t, s, len, t->cap); t->table[at]; at = (at + 1) & (t->cap - 1)) {
		n = t->by_id[t->table[at] - 1];
		if (bytes_are(s, len, n->text)) {
			*ret = n->id;
			return 0;
		}
	}
	n = calloc(1, sizeof(*n) + len + 1);
	if (!n)
		return err_set(e, ENOMEM, "chunk index: out of memory");
	n->id = t->n;
	memcpy(n->text, s, len);
	t->by_id[t->n++] = n;
	t->table[at] = t->n;
	*ret = n->id;
	return 0;
}
