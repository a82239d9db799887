/* SPDX-License-Identifier: Apache-2.0 */
#include "source/lender.h"

#include "source/guard.h"
#include "source/lease.h"
#include "source/pagemap.h"

#include <stdlib.h>

struct lender *lender_new(uint64_t max_bytes)
{
	struct lender *l = calloc(1, sizeof(*l));

	if (!l)
		return NULL;
	l->pool = pagepool_new(max_bytes);
	l->leases = leases_new();
	if (!l->pool || !l->leases) {
		lender_free(l);
		return NULL;
	}
	guard_install();
	return l;
}

void lender_free(struct lender *l)
{
	if (!l)
		return;
	leases_free(l->leases);
	pagepool_free(l->pool);
	free(l);
}
