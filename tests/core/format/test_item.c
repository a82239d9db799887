/* SPDX-License-Identifier: Apache-2.0 */
#include "archive_util.h"
#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "blob_util.h"
#include "fault.h"
#include "format/item.h"
#include "model/box.h"
#include "parse/pickle_lex.h"
#include "pickle_util.h"
#include "rng.h"
#include "scene_util.h"
#include "suites.h"

#include <complex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- opening what was saved ---- */

struct opened {
	int rc;
	struct ckpt_err e;
	struct payload payload;
	uint64_t stride[CKPT_MAX_DIMS];
};

/* Opens n bytes at p as fetch opens an item; encoded: its decoded size is not known. */
static void open_bytes(struct opened *o, const void *p, size_t n, bool encoded,
		       enum ckpt_dtype dtype, size_t n_dims, const uint64_t *len)
{
	struct item_want want = {
		.fqn = "w", .fqn_len = 1, .dtype = dtype, .n_dims = n_dims, .len = len
	};
	struct item_cache *cache = item_cache_new();
	struct mem m;
	struct blob b, rest;

	REQUIRE(cache);
	mem_init(&m, p, n);
	b = mem_blob(&m, !encoded);
	rest = b;
	if (!encoded)
		want.rest = &rest;
	*o = (struct opened){ .payload = { .data = 4242 } };
	o->payload.stride = o->stride;
	o->rc = item_open(&b, &want, cache, &o->payload, &o->e);
	REQUIRE(o->rc ? o->rc < 0 && o->e.code == -o->rc && o->e.msg[0] : !o->e.code);
	mem_release(&m);
	item_cache_free(cache);
}

static void open_saved(struct opened *o, const struct saved *t, bool encoded)
{
	struct buf b = BUF_INIT(0);
	uint64_t len[CKPT_MAX_DIMS];

	for (size_t d = 0; d < t->n_dims && d < CKPT_MAX_DIMS; d++)
		len[d] = (uint64_t)t->size[d];
	(void)saved_item(&b, t);
	open_bytes(o, b.data, b.len, encoded, t->dtype, t->n_dims, len);
	buf_release(&b);
}

/* The elements that the payload finds in the item must be those of the view. */
static void check_elements(const struct saved *t, const uint8_t *item, size_t n,
			   const struct payload *p)
{
	const struct dtype_info *d = dtype_info(t->dtype);
	uint64_t idx[CKPT_MAX_DIMS] = { 0 }, len[CKPT_MAX_DIMS];
	int64_t rows[CKPT_MAX_DIMS], step = 1;

	for (size_t i = t->n_dims; i-- > 0;) {
		len[i] = (uint64_t)t->size[i];
		rows[i] = t->stride ? t->stride[i] : step;
		step *= t->size[i];
		if (!t->size[i])
			return;
	}
	do {
		uint64_t from = p->data, element = (uint64_t)t->offset;

		for (size_t i = 0; i < t->n_dims; i++) {
			from += idx[i] * p->stride[i];
			element += idx[i] * (uint64_t)rows[i];
		}
		REQUIRE(from + d->size <= p->end);
		REQUIRE(p->end <= n);
		REQUIRE(!memcmp(item + from, (const uint8_t *)t->storage + element * d->size,
				d->size));
	} while (next_index(t->n_dims, len, idx));
}

/* A view of random sizes and strides over a storage of its own. */
static void random_view(struct rng *r, struct saved *t, int64_t *size, int64_t *stride,
			uint8_t *storage, size_t cap)
{
	const struct dtype_info *d = dtype_info(t->dtype);
	uint64_t last;

	do {
		t->n_dims = rng_below(r, 5);
		t->offset = (int64_t)rng_below(r, 5);
		last = (uint64_t)t->offset;
		for (size_t i = 0; i < t->n_dims; i++) {
			size[i] = (int64_t)(1 + rng_below(r, 4));
			stride[i] = (int64_t)rng_below(r, 9);
			last += (uint64_t)((size[i] - 1) * stride[i]);
			if (size[i] == 1)
				stride[i] = rng_chance(r, 50) ? stride[i] : INT64_MAX;
		}
	} while ((last + 1) * d->size > cap);
	t->size = size;
	t->stride = stride;
	t->storage = storage;
	t->storage_bytes = (last + 1 + rng_below(r, 3)) * d->size;
	if (t->storage_bytes > cap)
		t->storage_bytes = (last + 1) * d->size;
	random_bytes(r, storage, cap);
}

static void check_saved(const struct saved *t, bool encoded)
{
	struct buf b = BUF_INIT(0);
	uint64_t len[CKPT_MAX_DIMS];
	struct opened o;

	for (size_t d = 0; d < t->n_dims; d++)
		len[d] = (uint64_t)t->size[d];
	(void)saved_item(&b, t);
	open_bytes(&o, b.data, b.len, encoded, t->dtype, t->n_dims, len);
	ck_assert_msg(!o.rc, "%s", o.e.msg);
	check_elements(t, (const uint8_t *)b.data, b.len, &o.payload);
	REQUIRE(!payload_is_odd(&o.payload));
	buf_release(&b);
}

START_LOOP_TEST(every_dtype_is_found_where_it_lies, CKPT_DTYPE_COUNT - 1)
{
	enum ckpt_dtype t = (enum ckpt_dtype)(CKPT_DTYPE_NONE + 1 + _i);
	struct rng r = rng_new();
	int64_t size[4], stride[4];
	uint8_t storage[4096];

	if (t == CKPT_DTYPE_QU4X2 || t == CKPT_DTYPE_QU2X4) /* no element has its own byte */
		return;
	for (int i = 0; i < 30; i++) {
		struct saved s = { .dtype = t, .how = i % 2 ? REBUILD_V3 : saved_way(t) };

		random_view(&r, &s, size, stride, storage, sizeof(storage));
		check_saved(&s, i % 3);
	}
}
END_TEST

/* ---- archives ---- */

static const struct archive_style styles[] = {
	{ .alignment = 0 },
	{ .alignment = 1 },
	{ .alignment = 2 },
	{ .alignment = 256 },
	{ .alignment = 4096 },
	{ .alignment = 16384 },
	{ .prefix = "x" },
	{ .prefix = "a-model-whose-name-is-long-enough-to-move-everything-that-follows-it-to-"
		    "another-place" },
	{ .wide = true },
	{ .zip64 = true },
	{ .zip64 = true, .wide = true, .alignment = 4096 },
	{ .seekable = true },
	{ .seekable = true, .alignment = 1 },
	{ .no_crc = true },
	{ .no_end64 = true },
};

START_LOOP_TEST(every_style_of_archive_is_understood, ARRAY_LEN(styles))
{
	struct rng r = rng_new();
	int64_t size[4], stride[4];
	uint8_t storage[1024];

	for (int order = 0; order < ORDER_COUNT; order++) {
		for (int i = 0; i < 10; i++) {
			struct saved s = { .dtype = CKPT_DTYPE_F32, .style = styles[_i] };

			s.order = order;
			random_view(&r, &s, size, stride, storage, sizeof(storage));
			check_saved(&s, false);
			if (order == ORDER_NOW || order == ORDER_26)
				check_saved(&s, true);
		}
	}
}
END_TEST

START_LOOP_TEST(what_only_the_directory_tells_cannot_be_compressed, 4)
{
	static const int orders[] = { ORDER_20, ORDER_DATA_FIRST, ORDER_REVERSED, ORDER_LATE };
	const int64_t size[] = { 2 };
	struct saved s = { .dtype = CKPT_DTYPE_I16,
			   .n_dims = 1,
			   .size = size,
			   .storage = "abcd",
			   .storage_bytes = 4,
			   .order = orders[_i] };
	struct opened o;

	open_saved(&o, &s, true);
	ck_assert_int_eq(o.rc, -ENOTSUP);
	ck_assert_str_eq(o.e.msg,
			 "the item's archive cannot be read from the front, and it is compressed");
	ck_assert_uint_eq(o.payload.data, 4242);
	open_saved(&o, &s, false);
	ck_assert_int_eq(o.rc, 0);
}
END_TEST

START_LOOP_TEST(a_long_pickle_is_read_on, 9)
{
	static const size_t lengths[] = { 1500,	  2048,	   5000,    20000,   200000,
					  900000, 1100000, 3000000, 16000000 };
	const int64_t size[] = { 3 };
	struct saved s = { .dtype = CKPT_DTYPE_U8,
			   .n_dims = 1,
			   .size = size,
			   .storage = "xyz",
			   .storage_bytes = 3,
			   .hooks_bytes = lengths[_i] };

	check_saved(&s, false);
	if (lengths[_i] < 1000000)
		check_saved(&s, true);
}
END_TEST

START_TEST(too_long_a_pickle_is_refused)
{
	const int64_t size[] = { 3 };
	struct saved s = { .dtype = CKPT_DTYPE_U8,
			   .n_dims = 1,
			   .size = size,
			   .storage = "xyz",
			   .storage_bytes = 3,
			   .hooks_bytes = 17 << 20 };
	struct opened o;

	open_saved(&o, &s, false);
	ck_assert_int_eq(o.rc, -EBADMSG);
	ck_assert_msg(strstr(o.e.msg, "zip: a record of 178") == o.e.msg, "%s", o.e.msg);
	open_saved(&o, &s, true);
	ck_assert_int_lt(o.rc, 0);
}
END_TEST

START_TEST(one_read_of_the_first_bytes_is_enough)
{
	const int64_t size[] = { 2, 3 };
	const uint64_t len[] = { 2, 3 };
	uint8_t storage[24] = { 1, 2, 3 };
	struct saved s = { .dtype = CKPT_DTYPE_F32,
			   .n_dims = 2,
			   .size = size,
			   .storage = storage,
			   .storage_bytes = 24 };
	struct item_want want = {
		.fqn = "w", .fqn_len = 1, .dtype = CKPT_DTYPE_F32, .n_dims = 2, .len = len
	};
	uint64_t stride[2];
	struct payload p = { .stride = stride };
	struct buf b = BUF_INIT(0);
	struct ckpt_err e = { 0 };
	struct mem m;
	struct blob item;
	uint64_t data = saved_item(&b, &s);

	mem_init(&m, b.data, b.len);
	item = mem_blob(&m, false);
	ck_assert_int_eq(item_open(&item, &want, NULL, &p, &e), 0);
	ck_assert_uint_eq(m.reads, 1);
	ck_assert_uint_eq(p.data, data);
	ck_assert_uint_eq(p.end, data + 24);
	ck_assert_uint_eq(stride[0], 12);
	ck_assert_uint_eq(stride[1], 4);
	mem_release(&m);
	buf_release(&b);
}
END_TEST

/* ---- ways to rebuild ---- */

START_LOOP_TEST(every_way_of_rebuilding_a_dense_tensor_is_known, REBUILD_WAYS)
{
	struct rng r = rng_new();
	int64_t size[4], stride[4];
	uint8_t storage[1024];

	for (int i = 0; i < 30; i++) {
		struct saved s = { .how = (enum rebuild)_i,
				   .dtype = _i == REBUILD_Q ? CKPT_DTYPE_QI32 : CKPT_DTYPE_BF16 };

		random_view(&r, &s, size, stride, storage, sizeof(storage));
		check_saved(&s, i % 2);
	}
}
END_TEST

/* (function, class, arguments, state) around (tensor, True, hooks) around v2 */
START_TEST(wrappers_nest)
{
	const int64_t size[] = { 3 };
	const uint64_t len[] = { 3 };
	struct saved s = { .dtype = CKPT_DTYPE_I8,
			   .n_dims = 1,
			   .size = size,
			   .storage = "xyz",
			   .storage_bytes = 3,
			   .how = REBUILD_PARAMETER };
	struct buf inner = BUF_INIT(10000), b = BUF_INIT(0);
	struct emit m = EMIT_INIT(2, false);
	struct opened o;

	saved_pickle(&inner, &s);
	emit_proto(&m);
	emit_global(&m, "torch._tensor", "_rebuild_from_type_v2");
	emit_op(&m, OP_MARK);
	emit_global(&m, "torch._utils", "_rebuild_parameter");
	emit_global(&m, "torch.nn", "Buffer");
	emit_op(&m, OP_MARK);
	emit_bytes(&m, inner.data + 2, inner.len - 3); /* without PROTO and STOP */
	emit_op(&m, OP_NEWTRUE);
	emit_op(&m, OP_NONE);
	emit_op(&m, OP_TUPLE);
	emit_op(&m, OP_EMPTY_DICT);
	emit_op(&m, OP_TUPLE);
	emit_op(&m, OP_REDUCE);
	emit_op(&m, OP_STOP);
	s.pkl = m.b.data;
	s.pkl_bytes = m.b.len;
	(void)saved_item(&b, &s);
	open_bytes(&o, b.data, b.len, false, CKPT_DTYPE_I8, 1, len);
	ck_assert_msg(!o.rc, "%s", o.e.msg);
	check_elements(&s, (const uint8_t *)b.data, b.len, &o.payload);
	buf_release(&b);
	buf_release(&inner);
	buf_release(&m.b);
}
END_TEST

/* ---- bits and byte order ---- */

static const struct {
	enum ckpt_dtype dtype;
	enum rebuild how;
	bool big, neg, conj;
	bool want_swap, want_neg, want_conj;
} odd[] = {
	{ CKPT_DTYPE_F32, REBUILD_V2, true, false, false, true, false, false },
	{ CKPT_DTYPE_I64, REBUILD_V2, true, false, false, true, false, false },
	{ CKPT_DTYPE_C128, REBUILD_V2, true, false, false, true, false, false },
	{ CKPT_DTYPE_U8, REBUILD_V2, true, false, false, false, false,
	  false }, /* a byte has no order */
	{ CKPT_DTYPE_BOOL, REBUILD_V2, true, false, false, false, false, false },
	{ CKPT_DTYPE_U32, REBUILD_V3, true, false, false, false, false,
	  false }, /* as in torch, not swapped */
	{ CKPT_DTYPE_F8_E5M2, REBUILD_V3, true, false, false, false, false, false },
	{ CKPT_DTYPE_F32, REBUILD_V2, false, true, false, false, true, false },
	{ CKPT_DTYPE_C64, REBUILD_V2, false, false, true, false, false, true },
	{ CKPT_DTYPE_C64, REBUILD_V2, false, true, true, false, true, true },
	{ CKPT_DTYPE_C32, REBUILD_V3, false, true, true, false, true, true },
	{ CKPT_DTYPE_C64, REBUILD_V2, true, true, true, true, true, true },
	{ CKPT_DTYPE_F64, REBUILD_V2, false, false, true, false, false,
	  false }, /* a real number is its own conjugate */
	{ CKPT_DTYPE_QI8, REBUILD_Q, false, true, true, false, false,
	  false }, /* its function has no such argument */
	{ CKPT_DTYPE_I16, REBUILD_PARAMETER, true, true, false, true, true, false },
	{ CKPT_DTYPE_I16, REBUILD_SUBCLASS, false, true, false, false, true, false },
};

START_LOOP_TEST(bits_and_byte_order_reach_the_payload, ARRAY_LEN(odd))
{
	const int64_t size[] = { 2 };
	uint8_t storage[32] = { 0 };
	struct saved s = { .dtype = odd[_i].dtype,
			   .how = odd[_i].how,
			   .n_dims = 1,
			   .size = size,
			   .storage = storage,
			   .storage_bytes = 2u * dtype_info(odd[_i].dtype)->size,
			   .big = odd[_i].big,
			   .neg = odd[_i].neg,
			   .conj = odd[_i].conj };

	for (int order = 0; order < ORDER_COUNT; order++) {
		struct opened o;

		s.order = order;
		open_saved(&o, &s, false);
		ck_assert_msg(!o.rc, "%s", o.e.msg);
		/* without the record, little-endian */
		ck_assert_int_eq(o.payload.swap, odd[_i].want_swap && order != ORDER_20);
		ck_assert_int_eq(o.payload.neg, odd[_i].want_neg);
		ck_assert_int_eq(o.payload.conj, odd[_i].want_conj);
	}
}
END_TEST

#define RESOLVE(dtype, type, from, to, ...) \
	do { \
		type v[] = from, want[] = to; \
		const struct payload p = { __VA_ARGS__ }; \
		payload_resolve(&p, dtype, v, sizeof(v)); \
		ck_assert_msg(!memcmp(v, want, sizeof(v)), "line %d", __LINE__); \
	} while (0)
#define LIST(...) \
	{ \
		__VA_ARGS__ \
	}

START_TEST(values_are_resolved_as_arithmetic_does_it)
{
	RESOLVE(CKPT_DTYPE_F32, float, LIST(1.5f, -0.0f, 3e38f), LIST(-1.5f, 0.0f, -3e38f),
		.neg = true);
	RESOLVE(CKPT_DTYPE_F64, double, LIST(1.5, -7.25), LIST(-1.5, 7.25), .neg = true);
	RESOLVE(CKPT_DTYPE_F16, uint16_t, LIST(0x3c00, 0xfc00), LIST(0xbc00, 0x7c00), .neg = true);
	RESOLVE(CKPT_DTYPE_BF16, uint16_t, LIST(0x3f80, 0x8000), LIST(0xbf80, 0x0000), .neg = true);
	RESOLVE(CKPT_DTYPE_I8, int8_t, LIST(1, -1, 0, -128), LIST(-1, 1, 0, -128), .neg = true);
	RESOLVE(CKPT_DTYPE_I16, int16_t, LIST(256, -1, 0, INT16_MIN), LIST(-256, 1, 0, INT16_MIN),
		.neg = true);
	RESOLVE(CKPT_DTYPE_I32, int32_t, LIST(65536, -5, 0), LIST(-65536, 5, 0), .neg = true);
	RESOLVE(CKPT_DTYPE_I64, int64_t, LIST(1ll << 40, -5, 0, INT64_MIN),
		LIST(-(1ll << 40), 5, 0, INT64_MIN), .neg = true);
	RESOLVE(CKPT_DTYPE_U8, uint8_t, LIST(1, 0, 255), LIST(255, 0, 1), .neg = true);
	RESOLVE(CKPT_DTYPE_U32, uint32_t, LIST(1, 0), LIST(UINT32_MAX, 0), .neg = true);
	RESOLVE(CKPT_DTYPE_C64, float, LIST(1, 2, -3, -4), LIST(1, -2, -3, 4), .conj = true);
	RESOLVE(CKPT_DTYPE_C64, float, LIST(1, 2, -3, -4), LIST(-1, -2, 3, 4), .neg = true);
	RESOLVE(CKPT_DTYPE_C64, float, LIST(1, 2, -3, -4), LIST(-1, 2, 3, -4), .neg = true,
		.conj = true);
	RESOLVE(CKPT_DTYPE_C128, double, LIST(1, 2, 3, 4), LIST(1, -2, 3, -4), .conj = true);
	RESOLVE(CKPT_DTYPE_C32, uint16_t, LIST(1, 2), LIST(1, 0x8002), .conj = true);
	RESOLVE(CKPT_DTYPE_I32, uint32_t, LIST(0x01020304), LIST(0x04030201), .swap = true);
	RESOLVE(CKPT_DTYPE_C64, uint32_t, LIST(0x01020304, 0x05060708),
		LIST(0x04030201, 0x08070605), .swap = true);
	RESOLVE(CKPT_DTYPE_F64, uint64_t, LIST(0x0102030405060708), LIST(0x0807060504030201),
		.swap = true);
	RESOLVE(CKPT_DTYPE_I16, uint16_t, LIST(0x0100), LIST(0xffff), .swap = true, .neg = true);
	RESOLVE(CKPT_DTYPE_C64, uint32_t, LIST(0x803f, 0x803f), LIST(0x3f800000, 0xbf800000),
		.swap = true, .conj = true);
	RESOLVE(CKPT_DTYPE_F32, float, LIST(1, 2), LIST(1, 2), .stride = NULL);
}
END_TEST

/* ---- what does not fit ---- */

/* An int16 tensor [2,3] in a storage of 6 elements, with one difference. */
static const struct {
	struct saved t;	      /* fields that are not zero */
	enum ckpt_dtype want; /* 0: int16 */
	int code;
	const char *msg;
} misfits[] = {
	{ { .dtype = CKPT_DTYPE_F16 },
	  0,
	  EBADMSG,
	  "the metadata says int16, but its item holds float16" },
	{ { .how = REBUILD_V3, .dtype = CKPT_DTYPE_U16 },
	  0,
	  EBADMSG,
	  "the metadata says int16, but its item holds uint16" },
	{ { .n_dims = 1, .size = (const int64_t[]){ 6 } },
	  0,
	  EBADMSG,
	  "its item does not have the chunk's sizes" },
	{ { .n_dims = 2, .size = (const int64_t[]){ 3, 2 } },
	  0,
	  EBADMSG,
	  "its item does not have the chunk's sizes" },
	{ { .offset = 1 }, 0, EBADMSG, "its view reaches outside its storage of 12 bytes" },
	{ { .stride = (const int64_t[]){ 4, 1 } },
	  0,
	  EBADMSG,
	  "its view reaches outside its storage of 12 bytes" },
	{ { .stride = (const int64_t[]){ 3, INT64_MAX } },
	  0,
	  EBADMSG,
	  "its view reaches outside its storage of 12 bytes" },
	{ { .stride = (const int64_t[]){ (int64_t)1 << 62, (int64_t)1 << 62 } },
	  0,
	  EBADMSG,
	  "its view reaches outside its storage of 12 bytes" },
	{ { .offset = INT64_MAX }, 0, EBADMSG, "its view reaches outside its storage of 12 bytes" },
	{ { .claimed = 1 + 5 }, 0, EBADMSG, "its view reaches outside its storage of 10 bytes" },
	{ { .claimed = 1 + 0 }, 0, EBADMSG, "its view reaches outside its storage of 0 bytes" },
	{ { .claimed = (int64_t)1 << 40, .stride = (const int64_t[]){ (int64_t)1 << 30, 1 } },
	  0,
	  EBADMSG,
	  "its storage reaches beyond the item's 1" },
	{ { .claimed = INT64_MAX, .offset = (int64_t)1 << 61 },
	  0,
	  EBADMSG,
	  "its storage reaches beyond the item's 1" },
	{ { .claimed = -4 }, 0, EBADMSG, "data.pkl: a storage is not written as torch writes it" },
	{ { .offset = -1 }, 0, EBADMSG, "data.pkl: offset, size and stride do not fit together" },
	{ { .stride = (const int64_t[]){ -3, 1 } },
	  0,
	  EBADMSG,
	  "data.pkl: offset, size and stride do not fit together" },
	{ { .n_dims = 2, .size = (const int64_t[]){ -2, 3 } },
	  0,
	  EBADMSG,
	  "data.pkl: offset, size and stride do not fit together" },
	{ { .n_strides = 1 + 1 },
	  0,
	  EBADMSG,
	  "data.pkl: offset, size and stride do not fit together" },
	{ { .n_strides = 1 + 0 },
	  0,
	  EBADMSG,
	  "data.pkl: offset, size and stride do not fit together" },
	{ { .storage_class = "FancyStorage" },
	  0,
	  ENOTSUP,
	  "data.pkl: storage class 'FancyStorage'" },
	{ { .function = "_rebuild_sparse_tensor" },
	  0,
	  ENOTSUP,
	  "data.pkl: '_rebuild_sparse_tensor' is not a dense tensor" },
	{ { .function = "_rebuild_wrapper_subclass" },
	  0,
	  ENOTSUP,
	  "data.pkl: '_rebuild_wrapper_subclass' is not a dense tensor" },
	{ { .key = "a-key-of-sixty-four-bytes-or-more-is-none-that-torch-would-ever-write" },
	  0,
	  EBADMSG,
	  "data.pkl: a storage is not written as torch writes it" },
};

START_LOOP_TEST(what_does_not_fit_is_an_error_with_a_sentence, ARRAY_LEN(misfits))
{
	static const int64_t size[] = { 2, 3 };
	static const uint64_t len[] = { 2, 3 };
	struct saved s = misfits[_i].t;
	struct buf b = BUF_INIT(0);
	struct opened o;

	s.dtype = s.dtype ? s.dtype : CKPT_DTYPE_I16;
	s.n_dims = s.size ? s.n_dims : 2;
	s.size = s.size ? s.size : size;
	s.storage = "0123456789ab";
	s.storage_bytes = 12;
	(void)saved_item(&b, &s);
	open_bytes(&o, b.data, b.len, false, CKPT_DTYPE_I16, 2, len);
	ck_assert_int_eq(o.rc, -misfits[_i].code);
	ck_assert_msg(!strncmp(o.e.msg, misfits[_i].msg, strlen(misfits[_i].msg)), "%s", o.e.msg);
	ck_assert_uint_eq(o.payload.data, 4242);
	/* If the item is compressed, only what its end would show goes unnoticed. */
	open_bytes(&o, b.data, b.len, true, CKPT_DTYPE_I16, 2, len);
	ck_assert_int_eq(o.rc, strstr(misfits[_i].msg, "beyond the item") ? 0 : -misfits[_i].code);
	buf_release(&b);
}
END_TEST

START_TEST(dimensions_of_one_or_no_elements_make_strides_meaningless)
{
	const int64_t ones[] = { 1, 1 }, none[] = { 3, 0, 2 }, huge[] = { INT64_MAX, 0, INT64_MAX };
	struct saved s = { .dtype = CKPT_DTYPE_F64,
			   .n_dims = 2,
			   .size = ones,
			   .stride = huge,
			   .storage = "01234567",
			   .storage_bytes = 8 };
	struct opened o;

	check_saved(&s, false);
	s.n_dims = 3;
	s.size = none;
	s.storage_bytes = 0;
	s.offset = INT64_MAX;
	open_saved(&o, &s, false);
	ck_assert_msg(!o.rc, "%s", o.e.msg);
	s.n_dims = 0;
	s.offset = 0;
	s.storage_bytes = 8;
	check_saved(&s, true);
	s.storage_bytes = 0;
	open_saved(&o, &s, false);
	ck_assert_int_eq(o.rc, -EBADMSG);
	ck_assert_str_eq(o.e.msg, "its view reaches outside its storage of 0 bytes");
}
END_TEST

START_TEST(the_directory_knows_when_a_storage_is_shorter_than_it_says)
{
	const int64_t size[] = { 2 };
	struct saved s = { .dtype = CKPT_DTYPE_I16,
			   .n_dims = 1,
			   .size = size,
			   .storage = "abcd",
			   .storage_bytes = 4,
			   .claimed = 1 + 3,
			   .order = ORDER_DATA_FIRST };
	struct opened o;

	open_saved(&o, &s, false);
	ck_assert_int_eq(o.rc, -EBADMSG);
	ck_assert_str_eq(o.e.msg, "data/0 has 4 bytes, but data.pkl says 6");
}
END_TEST

/* ---- pickles that torch would not write ---- */

static const struct {
	const char *text; /* between PROTO 2 and STOP */
	int code;
	const char *msg;
} pickles[] = {
	{ "N", EBADMSG, "data.pkl does not hold a tensor" },
	{ "K\7", EBADMSG, "data.pkl does not hold a tensor" },
	{ "]", EBADMSG, "data.pkl does not hold a tensor" },
	{ "ctorch\n_rebuild_tensor_v2\n", EBADMSG, "data.pkl does not hold a tensor" },
	{ "ctorch\n_rebuild_tensor_v2\n)R", EBADMSG, "data.pkl: a tensor with 0 arguments" },
	{ "ctorch\n_rebuild_tensor_v2\n(NNNtR", EBADMSG, "data.pkl: a tensor with 3 arguments" },
	{ "ctorch\n_rebuild_tensor_v3\n(NNNNNNtR", EBADMSG, "data.pkl: a tensor with 6 arguments" },
	{ "ctorch\n_rebuild_tensor_v3\n(NNNNNNNtR", ENOTSUP, "data.pkl: unknown dtype" },
	{ "ctorch\n_rebuild_tensor_v3\n(NNNNNNctorch\nfloat99\ntR", ENOTSUP,
	  "data.pkl: unknown dtype" },
	{ "ctorch\n_rebuild_tensor_v2\n(NK\0))tR", EBADMSG,
	  "data.pkl: a tensor without a storage" },
	{ "ctorch\n_rebuild_tensor_v2\n(NQK\0))tR", EBADMSG,
	  "data.pkl: a tensor without a storage" },
	{ "ctorch\n_rebuild_tensor_v2\n((NNNNtQK\0))tR", EBADMSG,
	  "data.pkl: a tensor without a storage" },
	{ "ctorch\n_rebuild_tensor_v2\n((NNNNNtQK\0))tR", EBADMSG,
	  "data.pkl: a storage is not written as torch writes it" },
	{ "ctorch\n_rebuild_parameter\n(NNtR", ENOTSUP,
	  "data.pkl: '_rebuild_parameter' is not a dense tensor" },
	{ "ctorch\n_rebuild_parameter\n)R", ENOTSUP,
	  "data.pkl: '_rebuild_parameter' is not a dense tensor" },
	{ "ctorch\n_rebuild_from_type_v2\n(NNtR", ENOTSUP,
	  "data.pkl: '_rebuild_from_type_v2' is not a dense tensor" },
	{ "ctorch\n_rebuild_from_type_v2\n(NNNtR", ENOTSUP, "data.pkl: '?' is not a dense tensor" },
	{ "cos\nsystem\nU\4trueR", ENOTSUP, "data.pkl: 'system' is not a dense tensor" },
	{ "cos\nsystem\n(U\4truetR", ENOTSUP, "data.pkl: 'system' is not a dense tensor" },
	{ "", EBADMSG, NULL },
	{ "\xff", EBADMSG, NULL },
};

START_LOOP_TEST(other_pickles_are_refused, ARRAY_LEN(pickles))
{
	const int64_t size[] = { 3 };
	const uint64_t len[] = { 3 };
	size_t n = strlen(pickles[_i].text);
	struct saved s = { .dtype = CKPT_DTYPE_I8,
			   .n_dims = 1,
			   .size = size,
			   .storage = "xyz",
			   .storage_bytes = 3 };
	struct emit m = EMIT_INIT(2, false);

	/* K\0 has a NUL in it: '0' stands for it */
	emit_proto(&m);
	for (size_t i = 0; i < n; i++)
		emit_op(&m, (uint8_t)pickles[_i].text[i]);
	if (strstr(pickles[_i].text, "K") && n && pickles[_i].text[n - 1] == 'K')
		emit_bytes(&m, "\0))tR", 5);
	emit_op(&m, OP_STOP);
	s.pkl = m.b.data;
	s.pkl_bytes = m.b.len;
	for (int order = 0; order < ORDER_COUNT; order++) {
		struct buf b = BUF_INIT(0);
		struct opened o;

		s.order = order;
		(void)saved_item(&b, &s);
		open_bytes(&o, b.data, b.len, false, CKPT_DTYPE_I8, 1, len);
		ck_assert_int_eq(o.rc, -pickles[_i].code);
		if (pickles[_i].msg)
			ck_assert_str_eq(o.e.msg, pickles[_i].msg);
		buf_release(&b);
	}
	buf_release(&m.b);
}
END_TEST

/* Python has integers of any length; no number of a tensor needs more than 64 bits. */
START_TEST(numbers_of_more_than_64_bits_are_refused)
{
	static const char big[] = "\x8a\x09\0\0\0\0\0\0\0\0\1"; /* 2^64 */
	const int64_t size[] = { 3 };
	const uint64_t len[] = { 3 };
	struct saved s = { .dtype = CKPT_DTYPE_I8,
			   .n_dims = 1,
			   .size = size,
			   .storage = "xyz",
			   .storage_bytes = 3 };
	struct buf plain = BUF_INIT(10000);
	unsigned refused = 0;

	saved_pickle(&plain, &s);
	for (size_t i = 2; i + 1 < plain.len; i++) {
		struct buf pkl = BUF_INIT(10000), b = BUF_INIT(0);
		struct opened o;

		if (plain.data[i] != OP_BININT1)
			continue;
		buf_add(&pkl, plain.data, i);
		buf_add(&pkl, big, sizeof(big) - 1);
		buf_add(&pkl, plain.data + i + 2, plain.len - i - 2);
		s.pkl = pkl.data;
		s.pkl_bytes = pkl.len;
		(void)saved_item(&b, &s);
		open_bytes(&o, b.data, b.len, false, CKPT_DTYPE_I8, 1, len);
		ck_assert_int_lt(o.rc, 0);
		refused++;
		buf_release(&b);
		buf_release(&pkl);
	}
	ck_assert_uint_eq(refused, 4); /* count, offset, size, stride */
	buf_release(&plain);
}
END_TEST

START_TEST(sixty_four_dimensions_are_the_most)
{
	int64_t size[65];
	uint64_t len[65];
	struct saved s = { .dtype = CKPT_DTYPE_I8,
			   .n_dims = 64,
			   .size = size,
			   .storage = "x",
			   .storage_bytes = 1 };
	struct buf b = BUF_INIT(0);
	struct opened o;

	for (size_t d = 0; d < 65; d++) {
		size[d] = 1;
		len[d] = 1;
	}
	s.stride = size;
	check_saved(&s, false);
	s.n_dims = 65;
	(void)saved_item(&b, &s);
	open_bytes(&o, b.data, b.len, false, CKPT_DTYPE_I8, 64, len);
	ck_assert_int_eq(o.rc, -EBADMSG);
	ck_assert_str_eq(o.e.msg, "data.pkl: offset, size and stride do not fit together");
	buf_release(&b);
}
END_TEST

/* ---- damage ---- */

START_LOOP_TEST(every_beginning_of_an_item_is_refused_or_right, ARRAY_LEN(styles) * ORDER_COUNT)
{
	struct rng r = rng_new();
	const int64_t size[] = { 2, 3 };
	const uint64_t len[] = { 2, 3 };
	uint8_t storage[48];
	struct saved s = { .dtype = CKPT_DTYPE_F64,
			   .n_dims = 2,
			   .size = size,
			   .storage = storage,
			   .storage_bytes = 48,
			   .style = styles[_i % (int)ARRAY_LEN(styles)] };
	struct buf b = BUF_INIT(0);
	uint64_t data;

	random_bytes(&r, storage, sizeof(storage));
	s.order = _i / (int)ARRAY_LEN(styles);
	data = saved_item(&b, &s);
	for (size_t n = 0; n < b.len;
	     n += n < 3000 || n + 3000 > b.len ? 1 + rng_below(&r, rng_rounds(1, 20)) : 97) {
		struct opened o;

		open_bytes(&o, b.data, n, false, CKPT_DTYPE_F64, 2, len);
		REQUIRE(o.rc || (o.payload.data == data && o.payload.end <= n));
		open_bytes(&o, b.data, n, true, CKPT_DTYPE_F64, 2, len);
		REQUIRE(o.rc || o.payload.data == data);
	}
	buf_release(&b);
}
END_TEST

START_LOOP_TEST(flipped_bits_give_an_error_or_a_payload_inside_the_item, ORDER_COUNT)
{
	struct rng r = rng_new();
	const int64_t size[] = { 2, 3 };
	const uint64_t len[] = { 2, 3 };
	uint8_t storage[48];
	struct saved s = { .dtype = CKPT_DTYPE_F64,
			   .n_dims = 2,
			   .size = size,
			   .storage = storage,
			   .storage_bytes = 48 };
	struct buf b = BUF_INIT(0);

	random_bytes(&r, storage, sizeof(storage));
	s.order = _i;
	(void)saved_item(&b, &s);
	for (int i = 0; i < 3000; i++) {
		size_t k = 1 + rng_below(&r, 2), at[2];
		uint8_t bit[2];
		struct opened o;

		for (size_t j = 0; j < k; j++) {
			at[j] = rng_below(&r, b.len);
			bit[j] = (uint8_t)(1 << rng_below(&r, 8));
			b.data[at[j]] = (char)(b.data[at[j]] ^ bit[j]);
		}
		open_bytes(&o, b.data, b.len, false, CKPT_DTYPE_F64, 2, len);
		if (!o.rc) {
			uint64_t last = o.payload.data + 8;

			for (size_t d = 0; d < 2; d++)
				last += (len[d] - 1) * o.payload.stride[d];
			REQUIRE(last <= b.len && o.payload.end <= b.len && last <= o.payload.end);
		}
		open_bytes(&o, b.data, b.len, true, CKPT_DTYPE_F64, 2, len);
		while (k-- > 0)
			b.data[at[k]] = (char)(b.data[at[k]] ^ bit[k]);
	}
	buf_release(&b);
}
END_TEST

static int open_with(struct mem *m, bool encoded, struct ckpt_err *e)
{
	static const uint64_t len[] = { 3 };
	struct item_want want = {
		.fqn = "w", .fqn_len = 1, .dtype = CKPT_DTYPE_U8, .n_dims = 1, .len = len
	};
	struct blob b = mem_blob(m, !encoded), rest = b;
	uint64_t stride[1];
	struct payload p = { .stride = stride };
	struct item_cache *c = item_cache_new();
	int rc;

	if (!c)
		return err_set(e, ENOMEM, "out of memory");
	if (!encoded)
		want.rest = &rest;
	m->reads = 0;
	rc = item_open(&b, &want, c, &p, e);
	item_cache_free(c);
	return rc;
}

START_LOOP_TEST(failing_reads_and_allocations_come_through, 3)
{
	const int64_t size[] = { 3 };
	struct saved s = { .dtype = CKPT_DTYPE_U8,
			   .n_dims = 1,
			   .size = size,
			   .storage = "xyz",
			   .storage_bytes = 3,
			   .hooks_bytes = _i ? 30000 : 0 };
	struct buf b = BUF_INIT(0);
	struct mem m;
	unsigned failed = 0;

	s.order = _i < 2 ? ORDER_NOW : ORDER_DATA_FIRST;
	(void)saved_item(&b, &s);
	mem_init(&m, b.data, b.len);
	for (m.fail = 1;; m.fail++) {
		struct ckpt_err e = { 0 };

		if (!open_with(&m, _i < 2, &e))
			break;
		ck_assert_int_eq(e.code, EIO);
		failed++;
	}
	ck_assert_uint_ge(failed, _i < 1 ? 1 : _i < 2 ? 3 : 6);
	m.fail = 0;
	FAULT_LOOP(FAULT_ALLOC)
	{
		struct ckpt_err e = { 0 };
		int rc = open_with(&m, _i < 2, &e);

		(void)fault_off();
		/* Running out of memory may look like reaching a ceiling of the pickle machine. */
		ck_assert(fault_hit() ? rc == -ENOMEM || rc == -EFBIG : !rc);
		ck_assert_int_eq(e.code, -rc);
	}
	mem_release(&m);
	buf_release(&b);
}
END_TEST

/* ---- safetensors instead of archives ---- */

static const char st_json[] = "{\"w\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
			      "\"f4\":{\"dtype\":\"F4\",\"shape\":[2,6],\"data_offsets\":[24,30]},"
			      "\"n\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[30,38]}}";

static void st_blob(struct mem *m)
{
	uint8_t b[8 + sizeof(st_json) - 1 + 38] = { sizeof(st_json) - 1 };

	memcpy(b + 8, st_json, sizeof(st_json) - 1);
	for (int i = 0; i < 38; i++)
		b[8 + sizeof(st_json) - 1 + i] = (uint8_t)i;
	mem_init(m, b, sizeof(b));
}

static const struct {
	const char *fqn;
	enum ckpt_dtype dtype;
	size_t n_dims;
	uint64_t len[3];
	uint64_t begin, end, stride[3]; /* or: */
	const char *msg;
} st_rows[] = {
	{ "w", CKPT_DTYPE_F32, 2, { 2, 3 }, 0, 24, { 12, 4 }, NULL },
	{ "n", CKPT_DTYPE_I64, 0, { 0 }, 30, 38, { 0 }, NULL },
	{ "f4", CKPT_DTYPE_F4_E2M1FN_X2, 2, { 2, 3 }, 24, 30, { 3, 1 }, NULL },
	{ "f4",
	  CKPT_DTYPE_F4_E2M1FN_X2,
	  2,
	  { 2, 6 },
	  0,
	  0,
	  { 0 },
	  "its file's safetensors header gives it another shape" },
	{ "w",
	  CKPT_DTYPE_F32,
	  2,
	  { 3, 2 },
	  0,
	  0,
	  { 0 },
	  "its file's safetensors header gives it another shape" },
	{ "w",
	  CKPT_DTYPE_F32,
	  1,
	  { 6 },
	  0,
	  0,
	  { 0 },
	  "its file's safetensors header gives it another shape" },
	{ "w",
	  CKPT_DTYPE_F64,
	  2,
	  { 2, 3 },
	  0,
	  0,
	  { 0 },
	  "the metadata says float64, but its item holds float32" },
	{ "x",
	  CKPT_DTYPE_F32,
	  2,
	  { 2, 3 },
	  0,
	  0,
	  { 0 },
	  "its file's safetensors header does not name it" },
};

START_LOOP_TEST(safetensors_items_are_found_by_name, ARRAY_LEN(st_rows))
{
	struct item_cache *cache = item_cache_new();
	struct item_want want = { .fqn = st_rows[_i].fqn,
				  .fqn_len = strlen(st_rows[_i].fqn),
				  .dtype = st_rows[_i].dtype,
				  .n_dims = st_rows[_i].n_dims,
				  .len = st_rows[_i].len };
	uint64_t stride[3], data = 8 + sizeof(st_json) - 1;
	struct mem m;
	struct blob item, rest;

	ck_assert_ptr_nonnull(cache);
	st_blob(&m);
	rest = mem_blob(&m, true);
	item = rest;
	item.size = 24; /* the size in .metadata is not that of the data */
	want.rest = &rest;
	for (int again = 0; again < 2; again++) {
		struct payload p = { .stride = stride };
		struct ckpt_err e = { 0 };
		int rc = item_open(&item, &want, cache, &p, &e);

		if (st_rows[_i].msg) {
			ck_assert_int_eq(rc, -EBADMSG);
			ck_assert_str_eq(e.msg, st_rows[_i].msg);
			continue;
		}
		ck_assert_int_eq(rc, 0);
		ck_assert_uint_eq(p.data, data + st_rows[_i].begin);
		ck_assert_uint_eq(p.end, data + st_rows[_i].end);
		ck_assert(!payload_is_odd(&p));
		for (size_t d = 0; d < st_rows[_i].n_dims; d++)
			ck_assert_uint_eq(stride[d], st_rows[_i].stride[d]);
	}
	mem_release(&m);
	item_cache_free(cache);
}
END_TEST

START_TEST(a_files_safetensors_header_is_parsed_once)
{
	struct item_cache *cache = item_cache_new();
	const uint64_t len[] = { 2, 3 };
	struct item_want want = {
		.fqn = "w", .fqn_len = 1, .dtype = CKPT_DTYPE_F32, .n_dims = 2, .len = len
	};
	static const struct {
		uint32_t file;
		uint64_t offset;
		unsigned reads; /* of the header */
	} rows[] = { { 0, 7, 2 }, { 0, 7, 0 }, { 0, 7, 0 },
		     { 0, 8, 2 }, { 1, 8, 2 }, { 1, 8, 0 },
		     { 0, 8, 2 }, { 1, 0, 2 }, { 0, (uint64_t)1 << 40, 2 } };
	uint64_t stride[2];
	struct mem m;
	struct blob rest;

	ck_assert_ptr_nonnull(cache);
	st_blob(&m);
	rest = mem_blob(&m, true);
	want.rest = &rest;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct payload p = { .stride = stride };
		struct ckpt_err e = { 0 };

		m.reads = 0;
		want.file = rows[i].file;
		want.offset = rows[i].offset;
		ck_assert_int_eq(item_open(&rest, &want, cache, &p, &e), 0);
		ck_assert_uint_eq(m.reads, 1 + rows[i].reads);
	}
	mem_release(&m);
	item_cache_free(cache);
}
END_TEST

START_TEST(bytes_that_are_nothing_are_refused)
{
	const uint64_t len[] = { 1 };
	struct opened o;

	open_bytes(&o, "nothing that is known", 21, false, CKPT_DTYPE_U8, 1, len);
	ck_assert_int_eq(o.rc, -EBADMSG);
	ck_assert_str_eq(o.e.msg,
			 "the item is neither a torch.save archive nor safetensors: no safetensors "
			 "header: its length would be 2334956330817974126");
	open_bytes(&o, "nothing that is known", 21, true, CKPT_DTYPE_U8, 1, len);
	ck_assert_int_eq(o.rc, -EBADMSG);
	ck_assert_str_eq(o.e.msg, "its decoded item is not a torch.save archive");
	open_bytes(&o, "", 0, false, CKPT_DTYPE_U8, 1, len);
	ck_assert_int_eq(o.rc, -EBADMSG);
}
END_TEST

SUITE(item, .seconds = 60)
