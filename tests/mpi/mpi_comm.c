/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mpi_comm WHAT [N] - communication of ranks, which must work the same with processes and threads:
 *
 *	mpirun -n 4 mpi_comm all      ranks are the processes of mpirun
 *	mpi_comm all 4                ranks are 4 threads
 *
 *	all       prints all that a rank gets, a line for each rank; the same lines either way
 *	big       3 GiB from rank 0 to each rank, and to and fro between 0 and 1 (12 GiB for 2)
 *	fail R    rank R fails while the others gather
 *	leave R   rank R returns early, without a failure
 *
 * Rank 0 prints the lines; or an error message, and exits with 1.
 */
#include "base/buf.h"
#include "base/err.h"
#include "comm/comm.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct work {
	const char *what;
	size_t who;
};

/* Rank 0 gathers the lines of all ranks and prints them. */
static int print_all(struct ckpt_comm *c, int rc, struct buf *lines, struct ckpt_err *e)
{
	struct ckpt_comm_all all = { 0 };

	if (!rc && lines->err)
		rc = err_set(e, lines->err, "lines: out of memory");
	rc = ckpt_comm_gather(c, rc, lines->data, lines->len, &all, e);
	for (size_t i = 0; i < all.n; i++)
		printf("rank %zu of %zu:\n%.*s", i, all.n, (int)all.v[i].len,
		       (const char *)all.v[i].data);
	ckpt_comm_all_release(&all);
	return rc;
}

static void note(struct buf *lines, const char *what, const struct ckpt_comm_bytes *b)
{
	uint64_t h = 14695981039346656037u; /* FNV-1a */

	for (size_t i = 0; i < b->len; i++)
		h = (h ^ ((const uint8_t *)b->data)[i]) * 1099511628211u;
	buf_printf(lines, "  %s: %zu bytes, %016llx\n", what, b->len, (unsigned long long)h);
}

/* `len` bytes that depend on seed. */
static void fill(struct buf *b, size_t len, uint64_t seed)
{
	uint8_t *p = buf_room(b, len);

	for (size_t i = 0; p && i < len; i++)
		p[i] = (uint8_t)((seed = seed * 6364136223846793005u + 1442695040888963407u) >> 56);
	b->len += p ? len : 0;
}

/* All ranks' bytes, one after the other; for rank N without the last N bytes. */
static int join(void *arg, const struct ckpt_comm_all *all, struct buf *ret, struct ckpt_err *e)
{
	(void)arg;
	(void)e;
	for (size_t i = 0; i < all->n; i++) {
		for (size_t k = 0; k < all->n; k++)
			buf_add(&ret[i], all->v[k].data, all->v[k].len);
		ret[i].len -= ret[i].len < i ? ret[i].len : i;
	}
	return 0;
}

static int do_all(struct ckpt_comm *c, struct ckpt_err *e)
{
	struct buf lines = BUF_INIT(1 << 20);
	int rc = ckpt_comm_barrier(c, e);

	for (size_t len = 0; len < 3000000 && !rc; len = len * 10 + 1) {
		struct buf mine = BUF_INIT(SIZE_MAX), own = BUF_INIT(SIZE_MAX);
		struct ckpt_comm_bytes got = { 0 }, same = { 0 };

		fill(&mine, c->rank % 3 == 1 ? 0 : len + c->rank, c->rank + len);
		fill(&own, len, len);
		rc = mine.err || own.err ? err_set(e, ENOMEM, "fill: out of memory") : 0;
		rc = comm_exchange(c, rc, &mine, join, NULL, &got, e);
		if (!rc)
			rc = ckpt_comm_broadcast(c, rc, own.data, own.len, &same, e);
		note(&lines, "exchange", &got);
		note(&lines, "broadcast", &same);
		buf_release(&own);
		free(got.data);
		free(same.data);
	}
	if (!rc)
		rc = print_all(c, rc, &lines, e);
	buf_release(&lines);
	return rc;
}

#define BIG (((size_t)3 << 30) + 12345)

static bool big_is_there(const struct ckpt_comm_bytes *b)
{
	const uint8_t *p = b->data;
	bool same = b->len == BIG;

	for (size_t i = 0; same && i < BIG; i += 4093)
		same = p[i] == (uint8_t)(i >> 12);
	return same && p[BIG - 1] == (uint8_t)((BIG - 1) >> 12);
}

static int do_big(struct ckpt_comm *c, struct ckpt_err *e)
{
	uint8_t *big = c->rank ? NULL : malloc(BIG);
	struct ckpt_comm_bytes got = { 0 };
	struct ckpt_comm_all all = { 0 };
	int rc = c->rank || big ? 0 : err_set(e, ENOMEM, "3 GiB: out of memory");

	for (size_t i = 0; big && i < BIG; i++)
		big[i] = (uint8_t)(i >> 12);
	rc = ckpt_comm_broadcast(c, rc, big, BIG, &got, e);
	free(big);
	if (!rc && !big_is_there(&got))
		rc = err_set(e, EIO, "broadcast: other bytes");
	rc = ckpt_comm_gather(c, rc, got.data, c->rank == 1 ? got.len : 0, &all, e);
	free(got.data);
	if (!rc && c->rank == 0 && !big_is_there(&all.v[1]))
		rc = err_set(e, EIO, "gather: other bytes");
	rc = ckpt_comm_scatter(c, rc, all.v, &got, e);
	ckpt_comm_all_release(&all);
	if (!rc && c->rank == 1 && !big_is_there(&got))
		rc = err_set(e, EIO, "scatter: other bytes");
	if (!rc)
		free(got.data);
	return ckpt_comm_agree(c, rc, e);
}

static int run(void *arg, struct ckpt_comm *c, struct ckpt_err *e)
{
	const struct work *w = arg;
	struct ckpt_comm_all all = { 0 };
	int rc = 0;

	if (!strcmp(w->what, "all"))
		return do_all(c, e);
	if (!strcmp(w->what, "big"))
		return do_big(c, e);
	if (c->rank == w->who && !strcmp(w->what, "leave"))
		return 0;
	if (c->rank == w->who)
		return err_set(e, ENOSPC, "no room here");
	rc = ckpt_comm_gather(c, rc, "x", 1, &all, e);
	ckpt_comm_all_release(&all);
	return rc;
}

int main(int argc, char **argv)
{
	struct work w = { argc > 1 ? argv[1] : "all", 0 };
	size_t number = argc > 2 ? strtoul(argv[2], NULL, 10) : 4;
	struct ckpt_comm c = ckpt_comm_self();
	struct ckpt_err e = { 0 };
	size_t rank;
	int rc;

	w.who = number;
	rc = ckpt_comm_mpi_start(&c, &e);
	rank = c.rank;
	if (rc == 1)
		rc = ckpt_comm_run_threads(strcmp(w.what, "all") ? 4 : number, run, &w, &e);
	else if (!rc)
		rc = ckpt_comm_mpi_end(&c, run(&w, &c, &e), &e);
	if (rc && rank == 0) /* all ranks have the same error */
		(void)fprintf(stderr, "mpi_comm: %s\n", e.msg);
	return rc && rank == 0; /* mpirun kills the others as soon as one fails */
}
