/* SPDX-License-Identifier: Apache-2.0 */
/*
 * complete - what a shell offers for a word of a command line:
 *
 *	ckptfs __complete cat run/step-1000 hf/mo      // the words behind "ckptfs", the last one unfinished
 *	hf/model.safetensors
 *
 * Prints whole words, one a line, and no space belongs behind one that ends in '=' or '/'. A first line
 * ":files PREFIX" or ":dirs PREFIX" asks the shell for its own files or directories, of which the word
 * has the path behind PREFIX. Errors are not reported. Names unfit for a terminal are left out.
 *
 * What arguments are: struct command, .complete, a letter for each: f file, d directory, n FQN, p path
 * of the tree, m mount.
 *
 * Threads: one.
 */
#ifndef FS_CMD_COMPLETE_H
#define FS_CMD_COMPLETE_H

/* The words behind "ckptfs __complete"; returns an exit status. */
int complete_main(int argc, char *const *argv);

#endif
