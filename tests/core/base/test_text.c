/* SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "base/err.h"
#include "base/text.h"
#include "fault.h"
#include "rng.h"
#include "suites.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- UTF-8 ---- */

static const struct {
	const char *s;
	size_t n;
	uint32_t code;
	size_t step;
} utf8_rows[] = {
	{ "a", 1, 'a', 1 },
	{ "\0", 1, 0, 1 },
	{ "\x7f", 1, 0x7f, 1 },
	{ "\xc2\x80", 2, 0x80, 2 },
	{ "\xdf\xbf", 2, 0x7ff, 2 },
	{ "\xe0\xa0\x80", 3, 0x800, 3 },
	{ "\xef\xbf\xbd", 3, 0xfffd, 3 }, /* U+FFFD itself is fine */
	{ "\xed\xa0\x80", 3, 0xd800, 3 }, /* lone surrogates, as Python has them */
	{ "\xed\xbf\xbf", 3, 0xdfff, 3 },
	{ "\xf0\x90\x80\x80", 4, 0x10000, 4 },
	{ "\xf4\x8f\xbf\xbf", 4, 0x10ffff, 4 },
	/* refused, one byte at a time */
	{ "\x80", 1, 0xfffd, 1 },
	{ "\xc0\x80", 2, 0xfffd, 1 }, /* longer than needed */
	{ "\xc1\xbf", 2, 0xfffd, 1 },
	{ "\xe0\x9f\xbf", 3, 0xfffd, 1 },
	{ "\xf0\x8f\xbf\xbf", 4, 0xfffd, 1 },
	{ "\xf4\x90\x80\x80", 4, 0xfffd, 1 }, /* past U+10FFFF */
	{ "\xf8\x88\x80\x80\x80", 5, 0xfffd, 1 },
	{ "\xff", 1, 0xfffd, 1 },
	{ "\xc2", 1, 0xfffd, 1 }, /* cut off */
	{ "\xe2\x82", 2, 0xfffd, 1 },
	{ "\xf0\x9f\x98", 3, 0xfffd, 1 },
	{ "\xc2\x41", 2, 0xfffd, 1 },
	{ "\xe2\x82\xc0", 3, 0xfffd, 1 },
};

START_LOOP_TEST(next_takes_one_character_or_one_bad_byte, ARRAY_LEN(utf8_rows))
{
	const char *s = utf8_rows[_i].s, *end = s + utf8_rows[_i].n;
	bool good = utf8_rows[_i].step == utf8_rows[_i].n &&
		    (utf8_rows[_i].code != 0xfffd || utf8_rows[_i].n == 3);

	ck_assert_uint_eq(text_next(&s, end), utf8_rows[_i].code);
	ck_assert_uint_eq((size_t)(s - utf8_rows[_i].s), utf8_rows[_i].step);
	ck_assert_int_eq(text_is_utf8(utf8_rows[_i].s, utf8_rows[_i].n), good);
}
END_TEST

static size_t encode(char *to, uint32_t c)
{
	if (c < 0x80) {
		to[0] = (char)c;
		return 1;
	}
	if (c < 0x800) {
		to[0] = (char)(0xc0 | c >> 6);
		to[1] = (char)(0x80 | (c & 0x3f));
		return 2;
	}
	if (c < 0x10000) {
		to[0] = (char)(0xe0 | c >> 12);
		to[1] = (char)(0x80 | (c >> 6 & 0x3f));
		to[2] = (char)(0x80 | (c & 0x3f));
		return 3;
	}
	to[0] = (char)(0xf0 | c >> 18);
	to[1] = (char)(0x80 | (c >> 12 & 0x3f));
	to[2] = (char)(0x80 | (c >> 6 & 0x3f));
	to[3] = (char)(0x80 | (c & 0x3f));
	return 4;
}

START_TEST(the_parent_of_a_path_ends_before_its_last_name)
{
	static const struct {
		const char *path;
		size_t n;
	} paths[] = { { "", 0 },	{ "a", 0 },   { "a/", 0 },    { "/", 0 },
		      { "/a", 1 },	{ "a/b", 2 }, { "a/b//", 2 }, { "a//b", 3 },
		      { "../a/..", 5 }, { "//", 0 },  { "/a/b/c", 5 } };

	for (size_t i = 0; i < ARRAY_LEN(paths); i++)
		ck_assert_msg(text_parent(paths[i].path) == paths[i].n, "%s", paths[i].path);
}
END_TEST

START_TEST(every_code_point_reads_back)
{
	for (uint32_t c = 0; c <= 0x10ffff; c++) {
		char b[4], other[4];
		const char *s = b;
		size_t n = encode(b, c);

		if (text_put(other, c) != other + n || memcmp(other, b, n) != 0)
			ck_abort_msg("U+%04X is written otherwise", c);
		if (text_next(&s, b + n) != c || s != b + n || !text_is_utf8(b, n))
			ck_abort_msg("U+%04X", c);
		s = b;
		if (n > 1 && (text_next(&s, b + n - 1) != 0xfffd || text_is_utf8(b, n - 1)))
			ck_abort_msg("U+%04X cut short is taken", c);
	}
}
END_TEST

/* ---- natural order ---- */

START_TEST(numbers_order_as_numbers_and_text_as_bytes)
{
	static const char *const sorted[] = {
		"",
		"0",
		"00",
		"1",
		"01",
		"2",
		"10",
		"10a",
		"18446744073709551616",
		"99999999999999999999",
		"A",
		"a",
		"a.b",
		"a0",
		"a00",
		"a0b",
		"a00b",
		"a0b0",
		"a0b00",
		"a00b0", /* the first difference decides */
		"a0b1",
		"layers.2.w",
		"layers.02.w", /* leading zeros decide only if all else is equal */
		"layers.02.w9",
		"layers.2.w10",
		"layers.10",
		"layers.10.w",
		"\xc3\xa9",
	};

	for (size_t i = 0; i < ARRAY_LEN(sorted); i++)
		for (size_t j = 0; j < ARRAY_LEN(sorted); j++) {
			const char *a = sorted[i], *b = sorted[j];
			int c = text_natural_cmp(a, strlen(a), b, strlen(b));

			ck_assert_msg(i < j   ? c < 0
				      : i > j ? c > 0
					      : !c,
				      "'%s' and '%s': %d", a, b, c);
		}
}
END_TEST

static size_t random_name(struct rng *r, char *to)
{
	static const char letters[] = "ab.0019\xff";
	size_t n = rng_below(r, 7);

	for (size_t i = 0; i < n; i++)
		to[i] = letters[rng_below(r, sizeof(letters) - 1)];
	return n;
}

START_TEST(natural_order_is_a_total_order)
{
	struct rng r = rng_new();

	for (int i = 0; i < 300000; i++) {
		char a[8], b[8], c[8];
		size_t an = random_name(&r, a), bn = random_name(&r, b), cn = random_name(&r, c);
		int ab = text_natural_cmp(a, an, b, bn), ba = text_natural_cmp(b, bn, a, an);
		int bc = text_natural_cmp(b, bn, c, cn), ac = text_natural_cmp(a, an, c, cn);
		bool same = an == bn && !memcmp(a, b, an);

		if ((ab < 0) != (ba > 0) || (ab == 0) != same || (ba == 0) != same)
			ck_abort_msg("'%.*s' '%.*s': %d and %d", (int)an, a, (int)bn, b, ab, ba);
		if (ab <= 0 && bc <= 0 && ac > 0)
			ck_abort_msg("'%.*s' <= '%.*s' <= '%.*s' but not through", (int)an, a,
				     (int)bn, b, (int)cn, c);
	}
}
END_TEST

/* ---- globs ---- */

static bool glob(const char *pattern, const char *s)
{
	return text_glob(pattern, s, strlen(s));
}

START_TEST(glob_covers_the_shell_forms)
{
	ck_assert(glob("", ""));
	ck_assert(!glob("", "a"));
	ck_assert(glob("*", ""));
	ck_assert(glob("***", "anything"));
	ck_assert(glob("model.*.weight", "model.layers/0.weight")); /* '*' takes '/' too */
	ck_assert(!glob("model.*.weight", "model.weight"));
	ck_assert(glob("a?c", "abc"));
	ck_assert(!glob("a?c", "ac"));
	ck_assert(glob("[a-c][!a-c]", "bd"));
	ck_assert(!glob("[a-c][!a-c]", "bb"));
	ck_assert(glob("[]x]", "]"));
	ck_assert(glob("[!]x]", "a"));
	ck_assert(!glob("[!]x]", "]"));
	ck_assert(glob("[a-]", "-"));
	ck_assert(glob("[^a]", "b"));
	ck_assert(glob("\\*\\[", "*["));
	ck_assert(!glob("\\*", "a"));
	ck_assert(glob("*.[0-9]", "layers.10.[3].7"));
	ck_assert(text_glob("a*c",
			    "a\0\n\xff"
			    "c",
			    5));
	ck_assert(text_glob("a?", "a\0", 2));
	ck_assert(!text_glob("a", "a\0", 2));
}
END_TEST

START_TEST(glob_without_closing_bracket_matches_nothing)
{
	ck_assert(!glob("[", "["));
	ck_assert(!glob("[a", "a"));
	ck_assert(!glob("[!", "a"));
	ck_assert(!glob("*[a-", "a"));
	ck_assert(glob("a\\", "a\\")); /* at the end, a backslash stands for itself */
}
END_TEST

START_TEST(glob_has_braces)
{
	ck_assert(glob("{a,b}", "a") && glob("{a,b}", "b") && !glob("{a,b}", "ab"));
	ck_assert(glob("layers.{0,10}.*", "layers.10.w") && !glob("layers.{0,10}.*", "layers.1.w"));
	ck_assert(glob("x{,.bias}", "x") && glob("x{,.bias}", "x.bias") &&
		  !glob("x{,.bias}", "x."));
	ck_assert(glob("{a,{b,c}d}e", "ae") && glob("{a,{b,c}d}e", "cde"));
	ck_assert(!glob("{a,{b,c}d}e", "ce"));
	ck_assert(glob("*{a*,b}c", "xxabc") && glob("*{a*,b}c", "bbc") && !glob("*{a*,b}c", "xc"));
	ck_assert(glob("{[a-c],?d}", "b") && glob("{[a-c],?d}", "xd"));
	ck_assert(glob("{\\,,\\}}", ",") && glob("{\\,,\\}}", "}"));
	/* These braces stand for themselves. */
	ck_assert(glob("{a}", "{a}") && !glob("{a}", "a"));
	ck_assert(glob("{a,b", "{a,b") && glob("a,b}", "a,b}") && glob("{", "{") && glob("}", "}"));
	ck_assert(glob("{}", "{}") && glob("{{a,b}", "{b"));
}
END_TEST

static void repeat(const char *s, size_t times, char *out)
{
	for (size_t i = 0; i < times; i++)
		memcpy(out + i * strlen(s), s, strlen(s) + 1);
}

/* Alternatives multiply. If there are too many to be tried, that is an error, and does not take
 * minutes. */
START_TEST(braces_are_within_the_steps)
{
	char many[600], deep[512], s[64];
	uint64_t left = 1000000;

	repeat("{a,a,a,*a}", 40, many);
	memset(s, 'a', sizeof(s));
	s[sizeof(s) - 1] = 'b';
	ck_assert(!text_glob_within(many, s, sizeof(s), &left));
	ck_assert_uint_eq(left, 0);
	memset(s, 'a', sizeof(s));
	repeat("{a,b}", 65, deep);
	left = 1000000;
	ck_assert(!text_glob_within(deep, s, sizeof(s), &left));
	ck_assert_uint_eq(left, 0);
	repeat("{a,b}", 64, deep);
	left = 1000000;
	ck_assert(text_glob_within(deep, s, sizeof(s), &left));
}
END_TEST

START_TEST(one_glob_of_many_is_enough_and_none_is_all)
{
	const char *const two[] = { "a*", "*z", NULL }, *const none[] = { NULL };
	uint64_t steps = TEXT_GLOB_STEPS;

	ck_assert(text_glob_any(two, "ab", 2, &steps) && text_glob_any(two, "yz", 2, &steps));
	ck_assert(!text_glob_any(two, "ba", 2, &steps));
	ck_assert(text_glob_any(none, "ba", 2, &steps) && text_glob_any(NULL, "ba", 2, &steps));
}
END_TEST

/* A class is gone through for every byte, so it costs as much as it is long. */
START_TEST(steps_of_globs_are_counted_over_all_names)
{
	static const char *const globs[] = { "a*x", "*[bbbbbbbbbbbbbbbbbbbb]", "*[bbb", NULL };
	uint64_t left = 1000, all;
	struct ckpt_err e = { 0 };
	char s[10];

	memset(s, 'c', sizeof(s));
	ck_assert(!text_glob_any(globs, s, sizeof(s), &left));
	all = 1000 - left;
	/* One step; for each byte the star, the bracket and what is in it; and the same for the
	 * shorter one. */
	ck_assert_uint_ge(all, 1 + 10 * 21 + 10 * 4);
	ck_assert_uint_le(all, 1 + 10 * 22 + 10 * 5 + 5);
	for (uint64_t n = 0; n <= all; n++) { /* the last step must not be one too many */
		left = n;
		ck_assert(!text_glob_any(globs, s, sizeof(s), &left));
		ck_assert_uint_eq(left, 0);
	}
	left = all + 1;
	ck_assert(!text_glob_any(globs, s, sizeof(s), &left));
	ck_assert_uint_eq(left, 1);
	ck_assert_int_eq(text_glob_check(left, "x", &e), 0);
	ck_assert_int_eq(text_glob_check(0, "x", &e), -EFBIG);
	ck_assert_str_eq(e.msg, "x: matching all names with the globs takes more than 2147483648 "
				"steps: use fewer or simpler globs");
}
END_TEST

START_TEST(glob_of_many_stars_is_not_exponential)
{
	char pattern[401], s[2001];

	for (size_t i = 0; i < 200; i++)
		memcpy(pattern + 2 * i, "*a", 2);
	pattern[399] = 'b';
	pattern[400] = 0;
	memset(s, 'a', sizeof(s));
	ck_assert(!text_glob(pattern, s, sizeof(s)));
}
END_TEST

START_TEST(glob_agrees_with_fnmatch)
{
	static const char *const pieces[] = { "a",    "b",    "/",     ".",	 "?",	"*",
					      "[ab]", "[!a]", "[a-c]", "[!b-c]", "\\*", "\\a" };
	struct rng r = rng_new();

	for (int i = 0; i < 200000; i++) {
		char pattern[64] = "", s[8];
		size_t n = rng_below(&r, sizeof(s)), at = 0;
		bool want;

		for (size_t k = rng_below(&r, 7); k > 0; k--)
			at += (size_t)snprintf(pattern + at, sizeof(pattern) - at, "%s",
					       pieces[rng_below(&r, ARRAY_LEN(pieces))]);
		for (size_t k = 0; k < n; k++)
			s[k] = "abc/.*"[rng_below(&r, 6)];
		s[n < sizeof(s) ? n : n - 1] = 0;
		want = !fnmatch(pattern, s, 0);
		if (text_glob(pattern, s, strlen(s)) != want)
			ck_abort_msg("'%s' against '%s': fnmatch says %d", pattern, s, want);
	}
}
END_TEST

/* ---- for people ---- */

static const struct {
	uint64_t bytes;
	const char *text;
} size_rows[] = {
	{ 0, "0 B" },
	{ 1023, "1023 B" },
	{ 1024, "1.0 KiB" },
	{ 1536, "1.5 KiB" },
	{ 100 << 10, "100 KiB" },
	{ 1 << 20, "1.0 MiB" },
	{ (uint64_t)5 << 30, "5.0 GiB" },
	{ (uint64_t)3 << 40, "3.0 TiB" },
	{ (uint64_t)1 << 50, "1.0 PiB" },
	{ UINT64_MAX, "16.0 EiB" },
};

START_LOOP_TEST(sizes_are_short, ARRAY_LEN(size_rows))
{
	char out[16];

	ck_assert_ptr_eq(text_size(size_rows[_i].bytes, out), out);
	ck_assert_str_eq(out, size_rows[_i].text);
}
END_TEST

START_TEST(show_escapes_control_bytes_and_cuts_to_fit)
{
	char out[12], more[24];

	ck_assert_str_eq(text_show("a\nb\x7f", 4, out, sizeof(out)), "a%0Ab%7F");
	ck_assert_str_eq(text_show("", 0, out, sizeof(out)), "");
	ck_assert_str_eq(text_show("a\0b", 3, out, sizeof(out)), "a%00b");
	ck_assert_str_eq(text_show("a\xc2\x9b", 3, out, sizeof(out)), "a%C2%9B");
	ck_assert_str_eq(text_show("\xc3\xa9", 2, out, sizeof(out)), "\xc3\xa9");
	/* \x9b is a control character for terminals without UTF-8; U+202E reverses the text that
	 * follows. */
	ck_assert_str_eq(text_show("a\x9b\xc3", 3, out, sizeof(out)), "a%9B%C3");
	ck_assert_str_eq(text_show("\xe2\x80\xae", 3, more, sizeof(more)), "%E2%80%AE");
	ck_assert_str_eq(text_show("\xe2\x81\xa6", 3, more, sizeof(more)), "%E2%81%A6");
	ck_assert_str_eq(text_show("\xe2\x80\x93", 3, more, sizeof(more)),
			 "\xe2\x80\x93"); /* a dash */
	ck_assert_str_eq(text_show("\xef\xbf\xbd", 3, more, sizeof(more)),
			 "\xef\xbf\xbd"); /* U+FFFD itself */
	for (size_t cap = 8; cap <= sizeof(out); cap++) {
		(void)text_show("0123456789012345", 16, out, cap);
		ck_assert_uint_lt(strlen(out), cap);
		ck_assert_str_eq(out + strlen(out) - 3, "...");
		(void)text_show("\n\n\n\n\n\n\n\n\n", 9, out, cap);
		ck_assert_uint_lt(strlen(out), cap);
		ck_assert_str_eq(out + strlen(out) - 3, "...");
	}
}
END_TEST

static const struct {
	const char *s;
	bool ok;
	uint64_t v;
} parse_rows[] = {
	{ "0", true, 0 },
	{ "512", true, 512 },
	{ "512B", true, 512 },
	{ "64K", true, 64 << 10 },
	{ "64k", true, 64 << 10 },
	{ "64KiB", true, 64 << 10 },
	{ "64kib", true, 64 << 10 },
	{ "64KB", true, 64000 },
	{ "256MiB", true, 256 << 20 },
	{ "5GB", true, 5000000000 },
	{ "5G", true, (uint64_t)5 << 30 },
	{ "2T", true, (uint64_t)2 << 40 },
	{ "1P", true, (uint64_t)1 << 50 },
	{ "18446744073709551615", true, UINT64_MAX },
	{ "18446744073709551616", false, 0 },
	{ "16777216T", false, 0 }, /* 2^64 */
	{ "99999999999K", true, 99999999999 * 1024 },
	{ "", false, 0 },
	{ "K", false, 0 },
	{ "-1", false, 0 },
	{ "+1", false, 0 },
	{ " 1", false, 0 },
	{ "1 K", false, 0 },
	{ "1.5G", false, 0 },
	{ "0x10", false, 0 },
	{ "1KiBs", false, 0 },
	{ "1Ki", false, 0 },
	{ "1BB", false, 0 },
	{ "1iB", false, 0 },
	{ "1X", false, 0 },
};

START_LOOP_TEST(sizes_are_parsed_or_refused_untouched, ARRAY_LEN(parse_rows))
{
	uint64_t v = 42;

	ck_assert_msg(text_parse_size(parse_rows[_i].s, &v) == parse_rows[_i].ok, "'%s'",
		      parse_rows[_i].s);
	ck_assert_uint_eq(v, parse_rows[_i].ok ? parse_rows[_i].v : 42);
}
END_TEST

static const struct {
	uint64_t n;
	const char *count, *digits;
} count_rows[] = {
	{ 0, "0", "0" },
	{ 999, "999", "999" },
	{ 1000, "1,000", "1,000" },
	{ 999999, "999,999", "999,999" },
	{ 1000000, "1.00 M", "1,000,000" },
	{ 12345678, "12.3 M", "12,345,678" },
	{ 99960000, "100 M", "99,960,000" },
	{ 999499999, "999 M", "999,499,999" },
	{ 999500000, "1.00 B", "999,500,000" },
	{ 7241732096, "7.24 B", "7,241,732,096" },
	{ 671026419200, "671 B", "671,026,419,200" },
	{ 1024000000000, "1.02 T", "1,024,000,000,000" },
	{ UINT64_MAX, "18446744 T", "18,446,744,073,709,551,615" },
};

START_LOOP_TEST(counts_are_short_and_digits_are_grouped, ARRAY_LEN(count_rows))
{
	char count[16], digits[32];

	ck_assert_str_eq(text_count(count_rows[_i].n, count), count_rows[_i].count);
	ck_assert_str_eq(text_digits(count_rows[_i].n, digits), count_rows[_i].digits);
}
END_TEST

static const struct {
	const char *address, *shown;
	bool has_user;
} addresses[] = {
	{ "s3://b/k", "s3://b/k", false },
	{ "s3://b/k@1?x#y", "s3://b/k@1?x#y", false },
	{ "s3://me:secret@b/k", "s3://b/k", true },
	{ "hf://org/name@main/x", "hf://org/name@main/x", false },
	{ "hf://me@org/name", "hf://org/name", true },
	{ "https://h/@scope/x", "https://h/@scope/x", false },
	{ "https://h:80/a:b@c", "https://h:80/a:b@c", false },
	{ "https://h/x?X-Amz-Signature=secret", "https://h/x", false },
	{ "https://h/x#secret", "https://h/x", false },
	{ "https://me:secret@h/x", "https://h/x", true },
	{ "https://me:se@cret@h:8/x", "https://h:8/x", true },
	{ "https://me:se/cret@h/x", "https://h/x", true },
	{ "https://me:se?cret@h/x", "https://h/x", true },
	{ "https://[me:secret@h", "https://h", true },
	{ "http://[::1]:80/x@y", "http://[::1]:80/x@y", false },
	{ "ftp://me:secret@h/x?sig=secret", "ftp://h/x", true },
	{ "https://", "https://", false },
	{ "a/b@c", "a/b@c", false },
	{ "", "", false },
};

START_LOOP_TEST(addresses_are_shown_without_secrets, ARRAY_LEN(addresses))
{
	char buf[64], small[6];

	ck_assert_str_eq(text_show_address(addresses[_i].address, buf, sizeof(buf)),
			 addresses[_i].shown);
	ck_assert_int_eq(text_has_user(addresses[_i].address), addresses[_i].has_user);
	ck_assert_int_eq(strncmp(text_show_address(addresses[_i].address, small, sizeof(small)),
				 addresses[_i].shown, 5),
			 0);
}
END_TEST

START_TEST(schemes_are_in_lower_case)
{
	ck_assert_str_eq(text_file_path("file:///data/run"), "/data/run");
	ck_assert_str_eq(text_file_path("file://"), "");
	ck_assert_ptr_null(text_file_path("FILE:///data/run"));
	ck_assert_ptr_null(text_file_path("/data/file://run"));
	ck_assert(text_is_address("file:///x") && !text_is_address("FILE:///x"));
}
END_TEST

START_TEST(text_is_as_long_as_needed)
{
	char long_one[5001];
	char *s = text_format("%s", "");

	ck_assert_str_eq(s, "");
	free(s);
	memset(long_one, 'x', 5000);
	long_one[5000] = 0;
	s = text_format("%d/%s.%.2s", -7, long_one, "abc");
	ck_assert_uint_eq(strlen(s), 3 + 5000 + 3);
	ck_assert(!strncmp(s, "-7/xx", 5) && !strcmp(s + 5003, ".ab"));
	free(s);
	fault_on(FAULT_ALLOC, 1, 1);
	ck_assert_ptr_null(text_format("x"));
	(void)fault_off();
}
END_TEST

SUITE(text, .seconds = 60)
