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
#include "model/chunkmap.h"
#include "read/fetch.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

struct catalog;
struct catalog_found;
struct counters;
struct item_cache;

struct encoding {
	enum { ENC_UNKNOWN, ENC_DCP, ENC_RAW } kind;
	uint32_t coding; /* see codec/coding.h */
	struct raw_layout raw;
};

enum otensor_state { OT_EMPTY, OT_MAP, OT_ITEMS };

/* A tensor whose chunk map is in memory. */
struct otensor {
	const struct catalog_tensor *t;
	struct chunkmap *map;
	struct payload *payloads; /* one per chunk, their strides behind them */
	bool odd;		  /* some payload needs payload_resolve */
	bool encoded;		  /* some item has to be decoded */

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
	struct encoding *encodings;
	const char *const *encoding_names;
	struct fetch_opts opts;
	struct counters *counts; /* enum fetch_count */

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

#endif
