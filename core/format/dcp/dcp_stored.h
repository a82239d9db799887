/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dcp_stored - the storage entries of DCP's metadata, which say in which item a chunk is: grouped
 * by FQN, and found by rank and offset.
 *
 * If the items' own dtypes and sizes are known already (dcp_records.sized), an offset alone does
 * not identify a chunk: an empty chunk may begin where its neighbour does, and each replica is
 * listed with an item of its own.
 *
 *	struct dcp_storage x = { .r = records, .w = w };
 *	rc = dcp_storage_init(&x, e);
 *	rc = dcp_storage_load(&x, fqn, e);       // each FQN
 *	s = dcp_storage_find(&x, &(struct dcp_stored){ .rank = 0, .n_dims = n, .off = off });
 *	dcp_storage_release(&x);                 // also after a failure
 *
 * Private to core/format/dcp. Threads: one at a time.
 */
#ifndef DCP_DCP_STORED_H
#define DCP_DCP_STORED_H

#include "model/chunkmap.h"
#include "model/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct catalog_writer;
struct ckpt_err;
struct dcp_records;
struct pk_str;

/* A storage entry. Its key is rank, is_bytes, n_dims and off. */
struct dcp_stored {
	const uint64_t *off;  /* n_dims numbers */
	const uint64_t *size; /* the item's, if it has a dtype */
	struct chunk_loc loc;
	uint32_t rank, order, path;
	uint8_t n_dims, dtype; /* the item's own, if known */
	bool is_bytes;
};

struct dcp_storage {
	/* Set before dcp_storage_init. The first dir_len bytes are prefixed to the names of data
	 * files. */
	const struct dcp_records *r;
	const char *dir;
	size_t dir_len;
	struct catalog_writer *w;
	/* The rest is set here. */
	uint64_t *first;   /* by string id: its entries are at[first[id] .. first[id+1]) */
	uint64_t *at;	   /* positions in storage.data */
	uint32_t *sources; /* by string id: source number + 1 of a path, or 0 */

	struct dcp_stored *v; /* of one FQN: as listed, or by key if they are sorted */
	size_t n, cap;
	uint64_t *offs; /* the numbers that off and size point to */
	size_t cap_offs;
	bool sorted;
};

int dcp_storage_init(struct dcp_storage *x, struct ckpt_err *e);
void dcp_storage_release(struct dcp_storage *x);

/* Loads the entries of an FQN, and adds their files to the catalog. */
int dcp_storage_load(struct dcp_storage *x, const struct pk_str *fqn, struct ckpt_err *e);
/* Do they follow a list of chunks one to one, as they normally do? */
bool dcp_storage_in_step(const struct dcp_storage *x, const uint64_t *boxes, const uint32_t *ranks,
			 size_t n, size_t count);

/* The entry with that key, the last one listed, or NULL. This and the next sort them. */
const struct dcp_stored *dcp_storage_find(struct dcp_storage *x, const struct dcp_stored *key);
/*
 * The item of the chunk with that key and these sizes: the first listed that holds it, preferably
 * one whose file exists. If none does, the first; NULL if no item has the key.
 */
const struct dcp_stored *dcp_storage_find_sized(struct dcp_storage *x, const struct dcp_stored *key,
						enum ckpt_dtype dtype, const uint64_t *len);
/* Does the item hold this chunk? One whose file is missing might. */
bool dcp_stored_is(const struct dcp_stored *s, enum ckpt_dtype dtype, const uint64_t *len);

/* The name of a data file, with its directory; the caller frees it. NULL: out of memory. */
char *dcp_storage_path(const struct dcp_storage *x, uint32_t path);

#endif
