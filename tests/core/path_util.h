/* SPDX-License-Identifier: Apache-2.0 */
/* path_util - paths of the chunk index as text: "model|layers|#0|w", "?" if unknown. */
#ifndef TESTS_PATH_UTIL_H
#define TESTS_PATH_UTIL_H

#include "base/buf.h"
#include "index/catalog_path.h"
#include "suites.h"

static inline void show_path(struct buf *b, const uint8_t *path, const char *fqn, uint32_t fqn_len)
{
	struct catalog_steps steps = catalog_path_begin(path, fqn, fqn_len);
	struct catalog_step s;

	buf_str(b, steps.left ? "" : "?");
	for (bool first = true; catalog_path_next(&steps, &s); first = false) {
		REQUIRE(!first || catalog_path_top(path, fqn_len) == s.len);
		buf_str(b, first ? "" : "|");
		if (s.is_position)
			buf_printf(b, "#%llu", (unsigned long long)s.position);
		else
			buf_add(b, s.text, s.len);
	}
}

#endif
