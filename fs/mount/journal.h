/* SPDX-License-Identifier: Apache-2.0 */
/*
 * journal - the last messages of a mount, for users without syslog: the contents of .ckptfs/log.
 *
 * Each line is a time (UTC) and the sentence that went to the log. A repeated sentence, or another
 * failure of the same file that reply.h suppresses, adds no line: the time of the existing line is
 * updated and "(3 times)" is appended. At most JOURNAL_LINES lines with JOURNAL_BYTES of text are
 * kept; the oldest are dropped first. Debugging messages are not kept.
 *
 * Threads: any; new and free from one.
 */
#ifndef FS_MOUNT_JOURNAL_H
#define FS_MOUNT_JOURNAL_H

#include <stddef.h>

enum { JOURNAL_LINES = 1000, JOURNAL_BYTES = 256 << 10 };

struct buf;
struct journal;

/* Keeps all messages from now on, until it is freed. NULL: out of memory. */
struct journal *journal_new(void);
void journal_free(struct journal *j); /* NULL is fine */

/* Appends the last `lines` lines, each with its newline. */
void journal_text(struct journal *j, size_t lines, struct buf *ret);

/* The current time, in the form that begins a line: "2026-11-20T09:30:05Z". */
enum { JOURNAL_TIME_MAX = 24 };
void journal_time(char ret[static JOURNAL_TIME_MAX]);

#endif
