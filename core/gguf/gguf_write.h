/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gguf_write - the head of a GGUF file, version 3: keys, tensors, padding.
 *
 *	struct gguf_keys k = GGUF_KEYS_INIT("llama");
 *	gguf_str(&k, "general.architecture", "llama", 5);
 *	gguf_u32(&k, ".block_count", 32);               // llama.block_count
 *	gguf_array(&k, "tokenizer.ggml.tokens", GGUF_STR, n);
 *	for (...)
 *		gguf_item_str(&k, token, len);
 *	rc = gguf_header(&k, tensors, n_tensors, &header, &e);
 *
 * Tensors are aligned to GGUF_ALIGN, so that they are page-aligned in a mapping of the file. A
 * reader adds up their sizes, rounded up to that, and requires each tensor at the resulting offset.
 *
 * Sources: ggml/docs/gguf.md, ggml/src/gguf.cpp.
 * Threads: pure.
 */
#ifndef GGUF_GGUF_WRITE_H
#define GGUF_GGUF_WRITE_H

#include "base/buf.h"
#include "codec/blocks.h"
#include "model/ggml.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt_err;

/* What a file without general.alignment has. llama-quantize pads to this whatever that key says, so
 * any other alignment makes it write files that cannot be loaded. */
#define GGUF_ALIGN	32
#define GGUF_MAX_HEADER ((size_t)256 << 20) /* bytes */

struct gguf_keys {
	const char *arch; /* prefixed to keys that begin with a dot */
	uint64_t n;
	struct buf text; /* sticky errors: gguf_header reports them */
};
#define GGUF_KEYS_INIT(name) \
	{ \
		.arch = (name), .text = BUF_INIT(GGUF_MAX_HEADER) \
	}

void gguf_u16(struct gguf_keys *k, const char *key, uint16_t v);
void gguf_u32(struct gguf_keys *k, const char *key, uint32_t v);
void gguf_i32(struct gguf_keys *k, const char *key, int32_t v);
void gguf_f32(struct gguf_keys *k, const char *key, double v); /* rounded */
void gguf_bool(struct gguf_keys *k, const char *key, bool v);
void gguf_str(struct gguf_keys *k, const char *key, const char *s, size_t len);
/* n items of one of the types above follow. */
void gguf_array(struct gguf_keys *k, const char *key, enum gguf_type type, uint64_t n);
void gguf_item_i32(struct gguf_keys *k, int32_t v);
void gguf_item_f32(struct gguf_keys *k, float v);
void gguf_item_bool(struct gguf_keys *k, bool v);
void gguf_item_str(struct gguf_keys *k, const char *s, size_t len);

#define GGUF_NAME_CAP 64 /* bytes of a tensor's name with its NUL, as in ggml */
#define GGUF_DIMS     4

struct gguf_tensor {
	char name[GGUF_NAME_CAP];
	uint64_t shape[GGUF_DIMS]; /* outermost first */
	uint8_t n_dims;
	uint8_t type; /* enum ggml_type */
	uint64_t bytes;
};

/* The number of padding bytes that follow a tensor. */
uint64_t gguf_padding(uint64_t bytes);
/* Appends everything before the first tensor's data to *ret. EFBIG, ENOMEM. */
int gguf_header(const struct gguf_keys *k, const struct gguf_tensor *t, size_t n, struct buf *ret,
		struct ckpt_err *e);

#endif
