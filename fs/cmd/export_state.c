/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/export_state.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/io.h"
#include "base/trust.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADER = 512 };

static const char magic[] = "ckptfs export ";

/* Lines of the header; the first one that differs decides what the difference means. */
enum { LINE_REQUEST = 0 };
static const char *const differs[] = {
	[LINE_REQUEST] = ("was begun with another PATH or other options: remove it to start over, "
			  "or give the same command"),
	"was begun by another version of ckptfs",
	"was begun with other metadata: the checkpoint has been saved again, or is another one",
	"was begun with other data: a data file has changed or been replaced",
	"was begun with another config.json, tokenizer or other asset",
	"was begun with a recipe of other contents",
	"was begun with a layout of other contents",
	"was begun with renaming rules of other contents",
	"was begun with files of other names, sizes or paths",
};

static void make_header(const struct export_identity *id, char ret[static HEADER])
{
	const struct digest request = digest_of(XXH3_128bits(id->request, id->request_len));
	const struct ckpt_origin *o = &id->origin;
	char hex[DIGEST_HEX];

	digest_hex(&request, hex);
	memset(ret, 0, HEADER);
	(void)snprintf(ret, HEADER,
		       "%s2, units of 8 MiB, request %s\n"
		       "program %s\nmetadata %s\ndata %s\nassets %s\nrecipe %s\nlayout %s\n"
		       "rename %s\nfiles %s\n",
		       magic, hex, CKPTFS_VERSION, o->metadata, o->data, o->assets, o->recipe,
		       o->layout, o->rename, id->files);
}

/* Hard links would lead to a file elsewhere. */
static int refuse_foreign(int dirfd, const char *name, const struct stat *st, struct ckpt_err *e)
{
	struct stat dir;

	if (fstat(dirfd, &dir))
		return err_sys(e, errno, "stat");
	if (trust_entry(st, &dir) && (S_ISDIR(st->st_mode) || st->st_nlink == 1))
		return 0;
	return err_set(
		e, EPERM,
		"'%s' can have been written by another user (its owner is %u): remove it, or "
		"choose another DEST",
		name, st->st_uid);
}

int export_state_refuse_foreign(int dirfd, const char *name, struct ckpt_err *e)
{
	struct stat st;

	if (!fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW))
		return refuse_foreign(dirfd, name, &st, e);
	return errno == ENOENT ? 0 : err_sys(e, errno, "stat '%s'", name);
}

int export_state_open(int dirfd, const char *name, struct export_state *ret, struct ckpt_err *e)
{
	autoclose int fd = -1;
	struct stat st = { 0 };
	int rc;

	/* The previous holder of the lock may have finished and removed the file while we
	 * waited. */
	while (!st.st_nlink) {
		if (fd >= 0)
			(void)close(fd);
		fd = openat(dirfd, name, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC,
			    0644);
		if (fd < 0)
			return err_sys(e, errno, "create '%s'", name);
		rc = io_lock(fd); /* if there are no locks, it is used without */
		if (rc < 0)
			return rc == -EWOULDBLOCK ? -EBUSY : err_sys(e, -rc, "lock '%s'", name);
		if (fstat(fd, &st))
			return err_sys(e, errno, "stat '%s'", name);
	}
	if (!S_ISREG(st.st_mode))
		return err_set(e, EEXIST, "'%s' is not a regular file", name);
	if (refuse_foreign(dirfd, name, &st, e))
		return -e->code;
	ret->fd = steal_fd(&fd);
	return 0;
}

int export_state_init(struct export_state *s, uint64_t units, struct ckpt_err *e)
{
	s->units = units;
	s->done = calloc(units + 1, 1);
	return s->done ? 0 : err_sys(e, ENOMEM, "list of %llu units", (unsigned long long)units);
}

/* The first line in which two headers differ. */
static size_t line_that_differs(const char *a, const char *b)
{
	size_t line = 0;

	for (size_t i = 0; i < HEADER && a[i] == b[i]; i++)
		line += a[i] == '\n';
	return min_u64(line, ARRAY_LEN(differs) - 1);
}

int export_state_match(const struct export_state *s, const struct export_identity *id,
		       const char *partial, struct ckpt_err *e)
{
	char want[HEADER], have[HEADER] = { 0 };
	int64_t n = io_pread_some(s->fd, have, HEADER, 0);
	size_t line;

	make_header(id, want);
	if (n < 0)
		return err_sys(e, (int)-n, "read the state of '%s'", partial);
	if (!memcmp(want, have, HEADER))
		return 0;
	if (memcmp(have, magic, sizeof(magic) - 1) != 0)
		return err_set(e, EEXIST,
			       "'%s' is there and was not begun by an export: remove it, or choose "
			       "another DEST",
			       partial);
	line = line_that_differs(want, have);
	if (line == LINE_REQUEST && have[sizeof(magic) - 1] != want[sizeof(magic) - 1])
		line++; /* another version of the format */
	(void)err_set(e, EEXIST, "'%s' %s", partial, differs[line]);
	return line == LINE_REQUEST ? -e->code : 1;
}

int export_state_load(struct export_state *s, const char *partial, struct ckpt_err *e)
{
	int64_t n = io_pread_some(s->fd, s->done, s->units, HEADER);

	if (n < 0)
		return err_sys(e, (int)-n, "read the state of '%s'", partial);
	for (uint64_t u = 0; u < s->units; u++)
		s->done[u] = u < (uint64_t)n && s->done[u] == 1;
	return 0;
}

/* Written in place: if interrupted, the file has the old contents, or less. */
int export_state_save(struct export_state *s, const struct export_identity *id, struct ckpt_err *e)
{
	char header[HEADER];
	int rc;

	make_header(id, header);
	rc = io_pwrite(s->fd, header, HEADER, 0);
	if (!rc)
		rc = io_pwrite(s->fd, s->done, s->units, HEADER);
	if (!rc && (ftruncate(s->fd, (off_t)(HEADER + s->units)) || fsync(s->fd)))
		rc = -errno;
	return rc ? err_sys(e, -rc, "write the state") : 0;
}

int export_state_record(const struct export_state *s, uint64_t unit)
{
	return io_pwrite(s->fd, "\1", 1, HEADER + unit);
}

void export_state_close(struct export_state *s)
{
	if (s->fd >= 0)
		(void)close(s->fd);
	free(s->done);
}
