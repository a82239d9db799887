/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hyperparallel_resolve - finds the bytes of every item recorded as "in that file, under that
 * name".
 *
 * Private to core/format/hyperparallel. Threads: one at a time.
 */
#ifndef HYPERPARALLEL_HYPERPARALLEL_RESOLVE_H
#define HYPERPARALLEL_HYPERPARALLEL_RESOLVE_H

#include <stdint.h>

struct catalog_writer;
struct dcp_inside;
struct dcp_records;
struct digest;
struct ckpt_err;
struct name_list;
struct place;

struct hp_directory {
	struct place *place;
	const struct name_list *files; /* changes to these invalidate the index; natural order */
	uint32_t plain;		       /* the encoding of tensors that are stored as they are */
};

/*
 * Opens every container that the records name, once each, and stores what it finds in the records,
 * for dcp_join. A container that is missing or cannot be opened is not an error here: its tensors
 * are reported as incomplete.
 */
int hp_resolve(const struct hp_directory *d, struct dcp_records *r, struct catalog_writer *w,
	       struct ckpt_err *e);

/* dcp_join_opts.same_object; arg: the directory. 0 if it is unknown, or known only by reading a
 * lot. */
int hp_same_object(void *arg, const char *a, uint64_t a_off, const char *b, uint64_t b_off,
		   uint64_t length, struct ckpt_err *e);
/* dcp_join_opts.sample; arg: the directory. */
int hp_sample(void *arg, const struct dcp_inside *q, struct digest *ret, struct ckpt_err *e);

#endif
