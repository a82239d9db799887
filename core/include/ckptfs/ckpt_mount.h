/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt_mount - what a server of the tree's files needs besides ckpt.h: names of nodes, answers
 * without copying, files that can be passed through, attributes and counters. `ckptfs mount` is
 * such a server for FUSE; one for 9P or NFS would need no more.
 *
 * Threads: as ckpt.h.
 */
#ifndef CKPTFS_CKPT_MOUNT_H
#define CKPTFS_CKPT_MOUNT_H

#include "ckpt.h"

#include <sys/uio.h>

CKPT_BEGIN

/* ---- nodes ---- */

/* The parent of the root, and of an invalid node, is the root. */
CKPT_API ckpt_node ckpt_parent(struct ckpt *c, ckpt_node node);
/* A node's name in its directory, however long it is. 1: it is the root, or there is no such node;
 * -ESTALE: the checkpoint is gone; for another negative errno ckpt_enter gives the reason. */
CKPT_API int ckpt_name(struct ckpt *c, ckpt_node node, char name[CKPT_ROOM(CKPT_NAME_MAX + 1)]);

/* ---- files ---- */

/* True for a single tensor that needs no decoding: caching the mount's file in the page cache as
 * well would only hold the same bytes in memory twice. */
CKPT_API bool ckpt_file_is_plain(const struct ckpt_file *f);
/*
 * For a thread that has answered a read and is idle: decode the blocks that a sequential reader is
 * about to request. Returns at once if there is nothing to decode.
 */
CKPT_API void ckpt_file_ahead(struct ckpt_file *f);
/*
 * Closes the data files of every checkpoint of a run that has not been used for unused_ms, so that
 * deleting it frees its space. The files are opened again when they are needed. Returns true if
 * other checkpoints have been idle for a shorter time; then call it again later. Does nothing for
 * checkpoints in an object store, or if c is not a run.
 */
CKPT_API bool ckpt_let_go(struct ckpt *c, unsigned unused_ms);
/*
 * True once a data file of the checkpoint has been found to have changed: whatever the caller has
 * cached of the checkpoint's files is then invalid. Never true for a run's own info.json.
 */
CKPT_API bool ckpt_file_is_stale(const struct ckpt_file *f);

/*
 * As ckpt_file_read, but long runs that are in the page cache or already decoded are not copied:
 * iov points into buf, into decoded blocks and, with map_files, into mapped data files. Every
 * success must be followed by ckpt_parts_release. Pass iov to writev(2) or the like and do not
 * touch the bytes: a page may be gone (an I/O error), and then the system call fails with EFAULT
 * where an access by this process would be fatal.
 *
 * Until the release, the bytes are guaranteed to be those of the checkpoint: a program that opens
 * one of the files for writing has to wait (fcntl(2), F_SETLEASE), so release soon. Where leases
 * are not available, the bytes are copied.
 */
struct ckpt_parts;					 /* belongs to one thread at a time */
CKPT_API struct ckpt_parts *ckpt_parts_new(void);	 /* NULL: out of memory */
CKPT_API void ckpt_parts_free(struct ckpt_parts *parts); /* NULL is fine */
CKPT_API int64_t ckpt_file_gather(struct ckpt_file *f, void *buf, size_t len, uint64_t off,
				  struct ckpt_parts *parts, const struct iovec **ret_iov,
				  int *ret_n, struct ckpt_err *e);
CKPT_API void ckpt_parts_release(struct ckpt_parts *parts);

/*
 * Does the file consist of exactly the bytes of one real file, in the same order? If so, returns 0
 * and sets *ret_fd, owned by the caller, to that file, open for reading and unchanged since the
 * checkpoint was opened; 1: no. Reads from it return the file's current contents. Never for a run,
 * whose files change.
 */
CKPT_API int ckpt_file_backing(struct ckpt_file *f, int *ret_fd, struct ckpt_err *e);
/*
 * True if the file that ckpt_file_backing found has been written to since then; *why names it.
 * False if it found none.
 */
CKPT_API bool ckpt_file_written(const struct ckpt_file *f, struct ckpt_err *why);

/*
 * Extended attribute of a file of tensors/, npy/ or logical/: user.ckptfs.fqn .dtype .shape .chunks
 * .files. Returns the value's length and writes at most cap bytes of it; -ENODATA if there is none.
 */
CKPT_API int64_t ckpt_xattr(struct ckpt *c, ckpt_node node, const char *name, char *buf, size_t cap,
			    struct ckpt_err *e);
/* NUL-separated names, as listxattr(2) returns them. */
CKPT_API int64_t ckpt_xattr_names(struct ckpt *c, ckpt_node node, char *buf, size_t cap);

/* ---- counters ---- */

/*
 * Counted since the checkpoint was opened; for a run, over all its checkpoints, including closed
 * ones.
 */
struct ckpt_counters {
	uint64_t source_reads, source_bytes; /* reads of data files and assets; bytes as stored */
	uint64_t mapped_bytes;		     /* of data files, from mapped pages, without a read */
	uint64_t faults;	       /* reads that failed: file gone, changed, or an I/O error */
	uint64_t copies, copied_bytes; /* moves of elements into answers, and their bytes */
	/* The cache of decoded blocks: lookups that found their block, lookups that had to read or
	 * decode it, blocks dropped, its size now and its limit. */
	uint64_t cache_hits, cache_misses, cache_evictions, cache_bytes, cache_max_bytes;
	uint64_t decoded_bytes;	   /* of compressed items; a block decoded twice counts twice */
	uint64_t quantised_bytes;  /* of blocks in gguf/; a block computed twice counts twice */
	uint64_t gguf_block_bytes; /* of all blocks in gguf/, once it has been looked at */
};
/* Never blocks. */
CKPT_API void ckpt_counters_sized(struct ckpt *c, struct ckpt_counters *ret, size_t size);
static inline void ckpt_counters(struct ckpt *c, struct ckpt_counters *ret)
{
	ckpt_counters_sized(c, ret, sizeof(*ret));
}

/*
 * Traffic with the object store that holds a checkpoint or run: counted since the process connected
 * to it, for all checkpoints that share the connection (those with the same cache and deadlines).
 */
struct ckpt_network {
	uint64_t requests, bytes; /* bytes: of data that arrived */
	uint64_t retries;	  /* requests repeated because one failed */
	uint64_t hedges;	  /* second requests made because the first took long */
	/* Measured on the latest requests, or 0: the time to the first byte of an answer, and the
	 * bytes per second of one connection and of all together. */
	uint64_t latency_us, connection_bps, total_bps;
	uint64_t window_bytes; /* bytes that may be in transit */
	uint64_t cache_hits,
		cache_misses; /* reads of data that was cached, and that had to be fetched */
	char cache_note[512]; /* why nothing is cached although it should be; "": all is well */
	uint64_t restarts;    /* of ckptfs-fetch, because it died */
	uint64_t cache_size;  /* bytes that the cache directory holds at most; 0: there is none */
};
/* False: c is on this machine. Never blocks. */
CKPT_API bool ckpt_network_sized(struct ckpt *c, struct ckpt_network *ret, size_t size);
static inline bool ckpt_network(struct ckpt *c, struct ckpt_network *ret)
{
	return ckpt_network_sized(c, ret, sizeof(*ret));
}

/* ---- location ---- */

/* Why the chunk index could not be kept where it is by default, so that it is in memory; borrowed.
 * NULL: it is kept, or was asked for elsewhere. */
CKPT_API const char *ckpt_index_why(const struct ckpt *c);

/* The absolute path of what ckpt_open opens for `path`; the caller frees *ret with free(). For
 * RUN/latest it is the newest checkpoint, even if that cannot be opened. */
CKPT_API int ckpt_address(const char *path, char **ret, struct ckpt_err *e);

/* ---- files outside the checkpoint, for programs that sandbox themselves ---- */

/* Calls `each` for the real files that hf/ shows unchanged, which may lie outside the checkpoint; a
 * run has none. */
CKPT_API int ckpt_assets(struct ckpt *c, int (*each)(void *arg, const struct ckpt_source *s),
			 void *arg, struct ckpt_err *e);
/*
 * The absolute path, borrowed, of the directory outside the checkpoint or run into which its links
 * may lead: that of a Hugging Face cache. NULL if links out of its own directory are not followed.
 */
CKPT_API const char *ckpt_beyond(const struct ckpt *c);
/*
 * Calls `each` for every absolute path or address that reading this checkpoint also needs: those of
 * other checkpoints from which its tensors are computed or taken (average=, overlay=, lora=); the
 * directories into which links of those may lead; its own, if it is the base of an average and lies
 * outside the run that was named; and all files of a checkpoint that was named by one of them. A
 * non-zero return of `each` stops and is returned. A run has none.
 */
CKPT_API int ckpt_others(const struct ckpt *c, int (*each)(void *arg, const char *path), void *arg);
/*
 * For a program that gives up rights before it opens a checkpoint: path, and whatever ckpt_open with
 * these options opens for it, may be opened after ckpt_rest, which then starts the ckptfs-fetch that
 * is needed. 1: some of it is in an object store; 0: nothing is, and ckpt_rest is not needed.
 */
CKPT_API int ckpt_expect(const char *path, const char *const opts[], struct ckpt_err *e);
/*
 * Ends the threads of the library: for a program that gives up rights, which every thread has
 * separately. No other function of the library may be running. Checkpoints stay open. Those in
 * object stores need a thread; the next call that needs it starts it, with the rights of its
 * caller. From now on no new ckptfs-fetch is started, because such a program may not start one:
 * whatever would need a new one is an error. One that is expected, or that an option of an open run
 * will need, is started beforehand. Nor does a running ckptfs-fetch write to a store, or open an
 * address in a bucket, on a server or in a repository other than those of open checkpoints, of the
 * options of open runs, and of what is expected.
 */
CKPT_API void ckpt_rest(void);
/* The directory for chunk indexes unless options name another, created if needed; the caller frees
 * it with free(). NULL: there is none. */
CKPT_API char *ckpt_index_dir(void);

CKPT_END

#endif
