/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source - the bytes of one file, wherever it lies.
 *
 *	struct source *s CLEANUP(source_freep) = NULL;
 *	rc = place_file(p, "a.bin", &s, &e);
 *	n = source_read(s, buf, sizeof(buf), 0, &e);
 *
 * Threads: any; freed by one.
 */
#ifndef SOURCE_SOURCE_H
#define SOURCE_SOURCE_H

#include "base/blob.h"
#include "source/place.h"

struct source;

/* As the functions below. */
struct source_ops {
	int64_t (*read)(struct source *s, void *buf, size_t len, uint64_t off, struct ckpt_err *e);
	int (*look)(struct source *s, struct place_seen *ret);
	int (*fd)(const struct source *s); /* may be NULL */
	void (*free)(struct source *s);
};

struct source {
	const struct source_ops *ops;
	struct place_seen seen; /* when it was opened */
};

static inline void source_free(struct source *s) /* NULL is fine */
{
	if (s)
		s->ops->free(s);
}

static inline void source_freep(struct source **s)
{
	source_free(*s);
}

/* As many bytes as there are, up to len: the count, or a negative errno. The sentence does not name
 * the file. */
static inline int64_t source_read(struct source *s, void *buf, size_t len, uint64_t off,
				  struct ckpt_err *e)
{
	return s->ops->read(s, buf, len, off, e);
}

/* What it is now: 0, or a negative errno. */
static inline int source_look(struct source *s, struct place_seen *ret)
{
	return s->ops->look(s, ret);
}

/* Has nothing been written to it since it was opened, as far as can be seen? */
static inline bool source_is_same(struct source *s)
{
	struct place_seen now;

	return !source_look(s, &now) && now.size == s->seen.size &&
	       now.mtime_ns == s->seen.mtime_ns;
}

/* A descriptor that reads the same bytes, borrowed: for mappings, leases and the kernel. -1: there is
 * none. */
static inline int source_fd(const struct source *s)
{
	return s->ops->fd ? s->ops->fd(s) : -1;
}

/* Its bytes for those who parse them; s is borrowed. */
struct blob source_blob(struct source *s);

#endif
