/* SPDX-License-Identifier: Apache-2.0 */
#include "parse/pickle_pool.h"

#include <errno.h>

void *pool_refill(struct pool *p, unsigned cls)
{
	void *m = arena_alloc(&p->arena, pool_class_size(cls));

	p->no_memory = !m && errno == ENOMEM;
	return m;
}
