/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt_reader - a storage reader (ckpt_storage.h) for every checkpoint that ckpt_open reads.
 *
 * Tensors and objects are those of the tree, with names and dtypes as shown, after rename=, dtype=,
 * include= and so on. Planners see the stored chunks; a tensor that cannot be read appears as a
 * single chunk, so that reading any part of it fails with the reason.
 *
 *	ckpt_reader_new(&opts, &r, &e);	// declared in ckpt_save.h
 *	ckpt_storage_reader_reset(&r, "run/step-100", &e);
 *	ckpt_storage_reader_read_metadata(&r, &md, &e);
 *	...
 *	ckpt_storage_reader_free(&r);
 *
 * Elements are cast if the state dict has another floating-point type than the checkpoint. Errors
 * name the tensor or object.
 *
 * Threads: as for any storage reader.
 */
#ifndef CKPT_CKPT_READER_H
#define CKPT_CKPT_READER_H

#include <ckptfs/ckpt_save.h>

#include <stdint.h>

struct arena;

/*
 * The metadata entry and the path of tensor i or object i, without reading the others: numbers and
 * steps are allocated in the arena, names belong to c. *ret_path has 0 steps if the path is
 * unknown.
 */
int ckpt_reader_tensor(struct ckpt *c, uint64_t i, struct arena *a, struct ckpt_meta_entry *ret,
		       struct ckpt_fqn_path *ret_path, struct ckpt_err *e);
int ckpt_reader_object(struct ckpt *c, uint64_t i, struct arena *a, struct ckpt_meta_entry *ret,
		       struct ckpt_fqn_path *ret_path, struct ckpt_err *e);

#endif
