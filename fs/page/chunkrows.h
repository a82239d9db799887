/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chunkrows - where the chunks of tensors are, in few bytes: tensors that are cut alike share one cut, and
 * those that lie in the same files share one list of them.
 *
 * Threads: one at a time.
 */
#ifndef PAGE_CHUNKROWS_H
#define PAGE_CHUNKROWS_H

#include "page/dict.h"

#include <ckptfs/ckpt.h>

struct chunkrow {
	uint32_t cut, files; /* numbers; 0: unknown */
};

struct chunkrows {
	struct dict paths, cuts, files;
	struct chunkrow *rows; /* one for each tensor */
	size_t n;
	/* Of the tensor that is being read: */
	uint64_t *numbers; /* for each chunk its offsets, its lengths, the number of its file */
	size_t n_chunks, cap, n_dims;
	struct buf line;
	bool too_many;
};

#define CHUNKROWS_INIT(limit) \
	{ \
		.paths = DICT_INIT(limit), .cuts = DICT_INIT(limit), .files = DICT_INIT(limit), \
		.line = BUF_INIT(limit) \
	}

/* Chunks of the first n tensors of c. */
int chunkrows_read(struct chunkrows *r, struct ckpt *c, uint64_t n, struct ckpt_err *e);
/*
 * As sections: "paths" has names, each as the length of what it shares with the one before, the length of
 * the rest, and the rest; "cuts" and "files" one entry after another. Entries beyond the page's limit
 * (for n tensors) are left out, and the tensors that have them are unknown.
 */
struct page;
int chunkrows_write(struct chunkrows *r, struct page *p, struct ckpt_err *e);
void chunkrows_release(struct chunkrows *r);

#endif
