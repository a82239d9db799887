/* SPDX-License-Identifier: Apache-2.0 */
/*
 * files - the checkpoint's data files: opened when first needed, watched for change.
 *
 * files_new looks at every file once; from then on a file that has another identity (see place.h) is
 * an error when it is read, never other bytes. A local one has another with each change to its
 * bytes, its owner, its mode or an extended attribute. A name more or less of the file (link(2),
 * unlink(2), another file renamed to it) changes it, too, and is let pass, though not where a link
 * was made and removed between two looks. Sources are kept open up to a limit, the longest unused
 * closed first.
 *
 * Threads: all functions from any thread, files_allow_maps before all others. Using an open file
 * takes no lock; opening and mapping one take one that is never held across I/O.
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

/* place and sources are borrowed and must outlive it. Files that are missing or too short are
 * not an error here, see files_fault. */
int files_new(struct place *place, const struct stored_file *sources, size_t n, struct files **ret,
	      struct ckpt_err *e);
/*
 * The same for files that the caller has opened and looked at. Where a source is not NULL, it is what
 * is read from then on, whatever its path comes to mean: *seen's from the start, this one's to free
 * once files_new_seen has succeeded. The others are opened by their paths, and have to be what was
 * seen.
 */
struct files_seen {
	struct place_seen seen;
	struct source *source;
};
int files_new_seen(struct place *place, const struct stored_file *sources,
		   const struct files_seen *seen, size_t n, struct files **ret, struct ckpt_err *e);
void files_free(struct files *f);
/* Do not look at ctime (see place_leave_ctime): for file systems where it changes by itself, and for files whose owner or
 * mode will change. Before all others. */
void files_ignore_ctime(struct files *f);

/* What was wrong with file i when it was looked at: false, or true and a sentence. */
bool files_fault(const struct files *f, uint32_t i, struct ckpt_err *e);
const char *files_path(const struct files *f, uint32_t i); /* as the catalog has it */
uint64_t files_size(const struct files *f, uint32_t i);
uint64_t files_total(const struct files *f); /* bytes of all */
/* The latest modification time of any of them, as they were looked at. */
uint64_t files_newest_ns(const struct files *f);
/* Close files that nobody reads from until no more than `keep` are open. */
void files_trim(struct files *f, size_t keep);
/* A hash of their sizes and times as they were looked at. */
uint64_t files_hash(const struct files *f);
/* What file i was when it was looked at. */
void files_id(const struct files *f, uint32_t i, struct place_id *ret);
uint64_t files_mtime_ns(const struct files *f, uint32_t i);
/* Adds all that tells them from others, as they were looked at. */
void files_digest(const struct files *f, struct digest *d);

/* Read exactly len bytes of file i; its identity is checked on the way. */
int files_read(struct files *f, uint32_t i, void *buf, size_t len, uint64_t off,
	       struct ckpt_err *e);

/* How many requests to the files may be on their way at a time with profit. */
unsigned files_at_once(const struct files *f);

/* As source_want, of file i. */
bool files_want(struct files *f, uint32_t i, uint64_t off, uint64_t len);

/* File i as files_new saw it: another descriptor, which is the caller's, or -errno. -ENOTSUP: it is
 * none that has one. */
int files_open(struct files *f, uint32_t i, struct ckpt_err *e);
/*
 * Has file i been written to since files_new saw it? Not where another has taken its place, or
 * none: who has it open still has what it was.
 */
bool files_written(struct files *f, uint32_t i);

/*
 * Taking bytes where the page cache has them, without a read. Allowed once; from then on SIGBUS is
 * guard.h's, and page tables are kept for no more than max_bytes of files.
 */
int files_allow_maps(struct files *f, uint64_t max_bytes, struct ckpt_err *e);
/*
 * Bytes [off, off+len) of file i, borrowed until files_unmap; len > 0. NULL where they are not in
 * memory or cannot be mapped, for whatever reason: then files_read reads them or says why not.
 *
 * They are what the file has there now, and vanish when it becomes shorter: touch them inside
 * guard_run, or have a system call touch them (EFAULT), and believe them after files_check.
 */
const uint8_t *files_map(struct files *f, uint32_t i, uint64_t off, uint64_t len);
void files_unmap(struct files *f, uint32_t i);
/*
 * As files_map, of bytes that are not in memory: reads all of them, in order, for who needs many
 * short runs of them. NULL too where that has been tried with this file and they were not there
 * afterwards.
 */
const uint8_t *files_bring(struct files *f, uint32_t i, uint64_t off, uint64_t len);
/*
 * The same where nobody can change the file until files_unlend (see lease.h), so that files_check
 * may be asked before a system call takes the bytes.
 */
const uint8_t *files_lend(struct files *f, uint32_t i, uint64_t off, uint64_t len);
void files_unlend(struct files *f, uint32_t i);
/*
 * Is mapped file i what files_new saw? Asked after its bytes were taken, unless they are lent, so
 * that an overwrite that began before cannot slip through.
 */
int files_check(struct files *f, uint32_t i, struct ckpt_err *e);
/* Has any file been found to be another one than files_new saw? */
bool files_changed(const struct files *f);

/* What files_read has done: calls, the bytes they read, and those of them that failed; and the
 * bytes that files_map and files_lend have shown. */
enum files_count { FILES_READS, FILES_BYTES, FILES_FAULTS, FILES_MAPPED, FILES_COUNTS };
/* Adds them to ret. */
void files_add_counts(const struct files *f, uint64_t ret[static FILES_COUNTS]);

#endif
