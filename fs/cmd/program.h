/* SPDX-License-Identifier: Apache-2.0 */
/*
 * program - what the words of a command line ask for.
 *
 * Three ways in: `ckptfs COMMAND ...`; `mount.ckptfs SRC DIR ...`, as mount(8) calls its helpers;
 * and `ckptfs SRC DIR -o ...`, as mount.fuse3(8) calls a file system.
 *
 * Threads: one.
 */
#ifndef FS_CMD_PROGRAM_H
#define FS_CMD_PROGRAM_H

#include <stdbool.h>

/* argv[0] is the program's name. once: the process does nothing else, so it may give up rights.
 * Returns its exit status. */
int program_run(int argc, char *const *argv, bool once);

#endif
