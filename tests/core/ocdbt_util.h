/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ocdbt_util - writes manifests and nodes of OCDBT, right or wrong.
 *
 *	struct buf b = BUF_INIT(1 << 20);
 *	size_t at = ocdbt_begin(&b, OCDBT_NODE_MAGIC, false);
 *	... the body ...
 *	ocdbt_end(&b, at);
 */
#ifndef TESTS_OCDBT_UTIL_H
#define TESTS_OCDBT_UTIL_H

#include "base/buf.h"
#include "base/bytes.h"
#include "base/crc32c.h"

#include <string.h>

#define OCDBT_MANIFEST_MAGIC 0x0cdb3a2aU
#define OCDBT_NODE_MAGIC     0x0cdb20deU

/* Begins an envelope; returns where it begins. */
static inline size_t ocdbt_begin(struct buf *b, uint32_t magic, bool zstd)
{
	size_t at = b->len;
	uint32_t be = htobe32(magic);

	buf_add(b, &be, 4);
	buf_add(b, (const uint8_t[8]){ 0 }, 8);
	buf_varint(b, 0);
	buf_varint(b, zstd);
	return at;
}

/* Sets the envelope's length and checksum, for what is there and the checksum itself. */
static inline void ocdbt_seal(uint8_t *p, size_t n)
{
	if (n < 16)
		return;
	(void)put_le(p + 4, n, 8);
	(void)put_le(p + n - 4, crc32c(0, p, n - 4), 4);
}

static inline void ocdbt_end(struct buf *b, size_t at)
{
	buf_add(b, (const uint8_t[4]){ 0 }, 4);
	ocdbt_seal((uint8_t *)b->data + at, b->len - at);
}

/* A path in a table of files: how much it shares with the one before it, the rest, and the length
 * of its base. */
struct ocdbt_path {
	unsigned shared;
	const char *rest;
	unsigned base;
};

static inline void ocdbt_paths(struct buf *b, const struct ocdbt_path *v, size_t n)
{
	buf_varint(b, n);
	for (size_t i = 1; i < n; i++)
		buf_varint(b, v[i].shared);
	for (size_t i = 0; i < n; i++)
		buf_varint(b, strlen(v[i].rest));
	for (size_t i = 0; i < n; i++)
		buf_varint(b, v[i].base);
	for (size_t i = 0; i < n; i++)
		buf_str(b, v[i].rest);
}

/* An entry of a node. text: an inline value of a leaf. */
struct ocdbt_row {
	unsigned shared;
	const char *rest;
	unsigned common; /* interior nodes */
	const char *text;
	uint64_t file, offset, length;
};

static inline void ocdbt_rows(struct buf *b, unsigned height, const struct ocdbt_row *v, size_t n)
{
	buf_varint(b, n);
	for (size_t i = 1; i < n; i++)
		buf_varint(b, v[i].shared);
	for (size_t i = 0; i < n; i++)
		buf_varint(b, strlen(v[i].rest));
	for (size_t i = 0; height && i < n; i++)
		buf_varint(b, v[i].common);
	for (size_t i = 0; i < n; i++)
		buf_str(b, v[i].rest);
	for (size_t i = 0; !height && i < n; i++)
		buf_varint(b, v[i].text ? strlen(v[i].text) : v[i].length);
	for (size_t i = 0; !height && i < n; i++)
		buf_varint(b, !v[i].text);
	for (size_t i = 0; i < n; i++)
		if (height || !v[i].text)
			buf_varint(b, v[i].file);
	for (size_t i = 0; i < n; i++)
		if (height || !v[i].text)
			buf_varint(b, v[i].offset);
	for (size_t i = 0; height && i < n; i++)
		buf_varint(b, v[i].length);
	for (size_t i = 0; height && i < 3 * n; i++)
		buf_varint(b, 0);
	for (size_t i = 0; !height && i < n; i++)
		if (v[i].text)
			buf_str(b, v[i].text);
}

static inline void ocdbt_node(struct buf *b, unsigned height, const struct ocdbt_path *files,
			      size_t n_files, const struct ocdbt_row *v, size_t n)
{
	size_t at = ocdbt_begin(b, OCDBT_NODE_MAGIC, false);

	buf_add(b, &(uint8_t){ (uint8_t)height }, 1);
	ocdbt_paths(b, files, n_files);
	ocdbt_rows(b, height, v, n);
	ocdbt_end(b, at);
}

/* The manifest of a store whose only version has that generation. */
static inline void ocdbt_manifest(struct buf *b, unsigned kind, uint64_t generation,
				  unsigned height, const struct ocdbt_path *file, uint64_t offset,
				  uint64_t length)
{
	size_t at = ocdbt_begin(b, OCDBT_MANIFEST_MAGIC, false);

	buf_add(b, "0123456789abcdef", 16);
	buf_add(b, &(uint8_t){ (uint8_t)kind }, 1);
	buf_varint(b, 1024);
	buf_varint(b, 100000000);
	buf_add(b, "\4", 1);
	buf_varint(b, 1);
	buf_add(b, "\0\0\0\0", 4);
	if (kind == 0) {
		ocdbt_paths(b, file, 1);
		buf_varint(b, 1);
		buf_varint(b, generation);
		buf_add(b, &(uint8_t){ (uint8_t)height }, 1);
		buf_varint(b, 0);
		buf_varint(b, offset);
		buf_varint(b, length);
		for (int i = 0; i < 3; i++)
			buf_varint(b, 0);
		buf_add(b, "\0\0\0\0\0\0\0\0", 8);
		buf_varint(b, 0); /* version nodes */
	}
	ocdbt_end(b, at);
}

#endif
