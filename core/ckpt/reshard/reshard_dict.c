/* SPDX-License-Identifier: Apache-2.0 */
/* Determines which part of the checkpoint each rank writes. */
#include "base/err.h"
#include "ckpt/reshard/reshard_internal.h"
#include "layout/layout.h"
#include "model/box.h"
#include "model/mesh.h"

/* Splits along the first dimension, as FSDP splits parameters. */
static void rows_of(const struct resharding *s, size_t rank, const struct reshard_entry *t,
		    uint64_t *off, uint64_t *len)
{
	for (size_t d = 0; d < t->n_dims; d++) {
		off[d] = 0;
		len[d] = t->shape[d];
	}
	if (t->n_dims)
		(void)split_part(CKPT_SPLIT_CEIL, s->ranks, rank, &off[0], &len[0]);
}

/*
 * The rank's box of tensor number i; false: it holds nothing of it. Empty parts of a tensor are
 * skipped, but a tensor without elements belongs to all ranks, because some rank must record it.
 */
static bool box_of(const struct resharding *s, size_t rank, size_t i, uint64_t *off, uint64_t *len,
		   bool *ret_whole)
{
	const struct reshard_entry *t = &s->entries[i];
	uint64_t all = 0, part = 0;

	(void)box_volume(t->n_dims, t->shape, &all); /* cannot overflow: the tensor is shown */
	*ret_whole = !all || (reshard_takes_whole(s->r) && !s->layout) || !t->n_dims;
	if (!s->layout || !all)
		rows_of(s, rank, t, off, len);
	else if (!layout_box(s->layout, rank, i, off, len))
		return false;
	if (*ret_whole)
		return true;
	(void)box_volume(t->n_dims, len, &part);
	*ret_whole = part == all;
	return part;
}

static bool add_tensor(const struct resharding *s, size_t rank, size_t i, struct arena *a,
		       struct ckpt_state_entry *ret, bool *ret_has)
{
	const struct reshard_entry *t = &s->entries[i];
	uint64_t off[CKPT_MAX_DIMS], len[CKPT_MAX_DIMS];
	struct ckpt_local_tensor *local;
	struct ckpt_shard *shard;
	uint64_t *dims;
	bool whole;

	*ret_has = box_of(s, rank, i, off, len, &whole);
	if (!*ret_has)
		return true;
	local = arena_alloc(a, sizeof(*local) + sizeof(*shard));
	dims = arena_array(a, 2 * (size_t)t->n_dims, sizeof(*dims));
	if (!local || !dims)
		return false;
	shard = (struct ckpt_shard *)(local + 1);
	for (size_t d = 0; d < t->n_dims; d++) {
		dims[d] = whole ? 0 : off[d];
		dims[t->n_dims + d] = whole ? t->shape[d] : len[d];
	}
	*shard = (struct ckpt_shard){ .off = dims, .len = dims + t->n_dims };
	*local = (struct ckpt_local_tensor){ .kind = whole ? CKPT_LOCAL_WHOLE : CKPT_LOCAL_BOX,
					     .n_dims = t->n_dims,
					     .props = { .dtype = t->dtype },
					     .shape = t->shape,
					     .shards = shard,
					     .n_shards = 1 };
	ret->tensor = local;
	return true;
}

int reshard_dict(const struct resharding *s, size_t rank, struct arena *a,
		 struct ckpt_state_dict *ret, struct ckpt_err *e)
{
	struct ckpt_state_entry *entries = arena_array(a, s->n, sizeof(*entries));
	size_t n = 0;

	for (size_t i = 0; entries && i < s->n; i++) {
		const struct reshard_entry *t = &s->entries[i];
		bool has = true;

		entries[n] = (struct ckpt_state_entry){
			.fqn = t->fqn, .fqn_len = t->fqn_len, .path = t->path, .n_steps = t->n_steps
		};
		if (t->is_tensor && !add_tensor(s, rank, i, a, &entries[n], &has))
			entries = NULL;
		n += has;
	}
	if (!entries)
		return err_set(e, ENOMEM, "state dict of %zu entries: out of memory", s->n);
	*ret = (struct ckpt_state_dict){ entries, n };
	return 0;
}
