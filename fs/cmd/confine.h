/* SPDX-License-Identifier: Apache-2.0 */
/*
 * confine - the rights that a command gives up before it reads a checkpoint.
 *
 * A command that only reads has the rights of its user, and parses files of strangers. It needs to
 * read, and to write the chunk index and the files that options name; everything else is given up
 * (mount/sandbox.h). Not if an argument or option is an address: then ckptfs-fetch has to be started,
 * which has the network.
 *
 * Threads: before there are others.
 */
#ifndef FS_CMD_CONFINE_H
#define FS_CMD_CONFINE_H

#include <stdbool.h>

struct ckpt_err;
struct command;
struct options;

/* Is one of the checkpoints, or what an option names, at an address? */
bool confine_is_remote(const struct command *c, const struct options *o);
/* Gives up what can be given up; an error says what could not. 1: nothing, because of an address. */
int confine(const struct command *c, const struct options *o, struct ckpt_err *e);
/* The same if the user wants it; an error only if the user insists. */
int confine_reader(const struct command *c, const struct options *o, struct ckpt_err *e);

#endif
