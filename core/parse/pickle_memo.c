/* SPDX-License-Identifier: Apache-2.0 */
#include "parse/pickle_memo.h"

#include "base/checked.h"
#include "base/err.h"
#include "base/vec.h"

#include <stdlib.h>
#include <sys/random.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

struct pk_memo_key {
	uint32_t key;
	uint32_t number; /* number + 1; 0: the slot is free */
};

static int out_of_memory(struct ckpt_err *e)
{
	return err_set(e, ENOMEM, "pickle: out of memory");
}

/* ---- keys that are not consecutive ---- */

/* The slot of `key`, or the free one where it would go. */
static struct pk_memo_key *slot_of(const struct pk_memo_plan *m, uint32_t key)
{
	size_t at = XXH3_64bits_withSeed(&key, sizeof(key), m->seed) & (m->slots - 1);

	while (m->table[at].number && m->table[at].key != key)
		at = (at + 1) & (m->slots - 1);
	return &m->table[at];
}

static void insert(struct pk_memo_plan *m, uint32_t key, uint32_t number)
{
	*slot_of(m, key) = (struct pk_memo_key){ .key = key, .number = number + 1 };
}

/* A table for twice the present number of entries. */
static int make_table(struct pk_memo_plan *m, struct ckpt_err *e)
{
	struct pk_memo_plan old = *m;

	for (m->slots = 64; m->slots < 4 * (m->n + 1); m->slots *= 2)
		if (m->slots > m->max_bytes / (2 * sizeof(*m->table))) {
			m->slots = old.slots;
			return err_set(e, EFBIG, "pickle: %llu memo entries that are not in order",
				       (unsigned long long)m->n);
		}
	m->table = calloc(m->slots, sizeof(*m->table));
	if (!m->table) {
		*m = old;
		return out_of_memory(e);
	}
	if (!old.table && getrandom(&m->seed, sizeof(m->seed), GRND_NONBLOCK) < 0)
		m->seed = (uintptr_t)m;
	for (uint32_t i = 0; !old.table && i < old.n; i++)
		insert(m, old.first + i, i);
	for (size_t i = 0; old.table && i < old.slots; i++)
		if (old.table[i].number)
			insert(m, old.table[i].key, old.table[i].number - 1);
	free(old.table);
	return 0;
}

int pk_memo_put_any(struct pk_memo_plan *m, uint32_t key, struct ckpt_err *e)
{
	int rc;

	if (!m->n) {
		m->first = key;
		m->n = 1;
		return 0;
	}
	rc = m->table && m->n < m->slots / 2 ? 0 : make_table(m, e);
	if (!rc && !slot_of(m, key)->number)
		insert(m, key, (uint32_t)m->n++);
	return rc;
}

uint64_t pk_memo_number(const struct pk_memo_plan *m, uint32_t key)
{
	const struct pk_memo_key *k;

	if (!m->table)
		return key >= m->first && key - m->first < m->n ? key - m->first : PK_MEMO_NONE;
	k = slot_of(m, key);
	return k->number ? k->number - 1u : PK_MEMO_NONE;
}

size_t pk_memo_table_bytes(const struct pk_memo_plan *m)
{
	return m->table ? m->slots * sizeof(*m->table) : 0;
}

/* ---- what is wanted ---- */

int pk_memo_want(struct pk_memo_plan *m, uint64_t number, struct ckpt_err *e)
{
	if (!VEC_ROOM_ZEROED(m->wanted, m->words, number / 64 + 1))
		return out_of_memory(e);
	m->wanted[number / 64] |= (uint64_t)1 << (number % 64);
	return 0;
}

int pk_memo_done(struct pk_memo_plan *m, struct ckpt_err *e)
{
	m->rank = malloc((m->words + 1) * sizeof(*m->rank));
	if (!m->rank)
		return out_of_memory(e);
	for (uint64_t w = 0; w < m->words; w++) {
		m->rank[w] = m->n_wanted;
		m->n_wanted += (uint32_t)__builtin_popcountll(m->wanted[w]);
	}
	return 0;
}

uint64_t pk_memo_next(const struct pk_memo_plan *m, uint64_t number)
{
	uint64_t w = number / 64, rest;

	if (w >= m->words)
		return PK_MEMO_NONE;
	rest = m->wanted[w] & ~(uint64_t)0 << (number % 64);
	while (!rest) {
		if (++w == m->words)
			return PK_MEMO_NONE;
		rest = m->wanted[w];
	}
	return w * 64 + (unsigned)__builtin_ctzll(rest);
}

uint32_t pk_memo_place(const struct pk_memo_plan *m, uint64_t number)
{
	uint64_t w = number / 64, bit = (uint64_t)1 << (number % 64);

	if (w >= m->words || !(m->wanted[w] & bit))
		return 0;
	return m->rank[w] + (uint32_t)__builtin_popcountll(m->wanted[w] & (bit - 1)) + 1;
}

void pk_memo_release(struct pk_memo_plan *m)
{
	free(m->table);
	free(m->wanted);
	free(m->rank);
	*m = (struct pk_memo_plan){ 0 };
}
