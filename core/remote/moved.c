/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/moved.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"

#include <string.h>

enum { MOVED_MAX = 4096, OLD_S = 5 };

static void free_entry(struct moved *m)
{
	if (!m)
		return;
	if (m->url) /* may be signed */
		explicit_bzero(m->url, strlen(m->url));
	free(m->path);
	free(m->url);
	free(m->etag);
	free(m);
}

static void drop(struct moved_table *t, struct moved *m)
{
	LIST_REMOVE(&t->all, m);
	t->n--;
	free_entry(m);
}

void moved_init(struct moved_table *t)
{
	*t = (struct moved_table){ 0 };
	(void)pthread_mutex_init(&t->lock, NULL);
}

void moved_release(struct moved_table *t)
{
	while (t->all.first)
		drop(t, t->all.first);
	(void)pthread_mutex_destroy(&t->lock);
}

static struct moved *find(const struct moved_table *t, const char *path)
{
	LIST_EACH (m, &t->all)
		if (!strcmp(m->path, path))
			return m;
	return NULL;
}

static struct moved *new_entry(const char *path, const char *url, const char *etag)
{
	struct moved *m = calloc(1, sizeof(*m));

	if (!m)
		return NULL;
	m->path = strdup(path);
	m->url = strdup(url);
	m->etag = strdup(etag ? etag : "");
	m->since_ns = clock_ns();
	if (m->path && m->url && m->etag)
		return m;
	free_entry(m);
	return NULL;
}

void moved_set(struct moved_table *t, const char *path, const char *url, enum http_reach reach,
	       const char *etag)
{
	struct moved *new = url ? new_entry(path, url, etag) : NULL, *old;
	SCOPED_LOCK(&t->lock);

	old = find(t, path);
	if (old)
		drop(t, old);
	if (!new)
		return;
	new->reach = reach;
	if (t->n == MOVED_MAX)
		drop(t, t->all.last);
	LIST_PUSH(&t->all, new);
	t->n++;
}

bool moved_find(struct moved_table *t, const char *path, struct buf *url,
		enum http_reach *ret_reach, struct buf *etag)
{
	SCOPED_LOCK(&t->lock);
	const struct moved *m = find(t, path);

	if (m)
		buf_str(url, m->url);
	if (m && etag)
		buf_str(etag, m->etag);
	if (m && *m->url && ret_reach)
		*ret_reach = m->reach;
	return m && *m->url;
}

bool moved_expired(struct moved_table *t, const char *path, const char *url, const char *own)
{
	SCOPED_LOCK(&t->lock);
	struct moved *m = find(t, path);

	if (!m || !strcmp(url, own))
		return false;
	/* Requests that were under way together are refused together: one of them forgets it. */
	if (strcmp(m->url, url) != 0)
		return true;
	if (clock_ns() - m->since_ns <= OLD_S * CLOCK_SECOND)
		return false;
	explicit_bzero(m->url, strlen(m->url));
	return true;
}

bool moved_is_directory(struct moved_table *t, const char *path)
{
	SCOPED_LOCK(&t->lock);
	const struct moved *m = find(t, path);
	size_t n = m ? strcspn(m->url, "?") : 0;

	return n && m->url[n - 1] == '/';
}
