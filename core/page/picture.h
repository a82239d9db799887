/* SPDX-License-Identifier: Apache-2.0 */
/*
 * picture - the files that show a tile of a tensor (model/tile.h).
 *
 * A cell shows one element of the block it stands for: of at most TILE_SAMPLES x TILE_SAMPLES
 * evenly spaced ones that are read, the one with the largest magnitude; NaN if one of them is NaN.
 * Up to level 2 these are all elements of the block. A complex element counts as its magnitude.
 * Hence at most (TILE_SIDE * TILE_SAMPLES)^2, about a million, elements are read for a file.
 *
 * Values are a script that calls ckptfsTile(name, width, height, text), where text is the cells as
 * little-endian float64 in base64. A picture is a PNG. The sizes of both are known before anything
 * is read.
 *
 * Threads: any.
 */
#ifndef PAGE_PICTURE_H
#define PAGE_PICTURE_H

#include <ckptfs/ckpt_tensor.h>

#include <stddef.h>
#include <stdint.h>

struct buf;
struct ckpt;
struct ckpt_err;
struct tile;
struct tile_form;

struct picture {
	uint64_t tensor; /* its number */
	enum ckpt_dtype dtype;
	size_t n_dims;
	const uint64_t *shape;
	const struct tile *tile;
	const struct tile_form *form;
	const char *name; /* of the file */
};

uint64_t picture_size(const struct picture *h);
int picture_make(struct ckpt *c, const struct picture *h, struct buf *ret, struct ckpt_err *e);

/* The colour of a value in a picture whose scale ends at -2^exponent and 2^exponent. */
enum { PICTURE_MIDDLE = 127, PICTURE_NAN = 255 };
uint8_t picture_colour(double v, int exponent);

#endif
