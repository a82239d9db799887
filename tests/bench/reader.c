/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reader - reads a file in one of the ways that programs do, for scripts/bench_read.py.
 *
 *	reader seq|direct|mmap|random BYTES FILE...
 *
 * seq: read(2), BYTES at a time; direct: the same with O_DIRECT; mmap: map, sum all words twice, in two
 * mappings; random: 20000 reads of BYTES at places of a fixed sequence, twice. What FUSE has cached of the files is
 * dropped first. Prints the seconds of each pass.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { RANDOM_READS = 20000 };

static double now(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void die(const char *what)
{
	perror(what);
	exit(2);
}

static void read_all(int fd, char *buf, size_t n)
{
	ssize_t got;

	if (lseek(fd, 0, SEEK_SET))
		die("lseek");
	while ((got = read(fd, buf, n)) > 0)
		continue;
	if (got < 0)
		die("read");
}

static void read_random(int fd, char *buf, size_t n, uint64_t size)
{
	uint64_t x = 1;

	for (int i = 0; i < RANDOM_READS; i++) {
		x = x * 6364136223846793005u + 1442695040888963407u;
		if (pread(fd, buf, n, (off_t)((x >> 16) % (size / n) * n)) != (ssize_t)n)
			die("pread");
	}
}

static uint64_t sum_mapping(int fd, size_t size)
{
	uint64_t sum = 0;
	const uint64_t *p = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);

	if (p == MAP_FAILED)
		die("mmap");
	for (size_t i = 0; i < size / sizeof(*p); i++)
		sum += p[i];
	if (munmap((void *)(uintptr_t)p, size))
		die("munmap");
	return sum;
}

static void read_file(const char *how, size_t n, int fd, char *buf)
{
	struct stat st;

	if (fstat(fd, &st))
		die("fstat");
	if (!strcmp(how, "mmap"))
		(void)fprintf(stderr, "%016" PRIx64 "\n", sum_mapping(fd, (size_t)st.st_size));
	else if (!strcmp(how, "random"))
		read_random(fd, buf, n, (uint64_t)st.st_size);
	else
		read_all(fd, buf, n);
}

int main(int argc, char **argv)
{
	int flags = O_RDONLY | (argc > 1 && !strcmp(argv[1], "direct") ? O_DIRECT : 0);
	int passes = argc > 1 && (!strcmp(argv[1], "mmap") || !strcmp(argv[1], "random")) ? 2 : 1;
	size_t n = argc > 2 ? (size_t)strtoull(argv[2], NULL, 10) : 0;
	char *buf = n ? aligned_alloc(4096, (n + 4095) / 4096 * 4096) : NULL;

	if (argc < 4 || !buf)
		die("reader seq|direct|mmap|random BYTES FILE...");
	memset(buf, 1, n);
	for (int pass = 0; pass < passes; pass++) {
		double start = now();

		for (int i = 3; i < argc; i++) {
			int fd = open(argv[i], flags);

			if (fd < 0)
				die(argv[i]);
			read_file(argv[1], n, fd, buf);
			(void)close(fd);
		}
		printf("%.6f\n", now() - start);
	}
	free(buf);
	return 0;
}
