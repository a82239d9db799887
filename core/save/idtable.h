/* SPDX-License-Identifier: Apache-2.0 */
/*
 * idtable - which number has the thing of this hash? Numbers are 0, 1, 2, ... in the order of
 * their first appearance; the things stay with the caller. Private to core/save.
 *
 *	struct idtable t = { 0 };
 *	if (!idtable_init(&t, most)) ...                           // ENOMEM
 *	uint32_t *id = idtable_find(&t, hash, is_equal, arg);      // *id is IDTABLE_NONE: not there,
 *	if (*id == IDTABLE_NONE) ... idtable_add(&t, id, hash);    // and this would be its place
 *
 * Threads: one at a time; any number where nobody adds.
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
	size_t cap; /* a power of two, at least twice what will be added */
	uint32_t count;
};

/* Room for `most` things. False: out of memory, or 2^31 things and more. */
bool idtable_init(struct idtable *t, size_t most);
void idtable_release(struct idtable *t);

/* Is the thing that was given number id the one that is looked for? */
typedef bool idtable_equal_fn(const void *arg, uint32_t id);
uint32_t *idtable_find(const struct idtable *t, uint64_t hash, idtable_equal_fn *equal,
		       const void *arg);
/* Give the next number to the thing of this hash, whose place idtable_find has just returned. */
uint32_t idtable_add(struct idtable *t, uint32_t *place, uint64_t hash);

#endif
