/* SPDX-License-Identifier: Apache-2.0 */
/* writer_util - state dicts of several ranks, saved by one of the storage writers. */
#ifndef TESTS_WRITER_UTIL_H
#define TESTS_WRITER_UTIL_H

#include "dir_util.h"
#include "save_util.h"
#include <ckptfs/ckpt_storage.h>

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/stat.h>

static char dest[4200], dest2[4200]; /* what is saved */
static struct saved s;

static inline void dest_setup(void)
{
	dir_setup();
	(void)snprintf(dest, sizeof(dest), "%s/ckpt", dir);
	(void)snprintf(dest2, sizeof(dest2), "%s/ckpt2", dir);
}

static inline bool there(const char *name)
{
	struct stat st;

	return !fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW);
}

typedef int new_writer_fn(const void *opts, struct ckpt_storage_writer *ret, struct ckpt_err *e);

/* Saves s, with a writer for each rank. */
static inline int save_with(new_writer_fn *new_writer, const void *w_opts,
			    const struct saved_opts *opts, const char *where, struct ckpt_err *e)
{
	struct ckpt_storage_writer w[SAVED_RANKS] = { 0 };
	int rc = 0;

	for (size_t r = 0; r < s.ranks && !rc; r++)
		rc = new_writer(w_opts, &w[r], e);
	if (!rc)
		rc = saved_save(&s, where, w, opts, e);
	for (size_t r = SAVED_RANKS; r-- > 0;)
		ckpt_storage_writer_free(&w[r]);
	return rc;
}

#endif
