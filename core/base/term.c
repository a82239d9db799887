/* SPDX-License-Identifier: Apache-2.0 */
#include "base/term.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool term_has_color(int fd)
{
	const char *no_color = getenv("NO_COLOR"), *kind = getenv("TERM");

	return isatty(fd) && (!no_color || !*no_color) && kind && *kind &&
	       strcmp(kind, "dumb") != 0;
}
