/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tree - names and nodes of a checkpoint, or of a run, whose tree contains those of its
 * checkpoints.
 *
 * Each operation behaves as ckpt.h documents the function with that name, for the nodes of this
 * tree.
 *
 * Threads: any.
 */
#ifndef TREE_TREE_H
#define TREE_TREE_H

#include "tensor/name.h"

#include <stddef.h>
#include <stdint.h>

struct ckpt_counters;
struct ckpt_err;
struct ckpt_file;
struct ckpt_source;
struct ckpt_stat;
struct tree;

struct tree_ops {
	int (*lookup)(struct tree *t, uint64_t dir, const char *name, uint64_t *ret);
	/*
	 * Reports why a name, to which `path` leads, does not exist. Returns -ENOENT. May be NULL.
	 */
	int (*absent)(struct tree *t, uint64_t dir, const char *name, const char *path,
		      struct ckpt_err *e);
	uint64_t (*parent)(struct tree *t, uint64_t node);
	int (*name)(struct tree *t, uint64_t node, char name[static NAME_CAP]);
	/* NULL: all directories can be listed */
	int (*enter)(struct tree *t, uint64_t dir, struct ckpt_err *e);
	int (*next)(struct tree *t, uint64_t dir, uint64_t *pos, char name[static NAME_CAP],
		    uint64_t *ret);
	int (*type)(struct tree *t, uint64_t node, struct ckpt_stat *ret, struct ckpt_err *e);
	int (*stat)(struct tree *t, uint64_t node, struct ckpt_stat *ret, struct ckpt_err *e);
	int64_t (*readlink)(struct tree *t, uint64_t node, char out[static NAME_CAP],
			    struct ckpt_err *e);
	int64_t (*xattr)(struct tree *t, uint64_t node, const char *name, char *buf, size_t cap,
			 struct ckpt_err *e);
	int64_t (*xattr_names)(struct tree *t, uint64_t node, char *buf, size_t cap);
	int (*file_open)(struct tree *t, uint64_t node, struct ckpt_file **ret, struct ckpt_err *e);
	int (*sources)(struct tree *t, uint64_t node,
		       int (*each)(void *arg, const struct ckpt_source *s), void *arg,
		       struct ckpt_err *e);
	void (*counters)(struct tree *t, struct ckpt_counters *ret);
	int (*info_json)(struct tree *t, char **ret, size_t *ret_len, struct ckpt_err *e);
};

/* Embedded in the structure that implements the operations. */
struct tree {
	const struct tree_ops *ops;
};

#endif
