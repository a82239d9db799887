/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run_tree - the tree over a run: what the functions of the same names in ckpt.h do where the
 * checkpoint is a run.
 *
 * The root has a directory for each complete checkpoint, whose tree is that checkpoint's; a link
 * `latest`; and .ckptfs/info.json. A node is the checkpoint's own with its slot above it; slot 0
 * holds the run's own nodes. A link has a node for each target, because who reads links may
 * remember them.
 *
 * Private to core/api.
 *
 * Threads: any.
 */
#ifndef API_RUN_TREE_H
#define API_RUN_TREE_H

#include "api/ckpt.h"

int run_tree_lookup(struct ckpt *c, ckpt_node dir, const char *name, ckpt_node *ret);
int run_tree_walk(struct ckpt *c, const char *path, ckpt_node *ret, struct ckpt_err *e);
int run_tree_type(struct ckpt *c, ckpt_node node, struct ckpt_stat *ret, struct ckpt_err *e);
int run_tree_stat(struct ckpt *c, ckpt_node node, struct ckpt_stat *ret, struct ckpt_err *e);
int64_t run_tree_readlink(struct ckpt *c, ckpt_node node, char out[static CKPT_NAME_MAX + 1],
			  struct ckpt_err *e);
ckpt_node run_tree_parent(struct ckpt *c, ckpt_node node);
int run_tree_enter(struct ckpt *c, ckpt_node dir, struct ckpt_err *e);
int run_tree_next(struct ckpt *c, ckpt_node dir, uint64_t *pos, char name[static CKPT_NAME_MAX + 1],
		  ckpt_node *ret);
int run_tree_open(struct ckpt *c, ckpt_node node, struct ckpt_file **ret, struct ckpt_err *e);
int64_t run_tree_xattr(struct ckpt *c, ckpt_node node, const char *name, char *buf, size_t cap,
		       struct ckpt_err *e);
int64_t run_tree_xattr_names(struct ckpt *c, ckpt_node node, char *buf, size_t cap);

int run_tree_sources(struct ckpt *c, ckpt_node node,
		     int (*each)(void *arg, const struct ckpt_source *s), void *arg,
		     struct ckpt_err *e);

/* What ckpt_info_json gives. */
int run_info_json(struct ckpt *c, char **ret, size_t *ret_len, struct ckpt_err *e);

/* A read of f has failed: when the checkpoint is gone, its name is in no path any more. */
void run_tree_blame(const struct ckpt_file *f, struct ckpt_err *e);

#endif
