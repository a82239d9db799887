/* SPDX-License-Identifier: Apache-2.0 */
/*
 * disk - what a disk may hold after a power failure, and whether the writer allowed for it.
 *
 *	disk_record("/tmp/x/out");        // from now on; what is there is on disk
 *	rc = save(...);
 *	n = disk_stop();                  // changes
 *	why = disk_law("dest");           // NULL: every change waited for those that it relies on
 *	for (i = 0; i <= n; i++)
 *		disk_crash(i, DISK_SOME, seed); // /tmp/x/out after a crash at change i
 *
 * A change is a file, directory or link made, bytes written, a size set, a name moved or removed.
 * It is on disk for certain once an fsync of the file (bytes, size) or of a directory concerned (names)
 * has returned after it; an fsync of a new file says nothing about its name. All other changes may
 * be lost, each alone: bytes in blocks of 4 KiB. A change whose forerunner is lost is lost with it:
 * the second rename of a name, a file in a directory that was never made.
 *
 * Calls are seen where fault.c wraps them. Whether it sees all, the caller checks: with DISK_ALL
 * the directory has to be the one that the calls left.
 *
 * Threads: disk_record, disk_stop, disk_law and disk_crash from one while no other thread writes.
 * What goes wrong in here fails the test.
 */
#ifndef TESTS_DISK_H
#define TESTS_DISK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum disk_keep {
	DISK_ALL,   /* nothing is lost: a kill */
	DISK_NONE,  /* all that is not certain is lost */
	DISK_FIRST, /* changes up to one of them, by chance: a journal */
	DISK_SOME,  /* each by chance */
	DISK_LIES,  /* the same, and an fsync of a file's bytes did nothing */
	DISK_KEEPS,
};

void disk_record(const char *root);
/* How many changes there were. */
size_t disk_stop(void);
/* Empty the directory, and put there what is left of the first n changes. */
void disk_crash(size_t n, enum disk_keep keep, uint64_t seed);
/* What it was: "rename 'dest.partial' to 'dest'"; static, until the next call. */
const char *disk_change(size_t i);

/*
 * The laws that hold for whatever is written, as the sentence of the first that was broken, or
 * NULL:
 * - what is renamed is on disk, all that is below a directory included, before it gets its name;
 * - what a rename has displaced is removed when the rename is on disk, not before;
 * - the note beside NAME.partial (NAME.partial.lock, NAME.partial.state) is on disk before
 *   NAME.partial is made, and removed when NAME.partial has gone from the disk;
 * - a unit (one byte of NAME.partial.state, behind its header of 512) is recorded when all of
 *   NAME.partial is on disk;
 * - at the end, `dest` (NULL: nothing) is on disk with all that is in it.
 */
const char *disk_law(const char *dest);

/* For fault.c: around a call and what it says about it. disk_begin: is it to be told? */
bool disk_begin(void);
void disk_end(void);
void disk_made(int dirfd, const char *path);
void disk_opened(int dirfd, const char *path, int flags, int fd);
void disk_wrote(int fd, const void *p, ssize_t n, off_t off); /* -1: where the file stands now */
void disk_resized(int fd);
void disk_synced(int fd);
void disk_renamed(int from_fd, const char *from, int to_fd, const char *to, bool exchange);
void disk_removed(int dirfd, const char *path);

#endif
