/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dequantise_wrapped - codes inside tensor subclasses, of which the families share this much.
 *
 * Such a tensor NAME is an object with the class and its attributes, and beside it are the tensors
 * that it is made of, NAME.qdata and so on (format/torch/torchsave_kinds.c). dequantise_wrapped.c
 * finds the object and, by its class, the function that knows it. These functions are like
 * deq_find_*: they add the weight and hide what belongs to it, or set an error.
 *
 * Private to core/ckpt/computed. Threads: those of dequantise_parts.h.
 */
#ifndef CKPT_DEQUANTISE_WRAPPED_H
#define CKPT_DEQUANTISE_WRAPPED_H

#include "base/json.h"
#include "ckpt/computed/dequantise_parts.h"

#include <stddef.h>

/* A tensor that is made of others. */
struct deq_owner {
	struct jdoc doc;
	struct jval attrs;
	const char *module, *class; /* "" if there is none */
};

struct deq_wrapped {
	struct deq_finder *f;
	const struct catalog_tensor *t; /* the codes */
	const char *end;		/* of their name */
	const struct deq_owner *owner;	/* what they are a part of */
	const char *name;		/* of the weight; it need not end where the string does */
	size_t len;
};

/* A tensor beside the codes; NULL: there is none. */
const struct catalog_tensor *deq_part(const struct deq_wrapped *x, const char *name);
void deq_hide_part(const struct deq_wrapped *x, const char *name);
/* Error: the weight, of its class, is not as it should be. */
int deq_bad_part(const struct deq_wrapped *x, const char *why);

typedef int deq_wrapped_fn(const struct deq_wrapped *x);
/* The same for an owner that is itself a part of `outer`. */
typedef int deq_inner_fn(const struct deq_wrapped *x, const struct deq_owner *outer);

deq_wrapped_fn deq_torchao_int8, deq_torchao_int4, deq_torchao_state; /* dequantise_torchao.c */
deq_inner_fn deq_torchao_plain, deq_torchao_plain_float8;
deq_wrapped_fn deq_te_float8, deq_te_blocks; /* dequantise_transformer_engine.c */

#endif
