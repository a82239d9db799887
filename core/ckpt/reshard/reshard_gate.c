/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A storage writer that limits how many ranks write at the same time: each uses buffers, and a
 * thousand ranks would use a thousand times as many. It closes the source's files when all is
 * written.
 */
#include "base/err.h"
#include "ckpt/ckpt_internal.h"
#include "ckpt/reshard/reshard_internal.h"

#include <semaphore.h>
#include <stdlib.h>

struct gate {
	struct ckpt *source;
	sem_t *open;
	struct ckpt_storage_writer inner;
};

static int validate(void *self, const char *id, struct ckpt_err *e)
{
	return ckpt_storage_writer_validate_checkpoint_id(&((struct gate *)self)->inner, id, e);
}

static int reset(void *self, const char *id, struct ckpt_err *e)
{
	return ckpt_storage_writer_reset(&((struct gate *)self)->inner, id, e);
}

static int set_up(void *self, const struct ckpt_storage_ranks *ranks, struct ckpt_err *e)
{
	return ckpt_storage_writer_set_up(&((struct gate *)self)->inner, ranks, e);
}

static int prepare_local(void *self, const struct ckpt_save_plan *plan, struct ckpt_save_plan *ret,
			 struct ckpt_err *e)
{
	return ckpt_storage_writer_prepare_local_plan(&((struct gate *)self)->inner, plan, ret, e);
}

static int prepare_global(void *self, struct ckpt_save_plan *parts, size_t n, struct ckpt_err *e)
{
	return ckpt_storage_writer_prepare_global_plan(&((struct gate *)self)->inner, parts, n, e);
}

static int write_data(void *self, const struct ckpt_save_plan *plan,
		      struct ckpt_save_planner *planner, struct ckpt_write_results *ret,
		      struct ckpt_err *e)
{
	struct gate *g = self;
	int rc;

	while (sem_wait(g->open) && errno == EINTR)
		;
	rc = ckpt_storage_writer_write_data(&g->inner, plan, planner, ret, e);
	(void)sem_post(g->open);
	return rc;
}

static int finish(void *self, const struct ckpt_metadata *md, const struct ckpt_write_results *all,
		  size_t n, struct ckpt_err *e)
{
	struct gate *g = self;

	/* Everything has been read, except config.json and the like. Close the source's files: it
	 * may be what is replaced, and NFS cannot remove a directory with an open file in it. */
	engine_trim(g->source->engine, 0);
	return ckpt_storage_writer_finish(&g->inner, md, all, n, e);
}

static void free_gate(void *self)
{
	struct gate *g = self;

	ckpt_storage_writer_free(&g->inner);
	free(g);
}

int reshard_gate(struct ckpt *source, sem_t *open, struct ckpt_storage_writer *inner,
		 struct ckpt_storage_writer *ret, struct ckpt_err *e)
{
	static const struct ckpt_storage_writer_ops ops = { validate,	    reset,
							    set_up,	    prepare_local,
							    prepare_global, write_data,
							    finish,	    free_gate };
	struct gate *g = calloc(1, sizeof(*g));

	if (!g) {
		ckpt_storage_writer_free(inner);
		return err_set(e, ENOMEM, "storage writer: out of memory");
	}
	*g = (struct gate){ source, open, *inner };
	*inner = (struct ckpt_storage_writer){ 0 };
	*ret = (struct ckpt_storage_writer){ .ops = &ops, .self = g };
	return 0;
}
