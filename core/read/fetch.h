/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fetch - the opened tensors and objects of one checkpoint, from which plans are carried out.
 *
 * Opening a stored tensor (otensor) examines all its items. It is kept for later opens, within a
 * limit in bytes, and is read without a lock: see tensor_read.h.
 *
 * Threads: all functions from any thread.
 */
#ifndef READ_FETCH_H
#define READ_FETCH_H

#include "source/item_source.h"

#include <stddef.h>
#include <stdint.h>

struct catalog;
struct catalog_object;
struct catalog_tensor;
struct chunk_loc;
struct chunkmap;
struct ckpt_err;
struct derived;
struct fetch;
struct files;
struct otensor;
struct parts;
struct vtensor;

struct fetch_opts {
	size_t cache_bytes; /* decoded blocks */
	size_t map_bytes;   /* limit of the chunk maps of tensors that are not open */
	/* Called if the index is damaged: returns another catalog of the same contents, or
	 * fails. */
	int (*renew)(void *arg, struct catalog **ret, struct ckpt_err *e);
	void *renew_arg;
	const struct derived *derived; /* borrowed: the catalog's computed tensors; see derived.h */
	size_t n_derived;
	const char *index; /* where to keep what is found inside items; NULL: nowhere */
	/* Computes bytes of what the caller calls `number`; see fetch_read_kept. May be NULL. */
	int (*compute)(void *arg, uint32_t number, void *buf, size_t len, uint64_t off,
		       struct ckpt_err *e);
	void *compute_arg;
};

/* catalog and files are borrowed and must outlive it. */
int fetch_new(struct catalog *catalog, struct files *files, const struct fetch_opts *opts,
	      struct fetch **ret, struct ckpt_err *e);
void fetch_free(struct fetch *f); /* NULL is fine; no tensor may be open */

/* Opens tensor number i of the catalog: its files, its chunk map, every item. */
int otensor_open(struct fetch *f, size_t i, struct otensor **ret, struct ckpt_err *e);
void otensor_close(struct fetch *f, struct otensor *t);
/* NULL: tensor number i is stored. A computed one has one chunk, in no file. */
const struct derived *fetch_derived(const struct fetch *f, size_t i);
/* Where the chunks of an opened tensor are: those in shards have places of their own, whose
 * encodings are not the catalog's. */
const struct chunk_loc *otensor_locs(const struct otensor *t);
/* The number of bytes that chunk i of an opened tensor needs in its item, decoded. */
uint64_t otensor_needs(const struct otensor *t, uint32_t i);
/* Loads only its chunk map, without examining items, for callers that list chunks; a chunk in a
 * shard is where its shard is. The caller closes *ret. */
int otensor_map(struct fetch *f, size_t i, struct otensor **ret, const struct chunkmap **ret_map,
		struct ckpt_err *e);

/*
 * Examines all items behind n virtual tensors (make(arg, i) returns the i-th, which is freed here),
 * as opening them would, many at a time: for readers that open them later, one after another. Items
 * are not examined twice.
 */
typedef int vtensor_make_fn(void *arg, size_t i, struct vtensor **ret, struct ckpt_err *e);
int fetch_look(struct fetch *f, size_t n, vtensor_make_fn *make, void *arg, struct ckpt_err *e);

/* The number of bytes of an object without a fault: of its text, or of its decoded item. */
int object_size(struct fetch *f, const struct catalog_object *o, uint64_t *ret, struct ckpt_err *e);
int64_t object_read(struct fetch *f, const struct catalog_object *o, void *buf, size_t len,
		    uint64_t off, struct ckpt_err *e);

/* The bytes of an item. */
int fetch_item(struct fetch *f, const struct chunk_loc *loc, struct item_source *ret,
	       struct ckpt_err *e);
/*
 * For bytes that take long to compute and are kept in the block cache; `number` is the caller's,
 * and has `bytes` of them. The first reads like tensor_read. The second computes, ahead of a
 * reader, the missing blocks of a range, as far as that is possible; false: none is missing.
 */
int fetch_read_kept(struct fetch *f, uint32_t number, uint64_t bytes, void *buf, size_t len,
		    uint64_t off, struct parts *parts, struct ckpt_err *e);
bool fetch_keep(struct fetch *f, uint32_t number, uint64_t bytes, uint64_t off, uint64_t len);
/* Does the item consist of nothing but elements? */
bool fetch_is_elements(const struct fetch *f, const struct chunk_loc *loc);
struct blockcache *fetch_blocks(struct fetch *f);

/* Counts of tensor reads: copies out of items, and the bytes copied; bytes of quantised blocks. */
enum fetch_count { FETCH_COPIES, FETCH_COPIED, FETCH_QUANTISED, FETCH_COUNTS };
void fetch_counts(const struct fetch *f, uint64_t ret[static FETCH_COUNTS]);

#endif
