/* SPDX-License-Identifier: Apache-2.0 */
/* scratch - a directory in memory for targets that need real files; it is empty again at the end.
 */
#ifndef TESTS_FUZZ_SCRATCH_H
#define TESTS_FUZZ_SCRATCH_H

#include <fcntl.h>
#include <ftw.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char scratch[64];

static inline void require(bool ok)
{
	if (!ok)
		abort();
}

static inline int scratch_remove_one(const char *path, const struct stat *st, int type,
				     struct FTW *at)
{
	(void)st;
	(void)type;
	return at->level ? remove(path) : 0;
}

static inline void scratch_empty(void)
{
	require(!nftw(scratch, scratch_remove_one, 16, FTW_DEPTH | FTW_PHYS));
}

static inline void scratch_remove(void)
{
	scratch_empty();
	(void)rmdir(scratch);
}

static inline void scratch_make(void)
{
	if (*scratch)
		return;
	(void)snprintf(scratch, sizeof(scratch), "%s/ckptfs-fuzz-XXXXXX",
		       access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
	require(mkdtemp(scratch) && !atexit(scratch_remove));
}

/* Writes the file "NAME", or "DIR/NAME", for which it makes the directory. */
static inline void scratch_put(const char *name, const uint8_t *p, size_t n)
{
	char path[4400];
	int fd;

	for (const char *s = name; (s = strchr(s, '/')); s++) {
		(void)snprintf(path, sizeof(path), "%s/%.*s", scratch, (int)(s - name), name);
		(void)mkdir(path, 0700);
	}
	(void)snprintf(path, sizeof(path), "%s/%s", scratch, name);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	require(fd >= 0 && write(fd, p, n) == (ssize_t)n && !close(fd));
}

#endif
