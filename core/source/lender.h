/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lender - what sources need to show bytes where they are: room for page tables, and leases.
 *
 * Threads: any.
 */
#ifndef SOURCE_LENDER_H
#define SOURCE_LENDER_H

#include <stdint.h>

struct leases;
struct pagepool;

struct lender {
	struct pagepool *pool;
	struct leases *leases;
};

/* Page tables are kept for no more than max_bytes of files. From then on SIGBUS is guard.h's. NULL:
 * out of memory. */
struct lender *lender_new(uint64_t max_bytes);
void lender_free(struct lender *l); /* NULL is fine; its sources are freed before */

#endif
