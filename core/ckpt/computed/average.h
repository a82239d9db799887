/* SPDX-License-Identifier: Apache-2.0 */
/*
 * average - the option average=: every floating-point tensor is the weighted sum of those of
 * several checkpoints, and all else comes from one of them, the base.
 *
 *	step-1000:0.5,step-2000:0.5	checkpoints of a run and their weights
 *	step-1000,step-2000		equal weights, which sum to 1
 *	last:8				the last 8 of the run, with equal weights
 *	ema:0.9:last:8			of the same, an exponential moving average that begins
 *					with the oldest: 0.9 of what was so far and 0.1 of the next
 *
 * If a run is opened, a name without '/' is a checkpoint of it, and the base is the last one of the
 * list. If a checkpoint is opened, it is the base; the names are paths, and '.' is itself.
 *
 * Private to core/ckpt.
 *
 * Threads: made before the checkpoint is used, then immutable.
 */
#ifndef CKPT_AVERAGE_H
#define CKPT_AVERAGE_H

#include <stddef.h>

struct ckpt_err;
struct ckpt_opts;
struct digest;
struct engine;
struct place;

struct average_source {
	char *path; /* NULL: the base */
	double weight;
};

struct average_plan {
	struct average_source *v; /* n >= 1, unless nothing is averaged */
	size_t n, cap;
};

void average_release(struct average_plan *p);

/*
 * Of the run at `place`, whose absolute path or address is `root`: *ret_base is the path of the
 * base. 1: it is not a run. The caller frees both, also after a failure.
 */
int average_of_run(struct place *place, const char *root, const struct ckpt_opts *o,
		   struct average_plan *ret, char **ret_base, struct ckpt_err *e);

/* Opens the others of eng->average and adds the averages to the catalog. */
int average_derive(struct engine *eng, const struct ckpt_opts *o, struct ckpt_err *e);
/* The option's value for the base, with paths; NULL: out of memory. The caller frees it. */
char *average_text(const struct average_plan *p);
void average_digest(const struct average_plan *p, struct digest *d);

#endif
