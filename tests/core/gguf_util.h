/* SPDX-License-Identifier: Apache-2.0 */
/* gguf_util - keys of a GGUF read back, and small files to make them from. */
#ifndef TESTS_GGUF_UTIL_H
#define TESTS_GGUF_UTIL_H

#include "base/bytes.h"
#include "gguf/gguf_write.h"

#include <stdbool.h>
#include <string.h>

/* Skips a value of that type; c->bad if it is cut off. */
static inline void gguf_skip(struct cursor *c, uint32_t type)
{
	uint64_t n;
	uint32_t item;

	switch (type) {
	case GGUF_U16:
		(void)cursor_take(c, 2);
		return;
	case GGUF_U32:
	case GGUF_I32:
	case GGUF_F32:
		(void)cursor_take(c, 4);
		return;
	case GGUF_BOOL:
		(void)cursor_take(c, 1);
		return;
	case GGUF_STR:
		(void)cursor_take(c, cursor_le64(c));
		return;
	case GGUF_ARRAY:
		item = cursor_le32(c);
		n = cursor_le64(c);
		if (item == GGUF_ARRAY)
			c->bad = true;
		while (n-- && !c->bad)
			gguf_skip(c, item);
		return;
	default:
		c->bad = true;
	}
}

/* The value of a key, if it has that type; otherwise a cursor that is .bad. *ret_keys: how many
 * keys there are. */
static inline struct cursor gguf_value(const struct gguf_keys *k, const char *key, uint32_t type)
{
	struct cursor c = cursor_of(k->text.data, k->text.len), found = { .bad = true };

	for (uint64_t i = 0; i < k->n && !c.bad; i++) {
		uint64_t len = cursor_le64(&c);
		const uint8_t *name = cursor_take(&c, len);
		uint32_t have = cursor_le32(&c);
		struct cursor at = c;

		gguf_skip(&c, have);
		if (!c.bad && have == type && len == strlen(key) && !memcmp(name, key, len))
			found = (struct cursor){ .p = at.p, .end = c.p };
	}
	if (c.bad || c.p != c.end)
		found.bad = true;
	return found;
}

/* Are the keys well formed, and each there only once? llama.cpp refuses a second one. */
static inline bool gguf_keys_fine(const struct gguf_keys *k)
{
	struct cursor c = cursor_of(k->text.data, k->text.len);

	for (uint64_t i = 0; i < k->n && !c.bad; i++) {
		uint64_t len = cursor_le64(&c);
		const uint8_t *name = cursor_take(&c, len);
		struct cursor before = cursor_of(k->text.data, k->text.len);

		for (uint64_t j = 0; j < i && !c.bad; j++) {
			uint64_t n = cursor_le64(&before);

			if (n == len && !memcmp(cursor_take(&before, n), name, len))
				return false;
			if (n != len)
				(void)cursor_take(&before, n);
			gguf_skip(&before, cursor_le32(&before));
		}
		gguf_skip(&c, cursor_le32(&c));
	}
	return !c.bad && c.p == c.end;
}

#define SMALL_VOCAB 8
/* A Llama of 8 tokens. %s: more members, beginning with a comma. */
#define SMALL_CONFIG \
	"{\"model_type\": \"llama\", \"vocab_size\": 8, \"hidden_size\": 4, " \
	"\"intermediate_size\": 6, " \
	"\"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"max_position_embeddings\": 16, " \
	"\"rms_norm_eps\": 1e-5, \"bos_token_id\": 5%s}"

#endif
