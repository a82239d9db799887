/* SPDX-License-Identifier: Apache-2.0 */
/*
 * helpers - one long computation by several threads, as many as the machine has idle CPUs for.
 *
 *	struct helpers h;
 *	helpers_init(&h);
 *	rc = helpers_run(&h, blocks, 100, encode, &job, &e);
 *
 * All who share a struct helpers have at most one thread for each CPU together, besides their own.
 * If no thread can be started, the caller does the work. Private to core/read.
 *
 * Threads: any; a helper inherits the caller's signal mask and has ended when helpers_run returns.
 */
#ifndef READ_HELPERS_H
#define READ_HELPERS_H

#include <stdint.h>

struct ckpt_err;

struct helpers {
	unsigned most;	       /* threads at once */
	_Atomic unsigned busy; /* of them */
};

void helpers_init(struct helpers *h);

/* Does units [from, from + n). Called by several threads at once for different ranges. */
typedef int helpers_fn(void *arg, uint64_t from, uint64_t n, struct ckpt_err *e);

/*
 * Calls fn until all units [0, n) are done, with at least `least` of them each time unless there
 * are fewer. Returns 0, or the error of the first range that failed; the others may have been done.
 */
int helpers_run(struct helpers *h, uint64_t n, uint64_t least, helpers_fn *fn, void *arg,
		struct ckpt_err *e);

#endif
