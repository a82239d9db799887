/* SPDX-License-Identifier: Apache-2.0 */
#include "gguf/gguf_write.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "base/err.h"

#include <errno.h>
#include <string.h>

static void put(struct buf *b, uint64_t v, size_t bytes)
{
	uint8_t p[8];

	(void)put_le(p, v, bytes);
	buf_add(b, p, bytes);
}

static void put_f32(struct buf *b, float v)
{
	uint32_t u;

	memcpy(&u, &v, sizeof(u));
	put(b, u, 4);
}

static void put_str(struct buf *b, const char *s, size_t len)
{
	put(b, len, 8);
	buf_add(b, s, len);
}

static void begin(struct gguf_keys *k, const char *key, enum gguf_type type)
{
	size_t prefix = *key == '.' ? strlen(k->arch) : 0, len = strlen(key);

	put(&k->text, prefix + len, 8);
	buf_add(&k->text, k->arch, prefix);
	buf_add(&k->text, key, len);
	put(&k->text, type, 4);
	k->n++;
}

void gguf_u16(struct gguf_keys *k, const char *key, uint16_t v)
{
	begin(k, key, GGUF_U16);
	put(&k->text, v, 2);
}

void gguf_u32(struct gguf_keys *k, const char *key, uint32_t v)
{
	begin(k, key, GGUF_U32);
	put(&k->text, v, 4);
}

void gguf_i32(struct gguf_keys *k, const char *key, int32_t v)
{
	begin(k, key, GGUF_I32);
	gguf_item_i32(k, v);
}

void gguf_f32(struct gguf_keys *k, const char *key, double v)
{
	begin(k, key, GGUF_F32);
	put_f32(&k->text, (float)v);
}

void gguf_bool(struct gguf_keys *k, const char *key, bool v)
{
	begin(k, key, GGUF_BOOL);
	put(&k->text, v, 1);
}

void gguf_str(struct gguf_keys *k, const char *key, const char *s, size_t len)
{
	begin(k, key, GGUF_STR);
	put_str(&k->text, s, len);
}

void gguf_array(struct gguf_keys *k, const char *key, enum gguf_type type, uint64_t n)
{
	begin(k, key, GGUF_ARRAY);
	put(&k->text, type, 4);
	put(&k->text, n, 8);
}

void gguf_item_i32(struct gguf_keys *k, int32_t v)
{
	put(&k->text, (uint32_t)v, 4);
}

void gguf_item_f32(struct gguf_keys *k, float v)
{
	put_f32(&k->text, v);
}

void gguf_item_bool(struct gguf_keys *k, bool v)
{
	put(&k->text, v, 1);
}

void gguf_item_str(struct gguf_keys *k, const char *s, size_t len)
{
	put_str(&k->text, s, len);
}

uint64_t gguf_padding(uint64_t bytes)
{
	return -bytes % GGUF_ALIGN;
}

/* Innermost dimension first; off: from the start of the data. */
static void put_tensor(struct buf *b, const struct gguf_tensor *t, uint64_t off)
{
	put_str(b, t->name, strlen(t->name));
	put(b, t->n_dims, 4);
	for (size_t d = t->n_dims; d--;)
		put(b, t->shape[d], 8);
	put(b, t->type, 4);
	put(b, off, 8);
}

int gguf_header(const struct gguf_keys *k, const struct gguf_tensor *t, size_t n, struct buf *ret,
		struct ckpt_err *e)
{
	uint64_t off = 0;
	size_t from = ret->len;
	int failed = k->text.err;

	buf_str(ret, "GGUF");
	put(ret, 3, 4);
	put(ret, n, 8);
	put(ret, k->n, 8);
	buf_add(ret, k->text.data, k->text.len);
	for (size_t i = 0; i < n; i++) {
		put_tensor(ret, &t[i], off);
		if (ckd_add(&off, off, t[i].bytes) || ckd_add(&off, off, gguf_padding(t[i].bytes)))
			failed = EFBIG;
	}
	while (!ret->err && (ret->len - from) % GGUF_ALIGN)
		buf_add(ret, "", 1);
	if (ret->err)
		failed = ret->err;
	if (failed == EFBIG)
		return err_set(e, EFBIG, "the header of a GGUF is larger than %zu bytes",
			       GGUF_MAX_HEADER);
	return failed ? err_set(e, failed, "out of memory") : 0;
}
