/* SPDX-License-Identifier: Apache-2.0 */
/* Directories and files of this machine. */
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/io.h"
#include "base/text.h"
#include "source/hub.h"
#include "source/lease.h"
#include "source/lender.h"
#include "source/pagemap.h"
#include "source/place.h"
#include "source/source.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum {
	/* The kernel reads no more per call than its own read-ahead size, 128 KiB by default; it
	 * ignores the rest of a larger request. */
	WANT_STEP = 128 << 10,
	/* On a disk it is enough to start: then the kernel reads ahead by itself, and in larger
	 * folios. */
	WANT_HEAD = 512 << 10,
};

struct local {
	struct place place;
	int fd;
	bool keeps_inodes, is_remote;
	char *named; /* a link that the user has named, which may lead anywhere; NULL: none */
	struct hub hub;
};

struct local_file {
	struct source source;
	int fd;
	bool keeps_inodes, is_remote;
	_Atomic uint64_t wanted;       /* end of the range announced last */
	atomic_bool arriving;	       /* bytes were requested and may not have arrived */
	atomic_bool no_map;	       /* mapping was tried and failed */
	_Atomic(struct pagemap *) map; /* NULL: none yet */
	_Atomic(struct lease *) lease; /* NULL: none yet */
};

static struct local *local_of(struct place *p)
{
	return (struct local *)(void *)p;
}

/* ---- identities ---- */

/* The components of an identity. */
enum { ID_INODE, ID_SIZE, ID_MTIME, ID_CTIME, ID_LINKS, ID_NUMBERS };

/* The inode number is 0 if the file system does not keep it. */
static void see(bool keeps_inodes, const struct stat *st, struct place_seen *ret)
{
	const uint64_t id[ID_NUMBERS] = { keeps_inodes ? st->st_ino : 0, (uint64_t)st->st_size,
					  io_mtime_ns(st), io_ctime_ns(st), st->st_nlink };

	*ret = (struct place_seen){ .kind = S_ISREG(st->st_mode)   ? PLACE_FILE
					    : S_ISDIR(st->st_mode) ? PLACE_DIR
					    : S_ISLNK(st->st_mode) ? PLACE_LINK
								   : PLACE_OTHER,
				    .size = (uint64_t)st->st_size,
				    .mtime_ns = io_mtime_ns(st),
				    .id.len = sizeof(id) };
	memcpy(ret->id.v, id, sizeof(id));
}

/* ctime reveals a file that was overwritten and then given its old mtime, but it also changes with
 * the file's names. If the number of links shows that this is the cause, the change is accepted. */
enum place_change local_compare(const struct place_id *before, const struct place_id *now)
{
	uint64_t a[ID_NUMBERS], b[ID_NUMBERS];

	memcpy(a, before->v, sizeof(a));
	memcpy(b, now->v, sizeof(b));
	if (a[ID_INODE] != b[ID_INODE] && a[ID_INODE] && b[ID_INODE])
		return PLACE_ANOTHER;
	if (a[ID_SIZE] != b[ID_SIZE] || a[ID_MTIME] != b[ID_MTIME])
		return PLACE_WRITTEN;
	if (a[ID_CTIME] == b[ID_CTIME])
		return PLACE_SAME;
	return a[ID_LINKS] != b[ID_LINKS] && a[ID_INODE] && b[ID_INODE] ? PLACE_RENAMED
									: PLACE_TOUCHED;
}

void local_leave_ctime(struct place_id *id)
{
	memset(id->v + ID_CTIME * sizeof(uint64_t), 0, 2 * sizeof(uint64_t)); /* and the links */
}

static int look(struct place *p, const char *path, bool follow, struct place_seen *ret,
		struct ckpt_err *e)
{
	struct local *l = local_of(p);
	struct stat st;

	if (fstatat(l->fd, path, &st, follow ? 0 : AT_SYMLINK_NOFOLLOW))
		return errno == ENOENT || (follow && errno == ENOTDIR)
			       ? 0
			       : err_sys(e, errno, "look for '%s'", path);
	see(l->keeps_inodes, &st, ret);
	return 1;
}

static enum place_kind kind_of(const struct dirent *d)
{
	switch (d->d_type) {
	case DT_UNKNOWN:
		return PLACE_UNKNOWN;
	case DT_REG:
		return PLACE_FILE;
	case DT_DIR:
		return PLACE_DIR;
	case DT_LNK:
		return PLACE_LINK;
	default:
		return PLACE_OTHER;
	}
}

static int list(struct place *p, const char *path, place_entry_fn *each, void *arg,
		struct ckpt_err *e)
{
	struct local *l = local_of(p);
	bool here = !strcmp(path, ".");
	int fd = here ? openat(l->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)
		      : io_open_dir_beneath(l->fd, path, e);
	DIR *dir CLEANUP(io_close_dir) = fd < 0 ? NULL : fdopendir(fd);
	const struct dirent *d;
	int code = errno, rc;

	if (fd < 0 && !here)
		return fd;
	if (!dir && fd >= 0)
		(void)close(fd);
	if (!dir)
		return err_sys(e, code, "list the directory");
	while ((rc = io_next_entry(dir, &d, e)) > 0) {
		rc = each(arg, d->d_name, kind_of(d), e);
		if (rc)
			return rc;
	}
	return rc && !here ? err_wrap(e, "'%s'", path) : rc;
}

/* ---- files ---- */

static struct local_file *file_of(struct source *s)
{
	return (struct local_file *)(void *)s;
}

static int64_t read_file(struct source *s, void *buf, size_t len, uint64_t off, struct ckpt_err *e)
{
	int64_t n = io_pread_some(file_of(s)->fd, buf, len, off);

	return n < 0 ? err_sys(e, (int)-n, "%zu bytes at %llu", len, (unsigned long long)off) : n;
}

static int look_again(struct source *s, struct place_seen *ret)
{
	struct stat st;

	if (fstat(file_of(s)->fd, &st))
		return -errno;
	see(file_of(s)->keeps_inodes, &st, ret);
	return 0;
}

static int file_fd(const struct source *s)
{
	return ((const struct local_file *)(const void *)s)->fd;
}

/* The file's map. NULL: it cannot be mapped. */
static struct pagemap *map_of(struct local_file *f)
{
	struct pagemap *m = f->map, *before = NULL;

	if (m || f->no_map)
		return m;
	m = pagemap_new(f->source.lender->pool, f->fd, f->source.seen.size);
	f->no_map = !m;
	if (!m || atomic_compare_exchange_strong(&f->map, &before, m))
		return m;
	pagemap_free(m); /* another thread was quicker */
	return before;
}

/* The file's lease. */
static struct lease *lease_of(struct local_file *f)
{
	struct lease *l = f->lease, *before = NULL;

	if (l)
		return l;
	l = calloc(1, sizeof(*l));
	if (!l || atomic_compare_exchange_strong(&f->lease, &before, l))
		return l;
	free(l);
	return before;
}

static const uint8_t *map_file(struct source *s, uint64_t off, uint64_t len)
{
	struct pagemap *m = map_of(file_of(s));

	return m ? pagemap_get(m, off, len, file_of(s)->arriving) : NULL;
}

static bool may_map_file(const struct source *s)
{
	return !((const struct local_file *)(const void *)s)->no_map;
}

static const uint8_t *lend_file(struct source *s, uint64_t off, uint64_t len)
{
	struct local_file *f = file_of(s);
	struct lease *l = lease_of(f);
	const uint8_t *p = NULL;

	if (l && (l->held || !l->tried))
		p = map_file(s, off, len);
	if (p && !l->tried)
		lease_take(s->lender->leases, l, f->fd);
	return p && lease_begin(l) ? p : NULL;
}

static void give_back(struct source *s)
{
	lease_end(file_of(s)->lease);
}

static bool want(struct source *s, uint64_t off, uint64_t len)
{
	struct local_file *f = file_of(s);
	uint64_t before = atomic_exchange(&f->wanted, off + len);

	/* The kernel reads ahead for a sequential continuation anyway. */
	if (!f->is_remote && off >= before && off - before < WANT_STEP)
		return false;
	if (io_is_cached(f->fd, off, len) > 0) /* if the kernel cannot tell, assume it is missing */
		return false;
	f->arriving = true;
	if (!f->is_remote)
		len = min_u64(len, WANT_HEAD);
	for (uint64_t at = 0; at < len; at += WANT_STEP)
		(void)posix_fadvise(f->fd, (off_t)(off + at), (off_t)min_u64(len - at, WANT_STEP),
				    POSIX_FADV_WILLNEED);
	return true;
}

static void free_file(struct source *s)
{
	struct local_file *f = file_of(s);

	if (f->lease)
		lease_drop(s->lender->leases, f->lease);
	free(f->lease);
	pagemap_free(f->map);
	(void)close(f->fd);
	free(f);
}

static const struct source_ops file_ops = {
	.read = read_file,
	.look = look_again,
	.free = free_file,
	.fd = file_fd,
	.map = map_file,
	.may_map = may_map_file,
	.lend = lend_file,
	.give_back = give_back,
	.want = want,
};

/* Takes ownership of fd on success. */
static int new_file(int fd, bool keeps_inodes, bool is_remote, const struct stat *st,
		    struct source **ret, struct ckpt_err *e)
{
	struct local_file *f = calloc(1, sizeof(*f));

	if (!f)
		return err_nomem(e);
	f->source.ops = &file_ops;
	f->fd = fd;
	f->keeps_inodes = keeps_inodes;
	f->is_remote = is_remote;
	see(keeps_inodes, st, &f->source.seen);
	*ret = &f->source;
	return 0;
}

int local_source(int fd, struct source **ret, struct ckpt_err *e)
{
	struct stat st;

	return fstat(fd, &st) ? err_sys(e, errno, "stat")
			      : new_file(fd, io_keeps_inodes(fd), io_is_remote(fd), &st, ret, e);
}

static int open_in(const struct local *l, const char *path, struct stat *st, struct ckpt_err *e)
{
	int fd;

	if (l->named && !strcmp(path, l->named))
		return io_open_named(l->fd, path, st, e);
	fd = hub_open(&l->hub, l->fd, path, st, e);
	return fd == -ENOTSUP ? io_open_beneath(l->fd, path, st, e) : fd;
}

static int file(struct place *p, const char *path, struct source **ret, struct ckpt_err *e)
{
	struct local *l = local_of(p);
	struct stat st;
	autoclose int fd = open_in(l, path, &st, e);
	int rc;

	rc = fd < 0 ? fd : new_file(fd, l->keeps_inodes, l->is_remote, &st, ret, e);
	if (!rc)
		(void)steal_fd(&fd);
	return rc;
}

/* ---- places ---- */

static int sub(struct place *p, const char *name, struct place **ret, struct ckpt_err *e)
{
	const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
	autoclose int fd = openat(local_of(p)->fd, name, flags);
	int rc;

	if (fd < 0)
		return err_sys(e, errno, "open '%s'", name);
	rc = local_place(fd, ret, e);
	if (rc)
		return rc;
	rc = hub_sub(&local_of(p)->hub, fd, &local_of(*ret)->hub, e);
	(void)steal_fd(&fd);
	if (rc)
		place_free(*ret);
	return rc;
}

static int64_t read_link(struct place *p, const char *name, char *buf, size_t cap)
{
	return readlinkat(local_of(p)->fd, name, buf, cap);
}

static int dir_fd(const struct place *p)
{
	return ((const struct local *)(const void *)p)->fd;
}

static int64_t tip(struct place *p, char *buf, size_t cap)
{
	const struct hub *h = &local_of(p)->hub;

	return h->depth == 1 ? hub_tip(h, buf, cap) : -ENOTSUP;
}

static const char *beyond(const struct place *p)
{
	const struct hub *h = &((const struct local *)(const void *)p)->hub;

	return h->why ? NULL : h->path;
}

/* A part that was never written is a hole, although a hole may also be intended. */
static bool made(struct place *p, const char *path, struct place_made *ret)
{
	struct local *l = local_of(p);
	struct ckpt_err ignored;
	struct stat st;
	struct statx sx;
	autoclose int fd = !strcmp(path, ".")
				   ? openat(l->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)
				   : io_open_beneath(l->fd, path, &st, &ignored);

	if (fd < 0 || statx(fd, "", AT_EMPTY_PATH, STATX_BTIME | STATX_SIZE, &sx))
		return false;
	*ret = (struct place_made){ .filled = lseek(fd, 0, SEEK_HOLE) == (off_t)sx.stx_size };
	if ((sx.stx_mask & STATX_BTIME) && sx.stx_btime.tv_sec > 0)
		ret->born_ns = (uint64_t)sx.stx_btime.tv_sec * CLOCK_SECOND + sx.stx_btime.tv_nsec;
	return true;
}

static void free_place(struct place *p)
{
	hub_release(&local_of(p)->hub);
	free(local_of(p)->named);
	(void)close(local_of(p)->fd);
	free(p);
}

int local_place(int dirfd, struct place **ret, struct ckpt_err *e)
{
	static const struct place_ops ops = { .look = look,
					      .list = list,
					      .sub = sub,
					      .file = file,
					      .link = read_link,
					      .fd = dir_fd,
					      .tip = tip,
					      .beyond = beyond,
					      .made = made,
					      .compare = local_compare,
					      .leave_ctime = local_leave_ctime,
					      .free = free_place };
	struct local *l = malloc(sizeof(*l));

	if (!l)
		return err_nomem(e);
	*l = (struct local){ .place.ops = &ops,
			     .fd = dirfd,
			     .keeps_inodes = io_keeps_inodes(dirfd),
			     .is_remote = io_is_remote(dirfd),
			     .hub = HUB_NONE };
	l->place.at_once = l->is_remote ? 64 : 8;
	*ret = &l->place;
	return 0;
}

/* Is something beside the file on which its values depend? */
static bool has_companion(const char *dir)
{
	static const char *const names[] = { "config.json", "adapter_config.json",
					     "sparse_update_manifest.json" };
	autoclose int fd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
	struct stat st;

	for (size_t i = 0; fd >= 0 && i < ARRAY_LEN(names); i++)
		if (!fstatat(fd, names[i], &st, 0))
			return true;
	return false;
}

static char *join(const char *dir, const char *name)
{
	return text_format("%s/%s", strcmp(dir, "/") ? dir : "", name);
}

/* path: of a link to a file, which has other links on the way. */
static char *choose_name(const char *path)
{
	enum { MAX_LINKS = 40 }; /* as in the kernel */
	autofree char *at = strdup(path), *first = NULL;

	for (unsigned i = 0; at && i <= MAX_LINKS; i++) {
		const char *slash = strrchr(at, '/'), *name = slash ? slash + 1 : at;
		autofree char *above = slash ? strndup(at, (size_t)(slash - at) + 1) : strdup(".");
		autofree char *dir = above ? realpath(above, NULL) : NULL, *here = NULL;
		char target[PATH_MAX];
		ssize_t n;

		/* In /proc it is a descriptor, whose file has a name elsewhere. */
		if (!dir || !strncmp(dir, "/proc/", 6))
			return realpath(path, NULL);
		here = join(dir, name);
		if (!here || has_companion(dir))
			return steal_ptr(&here);
		n = readlink(here, target, sizeof(target) - 1);
		if (!first)
			first = steal_ptr(&here);
		if (n <= 0)
			break;
		target[n] = 0;
		free(at);
		at = *target == '/' ? strdup(target) : join(dir, target);
	}
	return steal_ptr(&first);
}

char *local_real_name(const char *path)
{
	struct stat st;

	if (lstat(path, &st) || !S_ISLNK(st.st_mode) || stat(path, &st) || !S_ISREG(st.st_mode))
		return realpath(path, NULL);
	return choose_name(path);
}

int local_open(const char *address, const struct place_options *o, struct place **ret,
	       char **ret_root, const char **ret_file, struct ckpt_err *e)
{
	autofree char *root = local_real_name(address), *dir = root ? strdup(root) : NULL;
	const char *file = NULL;
	autoclose int fd = -1;
	struct stat st, link;
	int rc;

	(void)o;
	if (!root || stat(root, &st))
		return err_sys(e, errno, "open '%s'", address);
	if (!dir)
		return err_nomem(e);
	if (S_ISREG(st.st_mode))
		file = strrchr(root, '/') + 1;
	else if (!S_ISDIR(st.st_mode))
		return err_set(e, ENOTDIR, "open '%s': a checkpoint is a directory or a file",
			       address);
	if (file)
		dir[file - root > 1 ? file - root - 1 : 1] = 0;
	/* Through a directory that is open for reading, others may read what is kept from us. */
	fd = open(dir, (file ? O_PATH : O_RDONLY) | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return err_sys(e, errno, "open '%s'", dir);
	rc = local_place(fd, ret, e);
	if (rc)
		return rc;
	rc = hub_find(fd, dir, &local_of(*ret)->hub, e);
	(void)steal_fd(&fd);
	if (!rc && file && !lstat(root, &link) && S_ISLNK(link.st_mode)) {
		local_of(*ret)->named = strdup(file);
		rc = local_of(*ret)->named ? 0 : err_nomem(e);
	}
	if (rc) {
		place_free(*ret);
		return rc;
	}
	*ret_root = steal_ptr(&root);
	*ret_file = file;
	return 0;
}
