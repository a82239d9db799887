/* SPDX-License-Identifier: Apache-2.0 */
/*
 * writer_safetensors - a storage writer for directories of safetensors files.
 *
 * Where every item is the whole of its tensor, a Hugging Face model:
 *
 *	CKPT/model.safetensors                      one file, else
 *	CKPT/model-00001-of-00003.safetensors ...   and model.safetensors.index.json
 *
 * Each rank has files of its own for what it writes, in natural order of the names, split as
 * save_pretrained splits; they are numbered rank after rank. So one rank makes the files that
 * save_pretrained would, and several share the work, with a file for each at the least. Items stay
 * with their rank, since no other need have the tensor.
 *
 * Where one is a part of its tensor, torch's distributed form, which its HuggingFaceStorageReader
 * reads, and which has no index:
 *
 *	CKPT/shard-00002-model-00001-of-00001.safetensors   rank 1's parts, and where they belong:
 *	                                                    DCP_SHARDING_INFO in __metadata__
 *
 * A rank with several parts of one tensor puts the second ones into a second file, and so on.
 * Empty parts are not written, as they say nothing.
 *
 * Objects are refused, and what safetensors has no dtype or name for (ERR_UNSUPPORTED), chunks that
 * two ranks write, and a dict without tensors (EINVAL). The same plans give the same bytes.
 *
 * Sources: torch 2.14 distributed/checkpoint/hf_storage.py; hf_index.h, st_write.h.
 * Threads: as ckpt_storage.h says.
 */
#ifndef STORE_WRITER_SAFETENSORS_H
#define STORE_WRITER_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt_err;
struct ckpt_storage_writer;

struct writer_safetensors_opts {
	bool overwrite;	     /* replace a checkpoint that is there */
	uint64_t shard_size; /* bytes of tensors in a file of whole ones; 0: 5 GB */
	size_t buffer;	     /* 0: 4 MiB */
	/* So many bytes more are written: from any thread; may be NULL. */
	void (*progress)(void *arg, uint64_t bytes);
	void *arg;
};

int writer_safetensors_new(const struct writer_safetensors_opts *opts,
			   struct ckpt_storage_writer *ret, struct ckpt_err *e);

#endif
