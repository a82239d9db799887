/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config_values - values of a config.json, one at a time; the first that is wrong sticks.
 *
 *	struct config_in r = { jdoc_root(&json), e, 0 };
 *
 *	hidden = config_count(&r, "hidden_size");
 *	bias = config_flag(&r, "attention_bias", false);
 *	return r.rc;
 *
 * null is the same as no value. Sentences begin with "config.json".
 *
 * Threads: pure.
 */
#ifndef TENSOR_CONFIG_VALUES_H
#define TENSOR_CONFIG_VALUES_H

#include "base/json.h"

#include <stdbool.h>
#include <stdint.h>

struct ckpt_err;

struct config_in {
	struct jval from;
	struct ckpt_err *e;
	int rc; /* 0, or what was wrong first, with its sentence in *e */
};

/* No value for null. */
struct jval config_get(const struct config_in *r, const char *key);
/* Whole numbers from 1 to INT32_MAX; 1 where it is something else. */
uint64_t config_count(struct config_in *r, const char *key);
uint64_t config_count_or(struct config_in *r, const char *key, uint64_t otherwise);
/* From 0 on. */
uint64_t config_whole(struct config_in *r, const char *key);
/* Numbers above 0 that a float32 can be. */
double config_number(struct config_in *r, const char *key);
double config_number_or(struct config_in *r, const char *key, double otherwise);
bool config_flag(struct config_in *r, const char *key, bool otherwise);
const char *config_text(struct config_in *r, const char *key, const char *otherwise);

/* A number that a float32 can be, of any sign. */
bool config_is_float(struct jval v, double *ret);

void config_wrong(struct config_in *r, const char *key, const char *what);
/* ERR_UNSUPPORTED. */
void config_unsupported(struct config_in *r, const char *what);
/* The same unless ok. */
void config_must(struct config_in *r, bool ok, const char *what);

#endif
