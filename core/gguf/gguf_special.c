/* SPDX-License-Identifier: Apache-2.0 */
/* Which tokens begin and end a text. */
#include "base/checked.h"
#include "base/err.h"
#include "gguf/gguf_config.h"
#include "gguf/gguf_tokens_internal.h"
#include "gguf/gguf_write.h"

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
static struct jval token_text(struct jval config, const char *name)
{
	struct jval v = jval_get(config, name);

	return jval_is(v, J_OBJECT) ? jval_get(v, "content") : v;
}

static int find_special(const struct tokens *t, const struct gguf_config *c, struct ends *x,
			struct ckpt_err *e)
{
	for (int i = 0; i < N_SPECIAL; i++) {
		struct jval s = token_text(jdoc_root(&t->config), special[i].name);
		struct jval given;
		char name[32];
		int64_t id;

		x->id[i] = -1;
		if (jval_is(s, J_STRING)) {
			x->id[i] = token_find(t, jval_str(s), jval_len(s));
			if (x->id[i] < 0)
				return err_set(e, EINVAL,
					       "tokenizer_config.json: the %s '%.60s' is not in "
					       "tokenizer.json",
					       special[i].name, jval_str(s));
			if (t->v[x->id[i]].type == TOKEN_NORMAL)
				t->v[x->id[i]].type = TOKEN_CONTROL;
			continue;
		}
		(void)snprintf(name, sizeof(name), "%s_id", special[i].name);
		given = jval_given(jval_get(jdoc_root(&c->json), name));
		if (!given.d)
			given = jval_get(c->text, name);
		if (jval_int(given, &id) && id >= 0 && (uint64_t)id < t->n)
			x->id[i] = id;
	}
	return 0;
}

/* One step of a template that is a token: it must be the one at that end. */
static int take_end(const struct tokens *t, struct jval step, int which, struct ends *x,
		    struct ckpt_err *e)
{
	struct jval id = jval_get(jval_get(step, "SpecialToken"), "id");
	int64_t found = jval_is(id, J_STRING) ? token_find(t, jval_str(id), jval_len(id)) : -1;

	if (found < 0 || (x->id[which] >= 0 && x->id[which] != found))
		return tokens_unknown(
			e, "a post-processor that adds tokens other than bos_token and eos_token");
	x->id[which] = found;
	x->add[which] = true;
	return 0;
}

/* [bos] text [eos] */
static int read_template(const struct tokens *t, struct jval single, struct ends *x,
			 struct ckpt_err *e)
{
	size_t n = jval_size(single), text = 0;
	int rc = 0;

	while (text < n && text < 2 && !jval_get(jval_at(single, text), "Sequence").d)
		text++;
	if (text >= n || text > 1 || n - text > 2)
		return tokens_unknown(e, "the post-processor");
	if (text)
		rc = take_end(t, jval_at(single, 0), BOS, x, e);
	if (!rc && text + 1 < n)
		rc = take_end(t, jval_at(single, n - 1), EOS, x, e);
	return rc;
}

static void from_config(const struct tokens *t, struct ends *x)
{
	x->add[BOS] = jval_is(jval_get(jdoc_root(&t->config), "add_bos_token"), J_TRUE);
	x->add[EOS] = jval_is(jval_get(jdoc_root(&t->config), "add_eos_token"), J_TRUE);
}

/* A single processor. Where none says anything, the flags of the configuration count. */
static int read_processor(const struct tokens *t, struct jval p, struct ends *x, struct ckpt_err *e)
{
	const char *type = jval_str(jval_get(p, "type"));
	struct jval single = jval_get(p, "single");

	if (type && !strcmp(type, "ByteLevel")) {
		x->add[BOS] = x->add[EOS] = false;
		return 0;
	}
	if (!type || strcmp(type, "TemplateProcessing") != 0)
		return tokens_unknown(e, "the post-processor");
	return jval_size(single) > 1 ? read_template(t, single, x, e) : 0;
}

static int read_ends(const struct tokens *t, struct ends *x, struct ckpt_err *e)
{
	struct jval p = jval_get(jdoc_root(&t->root), "post_processor");
	struct jval steps = jval_get(p, "processors");
	struct jiter i = jiter(steps);
	int rc = 0;

	from_config(t, x);
	if (jval_is_null(p))
		return 0;
	if (!steps.d)
		return read_processor(t, p, x, e);
	while (!rc && jiter_next(&i))
		rc = read_processor(t, i.v, x, e);
	return rc;
}

/* GLM's tokens for turns of a chat: the converter names those that no other key does. */
static void put_turns(const struct tokens *t, const struct gguf_config *c, struct ends *x,
		      struct gguf_keys *k)
{
	static const char end[] = "<|endoftext|>", user[] = "<|user|>", mask[] = "[gMASK]",
			  watch[] = "<|observation|>";
	bool moe = c->a.kind == KIND_GLM4_MOE;
	int64_t id;

	if (!(c->a.kind & (KIND_GLM4 | KIND_GLM4_MOE)))
		return;
	if (x->id[BOS] < 0)
		x->id[BOS] =
			moe ? token_find(t, mask, strlen(mask)) : token_find(t, end, strlen(end));
	if (x->id[EOS] < 0 && !moe)
		x->id[EOS] = token_find(t, end, strlen(end));
	if (x->id[UNK] < 0)
		x->id[UNK] = token_find(t, end, strlen(end));
	id = token_find(t, user, strlen(user));
	if (id >= 0)
		gguf_u32(k, "tokenizer.ggml.eot_token_id", (uint32_t)id);
	id = moe ? token_find(t, watch, strlen(watch)) : -1;
	if (id >= 0)
		gguf_u32(k, "tokenizer.ggml.eom_token_id", (uint32_t)id);
}

int tokens_put_special(struct tokens *t, const struct gguf_config *c, struct gguf_keys *k,
		       struct ckpt_err *e)
{
	struct ends x = { 0 };
	int rc = find_special(t, c, &x, e);

	if (!rc)
		rc = read_ends(t, &x, e);
	if (!rc && ((x.add[BOS] && x.id[BOS] < 0) || (x.add[EOS] && x.id[EOS] < 0)))
		rc = tokens_wrong(e, "texts begin or end with a token that does not exist");
	if (rc)
		return rc;
	put_turns(t, c, &x, k);
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
