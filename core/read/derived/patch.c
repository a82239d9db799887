/* SPDX-License-Identifier: Apache-2.0 */
#include "read/derived/patch.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "codec/cast.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SIZE = 16 }; /* bytes of an element */
enum state { UNSEEN, LOOKING, GOOD, BAD };
enum input { TENSOR, INDICES, VALUES };

/* A part of the pairs that is in memory. */
struct tile {
	uint64_t at[PATCH_TILE]; /* indices */
	uint8_t raw[PATCH_TILE * sizeof(uint64_t)];
	uint8_t values[2][PATCH_TILE * MAX_SIZE]; /* as they are stored, and cast */
};

/*
 * Reads the indices of n pairs from `first` on, at most PATCH_TILE; the first is `least` at least.
 * Returns how many ascend and are inside, or < 0.
 */
static int64_t read_indices(const struct patch *s, const struct derived_in *in, uint64_t first,
			    uint64_t n, uint64_t least, struct tile *t, struct ckpt_err *e)
{
	enum ckpt_dtype dtype = derived_dtype(in, INDICES);
	int rc = derived_read(in, INDICES, &first, &n, t->raw, e);

	if (rc)
		return rc;
	for (uint64_t i = 0; i < n; i++) {
		uint64_t x;

		switch (dtype) {
		case CKPT_DTYPE_U16:
			x = least + load_le16(t->raw + 2 * i);
			break;
		case CKPT_DTYPE_U32:
			x = least + load_le32(t->raw + 4 * i);
			break;
		case CKPT_DTYPE_I32: /* a negative one is very large */
			x = (uint64_t)(int32_t)load_le32(t->raw + 4 * i);
			break;
		default:
			x = load_le64(t->raw + 8 * i);
		}
		if (x < least || x >= s->elements)
			return (int64_t)i;
		t->at[i] = x;
		least = x + 1;
	}
	return (int64_t)n;
}

/* 1: they are all right. 0: *bad is the first that is not. */
static int read_tile(const struct patch *s, const struct derived_in *in, uint64_t first, uint64_t n,
		     uint64_t least, struct tile *t, uint64_t *bad, struct ckpt_err *e)
{
	int64_t good = read_indices(s, in, first, n, least, t, e);

	if (good < 0)
		return (int)good;
	*bad = first + (uint64_t)good;
	return (uint64_t)good == n;
}

/* Goes through all pairs; 1 or 0 as above. */
static int look(const struct patch *s, const struct derived_in *in, struct tile *t, uint64_t *bad,
		struct ckpt_err *e)
{
	uint64_t least = 0;
	int rc = 1;

	for (uint64_t i = 0; rc > 0 && i < s->pairs; i += PATCH_TILE) {
		uint64_t n = min_u64(s->pairs - i, PATCH_TILE);

		if (i % s->step == 0)
			s->seen->least[i / s->step] = least;
		rc = read_tile(s, in, i, n, least, t, bad, e);
		if (rc > 0)
			least = t->at[n - 1] + 1;
	}
	return rc;
}

static int bad_index(const struct patch *s, uint64_t bad, struct ckpt_err *e)
{
	return err_set(e, EIO,
		       "%s: index %" PRIu64 " is not above the one before, or not in the tensor",
		       s->name, bad);
}

/* Is this thread to look? If another is looking, waits until it has finished. */
static bool is_mine(struct patch_seen *seen, enum state *ret)
{
	SCOPED_LOCK(&seen->lock);

	while (seen->state == LOOKING)
		(void)pthread_cond_wait(&seen->known, &seen->lock);
	*ret = (enum state)seen->state;
	if (*ret == UNSEEN)
		seen->state = LOOKING;
	return *ret == UNSEEN;
}

static void tell(struct patch_seen *seen, enum state state, uint64_t bad)
{
	SCOPED_LOCK(&seen->lock);

	seen->state = (int)state;
	seen->bad = bad;
	(void)pthread_cond_broadcast(&seen->known);
}

/* Afterwards the bounds are known. */
static int check(const struct patch *s, const struct derived_in *in, struct tile *t,
		 struct ckpt_err *e)
{
	enum state state;
	uint64_t bad = 0;
	int rc;

	if (!is_mine(s->seen, &state))
		return state == GOOD ? 0 : bad_index(s, s->seen->bad, e);
	rc = look(s, in, t, &bad, e);
	tell(s->seen, rc < 0 ? UNSEEN : rc ? GOOD : BAD, bad);
	return rc < 0 ? rc : rc ? 0 : bad_index(s, bad, e);
}

/* The last noted pair before which all indices are below this one. */
static uint64_t find_first(const struct patch *s, uint64_t index)
{
	uint64_t low = 0, high = (s->pairs - 1) / s->step + 1;

	while (high - low > 1) {
		uint64_t middle = low + (high - low) / 2;

		if (s->seen->least[middle] <= index)
			low = middle;
		else
			high = middle;
	}
	return low * s->step;
}

/* The part of the tensor that is computed. */
struct part {
	const uint64_t *off, *len;
	uint64_t low, high; /* indices of its first and last element */
	uint8_t *out;
};

/* Number of an element within the part; -1: it is outside. */
static int64_t inside(const struct patch *s, const struct part *p, uint64_t index)
{
	uint64_t at = 0, step = 1;

	for (size_t d = s->n_dims; d-- > 0;) {
		uint64_t i = index % s->shape[d] - p->off[d];

		index /= s->shape[d];
		if (i >= p->len[d])
			return -1;
		at += i * step;
		step *= p->len[d];
	}
	return (int64_t)at;
}

/* Puts the values of n pairs from `first` on, whose indices are `at`, into the part. */
static int put(const struct patch *s, const struct derived_in *in, const struct part *p,
	       uint64_t first, uint64_t n, const uint64_t *at, struct tile *t, struct ckpt_err *e)
{
	enum ckpt_dtype from = derived_dtype(in, VALUES);
	size_t size = dtype_info(s->dtype)->size;
	const uint8_t *values = t->values[from != s->dtype];
	int rc = derived_read(in, VALUES, &first, &n, t->values[0], e);

	if (rc)
		return rc;
	if (from != s->dtype)
		cast_run(from, s->dtype, t->values[0], t->values[1], n);
	for (uint64_t i = 0; i < n; i++) {
		int64_t to = inside(s, p, at[i]);

		if (to >= 0)
			memcpy(p->out + (uint64_t)to * size, values + i * size, size);
	}
	return 0;
}

static int put_all(const struct patch *s, const struct derived_in *in, const struct part *p,
		   struct tile *t, struct ckpt_err *e)
{
	uint64_t i = find_first(s, p->low), least = s->seen->least[i / s->step];
	int rc = 0;

	for (uint64_t n; !rc && i < s->pairs && least <= p->high; i += n) {
		uint64_t a = 0, b, bad = 0;

		n = min_u64(s->pairs - i, PATCH_TILE);
		rc = read_tile(s, in, i, n, least, t, &bad, e);
		if (rc <= 0)
			return rc < 0 ? rc : bad_index(s, bad, e);
		least = t->at[n - 1] + 1;
		while (a < n && t->at[a] < p->low)
			a++;
		for (b = a; b < n && t->at[b] <= p->high;)
			b++;
		rc = b > a ? put(s, in, p, i + a, b - a, t->at + a, t, e) : 0;
	}
	return rc;
}

int patch_run(const void *how, const struct derived_in *in, const uint64_t *off,
	      const uint64_t *len, void *out, struct ckpt_err *e)
{
	const struct patch *s = how;
	struct part p = { .off = off, .len = len, .out = out };
	autofree struct tile *t = malloc(sizeof(*t));

	if (!t)
		return err_nomem(e);
	for (size_t d = 0; d < s->n_dims; d++) {
		p.low = p.low * s->shape[d] + off[d];
		p.high = p.high * s->shape[d] + off[d] + len[d] - 1;
	}
	if (derived_read(in, TENSOR, off, len, out, e) || check(s, in, t, e))
		return -e->code;
	return put_all(s, in, &p, t, e);
}
