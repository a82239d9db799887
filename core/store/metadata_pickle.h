/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metadata_pickle - the .metadata files: struct ckpt_metadata as the pickle that the system itself
 * would have written, protocol 4. The same metadata gives the same bytes.
 *
 * Sources: torch 2.14 distributed/checkpoint/metadata.py and filesystem.py; HyperParallel
 * distributed_checkpoint/metadata.py and storage.py (its third generation, version "2.0").
 *
 * Threads: pure.
 */
#ifndef STORE_METADATA_PICKLE_H
#define STORE_METADATA_PICKLE_H

struct buf;
struct ckpt_err;
struct ckpt_metadata;

/*
 * Append to *ret. ENOMEM, EFBIG where ret's ceiling is reached, ERR_UNSUPPORTED for a name that is
 * not UTF-8 (lone surrogates, which Python's strings may have, apart).
 *
 * What torch would draw by lot, the save_id, is made of a hash of the metadata where
 * md->storage.save_id is NULL. planner_data is a dict, an empty one where no paths are given (as
 * Megatron has it); in HyperParallel's None then. HyperParallel's items that have a tensor_key have
 * no length.
 */
int metadata_pickle_dcp(const struct ckpt_metadata *md, struct buf *ret, struct ckpt_err *e);
int metadata_pickle_hyperparallel(const struct ckpt_metadata *md, struct buf *ret,
				  struct ckpt_err *e);

#endif
