/* SPDX-License-Identifier: Apache-2.0 */
#include "base/cache_dir.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "base/text.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Can only root and members of our group replace `dir` by another directory? */
static bool is_ours_to_rename(const char *dir)
{
	autofree char *at = strdup(dir);
	struct stat st;
	char *slash;

	if (!at)
		return false;
	while ((slash = strrchr(at, '/'))) {
		slash[slash == at] = 0; /* the parent directory; "/" has none */
		if (lstat(at, &st) || !S_ISDIR(st.st_mode) ||
		    (st.st_uid && st.st_uid != geteuid()) ||
		    ((st.st_mode & S_IWOTH) && !(st.st_mode & S_ISVTX)))
			return false;
		if (slash == at)
			break;
	}
	return true;
}

/* Makes the directory; its path without links, or NULL and *e. */
static char *own(const char *dir, struct ckpt_err *e)
{
	autofree char *real = NULL;
	struct stat st;
	int rc = io_mkdirs(dir);

	real = rc ? NULL : realpath(dir, NULL);
	if (!real || lstat(real, &st) || access(real, W_OK | X_OK)) {
		(void)err_sys(e, rc ? -rc : errno, "'%.160s'", dir);
		return NULL;
	}
	if (!is_ours_to_rename(real) || !S_ISDIR(st.st_mode) || st.st_uid != geteuid() ||
	    (st.st_mode & (S_IWGRP | S_IWOTH))) {
		(void)err_set(e, EACCES,
			      "'%.160s' belongs to another user, or others can replace it", dir);
		return NULL;
	}
	return steal_ptr(&real);
}

char *cache_dir(const char *name, struct ckpt_err *e)
{
	const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
	autofree char *all = NULL, *ours = NULL, *dir = NULL;

	if (xdg && *xdg == '/') {
		all = text_format("%s/ckptfs", xdg);
	} else if (home && *home == '/' && access(home, F_OK) && errno == ENOENT) {
		(void)err_set(e, ENOENT, "$HOME, '%.160s', does not exist", home);
		return NULL;
	} else if (home && *home == '/') {
		all = text_format("%s/.cache/ckptfs", home);
	} else {
		(void)err_set(e, ENOENT, "neither $XDG_CACHE_HOME nor $HOME is an absolute path");
		return NULL;
	}
	if (!all) {
		(void)err_nomem(e);
		return NULL;
	}
	ours = own(all, e); /* so that nothing is made in somebody else's */
	if (!ours)
		return NULL;
	dir = text_format("%s/%s", ours, name);
	if (!dir) {
		(void)err_nomem(e);
		return NULL;
	}
	return own(dir, e);
}
