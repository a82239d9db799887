/* SPDX-License-Identifier: Apache-2.0 */
#include "save/save_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char *dims_text(const uint64_t *v, size_t n, char style, char *out, size_t cap)
{
	const char *open = style == 'S' ? "torch.Size([" : "(", *close = style == 'S' ? "])" : ")";
	size_t o = (size_t)snprintf(out, cap, "%s", open);

	for (size_t i = 0; i < n; i++) {
		if (o + 32 > cap) {
			o += (size_t)snprintf(out + o, cap - o, "...");
			break;
		}
		o += (size_t)snprintf(out + o, cap - o, "%s%" PRIu64, i ? ", " : "", v[i]);
	}
	(void)snprintf(out + o, cap - o, "%s%s", style == 'T' && n == 1 ? "," : "", close);
	return out;
}
