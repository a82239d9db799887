/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gather - one strided move out of an item into memory, with few system calls.
 *
 * Private to core/read. What lies in the page cache is copied from there, or left there where the
 * reply may consist of parts. The rest is read: a run that is whole on both sides in place. Dense
 * strides (a column shard: rows of a narrow matrix) are read as one band and scattered. Sparse ones
 * (a transposed matrix) are brought into the page cache with what lies between them; where that
 * cannot be, and of encoded items, they are gathered from cached blocks; what is too large for the
 * cache, dimension by dimension. Long runs of decoded blocks may stay there, too.
 *
 * Threads: any; state is on the stack.
 */
#ifndef READ_GATHER_H
#define READ_GATHER_H

#include "read/plan.h"
#include "source/item_source.h"

#include <stdint.h>

struct ckpt_err;
struct parts;

struct gather {
	struct item_source item;
	uint8_t *out;	     /* start of the destination */
	struct parts *parts; /* NULL: all of it is to be in out */
};

int gather(const struct gather *g, const struct copy *c, const struct copy_dim *dims,
	   struct ckpt_err *e);

/* Call run() for every run of the copy in the destination. */
void gather_each_run(const struct copy *c, const struct copy_dim *dims, uint8_t *out,
		     void (*run)(void *arg, uint8_t *p, uint64_t len), void *arg);

#endif
