/* SPDX-License-Identifier: Apache-2.0 */
/*
 * catalog_internal - an open chunk index, for the files that read it:
 *
 *	catalog_query.c		opens it, and gives access to its tables
 *	catalog_map.c		reads a chunk map when it is asked for
 *	catalog_computed.c	adds tensors that are in no file
 *
 * Threads: see catalog_query.h. The tables change only in catalog_compute, before others have the
 * catalog.
 */
#ifndef INDEX_CATALOG_INTERNAL_H
#define INDEX_CATALOG_INTERNAL_H

#include "base/arena.h"
#include "base/digest.h"
#include "index/catalog_query.h"

#include <pthread.h>
#include <sqlite3.h>

/* Before the id of a file that can change without another time: see place_is_settled. */
#define CATALOG_UNSETTLED '?'

struct catalog_file;
struct ckpt_err;

struct catalog {
	pthread_mutex_t lock; /* db, map, cover_work, covered */
	sqlite3 *db;
	struct catalog_file *file; /* the file that db reads; NULL in memory */
	sqlite3_blob *map;	   /* handle of the last chunk map read; moved from row to row */
	uint64_t cover_work;	   /* left of BOXES_MAX_WORK for all tensors together */
	uint8_t *covered;	   /* by tensor: its map was checked and has no holes */
	struct arena shapes;
	char *directory, *metadata_list; /* texts are used in place */
	char *bytes;			 /* of chunks in the index, or NULL */
	struct catalog_tensor *tensors;
	struct catalog_object *objects;
	struct stored_file *sources;
	struct catalog_metadata *metadata;
	const char **encodings;
	size_t n_rows; /* of the index */
	size_t n_all;  /* tensors: the shown ones, then those that are hidden */
	size_t n_tensors, n_objects, n_sources, n_metadata, n_encodings;
	size_t inline_source; /* + 1; 0: no chunk is in the index */
	uint64_t inline_xxh64;
	char seal[DIGEST_HEX];
};

/* Reads a catalog from an open connection, and takes ownership of it, even on failure. */
int catalog_from_db(sqlite3 *db, struct catalog **ret, struct ckpt_err *e);
/* The descriptor of the catalog's file, borrowed; -1: the catalog is in memory. */
int catalog_fd(const struct catalog *c);

int catalog_damaged(struct ckpt_err *e, const char *what);
/* Reports why a value could not be opened: `what` if it does not exist or is a number. */
int catalog_no_value(struct catalog *c, const char *what, struct ckpt_err *e);

#endif
