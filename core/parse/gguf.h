/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gguf - the head of a GGUF file, version 2 or 3, little endian: keys, tensors, and where the data
 * begins.
 *
 *	rc = gguf_read(&blob, &h, &e);
 *	for (size_t i = 0; i < h->n_keys; i++)
 *		gguf_walk(&h->keys[i].value, &visitor);
 *	gguf_free(h);
 *
 * Checked as by ggml: names are text and occur once, types are known, values of keys lie in the
 * head, rows are whole blocks, tensors begin at multiples of general.alignment and do not overlap.
 * Unlike ggml, gaps between tensors are accepted. Whether the data is there is up to the caller:
 * see gguf_end.
 *
 * The whole head is in memory, at most GGUF_READ_MAX bytes; it has the vocabulary of a tokenizer.
 *
 * Source: ggml/docs/gguf.md, ggml/src/gguf.cpp.
 * Threads: a parsed head is immutable.
 */
#ifndef PARSE_GGUF_H
#define PARSE_GGUF_H

#include "base/blob.h"
#include "model/ggml.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt_err;

#define GGUF_READ_MAX	 ((size_t)256 << 20) /* bytes of the head */
#define GGUF_READ_KEYS	 ((uint64_t)1 << 16)
#define GGUF_READ_ITEMS	 ((uint64_t)1 << 20)
#define GGUF_READ_DIMS	 4     /* GGML_MAX_DIMS */
#define GGUF_READ_NESTED 4     /* arrays in arrays */
#define GGUF_READ_NAME	 1024  /* bytes of a tensor's name; ggml's limit is 63 */
#define GGUF_READ_KEY	 65535 /* bytes of a key: gguf.md */

/* A value in the head, as it is stored there; of an array all members, with their type and
 * number. */
struct gguf_value {
	enum gguf_type type;
	const uint8_t *p;
	size_t len;
};

struct gguf_key {
	const char *name; /* not NUL-terminated */
	size_t len;
	struct gguf_value value;
};

struct gguf_item {
	const char *name; /* not NUL-terminated */
	size_t len;
	const struct ggml_info *type;
	uint32_t n_dims;
	uint64_t shape[GGUF_READ_DIMS]; /* outermost first, in elements */
	uint64_t begin, bytes;		/* from the start of the data; as stored */
};

struct gguf_head {
	uint32_t version, alignment;
	struct gguf_key *keys; /* in the order of the file */
	struct gguf_item *items;
	size_t n_keys, n_items, cap_keys, cap_items;
	uint64_t data; /* offset of the data in the file */
	uint8_t *text;
};

int gguf_read(const struct blob *b, struct gguf_head **ret, struct ckpt_err *e);
void gguf_free(struct gguf_head *h); /* NULL is fine */
/* Offset behind the last tensor. */
uint64_t gguf_end(const struct gguf_head *h);

/* NULL: there is no such key. */
const struct gguf_value *gguf_find(const struct gguf_head *h, const char *name);
/* A value that is a whole number, not negative; false: it is something else, or NULL. */
bool gguf_number(const struct gguf_value *v, uint64_t *ret);

/* Steps over a value in *p that has been checked, and returns its members: of type GGUF_ARRAY
 * *ret_n of the type *ret_type, which are at the new *p and are taken in turn. */
struct gguf_value gguf_take(const uint8_t **p, enum gguf_type type);
void gguf_open_array(const struct gguf_value *v, enum gguf_type *ret_type, uint64_t *ret_n,
		     const uint8_t **ret_p);

/* "GGUF", and a version. */
bool gguf_is(const void *head, size_t len);

#endif
