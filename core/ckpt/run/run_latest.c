/* SPDX-License-Identifier: Apache-2.0 */
/* Which checkpoint of a run is the latest. */
#include "ckpt/run/run.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/text.h"
#include "source/source.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* In one call no more checkpoints are tried once those that cannot be opened have cost as much. */
#define TRY_NS	 CLOCK_SECOND
#define SHORT_NS (5 * CLOCK_SECOND) /* until files that are missing are looked for again */

/* Are the checkpoints versions kept by the storage? If so, `out` is the newest; "": unknown. */
static bool is_versions(const struct ckpt_run *r, char out[static 256])
{
	int64_t n = place_tip(r->place, out, 255);

	out[n < 0 ? 0 : n] = 0;
	out[strcspn(out, "\r\n")] = 0;
	return n >= 0;
}

/* The first line of a small file, or a link's target; "" if it does not exist. */
static void first_line(const struct ckpt_run *r, const char *name, char out[static 256])
{
	struct source *file CLEANUP(source_freep) = NULL;
	struct ckpt_err ignored;
	int64_t n = place_link(r->place, name, out, 255);

	if (n < 0 && !place_file(r->place, name, &file, &ignored))
		n = source_read(file, out, 255, 0, &ignored);
	out[n < 0 ? 0 : n] = 0;
	out[strcspn(out, "\r\n")] = 0;
}

/*
 * The newest checkpoint as recorded by the saver: the tracker file of Megatron or DeepSpeed, or a
 * link.
 */
static bool tracked(struct ckpt_run *r, unsigned *ret)
{
	char line[256], name[300];
	unsigned long long number;
	char *end;

	if (is_versions(r, line))
		return *line && !strchr(line, '/') && !run_find(r, line, ret);
	first_line(r, "latest_checkpointed_iteration.txt", line);
	errno = 0;
	number = strtoull(line, &end, 10);
	if (isdigit((unsigned char)*line) && !*end && !errno) {
		(void)snprintf(name, sizeof(name), "iter_%07llu", number);
		if (!run_find(r, name, ret))
			return true;
	} else if (!strcmp(line, "release") && !run_find(r, line, ret)) {
		return true;
	}
	first_line(r, "latest", line);
	return *line && !strchr(line, '/') && !run_find(r, line, ret);
}

/* Which checkpoints count? */
enum those {
	ALL,
	NOT_FAILED, /* not those that could not be opened the last time */
	MAY_TRY,    /* and those of which it is time to find out again */
};

/* What is known of a checkpoint. */
enum hope { OPENS, UNKNOWN, FAILS };

/* Under the lock. Can it be opened only because of allow_missing? Many commands set that. */
static bool is_short(const struct ckpt_run *r, const struct run_child *k)
{
	return r->opts.allow_missing && k->lacks && !k->is_told;
}

/* Under the lock. An error of the storage says nothing about the checkpoint. */
static enum hope hope_of(const struct ckpt_run *r, const struct run_child *k, enum those those)
{
	if (those != ALL && is_short(r, k))
		return those == MAY_TRY && clock_ns() >= k->retry_ns ? UNKNOWN : FAILS;
	if (those == ALL || k->ckpt || (k->why && err_is_external(-k->why_code)))
		return OPENS;
	if (k->why)
		return those == MAY_TRY && clock_ns() >= k->retry_ns ? UNKNOWN : FAILS;
	return k->identified ? OPENS : UNKNOWN;
}

static bool is_numbered(const struct run_child *k)
{
	return isdigit((unsigned char)k->name[strlen(k->name) - 1]);
}

/* named: the slot that the saver names, which comes before the others; or 0. */
static bool is_newer(const struct run_child *k, const struct run_child *than, unsigned named)
{
	if (!than || k->slot == named || than->slot == named)
		return !than || k->slot == named;
	return text_natural_cmp(than->name, strlen(than->name), k->name, strlen(k->name)) < 0;
}

/*
 * The newest of those that count, or of all if none does; 0: there is none. *ret_open: it has to be
 * opened to know if it counts.
 */
static unsigned choose(struct ckpt_run *r, unsigned named, enum those those, bool *ret_open)
{
	const struct run_child *any = NULL, *best = NULL, *opens = NULL;
	size_t n = 0;
	SCOPED_LOCK(&r->lock);

	for (size_t i = 0; i < r->n_names; i++) {
		const struct run_child *k = r->names[i];
		enum hope hope;

		if (!k->slot || (k->slot != named && !is_numbered(k)))
			continue;
		n++;
		hope = hope_of(r, k, those);
		any = is_newer(k, any, named) ? k : any;
		best = hope != FAILS && is_newer(k, best, named) ? k : best;
		opens = hope == OPENS && is_newer(k, opens, named) ? k : opens;
	}
	/* Not to wait for another thread that is opening it. */
	if (best && best != opens && best->opening && opens)
		best = opens;
	*ret_open = best && best != opens && n > 1 && those == MAY_TRY;
	return best ? best->slot : any ? any->slot : 0;
}

/* Slot of the only checkpoint. 1: there are several, or none. */
static int find_only(struct ckpt_run *r, unsigned *ret)
{
	SCOPED_LOCK(&r->lock);

	for (size_t i = 0; r->n_complete == 1 && i < r->n_names; i++)
		if (r->names[i]->slot) {
			*ret = r->names[i]->slot;
			return 0;
		}
	return 1;
}

/* Did it turn out that it cannot be opened? */
static bool cannot_open(struct ckpt_run *r, unsigned slot)
{
	struct run_child *k;
	struct ckpt_err e;
	int rc = run_use(r, slot, &k, &e);
	bool is_not;

	if (rc)
		return rc != -ESTALE && !err_is_external(rc);
	{
		SCOPED_LOCK(&r->lock);
		is_not = is_short(r, k);
		if (is_not)
			k->retry_ns = clock_ns() + SHORT_NS;
	}
	if (is_not) /* only what is opened again is seen to be whole */
		run_close(r, k);
	else
		run_done(r, k);
	return is_not;
}

/* Is it, and open or known to open? */
static bool is_open(struct ckpt_run *r, unsigned slot)
{
	SCOPED_LOCK(&r->lock);

	return slot < r->n_slots && r->slots[slot] &&
	       hope_of(r, r->slots[slot], NOT_FAILED) == OPENS;
}

/*
 * A checkpoint that is being copied into the run is complete for its format before its data is
 * there, and the link must not lead to it yet.
 */
static int find_latest(struct ckpt_run *r, enum those those, unsigned *ret)
{
	struct ckpt_err ignored;
	unsigned named = 0, slot;
	char line[256];
	bool open;
	bool versions = is_versions(r, line), found = tracked(r, &named);
	uint64_t start;

	/* versions have names without an order, so that none can take another one's place */
	if (found && (those == ALL || versions || is_open(r, named))) {
		*ret = named;
		return 0;
	}
	(void)run_refresh(r, false, &ignored);
	if (versions)
		return find_only(r, ret);
	start = clock_ns();
	do {
		bool may_try = clock_ns() - start < TRY_NS;

		slot = choose(r, named, those == MAY_TRY && !may_try ? NOT_FAILED : those, &open);
	} while (open && cannot_open(r, slot));
	if (!slot)
		return 1;
	*ret = slot;
	return 0;
}

int run_latest(struct ckpt_run *r, unsigned *ret)
{
	return find_latest(r, MAY_TRY, ret);
}

int run_latest_known(struct ckpt_run *r, unsigned *ret)
{
	return find_latest(r, NOT_FAILED, ret);
}

int run_newest(struct ckpt_run *r, unsigned *ret)
{
	return find_latest(r, ALL, ret);
}
