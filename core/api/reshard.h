/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reshard - writing an opened checkpoint again: for other ranks, in another layout, in another
 * format. It is read through the load planner and written through the save planner, piece by
 * piece, so that memory does not grow with the tensors.
 *
 *	struct reshard r = { .format = CKPT_DCP, .ranks = 8 };
 *	rc = ckpt_reshard(c, "run/step-100.8", &r, &e);
 *
 * What is written is what the tree shows: names and dtypes are those of tensors/ and objects/ with
 * the options the checkpoint was opened with. Tensors that cannot be opened are left out with a
 * warning (ckpt_opts.allow_missing lets them in), and so are objects where the format has none.
 *
 * Objects are values of the training program, and each format has a form of its own for them; see
 * store/object_form.h for what becomes what.
 *
 * Threads: one call; it starts and ends threads of its own.
 */
#ifndef API_RESHARD_H
#define API_RESHARD_H

#include "api/ckpt.h"
#include "api/ckpt_save.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct ckpt_comm;
struct ckpt_err;

#define RESHARD_MAX_RANKS 65536u

struct reshard {
	enum ckpt_format format;
	uint64_t
		ranks; /* who the checkpoint is written for; 0: as many as the layout has, else 1 */
	/* Layout file (view/layout.h); NULL: every tensor is cut along its first dimension, as
	 * torch.chunk does, or whole where the format holds whole tensors. */
	const char *layout;
	struct ckpt_save_opts save; /* format and the functions in it are not looked at */
	bool model;		    /* the model alone, under the names of hf/; no objects */
	unsigned jobs;		    /* ranks that write at the same time; 0: one per CPU */
	struct ckpt_comm *comm;	    /* ranks as processes, or NULL: threads of this one */
	void (*warn)(void *arg, const char *what); /* as in ckpt_opts; may be NULL */
	void *warn_arg;
	/* Bytes written of bytes to write, from any thread; may be NULL. */
	void (*progress)(void *arg, uint64_t done, uint64_t total);
	void *progress_arg;
	/* Not 0: give up, with ECANCELED, and leave what a failure leaves. A signal handler may set
	 * it. May be NULL. */
	const atomic_int *stop;
	/* Filled in. */
	uint64_t tensors, objects, bytes;
};

int ckpt_reshard(struct ckpt *c, const char *dest, struct reshard *r, struct ckpt_err *e);

#endif
