/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A Megatron-core zarr checkpoint of one tensor. The input's first line is its .zarray, or, after a
 * '!', metadata.json. The other lines are names of files in its directory. It is scanned, and the
 * index is read back.
 *
 * Fuzzes: format/megatron/zarr format/raw
 */
#include "base/err.h"
#include "format/format.h"
#include "index/catalog_build.h"
#include "index/catalog_query.h"
#include "mutate.h"
#include "source/place.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
CUSTOM_MUTATOR(parts_of_json, NULL)

static const char good[] = "{\"sharded_backend\":\"zarr\",\"sharded_backend_version\":1}";
static char top[64];

static void remove_top(void)
{
	(void)rmdir(top);
}

static int open_top(void)
{
	if (!*top) {
		(void)snprintf(top, sizeof(top), "/tmp/fuzz_zarr.XXXXXX");
		if (!mkdtemp(top) || atexit(remove_top))
			abort();
	}
	return open(top, O_RDONLY | O_DIRECTORY);
}

static void put(int dirfd, const char *name, const void *p, size_t n)
{
	int fd = openat(dirfd, name, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	if (fd >= 0 && write(fd, p, n) != (ssize_t)n)
		abort();
	if (fd >= 0)
		(void)close(fd);
}

/* A name without a slash becomes a file; others are not tried. */
static void put_lines(int fd, const char *at, const char *end, bool make)
{
	for (int i = 0; at < end && i < 32; i++) {
		const char *eol = memchr(at, '\n', (size_t)(end - at));
		size_t n = (size_t)((eol ? eol : end) - at);
		char name[256];

		if (n && n < sizeof(name) && !memchr(at, '/', n) && !memchr(at, 0, n)) {
			memcpy(name, at, n);
			name[n] = 0;
			if (make)
				put(fd, name, "", 0);
			else
				(void)unlinkat(fd, name, 0);
		}
		at += n + 1;
	}
}

static void read_back(struct catalog *c)
{
	size_t n;
	const struct catalog_tensor *t = catalog_tensors(c, &n);
	struct ckpt_err e;

	for (size_t i = 0; i < n; i++) {
		struct chunkmap *m = NULL;

		if (catalog_load_map(c, &t[i], &m, &e) && e.code != ENOMEM)
			abort();
		free(m);
	}
}

static void scan(int fd)
{
	struct name_list files = { 0 };
	struct catalog_writer *w = NULL;
	struct catalog *c = NULL;
	const struct format *f = NULL;
	struct ckpt_err e = { 0 };
	struct place *place;
	int rc;

	if (local_place(dup(fd), &place, &e))
		abort();
	rc = format_detect(place, NULL, &f, &files, &e);

	if (!rc)
		rc = catalog_writer_new(NULL, f->name, "/", &w, &e);
	if (!rc)
		rc = f->scan(place, &files, &(struct scan_opts){ 0 }, w, &e);
	if (!rc)
		rc = catalog_writer_finish(w, &c, &e);
	if (!rc)
		read_back(c);
	else if (!e.code || !e.msg[0])
		abort(); /* a failure without a sentence */
	catalog_close(c);
	catalog_writer_free(w);
	name_list_release(&files);
	place_free(place);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *text = (const char *)data, *end = text + size;
	const char *eol = size ? memchr(text, '\n', size) : NULL;
	size_t first = size ? (size_t)((eol ? eol : end) - text) : 0;
	bool metadata = size && *text == '!';
	int fd = open_top(), tensor;

	if (fd < 0)
		abort();
	(void)mkdirat(fd, "w", 0700);
	tensor = openat(fd, "w", O_RDONLY | O_DIRECTORY);
	if (tensor < 0)
		abort();
	put(fd, "metadata.json", metadata ? text + 1 : good, metadata ? first - 1 : strlen(good));
	put(tensor, ".zarray", metadata ? "{}" : text, metadata ? 2 : first);
	put_lines(tensor, eol ? eol + 1 : end, end, true);
	scan(fd);
	put_lines(tensor, eol ? eol + 1 : end, end, false);
	(void)unlinkat(tensor, ".zarray", 0);
	(void)unlinkat(fd, "w", AT_REMOVEDIR);
	(void)unlinkat(fd, "metadata.json", 0);
	(void)close(tensor);
	(void)close(fd);
	return 0;
}
