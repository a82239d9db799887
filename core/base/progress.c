/* SPDX-License-Identifier: Apache-2.0 */
#include "base/progress.h"
#include "base/clock.h"

#include "base/checked.h"
#include "base/term.h"
#include "base/text.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { BAR = 24, MIN_BAR = 4 };

void progress_start(struct progress *p, const char *what, uint64_t total, bool enabled)
{
	*p = (struct progress){ .what = what,
				.total = total,
				.enabled = enabled && isatty(STDERR_FILENO),
				.color = term_has_color(STDERR_FILENO) };
	p->start_ns = clock_ns();
	p->next_ns = p->start_ns + CLOCK_SECOND;
}

/* A line that wraps could not be wiped: on a narrow terminal the bar is shortened, then left out,
 * and then the text is cut off. */
static void draw(const struct progress *p, uint64_t done, uint64_t total, const char *text)
{
	unsigned columns = term_columns(STDERR_FILENO);
	size_t used = strlen(p->what) + strlen(" [] ") + strlen(text), n = BAR, full;
	char bar[BAR + 1];

	if (columns && used + BAR >= columns)
		n = used + MIN_BAR < columns ? columns - 1 - used : 0;
	full = total ? (size_t)(min_u64(done, total) * n / total) : 0;
	memset(bar, '#', full);
	memset(bar + full, '-', n - full);
	bar[n] = 0;
	if (n)
		(void)fprintf(stderr, "\r\033[K%s %s[%s]%s %s", p->what, p->color ? "\033[32m" : "",
			      bar, p->color ? "\033[0m" : "", text);
	else
		(void)fprintf(stderr, "\r\033[K%.*s", (int)columns - 1, text);
	(void)fflush(stderr);
}

void progress_set(struct progress *p, uint64_t done)
{
	char size[16], rate[16], text[96];
	uint64_t now, next, elapsed, total = p->total;
	double speed;
	int n;

	if (!p->enabled)
		return;
	now = clock_ns();
	next = p->next_ns;
	/* One thread draws, the others carry on. */
	if (now < next ||
	    !atomic_compare_exchange_strong(&p->next_ns, &next, now + CLOCK_SECOND / 10))
		return;
	elapsed = now - p->start_ns;
	speed = (double)(done - min_u64(done, p->from)) / ((double)elapsed / (double)CLOCK_SECOND);
	if (p->unit)
		n = snprintf(text, sizeof(text), "%ju of %ju %s", (uintmax_t)done, (uintmax_t)total,
			     p->unit);
	else
		n = snprintf(text, sizeof(text), "%s  %s/s", text_size(done, size),
			     text_size((uint64_t)speed, rate));
	if (total && speed > 0) {
		uint64_t left = (uint64_t)((double)(total - min_u64(done, total)) / speed);

		(void)snprintf(text + n, sizeof(text) - (size_t)n, "  ETA %u:%02u",
			       (unsigned)(left / 60), (unsigned)(left % 60));
	}
	draw(p, done, total, text);
	p->drawn = true;
}

void progress_report(void *progress, uint64_t done, uint64_t total)
{
	struct progress *p = progress;

	p->total = total;
	progress_set(p, done);
}

void progress_hide(struct progress *p)
{
	if (p->drawn)
		(void)fprintf(stderr, "\r\033[K");
	p->drawn = false;
}

void progress_end(struct progress *p)
{
	progress_hide(p);
	p->enabled = false;
}
