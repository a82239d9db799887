/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source - the bytes of one file, on any kind of storage.
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
#include "base/cleanup.h"
#include "source/place.h"

struct lender;
struct source;

/* See the functions below. */
struct source_ops {
	int64_t (*read)(struct source *s, void *buf, size_t len, uint64_t off, struct ckpt_err *e);
	int (*look)(struct source *s, struct place_seen *ret);
	void (*free)(struct source *s);
	/* These may be NULL. */
	int (*fd)(const struct source *s);
	const uint8_t *(*map)(struct source *s, uint64_t off, uint64_t len);
	bool (*may_map)(const struct source *s);
	const uint8_t *(*lend)(struct source *s, uint64_t off, uint64_t len);
	void (*give_back)(struct source *s);
	bool (*want)(struct source *s, uint64_t off, uint64_t len);
	void (*set_lender)(struct source *s, struct lender *l); /* of a source inside this one */
};

struct source {
	const struct source_ops *ops;
	struct place_seen seen; /* when it was opened */
	struct lender *lender;	/* see source_set_lender */
};

static inline void source_free(struct source *s) /* NULL is fine */
{
	if (s)
		s->ops->free(s);
}

CLEANUP_POINTER(source_freep, struct source, source_free)

/* Reads as many bytes as there are, up to len: the count, or a negative errno. The sentence does
 * not name the file. */
static inline int64_t source_read(struct source *s, void *buf, size_t len, uint64_t off,
				  struct ckpt_err *e)
{
	return s->ops->read(s, buf, len, off, e);
}

/* Examines the file as it is now: 0, or a negative errno. */
static inline int source_look(struct source *s, struct place_seen *ret)
{
	return s->ops->look(s, ret);
}

/* Is the file unchanged since it was opened, as far as can be determined? */
static inline bool source_is_same(struct source *s)
{
	struct place_seen now;

	return !source_look(s, &now) && now.size == s->seen.size &&
	       now.mtime_ns == s->seen.mtime_ns;
}

/* What source_map and source_lend need; borrowed. Call it before all other functions, if at all. */
static inline void source_set_lender(struct source *s, struct lender *l)
{
	s->lender = l;
	if (s->ops->set_lender)
		s->ops->set_lender(s, l);
}

/*
 * Bytes [off, off+len), len > 0, in place, borrowed until the source is freed. NULL: they are not
 * in memory or cannot be mapped, or there is no lender. They are the current contents of the file,
 * and vanish when it becomes shorter: see guard.h.
 */
static inline const uint8_t *source_map(struct source *s, uint64_t off, uint64_t len)
{
	return s->lender && s->ops->map ? s->ops->map(s, off, len) : NULL;
}

/* Might source_map find bytes that have just been read? */
static inline bool source_may_map(const struct source *s)
{
	return s->lender && s->ops->may_map && s->ops->may_map(s);
}

/* Like source_map, but the bytes cannot change until they are given back (see lease.h). */
static inline const uint8_t *source_lend(struct source *s, uint64_t off, uint64_t len)
{
	return s->lender && s->ops->lend ? s->ops->lend(s, off, len) : NULL;
}

static inline void source_give_back(struct source *s)
{
	s->ops->give_back(s);
}

/*
 * Bytes [off, off+len), len > 0, will be read soon: starts to fetch them and does not wait for
 * them. Ranges are announced in the order in which they will be needed. False: all of them are in
 * memory, as far as can be determined, or will be without this.
 */
static inline bool source_want(struct source *s, uint64_t off, uint64_t len)
{
	return s->ops->want && s->ops->want(s, off, len);
}

/* A descriptor that the kernel can read the same bytes from, borrowed. -1: there is none. */
static inline int source_fd(const struct source *s)
{
	return s->ops->fd ? s->ops->fd(s) : -1;
}

/* Bytes in memory as a file; they are borrowed. */
int memory_source(const void *bytes, size_t len, struct source **ret, struct ckpt_err *e);

/* The file as a blob, for parsers; s is borrowed. */
struct blob source_blob(struct source *s);

#endif
