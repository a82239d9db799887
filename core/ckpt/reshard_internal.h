/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reshard_internal - the parts of resharding: the list of what is written (reshard.c), what a rank
 * has of it (reshard_dict.c), and where its bytes come from (reshard_source.c).
 */
#ifndef CKPT_RESHARD_INTERNAL_H
#define CKPT_RESHARD_INTERNAL_H

#include "base/arena.h"
#include "store/object_form.h"
#include <ckptfs/ckpt_plan.h>
#include <ckptfs/ckpt_reshard.h>

#include <semaphore.h>
#include <stdatomic.h>

struct layout;
struct writer_safetensors_file;

/* Entry number i of every rank's state dict: the tensors, then the objects. */
struct reshard_entry {
	const char *fqn;
	uint32_t fqn_len;
	uint32_t number;		   /* of the tensor or object in the tree or the model */
	const struct ckpt_path_step *path; /* or NULL */
	uint32_t n_steps;
	uint8_t dtype, n_dims; /* of a tensor */
	uint8_t form;	       /* of an object: enum object_form that it has */
	bool is_tensor;
	const uint64_t *shape;
};

struct resharding {
	struct ckpt *c;
	struct ckpt_reshard *r;
	const char *dest;
	struct arena a; /* entries and all that they point to */
	struct reshard_entry *entries;
	size_t n_tensors, n;
	bool has_paths;			      /* some entry has */
	const struct reshard_entry **by_name; /* n, in the order of reshard_compare */
	struct layout *layout;		      /* or NULL */
	size_t ranks;
	struct writer_safetensors_file *added; /* what goes beside a model's weights */
	size_t n_added;
	enum object_form to; /* of objects */
	_Atomic uint64_t written;
	uint64_t total;
};

int reshard_compare(const char *fqn, size_t len, bool is_tensor, const struct reshard_entry *t);

/* Rank's state dict in *a; entries it has nothing of are left out. */
int reshard_dict(const struct resharding *s, size_t rank, struct arena *a,
		 struct ckpt_state_dict *ret, struct ckpt_err *e);

/* A planner that plans as `inner` does, which is taken over, and whose data are read out of the
 * checkpoint. */
int reshard_planner(struct resharding *s, struct ckpt_save_planner *inner,
		    struct ckpt_save_planner *ret, struct ckpt_err *e);

/* A writer that hands everything on to `inner`, which is taken over; of all that have the same
 * semaphore only as many write data at once as it lets pass. */
int reshard_gate(sem_t *open, struct ckpt_storage_writer *inner, struct ckpt_storage_writer *ret,
		 struct ckpt_err *e);

#endif
