/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zarr_store - the keys and values of a zarr hierarchy, wherever they are stored: a directory of
 * files, or a key-value store inside of files (OCDBT).
 *
 * A key is "NAME/.zarray" or "NAME/zarr.json", the metadata of the array NAME, or a chunk of it:
 * "NAME/1.0.2", "NAME/c/1/0/2". NAME is all that precedes the key's last part; it may contain
 * slashes, and be empty: then the array's keys are ".zarray", "1.0.2".
 *
 * An implementation embeds struct zarr_store. Keys and values are borrowed, and valid while the
 * function that receives them runs.
 *
 * Threads: one at a time.
 */
#ifndef FORMAT_ZARR_ZARR_STORE_H
#define FORMAT_ZARR_ZARR_STORE_H

#include <stddef.h>
#include <stdint.h>

struct ckpt_err;
struct place;
struct place_seen;
struct zarr_store;

struct zarr_value {
	const uint8_t *bytes; /* in memory; NULL: in `file` */
	const char *file;     /* relative to the place; NULL: in memory */
	uint64_t offset;      /* in the file */
	uint64_t length;
	const struct place_seen *seen; /* it is all of the file, as it was then; NULL: a part */
};

/* A non-zero return value stops the listing and is returned. */
typedef int zarr_value_fn(void *arg, const char *key, size_t key_len, const struct zarr_value *v,
			  struct ckpt_err *e);

struct zarr_store_ops {
	/* Every key whose last part is .zarray or zarr.json, in any order; and NAME/.zarray with a
	 * value of NULL if there are chunks of NAME, but neither. */
	int (*arrays)(struct zarr_store *s, zarr_value_fn *fn, void *arg, struct ckpt_err *e);
	/* Every key that begins with these bytes ("NAME/", or none) and continues with c or a
	 * digit, in any order; others may be among them. */
	int (*chunks)(struct zarr_store *s, const char *prefix, size_t len, zarr_value_fn *fn,
		      void *arg, struct ckpt_err *e);
};

struct zarr_store {
	const struct zarr_store_ops *ops;
	struct place *place;
};

#endif
