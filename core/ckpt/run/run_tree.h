/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run_tree - the tree over a run.
 *
 * The root has a directory for each complete checkpoint, which contains that checkpoint's tree; a
 * link `latest`; and .ckptfs/info.json. A node is the checkpoint's own node with its slot in the
 * bits above; slot 0 holds the run's own nodes. The link has a node for each target, because
 * readers may cache what a link's node points to.
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

/* The tree of a run. */
struct tree *run_tree(struct ckpt_run *r);

/* The contents of info.json. */
int run_info_json(struct tree *t, char **ret, size_t *ret_len, struct ckpt_err *e);

/* Returns -EINVAL: it is a checkpoint, not a run. */
int run_is_none(struct ckpt_err *e);

/*
 * Called when a read of f has failed: if the checkpoint is gone, reports its name, which is no
 * longer part of any path.
 */
void run_tree_blame(const struct ckpt_file *f, struct ckpt_err *e);

#endif
