/* SPDX-License-Identifier: Apache-2.0 */
/*
 * depot_internal - what the files that implement the depot share.
 *
 *	depot.c		the depot: its directory, and objects
 *	depot_blocks.c	the blocks of an object: segments, holds, eviction from memory
 *	depot_evict.c	eviction from the directory, by a thread of its own
 *	depot_room.c	rooms: the map and the segments of an object, in memory or on disk; locks
 *
 * Each file uses only those below it in this list.
 *
 * Private to core/remote.
 *
 * Threads: one, except for two things. depot_prepare runs on any thread: it makes a room that
 * nobody else knows yet. depot_evict.c's thread works on the files of the directory alone, as
 * another process would. Of the depot both use only the fields that never change after depot_new.
 * Other threads and processes see the words of a map change, which are therefore atomic. There is
 * no mutex.
 */
#ifndef REMOTE_DEPOT_INTERNAL_H
#define REMOTE_DEPOT_INTERNAL_H

#include "base/err.h"
#include "base/list.h"
#include "remote/depot.h"

#include <pthread.h>
#include <sys/types.h>

enum {
	DISK_SEGMENT = 64 << 20,
	MAX_OPENS = 16, /* attempts to open what others remove at the same time */
};

/* The byte of `map` that users of the object lock. No map has so many blocks that it is one's. */
#define LOCK_USE ((off_t)1 << 60)

/* ---- rooms ---- */

struct segment {
	uint32_t generation; /* 0: not open */
	uint32_t holds;
	int fd, reader;
	/* Owned by depot_blocks.c. */
	uint64_t used_ns, touched_ns, bytes; /* bytes: of memory */
};

/* What the blocks of an object are in. After object_leave_disk, holds may still use the old one. */
struct store_room {
	unsigned users; /* the object and its holds */
	bool in_memory;
	struct map_view view;
	int dir, map_fd; /* dir: -1 in memory */
	int map_reader;	 /* until object_take_map */
	void *map;
	struct segment *v; /* opened by depot_blocks.c */
};

/* Locks bytes of a map: F_RDLCK, F_WRLCK, F_UNLCK. 0, or -errno: EAGAIN if another has it
 * locked. */
int map_lock(int fd, short type, off_t at, off_t n);
/* On disk: from now on the words of these blocks can be written. 0 or -errno. */
int map_reserve(const struct store_room *r, uint64_t block, uint64_t n);

int memory_room(struct depot *d, uint64_t size, struct store_room **ret, struct ckpt_err *e);
/* The room of an object in the directory, which is made if there is none. Waits for other processes
 * that are making or removing it. */
int disk_room(struct depot *d, const char *address, const char *path, const struct place_seen *seen,
	      struct store_room **ret, struct ckpt_err *e);
/* One user fewer; the last one frees the room. NULL is fine. */
void room_leave(struct store_room *r);

/* A new file in memory: descriptors for writing and for reading, or -1. 0 or -errno; then *ret_fd
 * may be open all the same, and the caller closes it. */
int memory_file(uint64_t size, int *ret_fd, int *ret_reader);
void segment_close(struct segment *s);
/* Removes an object's directory with its files. Under the exclusive lock on it, if its map can be
 * read. */
void remove_object(int dir, const char *name);

/* ---- eviction from the directory ---- */

/* n more bytes are about to be written to a segment, which is held by now. After enough of them,
 * starts the thread, which looks through the directory and evicts what is too much. */
void evict_note_written(struct depot *d, uint64_t n);
/* Waits for the thread to end. */
void evict_end(struct depot *d);

/* ---- blocks ---- */

/* Closes the files of segments that have no holds: they are opened again when they are needed, and
 * the other side has descriptors of its own. False: there were none. */
bool segments_close_idle(const struct depot *d);
/* Takes the memory of an object that is about to be closed off depot.in_memory. */
void blocks_forget(struct object *o);

/* ---- the depot ---- */

struct object {
	struct depot *depot;
	struct store_room *room;
	struct ckpt_err why; /* it is in memory, or code 0 */
	LIST_LINK(struct object) link;
};

struct depot {
	/* Set by depot_new, for good. */
	char *path; /* NULL: memory */
	int dir;
	uint64_t size, memory;
	int scarce; /* a descriptor with this number or a larger one: few are left */
	depot_drop_fn *drop;
	void *arg;
	char boot[sizeof(((struct map_head *)NULL)->boot)];

	LIST(struct object) objects; /* adopted */
	struct ckpt_err note;
	/* Owned by depot_blocks.c. */
	uint64_t in_memory; /* bytes */
	uint64_t now;	    /* counts uses */
	/* Owned by depot_evict.c. */
	uint64_t written; /* since the directory was looked through; UINT64_MAX: never */
	pthread_t tidier;
	bool has_tidier;
	atomic_bool tidying; /* reset by the tidier when it ends */
};

#endif
