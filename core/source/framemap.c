/* SPDX-License-Identifier: Apache-2.0 */
#include "source/framemap.h"
#include "base/search.h"
#include "base/vec.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

void framemap_release(struct framemap *m)
{
	free(m->v);
	*m = (struct framemap){ 0 };
}

/* The number of places at or before `decoded`. */
static size_t count_until(const struct framemap *m, uint64_t decoded)
{
	return PARTITION_POINT(i, m->n, m->v[i].decoded <= decoded);
}

static void thin_out(struct framemap *m)
{
	size_t n = 0;

	for (size_t i = 1; i < m->n; i += 2)
		m->v[n++] = m->v[i];
	m->n = n;
	m->gap *= 2;
}

static bool make_room(struct framemap *m)
{
	if (m->n == FRAMEMAP_MAX)
		thin_out(m);
	return VEC_ROOM(m->v, m->cap, m->n + 1);
}

void framemap_add(struct framemap *m, struct zstd_place at)
{
	struct zstd_place last = framemap_find(m, at.decoded);
	size_t i = count_until(m, at.decoded);

	if (!m->gap)
		m->gap = FRAMEMAP_GAP;
	if (last.decoded == at.decoded && i) { /* only empty frames are between them */
		if (last.stored < at.stored)
			m->v[i - 1] = at;
		return;
	}
	if (!at.stored || (at.decoded && at.decoded - last.decoded < m->gap) ||
	    (i < m->n && m->v[i].decoded - at.decoded < m->gap) || !make_room(m))
		return;
	i = count_until(m, at.decoded);
	memmove(&m->v[i + 1], &m->v[i], (m->n - i) * sizeof(m->v[0]));
	m->v[i] = at;
	m->n++;
}

struct zstd_place framemap_find(const struct framemap *m, uint64_t decoded)
{
	size_t i = count_until(m, decoded);

	return i ? m->v[i - 1] : (struct zstd_place){ 0, 0 };
}
