/* SPDX-License-Identifier: Apache-2.0 */
#include "mount/watch.h"

#include "mount/negotiate.h"
#include "mount/ops.h"
#include "mount/reply.h"
#include "mount/stats.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>

/* Checkpoints and runs do not use these node numbers (see view.c, run_tree.c). */
#define FIRST_NODE ((fuse_ino_t)4)

static const char *const names[N_STATS_FILES] = {
	[STATS_JSON] = WATCH_FILE, [STATS_LOG] = WATCH_LOG
};

static const double forever = 86400;

/* ---- the files ---- */

static bool is_ours(fuse_ino_t node)
{
	return node >= FIRST_NODE && node < FIRST_NODE + N_STATS_FILES;
}

static struct stats_reader *reader_of(const struct fuse_file_info *fi)
{
	return (struct stats_reader *)(uintptr_t)fi->fh;
}

static bool find_dir(fuse_req_t req, ckpt_node *ret)
{
	return !ckpt_lookup(fs_config(req)->ckpt, CKPT_ROOT, WATCH_DIR, ret);
}

/* Like everything else, they have the checkpoint's time: `tar` complains about files that change
 * while it reads them. */
static int attributes(fuse_req_t req, fuse_ino_t which, struct stat *ret)
{
	const struct fs_config *config = fs_config(req);
	struct ckpt_stat dir;
	struct ckpt_err e = { 0 };
	ckpt_node node;
	int rc = find_dir(req, &node) ? ckpt_stat(config->ckpt, node, &dir, &e) : -ENOENT;

	if (rc)
		return rc;
	*ret = (struct stat){ .st_ino = which,
			      .st_mode = S_IFREG | 0444,
			      .st_nlink = 1,
			      .st_uid = config->uid,
			      .st_gid = config->gid,
			      .st_blksize = 65536 };
	ret->st_mtim.tv_sec = (time_t)(dir.mtime_ns / 1000000000u);
	ret->st_mtim.tv_nsec = (long)(dir.mtime_ns % 1000000000u);
	ret->st_ctim = ret->st_atim = ret->st_mtim;
	return 0;
}

static void reply_node(fuse_req_t req, fuse_ino_t node)
{
	struct fuse_entry_param entry = { .ino = node, .entry_timeout = forever };
	int rc = attributes(req, node, &entry.attr);

	if (rc)
		reply_name_error(req, rc);
	else
		(void)fuse_reply_entry(req, &entry);
}

static void file_open(fuse_req_t req, fuse_ino_t node, struct fuse_file_info *fi)
{
	struct stats_reader *r;

	if ((fi->flags & O_ACCMODE) != O_RDONLY || fi->flags & O_TRUNC) {
		reply_error(req, EROFS);
		return;
	}
	stats_set_uring(fs_stats(req), negotiate_payload(req));
	r = stats_open(fs_stats(req), (enum stats_file)(node - FIRST_NODE));
	if (!r) {
		reply_error(req, ENOMEM);
		return;
	}
	fi->fh = (uintptr_t)r;
	fi->direct_io = 1; /* otherwise nothing beyond the size is read */
	negotiate_no_flush(fi);
	if (fuse_reply_open(req, fi) == -ENOENT) /* interrupted: there will be no release */
		stats_close(r);
}

static void file_read(fuse_req_t req, fuse_ino_t node, size_t size, off_t at,
		      struct fuse_file_info *fi)
{
	autofree char *text = NULL;
	size_t n;
	int rc = stats_read(reader_of(fi), (uint64_t)at, size, &text, &n);

	(void)node;
	if (rc)
		reply_error(req, -rc);
	else
		(void)fuse_reply_buf(req, text, n);
}

static void file_release(fuse_req_t req, fuse_ino_t node, struct fuse_file_info *fi)
{
	(void)node;
	stats_close(reader_of(fi));
	(void)fuse_reply_err(req, 0);
}

static void file_getattr(fuse_req_t req, fuse_ino_t node, struct fuse_file_info *fi)
{
	struct stat st;
	int rc = attributes(req, node, &st);

	(void)fi;
	if (rc)
		reply_name_error(req, rc);
	else
		(void)fuse_reply_attr(req, &st, forever);
}

/* Looks up "." and "..", which come from file handles. */
static void file_lookup(fuse_req_t req, fuse_ino_t node, const char *name)
{
	ckpt_node dir;

	if (!strcmp(name, "."))
		reply_node(req, node);
	else if (!strcmp(name, "..") && find_dir(req, &dir))
		fs_ops.lookup(req, dir, ".");
	else
		fs_ops.lookup(req, node, name);
}

static void file_forget(fuse_req_t req, fuse_ino_t node, uint64_t n)
{
	fs_ops.forget(req, node, n);
}

static const struct fuse_lowlevel_ops file_ops = {
	.lookup = file_lookup,
	.forget = file_forget,
	.getattr = file_getattr,
	.open = file_open,
	.read = file_read,
	.release = file_release,
};

/* ---- the operations ---- */

/* The operations for a node: those of our files, or those of the tree below, which are counted. */
static const struct fuse_lowlevel_ops *ops_of(fuse_req_t req, fuse_ino_t node,
					      enum stats_request kind)
{
	if (is_ours(node))
		return &file_ops;
	stats_count(fs_stats(req), kind);
	return &fs_ops;
}

static void watch_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	ckpt_node dir;

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (!strcmp(name, names[i]) && find_dir(req, &dir) && dir == parent) {
			reply_node(req, FIRST_NODE + i);
			return;
		}
	ops_of(req, parent, STATS_lookup)->lookup(req, parent, name);
}

static void watch_read(fuse_req_t req, fuse_ino_t node, size_t size, off_t off,
		       struct fuse_file_info *fi)
{
	const struct fuse_lowlevel_ops *ops = ops_of(req, node, STATS_read);
	struct stats *s = fs_stats(req);
	uint64_t start = clock_ns();

	ops->read(req, node, size, off, fi);
	if (ops == &fs_ops)
		stats_read_done(s, start);
}

static void watch_init(void *userdata, struct fuse_conn_info *conn)
{
	fs_ops.init(userdata, conn);
	stats_negotiated(fs_config_of(userdata)->stats, conn);
}

/* Operations that our files answer, too, */
#define STACKED(name, params, ...) \
	static void watch_##name params \
	{ \
		ops_of(req, node, STATS_##name)->name(__VA_ARGS__); \
	}

STACKED(forget, (fuse_req_t req, fuse_ino_t node, uint64_t n), req, node, n)
STACKED(getattr, (fuse_req_t req, fuse_ino_t node, struct fuse_file_info *fi), req, node, fi)
STACKED(open, (fuse_req_t req, fuse_ino_t node, struct fuse_file_info *fi), req, node, fi)
STACKED(release, (fuse_req_t req, fuse_ino_t node, struct fuse_file_info *fi), req, node, fi)

/* and those that are only counted. */
#define COUNTED(name, params, ...) \
	static void watch_##name params \
	{ \
		stats_count(fs_stats(req), STATS_##name); \
		fs_ops.name(__VA_ARGS__); \
	}

COUNTED(readlink, (fuse_req_t req, fuse_ino_t node), req, node)
COUNTED(opendir, (fuse_req_t req, fuse_ino_t node, struct fuse_file_info *fi), req, node, fi)
COUNTED(readdir, (fuse_req_t req, fuse_ino_t node, size_t n, off_t at, struct fuse_file_info *fi),
	req, node, n, at, fi)
COUNTED(readdirplus,
	(fuse_req_t req, fuse_ino_t node, size_t n, off_t at, struct fuse_file_info *fi), req, node,
	n, at, fi)
COUNTED(releasedir, (fuse_req_t req, fuse_ino_t node, struct fuse_file_info *fi), req, node, fi)
COUNTED(statfs, (fuse_req_t req, fuse_ino_t node), req, node)
COUNTED(getxattr, (fuse_req_t req, fuse_ino_t node, const char *name, size_t size), req, node, name,
	size)
COUNTED(listxattr, (fuse_req_t req, fuse_ino_t node, size_t size), req, node, size)

void watch_ops(struct fuse_lowlevel_ops *ret)
{
	*ret = fs_ops; /* operations without a counter are passed through */
	ret->init = watch_init;
#define OVERRIDE(name) ret->name = watch_##name;
	STATS_REQUESTS(OVERRIDE)
#undef OVERRIDE
}
