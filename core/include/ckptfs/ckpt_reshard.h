/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt_reshard - rewrites an opened checkpoint for another number of ranks, in another layout or in
 * another format. Data passes from the load planner to the save planner piece by piece, so memory
 * does not grow with the tensors.
 *
 *	struct ckpt_reshard r = { .format = CKPT_DCP, .ranks = 8 };
 *	rc = ckpt_reshard(c, "run/step-100.8", &r, &e);
 *
 * It writes what the tree shows: names and dtypes are those of tensors/ and objects/ under the
 * options the checkpoint was opened with. What cannot be read, if the option allow_missing or the
 * format allows that, is left out with a warning, and so are objects if the format has none.
 *
 * Objects are values of the training program, and each format stores them in its own form;
 * ckptfs-reshard(1) says how each is converted.
 *
 * Threads: one call at a time for each checkpoint; it starts and ends threads of its own.
 */
#ifndef CKPTFS_CKPT_RESHARD_H
#define CKPTFS_CKPT_RESHARD_H

#include "ckpt_save.h"

CKPT_BEGIN

#define CKPT_RESHARD_MAX_RANKS 65536u

struct ckpt_reshard {
	enum ckpt_format format;
	/* Number of ranks to write for. 0: that of the layout, if there is one; else that of the
	 * source, if its files are named after ranks and the format does not store whole tensors;
	 * else 1. */
	uint64_t ranks;
	/* Layout file, see ckptfs-layouts(5); NULL: every tensor is split along its first
	 * dimension, as torch.chunk does, or kept whole if the format stores whole tensors. */
	const char *layout;
	/* Options of the save, of which format and functions are ignored; NULL: defaults. */
	const struct ckpt_save_opts *save;
	/*
	 * Only the model, under its names in hf/; no objects. As safetensors, it comes with the
	 * other files of hf/: config.json, the tokenizer, ...
	 */
	bool model;
	unsigned jobs;		/* ranks that write concurrently; 0: one per CPU */
	struct ckpt_comm *comm; /* ranks as processes, or NULL: threads of this one */
	void (*warn)(void *arg, const char *what); /* may be NULL */
	void *warn_arg;
	/* Bytes written and bytes to write, from any thread; may be NULL. */
	void (*progress)(void *arg, uint64_t done, uint64_t total);
	void *progress_arg;
	/*
	 * Polled, from any thread: return true to give up with ECANCELED, which leaves the same
	 * state as any other failure. May be NULL.
	 */
	bool (*stop)(void *arg);
	void *stop_arg;
	/* Results. */
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
