/* SPDX-License-Identifier: Apache-2.0 */
#include "syscalls.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *const targets[N_TARGETS] = {
	[T_FILE] = A_FILE,	  [T_DIR] = A_DIR,
	[T_LINK] = A_LINK,	  [T_NOTHING] = "tensors/no",
	[T_BELOW] = A_FILE "/no", [T_SLASH] = A_FILE "/",
	[T_ROOT] = ".",
};

struct tree tree;
static uint64_t rows, failed;

static void print_answer(int64_t answer)
{
	if (answer < 0)
		printf("error %" PRId64 " (%s)", -answer, strerror((int)-answer));
	else
		printf("%" PRId64, answer);
}

void row(int line, const char *file, const char *what, const char *path, int64_t want, int64_t got)
{
	rows++;
	if (got == want)
		return;
	failed++;
	printf("%s:%d: %s%s%s: ", file, line, what, path ? ", p = " : "", path ? path : "");
	print_answer(got);
	printf(" instead of ");
	print_answer(want);
	printf("\n");
}

int fine(int64_t returned)
{
	return returned < 0 ? -1 : 0;
}

int opens(const char *path, int flags)
{
	int fd = open(path, flags, 0644);

	return fd < 0 ? -1 : close(fd);
}

int must_open(const char *path, int flags)
{
	int fd = open(path, flags, 0644);

	if (fd < 0) {
		perror(path);
		exit(2);
	}
	return fd;
}

int64_t right(int64_t got, int64_t off)
{
	if (got > 0 && memcmp(tree.room, tree.plain + off, (size_t)got) != 0)
		return INT64_MIN;
	return got;
}

static void load(void)
{
	char *path = NULL;
	struct stat st;
	int fd;

	if (asprintf(&path, "%s/t", tree.elsewhere) < 0)
		exit(2);
	fd = must_open(path, O_RDONLY);
	free(path);
	tree.page = (size_t)sysconf(_SC_PAGESIZE);
	if (fstat(fd, &st) || (size_t)st.st_size < 16 * tree.page ||
	    st.st_size % (off_t)tree.page == 0)
		exit(2);
	tree.size = st.st_size;
	tree.plain = malloc((size_t)tree.size);
	tree.room = aligned_alloc(tree.page, ((size_t)tree.size / tree.page + 2) * tree.page);
	if (!tree.plain || !tree.room || read(fd, tree.plain, (size_t)tree.size) != tree.size)
		exit(2);
	(void)close(fd);
}

int main(int argc, char **argv)
{
	if (argc < 3) {
		(void)fprintf(stderr, "usage: syscalls ROOT ELSEWHERE [ours]\n");
		return 2;
	}
	tree.elsewhere = argv[2];
	tree.ours = argc > 3 && !strcmp(argv[3], "ours");
	tree.root = !getuid();
	tree.wild = (void *)8;
	load();
	if (chdir(argv[1])) {
		perror(argv[1]);
		return 2;
	}
	check_changes();
	check_names();
	check_bytes();
	check_control();
	free(tree.plain);
	free(tree.room);
	printf("%" PRIu64 " rows, %" PRIu64 " failed\n", rows, failed);
	return failed ? 1 : 0;
}
