/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run - a directory whose subdirectories are checkpoints, which come and go while a job trains.
 *
 * A checkpoint of the run is a subdirectory (or a known directory in one, such as NeMo's weights/)
 * that a format considers complete. Each one found gets a slot, a number that is never reused in
 * the life of the process; a checkpoint that is saved again under the same name gets a new slot.
 * Finding one costs a few system calls; it is opened when it is first entered, and up to MAX_IDLE
 * unused ones stay open. Symbolic links are not checkpoints, because their targets have names of
 * their own.
 *
 * A checkpoint that is reopened must be unchanged: the same metadata, data files, assets and option
 * files; otherwise its slot ends. Inode numbers, and what the kernel caches for them, are valid for
 * the lifetime of the slot.
 *
 * Private to core/ckpt.
 *
 * Threads: new and free from one thread, everything else from any. `lock` is never held across I/O;
 * `scan_lock` is held while checkpoints are searched for, by one thread at a time. If that takes
 * long, the others use what is known. Storage that fails slowly is left alone for a while.
 */
#ifndef CKPT_RUN_H
#define CKPT_RUN_H

#include "base/arena.h"
#include "base/list.h"
#include "ckpt/open/ckpt_options.h"
#include "source/place.h"
#include "tree/tree.h"
#include <ckptfs/ckpt_mount.h>

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RUN_MAX_SLOT 65535u /* the slot is stored in the 16 bits above a checkpoint's nodes */

struct ckpt_err;

struct run_child {
	char *name;
	const char *inner; /* "weights", or NULL if the checkpoint is the subdirectory itself */
	bool complete;
	bool unread;   /* its directory could not be read, so it counts as incomplete */
	unsigned slot; /* 0: not shown */
	/* Digest of everything that identifies it: another value means another checkpoint. */
	uint64_t signature;
	/* Make checking for changes cheap; protected by scan_lock. */
	char *first; /* one of its metadata files */
	struct place_id dir, first_seen;
	uint64_t scan; /* number of the last scan that saw it */
	/* The members below are protected by the lock. */
	uint64_t mtime_ns;
	char *why;	   /* why it is incomplete or cannot be opened: a sentence */
	int why_code;	   /* its errno */
	char *lacks;	   /* what it lacks, although it was opened: a sentence */
	bool is_told;	   /* lacks is a sentence of the format; all that is shown is whole */
	uint64_t retry_ns; /* do not retry opening before this time */
	/*
	 * gone: its name no longer refers to it; replaced: another checkpoint was found when it was
	 * opened
	 */
	bool gone, replaced;
	bool opening;
	struct ckpt *ckpt; /* NULL if closed */
	bool identified;   /* it has been open, with the identity below */
	uint64_t identity;
	unsigned users;			  /* operations and open files */
	uint64_t left_ns;		  /* when the last of them has ended */
	bool let_go;			  /* its data files have been closed since */
	LIST_LINK(struct run_child) link; /* in the list of open checkpoints without users */
};

struct ckpt_run {
	struct tree tree;    /* first, for run_of */
	struct place *place; /* borrowed */
	const char *root;    /* its absolute path; borrowed */
	struct ckpt_opts opts;
	struct arena paths; /* storage of absolute paths that opts points to */

	pthread_mutex_t scan_lock; /* held to change names and slots */
	uint64_t scans, next_scan_ns;
	/* Until then nothing is looked for, because the storage failed, with that error. */
	uint64_t blind_until_ns;
	int blind_code;

	pthread_mutex_t lock;
	pthread_cond_t opened;
	struct run_child **names; /* sorted by name */
	size_t n_names, cap_names;
	struct run_child **slots; /* slots[1 .. n_slots); NULL: the slot has ended */
	size_t n_slots, cap_slots;
	size_t n_complete, n_idle;
	struct ckpt_counters closed; /* totals of checkpoints that have been closed */
	LIST(struct run_child) idle;
	bool full_told;
};

/* The run that a tree made by run_tree belongs to. */
static inline struct ckpt_run *run_of(struct tree *t)
{
	return (struct ckpt_run *)(void *)t;
}

/*
 * Names of subdirectories that may hold the checkpoint if the directory itself is not one: NeMo 2,
 * accelerate's FSDP. NULL after the last.
 */
const char *run_inner_dir(size_t i);

/* 1: the directory is not a run. opts' strings, place and root are borrowed. */
int run_new(struct place *place, const char *root, const struct ckpt_opts *opts,
	    struct ckpt_run **ret, struct ckpt_err *e);
void run_free(struct ckpt_run *r); /* NULL is fine; no checkpoint may be in use */

/*
 * Looks for checkpoints that have come or gone: immediately if `now`, else at most about once a
 * second, and not if another thread has been doing so for a while. If a checkpoint cannot be looked
 * at because the storage fails slowly, the search ends and what is known stays; that is an error
 * only if `now`.
 */
int run_refresh(struct ckpt_run *r, bool now, struct ckpt_err *e);
/* Slot of the complete checkpoint that has this name now, or, if finding out takes long or fails,
 * had it last. 1: there is none. */
int run_find(struct ckpt_run *r, const char *name, unsigned *ret);
/* Does the name belong to an incomplete checkpoint? If so, *e says what it lacks, or why it could
 * not be read. */
bool run_incomplete(struct ckpt_run *r, const char *name, struct ckpt_err *e);
/* The sum of ckpt_counters over all checkpoints, open and closed. */
void run_counters(struct ckpt_run *r, struct ckpt_counters *ret);
/*
 * Slot of the newest checkpoint that can be opened, or of the newest one if none can. 1: it cannot
 * be determined. What opens only because of allow_missing does not count. If there are several it
 * may have to be opened, as by run_use. It is not tried again each time; and if the storage fails,
 * that says nothing about it.
 */
int run_latest(struct ckpt_run *r, unsigned *ret);
/* The same as far as it is known. Opens nothing. */
int run_latest_known(struct ckpt_run *r, unsigned *ret);
/* Slot of the newest checkpoint, whether or not it can be opened. Opens nothing. */
int run_newest(struct ckpt_run *r, unsigned *ret);

/* Acquires a checkpoint, and opens it if needed. -ESTALE: the slot has ended. */
int run_use(struct ckpt_run *r, unsigned slot, struct run_child **ret, struct ckpt_err *e);
void run_done(struct ckpt_run *r, struct run_child *k);
/* The same, but if nobody else uses it, it is closed, and opened again by the next use. */
void run_close(struct ckpt_run *r, struct run_child *k);
/* Has it ever been open? */
bool run_was_open(struct ckpt_run *r, unsigned slot);
/* Closes the data files of checkpoints that have had no users for that long. True: of some that
 * will have, call it again later. */
bool run_let_go(struct ckpt_run *r, uint64_t unused_ns);

/* Opens each checkpoint once to learn what it lacks. progress may be NULL; see ckpt_run_look. */
int run_look(struct ckpt_run *r, void (*progress)(void *arg, uint64_t done, uint64_t total),
	     void *arg, struct ckpt_err *e);

/* Opens a checkpoint independently of the run, with the caller's options; the caller closes it. */
int run_open(struct ckpt_run *r, unsigned slot, const struct ckpt_opts *o, struct ckpt **ret,
	     struct ckpt_err *e);

/* What is known about a slot without opening it. 1: the slot has ended. */
struct run_about {
	char name[CKPT_NAME_MAX + 1];
	const char *inner;
	uint64_t mtime_ns;
	bool gone; /* removed from the directory, but still open */
};
int run_about(struct ckpt_run *r, unsigned slot, struct run_about *ret);
/* The first slot >= *slot that is in the directory. 1: there is none. */
int run_next(struct ckpt_run *r, unsigned *slot, struct run_about *ret);

/* ---- shared by run.c and run_open.c ---- */

/* The checkpoint's directory; the caller frees it. */
int run_open_dir(const struct ckpt_run *r, const char *name, const char *inner, struct place **ret,
		 struct ckpt_err *e);
/*
 * Were the directory, its metadata and its data created by copying a checkpoint? The arguments are
 * creation times in nanoseconds, for data that of the first file; 0: unknown.
 */
bool run_is_copy(uint64_t dir, uint64_t metadata, uint64_t first_data);
/* Is the checkpoint unchanged since it was found? -ESTALE: no. */
int run_still(const struct ckpt_run *r, const struct run_child *k, struct ckpt_err *e);
/* Called under the lock when the slot has ended. Returns k, to be freed without the lock. */
struct run_child *run_end(struct ckpt_run *r, struct run_child *k);
void run_child_free(struct run_child *k); /* NULL is fine */

#endif
