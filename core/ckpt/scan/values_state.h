/* SPDX-License-Identifier: Apache-2.0 */
/*
 * values_state - a file that stores the statistics of tensors already read, for a later process.
 *
 *	rc = values_state_open(&s, path, &id, &e);
 *	for (uint64_t i = 0; i < s.known; i++)		// the first tensors, in order
 *		rc = values_state_next(&s, &any, &tally, hist, &e);
 *	rc = values_state_add(&s, any, &tally, hist, &e);	// each tensor read since
 *	values_state_close(&s, complete);
 *
 * The file has a header that identifies the request, and a record with a hash for each tensor; the
 * first incomplete record ends the file. The format depends on the machine and the version.
 *
 * Private to core/ckpt/scan. Threads: one at a time.
 */
#ifndef CKPT_VALUES_STATE_H
#define CKPT_VALUES_STATE_H

#include "codec/tally.h"

#include <stdbool.h>
#include <stdint.h>

struct ckpt_err;
struct digest;
struct hist;

struct values_state {
	const char *path; /* borrowed */
	int fd;
	uint64_t known;	  /* number of records found */
	uint64_t at, end; /* offsets: of the next record to read, of the next to add */
	uint64_t *hist;	  /* room for one histogram */
};

/* Creates the file if needed, and locks it. EEXIST: it is another file; EBUSY: it is in use. */
int values_state_open(struct values_state *s, const char *path, const struct digest *id,
		      struct ckpt_err *e);
/* *to must be an empty histogram; NULL: there is none. */
int values_state_next(struct values_state *s, bool *ret_any, struct tally *ret, struct hist *to,
		      struct ckpt_err *e);
int values_state_add(struct values_state *s, bool any, const struct tally *tally,
		     const struct hist *hist, struct ckpt_err *e);
/* complete: there is nothing to resume, so the file is removed. */
void values_state_close(struct values_state *s, bool complete);

#endif
