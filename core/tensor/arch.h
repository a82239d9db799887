/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arch - which tensors a model has, by name and shape, according to its config.json.
 *
 * One table of weights serves both users: the verdict on hf/ (arch_check.h), and gguf/, which
 * places the same weights under llama.cpp's names. To add a family, add a line to the families of
 * arch.c, a bit to the rows of arch_weights.c that it shares with others, and rows for weights of
 * its own.
 *
 * If a file of an older transformers omits a value, the default of transformers' class applies; if
 * the default has changed over time, the value is required.
 *
 * A model that also sees pictures is one of these families and a vision tower, which is not
 * described here: the family's numbers are in text_config, and its tensors have longer names.
 *
 * Sources: configuration_*.py, modeling_*.py and conversion_mapping.py of transformers 5;
 * tests/torch/arch.sh compares each family with the output of its save_pretrained.
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

/* Families of models, as bits: rows list those they apply to. */
enum arch_kind {
	KIND_LLAMA = 1 << 0, /* includes Mistral, which has the same weights */
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
	KIND_DEEPSEEK_V2 = 1 << 14,
	KIND_GLM4 = 1 << 15,
	KIND_GLM4_MOE = 1 << 16,
	KIND_GRANITE = 1 << 17,
	KIND_SMOLLM3 = 1 << 18,
	KIND_QWEN3_NEXT = 1 << 19,
	KIND_QWEN35 = 1 << 20,
	KIND_QWEN35_MOE = 1 << 21,
	KIND_GRANITE_MOE = 1 << 22,
	KIND_COHERE = 1 << 23,
	/* The weights of Llama. */
	KIND_LLAMAS = KIND_LLAMA | KIND_GRANITE | KIND_SMOLLM3,
	/* Low-rank queries and values. */
	KIND_LATENT = KIND_DEEPSEEK_V2 | KIND_DEEPSEEK_V3,
	/* Experts and shared experts, after some layers without. */
	KIND_ROUTED = KIND_LATENT | KIND_GLM4_MOE,
	/* Most layers have linear attention. */
	KIND_LINEAR = KIND_QWEN3_NEXT | KIND_QWEN35 | KIND_QWEN35_MOE,
	/* A shared expert for all tokens, with a gate of its own. */
	KIND_GATED_SHARED = KIND_QWEN2_MOE | KIND_QWEN3_NEXT | KIND_QWEN35_MOE,
	/* Experts as wide as `ffn`. */
	KIND_WIDE_EXPERTS = KIND_MIXTRAL | KIND_GPT_OSS | KIND_GRANITE_MOE,
	KIND_EXPERTS = KIND_WIDE_EXPERTS | KIND_GATED_SHARED | KIND_QWEN3_MOE | KIND_ROUTED,
};

struct arch_family {
	const char *class, *type; /* the values of architectures and model_type */
	const char *gguf;	  /* llama.cpp's name for it; NULL: gguf/ does not support it */
	enum arch_kind kind;
	double theta; /* default theta of rotary embeddings */
	bool tied;    /* default of tie_word_embeddings */
};

/* A model with a text model in it. */
struct arch_whole {
	const char *class, *type; /* the values of architectures and model_type */
	const char *text;	  /* model_type of its text_config, also if it has none */
	const char *family;	  /* model_type of the family */
	const char *gguf;	  /* llama.cpp's name for it; NULL: the family's */
	bool tied;		  /* default of tie_word_embeddings, which is not in text_config */
	const char *others[3];	  /* prefixes of its other tensors, below "model." or not */
};

struct arch {
	const struct arch_family *family;
	const struct arch_whole *whole; /* NULL: a text model of its own */
	const char *gguf; /* llama.cpp's name for it; NULL: gguf/ does not support it */
	enum arch_kind kind;
	bool tied; /* the embeddings are also the head */
	bool attention_bias, mlp_bias, qk_norm;
	uint64_t layers, hidden, heads, kv_heads, head_dim, vocab, positions;
	uint64_t ffn, experts, expert_ffn, shared_ffn;	     /* 0: the model has none */
	uint64_t q_lora, kv_lora, nope_dim, rope_dim, v_dim; /* for latent attention */
	uint64_t further; /* layers after the others that predict further tokens */
	/*
	 * Layers with a plain MLP although the model has experts, a byte each; NULL: only those
	 * below first_experts.
	 */
	uint8_t *dense;
	uint64_t first_experts;
	/* Of linear attention: heads of keys and of values, which share keys, and the
	 * convolution. */
	struct arch_linear {
		uint64_t k_heads, v_heads, k_dim, v_dim, kernel;
	} linear;
	uint8_t *full; /* layers with full attention, a byte each; NULL: all */
};
#define ARCH_MAX_LAYERS 65536

/*
 * Leaves *r at what describes the text model: config.json, or its text_config. The caller releases
 * *ret, also after a failure.
 */
int arch_read(struct config_in *r, struct arch *ret);
void arch_release(struct arch *a);
/* The model's class. */
const char *arch_class(const struct arch *a);

/* ---- weights ---- */

enum arch_scope {
	ARCH_ONCE,   /* below the prefix: "model." or "transformer." */
	ARCH_TOP,    /* the head: without a prefix, or below another */
	ARCH_LAYER,  /* below the prefix and "layers.N." */
	ARCH_EXPERT, /* the same for each expert: {} in the name is its number */
};

/* Two alternative ways to store the same weights: a model uses one of each pair. */
enum arch_style { ARCH_ALWAYS, ARCH_SPLIT, ARCH_FUSED, ARCH_SPLIT_ROUTER, ARCH_FUSED_ROUTER };

/*
 * How the weight is transformed for llama.cpp's file, unless it is copied; for an expert's weight,
 * which of the three it is.
 */
enum arch_turn {
	ARCH_PLAIN,
	ARCH_QUERIES,
	ARCH_KEYS,
	ARCH_TURNED, /* the last two dimensions are swapped */
	ARCH_PAIRS,  /* every other column goes to `second`; unless it is a bias, as TURNED */
	ARCH_HALVES, /* the second half of each expert's rows goes to `second` */
	ARCH_LATENT, /* of each head, some rows go to `gguf`, turned, the others to `second` */
	ARCH_MIXED,  /* of each head, queries, keys and values go to `gguf`, the rest to `second` */
	ARCH_KERNEL, /* the dimension in the middle, 1, is dropped; rows as QKV_ROWS */
	ARCH_DECAY,  /* minus e to the power of the element; rows as V_ROWS */
	/* Qwen 3.5: rows or columns of value heads: the first head of each key, and so on. */
	ARCH_V_ROWS,
	ARCH_QKV_ROWS, /* only those after queries and keys */
	ARCH_V_COLUMNS,
	ARCH_GATE,
	ARCH_UP,
	ARCH_DOWN
};

struct arch_weight {
	const char *name;
	const char
		/* below "blk.N." if it belongs to a layer; NULL: gguf/ has no place for it */
		*gguf;
	const char *second; /* the other name of what is two weights there; or NULL */
	uint32_t kinds;
	uint8_t scope, when, style;
	uint8_t n_dims, shape[3]; /* as in arch_shape */
	uint8_t turn;
	bool precise; /* float32 in gguf/ although it is a matrix */
};
#define ARCH_MAX_WEIGHTS 255 /* their numbers are a byte */
extern const struct arch_weight arch_weights[];
extern const size_t arch_n_weights;

/* For llama.cpp, rows of queries and keys are interleaved, and 1 is added to norms' factors. */
bool arch_rotates(const struct arch *a, const struct arch_weight *w);
bool arch_adds_one(const struct arch *a, const struct arch_weight *w);
/* Does the model have this weight, in that layer? */
enum arch_need { ARCH_NONE, ARCH_MAY, ARCH_MUST };
enum arch_need arch_needs(const struct arch *a, const struct arch_weight *w, uint64_t layer);
bool arch_has_experts(const struct arch *a, uint64_t layer);
/* Returns w->n_dims numbers. */
void arch_shape(const struct arch *a, const struct arch_weight *w, uint64_t ret[static 3]);

/* What names begin with: those of most weights, and that of the head. */
struct arch_prefix {
	const char *most, *head;
};
/*
 * The first is that of transformers. The others are further names for the same weights that
 * transformers also reads: of older releases, or without the model's own prefix. NULL: there are no
 * more.
 */
const struct arch_prefix *arch_prefix(const struct arch *a, size_t i);
/*
 * The one under which there are embeddings, and the head if there is one; else the first. In a
 * whole, whose prefixes are like no other's, the last norm will do instead of embeddings.
 */
const struct arch_prefix *arch_find_prefix(const struct arch *a,
					   int64_t (*find)(const void *arg, const char *name,
							   size_t len),
					   const void *arg);
/* The name of layers, "layers." or "h.". */
const char *arch_layers(const struct arch *a);
/*
 * Writes the name, including the numbers of a layer and an expert, to out; truncates it if too
 * long.
 */
#define ARCH_NAME_CAP 160
void arch_name(const struct arch *a, const struct arch_weight *w, const struct arch_prefix *prefix,
	       uint64_t layer, uint64_t expert, char out[static ARCH_NAME_CAP]);
/* Does it belong to another part of the model, such as the vision tower? */
bool arch_is_other(const struct arch *a, const char *name, size_t len);
/*
 * Is it a leftover of training that is not used in computation, such as masks and frequencies, or
 * of a layer that predicts further tokens, which neither transformers nor gguf/ has?
 */
bool arch_ignores(const struct arch *a, const char *name, size_t len);

#endif
