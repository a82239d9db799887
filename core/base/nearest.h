/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nearest - which of many names was probably meant by a name that does not exist.
 *
 *	struct nearest n = NEAREST_INIT(want, strlen(want));
 *	for (i = 0; i < n_names; i++)
 *		nearest_try(&n, name[i], strlen(name[i]), i);
 *	for (k = 0; k < n.n; k++)
 *		printf("did you mean '%s'?\n", name[n.best[k].id]);
 *
 * Nearest are names of which one is a suffix of the other after a dot or slash ("q_proj.weight");
 * then those that differ in a few bytes, ignoring case; then those that contain the given name. The
 * time for all names together is bounded: after 2^28 steps no more are considered.
 *
 * Threads: one at a time.
 */
#ifndef BASE_NEAREST_H
#define BASE_NEAREST_H

#include <stddef.h>
#include <stdint.h>

enum { NEAREST_MAX = 3, NEAREST_STEPS = 1 << 28 };

struct nearest {
	const char *want;
	size_t len;
	uint64_t steps; /* steps left */
	size_t n;
	struct {
		uint64_t id; /* the caller's */
		uint64_t far;
	} best[NEAREST_MAX]; /* the nearest first; of equally near ones, those that came first */
};

#define NEAREST_INIT(want_, len_) \
	{ \
		.want = (want_), .len = (len_), .steps = NEAREST_STEPS \
	}

void nearest_try(struct nearest *n, const char *name, size_t len, uint64_t id);

#endif
