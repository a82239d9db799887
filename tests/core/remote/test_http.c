/* SPDX-License-Identifier: Apache-2.0 */
/* Heads of answers of all forms, and requests that succeed, fail or are tried again. */
#include "remote_util.h"
#include "suites.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/clock.h"
#include "remote/moved.h"
#include "remote/reach.h"
#include "remote/store_internal.h"
#include "remote/url.h"

/* ---- heads of answers ---- */

static const struct {
	const char *fields, *value; /* of "X" */
} fields[] = {
	{ "", NULL },
	{ "Y: 1\r\n", NULL },
	{ "XX: 1\r\n", NULL },
	{ "x: 1\r\n", "1" },
	{ "Y: 2\r\nX: \r\n", "" },
	{ "X: 1\r\nY: 2\r\nX: 1\r\n", "1" },
	{ "X: 1\r\nY: 2\r\nX: 2\r\n", "" },
};

START_TEST(a_field_that_is_given_twice_in_different_ways_has_no_value)
{
	for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
		struct buf b;
		struct http_answer a = answer_of(200, fields[i].fields, "", "", &b);

		ck_assert_pstr_eq(http_field(&a, "X"), fields[i].value);
		buf_release(&b);
	}
}
END_TEST

static const struct {
	const char *fields;
	bool ok;
	uint64_t value;
} numbers[] = {
	{ "", false, 0 },
	{ "X: \r\n", false, 0 },
	{ "X: x\r\n", false, 0 },
	{ "X: 12x\r\n", false, 0 },
	{ "X: 12 \r\n", false, 0 },
	{ "X: 12:\r\n", false, 0 },
	{ "X: -1\r\n", false, 0 },
	{ "X: +1\r\n", false, 0 },
	{ "X: 0x1\r\n", false, 0 },
	{ "X: 1\r\nX: 2\r\n", false, 0 },
	{ "X: 0\r\n", true, 0 },
	{ "X: 007\r\n", true, 7 },
	{ "X: 18446744073709551615\r\n", true, UINT64_MAX },
	{ "X: 18446744073709551616\r\n", false, 0 },
	{ "X: 18446744073709551620\r\n", false, 0 },
	{ "X: 99999999999999999999999\r\n", false, 0 },
};

START_TEST(numbers_are_decimal_and_fit)
{
	for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
		struct buf b;
		struct http_answer a = answer_of(200, numbers[i].fields, "", "", &b);
		uint64_t v = 4711;

		ck_assert_msg(http_number(&a, "X", &v) == numbers[i].ok, "%s", numbers[i].fields);
		ck_assert_uint_eq(v, numbers[i].ok ? numbers[i].value : 4711);
		buf_release(&b);
	}
}
END_TEST

static const struct {
	const char *value;
	bool ok;
	uint64_t first, last, total;
} ranges[] = {
	{ "bytes 0-0/1", true, 0, 0, 1 },   { "Bytes 5-9/20", true, 5, 9, 20 },
	{ "bytes 5-9/10", true, 5, 9, 10 }, { "bytes 5-9/*", true, 5, 9, UINT64_MAX },
	{ "bytes 5-9/9", false, 0, 0, 0 },  { "bytes 9-5/20", false, 0, 0, 0 },
	{ "bytes 5-9/", false, 0, 0, 0 },   { "bytes 5-9/x", false, 0, 0, 0 },
	{ "bytes 5-9", false, 0, 0, 0 },    { "bytes 5-", false, 0, 0, 0 },
	{ "bytes 5", false, 0, 0, 0 },	    { "bytes 5:9/20", false, 0, 0, 0 },
	{ "bytes 5-9:20", false, 0, 0, 0 }, { "bytes -9/20", false, 0, 0, 0 },
	{ "bytes */20", false, 0, 0, 0 },   { "bytes 5-9/20 ", false, 0, 0, 0 },
	{ "bytes 5-9/*0", false, 0, 0, 0 }, { "bytes 5-99999999999999999999/*", false, 0, 0, 0 },
	{ "items 5-9/20", false, 0, 0, 0 }, { "", false, 0, 0, 0 },
};

START_TEST(a_range_is_taken_only_if_all_of_it_makes_sense)
{
	struct buf b;
	struct http_answer a = answer_of(206, "", "", "", &b);
	uint64_t first = 1, last = 2, total = 3;

	ck_assert(!http_range(&a, &first, &last, &total));
	for (size_t i = 0; i < ARRAY_LEN(ranges); i++) {
		char text[128];

		(void)snprintf(text, sizeof(text), "Content-Range: %s\r\n", ranges[i].value);
		a = answer_of(206, text, "", "", &b);
		first = last = total = 4711;
		ck_assert_msg(http_range(&a, &first, &last, &total) == ranges[i].ok, "%s", text);
		ck_assert_uint_eq(first, ranges[i].ok ? ranges[i].first : 4711);
		ck_assert_uint_eq(last, ranges[i].ok ? ranges[i].last : 4711);
		ck_assert_uint_eq(total, ranges[i].ok ? ranges[i].total : 4711);
		buf_release(&b);
	}
}
END_TEST

static const struct {
	const char *host;
	enum reach reach;
} hosts[] = {
	{ "8.8.8.8", REACH_PUBLIC },
	{ "example.com", REACH_PUBLIC },
	{ "notlocalhost", REACH_PUBLIC },
	{ "localhost.example.com", REACH_PUBLIC },
	{ "", REACH_PUBLIC },
	{ "10.255.0.1", REACH_INSIDE },
	{ "11.0.0.1", REACH_PUBLIC },
	{ "100.63.255.255", REACH_PUBLIC },
	{ "100.64.0.0", REACH_INSIDE },
	{ "100.127.255.255", REACH_INSIDE },
	{ "100.128.0.0", REACH_PUBLIC },
	{ "127.0.0.1", REACH_INSIDE },
	{ "127.1", REACH_INSIDE },
	{ "0x7f.1", REACH_INSIDE },
	{ "2130706433", REACH_INSIDE },
	{ "127.0.0.1.", REACH_INSIDE },
	{ "172.15.255.255", REACH_PUBLIC },
	{ "172.31.255.255", REACH_INSIDE },
	{ "172.32.0.0", REACH_PUBLIC },
	{ "192.168.1.1", REACH_INSIDE },
	{ "192.169.1.1", REACH_PUBLIC },
	{ "localhost", REACH_INSIDE },
	{ "LocalHost.", REACH_INSIDE },
	{ "a.localhost", REACH_INSIDE },
	{ "0.0.0.0", REACH_NEVER },
	{ "0", REACH_NEVER },
	{ "169.254.169.254", REACH_NEVER },
	{ "0251.0376.0251.0376", REACH_NEVER },
	{ "169.253.0.1", REACH_PUBLIC },
	{ "223.255.255.255", REACH_PUBLIC },
	{ "224.0.0.1", REACH_NEVER },
	{ "255.255.255.255", REACH_NEVER },
	{ "[2a00:1450::1]", REACH_PUBLIC },
	{ "2a00:1450::1", REACH_PUBLIC },
	{ "[::1]", REACH_INSIDE },
	{ "[::]", REACH_NEVER },
	{ "[::127.0.0.1]", REACH_NEVER },
	{ "[::ffff:127.0.0.1]", REACH_INSIDE },
	{ "[::ffff:8.8.8.8]", REACH_PUBLIC },
	{ "[::ffff:a9fe:a9fe]", REACH_NEVER },
	{ "[64:ff9b::10.0.0.1]", REACH_INSIDE },
	{ "[64:ff9b::8.8.8.8]", REACH_PUBLIC },
	{ "[64:ff9b:1::8.8.8.8]", REACH_INSIDE },
	{ "[2002:a9fe:a9fe::]", REACH_NEVER },
	{ "[2002:0808:0808::]", REACH_PUBLIC },
	{ "[fc00::1]", REACH_INSIDE },
	{ "[fdff::1]", REACH_INSIDE },
	{ "[fd00:ec2::254]", REACH_NEVER },
	{ "[fd00:ec2::255]", REACH_INSIDE },
	{ "[fd20:ce::254]", REACH_NEVER },
	{ "[fe80::1]", REACH_NEVER },
	{ "[fe80::1%25eth0]", REACH_NEVER },
	{ "[febf::1]", REACH_NEVER },
	{ "[fec0::1]", REACH_INSIDE },
	{ "[ff02::1]", REACH_NEVER },
};

START_LOOP_TEST(addresses_are_public_or_not, ARRAY_LEN(hosts))
{
	ck_assert_msg(reach_of_host(hosts[_i].host) == hosts[_i].reach, "%s", hosts[_i].host);
}
END_TEST

static const struct {
	const char *host, *list;
	bool is;
} lists[] = {
	{ "h", "*", true },
	{ "h", "*,x", false },
	{ "h", "", false },
	{ "h", " ,\t", false },
	{ "h.example", "x,h.example", true },
	{ "h.example", "x h.example\ty", true },
	{ "H.example.", " h.EXAMPLE , x", true },
	{ "h.example", "h.example.", true },
	{ "h.example", "example", true },
	{ "h.example", ".example", true },
	{ "example", ".example", true },
	{ "an-example", "example", false },
	{ "h.example", "h", false },
	{ "example", "h.example", false },
	{ "h.example", ".", false },
	{ "10.1.2.3", "10.1.2.3", true },
	{ "10.1.2.3", "2.3", false },
	{ "10.1.2.3", ".10.1.2.3", false },
	{ "10.1.2.3", "h,10.1.0.0/16", true },
	{ "10.1.2.3", "10.2.0.0/16", false },
	{ "10.1.2.3", "10.1.2.2/31", true },
	{ "10.1.2.3", "10.1.2.4/31", false },
	{ "10.1.2.3", "0.0.0.0/0", true },
	{ "10.1.2.3", "10.1.2.3/33", false },
	{ "10.1.2.3", "10.1.2.3/", false },
	{ "10.1.2.3", "10.1.2.3/8x", false },
	{ "10.1.2.3", "::/0", false },
	{ "[fd00::1]", "fd00:0::1", true },
	{ "[fd00::1]", "fd00::/8", true },
	{ "[fe80::1]", "fd00::/8", false },
	{ "[fd00::1]", "0.0.0.0/0", false },
};

START_LOOP_TEST(hosts_that_need_no_proxy_are_listed, ARRAY_LEN(lists))
{
	ck_assert_msg(reach_is_listed(lists[_i].host, lists[_i].list) == lists[_i].is, "%s: %s",
		      lists[_i].host, lists[_i].list);
}
END_TEST

/* Between servers on the public network, in a private one, and where the user's own machine is. */
static const struct {
	const char *url;
	bool inside;
	enum http_reach before;
	const char *to;
	bool refused;
	enum http_reach reach;
} leads[] = {
	{ "http://h/a", false, HTTP_ANYWHERE, "http://o/x", false, HTTP_PUBLIC },
	{ "http://h/a", true, HTTP_ANYWHERE, "http://o/x", false, HTTP_INSIDE },
	{ "http://h/a", false, HTTP_ANYWHERE, "/x", false, HTTP_ANYWHERE },
	{ "http://h/a", false, HTTP_PUBLIC, "http://H:80/x", false, HTTP_PUBLIC },
	{ "http://h/a", true, HTTP_INSIDE, "/x", false, HTTP_INSIDE },
	{ "http://h/a", false, HTTP_INSIDE, "http://h:81/x", false, HTTP_PUBLIC },
	{ "http://h/a", false, HTTP_ANYWHERE, "https://h/a", false, HTTP_PUBLIC },
	{ "http://h/a", false, HTTP_ANYWHERE, "http://10.0.0.1/", true, 0 },
	{ "http://h/a", true, HTTP_ANYWHERE, "http://10.0.0.1/", false, HTTP_INSIDE },
	{ "http://h/a", false, HTTP_ANYWHERE, "http://localhost:8080/?q", true, 0 },
	{ "http://h/a", true, HTTP_ANYWHERE, "http://169.254.169.254/latest/", true, 0 },
	{ "http://h/a", true, HTTP_ANYWHERE, "http://[fe80::1]/", true, 0 },
	{ "http://169.254.1.1/a", true, HTTP_ANYWHERE, "/a/", false, HTTP_ANYWHERE },
};

START_LOOP_TEST(servers_lead_into_no_private_network_from_outside, ARRAY_LEN(leads))
{
	char text[128], *to = NULL;
	struct ckpt_err e = { 0 };
	enum http_reach reach;
	struct buf b;
	struct http_answer a;
	int rc;

	(void)snprintf(text, sizeof(text), "Location: %s\r\n", leads[_i].to);
	a = answer_of(302, text, "", leads[_i].url, &b);
	a.inside = leads[_i].inside;
	a.reach = leads[_i].before;
	rc = http_location(&a, &to, &reach, &e);
	ck_assert_int_eq(rc, leads[_i].refused ? -EIO : 0);
	if (rc)
		ck_assert(strstr(e.msg, "a private or link-local address, which is refused"));
	else
		ck_assert_int_eq(reach, leads[_i].reach);
	free(to);
	buf_release(&b);
}
END_TEST

static const struct {
	const char *url, *to, *is, *says; /* is: NULL: refused */
} redirects[] = {
	{ "http://h/a/b", "c", "http://h/a/c", NULL },
	{ "http://h/a/b?q", "/x?y=1", "http://h/x?y=1", NULL },
	{ "http://h:81/a", "//other/x", "http://other/x", NULL },
	{ "http://h/a", "https://other/x", "https://other/x", NULL },
	{ "https://h/a", "https://other/x", "https://other/x", NULL },
	{ "http://h/a", "http://me:secret@o/x#part", "http://o/x", NULL },
	{ "http://h/a", "/b/../c", "http://h/b/../c", NULL },
	{ "https://h/a", "http://h/a", NULL, "to an address that is not https, which is refused" },
	{ "https://h/a", "ftp://h/a", NULL, "to an address that is not https, which is refused" },
	{ "http://h/a", "ftp://h/a", NULL,
	  "to an address that is not http or https, which is refused" },
	{ "http://h/a", "file:///etc/passwd", NULL, "not http or https, which is refused" },
	{ "http://h/a", "http://", NULL, "not http or https, which is refused" },
	{ "http://h/a", "http://h:99999999/", NULL, "which is refused" },
	{ "::", "http://h/", NULL, "which is refused" },
	{ "/path", "http://h/", NULL, "which is refused" },
	{ "http://h/a", "", NULL, "the server redirects (302) and does not say where to" },
	{ "http://h/a", NULL, NULL, "the server redirects (302) and does not say where to" },
};

START_TEST(redirects_lead_to_no_other_scheme_and_never_out_of_https)
{
	for (size_t i = 0; i < ARRAY_LEN(redirects); i++) {
		char text[128], *to = NULL;
		struct ckpt_err e = { 0 };
		enum http_reach reach;
		struct http_answer a;
		struct buf b;
		int rc;

		(void)snprintf(text, sizeof(text), "Location: %s\r\n", redirects[i].to);
		a = answer_of(302, redirects[i].to ? text : "", "", redirects[i].url, &b);
		rc = http_location(&a, &to, &reach, &e);
		ck_assert_msg(rc == (redirects[i].is ? 0 : -EIO), "%s: %s", text, e.msg);
		ck_assert_pstr_eq(to, redirects[i].is);
		if (rc)
			ck_assert_msg(strstr(e.msg, redirects[i].says) != NULL, "%s: %s", text,
				      e.msg);
		free(to);
		buf_release(&b);
	}
}
END_TEST

START_TEST(some_errors_may_pass)
{
	static const unsigned passing[] = { 408, 429, 500, 502, 503, 504 };

	for (unsigned status = 100; status < 600; status++) {
		bool is = false;

		for (size_t i = 0; i < ARRAY_LEN(passing); i++)
			is |= status == passing[i];
		ck_assert_msg(http_passes(status) == is, "%u", status);
	}
}
END_TEST

/* ---- what identifies a version ---- */

#define LONG_ETAG "0123456789012345678901234567890123456789012345678901234567890123456789"

static const struct {
	const char *etag, *modified, *begins; /* begins: NULL: neither identifies a version */
	unsigned len;
} versions[] = {
	{ NULL, NULL, NULL, 0 },
	{ "", "", NULL, 0 },
	{ "\"\"", NULL, NULL, 0 },
	{ "W/\"a\"", NULL, NULL, 0 },
	{ "\"a\"", "Fri, 24 May 2013", "Ea", 2 },
	{ "a", NULL, "Ea", 2 },
	{ "\"a", NULL, "E\"a", 3 },
	{ "a\"", NULL, "Ea\"", 3 },
	{ "\"", NULL, "E\"", 2 },
	{ LONG_ETAG, NULL, "H", 33 },
	{ "W/\"a\"", "Fri, 24 May 2013", "MFri, 24 May 2013", 17 },
	{ "", "Fri, 24 May 2013", "MFri, 24 May 2013", 17 },
	{ NULL, LONG_ETAG, NULL, 0 },
};

START_TEST(a_strong_etag_identifies_a_version_or_else_its_time)
{
	for (size_t i = 0; i < ARRAY_LEN(versions); i++) {
		struct place_id id = { .len = 77 };
		bool ok = object_identify(versions[i].etag, versions[i].modified, &id);

		ck_assert_int_eq(ok, versions[i].begins != NULL);
		ck_assert_uint_eq(id.len, ok ? versions[i].len : 77);
		if (ok)
			ck_assert_mem_eq(id.v, versions[i].begins, strlen(versions[i].begins));
	}
}
END_TEST

START_TEST(a_version_is_compared_by_what_it_was_identified_by)
{
	struct place_id by_etag = { 0 }, by_time = { 0 };

	ck_assert(object_identify("\"a\"", "then", &by_etag));
	ck_assert(object_identify("W/\"a\"", "then", &by_time));
	ck_assert(object_is_same(&by_etag, "\"a\"", NULL));
	ck_assert(object_is_same(&by_etag, "\"a\"", "later"));
	ck_assert(!object_is_same(&by_etag, "\"b\"", "then"));
	ck_assert(!object_is_same(&by_etag, NULL, "then"));
	ck_assert(object_is_same(&by_time, "\"b\"", "then"));
	ck_assert(!object_is_same(&by_time, "W/\"a\"", "later"));
	ck_assert(!object_is_same(&by_time, "\"a\"", NULL));
}
END_TEST

static const struct {
	const char *text;
	uint64_t seconds; /* since 1970; 0: it is not a time */
} times[] = {
	{ "2026-01-01T00:00:00Z", 1767225600 },
	{ "2026-01-01T00:00:00", 1767225600 },
	{ "2026-01-01T00:00:00.123456Z", 1767225600 },
	{ "2026-01-01T00:00:00.5+01:00", 1767225600 - 3600 },
	{ "2026-01-01T00:00:00+0130", 1767225600 - 5400 },
	{ "2026-01-01T00:00:00-01:30", 1767225600 + 5400 },
	{ "2026-01-01T00:00:00+02", 1767225600 - 7200 },
	{ "2026-01-01T00:00:00-:3", 1767225600 },
	{ "Thu, 01 Jan 2026 00:00:00 GMT", 1767225600 },
	{ "1960-01-01T00:00:00Z", 0 },
	{ "never", 0 },
	{ "", 0 },
	{ "9999-12-31T00:00:00Z", UINT64_MAX / 1000000000 },
};

START_TEST(times_have_zones_and_bounds)
{
	for (size_t i = 0; i < ARRAY_LEN(times); i++)
		ck_assert_msg(object_time_ns(times[i].text) == times[i].seconds * CLOCK_SECOND,
			      "%s: %llu", times[i].text,
			      (unsigned long long)object_time_ns(times[i].text));
}
END_TEST

START_TEST(names_are_single_elements)
{
	static const char *const hidden[] = { "", ".", "..", "a/b", "/" };
	char name[300];

	for (size_t i = 0; i < ARRAY_LEN(hidden); i++)
		ck_assert(!store_shows(hidden[i], strlen(hidden[i])));
	ck_assert(!store_shows("a\0b", 3));
	memset(name, 'a', sizeof(name));
	ck_assert(store_shows(name, 255));
	ck_assert(!store_shows(name, 256));
	ck_assert(store_shows("...", 3));
	ck_assert(store_shows(".a", 2));
}
END_TEST

static const struct {
	unsigned status;
	const char *code, *message;
	int errnum;
	const char *says;
} refusals[] = {
	{ 401, NULL, NULL, EACCES, "the server answered 401" },
	{ 403, "", "m", EACCES, "the server answered 403" },
	{ 404, "C", NULL, ENOENT, "the server answered 404 (C)" },
	{ 410, "C", "", ENOENT, "the server answered 410 (C)" },
	{ 409, "C", "m", EIO, "the server answered 409 (C: m)" },
	{ 503, "C", "m", EIO, "the server answered 503 (C: m)" },
};

START_TEST(a_refusal_says_what_the_server_calls_it)
{
	for (size_t i = 0; i < ARRAY_LEN(refusals); i++) {
		const struct http_answer a = { .status = refusals[i].status };
		struct ckpt_err e = { 0 };
		enum http_verdict v = store_refuse(&a, refusals[i].code, refusals[i].message, &e);

		ck_assert_int_eq(v, a.status == 503 ? HTTP_AGAIN : HTTP_FAIL);
		ck_assert_int_eq(e.code, refusals[i].errnum);
		ck_assert_str_eq(e.msg, refusals[i].says);
	}
}
END_TEST

START_TEST(addresses_are_short_printable_and_of_a_known_kind)
{
	static const struct {
		const char *address, *says;
	} bad[] = {
		{ "s3://b/a\nb", "an address with byte 0x0a is not supported" },
		{ "s3://b/\x7f", "an address with byte 0x7f is not supported" },
		{ "\x01", "an address with byte 0x01 is not supported" },
		{ "ssh://b/x", "'ssh://b/x' is not an address that is supported: s3, gs, https" },
		{ "s3:/b", "is not an address that is supported" },
	};
	char address[5000] = "s3://b/";
	struct store *s = NULL;
	struct ckpt_err e = { 0 };

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		ck_assert_int_eq(store_open(NULL, bad[i].address, NULL, &s, &e), -EINVAL);
		ck_assert_msg(strstr(e.msg, bad[i].says) != NULL, "%s", e.msg);
	}
	memset(address + 7, 'a', 4089);
	ck_assert_int_eq(store_open(NULL, address, NULL, &s, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "an address of 4096 bytes is not supported");
	ck_assert_ptr_null(s);
	store_free(NULL);
}
END_TEST

/* ---- addresses ---- */

static const struct {
	const char *text;
	bool plus;
	const char *is;
} encoded[] = {
	{ "", true, "" },
	{ "a%41%5a%2f%2F", false, "aAZ//" },
	{ "%C3%a4", false, "\xc3\xa4" },
	{ "a+b", true, "a b" },
	{ "a+b", false, "a+b" },
	{ "%2B", true, "+" },
	{ "100%", false, "100%" },
	{ "%4", false, "%4" },
	{ "%4g", false, "%4g" },
	{ "%g4", false, "%g4" },
	{ "%@4%4@%:4%4/%`4%4{", false, "%@4%4@%:4%4/%`4%4{" },
	{ "%%41", false, "%A" },
	{ "%2541", false, "%41" },
};

START_TEST(what_is_encoded_is_decoded_once)
{
	for (size_t i = 0; i < ARRAY_LEN(encoded); i++) {
		struct buf b = BUF_INIT(256);

		buf_str(&b, "");
		url_decode(&b, encoded[i].text, strlen(encoded[i].text), encoded[i].plus);
		ck_assert_str_eq(b.data, encoded[i].is);
		buf_release(&b);
	}
}
END_TEST

START_TEST(every_byte_survives_encoding)
{
	struct buf to = BUF_INIT(1024), back = BUF_INIT(1024);
	char all[256];

	for (int i = 0; i < 256; i++)
		all[i] = (char)i;
	for (int slashes = 0; slashes < 2; slashes++) {
		buf_restart(&to);
		buf_restart(&back);
		url_encode(&to, all, sizeof(all), slashes);
		ck_assert_uint_eq(strspn(to.data,
					 "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvw"
					 "xyz0123456789-._~%/"),
				  to.len);
		ck_assert_int_eq(strchr(to.data, '/') != NULL, slashes);
		url_decode(&back, to.data, to.len, true);
		ck_assert_uint_eq(back.len, sizeof(all));
		ck_assert_mem_eq(back.data, all, sizeof(all));
	}
	buf_release(&to);
	buf_release(&back);
}
END_TEST

static const struct {
	const char *url, *host, *path, *says; /* says: NULL: good */
} urls[] = {
	{ "http://Host", "host", "/", NULL },
	{ "HTTPS://h:443/a/../b%2f", "h", "/a/../b%2f", NULL },
	{ "http://h:443/", "h:443", "/", NULL },
	{ "http://h:80/x", "h", "/x", NULL },
	{ "http://[::1]:90/x", "[::1]:90", "/x", NULL },
	{ "ftp://h/x", NULL, NULL, "is not an address of http or https" },
	{ "file:///x", NULL, NULL, "is not an address" },
	{ "http://", NULL, NULL, "is not an address" },
	{ "nonsense", NULL, NULL, "is not an address" },
	{ "http://h/x?y", NULL, NULL, "an address with '?' is not supported" },
	{ "http://h/x#y", NULL, NULL, "an address with '#' is not supported" },
	{ "http://u@h/", NULL, NULL, "a user or password in an address is not supported" },
	{ "http://u:p@h/", NULL, NULL, "a user or password in an address is not supported" },
};

START_TEST(addresses_of_servers_have_neither_users_nor_queries)
{
	for (size_t i = 0; i < ARRAY_LEN(urls); i++) {
		struct ckpt_err e = { 0 };
		struct url u = { 0 };
		int rc = url_parse(urls[i].url, &u, &e);

		ck_assert_msg(rc == (urls[i].says ? -EINVAL : 0), "%s: %s", urls[i].url, e.msg);
		if (rc)
			ck_assert_msg(strstr(e.msg, urls[i].says) != NULL, "%s", e.msg);
		ck_assert_pstr_eq(u.host, urls[i].host);
		ck_assert_pstr_eq(u.path, urls[i].path);
		url_release(&u);
	}
}
END_TEST

/* Redirects of 4096 files are kept; for one more, the oldest goes. */
START_TEST(redirects_are_bounded_in_number)
{
	enum { N = 4097 };
	struct moved_table t = { 0 };
	struct buf url = BUF_INIT(256), etag = BUF_INIT(256);
	char path[16], to[32];
	enum http_reach reach;
	uint64_t start;
	bool expired;

	moved_init(&t);
	for (unsigned i = 0; i < N; i++) {
		(void)snprintf(path, sizeof(path), "f%u", i);
		(void)snprintf(to, sizeof(to), "http://h/%u", i);
		moved_set(&t, path, to, HTTP_INSIDE, i % 2 ? "e" : NULL);
	}
	ck_assert(!moved_find(&t, "f0", &url, NULL, &etag));
	ck_assert(moved_find(&t, "f1", &url, &reach, &etag));
	ck_assert_str_eq(url.data, "http://h/1");
	ck_assert_str_eq(etag.data, "e");
	ck_assert_int_eq(reach, HTTP_INSIDE);
	ck_assert(moved_find(&t, "f4096", &url, NULL, NULL));
	moved_set(&t, "f1", "http://o/dir/?x", HTTP_PUBLIC, NULL);
	ck_assert(moved_is_directory(&t, "f1"));
	ck_assert(!moved_is_directory(&t, "f2"));
	ck_assert(!moved_is_directory(&t, "none"));
	moved_set(&t, "f1", NULL, HTTP_PUBLIC, NULL); /* forgets it */
	ck_assert(!moved_find(&t, "f1", &url, NULL, NULL));
	ck_assert(!moved_expired(&t, "f1", "http://o/dir/?x", "own"));
	ck_assert(moved_expired(&t, "f2", "http://older", "own"));
	ck_assert(!moved_expired(&t, "f2", "own", "own"));
	start = clock_ns();
	moved_set(&t, "f2", "http://h/2", HTTP_PUBLIC, NULL);
	expired = moved_expired(&t, "f2", "http://h/2", "own");
	ck_assert(!expired || clock_ns() - start > 5 * CLOCK_SECOND); /* it is new */
	moved_release(&t);
	buf_release(&url);
	buf_release(&etag);
}
END_TEST

/* ---- calls ---- */

static struct net *net;
static unsigned port;
static serve_fn *on_request;
static _Atomic unsigned requests;

static bool serve(struct served *r)
{
	atomic_fetch_add(&requests, 1);
	return on_request(r);
}

static void setup(void)
{
	struct ckpt_err e = { 0 };

	(void)unsetenv("AWS_CA_BUNDLE");
	(void)unsetenv("CURL_CA_BUNDLE");
	(void)setenv("SSL_CERT_FILE", "", 1);
	port = server_start(serve);
	ck_assert_int_eq(net_new(&(struct net_options){ .retry_ms = 300,
							.stall_ms = 200,
							.connect_ms = 500,
							.answer_ms = 1000 },
				 &net, &e),
			 0);
}

static void teardown(void)
{
	net_free(net);
	net_free(NULL);
}

struct asked {
	const char *path;
	const char *url; /* instead of the path at our server */
	int (*make)(struct asked *a, struct http_message *m, struct ckpt_err *e);
	enum http_verdict verdict; /* of an answer other than 2xx, without a sentence */
	unsigned makes;
	char kept[512]; /* the field that `keep` names, in the last answer */
	const char *keep;
};

static int make(void *arg, uint64_t from, struct http_message *m, struct ckpt_err *e)
{
	struct asked *a = arg;

	(void)from;
	a->makes++;
	if (a->url)
		buf_str(&m->url, a->url);
	else
		buf_printf(&m->url, "http://127.0.0.1:%u%s", port, a->path ? a->path : "/");
	return a->make ? a->make(a, m, e) : 0;
}

static enum http_verdict judge(void *arg, uint64_t from, const struct http_answer *h,
			       struct ckpt_err *e)
{
	struct asked *a = arg;
	const char *value = a->keep ? http_field(h, a->keep) : NULL;

	(void)from;
	(void)e;
	(void)snprintf(a->kept, sizeof(a->kept), "%s", value ? value : "(none)");
	return h->status == 200 ? HTTP_TAKE : a->verdict;
}

static int ask(struct asked *a, struct buf *body, struct ckpt_err *e)
{
	static const struct http_ops ops = { .make = make, .judge = judge };

	atomic_store(&requests, 0);
	return http_exchange(net, &ops, a,
			     &(struct http_how){ .what = "it", .len = UINT64_MAX, .urgent = true },
			     body, e);
}

/* What a request brought. */
static char got_head[16384], got_body[16384];
static size_t got_len;

static bool keep_request(struct served *r)
{
	(void)snprintf(got_head, sizeof(got_head), "%s", r->head);
	got_len = request_body(r, got_body, sizeof(got_body));
	return answer(r, 200, "", "yes", 3);
}

static int with_fields(struct asked *a, struct http_message *m, struct ckpt_err *e)
{
	(void)a;
	(void)e;
	http_add_field(m, "X-One", "a b");
	http_add_field(m, "X-None", "");
	return 0;
}

static int with_reach_public(struct asked *a, struct http_message *m, struct ckpt_err *e)
{
	(void)a;
	(void)e;
	m->reach = HTTP_PUBLIC;
	return 0;
}

static int with_reach_inside(struct asked *a, struct http_message *m, struct ckpt_err *e)
{
	(void)a;
	(void)e;
	m->reach = HTTP_INSIDE;
	return 0;
}

static int with_line_end(struct asked *a, struct http_message *m, struct ckpt_err *e)
{
	(void)a;
	(void)e;
	http_add_field(m, "X-One", "a\r\nX-Two: b");
	http_add_field(m, "X-Three", "c");
	return 0;
}

static int with_delete(struct asked *a, struct http_message *m, struct ckpt_err *e)
{
	(void)a;
	(void)e;
	http_add_field(m, "X-One", "\x7f");
	return 0;
}

static int with_much(struct asked *a, struct http_message *m, struct ckpt_err *e)
{
	static char much[70000];

	(void)a;
	(void)e;
	memset(much, 'x', sizeof(much) - 1);
	http_add_field(m, "X-One", much);
	return 0;
}

static int with_long_url(struct asked *a, struct http_message *m, struct ckpt_err *e)
{
	(void)a;
	(void)e;
	for (int i = 0; i < 7000; i++)
		buf_str(&m->url, "0123456789");
	return 0;
}

static int with_large_body(struct asked *a, struct http_message *m, struct ckpt_err *e)
{
	static const char zeros[65536];

	(void)a;
	(void)e;
	m->method = "POST";
	for (int i = 0; i < 65; i++)
		buf_add(&m->body, zeros, sizeof(zeros));
	return 0;
}

static int no_request(struct asked *a, struct http_message *m, struct ckpt_err *e)
{
	(void)a;
	(void)m;
	return err_set(e, EACCES, "there is no key");
}

static int never(struct asked *a, struct http_message *m, struct ckpt_err *e)
{
	(void)a;
	(void)m;
	(void)e;
	return -EAGAIN;
}

static int no_bytes(void *arg, uint64_t off, void *buf, size_t n)
{
	(void)arg;
	(void)off;
	(void)buf;
	(void)n;
	return -ENODATA;
}

static int upload_nothing(struct asked *a, struct http_message *m, struct ckpt_err *e)
{
	(void)a;
	(void)e;
	m->method = "PUT";
	m->read = no_bytes;
	m->upload = 1000;
	return 0;
}

static const struct {
	int (*make)(struct asked *a, struct http_message *m, struct ckpt_err *e);
	const char *url;
	int rc;
	const char *says;
	unsigned makes; /* 0: some */
} not_made[] = {
	{ with_line_end, NULL, -EFBIG, "'it': no request can be made: File too large", 1 },
	{ with_delete, NULL, -EFBIG, "no request can be made", 1 },
	{ with_much, NULL, -ENOMEM, "no request can be made", 1 },
	{ with_long_url, NULL, -EFBIG, "no request can be made", 1 },
	{ with_large_body, NULL, -EFBIG, "no request can be made", 1 },
	{ no_request, NULL, -EACCES, "'it': there is no key", 1 },
	{ never, NULL, -ETIMEDOUT, "'it': ", 0 },
	{ upload_nothing, NULL, -ENODATA, "'it': read the data to upload: No data", 1 },
	{ NULL, "gopher://127.0.0.1/", -EIO, "'it': ", 1 },
	{ NULL, "http://[::1", -EIO, "'it': ", 1 },
	{ NULL, "http://", -EIO, "'it': ", 1 },
};

START_LOOP_TEST(a_request_that_cannot_be_made_is_an_error_at_once, ARRAY_LEN(not_made))
{
	struct asked a = { .make = not_made[_i].make, .url = not_made[_i].url };
	struct buf body = BUF_INIT(4096);
	struct ckpt_err e = { 0 };

	on_request = keep_request;
	ck_assert_int_eq(ask(&a, &body, &e), not_made[_i].rc);
	ck_assert_msg(strstr(e.msg, not_made[_i].says) != NULL, "%s", e.msg);
	if (not_made[_i].makes)
		ck_assert_uint_eq(a.makes, not_made[_i].makes);
	else
		ck_assert_uint_gt(a.makes, 1);
	ck_assert_uint_le(atomic_load(&requests), 1);
	ck_assert_uint_eq(body.len, 0);
	buf_release(&body);
}
END_TEST

START_TEST(fields_go_out_as_they_were_given_and_none_of_curls_own)
{
	struct asked a = { .make = with_fields, .path = "/x/../y" };
	struct buf body = BUF_INIT(4096);
	struct ckpt_err e = { 0 };

	on_request = keep_request;
	ck_assert_msg(!ask(&a, &body, &e), "%s", e.msg);
	ck_assert_str_eq(body.data, "yes");
	ck_assert_ptr_nonnull(strstr(got_head, "GET /x/../y HTTP/1.1\r\n"));
	ck_assert_ptr_nonnull(strstr(got_head, "\r\nX-One: a b\r\n"));
	ck_assert_ptr_nonnull(strstr(got_head, "\r\nX-None:\r\n"));
	ck_assert_ptr_nonnull(strstr(got_head, "\r\nAccept-Encoding: identity\r\n"));
	ck_assert_ptr_null(strstr(got_head, "Expect"));
	buf_release(&body);
}
END_TEST

/* The address is what counts, also of a host to which there is a connection already. */
START_TEST(what_was_redirected_connects_to_no_private_network)
{
	static const struct {
		const char *url; /* NULL: at our server, 127.0.0.1 */
		int (*make)(struct asked *a, struct http_message *m, struct ckpt_err *e);
		const char *says;
	} turns[] = {
		{ NULL, with_reach_public, "redirects to a host at 127.0.0.1, a private" },
		{ NULL, NULL, NULL },
		{ NULL, with_reach_public, "redirects to a host at 127.0.0.1, a private" },
		{ NULL, with_reach_inside, NULL },
		{ NULL, with_reach_public, "redirects to a host at 127.0.0.1, a private" },
		{ "http://169.254.1.1:1/", with_reach_inside, "at 169.254.1.1, a private" },
	};

	on_request = keep_request;
	for (size_t i = 0; i < ARRAY_LEN(turns); i++) {
		struct asked a = { .url = turns[i].url, .make = turns[i].make };
		struct buf body = BUF_INIT(4096);
		struct ckpt_err e = { 0 };
		int rc = ask(&a, &body, &e);

		ck_assert_msg(rc == (turns[i].says ? -EIO : 0), "%zu: %s", i, e.msg);
		ck_assert_uint_eq(atomic_load(&requests), !turns[i].says);
		ck_assert_uint_eq(a.makes, 1);
		if (rc)
			ck_assert_msg(strstr(e.msg, turns[i].says) != NULL, "%s", e.msg);
		buf_release(&body);
	}
}
END_TEST

static int post(struct asked *a, struct http_message *m, struct ckpt_err *e)
{
	(void)a;
	(void)e;
	m->method = "POST";
	buf_str(&m->body, "a=1&b=2");
	return 0;
}

static int post_nothing(struct asked *a, struct http_message *m, struct ckpt_err *e)
{
	(void)a;
	(void)e;
	m->method = "POST";
	return 0;
}

static int counted(void *arg, uint64_t off, void *buf, size_t n)
{
	(void)arg;
	for (size_t i = 0; i < n; i++)
		((char *)buf)[i] = (char)('a' + (off + i) % 26);
	return 0;
}

static int put(struct asked *a, struct http_message *m, struct ckpt_err *e)
{
	(void)a;
	(void)e;
	m->method = "PUT";
	m->read = counted;
	m->upload = 10000;
	m->once = m->direct = true;
	return 0;
}

START_TEST(bodies_are_sent_whole_and_without_asking_first)
{
	struct asked a = { .make = post };
	struct buf body = BUF_INIT(4096);
	struct ckpt_err e = { 0 };

	on_request = keep_request;
	ck_assert_msg(!ask(&a, &body, &e), "%s", e.msg);
	ck_assert_uint_eq(got_len, 7);
	ck_assert_str_eq(got_body, "a=1&b=2");
	ck_assert_ptr_null(strstr(got_head, "Expect"));
	a.make = post_nothing;
	ck_assert_msg(!ask(&a, &body, &e), "%s", e.msg);
	ck_assert_uint_eq(got_len, 0);
	ck_assert_ptr_nonnull(strstr(got_head, "POST / "));
	a.make = put;
	ck_assert_msg(!ask(&a, &body, &e), "%s", e.msg);
	ck_assert_uint_eq(got_len, 10000);
	for (size_t i = 0; i < got_len; i++)
		ck_assert_int_eq(got_body[i], (char)('a' + i % 26));
	ck_assert_ptr_null(strstr(got_head, "Expect"));
	buf_release(&body);
}
END_TEST

static bool has_gone(const struct served *r)
{
	char c;

	return !recv(r->fd, &c, 1, MSG_DONTWAIT | MSG_PEEK);
}

/* Sends a beginning, then the same bytes again and again, each time before it would count as
 * silent. */
static bool repeat(struct served *r, const char *begin, const char *more)
{
	(void)request_body(r, got_body, sizeof(got_body));
	for (send_all(r->fd, begin, strlen(begin)); !has_gone(r); (void)usleep(20000))
		send_all(r->fd, more, strlen(more));
	return false;
}

static bool endless_fields(struct served *r)
{
	return repeat(r, "HTTP/1.1 200 x\r\n", "A: b\r\n");
}

static bool endless_heads(struct served *r)
{
	return repeat(r, "", "HTTP/1.1 100 x\r\n\r\n");
}

static bool endless_error(struct served *r)
{
	return repeat(r, "HTTP/1.1 500 x\r\nContent-Length: 100000\r\n\r\n", "x");
}

/* S3 does this while it joins parts, but only for some minutes. */
static bool endless_blanks(struct served *r)
{
	return repeat(r, "HTTP/1.1 200 x\r\nContent-Length: 100000\r\n\r\n", " ");
}

static const struct {
	serve_fn *serve;
	int (*make)(struct asked *a, struct http_message *m, struct ckpt_err *e);
} endless[] = {
	{ endless_fields, NULL }, { endless_fields, post }, { endless_fields, put },
	{ endless_heads, NULL },  { endless_heads, post },  { endless_heads, put },
	{ endless_error, NULL },  { endless_error, post },  { endless_error, put },
	{ endless_blanks, post }, { endless_blanks, put },
};

START_LOOP_TEST(an_answer_that_comes_drop_by_drop_is_given_up, ARRAY_LEN(endless))
{
	struct asked a = { .make = endless[_i].make };
	struct buf body = BUF_INIT(100000);
	struct ckpt_err e = { 0 };

	on_request = endless[_i].serve;
	ck_assert_int_eq(ask(&a, &body, &e), -ETIMEDOUT);
	buf_release(&body);
}
END_TEST

/* ---- answers ---- */

static const struct {
	const char *head; /* begins the answer; the fields that complete it follow */
	const char *keep, *kept;
} heads[] = {
	{ "HTTP/1.1 200 x\r\nX-A:1\r\n", "X-A", "1" },
	{ "HTTP/1.1 200 x\r\nX-A: \t 1 2\t \r\n", "X-A", "1 2" },
	{ "HTTP/1.1 200 x\r\nX-A:\r\n", "X-A", "" },
	{ "HTTP/1.1 200 x\r\nX-A: \t \r\n", "X-A", "" },
	{ "HTTP/1.1 100 Continue\r\nX-A: 1\r\n\r\nHTTP/1.1 200 x\r\n", "X-A", "(none)" },
	{ "HTTP/1.1 103 Early\r\nX-A: 1\r\n\r\nHTTP/1.1 200 x\r\nX-A: 2\r\n", "X-A", "2" },
	{ "HTTP/1.0 200\r\nX-A: 1\r\n", "X-A", "1" },
};
static int which;

static bool answer_head(struct served *r)
{
	static const char rest[] = "Content-Length: 2\r\nConnection: close\r\n\r\nok";

	send_all(r->fd, heads[which].head, strlen(heads[which].head));
	send_all(r->fd, rest, sizeof(rest) - 1);
	return false;
}

START_LOOP_TEST(the_last_head_counts_without_white_space, ARRAY_LEN(heads))
{
	struct asked a = { .keep = heads[_i].keep };
	struct buf body = BUF_INIT(4096);
	struct ckpt_err e = { 0 };

	which = _i;
	on_request = answer_head;
	ck_assert_msg(!ask(&a, &body, &e), "%s", e.msg);
	ck_assert_str_eq(a.kept, heads[_i].kept);
	ck_assert_str_eq(body.data, "ok");
	buf_release(&body);
}
END_TEST

static bool say_500(struct served *r)
{
	return answer(r, 500, "", "no", 2);
}

static bool say_later(struct served *r)
{
	return answer(r, 503, "Retry-After: 3600\r\n", "", 0);
}

static bool say_much(struct served *r)
{
	static const char much[5000] = { 'm' };

	return answer(r, 200, "", much, sizeof(much));
}

static bool say_much_as_error(struct served *r)
{
	static const char zeros[100000] = { 'm' };

	return answer(r, 404, "", zeros, sizeof(zeros));
}

static bool say_nonsense(struct served *r)
{
	send_all(r->fd, "SSH-2.0-OpenSSH_9.2\r\n\r\n", 23);
	return false;
}

static bool say_large_field(struct served *r)
{
	static char field[120000];

	memset(field, 'f', sizeof(field));
	send_all(r->fd, "HTTP/1.1 200 x\r\nX-F: ", 21);
	send_all(r->fd, field, sizeof(field));
	send_all(r->fd, "\r\n\r\n", 4);
	return false;
}

static bool say_unknown_encoding(struct served *r)
{
	return answer(r, 200, "Transfer-Encoding: nonsense\r\n", "x", 1);
}

static const struct {
	serve_fn *serve;
	enum http_verdict verdict;
	int rc;
	const char *says;
	bool repeated;
} answers[] = {
	{ say_500, HTTP_FAIL, -EIO, "'it': the server answered 500", false },
	{ say_500, HTTP_AGAIN, -EIO, "'it': the server answered 500; tried ", true },
	{ say_500, HTTP_NOW, -EIO, "'it': the server redirects without end", true },
	/* The wait would be longer than the whole request may take. */
	{ say_later, HTTP_AGAIN, -EIO, "'it': the server answered 503", false },
	{ say_much, HTTP_TAKE, -EIO, "'it': the answer is larger than 4 KiB, refused", false },
	{ say_much_as_error, HTTP_FAIL, -EIO, "'it': the server answered 404", false },
	{ say_nonsense, HTTP_TAKE, -EIO, "'it': ", false },
	{ say_large_field, HTTP_TAKE, -EIO, "'it': ", true },
	{ say_unknown_encoding, HTTP_TAKE, -EIO,
	  "'it': the server answered with Transfer-Encoding nonsense", false },
};

START_LOOP_TEST(an_error_has_a_sentence_even_if_nobody_wrote_one, ARRAY_LEN(answers))
{
	struct asked a = { .verdict = answers[_i].verdict };
	struct buf body = BUF_INIT(4096);
	struct ckpt_err e = { 0 };

	on_request = answers[_i].serve;
	ck_assert_int_eq(ask(&a, &body, &e), answers[_i].rc);
	ck_assert_msg(!strncmp(e.msg, answers[_i].says, strlen(answers[_i].says)) &&
			      strlen(e.msg) > strlen("'it': "),
		      "%s", e.msg);
	ck_assert_msg((atomic_load(&requests) > 1) == answers[_i].repeated, "%u: %s",
		      atomic_load(&requests), e.msg);
	buf_release(&body);
}
END_TEST

/* A body that breaks off is read again from the start; what came before is dropped. */
static bool cut_twice(struct served *r)
{
	if (atomic_load(&requests) > 2)
		return answer(r, 200, "", "0123456789", 10);
	send_all(r->fd, "HTTP/1.1 200 x\r\nContent-Length: 10\r\n\r\n01234", 43);
	return false;
}

START_TEST(a_body_that_breaks_off_is_begun_anew)
{
	struct asked a = { 0 };
	struct buf body = BUF_INIT(4096);
	struct ckpt_err e = { 0 };

	on_request = cut_twice;
	buf_str(&body, "kept ");
	ck_assert_msg(!ask(&a, &body, &e), "%s", e.msg);
	ck_assert_str_eq(body.data, "kept 0123456789");
	ck_assert_uint_eq(a.makes, 3);
	buf_release(&body);
}
END_TEST

START_TEST(what_nobody_can_repair_is_not_tried_again)
{
	struct asked a = { .url = "https://127.0.0.1:1/" };
	struct buf body = BUF_INIT(4096);
	struct ckpt_err e = { 0 };
	struct net *with_file;

	on_request = keep_request;
	(void)setenv("SSL_CERT_FILE", "/nowhere/certificates", 1);
	ck_assert_int_eq(net_new(NULL, &with_file, &e), 0);
	ck_assert_uint_eq(net_retry_ms(with_file), 60000);
	net_free(net);
	net = with_file;
	(void)setenv("AWS_CA_BUNDLE", "/nowhere/either", 1); /* is read once */
	char url[64];

	(void)snprintf(url, sizeof(url), "https://127.0.0.1:%u/", port);
	a.url = url;
	ck_assert_int_eq(ask(&a, &body, &e), -EIO);
	ck_assert_msg(strstr(e.msg, "/nowhere/certificates") != NULL, "%s", e.msg);
	ck_assert_uint_eq(a.makes, 1);
	buf_release(&body);
}
END_TEST

/* If the server has all of the body when the upload is given up, its answer is waited for. */
static atomic_bool given_up;

static int some_bytes(void *arg, uint64_t off, void *buf, size_t n)
{
	(void)arg;
	(void)off;
	memset(buf, 'x', n);
	return 0;
}

static int upload_some(struct asked *a, struct http_message *m, struct ckpt_err *e)
{
	(void)a;
	(void)e;
	m->method = "PUT";
	m->read = some_bytes;
	m->upload = 1000;
	return 0;
}

static bool give_up_then_answer(struct served *r)
{
	struct asked other = { 0 };
	struct buf body = BUF_INIT(4096);
	struct ckpt_err e = { 0 };

	if (!strcmp(r->method, "PUT")) {
		REQUIRE(request_body(r, got_body, sizeof(got_body)) == 1000);
		given_up = true;
		REQUIRE(!ask(&other, &body, &e)); /* so the loop has looked at all calls by now */
		buf_release(&body);
	}
	return answer(r, 200, "", "yes", 3);
}

START_TEST(the_answer_to_a_body_that_was_sent_is_waited_for)
{
	static const struct http_ops ops = { .make = make, .judge = judge };
	struct asked a = { .make = upload_some };
	struct buf body = BUF_INIT(4096);
	struct ckpt_err e = { 0 };
	unsigned lost = 0;
	const struct http_how how = {
		.what = "it", .len = UINT64_MAX, .upload = 1000, .lost = &lost, .cancel = &given_up
	};

	on_request = give_up_then_answer;
	ck_assert_msg(!http_exchange(net, &ops, &a, &how, &body, &e), "%s", e.msg);
	ck_assert_str_eq(body.data, "yes");
	/* Nothing is sent any more. */
	ck_assert_int_eq(http_exchange(net, &ops, &a, &how, &body, &e), -ECANCELED);
	ck_assert_uint_eq(a.makes, 1);
	buf_release(&body);
}
END_TEST

SUITE(http, .setup = setup, .teardown = teardown, .seconds = 30)
