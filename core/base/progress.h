/* SPDX-License-Identifier: Apache-2.0 */
/*
 * progress - a bar on stderr for operations that take longer than a second.
 *
 *	struct progress p;
 *	progress_start(&p, "index", total_bytes, enabled);
 *	progress_set(&p, done_bytes);    // as often as you like; draws 10 times a second
 *	progress_report(&p, done, total) // the same where the total may grow: a callback
 *	progress_hide(&p);               // before other output; the next set draws it again
 *	progress_end(&p);                // wipes the bar
 *
 * Nothing is drawn in the first second, or when stderr is not a terminal. NO_COLOR and TERM=dumb
 * are honoured. Threads: progress_set and progress_report from any; the others from one thread, and
 * progress_hide not while another thread calls progress_set.
 */
#ifndef BASE_PROGRESS_H
#define BASE_PROGRESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct progress {
	const char *what;
	_Atomic uint64_t total; /* bytes; 0 if unknown */
	uint64_t from;	  /* done by earlier runs and not part of the rate; set after the start */
	const char *unit; /* what is counted if it is not bytes; NULL unless set after the start */
	uint64_t start_ns;
	_Atomic uint64_t next_ns;
	bool enabled, color;
	atomic_bool drawn;
};

void progress_start(struct progress *p, const char *what, uint64_t total, bool enabled);
void progress_set(struct progress *p, uint64_t done);
void progress_report(void *progress, uint64_t done, uint64_t total);
void progress_hide(struct progress *p);
void progress_end(struct progress *p);

#endif
