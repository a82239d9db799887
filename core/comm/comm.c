/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every collective begins with a meeting: each rank reports to rank 0 what it is about to do and
 * how its last step went, and rank 0 sends all of them one verdict. Either all ranks go on or none
 * does. Since the meeting is the same for every collective, a rank that is in a different one, or
 * has ended, is detected there instead of waited for.
 *
 * Memory is allocated before bytes are moved: rank 0 allocates for a gather before its verdict; for
 * a scatter or broadcast the ranks learn the size and meet again when they have allocated.
 */
#include "comm/comm.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum call { AGREE, GATHER, SCATTER, BROADCAST, LEAVE, N_CALLS };

static const char *const doing[N_CALLS] = {
	[AGREE] = "agrees",	    [GATHER] = "gathers",  [SCATTER] = "scatters",
	[BROADCAST] = "broadcasts", [LEAVE] = "has ended",
};

/* What a rank reports, and what rank 0 answers. */
struct ckpt_comm_said {
	uint64_t len;	     /* bytes that the rank contributes */
	uint32_t call;	     /* enum call; in the verdict, N_CALLS if the ranks differ */
	uint32_t told;	     /* the failure's text already begins with "rank 2: " */
	struct ckpt_err err; /* code 0: none */
};

struct ckpt_comm ckpt_comm_self(void)
{
	return (struct ckpt_comm){ .size = 1 };
}

int ckpt_comm_init(struct ckpt_comm *c, const struct ckpt_comm_ops *ops, void *self, size_t rank,
		   size_t size, struct ckpt_err *e)
{
	struct ckpt_comm fresh = { .ops = ops, .self = self, .rank = rank, .size = size };

	if (!size || rank >= size)
		return err_set(e, EINVAL, "rank %zu is not one of %zu", rank, size);
	if (rank == 0) {
		fresh.said = calloc(size, sizeof(*fresh.said));
		fresh.slot = calloc(size, sizeof(*fresh.slot));
		if (!fresh.said || !fresh.slot) {
			ckpt_comm_release(&fresh);
			return err_set(e, ENOMEM, "%zu ranks: out of memory", size);
		}
	}
	*c = fresh;
	return 0;
}

void ckpt_comm_release(struct ckpt_comm *c)
{
	free(c->said);
	free(c->slot);
	*c = (struct ckpt_comm){ 0 };
}

void ckpt_comm_all_release(struct ckpt_comm_all *all)
{
	free(all->v);
	free(all->block);
	*all = (struct ckpt_comm_all){ 0 };
}

/* ---- meetings ---- */

/* Is it the last shared failure, perhaps with context in front of it? */
static bool is_told(const struct ckpt_comm *c, const struct ckpt_err *e)
{
	size_t n = strlen(c->told.msg), len = strlen(e->msg);

	return c->told.code && e->code == c->told.code && len >= n &&
	       !strcmp(e->msg + len - n, c->told.msg);
}

/* rc and *e are the result of the previous step. */
static struct ckpt_comm_said say(const struct ckpt_comm *c, enum call call, int rc, size_t len,
				 const struct ckpt_err *e)
{
	struct ckpt_comm_said s = { .len = len, .call = call };

	if (!rc)
		return s;
	s.err = *e;
	s.told = is_told(c, e);
	if (s.err.code <= 0)
		s.err.code = rc < 0 ? -rc : EIO;
	return s;
}

/* The lowest rank's failure, or an error that the ranks called different functions. */
static struct ckpt_comm_said judge(const struct ckpt_comm *c)
{
	struct ckpt_comm_said v = { .call = c->said[0].call };

	for (size_t i = 0; i < c->size; i++) {
		struct ckpt_comm_said *s = &c->said[i];

		s->err.msg[sizeof(s->err.msg) - 1] = 0;
		if (s->call != c->said[0].call)
			v.call = N_CALLS;
		if (!s->err.code || v.err.code)
			continue;
		v.err = s->err;
		if (!s->told)
			(void)err_wrap(&v.err, "rank %zu", i);
	}
	for (size_t i = 1; i < c->size && v.call == N_CALLS && !v.err.code; i++)
		if (c->said[i].call != c->said[0].call && c->said[i].call < N_CALLS)
			(void)err_set(&v.err, EPROTO, "rank 0 %s, rank %zu %s",
				      doing[c->said[0].call], i, doing[c->said[i].call]);
	return v;
}

/* Rank 0: allocates room for everything the ranks have announced. */
static int make_room(const struct ckpt_comm *c, struct ckpt_comm_all *ret, struct ckpt_err *e)
{
	struct ckpt_comm_all all = { .n = c->size };
	size_t total = 0;
	char *at;

	for (size_t i = 0; i < c->size; i++)
		if (ckd_add(&total, total, c->said[i].len))
			return err_set(e, EFBIG, "gather: more bytes than fit a size_t");
	all.v = calloc(c->size, sizeof(*all.v));
	all.block = at = malloc(total + !total);
	if (!all.v || !all.block) {
		ckpt_comm_all_release(&all);
		return err_set(e, ENOMEM, "gather %zu bytes of %zu ranks: out of memory", total,
			       c->size);
	}
	for (size_t i = 0; i < c->size; at += all.v[i++].len) {
		all.v[i].data = at;
		all.v[i].len = c->said[i].len;
	}
	*ret = all;
	return 0;
}

static int broken(struct ckpt_comm *c, struct ckpt_err *e)
{
	*e = c->broken;
	return -e->code;
}

/* An error of the transport belongs to this rank alone, but nothing can be sent to the others any
 * more. */
static int moved(struct ckpt_comm *c, int rc, struct ckpt_err *e)
{
	if (!rc)
		return 0;
	c->broken = *e;
	if (c->broken.code <= 0)
		c->broken.code = EIO;
	return broken(c, e);
}

/*
 * Returns the verdict's failure; otherwise *ret has the call, and the length that rank 0 sends.
 * Rank 0 allocates room for what it gathers (NULL: it gathers nothing).
 */
static int meet(struct ckpt_comm *c, struct ckpt_comm_said mine, struct ckpt_comm_all *room,
		struct ckpt_comm_said *ret, struct ckpt_err *e)
{
	struct ckpt_comm_said v = { 0 };
	int rc;

	if (c->broken.code)
		return broken(c, e);
	for (size_t i = 0; c->slot && i < c->size; i++)
		c->slot[i] = (struct ckpt_comm_bytes){ &c->said[i], sizeof(mine) };
	rc = moved(c, c->ops->gather(c->self, &mine, sizeof(mine), c->slot, e), e);
	if (rc)
		return rc;
	if (c->rank == 0) {
		v = judge(c);
		v.len = mine.len;
		if (!v.err.code && room && make_room(c, room, &v.err))
			(void)err_wrap(&v.err, "rank 0");
	}
	rc = moved(c, c->ops->broadcast(c->self, &v, sizeof(v), e), e);
	if (rc)
		return rc;
	*ret = v;
	c->told = v.err;
	if (v.err.code)
		*e = v.err;
	return -v.err.code;
}

/* ---- collectives ---- */

int ckpt_comm_agree(struct ckpt_comm *c, int rc, struct ckpt_err *e)
{
	struct ckpt_comm_said v;

	return c->ops ? meet(c, say(c, AGREE, rc, 0, e), NULL, &v, e) : rc;
}

int ckpt_comm_leave(struct ckpt_comm *c, int rc, struct ckpt_err *e)
{
	struct ckpt_comm_said mine = say(c, LEAVE, rc, 0, e), v = { .call = N_CALLS };
	struct ckpt_err last = { 0 };

	if (!c->ops)
		return rc;
	do
		rc = meet(c, mine, NULL, &v, &last);
	while (v.call != LEAVE && !c->broken.code);
	if (rc)
		*e = last;
	return rc;
}

static int copy_of(const void *data, size_t len, struct ckpt_comm_bytes *ret, struct ckpt_err *e)
{
	void *p = malloc(len + !len);

	if (!p)
		return err_set(e, ENOMEM, "%zu bytes for this rank: out of memory", len);
	if (len && data)
		memcpy(p, data, len);
	ret->data = p;
	ret->len = len;
	return 0;
}

static int gather_alone(const void *mine, size_t len, struct ckpt_comm_all *ret, struct ckpt_err *e)
{
	struct ckpt_comm_all all = { .v = calloc(1, sizeof(*all.v)), .n = 1 };
	int rc;

	if (!all.v)
		return err_set(e, ENOMEM, "gather: out of memory");
	rc = copy_of(mine, len, &all.v[0], e);
	all.block = all.v[0].data;
	if (rc)
		ckpt_comm_all_release(&all);
	else
		*ret = all;
	return rc;
}

int ckpt_comm_gather(struct ckpt_comm *c, int rc, const void *mine, size_t len,
		     struct ckpt_comm_all *ret, struct ckpt_err *e)
{
	struct ckpt_comm_all all = { 0 };
	struct ckpt_comm_said v;

	if (!c->ops)
		return rc ? rc : gather_alone(mine, len, ret, e);
	rc = meet(c, say(c, GATHER, rc, len, e), c->rank ? NULL : &all, &v, e);
	if (!rc)
		rc = moved(c, c->ops->gather(c->self, mine, len, all.v, e), e);
	if (rc)
		ckpt_comm_all_release(&all);
	else
		*ret = all;
	return rc;
}

/* Do all ranks have room for what rank 0 sends? */
static int meet_with_room(struct ckpt_comm *c, enum call call, size_t len,
			  struct ckpt_comm_bytes *ret, struct ckpt_err *e)
{
	struct ckpt_comm_bytes room = { 0 };
	int rc = copy_of(NULL, len, &room, e);
	struct ckpt_comm_said v;

	rc = meet(c, say(c, call, rc, 0, e), NULL, &v, e);
	if (rc)
		free(room.data);
	else
		*ret = room;
	return rc;
}

int ckpt_comm_scatter(struct ckpt_comm *c, int rc, const struct ckpt_comm_bytes *parts,
		      struct ckpt_comm_bytes *ret, struct ckpt_err *e)
{
	struct ckpt_comm_bytes got = { 0 };
	struct ckpt_comm_said v;
	uint64_t len;

	if (!c->ops)
		return rc ? rc : copy_of(parts[0].data, parts[0].len, ret, e);
	rc = meet(c, say(c, SCATTER, rc, 0, e), NULL, &v, e);
	for (size_t i = 0; !rc && c->slot && i < c->size; i++) {
		c->said[i].len = parts[i].len;
		c->slot[i] = (struct ckpt_comm_bytes){ &c->said[i].len, sizeof(len) };
	}
	if (!rc)
		rc = moved(c, c->ops->scatter(c->self, c->slot, &len, sizeof(len), e), e);
	if (!rc)
		rc = meet_with_room(c, SCATTER, len, &got, e);
	if (!rc)
		rc = moved(c,
			   c->ops->scatter(c->self, c->rank ? NULL : parts, got.data, got.len, e),
			   e);
	if (rc)
		free(got.data);
	else
		*ret = got;
	return rc;
}

int ckpt_comm_broadcast(struct ckpt_comm *c, int rc, const void *data, size_t len,
			struct ckpt_comm_bytes *ret, struct ckpt_err *e)
{
	struct ckpt_comm_bytes got = { 0 };
	struct ckpt_comm_said v;

	if (!c->ops)
		return rc ? rc : copy_of(data, len, ret, e);
	rc = meet(c, say(c, BROADCAST, rc, len, e), NULL, &v, e);
	if (!rc)
		rc = meet_with_room(c, BROADCAST, v.len, &got, e);
	if (!rc && c->rank == 0 && len)
		memcpy(got.data, data, len);
	if (!rc)
		rc = moved(c, c->ops->broadcast(c->self, got.data, got.len, e), e);
	if (rc)
		free(got.data);
	else
		*ret = got;
	return rc;
}

/* Rank 0: makes a buffer for each rank, and returns their contents as parts to scatter. */
static int decide_parts(const struct ckpt_comm_all *all, comm_decide_fn *decide, void *arg,
			struct buf *bufs, struct ckpt_comm_bytes *parts, struct ckpt_err *e)
{
	int rc;

	if (!bufs || !parts)
		return err_set(e, ENOMEM, "parts for %zu ranks: out of memory", all->n);
	for (size_t i = 0; i < all->n; i++)
		bufs[i] = (struct buf)BUF_INIT(SIZE_MAX);
	rc = decide(arg, all, bufs, e);
	for (size_t i = 0; i < all->n; i++)
		parts[i] = (struct ckpt_comm_bytes){ bufs[i].data, bufs[i].len };
	return rc;
}

int comm_exchange(struct ckpt_comm *c, int rc, struct buf *mine, comm_decide_fn *decide, void *arg,
		  struct ckpt_comm_bytes *ret, struct ckpt_err *e)
{
	struct ckpt_comm_all all = { 0 };
	struct ckpt_comm_bytes *parts = NULL;
	struct buf *bufs = NULL;

	rc = ckpt_comm_gather(c, rc, mine->data, mine->len, &all, e);
	buf_release(mine);
	if (rc)
		return rc;
	if (c->rank == 0) {
		bufs = calloc(c->size, sizeof(*bufs));
		parts = calloc(c->size, sizeof(*parts));
		rc = decide_parts(&all, decide, arg, bufs, parts, e);
	}
	ckpt_comm_all_release(&all);
	rc = ckpt_comm_scatter(c, rc, parts, ret, e);
	for (size_t i = 0; bufs && i < c->size; i++)
		buf_release(&bufs[i]);
	free(bufs);
	free(parts);
	return rc;
}
