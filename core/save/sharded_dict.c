/* SPDX-License-Identifier: Apache-2.0 */
/* Builds a state dict of Megatron's sharded tensors and objects. */
#include "base/arena.h"
#include "base/buf.h"
#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "save/checkpointable.h"
#include "save/idtable.h"

#include <xxhash.h>

struct ckpt_sharded_dict {
	struct arena a;
	struct ckpt_state_dict dict;
};

static bool is_used(const struct ckpt_replica_id *r, enum ckpt_sharded_use use)
{
	return use == CKPT_SHARDED_LOAD || ckpt_replica_is_main(r);
}

/* ---- shards by key ---- */

struct group {
	const struct ckpt_sharded_tensor *first;
	size_t n, at; /* number of shards; index of the next one */
};

struct sorting {
	const struct ckpt_sharded_tensor *wanted;
	const struct group *groups;
};

static bool has_key(const void *arg, uint32_t id)
{
	const struct sorting *s = arg;
	const struct ckpt_sharded_tensor *x = s->groups[id].first, *y = s->wanted;

	return bytes_equal(x->key, x->key_len, y->key, y->key_len);
}

/* group_of[i]: the group of tensor i, IDTABLE_NONE if it is left out. Groups are in the order of
 * their first shards; returns their number. */
static size_t group_by_key(const struct ckpt_sharded_tensor *v, size_t n, enum ckpt_sharded_use use,
			   struct idtable *ids, struct group *groups, uint32_t *group_of)
{
	for (size_t i = 0; i < n; i++) {
		struct sorting s = { &v[i], groups };
		uint64_t hash = XXH3_64bits(v[i].key, v[i].key_len);
		uint32_t *id;

		group_of[i] = IDTABLE_NONE;
		if (!is_used(&v[i].replica, use))
			continue;
		id = idtable_find(ids, hash, has_key, &s);
		group_of[i] = *id;
		if (*id == IDTABLE_NONE) {
			group_of[i] = idtable_add(ids, id, hash);
			groups[group_of[i]].first = &v[i];
		}
		groups[group_of[i]].n++;
	}
	return ids->count;
}

static int add_tensor(struct ckpt_sharded_dict *d, const struct ckpt_sharded_tensor *shards,
		      size_t n, enum ckpt_sharded_use use, struct ckpt_state_entry *ret,
		      struct ckpt_err *e)
{
	struct ckpt_local_tensor *t = arena_array(&d->a, 1, sizeof(*t));
	int rc;

	if (!t)
		return err_set(e, ENOMEM, "sharded tensor: out of memory");
	for (size_t i = 0; i < n; i++)
		if (use == CKPT_SHARDED_SAVE && !shards[i].data)
			return err_set(e, EINVAL, "'%s': a sharded tensor to be saved has no data",
				       FQN_TEXT(shards[i].key, shards[i].key_len));
	if (shards->key_len > UINT32_MAX)
		return err_set(e, EINVAL, "a sharded tensor's key has more than 4 GiB");
	rc = local_tensor_from_sharded(shards, n, &d->a, t, e);
	*ret = (struct ckpt_state_entry){ .fqn = shards->key,
					  .fqn_len = (uint32_t)shards->key_len,
					  .tensor = t };
	return rc;
}

static int add_tensors(struct ckpt_sharded_dict *d, const struct ckpt_sharded_tensor *v, size_t n,
		       enum ckpt_sharded_use use, struct ckpt_state_entry *ret, struct ckpt_err *e)
{
	struct ckpt_sharded_tensor *sorted = arena_array(&d->a, n, sizeof(*sorted));
	struct group *groups = arena_array(&d->a, n, sizeof(*groups));
	uint32_t *group_of = arena_array(&d->a, n, sizeof(*group_of));
	struct idtable ids = { 0 };
	size_t n_groups, at = 0;
	int rc = 0;

	if (!sorted || !groups || !group_of || !idtable_init(&ids, n))
		return err_set(e, ENOMEM, "%zu sharded tensors: out of memory", n);
	n_groups = group_by_key(v, n, use, &ids, groups, group_of);
	idtable_release(&ids);
	for (size_t i = 0; i < n_groups; i++) {
		groups[i].at = at;
		at += groups[i].n;
	}
	for (size_t i = 0; i < n; i++)
		if (group_of[i] != IDTABLE_NONE)
			sorted[groups[group_of[i]].at++] = v[i];
	for (size_t i = 0; i < n_groups && !rc; i++)
		rc = add_tensor(d, &sorted[groups[i].at - groups[i].n], groups[i].n, use, &ret[i],
				e);
	d->dict.count = n_groups;
	return rc;
}

/* ---- all of it ---- */

static int add_object(struct ckpt_sharded_dict *d, const struct ckpt_sharded_object *o,
		      struct ckpt_state_entry *ret, struct ckpt_err *e)
{
	struct buf name = BUF_INIT(UINT32_MAX);
	const char *kept = NULL;
	int rc = sharded_object_name(o, &name, e);

	if (!rc && !(kept = arena_dup(&d->a, name.data, name.len)))
		rc = err_set(e, ENOMEM, "name of an object: out of memory");
	*ret = (struct ckpt_state_entry){ .fqn = kept,
					  .fqn_len = (uint32_t)name.len,
					  .bytes = o->bytes };
	buf_release(&name);
	return rc;
}

static int fill(struct ckpt_sharded_dict *d, const struct ckpt_sharded_tensor *tensors,
		size_t n_tensors, const struct ckpt_sharded_object *objects, size_t n_objects,
		enum ckpt_sharded_use use, struct ckpt_err *e)
{
	struct ckpt_state_entry *entries =
		arena_array(&d->a, n_tensors + n_objects, sizeof(*entries));
	int rc;

	if (!entries)
		return err_set(e, ENOMEM, "%zu sharded tensors and objects: out of memory",
			       n_tensors + n_objects);
	d->dict.entries = entries;
	rc = add_tensors(d, tensors, n_tensors, use, entries, e);
	for (size_t i = 0; i < n_objects && !rc; i++)
		if (is_used(&objects[i].replica, use))
			rc = add_object(d, &objects[i], &entries[d->dict.count++], e);
	return rc;
}

int ckpt_sharded_dict_new(const struct ckpt_sharded_tensor *tensors, size_t n_tensors,
			  const struct ckpt_sharded_object *objects, size_t n_objects,
			  enum ckpt_sharded_use use, struct ckpt_sharded_dict **ret,
			  struct ckpt_err *e)
{
	struct ckpt_sharded_dict *d = calloc(1, sizeof(*d));
	int rc;

	if (!d)
		return err_set(e, ENOMEM, "sharded dict: out of memory");
	d->a = (struct arena)ARENA_INIT(SIZE_MAX);
	rc = fill(d, tensors, n_tensors, objects, n_objects, use, e);
	if (rc)
		ckpt_sharded_dict_free(d);
	else
		*ret = d;
	return rc;
}

const struct ckpt_state_dict *ckpt_sharded_dict(const struct ckpt_sharded_dict *d)
{
	return &d->dict;
}

void ckpt_sharded_dict_free(struct ckpt_sharded_dict *d)
{
	if (!d)
		return;
	arena_release(&d->a);
	free(d);
}
