/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zarr_metadata - the description of a zarr array: .zarray of version 2, zarr.json of version 3.
 *
 * Specifications: https://zarr-specs.readthedocs.io/en/latest/ v2.0 and v3.1 with the codecs
 * transpose, bytes, sharding_indexed, zstd, blosc, gzip, crc32c; the data types of zarr-extensions
 * under the names that JAX gives them, which tensorstore uses in version 2 too.
 *
 * What contradicts the specification is an error. What this program lacks (a codec, a data type) is
 * named in `unsupported`, and the rest of the array is described as far as possible.
 *
 * Threads: pure.
 */
#ifndef PARSE_ZARR_METADATA_H
#define PARSE_ZARR_METADATA_H

#include "model/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;
struct ckpt_err;

#define ZARR_MAX_METADATA ((size_t)64 << 20) /* bytes; a group's may describe all its arrays */

enum { ZARR_MAX_LEVELS = 4, ZARR_MAX_CODECS = 8 };

/*
 * How the bytes of a chunk are made. The elements are in C order of the encoded axes. If the chunk
 * is a shard, it consists of the chunks that the next level describes, and an index of where they
 * are.
 */
struct zarr_level {
	uint64_t chunk[CKPT_MAX_DIMS]; /* sizes, by axis of the array */
	uint8_t axis[CKPT_MAX_DIMS];   /* encoded axis i is the array's axis[i] */
	bool swap;	  /* the numbers, or those of the shard's index, are big-endian */
	bool index_first; /* the index is at the shard's start, not its end */
	bool index_crc;	  /* the index has a CRC-32C behind it */
	uint8_t n_codecs; /* of bytes; a shard has none */
	const char *codec[ZARR_MAX_CODECS]; /* "zstd", in the order of encoding */
};

struct zarr_array {
	char unsupported[160]; /* what is not supported, "codec 'zfp'"; "": nothing */
	enum ckpt_dtype dtype; /* CKPT_DTYPE_NONE only with something unsupported */
	size_t n_dims;
	uint64_t shape[CKPT_MAX_DIMS];
	size_t n_levels; /* 1: no shards */
	struct zarr_level level[ZARR_MAX_LEVELS];
	char separator;	  /* in the keys of chunks */
	bool key_c;	  /* they begin with "c" */
	uint8_t fill[16]; /* an element, little-endian */
};

/*
 * Parses .zarray (v3 false) or zarr.json. 1: an array; 0: something else, such as a group; or an
 * error. *ret has no pointers into the text.
 */
int zarr_parse(const char *text, size_t len, bool v3, struct zarr_array *ret, struct ckpt_err *e);

/* The cell, in the grid of (outermost) chunks, that a key names behind "NAME/". False: the key is
 * of something else, or of a chunk outside the array. */
bool zarr_cell(const struct zarr_array *a, const char *key, size_t len, uint64_t *ret);

/* Does zarr have this type, under the same name? */
bool zarr_has(enum ckpt_dtype t);
/* The element whose number is nearest to v, as little-endian bytes; false if the type has none. */
bool zarr_element(enum ckpt_dtype t, double v, uint8_t *ret);

#endif
