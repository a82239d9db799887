/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt_comm - ranks that work together: threads of a process, processes (MPI), or whatever
 * transport a program supplies (struct ckpt_comm_ops). Rank 0 is the coordinator.
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
 * All ranks call the same functions in the same order. Each function takes the result of the
 * caller's previous step (rc, and *e if it failed) and returns the same on all ranks: 0 if every
 * rank passed 0, else the failure of the lowest failing rank, as "rank 2: <its sentence>". So do
 * not return after a failed step: pass its result to the next call. The result of such a call may
 * be returned at once, because all ranks return it; context may be put in front of the message. No
 * rank blocks on one that has failed: a rank that returns early, or calls a different function from
 * the others, makes the call fail on all ranks. Messages of a lone rank have no prefix.
 *
 * Threads: at most one at a time may use a struct ckpt_comm.
 */
#ifndef CKPTFS_CKPT_COMM_H
#define CKPTFS_CKPT_COMM_H

#include "ckpt_base.h"

#include <stdbool.h>
#include <stddef.h>

CKPT_BEGIN

struct ckpt_comm_bytes {
	void *data;
	size_t len;
};

/*
 * The transport a program supplies for other kinds of ranks: three ways to move bytes. All ranks
 * call the same function; each knows how many bytes it receives and has allocated memory for them.
 * After an error nothing more is transferred. All ranks must have the same byte order.
 */
struct ckpt_comm_ops {
	/* `mine` of each rank goes to all[rank] on rank 0; `all` is NULL on other ranks. */
	int (*gather)(void *self, const void *mine, size_t len, const struct ckpt_comm_bytes *all,
		      struct ckpt_err *e);
	/* parts[rank] of rank 0 goes to `mine` of each rank; parts is NULL on other ranks. */
	int (*scatter)(void *self, const struct ckpt_comm_bytes *parts, void *mine, size_t len,
		       struct ckpt_err *e);
	/* `data` of rank 0 goes to `data` of each rank. */
	int (*broadcast)(void *self, void *data, size_t len, struct ckpt_err *e);
};

struct ckpt_comm_said;

struct ckpt_comm {
	const struct ckpt_comm_ops *ops; /* NULL: a lone rank */
	void *self;
	size_t rank, size;
	struct ckpt_comm_said
		*said; /* private, as are the members below: each rank's report, on rank 0 */
	struct ckpt_comm_bytes *slot; /* private: buffers for those reports, on rank 0 */
	struct ckpt_err told;	      /* the last failure shared by all ranks */
	struct ckpt_err broken;	      /* the error of the transport */
};

/* A lone rank: needs no init and no release. */
CKPT_API struct ckpt_comm ckpt_comm_self(void);

/* ops and self must outlive *c. Fails with ENOMEM, or with EINVAL if rank is not below size; this
 * concerns this rank only, and the others are not informed. */
CKPT_API int ckpt_comm_init(struct ckpt_comm *c, const struct ckpt_comm_ops *ops, void *self,
			    size_t rank, size_t size, struct ckpt_err *e);
CKPT_API void ckpt_comm_release(struct ckpt_comm *c); /* does not free self */

/* Did every rank's step succeed? Returns on no rank before all have called it. */
CKPT_API int ckpt_comm_agree(struct ckpt_comm *c, int rc, struct ckpt_err *e);
static inline int ckpt_comm_barrier(struct ckpt_comm *c, struct ckpt_err *e)
{
	return ckpt_comm_agree(c, 0, e);
}

/* On rank 0, v[rank] is what that rank sent. On others: empty. */
struct ckpt_comm_all {
	struct ckpt_comm_bytes *v;
	size_t n;
	void *block;
};
CKPT_API void ckpt_comm_all_release(struct ckpt_comm_all *all);
CKPT_API int ckpt_comm_gather(struct ckpt_comm *c, int rc, const void *mine, size_t len,
			      struct ckpt_comm_all *ret, struct ckpt_err *e);
/* parts: one per rank, on rank 0; ignored elsewhere. The caller frees ret->data with free(). */
CKPT_API int ckpt_comm_scatter(struct ckpt_comm *c, int rc, const struct ckpt_comm_bytes *parts,
			       struct ckpt_comm_bytes *ret, struct ckpt_err *e);
/* data: on rank 0; ignored elsewhere. Every rank, including rank 0, gets a copy, which the caller
 * frees: free(ret->data). */
CKPT_API int ckpt_comm_broadcast(struct ckpt_comm *c, int rc, const void *data, size_t len,
				 struct ckpt_comm_bytes *ret, struct ckpt_err *e);

/*
 * The last call on each rank (ckpt_comm_run_threads and ckpt_comm_mpi_end make it). Like
 * ckpt_comm_agree, except that it waits until all ranks have called it; a rank that is in another
 * collective meanwhile gets an error there.
 */
CKPT_API int ckpt_comm_leave(struct ckpt_comm *c, int rc, struct ckpt_err *e);

/* ---- threads of this process ---- */

typedef int ckpt_comm_rank_fn(void *arg, struct ckpt_comm *c, struct ckpt_err *e);

/*
 * Runs fn on n ranks, each a thread with a stack of 512 KiB; rank 0 is the calling thread. Returns
 * when all have returned: 0, or the failure of the lowest failing rank. If not all threads can be
 * created, fn is not called (EAGAIN).
 */
CKPT_API int ckpt_comm_run_threads(size_t n, ckpt_comm_rank_fn *fn, void *arg, struct ckpt_err *e);

/* ---- processes started by mpirun ---- */

/*
 * 0: *ret is this process's rank. 1: the process was not started by mpirun (or another launcher
 * that sets OMPI_COMM_WORLD_SIZE, PMI_SIZE or PMIX_RANK), and *ret is unchanged. Fails if MPI
 * fails, or if the process was started that way but the library was built without MPI (ENOTSUP;
 * `make MPI=1` builds it with MPI, the packages made by `make deb` lack it). Call it once per
 * process; if the program has initialised MPI itself, that is used. Only the calling thread uses
 * MPI; the program may have others.
 */
/* Was this process started that way? Then ckpt_comm_mpi_start does not return 1. */
CKPT_API bool ckpt_comm_mpi_started(void);
CKPT_API int ckpt_comm_mpi_start(struct ckpt_comm *ret, struct ckpt_err *e);
/* ckpt_comm_leave, then MPI_Finalize if ckpt_comm_mpi_start initialised MPI. *c is released. */
CKPT_API int ckpt_comm_mpi_end(struct ckpt_comm *c, int rc, struct ckpt_err *e);

CKPT_END

#endif
