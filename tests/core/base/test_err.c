/* SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "suites.h"

#include <string.h>

START_TEST(set_keeps_code_and_sentence_and_returns_minus_code)
{
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(err_set(&e, ERR_CORRUPT, "needs %d bytes at %d", 4096, 812), -EBADMSG);
	ck_assert_int_eq(e.code, EBADMSG);
	ck_assert_str_eq(e.msg, "needs 4096 bytes at 812");
}
END_TEST

START_TEST(sys_appends_what_the_system_said)
{
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(err_sys(&e, ENOENT, "open '%s'", "a/b"), -ENOENT);
	ck_assert_int_eq(e.code, ENOENT);
	ck_assert_str_eq(e.msg, "open 'a/b': No such file or directory");
}
END_TEST

START_TEST(wrap_puts_context_in_front_and_keeps_the_code)
{
	struct ckpt_err e = { 0 };

	(void)err_set(&e, EFBIG, "inner");
	ck_assert_int_eq(err_wrap(&e, "read '%s'", ".metadata"), -EFBIG);
	ck_assert_int_eq(err_wrap(&e, "mount"), -EFBIG);
	ck_assert_int_eq(e.code, EFBIG);
	ck_assert_str_eq(e.msg, "mount: read '.metadata': inner");
}
END_TEST

START_TEST(control_bytes_of_a_hostile_name_do_not_reach_the_terminal)
{
	struct ckpt_err e = { 0 };

	(void)err_set(&e, EIO, "open '%s'", "a\n\033[2Jb\x7f\tc");
	ck_assert_str_eq(e.msg, "open 'a??[2Jb??c'");
	(void)err_set(&e, EIO, "%s", "\xc2\x9b|\x9b|\xe2\x80\xae|\xc3\xa9");
	ck_assert_str_eq(e.msg, "??|?|???|\xc3\xa9");
	(void)err_sys(&e, EIO, "%s", "\r");
	ck_assert_str_eq(e.msg, "?: Input/output error");
	(void)err_wrap(&e, "%s", "\b");
	ck_assert_str_eq(e.msg, "?: ?: Input/output error");
}
END_TEST

/* Three dots end a sentence that was cut off. */
static void check_cut(const struct ckpt_err *e, const char *start)
{
	ck_assert_uint_eq(strlen(e->msg), sizeof(e->msg) - 1);
	ck_assert_str_eq(e->msg + sizeof(e->msg) - 5, "x...");
	ck_assert(!strncmp(e->msg, start, strlen(start)));
}

START_TEST(what_is_too_long_is_cut_at_the_end)
{
	char longer[2 * sizeof(((struct ckpt_err *)0)->msg)];
	struct ckpt_err e = { 0 };

	memset(longer, 'x', sizeof(longer));
	longer[sizeof(longer) - 1] = 0;
	(void)err_set(&e, EIO, "%s", longer);
	check_cut(&e, "xxx");
	(void)err_wrap(&e, "context");
	check_cut(&e, "context: xxx");
	(void)err_wrap(&e, "%s", longer);
	check_cut(&e, "xxx");
	(void)err_sys(&e, ENOENT, "%s", longer);
	ck_assert_int_eq(e.code, ENOENT);
	check_cut(&e, "xxx");
}
END_TEST

START_TEST(what_fits_exactly_is_not_cut)
{
	char most[sizeof(((struct ckpt_err *)0)->msg)];
	struct ckpt_err e = { 0 };

	memset(most, 'x', sizeof(most));
	most[sizeof(most) - 1] = 0;
	(void)err_set(&e, EIO, "%s", most);
	ck_assert_str_eq(e.msg, most);
	(void)err_set(&e, EIO, "%s", most + 4);
	(void)err_wrap(&e, "ab");
	ck_assert_int_eq(strncmp(e.msg, "ab: xxx", 7), 0);
	ck_assert_str_eq(e.msg + 4, most + 4);
	(void)err_set(&e, EIO, "%s", most + 3);
	(void)err_wrap(&e, "ab");
	check_cut(&e, "ab: xxx");
}
END_TEST

SUITE(err)
