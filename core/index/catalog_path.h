/* SPDX-License-Identifier: Apache-2.0 */
/*
 * catalog_path - where a tensor or object was in the nested state dict: the keys, and positions in
 * lists, that lead to it.
 *
 * The FQN is these steps joined with '.', and keys may contain dots; so a path records where the
 * FQN is split, and which steps are positions. {"model": {"layers.0.w": t}} and {"model":
 * {"layers": [{"w": t}]}} have the same FQN and mean different things: a path comes from the
 * checkpoint and is never guessed from the name.
 *
 * It is stored as LEB128 numbers: twice the number of steps, then twice the length of each but the
 * last; each plus 1 if the step (for the first number, the last step) is a position. So 0 means
 * unknown, and 2 a flat state dict.
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

/* 0: unknown. 1: the state dict is flat (or the root is a list). */
uint32_t catalog_path_steps(const uint8_t *path);

/* One step after the other:
 *
 *	struct catalog_steps i = catalog_path_begin(t->path, t->fqn, t->fqn_len);
 *	while (catalog_path_next(&i, &step)) ...
 */
struct catalog_steps {
	const uint8_t *path; /* the part not read yet */
	const char *fqn;
	uint32_t fqn_len, left;
	bool last_is_position;
};
struct catalog_steps catalog_path_begin(const uint8_t *path, const char *fqn, uint32_t fqn_len);
bool catalog_path_next(struct catalog_steps *i, struct catalog_step *ret);

/* Length of the first step in the FQN; 0: unknown, or an empty key. */
uint32_t catalog_path_top(const uint8_t *path, uint32_t fqn_len);

/* Bytes of its encoding. */
size_t catalog_path_size(const uint8_t *path);
bool catalog_path_equal(const uint8_t *a, const uint8_t *b);

/* ---- making ---- */

/* Parses a list position from a step's text; false: it is not one. */
bool catalog_path_position(const char *text, size_t len, uint64_t *ret);

#define CATALOG_PATH_NUMBER 10 /* maximum bytes of an encoded number */

/* Encodes at most 2^31 steps: one head, then each step but the last. Return the bytes written. */
size_t catalog_path_put_head(uint8_t *to, size_t steps, bool last_is_position);
size_t catalog_path_put_step(uint8_t *to, size_t len, bool is_position);
/* Makes the last step a key, whatever it was. In place: the length stays the same. */
void catalog_path_end_in_key(uint8_t *path);

/* Reads one from a file. Sets .bad if it is not a path of this FQN. */
const uint8_t *catalog_path_read(struct cursor *d, const char *fqn, uint32_t fqn_len);

#endif
