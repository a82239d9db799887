/* SPDX-License-Identifier: Apache-2.0 */
/*
 * planner - what is to be written or read, decided by all ranks together.
 *
 * A rank says what it holds (a state dict), its planner makes a local plan of it; one rank, the
 * coordinator, makes a global plan of all local ones, with the checkpoint's metadata when saving;
 * each rank finishes with its part of that and moves data item by item:
 *
 *	save_planner_new(PLANNER_DCP, &p, &e);
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

struct err;

/* ---- state dicts ---- */

/*
 * Bytes that are there (data), or that read brings piece by piece, so that they need not fit. Who
 * got it from get_data calls source_close when it is done with it.
 */
struct source {
	const void *data; /* NULL: ask read, from any thread; a tensor's in whole elements */
	uint64_t len;	  /* bytes */
	int (*read)(void *arg, uint64_t off, void *to, size_t n, struct err *e);
	void (*close)(void *arg); /* NULL: nothing to do */
	void *arg;
};

static inline void source_close(struct source *s)
{
	if (s->close)
		s->close(s->arg);
	*s = (struct source){ 0 };
}

struct state_entry {
	const char *fqn;
	uint32_t fqn_len;
	uint32_t n_steps;
	const struct path_step *path;	   /* where it was before the dict was flattened, or NULL */
	const struct local_tensor *tensor; /* NULL: bytes */
	struct source bytes;		   /* if it is bytes, and is saved */
};

struct state_dict {
	const struct state_entry *entries; /* no two of one name */
	size_t count;
};

/* The systems whose rules the planners of this library follow. */
enum planner_system {
	PLANNER_DCP,		 /* torch.distributed.checkpoint 2.14 */
	PLANNER_MEGATRON,	 /* Megatron core 0.20: copies are left out by who makes the dict */
	PLANNER_HYPERPARALLEL,	 /* of March 2026 */
	PLANNER_HYPERPARALLEL_B, /* later ones */
};

enum planner_step { STEP_NEW, STEP_CONFIGURED, STEP_PLANNED, STEP_FINISHED };

/* ---- saving ---- */

struct save_options {
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

struct save_planner_ops {
	int (*configure)(void *self, const struct state_dict *dict, const struct save_options *opt,
			 struct err *e);
	int (*local_plan)(void *self, struct save_plan *ret, struct err *e);
	int (*global_plan)(void *self, const struct save_plan *all, size_t n,
			   struct save_plan *ret_parts, struct metadata *ret_md, struct err *e);
	int (*finish)(void *self, const struct save_plan *part, struct save_plan *ret,
		      struct err *e);
	int (*get_data)(void *self, const struct write_item *item, struct source *ret,
			struct err *e);
	void (*free)(void *self);
};

struct save_planner {
	const struct save_planner_ops *ops;
	void *self;
	uint8_t step; /* enum planner_step; STEP_NEW at birth */
};

int save_planner_new(enum planner_system system, struct save_planner *ret, struct err *e);
void save_planner_free(struct save_planner *p); /* all zero is fine */

/* dict, and all that it points to, must stay until the planner is configured again or freed. */
int save_planner_configure(struct save_planner *p, const struct state_dict *dict,
			   const struct save_options *opt, struct err *e);
int save_planner_local_plan(struct save_planner *p, struct save_plan *ret, struct err *e);
/* all[r] is rank r's plan, ret_parts has room for as many. */
int save_planner_global_plan(struct save_planner *p, const struct save_plan *all, size_t n,
			     struct save_plan *ret_parts, struct metadata *ret_md, struct err *e);
/* part: this rank's of the global plan; it must stay as long as *ret is used. */
int save_planner_finish(struct save_planner *p, const struct save_plan *part, struct save_plan *ret,
			struct err *e);
/* An item's bytes: a chunk's elements in row-major order, or the entry's bytes. */
int save_planner_get_data(struct save_planner *p, const struct write_item *item, struct source *ret,
			  struct err *e);

/* ---- loading ---- */

/* Bytes have been read. data is lent for the call. */
typedef int take_bytes_fn(void *arg, const struct state_entry *entry, const void *data, size_t len,
			  struct err *e);

struct load_options {
	size_t rank;
	bool is_coordinator;
	bool allow_partial_load;   /* entries that the checkpoint lacks are left as they are */
	take_bytes_fn *take_bytes; /* NULL: the dict has no bytes */
	void *arg;
};

/* Memory for a box: element x is at data + sum(x[d] * stride[d]). */
struct tensor_view {
	void *data;
	uint8_t dtype, n_dims;
	const uint64_t *len;
	uint64_t stride[MAX_DIMS]; /* bytes */
};

struct load_planner_ops {
	int (*configure)(void *self, const struct state_dict *dict, const struct metadata *md,
			 const struct load_options *opt, struct err *e);
	int (*local_plan)(void *self, struct load_plan *ret, struct err *e);
	int (*global_plan)(void *self, const struct load_plan *all, size_t n,
			   struct load_plan *ret_parts, struct err *e);
	int (*finish)(void *self, const struct load_plan *part, struct load_plan *ret,
		      struct err *e);
	int (*acquire_tensor)(void *self, const struct read_item *item, struct tensor_view *ret,
			      struct err *e);
	int (*apply_tensor)(void *self, const struct read_item *item, const struct tensor_view *v,
			    struct err *e);
	int (*apply_bytes)(void *self, const struct read_item *item, const void *data, size_t len,
			   struct err *e);
	void (*free)(void *self);
};

struct load_planner {
	const struct load_planner_ops *ops;
	void *self;
	uint8_t step; /* enum planner_step */
};

int load_planner_new(enum planner_system system, struct load_planner *ret, struct err *e);
void load_planner_free(struct load_planner *p); /* all zero is fine */

/* dict and md must stay until the planner is configured again or freed. */
int load_planner_configure(struct load_planner *p, const struct state_dict *dict,
			   const struct metadata *md, const struct load_options *opt,
			   struct err *e);
int load_planner_local_plan(struct load_planner *p, struct load_plan *ret, struct err *e);
int load_planner_global_plan(struct load_planner *p, const struct load_plan *all, size_t n,
			     struct load_plan *ret_parts, struct err *e);
/* Tensors that allow_shape_mismatch, and differ, are zeroed here. */
int load_planner_finish(struct load_planner *p, const struct load_plan *part, struct load_plan *ret,
			struct err *e);
/* Where an item's elements go: a part of the state dict's tensor. */
int load_planner_acquire_tensor(struct load_planner *p, const struct read_item *item,
				struct tensor_view *ret, struct err *e);
/*
 * The elements are there: v is what acquire_tensor gave, filled, or a view of the reader's own
 * memory with the same lengths and dtype, which is copied.
 */
int load_planner_apply_tensor(struct load_planner *p, const struct read_item *item,
			      const struct tensor_view *v, struct err *e);
int load_planner_apply_bytes(struct load_planner *p, const struct read_item *item, const void *data,
			     size_t len, struct err *e);

#endif
