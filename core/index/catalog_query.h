/* SPDX-License-Identifier: Apache-2.0 */
/*
 * catalog_query - reading a chunk index.
 *
 * Opening reads the directory and verifies the seal over it; a chunk map is read and verified when
 * it is asked for. Any fault in the file is ERR_CORRUPT: build it again. The file is untrusted:
 * memory and time are bounded by its size (see catalog_file.h).
 *
 * Threads: the tables are immutable; catalog_load_map serialises itself.
 */
#ifndef INDEX_CATALOG_QUERY_H
#define INDEX_CATALOG_QUERY_H

#include "model/chunkmap.h"
#include "model/dtype.h"
#include "source/place.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct catalog;
struct ckpt_err;

/* A fault that begins with this is about something that this program lacks; the checkpoint is
 * whole. */
#define CATALOG_UNSUPPORTED "not supported: "

enum tensor_state { TENSOR_COMPLETE, TENSOR_INCOMPLETE, TENSOR_OVERLAPPING };

struct catalog_tensor {
	const char *fqn;
	const char *fault; /* sentence, fit for a terminal, or NULL */
	const uint64_t *shape;
	const uint64_t *logical; /* n_logical: the shape before flattening, see model/flat.h */
	uint64_t bytes;
	uint64_t map_xxh64;
	int64_t map;
	uint32_t fqn_len, chunks, map_bytes;
	uint32_t top; /* bytes of the FQN that are the top-level key, 0: not known */
	uint32_t row; /* its number in the index; CATALOG_COMPUTED: it is not stored */
	/* A tensor that is not shown: the same elements as blocks, see catalog_computed; 0:
	 * none. */
	uint32_t blocks;
	const uint8_t *path;	      /* the keys that lead to it, see catalog_path.h */
	uint8_t dtype, n_dims, state; /* enum ckpt_dtype, dimensions, enum tensor_state */
	uint8_t n_logical;	      /* 0: it never was flattened */
};

struct catalog_object {
	const char *fqn;
	const char *fault;
	const char *text;      /* its bytes if the index stores them; NULL: they are in a file */
	struct chunk_loc loc;  /* their place in it; all zero with a fault or a text */
	const uint8_t *path;   /* as of a tensor */
	uint32_t fqn_len, top; /* as of a tensor */
	uint32_t text_len;
	bool hidden; /* see catalog_hide_object */
};

#define CATALOG_COMPUTED UINT32_MAX

#define CATALOG_MISSING UINT64_MAX /* the size of a file that was not there */

struct catalog_metadata {
	const char *name;
	uint64_t size;
	const char *id;	  /* place_id_hex when it was read */
	const char *hash; /* XXH3-128 in hex; "": it was not hashed */
	bool settled;	  /* a change after it was read shows in its id */
};

int catalog_open(const char *path, struct catalog **ret, struct ckpt_err *e);
void catalog_close(struct catalog *c); /* NULL is fine */

/* The name, in place of a path, of the source whose bytes are in the index. */
#define CATALOG_INLINE_PATH "(in the index)"

/* In natural order of the FQNs. ret_n may be NULL, also below. */
const struct catalog_tensor *catalog_tensors(const struct catalog *c, size_t *ret_n);
const struct catalog_object *catalog_objects(const struct catalog *c, size_t *ret_n);
/* The number of the shown tensor, or of the object, with that name; -1: there is none. */
int64_t catalog_find_tensor(const struct catalog *c, const char *fqn, size_t len);
int64_t catalog_find_object(const struct catalog *c, const char *fqn, size_t len);
/* For an object that only describes what a tensor was computed from. It keeps its number. */
void catalog_hide_object(struct catalog *c, size_t number);
const struct stored_file *catalog_sources(const struct catalog *c, size_t *ret_n);
/* In the order of strcmp. */
const struct catalog_metadata *catalog_metadata(const struct catalog *c, size_t *ret_n);
const char *const *catalog_encodings(const struct catalog *c, size_t *ret_n);
/* Equal for two indexes of the same checkpoint contents. */
const char *catalog_seal(const struct catalog *c);

/*
 * Tensors that are computed from stored ones (read/derived.h). They take the place of others:
 * afterwards catalog_tensors() lists those that are to be shown, in their order. The others have
 * the numbers behind them, up to catalog_all_tensors(), and are read as before.
 *
 * Before any other use of the tensors, whose numbers change. It may be called again, for tensors
 * that are computed from these.
 */
struct catalog_computed {
	const char *fqn; /* copied, as is the shape; fqn_len bytes */
	uint32_t fqn_len;
	/* The number, which changes as well, of a tensor whose path it takes over and, if the
	 * shapes are equal, whose logical shape. */
	uint32_t like;
	enum ckpt_dtype dtype;
	size_t n_dims;
	const uint64_t *shape;
	bool hidden; /* it is not shown itself */
	/* The tensor v[blocks - 1] of the list has the same elements as bytes: ggml's MXFP4 blocks,
	 * of [n, columns, rows]; 0: there is none. */
	uint32_t blocks;
	uint32_t number; /* set here */
};
/*
 * hide: one for each tensor that is shown. Numbers of shown tensors stay as they are if none is
 * hidden here and all of v are. The new number of tensor i, hidden or not, is
 * ret_numbers[i]. Fails, and changes nothing, if two names are equal (EEXIST), or a tensor is
 * larger than a file can be.
 */
int catalog_compute(struct catalog *c, struct catalog_computed *v, size_t n, const bool *hide,
		    uint32_t *ret_numbers, struct ckpt_err *e);
size_t catalog_all_tensors(const struct catalog *c);
/* The number of tensors in the index, none of which is computed. */
size_t catalog_rows(const struct catalog *c);

/* *ret is the caller's, free() it. Not for computed tensors. */
int catalog_load_map(struct catalog *c, const struct catalog_tensor *t, struct chunkmap **ret,
		     struct ckpt_err *e);

#endif
