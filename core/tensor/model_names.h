/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_names - which tensors of a checkpoint are the model, and what the model calls them.
 *
 * With weights=PREFIX: the tensors below PREFIX, without "PREFIX.". An empty PREFIX takes all as
 * they are.
 *
 * Without: those below the checkpoint's top-level key "model", without "model.", if there are
 * any; else all but training state: those whose first dotted element is optim, optimizer,
 * optimizers, lr_scheduler, dataloader or train_state.
 *
 * A checkpoint that does not say what its top-level keys are leaves two readings of
 * "model.layers.0.w". "model" is taken for a key when everything else is training state or has no
 * dot ("step", "epoch"): the flat state dict of a Hugging Face model, whose parameters all begin
 * with "model." but for an "lm_head.weight", keeps its names and its head. Where the guess is
 * wrong, weights= decides.
 *
 * Then the elements that wrappers leave in names go, wherever they occur: "module.", "_orig_mod.",
 * "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.".
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
 * top: bytes of the FQN that are the checkpoint's top-level key; 0 where that is not known.
 * {"model": {"layers.0.w": ...}} is "model.layers.0.w" and 5; of a state dict that was saved as it
 * is, the whole FQN is the key.
 */
struct model_in {
	const char *fqn;
	size_t len;
	uint32_t top;
};

/*
 * The model's tensors: names and numbers in `in`, finished, into *ret (the caller releases it; in's
 * FQNs must outlive it). It may be empty. *ret_prefix, if not NULL: the first so many bytes of each
 * of their FQNs were stripped ("model.": 6).
 *
 * weights: NULL for the default. EINVAL when nothing is below it, EEXIST when two tensors get the
 * same name.
 */
int model_names(const struct model_in *in, size_t n, const char *weights, struct namelist *ret,
		size_t *ret_prefix, struct ckpt_err *e);

#endif
