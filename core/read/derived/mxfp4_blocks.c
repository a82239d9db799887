/* SPDX-License-Identifier: Apache-2.0 */
#include "read/derived/mxfp4_blocks.h"

#include "base/cleanup.h"
#include "base/err.h"

#include <stdlib.h>
#include <string.h>

enum { CODES = MXFP4_BYTES - 1 }; /* bytes of them */

/* Element i is nibble i in the source, the lower one first; in a block, the upper half's elements
 * are the upper nibbles. */
static uint8_t element(const uint8_t *codes, unsigned i)
{
	return (uint8_t)(codes[i / 2] >> (i % 2 * 4) & 15);
}

static void make_block(const uint8_t *codes, uint8_t scale, uint8_t *to)
{
	to[0] = scale;
	for (unsigned i = 0; i < CODES; i++)
		to[1 + i] = (uint8_t)(element(codes, i) | element(codes, i + CODES) << 4);
}

int mxfp4_blocks_run(const void *how, const struct derived_in *in, const uint64_t *off,
		     const uint64_t *len, void *out, struct ckpt_err *e)
{
	uint64_t rows = len[0] * len[1], first = off[2] / MXFP4_BYTES;
	uint64_t n = (off[2] + len[2] - 1) / MXFP4_BYTES - first + 1;
	const uint64_t from[] = { off[0], off[1], first, 0 }, box[] = { len[0], len[1], n, CODES };
	autofree uint8_t *codes = malloc(rows * n * CODES);
	autofree uint8_t *scales = malloc(rows * n);
	autofree uint8_t *row = malloc(n * MXFP4_BYTES);
	uint8_t *to = out;
	int rc;

	(void)how;
	if (!codes || !scales || !row)
		return err_nomem(e);
	rc = derived_read(in, 0, from, box, codes, e);
	if (!rc)
		rc = derived_read(in, 1, from, box, scales, e);
	for (uint64_t r = 0; !rc && r < rows; r++) {
		for (uint64_t i = 0; i < n; i++)
			make_block(codes + (r * n + i) * CODES, scales[r * n + i],
				   row + i * MXFP4_BYTES);
		memcpy(to, row + (off[2] - first * MXFP4_BYTES), len[2]);
		to += len[2];
	}
	return rc;
}
