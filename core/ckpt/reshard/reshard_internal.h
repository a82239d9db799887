/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reshard_internal - the parts of resharding: the list of what is written (reshard.c), the part of
 * it that a rank holds (reshard_dict.c), and where the bytes come from (reshard_source.c).
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
	uint8_t form, to; /* for an object: its enum object_form, and what it is converted to */
	bool is_tensor;
	uint8_t n_logical; /* 0: not flattened */
	const uint64_t *shape;
	const uint64_t *logical; /* n_logical: the shape before it was flattened */
};

struct resharding {
	struct ckpt *c;
	struct ckpt_reshard *r;
	const char *dest;
	struct arena a; /* storage of entries and all that they point to */
	struct reshard_entry *entries;
	size_t n_tensors, n;
	bool has_paths;			      /* at least one entry has a path */
	const struct reshard_entry **by_name; /* n entries, sorted by reshard_compare */
	struct layout *layout;		      /* or NULL */
	size_t ranks;
	struct writer_safetensors_file *added; /* files that are written beside a model's weights */
	size_t n_added;
	_Atomic uint64_t written;
	uint64_t total;
};

/* Does the format store whole tensors, and no objects? */
static inline bool reshard_takes_whole(const struct ckpt_reshard *r)
{
	return r->format == CKPT_SAFETENSORS || r->format == CKPT_ZARR;
}

int reshard_compare(const char *fqn, size_t len, bool is_tensor, const struct reshard_entry *t);
/* What is written under this name, or NULL. */
const struct reshard_entry *reshard_find(const struct resharding *s, const char *fqn, size_t len,
					 bool is_tensor);

/* The rank's state dict in *a, without entries that the rank holds no part of. */
int reshard_dict(const struct resharding *s, size_t rank, struct arena *a,
		 struct ckpt_state_dict *ret, struct ckpt_err *e);

/*
 * A planner that plans as `inner` does, which it takes over, and whose data come from the
 * checkpoint.
 */
int reshard_planner(struct resharding *s, struct ckpt_save_planner *inner,
		    struct ckpt_save_planner *ret, struct ckpt_err *e);

/*
 * A writer that forwards to `inner`, which it takes over. The shared semaphore limits how many
 * writers write data at the same time. Before `inner` finishes, the files of the source are closed.
 */
int reshard_gate(struct ckpt *source, sem_t *open, struct ckpt_storage_writer *inner,
		 struct ckpt_storage_writer *ret, struct ckpt_err *e);

#endif
