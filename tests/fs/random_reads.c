/* SPDX-License-Identifier: Apache-2.0 */
/*
 * random_reads - read files in all the ways there are, at random, and compare every byte.
 *
 *	random_reads SEED OPERATIONS READERS FILE PLAIN [FILE PLAIN]...
 *
 * READERS processes run at once. Each makes that many OPERATIONS on the FILEs, which must give the
 * bytes of their PLAIN files: reads at the descriptor's position and elsewhere, into one buffer and
 * into many, with O_DIRECT, through mappings, sendfile and splice, with advice, reopening and
 * seeking in between. Prints what was done, or the seed, the number and the arguments of what went
 * wrong, and then exits with 1. The same SEED makes the same operations.
 */
#include "rng.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_FILES = 256, PIECES = 64, PIPE = 64 << 10, BLOCK = 4096 };

struct file {
	const char *path;
	int fd, direct;
	uint64_t size, at; /* at: the position of fd */
	const uint8_t *plain;
	const uint8_t *map; /* of all of it, or NULL */
};

static struct {
	uint64_t seed, number; /* of the operation */
	const char *doing;
	struct rng rng;
	struct file files[MOST_FILES];
	size_t n_files;
	uint8_t *room; /* page-aligned; room for the longest file and two blocks */
	size_t cap;
	int memory, pipe[2];
	uint64_t compared;
} run;

static void __attribute__((noreturn, format(printf, 2, 3)))
wrong(const struct file *f, const char *fmt, ...)
{
	va_list ap;

	printf("seed %" PRIu64 ", operation %" PRIu64 ", %s of '%s', %" PRIu64 " bytes: ", run.seed,
	       run.number, run.doing, f ? f->path : "", f ? f->size : 0);
	va_start(ap, fmt);
	(void)vprintf(fmt, ap);
	va_end(ap);
	printf("\n");
	(void)fflush(stdout);
	_exit(1);
}

/* n bytes at p must be those of the file in [off, off+asked), up to its end. */
static void compare(const struct file *f, const uint8_t *p, int64_t n, uint64_t off, uint64_t asked)
{
	uint64_t there = off < f->size ? f->size - off : 0;
	uint64_t all = asked < there ? asked : there;

	if (n < 0)
		wrong(f, "%s at %" PRIu64 ", %" PRIu64 " bytes", strerror(errno), off, asked);
	if ((uint64_t)n != all)
		wrong(f, "%" PRId64 " bytes instead of %" PRIu64 " at %" PRIu64, n, all, off);
	if (memcmp(p, f->plain + off, all) != 0) {
		uint64_t i = 0;

		while (p[i] == f->plain[off + i])
			i++;
		wrong(f, "byte %" PRIu64 " is %02x instead of %02x, read from %" PRIu64 " on",
		      off + i, p[i], f->plain[off + i], off);
	}
	run.compared += all;
}

/* ---- where, and how much ---- */

/* A random length, small or large, of at most `most`. */
static uint64_t some(uint64_t most)
{
	uint64_t bits = rng_below(&run.rng, 24), n = rng_below(&run.rng, (uint64_t)2 << bits);

	return n < most ? n : most;
}

/* A random place: anywhere, near a page boundary, near the end or beyond it. */
static uint64_t somewhere(const struct file *f)
{
	uint64_t at = rng_below(&run.rng, f->size + 1), near = rng_below(&run.rng, 5);

	switch (rng_below(&run.rng, 8)) {
	case 0:
		at = at / BLOCK * BLOCK + near;
		return at < 2 ? 0 : at - 2;
	case 1:
		return f->size + near < 3 ? 0 : f->size + near - 3;
	case 2:
		return f->size + some(1 << 22);
	case 3:
		return near;
	default:
		return at;
	}
}

static uint64_t below(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* ---- operations ---- */

static void do_pread(struct file *f)
{
	uint64_t off = somewhere(f), n = some(run.cap);

	compare(f, run.room, pread(f->fd, run.room, n, (off_t)off), off, n);
}

static void do_read(struct file *f)
{
	uint64_t n = some(run.cap);
	ssize_t got = read(f->fd, run.room, n);

	compare(f, run.room, got, f->at, n);
	f->at += (uint64_t)got;
}

static void do_seek(struct file *f)
{
	uint64_t to = somewhere(f);
	off_t rc;

	switch (rng_below(&run.rng, 4)) {
	case 0:
		rc = lseek(f->fd, (off_t)to, SEEK_SET);
		break;
	case 1:
		rc = lseek(f->fd, (off_t)to - (off_t)f->at, SEEK_CUR);
		break;
	case 2:
		rc = lseek(f->fd, (off_t)to - (off_t)f->size, SEEK_END);
		break;
	default:
		to = below(to, f->size);
		if (to == f->size)
			return; /* there is no data */
		rc = lseek(f->fd, (off_t)to, SEEK_DATA);
	}
	if (rc != (off_t)to)
		wrong(f, "%" PRId64 " instead of %" PRIu64, (int64_t)rc, to);
	f->at = to;
}

/* Reads into pieces of one stretch of the buffer, some of which are empty. */
static void do_preadv(struct file *f)
{
	uint64_t off = somewhere(f), n = 0;
	int count = (int)rng_below(&run.rng, PIECES);
	struct iovec v[PIECES];

	for (int i = 0; i < count; i++) {
		uint64_t len = rng_chance(&run.rng, 10) ? 0 : below(some(1 << 17), run.cap - n);

		v[i] = (struct iovec){ run.room + n, len };
		n += len;
	}
	compare(f, run.room, preadv(f->fd, v, count, (off_t)off), off, n);
}

static void do_direct(struct file *f)
{
	uint64_t off = somewhere(f) / BLOCK * BLOCK,
		 n = (some(run.cap - BLOCK) / BLOCK + 1) * BLOCK;

	compare(f, run.room, pread(f->direct, run.room, n, (off_t)off), off, n);
}

static void do_map(struct file *f)
{
	uint64_t off = rng_below(&run.rng, f->size + 1), n = some(f->size - off);
	uint64_t start = off / BLOCK * BLOCK;
	int how = rng_chance(&run.rng, 50) ? MAP_SHARED : MAP_PRIVATE;
	uint8_t *p;

	if (!n)
		return;
	how |= rng_chance(&run.rng, 20) ? MAP_POPULATE : 0;
	p = mmap(NULL, off - start + n, PROT_READ, how, f->fd, (off_t)start);
	if (p == MAP_FAILED)
		wrong(f, "%s at %" PRIu64, strerror(errno), start);
	compare(f, p + (off - start), (int64_t)n, off, n);
	(void)munmap(p, off - start + n);
}

/* Reads through a mapping that stays during all other operations. */
static void do_look(struct file *f)
{
	static const int advice[] = { MADV_NORMAL, MADV_RANDOM, MADV_SEQUENTIAL, MADV_WILLNEED,
				      MADV_DONTNEED };
	uint64_t off = rng_below(&run.rng, f->size + 1), n = some(f->size - off);

	if (!f->map && f->size) {
		f->map = mmap(NULL, f->size, PROT_READ, MAP_SHARED, f->fd, 0);
		if (f->map == MAP_FAILED)
			wrong(f, "%s", strerror(errno));
	}
	if (!n)
		return;
	if (rng_chance(&run.rng, 30) &&
	    madvise((void *)(uintptr_t)f->map, f->size, advice[rng_below(&run.rng, 5)]))
		wrong(f, "madvise: %s", strerror(errno));
	compare(f, f->map + off, (int64_t)n, off, n);
}

static void do_sendfile(struct file *f)
{
	uint64_t off = somewhere(f), n = some(run.cap);
	off_t at = (off_t)off;
	uint64_t done = 0;
	ssize_t got;

	if (lseek(run.memory, 0, SEEK_SET))
		wrong(f, "memfd");
	while (done < n && (got = sendfile(run.memory, f->fd, &at, n - done)) != 0) {
		if (got < 0)
			wrong(f, "%s at %" PRIu64, strerror(errno), off + done);
		done += (uint64_t)got;
	}
	if (pread(run.memory, run.room, done, 0) != (ssize_t)done || at != (off_t)(off + done))
		wrong(f, "memfd");
	compare(f, run.room, (int64_t)done, off, n);
}

/* A pipe has a limited number of slots for pages, so there may be less than was asked for. Whatever
 * comes must be right. */
static void do_splice(struct file *f)
{
	uint64_t off = somewhere(f), n = some(PIPE);
	off_t at = (off_t)off;
	ssize_t got = n ? splice(f->fd, &at, run.pipe[1], NULL, n, SPLICE_F_NONBLOCK) : 0;

	if (got < 0 || (!got && n && off < f->size))
		wrong(f, "%zd at %" PRIu64 ": %s", got, off, strerror(errno));
	if (got && read(run.pipe[0], run.room, (size_t)got) != got)
		wrong(f, "pipe");
	compare(f, run.room, got, off, (uint64_t)got);
}

static void do_advise(struct file *f)
{
	static const int advice[] = { POSIX_FADV_NORMAL, POSIX_FADV_RANDOM, POSIX_FADV_SEQUENTIAL,
				      POSIX_FADV_WILLNEED, POSIX_FADV_DONTNEED };
	uint64_t off = somewhere(f), n = some(f->size);

	if (rng_chance(&run.rng, 30)
		    ? readahead(f->fd, (off_t)off, n)
		    : posix_fadvise(f->fd, (off_t)off, (off_t)n, advice[rng_below(&run.rng, 5)]))
		wrong(f, "%s", strerror(errno));
}

static void open_both(struct file *f)
{
	struct stat st;

	f->fd = open(f->path, O_RDONLY | O_CLOEXEC);
	f->direct = open(f->path, O_RDONLY | O_CLOEXEC | O_DIRECT);
	if (f->fd < 0 || f->direct < 0 || fstat(f->fd, &st))
		wrong(f, "%s", strerror(errno));
	if ((uint64_t)st.st_size != f->size)
		wrong(f, "%" PRId64 " bytes", (int64_t)st.st_size);
	f->at = 0;
}

static void do_reopen(struct file *f)
{
	(void)close(f->fd);
	(void)close(f->direct);
	open_both(f);
	if (f->map && rng_chance(&run.rng, 50)) {
		(void)munmap((void *)(uintptr_t)f->map, f->size);
		f->map = NULL;
	}
}

/* share: how many of a hundred operations. */
static const struct {
	const char *name;
	unsigned share;
	void (*act)(struct file *f);
} operations[] = {
	{ "pread", 20, do_pread },	{ "read", 14, do_read },	{ "lseek", 6, do_seek },
	{ "preadv", 10, do_preadv },	{ "O_DIRECT", 12, do_direct },	{ "mmap", 10, do_map },
	{ "lasting mmap", 8, do_look }, { "sendfile", 6, do_sendfile }, { "splice", 6, do_splice },
	{ "advice", 5, do_advise },	{ "reopening", 3, do_reopen },
};

static void operate(void)
{
	struct file *f = &run.files[rng_below(&run.rng, run.n_files)];
	uint64_t n = rng_below(&run.rng, 100);
	size_t i = 0;

	while (n >= operations[i].share)
		n -= operations[i++].share;
	run.doing = operations[i].name;
	operations[i].act(f);
}

/* ---- start ---- */

static void load(struct file *f, const char *path, const char *plain)
{
	int fd = open(plain, O_RDONLY | O_CLOEXEC);
	struct stat st;

	f->path = path;
	if (fd < 0 || fstat(fd, &st))
		wrong(f, "%s: %s", plain, strerror(errno));
	f->size = (uint64_t)st.st_size;
	f->plain = f->size ? mmap(NULL, f->size, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0)
			   : (const uint8_t *)"";
	if (f->plain == MAP_FAILED)
		wrong(f, "%s: %s", plain, strerror(errno));
	(void)close(fd);
	if (run.cap < f->size + 2 * (uint64_t)BLOCK)
		run.cap = (f->size / BLOCK + 2) * BLOCK;
}

/* Bytes compared. */
static uint64_t read_randomly(uint64_t times)
{
	run.rng = (struct rng){ run.seed };
	run.doing = "opening";
	run.room = mmap(NULL, run.cap, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	run.memory = memfd_create("sent", MFD_CLOEXEC);
	if (run.room == MAP_FAILED || run.memory < 0 || pipe2(run.pipe, O_CLOEXEC | O_NONBLOCK))
		wrong(NULL, "%s", strerror(errno));
	for (size_t i = 0; i < run.n_files; i++)
		open_both(&run.files[i]);
	for (run.number = 1; run.number <= times; run.number++)
		operate();
	return run.compared;
}

static uint64_t number(const char *s)
{
	char *end;
	uint64_t n = strtoull(s, &end, 10);

	if (!*s || *end) {
		(void)fprintf(stderr, "random_reads: '%s' is not a number\n", s);
		exit(2);
	}
	return n;
}

int main(int argc, char **argv)
{
	uint64_t seed, times, readers, sum = 0, one;
	int failed = 0, status, results[2];

	if (argc < 6 || argc % 2 || argc > 4 + 2 * MOST_FILES || pipe2(results, O_CLOEXEC)) {
		(void)fprintf(stderr, "random_reads SEED OPERATIONS READERS FILE PLAIN...\n");
		return 2;
	}
	seed = number(argv[1]);
	times = number(argv[2]);
	readers = number(argv[3]);
	run.doing = "opening";
	for (int i = 4; i < argc; i += 2)
		load(&run.files[run.n_files++], argv[i], argv[i + 1]);
	for (uint64_t i = 0; i < readers; i++) {
		run.seed = seed + i; /* alone, with this seed, it would do the same */
		if (!fork()) {
			one = read_randomly(times);
			_exit(write(results[1], &one, sizeof(one)) != sizeof(one));
		}
	}
	while (wait(&status) > 0)
		failed += status != 0;
	(void)close(results[1]);
	while (read(results[0], &one, sizeof(one)) == sizeof(one))
		sum += one;
	printf("%" PRIu64 " readers, %" PRIu64 " operations each on %zu files, seed %s: %" PRIu64
	       " bytes compared, %d failed\n",
	       readers, times, run.n_files, argv[1], sum, failed);
	return failed ? 1 : 0;
}
