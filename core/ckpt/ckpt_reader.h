/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt_reader - every checkpoint that ckpt_open reads, as a storage reader (ckpt_storage.h).
 *
 * Tensors and objects are those of the tree, with names and dtypes as shown: after rename=, dtype=,
 * include= ... Planners see the chunks that are stored; where a tensor cannot be read they see it
 * as one chunk, so that reading any of it fails with the reason.
 *
 *	ckpt_reader_new(&opts, &r, &e);	// ckpt_save.h has it
 *	ckpt_storage_reader_reset(&r, "run/step-100", &e);
 *	ckpt_storage_reader_read_metadata(&r, &md, &e);
 *	...
 *	ckpt_storage_reader_free(&r);
 *
 * Elements are cast where the state dict has another floating-point type than the checkpoint.
 * Errors name the tensor or object.
 *
 * Threads: as of any storage reader.
 */
#ifndef CKPT_CKPT_READER_H
#define CKPT_CKPT_READER_H

#include <ckptfs/ckpt_save.h>

#include <stdint.h>

struct arena;

/*
 * What the metadata says about tensor i, about object i, and its path, without all the others:
 * numbers and steps are in the arena, names are c's. The path is *ret_path, of 0 steps where it is
 * not known.
 */
int ckpt_reader_tensor(struct ckpt *c, uint64_t i, struct arena *a, struct ckpt_meta_entry *ret,
		       struct ckpt_fqn_path *ret_path, struct ckpt_err *e);
int ckpt_reader_object(struct ckpt *c, uint64_t i, struct arena *a, struct ckpt_meta_entry *ret,
		       struct ckpt_fqn_path *ret_path, struct ckpt_err *e);

#endif
