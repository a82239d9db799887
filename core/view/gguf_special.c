/* SPDX-License-Identifier: Apache-2.0 */
/* Which tokens begin and end a text. */
#include "base/checked.h"
#include "base/err.h"
#include "view/gguf_config.h"
#include "view/gguf_tokens_internal.h"
#include "view/gguf_write.h"

#include <stdio.h>
#include <string.h>

enum { BOS, EOS, UNK, SEP, PAD, MASK, N_SPECIAL };

static const struct {
	const char *name, *key;
} special[N_SPECIAL] = {
	[BOS] = { "bos_token", "tokenizer.ggml.bos_token_id" },
	[EOS] = { "eos_token", "tokenizer.ggml.eos_token_id" },
	[UNK] = { "unk_token", "tokenizer.ggml.unknown_token_id" },
	[SEP] = { "sep_token", "tokenizer.ggml.seperator_token_id" },
	[PAD] = { "pad_token", "tokenizer.ggml.padding_token_id" },
	[MASK] = { "mask_token", "tokenizer.ggml.mask_token_id" },
};

struct ends {
	int64_t id[N_SPECIAL]; /* -1: there is none */
	bool add[2];	       /* BOS, EOS: every text has it */
};

/* "name": a string, or an object that has one. */
static const json_t *token_text(const json_t *config, const char *name)
{
	const json_t *v = json_object_get(config, name);

	return json_is_object(v) ? json_object_get(v, "content") : v;
}

static int find_special(const struct tokens *t, const struct gguf_config *c, struct ends *x,
			struct ckpt_err *e)
{
	for (int i = 0; i < N_SPECIAL; i++) {
		const json_t *s = token_text(t->config, special[i].name), *id;
		char name[32];

		x->id[i] = -1;
		if (json_is_string(s)) {
			x->id[i] = token_find(t, json_string_value(s), json_string_length(s));
			if (x->id[i] < 0)
				return err_set(e, EINVAL,
					       "tokenizer_config.json: the %s '%.60s' is not in "
					       "tokenizer.json",
					       special[i].name, json_string_value(s));
			if (t->v[x->id[i]].type == TOKEN_NORMAL)
				t->v[x->id[i]].type = TOKEN_CONTROL;
			continue;
		}
		(void)snprintf(name, sizeof(name), "%s_id", special[i].name);
		id = json_object_get(c->root, name);
		if (json_is_integer(id) && json_integer_value(id) >= 0 &&
		    (uint64_t)json_integer_value(id) < t->n)
			x->id[i] = json_integer_value(id);
	}
	return 0;
}

/* One step of a template that is a token: it must be the one at that end. */
static int take_end(const struct tokens *t, const json_t *step, int which, struct ends *x,
		    struct ckpt_err *e)
{
	const json_t *id = json_object_get(json_object_get(step, "SpecialToken"), "id");
	int64_t found = json_is_string(id)
				? token_find(t, json_string_value(id), json_string_length(id))
				: -1;

	if (found < 0 || (x->id[which] >= 0 && x->id[which] != found))
		return tokens_unknown(e, "a post-processor that adds other tokens than "
					 "bos_token and eos_token");
	x->id[which] = found;
	x->add[which] = true;
	return 0;
}

/* [bos] text [eos] */
static int read_template(const struct tokens *t, const json_t *single, struct ends *x,
			 struct ckpt_err *e)
{
	size_t n = json_array_size(single), text = 0;
	int rc = 0;

	while (text < n && !json_object_get(json_array_get(single, text), "Sequence"))
		text++;
	if (text >= n || text > 1 || n - text > 2)
		return tokens_unknown(e, "the post-processor");
	if (text)
		rc = take_end(t, json_array_get(single, 0), BOS, x, e);
	if (!rc && text + 1 < n)
		rc = take_end(t, json_array_get(single, n - 1), EOS, x, e);
	return rc;
}

static void from_config(const struct tokens *t, struct ends *x)
{
	x->add[BOS] = json_is_true(json_object_get(t->config, "add_bos_token"));
	x->add[EOS] = json_is_true(json_object_get(t->config, "add_eos_token"));
}

/* A single processor. The flags of the configuration count where none says anything. */
static int read_processor(const struct tokens *t, const json_t *p, struct ends *x,
			  struct ckpt_err *e)
{
	const char *type = json_string_value(json_object_get(p, "type"));
	const json_t *single = json_object_get(p, "single");

	if (type && !strcmp(type, "ByteLevel")) {
		x->add[BOS] = x->add[EOS] = false;
		return 0;
	}
	if (!type || strcmp(type, "TemplateProcessing") != 0)
		return tokens_unknown(e, "the post-processor");
	return json_array_size(single) > 1 ? read_template(t, single, x, e) : 0;
}

static int read_ends(const struct tokens *t, struct ends *x, struct ckpt_err *e)
{
	const json_t *p = json_object_get(t->root, "post_processor");
	const json_t *steps = json_object_get(p, "processors");
	int rc = 0;

	from_config(t, x);
	if (!p || json_is_null(p))
		return 0;
	if (!steps)
		return read_processor(t, p, x, e);
	for (size_t i = 0; !rc && i < json_array_size(steps); i++)
		rc = read_processor(t, json_array_get(steps, i), x, e);
	return rc;
}

int tokens_put_special(struct tokens *t, const struct gguf_config *c, struct gguf_keys *k,
		       struct ckpt_err *e)
{
	struct ends x = { 0 };
	int rc = find_special(t, c, &x, e);

	if (!rc)
		rc = read_ends(t, &x, e);
	if (!rc && ((x.add[BOS] && x.id[BOS] < 0) || (x.add[EOS] && x.id[EOS] < 0)))
		rc = tokens_wrong(e, "texts begin or end with a token that there is none of");
	if (rc)
		return rc;
	for (int i = 0; i < N_SPECIAL; i++) {
		if (x.id[i] < 0)
			continue;
		gguf_u32(k, special[i].key, (uint32_t)x.id[i]);
		if (i == UNK && t->spm)
			t->v[x.id[i]].type = TOKEN_UNKNOWN;
	}
	gguf_bool(k, "tokenizer.ggml.add_bos_token", x.add[BOS]);
	gguf_bool(k, "tokenizer.ggml.add_eos_token", x.add[EOS]);
	return 0;
}
