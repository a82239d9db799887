/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gguf_tokens - converts the tokenizer of a Hugging Face directory to GGUF keys.
 *
 * Two kinds are known: byte-level BPE ("gpt2") and SentencePiece-like BPE with byte fallback
 * ("llama"). llama.cpp has several ways to split text built in, under names; the name follows from
 * tokenizer.json alone (llama.cpp's converter hashes the tokenization of a fixed text, and so
 * recognises only vocabularies on its list):
 *
 *	llama-bpe, smaug-bpe    the expression of Llama 3; with and without ignore_merges
 *	qwen2, qwen35           those of Qwen 2 and 3.5, one digit at a time
 *	gpt-4o                  that of gpt-oss and Phi-4-mini
 *	tekken                  Mistral's
 *	deepseek-v3             its three expressions
 *	smollm                  single digits, then ByteLevel's own
 *	gpt-2                   ByteLevel's own
 *
 * Where one side ignores merges for whole words and the other does not, every token must be what
 * merges make of its characters. llama.cpp has replaced the expressions of gpt-4o and tekken by
 * some that take letters other than a to z for both upper and lower case, so it may split words
 * with those differently; it has nothing better for these vocabularies.
 *
 * For the other kind llama.cpp has no merges: it joins any two neighbours whose text is a token,
 * the one with the highest score first. The scores here are the merges' order, and for each token
 * it is checked that joining its characters that way ends with a pair that is also a merge. So both
 * methods give the same tokens.
 *
 * Differences from the converter: the scores of tokens (there -1000 each), the unknown token's
 * type, and that add_bos_token is always written.
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

/* Contents of files; text is NULL if there is none. */
struct gguf_file {
	const char *text;
	size_t len;
};
struct gguf_token_files {
	char *tokenizer; /* tokenizer.json, required; modified, as by jdoc_parse */
	size_t tokenizer_len;
	struct gguf_file config;	  /* tokenizer_config.json */
	struct gguf_file template;	  /* chat_template.jinja */
	struct gguf_file template_config; /* chat_template.json */
};

/* ERR_UNSUPPORTED: not a known tokenizer, and why; EINVAL: the files are wrong. */
int gguf_tokens_put(const struct gguf_token_files *f, const struct gguf_config *c,
		    struct gguf_keys *k, struct ckpt_err *e);

#endif
