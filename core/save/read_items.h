/* SPDX-License-Identifier: Apache-2.0 */
/*
 * read_items - which parts of which stored chunks fill the chunks that a process needs.
 *
 * Threads: pure.
 */
#ifndef SAVE_READ_ITEMS_H
#define SAVE_READ_ITEMS_H

#include "save/metadata.h"

#include <stddef.h>
#include <stdint.h>

struct arena;
struct ckpt_err;
struct ckpt_local_tensor;

/* read_list_release frees the items; their numbers are in the arena. */
struct read_list {
	struct ckpt_read_item *items;
	size_t count, cap;
	struct arena *a;
};
void read_list_release(struct read_list *l);

/*
 * One item for every overlapping pair of a shard of t and a stored chunk, shard by shard, chunks in
 * the order of their list; hints are positions in the lists. Empty boxes give no item; a tensor
 * without dimensions is read whole. Names are borrowed. If t's shape is not the saved one, the part
 * that both have in common is read.
 *
 * Fails with ENOMEM, EINVAL for another number of dimensions, ERR_CORRUPT for chunks outside their
 * tensor; the list then has the items found before.
 */
int read_list_add_tensor(struct read_list *l, const char *fqn, uint32_t fqn_len,
			 const struct ckpt_tensor_meta *saved, const struct ckpt_local_tensor *t,
			 struct ckpt_err *e);
/* The item that reads all of a bytes entry. */
int read_list_add_bytes(struct read_list *l, const char *fqn, uint32_t fqn_len, struct ckpt_err *e);

#endif
