/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt_comm - ranks that work on one thing together: threads of a process, or processes (MPI), or
 * whatever a program brings (struct ckpt_comm_ops). Rank 0 is the coordinator.
 *
 *	static int work(void *arg, struct ckpt_comm *c, struct ckpt_err *e)
 *	{
 *		int rc = prepare(arg, &mine, e);
 *
 *		rc = ckpt_comm_gather(c, rc, mine.data, mine.len, &all, e);
 *		if (rc)
 *			return rc;
 *		if (c->rank == 0)
 *			rc = decide(&all, parts, e);
 *		rc = ckpt_comm_scatter(c, rc, parts, &part, e);
 *		return rc ? rc : ckpt_comm_agree(c, use(&part, e), e);
 *	}
 *
 *	rc = ckpt_comm_run_threads(8, work, arg, &e);
 *
 * All ranks call the same functions in the same order. Each function is told how the caller's last
 * step went (rc, and *e where it failed) and returns the same on all ranks: 0 where all came with
 * 0, else the failure of the lowest rank that had one, as "rank 2: <its sentence>". So a failed
 * step is not returned but handed to the next call; what a call returns may be returned at once,
 * as all ranks do, and words may be put in front of it. Nobody waits for a rank that has failed: a
 * rank that returns before its turn, or calls something else than the others, is a failure of all
 * of them. A lone rank has no prefix.
 *
 * Threads: one at a time for each struct ckpt_comm.
 */
#ifndef CKPTFS_CKPT_COMM_H
#define CKPTFS_CKPT_COMM_H

#include "ckpt_base.h"

#include <stddef.h>

CKPT_BEGIN

struct ckpt_comm_bytes {
	void *data;
	size_t len;
};

/*
 * What a program has to bring for ranks of another kind: three ways to move bytes. All ranks call
 * the same one, and each knows how many bytes it gets and has memory for them. An error means that
 * nothing more can be moved, ever. Ranks have one byte order.
 */
struct ckpt_comm_ops {
	/* `mine` of each rank goes to all[rank] of rank 0; all is NULL on others. */
	int (*gather)(void *self, const void *mine, size_t len, const struct ckpt_comm_bytes *all,
		      struct ckpt_err *e);
	/* parts[rank] of rank 0 goes to `mine` of each rank; parts is NULL on others. */
	int (*scatter)(void *self, const struct ckpt_comm_bytes *parts, void *mine, size_t len,
		       struct ckpt_err *e);
	/* data of rank 0 goes to data of each rank. */
	int (*broadcast)(void *self, void *data, size_t len, struct ckpt_err *e);
};

struct ckpt_comm_said;

struct ckpt_comm {
	const struct ckpt_comm_ops *ops; /* NULL: a lone rank */
	void *self;
	size_t rank, size;
	struct ckpt_comm_said
		*said; /* the library's, as what follows: each rank's word, on rank 0 */
	struct ckpt_comm_bytes *slot; /* where they are, on rank 0 */
	struct ckpt_err told;	      /* the last failure of all ranks */
	struct ckpt_err broken;	      /* what the ops said */
};

/* A lone rank: needs no init and no release. */
CKPT_API struct ckpt_comm ckpt_comm_self(void);

/* ops and self must stay. Fails, with ENOMEM or for a rank that is not below size (EINVAL), on this
 * rank alone: the others are not told. */
CKPT_API int ckpt_comm_init(struct ckpt_comm *c, const struct ckpt_comm_ops *ops, void *self,
			    size_t rank, size_t size, struct ckpt_err *e);
CKPT_API void ckpt_comm_release(struct ckpt_comm *c); /* does not free self */

/* Did all ranks' steps go well? Nobody returns before all have called. */
CKPT_API int ckpt_comm_agree(struct ckpt_comm *c, int rc, struct ckpt_err *e);
static inline int ckpt_comm_barrier(struct ckpt_comm *c, struct ckpt_err *e)
{
	return ckpt_comm_agree(c, 0, e);
}

/* Rank 0: v[rank] is what each rank has given. Others: empty. */
struct ckpt_comm_all {
	struct ckpt_comm_bytes *v;
	size_t n;
	void *block;
};
CKPT_API void ckpt_comm_all_release(struct ckpt_comm_all *all);
CKPT_API int ckpt_comm_gather(struct ckpt_comm *c, int rc, const void *mine, size_t len,
			      struct ckpt_comm_all *ret, struct ckpt_err *e);
/* parts: as many as there are ranks, of rank 0; ignored elsewhere. free(ret->data). */
CKPT_API int ckpt_comm_scatter(struct ckpt_comm *c, int rc, const struct ckpt_comm_bytes *parts,
			       struct ckpt_comm_bytes *ret, struct ckpt_err *e);
/* data: of rank 0; ignored elsewhere. Every rank, also rank 0, gets a copy: free(ret->data). */
CKPT_API int ckpt_comm_broadcast(struct ckpt_comm *c, int rc, const void *data, size_t len,
				 struct ckpt_comm_bytes *ret, struct ckpt_err *e);

/*
 * The last call on each rank (ckpt_comm_run_threads and ckpt_comm_mpi_end make it). Like
 * ckpt_comm_agree, but it returns when all ranks have come here; who is in another collective
 * meanwhile fails there.
 */
CKPT_API int ckpt_comm_leave(struct ckpt_comm *c, int rc, struct ckpt_err *e);

/* ---- threads of this process ---- */

typedef int ckpt_comm_rank_fn(void *arg, struct ckpt_comm *c, struct ckpt_err *e);

/*
 * Run fn on n ranks, which are threads with stacks of 512 KiB; rank 0 is the calling thread.
 * Returns when all have returned: 0, or the failure of the lowest rank that had one. Where not all
 * threads can be had, fn is not called (EAGAIN).
 */
CKPT_API int ckpt_comm_run_threads(size_t n, ckpt_comm_rank_fn *fn, void *arg, struct ckpt_err *e);

/* ---- processes that mpirun has started ---- */

/*
 * 0: *ret is this process's rank. 1: it was not started by mpirun (or by another launcher that
 * says OMPI_COMM_WORLD_SIZE, PMI_SIZE or PMIX_RANK), and *ret is as before. Fails where it was but
 * the library was built without MPI (ENOTSUP: `make MPI=1` builds one with it, what `make deb`
 * packages has none), and where MPI fails. Once in a process; where the program has initialised MPI
 * itself, that is used. All calls are made by the thread that starts; others may be there.
 */
CKPT_API int ckpt_comm_mpi_start(struct ckpt_comm *ret, struct ckpt_err *e);
/* ckpt_comm_leave, and the end of MPI, if ckpt_comm_mpi_start was its beginning. *c is released. */
CKPT_API int ckpt_comm_mpi_end(struct ckpt_comm *c, int rc, struct ckpt_err *e);

CKPT_END

#endif
