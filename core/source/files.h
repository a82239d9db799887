/* SPDX-License-Identifier: Apache-2.0 */
/*
 * files - the checkpoint's data files: opened when first needed, watched for change.
 *
 * files_new looks at every file once; from then on, reading a file whose identity (see place.h) has
 * changed is an error and never returns other bytes. The identity of a local file changes with its
 * bytes, its owner, its mode or an extended attribute. It also changes when the file gains or loses
 * a name (link(2), unlink(2), another file renamed to it); that is accepted, unless a link was made
 * and removed between two looks. Sources are kept open up to a limit; the least recently used is
 * closed first. If descriptors run out before, some are closed in every struct files of the
 * process.
 *
 * A file whose bytes are in memory (stored_file.bytes) is read like any other, and never changes.
 *
 * Threads: all functions from any thread, files_allow_maps before all others. Using an open file
 * takes no lock; opening or mapping a file takes a lock that is never held across I/O.
 */
#ifndef SOURCE_FILES_H
#define SOURCE_FILES_H

#include "source/place.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt_err;
struct digest;
struct files;

/* place and sources are borrowed and must outlive it. Missing or too short files are not an error
 * here; see files_fault. */
int files_new(struct place *place, const struct stored_file *sources, size_t n, struct files **ret,
	      struct ckpt_err *e);
/*
 * The same for files that the caller has opened and looked at. A source that is not NULL is read
 * from then on, whatever its path later refers to; once files_new_seen has succeeded, it owns the
 * source. With `within`, which is borrowed like place, the source may be closed like that of any
 * other file, and is opened again by this name in that place. The other files are opened by their
 * paths. What is opened must be what was seen.
 */
struct files_seen {
	struct place_seen seen;
	struct source *source;
	struct place *within; /* or NULL */
	const char *name;
};
int files_new_seen(struct place *place, const struct stored_file *sources,
		   const struct files_seen *seen, size_t n, struct files **ret, struct ckpt_err *e);
void files_free(struct files *f);
/* Ignores ctime (see place_leave_ctime): for file systems where it changes by itself, and for files
 * whose owner or mode will change. Call before all other functions. */
void files_ignore_ctime(struct files *f);

/* Was anything wrong with file i when it was looked at? If so, *e says what. */
bool files_fault(const struct files *f, uint32_t i, struct ckpt_err *e);
const char *files_path(const struct files *f, uint32_t i); /* as in the catalog */
uint64_t files_size(const struct files *f, uint32_t i);
uint64_t files_total(const struct files *f); /* bytes of all files */
/* The latest modification time of any file, as of files_new. */
uint64_t files_newest_ns(const struct files *f);
/* Closes files without users until no more than `keep` are open. */
void files_trim(struct files *f, size_t keep);
/* A hash of the files' sizes and times, as of files_new. */
uint64_t files_hash(const struct files *f);
/* The identity of file i, as of files_new. */
void files_id(const struct files *f, uint32_t i, struct place_id *ret);
uint64_t files_mtime_ns(const struct files *f, uint32_t i);
/* Adds everything that identifies the files, as of files_new. */
void files_digest(const struct files *f, struct digest *d);

/* Reads exactly len bytes of file i and checks the file's identity. */
int files_read(struct files *f, uint32_t i, void *buf, size_t len, uint64_t off,
	       struct ckpt_err *e);

/* The number of requests to the files that are worth having in flight at a time. */
unsigned files_at_once(const struct files *f);
/* How many bytes that were requested ahead are kept until they are read; 0: enough. */
uint64_t files_keeps(const struct files *f);

/* Like source_want, for file i. */
bool files_want(struct files *f, uint32_t i, uint64_t off, uint64_t len);

/* A new descriptor of file i as files_new saw it, which the caller closes, or -errno. -ENOTSUP: the
 * file has no descriptor. */
int files_open(struct files *f, uint32_t i, struct ckpt_err *e);
/* Has file i been written to since files_new saw it? False if the file was replaced or removed:
 * an open descriptor still leads to the old contents. */
bool files_written(struct files *f, uint32_t i);

/* Allows bytes to be taken from the page cache without a read. Call it once; from then on guard.h
 * handles SIGBUS, and no more than max_bytes of files are mapped. */
int files_allow_maps(struct files *f, uint64_t max_bytes, struct ckpt_err *e);
/*
 * Bytes [off, off+len) of file i, borrowed until files_unmap; len > 0. NULL if they are not in
 * memory or cannot be mapped for any reason: then files_read reads them or reports why it cannot.
 *
 * They are the current contents of the file and vanish when it becomes shorter: touch them inside
 * guard_run, or have a system call touch them (EFAULT), and trust them only after files_check.
 */
const uint8_t *files_map(struct files *f, uint32_t i, uint64_t off, uint64_t len);
void files_unmap(struct files *f, uint32_t i);
/*
 * Like files_map for bytes that are not in memory: reads all of them, in order, for callers that
 * need many short runs of them. Also NULL if this has been tried with the file and the bytes did
 * not stay in memory.
 */
const uint8_t *files_bring(struct files *f, uint32_t i, uint64_t off, uint64_t len);
/* Like files_map, but the file cannot change until files_unlend (see lease.h), so that
 * files_check may be called before a system call takes the bytes. */
const uint8_t *files_lend(struct files *f, uint32_t i, uint64_t off, uint64_t len);
void files_unlend(struct files *f, uint32_t i);
/* Is mapped file i what files_new saw? Call it after taking the bytes, unless they are lent, so
 * that an overwrite that began earlier is noticed. */
int files_check(struct files *f, uint32_t i, struct ckpt_err *e);
/* Is file i what files_new saw? One in a store is looked at only while it is open. */
int files_look(struct files *f, uint32_t i, struct ckpt_err *e);
/* Makes files_changed tell of all files that are open now. */
void files_look_at_open(struct files *f);
/* Has any file been found to differ from what files_new saw? */
bool files_changed(const struct files *f);

/* Calls of files_read, the bytes they read, and the failed calls; and the bytes that files_map and
 * files_lend have shown. */
enum files_count { FILES_READS, FILES_BYTES, FILES_FAULTS, FILES_MAPPED, FILES_COUNTS };
/* Adds the counts to ret. */
void files_add_counts(const struct files *f, uint64_t ret[static FILES_COUNTS]);

#endif
