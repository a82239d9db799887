/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/depot.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "blob_util.h"
#include "fault.h"
#include "rng.h"
#include "suites.h"

#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <xxhash.h>

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)

static char dir[4096], cache[4200];

static void setup(void)
{
	(void)close(new_dir(dir));
	(void)snprintf(cache, sizeof(cache), "%s/cache", dir);
}

/* Byte i of object n is known. */
static uint8_t byte_at(unsigned n, uint64_t i)
{
	uint64_t x = ((i >> 3) + n) * 0x9e3779b97f4a7c15;

	return (uint8_t)((x ^ x >> 29) >> 8 * (i & 7));
}

static unsigned drops;

static void on_drop(void *arg, struct object *o, uint64_t segment, uint32_t generation)
{
	(void)arg;
	(void)o;
	(void)segment;
	(void)generation;
	drops++;
}

static struct depot *depot_at(const char *at, uint64_t size)
{
	const struct depot_options o = { .dir = at, .size = size };
	struct ckpt_err e = { 0 };
	struct depot *d;

	ck_assert_msg(!depot_new(&o, on_drop, NULL, &d, &e), "%s", e.msg);
	return d;
}

static struct place_seen version(unsigned n, uint64_t size)
{
	return (struct place_seen){ .kind = PLACE_FILE,
				    .size = size,
				    .id = { .len = 1, .v = { (uint8_t)n } } };
}

static int try_object(struct depot *d, unsigned n, uint64_t size, struct object **ret,
		      struct ckpt_err *e)
{
	const struct place_seen seen = version(n, size);
	int rc = depot_prepare(d, "s3://b", "x", &seen, ret, e);

	if (!rc)
		depot_adopt(*ret);
	return rc;
}

static struct object *object_of(struct depot *d, unsigned n, uint64_t size)
{
	struct ckpt_err e = { 0 };
	struct object *o;

	ck_assert_msg(!try_object(d, n, size, &o, &e), "%s", e.msg);
	return o;
}

static int try_hold(struct object *o, uint64_t block, uint64_t n, struct hold **ret,
		    uint64_t *ret_n)
{
	struct ckpt_err e = { 0 };

	return object_hold(o, block, n, false, ret, ret_n, &e);
}

/* Writes the blocks of a hold, in pieces of any size. */
static int write_all(struct object *o, unsigned version, struct hold *h, uint64_t block, uint64_t n)
{
	uint64_t at = block * WIRE_BLOCK, end = min_u64(at + n * WIRE_BLOCK, object_view(o)->size);
	struct rng r = rng_new();
	uint8_t buf[20000];

	while (at < end) {
		uint64_t k = min_u64(1 + rng_below(&r, sizeof(buf)), end - at);
		int rc;

		for (uint64_t i = 0; i < k; i++)
			buf[i] = byte_at(version, at + i);
		rc = hold_write(h, buf, (size_t)k);
		if (rc)
			return rc;
		at += k;
	}
	return 0;
}

static void fetch(struct object *o, unsigned version, uint64_t block, uint64_t n)
{
	struct hold *h;
	uint64_t got = 0;

	ck_assert_int_eq(try_hold(o, block, n, &h, &got), 0);
	ck_assert_uint_eq(got, n);
	ck_assert_int_eq(write_all(o, version, h, block, n), 0);
	ck_assert_uint_eq(hold_done(h), n);
	hold_end(h);
}

static void check(struct object *o, unsigned version, uint64_t block, uint64_t n)
{
	const struct map_view *v = object_view(o);
	struct ckpt_err e = { 0 };
	uint8_t buf[WIRE_BLOCK];

	for (uint64_t b = block; b < block + n; b++) {
		uint64_t at = b * WIRE_BLOCK, size = map_block_size(v, b);
		uint32_t generation;
		int fd;

		ck_assert_uint_eq(object_has(o, b), true);
		ck_assert_msg(!object_segment(o, at / v->segment, &generation, &fd, &e), "%s",
			      e.msg);
		REQUIRE(pread(fd, buf, size, (off_t)(at % v->segment)) == (ssize_t)size);
		for (uint64_t i = 0; i < size; i++)
			if (buf[i] != byte_at(version, at + i))
				ck_abort_msg("wrong byte %llu", (unsigned long long)(at + i));
	}
}

/* ---- blocks ---- */

START_LOOP_TEST(a_block_is_there_once_all_of_it_is_written, 2)
{
	struct depot *d = depot_at(_i ? "none" : cache, 0);
	struct object *o = object_of(d, 1, 5 * WIRE_BLOCK + 100);
	uint8_t buf[2 * WIRE_BLOCK] = { 0 };
	struct hold *h;
	uint64_t n;

	ck_assert_int_eq(object_in_memory(o), _i);
	ck_assert_uint_eq(object_view(o)->n_blocks, 6);
	ck_assert_int_eq(try_hold(o, 1, 2, &h, &n), 0);
	ck_assert_int_eq(hold_write(h, buf, WIRE_BLOCK - 1), 0);
	ck_assert(!object_has(o, 1));
	ck_assert_int_eq(hold_write(h, buf, 1), 0);
	ck_assert(object_has(o, 1) && !object_has(o, 2));
	ck_assert_uint_eq(hold_done(h), 1);
	ck_assert_int_eq(hold_write(h, buf, WIRE_BLOCK + 1), -EOVERFLOW);
	hold_end(h);
	/* A block that was only half written counts as missing, and is fetched again. */
	ck_assert(!object_has(o, 2));
	fetch(o, 1, 2, 4);
	check(o, 1, 2, 4);
	ck_assert_int_eq(try_hold(o, 2, 1, &h, &n), -EALREADY);
	object_close(o);
	depot_free(d);
}
END_TEST

START_TEST(what_is_kept_is_found_again_by_its_identity_only)
{
	struct depot *d = depot_at(cache, 0), *other;
	struct object *o = object_of(d, 1, 3 * WIRE_BLOCK), *same, *changed;

	fetch(o, 1, 0, 2);
	other = depot_at(cache, 0);
	same = object_of(other, 1, 3 * WIRE_BLOCK);
	check(same, 1, 0, 2);
	fetch(same, 1, 2, 1);
	check(o, 1, 0, 3); /* each object sees what the other wrote */
	changed = object_of(other, 2, 3 * WIRE_BLOCK);
	ck_assert(!object_has(changed, 0));
	object_close(changed);
	changed = object_of(other, 1, 3 * WIRE_BLOCK - 1);
	ck_assert(!object_has(changed, 0));
	object_close(changed);
	object_close(o);
	depot_free(d);
	object_close(same);
	depot_free(other);
}
END_TEST

/*
 * Two identities, E and an ETag, that have the same XXH3-128. In each of two blocks of 16 bytes,
 * the first half is the hash's own constant, which makes its product 0. So the second halves can be
 * balanced.
 */
static const char colliding[2][64] = {
	"Ebcdefghijklmnopqrstuvwxyzabcde\xb8\x08\x46\x74\xf7\x43\x24\x8enopqrstu"
	"\xde\xd4\x6d\xe9\x83\x90\x97\xdb"
	"defghijk",
	"Ebcdefghijklmnopqrstuvwxyzabcde\xb8\x08\x46\x74\xf7\x43\x24\x8ennpqrstu"
	"\xde\xd4\x6d\xe9\x83\x90\x97\xdb"
	"d`fghijk",
};

START_TEST(versions_that_were_made_to_collide_are_told_apart)
{
	struct depot *d = depot_at(cache, 0);
	struct place_seen seen = version(0, WIRE_BLOCK);
	struct ckpt_err e = { 0 };
	struct object *o[2];

	seen.id.len = 63;
	ck_assert(XXH128_isEqual(XXH3_128bits(colliding[0], 63), XXH3_128bits(colliding[1], 63)));
	for (int i = 0; i < 2; i++) {
		memcpy(seen.id.v, colliding[i], 63);
		ck_assert_msg(!depot_prepare(d, "s3://b", "x", &seen, &o[i], &e), "%s", e.msg);
		depot_adopt(o[i]);
	}
	fetch(o[0], 0, 0, 1);
	ck_assert(!object_has(o[1], 0));
	object_close(o[0]);
	object_close(o[1]);
	depot_free(d);
}
END_TEST

/* ---- several processes ---- */

START_TEST(a_block_is_fetched_by_one_at_a_time)
{
	struct depot *d = depot_at(cache, 0), *other = depot_at(cache, 0);
	struct object *a = object_of(d, 1, 64 * WIRE_BLOCK),
		      *b = object_of(other, 1, 64 * WIRE_BLOCK);
	struct ckpt_err e = { 0 };
	struct hold *mine, *his, *alone;
	uint64_t n;

	ck_assert_int_eq(try_hold(a, 8, 8, &mine, &n), 0);
	ck_assert_int_eq(try_hold(b, 8, 8, &his, &n), -EAGAIN);
	ck_assert_int_eq(try_hold(b, 15, 1, &his, &n), -EAGAIN);
	/* Only the free blocks before it. */
	ck_assert_int_eq(try_hold(b, 4, 8, &his, &n), 0);
	ck_assert_uint_eq(n, 4);
	hold_end(his);
	ck_assert_int_eq(object_hold(b, 8, 8, true, &alone, &n, &e), 0);
	hold_end(alone);
	ck_assert_int_eq(write_all(a, 1, mine, 8, 8), 0);
	hold_end(mine);
	ck_assert_int_eq(try_hold(b, 8, 8, &his, &n), -EALREADY);
	check(b, 1, 8, 8);
	object_close(a);
	object_close(b);
	depot_free(d);
	depot_free(other);
}
END_TEST

START_TEST(the_lock_of_a_process_that_died_is_gone)
{
	struct depot *d = depot_at(cache, 0);
	struct object *o = object_of(d, 1, 8 * WIRE_BLOCK);
	struct hold *h;
	uint64_t n;
	int ready[2], status;
	pid_t pid;
	char c;

	REQUIRE(!pipe(ready));
	pid = fork();
	REQUIRE(pid >= 0);
	if (!pid) {
		struct depot *mine = depot_at(cache, 0);
		struct object *x = object_of(mine, 1, 8 * WIRE_BLOCK);

		if (try_hold(x, 0, 8, &h, &n) || write(ready[1], "", 1) != 1)
			_exit(1);
		for (;;)
			(void)pause();
	}
	(void)close(ready[1]);
	REQUIRE(read(ready[0], &c, 1) == 1);
	ck_assert_int_eq(try_hold(o, 0, 8, &h, &n), -EAGAIN);
	REQUIRE(!kill(pid, SIGKILL) && waitpid(pid, &status, 0) == pid);
	fetch(o, 1, 0, 8);
	(void)close(ready[0]);
	object_close(o);
	depot_free(d);
}
END_TEST

/* The path of a file that belongs to the only object in the cache. */
static char found[4300];
static const char *wanted;
static uint64_t found_bytes;
static unsigned found_maps;

static int look(const char *path, const struct stat *st, int type, struct FTW *at)
{
	if (type != FTW_F)
		return 0;
	found_bytes += (uint64_t)st->st_blocks * 512;
	found_maps += !strcmp(path + at->base, "map");
	if (wanted && !strcmp(path + at->base, wanted))
		(void)snprintf(found, sizeof(found), "%s", path);
	return 0;
}

static void look_through(const char *name)
{
	wanted = name;
	found_bytes = found_maps = 0;
	REQUIRE(!nftw(cache, look, 10, FTW_PHYS));
}

/* A process that is stopped while it holds the lock of a map must not stop others. */
START_TEST(a_map_that_stays_locked_is_done_without)
{
	struct flock l = {
		.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)1 << 60, .l_len = 1
	};
	struct depot *d = depot_at(cache, 0);
	struct object *o = object_of(d, 1, 3 * WIRE_BLOCK);
	int fd;

	object_close(o);
	look_through("map");
	fd = open(found, O_RDWR | O_CLOEXEC);
	REQUIRE(fd >= 0 && !fcntl(fd, F_OFD_SETLK, &l));
	o = object_of(d, 1, 3 * WIRE_BLOCK); /* does not wait for ever */
	ck_assert(object_in_memory(o));
	ck_assert_msg(strstr(depot_note(d), "another process has had it locked") != NULL, "%s",
		      depot_note(d));
	fetch(o, 1, 0, 3);
	check(o, 1, 0, 3);
	object_close(o);
	(void)close(fd);
	depot_free(d);
}
END_TEST

/* ---- after a reboot ---- */

static void flip(const char *name, uint64_t at)
{
	uint8_t b;

	look_through(name);
	autoclose int fd = open(found, O_RDWR | O_CLOEXEC);

	REQUIRE(fd >= 0 && pread(fd, &b, 1, (off_t)at) == 1);
	b ^= 0x10;
	REQUIRE(pwrite(fd, &b, 1, (off_t)at) == 1);
}

START_TEST(after_a_reboot_flipped_bits_are_found)
{
	enum { BLOCKS = 40 };
	struct rng r = rng_new();
	struct depot *d = depot_at(cache, 0);
	struct object *o = object_of(d, 1, BLOCKS * WIRE_BLOCK - 5);
	bool bad[BLOCKS] = { 0 };
	uint64_t at = 0, before;

	fetch(o, 1, 0, BLOCKS);
	object_close(o);
	depot_free(d);
	for (int i = 0; i < 7; i++) {
		uint64_t b = rng_below(&r, BLOCKS);

		if (!bad[b])
			flip("0000-1", b * WIRE_BLOCK + rng_below(&r, WIRE_BLOCK - 5));
		bad[b] = true;
	}
	flip("map", offsetof(struct map_head, boot) + 3);
	d = depot_at(cache, 0);
	o = object_of(d, 1, BLOCKS * WIRE_BLOCK - 5);
	for (uint64_t b = 0; b < BLOCKS; b++)
		ck_assert(!object_has(o, b)); /* not before it is checked */
	/* No more blocks are read at a time than is allowed. */
	do {
		uint64_t reads = fault_reads();

		before = at;
		at = object_check(o, at, BLOCKS, 3);
		ck_assert_uint_le(fault_reads() - reads, 3);
		ck_assert_uint_eq(at, min_u64(before + 3, BLOCKS));
	} while (at < BLOCKS);
	for (uint64_t b = 0; b < BLOCKS; b++)
		ck_assert_int_eq(object_has(o, b), !bad[b]);
	for (uint64_t b = 0; b < BLOCKS; b++)
		if (bad[b])
			fetch(o, 1, b, 1);
	check(o, 1, 0, BLOCKS);
	object_close(o);
	depot_free(d);
}
END_TEST

/* ---- eviction ---- */

/* Fills the cache with objects [from, to) of 1 MiB each. */
static void fill(struct depot *d, unsigned from, unsigned to)
{
	for (unsigned n = from; n < to; n++) {
		struct object *o = object_of(d, n, MIB);

		fetch(o, n, 0, 16);
		object_close(o);
	}
}

static bool is_kept(struct depot *d, unsigned n)
{
	struct object *o = object_of(d, n, MIB);
	bool has = object_has(o, 0);

	object_close(o);
	return has;
}

START_TEST(what_was_not_used_for_longest_is_evicted)
{
	struct depot *d = depot_at(cache, 20 * MIB);
	struct object *open;
	unsigned kept = 0;

	fill(d, 0, 30);
	depot_free(d); /* waits until the evicted files are gone */
	look_through(NULL);
	ck_assert_uint_le(found_bytes, 21 * MIB + 30 * 16 * KIB);
	d = depot_at(cache, 20 * MIB);
	ck_assert(!is_kept(d, 0) && !is_kept(d, 1));
	ck_assert(is_kept(d, 29) && is_kept(d, 28));
	for (unsigned n = 0; n < 30; n++)
		kept += is_kept(d, n);
	ck_assert_uint_ge(kept, 14); /* a fifth is evicted at a time */
	/* A process that has the old file open keeps its bytes. */
	open = object_of(d, 29, MIB);
	check(open, 29, 0, 16);
	uint32_t generation;
	struct ckpt_err e;
	uint8_t first;
	int fd;

	REQUIRE(!object_segment(open, 0, &generation, &fd, &e));
	fd = dup(fd);
	object_close(open);
	fill(d, 100, 140);
	ck_assert(!is_kept(d, 29));
	REQUIRE(fd >= 0 && pread(fd, &first, 1, 5000) == 1);
	ck_assert_uint_eq(first, byte_at(29, 5000));
	(void)close(fd);
	depot_free(d);
}
END_TEST

START_TEST(what_is_written_to_is_not_evicted)
{
	struct depot *d = depot_at(cache, 2 * MIB);
	struct object *o = object_of(d, 200, MIB);
	struct hold *h;
	uint64_t n;

	ck_assert_int_eq(try_hold(o, 0, 16, &h, &n), 0);
	fill(d, 0, 10);
	ck_assert_int_eq(write_all(o, 200, h, 0, n), 0);
	hold_end(h);
	check(o, 200, 0, 16);
	object_close(o);
	depot_free(d);
}
END_TEST

/* Makes a file with the name of a segment that the object does not have. */
static void plant(const char *object, const char *name, off_t bytes, time_t used)
{
	const struct timespec then[2] = { { .tv_sec = used }, { .tv_sec = used } };
	char path[8300];
	int fd;

	(void)snprintf(path, sizeof(path), "%s/%s", object, name);
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	REQUIRE(fd >= 0 && !posix_fallocate(fd, 0, bytes) && !futimens(fd, then));
	(void)close(fd);
}

static char only_object[4200];

static int find_object(const char *path, const struct stat *st, int type, struct FTW *at)
{
	(void)st;
	if (type == FTW_F && !strcmp(path + at->base, "map"))
		(void)snprintf(only_object, sizeof(only_object), "%.*s", at->base - 1, path);
	return 0;
}

/* Segment 8 would have its word where block 1 has its own; each of these files would count
 * it up. */
START_TEST(segments_that_an_object_does_not_have_change_nothing_of_its_map)
{
	static const char *const names[] = { "0008-0", "00008-1", "000008-2", "0000008-3",
					     "00000008-4" };
	struct depot *d = depot_at(cache, 0), *full;
	struct object *o = object_of(d, 1, 3 * WIRE_BLOCK);

	fetch(o, 1, 0, 1);
	REQUIRE(!nftw(cache, find_object, 10, FTW_PHYS));
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		plant(only_object, names[i], i == 4 ? 8 * MIB : 4096, 1000000000 + (time_t)i);
	full = depot_at(cache, 2 * MIB);
	fill(full, 2, 3);
	depot_free(full); /* waits for what is evicted */
	look_through(NULL);
	ck_assert_uint_lt(found_bytes, 2 * MIB);
	check(o, 1, 0, 1);
	ck_assert(!object_has(o, 1));
	object_close(o);
	depot_free(d);
}
END_TEST

static int age(const char *path, const struct stat *st, int type, struct FTW *at)
{
	const struct timespec old[2] = { { .tv_sec = 1000000000 }, { .tv_sec = 1000000000 } };

	(void)st;
	return type == FTW_F && !strcmp(path + at->base, "map") &&
	       utimensat(AT_FDCWD, path, old, 0);
}

static void only_open(struct depot *d)
{
	for (unsigned n = 0; n < 10; n++)
		object_close(object_of(d, n, (n + 1) * MIB));
	look_through(NULL);
	ck_assert_uint_ge(found_maps, 10);
}

START_TEST(objects_that_were_only_opened_go)
{
	struct depot *d = depot_at(cache, 0);
	struct object *used = object_of(d, 250, MIB);

	/* Objects that are old and not in use go. */
	only_open(d);
	REQUIRE(!nftw(cache, age, 10, FTW_PHYS));
	fetch(used, 250, 0, 1); /* looks through the directory */
	object_close(used);
	depot_free(d);
	look_through(NULL);
	ck_assert_uint_eq(found_maps, 1);
	/* Without room, even new ones go. */
	d = depot_at(cache, 64 * KIB);
	only_open(d);
	used = object_of(d, 250, MIB);
	fetch(used, 250, 1, 1);
	object_close(used);
	depot_free(d);
	look_through(NULL);
	ck_assert_uint_le(found_maps, 2);
}
END_TEST

/* A server can claim any size, of any number of objects. */
START_LOOP_TEST(what_an_object_claims_to_have_takes_no_room, 2)
{
	const uint64_t size = (uint64_t)(_i ? 64 : 1) << 40, last = size / WIRE_BLOCK - 1;
	struct depot *d = depot_at(_i ? "none" : cache, 0);
	struct object *o = object_of(d, 1, size);

	ck_assert_uint_le(object_view(o)->n_segments, 1 << 16);
	fetch(o, 1, 0, 1);
	fetch(o, 1, last, 1);
	check(o, 1, 0, 1);
	check(o, 1, last, 1);
	ck_assert(!object_has(o, last / 2));
	if (!_i) {
		look_through(NULL);
		ck_assert_uint_le(found_bytes, MIB);
	}
	object_close(o);
	depot_free(d);
}
END_TEST

START_TEST(memory_is_bounded_and_the_oldest_goes)
{
	const struct depot_options how = { .dir = "none", .memory = 64 * MIB };
	struct ckpt_err e = { 0 };
	struct depot *d;
	struct object *o;

	ck_assert(!depot_new(&how, on_drop, NULL, &d, &e));
	o = object_of(d, 1, 100 * MIB);
	for (uint64_t b = 0; b < 1600; b += 128) {
		fetch(o, 1, b, min_u64(128, 1600 - b));
		if (b)
			object_touch(o, 0);
	}
	ck_assert_uint_ge(drops, 4);
	check(o, 1, 0, 128);
	check(o, 1, 1536, 64);
	ck_assert(!object_has(o, 128));
	fetch(o, 1, 128, 128);
	check(o, 1, 128, 128);
	object_close(o);
	depot_free(d);
}
END_TEST

/* The heads of items are looked at when a model is opened, and are needed again when it is read. */
START_TEST(segments_with_little_in_them_are_kept_for_longest)
{
	const struct depot_options how = { .dir = "none", .memory = 64 * MIB };
	struct ckpt_err e = { 0 };
	struct depot *d;
	struct object *o;

	ck_assert(!depot_new(&how, on_drop, NULL, &d, &e));
	o = object_of(d, 1, 100 * MIB);
	for (uint64_t b = 0; b < 1600; b += 128)
		fetch(o, 1, b + 16, 1);
	for (uint64_t b = 0; b < 1600 - 128; b += 128)
		fetch(o, 1, b + 17, 111);
	ck_assert_uint_ge(drops, 3);
	ck_assert(!object_has(o, 16) && !object_has(o, 17));
	ck_assert(object_has(o, 1536 + 16)); /* looked at before what is gone was read */
	object_close(o);
	depot_free(d);
}
END_TEST

/* ---- what fails ---- */

START_TEST(a_full_disk_is_left_for_memory)
{
	struct depot *d = depot_at(cache, 0);
	struct object *o = object_of(d, 1, 4 * WIRE_BLOCK);
	struct ckpt_err e = { 0 };
	struct hold *h;
	uint64_t n;

	ck_assert_int_eq(try_hold(o, 0, 4, &h, &n), 0);
	fault_on(FAULT_WRITE, 1, UINT64_MAX);
	ck_assert_int_eq(write_all(o, 1, h, 0, 4), -ENOSPC);
	(void)fault_off();
	ck_assert(!hold_in_memory(h));
	ck_assert_msg(!object_leave_disk(o, &e), "%s", e.msg);
	ck_assert(object_in_memory(o) && !hold_in_memory(h));
	ck_assert(strstr(depot_note(d), "cannot be written to: going on in memory"));
	hold_end(h);
	fetch(o, 1, 0, 4);
	check(o, 1, 0, 4);
	object_close(o);
	depot_free(d);
}
END_TEST

static const int kinds[] = { FAULT_ALLOC, FAULT_WRITE, FAULT_OPEN, FAULT_STAT,
			     FAULT_NAME,  FAULT_MAP,   FAULT_READ, FAULT_THREAD };

/* Whatever fails, there is an error, memory in place of the directory, or the right bytes. */
START_LOOP_TEST(whatever_fails_gives_no_other_bytes, ARRAY_LEN(kinds))
{
	FAULT_LOOP(kinds[_i])
	{
		const struct depot_options how = { .dir = cache, .size = MIB };
		struct ckpt_err e = { 0 };
		struct depot *d = NULL;
		struct object *o = NULL;
		struct hold *h = NULL;
		uint64_t n = 0;
		int rc = depot_new(&how, on_drop, NULL, &d, &e);

		if (!rc)
			rc = try_object(d, (unsigned)(fault_n % 200), 3 * WIRE_BLOCK, &o, &e);
		if (!rc && !object_has(o, 0))
			rc = object_hold(o, 0, 3, false, &h, &n, &e);
		if (h && !rc)
			rc = write_all(o, (unsigned)(fault_n % 200), h, 0, n);
		hold_end(h);
		(void)fault_off();
		if (o)
			for (uint64_t b = 0; b < 3; b++)
				if (object_has(o, b))
					check(o, (unsigned)(fault_n % 200), b, 1);
		object_close(o);
		depot_free(d);
	}
}
END_TEST

static const struct {
	const char *address;
	char id;	  /* its first byte */
	int64_t after_ns; /* its time, after a second that is about to come */
	bool again;	  /* it is found again */
} times[] = {
	{ "file:///d", 'E', 0, false },
	{ "file:///d", 'E', 1, true }, /* not a whole second */
	{ "file:///d", 'E', -(int64_t)CLOCK_SECOND * 10, true },
	{ "https://h/d", 'M', 0, false },
	{ "https://h/d", 'M', -(int64_t)CLOCK_SECOND * 10, true },
	{ "https://h/d", 'E', 0, true },
};

/* A file that is overwritten in the second in which it was written keeps its time. */
START_LOOP_TEST(what_may_change_unseen_is_not_found_again, ARRAY_LEN(times))
{
	struct place_seen seen = version((unsigned)times[_i].id, WIRE_BLOCK);
	uint64_t second;
	bool has;

	do { /* until the machine was fast enough */
		second = (clock_wall_ns() / CLOCK_SECOND + 1) * CLOCK_SECOND;
		seen.mtime_ns = second + (uint64_t)times[_i].after_ns;
		for (int again = 0; again < 2; again++) {
			struct depot *d = depot_at(cache, 100 * MIB);
			struct ckpt_err e = { 0 };
			struct object *o;

			ck_assert_int_eq(depot_prepare(d, times[_i].address, "x", &seen, &o, &e),
					 0);
			depot_adopt(o);
			has = object_has(o, 0);
			if (!has)
				fetch(o, 0, 0, 1);
			check(o, 0, 0, 1);
			object_close(o);
			depot_free(d);
		}
	} while (clock_wall_ns() >= second + CLOCK_SECOND);
	ck_assert_int_eq(has, times[_i].again);
}
END_TEST

SUITE(depot, .setup = setup, .seconds = 60)
