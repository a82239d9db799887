/* SPDX-License-Identifier: Apache-2.0 */
/*
 * numpy_text - elements as NumPy prints them: str(array) with the default print options.
 *
 *	[[ 0.5        -1.25       ...  0.33333334  0.          nan]
 *	 ...
 *
 * Of more than NUMPY_TEXT_ALL elements, only the first and last NUMPY_TEXT_EDGE along each
 * dimension are shown. numpy_text_shown returns how many those are; the caller reads only them.
 *
 * Source: numpy/core/arrayprint.py of NumPy 1.24 (FloatingFormat, IntegerFormat, BoolFormat,
 * ComplexFloatingFormat, _formatArray, _extendLine), which prints the shortest number that reads
 * back as the same value, with at most 8 digits after the point. Types that NumPy lacks, bfloat16
 * and float8, are printed as float32.
 *
 * Threads: pure.
 */
#ifndef CODEC_NUMPY_TEXT_H
#define CODEC_NUMPY_TEXT_H

#include "model/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;

enum { NUMPY_TEXT_ALL = 1000, NUMPY_TEXT_EDGE = 3 };

/*
 * Are elements left out? n[k] becomes the number shown along dimension k, which is otherwise
 * shape[k].
 */
bool numpy_text_shown(const uint64_t *shape, size_t n_dims, uint64_t *n);
enum text_form {
	TEXT_NUMPY,
	TEXT_BITS, /* the same with elements in hexadecimal, "0x3f80"; t may be any type */
	TEXT_JSON, /* nested lists of all elements; NaN and infinities are strings */
};
/*
 * Appends the text. `data`: the elements that are shown (for JSON: all), in C order.
 * values_known(t) must hold. ENOMEM and EFBIG are recorded in b.
 */
void numpy_text(struct buf *b, enum text_form form, enum ckpt_dtype t, const uint64_t *shape,
		size_t n_dims, const void *data);

#endif
