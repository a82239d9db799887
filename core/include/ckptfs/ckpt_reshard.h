/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt_reshard - writing an opened checkpoint again: for other ranks, in another layout, in another
 * format. It is read through the load planner and written through the save planner, piece by
 * piece, so that memory does not grow with the tensors.
 *
 *	struct ckpt_reshard r = { .format = CKPT_DCP, .ranks = 8 };
 *	rc = ckpt_reshard(c, "run/step-100.8", &r, &e);
 *
 * What is written is what the tree shows: names and dtypes are those of tensors/ and objects/ with
 * the options the checkpoint was opened with. Tensors that cannot be opened are left out with a
 * warning (the option allow_missing lets them in), and so are objects where the format has none.
 *
 * Objects are values of the training program, and each format has a form of its own for them; see
 * ckptfs(1) for what becomes what.
 *
 * Threads: one call; it starts and ends threads of its own.
 */
#ifndef CKPTFS_CKPT_RESHARD_H
#define CKPTFS_CKPT_RESHARD_H

#include "ckpt_save.h"

CKPT_BEGIN

#define CKPT_RESHARD_MAX_RANKS 65536u

struct ckpt_reshard {
	enum ckpt_format format;
	uint64_t
		ranks; /* who the checkpoint is written for; 0: as many as the layout has, else 1 */
	/* Layout file, see ckptfs(1); NULL: every tensor is cut along its first dimension, as
	 * torch.chunk does, or whole where the format holds whole tensors. */
	const char *layout;
	/* Its format and the functions in it are not looked at; NULL: none. */
	const struct ckpt_save_opts *save;
	bool model;		/* the model alone, under the names of hf/; no objects */
	unsigned jobs;		/* ranks that write at the same time; 0: one per CPU */
	struct ckpt_comm *comm; /* ranks as processes, or NULL: threads of this one */
	void (*warn)(void *arg, const char *what); /* may be NULL */
	void *warn_arg;
	/* Bytes written of bytes to write, from any thread; may be NULL. */
	void (*progress)(void *arg, uint64_t done, uint64_t total);
	void *progress_arg;
	/* Asked now and then, from any thread: true gives up, with ECANCELED, and leaves what a failure
	 * leaves. May be NULL. */
	bool (*stop)(void *arg);
	void *stop_arg;
	/* Filled in. */
	uint64_t tensors, objects, bytes;
};

CKPT_API int ckpt_reshard_sized(struct ckpt *c, const char *dest, struct ckpt_reshard *r,
				size_t size, size_t save_size, struct ckpt_err *e);
static inline int ckpt_reshard(struct ckpt *c, const char *dest, struct ckpt_reshard *r,
			       struct ckpt_err *e)
{
	return ckpt_reshard_sized(c, dest, r, sizeof(*r), sizeof(*r->save), e);
}

CKPT_END

#endif
