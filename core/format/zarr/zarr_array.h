/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zarr_array - the arrays of a zarr store as tensors of the chunk index.
 *
 *	struct zarr_array a;
 *
 *	rc = zarr_read(s, key, key_len, value, &a, e);       // 1; 0: of a group
 *	rc = zarr_add_array(s, &named, &a, false, w, &total, e);
 *
 * The tensor's chunks are the array's; those of shards are the chunks inside them, each at the
 * location of its shard until the tensor is opened. An array that cannot be read is listed, and
 * says why when it is opened.
 *
 * Threads: pure apart from the store.
 */
#ifndef FORMAT_ZARR_ZARR_ARRAY_H
#define FORMAT_ZARR_ZARR_ARRAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct catalog_writer;
struct ckpt_err;
struct zarr_array; /* parse/zarr_metadata.h; plain data */
struct zarr_store;
struct zarr_value;

struct zarr_name {
	const char *name; /* in the store, "" or "layers/0/w" */
	size_t name_len;
	const char *fqn;
	size_t fqn_len;
	const uint8_t *path; /* of the FQN, see catalog_path.h; NULL: unknown */
};

/* The array that a metadata value (.zarray or zarr.json, by its key) describes; 1, 0 if it is not
 * of an array, or an error that names the key. */
int zarr_read(struct zarr_store *s, const char *key, size_t key_len, const struct zarr_value *v,
	      struct zarr_array *ret, struct ckpt_err *e);

/* absent_is_damage: a chunk that is not stored leaves a hole, instead of elements of the fill
 * value. *total counts the chunks of all arrays; EFBIG if there are too many. */
int zarr_add_array(struct zarr_store *s, const struct zarr_name *n, const struct zarr_array *a,
		   bool absent_is_damage, struct catalog_writer *w, uint64_t *total,
		   struct ckpt_err *e);

#endif
