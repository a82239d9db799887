/* SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "base/err.h"
#include "blob_util.h"
#include "fault.h"
#include "suites.h"
#include "vfile_util.h"

#include <stdlib.h>
#include <string.h>

START_TEST(neighbouring_literals_become_one_segment)
{
	struct vfile f = VFILE_INIT;
	struct ckpt_err e = { 0 };

	vfile_bytes(&f, "ab", 2);
	vfile_bytes(&f, "", 0);
	vfile_bytes(&f, "c", 1);
	vfile_tensor(&f, 7, 10);
	vfile_bytes(&f, "de", 2);
	vfile_bytes(&f, "f", 1);
	ck_assert_int_eq(vfile_done(&f, &e), 0);
	ck_assert_uint_eq(f.size, 16);
	ck_assert_uint_eq(f.n, 3);
	ck_assert_uint_eq(f.seg[0].len, 3);
	ck_assert_uint_eq(f.seg[2].from, 3);
	ck_assert_mem_eq(f.text.data, "abcdef", 6);
	vfile_release(&f);
}
END_TEST

START_TEST(segments_say_what_they_were_given)
{
	struct vfile f = VFILE_INIT;

	vfile_zero(&f, 5);
	vfile_tensor(&f, 1, 6);
	vfile_object(&f, 2, 7);
	vfile_file(&f, 3, 100, 8);
	ck_assert_uint_eq(f.n, 4);
	ck_assert_uint_eq(f.size, 26);
	ck_assert_int_eq(f.seg[0].kind, SEG_ZERO);
	ck_assert_int_eq(f.seg[1].kind, SEG_TENSOR);
	ck_assert_uint_eq(f.seg[1].id, 1);
	ck_assert_int_eq(f.seg[2].kind, SEG_OBJECT);
	ck_assert_uint_eq(f.seg[2].id, 2);
	ck_assert_int_eq(f.seg[3].kind, SEG_FILE);
	ck_assert_uint_eq(f.seg[3].id, 3);
	ck_assert_uint_eq(f.seg[3].from, 100);
	ck_assert_uint_eq(f.seg[3].off, 18);
	vfile_release(&f);
	ck_assert_uint_eq(f.size, 0);
	vfile_bytes(&f, "again", 5);
	ck_assert_uint_eq(f.size, 5);
	vfile_release(&f);
}
END_TEST

START_TEST(nothing_of_length_0_becomes_a_segment)
{
	struct vfile f = VFILE_INIT;

	vfile_bytes(&f, "", 0);
	vfile_zero(&f, 0);
	vfile_tensor(&f, 1, 0);
	vfile_object(&f, 1, 0);
	vfile_file(&f, 1, 9, 0);
	ck_assert_uint_eq(f.n, 0);
	ck_assert_uint_eq(f.size, 0);
	ck_assert_int_eq(vfile_done(&f, NULL), 0);
	vfile_release(&f);
}
END_TEST

/* One random segment, and the same bytes to `want`. */
static void add_random(struct rng *r, struct vfile *f, struct buf *want)
{
	uint64_t n = rng_chance(r, 20) ? 0 : rng_below(r, 30), id = rng_below(r, 1000), from = 0;
	uint64_t kind = rng_below(r, 5);
	uint8_t bytes[30];

	random_bytes(r, bytes, n);
	if (kind == SEG_BYTES)
		vfile_bytes(f, bytes, n);
	else if (kind == SEG_ZERO)
		vfile_zero(f, n);
	else if (kind == SEG_TENSOR)
		vfile_tensor(f, id, n);
	else if (kind == SEG_OBJECT)
		vfile_object(f, id, n);
	else
		vfile_file(f, id, from = rng_below(r, 100), n);
	for (uint64_t i = 0; i < n; i++) {
		if (kind == SEG_ZERO)
			bytes[i] = 0;
		else if (kind != SEG_BYTES)
			bytes[i] = fake_byte(id, from + i);
	}
	buf_add(want, bytes, n);
}

START_TEST(every_byte_is_found)
{
	struct rng r = rng_new();

	for (int round = 0; round < 200; round++) {
		struct buf want = BUF_INIT(1 << 20), got;
		struct vfile f = VFILE_INIT;

		for (uint64_t n = rng_below(&r, 40); n; n--)
			add_random(&r, &f, &want);
		REQUIRE(!vfile_done(&f, NULL) && f.size == want.len);
		got = vfile_all(&f);
		REQUIRE(!want.len || !memcmp(got.data, want.data, want.len));
		for (uint64_t off = 0; off < f.size; off++) {
			const struct segment *s = &f.seg[vfile_find(&f, off)];

			REQUIRE(s->off <= off && off - s->off < s->len);
		}
		buf_release(&want);
		buf_release(&got);
		vfile_release(&f);
	}
}
END_TEST

START_LOOP_TEST(what_is_too_large_is_an_error_that_sticks, 3)
{
	struct vfile f = VFILE_INIT;
	struct ckpt_err e = { 0 };

	vfile_tensor(&f, 1, INT64_MAX - 10);
	vfile_bytes(&f, "12345", 5);
	ck_assert_int_eq(vfile_done(&f, &e), 0);
	if (_i == 0)
		vfile_zero(&f, 6);
	else if (_i == 1)
		vfile_bytes(&f, "123456", 6);
	else
		vfile_tensor(&f, 1, UINT64_MAX);
	ck_assert_int_eq(vfile_done(&f, &e), -EFBIG);
	ck_assert_str_eq(e.msg, "the file would be too large");
	vfile_zero(&f, 1);
	ck_assert_uint_eq(f.size, INT64_MAX - 5);
	ck_assert_int_eq(vfile_done(&f, &e), -EFBIG);
	vfile_release(&f);
}
END_TEST

START_TEST(a_file_may_be_as_large_as_files_are)
{
	struct vfile f = VFILE_INIT;

	vfile_tensor(&f, 1, INT64_MAX - 10);
	vfile_bytes(&f, "1234", 4);
	vfile_bytes(&f, "567890", 6);
	ck_assert_int_eq(vfile_done(&f, NULL), 0);
	ck_assert_uint_eq(f.size, INT64_MAX);
	ck_assert_uint_eq(vfile_find(&f, INT64_MAX - 1), 1);
	vfile_release(&f);
}
END_TEST

START_TEST(literals_have_a_ceiling)
{
	struct vfile f = VFILE_INIT;
	struct ckpt_err e = { 0 };

	f.text.max = 4;
	vfile_bytes(&f, "1234", 4);
	ck_assert_int_eq(vfile_done(&f, &e), 0);
	vfile_bytes(&f, "5", 1);
	ck_assert_int_eq(vfile_done(&f, &e), -EFBIG);
	vfile_release(&f);
}
END_TEST

START_TEST(lack_of_memory_sticks)
{
	unsigned failed = 0;

	FAULT_LOOP(FAULT_ALLOC)
	{
		struct vfile f = VFILE_INIT;
		struct ckpt_err e = { 0 };
		int rc;

		for (int i = 0; i < 9; i++) {
			vfile_bytes(&f, "text", 4);
			vfile_zero(&f, 1);
		}
		(void)fault_off();
		rc = vfile_done(&f, &e);
		ck_assert_int_eq(rc, fault_hit() ? -ENOMEM : 0);
		ck_assert_int_eq(e.code, -rc);
		failed += rc != 0;
		vfile_release(&f);
	}
	ck_assert_uint_gt(failed, 3);
}
END_TEST

SUITE(vfile)
