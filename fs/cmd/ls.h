/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ls - what `ckptfs ls` lists, and its list as a tree.
 *
 * Private to ls.
 *
 * Threads: one.
 */
#ifndef FS_CMD_LS_H
#define FS_CMD_LS_H

#include <ckptfs/ckpt.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;

/* A tensor or an object; strings and numbers are borrowed from the checkpoint. */
struct ls_item {
	bool is_object;
	const char *fqn, *dtype, *fault;
	size_t fqn_len, n_dims, n_logical;
	const uint64_t *shape, *logical;
	uint64_t number; /* of the tensor, of the object */
	uint64_t bytes, elements, chunks;
	uint64_t copies; /* 1; in a tree: how many are folded into this one */
};

/* Both lists of a checkpoint, merged into one natural order; a copy of it starts where it is. */
struct ls_walk {
	const struct ckpt *ckpt;
	const char *const *globs;
	uint64_t glob_steps;
	struct ckpt_totals totals;
	uint64_t next_tensor, next_object;
	/* After ls_collect: all that there is. */
	struct ls_item *items;
	size_t n_items, at;
};
struct ls_walk ls_walk(const struct ckpt *c, const char *const *globs);
void ls_walk_release(struct ls_walk *w);
/* False: that was the last. */
bool ls_next(struct ls_walk *w, struct ls_item *ret);
/* Take all that is left into memory, in this order: "size", "dtype", else that of the names; where memory
 * or the globs' work runs out an exit status. */
int ls_collect(struct ls_walk *w, const char *sort);
/* Did the globs get as far as the last name? Else an exit status. */
int ls_check_globs(uint64_t steps);

/* How it is to look. */
struct ls_look {
	bool header, human, color, by_size;
	uint64_t depth; /* of a tree: levels that are shown; 0: all */
};

/* "[4096,4096]", of an object "-". */
void ls_add_shape(struct buf *b, const struct ls_item *i);
/* Bytes, for people where `human` says so. */
void ls_add_bytes(struct buf *b, uint64_t bytes, bool human);

/*
 * A line for each level of the names, which dots divide, indented. Levels with one member share a line.
 * Numbered neighbours that hold the same names, dtypes and shapes are folded into one, "layers.{0..31}".
 * Orders the items and adds to their numbers. Works for about as long as it takes to read the names, for
 * each of at most 64 levels. Returns an exit status.
 */
int ls_tree(struct ls_item *items, size_t n, const struct ls_look *look, struct buf *b);

#endif
