/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/sched.h"

#include "base/checked.h"
#include "base/clock.h"
#include "remote/store.h"
#include "source/wire.h"

enum { WINDOW_MS = 200 }; /* between two looks at the speed */

#define WINDOW_MIN ((uint64_t)16 << 20)
#define WINDOW_MAX ((uint64_t)256 << 20)

bool sched_exact(struct span in, uint64_t most, sched_missing_fn *missing, void *arg,
		 struct span *ret)
{
	uint64_t first = in.first, end;

	while (first < in.end && !missing(arg, first))
		first++;
	if (first >= in.end)
		return false;
	for (end = first + 1; end < in.end && end - first < most && missing(arg, end);)
		end++;
	*ret = (struct span){ first, end };
	return true;
}

static bool is_in(const struct span *wants, size_t n, uint64_t block)
{
	for (size_t i = 0; i < n; i++)
		if (block >= wants[i].first && block < wants[i].end)
			return true;
	return false;
}

bool sched_wanted(const struct span *wants, size_t n, uint64_t most, uint64_t gap,
		  sched_missing_fn *missing, void *arg, struct span *ret)
{
	struct span r;

	if (!n || !sched_exact(wants[0], most, missing, arg, &r))
		return false;
	for (uint64_t end = r.end; end - r.first < most && end - r.end <= gap;) {
		bool wanted = is_in(wants, n, end);

		if (wanted && missing(arg, end))
			r.end = end + 1;
		end++;
	}
	*ret = r;
	return true;
}

uint64_t steps_most(const struct steps *s, uint64_t first)
{
	bool follows = first >= s->end && first - s->end <= SCHED_MIN / WIRE_BLOCK;

	return !s->blocks || !follows ? SCHED_MIN / WIRE_BLOCK
				      : min_u64(2 * s->blocks, SCHED_MAX / WIRE_BLOCK);
}

void steps_sent(struct steps *s, uint64_t first, uint64_t end)
{
	s->blocks = steps_most(s, first);
	s->end = end;
}

uint64_t sched_gap(const struct net_pace *p, uint64_t busy)
{
	double latency = (double)p->latency_us / 1e6, full, bytes;

	full = latency * (double)max_u64(p->total_bps, p->connection_bps);
	if ((double)busy >= full)
		return 0;
	bytes = latency * (double)p->connection_bps * (1 - (double)busy / full);
	return bytes < SCHED_MAX ? (uint64_t)bytes / WIRE_BLOCK : SCHED_MAX / WIRE_BLOCK;
}

void window_init(struct window *w)
{
	*w = (struct window){ .bytes = WINDOW_MIN };
}

static uint64_t ceiling_of(const struct net_pace *p, uint64_t ram)
{
	double transfer = p->connection_bps ? (double)SCHED_MAX / (double)p->connection_bps : 1;
	double most = 1.7 * (double)p->total_bps * ((double)p->latency_us / 1e6 + transfer);
	uint64_t bytes = most < (double)WINDOW_MAX ? (uint64_t)most : WINDOW_MAX;

	return max_u64(min_u64(bytes, ram / 8), WINDOW_MIN);
}

void window_arrived(struct window *w, uint64_t n, uint64_t now_ns, bool full,
		    const struct net_pace *p, uint64_t ram)
{
	uint64_t passed = now_ns - w->since_ns, bps, ceiling;
	double gain;

	w->arrived += n;
	if (!w->since_ns) {
		w->since_ns = now_ns;
		w->arrived = 0;
		return;
	}
	if (passed < WINDOW_MS * CLOCK_MS)
		return;
	bps = (uint64_t)((double)w->arrived * 1e9 / (double)passed);
	w->arrived = 0;
	w->since_ns = now_ns;
	ceiling = ceiling_of(p, ram);
	/* Doubling what is on its way must have gained a tenth; half as much again, a twentieth. */
	gain = w->before && w->bytes > w->before ? 0.1 * ((double)w->bytes / (double)w->before - 1)
						 : 0;
	if (full && ceiling > w->bytes && (double)bps > (double)w->best_bps * (1 + gain)) {
		w->best_bps = bps;
		w->before = w->bytes;
		w->bytes = min_u64(2 * w->bytes, ceiling);
	}
	w->bytes = min_u64(w->bytes, ceiling);
}
