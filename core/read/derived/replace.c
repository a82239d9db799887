/* SPDX-License-Identifier: Apache-2.0 */
#include "read/derived/replace.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "codec/cast.h"

#include <stdlib.h>

int replace_run(const void *how, const struct derived_in *in, const uint64_t *off,
		const uint64_t *len, void *out, struct ckpt_err *e)
{
	const struct replace *r = how;
	enum ckpt_dtype from = derived_dtype(in, 0);
	autofree uint8_t *raw = NULL;
	uint64_t n = 1;
	int rc;

	if (from == r->dtype)
		return derived_read(in, 0, off, len, out, e);
	for (size_t d = 0; d < r->n_dims; d++)
		n *= len[d];
	raw = malloc(n * dtype_info(from)->size);
	rc = raw ? derived_read(in, 0, off, len, raw, e) : err_nomem(e);
	if (!rc)
		cast_run(from, r->dtype, raw, out, n);
	return rc;
}
