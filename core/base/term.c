/* SPDX-License-Identifier: Apache-2.0 */
#include "base/term.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

bool term_has_color(int fd)
{
	const char *no_color = getenv("NO_COLOR"), *kind = getenv("TERM");

	return isatty(fd) && (!no_color || !*no_color) && kind && *kind &&
	       strcmp(kind, "dumb") != 0;
}

unsigned term_columns(int fd)
{
	struct winsize size;

	return ioctl(fd, TIOCGWINSZ, &size) ? 0 : size.ws_col;
}
