/* SPDX-License-Identifier: Apache-2.0 */
/*
 * npy - the header of a NumPy array file. Threads: pure.
 *
 * Source: numpy/lib/format.py, format version 1.0.
 */
#ifndef FILE_NPY_H
#define FILE_NPY_H

#include "model/dtype.h"

#include <stddef.h>
#include <stdint.h>

#define NPY_MAX_HEADER 2048 /* bytes; 64 dimensions of 20 digits fit */

/* Writes the header, a multiple of 64 bytes, and returns its length. */
size_t npy_header(enum ckpt_dtype dtype, size_t n_dims, const uint64_t *shape,
		  char out[static NPY_MAX_HEADER]);

#endif
