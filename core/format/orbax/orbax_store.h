/* SPDX-License-Identifier: Apache-2.0 */
/*
 * orbax_store - the keys and values of an OCDBT store: its whole tree is read at once.
 *
 *	rc = orbax_store_open(place, "default/", w, &s, e);
 *	rc = s->s.ops->arrays(&s->s, each, arg, e);
 *	orbax_store_free(s);
 *
 * A value is in memory, if the tree has it, or in a data file. The index depends on the manifest,
 * by its hash, and on the files that have nodes. A store takes at most a GiB of memory, and as much
 * work as 4 GiB of nodes need; more is EFBIG. Private to core/format/orbax.
 *
 * Threads: one at a time.
 */
#ifndef FORMAT_ORBAX_ORBAX_STORE_H
#define FORMAT_ORBAX_ORBAX_STORE_H

#include "format/zarr/zarr_store.h"

#include <stdbool.h>

struct catalog_writer;

struct orbax_store {
	struct zarr_store s; /* first */
	const char *top;     /* "DIR/" or "" */
	size_t n_arrays;     /* keys of arrays' metadata; without any, arrays that lost theirs */
};

/* top is borrowed. */
int orbax_store_open(struct place *place, const char *top, struct catalog_writer *w,
		     struct orbax_store **ret, struct ckpt_err *e);
void orbax_store_free(struct orbax_store *s); /* NULL is fine */

/* The hexadecimal generation of "manifest.%016x". */
bool orbax_store_numbered(const char *name, uint64_t *ret);

#endif
