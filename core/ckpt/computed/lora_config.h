/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lora_config - the adapter_config.json of PEFT, as far as weights depend on it.
 *
 * Keys: peft_type, r, lora_alpha, use_rslora, fan_in_fan_out, rank_pattern and alpha_pattern, whose
 * names are regular expressions that a module's name must end in
 * (peft/utils/other.py: get_pattern_key). Only letters, digits, "_", "-", "/", "." (any character),
 * escaped punctuation and "^" at the beginning are known; other expressions are refused.
 *
 * Private to core/ckpt/computed.
 *
 * Threads: immutable once read.
 */
#ifndef CKPT_LORA_CONFIG_H
#define CKPT_LORA_CONFIG_H

#include "base/json.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt_err;

struct lora_config {
	struct jdoc doc;
	uint32_t rank;
	double alpha;
	bool root; /* of the rank: use_rslora */
	bool turned;
	struct jval ranks, alphas;
	uint64_t work; /* budget of lora_config_of for all modules */
};

/* Anything but a plain product of two matrices (DoRA, aLoRA, PiSSA, ...) is refused by name. */
int lora_config_read(struct lora_config *ret, const char *text, size_t len, struct ckpt_err *e);
void lora_config_release(struct lora_config *c);

/* The rank of a module's matrices, and what their product is multiplied by. */
int lora_config_of(struct lora_config *c, const char *module, size_t len, uint32_t *ret_rank,
		   double *ret_scale, struct ckpt_err *e);

#endif
