/* SPDX-License-Identifier: Apache-2.0 */
#include "read/derived/block_values.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "codec/cast.h"
#include "model/box.h"

#include <stdlib.h>

int block_values_run(const void *how, const struct derived_in *in, const uint64_t *off,
		     const uint64_t *len, void *out, struct ckpt_err *e)
{
	const struct block_values *v = how;
	const struct ggml_info *t = v->type;
	size_t last = v->n_dims - 1, size = dtype_info(v->dtype)->size;
	uint64_t byte_off[CKPT_MAX_DIMS], byte_len[CKPT_MAX_DIMS], rows = 1;
	uint64_t first = off[last] / t->elements;
	uint64_t blocks = (off[last] + len[last] - 1) / t->elements - first + 1;
	uint64_t skip = off[last] - first * t->elements;
	autofree uint8_t *raw = NULL;
	autofree float *line = malloc(blocks * t->elements * sizeof(*line));
	uint8_t *to = out;
	int rc;

	for (size_t d = 0; d < last; d++) {
		byte_off[d] = off[d];
		byte_len[d] = len[d];
		rows *= len[d];
	}
	byte_off[last] = first * t->bytes;
	byte_len[last] = blocks * t->bytes;
	raw = malloc(rows * byte_len[last]);
	if (!raw || !line)
		return err_nomem(e);
	rc = derived_read(in, 0, byte_off, byte_len, raw, e);
	for (uint64_t r = 0; !rc && r < rows; r++) {
		v->decode(raw + r * byte_len[last], line, blocks);
		cast_run(CKPT_DTYPE_F32, v->dtype, line + skip, to, len[last]);
		to += len[last] * size;
	}
	return rc;
}
