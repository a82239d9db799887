/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blocks - ggml's quantised types: a block is some elements of a row, as a few bytes.
 *
 *	const struct block_type *b = block_type(GGML_Q4_K);
 *	b->encode(floats, bytes, 3);    // 3 * 256 float32 become 3 * 144 bytes
 *
 * The bytes are those of ggml_quantize_chunk without an importance matrix, in a build that does not
 * fuse multiplications with additions: Debian's, and any with separate backends. A block is encoded
 * alone; its bytes depend on no other.
 *
 * A block with a NaN or an infinity, which llama-quantize refuses, gets a scale that is not a
 * number and zeros: whoever uses it notices. In Q8_0, see q8_0.h, the quotients are 0 instead.
 *
 * type     block          bytes of a block
 * Q4_0     32 -> 18       f16 d; byte j: element j, and element j + 16 in the upper half
 * Q4_1     32 -> 20       f16 d, f16 m; likewise
 * Q5_0     32 -> 22       f16 d; u32 of the highest bits; the others as in Q4_0
 * Q5_1     32 -> 24       f16 d, f16 m; likewise
 * Q8_0     32 -> 34       f16 d; int8 each
 * MXFP4    32 -> 17       power of two, biased by 127; indices of 0 .5 1 1.5 2 3 4 6 as in Q4_0
 * Q4_K    256 -> 144      f16 d, f16 dmin; 8 scales and 8 minima of 6 bits; 4 bits each
 * Q5_K    256 -> 176      likewise, with 32 bytes of the highest bits before the others
 * Q6_K    256 -> 210      128 bytes of 4 bits, 64 of 2 bits; int8 scales of 16 each; f16 d
 *
 * Source: ggml/src/ggml-quants.c, ggml-common.h (0.27).
 * Threads: pure.
 */
#ifndef CODEC_BLOCKS_H
#define CODEC_BLOCKS_H

#include "model/ggml.h"

#include <stddef.h>
#include <stdint.h>

/* n blocks from little-endian float32; no alignment needed, no overlap allowed. */
typedef void block_encode_fn(const void *src, void *dst, size_t n);

struct block_type {
	enum ggml_type type;
	uint16_t elements, bytes;
	block_encode_fn *encode;
	block_encode_fn *portable; /* the same without CPU-specific code, for tests */
};

/* NULL: values of this type are not stored in blocks */
const struct block_type *block_type(enum ggml_type type);

#endif
