/* SPDX-License-Identifier: Apache-2.0 */
/*
 * faults - the faults of tensors, objects and files, reported once for each cause.
 *
 *	fault: a, b, c, 97 more and the file itself: data file '__0_0.distcp' is missing
 *	fault: s: no chunk holds the elements at [0,0] of size [2,3]; similarly t
 *	warning: data file '__0_0.distcp' is newer than the metadata (and 1023 more like it)
 *
 * Sentences that differ only in numbers and in quoted text have the same cause. At most 256 causes
 * are kept; faults with other causes are only counted.
 */
#ifndef CMD_FAULTS_H
#define CMD_FAULTS_H

#include <stddef.h>
#include <stdint.h>

struct buf;
struct fault_cause;

struct faults { /* { 0 } is empty */
	struct fault_cause *v;
	size_t n;
	uint64_t others; /* faults whose cause is not kept */
	int err;	 /* ENOMEM, or 0 */
};

/* before: how the line begins, a constant; fqn: NULL for the fault of a file. */
void faults_add(struct faults *f, const char *before, const char *fqn, size_t len,
		const char *what);
/* How many causes begin with `before`. */
size_t faults_causes(const struct faults *f, const char *before);
/* Shows at most max_lines causes, in order of their first fault; the rest are counted. */
void faults_show(const struct faults *f, size_t max_lines, struct buf *b);
void faults_release(struct faults *f);

#endif
