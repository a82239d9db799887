/* SPDX-License-Identifier: Apache-2.0 */
/*
 * namelist - names in natural order, each with a number of the caller's, searchable by name or by
 * file name (name.h).
 *
 *	struct namelist t = { 0 };
 *	while (...)
 *		rc = namelist_add(&t, fqn, len, index, e);
 *	rc = namelist_finish(&t, stored, arg, e);
 *	namelist_file(&t, 0, ".npy", name);             // "a%2Fb.npy"
 *	pos = namelist_lookup(&t, name, ".npy");        // 0
 *	namelist_release(&t);
 *
 * Names may contain any byte. They are borrowed and must outlive the list, unless they come from
 * namelist_copy.
 *
 * Threads: immutable after namelist_finish.
 */
#ifndef TENSOR_NAMELIST_H
#define TENSOR_NAMELIST_H

#include "base/arena.h"
#include "tensor/name.h"

#include <stddef.h>
#include <stdint.h>

struct ckpt_err;
struct namelist_cut;

struct named {
	const char *fqn;
	uint32_t len;
	uint32_t index; /* the caller's */
};

struct namelist {
	struct named *v;
	size_t n;

	/* private */
	size_t cap;
	struct arena texts; /* of namelist_copy */
	struct namelist_cut *cut;
	size_t n_cut;
};

#define NAMELIST_MAX_SUFFIX 5 /* bytes: ".json" */

/* On failure the list is unchanged. */
int namelist_add(struct namelist *t, const char *fqn, size_t len, uint32_t index,
		 struct ckpt_err *e);
/* A NUL-terminated copy that lives as long as the list; NULL: out of memory. */
const char *namelist_copy(struct namelist *t, const char *s, size_t len);

/* The checkpoint's name for number `index`. */
typedef void namelist_stored_fn(const void *arg, uint32_t index, const char **ret, size_t *ret_len);
/*
 * Sorts the list. EEXIST if two names are equal, with that name and both stored ones.
 * ERR_UNSUPPORTED if two names that are too long for a file name have the same hash. After a
 * failure only namelist_release may be called.
 */
int namelist_finish(struct namelist *t, namelist_stored_fn *stored, const void *arg,
		    struct ckpt_err *e);
void namelist_release(struct namelist *t);

/* All functions below: only after namelist_finish. Suffixes have at most NAMELIST_MAX_SUFFIX
 * bytes. */

/* Position of a name, or -1. */
int64_t namelist_find(const struct namelist *t, const char *fqn, size_t len);
/* The file name of the name at pos < n; returns its length. */
size_t namelist_file(const struct namelist *t, size_t pos, const char *suffix,
		     char out[static NAME_CAP]);
/* The position whose file name with that suffix this is, or -1. "%41" is not accepted for "A". */
int64_t namelist_lookup(const struct namelist *t, const char *file, const char *suffix);

#endif
