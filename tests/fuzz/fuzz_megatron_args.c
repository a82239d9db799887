/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a common state: there must be args or a sentence. */
#include "base/blob.h"
#include "base/err.h"
#include "bytes.h"
#include "format/megatron/megatron_args.h"

#include <stdbool.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok)
{
	if (!ok)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *const names[] = { "num_layers", "args", "" };
	struct bytes b = { data, size };
	const struct blob blob = { read_bytes, &b, size };
	struct megatron_args *a = NULL;
	struct ckpt_err e = { 0 };
	int rc = megatron_args_read(&blob, &a, &e);

	require(rc ? rc < 0 && e.code == -rc && *e.msg && !a : !e.code);
	for (size_t i = 0; a && i < sizeof(names) / sizeof(names[0]); i++) {
		uint64_t n = 0;
		struct ckpt_err why = { 0 };

		rc = megatron_args_number(a, names[i], &n, &why);
		require(rc < 0 ? why.code == -rc : rc <= 1 && !why.code && n <= INT64_MAX);
	}
	megatron_args_free(a);
	return 0;
}
