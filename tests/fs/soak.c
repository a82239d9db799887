/* SPDX-License-Identifier: Apache-2.0 */
/*
 * soak - a checkpoint whose bytes can be computed, and readers that compare every byte they get.
 *
 *	soak make DIRECTORY TENSORS             safetensors files: one in a thousand tensors is large
 *	soak open TENSORS MOUNT                 opens every tensor once
 *	soak read TENSORS MOUNT READERS SECONDS [may-fail]
 *	soak same DIRECTORY MOUNT READERS SECONDS [may-fail]
 *
 * READERS processes read in all the ways that programs do. A wrong byte, a wrong size or an error
 * ends all of them with status 1. With may-fail, EIO, ENOMEM, ENFILE and EMFILE are only counted.
 * Prints what was done. With `same`, the files of MOUNT are compared with those below DIRECTORY,
 * whatever they are; half of the time, what the kernel has cached of one is dropped first.
 *
 * Byte o of tensor i is byte o % 8 of a hash of i and o / 8: nobody needs a second copy.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

enum { LARGE_EVERY = 1000, FILES = 4, PIECE = 128 << 10, ALIGN = 4096, MAX_PATH = 4096 };

enum kind { CAT, MAP, PREAD, DIRECT, NPY, STAT, XATTR, LIST, KINDS };
static const char *const kind_names[KINDS] = { "cat", "mmap", "pread",	  "O_DIRECT",
					       "npy", "stat", "getxattr", "readdir" };

struct shared {
	_Atomic uint64_t done[KINDS], failed[KINDS], bytes;
};

struct reader {
	const char *mount;
	uint64_t tensors;
	bool may_fail;
	struct shared *shared;
	uint64_t random;
	uint8_t *buf; /* aligned; as large as the largest tensor */
};

static _Noreturn void die(const char *what)
{
	perror(what);
	exit(1);
}

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

/* ---- what tensors are ---- */

struct tensor {
	uint64_t i, rows, cols; /* of bytes */
	char name[24];
};

static struct tensor tensor_of(uint64_t i)
{
	uint64_t h = mix(i + 1);
	struct tensor t = { .i = i };

	if (i % LARGE_EVERY == 0) {
		t.rows = 128 + h % 128;
		t.cols = 6000 + (h >> 20) % 5000;
	} else {
		t.rows = 1 + h % 16;
		t.cols = 1 + (h >> 20) % 100;
	}
	(void)snprintf(t.name, sizeof(t.name), "%c.%06" PRIu64, i % LARGE_EVERY ? 't' : 'b', i);
	return t;
}

static uint64_t size_of(const struct tensor *t)
{
	return t->rows * t->cols;
}

static uint64_t word_of(const struct tensor *t, uint64_t k)
{
	return mix(t->i * 0x9e3779b97f4a7c15u + k * 0xd1b54a32d192ed03u + 1);
}

static void fill(const struct tensor *t, uint8_t *to)
{
	uint64_t n = size_of(t);

	for (uint64_t o = 0; o < n; o += 8) {
		uint64_t w = word_of(t, o / 8);

		memcpy(to + o, &w, n - o < 8 ? n - o : 8);
	}
}

/* Where n bytes differ from those of the tensor at off; n if they do not. */
static uint64_t differs(const struct tensor *t, const uint8_t *p, uint64_t off, uint64_t n)
{
	uint64_t o = 0;

	while (o < n) {
		uint64_t skip = (off + o) % 8, len = n - o < 8 - skip ? n - o : 8 - skip;
		uint64_t w = word_of(t, (off + o) / 8);

		if (memcmp(p + o, (const uint8_t *)&w + skip, len) != 0)
			return o;
		o += len;
	}
	return n;
}

/* ---- make ---- */

static void make_file(const char *dir, uint64_t tensors, uint64_t file)
{
	uint64_t first = tensors * file / FILES, last = tensors * (file + 1) / FILES, at = 0;
	char path[MAX_PATH], *text;
	uint8_t *data;
	size_t n;
	FILE *header = open_memstream(&text, &n), *f;

	for (uint64_t i = first; i < last; i++) {
		struct tensor t = tensor_of(i);

		(void)fprintf(header,
			      "%c\"%s\":{\"dtype\":\"U8\",\"shape\":[%" PRIu64 ",%" PRIu64
			      "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}",
			      i == first ? '{' : ',', t.name, t.rows, t.cols, at, at + size_of(&t));
		at += size_of(&t);
	}
	(void)fprintf(header, "}");
	if (fclose(header))
		die("header");
	(void)snprintf(path, sizeof(path), "%s/model-%" PRIu64 ".safetensors", dir, file);
	f = fopen(path, "w");
	data = malloc(4 << 20);
	if (!f || !data || fwrite(&(uint64_t){ n }, 8, 1, f) != 1 || fwrite(text, n, 1, f) != 1)
		die(path);
	for (uint64_t i = first; i < last; i++) {
		struct tensor t = tensor_of(i);

		fill(&t, data);
		if (fwrite(data, size_of(&t), 1, f) != 1)
			die(path);
	}
	if (fclose(f))
		die(path);
	free(text);
	free(data);
}

static int make(const char *dir, uint64_t tensors)
{
	if (mkdir(dir, 0777))
		die(dir);
	for (uint64_t file = 0; file < FILES; file++)
		make_file(dir, tensors, file);
	return 0;
}

/* ---- reading ---- */

static uint64_t roll(struct reader *r, uint64_t n)
{
	r->random = r->random * 6364136223846793005u + 1442695040888963407u;
	return (r->random >> 33) % n;
}

/* Counts an error that is allowed, and returns false. */
static bool failed(const struct reader *r, enum kind k, const char *name)
{
	int code = errno;

	if (!r->may_fail || (code != EIO && code != ENOMEM && code != ENFILE && code != EMFILE)) {
		(void)fprintf(stderr, "soak: %s of %s: %s\n", kind_names[k], name, strerror(code));
		exit(1);
	}
	(void)atomic_fetch_add(&r->shared->failed[k], 1);
	return false;
}

static _Noreturn void wrong(enum kind k, const char *name, const char *what, uint64_t at)
{
	(void)fprintf(stderr, "soak: %s of %s: wrong %s %" PRIu64 "\n", kind_names[k], name, what,
		      at);
	exit(1);
}

static void compare(const struct reader *r, enum kind k, const struct tensor *t, const uint8_t *p,
		    uint64_t off, uint64_t n)
{
	uint64_t at = differs(t, p, off, n);

	if (at != n)
		wrong(k, t->name, "byte", off + at);
	(void)atomic_fetch_add(&r->shared->bytes, n);
}

static int open_in(const struct reader *r, const char *dir, const char *name, const char *suffix,
		   int flags)
{
	char path[MAX_PATH];

	(void)snprintf(path, sizeof(path), "%s/%s/%s%s", r->mount, dir, name, suffix);
	return open(path, O_RDONLY | O_CLOEXEC | flags);
}

/* The tensor begins `skip` bytes into the file. */
static bool read_through(const struct reader *r, enum kind k, const struct tensor *t, int fd,
			 uint64_t skip, size_t piece)
{
	uint64_t at = 0, size = size_of(t) + skip;
	ssize_t n;

	while ((n = read(fd, r->buf, piece)) > 0) {
		uint64_t from = at < skip ? skip - at : 0;

		if (at + (uint64_t)n > size)
			wrong(k, t->name, "end", at + (uint64_t)n);
		if (from < (uint64_t)n)
			compare(r, k, t, r->buf + from, at + from - skip, (uint64_t)n - from);
		at += (uint64_t)n;
	}
	if (n < 0)
		return failed(r, k, t->name);
	if (at != size)
		wrong(k, t->name, "size", at);
	return true;
}

static bool read_pieces(struct reader *r, const struct tensor *t, int fd)
{
	for (int i = 0; i < 8; i++) {
		uint64_t off = roll(r, size_of(t)), want = 1 + roll(r, 64 << 10);
		ssize_t n = pread(fd, r->buf, want, (off_t)off);

		if (n < 0)
			return failed(r, PREAD, t->name);
		if (want > size_of(t) - off)
			want = size_of(t) - off;
		compare(r, PREAD, t, r->buf, off, (uint64_t)n);
		if ((uint64_t)n == want)
			continue;
		if (!r->may_fail || !n) /* ended at a page that cannot be read: no error yet */
			wrong(PREAD, t->name, "count", (uint64_t)n);
		(void)atomic_fetch_add(&r->shared->failed[PREAD], 1);
		return false;
	}
	return true;
}

static sigjmp_buf page_missing;

static void on_bus(int sig)
{
	siglongjmp(page_missing, sig);
}

static bool read_map(const struct reader *r, const struct tensor *t, int fd)
{
	uint8_t *p = mmap(NULL, size_of(t), PROT_READ,
			  roll((struct reader *)(uintptr_t)r, 2) ? MAP_SHARED : MAP_PRIVATE, fd, 0);

	if (p == MAP_FAILED)
		return failed(r, MAP, t->name);
	if (!sigsetjmp(page_missing, 1)) {
		(void)signal(SIGBUS, on_bus);
		compare(r, MAP, t, p, 0, size_of(t));
		(void)munmap(p, size_of(t));
		return true;
	}
	(void)munmap(p, size_of(t));
	errno = EIO; /* for a mapping, the error is a signal */
	return failed(r, MAP, t->name);
}

static bool read_one(struct reader *r, enum kind k, const struct tensor *t, int fd)
{
	struct stat st;
	char shape[64], want[64];
	ssize_t n;

	switch (k) {
	case MAP:
		return read_map(r, t, fd);
	case PREAD:
		return read_pieces(r, t, fd);
	case DIRECT:
		return read_through(r, k, t, fd, 0, (1 + roll(r, 64)) * ALIGN);
	case NPY:
		if (fstat(fd, &st))
			return failed(r, k, t->name);
		return read_through(r, k, t, fd, (uint64_t)st.st_size - size_of(t), PIECE);
	case STAT:
		if (fstat(fd, &st))
			return failed(r, k, t->name);
		if ((uint64_t)st.st_size != size_of(t))
			wrong(k, t->name, "size", (uint64_t)st.st_size);
		return true;
	case XATTR:
		n = fgetxattr(fd, "user.ckptfs.shape", shape, sizeof(shape) - 1);
		if (n < 0)
			return failed(r, k, t->name);
		shape[n] = 0;
		(void)snprintf(want, sizeof(want), "[%" PRIu64 ",%" PRIu64 "]", t->rows, t->cols);
		if (strcmp(shape, want) != 0)
			wrong(k, t->name, "shape", t->rows);
		return true;
	default:
		return read_through(r, k, t, fd, 0, PIECE);
	}
}

static bool list(const struct reader *r)
{
	char path[MAX_PATH];
	const struct dirent *e;
	uint64_t n = 0;
	DIR *d;

	(void)snprintf(path, sizeof(path), "%s/tensors", r->mount);
	d = opendir(path);
	if (!d)
		return failed(r, LIST, path);
	while ((errno = 0, e = readdir(d)))
		n += e->d_name[0] != '.';
	if (errno) {
		(void)closedir(d);
		return failed(r, LIST, path);
	}
	(void)closedir(d);
	if (n != r->tensors)
		wrong(LIST, path, "number of entries", n);
	return true;
}

static void step(struct reader *r)
{
	uint64_t i =
		roll(r, 4) ? roll(r, r->tensors) : roll(r, r->tensors) / LARGE_EVERY * LARGE_EVERY;
	enum kind k = roll(r, 2000) ? (enum kind)roll(r, LIST) : LIST;
	struct tensor t = tensor_of(i);
	bool done;
	int fd;

	if (k == LIST) {
		done = list(r);
	} else {
		fd = open_in(r, k == NPY ? "npy" : "tensors", t.name, k == NPY ? ".npy" : "",
			     k == DIRECT ? O_DIRECT : 0);
		done = fd < 0 ? failed(r, k, t.name) : read_one(r, k, &t, fd);
		if (fd >= 0)
			(void)close(fd);
	}
	if (done)
		(void)atomic_fetch_add(&r->shared->done[k], 1);
}

static time_t now(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec;
}

static struct reader new_reader(const char *mount, uint64_t tensors)
{
	struct reader r = { .mount = mount, .tensors = tensors };

	r.shared = mmap(NULL, sizeof(*r.shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
			-1, 0);
	r.buf = aligned_alloc(ALIGN, 4 << 20);
	if (r.shared == MAP_FAILED || !r.buf)
		die("memory");
	return r;
}

static int open_all(const char *mount, uint64_t tensors)
{
	struct reader r = new_reader(mount, tensors);

	for (uint64_t i = 0; i < tensors; i++) {
		struct tensor t = tensor_of(i);
		int fd = open_in(&r, "tensors", t.name, "", 0);

		if (fd < 0)
			die(t.name);
		(void)close(fd);
	}
	free(r.buf);
	return 0;
}

/* ---- files that are the same as others ---- */

static struct {
	char **paths; /* below the directory */
	size_t n;
} files;

static int remember(const char *path, const struct stat *st, int type, struct FTW *at)
{
	static size_t skip;

	if (!at->level)
		skip = strlen(path) + 1;
	if (type != FTW_F || !S_ISREG(st->st_mode))
		return 0;
	files.paths = reallocarray(files.paths, files.n + 1, sizeof(*files.paths));
	if (!files.paths)
		die("memory");
	files.paths[files.n] = strdup(path + skip);
	return files.paths[files.n++] ? 0 : -1;
}

/* Compares with the bytes at the same place of the other file. */
static void compare_files(const struct reader *r, enum kind k, const char *name, int right,
			  const uint8_t *p, size_t n, off_t off)
{
	static uint8_t want[PIECE];

	for (size_t at = 0; at < n;) {
		size_t part = n - at < sizeof(want) ? n - at : sizeof(want);

		if (pread(right, want, part, off + (off_t)at) != (ssize_t)part)
			wrong(k, name, "end", (uint64_t)off + n);
		if (memcmp(want, p + at, part) != 0)
			wrong(k, name, "byte near", (uint64_t)off + at);
		at += part;
	}
	(void)atomic_fetch_add(&r->shared->bytes, n);
}

static bool map_same(const struct reader *r, const char *name, int fd, int right, size_t size)
{
	uint8_t *p = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);

	if (p == MAP_FAILED)
		return failed(r, MAP, name);
	if (!sigsetjmp(page_missing, 1)) {
		(void)signal(SIGBUS, on_bus);
		compare_files(r, MAP, name, right, p, size, 0);
		(void)munmap(p, size);
		return true;
	}
	(void)munmap(p, size);
	errno = EIO;
	return failed(r, MAP, name);
}

static bool read_same(struct reader *r, enum kind k, const char *name, int fd, int right,
		      size_t size)
{
	size_t piece = k == DIRECT ? (1 + roll(r, 64)) * ALIGN : PIECE;
	off_t at = 0, end = (off_t)size;
	ssize_t n;

	if (k == PREAD && size) {
		at = (off_t)roll(r, size);
		end = at + (off_t)roll(r, size - (uint64_t)at) + 1;
	}
	while (at < end && (n = pread(fd, r->buf, piece, at)) > 0) {
		compare_files(r, k, name, right, r->buf, (size_t)n, at);
		at += n;
	}
	if (at >= end)
		return true;
	if (n < 0)
		return failed(r, k, name);
	wrong(k, name, "end", (uint64_t)at);
}

static void same_step(struct reader *r, const char *directory)
{
	static const enum kind kinds[] = { CAT, MAP, PREAD, DIRECT };
	const char *name = files.paths[roll(r, files.n)];
	enum kind k = kinds[roll(r, sizeof(kinds) / sizeof(kinds[0]))];
	char path[MAX_PATH], other[MAX_PATH];
	struct stat st, want;
	bool done = false;
	int fd, right;

	(void)snprintf(path, sizeof(path), "%s/%s", r->mount, name);
	(void)snprintf(other, sizeof(other), "%s/%s", directory, name);
	right = open(other, O_RDONLY | O_CLOEXEC);
	if (right < 0 || fstat(right, &want))
		die(other);
	fd = open(path, O_RDONLY | O_CLOEXEC | (k == DIRECT ? O_DIRECT : 0));
	if (fd < 0) {
		(void)failed(r, k, name);
	} else if (fstat(fd, &st)) {
		(void)failed(r, STAT, name);
	} else {
		if (st.st_size != want.st_size)
			wrong(STAT, name, "size", (uint64_t)st.st_size);
		if (roll(r, 2))
			(void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
		done = k == MAP && st.st_size
			       ? map_same(r, name, fd, right, (size_t)st.st_size)
			       : read_same(r, k, name, fd, right, (size_t)st.st_size);
	}
	if (fd >= 0)
		(void)close(fd);
	(void)close(right);
	if (done)
		(void)atomic_fetch_add(&r->shared->done[k], 1);
}

/* ---- what is asked for ---- */

static void print_counts(const struct shared *s)
{
	uint64_t n = 0, bad = 0;

	for (int k = 0; k < KINDS; k++) {
		n += s->done[k];
		bad += s->failed[k];
		printf("%s %" PRIu64 ", ", kind_names[k], s->done[k]);
	}
	printf("failed %" PRIu64 "; %" PRIu64 " operations, %" PRIu64 " bytes compared\n", bad, n,
	       s->bytes);
}

/* directory: if not NULL, compare with its files instead of computing. */
static int read_all(const char *mount, uint64_t tensors, const char *directory, int readers,
		    int seconds, bool may_fail)
{
	struct reader r = new_reader(mount, tensors);
	time_t end = now() + seconds;
	int status, worst = 0;

	r.may_fail = may_fail;
	if (directory && (nftw(directory, remember, 16, FTW_PHYS) || !files.n))
		die(directory);
	for (int i = 0; i < readers; i++) {
		pid_t child = fork();

		if (child < 0)
			die("fork");
		if (child)
			continue;
		r.random = mix((uint64_t)time(NULL) << 16 | (uint64_t)i);
		while (now() < end)
			if (directory)
				same_step(&r, directory);
			else
				step(&r);
		_exit(0);
	}
	while (wait(&status) > 0) {
		if (!status || worst)
			continue;
		worst = 1;
		(void)signal(SIGTERM, SIG_IGN);
		(void)kill(0, SIGTERM); /* soak.sh gives us a process group */
	}
	print_counts(r.shared);
	free(r.buf);
	return worst;
}

int main(int argc, char **argv)
{
	const char *what = argc > 3 ? argv[1] : "";

	if (!strcmp(what, "make"))
		return make(argv[2], strtoull(argv[3], NULL, 10));
	if (!strcmp(what, "open"))
		return open_all(argv[3], strtoull(argv[2], NULL, 10));
	if (!strcmp(what, "read") && argc > 5)
		return read_all(argv[3], strtoull(argv[2], NULL, 10), NULL, atoi(argv[4]),
				atoi(argv[5]), argc > 6);
	if (!strcmp(what, "same") && argc > 5)
		return read_all(argv[3], 0, argv[2], atoi(argv[4]), atoi(argv[5]), argc > 6);
	(void)fprintf(stderr, "usage: soak make DIRECTORY TENSORS | open TENSORS MOUNT | "
			      "read TENSORS MOUNT READERS SECONDS [may-fail] | "
			      "same DIRECTORY MOUNT READERS SECONDS [may-fail]\n");
	return 2;
}
