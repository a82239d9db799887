/* SPDX-License-Identifier: Apache-2.0 */
/*
 * term - what is at the other end of a descriptor: a terminal, and may it be given colors?
 *
 * Threads: no shared state but the environment.
 */
#ifndef BASE_TERM_H
#define BASE_TERM_H

#include <stdbool.h>

/* A terminal that shows colors, whose user has not set NO_COLOR (no-color.org) nor TERM=dumb. */
bool term_has_color(int fd);

#endif
