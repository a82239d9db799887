/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as rules, and a name. Rules that can be read must rename within the bounds, and in the
 * same way twice. The input: the rules, "\n--\n", the name.
 */
#include "base/buf.h"
#include "base/err.h"
#include "tensor/rename.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(struct rename *r, const char *name, size_t len)
{
	struct buf out[2] = { BUF_INIT(RENAME_MAX_NAME), BUF_INIT(RENAME_MAX_NAME) };
	int rc[2];

	for (int i = 0; i < 2; i++) {
		struct ckpt_err e = { 0 };

		rc[i] = rename_apply(r, name, len, &out[i], &e);
		if (rc[i] ? e.code != -rc[i] || !e.msg[0] || out[i].len : e.code)
			abort();
		if (!rc[i] && len && !out[i].len)
			abort();
	}
	/* Both take from the same budget of steps. */
	if (rc[1] != -EFBIG && (rc[0] != rc[1] || out[0].len != out[1].len ||
				(out[0].len && memcmp(out[0].data, out[1].data, out[0].len) != 0)))
		abort();
	buf_release(&out[0]);
	buf_release(&out[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char mark[] = "\n--\n";
	const char *text = (const char *)data, *end = text + size;
	const char *at = memmem(text, size, mark, strlen(mark));
	const char *name = at ? at + strlen(mark) : end;
	struct rename *r = NULL;
	struct ckpt_err e = { 0 };
	int rc;

	if (size > 2048) /* compiled expressions are large: only a few */
		return 0;
	rc = rename_parse(text, at ? (size_t)(at - text) : size, "rules", &r, &e);
	if (rc ? rc > 0 || e.code != -rc || strncmp(e.msg, "'rules' line ", 13) != 0 || r : e.code)
		abort();
	if (!rc)
		check(r, name, (size_t)(end - name));
	rename_free(r);
	return 0;
}
