/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Real and synthetic .metadata with random bytes changed: there must be a value or a clean error,
 * in bounded time and memory. This is meant for builds with sanitizers; the runner's first line has
 * the seed of a failure.
 */
#include "parse/pickle.h"
#include "parse/pickle_lex.h"
#include "pickle_util.h"
#include "rng.h"
#include "suites.h"

#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_FILES = 64, MAX_SIZE = 256 << 10 };

#ifdef __SANITIZE_THREAD__ /* nothing to find for it here */
enum { ROUNDS = 2000 };
#else
enum { ROUNDS = 20000 };
#endif

struct file {
	uint8_t *bytes;
	size_t n;
};

static size_t read_files(struct file *files)
{
	const char *dir = getenv("TEST_DATA");
	char pattern[4096];
	size_t n_files = 0;
	glob_t found;

	(void)snprintf(pattern, sizeof(pattern), "%s/*/ckpt/.metadata", dir ? dir : "tests/data");
	if (glob(pattern, 0, NULL, &found))
		return 0;
	for (size_t i = 0; i < found.gl_pathc && n_files < MAX_FILES; i++) {
		uint8_t *bytes = malloc(MAX_SIZE);
		int fd = open(found.gl_pathv[i], O_RDONLY | O_CLOEXEC);
		ssize_t n = fd < 0 ? -1 : read(fd, bytes, MAX_SIZE);

		(void)close(fd);
		if (n > 0)
			files[n_files++] = (struct file){ bytes, (size_t)n };
		else
			free(bytes);
	}
	globfree(&found);
	return n_files;
}

static size_t make_files(struct file *files)
{
	for (size_t i = 0; i < 4; i++) {
		struct emit m = EMIT_INIT(2 + (int)i, i % 2);

		emit_metadata(&m, 3, 2);
		REQUIRE(!m.b.err);
		files[i] = (struct file){ (uint8_t *)m.b.data, m.b.len };
	}
	return 4;
}

static uint8_t random_byte(struct rng *r)
{
	static const char ops[] =
		"(.012NJKMQRTUXabcdehjlqrstu}])GBC"
		"\x80\x81\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f\x90\x91\x92\x93"
		"\x94\x95\x96";

	return rng_chance(r, 70) ? (uint8_t)ops[rng_below(r, sizeof(ops) - 1)]
				 : (uint8_t)rng_u64(r);
}

/* Change a few bytes of b, which has room for twice n; its new length. */
static size_t mutate(struct rng *r, uint8_t *b, size_t n)
{
	for (uint64_t times = 1 + rng_below(r, 6); times && n; times--) {
		size_t at = rng_below(r, n), len = 1 + rng_below(r, 16);

		if (len > n - at)
			len = n - at;
		switch (rng_below(r, 8)) {
		case 0: /* flip a bit */
			b[at] ^= (uint8_t)(1u << rng_below(r, 8));
			break;
		case 1: /* lose a piece */
			memmove(b + at, b + at + len, n - at - len);
			n -= len;
			break;
		case 2: /* repeat a piece */
			memmove(b + at + len, b + at, n - at);
			n += len;
			break;
		case 3: /* copy a piece elsewhere */
			memmove(b + rng_below(r, n - len + 1), b + at, len);
			break;
		case 4: /* a huge number */
			memset(b + at, 0xff, len < 4 ? len : 4);
			break;
		default:
			b[at] = random_byte(r);
			break;
		}
	}
	return n;
}

/* With the DCP reader's hooks and without; in one piece and in many. All must agree. */
static bool load_all_ways(const uint8_t *b, size_t n)
{
	int first = 0;

	for (int way = 0; way < 3; way++) {
		struct dcp_count count = { 0 };
		struct pickle_opts opts = { .max_bytes = 16 << 20 };
		struct buf text = BUF_INIT(64 << 10);
		struct pickle *p = NULL;
		struct ckpt_err e = { 0 };
		int rc;

		if (way != 1) {
			opts.hooks = &dcp_hooks;
			opts.arg = &count;
			opts.drop_unknown = true;
		}
		rc = load_bytes(b, n, way == 2 ? 1 + n / 3 : 0, &opts, &p, &e);
		if (way == 0)
			first = rc;
		else if (way == 2)
			REQUIRE(rc == first);
		if (rc) {
			REQUIRE(!p && e.code == -rc && e.msg[0]);
			REQUIRE(rc == -ENODATA || rc == -EBADMSG || rc == -EFBIG || rc == -ENOTSUP);
		} else {
			struct pk_value root = pickle_root(p);

			REQUIRE(pickle_end(p) <= n);
			print_value(&text, &root);
		}
		pickle_free(p);
		buf_release(&text);
	}
	return !first;
}

static int rounds(void)
{
	return (int)rng_rounds(ROUNDS, ROUNDS / 4);
}

static void run(struct file *files, size_t n_files, int rounds)
{
	struct rng r = rng_new();
	uint8_t *b = malloc(2 * MAX_SIZE);
	int loaded = 0;

	REQUIRE(b);
	for (size_t i = 0; i < n_files; i++)
		ck_assert_msg(files[i].n <= MAX_SIZE, "file %zu is too large", i);
	for (int i = 0; i < rounds; i++) {
		const struct file *f = &files[rng_below(&r, n_files)];
		struct timespec t0, t1;

		memcpy(b, f->bytes, f->n);
		(void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t0);
		loaded += load_all_ways(b, mutate(&r, b, f->n));
		(void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t1);
		ck_assert_msg(t1.tv_sec - t0.tv_sec < 5, "round %d takes too long", i);
	}
	ck_assert_int_gt(loaded, 0); /* otherwise nothing after the first pass was tried */
	ck_assert_int_lt(loaded, rounds);
	free(b);
	for (size_t i = 0; i < n_files; i++)
		free(files[i].bytes);
}

START_TEST(mutated_synthetic_metadata_does_no_harm)
{
	struct file files[MAX_FILES];

	run(files, make_files(files), rounds() / 4);
}
END_TEST

START_TEST(mutated_real_metadata_does_no_harm)
{
	struct file files[MAX_FILES];
	size_t n = read_files(files);

	if (n)
		run(files, n, rounds());
	else
		(void)fprintf(stderr,
			      "skipped: mutated_real_metadata_does_no_harm: no TEST_DATA\n");
}
END_TEST

SUITE(pickle_mutation, .seconds = 300)
