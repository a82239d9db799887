/* SPDX-License-Identifier: Apache-2.0 */
/*
 * writer_safetensors - a storage writer for directories of safetensors files.
 *
 * If every item is a whole tensor, a Hugging Face model:
 *
 *	CKPT/model.safetensors                      one file, else
 *	CKPT/model-00001-of-00003.safetensors ...   and model.safetensors.index.json
 *
 * Each rank has files of its own for what it writes, in natural order of the names, split as
 * save_pretrained splits; they are numbered rank after rank. So one rank makes the files that
 * save_pretrained would, and several ranks share the work, with at least one file each. Items stay
 * with their rank, since other ranks need not have the tensor.
 *
 * If any item is part of a tensor, torch's distributed form, which its HuggingFaceStorageReader
 * reads, and which has no index:
 *
 *	CKPT/shard-00002-model-00001-of-00001.safetensors   rank 1's parts, and their positions:
 *	                                                    DCP_SHARDING_INFO in __metadata__
 *
 * A rank with several parts of one tensor puts the second part into a second file, and so on. Empty
 * parts are not written.
 *
 * Refused are objects, dtypes and names that safetensors lacks (ERR_UNSUPPORTED), chunks that two
 * ranks write, and a dict without tensors (EINVAL). The same plans give the same bytes.
 *
 * Sources: torch 2.14 distributed/checkpoint/hf_storage.py; hf_index.h, st_write.h. Threads: see
 * ckpt_storage.h.
 */
#ifndef STORE_WRITER_SAFETENSORS_H
#define STORE_WRITER_SAFETENSORS_H

#include <ckptfs/ckpt_plan.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt_err;
struct ckpt_storage_writer;

struct writer_safetensors_opts {
	bool overwrite;	     /* replace an existing checkpoint */
	uint64_t shard_size; /* tensor bytes per file of whole tensors; 0: 5 GB */
	size_t buffer;	     /* 0: 4 MiB */
	/* `bytes` more have been written; called from any thread; may be NULL. */
	void (*progress)(void *arg, uint64_t bytes);
	void *arg;
};

/*
 * Files that the coordinator puts beside the weights, by name (one path element). `v` and what it
 * points to are borrowed. With `overwrite`, existing files of these names are also replaced. Call
 * before the first use of the writer. Fails with ENOMEM.
 */
struct writer_safetensors_file {
	const char *name;
	struct ckpt_data data;
};
int writer_safetensors_add(struct ckpt_storage_writer *w, const struct writer_safetensors_file *v,
			   size_t n, struct ckpt_err *e);

int writer_safetensors_new(const struct writer_safetensors_opts *opts,
			   struct ckpt_storage_writer *ret, struct ckpt_err *e);

#endif
