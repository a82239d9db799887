/* SPDX-License-Identifier: Apache-2.0 */
#include "parse/pickle_pool.h"

#include <stdlib.h>

enum { FIRST_SLAB = 4096, SLAB = 64 * 1024 };

struct pool_slab {
	struct pool_slab *next;
	size_t pad; /* keeps data 16-aligned */
	char data[];
};

static char *slab_add(struct pool *p, size_t n)
{
	struct pool_slab *s;

	if (!pool_charge(p, n))
		return NULL;
	s = malloc(sizeof(*s) + n);
	if (!s) {
		p->no_memory = true;
		return NULL;
	}
	s->next = p->slabs;
	p->slabs = s;
	return s->data;
}

void *pool_refill(struct pool *p, unsigned cls)
{
	size_t n = pool_class_size(cls), slab = p->slabs ? SLAB : FIRST_SLAB;

	if (n > slab / 4)
		return slab_add(p, n);
	if (p->left < n) {
		char *at = slab_add(p, slab);

		if (!at)
			return NULL;
		p->at = at;
		p->left = slab;
	}
	p->left -= n;
	p->at += n;
	return p->at - n;
}

void pool_release(struct pool *p)
{
	while (p->slabs) {
		struct pool_slab *next = p->slabs->next;

		free(p->slabs);
		p->slabs = next;
	}
	*p = (struct pool){ .max_bytes = p->max_bytes };
}
