/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gguf_tokens_internal - a tokenizer while its keys are made.
 *
 * gguf_tokens.c reads tokens and says what they are, gguf_split.c what kind of tokenizer it is,
 * gguf_special.c which tokens begin and end a text, gguf_scores.c puts merges in order.
 * Private to core/view.
 */
#ifndef VIEW_GGUF_TOKENS_INTERNAL_H
#define VIEW_GGUF_TOKENS_INTERNAL_H

#include "view/gguf_tokens.h"

#include <jansson.h>
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
	const char *s; /* len bytes, of one of the JSON files; NULL: nobody has this number */
	size_t len;
	uint8_t type;
	bool added; /* not by the vocabulary alone */
	float score;
};

struct tokens {
	json_t *root, *config; /* tokenizer.json; tokenizer_config.json or NULL */
	json_t *vocab;
	const json_t *model, *merges;
	struct token *v;
	size_t n;
	bool spm;	  /* byte fallback, else bytes as characters */
	bool space_first; /* spm: a space is put in front of a text */
	bool nfc;
	const char *pre; /* how text is split: llama.cpp's name */
};

/* What is in tokenizer.json besides tokens: spm, space_first, nfc, pre. */
int tokens_split(struct tokens *t, struct ckpt_err *e);
/* Scores of all tokens; spm. */
int tokens_score(struct tokens *t, struct ckpt_err *e);
/* The keys of special tokens. */
int tokens_put_special(struct tokens *t, const struct gguf_config *c, struct gguf_keys *k,
		       struct ckpt_err *e);
/* The number of a token, or -1. */
int64_t token_find(const struct tokens *t, const char *s, size_t len);

/* "tokenizer.json: " and what is wrong. */
int tokens_wrong(struct ckpt_err *e, const char *what);
int tokens_unknown(struct ckpt_err *e, const char *what);

#endif
