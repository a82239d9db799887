/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks as processes, by MPI: only with `make MPI=1`. MPI counts bytes with an int, so data is sent
 * in pieces, point to point; rank 0 handles the other ranks one after another.
 */
#include "base/err.h"
#include <ckptfs/ckpt_comm.h>

#include <stdbool.h>
#include <stdlib.h>

bool ckpt_comm_mpi_started(void)
{
	return getenv("OMPI_COMM_WORLD_SIZE") || getenv("PMI_SIZE") || getenv("PMIX_RANK");
}

#ifndef CKPTFS_MPI

int ckpt_comm_mpi_start(struct ckpt_comm *ret, struct ckpt_err *e)
{
	(void)ret;
	if (!ckpt_comm_mpi_started())
		return 1;
	return err_set(e, ERR_UNSUPPORTED,
		       "started by mpirun, but built without MPI: build it with 'make MPI=1'");
}

int ckpt_comm_mpi_end(struct ckpt_comm *c, int rc, struct ckpt_err *e)
{
	(void)c;
	(void)e;
	return rc;
}

#else

#include "base/checked.h"

#include <mpi.h>
#include <string.h>

#define PIECE ((size_t)1 << 30) /* bytes: the next power of two does not fit an int */

enum { TAG = 1 };

struct world {
	MPI_Comm comm;
	int rank, size;
	bool is_ours; /* we initialised MPI */
};

static int mpi_failed(int code, const char *what, struct ckpt_err *e)
{
	char why[MPI_MAX_ERROR_STRING + 1] = "";
	int n = 0;

	if (MPI_Error_string(code, why, &n) != MPI_SUCCESS || !n)
		return err_set(e, EIO, "MPI: %s: error %d", what, code);
	return err_set(e, EIO, "MPI: %s: %s", what, why);
}

static int send_to(const struct world *w, int rank, const void *data, size_t len,
		   struct ckpt_err *e)
{
	const char *p = data;

	for (size_t n; len; p += n, len -= n) {
		int rc;

		n = min_u64(len, PIECE);
		rc = MPI_Send(p, (int)n, MPI_BYTE, rank, TAG, w->comm);
		if (rc != MPI_SUCCESS)
			return mpi_failed(rc, "send", e);
	}
	return 0;
}

static int receive_from(const struct world *w, int rank, void *data, size_t len, struct ckpt_err *e)
{
	char *p = data;

	for (size_t n; len; p += n, len -= n) {
		int rc;

		n = min_u64(len, PIECE);
		rc = MPI_Recv(p, (int)n, MPI_BYTE, rank, TAG, w->comm, MPI_STATUS_IGNORE);
		if (rc != MPI_SUCCESS)
			return mpi_failed(rc, "receive", e);
	}
	return 0;
}

static int gather(void *self, const void *mine, size_t len, const struct ckpt_comm_bytes *all,
		  struct ckpt_err *e)
{
	const struct world *w = self;
	int rc = 0;

	if (!all)
		return send_to(w, 0, mine, len, e);
	if (len)
		memcpy(all[0].data, mine, len);
	for (int i = 1; i < w->size && !rc; i++)
		rc = receive_from(w, i, all[i].data, all[i].len, e);
	return rc;
}

static int scatter(void *self, const struct ckpt_comm_bytes *parts, void *mine, size_t len,
		   struct ckpt_err *e)
{
	const struct world *w = self;
	int rc = 0;

	if (!parts)
		return receive_from(w, 0, mine, len, e);
	if (len)
		memcpy(mine, parts[0].data, len);
	for (int i = 1; i < w->size && !rc; i++)
		rc = send_to(w, i, parts[i].data, parts[i].len, e);
	return rc;
}

static int broadcast(void *self, void *data, size_t len, struct ckpt_err *e)
{
	const struct world *w = self;
	char *p = data;

	for (size_t n; len; p += n, len -= n) {
		int rc;

		n = min_u64(len, PIECE);
		rc = MPI_Bcast(p, (int)n, MPI_BYTE, 0, w->comm);
		if (rc != MPI_SUCCESS)
			return mpi_failed(rc, "broadcast", e);
	}
	return 0;
}

/* A communicator of our own, so that the program's other messages do not mix with ours. */
static int open_world(struct world *w, struct ckpt_err *e)
{
	int is_there, level, rc = MPI_Initialized(&is_there);

	if (rc == MPI_SUCCESS && !is_there) {
		rc = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level);
		w->is_ours = rc == MPI_SUCCESS;
	}
	if (rc == MPI_SUCCESS)
		rc = MPI_Query_thread(&level);
	if (rc != MPI_SUCCESS)
		return mpi_failed(rc, "start", e);
	if (level < MPI_THREAD_FUNNELED)
		return err_set(e, ERR_UNSUPPORTED, "MPI: start: it does not support threads");
	rc = MPI_Comm_dup(MPI_COMM_WORLD, &w->comm);
	if (rc == MPI_SUCCESS)
		rc = MPI_Comm_set_errhandler(w->comm, MPI_ERRORS_RETURN);
	if (rc == MPI_SUCCESS)
		rc = MPI_Comm_rank(w->comm, &w->rank);
	if (rc == MPI_SUCCESS)
		rc = MPI_Comm_size(w->comm, &w->size);
	return rc == MPI_SUCCESS ? 0 : mpi_failed(rc, "start", e);
}

/* On failure MPI is left initialised: when a process exits like that, mpirun ends the others. */
int ckpt_comm_mpi_start(struct ckpt_comm *ret, struct ckpt_err *e)
{
	static const struct ckpt_comm_ops ops = { gather, scatter, broadcast };
	struct world *w;
	int is_there = 0, rc;

	(void)MPI_Initialized(&is_there);
	if (!is_there && !ckpt_comm_mpi_started())
		return 1;
	w = calloc(1, sizeof(*w));
	if (!w)
		return err_set(e, ENOMEM, "MPI: start: out of memory");
	rc = open_world(w, e);
	if (!rc)
		rc = ckpt_comm_init(ret, w->size > 1 ? &ops : NULL, w, (size_t)w->rank,
				    (size_t)w->size, e);
	if (rc)
		free(w);
	return rc;
}

int ckpt_comm_mpi_end(struct ckpt_comm *c, int rc, struct ckpt_err *e)
{
	struct world *w = c->self;
	bool broken;

	rc = ckpt_comm_leave(c, rc, e);
	broken = c->broken.code != 0;
	ckpt_comm_release(c);
	if (!broken) { /* otherwise it would wait for others, which mpirun ends */
		(void)MPI_Comm_free(&w->comm);
		if (w->is_ours)
			(void)MPI_Finalize();
	}
	free(w);
	return rc;
}

#endif
