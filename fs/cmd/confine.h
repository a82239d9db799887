/* SPDX-License-Identifier: Apache-2.0 */
/*
 * confine - the rights that a command gives up before it reads a checkpoint.
 *
 * A command has the rights of its user, and parses files of strangers. It needs to read, and to
 * write the chunk index and what its arguments and options name; everything else is given up
 * (mount/sandbox.h). If an argument or option is an address, ckptfs-fetch is started before.
 *
 * Threads: before there are others.
 */
#ifndef FS_CMD_CONFINE_H
#define FS_CMD_CONFINE_H

struct ckpt_err;
struct command;
struct options;

/* Gives up what can be given up; an error says what could not. */
int confine(const struct command *c, const struct options *o, struct ckpt_err *e);
/* The same if the user wants it; an error only if the user insists. */
int confine_command(const struct command *c, const struct options *o, struct ckpt_err *e);
/* Removes from the environment what ckptfs-fetch takes from there. Once it has been started, whoever
 * takes over this process must not find it here. */
void confine_forget_secrets(void);

#endif
