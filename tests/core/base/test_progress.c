/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "base/progress.h"
#include "suites.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* What is drawn at once for `done`, if stderr is a terminal of this width. */
static void drawn_in(unsigned short columns, struct progress *p, uint64_t done,
		     char out[static 200])
{
	const struct winsize size = { .ws_col = columns, .ws_row = 25 };
	int tty, saved = dup(STDERR_FILENO), terminal = posix_openpt(O_RDWR | O_NOCTTY);
	ssize_t n;

	REQUIRE(saved >= 0 && terminal >= 0 && !grantpt(terminal) && !unlockpt(terminal));
	tty = open(ptsname(terminal), O_RDWR | O_NOCTTY);
	REQUIRE(tty >= 0 && !ioctl(tty, TIOCSWINSZ, &size) && dup2(tty, STDERR_FILENO) >= 0);
	{
		const struct progress asked = *p;

		progress_start(p, asked.what, asked.total, true);
		p->unit = asked.unit;
	}
	p->start_ns -= 10 * CLOCK_SECOND;
	p->next_ns = 0;
	progress_set(p, done);
	n = read(terminal, out, 199);
	REQUIRE(n > 0);
	out[n] = 0;
	progress_end(p);
	REQUIRE(dup2(saved, STDERR_FILENO) >= 0);
	(void)close(saved);
	(void)close(tty);
	(void)close(terminal);
}

static void drawn(struct progress *p, uint64_t done, char out[static 200])
{
	drawn_in(0, p, done, out);
}

START_TEST(a_bar_counts_bytes)
{
	struct progress p = { .what = "check", .total = 4 << 20 };
	char out[200];

	(void)setenv("NO_COLOR", "1", 1);
	drawn(&p, 1 << 20, out);
	ck_assert_ptr_nonnull(strstr(out, "check [######------------------] 1.0 MiB  "));
	ck_assert_ptr_nonnull(strstr(out, "/s  ETA "));
}
END_TEST

START_TEST(a_bar_counts_other_things)
{
	struct progress p = { .what = "open", .total = 8, .unit = "checkpoints" };
	char out[200];

	(void)setenv("NO_COLOR", "1", 1);
	drawn(&p, 2, out);
	ck_assert_ptr_nonnull(
		strstr(out, "open [######------------------] 2 of 8 checkpoints  ETA "));
	ck_assert_ptr_null(strstr(out, "/s"));
}
END_TEST

/* A line that wraps would stay on the screen. */
START_TEST(a_bar_is_narrower_than_the_terminal)
{
	static const char wipe[] = "\r\033[K";
	char out[200];

	(void)setenv("NO_COLOR", "1", 1);
	for (unsigned short columns = 1; columns <= 100; columns++) {
		struct progress p = { .what = "open", .total = 8, .unit = "checkpoints" };

		drawn_in(columns, &p, 2, out);
		ck_assert(!strncmp(out, wipe, strlen(wipe)));
		ck_assert_uint_lt(strlen(out) - strlen(wipe), columns);
		if (columns >= 62)
			ck_assert_ptr_nonnull(
				strstr(out, "open [######------------------] 2 of 8 "));
		else if (columns == 45)
			ck_assert_ptr_nonnull(strstr(out, "--] 2 of 8 checkpoints  ETA "));
		else if (columns == 30)
			ck_assert_ptr_nonnull(strstr(out, "\033[K2 of 8 checkpoints  ETA "));
	}
}
END_TEST

START_TEST(nothing_is_drawn_at_first_or_where_there_is_no_terminal)
{
	struct progress p;

	progress_start(&p, "open", 8, false);
	p.next_ns = 0;
	progress_set(&p, 2);
	ck_assert(!p.drawn);
	progress_start(&p, "open", 8, true);
	p.enabled = true;
	p.next_ns = UINT64_MAX;
	progress_set(&p, 2);
	ck_assert(!p.drawn);
}
END_TEST

SUITE(progress)
