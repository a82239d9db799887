/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metadata_pickle - the .metadata files: struct metadata as the pickle that the system itself would
 * have written, protocol 4. The same metadata gives the same bytes.
 *
 * Sources: torch 2.14 distributed/checkpoint/metadata.py and filesystem.py; HyperParallel
 * distributed_checkpoint/metadata.py and storage.py (its third generation, version "2.0").
 *
 * Threads: pure.
 */
#ifndef STORE_METADATA_PICKLE_H
#define STORE_METADATA_PICKLE_H

struct buf;
struct err;
struct metadata;

/* Append to *ret. ENOMEM, EFBIG where ret's ceiling is reached. */
int metadata_pickle_dcp(const struct metadata *md, struct buf *ret, struct err *e);
int metadata_pickle_hyperparallel(const struct metadata *md, struct buf *ret, struct err *e);

#endif
