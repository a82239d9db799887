/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes from another rank are refused, or are a value that can be used and that stays the same
 * when it is encoded and decoded again.
 */
#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "core/codec_util.h"
#include "save/plan_codec.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok)
{
	if (!ok)
		abort();
}

static bool equal(const struct buf *a, const struct buf *b)
{
	return a->len == b->len && !memcmp(a->data, b->data, a->len);
}

static void try_save(const void *data, size_t size, struct arena *a, struct buf b[2])
{
	struct ckpt_save_plan p, q;
	struct ckpt_err e = { 0 };

	if (save_plan_decode(data, size, a, &p, &e))
		return;
	require(save_plan_ok(&p) && !save_plan_encode(&p, &b[0], &e));
	require(!save_plan_decode(b[0].data, b[0].len, a, &q, &e));
	require(save_plan_equal(&p, &q) && !save_plan_encode(&q, &b[1], &e) && equal(&b[0], &b[1]));
}

static void try_load(const void *data, size_t size, struct arena *a, struct buf b[2])
{
	struct ckpt_load_plan p, q;
	struct ckpt_err e = { 0 };

	if (load_plan_decode(data, size, a, &p, &e))
		return;
	require(load_plan_ok(&p) && !load_plan_encode(&p, &b[0], &e));
	require(!load_plan_decode(b[0].data, b[0].len, a, &q, &e));
	require(!load_plan_encode(&q, &b[1], &e) && equal(&b[0], &b[1]));
}

static void try_results(const void *data, size_t size, struct arena *a, struct buf b[2])
{
	const struct ckpt_write_result *v, *u;
	struct ckpt_err e = { 0 };
	size_t n, m;

	if (write_results_decode(data, size, a, &v, &n, &e))
		return;
	require(results_ok(v, n) && !write_results_encode(v, n, &b[0], &e));
	require(!write_results_decode(b[0].data, b[0].len, a, &u, &m, &e) && m == n);
	require(!write_results_encode(u, n, &b[1], &e) && equal(&b[0], &b[1]));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static void (*const tries[])(const void *, size_t, struct arena *,
				     struct buf *) = { try_save, try_load, try_results };
	struct buf b[2] = { BUF_INIT(1 << 28), BUF_INIT(1 << 28) };
	struct arena a = ARENA_INIT(1 << 28);

	for (size_t i = 0; i < 3; i++) {
		tries[i](data, size, &a, b);
		buf_release(&b[0]);
		buf_release(&b[1]);
		arena_release(&a);
	}
	return 0;
}
