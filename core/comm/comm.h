/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm - what this library does with ranks besides what ckpt_comm.h has for programs.
 *
 * Threads: as ckpt_comm.h says.
 */
#ifndef COMM_COMM_H
#define COMM_COMM_H

#include <ckptfs/ckpt_comm.h>

struct buf;

/*
 * Gather, let rank 0 decide, and scatter what it has decided: all[rank] are the bytes of each, and
 * ret_parts[rank], empty at first, become what it gets. mine is released.
 */
typedef int comm_decide_fn(void *arg, const struct ckpt_comm_all *all, struct buf *ret_parts,
			   struct ckpt_err *e);
int comm_exchange(struct ckpt_comm *c, int rc, struct buf *mine, comm_decide_fn *decide, void *arg,
		  struct ckpt_comm_bytes *ret, struct ckpt_err *e);

#endif
