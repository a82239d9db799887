/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buf.h"
#include "base/err.h"
#include "fault.h"
#include "rng.h"
#include "suites.h"

#include <errno.h>
#include <string.h>

START_TEST(ceiling_is_an_error_and_keeps_content)
{
	struct buf b = BUF_INIT(8);

	buf_str(&b, "12345678");
	ck_assert_int_eq(b.err, 0);
	buf_str(&b, "9");
	ck_assert_int_eq(b.err, EFBIG);
	ck_assert_uint_eq(b.len, 8);
	ck_assert_str_eq(b.data, "12345678");
	buf_release(&b);
}
END_TEST

START_TEST(an_error_sticks)
{
	struct buf b = BUF_INIT(4);

	buf_str(&b, "abc");
	buf_str(&b, "too long");
	buf_str(&b, "d"); /* would fit, but is not what comes next */
	buf_u64(&b, 1);
	buf_printf(&b, "%d", 1);
	ck_assert_ptr_null(buf_room(&b, 0));
	ck_assert_int_eq(b.err, EFBIG);
	ck_assert_str_eq(b.data, "abc");
	buf_release(&b);
}
END_TEST

START_TEST(another_attempt_after_the_ceiling)
{
	struct buf b = BUF_INIT(4);

	buf_str(&b, "too long");
	buf_restart(&b);
	buf_str(&b, "abcd");
	ck_assert_int_eq(b.err, 0);
	ck_assert_str_eq(b.data, "abcd");
	b.err = ENOMEM;
	buf_restart(&b);
	ck_assert_int_eq(b.err, ENOMEM);
	ck_assert_str_eq(b.data, "");
	buf_release(&b);
}
END_TEST

START_TEST(out_of_memory_is_an_error_and_keeps_content)
{
	struct buf b = BUF_INIT(1 << 20);

	buf_str(&b, "abc");
	fault_on(FAULT_ALLOC, 1, 1);
	ck_assert_ptr_null(buf_room(&b, 10000));
	(void)fault_off();
	ck_assert_int_eq(b.err, ENOMEM);
	buf_str(&b, "d");
	ck_assert_int_eq(b.err, ENOMEM);
	ck_assert_str_eq(b.data, "abc");
	buf_release(&b);
}
END_TEST

START_TEST(absurd_sizes_are_refused)
{
	struct buf b = BUF_INIT(SIZE_MAX / 2);

	buf_str(&b, "x");
	ck_assert_ptr_null(buf_room(&b, SIZE_MAX));
	ck_assert_int_eq(b.err, EFBIG);
	buf_release(&b);
}
END_TEST

START_TEST(release_empties_but_remembers_the_ceiling)
{
	struct buf b = BUF_INIT(4);

	buf_str(&b, "12345");
	buf_release(&b);
	ck_assert_ptr_null(b.data);
	ck_assert_uint_eq(b.len, 0);
	ck_assert_int_eq(b.err, 0);
	buf_str(&b, "1234");
	ck_assert_int_eq(b.err, 0);
	buf_str(&b, "5");
	ck_assert_int_eq(b.err, EFBIG);
	buf_release(&b);
	buf_release(&b);
}
END_TEST

START_TEST(text_is_followed_by_a_nul_after_every_step)
{
	struct buf b = BUF_INIT(1 << 20);
	struct rng r = rng_new();

	for (size_t want = 0; want < 100000;) {
		static const char x[200] = { [0 ... 199] = 'x' };
		size_t n = rng_below(&r, sizeof(x));

		buf_add(&b, x, n);
		want += n;
		REQUIRE(b.len == want);
		REQUIRE(b.data[b.len] == 0);
	}
	REQUIRE(strlen(b.data) == b.len);
	buf_release(&b);
}
END_TEST

START_TEST(room_is_given_before_len_is_moved)
{
	struct buf b = BUF_INIT(16);
	char *to = buf_room(&b, 16);

	ck_assert_ptr_nonnull(to);
	ck_assert_uint_eq(b.len, 0);
	memset(to, 'y', 16);
	b.len += 16;
	ck_assert_str_eq(b.data, "yyyyyyyyyyyyyyyy");
	ck_assert_ptr_null(buf_room(&b, 1));
	buf_release(&b);
}
END_TEST

START_TEST(numbers_are_decimal)
{
	struct buf b = BUF_INIT(1000);

	buf_u64(&b, 0);
	buf_str(&b, " ");
	buf_u64(&b, UINT64_MAX);
	buf_printf(&b, " %d %s", -7, "seven");
	ck_assert_str_eq(b.data, "0 18446744073709551615 -7 seven");
	buf_release(&b);
	buf_json_u64s(&b, NULL, 0);
	buf_json_u64s(&b, (const uint64_t[]){ 7 }, 1);
	buf_json_u64s(&b, (const uint64_t[]){ 1, 20, 300 }, 3);
	ck_assert_str_eq(b.data, "[][7][1,20,300]");
	buf_release(&b);
}
END_TEST

START_TEST(printf_that_does_not_fit_adds_nothing)
{
	struct buf b = BUF_INIT(5);

	buf_printf(&b, "%s", "abc");
	buf_printf(&b, "%d", 12345);
	ck_assert_int_eq(b.err, EFBIG);
	ck_assert_str_eq(b.data, "abc");
	buf_release(&b);
}
END_TEST

/* What Python's json.dumps(s.decode("utf-8", "surrogatepass")) prints. */
static const struct {
	const char *s;
	size_t n;
	const char *json;
} json_rows[] = {
	{ "", 0, "\"\"" },
	{ "layers.0.w~", 11, "\"layers.0.w~\"" },
	{ "a\"b\\c/", 6, "\"a\\\"b\\\\c/\"" },
	{ "\0\n\x1f\x7f", 4, "\"\\u0000\\u000a\\u001f\\u007f\"" },
	{ "\xc3\xa9", 2, "\"\\u00e9\"" },
	{ "\xe2\x82\xac", 3, "\"\\u20ac\"" },
	{ "\xf0\x9f\x98\x80", 4, "\"\\ud83d\\ude00\"" },
	{ "\xf4\x8f\xbf\xbf", 4, "\"\\udbff\\udfff\"" },
	{ "\xed\xa0\x80", 3, "\"\\ud800\"" },
	{ "x\xed\xbf\xbfy", 5, "\"x\\udfffy\"" },
	{ "\xff", 1, "\"\\ufffd\"" }, /* not UTF-8 */
	{ "\xe2\x82", 2, "\"\\ufffd\\ufffd\"" },
};

START_LOOP_TEST(json_strings_read_back_as_python_wrote_them,
		sizeof(json_rows) / sizeof(json_rows[0]))
{
	struct buf b = BUF_INIT(100);

	buf_json_str(&b, json_rows[_i].s, json_rows[_i].n);
	ck_assert_int_eq(b.err, 0);
	ck_assert_str_eq(b.data, json_rows[_i].json);
	buf_release(&b);
}
END_TEST

START_TEST(the_ceiling_and_missing_memory_are_told_apart)
{
	struct buf b = BUF_INIT(4);
	struct ckpt_err e = { 0 };

	buf_str(&b, "four");
	ck_assert(!buf_check(&b, &e, "never said") && !e.code);
	buf_str(&b, "!");
	ck_assert_int_eq(buf_check(&b, &e, "more than %d bytes", 4), -EFBIG);
	ck_assert_str_eq(e.msg, "more than 4 bytes");
	b.err = ENOMEM;
	ck_assert_int_eq(buf_check(&b, &e, "more than %d bytes", 4), -ENOMEM);
	ck_assert_str_eq(e.msg, "out of memory");
	buf_release(&b);
}
END_TEST

SUITE(buf)
