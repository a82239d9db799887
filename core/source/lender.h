/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lender - what sources need to provide bytes in place: a budget for mappings, and leases.
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

/* At most max_bytes of files stay mapped. From then on guard.h handles SIGBUS. NULL: out of
 * memory. */
struct lender *lender_new(uint64_t max_bytes);
void lender_free(struct lender *l); /* NULL is fine; free its sources first */

#endif
