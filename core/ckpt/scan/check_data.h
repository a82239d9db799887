/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_data - reads items and files to the end, in several threads, and compares the checksums
 * that are stored with them. Private to core/ckpt/scan.
 *
 * A thread takes one file at a time. Faults are reported in the order of the files, so they do not
 * depend on which thread was faster.
 */
#ifndef CKPT_CHECK_DATA_H
#define CKPT_CHECK_DATA_H

#include "model/chunkmap.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt_err;
struct engine;

/* An item to read, and its owner. */
struct check_item {
	struct chunk_loc loc;
	uint64_t needs; /* decoded bytes, at least */
	uint32_t owner; /* catalog number of a tensor or object */
	bool object;
	bool in_member; /* of the file's archive: it is not to be read by itself */
};

struct check_data {
	struct engine *eng;
	struct check_item *items; /* in any order, which changes */
	size_t n;
	unsigned jobs; /* threads; 0: one per CPU, at most 4 */
	/* fqn: len bytes, or NULL if the fault concerns a file. Called on the calling thread. */
	void (*fault)(void *arg, const char *fqn, size_t len, const char *what);
	/* Bytes; may be NULL. Called by one thread at a time, but by any. */
	void (*progress)(void *arg, uint64_t done, uint64_t total);
	void *arg;
	/* Results: bytes read; CRCs and hashes of files that matched. */
	uint64_t bytes, crcs, hashes;
};

/* Returns 0 also if faults were found. */
int check_data_run(struct check_data *d, struct ckpt_err *e);

#endif
