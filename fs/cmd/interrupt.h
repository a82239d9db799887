/* SPDX-License-Identifier: Apache-2.0 */
/*
 * interrupt - a last word of a command that can go on where it was.
 *
 * Threads: one.
 */
#ifndef FS_CMD_INTERRUPT_H
#define FS_CMD_INTERRUPT_H

/* From now on a signal that ends the program writes this line, a constant, to stderr. */
void interrupt_say(const char *line);

#endif
