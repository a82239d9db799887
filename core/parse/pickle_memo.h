/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pickle_memo - what the first pass learns about a pickle's memo: which entries a GET will ask for.
 *
 * A memo is a dict in Python: a PUT may name any 32-bit key, and a key may be stored again. Here
 * an entry has a number as well, counted by first PUTs. Picklers number theirs one by one, from 0,
 * or from 1 in Python 2's cPickle, so that number and key differ by a constant and the keys need
 * not be kept. Where they do not, a table has them, under a ceiling of memory.
 *
 * Private to core/parse. Threads: one at a time.
 */
#ifndef PARSE_PICKLE_MEMO_H
#define PARSE_PICKLE_MEMO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt_err;

#define PK_MEMO_NONE UINT64_MAX /* no such entry */

struct pk_memo_plan {
	uint32_t first; /* key of entry 0; the others follow it unless there is a table */
	uint64_t n;	/* entries: Python's len(memo) */
	struct pk_memo_key *table;
	size_t slots;	  /* of the table, a power of two, at most half of them in use */
	uint64_t seed;	  /* nobody can choose keys that all fall into one slot */
	size_t max_bytes; /* of the table */
	uint64_t *wanted; /* a bit per entry: some GET names it */
	uint32_t *rank;	  /* rank[w]: wanted entries before word w; after pk_memo_done() */
	uint64_t words;	  /* of wanted */
	uint32_t n_wanted;
};

/* A PUT of `key` that is not simply the next one. EFBIG when the table would need too much. */
int pk_memo_put_any(struct pk_memo_plan *m, uint32_t key, struct ckpt_err *e);

/* A PUT of `key`, in the first pass. */
static inline int pk_memo_put(struct pk_memo_plan *m, uint32_t key, struct ckpt_err *e)
{
	if (m->table || key != m->first + m->n)
		return pk_memo_put_any(m, key, e);
	m->n++;
	return 0;
}

/* A MEMOIZE: Python stores under len(memo), whatever keys there are. */
static inline int pk_memo_put_next(struct pk_memo_plan *m, struct ckpt_err *e)
{
	if (m->table || m->first)
		return pk_memo_put_any(m, (uint32_t)m->n, e);
	m->n++;
	return 0;
}

/* The number of the entry with this key, or PK_MEMO_NONE. */
uint64_t pk_memo_number(const struct pk_memo_plan *m, uint32_t key);
/* A GET of entry `number`. */
int pk_memo_want(struct pk_memo_plan *m, uint64_t number, struct ckpt_err *e);
/* The first pass is over. */
int pk_memo_done(struct pk_memo_plan *m, struct ckpt_err *e);

size_t pk_memo_table_bytes(const struct pk_memo_plan *m);
/* The first wanted entry >= number, or PK_MEMO_NONE. */
uint64_t pk_memo_next(const struct pk_memo_plan *m, uint64_t number);
/* How many wanted entries there are up to and with this; 0 when it is not wanted itself. */
uint32_t pk_memo_place(const struct pk_memo_plan *m, uint64_t number);
void pk_memo_release(struct pk_memo_plan *m);

#endif
