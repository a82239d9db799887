/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plot - small plots in a line of text, for people at a terminal.
 *
 * Drawn with Unicode blocks if the locale's character set is UTF-8, else with ASCII.
 *
 * Threads: no state.
 */
#ifndef FS_CMD_PLOT_H
#define FS_CMD_PLOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;
struct options;

/* Should plots be drawn? As --plot says, else if standard output is a terminal. */
bool plot_wanted(const struct options *o);
/* Can the terminal show more than ASCII? */
bool plot_utf8(void);

/* Draws n counts as heights in `columns` columns; if there are more counts, neighbours share a
 * column. Counts above 0 are always visible. */
void plot_spark(struct buf *b, const uint64_t *counts, size_t n, size_t columns, bool utf8);
/* Draws a bar of share * columns, 0 <= share <= 1; pad: fills the rest with blanks. */
void plot_bar(struct buf *b, double share, size_t columns, bool pad, bool utf8);

#endif
