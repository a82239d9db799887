/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt_mount - what a server of the tree's files needs besides ckpt.h: names of nodes, answers that are
 * not copied, files that can be passed through, attributes, what has been done. `ckptfs mount` is one
 * over FUSE; one over 9P or NFS would need no more.
 *
 * Threads: as ckpt.h.
 */
#ifndef CKPTFS_CKPT_MOUNT_H
#define CKPTFS_CKPT_MOUNT_H

#include "ckpt.h"

#include <sys/uio.h>

CKPT_BEGIN

/* ---- nodes ---- */

/* Of the root, and of what is no node: the root. */
CKPT_API ckpt_node ckpt_parent(struct ckpt *c, ckpt_node node);
/* A node's name in that directory, however long it is. 1: it is the root, or there is no such node;
 * -ESTALE: the checkpoint is gone; another negative errno: ckpt_enter says why. */
CKPT_API int ckpt_name(struct ckpt *c, ckpt_node node, char name[CKPT_ROOM(CKPT_NAME_MAX + 1)]);

/* ---- files ---- */

/* One tensor and nothing else, whose elements need no decoding: reading it twice costs no more than
 * having it in memory twice. */
CKPT_API bool ckpt_file_is_plain(const struct ckpt_file *f);
/* For a thread that has answered with what it read and has nothing else to do: decode what a
 * reader in file order is about to ask for. Costs nothing where nothing is to be decoded. */
CKPT_API void ckpt_file_ahead(struct ckpt_file *f);
/* A data file of its checkpoint has been found changed: what the caller has kept of any file of it is
 * not to be believed. Never true of a run's own info.json. */
CKPT_API bool ckpt_file_is_stale(const struct ckpt_file *f);

/*
 * As ckpt_file_read without copying long runs that lie in the page cache or were decoded: the bytes
 * are where iov says, in buf, in decoded blocks and, with map_files, in mapped data files, until
 * ckpt_parts_release, which is due after every success. Give iov to writev(2) or the like and touch
 * nothing of it: pages may have gone for reasons of their own (an I/O error), when that call fails
 * with EFAULT and this process would die.
 *
 * They are the checkpoint's bytes until the release: a writer to one of the files waits
 * until then (fcntl(2), F_SETLEASE), so release soon. Where that cannot be arranged the bytes are
 * copied.
 */
struct ckpt_parts;					 /* belongs to one thread at a time */
CKPT_API struct ckpt_parts *ckpt_parts_new(void);	 /* NULL: out of memory */
CKPT_API void ckpt_parts_free(struct ckpt_parts *parts); /* NULL is fine */
CKPT_API int64_t ckpt_file_gather(struct ckpt_file *f, void *buf, size_t len, uint64_t off,
				  struct ckpt_parts *parts, const struct iovec **ret_iov,
				  int *ret_n, struct ckpt_err *e);
CKPT_API void ckpt_parts_release(struct ckpt_parts *parts);

/*
 * Are the bytes of the file those of one real file, all of them in their places and no others? Then
 * 0 and that one, unchanged since the checkpoint was opened, is open for reading at *ret_fd, which
 * is the caller's; 1: no. Reads from it return what it holds by then. Not of a run, whose
 * files change.
 */
CKPT_API int ckpt_file_backing(struct ckpt_file *f, int *ret_fd, struct ckpt_err *e);
/* Has the file that this found been written to since? Then its name is in *why. False where it
 * found none. */
CKPT_API bool ckpt_file_written(const struct ckpt_file *f, struct ckpt_err *why);

/*
 * Extended attribute of a file of tensors/, npy/ or logical/: user.ckptfs.fqn .dtype .shape .chunks
 * .files. Returns the value's length (written as far as cap reaches), -ENODATA if there is none.
 */
CKPT_API int64_t ckpt_xattr(struct ckpt *c, ckpt_node node, const char *name, char *buf, size_t cap,
			    struct ckpt_err *e);
/* NUL-separated names, as listxattr(2) gives them. */
CKPT_API int64_t ckpt_xattr_names(struct ckpt *c, ckpt_node node, char *buf, size_t cap);

/* ---- what it has done ---- */

/* Since it was opened; of a run, all of its checkpoints, also those that have been closed. */
struct ckpt_counters {
	uint64_t source_reads, source_bytes; /* of data files and assets; as stored */
	uint64_t mapped_bytes;	       /* of data files, which were in memory and needed no read */
	uint64_t faults;	       /* such reads that failed: gone, changed, an I/O error */
	uint64_t copies, copied_bytes; /* moves of elements into answers, and what they moved */
	/* The cache of decoded blocks: gets that found theirs, gets that had to decode or read it,
	 * blocks let go, what it holds now and may hold. */
	uint64_t cache_hits, cache_misses, cache_evictions, cache_bytes, cache_max_bytes;
	uint64_t decoded_bytes; /* of compressed items; what was decoded twice counts twice */
};
/* Waits for nobody. */
CKPT_API void ckpt_counters_sized(struct ckpt *c, struct ckpt_counters *ret, size_t size);
static inline void ckpt_counters(struct ckpt *c, struct ckpt_counters *ret)
{
	ckpt_counters_sized(c, ret, sizeof(*ret));
}

/* ---- what else may be opened, for those who confine themselves ---- */

/* The real files that hf/ shows as they are, whole, which may lie outside of the checkpoint; of a
 * run none. */
CKPT_API int ckpt_assets(struct ckpt *c, int (*each)(void *arg, const struct ckpt_source *s),
			 void *arg, struct ckpt_err *e);
/* Where chunk indexes are kept unless options say otherwise, made if need be: the caller's, free()
 * it. NULL: there is no such place. */
CKPT_API char *ckpt_index_dir(void);

CKPT_END

#endif
