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

enum { BAR = 24 };

void progress_start(struct progress *p, const char *what, uint64_t total, bool enabled)
{
	*p = (struct progress){ .what = what,
				.total = total,
				.enabled = enabled && isatty(STDERR_FILENO),
				.color = term_has_color(STDERR_FILENO) };
	p->start_ns = clock_ns();
	p->next_ns = p->start_ns + CLOCK_SECOND;
}

void progress_set(struct progress *p, uint64_t done)
{
	char bar[BAR + 1], size[16], rate[16], of[64], eta[32] = "";
	uint64_t now, next, elapsed, total = p->total;
	double speed;
	size_t full;

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
	full = total ? (size_t)(min_u64(done, total) * BAR / total) : 0;
	memset(bar, '#', full);
	memset(bar + full, '-', BAR - full);
	bar[BAR] = 0;
	if (total && speed > 0) {
		uint64_t left = (uint64_t)((double)(total - min_u64(done, total)) / speed);

		(void)snprintf(eta, sizeof(eta), "  ETA %u:%02u", (unsigned)(left / 60),
			       (unsigned)(left % 60));
	}
	if (p->unit)
		(void)snprintf(of, sizeof(of), "%ju of %ju %s", (uintmax_t)done, (uintmax_t)total,
			       p->unit);
	else
		(void)snprintf(of, sizeof(of), "%s  %s/s", text_size(done, size),
			       text_size((uint64_t)speed, rate));
	(void)fprintf(stderr, "\r\033[K%s %s[%s]%s %s%s", p->what, p->color ? "\033[32m" : "", bar,
		      p->color ? "\033[0m" : "", of, eta);
	(void)fflush(stderr);
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
