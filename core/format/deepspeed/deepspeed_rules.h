/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deepspeed_rules - what universal_checkpoint_info says of a parameter: how slices of tensor
 * parallelism make up the tensor. Private to core/format/deepspeed.
 *
 * Threads: one at a time.
 */
#ifndef DEEPSPEED_DEEPSPEED_RULES_H
#define DEEPSPEED_DEEPSPEED_RULES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The tensor's sub-parameters; slice t has a part of each, one after the other. */
struct ds_parts {
	size_t n;	       /* 0: unknown */
	size_t dim;	       /* they follow each other along this dimension */
	size_t rank;	       /* dimensions of the shape that says so; 0: any */
	const uint64_t *width; /* [n][slices]: of each part, in each slice; NULL: equal ones */
};

struct ds_rule {
	bool listed;	 /* slices are not joined */
	bool same;	 /* each slice is the whole tensor */
	bool vocabulary; /* rows beyond the vocabulary are padding */
	struct ds_parts parts;
};

struct ds;
struct pk_str;
/* Of a tensor, after ds_join_prepare; NULL if nothing is recorded. */
const struct ds_rule *ds_rule_of(const struct ds *d, const struct pk_str *name);
bool ds_rule_vocabulary(const struct ds *d, uint64_t *ret); /* false: not recorded */

#endif
