/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as an item, stored and as a decoder would return them. If it opens, every element must
 * lie inside. The input: dtype, number of dimensions, a byte for each size, then the item.
 */
#include "base/err.h"
#include "bytes.h"
#include "format/item.h"

#include <stdlib.h>
#include <string.h>

enum { DIMS = 6 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct payload *p, const struct item_want *want, uint64_t size)
{
	uint8_t elements[64];
	uint64_t last = p->data + dtype_info(want->dtype)->size;

	for (size_t d = 0; d < want->n_dims; d++) {
		if (!want->len[d])
			return;
		last += (want->len[d] - 1) * p->stride[d];
	}
	if (last > p->end || (size != BLOB_SIZE_UNKNOWN && p->end > size))
		abort();
	memset(elements, 0x5a, sizeof(elements));
	payload_resolve(p, want->dtype, elements, sizeof(elements) / 16 * 16);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct item_cache *cache;
	uint64_t len[DIMS], stride[DIMS];
	struct item_want want = { .fqn = "w", .fqn_len = 1, .len = len };
	struct bytes b;

	if (size < 2 + DIMS)
		return 0;
	want.dtype = (enum ckpt_dtype)(1 + data[0] % (CKPT_DTYPE_COUNT - 1));
	want.n_dims = data[1] % (DIMS + 1);
	for (size_t d = 0; d < DIMS; d++)
		len[d] = data[2 + d];
	b = (struct bytes){ data + 2 + DIMS, size - 2 - DIMS };
	cache = item_cache_new();
	for (int known = 0; cache && known < 2; known++) {
		struct blob item = { read_bytes, &b, known ? b.n : BLOB_SIZE_UNKNOWN };
		struct payload p = { .stride = stride };
		struct ckpt_err e = { 0 };
		int rc;

		want.rest = known ? &item : NULL;
		rc = item_open(&item, &want, cache, &p, &e);
		if (rc ? rc > 0 || e.code != -rc || !e.msg[0] : e.code)
			abort();
		if (!rc)
			check(&p, &want, item.size);
	}
	item_cache_free(cache);
	return 0;
}
