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
 * Appends to *ret. ENOMEM, EFBIG at ret's ceiling, ERR_UNSUPPORTED for a name that is not UTF-8
 * (lone surrogates, which Python's strings may contain, are allowed).
 *
 * If md->storage.save_id is NULL, the save_id, which torch chooses at random, is a hash of the
 * metadata. Without paths planner_data is an empty dict (as in Megatron), or None for
 * HyperParallel. HyperParallel's items with a tensor_key have no length. Megatron's has mcore_data
 * as well, which core_v0.8 to core_v0.15 expect: the logical shapes of flattened tensors.
 */
int metadata_pickle_dcp(const struct ckpt_metadata *md, struct buf *ret, struct ckpt_err *e);
int metadata_pickle_megatron(const struct ckpt_metadata *md, struct buf *ret, struct ckpt_err *e);
int metadata_pickle_hyperparallel(const struct ckpt_metadata *md, struct buf *ret,
				  struct ckpt_err *e);

#endif
