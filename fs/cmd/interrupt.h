/* SPDX-License-Identifier: Apache-2.0 */
/*
 * interrupt - the last message of a command that can be resumed.
 *
 * Threads: one.
 */
#ifndef FS_CMD_INTERRUPT_H
#define FS_CMD_INTERRUPT_H

/* From now on, a signal that ends the program also writes this constant line to stderr. */
void interrupt_say(const char *line);

#endif
