/* SPDX-License-Identifier: Apache-2.0 */
/*
 * journal - the last messages of a mount, for those who have no syslog: what .ckptfs/log holds.
 *
 * Each line is a time (UTC) and the sentence that went to the log. The same sentence again, or another
 * failure of the same file that reply.h keeps back, adds no line: the time of the last one changes,
 * and "(3 times)" follows it. There are at most JOURNAL_LINES lines with JOURNAL_BYTES of text; then
 * the oldest go. Debugging messages are not kept.
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

/* The time now, as lines begin with it: "2026-11-20T09:30:05Z". */
enum { JOURNAL_TIME_MAX = 24 };
void journal_time(char ret[static JOURNAL_TIME_MAX]);

#endif
