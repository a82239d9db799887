/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout_file - the only I/O of core/layout: layout files are the user's, not the checkpoint's, and
 * are read once before anything is mounted.
 */
#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "base/text.h"
#include "layout/layout_internal.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

/* Reads the whole file; the caller frees *ret. */
static int read_whole(const char *path, int fd, const struct stat *st, char **ret,
		      struct ckpt_err *e)
{
	autofree char *text = NULL;
	int rc;

	if (!S_ISREG(st->st_mode))
		return err_set(e, EINVAL, "read layout '%s': neither a file nor a directory", path);
	if ((uint64_t)st->st_size > LAYOUT_MAX_FILE)
		return err_set(e, EFBIG, "read layout '%s': more than %zu MiB", path,
			       LAYOUT_MAX_FILE >> 20);
	text = malloc((size_t)st->st_size + 1);
	if (!text)
		return err_nomem(e);
	rc = io_pread(fd, text, (size_t)st->st_size, 0);
	if (rc)
		return err_sys(e, -rc, "read layout '%s'", path);
	*ret = steal_ptr(&text);
	return 0;
}

/* dirfd: AT_FDCWD, or the directory that contains `name`; path: for messages. */
static int open_layout(int dirfd, const char *name, const char *path, struct stat *st,
		       struct ckpt_err *e)
{
	autoclose int fd = openat(dirfd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

	if (fd < 0)
		return err_sys(e, errno, "open layout '%s'", path);
	if (fstat(fd, st))
		return err_sys(e, errno, "stat layout '%s'", path);
	return steal_fd(&fd);
}

static int add_file(struct layout *l, int dirfd, const char *dir, const char *name,
		    struct ckpt_err *e)
{
	autofree char *text = NULL;
	autofree char *path = NULL;
	autoclose int fd = -1;
	struct stat st;
	int rc;

	path = text_format("%s/%s", dir, name);
	if (!path)
		return err_nomem(e);
	fd = open_layout(dirfd, name, path, &st, e);
	if (fd < 0)
		return fd;
	rc = read_whole(path, fd, &st, &text, e);
	if (rc)
		return rc;
	digest_add(&l->digest, name, strlen(name));
	digest_add(&l->digest, text, (size_t)st.st_size);
	return layout_add_json(l, text, (size_t)st.st_size, path, e);
}

static int is_layout(const struct dirent *d)
{
	size_t n = strlen(d->d_name);

	return n > 7 && !strcmp(d->d_name + n - 7, ".layout");
}

static int read_directory(int fd, const char *path, struct layout **ret, struct ckpt_err *e)
{
	struct layout *l = layout_new(path);
	struct dirent **names = NULL;
	int n, rc = 0;

	if (!l)
		return err_nomem(e);
	n = scandirat(fd, ".", &names, is_layout, alphasort);
	if (n < 0)
		rc = err_sys(e, errno, "list '%s'", path);
	else if (!n)
		rc = err_set(e, EINVAL, "%s: no *.layout file in it", path);
	for (int i = 0; i < n; i++) {
		if (!rc)
			rc = add_file(l, fd, path, names[i]->d_name, e);
		free(names[i]);
	}
	free(names);
	if (!rc)
		rc = layout_done(l, e);
	if (rc)
		layout_free(l);
	else
		*ret = l;
	return rc;
}

int layout_read(const char *path, struct layout **ret, struct ckpt_err *e)
{
	autofree char *text = NULL;
	autoclose int fd = -1;
	struct stat st;
	int rc;

	fd = open_layout(AT_FDCWD, path, path, &st, e);
	if (fd < 0)
		return fd;
	if (S_ISDIR(st.st_mode))
		return read_directory(fd, path, ret, e);
	rc = read_whole(path, fd, &st, &text, e);
	return rc ? rc : layout_parse(text, (size_t)st.st_size, path, ret, e);
}
