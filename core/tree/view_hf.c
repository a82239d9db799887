/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hf/: a Hugging Face model directory: the model in files of at most shard_size, their index if
 * there are several, and the assets beside them.
 */
#include "base/err.h"
#include "file/hf_index.h"
#include "file/st_write.h"
#include "tree/view_internal.h"

#include <stdlib.h>
#include <string.h>

#define MAX_INDEX ((size_t)1 << 30) /* bytes of model.safetensors.index.json */

/* Entries: the shards, the index if there is one, the assets. */
static uint32_t index_entry(const struct view *v)
{
	return v->n_shards;
}

static uint32_t first_asset(const struct view *v)
{
	return v->n_shards + (v->n_shards > 1);
}

/* Is it config.json, and not as the asset has it? */
static bool is_our_config(const struct view *v, uint32_t index)
{
	return v->config && !strcmp(v->o.assets[index - first_asset(v)].name, "config.json");
}

static int add_copy(struct namelist *t, const char *name, uint32_t index, struct ckpt_err *e)
{
	size_t len = strlen(name);
	const char *copy = namelist_copy(t, name, len);

	return copy ? namelist_add(t, copy, len, index, e) : err_nomem(e);
}

static void entry_name(const void *arg, uint32_t index, const char **ret, size_t *ret_len)
{
	(void)arg;
	(void)index;
	*ret = "";
	*ret_len = 0;
}

static int list_entries(struct view *v, struct ckpt_err *e)
{
	struct namelist *t = &v->hf_entries;
	char name[HF_NAME_CAP];
	int rc = 0;

	for (uint32_t i = 0; !rc && i < v->n_shards; i++) {
		hf_file_name(i, v->n_shards, name);
		rc = add_copy(t, name, i, e);
	}
	if (!rc && v->n_shards > 1)
		rc = add_copy(t, HF_INDEX_NAME, index_entry(v), e);
	for (uint32_t i = 0; !rc && i < v->o.n_assets; i++)
		rc = add_copy(t, v->o.assets[i].name, first_asset(v) + i, e);
	return rc ? rc : namelist_finish(t, entry_name, NULL, e);
}

/* Lists the tensors of each file, in the model's order. */
static int group(struct view *v, struct ckpt_err *e)
{
	size_t *at = v->shard_at = calloc(v->n_shards + 2ul, sizeof(*at));

	v->by_shard = malloc((v->hf->names.n + 1) * sizeof(*v->by_shard));
	if (!at || !v->by_shard)
		return err_nomem(e);
	for (size_t i = 0; i < v->hf->names.n; i++)
		if (v->shard[i] != HF_LEFT_OUT)
			at[v->shard[i] + 2]++;
	for (uint32_t s = 2; s < v->n_shards + 2; s++)
		at[s] += at[s - 1];
	for (uint32_t i = 0; i < v->hf->names.n; i++)
		if (v->shard[i] != HF_LEFT_OUT)
			v->by_shard[at[v->shard[i] + 1]++] = i;
	return 0;
}

/* Assigns each tensor of the model to a file of hf/. */
static int split(struct view *v, struct ckpt_err *e)
{
	struct members m;
	uint32_t *of;
	int rc = view_members(v, OF_HF, st_check, NULL, &m, e);

	if (rc)
		return rc;
	of = malloc((m.n + 1) * sizeof(*of));
	v->shard = malloc((v->hf->names.n + 1) * sizeof(*v->shard));
	if (!of || !v->shard) {
		rc = err_nomem(e);
	} else {
		v->n_shards = hf_split(m.v, m.n, v->o.shard_size, of);
		if (!v->n_shards) /* a model without tensors is shown as a file without tensors */
			v->n_shards = 1;
		for (size_t i = 0, k = 0; i < v->hf->names.n; i++)
			v->shard[i] = k < m.n && m.v[k].fqn == v->hf->names.v[i].fqn ? of[k++]
										     : HF_LEFT_OUT;
	}
	free(of);
	members_release(&m);
	return rc ? rc : group(v, e);
}

int view_hf_init(struct view *v, struct ckpt_err *e)
{
	int rc = split(v, e);

	if (rc)
		return rc;
	v->sizes = calloc(v->n_shards + 2ul, sizeof(*v->sizes));
	return v->sizes ? list_entries(v, e) : err_nomem(e);
}

void view_hf_release(struct view *v)
{
	namelist_release(&v->hf_entries);
	free(v->shard);
	free(v->by_shard);
	free(v->shard_at);
	free(v->sizes);
	v->hf_entries = (struct namelist){ 0 };
	v->shard = v->by_shard = NULL;
	v->shard_at = NULL;
	v->sizes = NULL;
}

static enum view_kind kind(const struct view *v, struct spot p)
{
	if (p.index == SPOT_DIR && !p.rank)
		return VIEW_DIR;
	return !p.rank && p.index < v->hf_entries.n ? VIEW_FILE : VIEW_NONE;
}

static uint64_t entries(const struct view *v, struct spot p)
{
	(void)p;
	return v->hf_entries.n;
}

static struct spot entry(const struct view *v, struct spot p, uint64_t pos)
{
	p.index = v->hf_entries.v[pos].index;
	return p;
}

static void name(const struct view *v, struct spot p, char out[static NAME_CAP])
{
	if (p.index < v->n_shards)
		hf_file_name(p.index, v->n_shards, out);
	else if (p.index < first_asset(v))
		(void)stpcpy(out, HF_INDEX_NAME);
	else
		(void)stpcpy(out, v->o.assets[p.index - first_asset(v)].name);
}

static bool lookup(const struct view *v, struct spot p, const char *name, struct spot *ret)
{
	int64_t i = namelist_find(&v->hf_entries, name, strlen(name));

	if (i < 0)
		return false;
	p.index = v->hf_entries.v[i].index;
	*ret = p;
	return true;
}

static int describe_index(const struct view *v, struct vfile *ret, struct ckpt_err *e)
{
	struct buf b = BUF_INIT(MAX_INDEX);
	struct members m;
	int rc = view_members(v, OF_HF, st_check, NULL, &m, e);

	/* Select the tensors of this file from v->shard, in the model's order. */
	if (!rc) {
		uint32_t *of = malloc((m.n + 1) * sizeof(*of));
		size_t k = 0;

		for (size_t i = 0; of && i < v->hf->names.n; i++)
			if (v->shard[i] != HF_LEFT_OUT)
				of[k++] = v->shard[i];
		rc = of ? hf_index(m.v, m.n, of, v->n_shards, &b, e) : err_nomem(e);
		free(of);
	}
	if (!rc)
		vfile_bytes(ret, b.data, b.len);
	buf_release(&b);
	members_release(&m);
	return rc;
}

static int describe_shard(const struct view *v, uint32_t shard, struct vfile *ret,
			  struct ckpt_err *e)
{
	struct positions only = { v->by_shard + v->shard_at[shard],
				  v->shard_at[shard + 1] - v->shard_at[shard] };
	struct members m;
	int rc = view_members(v, OF_HF, st_check, &only, &m, e);

	if (!rc)
		rc = st_layout(m.v, m.n, ret, e);
	members_release(&m);
	return rc;
}

static int describe(const struct view *v, struct spot p, struct vfile *ret, struct ckpt_err *e)
{
	if (p.index < v->n_shards)
		return describe_shard(v, p.index, ret, e);
	if (p.index < first_asset(v))
		return describe_index(v, ret, e);
	if (is_our_config(v, p.index))
		vfile_lent(ret, v->config, strlen(v->config));
	else
		vfile_file(ret, p.index - first_asset(v), 0,
			   v->o.assets[p.index - first_asset(v)].size);
	return 0;
}

bool view_hf_has(const struct view *v, size_t i)
{
	return v->shard[i] != HF_LEFT_OUT;
}

int64_t view_hf_asset(const struct view *v, uint32_t index)
{
	return index >= first_asset(v) && !is_our_config(v, index) ? (int64_t)index - first_asset(v)
								   : -1;
}

const struct face face_hf = { "hf", true, kind, entries, entry, name, lookup, describe };
