/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every checkpoint of tests/data, opened where it lies and through a place that is not on this
 * machine: the trees are the same, byte for byte.
 */
#include "base/cleanup.h"
#include "base/err.h"
#include "blob_util.h"
#include "ckpt/ckpt_internal.h"
#include "data_util.h"
#include "dcp_util.h"
#include "fault.h"
#include "memory_place.h"
#include "opts_util.h"
#include "scene_util.h"
#include "source/place.h"
#include "suites.h"
#include "whole_util.h"
#include <ckptfs/ckpt.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

static const char config[] = "{\"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 8}\n";
static const struct ckpt_opts opts = { .index = ":memory:", .allow_missing = true };

static int open_case(int i, char path[static 4096])
{
	autofree char *dir = realpath(data_dir(), NULL);
	int fd;

	REQUIRE(dir);
	(void)snprintf(path, 4096, "%s/%s/ckpt", dir, data_name(i));
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	REQUIRE(fd >= 0);
	return fd;
}

/* ---- two trees ---- */

static void compare_files(struct ckpt *a, struct ckpt *b, ckpt_node node, const char *path)
{
	struct ckpt_file *fa = NULL, *fb = NULL;
	struct ckpt_err ea = { 0 }, eb = { 0 };
	int rc = ckpt_file_open(a, node, &fa, &ea);
	autofree uint8_t *in_a = NULL, *in_b = NULL;
	uint64_t size;

	ck_assert_msg(ckpt_file_open(b, node, &fb, &eb) == rc, "%s: %s; %s", path, ea.msg, eb.msg);
	ck_assert_str_eq(ea.msg, eb.msg);
	if (rc)
		return;
	size = ckpt_file_size(fa);
	ck_assert_uint_eq(size, ckpt_file_size(fb));
	in_a = malloc(size + 1);
	in_b = malloc(size + 1);
	REQUIRE(in_a && in_b);
	ck_assert_int_eq(ckpt_file_read(fa, in_a, size, 0, &ea), (int64_t)size);
	ck_assert_msg(ckpt_file_read(fb, in_b, size, 0, &eb) == (int64_t)size, "%s: %s", path,
		      eb.msg);
	ck_assert_msg(!memcmp(in_a, in_b, size), "%s: other bytes", path);
	ckpt_file_close(fa);
	ckpt_file_close(fb);
}

/* Returns how many files were compared. */
static size_t compare_dirs(struct ckpt *a, struct ckpt *b, ckpt_node dir, const char *path)
{
	uint64_t pos_a = 0, pos_b = 0;
	size_t n = 0;

	for (;;) {
		char name_a[CKPT_NAME_MAX + 1], name_b[CKPT_NAME_MAX + 1], inner[4096];
		struct ckpt_stat st = { 0 };
		struct ckpt_err e = { 0 };
		ckpt_node in_a = 0, in_b = 0;
		int rc = ckpt_next(a, dir, &pos_a, name_a, &in_a);

		ck_assert_int_eq(ckpt_next(b, dir, &pos_b, name_b, &in_b), rc);
		if (rc)
			return n;
		ck_assert_str_eq(name_a, name_b);
		ck_assert_uint_eq(in_a, in_b);
		(void)snprintf(inner, sizeof(inner), "%s/%s", path, name_a);
		ck_assert_msg(!ckpt_type(b, in_b, &st, &e), "%s: %s", inner, e.msg);
		if (st.is_dir && strcmp(name_a, ".ckptfs") != 0)
			/* .ckptfs tells where the checkpoint is, so it differs. */
			n += compare_dirs(a, b, in_a, inner);
		if (st.is_dir || st.is_link)
			continue;
		compare_files(a, b, in_a, inner);
		n++;
	}
}

START_LOOP_TEST(every_format_and_face_is_the_same_from_any_place, data_count("ckpt"))
{
	struct ckpt *a = NULL, *b = NULL;
	struct ckpt_err ea = { 0 }, eb = { 0 };
	char path[4096];
	autoclose int fd = open_case(_i, path);
	int rc = open_typed(path, &opts, &a, &ea);

	ck_assert_msg(ckpt_open_place(memory_place(fd), path, &opts, &b, &eb) == rc, "%s: %s; %s",
		      path, ea.msg, eb.msg);
	if (rc) {
		ck_assert_str_eq(ea.msg, eb.msg);
		return;
	}
	ck_assert_uint_gt(compare_dirs(a, b, CKPT_ROOT, ""), 0);
	ckpt_close(a);
	ckpt_close(b);
}
END_TEST

/* All of it, or a reason; never less. */
START_LOOP_TEST(a_place_without_listings_hides_nothing, data_count("ckpt"))
{
	struct ckpt *a = NULL, *b = NULL;
	struct ckpt_err ea = { 0 }, eb = { 0 };
	char path[4096];
	autoclose int fd = open_case(_i, path);
	struct place *p = memory_place(fd);
	int rc = open_typed(path, &opts, &a, &ea);

	memory_place_unlisted(p);
	if (ckpt_open_place(p, path, &opts, &b, &eb)) {
		ck_assert_msg(eb.code == ENOENT || strstr(eb.msg, "lists no directories") || rc,
			      "%s", eb.msg);
		ckpt_close(a);
		return;
	}
	ck_assert_msg(!rc, "%s: %s", path, ea.msg);
	ck_assert_uint_gt(compare_dirs(a, b, CKPT_ROOT, ""), 0);
	ckpt_close(a);
	ckpt_close(b);
}
END_TEST

/* ---- faults and delays ---- */

static struct place *with_config(int fd, char path[static 4096])
{
	int copy = new_dir(path);
	DIR *d = fdopendir(fcntl(fd, F_DUPFD_CLOEXEC, 0));
	struct place *p;

	REQUIRE(d);
	for (const struct dirent *entry; (entry = readdir(d));) {
		size_t n;
		autofree uint8_t *data = NULL;

		if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
			continue;
		data = get_file(fd, entry->d_name, &n);
		put_file(copy, entry->d_name, data, n);
	}
	(void)closedir(d);
	put_file(copy, "config.json", config, sizeof(config) - 1);
	p = memory_place(copy);
	(void)close(copy);
	return p;
}

static int number_of(const char *name)
{
	for (int i = 0; i < data_count("ckpt"); i++)
		if (!strcmp(data_name(i), name))
			return i;
	ck_abort_msg("tests/data has no '%s'", name);
}

/* Reads all files of a directory; returns 0, or the first error. */
static int read_all(struct ckpt *c, const char *dir, uint64_t *ret_bytes, struct ckpt_err *e)
{
	char name[CKPT_NAME_MAX + 1];
	uint64_t pos = 0;
	ckpt_node at, node;
	int rc = ckpt_walk(c, dir, &at, e);

	while (!rc && !ckpt_next(c, at, &pos, name, &node)) {
		struct ckpt_file *f = NULL;
		uint8_t buf[4096];
		int64_t n = 1;

		rc = ckpt_file_open(c, node, &f, e);
		for (uint64_t off = 0; !rc && n > 0; off += (uint64_t)n) {
			n = ckpt_file_read(f, buf, sizeof(buf), off, e);
			rc = n < 0 ? (int)n : 0;
			*ret_bytes += n > 0 ? (uint64_t)n : 0;
		}
		ckpt_file_close(f);
	}
	return rc;
}

static const char *const faulty[] = { "plain", "zstd", "mp4_hf_sharded", "torchsave_sharded",
				      "mcore_zarr" };

START_LOOP_TEST(whatever_fails_once_is_a_clean_error_and_then_forgotten,
		(int)(sizeof(faulty) / sizeof(*faulty)))
{
	char path[4096];
	autoclose int fd = open_case(number_of(faulty[_i]), path);
	uint64_t want = 0;

	/* In round 0 nothing fails. */
	for (uint64_t round = 0, calls = 1; round <= calls; round = fault_next(round)) {
		struct place *p = memory_place(fd);
		struct ckpt *c = NULL;
		struct ckpt_err e = { 0 };
		uint64_t bytes = 0;
		int rc;

		memory_place_fail(p, round, 1, EIO);
		rc = ckpt_open_place(p, "/memory", &opts, &c, &e);
		if (!rc)
			rc = read_all(c, "tensors", &bytes, &e);
		ck_assert_msg(!rc == !e.code, "call %llu: %d, %d: %s", (unsigned long long)round,
			      rc, e.code, e.msg);
		if (!round) {
			ck_assert_msg(!rc, "%s", e.msg);
			calls = memory_place_calls(p);
			want = bytes;
			ck_assert(want && calls > 3);
		}
		if (c) { /* it is over */
			bytes = 0;
			e = (struct ckpt_err){ 0 };
			rc = read_all(c, "tensors", &bytes, &e);
			ck_assert(rc ? e.code : bytes == want);
		}
		ckpt_close(c);
	}
}
END_TEST

START_TEST(a_slow_place_gives_the_same_bytes)
{
	char path[4096], copy[4096];
	autoclose int fd = open_case(number_of("plain"), path);
	struct place *p = with_config(fd, copy);
	struct ckpt *a = NULL, *b = NULL;
	struct ckpt_err e = { 0 };
	ckpt_node node;

	ck_assert_msg(!open_typed(copy, &opts, &a, &e), "%s", e.msg);
	memory_place_delay(p, 300);
	ck_assert_msg(!ckpt_open_place(p, copy, &opts, &b, &e), "%s", e.msg);
	compare_dirs(a, b, CKPT_ROOT, "");
	/* Assets come from the same place. */
	ck_assert_msg(!ckpt_walk(b, "hf/config.json", &node, &e), "%s", e.msg);
	ckpt_close(a);
	ckpt_close(b);
}
END_TEST

/* ---- what a reader in order is about to need ---- */

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)

enum { MODEL_TENSORS = 200, MODEL_CHUNKS = 4 };

/* A model of 12 MiB in 800 items, spread over all data files. */
static void make_model(char path[static 4096])
{
	static const uint64_t shape[] = { 128, 256 };
	const struct scene_opts how = { .element = 2 };
	uint64_t boxes[MODEL_CHUNKS * 4];
	int fd = new_dir(path);
	struct rng r = rng_new();
	struct choose c = choose_rng(&r);
	struct dcp d;

	for (uint64_t i = 0; i < MODEL_CHUNKS; i++) {
		const uint64_t box[] = { i * 32, 0, 32, 256 };

		memcpy(boxes + i * 4, box, sizeof(box));
	}
	dcp_begin(&d, fd);
	for (unsigned i = 0; i < MODEL_TENSORS; i++) {
		struct scene s;
		char name[40];
		int n = snprintf(name, sizeof(name), "model.layers.%u.w", i);

		scene_make_of(&s, &c, &how, 2, shape, MODEL_CHUNKS, boxes);
		dcp_scene(&d, name, (size_t)n, &s, 0, 0);
		scene_release(&s);
	}
	dcp_end(&d, ".metadata");
	(void)close(fd);
}

static struct place *place_at(const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct place *p;

	REQUIRE(fd >= 0);
	p = memory_place(fd);
	(void)close(fd);
	return p;
}

static struct place *model(char path[static 4096])
{
	make_model(path);
	return place_at(path);
}

static uint64_t read_steps(struct ckpt_file *f, uint64_t from, uint64_t to, uint64_t step,
			   uint8_t *ret)
{
	uint64_t at = from;

	for (int64_t n; at < to; at += (uint64_t)n) {
		struct ckpt_err e = { 0 };

		n = ckpt_file_read(f, ret + at, step, at, &e);
		ck_assert_msg(n >= 0, "%s", e.msg);
		if (!n)
			break;
	}
	return at;
}

static const uint64_t steps[] = { 128 * KIB, 1000 * 1000, 4 * KIB };

START_FEW_TEST(a_reader_in_order_finds_everything_announced, (int)(sizeof(steps) / sizeof(*steps)),
	       1)
{
	struct ckpt_err e = { 0 };
	struct memory_traffic seen;
	struct ckpt_file *f = NULL;
	struct ckpt *c = NULL;
	char path[4096];
	struct place *p = model(path);
	autofree uint8_t *whole = NULL, *got = NULL;
	uint64_t size, at, step = steps[_i];

	ck_assert_msg(!ckpt_open_place(p, path, &opts, &c, &e), "%s", e.msg);
	ck_assert_msg(!ckpt_file_open_path(c, "hf/model.safetensors", &f, &e), "%s", e.msg);
	size = ckpt_file_size(f);
	ck_assert_uint_gt(size, 12 * MIB);
	whole = malloc(size);
	got = malloc(size + MIB);
	REQUIRE(whole && got);
	ck_assert_int_eq(ckpt_file_read(f, whole, size, 0, &e), (int64_t)size);
	ckpt_file_close(f);
	ck_assert_msg(!ckpt_file_open_path(c, "hf/model.safetensors", &f, &e), "%s", e.msg);

	(void)memory_place_traffic(p);
	at = read_steps(f, 0, 3 * MIB, step, got);
	seen = memory_place_traffic(p);
	ck_assert_uint_ge(seen.outstanding, 32); /* items' parts, of all files */
	at = read_steps(f, at, size, step, got);
	ck_assert_uint_eq(at, size);
	ck_assert(!memcmp(got, whole, size));
	at = seen.announced;
	seen = memory_place_traffic(p);
	ck_assert_uint_gt(seen.reads, 0);
	ck_assert_uint_eq(seen.late, 0);
	ck_assert_uint_le(at + seen.announced, size); /* no byte twice, and no others */
	ckpt_file_close(f);
	ckpt_close(c);
}
END_TEST

START_TEST(nothing_is_announced_to_who_reads_here_and_there)
{
	struct rng r = rng_new();
	struct ckpt_err e = { 0 };
	struct ckpt_file *f = NULL;
	struct ckpt *c = NULL;
	char path[4096];
	struct place *p = model(path);
	uint8_t buf[4096];
	uint64_t size;

	ck_assert_msg(!ckpt_open_place(p, path, &opts, &c, &e), "%s", e.msg);
	ck_assert_msg(!ckpt_file_open_path(c, "hf/model.safetensors", &f, &e), "%s", e.msg);
	size = ckpt_file_size(f);
	(void)memory_place_traffic(p);
	for (uint64_t at = 0, k = 0; k < 500; k++) {
		at = (at + size / 2 + rng_below(&r, size / 8)) % (size - sizeof(buf));
		ck_assert_int_eq(ckpt_file_read(f, buf, sizeof(buf), at, &e), sizeof(buf));
	}
	ck_assert_uint_eq(memory_place_traffic(p).announced, 0);
	ckpt_file_close(f);
	ckpt_close(c);
}
END_TEST

/* ---- what was found inside items ---- */

/* Reads hf/model.safetensors. Returns NULL, with a negative errno in *ret_size, if it cannot be
 * read. *ret_looks: the reads that opening it took. The index is kept in `index`. */
static uint8_t *read_model(const char *path, const char *index, int64_t *ret_size,
			   uint64_t *ret_looks)
{
	const struct ckpt_opts kept = { .index = index };
	struct place *p = place_at(path);
	struct ckpt_file *f = NULL;
	struct ckpt_err e = { 0 };
	struct ckpt *c = NULL;
	uint8_t *bytes = NULL;
	int rc = ckpt_open_place(p, path, &kept, &c, &e);

	REQUIRE(!rc);
	(void)memory_place_traffic(p);
	*ret_size = ckpt_file_open_path(c, "hf/model.safetensors", &f, &e);
	*ret_looks = memory_place_traffic(p).reads;
	if (!*ret_size) {
		uint64_t size = ckpt_file_size(f);

		bytes = malloc(size);
		REQUIRE(bytes);
		*ret_size = ckpt_file_read(f, bytes, size, 0, &e);
	}
	if (*ret_size < 0) {
		ck_assert_int_eq(e.code, -*ret_size);
		free(bytes);
		bytes = NULL;
	}
	ckpt_file_close(f);
	ckpt_close(c);
	return bytes;
}

static uint64_t size_of(const char *path)
{
	struct stat st;

	REQUIRE(!stat(path, &st));
	return (uint64_t)st.st_size;
}

START_TEST(items_are_looked_into_once_for_all_who_open_the_checkpoint)
{
	char path[4096], index[4096 + 8];
	int64_t size, again;
	uint64_t looks;

	make_model(path);
	(void)snprintf(index, sizeof(index), "%s.index", path);
	autofree uint8_t *first = read_model(path, index, &size, &looks);

	ck_assert(first);
	ck_assert_uint_ge(looks, MODEL_TENSORS * MODEL_CHUNKS);
	autofree uint8_t *second = read_model(path, index, &again, &looks);

	ck_assert(second && again == size && !memcmp(first, second, (size_t)size));
	ck_assert_uint_eq(looks, 0);
}
END_TEST

START_LONG_TEST(what_was_found_in_another_file_is_not_believed)
{
	char path[4096], index[4096 + 8];
	int64_t size, again;
	uint64_t looks;
	size_t n;

	make_model(path);
	(void)snprintf(index, sizeof(index), "%s.index", path);
	autofree uint8_t *before = read_model(path, index, &size, &looks);
	autoclose int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	autofree uint8_t *data = get_file(fd, "__0_1.distcp", &n);

	REQUIRE(before);
	autofree char *more = malloc(n + 1);

	REQUIRE(more);
	memcpy(more, data, n);
	more[n] = 0;
	put_file(fd, "__0_1.distcp", more, n + 1);
	autofree uint8_t *now = read_model(path, index, &again, &looks);

	ck_assert_uint_ge(looks, MODEL_TENSORS * MODEL_CHUNKS);
	/* What is found now is kept, too. */
	autofree uint8_t *then = read_model(path, index, &again, &looks);

	ck_assert_uint_eq(looks, 0);
	ck_assert(now && then && again == size);
	ck_assert(!memcmp(now, before, (size_t)size) && !memcmp(then, before, (size_t)size));
}
END_TEST

/* Behind the index's own pages: magic, length, hash, body. */
enum { FOUND_HEAD = 24 };

START_LONG_TEST(what_is_kept_behind_an_index_may_be_anything)
{
	char path[4096], index[4096 + 8];
	struct rng r = rng_new();
	uint64_t looks, whole, at;
	int64_t size, got;
	uint8_t pages[4];

	make_model(path);
	(void)snprintf(index, sizeof(index), "%s.index", path);
	autofree uint8_t *want = read_model(path, index, &size, &looks);
	autoclose int fd = open(index, O_RDWR | O_CLOEXEC);

	REQUIRE(want && fd >= 0 && pread(fd, pages, 4, 28) == 4);
	at = ((uint64_t)pages[2] << 8 | pages[3]) * 16384;
	whole = size_of(index);
	ck_assert_uint_gt(whole, at + FOUND_HEAD);
	autofree uint8_t *kept = malloc(whole - at), *bad = malloc(whole - at);

	REQUIRE(kept && bad && pread(fd, kept, whole - at, (off_t)at) == (ssize_t)(whole - at));
	for (int k = 0; k < (int)rng_rounds(60, 15); k++) {
		size_t n = whole - at, body = n - FOUND_HEAD;
		XXH64_hash_t h;

		memcpy(bad, kept, n);
		for (uint64_t i = 0; k % 3 && i <= rng_below(&r, 4); i++)
			bad[FOUND_HEAD + rng_below(&r, body)] = (uint8_t)rng_below(&r, 256);
		if (k % 3 == 0)
			n = rng_below(&r, n); /* torn */
		h = XXH3_64bits(bad + FOUND_HEAD, body);
		if (k % 3 == 2) /* and its hash is right */
			memcpy(bad + 16, &h, sizeof(h));
		REQUIRE(!ftruncate(fd, (off_t)at) && pwrite(fd, bad, n, (off_t)at) == (ssize_t)n);
		autofree uint8_t *bytes = read_model(path, index, &got, &looks);

		/* A valid hash over forged numbers can make it name other bytes of the same item,
		 * but no others. */
		if (k % 3 == 2)
			ck_assert(got == size || got == -EBADMSG);
		else
			ck_assert(bytes && got == size && !memcmp(bytes, want, (size_t)size));
	}
}
END_TEST

SUITE(place, .seconds = 60)
