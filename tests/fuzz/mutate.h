/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mutate - changes inputs part by part: the parts of a pickle, of JSON, of a GGUF file, of a zip
 * archive ...
 *
 *	static size_t take(const uint8_t *p, size_t n, struct part *v)	// e.g. parts_of_json
 *	CUSTOM_MUTATOR(take, mend)
 *	FRAMES_MUTATOR(head, before, take)	// the same inside one of several files
 *
 * Half of the time a part is doubled, left out, moved or replaced by one of the same kind, or its
 * number becomes one at a limit; if a text gets longer or shorter, so does the length in front of
 * it. Then mend (NULL: nothing) corrects the bytes that must agree with others. The other half is
 * left to libFuzzer.
 */
#ifndef TESTS_FUZZ_MUTATE_H
#define TESTS_FUZZ_MUTATE_H

#include "base/bytes.h"
#include "parse/pickle_ops.h"
#include "rng.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { PARTS_MAX = 4096 };

struct part {
	size_t off, len;
	unsigned kind;	     /* parts of one kind can replace each other */
	size_t number, size; /* a number in it, little-endian; size 0: none */
	bool digits;	     /* the whole part is a number, in decimal */
	bool varint;	     /* the whole part is a number, seven bits a byte */
	bool counts;	     /* the number is how many bytes follow it */
};

typedef size_t parts_fn(const uint8_t *p, size_t n, struct part *v);
typedef size_t mend_fn(uint8_t *p, size_t n);

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed);

static inline uint64_t le_at(const uint8_t *p, size_t size)
{
	uint64_t v = 0;

	for (size_t i = size; i-- > 0;)
		v = v << 8 | p[i];
	return v;
}

/* ---- parts ---- */

static inline size_t parts_of_json(const uint8_t *p, size_t n, struct part *v)
{
	size_t count = 0, i = 0;

	while (i < n && count < PARTS_MAX) {
		size_t from = i++;
		struct part x = { .off = from, .kind = p[from] };

		if (p[from] == '"') {
			while (i < n && p[i] != '"')
				i += p[i] == '\\' ? 2 : 1;
			i = i < n ? i + 1 : n;
		} else if (isdigit(p[from]) || p[from] == '-') {
			while (i < n && (isdigit(p[i]) || strchr("+-.eE", p[i])) && p[i])
				i++;
			x.kind = '0';
			x.digits = true;
		} else if (isalpha(p[from])) {
			while (i < n && isalpha(p[i]))
				i++;
			x.kind = 'a';
		}
		x.len = i - from;
		v[count++] = x;
	}
	return count;
}

/* JSON that follows a length of 8 bytes, as in safetensors. */
static inline size_t parts_of_safetensors(const uint8_t *p, size_t n, struct part *v)
{
	size_t count = n > 8 ? parts_of_json(p + 8, n - 8, v) : 0;

	for (size_t i = 0; i < count; i++)
		v[i].off += 8;
	return count;
}

/* How many bytes an opcode's operand has, and whether it is the length of what follows. */
static inline unsigned pickle_operand(uint8_t op, bool *counts)
{
	*counts = false;
	switch (op) {
	case OP_BININT1:
	case OP_BINGET:
	case OP_BINPUT:
	case OP_PROTO:
		return 1;
	case OP_BININT2:
		return 2;
	case OP_BININT:
	case OP_LONG_BINGET:
	case OP_LONG_BINPUT:
		return 4;
	case OP_BINFLOAT:
	case OP_FRAME:
		return 8;
	default:
		break;
	}
	*counts = true;
	switch (op) {
	case OP_SHORT_BINSTRING:
	case OP_SHORT_BINBYTES:
	case OP_SHORT_BINUNICODE:
	case OP_LONG1:
		return 1;
	case OP_BINSTRING:
	case OP_BINBYTES:
	case OP_BINUNICODE:
	case OP_LONG4:
		return 4;
	case OP_BINUNICODE8:
	case OP_BINBYTES8:
	case OP_BYTEARRAY8:
		return 8;
	default:
		*counts = false;
		return 0;
	}
}

static inline size_t parts_of_pickle(const uint8_t *p, size_t n, struct part *v)
{
	size_t count = 0, lines;

	for (size_t i = 0; i < n && count < PARTS_MAX; i += v[count++].len) {
		struct part x = { .off = i, .len = 1, .kind = p[i], .number = i + 1 };

		x.size = pickle_operand(p[i], &x.counts);
		x.len += x.size;
		lines = p[i] == OP_GLOBAL || p[i] == OP_INST ? 2
			: p[i] && strchr("FILPSVgp", p[i])   ? 1
							     : 0;
		while (lines && i + x.len < n)
			lines -= p[i + x.len++] == '\n';
		if (x.len > n - i) {
			x.len = n - i;
			x.size = 0;
			x.counts = false;
		}
		if (x.counts) {
			uint64_t bytes = le_at(p + x.number, x.size);

			x.len += bytes < n - i - x.len ? (size_t)bytes : n - i - x.len;
			x.kind = p[i] == OP_SHORT_BINUNICODE || p[i] == OP_BINUNICODE
					 ? (unsigned)'X'
					 : p[i];
		}
		v[count] = x;
	}
	return count;
}

/* The numbers in GGUF's header, then texts with their lengths; what is between them, in pieces of
 * four bytes. */
static inline size_t parts_of_gguf(const uint8_t *p, size_t n, struct part *v)
{
	size_t count = 0;

	for (size_t i = 0; i < n && count < PARTS_MAX; i += v[count++].len) {
		struct part x = { .off = i, .len = 4, .number = i, .size = 4, .kind = 4 };
		uint64_t bytes = n - i >= 8 ? le_at(p + i, 8) : 0;
		bool text = bytes && bytes < 200 && bytes <= n - i - 8;

		for (size_t k = 0; text && k < bytes; k++)
			text = isprint(p[i + 8 + k]);
		if (text) {
			x = (struct part){ .off = i,
					   .len = 8 + (size_t)bytes,
					   .kind = 'X',
					   .number = i,
					   .size = 8,
					   .counts = true };
		} else if (n - i < 4) {
			x.len = n - i;
			x.size = 0;
		} else if (bytes < 1 << 16 && n - i >= 8) { /* counts, sizes, offsets */
			x.len = x.size = 8;
			x.kind = 8;
		}
		v[count] = x;
	}
	return count;
}

/* After the first byte: lengths, counts and offsets, and texts, whose bytes count as numbers here,
 * too. */
static inline size_t parts_of_varints(const uint8_t *p, size_t n, struct part *v)
{
	size_t count = 0;

	for (size_t i = 1; i < n && count < PARTS_MAX; i += v[count++].len) {
		struct part x = { .off = i, .len = 1, .kind = 'v', .varint = true };

		while (x.len < 9 && i + x.len < n && p[i + x.len - 1] & 0x80)
			x.len++;
		v[count] = x;
	}
	return count;
}

/* The records of an archive; which of its numbers change is left to chance. */
static inline size_t parts_of_zip(const uint8_t *p, size_t n, struct part *v)
{
	size_t count = 0, from = 0;

	for (size_t i = 1; i <= n && count < PARTS_MAX; i++) {
		if (i < n && (n - i < 4 || p[i] != 'P' || p[i + 1] != 'K' || p[i + 2] > 8))
			continue;
		v[count] = (struct part){ .off = from, .len = i - from, .kind = 'P' };
		if (i - from > 30) {
			v[count].number = from + 4 + (i * 2654435761u >> 8) % 24;
			v[count].size = 2;
		}
		count++;
		from = i;
	}
	return count;
}

/* ---- mending ---- */

/* Sets the length of the header: to all that there is, or to the end of the JSON. */
static inline size_t mend_safetensors(uint8_t *p, size_t n)
{
	size_t depth = 0, i = 8;
	bool text = false;

	if (n < 8 || le_at(p, 8) == n - 8)
		return n;
	for (; i < n; i++) {
		if (p[i] == '"' && p[i - 1] != '\\')
			text = !text;
		depth += !text && p[i] == '{';
		if (!text && p[i] == '}' && !--depth) {
			i++;
			break;
		}
	}
	while (i < n && p[i] == ' ')
		i++;
	(void)put_le(p, i - 8, 8);
	return n;
}

/* Corrects where the directory and the members of an archive are. */
static inline size_t mend_zip(uint8_t *p, size_t n)
{
	static size_t local[256];
	size_t n_local = 0, entries = 0, dir = 0, end = 0;

	for (size_t i = 0; i + 4 <= n; i++) {
		if (p[i] != 'P' || p[i + 1] != 'K')
			continue;
		if (p[i + 2] == 3 && p[i + 3] == 4 && n_local < 256)
			local[n_local++] = i;
		if (p[i + 2] == 1 && p[i + 3] == 2 && n - i >= 46) {
			dir = dir ? dir : i;
			if (entries < n_local)
				(void)put_le(p + i + 42, local[entries], 4);
			entries++;
		}
		if (p[i + 2] == 5 && p[i + 3] == 6 && n - i >= 22)
			end = i;
	}
	if (!end || !dir || dir > end)
		return n;
	(void)put_le(p + end + 8, entries, 2);
	(void)put_le(p + end + 10, entries, 2);
	(void)put_le(p + end + 12, end - dir, 4);
	(void)put_le(p + end + 16, dir, 4);
	return n;
}

/* ---- edits ---- */

static inline size_t mutate_replace(uint8_t *p, size_t n, size_t most, size_t at, size_t old,
				    const uint8_t *by, size_t len)
{
	if (n - old + len > most)
		return n;
	memmove(p + at + len, p + at + old, n - at - old);
	memcpy(p + at, by, len);
	return n - old + len;
}

static inline uint64_t odd_number(struct rng *r, uint64_t old)
{
	static const uint64_t odd[] = { 0,	    1,		2,	   3,	       255,
					256,	    65535,	INT32_MAX, 1u << 31,   UINT32_MAX,
					1ull << 32, 1ull << 53, INT64_MAX, 1ull << 63, UINT64_MAX };
	uint64_t k = rng_below(r, 24);

	return k < sizeof(odd) / sizeof(odd[0]) ? odd[k]
	       : k < 18				? old + 1
	       : k < 21				? old - 1
	       : k < 22				? old * 2
						: rng_below(r, 40);
}

static inline size_t mutate_number(uint8_t *p, size_t n, size_t most, const struct part *x,
				   struct rng *r)
{
	uint8_t text[24] = { 0 };
	uint64_t v = 0;

	if (x->varint) {
		for (size_t i = 0; i < x->len; i++)
			v |= (uint64_t)(p[x->off + i] & 0x7f) << 7 * i;
		return mutate_replace(p, n, most, x->off, x->len, text,
				      put_varint(text, odd_number(r, v)));
	}
	if (!x->digits) {
		(void)put_le(text, odd_number(r, le_at(p + x->number, x->size)), 8);
		memcpy(p + x->number, text, x->size);
		return n;
	}
	for (size_t i = 0; i < x->len && isdigit(p[x->off + i]); i++)
		v = 10 * v + (p[x->off + i] - '0');
	v = odd_number(r, v);
	return mutate_replace(p, n, most, x->off, x->len, text,
			      (size_t)snprintf((char *)text, sizeof(text), "%ju", (uintmax_t)v));
}

/* Makes a text longer or shorter, with its length. */
static inline size_t mutate_counted(uint8_t *p, size_t n, size_t most, const struct part *x,
				    struct rng *r)
{
	size_t from = x->number + x->size, old = x->off + x->len - from, len = old;
	uint8_t text[512];

	if (old >= sizeof(text) / 2)
		return n;
	memcpy(text, p + from, old);
	len = rng_below(r, 8) ? LLVMFuzzerMutate(text, old ? old : 1, sizeof(text) / 2) : 0;
	if (x->size == 1 && len > 255)
		len = 255;
	if (n - old + len > most)
		return n;
	(void)put_le(p + x->number, len, x->size);
	return mutate_replace(p, n, most, from, old, text, len);
}

static inline size_t mutate_parts(uint8_t *p, size_t n, size_t most, parts_fn *take, struct rng *r)
{
	static struct part v[PARTS_MAX];
	static uint8_t some[4096];
	size_t count = take(p, n, v), k, to, last, len;
	const struct part *x, *y;

	if (!count)
		return LLVMFuzzerMutate(p, n, most);
	k = (size_t)rng_below(r, count);
	to = (size_t)rng_below(r, count);
	x = &v[k];
	last = k + (size_t)rng_below(r, count - k < 12 ? count - k : 12);
	len = v[last].off + v[last].len - x->off;
	len = len < sizeof(some) ? len : sizeof(some);
	memcpy(some, p + x->off, len);
	switch (rng_below(r, 6)) {
	case 0:
		return mutate_replace(p, n, most, v[to].off, 0, some, len); /* once more, there */
	case 1:
		return mutate_replace(p, n, most, x->off, len, some, 0);
	case 2: /* the next part of its kind */
		for (size_t i = 0; i < count; i++) {
			y = &v[(to + i) % count];
			if (y == x || y->kind != x->kind || y->len > sizeof(some))
				continue;
			memcpy(some, p + y->off, y->len);
			return mutate_replace(p, n, most, x->off, x->len, some, y->len);
		}
		return n;
	default:
		for (size_t i = 0; i < count; i++) {
			x = &v[(k + i) % count];
			if (x->counts && rng_below(r, 4))
				return mutate_counted(p, n, most, x, r);
			if (x->digits || x->varint || x->size)
				return mutate_number(p, n, most, x, r);
		}
		return LLVMFuzzerMutate(p, n, most);
	}
}

static inline size_t mutate(uint8_t *p, size_t n, size_t most, unsigned seed, parts_fn *take,
			    mend_fn *mend)
{
	struct rng r = { seed };

	n = rng_below(&r, 2) ? mutate_parts(p, n, most, take, &r) : LLVMFuzzerMutate(p, n, most);
	return mend ? mend(p, n) : n;
}

#define CUSTOM_MUTATOR(take, mend) \
	size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed) \
	{ \
		return mutate(data, size, most, seed, take, mend); \
	}

/* ---- several files in an input ---- */

/*
 * An input is head bytes, then files: each is before bytes, its length in two bytes, and its
 * contents, which are mutated by their parts; else a file is left out, or is there twice.
 */
static inline size_t mutate_frames(uint8_t *p, size_t n, size_t most, unsigned seed, size_t head,
				   size_t before, parts_fn *take)
{
	static uint8_t one[1 << 16];
	struct rng r = { seed };
	size_t at[64], count = 0, i = head, len, room, k;

	while (count < 64 && i + before + 2 < n) {
		at[count++] = i;
		i += before + 2 + (size_t)le_at(p + i + before, 2);
	}
	if (!count || !rng_below(&r, 8))
		return LLVMFuzzerMutate(p, n, most);
	k = at[rng_below(&r, count)];
	i = k + before + 2;
	len = (size_t)le_at(p + k + before, 2);
	len = len < n - i ? len : n - i;
	memcpy(one, p + k, before + 2 + len);
	switch (rng_below(&r, 24)) {
	case 0:
		return mutate_replace(p, n, most, k, before + 2 + len, one, 0);
	case 1:
		return mutate_replace(p, n, most, k, 0, one, before + 2 + len);
	default:
		room = most > n ? most - n + len : len;
		room = room < UINT16_MAX ? room : UINT16_MAX;
		memcpy(one, p + i, len);
		k = mutate(one, len, room, (unsigned)rng_below(&r, UINT32_MAX), take, NULL);
		(void)put_le(p + i - 2, k, 2);
		return mutate_replace(p, n, most, i, len, one, k);
	}
}

#define FRAMES_MUTATOR(head, before, take) \
	size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed) \
	{ \
		return mutate_frames(data, size, most, seed, head, before, take); \
	}

#endif
