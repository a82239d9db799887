/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm - collectives for use inside the library, in addition to those of ckpt_comm.h.
 *
 * Threads: as ckpt_comm.h says.
 */
#ifndef COMM_COMM_H
#define COMM_COMM_H

#include <ckptfs/ckpt_comm.h>

struct buf;

/*
 * Gather, let rank 0 decide, and scatter its decision: all[rank] has each rank's bytes, and
 * ret_parts[rank], initially empty, is what that rank gets. mine is released.
 */
typedef int comm_decide_fn(void *arg, const struct ckpt_comm_all *all, struct buf *ret_parts,
			   struct ckpt_err *e);
int comm_exchange(struct ckpt_comm *c, int rc, struct buf *mine, comm_decide_fn *decide, void *arg,
		  struct ckpt_comm_bytes *ret, struct ckpt_err *e);

#endif
