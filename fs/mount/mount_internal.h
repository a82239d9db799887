/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mount_internal - what the files of the mount command share.
 *
 *	mount.c			the command, and the daemon from its fork to its end
 *	mount_point.c		checks the two arguments
 *	mount_open.c		opens the checkpoint
 *	mount_session.c		mounts
 *	mount_limits.c		what the daemon may do from then on
 *
 * The others are called by the first, and do not call each other.
 *
 * Private to fs/mount.
 *
 * Threads: the first, before the loop starts others.
 */
#ifndef FS_MOUNT_MOUNT_INTERNAL_H
#define FS_MOUNT_MOUNT_INTERNAL_H

#include "mount/mounts.h"
#include "mount/ops.h"
#include "mount/sandbox.h"
#include "mount/unmounter.h"

#include "base/buf.h"

#include <stdbool.h>

struct ckpt;
struct ckpt_err;
struct fuse_session;
struct journal;
struct options;
struct stats;

struct mount {
	const struct options *opts;
	const char *index; /* a word for ckpt_open, or NULL */
	enum fs_io io;
	enum sandbox_mode sandbox;
	char *source, *target; /* absolute */
	int target_fd;	       /* the directory `target`, until it is mounted; -1: none */
	bool given;	       /* target is "/dev/fd/N": the caller has mounted that */
	char *cwd;	       /* where the command was run, */
	struct buf shape;      /* and the options that determine the tree: see options_add_shape */
	int report;	       /* the pipe to the waiting parent, or -1 */
	int log;	       /* the file that messages are added to, or -1 */
	struct journal *journal;
	struct ckpt *ckpt;
	struct stats *stats;
	struct fs *fs;
	struct fuse_session *session;
	bool bound; /* it is mounted, and the unmounter knows which mount it is */
	bool signals;
	unsigned hung; /* threads that will not return */
	struct mount_found found;
	struct sandbox rules;
	struct unmounter unmounter;
};

/* ---- the arguments ---- */

/* Sets source, target and given. Fails if nothing can be mounted there, or not this checkpoint. */
int mount_resolve(struct mount *m, struct ckpt_err *e);
/* The mount cannot work as requested: are the two arguments in the wrong order? */
bool mount_explain_swapped(const struct mount *m, struct ckpt_err *e);
/* Is `path` the directory `dir`, or something in it? */
bool mount_lies_in(const char *path, const char *dir);

/* Refuses a mount that would hide something that the checkpoint, once opened, needs. */
int mount_refuse_hiding(const struct mount *m, struct ckpt_err *e);

/* ---- opening ---- */

/* Sets m->ckpt. */
int mount_open(struct mount *m, struct ckpt_err *e);

/* ---- mounting ---- */

int mount_new_session(struct mount *m, struct ckpt_err *e);
/* Mounts, after which requests wait in the kernel until the loop runs. */
int mount_start_session(struct mount *m, struct ckpt_err *e);

/* ---- limits ---- */

/* Determines what may be opened from now on, while relative paths still have their meaning for the
 * caller. Before mounting: a path that leads into the mount would wait for this process. */
int mount_draw_limits(struct mount *m, struct ckpt_err *e);
/* Adds what is known only after mounting. */
void mount_allow_read_ahead(struct mount *m);
/* Forgets what only ckptfs-fetch needs, and enters the sandbox except for its filter. */
int mount_confine(struct mount *m, struct ckpt_err *e);
/* Enters the filter, once libfuse has answered INIT. */
int mount_filter_calls(struct mount *m, struct ckpt_err *e);

#endif
