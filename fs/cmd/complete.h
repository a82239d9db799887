/* SPDX-License-Identifier: Apache-2.0 */
/*
 * complete - the completions that a shell offers for a word of a command line:
 *
 *	ckptfs __complete cat run/step-1000 hf/mo   // words after "ckptfs", the last unfinished
 *	hf/model.safetensors
 *
 * Prints whole words, one per line; no space may follow one that ends in '=' or '/'. A first line
 * ":files PREFIX" or ":dirs PREFIX" asks the shell for its own files or directories; their path
 * follows PREFIX in the word. Errors are not reported. Names unfit for a terminal are left out.
 *
 * struct command, .complete, has a letter for the kind of each argument: f file, d directory, n
 * FQN, p path in the tree, m mount.
 *
 * Threads: one.
 */
#ifndef FS_CMD_COMPLETE_H
#define FS_CMD_COMPLETE_H

#include <stdbool.h>

/* Takes the words after "ckptfs __complete"; returns an exit status. once: as for program_run. */
int complete_main(int argc, char *const *argv, bool once);

#endif
