/* SPDX-License-Identifier: Apache-2.0 */
#include "base/cleanup.h"
#include "dir_util.h"
#include "source/guard.h"
#include "source/pagemap.h"
#include "suites.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define BLOCK ((uint64_t)1 << PAGEMAP_SHIFT)

/* A file of n random bytes, which are returned too. */
static uint8_t *make_file(const char *name, uint64_t n, int *ret_fd)
{
	struct rng r = rng_new();
	uint8_t *p = malloc(n);

	REQUIRE(p);
	random_bytes(&r, p, n);
	put_file(dir_fd, name, p, n);
	*ret_fd = openat(dir_fd, name, O_RDWR | O_CLOEXEC);
	REQUIRE(*ret_fd >= 0);
	return p;
}

/* pagemap_get, but tried again after reading the file: the kernel may just have taken its pages
 * away. */
static const uint8_t *get(struct pagemap *m, int fd, uint64_t off, uint64_t len)
{
	autofree uint8_t *buf = malloc(4 * BLOCK);
	const uint8_t *p = pagemap_get(m, off, len, false);

	REQUIRE(buf);
	for (int i = 0; !p && i < 100; i++) {
		REQUIRE(pread(fd, buf, 4 * BLOCK, 0) > 0);
		p = pagemap_get(m, off, len, false);
	}
	return p;
}

START_TEST(what_is_in_memory_is_shown)
{
	struct pagepool *pool = pagepool_new(64 * BLOCK);
	const uint64_t n = 3 * BLOCK + 12345;
	struct rng r = rng_new();
	int fd;
	uint8_t *want = make_file("f", n, &fd);
	struct pagemap *m = pagemap_new(pool, fd, n);

	ck_assert_ptr_nonnull(m);
	for (int i = 0; i < 200; i++) {
		uint64_t off = rng_below(&r, n), len = 1 + rng_below(&r, n - off);
		const uint8_t *p = get(m, fd, off, len);

		ck_assert_ptr_nonnull(p);
		REQUIRE(!memcmp(p, want + off, len));
	}
	ck_assert_ptr_nonnull(get(m, fd, 0, n));
	ck_assert_ptr_null(pagemap_get(m, 0, n + 1, false));
	ck_assert_ptr_null(pagemap_get(m, n, 1, false));
	ck_assert_ptr_null(pagemap_get(m, UINT64_MAX, 2, false));
	pagemap_free(m);
	pagepool_free(pool);
	(void)close(fd);
	free(want);
}
END_TEST

/* A hole has no pages until it is read. */
START_TEST(what_is_not_in_memory_is_not_mapped)
{
	struct pagepool *pool = pagepool_new(64 * BLOCK);
	const uint64_t n = 4 * BLOCK;
	autofree uint8_t *buf = malloc(BLOCK);
	struct pagemap *m;
	int fd;
	uint8_t *want = make_file("f", BLOCK, &fd);

	ck_assert_int_eq(ftruncate(fd, (off_t)n), 0);
	m = pagemap_new(pool, fd, n);
	ck_assert_ptr_null(pagemap_get(m, 2 * BLOCK, 1, false));
	ck_assert_ptr_null(pagemap_get(m, BLOCK - 1, 2, false));
	ck_assert_ptr_nonnull(get(m, fd, BLOCK - 1, 1));
	ck_assert_ptr_nonnull(get(m, fd, 0, BLOCK));
	ck_assert_int_eq((int)pread(fd, buf, BLOCK, (off_t)BLOCK), (int)BLOCK);
	ck_assert_ptr_nonnull(get(m, fd, BLOCK - 1, 2));
	pagemap_free(m);
	pagepool_free(pool);
	(void)close(fd);
	free(want);
}
END_TEST

/*
 * How many blocks of a file that is mapped at `base` have pages there, according to the kernel.
 * Only the middle page of each block is asked for, since a page fault may map its neighbours as
 * well.
 */
static unsigned blocks_mapped(const uint8_t *base, uint64_t n)
{
	const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	autoclose int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	unsigned mapped = 0;

	REQUIRE(fd >= 0);
	for (uint64_t at = BLOCK / 2; base && at < n; at += BLOCK) {
		uint64_t entry, i = ((uintptr_t)base + at) / page;

		REQUIRE(pread(fd, &entry, sizeof(entry), (off_t)(i * sizeof(entry))) == 8);
		mapped += (unsigned)(entry >> 63);
	}
	return mapped;
}

START_TEST(no_more_is_mapped_than_is_allowed)
{
	enum { FILES = 5, ALLOWED = 3 };
	struct pagepool *pool = pagepool_new(ALLOWED * BLOCK);
	struct pagemap *m[FILES];
	uint8_t *want[FILES];
	const uint8_t *base[FILES] = { NULL };
	struct rng r = rng_new();
	int fds[FILES];

	for (int i = 0; i < FILES; i++) {
		want[i] = make_file((const char[]){ (char)('a' + i), 0 }, 2 * BLOCK, &fds[i]);
		m[i] = pagemap_new(pool, fds[i], 2 * BLOCK);
		ck_assert_ptr_nonnull(m[i]);
	}
	for (int i = 0; i < 100; i++) {
		/* Reads stay within one block: the second of two may take the slot of the first,
		 * which is mapped once more when it is read. */
		uint64_t k = rng_below(&r, FILES), off = rng_below(&r, 2 * BLOCK),
			 len = 1 + rng_below(&r, BLOCK - off % BLOCK);
		const uint8_t *p = get(m[k], fds[k], off, len);
		unsigned mapped = 0;

		ck_assert_ptr_nonnull(p);
		REQUIRE(!memcmp(p, want[k] + off, len));
		base[k] = p - off;
		for (int j = 0; j < FILES; j++)
			mapped += blocks_mapped(base[j], 2 * BLOCK);
		ck_assert_uint_le(mapped, ALLOWED);
		if (i == 50) { /* frees its slots for others */
			pagemap_free(m[k]);
			m[k] = pagemap_new(pool, fds[k], 2 * BLOCK);
			ck_assert_ptr_nonnull(m[k]);
			base[k] = NULL;
		}
	}
	for (int i = 0; i < FILES; i++) {
		pagemap_free(m[i]);
		(void)close(fds[i]);
		free(want[i]);
	}
	pagepool_free(pool);
}
END_TEST

struct crowd {
	struct pagemap *m;
	const uint8_t *want;
	uint64_t n;
	int fd;
	atomic_uint turn;
};

static void *look_around(void *arg)
{
	struct crowd *c = arg;
	struct rng r = { ++c->turn };

	for (int i = 0; i < 300; i++) {
		uint64_t off = rng_below(&r, c->n - 4096);
		const uint8_t *p = get(c->m, c->fd, off, 4096);

		if (!p || memcmp(p, c->want + off, 4096) != 0)
			return arg;
	}
	return NULL;
}

START_TEST(threads_look_at_once_under_a_small_bound)
{
	struct pagepool *pool = pagepool_new(BLOCK);
	struct crowd c = { .n = 3 * BLOCK };
	pthread_t threads[6];
	int fd;
	uint8_t *want = make_file("f", c.n, &fd);

	c.want = want;
	c.fd = fd;
	c.m = pagemap_new(pool, fd, c.n);
	ck_assert_ptr_nonnull(c.m);
	for (int i = 0; i < 6; i++)
		ck_assert_int_eq(pthread_create(&threads[i], NULL, look_around, &c), 0);
	for (int i = 0; i < 6; i++) {
		void *bad;

		(void)pthread_join(threads[i], &bad);
		ck_assert_ptr_null(bad);
	}
	pagemap_free(c.m);
	pagepool_free(pool);
	(void)close(fd);
	free(want);
}
END_TEST

/* ---- files that become shorter ---- */

struct touch {
	const volatile uint8_t *p;
	uint64_t n, seen;
};

static void touch(void *arg)
{
	struct touch *t = arg;

	for (uint64_t i = 0; i < t->n; i += 512) {
		(void)t->p[i];
		t->seen = i;
	}
}

START_TEST(a_page_that_went_ends_the_function_and_not_the_process)
{
	struct pagepool *pool = pagepool_new(64 * BLOCK);
	struct touch t = { .n = 2 * BLOCK };
	struct pagemap *m;
	int fd;
	uint8_t *want = make_file("f", t.n, &fd);

	guard_install();
	m = pagemap_new(pool, fd, t.n);
	for (int i = 0; i < 3; i++) { /* the signal comes every time */
		t.p = get(m, fd, 0, t.n);
		ck_assert(t.p);
		ck_assert(guard_run(touch, &t));
		ck_assert_int_eq(ftruncate(fd, 8192), 0);
		ck_assert(!guard_run(touch, &t));
		ck_assert_uint_eq(t.seen, 8192 - 512);
		/* Bytes that a file no longer has are not given out. */
		ck_assert_ptr_null(pagemap_get(m, 0, t.n, false));
		ck_assert_int_eq((int)pwrite(fd, want, t.n, 0), (int)t.n);
	}
	pagemap_free(m);
	pagepool_free(pool);
	(void)close(fd);
	free(want);
}
END_TEST

START_TEST(system_calls_say_so_without_a_guard)
{
	struct pagepool *pool = pagepool_new(64 * BLOCK);
	struct pagemap *m;
	const uint8_t *p;
	int fd, ends[2];
	uint8_t *want = make_file("f", BLOCK, &fd);

	m = pagemap_new(pool, fd, BLOCK);
	p = get(m, fd, 0, BLOCK);
	ck_assert_ptr_nonnull(p);
	ck_assert_int_eq(pipe(ends), 0);
	ck_assert_int_eq(ftruncate(fd, 0), 0);
	ck_assert_int_eq((int)write(ends[1], p + 4096, 4096), -1);
	ck_assert_int_eq(errno, EFAULT);
	(void)close(ends[0]);
	(void)close(ends[1]);
	pagemap_free(m);
	pagepool_free(pool);
	(void)close(fd);
	free(want);
}
END_TEST

static void other_handler(int sig)
{
	_exit(sig == SIGBUS ? 77 : 78);
}

/* By touching a page that is gone, or by kill(2). */
static void cause(bool really, int fd)
{
	struct pagepool *pool = pagepool_new(BLOCK);
	struct pagemap *m = pagemap_new(pool, fd, BLOCK);
	struct touch t = { get(m, fd, 0, BLOCK), BLOCK, 0 };

	REQUIRE(t.p && !ftruncate(fd, 0));
	if (really)
		touch(&t);
	else
		(void)raise(SIGBUS);
	_exit(79);
}

START_LOOP_TEST(signals_of_others_go_where_they_went_before, 4)
{
	bool really = _i & 1, handled = _i & 2;
	int fd, status;
	uint8_t *want = make_file("f", BLOCK, &fd);
	pid_t child = fork();

	ck_assert_int_ge(child, 0);
	if (!child) {
		/* Not a sanitizer's. */
		(void)signal(SIGBUS, handled ? other_handler : SIG_DFL);
		guard_install();
		cause(really, fd);
	}
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	if (handled)
		ck_assert_int_eq(WEXITSTATUS(status), 77);
	else
		ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
	(void)close(fd);
	free(want);
}
END_TEST

START_TEST(what_cannot_be_mapped_is_not)
{
	struct pagepool *pool = pagepool_new(BLOCK);
	int ends[2];

	ck_assert_int_eq(pipe(ends), 0);
	ck_assert_ptr_null(pagemap_new(pool, ends[0], 4096));
	ck_assert_ptr_null(pagemap_new(pool, dir_fd, 0));
	ck_assert_ptr_null(pagemap_new(pool, dir_fd, UINT64_MAX));
	(void)close(ends[0]);
	(void)close(ends[1]);
	pagepool_free(pool);
	pagemap_free(NULL);
	pagepool_free(NULL);
}
END_TEST

SUITE(pagemap, .setup = dir_setup, .teardown = dir_teardown, .seconds = 60)
