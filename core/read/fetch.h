/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fetch - carrying out plans: opened tensors and objects of one checkpoint.
 *
 * A stored tensor (otensor) is opened with all its items looked into, kept for later opens under a
 * byte bound, and read without any lock of its own: see tensor_read.h.
 *
 * Threads: all functions from any thread.
 */
#ifndef READ_FETCH_H
#define READ_FETCH_H

#include "source/item_source.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct catalog;
struct catalog_object;
struct catalog_tensor;
struct chunk_loc;
struct chunkmap;
struct ckpt_err;
struct fetch;
struct files;
struct otensor;
struct vtensor;

struct fetch_opts {
	size_t cache_bytes; /* decoded blocks */
	size_t map_bytes;   /* chunk maps of tensors that nobody has open */
	/* The index turned out to be damaged: give another catalog of the same contents, or fail.
	 */
	int (*renew)(void *arg, struct catalog **ret, struct ckpt_err *e);
	void *renew_arg;
	const char *index; /* where what is found inside items may be kept; NULL: nowhere */
};

/* catalog and files are borrowed and outlive it. */
int fetch_new(struct catalog *catalog, struct files *files, const struct fetch_opts *opts,
	      struct fetch **ret, struct ckpt_err *e);
void fetch_free(struct fetch *f); /* NULL is fine; no tensor may be open */

/* Open tensor number i of the catalog: its files, its chunk map, every item. */
int otensor_open(struct fetch *f, size_t i, struct otensor **ret, struct ckpt_err *e);
void otensor_close(struct fetch *f, struct otensor *t);
/* Its chunk map without looking into items, for those who list chunks. *ret is the caller's to
 * close. */
int otensor_map(struct fetch *f, size_t i, struct otensor **ret, const struct chunkmap **ret_map,
		struct ckpt_err *e);

/*
 * Look into all items behind n virtual tensors (make(arg, i) gives the i-th, which is freed here),
 * as opening them would, many at a time: for readers that open them later, one after another. What
 * has been looked into once is not looked into again.
 */
typedef int vtensor_make_fn(void *arg, size_t i, struct vtensor **ret, struct ckpt_err *e);
int fetch_look(struct fetch *f, size_t n, vtensor_make_fn *make, void *arg, struct ckpt_err *e);

/* Bytes of an object, which has no fault: its text, or its item after undoing the transforms. */
int object_size(struct fetch *f, const struct catalog_object *o, uint64_t *ret, struct ckpt_err *e);
int64_t object_read(struct fetch *f, const struct catalog_object *o, void *buf, size_t len,
		    uint64_t off, struct ckpt_err *e);

/* The bytes of an item. */
int fetch_item(struct fetch *f, const struct chunk_loc *loc, struct item_source *ret,
	       struct ckpt_err *e);
struct blockcache *fetch_blocks(struct fetch *f);

/* What reads of tensors have done: moves out of items, and the bytes that they moved. */
enum fetch_count { FETCH_COPIES, FETCH_COPIED, FETCH_COUNTS };
void fetch_counts(const struct fetch *f, uint64_t ret[static FETCH_COUNTS]);

#endif
