/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hf_index - assigns tensors to the files of a Hugging Face directory, and writes its index.
 *
 *	model.safetensors                      when one file is enough, else
 *	model-00001-of-00003.safetensors ...   and model.safetensors.index.json
 *
 * As save_pretrained does, except for what a checkpoint does not record: tensors that share storage
 * (all of them are written) and which tensors are buffers (they count as parameters in the index,
 * where nothing reads that number).
 *
 * Sources: huggingface_hub 1.23 serialization/_base.py, transformers 5 modeling_utils.py. Threads:
 * pure.
 */
#ifndef FILE_HF_INDEX_H
#define FILE_HF_INDEX_H

#include <stddef.h>
#include <stdint.h>

struct buf;
struct ckpt_err;
struct tensor_info;

#define HF_INDEX_NAME "model.safetensors.index.json"
#define HF_NAME_CAP   48 /* bytes of the longest file name with its NUL */

/*
 * The number of the file, from 0, for each of the n < 2^32 tensors, into shard[n]; returns the
 * number of files. Tensors are taken in order until a file would hold more than `limit` bytes of
 * them. A larger tensor gets a file of its own, numbered when it is met, before the file being
 * filled around it.
 */
uint32_t hf_split(const struct tensor_info *m, size_t n, uint64_t limit, uint32_t *shard);
/* Name of file i of `count`. */
void hf_file_name(uint32_t i, uint32_t count, char out[static HF_NAME_CAP]);
/* Appends the text of the index to *ret, for n > 0 tensors that pass st_check. */
int hf_index(const struct tensor_info *m, size_t n, const uint32_t *shard, uint32_t count,
	     struct buf *ret, struct ckpt_err *e);

#endif
