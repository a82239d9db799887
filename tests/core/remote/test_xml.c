/* SPDX-License-Identifier: Apache-2.0 */
/* XML: what is passed on, and what is refused. */
#include "base/buf.h"
#include "base/checked.h"
#include "base/err.h"
#include "remote/xml.h"
#include "suites.h"

#include <string.h>

static int note(void *arg, const char *path, const char *text, size_t len, struct ckpt_err *e)
{
	struct buf *b = arg;

	(void)e;
	ck_assert_uint_eq(strlen(text), len);
	buf_printf(b, "%s=%s;", path, text);
	return 0;
}

START_TEST(elements_are_reported_with_their_paths_and_texts)
{
	static const char text[] = "<?xml version=\"1.0\"?>\n<L xmlns='http://x/'><C><K>a&amp;b</K>"
				   "<E>&quot;1&quot;</E></C><n:C xmlns:n='y'/>tail</L>";
	struct buf b = BUF_INIT(4096);
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(xml_parse(text, sizeof(text) - 1, note, &b, &e), 0);
	ck_assert_str_eq(b.data, "L/C/K=a&b;L/C/E=\"1\";L/C=;L/C=;L=tail;");
	buf_release(&b);
}
END_TEST

static const char *const refused[] = {
	"",
	"<",
	"<a>",
	"<a></b>",
	"{}",
	"<a/><b/>",
	"<!DOCTYPE a><a/>",
	"<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>",
	"<!DOCTYPE a SYSTEM 'file:///etc/passwd'><a/>",
	"<a>&unknown;</a>",
	"<a><a><a><a><a><a><a><a><a><a><a><a><a><a><a><a><a/></a></a></a></a></a></a></a></a></a></"
	"a>"
	"</a></a></a></a></a></a>",
};

START_LOOP_TEST(what_is_not_such_a_document_is_an_error, ARRAY_LEN(refused))
{
	struct buf b = BUF_INIT(4096);
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(xml_parse(refused[_i], strlen(refused[_i]), note, &b, &e), -EIO);
	ck_assert_ptr_nonnull(strstr(e.msg, "XML"));
	buf_release(&b);
}
END_TEST

START_TEST(texts_and_names_are_bounded)
{
	struct buf b = BUF_INIT(1 << 20), seen = BUF_INIT(1 << 20);
	struct ckpt_err e = { 0 };

	buf_str(&b, "<a>");
	for (int i = 0; i < 20000; i++)
		buf_str(&b, "x");
	buf_str(&b, "</a>");
	ck_assert_int_eq(xml_parse(b.data, b.len, note, &seen, &e), -EIO);
	ck_assert_str_eq(e.msg, "XML with a text of more than 16 KiB refused");
	buf_restart(&b);
	buf_str(&b, "<");
	for (int i = 0; i < 20000; i++)
		buf_str(&b, "x");
	buf_str(&b, "/>");
	e = (struct ckpt_err){ 0 };
	ck_assert_int_eq(xml_parse(b.data, b.len, note, &seen, &e), -EIO);
	ck_assert_str_eq(e.msg, "XML with long names refused");
	buf_release(&b);
	buf_release(&seen);
}
END_TEST

static int refuse(void *arg, const char *path, const char *text, size_t len, struct ckpt_err *e)
{
	(void)path;
	(void)text;
	(void)len;
	++*(int *)arg;
	return err_set(e, EINVAL, "no more");
}

START_TEST(an_error_of_the_function_ends_it)
{
	struct ckpt_err e = { 0 };
	int n = 0;

	ck_assert_int_eq(xml_parse("<a><b/><c/></a>", 15, refuse, &n, &e), -EINVAL);
	ck_assert_int_eq(n, 1);
	ck_assert_str_eq(e.msg, "no more");
}
END_TEST

SUITE(xml)
