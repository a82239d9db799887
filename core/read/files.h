/* SPDX-License-Identifier: Apache-2.0 */
/*
 * files - the checkpoint's data files: opened when first needed, watched for change.
 *
 * files_new stats every file once; from then on a file that has another size, modification time
 * or inode is an error for whoever reads it, never other bytes. Descriptors are kept open up to a
 * limit, the longest unused closed first.
 *
 * Threads: all functions from any thread (one internal mutex, never held across I/O).
 */
#ifndef READ_FILES_H
#define READ_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct files;
struct catalog_source;

/* dirfd and sources are borrowed and must outlive it. Files that are missing or too short are
 * not an error here, see files_fault. */
int files_new(int dirfd, const struct catalog_source *sources, size_t n, struct files **ret,
	      struct err *e);
void files_free(struct files *f);

/* What was wrong with file i when it was looked at: false, or true and a sentence. */
bool files_fault(const struct files *f, uint32_t i, struct err *e);
uint64_t files_size(const struct files *f, uint32_t i);
uint64_t files_total(const struct files *f); /* bytes of all */
/* The latest modification time of any of them, as they were looked at. */
uint64_t files_newest_ns(const struct files *f);
/* Close descriptors that nobody reads from until no more than `keep` are open. */
void files_trim(struct files *f, size_t keep);
/* A hash of their sizes and times as they were looked at. */
uint64_t files_hash(const struct files *f);

/* Read exactly len bytes of file i; its identity is checked on the way. */
int files_read(struct files *f, uint32_t i, void *buf, size_t len, uint64_t off, struct err *e);

/* What files_read has done: calls, the bytes they read, and those of them that failed. */
enum files_count { FILES_READS, FILES_BYTES, FILES_FAULTS, FILES_COUNTS };
/* Adds them to ret. */
void files_add_counts(const struct files *f, uint64_t ret[static FILES_COUNTS]);

#endif
