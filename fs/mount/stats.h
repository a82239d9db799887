/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stats - counts the requests and answers of a mount, and makes the texts of .ckptfs/stats.json and
 * .ckptfs/log.
 *
 * Numbers are counted since the mount began. Requests for these two files are not counted, so
 * looking changes nothing. Requests that the kernel answers from its caches never arrive here.
 *
 * Threads: any; new and free from one.
 */
#ifndef FS_MOUNT_STATS_H
#define FS_MOUNT_STATS_H

#include <ckptfs/ckpt.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fuse_conn_info;
struct journal;
struct mount_found;
struct stats;

/* Requests by kind, by the names that libfuse has for them. */
#define STATS_REQUESTS(X) \
	X(lookup) \
	X(forget) \
	X(getattr) \
	X(readlink) \
	X(open) \
	X(read) \
	X(release) \
	X(opendir) \
	X(readdir) \
	X(readdirplus) \
	X(releasedir) \
	X(statfs) \
	X(getxattr) \
	X(listxattr)

enum stats_request {
#define STATS_ENUM(name) STATS_##name,
	STATS_REQUESTS(STATS_ENUM)
#undef STATS_ENUM
		N_STATS_REQUESTS
};

/* The description of a mount; borrowed. */
struct stats_about {
	struct ckpt *ckpt;
	const char *source;    /* absolute path of the checkpoint */
	const char *options;   /* "word=value\0" as options_add_shape gives them, */
	size_t options_len;    /* bytes, */
	const char *directory; /* and the directory that relative paths in them start from */
	unsigned threads;      /* maximum */
	const struct mount_found *mount; /* filled in by the first request */
	struct journal *journal;	 /* what .ckptfs/log holds */
};

struct stats *stats_new(const struct stats_about *about); /* NULL: out of memory */
void stats_free(struct stats *s);			  /* NULL is fine */

void stats_count(struct stats *s, enum stats_request kind);
/* A read is about to be answered with this many bytes. */
void stats_served(struct stats *s, size_t bytes);
/* A request is about to be answered with this errno. */
void stats_error(struct stats *s, int code);
/* A read that began at clock_ns() == start has been answered. */
void stats_read_done(struct stats *s, uint64_t start);
/* Files that readers have open: 1 or -1. */
void stats_open_files(struct stats *s, int by);
/* The kernel reads such a file by itself (see passthrough.h): its reads cause no requests. */
void stats_passed(struct stats *s);
/* Can there be such files? */
void stats_set_passthrough(struct stats *s, bool on);
/* Do requests come over io_uring? */
void stats_set_uring(struct stats *s, bool on);
/* Records what kernel and daemon have agreed on. */
void stats_negotiated(struct stats *s, const struct fuse_conn_info *conn);

/* ---- .ckptfs/stats.json and .ckptfs/log ---- */

enum stats_file { STATS_JSON, STATS_LOG, N_STATS_FILES };

struct stats_reader; /* an open file; stats_free closes the remaining ones */

struct stats_reader *stats_open(struct stats *s, enum stats_file which); /* NULL: out of memory */
void stats_close(struct stats_reader *r);
/*
 * At most len bytes at off, *ret_len of them, in *ret, which the caller frees. The text is
 * generated on opening and again whenever off is 0; in between it does not change. 0, -ENOMEM or
 * -EFBIG.
 */
int stats_read(struct stats_reader *r, uint64_t off, size_t len, char **ret, size_t *ret_len);

#endif
