/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_names - which tensors of a checkpoint belong to the model, and their names there.
 *
 * With weights=PREFIX: the tensors below PREFIX, without "PREFIX.". An empty PREFIX takes all
 * tensors under their own names.
 *
 * Without: those below the checkpoint's top-level key "model", without "model.", if there are any;
 * else those below "state_dict" (Lightning) or "model_state_dict"; else those below "state.model"
 * (Composer), JAX's "params" (Flax) or "target" (T5X), if there is nothing else but training state,
 * names without a dot and what is below "state"; else all but training state: those whose first
 * dotted element is one of training_keys in model_names.c.
 *
 * If a checkpoint does not record its top-level keys, "model.layers.0.w" is ambiguous. "model" is
 * taken for a key if everything else is training state or has no dot ("step", "epoch"). So the flat
 * state dict of a Hugging Face model, whose parameters all begin with "model." except
 * "lm_head.weight", keeps its names. If the guess is wrong, set weights=.
 *
 * Then the elements that wrappers leave in names are removed, wherever they occur: "module.",
 * "_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.".
 *
 * Threads: pure.
 */
#ifndef TENSOR_MODEL_NAMES_H
#define TENSOR_MODEL_NAMES_H

#include <stddef.h>
#include <stdint.h>

struct ckpt_err;
struct namelist;

/*
 * top: length of the part of the FQN that is the checkpoint's top-level key; 0 if unknown.
 * {"model": {"layers.0.w": ...}} is "model.layers.0.w" and 5; in a flat state dict the whole FQN is
 * the key.
 */
struct model_in {
	const char *fqn;
	size_t len;
	uint32_t top;
};

/*
 * The model's tensors: names and their numbers in `in`, finished, into *ret, which may be empty
 * (the caller releases it; in's FQNs must outlive it). *ret_prefix, if not NULL: number of bytes
 * stripped from the start of each FQN ("model.": 6).
 *
 * weights: NULL for the default. EINVAL if it contains no tensor, EEXIST if two tensors get the
 * same name.
 */
int model_names(const struct model_in *in, size_t n, const char *weights, struct namelist *ret,
		size_t *ret_prefix, struct ckpt_err *e);

#endif
