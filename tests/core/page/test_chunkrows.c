/* SPDX-License-Identifier: Apache-2.0 */
#include "page/chunkrows.h"

#include "page/page.h"
#include "suites.h"

#include <stdlib.h>
#include <string.h>

enum { TENSORS = 500, LINE = 100, LIMIT = 8000 };

/* What does not fit is left out, and is no error. */
START_TEST(more_than_fits)
{
	struct chunkrows r = CHUNKROWS_INIT((size_t)1 << 20);
	struct page p = { .out = BUF_INIT(LIMIT), .data = true };
	struct ckpt_err e = { 0 };
	char line[LINE];

	r.n = TENSORS;
	r.rows = calloc(TENSORS, sizeof(*r.rows));
	ck_assert_ptr_nonnull(r.rows);
	for (unsigned i = 0; i < TENSORS; i++) {
		memset(line, 0, sizeof(line));
		memcpy(line, &i, sizeof(i));
		r.rows[i].cut = (uint32_t)dict_number(&r.cuts, line, sizeof(line));
		r.rows[i].files = (uint32_t)dict_number(&r.files, line, 8);
	}
	ck_assert_msg(!chunkrows_write(&r, &p, &e), "%s", e.msg);
	ck_assert_ptr_nonnull(strstr(p.out.data, "chunks:\""));
	ck_assert(!p.out.err);
	page_release(&p);
	chunkrows_release(&r);
}
END_TEST

SUITE(chunkrows)
