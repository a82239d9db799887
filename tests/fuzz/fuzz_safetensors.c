/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a safetensors header, with the file's length known and not. */
#include "base/err.h"
#include "bytes.h"
#include "mutate.h"
#include "parse/safetensors.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
CUSTOM_MUTATOR(parts_of_safetensors, mend_safetensors)

static void check(const struct st_header *h, const char *name, size_t size)
{
	const struct st_tensor *t = st_find(h, name, strlen(name));
	uint64_t numbers = 1;

	if (!t)
		return;
	if (strcmp(t->name, name) != 0 || t->begin > t->end || t->n_dims > 64)
		abort();
	if (size && (st_data(h) > size || t->end > size - st_data(h)))
		abort();
	if (t->dtype == CKPT_DTYPE_NONE) /* nothing is known of its shape */
		return;
	if (!dtype_info(t->dtype)->safetensors)
		abort();
	for (size_t d = 0; d < t->n_dims; d++)
		numbers *= t->shape[d];
	if (t->dtype == CKPT_DTYPE_F4_E2M1FN_X2)
		numbers /= 2;
	if (numbers * dtype_info(t->dtype)->size != t->end - t->begin)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *const names[] = { "", "a", "b", "w", "f4", "__metadata__" };
	struct bytes b = { data, size };

	for (int known = 0; known < 2; known++) {
		struct blob blob = { read_bytes, &b, known ? size : BLOB_SIZE_UNKNOWN };
		struct st_header *h = NULL;
		struct ckpt_err e = { 0 };
		int rc = st_read(&blob, &h, &e);

		if (rc ? e.code != -rc || !e.msg[0] || h : e.code || !h)
			abort();
		for (size_t i = 0; !rc && i < sizeof(names) / sizeof(names[0]); i++)
			check(h, names[i], known ? size : 0);
		st_free(h);
	}
	return 0;
}
