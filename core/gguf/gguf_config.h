/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gguf_config - the model that a config.json describes, in llama.cpp's terms.
 *
 * Only models that llama.cpp is known to compute as transformers does are accepted; otherwise
 * reading fails with ERR_UNSUPPORTED (or EINVAL: the file contradicts itself) and a sentence that
 * says why. A setting missing from a file of an older transformers has the default of transformers'
 * class; if that default has changed over time, the setting is required.
 *
 * Sources: conversion/ and src/models/ of llama.cpp; configuration_*.py and modeling_*.py of
 * transformers 5.
 *
 * Threads: pure.
 */
#ifndef GGUF_GGUF_CONFIG_H
#define GGUF_GGUF_CONFIG_H

#include "base/json.h"
#include "tensor/arch.h"

#include <stddef.h>
#include <stdint.h>

struct ckpt_err;
struct gguf_keys;

#define GGUF_MAX_ROPE 1024 /* factors */

/* A tensor that comes from the configuration: what the frequencies of rotary embeddings are divided
 * by. */
struct gguf_factors {
	const char *name;
	size_t n; /* 0: there is none */
	float v[GGUF_MAX_ROPE];
};

struct gguf_config {
	struct arch a;
	const char *arch; /* llama.cpp's name for it */
	struct jdoc json; /* all of config.json */
	struct jval text; /* the part about the model: all of it, or its text_config */
	uint64_t experts_used, groups, groups_used;
	double experts_scale;
	bool experts_norm;
	double eps, theta;
	uint64_t window;		/* positions that sliding-window layers see; or 0 */
	double local_theta;		/* the rotary embeddings of these layers */
	double attention_cap, head_cap; /* soft caps of logits; 0: none */
	uint64_t rotated;		/* elements of a head; 0: llama.cpp derives it */
	/* The first tensors of the GGUF. Those of "llama3"; or of "longrope", long and short. */
	struct gguf_factors factors[2];
};

/* *ret must be released in any case. */
int gguf_config_read(const char *text, size_t len, struct gguf_config *ret, struct ckpt_err *e);
void gguf_config_release(struct gguf_config *c);
/* The keys that come from it, except general.*. */
void gguf_config_put(const struct gguf_config *c, struct gguf_keys *k);
/* general.sampling.*, from a generation_config.json. */
int gguf_sampling_put(const char *text, size_t len, struct gguf_keys *k, struct ckpt_err *e);

/* Parses len bytes as a JSON object; errors name `file`. */
int gguf_json(const char *file, const char *text, size_t len, struct jdoc *ret, struct ckpt_err *e);
/* The same in place, like jdoc_parse. */
int gguf_json_in(const char *file, char *text, size_t len, struct jdoc *ret, struct ckpt_err *e);

#endif
