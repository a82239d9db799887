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
 * It is on disk for certain once an fsync of the file (bytes, size) or of a directory concerned
 * (names) has returned after it; an fsync of a new file says nothing about its name. All other
 * changes may be lost, each alone: bytes in blocks of 4 KiB. When a change is lost, so are those
 * that rely on it, such as a second rename of the name, or a file in a directory that was never
 * made.
 *
 * To see all that may be left, in whatever order the disk writes what was not synced:
 *
 *	disk_states(i, &how, see, arg);	// see(arg) for each state after a crash at change i
 *	disk_what("dest");		// in see(): DISK_OLD, DISK_NEW, ...
 *	disk_put();			// in see(): /tmp/x/out becomes it
 *	disk_forget(node);		// as if it had never been synced: is that found?
 *
 * Calls are seen where fault.c wraps them. The caller has to check that none is missed: with
 * DISK_ALL the directory must be the one that the calls left.
 *
 * Threads: disk_record, disk_stop, disk_law and disk_crash from one while no other thread writes.
 * An error in here fails the test.
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
 * Calls see() for each state in which the directory may be after a crash at change n. A state is a
 * choice for each change that is not certain, and each block of 4 KiB of what was written: lost,
 * there or, at the end of a file, zeros that only its new length has brought. That is more than any
 * file system does: names reach the disk in any order, before and after the bytes of their files.
 *
 * If there are more than how->most states, only some are seen: what a journal leaves (names up to
 * each change, and the bytes up to there, all bytes or none), everything but one choice, nothing
 * but one choice, and random ones up to how->most. States that see() was called for since
 * disk_record are left out if how->again is false.
 */
struct disk_how {
	uint64_t most, seed;
	bool again;
	bool brief;		    /* if there are more than `most`, see about twice `most` */
	uint64_t states, different; /* counted: all, and those that see() was called for */
	size_t whole, part;	    /* counted: crashes all of whose states were seen, and others */
};
typedef void disk_see_fn(void *arg);
void disk_states(size_t n, struct disk_how *how, disk_see_fn *see, void *arg);

/* In see(): what a name leads to, compared byte for byte with everything below it. */
enum disk_what {
	DISK_ABSENT,
	DISK_OLD, /* what it was at disk_record */
	DISK_NEW, /* what it was at disk_stop */
	DISK_OTHER,
};
enum disk_what disk_what(const char *name);
/* Is `name` the same as `before` was at disk_record? */
bool disk_is_old(const char *name, const char *before);
/* In see(): empty the directory, and fill it with what is left. */
void disk_put(void);

/* The node (file or directory) that change i syncs; -1 if it is not an fsync. */
int disk_synced_by(size_t i);
/* Pretends, until the next call or disk_record, that no fsync of that node did anything; -1: that
 * all did. Returns false if that makes no change less certain. */
bool disk_forget(int node);

/*
 * Checks the laws that hold for whatever is written. Returns a sentence about the first that was
 * broken, or NULL:
 * - what is renamed is on disk, with all that is below it, before it gets its name;
 * - what a rename has displaced is removed only once the rename is on disk;
 * - the note beside NAME.partial (NAME.partial.lock, NAME.partial.state) is on disk before
 *   NAME.partial is made, and removed when NAME.partial has gone from the disk;
 * - a unit (one byte of NAME.partial.state, behind its header of 512) is recorded when all of
 *   NAME.partial is on disk;
 * - at the end, `dest` (NULL: nothing) is on disk with all that is in it.
 */
const char *disk_law(const char *dest);

/* For fault.c: disk_begin before a call, then what the call did. disk_begin: does disk.c want to
 * know? */
bool disk_begin(void);
void disk_end(void);
void disk_made(int dirfd, const char *path);
void disk_opened(int dirfd, const char *path, int flags, int fd);
void disk_wrote(int fd, const void *p, ssize_t n, off_t off); /* -1: at the file's position */
void disk_resized(int fd);
void disk_synced(int fd);
void disk_renamed(int from_fd, const char *from, int to_fd, const char *to, bool exchange);
void disk_removed(int dirfd, const char *path);

#endif
