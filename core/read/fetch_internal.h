/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fetch_internal - declarations shared by the files of fetch.
 *
 * Private to core/read.
 */
#ifndef READ_FETCH_INTERNAL_H
#define READ_FETCH_INTERNAL_H

#include "base/list.h"
#include "codec/coding.h"
#include "format/item.h"
#include "format/raw.h"
#include "format/shard.h"
#include "model/chunkmap.h"
#include "read/fetch.h"
#include "read/helpers.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

struct buf;
struct catalog;
struct catalog_found;
struct counters;
struct cursor;
struct derived;
struct item_cache;
struct tensor_reader;

struct encoding {
	const char *name;
	enum { ENC_UNKNOWN, ENC_DCP, ENC_RAW, ENC_SHARD, ENC_COMPUTED } kind;
	uint32_t coding; /* see codec/coding.h */
	struct raw_layout raw;
	struct shard_layout *shard; /* of kind ENC_SHARD, also below */
	const char *chunks;	    /* the name of its chunks' encoding */
	uint32_t inner, absent;	    /* the encoding of its chunks, and of those that it lacks */
};

enum otensor_state { OT_EMPTY, OT_MAP, OT_ITEMS };

/* A tensor whose chunk map is in memory. */
struct otensor {
	const struct catalog_tensor *t;
	struct chunkmap *map;
	struct chunk_loc *locs;	  /* one per chunk: the map's, or ours if some are inside shards */
	struct payload *payloads; /* one per chunk, followed by their strides */
	bool odd;		  /* some payload needs payload_resolve */
	bool encoded;		  /* some item has to be decoded or computed */
	struct tensor_reader **inputs; /* of a computed tensor: all of them, open; else NULL */

	/* Under fetch.lock: */
	size_t index;
	uint32_t pins;
	enum otensor_state state;
	bool busy; /* a thread is bringing it to a higher state */
	size_t bytes;
	LIST_LINK(struct otensor) link; /* only while not pinned */
};

struct fetch {
	const struct catalog_tensor *tensors;
	size_t n_tensors;
	struct item_store store;
	struct item_cache *items;
	struct catalog_found *found;
	struct encoding *encodings; /* the catalog's, then others that are parts of those */
	size_t n_encodings, cap_encodings;
	uint32_t inline_file; /* the source whose bytes are in the index, inline_size of them */
	uint64_t inline_size;
	uint32_t computed;		/* the encoding of computed tensors */
	const struct derived **derived; /* by tensor number; NULL: there are none */
	struct fetch_opts opts;
	struct counters *counts; /* enum fetch_count */
	struct helpers helpers;	 /* for blocks, which take long to compute */

	pthread_mutex_t renew_lock;
	_Atomic(struct catalog *) maps; /* where chunk maps are read from */
	struct catalog *renewed;	/* ours to close */

	pthread_mutex_t lock;
	pthread_cond_t idle;
	struct otensor **open;	 /* by tensor number */
	_Atomic uint8_t *looked; /* by tensor number: all its items have been examined */
	LIST(struct otensor) unused;
	size_t bytes;
};

/* ---- derived.c ---- */

/* The chunk map of computed tensor i: one chunk, or none if it has no elements. */
int derived_map(const struct fetch *f, size_t i, struct chunkmap **ret, struct ckpt_err *e);
/* Opens the inputs of t; and closes them, which need not be open. */
int derived_open(struct fetch *f, struct otensor *t, struct ckpt_err *e);
void derived_close(struct fetch *f, struct otensor *t);
/* The coding of its item. */
uint32_t derived_coding(const struct fetch *f, size_t i);
/* For item_store: arg is the fetch. */
int derived_compute(void *arg, uint32_t number, void *buf, size_t len, uint64_t off,
		    struct ckpt_err *e);
bool derived_want(void *arg, uint32_t number, uint64_t off, uint64_t len);

/* ---- fetch_shards.c ---- */

/* Finds the chunks of t->locs that are in shards. */
int shards_resolve(struct fetch *f, struct otensor *t, struct ckpt_err *e);
/* The place of chunk i, found in a shard, as a record; and back: false if that is not possible. */
void shards_add_found(const struct fetch *f, const struct otensor *t, uint32_t i, struct buf *b);
bool shards_found(const struct fetch *f, struct otensor *t, uint32_t i, struct cursor *d);

#endif
