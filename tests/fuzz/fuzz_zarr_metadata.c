/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The metadata of a zarr array of version 2, or, after a '3', of version 3. A NUL and the key of a
 * chunk follow.
 */
#include "base/err.h"
#include "mutate.h"
#include "parse/zarr_metadata.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
CUSTOM_MUTATOR(parts_of_json, NULL)

static void check_level(const struct zarr_array *a, const struct zarr_level *l)
{
	uint64_t seen = 0;

	for (size_t d = 0; d < a->n_dims; d++) {
		if (l->axis[d] >= a->n_dims || !l->chunk[d])
			abort();
		seen |= (uint64_t)1 << l->axis[d];
		if (l > a->level && l[-1].chunk[d] % l->chunk[d])
			abort();
	}
	if (__builtin_popcountll(seen) != (int)a->n_dims || l->n_codecs > ZARR_MAX_CODECS)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	bool v3 = size && *data == '3';
	const char *text = (const char *)data + v3;
	size_t len = size - v3, n = len ? strnlen(text, len) : 0;
	uint64_t cell[CKPT_MAX_DIMS];
	struct ckpt_err e = { 0 };
	struct zarr_array a;
	int rc = zarr_parse(n ? text : "", n, v3, &a, &e);

	if (rc < 0 && (!e.code || !e.msg[0]))
		abort(); /* a failure without a sentence */
	if (rc <= 0)
		return 0;
	if (a.dtype == CKPT_DTYPE_NONE && !*a.unsupported)
		abort();
	for (size_t i = 0; !*a.unsupported && i < a.n_levels; i++)
		check_level(&a, &a.level[i]);
	if (!*a.unsupported && n < len && zarr_cell(&a, text + n + 1, len - n - 1, cell))
		for (size_t d = 0; d < a.n_dims; d++)
			if (cell[d] * a.level[0].chunk[d] >= a.shape[d])
				abort();
	return 0;
}
