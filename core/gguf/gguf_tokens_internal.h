/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gguf_tokens_internal - a tokenizer during the conversion to keys.
 *
 * gguf_tokens.c reads tokens and determines their types, gguf_split.c the kind of tokenizer,
 * gguf_special.c which tokens begin and end a text; gguf_scores.c orders the merges. Private to
 * core/gguf.
 */
#ifndef GGUF_GGUF_TOKENS_INTERNAL_H
#define GGUF_GGUF_TOKENS_INTERNAL_H

#include "gguf/gguf_tokens.h"

#include "base/json.h"

#include <stdbool.h>
#include <stdint.h>

/* llama.cpp's token types. */
enum token_type {
	TOKEN_NORMAL = 1,
	TOKEN_UNKNOWN = 2,
	TOKEN_CONTROL = 3,
	TOKEN_USER_DEFINED = 4,
	TOKEN_UNUSED = 5,
	TOKEN_BYTE = 6
};

struct token {
	const char *s; /* len bytes in one of the JSON files; NULL: number not used */
	size_t len;
	uint8_t type;
	bool in_vocab, added; /* in the vocabulary; in the list of added tokens */
	float score;
};

struct tokens {
	struct jdoc root, config; /* tokenizer.json; tokenizer_config.json or nothing */
	struct jval model, vocab, merges;
	struct token *v;
	size_t n;
	uint32_t *by_text; /* numbers of the n_known tokens that have a text, by text */
	size_t n_known;
	bool spm;	  /* byte fallback, else bytes as characters */
	bool space_first; /* spm: a space is prepended to a text */
	bool nfc;
	bool prove_whole; /* only one side ignores merges for whole words */
	const char *pre;  /* how text is split: llama.cpp's name */
};

/* Reads what tokenizer.json has besides tokens: spm, space_first, nfc, pre. */
int tokens_split(struct tokens *t, struct ckpt_err *e);
/* Checks that both sides interpret the merges alike; for spm, then scores all tokens. */
int tokens_score(struct tokens *t, struct ckpt_err *e);
/* The two texts of a merge, in either form; false: it does not have two. */
struct merge_texts {
	const char *s[2];
	size_t len[2];
};
bool merge_texts(struct jval merge, struct merge_texts *ret);
/* The keys of special tokens. */
int tokens_put_special(struct tokens *t, const struct gguf_config *c, struct gguf_keys *k,
		       struct ckpt_err *e);
/* The number of a token, or -1. */
int64_t token_find(const struct tokens *t, const char *s, size_t len);

/* "tokenizer.json: " and what is wrong. */
int tokens_wrong(struct ckpt_err *e, const char *what);
int tokens_unknown(struct ckpt_err *e, const char *what);

#endif
