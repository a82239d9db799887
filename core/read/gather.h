/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gather - one strided move out of an item into memory, with few system calls.
 *
 * Private to core/read. Bytes in the page cache are copied, or left in place if the reply may
 * consist of parts. The rest is read: a run that is contiguous on both sides directly into place.
 * Dense strides (a column shard: rows of a narrow matrix) are read as one band and scattered.
 * Sparse ones (a transposed matrix) are brought into the page cache together with the bytes between
 * them; if that is not possible, and for encoded items, they are gathered from cached blocks; items
 * too large for the cache are read dimension by dimension. Long runs of decoded blocks may be left
 * in place, too.
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
	struct parts *parts; /* NULL: everything goes to out */
};

int gather(const struct gather *g, const struct copy *c, const struct copy_dim *dims,
	   struct ckpt_err *e);

/* Calls run() for every run of the copy in the destination. */
void gather_each_run(const struct copy *c, const struct copy_dim *dims, uint8_t *out,
		     void (*run)(void *arg, uint8_t *p, uint64_t len), void *arg);

#endif
