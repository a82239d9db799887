/* SPDX-License-Identifier: Apache-2.0 */
/*
 * values_state - the statistics of tensors that have been read, in a file that outlives the process.
 *
 *	rc = values_state_open(&s, path, &id, &e);
 *	for (uint64_t i = 0; i < s.known; i++)
 *		rc = values_state_next(&s, &any, &tally, hist, &e);	// of the first tensors, in order
 *	rc = values_state_add(&s, any, &tally, hist, &e);		// of each that was read since
 *	values_state_close(&s, complete);
 *
 * The file has a header that identifies what was asked for, and a record for each tensor with a hash of
 * it: one that was not written to its end ends the file. It is of this machine and this version.
 *
 * Private to core/ckpt. Threads: one at a time.
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
	uint64_t known;	  /* records there were */
	uint64_t at, end; /* bytes: of the next record to read, of the next to add */
	uint64_t *hist;	  /* room for one */
};

/* Creates the file if need be, and locks it. EEXIST: it is something else; EBUSY. */
int values_state_open(struct values_state *s, const char *path, const struct digest *id,
		      struct ckpt_err *e);
/* *to begins as an empty histogram; NULL: there is none. */
int values_state_next(struct values_state *s, bool *ret_any, struct tally *ret, struct hist *to,
		      struct ckpt_err *e);
int values_state_add(struct values_state *s, bool any, const struct tally *tally,
		     const struct hist *hist, struct ckpt_err *e);
/* complete: there is nothing to go on with, and the file is removed. */
void values_state_close(struct values_state *s, bool complete);

#endif
