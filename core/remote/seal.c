/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/seal.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "base/vec.h"
#include "remote/url.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ENTRIES_MAX = 4096, DEPTH_MAX = 64 /* directories above one */ };
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

/* Two results of wire_authority; of hosts, the same one may be written in several ways. */
static bool is_same_authority(const char *a, const char *b)
{
	struct ckpt_err ignored;
	struct url x, y;
	bool same;

	if (!strcmp(a, b))
		return true;
	if (url_parse(a, &x, &ignored))
		return false;
	if (url_parse(b, &y, &ignored)) {
		url_release(&x);
		return false;
	}
	same = x.secure == y.secure && !strcmp(x.host, y.host);
	url_release(&x);
	url_release(&y);
	return same;
}

static bool may_open(const struct seal *s, const struct wire_msg *m)
{
	autofree char *authority = strndup(m->text, wire_authority(m->text));
	size_t address = strlen(m->text);

	/* See seal_allows_files. */
	if (text_file_path(m->text))
		return true;
	for (size_t i = 0; authority && i < s->n; i++) {
		const struct seal_entry *x = &s->v[i];
		size_t n = strnlen(x->text, x->len);

		if (x->anonymous == (m->head.n[0] != 0) && is_same_authority(x->text, authority) &&
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

/* Is it a directory that was named, and for this use? */
static bool is_named(const struct seal *s, const struct stat *st, enum seal_use use,
		     const char *path)
{
	for (size_t i = 0; i < s->n_dirs; i++) {
		const struct seal_dir *d = &s->dirs[i];

		if (d->dev == st->st_dev && d->ino == st->st_ino &&
		    (use == SEAL_OPEN || !*d->names ||
		     (use == SEAL_READ && has_name(d->names, path))))
			return true;
	}
	return false;
}

/* Was it named with all that is beneath it? */
static bool is_named_whole(const struct seal *s, const struct stat *st)
{
	return is_named(s, st, SEAL_LIST, "");
}

bool seal_allows_files(const struct seal *s, int dir, enum seal_use use, const char *path)
{
	struct stat st, below;
	int at = dir;
	bool found;

	if (!s->closed)
		return true;
	if (fstat(dir, &st))
		return false;
	found = is_named(s, &st, use, path);
	for (unsigned depth = 0; !found && depth < DEPTH_MAX; depth++) {
		int up = openat(at, "..", O_PATH | O_DIRECTORY | O_CLOEXEC);

		if (at != dir)
			(void)close(at);
		at = up;
		below = st;
		if (up < 0 || fstat(up, &st) ||
		    (st.st_ino == below.st_ino && st.st_dev == below.st_dev)) /* the root */
			break;
		found = is_named_whole(s, &st);
	}
	if (at >= 0 && at != dir)
		(void)close(at);
	return found;
}
