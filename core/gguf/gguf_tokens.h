/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gguf_tokens - the tokenizer of a Hugging Face directory as keys of a GGUF.
 *
 * Two kinds are known: byte-level BPE ("gpt2") and SentencePiece-like BPE with byte fallback
 * ("llama"). llama.cpp has the ways to split text built in, under names; which one it is follows
 * from tokenizer.json alone (the converter of llama.cpp hashes what the tokenizer makes of a fixed
 * text, and so knows only vocabularies that somebody told it of):
 *
 *	llama-bpe, smaug-bpe    the expression of Llama 3; with and without ignore_merges
 *	qwen2                   that of Qwen 2, one digit at a time
 *	gpt-2                   ByteLevel's own
 *
 * llama.cpp has no merges in the other kind: it joins any two neighbours whose text is a token,
 * that of the highest score first. The scores here are the merges' order, and it is checked for
 * each token that joining its characters like that ends with a pair that the merges have, too. So
 * both ways come to the same.
 *
 * What differs from the converter: tokens' scores (-1000 each there), the unknown token's type, and
 * whether to begin with the first token of a text is always said.
 *
 * Sources: conversion/base.py and gguf-py/gguf/vocab.py of llama.cpp, src/llama-vocab.cpp;
 * tokenizers 0.23. Threads: pure.
 */
#ifndef GGUF_GGUF_TOKENS_H
#define GGUF_GGUF_TOKENS_H

#include <stddef.h>

struct ckpt_err;
struct gguf_config;
struct gguf_keys;

#define GGUF_MAX_TOKENS (1u << 20)

/* Contents of files; text is NULL where there is none. */
struct gguf_file {
	const char *text;
	size_t len;
};
struct gguf_token_files {
	char *tokenizer; /* tokenizer.json, which there must be, is changed, as jdoc_parse does */
	size_t tokenizer_len;
	struct gguf_file config;	  /* tokenizer_config.json */
	struct gguf_file template;	  /* chat_template.jinja */
	struct gguf_file template_config; /* chat_template.json */
};

/* ERR_UNSUPPORTED: not a tokenizer that is known, and why; EINVAL: the files are wrong. */
int gguf_tokens_put(const struct gguf_token_files *f, const struct gguf_config *c,
		    struct gguf_keys *k, struct ckpt_err *e);

#endif
