/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hyperparallel_resolve - from "in that file, under that name" to the bytes of every item.
 *
 * Private to core/format/hyperparallel. Threads: one at a time.
 */
#ifndef HYPERPARALLEL_HYPERPARALLEL_RESOLVE_H
#define HYPERPARALLEL_HYPERPARALLEL_RESOLVE_H

#include <stdint.h>

struct catalog_writer;
struct dcp_records;
struct ckpt_err;
struct name_list;
struct place;

struct hp_directory {
	struct place *place;
	const struct name_list *files; /* in natural order; the index follows their changes */
};

/*
 * Look into every container that the records name, each once, and put what is found into the
 * records, for dcp_join. A container that is not there, or not to be opened, is no error: its
 * tensors will be told from those of others.
 */
int hp_resolve(const struct hp_directory *d, struct dcp_records *r, struct catalog_writer *w,
	       struct ckpt_err *e);

/* dcp_join_opts.same_object; arg: the directory. 0 where it cannot be told, or only by reading
 * much. */
int hp_same_object(void *arg, const char *a, uint64_t a_off, const char *b, uint64_t b_off,
		   uint64_t length, struct ckpt_err *e);

#endif
