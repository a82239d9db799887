/* SPDX-License-Identifier: Apache-2.0 */
/*
 * planner - what is to be written or read, decided by all ranks together.
 *
 * A rank says what it holds (a state dict), its planner makes a local plan of it; one rank, the
 * coordinator, makes a global plan of all local ones, with the checkpoint's metadata when saving;
 * each rank finishes with its part of that and moves data item by item:
 *
 *	save_planner_new(CKPT_PLANNER_DCP, &p, &e);
 *	save_planner_configure(&p, &dict, &options, &e);
 *	save_planner_local_plan(&p, &mine, &e);              // gather `mine` from all ranks
 *	save_planner_global_plan(&p, all, n, parts, &md, &e);    // the coordinator; scatter `parts`
 *	save_planner_finish(&p, &part, &plan, &e);
 *	for each item of plan: save_planner_get_data(&p, &item, &source, &e);
 *	save_planner_free(&p);
 *
 * Loading is the same with a load_planner, whose items are acquired, filled and applied. A planner
 * may be configured again for the next checkpoint. Calls in another order fail with EPERM.
 *
 * There is a planner for each system, and a program may bring its own: fill in the functions.
 *
 * Ownership: what a planner returns belongs to it, stays until it is configured again or freed,
 * and borrows names, shapes and data of the state dict, and of the plans it was given.
 * Threads: one at a time for each planner, but get_data, acquire_tensor and apply_tensor may be
 * called from any number of threads once the plan is finished, each for items of its own.
 */
#ifndef SAVE_PLANNER_H
#define SAVE_PLANNER_H

#include "model/box.h"
#include "save/checkpointable.h"
#include "save/metadata.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt_err;

/* ---- state dicts ---- */

/*
 * Bytes that are there (data), or that read brings piece by piece, so that they need not fit. Who
 * got it from get_data calls source_close when it is done with it.
 */
struct ckpt_data {
	const void *data; /* NULL: ask read, from any thread; a tensor's in whole elements */
	uint64_t len;	  /* bytes */
	int (*read)(void *arg, uint64_t off, void *to, size_t n, struct ckpt_err *e);
	void (*close)(void *arg); /* NULL: nothing to do */
	void *arg;
};

static inline void source_close(struct ckpt_data *s)
{
	if (s->close)
		s->close(s->arg);
	*s = (struct ckpt_data){ 0 };
}

struct ckpt_state_entry {
	const char *fqn;
	uint32_t fqn_len;
	uint32_t n_steps;
	const struct ckpt_path_step *path; /* where it was before the dict was flattened, or NULL */
	const struct ckpt_local_tensor *tensor; /* NULL: bytes */
	struct ckpt_data bytes;			/* if it is bytes, and is saved */
};

struct ckpt_state_dict {
	const struct ckpt_state_entry *entries; /* no two of one name */
	size_t count;
};

/* The systems whose rules the planners of this library follow. */
enum ckpt_planner_system {
	CKPT_PLANNER_DCP,      /* torch.distributed.checkpoint 2.14 */
	CKPT_PLANNER_MEGATRON, /* Megatron core 0.20: copies are left out by who makes the dict */
	CKPT_PLANNER_HYPERPARALLEL,   /* of March 2026 */
	CKPT_PLANNER_HYPERPARALLEL_B, /* later ones */
};

enum ckpt_planner_step {
	CKPT_STEP_NEW,
	CKPT_STEP_CONFIGURED,
	CKPT_STEP_PLANNED,
	CKPT_STEP_FINISHED
};

/* ---- saving ---- */

struct ckpt_save_planning {
	size_t rank;
	bool is_coordinator;
	bool keep_redundancy; /* write every copy: HyperParallel with remove_redundancy=False */
	bool no_paths;	      /* no planner_data: with flatten_state_dict=False torch has none */
	bool save_to_minimum_rank; /* of ranks with the same, the lowest, not the least loaded */
	/* Plans that equal those of the save before are not sent again: they come as empty ones,
	 * marked `unchanged`, and each side uses what it has kept. The ranks' number
	 * must stay, and all have the same options. */
	bool cache_plans;
};

struct ckpt_save_planner_ops {
	int (*configure)(void *self, const struct ckpt_state_dict *dict,
			 const struct ckpt_save_planning *opt, struct ckpt_err *e);
	int (*local_plan)(void *self, struct ckpt_save_plan *ret, struct ckpt_err *e);
	int (*global_plan)(void *self, const struct ckpt_save_plan *all, size_t n,
			   struct ckpt_save_plan *ret_parts, struct ckpt_metadata *ret_md,
			   struct ckpt_err *e);
	int (*finish)(void *self, const struct ckpt_save_plan *part, struct ckpt_save_plan *ret,
		      struct ckpt_err *e);
	int (*get_data)(void *self, const struct ckpt_write_item *item, struct ckpt_data *ret,
			struct ckpt_err *e);
	void (*free)(void *self);
};

struct ckpt_save_planner {
	const struct ckpt_save_planner_ops *ops;
	void *self;
	uint8_t step; /* enum ckpt_planner_step; CKPT_STEP_NEW at birth */
};

int save_planner_new(enum ckpt_planner_system system, struct ckpt_save_planner *ret,
		     struct ckpt_err *e);
void save_planner_free(struct ckpt_save_planner *p); /* all zero is fine */

/* dict, and all that it points to, must stay until the planner is configured again or freed. */
int save_planner_configure(struct ckpt_save_planner *p, const struct ckpt_state_dict *dict,
			   const struct ckpt_save_planning *opt, struct ckpt_err *e);
int save_planner_local_plan(struct ckpt_save_planner *p, struct ckpt_save_plan *ret,
			    struct ckpt_err *e);
/* all[r] is rank r's plan, ret_parts has room for as many. */
int save_planner_global_plan(struct ckpt_save_planner *p, const struct ckpt_save_plan *all,
			     size_t n, struct ckpt_save_plan *ret_parts,
			     struct ckpt_metadata *ret_md, struct ckpt_err *e);
/* part: this rank's of the global plan; it must stay as long as *ret is used. */
int save_planner_finish(struct ckpt_save_planner *p, const struct ckpt_save_plan *part,
			struct ckpt_save_plan *ret, struct ckpt_err *e);
/* An item's bytes: a chunk's elements in row-major order, or the entry's bytes. */
int save_planner_get_data(struct ckpt_save_planner *p, const struct ckpt_write_item *item,
			  struct ckpt_data *ret, struct ckpt_err *e);

/* ---- loading ---- */

/* Bytes have been read. data is lent for the call. */
typedef int ckpt_take_bytes_fn(void *arg, const struct ckpt_state_entry *entry, const void *data,
			       size_t len, struct ckpt_err *e);

struct ckpt_load_planning {
	size_t rank;
	bool is_coordinator;
	bool allow_partial_load;	/* entries that the checkpoint lacks are left as they are */
	ckpt_take_bytes_fn *take_bytes; /* NULL: the dict has no bytes */
	void *arg;
};

/* Memory for a box: element x is at data + sum(x[d] * stride[d]). */
struct ckpt_tensor_view {
	void *data;
	uint8_t dtype, n_dims;
	const uint64_t *len;
	uint64_t stride[CKPT_MAX_DIMS]; /* bytes */
};

struct ckpt_load_planner_ops {
	int (*configure)(void *self, const struct ckpt_state_dict *dict,
			 const struct ckpt_metadata *md, const struct ckpt_load_planning *opt,
			 struct ckpt_err *e);
	int (*local_plan)(void *self, struct ckpt_load_plan *ret, struct ckpt_err *e);
	int (*global_plan)(void *self, const struct ckpt_load_plan *all, size_t n,
			   struct ckpt_load_plan *ret_parts, struct ckpt_err *e);
	int (*finish)(void *self, const struct ckpt_load_plan *part, struct ckpt_load_plan *ret,
		      struct ckpt_err *e);
	int (*acquire_tensor)(void *self, const struct ckpt_read_item *item,
			      struct ckpt_tensor_view *ret, struct ckpt_err *e);
	int (*apply_tensor)(void *self, const struct ckpt_read_item *item,
			    const struct ckpt_tensor_view *v, struct ckpt_err *e);
	int (*apply_bytes)(void *self, const struct ckpt_read_item *item, const void *data,
			   size_t len, struct ckpt_err *e);
	void (*free)(void *self);
};

struct ckpt_load_planner {
	const struct ckpt_load_planner_ops *ops;
	void *self;
	uint8_t step; /* enum ckpt_planner_step */
};

int load_planner_new(enum ckpt_planner_system system, struct ckpt_load_planner *ret,
		     struct ckpt_err *e);
void load_planner_free(struct ckpt_load_planner *p); /* all zero is fine */

/* dict and md must stay until the planner is configured again or freed. */
int load_planner_configure(struct ckpt_load_planner *p, const struct ckpt_state_dict *dict,
			   const struct ckpt_metadata *md, const struct ckpt_load_planning *opt,
			   struct ckpt_err *e);
int load_planner_local_plan(struct ckpt_load_planner *p, struct ckpt_load_plan *ret,
			    struct ckpt_err *e);
int load_planner_global_plan(struct ckpt_load_planner *p, const struct ckpt_load_plan *all,
			     size_t n, struct ckpt_load_plan *ret_parts, struct ckpt_err *e);
/* Tensors that allow_shape_mismatch, and differ, are zeroed here. */
int load_planner_finish(struct ckpt_load_planner *p, const struct ckpt_load_plan *part,
			struct ckpt_load_plan *ret, struct ckpt_err *e);
/* Where an item's elements go: a part of the state dict's tensor. */
int load_planner_acquire_tensor(struct ckpt_load_planner *p, const struct ckpt_read_item *item,
				struct ckpt_tensor_view *ret, struct ckpt_err *e);
/*
 * The elements are there: v is what acquire_tensor gave, filled, or a view of the reader's own
 * memory with the same lengths and dtype, which is copied.
 */
int load_planner_apply_tensor(struct ckpt_load_planner *p, const struct ckpt_read_item *item,
			      const struct ckpt_tensor_view *v, struct ckpt_err *e);
int load_planner_apply_bytes(struct ckpt_load_planner *p, const struct ckpt_read_item *item,
			     const void *data, size_t len, struct ckpt_err *e);

#endif
