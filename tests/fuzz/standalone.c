/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_X PATH... - give every file (directories: every file below) to LLVMFuzzerTestOneInput, so
 * that a corpus can be replayed without clang. Prints how many; a crash is the failure.
 */
#include <ftw.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int n_files;

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
	free(data);
	n_files++;
	return 0;
}

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		if (nftw(argv[i], one, 16, FTW_PHYS))
			return 1;
	printf("%s: %d inputs\n", argv[0], n_files);
	return n_files ? 0 : 2;
}
