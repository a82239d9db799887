/* SPDX-License-Identifier: Apache-2.0 */
/* check --data of files of torch.save. */
#include "archive_util.h"
#include "base/buf.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "ckpt/scan/archive_crcs.h"
#include "dir_util.h"
#include "opts_util.h"
#include "saved_util.h"
#include "suites.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- archives ---- */

/* Members "archive/0" to "archive/{n-1}" of random sizes. */
static struct archive archive_of(size_t n, struct archive_style style, struct rng *r)
{
	struct archive a = { .style = style };

	for (size_t i = 0; i < n; i++) {
		uint8_t bytes[200];
		char name[32];

		(void)snprintf(name, sizeof(name), "%s%zu", i % 2 ? "data/" : "", i);
		random_bytes(r, bytes, sizeof(bytes));
		archive_add(&a, name, bytes, (size_t)rng_below(r, sizeof(bytes)));
	}
	archive_end(&a);
	return a;
}

struct looked {
	int rc;	      /* of opening, or of the last member that is not right */
	size_t right; /* members with bytes that are what they were */
	uint64_t bytes;
	char why[400];
};

static void add_bytes(void *arg, uint64_t n)
{
	*(uint64_t *)arg += n;
}

static struct looked look_at(const struct archive *a)
{
	struct looked x = { 0 };
	uint8_t buf[64];
	const struct crc_reader reader = { buf, sizeof(buf), add_bytes, &x.bytes };
	struct archive_crcs crcs;
	struct ckpt_err e = { 0 };
	struct mem m;
	struct blob b;

	mem_init(&m, a->b.data, a->b.len);
	b = mem_blob(&m, true);
	x.rc = archive_crcs_open(&crcs, &b, &e);
	for (size_t i = 0; !x.rc && i < crcs.n; i++) {
		int rc = archive_crcs_verify(&crcs.v[i], &b, &reader, &e);

		ck_assert(crcs.v[i].is_storage == !!strstr(crcs.v[i].name, "/data/"));
		x.rc = rc ? rc : x.rc;
		x.right += !rc && crcs.v[i].size;
		if (rc)
			break;
	}
	(void)snprintf(x.why, sizeof(x.why), "%s", e.msg);
	archive_crcs_close(&crcs);
	mem_release(&m);
	return x;
}

static const struct archive_style styles[] = {
	{ 0 },
	{ .wide = true },
	{ .zip64 = true },
	{ .seekable = true },
	{ .no_crc = true },
	{ .no_end64 = true },
	{ .alignment = 1 },
	{ .alignment = 4096 },
	{ .zip64 = true, .wide = true },
};

START_LOOP_TEST(members_are_read_once_in_every_style, ARRAY_LEN(styles))
{
	struct rng r = { (uint64_t)_i };
	struct archive a = archive_of(7, styles[_i], &r);
	struct looked x = look_at(&a);
	uint64_t bytes = 0;
	size_t filled = 0;

	for (size_t i = 0; i < a.n; i++) {
		bytes += a.members[i].size;
		filled += a.members[i].size > 0;
	}
	ck_assert_msg(!x.rc, "%s", x.why);
	ck_assert_uint_eq(x.right, filled);
	ck_assert_uint_eq(x.bytes, bytes);
	archive_release(&a);
}
END_TEST

START_LOOP_TEST(a_changed_bit_is_noticed, ARRAY_LEN(styles))
{
	struct rng r = { (uint64_t)_i };
	struct archive a = archive_of(7, styles[_i], &r);

	for (size_t i = 0; i < a.n; i++) {
		struct looked x;
		char want[200];
		uint8_t *p = (uint8_t *)a.b.data + a.members[i].data;

		if (!a.members[i].size)
			continue;
		p += rng_below(&r, a.members[i].size);
		*p ^= 1;
		x = look_at(&a);
		*p ^= 1;
		ck_assert_int_eq(x.rc, styles[_i].no_crc ? 0 : -EBADMSG);
		(void)snprintf(want, sizeof(want), "record '%s' has CRC ", a.members[i].name);
		ck_assert_msg(!strncmp(x.why, want, styles[_i].no_crc ? 0 : strlen(want)), "%s",
			      x.why);
	}
	archive_release(&a);
}
END_TEST

/* Whatever is changed, it ends, and reads no more than there is. */
START_LOOP_TEST(a_changed_directory_is_bounded, 300)
{
	struct rng r = { (uint64_t)_i };
	struct archive a = archive_of(7, styles[rng_below(&r, ARRAY_LEN(styles))], &r);
	struct looked x;

	for (uint64_t k = 1 + rng_below(&r, 3); k > 0; k--)
		a.b.data[a.directory + rng_below(&r, a.b.len - a.directory)] =
			(char)rng_below(&r, 256);
	x = look_at(&a);
	ck_assert_uint_le(x.bytes, a.b.len);
	archive_release(&a);
}
END_TEST

/* The offset of member i's header, in an archive whose directory has no zip64 fields. */
static void move_member(struct archive *a, size_t i, uint64_t header)
{
	uint8_t *p = (uint8_t *)a->b.data + a->directory;

	for (size_t k = 0; k < i; k++)
		p += 46 + strlen(a->members[k].name);
	(void)put_le(p + 42, header, 4);
}

START_TEST(members_may_not_overlap)
{
	struct rng r = { 1 };
	struct archive a = archive_of(7, (struct archive_style){ 0 }, &r);
	struct looked x;

	move_member(&a, 3, a.members[1].header);
	x = look_at(&a);
	ck_assert_int_eq(x.rc, -EBADMSG);
	ck_assert_uint_eq(x.bytes, 0);
	ck_assert_msg(strstr(x.why, "' overlap, so no CRCs are verified") != NULL, "%s", x.why);
	archive_release(&a);
}
END_TEST

START_TEST(other_files_are_no_archives)
{
	static const char *const contents[] = { "", "P", "PK\3", "not an archive",
						"something that is longer than an end record" };

	for (size_t i = 0; i < ARRAY_LEN(contents); i++) {
		struct archive a = { .b = BUF_INIT(100) };
		struct looked x;

		buf_str(&a.b, contents[i]);
		x = look_at(&a);
		ck_assert_int_eq(x.rc, 1);
		archive_release(&a);
	}
}
END_TEST

/* ---- checkpoints ---- */

struct checked {
	struct ckpt_check k;
	struct buf text;
	uint64_t last, total;
};

static void add_fault(void *arg, const struct ckpt_fault *f)
{
	struct checked *x = arg;

	buf_printf(&x->text, "%s%s: %s; ", f->warning ? "warning " : "", f->fqn ? f->fqn : "file",
		   f->what);
}

static void add_progress(void *arg, uint64_t done, uint64_t total)
{
	struct checked *x = arg;

	ck_assert(done >= x->last && done <= total);
	x->last = done;
	x->total = total;
}

static struct ckpt *open_saved(const char *name, struct ckpt_opts o)
{
	struct ckpt *c = NULL;
	struct ckpt_err e = { 0 };
	char path[4200];

	(void)snprintf(path, sizeof(path), "%s/%s", dir, name);
	o.index = o.index ? o.index : ":memory:";
	ck_assert_msg(!open_typed(path, &o, &c, &e), "%s", e.msg);
	return c;
}

static struct checked check_opened(struct ckpt *c)
{
	struct checked x = { .k = { .data = true, .fault = add_fault, .progress = add_progress },
			     .text = BUF_INIT(100000) };
	struct ckpt_err e = { 0 };

	x.k.arg = &x;
	buf_str(&x.text, "");
	ck_assert_msg(!ckpt_check(c, &x.k, &e), "%s", e.msg);
	ck_assert_uint_eq(x.last, x.total);
	ckpt_close(c);
	return x;
}

static struct checked check_saved(const char *name)
{
	return check_opened(open_saved(name, (struct ckpt_opts){ 0 }));
}

/* The faults must begin with `want`, and be as many. */
static void expect(struct checked *x, uint64_t faults, const char *want)
{
	ck_assert_msg(!strncmp(x->text.data, want, strlen(want)), "%s", x->text.data);
	ck_assert_uint_eq(x->k.faults, faults);
	buf_release(&x->text);
}

enum { STORAGE = 40 * 4 /* bytes, see saved_util.h */ };

/* Changes the byte `skip` behind the first place where the file has `what`. */
static void flip(const char *name, const void *what, size_t len, size_t skip)
{
	size_t n;
	autofree uint8_t *p = get_file(dir_fd, name, &n);
	uint8_t *at = memmem(p, n, what, len);

	REQUIRE(at && (size_t)(at - p) + skip < n);
	at[skip] ^= 1;
	put_file(dir_fd, name, p, n);
}

/* The same for a byte of the storage whose first element is this, which no other is. */
static void flip_storage(const char *name, float first, size_t skip)
{
	flip(name, &first, sizeof(first), skip);
}

static void put_two(const char *name)
{
	saved_put(dir_fd, name, "{'a': t0+0(2,3), 'a2': t0+1(4), 'b': t1+5(2,3), 'n': 'word'}",
		  1000);
}

START_TEST(every_member_is_verified_and_read_once)
{
	struct checked x;

	put_two("x.pt");
	x = check_saved("x.pt");
	ck_assert_uint_eq(x.k.crcs, 3); /* data.pkl, data/0, data/1 */
	ck_assert_uint_gt(x.k.bytes, 2 * STORAGE);
	ck_assert_uint_lt(x.k.bytes, 2 * STORAGE + 1000);
	ck_assert_uint_eq(x.k.bytes, x.total);
	ck_assert_uint_eq(x.k.items, 4);
	expect(&x, 0, "");
}
END_TEST

START_TEST(a_fault_names_the_tensor_the_file_and_the_record)
{
	struct checked x;

	put_two("x.pt");
	flip_storage("x.pt", 1100, 5 * 4);
	x = check_saved("x.pt");
	ck_assert_uint_eq(x.k.crcs, 2);
	ck_assert_uint_eq(x.k.bytes, x.total);
	ck_assert_ptr_nonnull(strstr(x.text.data, "of 'x.pt': record 'archive/data/1' has CRC "));
	ck_assert_ptr_nonnull(strstr(x.text.data, " is recorded; it has changed since"));
	expect(&x, 1, "b: item at ");
}
END_TEST

/* A record is one: whoever shares it is named, even if the byte is nobody's. */
START_TEST(all_tensors_of_a_record_are_named)
{
	struct checked x;

	put_two("x.pt");
	flip_storage("x.pt", 1000, STORAGE - 1);
	x = check_saved("x.pt");
	ck_assert_ptr_nonnull(strstr(x.text.data, "; a2: item at "));
	expect(&x, 2, "a: item at ");
}
END_TEST

START_TEST(a_record_without_tensors_is_verified)
{
	struct checked x;

	put_two("x.pt");
	flip("x.pt", "word", 4, 0);
	x = check_saved("x.pt");
	expect(&x, 1, "file: 'x.pt': record 'archive/data.pkl' has CRC ");
}
END_TEST

START_TEST(what_is_excluded_is_not_read)
{
	static const char *const include[] = { "a*", NULL };
	struct checked x;

	put_two("x.pt");
	flip_storage("x.pt", 1100, 0);
	x = check_opened(open_saved("x.pt", (struct ckpt_opts){ .include = include }));
	ck_assert_uint_eq(x.k.crcs, 2); /* data.pkl, data/0 */
	ck_assert_uint_lt(x.k.bytes, 2 * STORAGE + 1000 - STORAGE);
	expect(&x, 0, "");
}
END_TEST

START_TEST(a_crc_that_was_not_computed_is_no_fault)
{
	const int64_t size[] = { 4 };
	struct saved t = { .dtype = CKPT_DTYPE_U8,
			   .n_dims = 1,
			   .size = size,
			   .storage = "abcd",
			   .storage_bytes = 4,
			   .style.no_crc = true };
	struct buf b = BUF_INIT(0);
	struct checked x;

	(void)saved_item(&b, &t);
	put_file(dir_fd, "x.pt", b.data, b.len);
	x = check_saved("x.pt");
	ck_assert_uint_eq(x.k.crcs, 0);
	ck_assert_uint_gt(x.k.bytes, 4);
	expect(&x, 0, "");
	buf_release(&b);
}
END_TEST

START_TEST(archives_beside_each_other_are_verified)
{
	struct checked x;

	saved_put(dir_fd, "pytorch_model-00001-of-00002.bin", "{'a': t0+0(2,3), 'c': t1+0(2)}", 1);
	saved_put(dir_fd, "pytorch_model-00002-of-00002.bin", "{'b': t0+0(2,3)}", 5000);
	x = check_saved("");
	ck_assert_uint_eq(x.k.crcs, 5);
	expect(&x, 0, "");
	flip_storage("pytorch_model-00002-of-00002.bin", 5000, 1);
	x = check_saved("");
	ck_assert_uint_eq(x.k.crcs, 4);
	ck_assert_ptr_nonnull(strstr(x.text.data, "of 'pytorch_model-00002-of-00002.bin': record"));
	expect(&x, 1, "b: item at ");
}
END_TEST

/* The damage that a disk does, which changes no time of the file. */
static struct checked check_damaged(const char *name, size_t at, bool from_end)
{
	struct ckpt_opts o = { .ignore_ctime = true };
	struct ckpt *c = open_saved(name, o);
	struct stat st;
	autoclose int fd = openat(dir_fd, name, O_RDWR | O_CLOEXEC);
	uint8_t byte;
	off_t off;

	REQUIRE(fd >= 0 && !fstat(fd, &st));
	off = from_end ? st.st_size - (off_t)at : (off_t)at;
	REQUIRE(pread(fd, &byte, 1, off) == 1);
	byte ^= 1;
	REQUIRE(pwrite(fd, &byte, 1, off) == 1);
	REQUIRE(!futimens(fd, (const struct timespec[]){ st.st_atim, st.st_mtim }));
	return check_opened(c);
}

START_TEST(damage_to_the_archive_itself_is_reported)
{
	struct checked x;

	put_two("x.pt");
	x = check_damaged("x.pt", 0, false);
	expect(&x, 1, "file: 'x.pt': record 'archive/data.pkl': zip: no member at 0; ");
	put_two("x.pt");
	x = check_damaged("x.pt", 22, true);
	ck_assert_uint_eq(x.k.crcs, 0);
	expect(&x, 1, "file: 'x.pt': zip: the archive has no end record in its last 22 bytes");
}
END_TEST

START_TEST(overlapping_members_are_one_fault)
{
	struct checked x;
	size_t n;
	autofree uint8_t *p = NULL;

	put_two("x.pt");
	p = get_file(dir_fd, "x.pt", &n);
	for (size_t i = 0; i + 46 + 14 <= n; i++) /* data/1 of the directory is data/0 */
		if (load_le32(p + i) == 0x02014b50 && !memcmp(p + i + 46, "archive/data/0", 14))
			(void)put_le(p + i + 46 + 14 + 42, load_le32(p + i + 42), 4);
	put_file(dir_fd, "x.pt", p, n);
	x = check_saved("x.pt");
	ck_assert_uint_eq(x.k.crcs, 0);
	expect(&x, 1, "file: 'x.pt': records 'archive/data/");
}
END_TEST

SUITE(archive_crcs, .setup = dir_setup, .teardown = dir_teardown, .seconds = 60)
