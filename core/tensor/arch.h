/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arch - which tensors a model has: what a config.json asks for, by name and shape.
 *
 * One table of weights serves all who need to know: the verdict on hf/ (arch_check.h) and gguf/, which
 * places the same weights under llama.cpp's names. A new family is a line among the families of arch.c,
 * a bit in the rows of arch_weights.c that it shares with others, and rows for what it has of its own.
 *
 * Where a file of an older transformers leaves something out, the default of transformers' class
 * counts; where the default has changed over time it must be there.
 *
 * Sources: configuration_*.py and modeling_*.py of transformers 5, whose save_pretrained is asked for
 * each family by tests/torch/arch.sh.
 *
 * Threads: pure.
 */
#ifndef TENSOR_ARCH_H
#define TENSOR_ARCH_H

#include "base/json.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt_err;
struct config_in;

/* Kinds of models, as bits: rows say which ones they are for. */
enum arch_kind {
	KIND_LLAMA = 1 << 0, /* and Mistral, which has the same weights */
	KIND_MIXTRAL = 1 << 1,
	KIND_QWEN2 = 1 << 2,
	KIND_QWEN3 = 1 << 3,
	KIND_QWEN2_MOE = 1 << 4,
	KIND_QWEN3_MOE = 1 << 5,
	KIND_GPT2 = 1 << 6,
	KIND_GEMMA = 1 << 7,
	KIND_GEMMA2 = 1 << 8,
	KIND_GEMMA3 = 1 << 9,
	KIND_PHI3 = 1 << 10,
	KIND_OLMO2 = 1 << 11,
	KIND_DEEPSEEK_V3 = 1 << 12,
	KIND_GPT_OSS = 1 << 13,
	KIND_EXPERTS =
		KIND_MIXTRAL | KIND_QWEN2_MOE | KIND_QWEN3_MOE | KIND_DEEPSEEK_V3 | KIND_GPT_OSS,
};

struct arch_family {
	const char *class, *type; /* of architectures and model_type */
	const char *gguf;	  /* llama.cpp's name of it; NULL: gguf/ does not know it */
	enum arch_kind kind;
	double theta; /* of rotary embeddings where the file has none */
	bool tied;    /* the same of tie_word_embeddings */
};
/* The family that config.json names; NULL, and r->rc, where it is not known. */
const struct arch_family *arch_family(struct config_in *r);

struct arch {
	const struct arch_family *family;
	enum arch_kind kind;
	bool tied; /* the head is the embeddings */
	bool attention_bias, mlp_bias;
	uint64_t layers, hidden, heads, kv_heads, head_dim, vocab, positions;
	uint64_t ffn, experts, expert_ffn, shared_ffn;	     /* 0: it has none */
	uint64_t q_lora, kv_lora, nope_dim, rope_dim, v_dim; /* of latent attention */
	/* Layers that have a plain MLP though the model has experts, each a byte; NULL: those below
	 * first_experts alone. */
	uint8_t *dense;
	uint64_t first_experts;
};
#define ARCH_MAX_LAYERS 65536

/* *ret must be released in any case. */
int arch_read(struct config_in *r, struct arch *ret);
void arch_release(struct arch *a);

/* ---- weights ---- */

enum arch_scope {
	ARCH_ONCE,   /* below the prefix: "model." or "transformer." */
	ARCH_TOP,    /* on its own: the head */
	ARCH_LAYER,  /* below the prefix and "layers.N." */
	ARCH_EXPERT, /* the same, of each expert: {} in its name is the number */
};

/* Two ways to have the same weights: a model has those of one or the other. */
enum arch_style { ARCH_ALWAYS, ARCH_SPLIT, ARCH_FUSED, ARCH_SPLIT_ROUTER, ARCH_FUSED_ROUTER };

/* What llama.cpp's file needs besides a copy; of an expert's weight, which one it is. */
enum arch_turn { ARCH_PLAIN, ARCH_QUERIES, ARCH_KEYS, ARCH_TURNED, ARCH_GATE, ARCH_UP, ARCH_DOWN };

struct arch_weight {
	const char *name;
	const char
		*gguf; /* below "blk.N." where it is of a layer; NULL: gguf/ has no place for it */
	uint32_t kinds;
	uint8_t scope, when, style;
	uint8_t n_dims, shape[3]; /* as arch_shape has them */
	uint8_t turn;
	bool precise; /* float32 in gguf/ though it is a matrix */
};
#define ARCH_MAX_WEIGHTS 128
extern const struct arch_weight arch_weights[];
extern const size_t arch_n_weights;

/* Does the model have this weight, in that layer? */
enum arch_need { ARCH_NONE, ARCH_MAY, ARCH_MUST };
enum arch_need arch_needs(const struct arch *a, const struct arch_weight *w, uint64_t layer);
bool arch_has_experts(const struct arch *a, uint64_t layer);
/* w->n_dims numbers. */
void arch_shape(const struct arch *a, const struct arch_weight *w, uint64_t ret[static 3]);

/* "model." or "transformer."; "layers." or "h.". */
const char *arch_prefix(const struct arch *a);
const char *arch_layers(const struct arch *a);
/* The weight whose name tells that the prefix is there. */
const char *arch_embeddings(const struct arch *a);
/* The name, for weights of a layer or an expert with their numbers, into out; cut where it is longer. */
#define ARCH_NAME_CAP 160
void arch_name(const struct arch *a, const struct arch_weight *w, const char *prefix,
	       uint64_t layer, uint64_t expert, char out[static ARCH_NAME_CAP]);
/* What training leaves behind and nobody computes with: masks, frequencies. */
bool arch_ignores(const struct arch *a, const char *name, size_t len);

#endif
