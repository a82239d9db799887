/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pickle machine reads any bytes in three ways: as a .metadata reader does, with objects kept,
 * and through a window of few bytes. The first and the last must find the same.
 */
#include "base/err.h"
#include "mutate.h"
#include "parse/pickle.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_BYTES = 32 << 20 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
CUSTOM_MUTATOR(parts_of_pickle, NULL)

static int classify(void *arg, const char *module, const char *name)
{
	(void)arg;
	(void)module;
	return *name == 'M' ? 1 : *name == 'C' ? 2 : *name == 'T' ? 3 : 0;
}

static int built(void *arg, struct pickle *p, struct pk_value *obj, struct ckpt_err *e)
{
	const struct pk_value *v = pk_attr(obj, "offsets");
	uint64_t n = v ? pk_len(v) : 0;
	int rc;

	(void)arg;
	if (obj->n->own[PK_CALLEE].g->cls != 2)
		return 0;
	rc = pickle_to_record(p, obj, &n, sizeof(n), e);
	if (!rc && memcmp(pickle_record(obj), &n, sizeof(n)))
		abort();
	return rc < 0 ? rc : 0;
}

static int attr_item(void *arg, int root_class, const struct pk_str *attr,
		     const struct pk_value *key, const struct pk_value *value, bool *consumed,
		     struct ckpt_err *e)
{
	(void)e;
	*(uint64_t *)arg =
		*(uint64_t *)arg * 31 + attr->len + (unsigned)key->type * 7 + (unsigned)value->type;
	*consumed = root_class == 1;
	return 0;
}

/* A digest of everything that can be reached within a few levels. */
static uint64_t digest(const struct pk_value *v, unsigned depth)
{
	uint64_t h = v->type, n;

	switch (v->type) {
	case PK_BOOL:
	case PK_INT:
		return h * 31 + (uint64_t)v->i;
	case PK_STR:
	case PK_BYTES:
		for (uint32_t i = 0; i <= v->s->len; i++)
			h = h * 31 + (uint8_t)v->s->data[i];
		return h;
	case PK_GLOBAL:
		return h * 31 + v->g->name->len;
	case PK_RECORD:
		return h * 31 + pk_len(v);
	case PK_TUPLE:
	case PK_LIST:
	case PK_DICT:
	case PK_OBJECT:
	case PK_PERSID:
		n = v->type == PK_DICT ? 2 * pk_len(v) : pk_len(v);
		for (uint64_t i = 0; i < n && i < 64 && depth < 4; i++)
			h = h * 31 + digest(&v->n->v[i], depth + 1);
		return h * 31 + n;
	default:
		return h;
	}
}

struct window {
	const uint8_t *data;
	size_t size;
};

static int64_t read_few(void *arg, uint64_t off, void *buf, size_t cap, struct ckpt_err *e)
{
	const struct window *w = arg;
	size_t n = off < w->size ? w->size - off : 0;

	(void)e;
	n = n < cap ? n : cap;
	n = n < 13 ? n : 13;
	if (n)
		memcpy(buf, w->data + off, n);
	return (int64_t)n;
}

static uint64_t load(const struct pickle_input *in, bool as_reader, int *ret_rc)
{
	static const struct pickle_hooks hooks = { classify, built, attr_item };
	uint64_t seen = 0;
	struct pickle_opts opts = { .hooks = as_reader ? &hooks : NULL,
				    .arg = &seen,
				    .max_bytes = MAX_BYTES,
				    .drop_unknown = as_reader };
	struct pickle *p = NULL;
	struct ckpt_err e = { 0 };
	struct pk_value root;

	*ret_rc = pickle_load(in, &opts, &p, &e);
	if (*ret_rc) {
		if (p || e.code != -*ret_rc || !e.msg[0])
			abort();
		return seen;
	}
	root = pickle_root(p);
	seen += digest(&root, 0) + pickle_end(p);
	pickle_free(p);
	return seen;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct window w = { .data = data, .size = size };
	struct pickle_input mem = { .mem = data, .mem_len = size };
	struct pickle_input few = { .read = read_few, .arg = &w };
	int rc[3];
	uint64_t seen[3];

	if (!size)
		mem.mem = "";
	seen[0] = load(&mem, true, &rc[0]);
	seen[1] = load(&mem, false, &rc[1]);
	seen[2] = load(&few, true, &rc[2]);
	if (rc[0] != rc[2] || seen[0] != seen[2])
		abort();
	return 0;
}
