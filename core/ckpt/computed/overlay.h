/* SPDX-License-Identifier: Apache-2.0 */
/*
 * overlay - the option overlay=: tensors of another checkpoint take the place of those with their
 * names, or some of their elements the place of single ones (overlay_sparse.h).
 *
 * Private to core/ckpt.
 *
 * Threads: made before the checkpoint is used, then immutable.
 */
#ifndef CKPT_OVERLAY_H
#define CKPT_OVERLAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt_err;
struct ckpt_opts;
struct digest;
struct engine;

/* A tensor of another checkpoint and the one that it replaces; catalog numbers. resized: it may
 * have another number of rows, along dimension 0. */
struct overlay_pair {
	uint32_t from, to;
	bool resized;
};

/*
 * Replaces tensors, each at most once; `option` and what is written there are for messages. cast:
 * to the dtype of what is replaced. EINVAL: shapes differ, or there is no such cast.
 */
int overlay_replace(struct engine *eng, const struct engine *other, const char *option,
		    const struct overlay_pair *v, size_t n, bool cast, struct ckpt_err *e);

/*
 * Opens what o->overlay names, and replaces tensors in that order. Adds to *d whatever determines
 * which, except the checkpoints themselves.
 */
int overlay_derive(struct engine *eng, const struct ckpt_opts *o, struct digest *d,
		   struct ckpt_err *e);

#endif
