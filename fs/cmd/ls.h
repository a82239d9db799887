/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ls - the items that `ckptfs ls` lists, and its tree.
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
	uint64_t number; /* of the tensor or object */
	uint64_t bytes, elements, chunks;
	uint64_t copies; /* 1; in a tree: the number of items folded into this one */
};

/* Both lists of a checkpoint, merged into one natural order; a copy of the struct continues from
 * the same position. */
struct ls_walk {
	const struct ckpt *ckpt;
	const char *const *globs;
	uint64_t glob_steps;
	struct ckpt_totals totals;
	uint64_t next_tensor, next_object;
	/* After ls_collect: all items. */
	struct ls_item *items;
	size_t n_items, at;
};
struct ls_walk ls_walk(const struct ckpt *c, const char *const *globs);
void ls_walk_release(struct ls_walk *w);
/* False: that was the last. */
bool ls_next(struct ls_walk *w, struct ls_item *ret);
/* Reads all remaining items into memory, ordered by "size", "dtype", or else name. Returns an exit
 * status if memory or the globs' work runs out. */
int ls_collect(struct ls_walk *w, const char *sort);
/* Returns an exit status if the globs' work ran out before the last name. */
int ls_check_globs(uint64_t steps);

/* How the list should look. */
struct ls_look {
	bool header, human, color, by_size;
	uint64_t depth; /* levels of a tree to show; 0: all */
};

/* "[4096,4096]"; "-" for an object. */
void ls_add_shape(struct buf *b, const struct ls_item *i);
/* Bytes, in human-readable form if `human`. */
void ls_add_bytes(struct buf *b, uint64_t bytes, bool human);

/*
 * Prints an indented line for each level of the names, which are divided by dots. Levels with one
 * member share a line. Numbered siblings with the same names, dtypes and shapes are folded into
 * one, "layers.{0..31}". Reorders the items and adds to their counts. Takes about as long as
 * reading the names once for each of at most 64 levels. Returns an exit status.
 */
int ls_tree(struct ls_item *items, size_t n, const struct ls_look *look, struct buf *b);

#endif
