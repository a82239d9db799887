/* SPDX-License-Identifier: Apache-2.0 */
/*
 * idtable - a hash table that numbers things 0, 1, 2, ... in order of first appearance; the things
 * themselves stay with the caller. Private to core/save.
 *
 *	struct idtable t = { 0 };
 *	if (!idtable_init(&t, most)) ...                           // ENOMEM
 *	uint32_t *id = idtable_find(&t, hash, is_equal, arg);      // *id is IDTABLE_NONE: not found,
 *	if (*id == IDTABLE_NONE) ... idtable_add(&t, id, hash);    // and this is its slot
 *
 * Threads: one at a time; any number while none adds.
 */
#ifndef SAVE_IDTABLE_H
#define SAVE_IDTABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define IDTABLE_NONE UINT32_MAX

struct idtable {
	struct idtable_slot {
		uint32_t id, hash;
	} * slots;
	size_t cap; /* a power of two, at least twice the number to be added */
	uint32_t count;
};

/* Room for `most` things. False: out of memory, or 2^31 things or more. */
bool idtable_init(struct idtable *t, size_t most);
void idtable_release(struct idtable *t);

/* Is the thing with number id the one being searched for? */
typedef bool idtable_equal_fn(const void *arg, uint32_t id);
uint32_t *idtable_find(const struct idtable *t, uint64_t hash, idtable_equal_fn *equal,
		       const void *arg);
/* Gives the next number to the thing with this hash, whose slot idtable_find has just returned. */
uint32_t idtable_add(struct idtable *t, uint32_t *place, uint64_t hash);

#endif
