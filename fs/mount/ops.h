/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ops - the FUSE operations: a read-only tree that never changes, or a run of such trees.
 *
 * Whatever the kernel learns it may keep for a day: entries, attributes, the absence of names,
 * directory listings, pages; where a run changes, for a second, and listings and pages not at all.
 * Inode numbers are the engine's nodes, so nothing is counted or forgotten. Every op makes one call
 * of the engine and answers exactly once.
 *
 * What is left NULL on purpose: locks (a handler would turn the kernel's own, working ones off),
 * access, flush, lseek (the kernel does all three without us), everything that writes (the
 * kernel answers EROFS because of -o ro).
 *
 * Threads: ops from any number; fs_new and fs_free from one, with no loop running.
 */
#ifndef FS_MOUNT_OPS_H
#define FS_MOUNT_OPS_H

#include <ckptfs/ckpt.h>

#include <fuse_lowlevel.h>

#include <sys/types.h>

extern const struct fuse_lowlevel_ops fs_ops; /* userdata: struct fs * */

struct fs;
struct fuse_session;
struct stats;

/* Whether reads go through the kernel's page cache. */
enum fs_io {
	FS_IO_AUTO,   /* file by file */
	FS_IO_DIRECT, /* no: large reads are fastest, small ones slow */
	FS_IO_CACHED, /* yes: what is read again, in small pieces or through a mapping is fastest */
};

struct fs_config {
	struct ckpt *ckpt;   /* borrowed */
	struct stats *stats; /* what is counted; borrowed */
	enum fs_io io;
	uid_t uid; /* owner of all files */
	gid_t gid;
	void (*first_open)(void *arg);
	void *arg;
};

/* NULL: out of memory. */
struct fs *fs_new(const struct fs_config *config);
/* Of a session with fs_ops, between fuse_session_mount and the loop. 0 or -errno. */
int fs_start(struct fs *fs, struct fuse_session *session);
/* Requests may be served, which wait for it in other threads; again is fine. By fs_new's thread. */
void fs_begin(struct fs *fs);
const struct fs_config *fs_config_of(const struct fs *fs);
/* Of the file system that a request is for. */
const struct fs_config *fs_config(fuse_req_t req);
struct stats *fs_stats(fuse_req_t req);
/* The log is told that a request about a node has been waiting for its data files. */
void fs_hangs(struct fs *fs, const char *doing, ckpt_node node);
/* Closes the files that readers still hold (a lazy unmount, a signal). NULL is fine. */
void fs_free(struct fs *fs);

#endif
