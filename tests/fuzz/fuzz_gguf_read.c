/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as the head of a GGUF file: what is accepted must keep what gguf.h promises. */
#include "base/err.h"
#include "bytes.h"
#include "mutate.h"
#include "parse/gguf.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
CUSTOM_MUTATOR(parts_of_gguf, NULL)

/* Walks through a value, every byte of which must belong to it. */
static void walk(const struct gguf_value *v)
{
	enum gguf_type of;
	const uint8_t *p;
	uint64_t n;
	uint8_t sum = 0;

	if (v->type > GGUF_F64)
		abort();
	if (v->type != GGUF_ARRAY) {
		for (size_t i = 0; i < v->len; i++)
			sum ^= v->p[i];
		if (sum && !v->len)
			abort();
		return;
	}
	gguf_open_array(v, &of, &n, &p);
	for (uint64_t i = 0; i < n; i++) {
		struct gguf_value one = gguf_take(&p, of);

		walk(&one);
	}
	if (p != v->p + v->len)
		abort();
}

static void check(const struct gguf_head *h, size_t size)
{
	uint64_t end = h->data;

	if (h->n_keys > size || h->n_items > size || (h->alignment & (h->alignment - 1)) ||
	    h->data % h->alignment)
		abort();
	for (size_t i = 0; i < h->n_keys; i++) {
		uint64_t n;

		walk(&h->keys[i].value);
		(void)gguf_number(&h->keys[i].value, &n);
	}
	for (size_t i = 0; i < h->n_items; i++) {
		const struct gguf_item *t = &h->items[i];
		uint64_t elements = 1;

		if (!t->len || memchr(t->name, 0, t->len) || t->n_dims > GGUF_READ_DIMS)
			abort();
		for (uint32_t d = 0; d < t->n_dims; d++)
			elements *= t->shape[d];
		if (elements / t->type->elements * t->type->bytes != t->bytes ||
		    elements % t->type->elements || t->begin % h->alignment)
			abort();
		if (h->data + t->begin + t->bytes > end)
			end = h->data + t->begin + t->bytes;
		for (size_t k = 0; k < i && k < 50; k++) {
			const struct gguf_item *o = &h->items[k];

			if (o->bytes && t->bytes && o->begin < t->begin + t->bytes &&
			    t->begin < o->begin + o->bytes)
				abort();
		}
	}
	if (gguf_end(h) != end || end > INT64_MAX)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct bytes b = { data, size };
	struct blob blob = { read_bytes, &b, size };
	struct gguf_head *h = NULL;
	struct ckpt_err e = { 0 };
	int rc = gguf_read(&blob, &h, &e);

	if (rc ? e.code != -rc || !e.msg[0] || h : e.code || !h)
		abort();
	if (!rc)
		check(h, size);
	gguf_free(h);
	return 0;
}
