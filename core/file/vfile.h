/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vfile - what a virtual file consists of: an ordered list of segments without gaps.
 *
 *	struct vfile f = VFILE_INIT;
 *	vfile_bytes(&f, header, n);
 *	vfile_tensor(&f, id, bytes);
 *	rc = vfile_done(&f, &e);      // reports errors of all the calls above
 *	vfile_release(&f);
 *
 * Threads: one while it is built, any number afterwards.
 */
#ifndef FILE_VFILE_H
#define FILE_VFILE_H

#include "base/buf.h"

#include <stddef.h>
#include <stdint.h>

struct ckpt_err;

enum segment_kind {
	SEG_BYTES,  /* literal: `from` is its offset in vfile.text */
	SEG_LENT,   /* literal: at `lent`, which outlives the file */
	SEG_ZERO,   /* padding */
	SEG_TENSOR, /* a whole virtual tensor: id */
	SEG_OBJECT, /* an object's decoded bytes: id is its number in the catalog */
	SEG_FILE,   /* bytes [from, from+len) of asset number id */
};

struct segment {
	uint64_t off, len; /* in the virtual file */
	uint64_t from;
	uint64_t id;
	const void *lent;
	enum segment_kind kind;
};

#define VFILE_MAX_TEXT ((size_t)1 << 30) /* bytes of literals in one file */

struct vfile {
	uint64_t size;
	struct segment *seg;
	size_t n, cap;
	struct buf text;
	int err; /* sticky: 0, ENOMEM, EFBIG */
};

#define VFILE_INIT \
	{ \
		.text = BUF_INIT(VFILE_MAX_TEXT) \
	}

/* Each appends a segment, unless its length is 0. Adjacent literals are merged. */
void vfile_bytes(struct vfile *f, const void *p, size_t n);
/* A literal that is not copied: for large ones that stay valid. */
void vfile_lent(struct vfile *f, const void *p, size_t n);
void vfile_zero(struct vfile *f, uint64_t n);
void vfile_tensor(struct vfile *f, uint64_t id, uint64_t bytes);
void vfile_object(struct vfile *f, uint64_t id, uint64_t bytes);
void vfile_file(struct vfile *f, uint64_t id, uint64_t from, uint64_t bytes);

int vfile_done(const struct vfile *f, struct ckpt_err *e);
void vfile_release(struct vfile *f);

/* Index of the segment that contains byte off < size. */
size_t vfile_find(const struct vfile *f, uint64_t off);

#endif
