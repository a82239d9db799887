/* SPDX-License-Identifier: Apache-2.0 */
/* coding_util - encodes bytes as the codecs of codec/coding.h do, with the libraries themselves. */
#ifndef TESTS_CODING_UTIL_H
#define TESTS_CODING_UTIL_H

#include "rng.h"

#include <stddef.h>
#include <stdint.h>

/* Bytes that compress more or less well: runs, counters, noise. */
uint8_t *coding_bytes(struct rng *r, size_t n);

/* Encodes what `coding` decodes, in frames, members and blocks of random sizes. The caller frees
 * it. */
uint8_t *coding_encode(struct rng *r, const void *p, size_t n, uint32_t coding, size_t *ret_n);

/* A coding of up to `most` codecs, at least one. */
uint32_t coding_draw(struct rng *r, unsigned most);

#endif
