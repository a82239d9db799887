/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hf_index - which tensor goes into which file of a Hugging Face directory, and the index.
 *
 *	model.safetensors                      when one file is enough, else
 *	model-00001-of-00003.safetensors ...   and model.safetensors.index.json
 *
 * As save_pretrained does it. What it knows and a checkpoint does not: tensors that share storage
 * (they are all written) and which tensors are buffers (they count as parameters in the index,
 * where nothing reads that number).
 *
 * Sources: huggingface_hub 1.23 serialization/_base.py, transformers 5 modeling_utils.py.
 * Threads: pure.
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
 * Number of the file, from 0, for each of the n < 2^32 tensors into shard[n]; returns how many
 * files. Tensors are taken in order until a file would hold more than `limit` bytes of them; one
 * that is larger gets a file of its own, and its number when it is met: before that of the file
 * being filled around it.
 */
uint32_t hf_split(const struct tensor_info *m, size_t n, uint64_t limit, uint32_t *shard);
/* Name of file i of `count`. */
void hf_file_name(uint32_t i, uint32_t count, char out[static HF_NAME_CAP]);
/* Text of the index, appended to *ret, for n > 0 tensors that st_check likes. */
int hf_index(const struct tensor_info *m, size_t n, const uint32_t *shard, uint32_t count,
	     struct buf *ret, struct ckpt_err *e);

#endif
