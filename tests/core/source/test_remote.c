/* SPDX-License-Identifier: Apache-2.0 */
/* Objects, read through a real fetcher whose store is a directory: see tests/fetch/dir_store.c. */
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "blob_util.h"
#include "ckpt/ckpt_internal.h"
#include "data_util.h"
#include "fault.h"
#include "opts_util.h"
#include "source/files.h"
#include "source/lender.h"
#include "source/source.h"
#include "source/wire.h"
#include "source/writing.h"
#include "suites.h"
#include <ckptfs/ckpt.h>

#include <dirent.h>
#include <fcntl.h>
#include <glob.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)

static char dir[4096], cache[4200], log_path[4200], store[4200];

static void program(char ret[static 4300])
{
	char self[4096];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	REQUIRE(n > 0);
	self[n] = 0;
	*strrchr(self, '/') = 0;
	(void)snprintf(ret, 4300, "%s/dir-fetch", self);
}

static void setup(void)
{
	char fetch[4300];

	(void)close(new_dir(dir));
	(void)snprintf(cache, sizeof(cache), "%s/cache", dir);
	(void)snprintf(log_path, sizeof(log_path), "%s/log", dir);
	(void)snprintf(store, sizeof(store), "%s/store", dir);
	REQUIRE(!mkdir(store, 0700));
	(void)snprintf(fetch, sizeof(fetch), "%s/b", store);
	REQUIRE(!mkdir(fetch, 0700));
	program(fetch);
	REQUIRE(!setenv("CKPTFS_FETCH", fetch, 1));
	REQUIRE(!setenv("DIR_STORE", store, 1));
	REQUIRE(!setenv("DIR_STORE_LOG", log_path, 1));
}

/* Byte i of every object is known. */
static uint8_t byte_at(uint64_t i)
{
	uint64_t x = (i >> 3) * 0x9e3779b97f4a7c15;

	return (uint8_t)((x ^ x >> 29) >> 8 * (i & 7));
}

static void put_object(const char *name, uint64_t size)
{
	autofree uint8_t *p = malloc(size + 1);
	char path[4300];
	int fd;

	REQUIRE(p);
	for (uint64_t i = 0; i < size; i++)
		p[i] = byte_at(i);
	(void)snprintf(path, sizeof(path), "%s/b", store);
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	put_file(fd, name, p, size);
	(void)close(fd);
}

static struct place *open_at(const char *address, const struct place_options *o)
{
	struct place *p;
	const char *file;
	struct ckpt_err e = { 0 };
	autofree char *root = NULL;

	ck_assert_msg(!place_open(address, o, &p, &root, &file, &e), "%s", e.msg);
	return p;
}

static struct source *source_of(struct place *p, const char *name)
{
	struct ckpt_err e = { 0 };
	struct source *s;

	ck_assert_msg(!place_file(p, name, &s, &e), "%s", e.msg);
	return s;
}

static void check_bytes(const uint8_t *p, uint64_t off, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		if (p[i] != byte_at(off + i))
			ck_abort_msg("wrong byte at %llu", (unsigned long long)(off + i));
}

static void read_and_check(struct source *s, uint64_t off, uint64_t n)
{
	autofree uint8_t *buf = malloc(n + 1);
	struct ckpt_err e = { 0 };
	int64_t got;

	REQUIRE(buf);
	got = source_read(s, buf, n, off, &e);
	ck_assert_msg(got == (int64_t)n, "%lld: %s", (long long)got, e.msg);
	check_bytes(buf, off, n);
}

/* The number of lines of the log that begin like this; *ret_bytes: the sum of the last numbers in
 * them. */
static unsigned logged(const char *begin, uint64_t *ret_bytes)
{
	FILE *f = fopen(log_path, "re");
	char line[4500];
	unsigned n = 0;

	*ret_bytes = 0;
	while (f && fgets(line, sizeof(line), f))
		if (!strncmp(line, begin, strlen(begin))) {
			n++;
			*ret_bytes += strtoull(strrchr(line, ' ') + 1, NULL, 10);
		}
	if (f)
		(void)fclose(f);
	return n;
}

static void forget_log(void)
{
	(void)!truncate(log_path, 0);
}

/* ---- whole checkpoints ---- */

static uint64_t hash_tree(struct ckpt *c, ckpt_node at, uint64_t h, unsigned *n)
{
	char name[CKPT_NAME_MAX + 1];
	ckpt_node node = 0;

	for (uint64_t pos = 0; !ckpt_next(c, at, &pos, name, &node);) {
		struct ckpt_stat st = { 0 };
		struct ckpt_file *f = NULL;
		struct ckpt_err e = { 0 };

		ck_assert(!ckpt_type(c, node, &st, &e));
		h = h * 31 + strlen(name) + (uint8_t)name[0];
		if (st.is_dir && strcmp(name, ".ckptfs") != 0)
			h = hash_tree(c, node, h, n);
		if (st.is_dir || st.is_link)
			continue;
		h = h * 31 + (uint64_t)ckpt_file_open(c, node, &f, &e);
		if (!f)
			continue;
		autofree uint8_t *p = malloc(ckpt_file_size(f) + 1);

		REQUIRE(p);
		ck_assert_msg(ckpt_file_read(f, p, ckpt_file_size(f), 0, &e) ==
				      (int64_t)ckpt_file_size(f),
			      "%s: %s", name, e.msg);
		for (uint64_t i = 0; i < ckpt_file_size(f); i++)
			h = h * 31 + p[i];
		ckpt_file_close(f);
		++*n;
	}
	return h;
}

START_LOOP_TEST(every_format_is_the_same_from_a_store, data_count("ckpt"))
{
	const struct ckpt_opts opts = { .index = ":memory:", .allow_missing = true };
	const struct place_options how = { .cache_dir = _i % 2 ? cache : "none" };
	autofree char *data = realpath(data_dir(), NULL);
	struct ckpt *a = NULL, *b = NULL;
	struct ckpt_err ea = { 0 }, eb = { 0 };
	char path[4200], address[4200];
	unsigned na = 0, nb = 0;
	int rc;

	REQUIRE(data && !setenv("DIR_STORE", data, 1));
	(void)snprintf(path, sizeof(path), "%s/%s/ckpt", data, data_name(_i));
	(void)snprintf(address, sizeof(address), "s3://%s/ckpt", data_name(_i));
	rc = open_typed(path, &opts, &a, &ea);
	ck_assert_msg(ckpt_open_place(open_at(address, &how), path, &opts, &b, &eb) == rc, "%s; %s",
		      ea.msg, eb.msg);
	if (rc) {
		ck_assert_str_eq(ea.msg, eb.msg);
		return;
	}
	ck_assert_uint_eq(hash_tree(a, CKPT_ROOT, 0, &na), hash_tree(b, CKPT_ROOT, 0, &nb));
	ck_assert_uint_eq(na, nb);
	ckpt_close(a);
	ckpt_close(b);
}
END_TEST

/* ---- requests ---- */

START_TEST(opening_asks_for_a_listing_and_the_metadata_and_never_again_for_the_bytes)
{
	const struct ckpt_opts opts = { .index = ":memory:", .cache_dir = cache };
	autofree char *data = realpath(data_dir(), NULL);
	struct ckpt_err e = { 0 };
	struct ckpt *c = NULL;
	uint64_t bytes;

	REQUIRE(data && !setenv("DIR_STORE", data, 1));
	ck_assert_msg(!open_typed("s3://plain/ckpt", &opts, &c, &e), "%s", e.msg);
	ck_assert_uint_eq(logged("list", &bytes), 1);
	ck_assert_uint_eq(logged("get", &bytes), 1);
	ck_assert_uint_eq(logged("look", &bytes), 0);
	ckpt_close(c);
	forget_log();
	ck_assert_msg(!open_typed("s3://plain/ckpt", &opts, &c, &e), "%s", e.msg);
	ck_assert_uint_eq(logged("list", &bytes), 1);
	ck_assert_uint_eq(logged("get", &bytes) + logged("look", &bytes), 0);
	ckpt_close(c);
}
END_TEST

START_TEST(a_small_read_asks_for_a_block_or_two)
{
	const struct place_options how = { .cache_dir = cache };
	struct rng r = rng_new();
	struct place *p;
	struct source *s;
	uint64_t bytes;

	put_object("x", 20 * MIB + 77);
	p = open_at("s3://b", &how);
	s = source_of(p, "x");
	for (int i = 0; i < 20; i++) {
		forget_log();
		read_and_check(s, rng_below(&r, 20 * MIB - 4096), 4096);
		(void)logged("get", &bytes);
		ck_assert_uint_le(bytes, 128 * KIB);
	}
	read_and_check(s, 20 * MIB, 77);
	/* All of it; what is there already is not fetched again. */
	forget_log();
	read_and_check(s, 0, 20 * MIB + 77);
	(void)logged("get", &bytes);
	ck_assert_uint_lt(bytes, 20 * MIB + 77);
	forget_log();
	read_and_check(s, 0, 20 * MIB + 77);
	ck_assert_uint_eq(logged("get", &bytes), 0);
	source_free(s);
	place_free(p);
}
END_TEST

START_TEST(what_is_wanted_is_fetched_once_in_large_requests)
{
	const struct place_options how = { .cache_dir = cache };
	struct place *p;
	struct source *s;
	uint64_t bytes;

	put_object("x", 40 * MIB);
	p = open_at("s3://b", &how);
	s = source_of(p, "x");
	ck_assert(source_want(s, 0, 40 * MIB));
	for (uint64_t at = 0; at < 40 * MIB; at += MIB)
		read_and_check(s, at, MIB);
	ck_assert_uint_le(logged("get", &bytes), 24);
	ck_assert_uint_le(bytes, 40 * MIB);
	ck_assert(!source_want(s, 0, 40 * MIB));
	source_free(s);
	place_free(p);
}
END_TEST

/* A checkpoint of one tensor w of n bytes. */
static struct ckpt *open_large(uint64_t n)
{
	const struct ckpt_opts opts = { .index = ":memory:", .cache_dir = cache };
	struct ckpt_err e = { 0 };
	struct ckpt *c;
	char head[200], path[4300];
	int fd;

	(void)snprintf(path, sizeof(path), "%s/b/model.safetensors", store);
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	REQUIRE(fd >= 0);
	(void)snprintf(
		head, sizeof(head),
		"%c%7s{\"w\":{\"dtype\":\"U8\",\"shape\":[%llu],\"data_offsets\":[0,%llu]}}%80s",
		120, "", (unsigned long long)n, (unsigned long long)n, "");
	memset(head + 1, 0, 7);
	REQUIRE(pwrite(fd, head, 128, 0) == 128 && !ftruncate(fd, (off_t)n + 128));
	(void)close(fd);
	ck_assert_msg(!open_typed("s3://b", &opts, &c, &e), "%s", e.msg);
	return c;
}

/* What is fetched ahead of a reader is wasted if the reader stops. So nothing is fetched ahead of
 * many readers, however slow they are. */
START_TEST(readers_know_of_each_other_even_if_they_are_slow)
{
	enum { READERS = 16, EACH = 4 << 20, PIECE = 128 << 10 };
	struct ckpt *c = open_large((uint64_t)READERS * EACH);
	struct ckpt_file *f[READERS];
	struct ckpt_err e = { 0 };
	autofree uint8_t *buf = malloc(PIECE);
	uint64_t bytes;

	REQUIRE(buf);
	for (unsigned i = 0; i < READERS; i++)
		ck_assert_msg(!ckpt_file_open_path(c, "tensors/w", &f[i], &e), "%s", e.msg);
	for (uint64_t at = 0; at < 5 * MIB / 4; at += PIECE)
		for (unsigned i = 0; i < READERS; i++)
			ck_assert_int_eq(
				ckpt_file_read(f[i], buf, PIECE, i * (uint64_t)EACH + at, &e),
				PIECE);
	(void)sleep(2);
	for (uint64_t at = 5 * MIB / 4; at < 3 * MIB / 2; at += PIECE)
		ck_assert_int_eq(ckpt_file_read(f[0], buf, PIECE, at, &e), PIECE);
	(void)logged("get", &bytes);
	ck_assert_uint_le(bytes, READERS * (5 * MIB / 4 + 128 * KIB) + 256 * KIB);
	for (unsigned i = 0; i < READERS; i++)
		ckpt_file_close(f[i]);
	ckpt_close(c);
}
END_TEST

START_TEST(whole_segments_are_mapped_and_lent)
{
	const struct place_options how = { .cache_dir = cache };
	struct lender *lender = lender_new(64 * MIB);
	struct place *p;
	struct source *s;
	const uint8_t *at;

	put_object("x", 6 * MIB);
	p = open_at("s3://b", &how);
	s = source_of(p, "x");
	source_set_lender(s, lender);
	ck_assert_ptr_null(source_map(s, 0, 4 * MIB)); /* not there yet */
	read_and_check(s, 0, 4 * MIB);
	at = source_map(s, 4096, 4 * MIB - 4096);
	ck_assert_ptr_nonnull(at);
	check_bytes(at, 4096, 4 * MIB - 4096);
	ck_assert_ptr_null(source_map(s, 0, 5 * MIB));
	at = source_lend(s, 1, 100);
	ck_assert_ptr_nonnull(at);
	check_bytes(at, 1, 100);
	source_give_back(s);
	source_free(s);
	lender_free(lender);
	place_free(p);
}
END_TEST

/* ---- what changes and what breaks ---- */

START_TEST(a_changed_object_never_gives_other_bytes)
{
	const struct place_options how = { .cache_dir = "none" };
	struct stored_file file = { .path = "x" };
	struct place *p;
	struct files *f;
	struct ckpt_err e = { 0 };
	uint8_t buf[4096];

	put_object("x", 2 * MIB);
	p = open_at("s3://b", &how);
	ck_assert(!files_new(p, &file, 1, &f, &e));
	ck_assert_msg(!files_read(f, 0, buf, sizeof(buf), 0, &e), "%s", e.msg);
	put_object("x", 2 * MIB + 1);
	ck_assert_int_eq(files_read(f, 0, buf, sizeof(buf), MIB, &e), -EIO);
	ck_assert_str_eq(e.msg, "'x' was changed after the checkpoint was opened");
	ck_assert(files_changed(f));
	files_free(f);
	place_free(p);
}
END_TEST

/* The name is gone for a moment only, as while somebody restores it, or for a server that is behind
 * the others. */
START_TEST(an_object_that_is_there_again_can_be_read_again)
{
	const struct place_options how = { .cache_dir = "none" };
	char here[4300], away[4300];
	struct source *s, *again;
	struct place *p;
	struct ckpt_err e = { 0 };
	struct place_seen seen;
	uint8_t buf[100];

	put_object("x", 2 * MIB);
	p = open_at("s3://b", &how);
	s = source_of(p, "x");
	(void)snprintf(here, sizeof(here), "%s/b/x", store);
	(void)snprintf(away, sizeof(away), "%s/away", store);
	ck_assert_int_eq(rename(here, away), 0);
	ck_assert_int_eq(source_read(s, buf, sizeof(buf), MIB, &e), -ESTALE);
	ck_assert_int_eq(rename(away, here), 0);
	/* What was opened before stays an error: its user has been told that it has changed. */
	ck_assert_int_eq(source_read(s, buf, sizeof(buf), MIB, &e), -ESTALE);
	ck_assert_int_eq(source_look(s, &seen), -ESTALE);
	again = source_of(p, "x");
	read_and_check(again, 0, 2 * MIB);
	source_free(s);
	source_free(again);
	place_free(p);
}
END_TEST

START_TEST(a_request_that_fails_is_an_error_with_a_reason)
{
	const struct place_options how = { .cache_dir = cache };
	struct stored_file file = { .path = "x" };
	struct place *p;
	struct files *f;
	struct ckpt_err e = { 0 };
	autofree uint8_t *buf = malloc(MIB);

	REQUIRE(buf && !setenv("DIR_STORE_FAIL", "2", 1));
	put_object("x", 2 * MIB);
	p = open_at("s3://b", &how);
	ck_assert(!files_new(p, &file, 1, &f, &e));
	ck_assert_int_eq(files_read(f, 0, buf, MIB, 0, &e), -EIO);
	ck_assert_str_eq(e.msg, "read 'x', 1048576 bytes at 0: a request fails");
	ck_assert(!files_changed(f));
	ck_assert_msg(!files_read(f, 0, buf, MIB, 0, &e), "%s", e.msg); /* the third does not */
	check_bytes(buf, 0, MIB);
	files_free(f);
	place_free(p);
}
END_TEST

START_TEST(without_a_fetcher_it_says_what_to_install)
{
	struct place *p;
	const char *file;
	char *root;
	struct ckpt_err e = { 0 };

	REQUIRE(!setenv("CKPTFS_FETCH", "/nowhere/ckptfs-fetch", 1));
	ck_assert_int_eq(place_open("s3://b/x", NULL, &p, &root, &file, &e), -ENOENT);
	ck_assert_msg(strstr(e.msg, "install ckptfs-fetch") != NULL, "%s", e.msg);
}
END_TEST

static const char *const secrets[] = {
	"https://me:secret@b/x",
	"https://me:se/cret@b/x",
	"s3://me:secret@b/k",
	"hf://me:secret@b/k",
	"https://b/x?X-Amz-Signature=secret",
	"http://[me:secret@b",
};

START_LOOP_TEST(no_message_has_what_is_secret_in_an_address, ARRAY_LEN(secrets))
{
	struct place *p;
	const char *file;
	char *root;
	struct ckpt_err e = { 0 };
	uint64_t bytes;

	ck_assert_int_eq(place_open(secrets[_i], NULL, &p, &root, &file, &e), -EINVAL);
	ck_assert_msg(strstr(e.msg, "not supported") != NULL, "%s", e.msg);
	ck_assert_msg(!strstr(e.msg, "cret") && !strstr(e.msg, "me:"), "%s", e.msg);
	ck_assert_uint_eq(logged("", &bytes), 0); /* the fetcher was not asked */
}
END_TEST

static pid_t fetcher(unsigned i)
{
	FILE *f = fopen(log_path, "re");
	char line[4500];
	pid_t pid = 0;

	while (f && fgets(line, sizeof(line), f))
		if (!strncmp(line, "pid ", 4) && !i--)
			pid = (pid_t)strtol(line + 4, NULL, 10);
	if (f)
		(void)fclose(f);
	return pid;
}

/* The process that started this one. */
static pid_t parent_of(pid_t pid)
{
	char path[64], line[512] = "";
	int parent = 0;
	FILE *f;

	(void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	f = fopen(path, "re");
	REQUIRE(f && fgets(line, sizeof(line), f));
	(void)fclose(f);
	REQUIRE(sscanf(strrchr(line, ')'), ") %*c %d", &parent) == 1);
	return parent;
}

/* Reads before, during and after give the right bytes, and what was open stays open. */
START_LOOP_TEST(a_fetcher_that_dies_is_started_again, 2)
{
	const struct place_options how = { .cache_dir = _i ? "none" : cache };
	struct place *p;
	struct source *s, *other;
	uint64_t ignored;
	struct place_network n;

	put_object("x", 12 * MIB);
	put_object("y", 2 * MIB);
	p = open_at("s3://b", &how);
	s = source_of(p, "x");
	other = source_of(p, "y");
	for (unsigned i = 0; i < 6; i++) {
		read_and_check(s, 2 * i * MIB, 4096);
		(void)source_want(s, (2 * i + 1) * MIB, MIB);
		REQUIRE(!kill(fetcher(i), SIGKILL));
		read_and_check(s, 2 * i * MIB, 4096);
		read_and_check(s, (2 * i + 1) * MIB, MIB);
		read_and_check(other, i * 300 * KIB, 100);
		ck_assert_uint_eq(logged("pid ", &ignored), i + 2);
	}
	ck_assert(place_network(p, &n));
	ck_assert_uint_eq(n.restarts, 6);
	source_free(other);
	other = source_of(p, "y");
	read_and_check(other, 0, 2 * MIB);
	read_and_check(s, 0, 12 * MIB);
	source_free(other);
	source_free(s);
	place_free(p);
}
END_TEST

/* A request that kills every fetcher becomes an error after a few attempts. */
START_TEST(a_fetcher_that_always_dies_is_an_error_in_the_end)
{
	const struct place_options how = { .cache_dir = cache, .retry_s = 2 };
	struct place *p;
	struct source *s;
	struct ckpt_err e = { 0 };
	uint8_t buf[4096];
	uint64_t ignored;

	put_object("x", 2 * MIB);
	REQUIRE(!setenv("DIR_STORE_DIE", "1", 1));
	p = open_at("s3://b", &how);
	s = source_of(p, "x");
	ck_assert_int_eq(source_read(s, buf, sizeof(buf), MIB, &e), -EIO);
	ck_assert_msg(strstr(e.msg, "ckptfs-fetch, which reads object stores, has ended") != NULL,
		      "%s", e.msg);
	ck_assert_uint_ge(logged("pid ", &ignored), 2); /* more where processes start faster */
	ck_assert_uint_le(logged("pid ", &ignored), 12);
	source_free(s);
	place_free(p);
}
END_TEST

/* Nobody is left to start it again. */
START_TEST(a_fetcher_that_is_not_started_again_ends_what_waits_for_it)
{
	const struct place_options how = { .cache_dir = cache };
	struct place *p;
	struct source *s;
	struct ckpt_err e = { 0 };
	uint8_t buf[4096];

	put_object("x", 2 * MIB);
	p = open_at("s3://b", &how);
	s = source_of(p, "x");
	REQUIRE(!kill(parent_of(fetcher(0)), SIGKILL));
	read_and_check(s, 0, 4096);
	REQUIRE(!kill(fetcher(0), SIGKILL));
	ck_assert_int_eq(source_read(s, buf, sizeof(buf), MIB, &e), -EIO);
	ck_assert_msg(strstr(e.msg, "has ended: open the checkpoint again") != NULL, "%s", e.msg);
	read_and_check(s, 100, 4096); /* the cache needs no fetcher */
	source_free(s);
	place_free(p);
	p = open_at("s3://b", &how); /* now another one starts */
	s = source_of(p, "x");
	read_and_check(s, MIB, 4096);
	source_free(s);
	place_free(p);
}
END_TEST

START_TEST(after_fork_only_the_parent_reads)
{
	const struct place_options how = { .cache_dir = cache };
	struct place *p;
	struct source *s;
	int status;
	pid_t pid;

	put_object("x", 2 * MIB);
	p = open_at("s3://b", &how);
	s = source_of(p, "x");
	read_and_check(s, 0, 4096);
	pid = fork();
	REQUIRE(pid >= 0);
	if (!pid) {
		struct ckpt_err e = { 0 };
		uint8_t buf[4096];
		bool ok = source_read(s, buf, sizeof(buf), MIB, &e) == -EIO &&
			  strstr(e.msg, "before fork") != NULL;

		source_free(s);
		place_free(p);
		_exit(ok ? 0 : 1);
	}
	REQUIRE(waitpid(pid, &status, 0) == pid);
	ck_assert(WIFEXITED(status) && !WEXITSTATUS(status));
	read_and_check(s, MIB, 4096);
	source_free(s);
	place_free(p);
}
END_TEST

/* The number of objects in the cache that a process uses. */
static unsigned used_objects(void)
{
	struct flock l = {
		.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)1 << 60, .l_len = 1
	};
	char maps[4300];
	unsigned n = 0;
	glob_t g;

	(void)snprintf(maps, sizeof(maps), "%s/*/*/map", cache);
	REQUIRE(!glob(maps, 0, NULL, &g));
	for (size_t i = 0; i < g.gl_pathc; i++) {
		autoclose int fd = open(g.gl_pathv[i], O_RDWR | O_CLOEXEC);

		n += fcntl(fd, F_OFD_SETLK, &l) != 0;
	}
	globfree(&g);
	return n;
}

/* More is closed than there is room for in a socket. */
START_TEST(closing_never_waits_for_a_fetcher)
{
	enum { MANY = 900 };
	const struct place_options how = { .cache_dir = cache };
	struct place *p, *keep;
	struct source *s;
	char name[16];

	for (int i = 0; i < MANY; i++) {
		(void)snprintf(name, sizeof(name), "x%d", i);
		put_object(name, 1);
	}
	keep = open_at("s3://b", &how);
	s = source_of(keep, "x0");
	p = open_at("s3://b", &how);
	for (int i = 1; i < MANY; i++) {
		(void)snprintf(name, sizeof(name), "x%d", i);
		source_free(source_of(p, name));
	}
	ck_assert_uint_eq(used_objects(), MANY);
	REQUIRE(!kill(fetcher(0), SIGSTOP));
	place_free(p);
	REQUIRE(!kill(fetcher(0), SIGCONT));
	read_and_check(s, 0, 1);
	ck_assert_uint_eq(used_objects(), 1);
	source_free(s);
	p = open_at("s3://b", &how);
	source_free(source_of(p, "x7"));
	REQUIRE(!kill(fetcher(0), SIGSTOP));
	place_free(p);
	place_free(keep);
	REQUIRE(!kill(fetcher(0), SIGCONT));
}
END_TEST

/* ---- the fetcher itself ---- */

/* The fetcher's first thread goes on while something else waits; here, closing a place. */
START_TEST(a_place_that_is_slow_to_close_holds_up_nobody)
{
	const struct place_options how = { .cache_dir = cache };
	char until[4300];
	struct place *p, *q;
	struct source *s;

	(void)snprintf(until, sizeof(until), "%s/until", dir);
	REQUIRE(!setenv("DIR_STORE_FREE", until, 1));
	put_object("x", 2 * MIB);
	p = open_at("s3://b", &how);
	q = open_at("s3://b", &how);
	place_free(p);
	s = source_of(q, "x");
	read_and_check(s, 0, 2 * MIB);
	source_free(s);
	place_free(q);
	(void)close(open(until, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
}
END_TEST

static void *open_x(void *arg)
{
	struct source *s = source_of(arg, "x");

	read_and_check(s, 0, MIB);
	source_free(s);
	return NULL;
}

static void in_cache(const char *name, char ret[static 8192]);

START_TEST(a_map_that_is_locked_holds_up_nobody_else)
{
	const struct place_options how = { .cache_dir = cache };
	struct flock l = {
		.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)1 << 60, .l_len = 1
	};
	char path[8192];
	struct place *p;
	struct source *s;
	pthread_t t;
	int fd;

	put_object("x", MIB);
	p = open_at("s3://b", &how);
	s = source_of(p, "x");
	source_free(s);
	place_free(p);
	in_cache("map", path);
	fd = open(path, O_RDWR | O_CLOEXEC);
	while (fcntl(fd, F_OFD_SETLK, &l)) /* until the fetcher has ended */
		(void)usleep(1000);
	put_object("y", MIB);
	p = open_at("s3://b", &how);
	REQUIRE(!pthread_create(&t, NULL, open_x, p));
	for (int i = 0; i < 20; i++) {
		s = source_of(p, "y");
		read_and_check(s, 0, MIB);
		source_free(s);
	}
	(void)pthread_join(t, NULL); /* from memory, in the end */
	place_free(p);
	(void)close(fd);
}
END_TEST

START_TEST(the_fetcher_keeps_no_directory_busy)
{
	const struct place_options how = { .cache_dir = "cache" };
	char link[64], path[4096], here[4096], found[8192];
	struct place *p;
	struct source *s;
	ssize_t n;

	REQUIRE(getcwd(here, sizeof(here)) && !chdir(dir));
	put_object("x", MIB);
	p = open_at("s3://b", &how);
	s = source_of(p, "x");
	read_and_check(s, 0, MIB);
	(void)snprintf(link, sizeof(link), "/proc/%d/cwd", (int)fetcher(0));
	n = readlink(link, path, sizeof(path) - 1);
	REQUIRE(n > 0);
	path[n] = 0;
	ck_assert_str_eq(path, "/");
	in_cache("map", found); /* the cache is where this process said */
	source_free(s);
	place_free(p);
	REQUIRE(!chdir(here));
}
END_TEST

/* Where the cache is if nobody says so. A relative path is relative to this process. */
static const struct {
	const char *xdg, *home; /* "{}" stands for the test's directory */
	const char *made;	/* the cache, below the test's directory; NULL: none */
} defaults[] = {
	{ "{}/xdg", "{}/home", "xdg/ckptfs/objects" },
	{ "xdg", "{}/home", "home/.cache/ckptfs/objects" },
	{ "", "{}/home", "home/.cache/ckptfs/objects" },
	{ NULL, "home", "home/.cache/ckptfs/objects" },
	{ NULL, "", NULL },
	{ NULL, NULL, NULL },
};

static void set_below(const char *name, const char *value)
{
	char text[8192];

	if (value)
		(void)snprintf(text, sizeof(text), "%s%s", strncmp(value, "{}", 2) ? "" : dir,
			       strncmp(value, "{}", 2) ? value : value + 2);
	REQUIRE(!(value ? setenv(name, text, 1) : unsetenv(name)));
}

START_LOOP_TEST(without_a_word_the_cache_is_below_home, ARRAY_LEN(defaults))
{
	const struct place_options how = { .cache_size = 64 * MIB };
	char path[8192];
	struct place *p;
	struct source *s;
	struct stat st;

	REQUIRE(!chdir(dir));
	set_below("XDG_CACHE_HOME", defaults[_i].xdg);
	set_below("HOME", defaults[_i].home);
	if (getenv("HOME")) /* it is not made, unlike what is in it */
		(void)mkdir(getenv("HOME"), 0700);
	put_object("x", MIB);
	p = open_at("s3://b", &how);
	s = source_of(p, "x");
	read_and_check(s, 0, MIB);
	source_free(s);
	place_free(p);
	if (defaults[_i].made) {
		(void)snprintf(path, sizeof(path), "%s/%s", dir, defaults[_i].made);
		ck_assert(!stat(path, &st) && S_ISDIR(st.st_mode));
		ck_assert_uint_eq(st.st_mode & 077, 0);
	}
	REQUIRE(!chdir("/"));
}
END_TEST

static const char *const full[] = { "disk", "memory" };

START_LOOP_TEST(where_there_is_no_room_it_goes_on_or_says_so, 2)
{
	const struct place_options how = { .cache_dir = cache };
	struct place *p;
	struct source *s;
	struct ckpt_err e = { 0 };
	uint8_t buf[4096];
	uint64_t bytes;

	REQUIRE(!setenv("DIR_STORE_FULL", full[_i], 1));
	put_object("x", 3 * MIB);
	p = open_at("s3://b", &how);
	s = source_of(p, "x");
	if (_i) {
		ck_assert_int_eq(source_read(s, buf, sizeof(buf), MIB, &e), -ENOSPC);
		ck_assert_msg(strstr(e.msg, "keep what was fetched: No space left") != NULL, "%s",
			      e.msg);
	} else
		read_and_check(s, 0, 3 * MIB);
	ck_assert_uint_le(logged("get", &bytes), 6);
	source_free(s);
	place_free(p);
}
END_TEST

/* From now on this process gets no more descriptors than it has. Returns what to restore. */
static struct rlimit no_descriptors(void)
{
	struct rlimit before, now;
	int next = dup(0);

	REQUIRE(next >= 0 && !close(next) && !getrlimit(RLIMIT_NOFILE, &before));
	now = before;
	now.rlim_cur = (rlim_t)next;
	REQUIRE(!setrlimit(RLIMIT_NOFILE, &now));
	return before;
}

START_TEST(without_a_descriptor_an_object_is_not_opened_and_later_is)
{
	const struct place_options how = { .cache_dir = cache };
	struct place *p;
	struct source *s;
	struct rlimit before;
	struct ckpt_err e = { 0 };

	put_object("x", 3 * MIB);
	p = open_at("s3://b", &how);
	before = no_descriptors();
	ck_assert_int_eq(place_file(p, "x", &s, &e), -EMFILE);
	ck_assert_msg(strstr(e.msg, "Too many open files") != NULL, "%s", e.msg);
	REQUIRE(!setrlimit(RLIMIT_NOFILE, &before));
	s = source_of(p, "x");
	read_and_check(s, 0, 3 * MIB);
	source_free(s);
	place_free(p);
}
END_TEST

/* The disk is full when the first block comes, so the fetcher sends another map. */
START_TEST(a_map_that_was_lost_is_asked_for_again)
{
	const struct place_options how = { .cache_dir = cache };
	struct place *p;
	struct source *s;
	struct rlimit before;
	struct ckpt_err e = { 0 };
	uint8_t buf[4096];

	REQUIRE(!setenv("DIR_STORE_FULL", full[0], 1));
	put_object("x", 3 * MIB);
	p = open_at("s3://b", &how);
	s = source_of(p, "x");
	before = no_descriptors();
	ck_assert_int_lt(source_read(s, buf, sizeof(buf), MIB, &e), 0);
	REQUIRE(!setrlimit(RLIMIT_NOFILE, &before));
	read_and_check(s, 0, 3 * MIB);
	source_free(s);
	place_free(p);
}
END_TEST

/* ---- the cache after a reboot ---- */

/* The path of a file with that name, of the only object in the cache; "map" is its map. */
static void in_cache(const char *name, char ret[static 8192])
{
	DIR *d = opendir(cache), *inner;
	const struct dirent *x;

	REQUIRE(d);
	while ((x = readdir(d)) && (x->d_name[0] == '.'))
		;
	REQUIRE(x);
	(void)snprintf(ret, 8192, "%s/%.255s", cache, x->d_name);
	(void)closedir(d);
	inner = opendir(ret);
	REQUIRE(inner);
	while ((x = readdir(inner)) && (x->d_name[0] == '.'))
		;
	REQUIRE(x);
	(void)snprintf(ret + strlen(ret), 4000, "/%.255s/%s", x->d_name, name);
	(void)closedir(inner);
}

static void flip(const char *path, uint64_t at)
{
	autoclose int fd = open(path, O_RDWR | O_CLOEXEC);
	uint8_t b;

	REQUIRE(fd >= 0 && pread(fd, &b, 1, (off_t)at) == 1);
	b ^= 0x10;
	REQUIRE(pwrite(fd, &b, 1, (off_t)at) == 1);
}

/* The fetcher is to end by SIGBUS, without a report of a sanitizer. */
static void expect_sigbus(void)
{
	static const char *const names[] = { "ASAN_OPTIONS", "TSAN_OPTIONS" };

	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		const char *old = getenv(names[i]);
		autofree char *all = NULL;

		REQUIRE(asprintf(&all, "%s:handle_sigbus=0", old ? old : "") > 0);
		REQUIRE(!setenv(names[i], all, 1));
	}
}

/* Whoever can write to the cache ends the fetcher, which begins anew, and nobody else. */
START_TEST(a_map_that_is_cut_kills_no_reader)
{
	const struct place_options how = { .cache_dir = cache };
	struct place *p;
	struct source *s;
	char map[8192];

	expect_sigbus();
	put_object("x", 3 * MIB);
	p = open_at("s3://b", &how);
	s = source_of(p, "x");
	read_and_check(s, 0, 3 * MIB);
	in_cache("map", map);
	REQUIRE(!truncate(map, 0));
	read_and_check(s, 0, 3 * MIB);
	source_free(s);
	place_free(p);
}
END_TEST

START_TEST(a_block_that_a_power_failure_tore_is_fetched_again)
{
	const struct place_options how = { .cache_dir = cache };
	char path[8192];
	struct place *p;
	struct source *s;
	uint64_t bytes;

	put_object("x", 4 * MIB + 5);
	p = open_at("s3://b", &how);
	s = source_of(p, "x");
	read_and_check(s, 0, 4 * MIB + 5);
	source_free(s);
	place_free(p);
	in_cache("0000-1", path);
	flip(path, 3 * MIB + 17);
	in_cache("map", path);
	flip(path, offsetof(struct map_head, boot) + 3); /* as if written in another boot */
	forget_log();
	p = open_at("s3://b", &how);
	s = source_of(p, "x");
	read_and_check(s, 0, 4 * MIB + 5);
	ck_assert_uint_eq(logged("get", &bytes), 1);
	ck_assert_uint_eq(bytes, WIRE_BLOCK);
	source_free(s);
	place_free(p);
}
END_TEST

START_TEST(after_a_reboot_all_that_is_wanted_is_checked_and_not_fetched)
{
	const struct place_options how = { .cache_dir = cache };
	char path[8192];
	struct place *p;
	struct source *s;
	uint64_t bytes;

	put_object("x", 30 * MIB);
	p = open_at("s3://b", &how);
	s = source_of(p, "x");
	read_and_check(s, 0, 30 * MIB);
	source_free(s);
	place_free(p);
	in_cache("0000-1", path);
	flip(path, 20 * MIB);
	in_cache("map", path);
	flip(path, offsetof(struct map_head, boot) + 3);
	forget_log();
	p = open_at("s3://b", &how);
	s = source_of(p, "x");
	ck_assert(source_want(s, 0, 30 * MIB));
	read_and_check(s, 0, 30 * MIB);
	ck_assert_uint_eq(logged("get", &bytes), 1);
	ck_assert_uint_eq(bytes, WIRE_BLOCK);
	source_free(s);
	place_free(p);
}
END_TEST

START_FEW_TEST(a_torn_map_is_made_again, 30, 4)
{
	const struct place_options how = { .cache_dir = cache };
	struct rng r = rng_new();
	char path[8192];
	struct place *p;
	struct source *s;
	struct stat st;

	put_object("x", MIB + 5);
	p = open_at("s3://b", &how);
	s = source_of(p, "x");
	read_and_check(s, 0, MIB + 5);
	source_free(s);
	place_free(p);
	(void)usleep(1000); /* the fetcher ends by itself */
	in_cache("map", path);
	REQUIRE(!stat(path, &st));
	flip(path, offsetof(struct map_head, boot) + 3);
	if (_i % 3 == 0)
		REQUIRE(!truncate(path, (off_t)rng_below(&r, (uint64_t)st.st_size)));
	for (int i = 0; _i % 3 && i < 20; i++)
		if (_i % 3 == 1)
			flip(path, rng_below(&r, (uint64_t)st.st_size));
		else
			flip(path, MAP_HEAD + rng_below(&r, (uint64_t)st.st_size - MAP_HEAD));
	p = open_at("s3://b", &how);
	s = source_of(p, "x");
	read_and_check(s, 0, MIB + 5);
	source_free(s);
	place_free(p);
}
END_TEST

START_TEST(a_directory_of_others_is_not_used)
{
	const struct place_options how = { .cache_dir = cache };
	struct place *p;
	struct source *s;
	DIR *d;
	unsigned n = 0;

	REQUIRE(!mkdir(cache, 0700) && !chmod(cache, 0777));
	put_object("x", MIB);
	p = open_at("s3://b", &how);
	s = source_of(p, "x");
	read_and_check(s, 0, MIB);
	d = opendir(cache);
	REQUIRE(d);
	while (readdir(d))
		n++;
	ck_assert_uint_eq(n, 2); /* "." and ".." */
	(void)closedir(d);
	source_free(s);
	place_free(p);
}
END_TEST

/* ---- several at a time ---- */

static uint64_t bytes_below(const char *path)
{
	char line[8300];
	uint64_t n = 0;
	FILE *f;

	(void)snprintf(line, sizeof(line), "du -sk %s", path);
	f = popen(line, "re");
	REQUIRE(f && fgets(line, sizeof(line), f));
	n = strtoull(line, NULL, 10) * 1024;
	(void)pclose(f);
	return n;
}

/* Two fetchers share a cache that is smaller than what they read. */
START_LONG_TEST(what_is_evicted_is_fetched_again_and_the_cache_stays_bounded)
{
	const struct place_options a = { .cache_dir = cache, .cache_size = 100 * MIB }, b = {
		.cache_dir = cache, .cache_size = 100 * MIB, .retry_s = 7
	};
	struct rng r = rng_new();
	struct place *p[2];
	struct source *s[2];

	put_object("x", 300 * MIB);
	p[0] = open_at("s3://b", &a);
	p[1] = open_at("s3://b", &b);
	for (int i = 0; i < 2; i++)
		s[i] = source_of(p[i], "x");
	for (uint64_t at = 0; at < 300 * MIB; at += 4 * MIB) {
		read_and_check(s[at / MIB / 4 % 2], at, 4 * MIB);
		read_and_check(s[0], rng_below(&r, 299 * MIB), 100 * KIB);
		read_and_check(s[1], rng_below(&r, 299 * MIB), 100 * KIB);
	}
	/* Each may exceed it by a segment in use, and by what it wrote since it last looked. */
	ck_assert_uint_lt(bytes_below(cache), 100 * MIB + 2 * (64 + 7 + 8) * MIB);
	for (int i = 0; i < 2; i++) {
		source_free(s[i]);
		place_free(p[i]);
	}
}
END_TEST

START_LONG_TEST(memory_in_place_of_a_cache_is_bounded_and_right)
{
	const struct place_options how = { .cache_dir = "none" };
	struct rng r = rng_new();
	struct place *p;
	struct source *s;
	uint64_t bytes;

	put_object("x", 600 * MIB);
	p = open_at("s3://b", &how);
	s = source_of(p, "x");
	for (uint64_t at = 0; at < 600 * MIB; at += 4 * MIB) {
		(void)source_want(s, at, 16 * MIB);
		read_and_check(s, at, 4 * MIB);
		if (at > 4 * MIB)
			read_and_check(s, rng_below(&r, at), 5000);
	}
	(void)logged("get", &bytes);
	ck_assert_uint_ge(bytes, 600 * MIB);
	/* The fetcher's own memory: /proc counts it as shared. */
	char path[64], line[256];
	FILE *f;
	uint64_t kib = 0;

	(void)snprintf(path, sizeof(path), "/proc/%d/status", (int)fetcher(0));
	f = fopen(path, "re");
	REQUIRE(f);
	while (fgets(line, sizeof(line), f))
		if (!strncmp(line, "VmRSS:", 6))
			kib = strtoull(line + 6, NULL, 10);
	(void)fclose(f);
	ck_assert_uint_lt(kib, (256 + 40 + 16) * 1024);
	source_free(s);
	place_free(p);
}
END_TEST

/* Several readers, each with its own fetcher, which is killed now and then. */
struct reader {
	unsigned i;
	uint64_t size;
	atomic_bool *stop;
	atomic_uint reads;
	const char *wrong;
};

static unsigned reads_of(struct reader *x, unsigned n)
{
	unsigned sum = 0;

	while (n)
		sum += x[--n].reads;
	return sum;
}

static bool right(const uint8_t *p, uint64_t off, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		if (p[i] != byte_at(off + i))
			return false;
	return true;
}

static void *read_at_random(void *arg)
{
	struct reader *x = arg;
	const struct place_options how = { .cache_dir = cache, .retry_s = 10 + x->i };
	struct rng r = { 77 * x->i + rng_new().state };
	uint8_t *buf = malloc(2 * MIB);

	while (!*x->stop && !x->wrong) {
		struct place *p = NULL;
		struct source *s = NULL;
		struct ckpt_err e = { 0 };
		const char *file;
		char *root = NULL;
		int64_t n = 0;

		if (place_open("s3://b", &how, &p, &root, &file, &e) || place_file(p, "x", &s, &e))
			n = -1;
		while (n >= 0 && !*x->stop) {
			uint64_t off = rng_below(&r, x->size),
				 len = 1 + rng_below(&r, rng_below(&r, 4) ? 70000 : 2 * MIB - 1);

			if (rng_below(&r, 3) == 0)
				(void)source_want(s, rng_below(&r, x->size),
						  1 + rng_below(&r, MIB));
			n = source_read(s, buf, len, off, &e);
			if (n < 0 && !strstr(e.msg, "has ended"))
				x->wrong = strdup(e.msg);
			if (n >= 0 && ((uint64_t)n != min_u64(len, x->size - off) ||
				       !right(buf, off, (uint64_t)n)))
				x->wrong = "other bytes";
			x->reads += n >= 0;
			if (x->wrong)
				break;
		}
		source_free(s);
		place_free(p);
		free(root);
	}
	free(buf);
	return NULL;
}

START_LONG_TEST(readers_get_the_right_bytes_while_fetchers_are_killed)
{
	enum { READERS = 4 };
	struct reader x[READERS];
	pthread_t t[READERS];
	atomic_bool stop = false;
	struct rng r = rng_new();
	unsigned killed = 0;

	REQUIRE(!setenv("DIR_STORE_DELAY", "2", 1));
	put_object("x", 30 * MIB + 12345);
	for (unsigned i = 0; i < READERS; i++) {
		x[i] = (struct reader){ .i = i, .size = 30 * MIB + 12345, .stop = &stop };
		REQUIRE(!pthread_create(&t[i], NULL, read_at_random, &x[i]));
	}
	/* On a busy machine both take longer. */
	for (unsigned i = 0; i < 40 || (i < 400 && (!killed || reads_of(x, READERS) <= 20)); i++) {
		char path[64], name[64] = "";
		uint64_t ignored;
		unsigned n;
		pid_t pid;
		FILE *f;

		(void)usleep(50000);
		n = logged("pid ", &ignored);
		pid = n ? fetcher((unsigned)rng_below(&r, n)) : 0;
		(void)snprintf(path, sizeof(path), "/proc/%d/comm", (int)pid);
		f = pid ? fopen(path, "re") : NULL;
		/* Many of them have ended, and their numbers may belong to other processes
		 * by now. */
		if (f && fgets(name, sizeof(name), f) && !strncmp(name, "dir-fetch", 9))
			killed += !kill(pid, SIGKILL);
		if (f)
			(void)fclose(f);
	}
	stop = true;
	for (unsigned i = 0; i < READERS; i++) {
		(void)pthread_join(t[i], NULL);
		ck_assert_msg(!x[i].wrong, "%s", x[i].wrong);
	}
	ck_assert_uint_gt(reads_of(x, READERS), 20);
	ck_assert_uint_gt(killed, 0);
}
END_TEST

/* ---- writing ---- */

static bool stored(const char *name, uint64_t *ret_size)
{
	char path[8192];
	struct stat st;

	(void)snprintf(path, sizeof(path), "%s/b/%s", store, name);
	if (stat(path, &st))
		return false;
	*ret_size = (uint64_t)st.st_size;
	return true;
}

static bool stored_right(const char *name, uint64_t size)
{
	char path[8192];
	uint64_t there = 0;
	bool ok;

	if (!stored(name, &there) || there != size)
		return false;
	autofree uint8_t *p = malloc(size + 1);

	(void)snprintf(path, sizeof(path), "%s/b/%s", store, name);
	autoclose int fd = open(path, O_RDONLY | O_CLOEXEC);

	REQUIRE(p && fd >= 0 && pread(fd, p, size, 0) == (ssize_t)size);
	ok = true;
	for (uint64_t i = 0; ok && i < size; i++)
		ok = p[i] == byte_at(i);
	return ok;
}

static int read_known(void *arg, uint64_t off, void *to, size_t n, struct ckpt_err *e)
{
	const int *rc = arg;

	for (size_t i = 0; i < n; i++)
		((uint8_t *)to)[i] = byte_at(off + i);
	return rc && *rc ? err_set(e, *rc, "the source fails") : 0;
}

/* Writes a file in pieces, with writing_add. */
static int write_file(struct writing *w, const char *name, uint64_t size, struct ckpt_err *e)
{
	autofree uint8_t *p = malloc(MIB);
	struct writing_file *f = NULL;
	int rc = p ? writing_file(w, name, &f, e) : err_nomem(e);

	for (uint64_t at = 0, n; !rc && at < size; at += n) {
		n = min_u64(MIB, size - at);
		(void)read_known(NULL, at, p, n, e);
		rc = writing_add(f, p, n, e);
	}
	if (rc)
		writing_drop(f);
	return rc ? rc : writing_finish(f, e);
}

/* The same in parts, of which the last comes first. */
static int write_parts(struct writing *w, const char *name, uint64_t size, struct ckpt_err *e)
{
	uint64_t each = writing_part_size(size);
	unsigned n = (unsigned)((size + each - 1) / each);
	uint32_t number = writing_number(w);
	int rc = 0;

	for (unsigned i = n ? n : 1; !rc && i; i--)
		rc = writing_part(w, number, name, size, i, read_known, NULL, e);
	return rc;
}

#define LARGE (9 * MIB + 11)

/* Files of several sizes, of which one is the commit point, in place of those that are named. */
static int write_checkpoint(struct writing *w, struct ckpt_err *e)
{
	int rc = write_file(w, "large", LARGE, e);

	if (!rc)
		rc = write_parts(w, "dir/parts", LARGE - 7, e);
	if (!rc)
		rc = write_file(w, "small", 12345, e);
	if (!rc)
		rc = write_file(w, "empty", 0, e);
	if (!rc)
		rc = write_parts(w, "none", 0, e);
	if (!rc)
		rc = write_file(w, "last", 77, e);
	if (!rc)
		rc = writing_name(w, WRITING_LAST, "last", e);
	if (!rc)
		rc = writing_name(w, WRITING_REMOVED_FIRST, "last.old", e);
	if (!rc)
		rc = writing_name(w, WRITING_REMOVED, "old", e);
	return rc ? rc : writing_commit(w, e);
}

static bool checkpoint_is_right(void)
{
	return stored_right("large", LARGE) && stored_right("dir/parts", LARGE - 7) &&
	       stored_right("small", 12345) && stored_right("empty", 0) &&
	       stored_right("none", 0) && stored_right("last", 77);
}

/* How many files of the checkpoint are there. */
static unsigned stored_files(void)
{
	static const char *const names[] = {
		"large", "dir/parts", "small", "empty", "none", "last"
	};
	uint64_t ignored;
	unsigned n = 0;

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		n += stored(names[i], &ignored);
	return n;
}

static struct writing *writing_at(const char *address, bool only_new)
{
	const struct place_options how = { .cache_dir = "none" };
	struct ckpt_err e = { 0 };
	struct writing *w;

	ck_assert_msg(!writing_open(address, &how, &w, &e), "%s", e.msg);
	ck_assert_msg(!writing_begin(w, only_new, &e), "%s", e.msg);
	return w;
}

START_TEST(what_is_written_appears_whole_in_place_of_what_was_there)
{
	struct ckpt_err e = { 0 };
	uint64_t size;
	char left[512];
	struct writing *w;

	put_object("last.old", 5);
	put_object("old", 5);
	w = writing_at("s3://b/", true);
	ck_assert_str_eq(writing_address(w), "s3://b");
	ck_assert_ptr_nonnull(writing_place(w));
	ck_assert_msg(!write_checkpoint(w, &e), "%s", e.msg);
	writing_close(w, left, sizeof(left));
	ck_assert_str_eq(left, "");
	ck_assert(checkpoint_is_right());
	ck_assert(!stored("last.old", &size) && !stored("old", &size));
	writing_close(NULL, left, sizeof(left));
}
END_TEST

START_TEST(what_is_not_committed_leaves_nothing)
{
	struct ckpt_err e = { 0 };
	uint64_t ignored;
	char left[512];
	struct writing *w = writing_at("s3://b", true);
	struct writing_file *f;

	ck_assert_msg(!write_file(w, "large", LARGE, &e), "%s", e.msg);
	ck_assert_msg(!writing_flush(w, &e), "%s", e.msg);
	ck_assert_msg(!writing_file(w, "dropped", &f, &e), "%s", e.msg);
	ck_assert_msg(!writing_add(f, "x", 1, &e), "%s", e.msg);
	writing_drop(f);
	writing_drop(NULL);
	writing_close(w, left, sizeof(left));
	ck_assert_str_eq(left, "");
	ck_assert_uint_eq(stored_files(), 0);
	ck_assert_uint_eq(logged("abort large", &ignored), 1);
}
END_TEST

START_TEST(what_somebody_else_has_made_stays_unless_it_may_be_replaced)
{
	struct ckpt_err e = { 0 };
	uint64_t size;
	char left[512];
	struct writing *w;

	put_object("small", 5);
	w = writing_at("s3://b", true);
	ck_assert_int_eq(write_checkpoint(w, &e), -EEXIST);
	ck_assert_msg(strstr(e.msg, "'small' has meanwhile been created by somebody else") != NULL,
		      "%s", e.msg);
	writing_close(w, left, sizeof(left));
	ck_assert_str_eq(left, "the checkpoint that was there before is gone"); /* last.old */
	ck_assert(stored("small", &size) && size == 5);
	ck_assert_uint_eq(stored_files(), 1);
	w = writing_at("s3://b", false);
	ck_assert_msg(!write_checkpoint(w, &e), "%s", e.msg);
	writing_close(w, left, sizeof(left));
	ck_assert(checkpoint_is_right());
}
END_TEST

static bool is_stopped(void *arg)
{
	return atomic_load((atomic_bool *)arg);
}

START_TEST(who_stops_waits_for_nothing)
{
	atomic_bool stopped = false;
	struct ckpt_err e = { 0 };
	char left[512];
	struct writing *w;

	REQUIRE(!setenv("DIR_STORE_DELAY", "300", 1));
	w = writing_at("s3://b", true);
	writing_stop(w, is_stopped, &stopped);
	ck_assert_msg(!write_file(w, "large", LARGE, &e), "%s", e.msg);
	stopped = true;
	ck_assert_int_eq(writing_flush(w, &e), -ECANCELED);
	ck_assert_int_eq(writing_commit(w, &e), -ECANCELED);
	writing_close(w, left, sizeof(left));
	ck_assert_uint_eq(stored_files(), 0);
}
END_TEST

START_TEST(a_commit_that_is_not_waited_for_is_said_to_be_finished)
{
	uint64_t end = clock_ns() + 10 * CLOCK_SECOND;
	atomic_bool stopped = false;
	struct ckpt_err e = { 0 };
	char left[512];
	struct writing *w;

	REQUIRE(!setenv("DIR_STORE_DELAY", "300", 1));
	w = writing_at("s3://b", true);
	ck_assert_msg(!write_file(w, "small", 100, &e), "%s", e.msg);
	ck_assert_msg(!writing_flush(w, &e), "%s", e.msg);
	writing_stop(w, is_stopped, &stopped);
	stopped = true;
	ck_assert_int_eq(writing_commit(w, &e), -ECANCELED);
	writing_close(w, left, sizeof(left));
	ck_assert_str_eq(
		left, "its last step had begun and is being completed: check whether it is there");
	while (!stored_right("small", 100)) {
		ck_assert_uint_lt(clock_ns(), end);
		(void)usleep(1000);
	}
}
END_TEST

static const struct {
	const char *address;
	int rc;
	const char *says;
} not_written[] = {
	{ "file:///x", -ENOTSUP, "file:// is for reading: write to the directory's path" },
	{ "FILE:///x", -ENOTSUP, "ckptfs writes to s3:// and gs:// only" },
	{ "GS://b", -ENOTSUP, "ckptfs writes to s3:// and gs:// only" },
	{ "https://b/x", -ENOTSUP, "'https://b/x': ckptfs writes to s3:// and gs:// only" },
	{ "hf://b/x", -ENOTSUP, "ckptfs writes to s3:// and gs:// only" },
	{ "https://me:secret@b/x", -ENOTSUP, "ckptfs writes to s3:// and gs:// only" },
	{ "gs://b", -ENOTSUP, NULL }, /* by the store */
};

START_LOOP_TEST(only_object_stores_are_written_to, ARRAY_LEN(not_written))
{
	const struct place_options how = { .cache_dir = "none" };
	struct ckpt_err e = { 0 };
	struct writing *w = NULL;
	char left[512];
	int rc = writing_open(not_written[_i].address, &how, &w, &e);

	ck_assert_int_eq(rc, not_written[_i].says ? not_written[_i].rc : 0);
	if (!rc) {
		ck_assert_int_eq(writing_begin(w, true, &e), not_written[_i].rc);
		writing_close(w, left, sizeof(left));
		ck_assert_str_eq(left, "");
	} else
		ck_assert_msg(strstr(e.msg, not_written[_i].says) && !strstr(e.msg, "secret"), "%s",
			      e.msg);
}
END_TEST

START_TEST(parts_and_names_have_bounds)
{
	static char name[40000];
	struct ckpt_err e = { 0 };
	uint64_t ignored;
	int rc = ENODATA;
	char left[512];
	struct writing *w = writing_at("s3://b", true);

	ck_assert_int_eq(writing_part(w, 0, "a", 100, 0, read_known, NULL, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "'a': impossible part 0");
	ck_assert_int_eq(writing_part(w, 0, "a", 100, 2, read_known, NULL, &e), -EINVAL);
	ck_assert_int_eq(writing_part(w, 0, "a", 0, 2, read_known, NULL, &e), -EINVAL);
	ck_assert_int_eq(writing_part(w, 0, "a", 100, 1, read_known, &rc, &e), -ENODATA);
	ck_assert_str_eq(e.msg, "the source fails");
	ck_assert_uint_eq(writing_part_size(1), WRITING_PART);
	ck_assert_uint_eq(writing_part_size(WRITING_PART * 10000 - 1), WRITING_PART);
	ck_assert_uint_eq(writing_part_size(WRITING_PART * 10000), 2 * WRITING_PART);
	memset(name, 'n', sizeof(name) - 1);
	ck_assert_int_eq(writing_name(w, WRITING_REMOVED, name, &e), -ENAMETOOLONG);
	/* Many are sent in several messages. */
	for (int i = 0; i < 1000; i++) {
		(void)snprintf(name, sizeof(name), "%080d", i);
		ck_assert_msg(!writing_name(w, WRITING_REMOVED, name, &e), "%s", e.msg);
	}
	ck_assert_msg(!write_file(w, "small", 5, &e), "%s", e.msg);
	ck_assert_msg(!writing_commit(w, &e), "%s", e.msg);
	ck_assert_uint_eq(logged("remove 0", &ignored), 1000);
	writing_close(w, left, sizeof(left));
	ck_assert(stored_right("small", 5));
}
END_TEST

START_TEST(a_name_that_leads_elsewhere_is_refused_by_the_fetcher)
{
	static const char *const names[] = { "../x", "/x", "a//b", "" };
	struct ckpt_err e = { 0 };
	char left[512];

	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		struct writing *w = writing_at("s3://b", true);
		int rc = write_file(w, names[i], 5, &e);

		if (!rc)
			rc = writing_flush(w, &e);
		ck_assert_msg(rc == -EINVAL, "%d: %s", rc, e.msg);
		ck_assert_str_eq(e.msg, "an impossible part");
		/* It stays so. */
		ck_assert_int_eq(write_file(w, "small", 5, &e), -EINVAL);
		writing_close(w, left, sizeof(left));
	}
	struct writing *w = writing_at("s3://b", true);

	ck_assert_msg(!writing_name(w, WRITING_REMOVED, "../x", &e), "%s", e.msg);
	ck_assert_int_lt(writing_commit(w, &e), 0);
	writing_close(w, left, sizeof(left));
	ck_assert_uint_eq(stored_files(), 0);
}
END_TEST

/* Each request fails once, after it has had its effect. */
START_FEW_TEST(a_request_that_fails_shows_all_or_nothing, 30, 6)
{
	struct ckpt_err e = { 0 };
	uint64_t ignored;
	char left[512], n[16];
	struct writing *w;
	int rc;

	(void)snprintf(n, sizeof(n), "%d", _i + 1);
	put_object("last.old", 5);
	REQUIRE(!setenv("DIR_STORE_FAIL", n, 1));
	w = writing_at("s3://b", true);
	rc = write_checkpoint(w, &e);
	writing_close(w, left, sizeof(left));
	if (!rc)
		ck_assert_msg(checkpoint_is_right(), "%s", left);
	else if (stored("last", &ignored))
		ck_assert_msg(strstr(left, "may be complete and visible") != NULL, "%s", left);
	else if (!*left)
		ck_assert_uint_eq(stored_files(), 0);
	if (rc)
		ck_assert_str_ne(e.msg, "");
}
END_TEST

START_TEST(a_session_ends_with_its_fetcher)
{
	struct ckpt_err e = { 0 };
	char left[512];
	struct writing *w = writing_at("s3://b", true);

	ck_assert_msg(!write_file(w, "large", LARGE, &e), "%s", e.msg);
	ck_assert_msg(!writing_flush(w, &e), "%s", e.msg);
	REQUIRE(!kill(fetcher(0), SIGKILL));
	ck_assert_int_eq(write_checkpoint(w, &e), -EIO);
	ck_assert_msg(strstr(e.msg, "ckptfs-fetch, which reads object stores, has ended") != NULL,
		      "%s", e.msg);
	writing_close(w, left, sizeof(left));
	ck_assert_msg(!strncmp(left, "uploads may be left: ", 21), "%s", left);
	ck_assert_uint_eq(stored_files(), 0);
}
END_TEST

/* ---- calls that fail, in this process and in the fetcher ---- */

/* Opens, lists, looks, reads and writes; 0, or the first error. */
static int do_everything(const struct place_options *how, uint64_t round, struct ckpt_err *e)
{
	char address[64], path[64];
	autofree uint8_t *buf = malloc(3 * MIB);
	struct place *p = NULL;
	struct source *s = NULL;
	struct writing *w = NULL;
	const char *file;
	char *root = NULL, left[512];
	int64_t n = 0;
	int rc = buf ? place_open("s3://b", how, &p, &root, &file, e) : err_nomem(e);

	if (!rc)
		rc = place_file(p, "x", &s, e);
	if (!rc)
		(void)source_want(s, 0, 2 * MIB);
	if (!rc && (n = source_read(s, buf, 2 * MIB + 77, MIB - 100, e)) < 0)
		rc = (int)n;
	if (!rc && (n != 2 * MIB + 77 || !right(buf, MIB - 100, 2 * MIB + 77)))
		rc = err_set(e, EILSEQ, "other bytes");
	if (!rc) {
		const uint8_t *at = source_map(s, MIB, MIB);

		if (at && !right(at, MIB, MIB))
			rc = err_set(e, EILSEQ, "other bytes in a map");
	}
	source_free(s);
	place_free(p);
	free(root);
	/* A new address each time: a fetcher that has lost its client may still be at work. */
	(void)snprintf(address, sizeof(address), "s3://b/%llu", (unsigned long long)round);
	if (!rc)
		rc = writing_open(address, how, &w, e);
	if (!rc)
		rc = writing_begin(w, false, e);
	if (!rc)
		rc = write_file(w, "a", 9 * MIB, e);
	if (!rc)
		rc = write_file(w, "last", 77, e);
	if (!rc)
		rc = writing_name(w, WRITING_LAST, "last", e);
	if (!rc)
		rc = writing_commit(w, e);
	if (w)
		writing_close(w, left, sizeof(left));
	(void)fault_off(); /* from here on, the test itself looks */
	(void)snprintf(path, sizeof(path), "%llu/a", (unsigned long long)round);
	if (!rc && !stored_right(path, 9 * MIB))
		rc = err_set(e, EILSEQ, "other bytes were stored");
	(void)snprintf(path, sizeof(path), "%llu/last", (unsigned long long)round);
	if (!rc && !stored_right(path, 77))
		rc = err_set(e, EILSEQ, "other bytes were stored");
	return rc;
}

/* With a cache, and in memory. */
START_FEW_TEST(whatever_fails_in_the_fetcher_is_a_clean_error_or_nothing, 2, 1)
{
	struct ckpt_err e = { 0 };
	uint64_t ignored, n = 1;
	unsigned failed = 0;

	put_object("x", 4 * MIB);
	for (;; n = fault_some(n)) {
		const struct place_options how = { .cache_dir = _i ? "none" : cache, .retry_s = 5 };
		char text[24];
		int rc;

		(void)snprintf(cache, sizeof(cache), "%.4000s/cache-%llu", dir,
			       (unsigned long long)n);
		(void)snprintf(text, sizeof(text), "%llu", (unsigned long long)n);
		REQUIRE(!setenv("DIR_STORE_FAULT", text, 1));
		forget_log();
		e = (struct ckpt_err){ 0 };
		rc = do_everything(&how, n, &e);
		ck_assert_msg(!rc || (rc == -e.code && *e.msg && rc != -EILSEQ), "call %s: %d: %s",
			      text, rc, e.msg);
		failed += rc != 0;
		if (!logged("fault ", &ignored))
			break;
	}
	ck_assert_uint_gt(n, 100);
	ck_assert_uint_gt(failed, 0);
}
END_TEST

START_LONG_TEST(whatever_fails_here_when_all_is_done_is_a_clean_error)
{
	const struct place_options how = { .cache_dir = "none", .retry_s = 5 };
	unsigned failed = 0;

	put_object("x", 4 * MIB);
	/* Not FAULT_WRITE: writing to an event does not fail. */
	FAULT_LOOP_SOME((enum fault_kind)(FAULT_ALLOC | FAULT_OPEN | FAULT_MAP | FAULT_THREAD |
					  FAULT_READ | FAULT_STAT),
			1)
	{
		struct ckpt_err e = { 0 };
		int rc;

		rc = do_everything(&how, fault_n, &e);
		fault_off();
		failed += rc != 0;
		ck_assert_msg(!rc || (rc == -e.code && *e.msg && rc != -EILSEQ), "%s: %d: %s",
			      fault_name(), rc, e.msg);
	}
	ck_assert_uint_gt(failed, 0);
}
END_TEST

/* ---- no memory, and another side that lies ---- */

START_TEST(whatever_fails_here_is_a_clean_error)
{
	const struct place_options how = { .cache_dir = "none" };
	struct place *keep;

	put_object("x", 200 * KIB);
	keep = open_at("s3://b", &how); /* the fetcher goes on */
	FAULT_LOOP(FAULT_ALLOC)
	{
		struct place *p = NULL;
		struct source *s = NULL;
		struct ckpt_err e = { 0 };
		const char *file;
		char *root = NULL;
		uint8_t buf[8192];
		int rc = place_open("s3://b", &how, &p, &root, &file, &e);

		if (!rc)
			rc = place_file(p, "x", &s, &e);
		if (!rc) {
			int64_t n = source_read(s, buf, sizeof(buf), 60 * KIB, &e);

			rc = n < 0 ? (int)n : 0;
		}
		fault_off();
		ck_assert_msg(rc ? rc == -e.code && *e.msg : right(buf, 60 * KIB, sizeof(buf)),
			      "%d: %s", rc, e.msg);
		source_free(s);
		place_free(p);
		free(root);
	}
	place_free(keep);
}
END_TEST

START_FEW_TEST(a_fetcher_that_lies_does_no_harm_but_to_itself, 8, 2)
{
	const struct place_options how = { .cache_dir = "none" };
	char seed[24];

	(void)snprintf(seed, sizeof(seed), "%llu",
		       (unsigned long long)(rng_new().state % 1000000 + 1 + (unsigned)_i));
	REQUIRE(!setenv("DIR_STORE_MAD", seed, 1));
	put_object("x", 3 * MIB);
	for (int i = 0; i < 20; i++) {
		struct place *p = NULL;
		struct source *s = NULL;
		struct ckpt_err e = { 0 };
		const char *file;
		char *root = NULL;
		autofree uint8_t *buf = malloc(MIB);
		int rc = place_open("s3://b", &how, &p, &root, &file, &e);

		REQUIRE(buf);
		if (!rc && !place_file(p, "x", &s, &e))
			for (uint64_t at = 0; at < 3 * MIB; at += MIB)
				(void)source_read(s, buf, MIB, at, &e);
		source_free(s);
		place_free(p);
		free(root);
	}
}
END_TEST

SUITE(remote, .setup = setup, .seconds = 400)
