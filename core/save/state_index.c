/* SPDX-License-Identifier: Apache-2.0 */
#include "save/state_index.h"

#include "base/bytes.h"
#include "base/err.h"
#include "base/text.h"
#include "save/checkpointable.h"

#include <xxhash.h>

struct wanted {
	const struct ckpt_state_entry *entries;
	const char *fqn;
	uint32_t fqn_len;
};

static bool is_entry(const void *arg, uint32_t id)
{
	const struct wanted *w = arg;
	const struct ckpt_state_entry *s = &w->entries[id];

	return bytes_equal(s->fqn, s->fqn_len, w->fqn, w->fqn_len);
}

static uint32_t *place(const struct state_index *x, const char *fqn, uint32_t fqn_len,
		       uint64_t *ret_hash)
{
	struct wanted w = { x->dict->entries, fqn, fqn_len };

	*ret_hash = XXH3_64bits(fqn, fqn_len);
	return idtable_find(&x->names, *ret_hash, is_entry, &w);
}

static int add_entry(struct state_index *x, const struct ckpt_state_entry *s, bool hyperparallel,
		     struct ckpt_err *e)
{
	uint64_t hash;
	uint32_t *id = place(x, s->fqn, s->fqn_len, &hash);

	if (*id != IDTABLE_NONE)
		return err_set(e, EEXIST, "%s %s",
			       hyperparallel ? "Duplicate flattened FQN" : "duplicated flatten key",
			       FQN_TEXT(s->fqn, s->fqn_len));
	(void)idtable_add(&x->names, id, hash);
	return s->tensor ? local_tensor_check(s->tensor, s->fqn, s->fqn_len, e) : 0;
}

int state_index_init(struct state_index *x, const struct ckpt_state_dict *dict,
		     enum ckpt_planner_system system, struct ckpt_err *e)
{
	*x = (struct state_index){ .dict = dict };
	if (!idtable_init(&x->names, dict->count))
		return err_set(e, ENOMEM, "state dict of %zu entries: out of memory", dict->count);
	for (size_t i = 0; i < dict->count; i++) {
		int rc = add_entry(x, &dict->entries[i], system >= CKPT_PLANNER_HYPERPARALLEL, e);

		if (rc) {
			state_index_release(x);
			return rc;
		}
	}
	return 0;
}

void state_index_release(struct state_index *x)
{
	idtable_release(&x->names);
	x->dict = NULL;
}

int state_index_find(const struct state_index *x, const struct ckpt_meta_index *index, size_t *ret,
		     struct ckpt_err *e)
{
	uint64_t hash;
	uint32_t id = *place(x, index->fqn, index->fqn_len, &hash);

	if (id == IDTABLE_NONE)
		return err_set(e, ENOENT, "Key %s not found in state_dict",
			       FQN_TEXT(index->fqn, index->fqn_len));
	*ret = id;
	return 0;
}
