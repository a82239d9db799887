/* SPDX-License-Identifier: Apache-2.0 */
#include "archive_util.h"
#include "base/checked.h"
#include "base/err.h"
#include "blob_util.h"
#include "fault.h"
#include "parse/zip.h"
#include "suites.h"

#include <stdlib.h>
#include <string.h>

/* ---- local headers ---- */

/* Offsets in a local header. */
enum { L_FLAGS = 6, L_METHOD = 8, L_CSIZE = 18, L_USIZE = 22, L_NAME = 26, L_EXTRA = 28 };

static void small_archive(struct archive *a)
{
	archive_add(a, "data.pkl", "pickle", 6);
	archive_add(a, "empty", "", 0);
	archive_add(a, "data/0", "0123456789", 10);
	archive_end(a);
}

static int read_local(const void *p, size_t n, struct zip_local *ret, struct ckpt_err *e)
{
	struct mem m;
	int rc;

	mem_init(&m, p, n);
	rc = zip_read_local(m.p, n, ret, e);
	mem_release(&m);
	return rc;
}

START_LOOP_TEST(local_headers_say_where_their_data_begins, 2)
{
	struct archive a = { .style = { .seekable = _i } };
	struct zip_local l;
	struct ckpt_err e = { 0 };

	small_archive(&a);
	for (size_t i = 0; i < a.n; i++) {
		const char *p = a.b.data + a.members[i].header;

		ck_assert_int_eq(zip_read_local(p, a.b.len, &l, &e), 0);
		ck_assert_uint_eq(l.name_len, strlen(a.members[i].name));
		ck_assert_mem_eq(l.name, a.members[i].name, l.name_len);
		ck_assert_uint_eq(l.data, a.members[i].data - a.members[i].header);
		ck_assert_int_eq(l.streamed, a.members[i].size && !_i);
		ck_assert_uint_eq(l.size, l.streamed ? 0 : a.members[i].size);
	}
	ck_assert_int_eq(e.code, 0);
	archive_release(&a);
}
END_TEST

START_TEST(every_shorter_header_asks_for_more)
{
	struct archive a = { 0 };
	struct zip_local l;

	small_archive(&a);
	for (size_t n = 0; n < a.members[0].data; n++) {
		struct ckpt_err e = { 0 };

		ck_assert_int_eq(read_local(a.b.data, n, &l, &e), -ENODATA);
		ck_assert_int_eq(e.code, ENODATA);
		ck_assert_str_eq(e.msg, "zip header ends early");
	}
	ck_assert_int_eq(read_local(a.b.data, a.members[0].data, &l, &(struct ckpt_err){ 0 }), 0);
	archive_release(&a);
}
END_TEST

static const struct {
	size_t at;
	const char *bytes;
	size_t n;
	int code;
	const char *msg;
} bad_locals[] = {
	{ 0, "QK", 2, EBADMSG, "zip: expected the header of a member, found 0x04034b51" },
	{ 0, "PK\1\2", 4, EBADMSG, "zip: expected the header of a member, found 0x02014b50" },
	{ L_METHOD, "\10\0", 2, ENOTSUP, "zip member is compressed or encrypted" },
	{ L_FLAGS, "\11\10", 2, ENOTSUP, "zip member is compressed or encrypted" },
	{ L_NAME, "\1\20", 2, EBADMSG, "zip: a member's name has 4097 bytes, which is too long" },
	/* not streamed: the two sizes differ, or are in the zip64 field */
	{ L_FLAGS, "\0\10\0\0\0\0\0\0\0\0\0\0\6\0\0\0\7\0\0\0", 20, ENOTSUP,
	  "zip member with 64-bit sizes in its header" },
	{ L_FLAGS, "\0\10\0\0\0\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff", 20, ENOTSUP,
	  "zip member with 64-bit sizes in its header" },
};

START_LOOP_TEST(local_headers_that_torch_does_not_write_are_refused, ARRAY_LEN(bad_locals))
{
	struct archive a = { 0 };
	struct zip_local l;
	struct ckpt_err e = { 0 };

	small_archive(&a);
	memcpy(a.b.data + bad_locals[_i].at, bad_locals[_i].bytes, bad_locals[_i].n);
	ck_assert_int_eq(zip_read_local(a.b.data, a.b.len, &l, &e), -bad_locals[_i].code);
	ck_assert_int_eq(e.code, bad_locals[_i].code);
	ck_assert_str_eq(e.msg, bad_locals[_i].msg);
	archive_release(&a);
}
END_TEST

START_TEST(only_the_signature_makes_an_archive)
{
	ck_assert(zip_magic("PK\3\4", 4));
	ck_assert(zip_magic("PK\3\4rest", 8));
	ck_assert(!zip_magic("PK\3\4", 3));
	ck_assert(!zip_magic("PK\5\6", 4));
	ck_assert(!zip_magic("", 0));
}
END_TEST

/* ---- data descriptors ---- */

#define DD "PK\7\10ccrc"

static const struct {
	const char *bytes;
	size_t n;
	uint64_t size;
	size_t want;
} descriptors[] = {
	{ DD "\5\0\0\0\5\0\0\0", 16, 5, 16 },
	{ DD "\5\0\0\0\5\0\0\0PK\3\4....", 24, 5, 16 },
	{ DD "\5\0\0\0\0\0\0\0\5\0\0\0\0\0\0\0", 24, 5, 24 },
	{ DD "\0\0\0\0\1\0\0\0\0\0\0\0\1\0\0\0", 24, (uint64_t)1 << 32, 24 },
	{ DD "\xff\xff\xff\xff\0\0\0\0\xff\xff\xff\xff\0\0\0\0", 24, UINT32_MAX, 24 },
	{ DD "\0\0\0\0\0\0\0\0", 16, 0, 16 },
	{ DD "\0\0\0\0\0\0\0\0PK\3\4....", 24, 0, 16 },
	{ DD "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 24, 0, 24 },
	{ DD "\5\0\0\0\5\0\0\0", 16, 4, 0 },
	{ DD "\5\0\0\0\6\0\0\0", 16, 5, 0 },
	{ DD "\5\0\0\0\0\0\0\0\6\0\0\0\0\0\0\0", 24, 5, 0 },
	{ DD "\5\0\0\0\5\0\0\0", 15, 5, 0 },
	{ "PK\7\7ccrc\5\0\0\0\5\0\0\0", 16, 5, 0 },
};

START_LOOP_TEST(descriptors_are_told_by_the_size_they_repeat, ARRAY_LEN(descriptors))
{
	struct mem m;

	mem_init(&m, descriptors[_i].bytes, descriptors[_i].n);
	ck_assert_uint_eq(zip_descriptor(m.p, m.n, descriptors[_i].size), descriptors[_i].want);
	mem_release(&m);
}
END_TEST

/* ---- the central directory ---- */

struct seen {
	const struct archive *a;
	const struct blob *b;
	size_t n;
	size_t stop; /* return 55 at this member, from 1; 0: at none */
};

static int see(void *arg, const struct zip_member *m, struct ckpt_err *e)
{
	struct seen *s = arg;
	uint64_t data;

	ck_assert_uint_lt(s->n, s->a->n);
	ck_assert_uint_eq(m->name_len, strlen(s->a->members[s->n].name));
	ck_assert_mem_eq(m->name, s->a->members[s->n].name, m->name_len);
	ck_assert_uint_eq(m->size, s->a->members[s->n].size);
	ck_assert_uint_eq(m->header, s->a->members[s->n].header);
	ck_assert_uint_eq(m->crc, s->a->members[s->n].crc);
	ck_assert_int_eq(zip_member_data(s->b, m, &data, e), 0);
	ck_assert_uint_eq(data, s->a->members[s->n].data);
	s->n++;
	return s->n == s->stop ? 55 : 0;
}

static const struct archive_style styles[] = {
	{ .prefix = NULL },
	{ .zip64 = true },
	{ .wide = true },
	{ .seekable = true },
	{ .no_end64 = true },
	{ .alignment = 4096, .zip64 = true, .wide = true },
	{ .prefix = "x", .alignment = 1, .no_crc = true },
};

START_LOOP_TEST(the_directory_lists_what_was_written, ARRAY_LEN(styles))
{
	struct archive a = { .style = styles[_i] };
	struct ckpt_err e = { 0 };
	struct mem m;
	struct blob b;
	struct seen s = { &a, &b, 0, 0 };

	small_archive(&a);
	mem_init(&m, a.b.data, a.b.len);
	b = mem_blob(&m, true);
	ck_assert_int_eq(zip_each(&b, see, &s, &e), 0);
	ck_assert_uint_eq(s.n, a.n);
	s.n = 0;
	s.stop = 2;
	ck_assert_int_eq(zip_each(&b, see, &s, &e), 55);
	ck_assert_uint_eq(s.n, 2);
	ck_assert_int_eq(e.code, 0);
	mem_release(&m);
	archive_release(&a);
}
END_TEST

/* Only 0xffffffff stands for a zip64 field. One less is a number, so the next value comes first in
 * that field. */
struct large {
	uint64_t size, header;
};

static int see_large(void *arg, const struct zip_member *m, struct ckpt_err *e)
{
	const struct large *want = arg;

	(void)e;
	ck_assert_uint_eq(m->size, want->size);
	ck_assert_uint_eq(m->header, want->header);
	return 55;
}

START_LOOP_TEST(what_is_just_below_four_gib_is_not_looked_up_in_the_zip64_field, 2)
{
	struct archive a = { .style = { .zip64 = true } };
	struct large want;
	struct ckpt_err e = { 0 };
	struct mem m;
	struct blob b;

	small_archive(&a);
	mem_init(&m, a.b.data, a.b.len);
	if (_i) {
		m.p[a.directory + 42]--; /* the header's offset */
		want = (struct large){ a.members[0].size, 0xfffffffe };
	} else {
		m.p[a.directory + 20]--; /* both sizes */
		m.p[a.directory + 24]--;
		want = (struct large){ 0xfffffffe, a.members[0].size };
	}
	b = mem_blob(&m, true);
	ck_assert_int_eq(zip_each(&b, see_large, &want, &e), 55);
	mem_release(&m);
	archive_release(&a);
}
END_TEST

START_TEST(an_archive_may_be_empty)
{
	struct archive a = { .b = BUF_INIT(1000) };
	struct ckpt_err e = { 0 };
	struct mem m;
	struct blob b;
	struct seen s = { &a, &b, 0, 0 };
	uint64_t size;

	archive_end(&a);
	mem_init(&m, a.b.data, a.b.len);
	b = mem_blob(&m, true);
	ck_assert_int_eq(zip_each(&b, see, &s, &e), 0);
	ck_assert_uint_eq(s.n, 0);
	ck_assert_int_eq(zip_directory_size(&b, &size, &e), 0);
	ck_assert_uint_eq(size, 0);
	mem_release(&m);
	archive_release(&a);
}
END_TEST

/* at: from the end if negative, else from the beginning of the directory. The archive has 3
 * members; its tail consists of end64 (56 bytes), locator (20) and end (22). */
static const struct {
	long at;
	const char *bytes;
	size_t n;
	bool no_end64;
	int code;
	const char *msg;
} bad_ends[] = {
	{ -22, "X", 1, false, EBADMSG,
	  "zip: the archive has no end record in its last 22 bytes; it may have been cut off" },
	{ -2, "\1", 1, false, EBADMSG,
	  "zip: the archive has no end record in its last 22 bytes; it may have been cut off" },
	{ -34, "\xff\xff\xff\xff\xff\xff\xff\xff", 8, false, EBADMSG,
	  "zip: 56 bytes are needed at 18446744073709551615, but the archive has 561" },
	{ -34, "\0\0\0\0\0\0\0\0", 8, false, EBADMSG, "zip: no zip64 end record at 0" },
	{ -66, "\xff\xff\xff\xff\xff\xff\xff\xff", 8, false, EBADMSG,
	  "zip: impossible directory: 18446744073709551615 members in 181 bytes at 282" },
	{ -66, "\5\0\0\0\0\0\0\0", 8, false, EBADMSG,
	  "zip: impossible directory: 5 members in 181 bytes at 282" },
	{ -58, "\xb4\0\0\0\0\0\0\0", 8, false, EBADMSG, "zip: central directory ends early" },
	{ -58, "\xff\xff\xff\xff\xff\xff\xff\x7f", 8, false, EBADMSG,
	  "zip: impossible directory: 3 members in 9223372036854775807 bytes at 282" },
	{ -50, "\xff\xff\xff\xff\xff\xff\xff\xff", 8, false, EBADMSG,
	  "zip: impossible directory: 3 members in 181 bytes at 18446744073709551615" },
	{ -50, "\0\0", 2, false, EBADMSG, "zip: broken central directory" },
	{ -22 + 16, "\xff\xff\xff\xff", 4, true, EBADMSG,
	  "zip: impossible directory: 3 members in 181 bytes at 4294967295" },
	{ -22 + 10, "\4\0", 2, true, EBADMSG,
	  "zip: impossible directory: 4 members in 181 bytes at 282" },
	{ 0, "QK", 2, false, EBADMSG, "zip: broken central directory" },
	{ 10, "\10\0", 2, false, ENOTSUP,
	  "zip member 'archive/data.pkl' is compressed or encrypted" },
	{ 8, "\11", 1, false, ENOTSUP, "zip member 'archive/data.pkl' is compressed or encrypted" },
	{ 20, "\7", 1, false, ENOTSUP, "zip member 'archive/data.pkl' is compressed or encrypted" },
	{ 28, "\xff\xff", 2, false, EBADMSG, "zip: central directory ends early" },
	{ 30, "\xff\xff", 2, false, EBADMSG, "zip: central directory ends early" },
	{ 32, "\xff\xff", 2, false, EBADMSG, "zip: central directory ends early" },
};

static int ignore(void *arg, const struct zip_member *m, struct ckpt_err *e)
{
	(void)arg;
	(void)m;
	(void)e;
	return 0;
}

START_LOOP_TEST(a_broken_directory_is_an_error_with_a_sentence, ARRAY_LEN(bad_ends))
{
	struct archive a = { .style = { .no_end64 = bad_ends[_i].no_end64 } };
	struct ckpt_err e = { 0 };
	struct mem m;
	struct blob b;

	small_archive(&a);
	memcpy(a.b.data + (bad_ends[_i].at < 0 ? (long)a.b.len : (long)a.directory) +
		       bad_ends[_i].at,
	       bad_ends[_i].bytes, bad_ends[_i].n);
	mem_init(&m, a.b.data, a.b.len);
	b = mem_blob(&m, true);
	ck_assert_int_eq(zip_each(&b, ignore, NULL, &e), -bad_ends[_i].code);
	ck_assert_int_eq(e.code, bad_ends[_i].code);
	ck_assert_str_eq(e.msg, bad_ends[_i].msg);
	/* Packed members can be listed, as nothing else is wrong with them. */
	ck_assert_int_eq(zip_list(&b, ignore, NULL, &e),
			 bad_ends[_i].code == ENOTSUP ? 0 : -bad_ends[_i].code);
	mem_release(&m);
	archive_release(&a);
}
END_TEST

START_LOOP_TEST(every_beginning_of_an_archive_is_refused, 2)
{
	struct archive a = { .style = { .zip64 = _i } };

	small_archive(&a);
	for (size_t n = 0; n < a.b.len; n++) {
		struct ckpt_err e = { 0 };
		struct mem m;
		struct blob b;

		mem_init(&m, a.b.data, n);
		b = mem_blob(&m, true);
		ck_assert_int_lt(zip_each(&b, ignore, NULL, &e), 0);
		ck_assert_int_ne(e.code, 0);
		ck_assert(e.msg[0]);
		mem_release(&m);
	}
	archive_release(&a);
}
END_TEST

START_TEST(a_member_outside_the_archive_is_refused)
{
	struct archive a = { 0 };
	struct zip_member z = { .size = 10 };
	struct ckpt_err e = { 0 };
	struct mem m;
	struct blob b;
	uint64_t data = 42;

	small_archive(&a);
	mem_init(&m, a.b.data, a.b.len);
	b = mem_blob(&m, true);
	z.header = UINT64_MAX - 3;
	ck_assert_int_eq(zip_member_data(&b, &z, &data, &e), -EBADMSG);
	ck_assert_str_eq(
		e.msg, "zip: 30 bytes are needed at 18446744073709551612, but the archive has 561");
	z.header = 1;
	ck_assert_int_eq(zip_member_data(&b, &z, &data, &e), -EBADMSG);
	ck_assert_str_eq(e.msg, "zip: no member at 1");
	z.header = 0;
	z.size = a.b.len - 64 + 1; /* its bytes begin at 64 */
	ck_assert_int_eq(zip_member_data(&b, &z, &data, &e), -EBADMSG);
	ck_assert_str_eq(e.msg, "zip: a member has 498 bytes at 64, but the archive has 561");
	z.size = UINT64_MAX;
	ck_assert_int_eq(zip_member_data(&b, &z, &data, &e), -EBADMSG);
	ck_assert_uint_eq(data, 42);
	z.size = a.b.len - 64;
	ck_assert_int_eq(zip_member_data(&b, &z, &data, &e), 0);
	ck_assert_uint_eq(data, 64);
	mem_release(&m);
	archive_release(&a);
}
END_TEST

START_LOOP_TEST(flipped_bits_never_lead_outside, 2)
{
	struct archive a = { .style = { .zip64 = _i } };
	struct rng r = rng_new();

	small_archive(&a);
	for (int i = 0; i < 3000; i++) {
		struct ckpt_err e = { 0 };
		struct mem m;
		struct blob b;
		int rc;

		mem_init(&m, a.b.data, a.b.len);
		for (uint64_t k = 1 + rng_below(&r, 3); k; k--)
			m.p[a.directory + rng_below(&r, a.b.len - a.directory)] ^=
				(uint8_t)(1 << rng_below(&r, 8));
		b = mem_blob(&m, true);
		rc = zip_each(&b, ignore, NULL, &e);
		REQUIRE(rc ? e.code == -rc && e.msg[0] : !e.code);
		mem_release(&m);
	}
	archive_release(&a);
}
END_TEST

START_TEST(failing_reads_and_allocations_come_through)
{
	struct archive a = { 0 };
	struct mem m;
	struct blob b;

	small_archive(&a);
	mem_init(&m, a.b.data, a.b.len);
	b = mem_blob(&m, true);
	for (m.fail = 1;; m.fail++) {
		struct ckpt_err e = { 0 };

		m.reads = 0;
		if (!zip_each(&b, ignore, NULL, &e))
			break;
		ck_assert_int_eq(e.code, EIO);
	}
	ck_assert_uint_eq(m.fail, 4); /* tail, zip64 end record, directory */
	m.fail = 0;
	FAULT_LOOP(FAULT_ALLOC)
	{
		struct ckpt_err e = { 0 };
		int rc = zip_each(&b, ignore, NULL, &e);

		(void)fault_off();
		ck_assert_int_eq(rc, fault_hit() ? -ENOMEM : 0);
		ck_assert_int_eq(e.code, -rc);
	}
	mem_release(&m);
	archive_release(&a);
}
END_TEST

SUITE(zip)
