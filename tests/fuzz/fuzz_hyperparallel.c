/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The input: a length of two bytes, that many bytes of a HyperParallel metadata file, and a
 * container, which lies beside it as _rank0_.safetensors. These are read, looked into, joined and
 * indexed in memory, and every chunk map is loaded.
 *
 * Fuzzes: format/hyperparallel/
 */
#include "base/bytes.h"
#include "base/err.h"
#include "format/format.h"
#include "index/catalog_build.h"
#include "index/catalog_query.h"
#include "mutate.h"
#include "source/place.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
CUSTOM_MUTATOR(parts_of_json, NULL)

static char metadata[] = "0.metadata", container[] = "_rank0_.safetensors";
static char dir[4096];
static int dir_fd = -1;

static void remove_all(void)
{
	(void)unlinkat(dir_fd, metadata, 0);
	(void)unlinkat(dir_fd, container, 0);
	(void)rmdir(dir);
}

static void open_dir(void)
{
	const char *tmp = getenv("TMPDIR");

	(void)snprintf(dir, sizeof(dir), "%s/fuzz-XXXXXX", tmp ? tmp : "/tmp");
	if (!mkdtemp(dir))
		abort();
	dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir_fd < 0 || atexit(remove_all))
		abort();
}

static void put(const char *name, const void *p, size_t n)
{
	int fd = openat(dir_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	if (fd < 0 || write(fd, p, n) != (ssize_t)n)
		abort();
	(void)close(fd);
}

static void look_at(struct catalog *c)
{
	size_t n, n_encodings;
	const struct catalog_tensor *t = catalog_tensors(c, &n);
	struct ckpt_err e = { 0 };

	(void)catalog_encodings(c, &n_encodings);
	for (size_t i = 0; i < n; i++) {
		struct chunkmap *m = NULL;

		/* What was written must be readable, unless memory ran out. */
		if (catalog_load_map(c, &t[i], &m, &e) && e.code != ENOMEM)
			abort();
		for (uint32_t k = 0; m && k < m->count; k++)
			if (m->locs[k].encoding >= n_encodings)
				abort();
		free(m);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *names[] = { metadata, container };
	const struct name_list files = { names, 2, 2 };
	const struct scan_opts opts = { 0 };
	struct catalog_writer *w = NULL;
	struct catalog *c = NULL;
	struct ckpt_err e = { 0 };
	struct place *place;
	size_t n;

	if (dir_fd < 0)
		open_dir();
	if (size < 2)
		return 0;
	n = load_le16(data);
	n = n < size - 2 ? n : size - 2;
	put(metadata, data + 2, n);
	put(container, data + 2 + n, size - 2 - n);
	if (local_place(dup(dir_fd), &place, &e))
		abort();
	if (!catalog_writer_new(NULL, "hyperparallel", "/", &w, &e) &&
	    !format_hyperparallel.scan(place, &files, &opts, w, &e) &&
	    !catalog_writer_finish(w, &c, &e))
		look_at(c);
	else if (!e.code)
		abort(); /* a failure without a sentence */
	catalog_close(c);
	catalog_writer_free(w);
	place_free(place);
	return 0;
}
