/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_X PATH... - give every file (of a directory, every file below) to LLVMFuzzerTestOneInput, so
 * that a corpus can be replayed without clang. Prints how many there were; to fail is to crash.
 *
 * fuzz_X -s SECONDS PATH... - after that, try changed inputs for that long; the target's own
 * LLVMFuzzerCustomMutator changes them, if it has one. Coverage does not guide this: it is meant to
 * find what has just been broken. The input that is being tried is in fuzz_X.input.
 */
#include "rng.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed)
	__attribute__((weak));

enum { MAX_SEEDS = 4096, MAX_INPUT = 64 << 10, MAX_EDITS = 6, INPUT_SECONDS = 20 };

static int n_files;
static bool keeps;
static struct {
	uint8_t *data;
	size_t len;
} seeds[MAX_SEEDS];
static size_t n_seeds;
static struct rng rng;

static int one(const char *path, const struct stat *st, int type, struct FTW *at)
{
	size_t size = (size_t)st->st_size;
	uint8_t *data;
	FILE *f;

	(void)at;
	if (type != FTW_F)
		return 0;
	data = malloc(
		size ? size
		     : 1); /* exactly as large as the file: sanitizers see what is read behind it */
	f = fopen(path, "rb");
	if (!f || !data || fread(data, 1, size, f) != size) {
		perror(path);
		return 1;
	}
	(void)fclose(f);
	(void)LLVMFuzzerTestOneInput(data, size);
	n_files++;
	if (!keeps || size > MAX_INPUT || n_seeds == MAX_SEEDS) {
		free(data);
		return 0;
	}
	seeds[n_seeds].data = data;
	seeds[n_seeds++].len = size;
	return 0;
}

/* ---- changed ones ---- */

static size_t replace(uint8_t *p, size_t size, size_t most, size_t at, size_t old,
		      const uint8_t *by, size_t n)
{
	if (size - old + n > most)
		return size;
	memmove(p + at + n, p + at + old, size - at - old);
	memcpy(p + at, by, n);
	return size - old + n;
}

size_t LLVMFuzzerMutate(uint8_t *p, size_t size, size_t most)
{
	static const uint8_t odd[] = { 0, 1, 0x7f, 0x80, 0xff, '0', '9', '"', '\n', ' ' };
	size_t at = (size_t)rng_below(&rng, size + 1), from, n;
	size_t k = (size_t)rng_below(&rng, n_seeds);
	uint8_t some[64] = { 0 };

	n = (size_t)rng_below(&rng, size - at < sizeof(some) ? size - at + 1 : sizeof(some));
	switch (rng_below(&rng, 7)) {
	case 0:
		if (at < size)
			p[at] ^= (uint8_t)(1u << rng_below(&rng, 8));
		return size;
	case 1:
		if (at < size)
			p[at] = (uint8_t)rng_u64(&rng);
		return size;
	case 2:
		memset(p + at, odd[rng_below(&rng, sizeof(odd))], n < 8 ? n : 8);
		return size;
	case 3:
		return replace(p, size, most, at, n, some, 0);
	case 4: /* once more */
		memcpy(some, p + at, n);
		return replace(p, size, most, at, 0, some, n);
	case 5: /* a part of another */
		from = (size_t)rng_below(&rng, seeds[k].len + 1);
		n = n < seeds[k].len - from ? n : seeds[k].len - from;
		memcpy(some, seeds[k].data + from, n);
		return replace(p, size, most, at,
			       rng_below(&rng, 2) ? 0
			       : n < size - at	  ? n
						  : size - at,
			       some, n);
	default:
		memset(some, odd[rng_below(&rng, sizeof(odd))], sizeof(some));
		return replace(p, size, most, at, 0, some, 1 + (size_t)rng_below(&rng, 8));
	}
}

static size_t change(uint8_t *p, size_t size)
{
	for (uint64_t n = 1 + rng_below(&rng, MAX_EDITS); n; n--)
		size = LLVMFuzzerCustomMutator ? LLVMFuzzerCustomMutator(p, size, MAX_INPUT,
									 (unsigned)rng_u64(&rng))
					       : LLVMFuzzerMutate(p, size, MAX_INPUT);
	return size;
}

static void keep(int fd, const uint8_t *p, size_t n)
{
	if (ftruncate(fd, 0) || pwrite(fd, p, n, 0) != (ssize_t)n) {
		perror("the input");
		exit(1);
	}
}

/* Seconds of CPU, so that nothing depends on the load of the machine. */
static void bound(time_t seconds)
{
	const struct itimerval t = { .it_value.tv_sec = seconds };

	(void)setitimer(ITIMER_PROF, &t, NULL);
}

static void fuzz(const char *program, unsigned seconds)
{
	time_t start = time(NULL);
	uint8_t *now = malloc(MAX_INPUT);
	uint64_t n = 0;
	char path[4200];
	int fd;

	(void)snprintf(path, sizeof(path), "%s.input", program);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
	rng = getenv("TEST_SEED") ? rng_new() : (struct rng){ (uint64_t)start };
	printf("%s: TEST_SEED=%ju\n", program, (uintmax_t)rng.state);
	(void)fflush(stdout);
	for (; n_seeds && now && fd >= 0 && time(NULL) < start + seconds; n++) {
		size_t k = (size_t)rng_below(&rng, n_seeds), size;
		uint8_t *exact;

		if (seeds[k].len)
			memcpy(now, seeds[k].data, seeds[k].len);
		size = change(now, seeds[k].len);
		exact = malloc(size ? size : 1);
		if (!exact)
			break;
		memcpy(exact, now, size);
		keep(fd, now, size);
		bound(INPUT_SECONDS);
		(void)LLVMFuzzerTestOneInput(exact, size);
		bound(0);
		free(exact);
	}
	free(now);
	(void)close(fd);
	(void)unlink(path);
	printf("%s: %ju changed inputs\n", program, (uintmax_t)n);
}

int main(int argc, char **argv)
{
	unsigned seconds = 0;
	int i = 1;

	if (argc > 2 && !strcmp(argv[1], "-s")) {
		seconds = (unsigned)strtoul(argv[2], NULL, 10);
		keeps = true;
		i = 3;
	}
	for (; i < argc; i++)
		if (nftw(argv[i], one, 16, FTW_PHYS))
			return 1;
	printf("%s: %d inputs\n", argv[0], n_files);
	if (seconds)
		fuzz(argv[0], seconds);
	for (size_t k = 0; k < n_seeds; k++)
		free(seeds[k].data);
	return n_files ? 0 : 2;
}
