/* SPDX-License-Identifier: Apache-2.0 */
/*
 * term - is a descriptor a terminal, does it show colors, and how wide is it?
 *
 * Threads: no shared state except the environment.
 */
#ifndef BASE_TERM_H
#define BASE_TERM_H

#include <stdbool.h>

/* Is fd a terminal that shows colors, with neither NO_COLOR (no-color.org) nor TERM=dumb set? */
bool term_has_color(int fd);
/* The width of the terminal in characters; 0 if it is not known. */
unsigned term_columns(int fd);

#endif
