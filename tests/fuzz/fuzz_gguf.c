/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The input: config.json, a blank line, tokenizer.json, a blank line, tokenizer_config.json. If
 * keys are made, they must be well formed: as many tokens as the configuration says, with a type
 * each.
 *
 * Fuzzes: gguf/
 */
#include "base/err.h"
#include "core/gguf_util.h"
#include "gguf/gguf_config.h"
#include "gguf/gguf_tokens.h"
#include "mutate.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
CUSTOM_MUTATOR(parts_of_json, NULL)

static void require(bool ok)
{
	if (!ok)
		abort();
}

/* Cuts off what is before a blank line; *rest becomes what follows it. */
static struct gguf_file cut(struct gguf_file *rest)
{
	const char *end = rest->text ? memmem(rest->text, rest->len, "\n\n", 2) : NULL;
	struct gguf_file first = *rest;

	if (!end) {
		*rest = (struct gguf_file){ NULL, 0 };
		return first;
	}
	first.len = (size_t)(end - rest->text);
	*rest = (struct gguf_file){ end + 2, rest->len - first.len - 2 };
	return first;
}

static void check_tokens(const struct gguf_keys *k, const struct gguf_config *c)
{
	struct cursor tokens = gguf_value(k, "tokenizer.ggml.tokens", GGUF_ARRAY);
	struct cursor types = gguf_value(k, "tokenizer.ggml.token_type", GGUF_ARRAY);

	require(cursor_le32(&tokens) == GGUF_STR && cursor_le64(&tokens) == c->a.vocab);
	require(cursor_le32(&types) == GGUF_I32 && cursor_le64(&types) == c->a.vocab);
	for (uint64_t i = 0; i < c->a.vocab; i++) {
		uint32_t type = cursor_le32(&types);

		require(type >= 1 && type <= 6);
	}
	require(!types.bad && types.p == types.end);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct gguf_file rest = { (const char *)data, size }, config = cut(&rest);
	struct gguf_file tokenizer = cut(&rest);
	char *copy = malloc(tokenizer.len + 1);
	struct gguf_token_files f = { .tokenizer = copy, .tokenizer_len = tokenizer.len };
	struct gguf_keys k = GGUF_KEYS_INIT("llama");
	struct gguf_config c;
	struct ckpt_err e = { 0 };
	int rc;

	require(copy);
	if (tokenizer.len)
		memcpy(copy, tokenizer.text, tokenizer.len);
	f.config = rest;
	rc = gguf_config_read(config.text ? config.text : "", config.len, &c, &e);
	require(rc ? rc < 0 && e.code == -rc && *e.msg : !e.code);
	if (!rc && c.a.vocab < 5000 && tokenizer.text) { /* more only takes long */
		gguf_config_put(&c, &k);
		require(gguf_keys_fine(&k));
		rc = gguf_tokens_put(&f, &c, &k, &e);
		require(rc ? rc < 0 && e.code == -rc && *e.msg : !e.code);
		if (!rc) {
			require(gguf_keys_fine(&k));
			check_tokens(&k, &c);
		}
	}
	free(copy);
	buf_release(&k.text);
	gguf_config_release(&c);
	return 0;
}
