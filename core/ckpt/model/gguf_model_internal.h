/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gguf_model_internal - how the files of gguf_model read keys and write config.json.
 *
 * Keys are named as in llama.cpp; one that begins with a dot is one of the architecture:
 * ".block_count" may be "llama.block_count".
 */
#ifndef CKPT_GGUF_MODEL_INTERNAL_H
#define CKPT_GGUF_MODEL_INTERNAL_H

#include "base/json_out.h"
#include "ckpt/model/gguf_model.h"
#include "tensor/arch.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct catalog;
struct catalog_object;
struct catalog_tensor;
struct jdoc;

enum { GGUF_KEY_CAP = 120 };

/* The input, and what is made from it. */
struct gguf_reading {
	const struct catalog *c;
	const struct catalog_object *o;
	const struct catalog_tensor *t;
	size_t n_objects;
	char arch[GGUF_KEY_CAP]; /* general.architecture */
	struct json_out j;
	struct gguf_model *ret;
	const struct peek *peek;
	bool *no_memory;
	bool failed;	  /* neither names nor a config.json can be made */
	uint64_t further; /* layers after the others that predict further tokens; left out */
};

/* Notes why there is no config.json. The first reason counts. */
__attribute__((format(printf, 2, 3))) void gguf_no_config(struct gguf_reading *r, const char *fmt,
							  ...);

/* ---- keys and tensors ---- */

/* The value of a key, JSON; NULL: there is none, or it is too large. */
const struct catalog_object *gguf_key_of(const struct gguf_reading *r, const char *key);
/* The caller releases *ret. False if o is NULL. */
bool gguf_key_parse(const struct gguf_reading *r, const struct catalog_object *o, struct jdoc *ret);
/* False: there is no such key, or its value has another type; *ret is unchanged then. */
bool gguf_count_of(const struct gguf_reading *r, const char *key, uint64_t *ret);
bool gguf_number_of(const struct gguf_reading *r, const char *key, double *ret);
bool gguf_flag_of(const struct gguf_reading *r, const char *key);
bool gguf_text_of(const struct gguf_reading *r, const char *key, char out[GGUF_KEY_CAP]);
const struct catalog_tensor *gguf_tensor_of(const struct gguf_reading *r, const char *name);
/* Elements of a head; 0: unknown. */
uint64_t gguf_head_dim(const struct gguf_reading *r);
/* Elements of a head that are rotated: all, if no key says how many. */
uint64_t gguf_rotated(const struct gguf_reading *r);

/* ---- config.json ---- */

/*
 * Copies a number as it is written; false: there is no such key. If it is not a number, that is the
 * reason.
 */
bool gguf_copy(struct gguf_reading *r, const char *to, const char *key);
/* Copies a number without which neither names nor a config.json can be made. */
void gguf_need(struct gguf_reading *r, const char *to, const char *key);
void gguf_put_number(struct gguf_reading *r, const char *to, double x);
/* Granite's: without one, llama.cpp does not always compute as transformers does. */
void gguf_put_multipliers(struct gguf_reading *r);
/* A key of the architecture that is not known may mean anything: then there is no config.json. */
void gguf_check_keys(struct gguf_reading *r, enum arch_kind kind);
/* rope_scaling; all members of a decoder; those of GPT-2. */
void gguf_put_scaling(struct gguf_reading *r);
void gguf_put_decoder(struct gguf_reading *r, enum arch_kind kind);
void gguf_put_gpt2(struct gguf_reading *r);

#endif
