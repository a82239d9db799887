/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as msgpack: what is found must lie inside. */
#include "base/arena.h"
#include "base/checked.h"
#include "base/err.h"
#include "bytes.h"
#include "parse/msgpack.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void need(bool ok)
{
	if (!ok)
		abort();
}

static size_t walk(const struct msgpack *v, size_t size, unsigned depth)
{
	size_t values = 1, n = 0;

	need(depth <= MSGPACK_MAX_DEPTH + 1);
	if (v->kind == MSGPACK_ARRAY)
		need(range_ok(v->array->at, v->array->len, size) &&
		     v->array->n_dims <= CKPT_MAX_DIMS && strlen(v->array->dtype) <= size);
	if (v->kind == MSGPACK_BYTES || v->kind == MSGPACK_TEXT)
		need(range_ok(v->at, v->len, size));
	if (v->kind != MSGPACK_LIST && v->kind != MSGPACK_MAP)
		return values;
	for (const struct msgpack *m = v->first; m; m = m->next, n++) {
		need((v->kind == MSGPACK_MAP) == (m->key != NULL));
		values += walk(m, size, depth + 1);
	}
	need(n == v->n);
	return values;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct arena a = ARENA_INIT(1 << 24);
	struct bytes b = { data, size };
	struct blob blob = { read_bytes, &b, size };
	struct msgpack *root = NULL;
	struct ckpt_err e = { 0 };
	int rc = msgpack_read(&blob, &a, &root, &e);

	need(rc ? e.code == -rc && *e.msg : !e.code);
	if (!rc)
		need(walk(root, size, 0) <= size);
	(void)msgpack_begins(data, size);
	arena_release(&a);
	return 0;
}
