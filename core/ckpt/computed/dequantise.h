/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dequantise - which tensors of a checkpoint are codes, which are their scales, and what weights
 * they stand for: the option dequantize=.
 *
 * Names decide what belongs together, shapes and the quantization_config of config.json how. Every
 * tensor of codes becomes a derived tensor with the name that the unquantised weight has; the
 * codes, their scales and whatever else belongs to them are hidden. Codes whose scales are missing
 * or have another shape are an error.
 *
 * Private to core/ckpt.
 *
 * Threads: made before the checkpoint is used, then immutable.
 */
#ifndef CKPT_DEQUANTISE_H
#define CKPT_DEQUANTISE_H

#include "base/arena.h"
#include "base/json.h"
#include "model/dtype.h"
#include "read/derived.h"

#include <stdbool.h>

struct catalog;
struct catalog_tensor;
struct ckpt_err;
struct peek;

struct dequantised {
	struct arena mem; /* of what follows */
	struct derived *v;
	size_t n;
};

/*
 * config: config.json, or no value; gptq: the same of AutoGPTQ's quantize_config.json, which counts
 * if config.json does not say how weights are quantised. Adds the derived tensors to the catalog;
 * without codes that have
 * scales there are none, and the catalog stays as it is. The caller releases
 * *ret, also after a failure, once nothing uses the tensors any more.
 */
int dequantise(struct catalog *c, struct jval config, struct jval gptq, enum ckpt_dtype dtype,
	       const struct peek *peek, struct dequantised *ret, struct ckpt_err *e);
void dequantised_release(struct dequantised *d);

/* Members of config.json that say how weights are quantised. */
extern const char *const dequantise_keys[3];
/* The one that this config.json has, unless it is empty; NULL: none. */
const char *dequantise_key_of(struct jval config);

/* Does a shown tensor hold codes: are there scales that belong to it? */
bool dequantise_is_codes(const struct catalog *c, const struct catalog_tensor *t);

#endif
