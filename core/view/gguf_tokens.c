/* SPDX-License-Identifier: Apache-2.0 */
#include "view/gguf_tokens.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "view/gguf_config.h"
#include "view/gguf_tokens_internal.h"
#include "view/gguf_write.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPACE	 "\xe2\x96\x81" /* U+2581 */
#define FULL_BAR "\xef\xbd\x9c" /* U+FF5C */

int tokens_wrong(struct ckpt_err *e, const char *what)
{
	return err_set(e, EINVAL, "tokenizer.json: %s", what);
}

int tokens_unknown(struct ckpt_err *e, const char *what)
{
	return err_set(e, ERR_UNSUPPORTED, "tokenizer.json: %s is not one that is known", what);
}

static void tokens_release(struct tokens *t)
{
	json_decref(t->root);
	json_decref(t->config);
	free(t->v);
}

/* ---- the tokens ---- */

static bool starts(const struct token *t, const char *with)
{
	size_t n = strlen(with);

	return t->len >= n && !memcmp(t->s, with, n);
}

static bool ends(const struct token *t, const char *with)
{
	size_t n = strlen(with);

	return t->len >= n && !memcmp(t->s + t->len - n, with, n);
}

static bool is(const struct token *t, const char *s)
{
	return starts(t, s) && t->len == strlen(s);
}

/* Some models have marks among their tokens that nobody declared special. The same list as the
 * converter's. */
static bool looks_special(const struct token *t)
{
	return is(t, "<pad>") || is(t, "<mask>") || is(t, "<2mass>") || is(t, "[@BOS@]") ||
	       (starts(t, "<|") && ends(t, "|>")) ||
	       (starts(t, "<" FULL_BAR) && ends(t, FULL_BAR ">")) ||
	       (starts(t, "<unused") && ends(t, ">"));
}

static int hex(char c)
{
	return c >= '0' && c <= '9'   ? c - '0'
	       : c >= 'A' && c <= 'F' ? c - 'A' + 10
	       : c >= 'a' && c <= 'f' ? c - 'a' + 10
				      : -1;
}

/* The byte that "<0xAB>" is, or -1. */
static int byte_of(const struct token *t)
{
	if (t->len != 6 || memcmp(t->s, "<0x", 3) != 0 || t->s[5] != '>' || hex(t->s[3]) < 0 ||
	    hex(t->s[4]) < 0)
		return -1;
	return hex(t->s[3]) * 16 + hex(t->s[4]);
}

static int number_of(const struct tokens *t, const json_t *id, size_t *ret, struct ckpt_err *e)
{
	if (!json_is_integer(id) || json_integer_value(id) < 0 ||
	    (uint64_t)json_integer_value(id) >= t->n)
		return err_set(e, EINVAL, "tokenizer.json: a token's number is none below %zu",
			       t->n);
	*ret = (size_t)json_integer_value(id);
	return 0;
}

static int read_vocab(struct tokens *t, struct ckpt_err *e)
{
	const char *key;
	size_t len, i;
	json_t *id;

	json_object_keylen_foreach(t->vocab, key, len, id)
	{
		struct token x = { key, len, TOKEN_NORMAL, false, 0 };
		int rc = number_of(t, id, &i, e);

		if (rc)
			return rc;
		if (t->v[i].s)
			return err_set(e, EINVAL, "tokenizer.json: two tokens have the number %zu",
				       i);
		if (t->spm && byte_of(&x) >= 0)
			x.type = TOKEN_BYTE;
		t->v[i] = x;
	}
	return 0;
}

static int add_token(struct tokens *t, const json_t *id, const json_t *token, struct ckpt_err *e)
{
	const json_t *s = json_object_get(token, "content");
	bool declared = json_is_true(json_object_get(token, "special"));
	struct token *x;
	size_t i;
	int rc = number_of(t, id, &i, e);

	if (rc)
		return rc;
	x = &t->v[i];
	if (!json_is_string(s))
		return tokens_wrong(e, "an added token has no 'content'");
	if (x->added &&
	    (x->len != json_string_length(s) || memcmp(x->s, json_string_value(s), x->len) != 0))
		return err_set(e, EINVAL,
			       "tokenizer_config.json: token %zu is not the one of tokenizer.json",
			       i);
	declared |= x->added && x->type == TOKEN_CONTROL;
	*x = (struct token){ json_string_value(s), json_string_length(s), TOKEN_NORMAL, true, 0 };
	x->type = declared || looks_special(x) ? TOKEN_CONTROL : TOKEN_USER_DEFINED;
	return 0;
}

/* tokenizer.json has them as a list, tokenizer_config.json by number. */
static int read_added(struct tokens *t, struct ckpt_err *e)
{
	const json_t *list = json_object_get(t->root, "added_tokens");
	json_t *more = json_object_get(t->config, "added_tokens_decoder"), *token;
	const char *key;
	int rc = 0;

	for (size_t i = 0; !rc && i < json_array_size(list); i++) {
		token = json_array_get(list, i);
		rc = add_token(t, json_object_get(token, "id"), token, e);
	}
	json_object_foreach (more, key, token) {
		char *end;
		json_t *id = json_integer((json_int_t)strtoul(key, &end, 10));

		if (!rc)
			rc = !id	     ? err_set(e, ENOMEM, "out of memory")
			     : *end || !*key ? tokens_wrong(e, "an added token's number is none")
					     : add_token(t, id, token, e);
		json_decref(id);
	}
	return rc;
}

static int check_bytes(const struct tokens *t, struct ckpt_err *e)
{
	bool has[256] = { 0 };

	for (size_t i = 0; i < t->n; i++)
		if (t->v[i].s && t->v[i].type == TOKEN_BYTE)
			has[byte_of(&t->v[i])] = true;
	for (int b = 0; b < 256; b++)
		if (!has[b])
			return err_set(e, ERR_UNSUPPORTED,
				       "tokenizer.json has no token for the byte %02X",
				       (unsigned)b);
	return 0;
}

int64_t token_find(const struct tokens *t, const char *s, size_t len)
{
	for (size_t i = 0; i < t->n; i++)
		if (t->v[i].s && t->v[i].len == len && !memcmp(t->v[i].s, s, len))
			return (int64_t)i;
	return -1;
}

/* ---- the keys ---- */

/* In what a user defined a blank is a blank. */
static void put_unmarked(struct gguf_keys *k, const struct token *x, struct buf *room)
{
	size_t mark = strlen(SPACE);

	room->len = 0;
	for (size_t i = 0; i < x->len;) {
		bool space = x->len - i >= mark && !memcmp(x->s + i, SPACE, mark);

		buf_add(room, space ? " " : x->s + i, 1);
		i += space ? mark : 1;
	}
	gguf_item_str(k, room->data ? room->data : "", room->len);
	if (room->err)
		k->text.err = room->err;
}

static void put_token_texts(const struct tokens *t, struct gguf_keys *k)
{
	CLEANUP(buf_release) struct buf room = BUF_INIT(1 << 20);
	char pad[32];

	gguf_array(k, "tokenizer.ggml.tokens", GGUF_STR, t->n);
	for (size_t i = 0; i < t->n; i++) {
		const struct token *x = &t->v[i];

		if (!x->s)
			gguf_item_str(k, pad, (size_t)snprintf(pad, sizeof(pad), "[PAD%zu]", i));
		else if (x->type == TOKEN_USER_DEFINED)
			put_unmarked(k, x, &room);
		else
			gguf_item_str(k, x->s, x->len);
	}
}

static void put_tokens(const struct tokens *t, struct gguf_keys *k)
{
	put_token_texts(t, k);
	gguf_array(k, "tokenizer.ggml.token_type", GGUF_I32, t->n);
	for (size_t i = 0; i < t->n; i++)
		gguf_item_i32(k, t->v[i].s ? t->v[i].type : TOKEN_UNUSED);
	if (!t->spm)
		return;
	gguf_array(k, "tokenizer.ggml.scores", GGUF_F32, t->n);
	for (size_t i = 0; i < t->n; i++)
		gguf_item_f32(k, t->v[i].score);
}

/* "a b"; a blank inside of a or b is U+0120, as bytes are characters. */
static void add_half(struct buf *b, const json_t *half)
{
	const char *s = json_string_value(half);

	for (size_t i = 0; i < json_string_length(half); i++)
		buf_add(b, s[i] == ' ' ? "\xc4\xa0" : s + i, s[i] == ' ' ? 2 : 1);
}

static int put_merges(const struct tokens *t, struct gguf_keys *k, struct ckpt_err *e)
{
	CLEANUP(buf_release) struct buf b = BUF_INIT(1 << 20);
	size_t n = json_array_size(t->merges);

	gguf_array(k, "tokenizer.ggml.merges", GGUF_STR, n);
	for (size_t i = 0; i < n; i++) {
		const json_t *m = json_array_get(t->merges, i);
		const json_t *left = json_array_get(m, 0), *right = json_array_get(m, 1);

		if (json_is_string(m)) {
			gguf_item_str(k, json_string_value(m), json_string_length(m));
			continue;
		}
		if (json_array_size(m) != 2 || !json_is_string(left) || !json_is_string(right))
			return tokens_wrong(e, "a merge is no pair of strings");
		b.len = 0;
		add_half(&b, left);
		buf_str(&b, " ");
		add_half(&b, right);
		gguf_item_str(k, b.data, b.len);
	}
	if (b.err == EFBIG)
		return tokens_wrong(e, "a merge is too long");
	return b.err ? err_set(e, b.err, "out of memory") : 0;
}

/* ---- chat templates ---- */

static bool is_word(char c)
{
	return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

/* Several, by name: "default" is the one. */
static void put_named_templates(const json_t *list, struct gguf_keys *k)
{
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *one = json_array_get(list, i);
		const json_t *s = json_object_get(one, "template");
		const char *name = json_string_value(json_object_get(one, "name"));
		char key[100];

		if (!name || !*name || !json_is_string(s))
			continue;
		(void)snprintf(key, sizeof(key), "tokenizer.chat_template.%.60s", name);
		for (char *p = key + strlen("tokenizer.chat_template."); *p; p++)
			*p = is_word(*p) ? *p : '_';
		gguf_str(k, strcmp(name, "default") != 0 ? key : "tokenizer.chat_template",
			 json_string_value(s), json_string_length(s));
	}
}

static int put_template(const struct tokens *t, const struct gguf_token_files *f,
			struct gguf_keys *k, struct ckpt_err *e)
{
	const json_t *s = json_object_get(t->config, "chat_template");
	json_t *root = NULL;
	int rc;

	if (!s && f->template.text) {
		gguf_str(k, "tokenizer.chat_template", f->template.text, f->template.len);
		return 0;
	}
	if (!s && f->template_config.text) {
		rc = gguf_json("chat_template.json", f->template_config.text,
			       f->template_config.len, &root, e);
		if (rc)
			return rc;
		s = json_object_get(root, "chat_template");
	}
	if (json_is_string(s))
		gguf_str(k, "tokenizer.chat_template", json_string_value(s), json_string_length(s));
	put_named_templates(s, k);
	json_decref(root);
	return 0;
}

/* ---- all of it ---- */

static int open_tokens(struct tokens *t, const struct gguf_token_files *f,
		       const struct gguf_config *c, struct ckpt_err *e)
{
	int rc = gguf_json("tokenizer.json", f->tokenizer.text, f->tokenizer.len, &t->root, e);

	if (!rc && f->config.text)
		rc = gguf_json("tokenizer_config.json", f->config.text, f->config.len, &t->config,
			       e);
	if (rc)
		return rc;
	t->model = json_object_get(t->root, "model");
	t->vocab = json_object_get(t->model, "vocab");
	t->merges = json_object_get(t->model, "merges");
	rc = tokens_split(t, e);
	if (rc)
		return rc;
	if (!json_is_object(t->vocab) || !json_is_array(t->merges))
		return tokens_wrong(e, "no 'vocab' or no 'merges'");
	if (c->vocab > GGUF_MAX_TOKENS)
		return err_set(e, EFBIG, "config.json: a vocabulary of more than %u",
			       GGUF_MAX_TOKENS);
	t->n = c->vocab;
	t->v = calloc(t->n, sizeof(*t->v));
	if (!t->v)
		return err_set(e, ENOMEM, "out of memory");
	rc = read_vocab(t, e);
	if (!rc)
		rc = read_added(t, e);
	if (!rc && t->spm)
		rc = check_bytes(t, e);
	return rc;
}

int gguf_tokens_put(const struct gguf_token_files *f, const struct gguf_config *c,
		    struct gguf_keys *k, struct ckpt_err *e)
{
	CLEANUP(tokens_release) struct tokens t = { 0 };
	int rc = open_tokens(&t, f, c, e);

	if (!rc && t.spm)
		rc = tokens_score(&t, e);
	if (rc)
		return rc;
	if (t.spm)
		gguf_str(k, "tokenizer.ggml.model", "llama", 5);
	else
		gguf_str(k, "tokenizer.ggml.model", "gpt2", 4);
	gguf_str(k, "tokenizer.ggml.pre", t.pre, strlen(t.pre));
	rc = tokens_put_special(&t, c, k, e);
	if (rc)
		return rc;
	put_tokens(&t, k);
	if (t.spm)
		gguf_bool(k, "tokenizer.ggml.add_space_prefix", t.space_first);
	else
		rc = put_merges(&t, k, e);
	if (t.nfc)
		gguf_bool(k, "tokenizer.ggml.normalizer.nfc", true);
	return rc ? rc : put_template(&t, f, k, e);
}
