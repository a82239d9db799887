/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as an archive, with the checksums of headers corrected: members must lie inside. */
#include "base/err.h"
#include "bytes.h"
#include "parse/tar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int each(void *arg, const struct tar_member *m, struct ckpt_err *e)
{
	const struct blob *b = arg;

	(void)e;
	if (m->at > b->size || m->size > b->size - m->at || strlen(m->name) != m->name_len)
		abort();
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t *copy = malloc(size + 1);
	struct bytes b = { copy, size };
	struct blob blob = { read_bytes, &b, size };

	if (!copy || size > 1 << 20) {
		free(copy);
		return 0;
	}
	memcpy(copy, data, size);
	for (size_t at = 0; at + TAR_BLOCK <= size; at += TAR_BLOCK) {
		unsigned sum = 8 * ' ';
		char digits[8];

		for (size_t i = 0; i < TAR_BLOCK; i++)
			sum += i >= 148 && i < 156 ? 0 : copy[at + i];
		(void)snprintf(digits, sizeof(digits), "%06o", sum);
		if (!memcmp(copy + at + 257, "ustar", 5))
			memcpy(copy + at + 148, digits, sizeof(digits));
	}
	for (int i = 0; i < 2; i++) {
		struct ckpt_err e = { 0 };
		int rc = tar_each(&blob, each, &blob, &e);

		if (rc ? e.code != -rc || !e.msg[0] : e.code)
			abort();
		memcpy(copy, data, size); /* the second time unchanged */
	}
	free(copy);
	return 0;
}
