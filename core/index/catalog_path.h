/* SPDX-License-Identifier: Apache-2.0 */
/*
 * catalog_path - where a tensor or object was in the nested state dict: the keys, and positions in
 * lists, that lead to it.
 *
 * The FQN is these steps joined with '.', and keys may have dots in them, so that a path is where
 * the FQN is cut, and which steps are positions. {"model": {"layers.0.w": t}} and {"model":
 * {"layers": [{"w": t}]}} have the same FQN and mean different things: a path is what the
 * checkpoint says, never guessed from the name.
 *
 * It is kept as LEB128 numbers: twice the number of steps, then twice the bytes of each but the
 * last; each + 1 where the step (the last one, with the first number) is a position. So 0 says that
 * it is not known, 2 that the state dict is flat.
 *
 * Threads: pure.
 */
#ifndef INDEX_CATALOG_PATH_H
#define INDEX_CATALOG_PATH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cursor;

extern const uint8_t catalog_path_unknown[1], catalog_path_flat[1];

struct catalog_step {
	const char *text; /* len bytes of the FQN */
	uint32_t len;
	bool is_position; /* in a list; else a key */
	uint64_t position;
};

/* 0: it is not known. 1: the state dict is flat (or the root is a list). */
uint32_t catalog_path_steps(const uint8_t *path);

/* One step after the other:
 *
 *	struct catalog_steps i = catalog_path_begin(t->path, t->fqn, t->fqn_len);
 *	while (catalog_path_next(&i, &step)) ...
 */
struct catalog_steps {
	const uint8_t *path; /* what is not read of it */
	const char *fqn;
	uint32_t fqn_len, left;
	bool last_is_position;
};
struct catalog_steps catalog_path_begin(const uint8_t *path, const char *fqn, uint32_t fqn_len);
bool catalog_path_next(struct catalog_steps *i, struct catalog_step *ret);

/* Bytes of the FQN that are the first step; 0: not known, or an empty key. */
uint32_t catalog_path_top(const uint8_t *path, uint32_t fqn_len);

/* Bytes that it is kept in. */
size_t catalog_path_size(const uint8_t *path);
bool catalog_path_equal(const uint8_t *a, const uint8_t *b);

/* ---- making ---- */

/* The number of a list's position as a step; false: the text is none. */
bool catalog_path_position(const char *text, size_t len, uint64_t *ret);

#define CATALOG_PATH_NUMBER 10 /* bytes that a number takes, at most */

/* Steps, at most 2^31: one head, then each step but the last. Return the bytes written. */
size_t catalog_path_put_head(uint8_t *to, size_t steps, bool last_is_position);
size_t catalog_path_put_step(uint8_t *to, size_t len, bool is_position);
/* The same path with a key as its last step, whatever that was. In place: as many bytes. */
void catalog_path_end_in_key(uint8_t *path);

/* Read one of a file. .bad where it is no path of this FQN. */
const uint8_t *catalog_path_read(struct cursor *d, const char *fqn, uint32_t fqn_len);

#endif
