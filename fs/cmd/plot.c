/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/plot.h"

#include "cmd/options.h"

#include "base/buf.h"

#include <langinfo.h>
#include <locale.h>
#include <string.h>
#include <unistd.h>

enum { LEVELS = 8 }; /* steps of a height, and of the last column of a bar */

bool plot_wanted(const struct options *o)
{
	if (!o->plot || !strcmp(o->plot, "auto"))
		return isatty(STDOUT_FILENO);
	return !strcmp(o->plot, "always");
}

bool plot_utf8(void)
{
	locale_t of_user = newlocale(LC_CTYPE_MASK, "", (locale_t)0);
	bool is = of_user && !strcmp(nl_langinfo_l(CODESET, of_user), "UTF-8");

	if (of_user)
		freelocale(of_user);
	return is;
}

static void add_height(struct buf *b, size_t level, bool utf8)
{
	static const char *const blocks[LEVELS + 1] = {
		" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"
	};
	static const char ascii[LEVELS + 1] = " .:-=+*#@";

	if (utf8)
		buf_str(b, blocks[level]);
	else
		buf_add(b, &ascii[level], 1);
}

void plot_spark(struct buf *b, const uint64_t *counts, size_t n, size_t columns, bool utf8)
{
	size_t together = n ? (n - 1) / columns + 1 : 1;
	uint64_t largest = 0;

	for (size_t pass = 0; pass < 2; pass++)
		for (size_t column = 0; column < columns; column++) {
			uint64_t count = 0;

			for (size_t i = column * together; i < (column + 1) * together && i < n;
			     i++)
				count += counts[i];
			if (!pass)
				largest = count > largest ? count : largest;
			else /* rounded up */
				add_height(
					b,
					count ? (size_t)(1 + (double)(LEVELS - 1) * (double)count /
								     (double)largest)
					      : 0,
					utf8);
		}
}

void plot_bar(struct buf *b, double share, size_t columns, bool pad, bool utf8)
{
	static const char *const parts[LEVELS] = { "", "▏", "▎", "▍", "▌", "▋", "▊", "▉" };
	size_t eighths = (size_t)(share * (double)columns * LEVELS + 0.5);
	size_t full = eighths / LEVELS, part = utf8 ? eighths % LEVELS : 0;

	if (!utf8)
		full = (eighths + LEVELS / 2) / LEVELS;
	for (size_t i = 0; i < full; i++)
		buf_str(b, utf8 ? "█" : "#");
	buf_str(b, parts[part]);
	for (size_t i = full + (part != 0); pad && i < columns; i++)
		buf_str(b, " ");
}
