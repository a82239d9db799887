/* SPDX-License-Identifier: Apache-2.0 */
#include "mount/mounts.h"

#include "cmd/capture.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_LINE = 1 << 16 };

CLEANUP_POINTER(cleanup_fclose, FILE, fclose)

void mounts_decode(char *s)
{
	char *to = s;

	for (; *s; s++) {
		if (s[0] == '\\' && strspn(s + 1, "01234567") >= 3) {
			*to++ = (char)((s[1] - '0') << 6 | (s[2] - '0') << 3 | (s[3] - '0'));
			s += 3;
		} else {
			*to++ = *s;
		}
	}
	*to = 0;
}

/* ---- /proc/self/mountinfo ---- */

struct entry {
	struct mount_found m;
	const char *path, *source; /* in the line that was read */
};

/* proc(5): "36 35 98:0 /root /mnt rw,noatime shared:1 - ext3 /dev/root rw" */
static bool parse(char *line, struct entry *ret)
{
	char *rest = strstr(line, " - ");
	int path = 0, path_end = 0, source = 0, source_end = 0;

	/* NOLINTNEXTLINE(cert-err34-c): the kernel's numbers fit */
	if (!rest || sscanf(line, "%u %*d %u:%u %*s %n%*s%n", &ret->m.id, &ret->m.major,
			    &ret->m.minor, &path, &path_end) != 3)
		return false;
	if (sscanf(rest, " - %63s %n%*s%n", ret->m.type, &source, &source_end) != 1)
		return false;
	if (!path_end || !source_end)
		return false;
	line[path_end] = rest[source_end] = 0;
	mounts_decode(line + path);
	mounts_decode(rest + source);
	ret->path = line + path;
	ret->source = rest + source;
	return true;
}

/* Calls each(arg, entry) for all mounts, each after the mount that it covers. */
static int for_all(void (*each)(void *arg, const struct entry *entry), void *arg,
		   struct ckpt_err *e)
{
	FILE *f CLEANUP(cleanup_fclose) = fopen("/proc/self/mountinfo", "re");
	autofree char *line = NULL;
	size_t cap = 0;

	if (!f)
		return err_sys(e, errno, "open '/proc/self/mountinfo'");
	while (getline(&line, &cap, f) > 0) {
		struct entry entry = { 0 };

		if (parse(line, &entry))
			each(arg, &entry);
	}
	/* Without memory, getline() need not set what ferror() returns. */
	return feof(f) ? 0 : err_sys(e, errno, "read '/proc/self/mountinfo'");
}

/* A number from the kernel's description of a descriptor; 0: it has none. */
static unsigned fdinfo(int fd, const char *name)
{
	char path[64];
	unsigned v = 0;

	(void)snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	FILE *f CLEANUP(cleanup_fclose) = fopen(path, "re");
	autofree char *line = NULL;
	size_t cap = 0, n = strlen(name);

	while (f && getline(&line, &cap, f) > 0)
		if (!strncmp(line, name, n) && line[n] == ':')
			v = (unsigned)strtoul(line + n + 1, NULL, 10);
	return v;
}

/* The directory that `path` is in, which the caller frees, and the name in it; NULL: out of
 * memory. */
static char *dir_of(const char *path, const char **ret_name)
{
	const char *slash = strrchr(path, '/');

	*ret_name = slash ? slash + 1 : path;
	return strndup(path, slash ? max_u64((uint64_t)(slash - path), 1) : 0);
}

static void note_place(struct mount_found *m, const char *path)
{
	const char *name;
	autofree char *dir = dir_of(path, &name);
	struct stat st;

	if (!dir || stat(dir, &st))
		return;
	m->dir_dev = st.st_dev;
	m->dir_ino = st.st_ino;
	(void)snprintf(m->name, sizeof(m->name), "%s", name);
}

struct search {
	const char *path;
	const struct buf *old; /* or NULL */
	unsigned connection;   /* of FUSE, the minor number of its device; 0: not known */
	struct mount_found *ret;
	bool found;
	int err;
};

/* Adds everything except the mount point, which may change. The numbers alone do not suffice: they
 * are reused as soon as the mount is gone. */
static void add_to_list(void *arg, const struct entry *entry)
{
	buf_printf(arg, "%u %u:%u %s %s", entry->m.id, entry->m.major, entry->m.minor,
		   entry->m.type, entry->source);
	buf_add(arg, "", 1);
}

/* 1: it is in the list, 0: it is not */
static int is_in(const struct buf *list, const struct entry *entry)
{
	struct buf one CLEANUP(buf_release) = BUF_INIT(MAX_LINE);

	add_to_list(&one, entry);
	for (size_t at = 0; !one.err && at < list->len; at += strlen(list->data + at) + 1)
		if (!strcmp(list->data + at, one.data))
			return 1;
	return -one.err;
}

static void look_for_path(void *arg, const struct entry *entry)
{
	struct search *s = arg;
	int old = 0;

	if (strcmp(entry->path, s->path) != 0)
		return;
	if (s->connection)
		old = entry->m.major || entry->m.minor != s->connection;
	else if (s->old)
		old = is_in(s->old, entry);
	if (old < 0)
		s->err = -old;
	if (old)
		return;
	*s->ret = entry->m;
	note_place(s->ret, entry->path);
	s->found = true;
}

static int find(struct search *s, struct ckpt_err *e)
{
	int rc = for_all(look_for_path, s, e);

	if (!rc && s->err)
		return err_sys(e, s->err, "list of mounts");
	return rc ? rc : !s->found;
}

int mounts_find(const char *path, struct mount_found *ret, struct ckpt_err *e)
{
	return find(&(struct search){ .path = path, .ret = ret }, e);
}

int mounts_find_new(const char *path, int fuse_fd, const struct buf *list, struct mount_found *ret,
		    struct ckpt_err *e)
{
	return find(&(struct search){ .path = path,
				      .old = list,
				      .connection = fdinfo(fuse_fd, "fuse_connection"),
				      .ret = ret },
		    e);
}

struct source_search {
	const char *source;
	struct mount_found *ret;
	unsigned n;
	struct buf paths; /* for a sentence */
};

static size_t len_without_slashes(const char *s)
{
	size_t n = strlen(s);

	while (n && s[n - 1] == '/')
		n--;
	return n;
}

static void look_for_source(void *arg, const struct entry *entry)
{
	struct source_search *s = arg;
	size_t n = len_without_slashes(s->source);

	if (strcmp(entry->m.type, MOUNTS_TYPE) != 0 || len_without_slashes(entry->source) != n ||
	    memcmp(entry->source, s->source, n) != 0)
		return;
	buf_printf(&s->paths, "%s'%s'", s->n++ ? " and " : "", entry->path);
	*s->ret = entry->m;
	note_place(s->ret, entry->path);
}

int mounts_find_source(const char *address, struct mount_found *ret, struct ckpt_err *e)
{
	struct source_search s = { .source = address, .ret = ret, .paths = BUF_INIT(MAX_LINE) };
	char shown[200];
	int rc = for_all(look_for_source, &s, e);

	if (!rc && s.n > 1)
		rc = err_set(e, EINVAL, "'%s' is mounted on %.160s: name one of them",
			     text_show_address(address, shown, sizeof(shown)),
			     s.paths.err ? "several directories" : s.paths.data);
	buf_release(&s.paths);
	return rc ? rc : !s.n;
}

int mounts_list(struct buf *ret, struct ckpt_err *e)
{
	int rc = for_all(add_to_list, ret, e);

	if (!rc && ret->err)
		return err_sys(e, ret->err, "list of mounts");
	return rc;
}

/* ---- unmounting ---- */

struct whereabouts {
	const struct mount_found *m;
	char *path; /* NULL: gone */
	bool lost;  /* out of memory */
};

static void look_for_mount(void *arg, const struct entry *entry)
{
	struct whereabouts *w = arg;

	if (entry->m.id != w->m->id || entry->m.major != w->m->major ||
	    entry->m.minor != w->m->minor || strcmp(entry->m.type, w->m->type) != 0)
		return;
	free(w->path);
	w->path = strdup(entry->path);
	w->lost = !w->path;
}

/* The current path of the mount, which the caller frees; NULL: the mount is gone. */
static int where_is(const struct mount_found *m, char **ret, struct ckpt_err *e)
{
	struct whereabouts w = { .m = m };
	int rc = for_all(look_for_mount, &w, e);

	if (!rc && w.lost)
		rc = err_sys(e, ENOMEM, "umount");
	*ret = w.path;
	return rc;
}

/* Which mount does this name in the working directory lead to? 0: unknown. */
static unsigned mount_of(const char *name)
{
	autoclose int fd = open(name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	return fd < 0 ? 0 : fdinfo(fd, "mnt_id");
}

static int in_use(const char *path, struct ckpt_err *e)
{
	return err_set(e, EBUSY,
		       "umount: '%s': in use; 'umount -l' detaches it now and ends the daemon when "
		       "the last file is closed",
		       path);
}

static int run_fusermount(const char *path, bool lazy, struct ckpt_err *e)
{
	char name[] = "fusermount3", flag[] = "-u", detach[] = "-z", end[] = "--";
	autofree char *copy = strdup(path);
	char *argv[] = { name, flag, lazy ? detach : end, lazy ? end : copy, lazy ? copy : NULL,
			 NULL };
	struct capture c;
	char line[256];
	int status = 0, rc;
	pid_t pid;

	if (!copy)
		return err_sys(e, ENOMEM, "umount: '%s'", path);
	if (capture_start(&c, e))
		return -e->code;
	rc = posix_spawnp(&pid, name, NULL, NULL, argv, environ);
	if (!rc && waitpid(pid, &status, 0) < 0)
		rc = errno;
	capture_stop(&c, line, sizeof(line));
	if (rc)
		return err_sys(e, rc, "run 'fusermount3'");
	if (status && strstr(line, ": Device or resource busy"))
		return in_use(path, e);
	if (status && strstr(line, "not found in")) /* looks only for mounts of the same user */
		return err_set(e, EPERM,
			       "umount: '%s': mounted by another user: only that user or root can "
			       "unmount it",
			       path);
	if (status)
		return err_set(e, EIO, "umount: '%s': %s", path,
			       *line ? line : "fusermount3 failed");
	return 0;
}

/* Is this name in the working directory that of another mount point? */
static bool is_other_place(const struct mount_found *m, const char *name)
{
	struct stat st;

	return *m->name && (strcmp(name, m->name) != 0 || stat(".", &st) ||
			    st.st_ino != m->dir_ino || st.st_dev != m->dir_dev);
}

/* Results of remove_at besides 0 and errors: */
enum { NOT_THERE = 1, OTHER_PLACE };

/*
 * Unmounts by name from the parent directory: renaming an ancestor no longer matters, and a mount
 * point itself can be neither renamed nor replaced. 0: it is gone.
 */
static int remove_at(const struct mount_found *m, const char *path, int flags, struct ckpt_err *e)
{
	const char *name;
	autofree char *dir = dir_of(path, &name);

	if (!dir)
		return err_sys(e, ENOMEM, "umount: '%s'", path);
	if (chdir(dir))
		return errno == ENOENT || errno == ENOTDIR
			       ? NOT_THERE
			       : err_sys(e, errno, "chdir to '%s'", dir);
	if (is_other_place(m, name))
		return OTHER_PLACE;
	if (mount_of(name) != m->id)
		return NOT_THERE;
	if (!umount2(name, flags | UMOUNT_NOFOLLOW))
		return 0;
	if (errno == EPERM)
		return run_fusermount(path, flags & MNT_DETACH, e);
	if (errno == EBUSY)
		return in_use(path, e);
	return err_sys(e, errno, "umount: '%s'", path);
}

int mounts_remove(const struct mount_found *m, int flags, struct ckpt_err *e)
{
	enum { TRIES = 10 };

	for (int tries = 1;; tries++) {
		autofree char *path = NULL;
		int rc = where_is(m, &path, e);

		if (rc || !path) /* already gone */
			return rc;
		rc = remove_at(m, path, flags, e);
		if (rc <= 0)
			return rc;
		if (tries < TRIES)
			continue;
		if (rc == OTHER_PLACE) /* of another mount, which has its numbers now */
			return 0;
		return err_set(e, EBUSY, "umount: '%s': something else is mounted on it", path);
	}
}

/* ---- paths ---- */

bool mounts_is_dead(int errnum)
{
	return errnum == ENOTCONN || errnum == ECONNABORTED;
}

char *mounts_resolve(const char *path, struct ckpt_err *e)
{
	autofree char *copy = strdup(path);
	autofree char *parent = NULL;
	char *real = NULL, *slash;

	real = realpath(path, NULL);
	if (real || !copy || !mounts_is_dead(errno)) {
		if (!real)
			(void)err_sys(e, errno, "'%s'", path);
		return real;
	}
	/* A dead mount: resolve only its parent. */
	for (slash = copy + strlen(copy); slash > copy + 1 && slash[-1] == '/';)
		*--slash = 0;
	slash = strrchr(copy, '/');
	if (slash)
		*slash = 0;
	parent = realpath(!slash ? "." : *copy ? copy : "/", NULL);
	if (parent)
		real = text_format("%s/%s", strcmp(parent, "/") ? parent : "",
				   slash ? slash + 1 : copy);
	if (!real)
		(void)err_sys(e, ENOTCONN, "'%s'", path);
	return real;
}

void mounts_bdi(const struct mount_found *m, char ret[static MOUNTS_BDI_MAX])
{
	(void)snprintf(ret, MOUNTS_BDI_MAX, "/sys/class/bdi/%u:%u/read_ahead_kb", m->major,
		       m->minor);
}

void mounts_read_ahead(const struct mount_found *m, unsigned kib)
{
	char path[MOUNTS_BDI_MAX];
	autoclose int fd = -1;

	mounts_bdi(m, path);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd >= 0 && dprintf(fd, "%u", kib) < 0)
		return; /* keep the default */
}
