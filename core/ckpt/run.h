/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run - a directory whose sub-directories are checkpoints, which come and go while a job trains.
 *
 * A checkpoint of the run is a sub-directory (or a known directory in one, as NeMo's weights/) that
 * a format takes for complete. Each that is found gets a slot, a number that no other gets in the
 * life of the process: one that is saved again under its name is another one. Finding one costs a
 * few system calls; it is opened when it is first entered, and MAX_IDLE of those that are not in use
 * stay open. Symbolic links are not checkpoints: what they lead to has a name of its own.
 *
 * A checkpoint that is opened again is the same one: the same metadata, data files, assets and
 * options' files, or its slot ends there. Inode numbers, and what the kernel remembers of them,
 * hold for that long.
 *
 * Private to core/ckpt.
 *
 * Threads: new and free from one, everything else from any. `lock` is never held across I/O;
 * `scan_lock` is held while checkpoints are searched for, by one thread at a time.
 */
#ifndef CKPT_RUN_H
#define CKPT_RUN_H

#include "base/arena.h"
#include "base/list.h"
#include "ckpt/ckpt_options.h"
#include "source/place.h"
#include "tree/tree.h"
#include <ckptfs/ckpt_mount.h>

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RUN_MAX_SLOT 65535u /* a slot is the 16 bits above a checkpoint's nodes */

struct ckpt_err;

struct run_child {
	char *name;
	const char *inner; /* "weights", or NULL when it is the sub-directory itself */
	bool complete;
	unsigned slot; /* 0: it is not shown */
	/* Of all that it was recognised by: another value, another checkpoint. */
	uint64_t signature;
	/* What makes looking again cheap; under scan_lock. */
	char *first; /* one of its metadata files */
	struct place_id dir, first_seen;
	uint64_t scan; /* number of the last one that saw it */
	/* All of this under the lock. */
	uint64_t mtime_ns;
	char *why;	     /* of one that is incomplete or cannot be opened: a sentence */
	int why_code;	     /* its errno */
	char *lacks;	     /* of one that was opened although it is not whole: a sentence */
	uint64_t retry_ns;   /* not before */
	bool gone, replaced; /* its name stands for nothing or another; it will have to */
	bool opening;
	struct ckpt *ckpt; /* NULL: closed */
	bool identified;   /* it has been open, and what it consisted of then: */
	uint64_t identity;
	unsigned users;			  /* operations and open files */
	LIST_LINK(struct run_child) link; /* of those that are open without users */
};

struct ckpt_run {
	struct tree tree;    /* first, for run_of */
	struct place *place; /* borrowed */
	const char *root;    /* its absolute path; borrowed */
	struct ckpt_opts opts;
	struct arena paths; /* absolute ones that opts points to */

	pthread_mutex_t scan_lock; /* changes of names and slots are made by its holder */
	uint64_t scans, next_scan_ns;

	pthread_mutex_t lock;
	pthread_cond_t opened;
	struct run_child **names; /* ordered by name */
	size_t n_names, cap_names;
	struct run_child **slots; /* slots[1 .. n_slots); NULL: ended */
	size_t n_slots, cap_slots;
	size_t n_complete, n_idle;
	struct ckpt_counters closed; /* of checkpoints that are not open any more */
	LIST(struct run_child) idle;
	bool full_told;
};

/* The run that a tree of run_tree's is in. */
static inline struct ckpt_run *run_of(struct tree *t)
{
	return (struct ckpt_run *)(void *)t;
}

/* Where the checkpoint is in a directory that is none itself: NeMo 2, accelerate's FSDP. NULL after
 * the last. */
const char *run_inner_dir(size_t i);

/* 1: this directory is no run. opts' strings are borrowed; place and root are borrowed. */
int run_new(struct place *place, const char *root, const struct ckpt_opts *opts,
	    struct ckpt_run **ret, struct ckpt_err *e);
void run_free(struct ckpt_run *r); /* NULL is fine; no checkpoint is in use */

/* Look for what has come and gone; at once, or at most about once a second. */
int run_refresh(struct ckpt_run *r, bool now, struct ckpt_err *e);
/* Slot of the complete checkpoint that has this name now. 1: there is none; or a negative errno. */
int run_find(struct ckpt_run *r, const char *name, unsigned *ret);
/* Is that name one of an incomplete checkpoint? Then *e says what it lacks. */
bool run_incomplete(struct ckpt_run *r, const char *name, struct ckpt_err *e);
/* ckpt_counters of all that were open. */
void run_counters(struct ckpt_run *r, struct ckpt_counters *ret);
/* Slot of the newest. 1: it cannot be told which that is. */
int run_latest(struct ckpt_run *r, unsigned *ret);

/* A checkpoint for use, opened if need be. -ESTALE: the slot has ended. */
int run_use(struct ckpt_run *r, unsigned slot, struct run_child **ret, struct ckpt_err *e);
void run_done(struct ckpt_run *r, struct run_child *k);

/* Open each once, so that it is known what they lack. progress may be NULL; see ckpt_run_look. */
int run_look(struct ckpt_run *r, void (*progress)(void *arg, uint64_t done, uint64_t total),
	     void *arg, struct ckpt_err *e);

/* A checkpoint by itself, opened with options of the caller's, who closes it. */
int run_open(struct ckpt_run *r, unsigned slot, const struct ckpt_opts *o, struct ckpt **ret,
	     struct ckpt_err *e);

/* What is known of a slot without opening it. 1: it has ended. */
struct run_about {
	char name[CKPT_NAME_MAX + 1];
	const char *inner;
	uint64_t mtime_ns;
	bool gone; /* from the directory, but still open */
};
int run_about(struct ckpt_run *r, unsigned slot, struct run_about *ret);
/* The first slot >= *slot that is in the directory. 1: none. */
int run_next(struct ckpt_run *r, unsigned *slot, struct run_about *ret);

/* ---- between run.c and run_open.c ---- */

/* Its directory, the caller's to free. */
int run_open_dir(const struct ckpt_run *r, const char *name, const char *inner, struct place **ret,
		 struct ckpt_err *e);
/* Were directory, metadata and data, which is all that there is, created by a copy of them? When each
 * was, the first of the data, in nanoseconds; 0: not known. */
bool run_is_copy(uint64_t dir, uint64_t metadata, uint64_t first_data);
/* Is it what it was when it was found? -ESTALE: no. */
int run_still(const struct ckpt_run *r, const struct run_child *k, struct ckpt_err *e);
/* Under the lock: its slot has ended. Returns k, to be freed without the lock. */
struct run_child *run_end(struct ckpt_run *r, struct run_child *k);
void run_child_free(struct run_child *k); /* NULL is fine */

#endif
