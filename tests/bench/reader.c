/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reader - reads files as programs do, and tells how long it took. For scripts/bench.py.
 *
 *	reader HOW BYTES JOBS PASSES FILE...
 *
 * cat      as coreutils does: BYTES, or st_blksize where that is more, advised to be sequential
 * read     BYTES at a time; dd: and written to /dev/null; direct: by O_DIRECT
 * random   up to 16384 different blocks of BYTES, in an order that is always the same
 * sum      map, add up all words; touch: map, one byte of each page
 * warm     BYTES at a time, but what is in the page cache is left alone; of no use for measuring
 * cold     out of the page cache, or exit status 1 if the kernel keeps some of it
 *
 * JOBS processes share the work: each has its part of each file (of the blocks, with random). They
 * start together, their buffers are in the CPU's caches, and files are opened in the time that
 * counts. Prints for each of PASSES the seconds until the last of them was done and the bytes that
 * were read.
 */
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, RANDOM_BLOCKS = 16384, PAGES_AT_ONCE = 1 << 16, BUFFER = 1 << 20 };

struct job {
	uint64_t number, of;
	size_t n;  /* bytes at a time */
	char *buf; /* BUFFER bytes, or n where that is more */
	int null;  /* what is read is written there; or -1 */
};

static void die(const char *what)
{
	perror(what);
	exit(2);
}

static double now(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static uint64_t size_of(int fd)
{
	struct stat st;

	if (fstat(fd, &st))
		die("fstat");
	return (uint64_t)st.st_size;
}

/* Where the part of a job begins; of the job after the last, the end. */
static uint64_t part(const struct job *j, uint64_t number, uint64_t size)
{
	return number == j->of ? size : size / j->n * number / j->of * j->n;
}

static uint64_t read_part(const struct job *j, int fd)
{
	uint64_t size = size_of(fd), end = part(j, j->number + 1, size);
	uint64_t at = part(j, j->number, size), start = at;

	if (lseek(fd, (off_t)at, SEEK_SET) < 0)
		die("lseek");
	while (at < end) {
		/* To the end of the file a reader asks for more than there is. */
		size_t want = end < size && end - at < j->n ? end - at : j->n;
		ssize_t got = read(fd, j->buf, want);

		if (got <= 0)
			die("read");
		if (j->null >= 0 && write(j->null, j->buf, (size_t)got) != got)
			die("write");
		at += (uint64_t)got;
	}
	return at - start;
}

static uint64_t cat_part(const struct job *j, int fd)
{
	struct job bigger = *j;
	struct stat st;

	if (fstat(fd, &st))
		die("fstat");
	if ((uint64_t)st.st_blksize > j->n)
		bigger.n = st.st_blksize < BUFFER ? (size_t)st.st_blksize : BUFFER;
	(void)posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
	return read_part(&bigger, fd);
}

static uint64_t map_part(const struct job *j, int fd, bool touch)
{
	uint64_t size = size_of(fd), at = part(j, j->number, size),
		 end = part(j, j->number + 1, size);
	size_t step = (touch ? PAGE : sizeof(uint64_t)) / sizeof(uint64_t);
	const uint64_t *p = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
	volatile uint64_t sum = 0;
	uint64_t local = 0;

	if (p == MAP_FAILED)
		die("mmap");
	for (size_t i = at / sizeof(*p); i < end / sizeof(*p); i += step)
		local += p[i];
	sum = local;
	(void)sum;
	if (munmap((void *)(uintptr_t)p, size))
		die("munmap");
	return end - at;
}

/* One to one between 0 and the power of two above mask. */
static uint64_t scatter(uint64_t x, uint64_t mask, unsigned bits)
{
	for (int i = 0; i < 3; i++) {
		x = (x * 0x9e3779b97f4a7c15u + 0x7f4a7c15u) & mask;
		x ^= x >> (bits / 2 + 1);
	}
	return x;
}

static uint64_t read_random(const struct job *j, const int *fds, uint64_t n_files)
{
	uint64_t per_file = UINT64_MAX, blocks, wanted, mask = 1, seen = 0, done = 0;
	unsigned bits = 1;

	for (uint64_t i = 0; i < n_files; i++)
		if (size_of(fds[i]) / j->n < per_file)
			per_file = size_of(fds[i]) / j->n;
	blocks = per_file * n_files;
	wanted = blocks < RANDOM_BLOCKS ? blocks : RANDOM_BLOCKS;
	for (; mask + 1 < blocks; bits++)
		mask = mask << 1 | 1;
	for (uint64_t i = 0; seen < wanted; i++) {
		uint64_t block = scatter(i, mask, bits);

		if (block >= blocks || seen++ % j->of != j->number)
			continue;
		if (pread(fds[block / per_file], j->buf, j->n, (off_t)(block % per_file * j->n)) !=
		    (ssize_t)j->n)
			die("pread");
		done += j->n;
	}
	return done;
}

/* Pages of a file that are in the page cache, and how many it has. */
static void resident(int fd, uint64_t *ret_in, uint64_t *ret_all)
{
	static unsigned char there[PAGES_AT_ONCE];
	uint64_t size = size_of(fd), pages = (size + PAGE - 1) / PAGE, in = 0;
	char *p = size ? mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0) : NULL;

	if (p == MAP_FAILED)
		die("mmap");
	for (uint64_t at = 0; at < pages; at += PAGES_AT_ONCE) {
		uint64_t n = pages - at < PAGES_AT_ONCE ? pages - at : PAGES_AT_ONCE;

		if (mincore(p + at * PAGE, n * PAGE, there))
			die("mincore");
		for (uint64_t i = 0; i < n; i++)
			in += there[i] & 1u;
	}
	if (p && munmap(p, size))
		die("munmap");
	*ret_in = in;
	*ret_all = pages;
}

/* What faults have brought is in small folios, so all of it is read again. */
static uint64_t warm(const struct job *j, int fd)
{
	uint64_t in, all;

	resident(fd, &in, &all);
	if (in == all)
		return 0;
	(void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	return read_part(j, fd);
}

static uint64_t cold(int fd)
{
	uint64_t in, all;

	for (int tries = 0; tries < 5; tries++) {
		if (posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED))
			die("fadvise");
		resident(fd, &in, &all);
		if (!in)
			return 0;
		(void)usleep(20000); /* somebody is at a page just now */
	}
	exit(1);
}

static uint64_t work(const char *how, const struct job *j, const int *fds, uint64_t n_files)
{
	uint64_t done = 0;

	if (!strcmp(how, "random"))
		return read_random(j, fds, n_files);
	for (uint64_t i = 0; i < n_files; i++) {
		if (!strcmp(how, "cat"))
			done += cat_part(j, fds[i]);
		else if (!strcmp(how, "sum") || !strcmp(how, "touch"))
			done += map_part(j, fds[i], *how == 't');
		else if (!strcmp(how, "warm"))
			done += warm(j, fds[i]);
		else if (!strcmp(how, "cold"))
			done += cold(fds[i]);
		else
			done += read_part(j, fds[i]);
	}
	return done;
}

/* A process: says that it is there, waits for the pipe to be closed, says how much it has read. */
static void run(const char *how, struct job *j, char **files, int n_files, int ready, int start)
{
	int flags = O_RDONLY | O_CLOEXEC | (!strcmp(how, "direct") ? O_DIRECT : 0);
	int *fds = calloc((size_t)n_files, sizeof(*fds));
	size_t room = j->n < BUFFER ? BUFFER : (j->n + PAGE - 1) / PAGE * PAGE;
	uint64_t done;
	char c = 0;

	j->buf = aligned_alloc(PAGE, room);
	if (!fds || !j->buf)
		die("malloc");
	memset(j->buf, 1, room);
	j->null = !strcmp(how, "dd") ? open("/dev/null", O_WRONLY | O_CLOEXEC) : -1;
	if (write(ready, &c, 1) != 1 || read(start, &c, 1) != 0)
		die("pipe");
	for (int i = 0; i < n_files; i++) {
		fds[i] = open(files[i], flags);
		if (fds[i] < 0)
			die(files[i]);
	}
	done = work(how, j, fds, (uint64_t)n_files);
	if (write(ready, &done, sizeof(done)) != sizeof(done))
		die("pipe");
	exit(0);
}

/* The worst exit status of the processes. */
static int wait_all(void)
{
	int status, worst = 0;

	while (wait(&status) > 0)
		if (!WIFEXITED(status) || WEXITSTATUS(status) > worst)
			worst = WIFEXITED(status) ? WEXITSTATUS(status) : 2;
	return worst;
}

static int pass(const char *how, struct job *j, char **files, int n_files)
{
	uint64_t total = 0, done;
	int ready[2], start[2], status;
	double began;
	char c;

	if (pipe(ready) || pipe(start))
		die("pipe");
	for (j->number = 0; j->number < j->of; j->number++) {
		pid_t pid = fork();

		if (pid < 0)
			die("fork");
		if (!pid) {
			(void)close(start[1]);
			run(how, j, files, n_files, ready[1], start[0]);
		}
	}
	(void)close(ready[1]);
	for (uint64_t i = 0; i < j->of; i++)
		if (read(ready[0], &c, 1) != 1)
			die("pipe");
	began = now();
	(void)close(start[1]);
	status = wait_all();
	began = now() - began;
	while (read(ready[0], &done, sizeof(done)) == sizeof(done))
		total += done;
	(void)close(ready[0]);
	(void)close(start[0]);
	printf("%.6f %llu\n", began, (unsigned long long)total);
	return status;
}

int main(int argc, char **argv)
{
	struct job j = { 0 };
	int passes, status = 0;

	if (argc < 6) {
		(void)fprintf(stderr, "usage: reader HOW BYTES JOBS PASSES FILE...\n");
		return 2;
	}
	j.n = (size_t)strtoull(argv[2], NULL, 10);
	j.of = strtoull(argv[3], NULL, 10);
	passes = (int)strtol(argv[4], NULL, 10);
	if (!j.n || !j.of)
		return 2;
	setvbuf(stdout, NULL, _IOLBF, 0); /* children have nothing left to print */
	for (int i = 0; i < passes && !status; i++)
		status = pass(argv[1], &j, argv + 5, argc - 5);
	return status;
}
