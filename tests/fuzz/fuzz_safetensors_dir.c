/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A directory of safetensors. The input is an index, then headers (as JSON, without the length in
 * front) of files a, b, ..., separated by bytes FF. They are parsed, joined and indexed in memory,
 * and every chunk map is loaded.
 *
 * Fuzzes: format/safetensors/ format/part_names format/st_index
 */
#include "base/bytes.h"
#include "base/err.h"
#include "format/safetensors/st_pieces.h"
#include "format/st_index.h"
#include "index/catalog_build.h"
#include "index/catalog_query.h"
#include "mutate.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
CUSTOM_MUTATOR(parts_of_json, NULL)

struct bytes {
	const uint8_t *p;
	size_t n;
};

static int64_t read_bytes(void *arg, uint64_t off, void *buf, size_t len, struct ckpt_err *e)
{
	const struct bytes *b = arg;
	uint8_t *out = buf;
	uint8_t head[8];
	size_t n = 0;

	(void)e;
	(void)put_le(head, b->n, sizeof(head));
	for (; n < len && off + n < 8 + b->n; n++)
		out[n] = off + n < 8 ? head[off + n] : b->p[off + n - 8];
	return (int64_t)n;
}

static int add_file(struct st_pieces *p, char name, struct bytes b, struct ckpt_err *e)
{
	struct blob blob = { read_bytes, &b, BLOB_SIZE_UNKNOWN };
	struct st_header *h = NULL;
	int rc = st_read(&blob, &h, e);

	if (!rc)
		rc = st_pieces_add(p, (const char[]){ name, 0 }, h, e);
	st_free(h);
	return rc;
}

static int add_index(struct st_index *x, struct bytes b, struct ckpt_err *e)
{
	char *text = malloc(b.n + 1);
	int rc;

	if (!text)
		abort();
	memcpy(text, b.p, b.n);
	rc = st_index_parse(text, b.n, x, e);
	if (rc)
		free(text);
	return rc;
}

static int build(struct st_index *x, struct st_pieces *p, const uint8_t *data, size_t size,
		 struct catalog_writer *w, struct catalog **ret, struct ckpt_err *e)
{
	const uint8_t *end = data + size;
	int rc = 0;

	for (char name = 'a' - 1; !rc && name <= 'z'; name++) {
		const uint8_t *sep = data == end ? NULL : memchr(data, 0xff, (size_t)(end - data));
		size_t n = (size_t)((sep ? sep : end) - data);

		if (name >= 'a')
			rc = add_file(p, name, (struct bytes){ data, n }, e);
		else if (n)
			rc = add_index(x, (struct bytes){ data, n }, e);
		if (!sep)
			break;
		data = sep + 1;
	}
	if (!rc)
		rc = st_pieces_join(p, x->n_entries ? x : NULL, "index", w, e);
	return rc ? rc : catalog_writer_finish(w, ret, e);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct catalog_writer *w = NULL;
	struct catalog *c = NULL;
	struct st_pieces p = { 0 };
	struct st_index x = { 0 };
	struct ckpt_err e = { 0 };
	int rc;

	if (catalog_writer_new(NULL, "safetensors", "/", &w, &e))
		return 0;
	rc = build(&x, &p, data, size, w, &c, &e);
	if (rc ? e.code != -rc || !e.msg[0] || c : e.code || !c)
		abort();
	if (!rc) {
		size_t n;
		const struct catalog_tensor *t = catalog_tensors(c, &n);

		for (size_t i = 0; i < n; i++) {
			struct chunkmap *m = NULL;

			/* What was written must be readable, unless memory ran out. */
			if (catalog_load_map(c, &t[i], &m, &e) && e.code != ENOMEM)
				abort();
			if (t[i].state == TENSOR_OVERLAPPING) /* that is never read */
				abort();
			free(m);
		}
	}
	catalog_close(c);
	catalog_writer_free(w);
	st_pieces_release(&p);
	st_index_release(&x);
	return 0;
}
