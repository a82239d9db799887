/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config_values - reads values of a config.json one at a time, and keeps the first error.
 *
 *	struct config_in r = { .from = jdoc_root(&json), .e = e };
 *
 *	hidden = config_count(&r, "hidden_size");
 *	bias = config_flag(&r, "attention_bias", false);
 *	return r.rc;
 *
 * null is the same as no value. Messages begin with "config.json".
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
	int rc;		   /* 0, or the first error, with its message in *e */
	const char *below; /* NULL, or what messages put before keys, such as "text_config." */
	struct config_in *whole; /* NULL, or what `from` is a part of: errors go there */
};

/* Returns no value for null. */
struct jval config_get(const struct config_in *r, const char *key);
struct jval config_object(struct config_in *r, const char *key);
/* Fails if there is no value. */
void config_must_have(struct config_in *r, const char *key);
/* Integers from 1 to INT32_MAX; returns 1 on errors. */
uint64_t config_count(struct config_in *r, const char *key);
uint64_t config_count_or(struct config_in *r, const char *key, uint64_t otherwise);
/* Integers from 0. */
uint64_t config_whole(struct config_in *r, const char *key);
/* Positive numbers in the range of a float32. */
double config_number(struct config_in *r, const char *key);
double config_number_or(struct config_in *r, const char *key, double otherwise);
bool config_flag(struct config_in *r, const char *key, bool otherwise);
const char *config_text(struct config_in *r, const char *key, const char *otherwise);

/* A number in the range of a float32, of either sign. */
bool config_is_float(struct jval v, double *ret);

void config_wrong(struct config_in *r, const char *key, const char *what);
/* Fails with ERR_UNSUPPORTED. */
void config_unsupported(struct config_in *r, const char *what);
/* The same unless ok. */
void config_must(struct config_in *r, bool ok, const char *what);

#endif
