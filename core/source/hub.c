/* SPDX-License-Identifier: Apache-2.0 */
#include "source/hub.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "base/text.h"
#include "base/trust.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 8 };

static const char snapshots[] = "snapshots", blobs[] = "blobs", refs[] = "refs";

static bool is_dir(int dirfd, const char *name, struct stat *st)
{
	return !fstatat(dirfd, name, st, AT_SYMLINK_NOFOLLOW) && S_ISDIR(st->st_mode);
}

static bool same(const struct stat *a, const struct stat *b)
{
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* Why the contents of blobs/ may come from somebody who cannot change the snapshot, or NULL. */
static const char *doubt(int repo, int dirfd)
{
	struct stat snapshot, parts[3];

	if (fstat(dirfd, &snapshot) || fstat(repo, &parts[0]) ||
	    !is_dir(repo, snapshots, &parts[1]) || !is_dir(repo, blobs, &parts[2]))
		return "its directories cannot be looked at";
	for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
		if (parts[i].st_uid != parts[0].st_uid && !trust_owner(parts[i].st_uid, &snapshot))
			return "its blobs/ or snapshots/ belongs to another user";
		if (trust_others_write(&parts[i], &snapshot))
			return "it can be written to by users who cannot write to the snapshot";
	}
	return NULL;
}

/* The length of the part of the path that is the repository's directory, and how many levels below
 * it the path ends. 0: the path is not in a repository. */
static size_t split(const char *path, unsigned *ret_depth)
{
	size_t n = sizeof(snapshots) - 1, end = strlen(path);

	*ret_depth = 0;
	while (end && *ret_depth < MAX_DEPTH) {
		size_t start = end;

		while (start && path[start - 1] != '/')
			start--;
		++*ret_depth;
		if (end - start == n && !memcmp(path + start, snapshots, n))
			return start > 1 ? start - 1 : 0;
		end = start ? start - 1 : 0;
	}
	return 0;
}

static bool is_named(const char *path, size_t len)
{
	size_t start = len;

	while (start && path[start - 1] != '/')
		start--;
	return text_glob("{models,datasets,spaces}--?*", path + start, len - start);
}

/* Opens the directory that contains snapshots/; -1: dirfd is not the directory expected below
 * it. */
static int open_repo(int dirfd, const char *path, size_t len, unsigned depth)
{
	char up[3 * MAX_DEPTH + 1] = "";
	autoclose int fd = -1, back = -1;
	struct stat repo_st, here, there;
	struct ckpt_err ignored;

	for (unsigned i = 0; i < depth; i++)
		memcpy(up + 3 * i, "../", sizeof("../"));
	fd = openat(dirfd, up, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || !is_dir(fd, snapshots, &repo_st) || !is_dir(fd, blobs, &repo_st) ||
	    (!is_named(path, len) && !is_dir(fd, refs, &repo_st)))
		return -1;
	back = io_open_dir_beneath(fd, path + len + 1, &ignored);
	if (back < 0 || fstat(back, &there) || fstat(dirfd, &here) || !same(&here, &there))
		return -1;
	return steal_fd(&fd);
}

int hub_find(int dirfd, const char *path, struct hub *ret, struct ckpt_err *e)
{
	unsigned depth;
	size_t len = split(path, &depth);
	autoclose int repo = len ? open_repo(dirfd, path, len, depth) : -1;
	char *beyond;

	*ret = HUB_NONE;
	if (repo < 0)
		return 0;
	/* For snapshots/ itself, refs/main is read as well. */
	beyond = text_format("%.*s%s%s", (int)len, path, depth > 1 ? "/" : "",
			     depth > 1 ? blobs : "");
	if (!beyond)
		return err_nomem(e);
	*ret = (struct hub){ .depth = depth, .why = doubt(repo, dirfd), .path = beyond };
	ret->repo = steal_fd(&repo);
	return 0;
}

int hub_sub(const struct hub *h, int dirfd, struct hub *ret, struct ckpt_err *e)
{
	autoclose int repo = -1;

	*ret = HUB_NONE;
	if (h->repo < 0)
		return 0;
	repo = fcntl(h->repo, F_DUPFD_CLOEXEC, 3);
	if (repo < 0)
		return err_sys(e, errno, "open a directory again");
	*ret = (struct hub){ .depth = h->depth + 1,
			     .why = doubt(repo, dirfd),
			     .path = strdup(h->path) };
	ret->repo = steal_fd(&repo);
	return ret->path ? 0 : err_nomem(e);
}

void hub_release(struct hub *h)
{
	if (h->repo >= 0)
		(void)close(h->repo);
	free(h->path);
	*h = HUB_NONE;
}

/* Reads a link's target; links in its path are followed only inside the directory. */
static ssize_t read_link(int dirfd, const char *path, char *buf, size_t cap)
{
	const char *slash = strrchr(path, '/');
	autofree char *above = slash ? strndup(path, (size_t)(slash - path)) : NULL;
	autoclose int fd = -1;
	struct ckpt_err ignored;

	if (!slash)
		return readlinkat(dirfd, path, buf, cap);
	fd = above ? io_open_dir_beneath(dirfd, above, &ignored) : -1;
	return fd < 0 ? -1 : readlinkat(fd, slash + 1, buf, cap);
}

/* The part "blobs/NAME" of a link's target; NULL: the target has another form. */
static const char *blob_of(const struct hub *h, const char *path, const char *text)
{
	unsigned up = h->depth;
	const char *name;

	for (const char *s = path; (s = strchr(s, '/')); s++)
		up++;
	for (; up; up--, text += 3)
		if (strncmp(text, "../", 3) != 0)
			return NULL;
	if (strncmp(text, blobs, sizeof(blobs) - 1) != 0 || text[sizeof(blobs) - 1] != '/')
		return NULL;
	name = text + sizeof(blobs);
	return *name && *name != '.' && !strchr(name, '/') ? text : NULL;
}

int hub_open(const struct hub *h, int dirfd, const char *path, struct stat *st, struct ckpt_err *e)
{
	char text[PATH_MAX];
	const char *blob = NULL;
	struct ckpt_err ignored;
	ssize_t n = -1;
	int fd;

	if (h->repo >= 0 && !io_check_relative(path, strlen(path), &ignored))
		n = read_link(dirfd, path, text, sizeof(text) - 1);
	if (n > 0 && n < (ssize_t)sizeof(text) - 1) {
		text[n] = 0;
		blob = blob_of(h, path, text);
	}
	if (!blob)
		return -ENOTSUP;
	if (h->why)
		return err_set(e, ERR_CORRUPT,
			       "open '%s': refused, a link leads out of the checkpoint, which lies "
			       "in a Hugging Face cache, but %s",
			       path, h->why);
	fd = io_open_beneath(h->repo, blob, st, e);
	return fd < 0 ? err_wrap(e, "'%s'", path) : fd;
}

int64_t hub_tip(const struct hub *h, char *buf, size_t cap)
{
	struct ckpt_err ignored;
	struct stat st;
	autoclose int fd = io_open_beneath(h->repo, "refs/main", &st, &ignored);
	int64_t n = fd < 0 ? 0 : io_pread_some(fd, buf, cap, 0);

	return n < 0 ? 0 : n;
}
