/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lora - the option lora=: adapters that PEFT has saved, merged into the weights they were trained
 * on.
 *
 *	lora=DIR	adapter_config.json and adapter_model.safetensors, or adapter_model.bin
 *	lora=DIR:0.5	half of it
 *
 * Names: base_model.model.MODULE.lora_A.weight and lora_B are added to MODULE.weight,
 * lora_embedding_A and _B likewise; other tensors below base_model.model. (modules_to_save, biases)
 * replace those of their names, before that. What the adapter calls MODULE.weight is a tensor of
 * that name, or of that name after a prefix, which is the same for all.
 *
 * An adapter is refused as a whole if any of its tensors, which is then named, is of another kind
 * or fits nothing, or if its configuration asks for anything but a product of two matrices.
 *
 * Private to core/ckpt.
 *
 * Threads: made before the checkpoint is used, then immutable.
 */
#ifndef CKPT_LORA_H
#define CKPT_LORA_H

struct ckpt_err;
struct ckpt_opts;
struct digest;
struct engine;

/* Opens the adapters of o->lora and merges them in that order. Adds the configurations and scales
 * to *d. */
int lora_derive(struct engine *eng, const struct ckpt_opts *o, struct digest *d,
		struct ckpt_err *e);

#endif
