/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ops - the FUSE operations: a read-only tree that never changes, or a run of such trees.
 *
 * The kernel may cache everything for a day: entries, attributes, the absence of names, directory
 * listings, pages; in a run, which can change, only for a second, and listings and pages not at
 * all. Inode numbers are the engine's nodes, so lookups need not be counted. Every operation makes
 * one call of the engine and answers exactly once.
 *
 * Deliberately left NULL: locks (a handler would disable the kernel's own, which work), access,
 * flush and lseek (the kernel handles them), and everything that writes (the kernel answers EROFS
 * because of -o ro).
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
	FS_IO_DIRECT, /* no: large reads are fastest, small ones are slow */
	FS_IO_CACHED, /* yes: fastest for repeated, small or mapped reads */
};

struct fs_config {
	struct ckpt *ckpt;   /* borrowed */
	struct stats *stats; /* counters; borrowed */
	enum fs_io io;
	uid_t uid; /* owner of all files */
	gid_t gid;
	void (*first_open)(void *arg);
	void *arg;
};

/* NULL: out of memory. */
struct fs *fs_new(const struct fs_config *config);
/* Call with a session that has fs_ops, between fuse_session_mount and the loop. 0 or -errno. */
int fs_start(struct fs *fs, struct fuse_session *session);
/* Releases requests, which wait for this in other threads; may be called again. Only in fs_new's
 * thread. */
void fs_begin(struct fs *fs);
const struct fs_config *fs_config_of(const struct fs *fs);
/* The configuration of the file system that a request is for. */
const struct fs_config *fs_config(fuse_req_t req);
struct stats *fs_stats(fuse_req_t req);
/* Logs that a request about a node has been waiting for its data files. */
void fs_hangs(struct fs *fs, const char *doing, ckpt_node node);
/* Closes the files that readers still have open (after a lazy unmount or a signal). NULL is
 * fine. */
void fs_free(struct fs *fs);

#endif
