/* SPDX-License-Identifier: Apache-2.0 */
/*
 * page - one HTML file that shows a checkpoint and needs nothing else.
 *
 *	struct page p = { .out = BUF_INIT(limit) };
 *	page_begin(&p, title, &e);
 *	page_section(&p, "head", data, len, &e);
 *	page_end(&p, &e);
 *	... p.out
 *	page_release(&p);
 *
 * The style sheet and the scripts are the files beside this one and are compiled in. Sections hold
 * the data: compressed (raw deflate) and in base64, so that nothing in them can be taken for
 * markup. The page's content security policy allows only this script and this style sheet, by their
 * hashes, and no requests; a page in a mount may also load files beside it.
 *
 * Threads: one at a time.
 */
#ifndef PAGE_PAGE_H
#define PAGE_PAGE_H

#include "base/buf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt_err;

struct page {
	struct buf out;
	bool diff;	  /* it compares two checkpoints, with other scripts and styles */
	const char *rest; /* of the template */
	bool live; /* it is a file of .ckptfs/view and loads data.js, which has the sections */
	bool data; /* it is data.js: sections are members of an object */
};

/* The title may hold any bytes. 0, or a negative errno. */
int page_begin(struct page *p, const char *title, struct ckpt_err *e);
/* The element gets the id "data-ID". A section's bytes may exceed the limit of the page, which
 * holds them compressed. */
int page_section(struct page *p, const char *id, const struct buf *data, struct ckpt_err *e);
int page_end(struct page *p, struct ckpt_err *e);
void page_release(struct page *p);

/* About how many bytes the page would have if it ended now. */
size_t page_size(const struct page *p);
/* About how many bytes a section adds to the page; 0: out of memory. */
size_t page_section_size(const struct buf *data);

/* Adds a number in the form that sections use: seven bits per byte, lowest first, with the eighth
 * bit set in all bytes but the last. */
void page_add_uint(struct buf *b, uint64_t v);
void page_add_int(struct buf *b, int64_t v); /* 0, -1, 1, -2, ... as 0, 1, 2, 3, ... */
/* n floats, `stride` bytes apart: byte k of all, then byte k + 1, since the bytes with the exponent
 * compress well. */
void page_add_floats(struct buf *b, const void *first, size_t n, size_t stride);

#endif
