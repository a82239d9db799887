/* SPDX-License-Identifier: Apache-2.0 */
#include "vfile_util.h"

#include "base/checked.h"
#include "base/err.h"
#include "fault.h"
#include "suites.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

uint8_t fake_byte(uint64_t id, uint64_t off)
{
	return (uint8_t)(id * 31 + off * 7 + (off >> 8) * 3 + 1);
}

static uint8_t byte_of(const struct vfile *f, const struct segment *s, uint64_t at)
{
	switch (s->kind) {
	case SEG_BYTES:
		REQUIRE(s->from + s->len <= f->text.len);
		return (uint8_t)f->text.data[s->from + at];
	case SEG_ZERO:
		return 0;
	default:
		return fake_byte(s->id, s->from + at);
	}
}

static int64_t vfile_read(void *arg, uint64_t off, void *buf, size_t len, struct ckpt_err *e)
{
	const struct vfile *f = arg;
	uint8_t *p = buf;
	size_t k;

	(void)e;
	if (off >= f->size)
		return 0;
	len = min_u64(len, f->size - off);
	k = vfile_find(f, off);
	for (size_t i = 0; i < len; i++, off++) {
		if (off == f->seg[k].off + f->seg[k].len) {
			k++;
			REQUIRE(k < f->n && f->seg[k].off == off);
		}
		p[i] = byte_of(f, &f->seg[k], off - f->seg[k].off);
	}
	return (int64_t)len;
}

struct blob vfile_blob(const struct vfile *f)
{
	return (struct blob){ vfile_read, (void *)(uintptr_t)f, f->size };
}

struct buf vfile_all(const struct vfile *f)
{
	struct buf b = BUF_INIT((size_t)1 << 30);
	void *to = buf_room(&b, f->size);

	REQUIRE(to);
	REQUIRE(vfile_read((void *)(uintptr_t)f, 0, to, f->size, NULL) == (int64_t)f->size);
	b.len = f->size;
	return b;
}

struct tensor_info member_of(const char *name, enum ckpt_dtype t, size_t n_dims,
			     const uint64_t *shape, uint64_t id)
{
	struct tensor_info m = { .fqn = name,
				 .fqn_len = strlen(name),
				 .shape = shape,
				 .bytes = dtype_info(t)->size,
				 .id = id,
				 .dtype = (uint8_t)t,
				 .n_dims = (uint8_t)n_dims };

	for (size_t d = 0; d < n_dims; d++)
		m.bytes *= shape[d];
	return m;
}

static char *random_name(struct rng *r, size_t i)
{
	static const char *const parts[] = {
		"weight", ".",	  "layers",   "\"",	      "\\",
		" ",	  "/",	  "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80",
		"\n",	  "\x7f", "%"
	};
	struct buf b = BUF_INIT(4096);

	for (uint64_t k = rng_below(r, 6); k; k--)
		buf_str(&b, parts[rng_below(r, ARRAY_LEN(parts))]);
	buf_printf(&b, "#%zu", i);
	REQUIRE(!b.err);
	return b.data;
}

struct members members_random(struct rng *r, size_t n, bool (*holds)(enum ckpt_dtype))
{
	struct members l = { calloc(n + 1, sizeof(*l.m)), n };

	REQUIRE(l.m);
	for (size_t i = 0; i < n; i++) {
		size_t dims = rng_below(r, 6);
		uint64_t *shape = calloc(dims + 1, sizeof(*shape));
		enum ckpt_dtype t;

		REQUIRE(shape);
		for (size_t d = 0; d < dims; d++)
			shape[d] = rng_below(r, 5);
		do {
			t = CKPT_DTYPE_NONE + 1 +
			    (enum ckpt_dtype)rng_below(r, CKPT_DTYPE_COUNT - 1);
		} while (!holds(t) || (t == CKPT_DTYPE_F4_E2M1FN_X2 && !dims));
		l.m[i] = member_of(random_name(r, i), t, dims, shape, 1000 + i);
	}
	return l;
}

void members_free(struct members *l)
{
	for (size_t i = 0; i < l->n; i++) {
		free((void *)(uintptr_t)l->m[i].fqn);
		free((void *)(uintptr_t)l->m[i].shape);
	}
	free(l->m);
}

void layout_without_memory(layout_fn *layout, bool (*holds)(enum ckpt_dtype), unsigned least)
{
	struct rng r = rng_new();
	struct members l = members_random(&r, 20, holds);
	unsigned failed = 0;

	FAULT_LOOP(FAULT_ALLOC)
	{
		struct vfile f = VFILE_INIT;
		struct ckpt_err e = { 0 };
		int rc = layout(l.m, l.n, &f, &e);

		(void)fault_off();
		ck_assert_int_eq(rc, fault_hit() ? -ENOMEM : 0);
		ck_assert_int_eq(e.code, -rc);
		ck_assert_int_eq(f.n != 0, !rc);
		failed += rc != 0;
		vfile_release(&f);
	}
	ck_assert_uint_gt(failed, least);
	members_free(&l);
}
