/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quantise - the option quantize=: the weights of the model's linear layers are float8 codes with
 * scales in hf/, whose config.json says so.
 *
 *	fp8_dynamic	NAME.weight_scale [rows, 1], as llm-compressor's FP8_DYNAMIC
 *	fp8_block	NAME.weight_scale_inv of 128 x 128, as transformers' FineGrainedFP8Config; weights
 *			whose sides these do not divide stay as they are
 *
 * Linear layers are matrices NAME.weight, except embeddings. The last layer, routers, and what
 * belongs to pictures or sound stay as they are, and config.json names them.
 *
 * Private to core/ckpt.
 *
 * Threads: made before the checkpoint is used, then immutable.
 */
#ifndef CKPT_QUANTISE_H
#define CKPT_QUANTISE_H

struct ckpt_err;
struct ckpt_opts;
struct engine;
struct fetch_opts;

/*
 * When eng->view is complete: adds hidden tensors to the catalog and to eng->computed, replaces
 * eng->fetch, which was made as `how` says, by one that has them, and shows them and another
 * config.json in hf/.
 */
int quantise(struct engine *eng, const struct ckpt_opts *o, const struct fetch_opts *how,
	     struct ckpt_err *e);

#endif
