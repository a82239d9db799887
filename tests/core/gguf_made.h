/* SPDX-License-Identifier: Apache-2.0 */
/* gguf_made - GGUF files, byte by byte: well formed or not. */
#ifndef TESTS_GGUF_MADE_H
#define TESTS_GGUF_MADE_H

#include "base/buf.h"
#include "base/bytes.h"
#include "model/ggml.h"

#include <string.h>

static inline void made_number(struct buf *b, uint64_t v, size_t bytes)
{
	uint8_t p[8];

	(void)put_le(p, v, bytes);
	buf_add(b, p, bytes);
}

static inline void made_str(struct buf *b, const char *s)
{
	made_number(b, strlen(s), 8);
	buf_str(b, s);
}

static inline void made_head(struct buf *b, uint32_t version, uint64_t tensors, uint64_t keys)
{
	buf_str(b, "GGUF");
	made_number(b, version, 4);
	made_number(b, tensors, 8);
	made_number(b, keys, 8);
}

/* The value follows. */
static inline void made_key(struct buf *b, const char *key, uint32_t type)
{
	made_str(b, key);
	made_number(b, type, 4);
}

static inline void made_u32(struct buf *b, const char *key, uint32_t v)
{
	made_key(b, key, GGUF_U32);
	made_number(b, v, 4);
}

static inline void made_u16(struct buf *b, const char *key, uint16_t v)
{
	made_key(b, key, GGUF_U16);
	made_number(b, v, 2);
}

static inline void made_text(struct buf *b, const char *key, const char *v)
{
	made_key(b, key, GGUF_STR);
	made_str(b, v);
}

/* ne: innermost first */
static inline void made_tensor(struct buf *b, const char *name, uint32_t n, const uint64_t *ne,
			       uint32_t type, uint64_t off)
{
	made_str(b, name);
	made_number(b, n, 4);
	for (uint32_t i = 0; i < n; i++)
		made_number(b, ne[i], 8);
	made_number(b, type, 4);
	made_number(b, off, 8);
}

static inline void made_padding(struct buf *b, size_t align)
{
	while (!b->err && b->len % align)
		buf_add(b, "", 1);
}

#endif
