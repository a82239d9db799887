/* SPDX-License-Identifier: Apache-2.0 */
#include "save/plan_bytes.h"

#include "base/arena.h"
#include "base/checked.h"
#include "base/err.h"

/* Longer prefixes are not shared, or few bytes would become many. */
enum { MAX_SHARED = 255 };

static const uint64_t zeros[CKPT_MAX_DIMS];

void pb_put_text(struct buf *b, struct pb_text t, struct pb_text before)
{
	size_t most = min_u64(min_u64(t.len, before.len), MAX_SHARED), shared = 0;

	while (shared < most && t.s[shared] == before.s[shared])
		shared++;
	pb_put(b, shared);
	pb_put(b, t.len - shared);
	if (t.len > shared)
		buf_add(b, t.s + shared, t.len - shared);
}

uint32_t pb_vec_mode(const uint64_t *v, size_t n, struct pb_vec last, const uint64_t *like)
{
	if (like && pb_same_dims(v, like, n))
		return V_LIKE;
	if (pb_same_dims(v, zeros, n))
		return V_ZERO;
	return last.n == n && pb_same_dims(v, last.v, n) ? V_SAME : V_NEW;
}

void pb_put_vec(struct buf *b, uint32_t mode, const uint64_t *v, size_t n, struct pb_vec *last)
{
	for (size_t d = 0; d < n && (mode & V_MASK) == V_NEW; d++)
		pb_put(b, v[d]);
	*last = (struct pb_vec){ v, n };
}

int pb_encoded(const struct buf *b, struct ckpt_err *e)
{
	return b->err ? err_set(e, b->err, "a plan's bytes: %s",
				b->err == ENOMEM ? "out of memory" : "too many")
		      : 0;
}

void *pb_room(struct pb_reader *r, size_t count, size_t size)
{
	void *p = r->c.bad ? NULL : arena_array(r->a, count, size);

	if (!p && !r->c.bad) {
		r->is_full = true;
		pb_refuse(r, "out of memory");
	}
	return p;
}

size_t pb_get_count(struct pb_reader *r, size_t least)
{
	uint64_t n = cursor_varint(&r->c);

	if (n > pb_left(r) / least)
		pb_refuse(r, "more of them than bytes");
	return r->c.bad ? 0 : n;
}

struct pb_text pb_get_text(struct pb_reader *r, struct pb_text before)
{
	uint64_t shared = cursor_varint(&r->c), rest = cursor_varint(&r->c);
	const uint8_t *p;
	char *s;

	if (shared > before.len || shared > MAX_SHARED || rest > UINT32_MAX - MAX_SHARED) {
		pb_refuse(r, "a name of more bytes than there are");
		return (struct pb_text){ 0 };
	}
	p = cursor_take(&r->c, rest);
	s = p ? pb_room(r, shared + rest + 1, 1) : NULL;
	if (!s)
		return (struct pb_text){ 0 };
	if (shared)
		memcpy(s, before.s, shared);
	if (rest)
		memcpy(s + shared, p, rest);
	return (struct pb_text){ s, shared + rest };
}

struct pb_text pb_get_c_text(struct pb_reader *r, struct pb_text before)
{
	struct pb_text t = pb_get_text(r, before);

	if (t.len && memchr(t.s, 0, t.len))
		pb_refuse(r, "a NUL in a path or transform");
	return t;
}

size_t pb_get_n_dims(struct pb_reader *r, bool same, size_t last)
{
	uint32_t n = same ? (uint32_t)last : pb_get_word(r, 1);

	if (n > CKPT_MAX_DIMS)
		pb_refuse(r, "too many dimensions");
	return r->c.bad ? 0 : n;
}

const uint64_t *pb_get_vec(struct pb_reader *r, uint32_t mode, size_t n, struct pb_vec *last,
			   const uint64_t *like)
{
	const uint64_t *v = zeros;
	uint64_t *fresh;

	mode &= V_MASK;
	if (mode == V_NEW && (fresh = pb_room(r, n, sizeof(*fresh))) != NULL) {
		for (size_t d = 0; d < n; d++)
			fresh[d] = cursor_varint(&r->c);
		v = fresh;
	} else if (mode == V_SAME && last->v && last->n == n) {
		v = last->v;
	} else if (mode == V_LIKE && like) {
		v = like;
	} else if (mode == V_SAME || mode == V_LIKE) {
		pb_refuse(r, "numbers like those of nothing");
	}
	*last = (struct pb_vec){ v, n };
	return v;
}

int32_t pb_get_hint(struct pb_reader *r, bool is_there)
{
	uint64_t v = is_there ? cursor_varint(&r->c) : 0;

	if (v > INT32_MAX)
		pb_refuse(r, "a hint that is none");
	return is_there && !r->c.bad ? (int32_t)v : CKPT_META_NO_HINT;
}

int pb_refused(const struct pb_reader *r, const char *what, size_t i, struct ckpt_err *e)
{
	return err_set(e, r->is_full ? ENOMEM : ERR_CORRUPT, "%s %zu: %s", what, i,
		       r->why ? r->why : "the bytes end there");
}

int pb_ended(const struct pb_reader *r, const char *what, size_t n, struct ckpt_err *e)
{
	if (r->c.bad)
		return pb_refused(r, what, n, e);
	if (pb_left(r))
		return err_set(e, ERR_CORRUPT, "%s %zu: %zu bytes behind the last one", what, n,
			       pb_left(r));
	return 0;
}

struct pb_reader pb_reader_of(const void *data, size_t len, struct arena *a, char kind)
{
	struct pb_reader r = { .c = cursor_of(data, len), .a = a };

	if (pb_get_word(&r, 1) != (uint8_t)kind)
		pb_refuse(&r, "bytes of another kind");
	return r;
}
