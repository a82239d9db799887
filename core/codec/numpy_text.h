/* SPDX-License-Identifier: Apache-2.0 */
/*
 * numpy_text - elements as NumPy prints them: str(array) with the default print options.
 *
 *	[[ 0.5        -1.25       ...  0.33333334  0.          nan]
 *	 ...
 *
 * Of more than NUMPY_TEXT_ALL elements only the first and last NUMPY_TEXT_EDGE along each dimension
 * are shown. numpy_text_shown says how many that are; the caller reads those alone.
 *
 * Source: numpy/core/arrayprint.py of NumPy 1.24 (FloatingFormat, IntegerFormat, BoolFormat,
 * ComplexFloatingFormat, _formatArray, _extendLine), whose numbers are the shortest that are read back as
 * the same, with at most 8 digits behind the point. Types that NumPy lacks, bfloat16 and float8, are
 * printed as the float32 that they are.
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

/* Are elements left out? Then n[k] becomes how many are shown along dimension k, else shape[k]. */
bool numpy_text_shown(const uint64_t *shape, size_t n_dims, uint64_t *n);
enum text_form {
	TEXT_NUMPY,
	TEXT_BITS, /* the same with elements in hexadecimal, "0x3f80"; t may be any type */
	TEXT_JSON, /* nested lists of all elements; NaN and infinities are strings */
};
/*
 * Append the text. `data`: the elements that are shown (of JSON all), in C order. values_known(t)
 * holds. ENOMEM and EFBIG stay in b.
 */
void numpy_text(struct buf *b, enum text_form form, enum ckpt_dtype t, const uint64_t *shape,
		size_t n_dims, const void *data);

#endif
