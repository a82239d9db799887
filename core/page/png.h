/* SPDX-License-Identifier: Apache-2.0 */
/*
 * png - pictures with a palette of 256 colours, whose size in bytes depends only on their width and
 * height: pixels are not compressed.
 *
 * Threads: pure.
 */
#ifndef PAGE_PNG_H
#define PAGE_PNG_H

#include <stddef.h>
#include <stdint.h>

struct buf;

/* The size of a file; w and h from 1 to 65535. */
uint64_t png_size(unsigned w, unsigned h);
/* Appends it. pixels: h rows of w bytes; palette: red, green and blue of each colour. */
void png_write(struct buf *b, unsigned w, unsigned h, const uint8_t *pixels,
	       const uint8_t palette[static 3 * 256]);

#endif
