/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as JSON, under flags that the first byte chooses: what jansson makes of them.
 *
 * Fuzzes: base/json
 */
#include "json_same.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size && !json_agrees((const char *)data + 1, size - 1, *data % 4))
		abort();
	return 0;
}
