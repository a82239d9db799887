/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pickle_memo - what the first pass learns about a pickle's memo: which entries a GET will request.
 *
 * In Python a memo is a dict: a PUT may use any 32-bit key, and a key may be stored again. Here an
 * entry also has a number, in the order of first PUTs. Picklers use consecutive keys, from 0, or
 * from 1 in Python 2's cPickle, so number and key differ by a constant and keys need not be kept.
 * Otherwise a table holds them, under a memory ceiling.
 *
 * Private to core/parse. Threads: one at a time.
 */
#ifndef PARSE_PICKLE_MEMO_H
#define PARSE_PICKLE_MEMO_H

#include <stddef.h>
#include <stdint.h>

struct ckpt_err;

#define PK_MEMO_NONE UINT64_MAX /* no such entry */

struct pk_memo_plan {
	uint32_t first; /* key of entry 0; further keys are consecutive unless there is a table */
	uint64_t n;	/* entries: Python's len(memo) */
	struct pk_memo_key *table;
	size_t slots;	  /* of the table, a power of two; at most half of them in use */
	uint64_t seed;	  /* so that a file cannot contain keys that all hash to one slot */
	size_t max_bytes; /* of the table */
	uint64_t *wanted; /* one bit per entry: some GET requests it */
	uint32_t *rank;	  /* rank[w]: wanted entries before word w; after pk_memo_done() */
	size_t words;	  /* of wanted */
	uint32_t n_wanted;
};

/* A PUT of a `key` that is not simply the next one. EFBIG if the table would need too much
 * memory. */
int pk_memo_put_any(struct pk_memo_plan *m, uint32_t key, struct ckpt_err *e);

/* A PUT of `key`, in the first pass. */
static inline int pk_memo_put(struct pk_memo_plan *m, uint32_t key, struct ckpt_err *e)
{
	if (m->table || key != m->first + m->n)
		return pk_memo_put_any(m, key, e);
	m->n++;
	return 0;
}

/* A MEMOIZE: Python stores under len(memo), whatever keys exist. */
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
/* Call at the end of the first pass. */
int pk_memo_done(struct pk_memo_plan *m, struct ckpt_err *e);

size_t pk_memo_table_bytes(const struct pk_memo_plan *m);
/* The first wanted entry >= number, or PK_MEMO_NONE. */
uint64_t pk_memo_next(const struct pk_memo_plan *m, uint64_t number);
/* Number of wanted entries up to and including this one; 0 if it is not wanted itself. */
uint32_t pk_memo_place(const struct pk_memo_plan *m, uint64_t number);
void pk_memo_release(struct pk_memo_plan *m);

#endif
