/* SPDX-License-Identifier: Apache-2.0 */
#include "gguf/gguf_tokens.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/search.h"
#include "base/text.h"
#include "gguf/gguf_config.h"
#include "gguf/gguf_tokens_internal.h"
#include "gguf/gguf_write.h"

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
	return err_set(e, ERR_UNSUPPORTED, "tokenizer.json: %s is not supported", what);
}

static void tokens_release(struct tokens *t)
{
	jdoc_release(&t->root);
	jdoc_release(&t->config);
	free(t->v);
	free(t->by_text);
}

/* ---- the tokens ---- */

static bool starts(const struct token *t, const char *with)
{
	return bytes_begin(t->s, t->len, with);
}

static bool ends(const struct token *t, const char *with)
{
	return bytes_end(t->s, t->len, with);
}

static bool is(const struct token *t, const char *s)
{
	return bytes_are(t->s, t->len, s);
}

/* Some models have marker tokens that are not declared special. Same list as the converter's. */
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

/* The byte that a token "<0xAB>" stands for, or -1. */
static int byte_of(const struct token *t)
{
	if (t->len != 6 || memcmp(t->s, "<0x", 3) != 0 || t->s[5] != '>' || hex(t->s[3]) < 0 ||
	    hex(t->s[4]) < 0)
		return -1;
	return hex(t->s[3]) * 16 + hex(t->s[4]);
}

static int check_number(const struct tokens *t, int64_t number, struct ckpt_err *e)
{
	return number >= 0 && (uint64_t)number < t->n
		       ? 0
		       : err_set(e, EINVAL,
				 "tokenizer.json: the number of a token is not below %zu, the "
				 "vocab_size of config.json",
				 t->n);
}

static int read_vocab(struct tokens *t, struct ckpt_err *e)
{
	for (struct jiter i = jiter(t->vocab); jiter_next(&i);) {
		struct token x = {
			.s = i.key, .len = i.key_len, .type = TOKEN_NORMAL, .in_vocab = true
		};
		int64_t number = -1;

		(void)jval_int(i.v, &number);
		if (check_number(t, number, e))
			return -e->code;
		if (t->v[number].s)
			return err_set(e, EINVAL, "tokenizer.json: two tokens have the number %lld",
				       (long long)number);
		if (t->spm && byte_of(&x) >= 0)
			x.type = TOKEN_BYTE;
		t->v[number] = x;
	}
	return 0;
}

static int other_text(const struct token *x, int64_t number, const char *s, size_t len,
		      struct ckpt_err *e)
{
	char is[80], was[80];

	return err_set(e, EINVAL, "%s: token %lld is '%s' among those added, elsewhere '%s'",
		       x->added ? "tokenizer_config.json" : "tokenizer.json", (long long)number,
		       text_show(s, len, is, sizeof(is)),
		       text_show(x->s, x->len, was, sizeof(was)));
}

static int add_token(struct tokens *t, int64_t number, struct jval token, struct ckpt_err *e)
{
	struct jval s = jval_get(token, "content");
	bool declared = jval_is(jval_get(token, "special"), J_TRUE);
	struct token *x;

	if (check_number(t, number, e))
		return -e->code;
	x = &t->v[number];
	if (!jval_is(s, J_STRING))
		return tokens_wrong(e, "an added token has no 'content'");
	if (x->s && !bytes_equal(x->s, x->len, jval_str(s), jval_len(s)))
		return other_text(x, number, jval_str(s), jval_len(s), e);
	declared |= x->added && x->type == TOKEN_CONTROL;
	*x = (struct token){
		.s = jval_str(s), .len = jval_len(s), .in_vocab = x->in_vocab, .added = true
	};
	x->type = declared || looks_special(x) ? TOKEN_CONTROL : TOKEN_USER_DEFINED;
	return 0;
}

/* tokenizer.json has a list of them, tokenizer_config.json an object by number. */
static int read_added(struct tokens *t, struct ckpt_err *e)
{
	struct jiter list = jiter(jval_get(jdoc_root(&t->root), "added_tokens"));
	struct jiter more = jiter(jval_get(jdoc_root(&t->config), "added_tokens_decoder"));
	int rc = 0;

	while (!rc && jiter_next(&list)) {
		int64_t number = -1;

		(void)jval_int(jval_get(list.v, "id"), &number);
		rc = add_token(t, number, list.v, e);
	}
	while (!rc && more.keyed && jiter_next(&more)) {
		char *end;
		unsigned long number = strtoul(more.key, &end, 10);

		rc = *end || *more.key < '0' || *more.key > '9' || number > INT64_MAX
			     ? tokens_wrong(e, "an added token's number is invalid")
			     : add_token(t, (int64_t)number, more.v, e);
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

/* ---- no text twice ---- */

static int compare(const char *a, size_t an, const char *b, size_t bn)
{
	return an != bn ? (an < bn ? -1 : 1) : memcmp(a, b, an);
}

static int by_text(const void *ap, const void *bp, void *arg)
{
	const struct token *v = arg, *a = &v[*(const uint32_t *)ap], *b = &v[*(const uint32_t *)bp];

	return compare(a->s, a->len, b->s, b->len);
}

int64_t token_find(const struct tokens *t, const char *s, size_t len)
{
	const uint32_t *v = t->by_text;
	size_t at =
		PARTITION_POINT(i, t->n_known, compare(t->v[v[i]].s, t->v[v[i]].len, s, len) < 0);

	return at < t->n_known && bytes_equal(t->v[v[at]].s, t->v[v[at]].len, s, len)
		       ? (int64_t)v[at]
		       : -1;
}

static int twice(struct ckpt_err *e, const char *s, size_t len, size_t a, size_t b)
{
	char shown[80];

	return err_set(e, EINVAL, "tokenizer.json: tokens %zu and %zu would both be '%s'",
		       min_u64(a, b), (size_t)max_u64(a, b),
		       text_show(s, len, shown, sizeof(shown)));
}

/* User-defined tokens are written with plain blanks. */
static bool is_marked(const struct token *x)
{
	return x->type == TOKEN_USER_DEFINED && memmem(x->s, x->len, SPACE, strlen(SPACE));
}

/* What is written for a token, if not its text. A number without a token gets a name. */
static bool written(const struct tokens *t, size_t i, struct buf *ret)
{
	const struct token *x = &t->v[i];
	const char *s = x->s, *end = s ? s + x->len : NULL, *next;

	ret->len = 0;
	if (!s) {
		buf_printf(ret, "[PAD%zu]", i);
		return true;
	}
	if (!is_marked(x))
		return false;
	for (; (next = memmem(s, (size_t)(end - s), SPACE, strlen(SPACE)));
	     s = next + strlen(SPACE)) {
		buf_add(ret, s, (size_t)(next - s));
		buf_str(ret, " ");
	}
	buf_add(ret, s, (size_t)(end - s));
	return true;
}

/* By the text that is written: marks count as blanks. */
static int by_written(const void *ap, const void *bp, void *arg)
{
	const struct token *v = arg, *a = &v[*(const uint32_t *)ap], *b = &v[*(const uint32_t *)bp];
	const size_t mark = strlen(SPACE);
	const char *p = a->s, *q = b->s, *p_end = p + a->len, *q_end = q + b->len;

	while (p < p_end && q < q_end) {
		bool p_mark = (size_t)(p_end - p) >= mark && !memcmp(p, SPACE, mark);
		bool q_mark = (size_t)(q_end - q) >= mark && !memcmp(q, SPACE, mark);
		char c = p_mark ? ' ' : *p, d = q_mark ? ' ' : *q;

		if (c != d)
			return c < d ? -1 : 1;
		p += p_mark ? mark : 1;
		q += q_mark ? mark : 1;
	}
	return (p < p_end) - (q < q_end);
}

/* Tokens in order, and where two of them are the same. */
static int sort_tokens(struct tokens *t, uint32_t *v, size_t n,
		       int (*by)(const void *, const void *, void *), struct ckpt_err *e)
{
	qsort_r(v, n, sizeof(*v), by, t->v);
	for (size_t i = 1; i < n; i++)
		if (!by(&v[i - 1], &v[i], t->v))
			return twice(e, t->v[v[i]].s, t->v[v[i]].len, v[i - 1], v[i]);
	return 0;
}

/* llama.cpp finds tokens by their text. */
static int check_texts(struct tokens *t, struct ckpt_err *e)
{
	CLEANUP(buf_release) struct buf text = BUF_INIT(1 << 20);
	autofree uint32_t *marked = calloc(t->n, sizeof(*marked));
	size_t n = 0;
	int rc;

	t->by_text = calloc(t->n, sizeof(*t->by_text));
	if (!t->by_text || !marked)
		return err_nomem(e);
	for (uint32_t i = 0; i < t->n; i++) {
		if (t->v[i].s)
			t->by_text[t->n_known++] = i;
		if (t->v[i].s && is_marked(&t->v[i]))
			marked[n++] = i;
	}
	rc = sort_tokens(t, t->by_text, t->n_known, by_text, e);
	if (!rc)
		rc = sort_tokens(t, marked, n, by_written, e);
	for (size_t i = 0; !rc && i < t->n; i++) {
		int64_t other = written(t, i, &text) ? token_find(t, text.data, text.len) : -1;

		rc = buf_check(&text, e, "tokenizer.json: token %zu is too long", i);
		if (!rc && other >= 0)
			rc = twice(e, text.data, text.len, i, (size_t)other);
	}
	return rc;
}

/* ---- the keys ---- */

static void put_token_texts(const struct tokens *t, struct gguf_keys *k)
{
	CLEANUP(buf_release) struct buf text = BUF_INIT(1 << 20);

	gguf_array(k, "tokenizer.ggml.tokens", GGUF_STR, t->n);
	for (size_t i = 0; i < t->n; i++) {
		if (written(t, i, &text))
			gguf_item_str(k, text.data ? text.data : "", text.len);
		else
			gguf_item_str(k, t->v[i].s, t->v[i].len);
	}
	if (text.err)
		k->text.err = text.err;
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

/* "a b"; a blank inside a or b is U+0120, as in byte-level tokens. */
static void add_half(struct buf *b, const char *s, size_t len)
{
	for (size_t i = 0; i < len; i++)
		buf_add(b, s[i] == ' ' ? "\xc4\xa0" : s + i, s[i] == ' ' ? 2 : 1);
}

static int put_merges(const struct tokens *t, struct gguf_keys *k, struct ckpt_err *e)
{
	CLEANUP(buf_release) struct buf b = BUF_INIT(1 << 20);
	struct merge_texts m;

	gguf_array(k, "tokenizer.ggml.merges", GGUF_STR, jval_size(t->merges));
	for (struct jiter i = jiter(t->merges); jiter_next(&i);) {
		(void)merge_texts(i.v, &m); /* read_merge() has seen that it is one */
		b.len = 0;
		add_half(&b, m.s[0], m.len[0]);
		buf_str(&b, " ");
		add_half(&b, m.s[1], m.len[1]);
		gguf_item_str(k, b.data, b.len);
	}
	return buf_check(&b, e, "tokenizer.json: a merge is too long");
}

/* ---- chat templates ---- */

static bool is_word(char c)
{
	return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

enum { MAX_TEMPLATES = 100 };

/* Several templates, by name; "default" is the main one. */
static int put_named_templates(struct jval list, struct gguf_keys *k, struct ckpt_err *e)
{
	static const char main[] = "tokenizer.chat_template";
	char keys[MAX_TEMPLATES][100];
	size_t n = 0;

	for (struct jiter i = jiter(list); jiter_next(&i);) {
		struct jval s = jval_get(i.v, "template");
		const char *name = jval_str(jval_get(i.v, "name"));
		char *key = keys[n];

		if (!name || !*name || !jval_is(s, J_STRING))
			continue;
		(void)snprintf(key, sizeof(keys[n]), "%s.%.60s", main, name);
		for (char *p = key + sizeof(main); *p; p++)
			*p = is_word(*p) ? *p : '_';
		if (!strcmp(name, "default"))
			key[strlen(main)] = '\0';
		for (size_t other = 0; other < n; other++)
			if (!strcmp(keys[other], key))
				return err_set(e, EINVAL, "two chat templates would be called '%s'",
					       key);
		if (++n == MAX_TEMPLATES)
			return err_set(e, EFBIG, "%d chat templates or more", MAX_TEMPLATES);
		gguf_str(k, key, jval_str(s), jval_len(s));
	}
	return 0;
}

static int put_template(const struct tokens *t, const struct gguf_token_files *f,
			struct gguf_keys *k, struct ckpt_err *e)
{
	CLEANUP(jdoc_release) struct jdoc d = { 0 };
	struct jval s = jval_get(jdoc_root(&t->config), "chat_template");
	int rc;

	if (!s.d && f->template.text) {
		gguf_str(k, "tokenizer.chat_template", f->template.text, f->template.len);
		return 0;
	}
	if (!s.d && f->template_config.text) {
		rc = gguf_json("chat_template.json", f->template_config.text,
			       f->template_config.len, &d, e);
		if (rc)
			return rc;
		s = jval_get(jdoc_root(&d), "chat_template");
	}
	if (jval_is(s, J_STRING))
		gguf_str(k, "tokenizer.chat_template", jval_str(s), jval_len(s));
	else if (jval_is(s, J_ARRAY))
		return put_named_templates(s, k, e);
	return 0;
}

/* ---- all of it ---- */

static int open_tokens(struct tokens *t, const struct gguf_token_files *f,
		       const struct gguf_config *c, struct ckpt_err *e)
{
	int rc = gguf_json_in("tokenizer.json", f->tokenizer, f->tokenizer_len, &t->root, e);

	if (!rc && f->config.text)
		rc = gguf_json("tokenizer_config.json", f->config.text, f->config.len, &t->config,
			       e);
	if (rc)
		return rc;
	t->model = jval_get(jdoc_root(&t->root), "model");
	t->vocab = jval_get(t->model, "vocab");
	t->merges = jval_get(t->model, "merges");
	rc = tokens_split(t, e);
	if (rc)
		return rc;
	if (!jval_is(t->vocab, J_OBJECT) || !jval_is(t->merges, J_ARRAY))
		return tokens_wrong(e, "no 'vocab' or no 'merges'");
	if (!jval_size(t->vocab))
		return tokens_wrong(e, "there is no token in 'vocab'");
	if (c->a.vocab > GGUF_MAX_TOKENS)
		return err_set(e, EFBIG, "config.json: a vocabulary of more than %u tokens",
			       GGUF_MAX_TOKENS);
	t->n = c->a.vocab;
	t->v = calloc(t->n, sizeof(*t->v));
	if (!t->v)
		return err_nomem(e);
	rc = read_vocab(t, e);
	if (!rc)
		rc = read_added(t, e);
	if (!rc)
		rc = check_texts(t, e);
	if (!rc && t->spm)
		rc = check_bytes(t, e);
	return rc;
}

int gguf_tokens_put(const struct gguf_token_files *f, const struct gguf_config *c,
		    struct gguf_keys *k, struct ckpt_err *e)
{
	CLEANUP(tokens_release) struct tokens t = { 0 };
	int rc = open_tokens(&t, f, c, e);

	if (!rc)
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
