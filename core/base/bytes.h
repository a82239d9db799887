/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bytes - comparison of byte strings; explicit little- and big-endian loads and stores; a bounded
 * cursor.
 *
 * A cursor read past the end yields zero and sets .bad, which sticks: read a whole header, then
 * test once.
 *
 * Threads: pure.
 */
#ifndef BASE_BYTES_H
#define BASE_BYTES_H

#include <endian.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Byte strings, which may be NULL if they are empty. */
static inline bool bytes_equal(const void *a, size_t a_len, const void *b, size_t b_len)
{
	return a_len == b_len && (!a_len || !memcmp(a, b, a_len));
}

/* Is it this text? Does it begin or end with it? */
static inline bool bytes_are(const void *p, size_t len, const char *text)
{
	return bytes_equal(p, len, text, strlen(text));
}

static inline bool bytes_begin(const void *p, size_t len, const char *text)
{
	size_t n = strlen(text);

	return len >= n && bytes_equal(p, n, text, n);
}

static inline bool bytes_end(const void *p, size_t len, const char *text)
{
	size_t n = strlen(text);

	return len >= n && (!n || !memcmp((const char *)p + len - n, text, n));
}

/* The order of strcmp. */
static inline int bytes_compare(const void *a, size_t a_len, const void *b, size_t b_len)
{
	size_t n = a_len < b_len ? a_len : b_len;
	int c = n ? memcmp(a, b, n) : 0;

	return c ? c : (a_len > b_len) - (a_len < b_len);
}

static inline uint16_t load_le16(const void *p)
{
	uint16_t v;

	memcpy(&v, p, sizeof(v));
	return le16toh(v);
}

static inline uint32_t load_le32(const void *p)
{
	uint32_t v;

	memcpy(&v, p, sizeof(v));
	return le32toh(v);
}

static inline uint64_t load_le64(const void *p)
{
	uint64_t v;

	memcpy(&v, p, sizeof(v));
	return le64toh(v);
}

static inline uint64_t load_be64(const void *p)
{
	uint64_t v;

	memcpy(&v, p, sizeof(v));
	return be64toh(v);
}

struct cursor {
	const uint8_t *p, *end;
	bool bad;
};

static inline struct cursor cursor_of(const void *p, size_t len)
{
	/* Not even 0 may be added to NULL. */
	return (struct cursor){ .p = p, .end = len ? (const uint8_t *)p + len : p };
}

/* n bytes, borrowed, or NULL (and .bad) when fewer are left. */
static inline const uint8_t *cursor_take(struct cursor *c, size_t n)
{
	const uint8_t *r = c->p;

	if (c->bad || (size_t)(c->end - c->p) < n) {
		c->bad = true;
		return NULL;
	}
	c->p += n;
	return r;
}

static inline uint16_t cursor_le16(struct cursor *c)
{
	const uint8_t *p = cursor_take(c, 2);

	return p ? load_le16(p) : 0;
}

static inline uint32_t cursor_le32(struct cursor *c)
{
	const uint8_t *p = cursor_take(c, 4);

	return p ? load_le32(p) : 0;
}

static inline uint64_t cursor_le64(struct cursor *c)
{
	const uint8_t *p = cursor_take(c, 8);

	return p ? load_le64(p) : 0;
}

/* LEB128 within the cursor; sets .bad if it does not fit 64 bits. */
static inline uint64_t cursor_varint(struct cursor *c)
{
	uint64_t v = 0;

	for (unsigned shift = 0; shift < 64; shift += 7) {
		const uint8_t *p = cursor_take(c, 1);

		if (!p)
			return 0;
		if (shift == 63 && *p > 1)
			break;
		v |= (uint64_t)(*p & 0x7f) << shift;
		if (!(*p & 0x80))
			return v;
	}
	c->bad = true;
	return 0;
}

/* Like cursor_varint; sets .bad and returns 0 if it is above max. */
static inline uint64_t cursor_varint_to(struct cursor *c, uint64_t max)
{
	uint64_t v = cursor_varint(c);

	if (v <= max)
		return v;
	c->bad = true;
	return 0;
}

/* Writes v in n <= 9 bytes, lowest first. Returns p + n. */
static inline uint8_t *put_le(uint8_t *p, uint64_t v, size_t n)
{
	for (size_t i = 0; i < n; i++)
		p[i] = (uint8_t)(i < 8 ? v >> (8 * i) : 0);
	return p + n;
}

/* LEB128: seven bits per byte, lowest first. Writes at most 10 bytes; returns how many. */
static inline size_t put_varint(uint8_t *p, uint64_t v)
{
	size_t n = 0;

	while (v >= 0x80) {
		p[n++] = (uint8_t)(v | 0x80);
		v >>= 7;
	}
	p[n++] = (uint8_t)v;
	return n;
}

/* Only for bytes written by put_varint in this process or already read through a cursor: no bounds
 * check. Advances *pp. */
static inline uint64_t get_varint(const uint8_t **pp)
{
	const uint8_t *p = *pp;
	uint64_t v = *p & 0x7f;

	for (unsigned shift = 7; *p++ & 0x80; shift += 7)
		v |= (uint64_t)(*p & 0x7f) << shift;
	*pp = p;
	return v;
}

#endif
