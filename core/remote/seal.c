/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/seal.h"

#include "base/text.h"
#include "base/vec.h"

#include <stdlib.h>
#include <sys/stat.h>

enum { ENTRIES_MAX = 4096 };
enum { DIRECTORY = 2 }; /* n[1] */

void seal_take(struct seal *s, const struct wire_msg *m)
{
	char *copy = s->closed ? NULL : calloc(1, (size_t)m->head.text + 2);

	if (s->closed)
		return;
	if (copy)
		memcpy(copy, m->text, m->head.text);
	if (m->head.n[1] == DIRECTORY) {
		if (copy && VEC_ROOM_WITHIN(s->dirs, s->cap_dirs, s->n_dirs + 1, ENTRIES_MAX))
			s->dirs[s->n_dirs++] =
				(struct seal_dir){ (dev_t)m->head.n[2], (ino_t)m->head.n[3], copy };
		else
			free(copy);
	} else if (m->head.n[1]) {
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

	/* See seal_allows_files. */
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

static bool has_name(const char *names, const char *name)
{
	for (; *names; names += strlen(names) + 1)
		if (!strcmp(names, name))
			return true;
	return false;
}

bool seal_allows_files(const struct seal *s, int dir, enum seal_use use, const char *path)
{
	struct stat st;

	if (!s->closed)
		return true;
	if (fstat(dir, &st))
		return false;
	for (size_t i = 0; i < s->n_dirs; i++) {
		const struct seal_dir *d = &s->dirs[i];

		if (d->dev == st.st_dev && d->ino == st.st_ino &&
		    (use == SEAL_OPEN || !*d->names ||
		     (use == SEAL_READ && has_name(d->names, path))))
			return true;
	}
	return false;
}
