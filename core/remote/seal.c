/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/seal.h"

#include "base/text.h"
#include "base/vec.h"

#include <stdlib.h>

enum { ENTRIES_MAX = 4096 };

void seal_take(struct seal *s, const struct wire_msg *m)
{
	char *copy = s->closed ? NULL : malloc((size_t)m->head.text + 1);

	if (s->closed)
		return;
	if (copy)
		memcpy(copy, m->text, (size_t)m->head.text + 1);
	if (m->head.n[1]) {
		s->cache_dir = copy; /* NULL: no fetcher can begin any more */
		memcpy(s->sizes, m->head.n + 2, sizeof(s->sizes));
		s->closed = true;
	} else if (copy && VEC_ROOM_WITHIN(s->v, s->cap, s->n + 1, ENTRIES_MAX)) {
		s->v[s->n++] = (struct seal_entry){ m->head.n[0] != 0, m->head.text, copy };
	} else
		free(copy);
}

static bool may_open(const struct seal *s, const struct wire_msg *m)
{
	size_t address = strlen(m->text), len = wire_authority(m->text);

	/* The other side has opened the directory itself. */
	if (text_file_path(m->text))
		return true;
	for (size_t i = 0; i < s->n; i++) {
		const struct seal_entry *x = &s->v[i];
		size_t n = strnlen(x->text, x->len);

		if (x->anonymous == (m->head.n[0] != 0) && n == len &&
		    !memcmp(x->text, m->text, n) &&
		    x->len - n == m->head.text - address && /* endpoint, region, profile */
		    !memcmp(x->text + n, m->text + address, x->len - n))
			return true;
	}
	return false;
}

bool seal_allows(const struct seal *s, const struct wire_msg *m)
{
	if (!s->closed)
		return true;
	switch (m->head.kind) {
	case WIRE_HELLO:
		return s->cache_dir && !strcmp(s->cache_dir, wire_string(m, 0)) &&
		       !memcmp(s->sizes, m->head.n + 1, sizeof(s->sizes));
	case WIRE_OPEN:
		return may_open(s, m);
	case WIRE_BEGIN:
		return false;
	default:
		return true;
	}
}
