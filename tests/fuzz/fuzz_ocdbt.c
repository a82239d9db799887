/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A manifest (the first byte is 'm'), or the body of a node. The envelope's length and checksum are
 * corrected; a body ('b') has no envelope. Keys must increase, and paths must stay inside.
 */
#include "base/arena.h"
#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/err.h"
#include "parse/ocdbt.h"

#include <stdlib.h>
#include <string.h>

#include "mutate.h"

CUSTOM_MUTATOR(parts_of_varints, NULL)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void need(bool ok)
{
	if (!ok)
		abort();
}

static void check_range(const struct ocdbt_range *r)
{
	const char *path = r->file->path;

	need(strlen(path) == r->file->len && r->file->base <= r->file->len && *path != '/');
	need(r->offset <= INT64_MAX && r->length <= INT64_MAX - r->offset);
	for (; path; path = strchr(path, '/') ? strchr(path, '/') + 1 : NULL)
		need(strncmp(path, "..", 2) != 0 || (path[2] && path[2] != '/'));
}

static int read_node(const struct ocdbt_body *b, struct ckpt_err *e)
{
	static uint8_t before[OCDBT_MAX_KEY];
	size_t before_len = 0, n = 0;
	struct ocdbt_node *node;
	struct ocdbt_entry x;
	int rc = ocdbt_node_open(b, "base/", 5, &node, e);

	if (rc)
		return rc;
	while ((rc = ocdbt_node_next(node, &x, e)) > 0) {
		need(!n++ || bytes_compare(before, before_len, x.key, x.key_len) < 0);
		need(x.common <= x.key_len);
		if (x.key_len)
			memcpy(before, x.key, x.key_len);
		before_len = x.key_len;
		if (x.bytes)
			need(x.bytes >= b->bytes && x.at.length <= OCDBT_MAX_INLINE &&
			     x.bytes + x.at.length <= b->bytes + b->len);
		else
			check_range(&x.at);
	}
	need(n <= OCDBT_MAX_ENTRIES && n <= b->len);
	ocdbt_node_free(node);
	return rc;
}

static int read_manifest(const struct ocdbt_body *b, struct ckpt_err *e)
{
	struct arena a = ARENA_INIT(OCDBT_MAX_PATHS);
	struct ocdbt_manifest m;
	int rc = ocdbt_manifest_read(b, &a, &m, e);

	if (!rc && !m.numbered && !m.is_empty)
		check_range(&m.root);
	arena_release(&a);
	return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	enum ocdbt_kind kind = size && *data == 'm' ? OCDBT_MANIFEST : OCDBT_NODE;
	struct ckpt_err e = { 0 };
	struct ocdbt_body b = { 0 };
	size_t n = size ? size - 1 : 0;
	uint8_t *copy = calloc(n + 1, 1);
	int rc = 0;

	need(copy);
	if (n)
		memcpy(copy, data + 1, n);
	if (size && *data == 'b') {
		b = (struct ocdbt_body){ copy, n, NULL };
	} else {
		if (n >= 16) {
			(void)put_le(copy + 4, n, 8);
			(void)put_le(copy + n - 4, crc32c(0, copy, n - 4), 4);
		}
		rc = ocdbt_unwrap(copy, n, kind, &b, &e);
	}
	if (!rc)
		rc = kind == OCDBT_MANIFEST ? read_manifest(&b, &e) : read_node(&b, &e);
	need(rc ? e.code == -rc && *e.msg : !e.code);
	ocdbt_body_release(&b);
	free(copy);
	return 0;
}
