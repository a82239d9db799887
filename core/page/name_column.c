/* SPDX-License-Identifier: Apache-2.0 */
#include "page/name_column.h"

#include "page/page.h"

void name_column_add(struct name_column *n, const char *s, size_t len)
{
	size_t same = 0;

	while (same < len && same < n->last_len && s[same] == n->last[same])
		same++;
	page_add_uint(n->to, same);
	page_add_uint(n->to, len - same);
	buf_add(n->to, s + same, len - same);
	n->last = s;
	n->last_len = len;
}
