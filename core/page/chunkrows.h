/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chunkrows - the positions of tensors' chunks in compact form: tensors with equal chunk boxes
 * share one cut, and tensors stored in the same files share one list of files.
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
	/* For the tensor that is being read: */
	uint64_t *numbers; /* for each chunk: offsets, lengths, number of its file */
	size_t n_chunks, cap, n_dims;
	struct buf line;
	bool too_many;
};

#define CHUNKROWS_INIT(limit) \
	{ \
		.paths = DICT_INIT(limit), .cuts = DICT_INIT(limit), .files = DICT_INIT(limit), \
		.line = BUF_INIT(limit) \
	}

/* Reads the chunks of the first n tensors of c. */
int chunkrows_read(struct chunkrows *r, struct ckpt *c, uint64_t n, struct ckpt_err *e);
/*
 * Writes sections: "paths" has names, each as the length of the prefix shared with the previous
 * one, the length of the rest, and the rest; "cuts" and "files" have one entry after another.
 * Entries beyond the page's limit (for n tensors) are left out, and the chunks of the tensors that
 * use them are unknown.
 */
struct page;
int chunkrows_write(struct chunkrows *r, struct page *p, struct ckpt_err *e);
void chunkrows_release(struct chunkrows *r);

#endif
