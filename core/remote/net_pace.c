/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/net_internal.h"

#include "base/checked.h"
#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

enum { AT_ONCE_FIRST = 8 };

void pace_init(struct pace *p, unsigned most)
{
	p->most = most;
	p->v.at_once = (unsigned)min_u64(AT_ONCE_FIRST, most);
}

static int compare_u64(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/* The value at a fraction (hundredths) of the samples in order. */
static uint64_t fraction(const uint64_t *v, unsigned n, unsigned hundredths)
{
	uint64_t sorted[NET_SAMPLES];

	if (!n) /* not covered: the 2^32nd */
		return 0;
	n = n < NET_SAMPLES ? n : NET_SAMPLES;
	memcpy(sorted, v, n * sizeof(*v));
	qsort(sorted, n, sizeof(*v), compare_u64);
	return sorted[(n - 1) * hundredths / 100];
}

void pace_latency(struct pace *p, uint64_t ns)
{
	p->latency_us[p->n_latency++ % NET_SAMPLES] = ns / 1000;
	/* Now and then is enough: they change slowly. */
	if (p->n_latency > 16 && p->n_latency % 16)
		return;
	p->v.latency_us = fraction(p->latency_us, p->n_latency, 50);
	p->p95_ns = fraction(p->latency_us, p->n_latency, 95) * 1000;
}

void pace_bytes(struct pace *p, uint64_t n)
{
	p->v.bytes += n;
	p->busy_bytes += n;
}

void pace_speed(struct pace *p, uint64_t bytes, uint64_t ns)
{
	/* A smaller body only shows what was in the buffers. */
	if (bytes < (256 << 10) || ns < CLOCK_MS)
		return;
	p->bps[p->n_bps++ % NET_SAMPLES] = (uint64_t)((double)bytes * 1e9 / (double)ns);
	p->v.connection_bps = fraction(p->bps, p->n_bps, 50);
}

void pace_alone(struct pace *p, uint64_t now)
{
	p->busy_ns = now;
	p->busy_bytes = 0;
}

void pace_look(struct pace *p, unsigned in_flight, uint64_t now)
{
	uint64_t ns = now - p->busy_ns;

	if (in_flight && ns < CLOCK_SECOND)
		return;
	if (ns > CLOCK_SECOND / 5 && p->busy_bytes)
		p->v.total_bps = (uint64_t)((double)p->busy_bytes * 1e9 / (double)ns);
	p->busy_ns = now;
	p->busy_bytes = 0;
}

void pace_success(struct pace *p, unsigned in_flight)
{
	/* Not beyond what is asked for: unused room proves nothing. */
	if (in_flight + 1 < p->v.at_once || p->v.at_once >= p->most)
		return;
	if (p->was_halved && ++p->credit < p->v.at_once)
		return;
	p->credit = 0;
	p->v.at_once++;
}

void pace_trouble(struct pace *p, uint64_t now)
{
	/* Requests that were sent together are refused together. */
	if (p->was_halved && now - p->halved_ns < CLOCK_SECOND)
		return;
	p->v.at_once = p->v.at_once > 1 ? p->v.at_once / 2 : 1;
	p->credit = 0;
	p->was_halved = true;
	p->halved_ns = now;
}

uint64_t pace_hedge_ns(const struct pace *p)
{
	return max_u64(CLOCK_SECOND, 5 * p->p95_ns);
}
