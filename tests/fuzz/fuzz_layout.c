/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as a layout, as text and as JSON. If it fits the tensors, every box must lie inside its
 * tensor, and if it has rules, each element must lie on some rank.
 */
#include "base/checked.h"
#include "base/err.h"
#include "layout/layout.h"
#include "layout_util.h"
#include "model/box.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_CHECKED = 4096 }; /* ranks; meshes have up to a million */

static void require(bool ok)
{
	if (!ok)
		abort();
}

static void check_tensor(const struct layout *l, size_t n, const struct layout_tensor *t, size_t i,
			 bool is_json)
{
	uint8_t there[64] = { 0 }; /* first index of each element of dimension 0 */
	uint64_t off[CKPT_MAX_DIMS], len[CKPT_MAX_DIMS], volume;

	for (size_t r = 0; r < n; r++) {
		if (!layout_box(l, r, i, off, len)) {
			require(is_json);
			continue;
		}
		require(box_inside(t->n_dims, off, len, t->shape));
		require(box_volume(t->n_dims, len, &volume));
		for (uint64_t x = 0; t->n_dims && volume && x < len[0]; x++)
			there[off[0] + x] = 1;
	}
	for (uint64_t x = 0; t->n_dims && x < t->shape[0]; x++)
		require(there[x] || is_json || layout_ranks(l) > n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const struct layout_tensor t[] = {
		{ "w", 1, 2, (const uint64_t[]){ 8, 6 } },
		{ "a.weight", 8, 1, (const uint64_t[]){ 11 } },
		{ "b.0.weight", 10, 3, (const uint64_t[]){ 4, 12, 5 } },
		{ "step", 4, 0, NULL },
	};
	struct layout *l = NULL;
	struct ckpt_err e = { 0 };
	char what[100];
	size_t n, first = 0;
	int rc = parse_copy((const char *)data, size, "L", &l, &e);

	while (first < size && data[first] && strchr(" \t\r\n", data[first]))
		first++;
	require(rc ? rc < 0 && e.code == -rc && *e.msg && !l : l && !e.code);
	if (rc)
		return 0;
	n = layout_ranks(l);
	require(n > 0);
	n = n < MAX_CHECKED ? n : MAX_CHECKED;
	for (size_t i = 1; i < n; i++)
		require(layout_rank(l, i - 1) < layout_rank(l, i));
	/* All tensors at once; if that fails, each by itself. */
	rc = layout_bind(l, t, ARRAY_LEN(t), &e);
	require(rc ? e.code == -rc && *e.msg : !e.code);
	for (size_t i = 0; i < ARRAY_LEN(t); i++) {
		struct ckpt_err e1 = { 0 };

		if (!rc)
			check_tensor(l, n, &t[i], i, data[first] == '{');
		else if (!layout_bind(l, &t[i], 1, &e1))
			check_tensor(l, n, &t[i], 0, data[first] == '{');
	}
	if (!rc)
		for (size_t i = 0; layout_unused(l, i, what, sizeof(what)); i++)
			require(*what && strlen(what) < sizeof(what));
	layout_free(l);
	return 0;
}
