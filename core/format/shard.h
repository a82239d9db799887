/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shard - many chunks in one item, with an index of where each is (zarr v3, sharding_indexed).
 *
 * The encoding's name in the chunk index tells how a chunk is found in its shard:
 *
 *	shard:chunk=8,16:count=2,4:step=4,1:index=end:be:crc32c:fill=40/raw+gzip
 *
 *	chunk  sizes of a chunk, by axis of the tensor
 *	count  chunks in a shard, by axis
 *	step   between the numbers of neighbours in the shard, by axis
 *	index  where it is in the shard: start, end
 *	be     its numbers are big-endian; if absent, little-endian
 *	crc32c its CRC-32C follows it
 *	fill   an absent chunk is the element at this offset of the bytes in the chunk index,
 *	       everywhere; if this is left out, an absent chunk is damage
 *
 * in this order, and the encoding of each chunk, which may be another shard. The index has 16 bytes
 * for each chunk: its offset in the shard and its length, both 2^64-1 if it is absent.
 *
 * Threads: pure.
 */
#ifndef FORMAT_SHARD_H
#define FORMAT_SHARD_H

#include "model/box.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct shard_layout {
	uint64_t chunk[CKPT_MAX_DIMS], count[CKPT_MAX_DIMS], step[CKPT_MAX_DIMS];
	uint64_t chunks; /* in a shard: the product of count */
	uint64_t fill;
	uint8_t n_dims;
	bool at_start, swap, crc, has_fill;
};

#define SHARD_MAX_CHUNKS ((uint64_t)1 << 24) /* an index has at most 256 MiB */

/* Steps over the name of a layout, up to the encoding of the chunks. False: it is another encoding,
 * or not an encoding. */
bool shard_take(const char **name, struct shard_layout *ret);

/* Bytes of the index. */
size_t shard_index_size(const struct shard_layout *l);
/* The number of the chunk that has element off[n_dims] of the tensor; less than chunks. */
uint64_t shard_number(const struct shard_layout *l, const uint64_t *off);

struct shard_chunk {
	uint64_t offset, length;
	bool absent;
};
/* Does the index, of shard_index_size bytes, have the CRC it says? */
bool shard_index_ok(const struct shard_layout *l, const uint8_t *index);
struct shard_chunk shard_entry(const struct shard_layout *l, const uint8_t *index, uint64_t number);

#endif
