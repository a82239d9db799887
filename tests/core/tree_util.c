/* SPDX-License-Identifier: Apache-2.0 */
#include "tree_util.h"

#include "base/buf.h"
#include "base/err.h"
#include "suites.h"
#include <ckptfs/ckpt.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint8_t *tree_bytes_of(struct ckpt_file *f, size_t *ret_n)
{
	size_t n = ckpt_file_size(f);
	struct ckpt_err e = { 0 };
	uint8_t *p = malloc(n + 1);

	REQUIRE(p);
	ck_assert_msg(ckpt_file_read(f, p, n, 0, &e) == (int64_t)n, "%s", e.msg);
	p[n] = 0;
	ckpt_file_close(f);
	if (ret_n)
		*ret_n = n;
	return p;
}

uint8_t *tree_bytes(struct ckpt *c, const char *path, size_t *ret_n)
{
	struct ckpt_file *f = NULL;
	struct ckpt_err e = { 0 };
	struct ckpt_stat st;
	ckpt_node node = 0;

	if (ckpt_file_open_path(c, path, &f, &e))
		ck_abort_msg("%s: %s", path, e.msg);
	REQUIRE(!ckpt_walk(c, path, &node, &e) && !ckpt_stat(c, node, &st, &e) &&
		st.size == ckpt_file_size(f));
	return tree_bytes_of(f, ret_n);
}

char *tree_text(struct ckpt *c, const char *path)
{
	struct ckpt_file *f = NULL;
	struct ckpt_err e = { 0 };
	char *out = calloc(1, 10000);
	int64_t n;

	REQUIRE(out);
	if (ckpt_file_open_path(c, path, &f, &e)) {
		(void)snprintf(out, 10000, "error %d: %s", e.code, e.msg);
		return out;
	}
	n = ckpt_file_read(f, out, 9999, 0, &e);
	if (n < 0)
		(void)snprintf(out, 10000, "error %d: %s", e.code, e.msg);
	else
		REQUIRE((uint64_t)n == ckpt_file_size(f));
	ckpt_file_close(f);
	return out;
}

char *tree_tensors(const struct ckpt *c)
{
	struct buf b = BUF_INIT(1 << 16);
	struct ckpt_tensor t;

	buf_str(&b, "");
	for (uint64_t i = 0; ckpt_tensor(c, i, &t), *t.dtype; i++) {
		buf_printf(&b, "%s%s %s [", i ? "; " : "", t.fqn,
			   strcmp(t.dtype, "float32") != 0 ? t.dtype : "f");
		for (size_t d = 0; d < t.n_dims; d++)
			buf_printf(&b, "%s%llu", d ? "," : "", (unsigned long long)t.shape[d]);
		buf_str(&b, "]");
	}
	REQUIRE(!b.err);
	return b.data;
}

void expect_at(const char *root, const char *got, const char *want)
{
	struct buf b = BUF_INIT(20000);

	buf_str(&b, "");
	for (; *want; want++) {
		if (*want == '@')
			buf_str(&b, root);
		else
			buf_add(&b, want, 1);
	}
	ck_assert_str_eq(got, b.data);
	buf_release(&b);
}
