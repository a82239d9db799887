/* SPDX-License-Identifier: Apache-2.0 */
#include "mount/ops.h"

#include "mount/handle.h"
#include "mount/loop.h"
#include "mount/negotiate.h"
#include "mount/passthrough.h"
#include "mount/reply.h"
#include "mount/stats.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include <ckptfs/ckpt_mount.h>

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

/* A mounted checkpoint never changes, so any long time will do; a run does change. */
static const double forever = 86400, soon = 1;

enum {
	BLKSIZE = 1 << 20, /* makes cat, cp and stdio read 1 MiB at a time */
	STATFS_BLOCK = 4096,
	DIRECT_SIZE = 1 << 20, /* caching works equally well for smaller files */
	SMALL_READ = 64 << 10, /* direct reads this small are much slower than cached ones */
	SMALL_READS = 64,      /* by one reader, before a file counts as read in small pieces */
	SMALL_NODES = 1024,    /* such files; collisions forget some */
	COUNT_SUBDIRS = 1024,  /* entries; larger directories have a link count of 1: "unknown" */
};

struct fs {
	struct fs_config config;
	uint32_t generation; /* of the nodes' numbers: another daemon's may mean other files */
	struct failures *failures;
	pthread_key_t buffer; /* each thread's struct buffer */
	atomic_flag opened;
	struct handles handles;
	struct negotiation negotiation;
	atomic_bool begun;    /* earlier requests wait for the lock, */
	pthread_mutex_t lock; /* guards `begun` while requests wait for it */
	pthread_cond_t beginning;
	struct passthrough passthrough;
	_Atomic ckpt_node small[SMALL_NODES]; /* files read in small pieces; slot by number */
};

struct buffer {
	struct ckpt_parts *parts;
	size_t cap;
	char data[];
};

static void free_buffer(void *p)
{
	struct buffer *b = p;

	if (b)
		ckpt_parts_free(b->parts);
	free(b);
}

struct fs *fs_new(const struct fs_config *config)
{
	struct fs *fs = calloc(1, sizeof(*fs));

	if (!fs)
		return NULL;
	fs->config = *config;
	fs->generation = (uint32_t)(clock_wall_ns() / 1000);
	fs->failures = failures_new(config->ckpt);
	if (!fs->failures || pthread_key_create(&fs->buffer, free_buffer)) {
		failures_free(fs->failures);
		free(fs);
		return NULL;
	}
	atomic_flag_clear(&fs->opened);
	(void)pthread_mutex_init(&fs->lock, NULL);
	(void)pthread_cond_init(&fs->beginning, NULL);
	handles_init(&fs->handles);
	passthrough_init(&fs->passthrough, config->stats);
	fs->negotiation.passthrough = config->io == FS_IO_AUTO && is_sys_admin();
	return fs;
}

static struct negotiation *negotiation_of(void *userdata)
{
	struct fs *fs = userdata;

	return &fs->negotiation;
}

int fs_start(struct fs *fs, struct fuse_session *session)
{
	fs->passthrough.fd = fuse_session_fd(session);
	return negotiate_start(session, negotiation_of);
}

void fs_free(struct fs *fs)
{
	if (!fs)
		return;
	fs_begin(fs);
	(void)pthread_cond_destroy(&fs->beginning);
	(void)pthread_mutex_destroy(&fs->lock);
	passthrough_release(&fs->passthrough);
	handles_release(&fs->handles);
	free_buffer(pthread_getspecific(fs->buffer));
	(void)pthread_key_delete(fs->buffer);
	failures_free(fs->failures);
	free(fs);
}

void fs_hangs(struct fs *fs, const char *doing, ckpt_node node)
{
	struct ckpt_err e = { 0 };

	(void)err_set(&e, ETIMEDOUT, "has been waiting for its data files for %d seconds",
		      LOOP_LOG_SECONDS);
	reply_log(fs->failures,
		  &(struct failure){
			  .doing = doing, .node = node, .unnamed = ckpt_is_run(fs->config.ckpt) },
		  &e);
}

static struct fs *fs_of(fuse_req_t req)
{
	struct fs *fs = fuse_req_userdata(req);

	if (!fs->begun) { /* a thread of libfuse's, for io_uring */
		SCOPED_LOCK(&fs->lock);

		while (!fs->begun)
			(void)pthread_cond_wait(&fs->beginning, &fs->lock);
	}
	return fs;
}

void fs_begin(struct fs *fs)
{
	SCOPED_LOCK(&fs->lock);

	fs->begun = true;
	(void)pthread_cond_broadcast(&fs->beginning);
}

const struct fs_config *fs_config_of(const struct fs *fs)
{
	return &fs->config;
}

const struct fs_config *fs_config(fuse_req_t req)
{
	return &fs_of(req)->config;
}

struct stats *fs_stats(fuse_req_t req)
{
	return fs_of(req)->config.stats;
}

static struct buffer *new_buffer(size_t n)
{
	struct buffer *b = malloc(sizeof(*b) + n);

	if (!b)
		return NULL;
	b->cap = n;
	b->parts = ckpt_parts_new();
	if (!b->parts) {
		free(b);
		return NULL;
	}
	return b;
}

/* This thread's buffer of at least n bytes, valid until the next call; NULL: out of memory. */
static struct buffer *thread_buffer(struct fs *fs, size_t n)
{
	struct buffer *b = pthread_getspecific(fs->buffer);

	if (b && b->cap >= n)
		return b;
	(void)pthread_setspecific(fs->buffer, NULL);
	free_buffer(b);
	b = new_buffer(n < BLKSIZE / 8 ? BLKSIZE / 8 : n);
	if (b && pthread_setspecific(fs->buffer, b)) {
		free_buffer(b);
		return NULL;
	}
	return b;
}

/* The same for callers that need only the bytes. */
static char *thread_bytes(struct fs *fs, size_t n)
{
	struct buffer *b = thread_buffer(fs, n);

	return b ? b->data : NULL;
}

static struct handle *handle_of(const struct fuse_file_info *fi)
{
	return (struct handle *)(uintptr_t)fi->fh;
}

/* The number of subdirectories of a node, or -1 if counting takes long or means little. */
static int64_t count_subdirs(struct ckpt *c, const struct ckpt_stat *dir)
{
	char name[CKPT_NAME_MAX + 1];
	struct ckpt_stat st;
	struct ckpt_err e = { 0 };
	int64_t n = 0;
	ckpt_node node;

	if (dir->size > COUNT_SUBDIRS || dir->changes || dir->partial)
		return -1;
	for (uint64_t pos = 0; !ckpt_next(c, dir->node, &pos, name, &node);)
		n += !ckpt_type(c, node, &st, &e) && st.is_dir;
	return n;
}

static mode_t mode_of(const struct ckpt_stat *st)
{
	return st->is_dir ? S_IFDIR | 0555 : st->is_link ? S_IFLNK | 0777 : S_IFREG | 0444;
}

static int node_attr(struct fs *fs, ckpt_node node, struct stat *ret, double *ret_timeout,
		     struct ckpt_err *e)
{
	struct ckpt_stat st;
	int rc = ckpt_stat(fs->config.ckpt, node, &st, e);

	if (rc)
		return rc;
	*ret_timeout = st.changes ? soon : forever;
	memset(ret, 0, sizeof(*ret));
	ret->st_ino = node;
	ret->st_mode = mode_of(&st);
	ret->st_nlink = st.is_dir ? (nlink_t)(2 + count_subdirs(fs->config.ckpt, &st)) : 1;
	ret->st_uid = fs->config.uid;
	ret->st_gid = fs->config.gid;
	ret->st_size = (off_t)st.size;
	/* Not zero, because tar -S would take the file for a single hole. */
	ret->st_blocks = (blkcnt_t)(st.size / 512 + !!(st.size % 512));
	ret->st_blksize = BLKSIZE;
	ret->st_mtim.tv_sec = (time_t)(st.mtime_ns / 1000000000u);
	ret->st_mtim.tv_nsec = (long)(st.mtime_ns % 1000000000u);
	ret->st_ctim = ret->st_atim = ret->st_mtim;
	return 0;
}

/* The attributes that a listing needs. */
static int node_type(struct fs *fs, ckpt_node node, struct stat *ret, struct ckpt_err *e)
{
	struct ckpt_stat st;
	int rc = ckpt_type(fs->config.ckpt, node, &st, e);

	*ret = (struct stat){ .st_ino = node, .st_mode = rc ? 0 : mode_of(&st) };
	return rc;
}

static int node_entry(struct fs *fs, ckpt_node node, struct fuse_entry_param *ret,
		      struct ckpt_err *e)
{
	int rc;

	/* The kernel gives the root 0, and file handles 32 bits. */
	*ret = (struct fuse_entry_param){ .ino = node,
					  .generation = node == FUSE_ROOT_ID ? 0 : fs->generation };
	rc = node_attr(fs, node, &ret->attr, &ret->attr_timeout, e);
	ret->entry_timeout = ret->attr_timeout;
	return rc;
}

/* How long the kernel may cache that a name is not in a directory. */
static double absent_timeout(struct fs *fs, ckpt_node dir)
{
	struct ckpt_stat st;
	struct ckpt_err e = { 0 };

	return ckpt_type(fs->config.ckpt, dir, &st, &e) || st.changes ? soon : forever;
}

/* Turns a flag that the kernel offers on or off. */
static void want(struct fuse_conn_info *conn, unsigned flag, bool on)
{
	if (on)
		conn->want |= conn->capable & flag;
	else
		conn->want &= ~flag;
}

static void op_init(void *userdata, struct fuse_conn_info *conn)
{
	struct fs *fs = userdata;

	want(conn, FUSE_CAP_ASYNC_READ | FUSE_CAP_ASYNC_DIO | FUSE_CAP_PARALLEL_DIROPS, true);
	want(conn, FUSE_CAP_READDIRPLUS | FUSE_CAP_EXPORT_SUPPORT | FUSE_CAP_CACHE_SYMLINKS, true);
	want(conn, FUSE_CAP_EXPLICIT_INVAL_DATA, true);
	/* With AUTO attributes are requested only with the first page of a listing: `ls -l` would
	 * stat the rest one by one. */
	want(conn, FUSE_CAP_READDIRPLUS_AUTO | FUSE_CAP_AUTO_INVAL_DATA, false);
	/* Splicing replies costs more than copying them (pipe setup for every 4 KiB page). */
	want(conn, FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE, false);
	negotiate_init(&fs->negotiation, conn);
	stats_set_passthrough(fs->config.stats, fs->negotiation.passthrough);
	/* Hung read-ahead requests remain in flight, and at this bound all cached reading would
	 * stop. */
	conn->max_background = LOOP_MAX_HUNG;
	conn->congestion_threshold = LOOP_MAX_HUNG / 4 * 3;
}

static int find(struct ckpt *c, ckpt_node dir, const char *name, ckpt_node *ret)
{
	/* "." and ".." come from file handles (name_to_handle_at), because of EXPORT_SUPPORT. */
	if (!strcmp(name, ".") || !strcmp(name, "..")) {
		*ret = name[1] ? ckpt_parent(c, dir) : dir;
		return 0;
	}
	if (strlen(name) > CKPT_NAME_MAX) /* the kernel's own limit is 1024 */
		return -ENAMETOOLONG;
	return ckpt_lookup(c, dir, name, ret);
}

/* A node that cannot be examined is logged, unless it is gone. */
static void reply_node_failure(fuse_req_t req, const char *doing, ckpt_node node, int rc,
			       const struct ckpt_err *e)
{
	struct ckpt_err none;

	if (!e->code)
		(void)err_sys(&none, -rc, "%s", doing);
	reply_name_failure(req, fs_of(req)->failures,
			   &(struct failure){ .doing = doing, .node = node }, e->code ? e : &none);
}

/* The same for a directory: the cause may be that it cannot be entered, and then that is
 * reported. */
static void reply_dir_failure(fuse_req_t req, ckpt_node dir, int rc, const struct ckpt_err *e)
{
	struct fs *fs = fs_of(req);
	struct ckpt_err why = { 0 };

	if (rc != -ESTALE && rc != -ENAMETOOLONG && ckpt_enter(fs->config.ckpt, dir, &why) &&
	    why.code != ESTALE)
		reply_failure(req, fs->failures, &(struct failure){ .doing = "open", .node = dir },
			      &why);
	else
		reply_node_failure(req, "look into", dir, rc, e);
}

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fs *fs = fs_of(req);
	struct fuse_entry_param entry = { 0 };
	struct ckpt_err e = { 0 };
	ckpt_node node;
	int rc = find(fs->config.ckpt, parent, name, &node);

	if (!rc)
		rc = node_entry(fs, node, &entry, &e);
	if (rc < 0) {
		reply_dir_failure(req, parent, rc, &e);
		return;
	}
	if (rc) /* inode 0: cached as absent */
		entry.entry_timeout = absent_timeout(fs, parent);
	(void)fuse_reply_entry(req, &entry);
}

static void op_forget(fuse_req_t req, fuse_ino_t node, uint64_t nlookup)
{
	(void)node;
	(void)nlookup;
	fuse_reply_none(req);
}

static void op_getattr(fuse_req_t req, fuse_ino_t node, struct fuse_file_info *fi)
{
	struct stat st;
	struct ckpt_err e = { 0 };
	double timeout = 0;
	int rc = node_attr(fs_of(req), node, &st, &timeout, &e);

	(void)fi;
	if (rc)
		reply_node_failure(req, "stat", node, rc, &e);
	else
		(void)fuse_reply_attr(req, &st, timeout);
}

static void op_readlink(fuse_req_t req, fuse_ino_t node)
{
	char target[CKPT_NAME_MAX + 1];
	struct ckpt_err e = { 0 };
	int64_t n = ckpt_readlink(fs_of(req)->config.ckpt, node, target, &e);

	if (n < 0)
		reply_node_failure(req, "read link", node, (int)n, &e);
	else
		(void)fuse_reply_readlink(req, target);
}

/* Should the file's reads bypass the kernel's page cache? */
static bool is_direct(struct fs *fs, const struct handle *h, ckpt_node node)
{
	if (fs->config.io != FS_IO_AUTO)
		return fs->config.io == FS_IO_DIRECT;
	/* Otherwise mapping it would be refused. */
	return fs->negotiation.allow_mmap && ckpt_file_size(h->file) >= DIRECT_SIZE &&
	       ckpt_file_is_plain(h->file) && fs->small[node % SMALL_NODES] != node;
}

/* Readers that use small requests get the page cache on the next open. */
static void count_small(struct fs *fs, struct handle *h, ckpt_node node, size_t size)
{
	if (h->direct && size < SMALL_READ && atomic_fetch_add(&h->small_reads, 1) == SMALL_READS)
		fs->small[node % SMALL_NODES] = node;
}

static void close_handle(struct fs *fs, struct handle *h, ckpt_node node)
{
	struct handle *first = h->begun ? passthrough_end(&fs->passthrough, node) : NULL;
	struct ckpt_err why = { 0 };

	if (first) {
		if (ckpt_file_written(first->file, &why))
			reply_log(fs->failures,
				  &(struct failure){ .doing = "reads of", .node = node }, &why);
		handle_put(&fs->handles, first);
	}
	stats_open_files(fs->config.stats, -1);
	handle_put(&fs->handles, h);
}

/* How the kernel is to treat the file. -ENOENT: the open was interrupted. */
static int reply_open(fuse_req_t req, struct handle *h, ckpt_node node, struct fuse_file_info *fi)
{
	struct fs *fs = fs_of(req);
	struct ckpt_stat st;
	struct ckpt_err e = { 0 };
	bool changes = ckpt_type(fs->config.ckpt, node, &st, &e) || st.changes;
	int backing = 0;

	if (fs->negotiation.passthrough && !changes && ckpt_file_size(h->file) >= DIRECT_SIZE)
		backing = passthrough_begin(&fs->passthrough, &fs->handles, h, node, &e);
	if (backing < 0) {
		reply_failure(req, fs->failures, &(struct failure){ .doing = "open", .node = node },
			      &e);
		return -ENOENT;
	}
	if (backing)
		return passthrough_reply(req, h, backing);
	fi->fh = (uintptr_t)h;
	fi->keep_cache = !changes && !ckpt_file_is_stale(h->file);
	fi->direct_io = h->direct = changes || is_direct(fs, h, node);
	negotiate_no_flush(fi);
	return fuse_reply_open(req, fi);
}

static void op_open(fuse_req_t req, fuse_ino_t node, struct fuse_file_info *fi)
{
	struct fs *fs = fs_of(req);
	struct handle *h = NULL;
	struct ckpt_stat st;
	struct ckpt_err e = { 0 };

	if ((fi->flags & O_ACCMODE) != O_RDONLY || fi->flags & O_TRUNC) {
		reply_error(req, EROFS);
		return;
	}
	if (!atomic_flag_test_and_set(&fs->opened) && fs->config.first_open)
		fs->config.first_open(fs->config.arg);
	if (handle_open(&fs->handles, fs->config.ckpt, node, &h, &e)) {
		if (e.code == ESTALE && ckpt_type(fs->config.ckpt, node, &st, &e) == -ESTALE)
			reply_name_error(req, -ESTALE); /* the kernel looks the name up again */
		else
			reply_failure(req, fs->failures,
				      &(struct failure){ .doing = "open", .node = node }, &e);
		return;
	}
	stats_open_files(fs->config.stats, 1);
	if (reply_open(req, h, node, fi) == -ENOENT) /* interrupted: there will be no release */
		close_handle(fs, h, node);
}

/* From now on the kernel may release the file, and the handle stays. */
static struct handle *held_by_read(const struct fuse_file_info *fi)
{
	struct handle *h = handle_get(handle_of(fi));

	loop_may_interrupt();
	return h;
}

static void op_read(fuse_req_t req, fuse_ino_t node, size_t size, off_t at,
		    struct fuse_file_info *fi)
{
	struct fs *fs = fs_of(req);
	struct handle *h = held_by_read(fi);
	uint64_t off = (uint64_t)at, end = ckpt_file_size(h->file);
	size_t len = off < end ? (size_t)min_u64(size, end - off) : 0;
	char *payload = negotiate_payload(req);
	struct buffer *b = payload ? NULL : thread_buffer(fs, len);
	const struct iovec *iov;
	struct ckpt_err e = { 0 };
	int64_t got;
	int n;

	count_small(fs, h, node, size);
	/* Mapped pages may only be given to a system call, which copes if they vanish; libfuse
	 * would copy them. */
	if (payload)
		got = ckpt_file_read(h->file, payload, len, off, &e);
	else if (b)
		got = ckpt_file_gather(h->file, b->data, len, off, b->parts, &iov, &n, &e);
	else
		got = err_sys(&e, ENOMEM, "read");
	if (got < 0) {
		handle_failed(h, off);
		reply_failure(
			req, fs->failures,
			&(struct failure){ .doing = "read", .node = node, .off = off, .len = len },
			&e);
	} else {
		stats_served(fs->config.stats, len);
		if (payload)
			(void)fuse_reply_buf(req, payload, len);
		else
			(void)fuse_reply_iov(req, iov, n);
		if (b)
			ckpt_parts_release(b->parts);
		ckpt_file_ahead(h->file);
	}
	handle_put(&fs->handles, h);
}

static void op_release(fuse_req_t req, fuse_ino_t node, struct fuse_file_info *fi)
{
	close_handle(fs_of(req), handle_of(fi), node);
	(void)fuse_reply_err(req, 0);
}

static void op_opendir(fuse_req_t req, fuse_ino_t node, struct fuse_file_info *fi)
{
	struct ckpt *c = fs_of(req)->config.ckpt;
	struct ckpt_stat st;
	struct ckpt_err e = { 0 };
	int rc = ckpt_type(c, node, &st, &e);

	if (!rc && !st.is_dir)
		rc = -ENOTDIR;
	if (!rc)
		rc = ckpt_enter(c, node, &e);
	if (rc) {
		reply_dir_failure(req, node, rc, &e);
		return;
	}
	fi->cache_readdir = !st.changes;
	fi->keep_cache = !st.changes;
	(void)fuse_reply_open(req, fi);
}

/* The entry at *pos of a listing, where "." is 0 and ".." is 1; *pos becomes the next one's.
 * Returns 1 after the last. */
static int list_entry(struct fs *fs, ckpt_node dir, uint64_t *pos, char name[CKPT_NAME_MAX + 1],
		      ckpt_node *ret)
{
	struct ckpt *c = fs->config.ckpt;
	uint64_t at = *pos;
	int rc = 0;

	if (at >= 2) {
		at -= 2;
		rc = ckpt_next(c, dir, &at, name, ret);
		*pos = at + 2;
		return rc;
	}
	memcpy(name, "..", 3);
	name[at + 1] = 0;
	*ret = at ? ckpt_parent(c, dir) : dir;
	++*pos;
	return 0;
}

/* Adds an entry; returns the size it needs, which is more than `room` if it does not fit. */
static size_t add_entry(fuse_req_t req, char *buf, size_t room, const char *name,
			struct fuse_entry_param *entry, uint64_t next, bool plus)
{
	if (!plus)
		return fuse_add_direntry(req, buf, room, name, &entry->attr, (off_t)next);
	if (next <= 2)
		entry->ino = 0; /* "." and "..": the kernel takes no reference */
	return fuse_add_direntry_plus(req, buf, room, name, entry, (off_t)next);
}

/* The listing from cookie `off` on: an entry's cookie is the position of the next one. */
static void list(fuse_req_t req, ckpt_node dir, size_t size, off_t off, bool plus)
{
	struct fs *fs = fs_of(req);
	char name[CKPT_NAME_MAX + 1], *buf = thread_bytes(fs, size);
	struct fuse_entry_param entry = { 0 };
	struct ckpt_err e = { 0 };
	size_t used = 0;
	int rc = buf ? 0 : -ENOMEM;

	for (uint64_t pos = (uint64_t)off; !rc;) {
		size_t need;
		ckpt_node node;

		rc = list_entry(fs, dir, &pos, name, &node);
		if (rc)
			break;
		rc = plus ? node_entry(fs, node, &entry, &e) : node_type(fs, node, &entry.attr, &e);
		if (rc == -ESTALE) { /* it has just gone, so it is skipped */
			rc = e.code = 0;
			continue;
		}
		if (rc)
			break;
		need = add_entry(req, buf + used, size - used, name, &entry, pos, plus);
		if (need > size - used)
			break;
		used += need;
	}
	if (rc < 0 && !used)
		reply_node_failure(req, "list", dir, rc, &e);
	else
		(void)fuse_reply_buf(req, buf, used);
}

static void op_readdir(fuse_req_t req, fuse_ino_t node, size_t size, off_t off,
		       struct fuse_file_info *fi)
{
	(void)fi;
	list(req, node, size, off, false);
}

static void op_readdirplus(fuse_req_t req, fuse_ino_t node, size_t size, off_t off,
			   struct fuse_file_info *fi)
{
	(void)fi;
	list(req, node, size, off, true);
}

static void op_releasedir(fuse_req_t req, fuse_ino_t node, struct fuse_file_info *fi)
{
	(void)node;
	(void)fi;
	(void)fuse_reply_err(req, 0);
}

static void op_statfs(fuse_req_t req, fuse_ino_t node)
{
	struct ckpt_totals t;
	struct statvfs st = { .f_bsize = STATFS_BLOCK, .f_frsize = STATFS_BLOCK };

	(void)node;
	ckpt_totals(fs_of(req)->config.ckpt, &t);
	st.f_blocks = t.tensor_bytes / STATFS_BLOCK + !!(t.tensor_bytes % STATFS_BLOCK);
	st.f_files = t.tensors + t.objects;
	st.f_namemax = CKPT_NAME_MAX;
	st.f_flag = ST_RDONLY;
	(void)fuse_reply_statfs(req, &st);
}

/* buf holds the part of the n bytes of a value that fits; size is the room that the reader has. */
static void reply_value(fuse_req_t req, const char *buf, int64_t n, size_t size)
{
	if (n < 0)
		reply_name_error(req, (int)n);
	else if (!size)
		(void)fuse_reply_xattr(req, (size_t)n);
	else if ((uint64_t)n > size)
		reply_error(req, ERANGE);
	else
		(void)fuse_reply_buf(req, buf, (size_t)n);
}

static void op_getxattr(fuse_req_t req, fuse_ino_t node, const char *name, size_t size)
{
	struct fs *fs = fs_of(req);
	char *buf = thread_bytes(fs, size);
	struct ckpt_err e = { 0 };
	int64_t n;

	/* `ls -l` requests labels and ACLs; after this answer the kernel does not ask again. */
	if (strncmp(name, "user.", strlen("user.")) != 0) {
		reply_error(req, ENOTSUP);
		return;
	}
	n = buf ? ckpt_xattr(fs->config.ckpt, node, name, buf, size, &e) : -ENOMEM;
	reply_value(req, buf, n, size);
}

static void op_listxattr(fuse_req_t req, fuse_ino_t node, size_t size)
{
	struct fs *fs = fs_of(req);
	char *buf = thread_bytes(fs, size);

	reply_value(req, buf, buf ? ckpt_xattr_names(fs->config.ckpt, node, buf, size) : -ENOMEM,
		    size);
}

const struct fuse_lowlevel_ops fs_ops = {
	.init = op_init,
	.lookup = op_lookup,
	.forget = op_forget,
	.getattr = op_getattr,
	.readlink = op_readlink,
	.open = op_open,
	.read = op_read,
	.release = op_release,
	.opendir = op_opendir,
	.readdir = op_readdir,
	.readdirplus = op_readdirplus,
	.releasedir = op_releasedir,
	.statfs = op_statfs,
	.getxattr = op_getxattr,
	.listxattr = op_listxattr,
};
