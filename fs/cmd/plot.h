/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plot - small pictures of numbers in a line of text: for people at a terminal.
 *
 * Of Unicode blocks where the locale's character set is UTF-8, else of ASCII.
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

/* Are there to be plots: what --plot says, else whether standard output is a terminal. */
bool plot_wanted(const struct options *o);
/* Can the terminal show more than ASCII? */
bool plot_utf8(void);

/* n counts, as heights in `columns` columns; neighbours share one where there are more counts. What is
 * not 0 can be seen. */
void plot_spark(struct buf *b, const uint64_t *counts, size_t n, size_t columns, bool utf8);
/* A bar of share * columns, 0 <= share <= 1, padded to all of them if there are
 * more columns. */
void plot_bar(struct buf *b, double share, size_t columns, bool pad, bool utf8);

#endif
