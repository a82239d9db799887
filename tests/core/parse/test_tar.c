/* SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "base/err.h"
#include "parse/tar.h"
#include "suites.h"
#include "tar_util.h"

#include <string.h>

static struct buf tar = BUF_INIT(1 << 22), out = BUF_INIT(1 << 20);
static int reads, failing; /* the number of the read that fails */

static int64_t read_tar(void *arg, uint64_t off, void *buf, size_t len, struct ckpt_err *e)
{
	(void)arg;
	if (++reads == failing)
		return err_set(e, EIO, "read %d", reads);
	if (off >= tar.len)
		return 0;
	if (len > tar.len - off)
		len = tar.len - (size_t)off;
	memcpy(buf, tar.data + off, len);
	return (int64_t)len;
}

static int show(void *arg, const struct tar_member *m, struct ckpt_err *e)
{
	(void)arg;
	(void)e;
	buf_printf(&out, "%c %.60s %llu+%llu\n", "fd-"[m->kind], m -> name,
		   (unsigned long long)m -> at, (unsigned long long)m -> size);
	return 0;
}

static int list(struct ckpt_err *e)
{
	const struct blob b = { read_tar, NULL, tar.len };

	out.len = 0;
	buf_str(&out, "");
	return tar_each(&b, show, NULL, e);
}

static void expect(const char *want)
{
	struct ckpt_err e = { 0 };

	ck_assert_msg(!list(&e), "%s", e.msg);
	ck_assert_str_eq(out.data, want);
}

static void expect_error(int code, const char *want)
{
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(list(&e), -code);
	ck_assert_msg(strstr(e.msg, want) != NULL, "%s", e.msg);
}

static void teardown(void)
{
	buf_release(&tar);
	buf_release(&out);
}

START_TEST(members_of_every_kind)
{
	tar_add(&tar, "./", '5', NULL, 0);
	tar_add(&tar, "./a", '0', "xyz", 3);
	tar_add(&tar, "old", 0, "", 0);
	tar_add(&tar, "olddir/", 0, "", 0);
	tar_add(&tar, "link", '2', "", 0);
	tar_end(&tar);
	ck_assert(tar_magic(tar.data, tar.len));
	ck_assert(!tar_magic(tar.data, 511));
	expect("d ./ 512+0\nf ./a 1024+3\nf old 2048+0\nd olddir/ 2560+0\n- link 3072+0\n");
	tar.len -= 1024; /* without an end marker, as if cut off there */
	expect("d ./ 512+0\nf ./a 1024+3\nf old 2048+0\nd olddir/ 2560+0\n- link 3072+0\n");
}
END_TEST

START_TEST(long_names_and_large_sizes)
{
	size_t at;

	tar_add(&tar, "pax", 'x', "16 path=dir/long\n9 size=5\n30 mtime=1700000000.123456789\n",
		55);
	tar_add(&tar, "short", '0', "12345", 5);
	tar_add(&tar, "././@LongLink", 'L', "gnu/long", 9);
	at = tar_add(&tar, "gnu", '0', "1234567", 7);
	memcpy(tar.data + at + 124, "\x80\0\0\0\0\0\0\0\0\0\0\x07", 12);
	tar_seal(&tar, at);
	at = tar_add(&tar, "name", '0', "", 0);
	memcpy(tar.data + at + 345, "prefix", 6);
	tar_seal(&tar, at);
	tar_add(&tar, "global", 'g', "16 path=no/effect", 17);
	tar_add(&tar, "last", '0', "", 0);
	tar_end(&tar);
	expect_error(ERR_CORRUPT, "extended header at byte 512 is damaged");
	memcpy(tar.data + 512, "17 path=dir/long\n9 size=5\n29 mtime=1700000000.12345678\n", 55);
	expect("f dir/long 1536+5\nf gnu/long 3584+7\nf prefix/name 4608+0\nf last 6144+0\n");
}
END_TEST

START_TEST(what_is_damaged_is_an_error)
{
	size_t at = tar_add(&tar, "a", '0', "xyz", 3);

	tar.data[at] = 'b';
	expect_error(ERR_CORRUPT, "the archive's header at byte 0 is damaged");
	ck_assert(!tar_magic(tar.data, tar.len));
	memcpy(tar.data + at + 124, "7777777777\0", 12);
	tar_seal(&tar, at);
	expect_error(ERR_CORRUPT,
		     "the archive has 1024 bytes, and 'b' in it ends at 1073742335: it is "
		     "not complete");
	memcpy(tar.data + at + 124, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 12);
	tar_seal(&tar, at);
	expect_error(ERR_CORRUPT, "the archive's header at byte 0 is damaged");
	memcpy(tar.data + at + 124, "\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff", 12);
	tar_seal(&tar, at);
	expect_error(ERR_CORRUPT, "not complete");
	memcpy(tar.data + at + 124, "00000000003", 12);
	tar_seal(&tar, at);
	tar.len = 1300;
	expect_error(ERR_CORRUPT, "the archive ends at byte 1300");
}
END_TEST

START_TEST(a_failing_read_is_passed_on)
{
	int all;

	tar_add(&tar, "long", 'L', "a/long/name", 12);
	tar_add(&tar, "pax", 'x', "11 size=99\n", 11);
	tar_add(&tar, "a", '0', "", 0);
	tar_add(&tar, "b", '0', "xyz", 3);
	tar_end(&tar);
	reads = 0;
	(void)list(&(struct ckpt_err){ 0 });
	all = reads;
	ck_assert_int_gt(all, 5);
	for (failing = 1; failing <= all; failing++) {
		char want[32];

		(void)snprintf(want, sizeof(want), "read %d", failing);
		reads = 0;
		expect_error(EIO, want);
	}
	failing = 0;
}
END_TEST

START_TEST(extended_headers_that_lie)
{
	static const char *const bad[] = { "x",
					   "0 a=b\n",
					   "99999 a=b\n",
					   "6 a=b.",
					   "11 size=9x\n",
					   "30 size=99999999999999999999\n\n",
					   "10 size=/\n",
					   "10 size= 9\n",
					   "12345",
					   "1234567 a=b\n",
					   "5:a=b\n",
					   "2 \n",
					   "6 a=bc\n",
					   "26 size=300000000000000000000\n" };

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		tar.len = 0;
		tar_add(&tar, "pax", 'x', bad[i], strlen(bad[i]));
		tar_add(&tar, "a", '0', "", 0);
		expect_error(ERR_CORRUPT, "the archive's extended header at byte 512 is damaged");
	}
	tar.len = 0;
	tar_add(&tar, "pax", 'x', "11 size=99\n", 11);
	tar_add(&tar, "a", '0', "xyz", 3);
	expect("f a 1536+99\n");
	tar_add(&tar, "pax", 'x', "18 size=999999999\n", 18);
	tar_add(&tar, "b", '0', "xyz", 3);
	expect_error(ERR_CORRUPT, "'b' in it ends at");
}
END_TEST

START_TEST(names_and_extended_headers_are_not_without_end)
{
	static char text[70000];
	int n;

	memset(text, 'x', sizeof(text));
	n = sprintf(text, "%d path=", 5000);
	text[n] = 'x';
	text[4999] = '\n';
	tar_add(&tar, "pax", 'x', text, 5000);
	tar_add(&tar, "a", '0', "", 0);
	expect_error(ERR_CORRUPT, "the archive's extended header at byte 512 is damaged");
	tar.len = 0;
	tar_add(&tar, "././@LongLink", 'L', text, 5000);
	tar_add(&tar, "a", '0', "", 0);
	expect_error(ERR_CORRUPT, "the archive's extended header at byte 512 is damaged");
	tar.len = 0;
	tar_add(&tar, "pax", 'x', text, 65537);
	tar_add(&tar, "a", '0', "", 0);
	expect_error(ERR_CORRUPT, "the archive's extended header at byte 512 is damaged");
	/* Cut off within it. */
	tar.len = 0;
	tar_add(&tar, "pax", 'x', text, 600);
	tar_end(&tar);
	tar.len = 1536;
	expect_error(ERR_CORRUPT, "");
}
END_TEST

/* A record without '=', records with other keys, and one after a NUL. */
START_TEST(other_records_have_no_effect)
{
	static const char records[] = "8 novel\n11 patha=b\n11 sizes=9\n11 GNU.x=1\n10 path=b\n"
				      "18 GNU.sparsely=1\n\0junk";

	tar_add(&tar, "pax", 'x', records, sizeof(records) - 1);
	tar_add(&tar, "a", '0', "xyz", 3);
	tar_add(&tar, "pax", 'x', "8 size=\n", 8);
	tar_add(&tar, "c", '7', "xyz", 3);
	tar_add(&tar, "", 0, "", 0);
	tar_end(&tar);
	expect("f b 1536+3\nf c 3584+3\nf  4608+0\n");
}
END_TEST

/* Octal digits with spaces before them, after them, or without any. */
START_TEST(numbers_are_read_as_old_programs_wrote_them)
{
	static const char sizes[][13] = { "         3 ", "3", "000000000003", "3 x",
					  "        3\0x" };
	static const char odd[][13] = { "9", "x", "00000000003x", "3x" };

	for (size_t i = 0; i < ARRAY_LEN(sizes) + ARRAY_LEN(odd); i++) {
		size_t at;

		tar.len = 0;
		at = tar_add(&tar, "a", '0', "xyz", 3);
		memcpy(tar.data + at + 124,
		       i < ARRAY_LEN(sizes) ? sizes[i] : odd[i - ARRAY_LEN(sizes)], 12);
		tar_seal(&tar, at);
		tar_end(&tar);
		if (i < ARRAY_LEN(sizes))
			expect("f a 512+3\n");
		else
			expect_error(ERR_CORRUPT, "the archive's header at byte 0 is damaged");
	}
	tar.data[148] = 'x'; /* in the sum itself */
	expect_error(ERR_CORRUPT, "the archive's header at byte 0 is damaged");
	ck_assert(!tar_magic(tar.data, tar.len));
}
END_TEST

/* Links, devices and directories have no data, even if their header or an 'x' header gives them a
 * size. */
START_TEST(only_files_have_data)
{
	static const char types[] = "123456";
	size_t dir;

	for (const char *t = types; *t; t++) {
		size_t at = tar_add(&tar, "a", *t, "", 0);

		memcpy(tar.data + at + 124, "00000001000", 12);
		tar_seal(&tar, at);
	}
	dir = tar_add(&tar, "d/", 0, "", 0);
	memcpy(tar.data + dir + 124, "00000001000", 12);
	tar_seal(&tar, dir);
	tar_add(&tar, "pax", 'x', "11 size=99\n", 11);
	tar_add(&tar, "l", '1', "", 0);
	tar_add(&tar, "b", '0', "xyz", 3);
	tar_end(&tar);
	expect("- a 512+0\n- a 1024+0\n- a 1536+0\n- a 2048+0\nd a 2560+0\n- a 3072+0\n"
	       "d d/ 3584+0\n- l 5120+0\nf b 5632+3\n");
}
END_TEST

/* Solaris' tar and pax write them as 'X'. */
START_TEST(extended_headers_of_solaris_are_read)
{
	tar_add(&tar, "pax", 'X', "10 path=d\n9 size=5\n", 19);
	tar_add(&tar, "a", '0', "12345", 5);
	tar_add(&tar, "b", '0', "xyz", 3);
	tar_end(&tar);
	expect("f d 1536+5\nf b 2560+3\n");
}
END_TEST

START_TEST(an_extended_header_is_for_the_next_member)
{
	tar_add(&tar, "pax", 'x', "8 path=\n9 size=5\n", 17);
	tar_add(&tar, "global", 'g', "11 comment=\n", 12);
	tar_add(&tar, "././@LongLink", 'K', "target", 7);
	tar_add(&tar, "a", '0', "12345", 5);
	tar_add(&tar, "b", '0', "xyz", 3);
	tar_end(&tar);
	expect("f a 3584+5\nf b 4608+3\n");
}
END_TEST

START_TEST(sparse_files_are_refused)
{
	static const char pax[] = "22 GNU.sparse.major=1\n21 GNU.sparse.name=a\n";

	tar_add(&tar, "a", 'S', "xyz", 3);
	expect_error(ERR_UNSUPPORTED, "'a' is stored as a sparse file: unpack the archive");
	tar.len = 0;
	tar_add(&tar, "pax", 'x', pax, sizeof(pax) - 1);
	tar_add(&tar, "GNUSparseFile.1/a", '0', "xyz", 3);
	expect_error(ERR_UNSUPPORTED, "'a' is stored as a sparse file: unpack the archive");
}
END_TEST

SUITE(tar, .teardown = teardown)
