/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run_tree - the tree over a run.
 *
 * The root has a directory for each complete checkpoint, whose tree is that checkpoint's; a link
 * `latest`; and .ckptfs/info.json. A node is the checkpoint's own with its slot above it; slot 0
 * holds the run's own nodes. A link has a node for each target, because readers may cache what a
 * link's node points to.
 *
 * Private to core/ckpt.
 *
 * Threads: any.
 */
#ifndef CKPT_RUN_TREE_H
#define CKPT_RUN_TREE_H

#include <ckptfs/ckpt.h>

struct ckpt_run;
struct tree;

/* The run as a tree. */
struct tree *run_tree(struct ckpt_run *r);

/* Its info_json. */
int run_info_json(struct tree *t, char **ret, size_t *ret_len, struct ckpt_err *e);

/* -EINVAL: it is a checkpoint. */
int run_is_none(struct ckpt_err *e);

/* A read of f has failed: when the checkpoint is gone, its name is in no path any more. */
void run_tree_blame(const struct ckpt_file *f, struct ckpt_err *e);

#endif
