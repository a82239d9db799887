/* SPDX-License-Identifier: Apache-2.0 */
/*
 * warm - brings parts of files into the kernel's page cache.
 *
 *	struct warm w = { 0 };
 *	warm_add(&w, &(struct warm_part){ "/ckpt/__0_0.distcp", 0, 4096 }, &e);
 *	warm_sort(&w);
 *	warm_run(&w, &how, &e);
 *	w.read, w.there               // what it took
 *	warm_release(&w);
 *
 * Parts are read in the order of their positions, several units at a time, each sequentially: at
 * the speed of the device, and into the large folios that make later reads and mappings fastest;
 * posix_fadvise and readahead fill the cache with small ones. Cached parts are not read again if
 * the kernel can report them (cachestat, Linux 6.5).
 *
 * Threads: one, which starts others in warm_run.
 */
#ifndef FS_CMD_WARM_H
#define FS_CMD_WARM_H

#include <stddef.h>
#include <stdint.h>

struct ckpt;
struct ckpt_err;
struct progress;

struct warm_part {
	const char *path;
	uint64_t off, len;
	/* Its position in the order; NULL: path and off themselves. Borrowed. */
	const char *after;
	uint64_t after_off;
};

struct warm {
	struct warm_part *v;
	size_t n, cap;
	uint64_t bytes; /* of all parts */
	size_t files;	/* different paths; after warm_sort */
	char **paths;	/* the paths that parts point to */
	size_t n_paths, cap_paths;
	uint64_t read, there; /* bytes that were read, and bytes that were already cached */
};

struct warm_how {
	size_t threads; /* at most; 1 to WARM_MAX_THREADS */
	struct progress *progress;
	_Atomic uint64_t *done; /* bytes; several calls may run at once and share it */
	struct ckpt *store; /* whose data files the paths are, if they are not on this machine */
};
enum { WARM_MAX_THREADS = 64 };

/* Its path is copied. */
int warm_add(struct warm *w, const struct warm_part *part, struct ckpt_err *e);
/* Sorts the parts by position; overlapping parts, and those with small gaps, are merged. */
void warm_sort(struct warm *w);
/* A file that ends before its part does is read to its end. A file that cannot be read is skipped;
 * the first such file is reported when all others are done. */
int warm_run(struct warm *w, const struct warm_how *how, struct ckpt_err *e);
void warm_release(struct warm *w);

/* Bytes that may be used without swapping; 0: unknown. */
uint64_t warm_memory(void);

#endif
