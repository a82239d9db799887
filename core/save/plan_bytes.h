/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_bytes - what the codecs of plan_codec.h have in common. Private to core/save.
 *
 * Numbers are varints. An item begins with a word of flags, little-endian, whose size is that of
 * its kind; what the flags do not say to be as before follows. Offsets, lengths and shapes are
 * vectors, with two bits of the word for each:
 *
 *	V_NEW   n numbers follow         V_SAME  what this vector was the last time, with as many
 *	V_ZERO  all are 0                V_LIKE  another one of the item, which is known by then
 *
 * A name follows as the length of what it shares at its beginning with a name before, the length
 * of the rest, and the rest.
 *
 * Threads: pure.
 */
#ifndef SAVE_PLAN_BYTES_H
#define SAVE_PLAN_BYTES_H

#include "base/buf.h"
#include "base/bytes.h"
#include "model/box.h"
#include "save/metadata.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct arena;
struct ckpt_err;

enum { V_NEW, V_ZERO, V_SAME, V_LIKE, V_BITS = 2, V_MASK = 3 };

struct pb_text {
	const char *s;
	size_t len;
};

struct pb_vec {
	const uint64_t *v;
	size_t n;
};

static inline bool pb_same_text(struct pb_text a, struct pb_text b)
{
	return a.len == b.len && (!a.len || !memcmp(a.s, b.s, a.len));
}

static inline bool pb_same_dims(const uint64_t *a, const uint64_t *b, size_t n)
{
	return !n || !memcmp(a, b, n * sizeof(*a));
}

static inline struct pb_text pb_name_of(const struct ckpt_meta_index *x)
{
	return (struct pb_text){ x->fqn, x->fqn_len };
}

static inline struct pb_text pb_c_text(const char *s)
{
	return (struct pb_text){ s, s ? strlen(s) : 0 };
}

/* ---- writing ---- */

static inline void pb_put(struct buf *b, uint64_t v)
{
	uint8_t *p = buf_room(b, 10);

	if (p)
		b->len += put_varint(p, v);
}

static inline void pb_put_word(struct buf *b, uint32_t word, size_t n)
{
	uint8_t *p = buf_room(b, n);

	if (p) {
		(void)put_le(p, word, n);
		b->len += n;
	}
}

void pb_put_text(struct buf *b, struct pb_text t, struct pb_text before);

uint32_t pb_vec_mode(const uint64_t *v, size_t n, struct pb_vec last, const uint64_t *like);

/* mode: of vec_mode. */
void pb_put_vec(struct buf *b, uint32_t mode, const uint64_t *v, size_t n, struct pb_vec *last);

int pb_encoded(const struct buf *b, struct ckpt_err *e);

/* ---- reading ---- */

struct pb_reader {
	struct cursor c;
	struct arena *a;
	const char *why; /* the first thing that is wrong */
	bool is_full;	 /* and that is the arena */
};

static inline void pb_refuse(struct pb_reader *r, const char *why)
{
	if (!r->why)
		r->why = why;
	r->c.bad = true;
}

void *pb_room(struct pb_reader *r, size_t count, size_t size);

static inline size_t pb_left(const struct pb_reader *r)
{
	return r->c.bad ? 0 : (size_t)(r->c.end - r->c.p);
}

/* How many there are of what takes at least `least` bytes. */
size_t pb_get_count(struct pb_reader *r, size_t least);

static inline uint32_t pb_get_word(struct pb_reader *r, size_t n)
{
	const uint8_t *p = cursor_take(&r->c, n);
	uint32_t v = 0;

	for (size_t i = 0; p && i < n; i++)
		v |= (uint32_t)p[i] << (8 * i);
	return v;
}

struct pb_text pb_get_text(struct pb_reader *r, struct pb_text before);

struct pb_text pb_get_c_text(struct pb_reader *r, struct pb_text before);

size_t pb_get_n_dims(struct pb_reader *r, bool same, size_t last);

const uint64_t *pb_get_vec(struct pb_reader *r, uint32_t mode, size_t n, struct pb_vec *last,
			   const uint64_t *like);

int32_t pb_get_hint(struct pb_reader *r, bool is_there);

/* what: "item 5", or nothing more than the kind of value. */
int pb_refused(const struct pb_reader *r, const char *what, size_t i, struct ckpt_err *e);

/* Everything has been read, and nothing is left. */
int pb_ended(const struct pb_reader *r, const char *what, size_t n, struct ckpt_err *e);

struct pb_reader pb_reader_of(const void *data, size_t len, struct arena *a, char kind);

static inline bool pb_index_fits(const struct ckpt_meta_index *x, size_t n_dims)
{
	return n_dims <= CKPT_MAX_DIMS && x->n_dims == (x->has_offset ? n_dims : 0) &&
	       x->hint >= CKPT_META_NO_HINT;
}

#endif
