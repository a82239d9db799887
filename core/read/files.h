/* SPDX-License-Identifier: Apache-2.0 */
/*
 * files - the checkpoint's data files: opened when first needed, watched for change.
 *
 * files_new stats every file once; from then on a file that has another size, modification time
 * or inode (ctime, where inodes do not last: io_keeps_inodes) is an error for whoever reads it,
 * never other bytes. Descriptors are kept open up to a limit, the longest unused closed first.
 *
 * Threads: all functions from any thread, files_allow_maps before all others. Using an open file
 * takes no lock; opening and mapping one take one that is never held across I/O.
 */
#ifndef READ_FILES_H
#define READ_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt_err;
struct files;
struct catalog_source;

/* dirfd and sources are borrowed and must outlive it. Files that are missing or too short are
 * not an error here, see files_fault. */
int files_new(int dirfd, const struct catalog_source *sources, size_t n, struct files **ret,
	      struct ckpt_err *e);
void files_free(struct files *f);

/* What was wrong with file i when it was looked at: false, or true and a sentence. */
bool files_fault(const struct files *f, uint32_t i, struct ckpt_err *e);
const char *files_path(const struct files *f, uint32_t i); /* as the catalog has it */
uint64_t files_size(const struct files *f, uint32_t i);
uint64_t files_total(const struct files *f); /* bytes of all */
/* The latest modification time of any of them, as they were looked at. */
uint64_t files_newest_ns(const struct files *f);
/* Close descriptors that nobody reads from until no more than `keep` are open. */
void files_trim(struct files *f, size_t keep);
/* A hash of their sizes and times as they were looked at. */
uint64_t files_hash(const struct files *f);

/* Read exactly len bytes of file i; its identity is checked on the way. */
int files_read(struct files *f, uint32_t i, void *buf, size_t len, uint64_t off,
	       struct ckpt_err *e);

/* File i as files_new saw it, opened once more: a descriptor that is the caller's, or -errno. */
int files_open(struct files *f, uint32_t i, struct ckpt_err *e);
/*
 * Has file i been written to since files_new saw it? Not where another has taken its place, or
 * none: who has it open still has what it was.
 */
bool files_written(const struct files *f, uint32_t i);

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
