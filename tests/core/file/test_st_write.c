/* SPDX-License-Identifier: Apache-2.0 */
#include "base/bytes.h"
#include "base/checked.h"
#include "base/err.h"
#include "file/st_write.h"
#include "parse/safetensors.h"
#include "rng.h"
#include "suites.h"
#include "vfile_util.h"

#include <stdlib.h>
#include <string.h>

#define DIMS(...) ((const uint64_t[]){ __VA_ARGS__ })

START_TEST(a_file_reads_as_it_was_laid_out)
{
	const struct tensor_info m[] = {
		member_of("layer.0", CKPT_DTYPE_BF16, 2, DIMS(2, 3), 5),
		member_of("layer.1", CKPT_DTYPE_U8, 1, DIMS(3), 6),
		member_of("caf\xc3\xa9 \"x\"", CKPT_DTYPE_F64, 0, NULL, 7),
		member_of("layer.2", CKPT_DTYPE_BF16, 1, DIMS(1), 8),
		member_of("pairs", CKPT_DTYPE_F4_E2M1FN_X2, 2, DIMS(2, 3), 9),
		member_of("none", CKPT_DTYPE_F32, 2, DIMS(0, 3), 10),
	};
	static const char json[] =
		"{\"__metadata__\":{\"format\":\"pt\"},"
		"\"caf\\u00e9 \\\"x\\\"\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]},"
		"\"none\":{\"dtype\":\"F32\",\"shape\":[0,3],\"data_offsets\":[8,8]},"
		"\"layer.0\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[8,20]},"
		"\"layer.2\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[20,22]},"
		"\"layer.1\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[22,25]},"
		"\"pairs\":{\"dtype\":\"F4\",\"shape\":[2,6],\"data_offsets\":[25,31]}} ";
	static const uint64_t ids[] = { 7, 5, 8, 6, 9 };
	struct vfile f;
	struct ckpt_err e = { 0 };
	struct buf b;

	ck_assert_int_eq(st_layout(m, ARRAY_LEN(m), &f, &e), 0);
	ck_assert_int_eq(e.code, 0);
	b = vfile_all(&f);
	ck_assert_uint_eq(load_le64(b.data), 4096 - 8);
	ck_assert_mem_eq(b.data + 8, json, sizeof(json) - 1);
	for (size_t i = 8 + sizeof(json) - 1; i < 4096; i++)
		ck_assert_int_eq(b.data[i], ' ');
	ck_assert_uint_eq(f.size, 4096 + 31);
	ck_assert_uint_eq(f.n, 1 + ARRAY_LEN(ids));
	for (size_t i = 0; i < ARRAY_LEN(ids); i++) {
		ck_assert_int_eq(f.seg[1 + i].kind, SEG_TENSOR);
		ck_assert_uint_eq(f.seg[1 + i].id, ids[i]);
	}
	buf_release(&b);
	vfile_release(&f);
}
END_TEST

START_TEST(no_tensors_make_a_file_too)
{
	struct st_header *h;
	struct vfile f;
	struct ckpt_err e = { 0 };
	struct blob b;

	ck_assert_int_eq(st_layout(NULL, 0, &f, &e), 0);
	ck_assert_uint_eq(f.size, 4096);
	b = vfile_blob(&f);
	ck_assert_int_eq(st_read(&b, &h, &e), 0);
	ck_assert_uint_eq(st_data(h), 4096);
	st_free(h);
	vfile_release(&f);
}
END_TEST

/* Compares what the header says of m with m, and the data. */
static void check_member(const struct blob *b, const struct st_header *h,
			 const struct tensor_info *m)
{
	const struct st_tensor *t = st_find(h, m->fqn, m->fqn_len);
	uint64_t last = m->dtype == CKPT_DTYPE_F4_E2M1FN_X2 ? 2 : 1;
	struct ckpt_err e = { 0 };
	uint8_t *data;

	REQUIRE(t && t->dtype == m->dtype && t->n_dims == m->n_dims);
	for (size_t d = 0; d < t->n_dims; d++)
		REQUIRE(t->shape[d] == m->shape[d] * (d + 1 == t->n_dims ? last : 1));
	REQUIRE(t->end - t->begin == m->bytes);
	REQUIRE((st_data(h) + t->begin) % dtype_info(m->dtype)->size == 0);
	data = malloc(m->bytes + 1);
	REQUIRE(data);
	REQUIRE(b->read(b->arg, st_data(h) + t->begin, data, m->bytes, &e) == (int64_t)m->bytes ||
		!m->bytes);
	for (uint64_t i = 0; i < m->bytes; i++)
		REQUIRE(data[i] == fake_byte(m->id, i));
	free(data);
}

START_TEST(whatever_goes_in_comes_out_aligned)
{
	struct rng r = rng_new();

	for (int round = 0; round < 100; round++) {
		struct members l = members_random(&r, rng_below(&r, 120), st_holds);
		struct st_header *h;
		struct ckpt_err e = { 0 };
		struct vfile f;
		struct blob b;

		REQUIRE(!st_layout(l.m, l.n, &f, &e));
		b = vfile_blob(&f);
		ck_assert_msg(!st_read(&b, &h, &e), "%s", e.msg);
		REQUIRE(st_data(h) % 4096 == 0);
		for (size_t i = 0; i < l.n; i++)
			check_member(&b, h, &l.m[i]);
		st_free(h);
		vfile_release(&f);
		members_free(&l);
	}
}
END_TEST

START_TEST(every_dtype_is_held_or_refused)
{
	for (enum ckpt_dtype t = CKPT_DTYPE_NONE; t < CKPT_DTYPE_COUNT; t++) {
		struct tensor_info m = member_of("t", t, 1, DIMS(6), 1);
		struct vfile f = VFILE_INIT;
		struct ckpt_err e = { 0 };
		struct st_header *h;
		struct blob b;

		if (!st_holds(t)) {
			ck_assert_int_eq(st_layout(&m, 1, &f, &e), -ENOTSUP);
			ck_assert_uint_eq(f.n, 0);
			continue;
		}
		ck_assert_int_eq(st_layout(&m, 1, &f, &e), 0);
		b = vfile_blob(&f);
		ck_assert_int_eq(st_read(&b, &h, &e), 0);
		check_member(&b, h, &m);
		st_free(h);
		vfile_release(&f);
	}
	ck_assert(st_holds(CKPT_DTYPE_BF16) && st_holds(CKPT_DTYPE_F4_E2M1FN_X2));
	ck_assert(!st_holds(CKPT_DTYPE_C128) && !st_holds(CKPT_DTYPE_QI8) &&
		  !st_holds(CKPT_DTYPE_NONE));
}
END_TEST

static const struct {
	const char *name;
	enum ckpt_dtype dtype;
	const char *msg;
} refused[] = {
	{ "a\x01", CKPT_DTYPE_C128, "'a%01': safetensors has no type complex128" },
	{ "a", CKPT_DTYPE_F4_E2M1FN_X2,
	  "'a': safetensors cannot hold a pair of 4-bit values without dimensions" },
	{ "a\xff", CKPT_DTYPE_F32,
	  "safetensors requires names in UTF-8, but this name is not in UTF-8" },
	{ "a\xed\xa0\x80", CKPT_DTYPE_F32,
	  "safetensors requires names in UTF-8, but this name is not in UTF-8" },
	{ "a\xed\xbf\xbf", CKPT_DTYPE_F32,
	  "safetensors requires names in UTF-8, but this name is not in UTF-8" },
	{ "__metadata__", CKPT_DTYPE_F32, "'__metadata__': safetensors reserves this name" },
};

START_LOOP_TEST(what_cannot_be_held_is_named, ARRAY_LEN(refused))
{
	const struct tensor_info m[] = {
		member_of("fine", CKPT_DTYPE_F32, 1, DIMS(2), 1),
		member_of(refused[_i].name, refused[_i].dtype, 0, NULL, 2),
	};
	struct vfile f = VFILE_INIT;
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(st_check(&m[0], &e), 0);
	ck_assert_int_eq(e.code, 0);
	ck_assert_int_eq(st_check(&m[1], &e), -ENOTSUP);
	ck_assert_msg(strstr(e.msg, refused[_i].msg), "%s", e.msg);
	e = (struct ckpt_err){ 0 };
	ck_assert_int_eq(st_layout(m, 2, &f, &e), -ENOTSUP);
	ck_assert_int_eq(e.code, ENOTSUP);
	ck_assert_uint_eq(f.n, 0);
}
END_TEST

START_TEST(unusual_names_are_held)
{
	static const char *const names[] = {
		"", "__metadata_", "__metadata__x", "\xed\x9f\xbf", "\xee\x80\x80", "\xef\xbf\xbd"
	};
	struct ckpt_err e = { 0 };

	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		struct tensor_info m = member_of(names[i], CKPT_DTYPE_F32, 0, NULL, 1);

		ck_assert_msg(!st_check(&m, &e), "%s", e.msg);
	}
}
END_TEST

/* JSON around a name of one scalar F32. */
#define FRAME \
	"{\"__metadata__\":{\"format\":\"pt\"},\"\":{\"dtype\":\"F32\",\"shape\":[]," \
	"\"data_offsets\":[0,4]}}"

START_LOOP_TEST(headers_that_safetensors_would_refuse_are_not_written, 2)
{
	size_t most = ST_MAX_HEADER / 4096 * 4096 - 8 - strlen(FRAME);
	char *name = malloc(most + 2);
	struct vfile f = VFILE_INIT;
	struct ckpt_err e = { 0 };
	struct tensor_info m = member_of("", CKPT_DTYPE_F32, 0, NULL, 1);

	if (!rng_turn((uint64_t)_i, 4)) { /* headers of 100 MB */
		free(name);
		return;
	}
	ck_assert_ptr_nonnull(name);
	memset(name, 'n', most + 1);
	name[most + 1] = 0;
	m.fqn = name;
	m.fqn_len = most + (_i == 1);
	if (_i == 0) {
		ck_assert_int_eq(st_layout(&m, 1, &f, &e), 0);
		ck_assert_uint_eq(load_le64(f.text.data), ST_MAX_HEADER / 4096 * 4096 - 8);
		ck_assert_uint_eq(f.size, 8 + load_le64(f.text.data) + 4);
	} else {
		ck_assert_int_eq(st_layout(&m, 1, &f, &e), -EFBIG);
		ck_assert_str_eq(
			e.msg, "a safetensors header holds at most 100000000 bytes, and that of 1 "
			       "tensor would be larger: a smaller shard_size= makes more and "
			       "smaller files");
	}
	vfile_release(&f);
	free(name);
}
END_TEST

START_LOOP_TEST(more_bytes_than_a_file_has_are_refused, 3)
{
	static const uint64_t bytes[][2] = { { INT64_MAX - 4096, 1 },
					     { UINT64_MAX, 1 },
					     { UINT64_MAX - 7, 7 } };
	struct tensor_info m[2] = { member_of("a", CKPT_DTYPE_U8, 0, NULL, 1),
				    member_of("b", CKPT_DTYPE_U8, 0, NULL, 2) };
	struct vfile f = VFILE_INIT;
	struct ckpt_err e = { 0 };

	m[0].bytes = bytes[_i][0];
	m[1].bytes = bytes[_i][1];
	ck_assert_int_eq(st_layout(m, 2, &f, &e), -EFBIG);
	ck_assert_str_eq(e.msg, "the file would be too large");
	ck_assert_uint_eq(f.n, 0);
	m[0].bytes = INT64_MAX - 4097;
	m[1].bytes = 1;
	ck_assert_int_eq(st_layout(m, 2, &f, &e), 0);
	ck_assert_uint_eq(f.size, INT64_MAX);
	vfile_release(&f);
}
END_TEST

START_TEST(lack_of_memory_is_a_clean_error)
{
	layout_without_memory(st_layout, st_holds, 3);
}
END_TEST

SUITE(st_write, .seconds = 60)
