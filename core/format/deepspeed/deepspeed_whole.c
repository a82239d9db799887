/* SPDX-License-Identifier: Apache-2.0 */
/* Are the files of optimizer states those of all ranks, and of one save? */
#include "base/checked.h"
#include "format/deepspeed/deepspeed_states.h"

#include <stdio.h>

/* The name of a rank's file, with the prefix of this one. */
struct optim_name {
	char text[64];
};

static struct optim_name name_of(const struct ds_rank *x, const struct ds_file *like, uint32_t rank)
{
	static const char *const prefix[] = {
		[DS_PLAIN] = "", [DS_BF16] = "bf16_", [DS_FP16] = "fp16_"
	};
	struct optim_name r;

	(void)snprintf(r.text, sizeof(r.text), "%szero_pp_rank_%u_mp_rank_%02u_optim_states.pt",
		       prefix[like->prefix], rank, x->mp);
	return r;
}

static int missing(struct ds_rank *x, uint32_t rank, const struct ds_file *there)
{
	(void)ds_miss(x->d, "'%s' is missing, though '%.120s' is there",
		      name_of(x, there, rank).text, there->path);
	return 1;
}

/*
 * This rank has no files of optimizer states: are they lost? To save space, people delete those of
 * all ranks, and a stage in which nothing is trained has none. 1: they are lost, which has
 * been recorded.
 */
static int check_none(struct ds_rank *x)
{
	uint32_t stage = x->mp / x->d->tp;
	size_t n;
	const struct ds_file *f = ds_files_of(x->d, DS_OPTIM, UINT32_MAX, &n);

	for (size_t i = 0; i < n; i++)
		if (x->n_params || f[i].mp / x->d->tp == stage)
			return missing(x, 0, &f[i]);
	return 0;
}

int ds_check_files(struct ds_rank *x, const struct ds_file *f, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (f[i].prefix != f->prefix) {
			(void)ds_refuse(x->d,
					"'%.120s' and '%.120s' are from two different saves with "
					"different precisions: remove those of the older one",
					f->path, f[i].path);
			return 1;
		}
		if (i && f[i].rank == f[i - 1].rank) {
			(void)ds_refuse(x->d, "'%.120s' and '%.120s' are both of rank %u",
					f[i - 1].path, f[i].path, f[i].rank);
			return 1;
		}
		if (f[i].rank != i)
			return missing(x, (uint32_t)i, &f[i]);
	}
	return n ? 0 : check_none(x);
}

int ds_check_world(struct ds_rank *x, const struct ds_file *f)
{
	uint64_t most = 0;

	for (size_t g = 0; g < x->n_flat; g++)
		most = max_u64(most, x->counts[g]);
	if (!x->n_flat || most == x->world)
		return 0;
	if (most < x->world)
		(void)ds_refuse(x->d,
				"there are optimizer states of %u ranks, and %llu were saved: "
				"files of an older, larger save lie under the same tag",
				x->world, (unsigned long long)most);
	else
		(void)ds_miss(x->d,
			      "optimizer states of %u of %llu ranks are there: '%s' is missing",
			      x->world, (unsigned long long)most, name_of(x, f, x->world).text);
	return 1;
}

/*
 * ZeRO 3 saves model states of each rank, too. Without them nothing is lost but buffers, of which
 * those of the first rank are shown, and parts of frozen parameters.
 */
static void check_models(struct ds_rank *x, const struct ds_file *f)
{
	size_t n;
	const struct ds_file *model = ds_files_of(x->d, DS_MODEL, x->mp, &n);

	if (x->sharded && n < x->world)
		(void)ds_miss(x->d,
			      "'zero_pp_rank_%zu_mp_rank_%02u_model_states.pt' is missing, "
			      "though '%.120s' is there",
			      n, model->mp, f[n].path);
}

/* Does every rank with masters have this part of the optimizer state? */
static int check_have(struct ds_rank *x, const struct ds_file *f, size_t group, const bool *have,
		      const char *key)
{
	const struct ds_piece *masters = x->flat[group].columns[0].piece;
	uint32_t with = 0;

	while (!have[with])
		with++;
	for (uint32_t r = 0; r < x->world; r++)
		if (masters[r].numel && !have[r]) {
			(void)ds_refuse(x->d,
					"'%.120s' has '%.60s' of group %zu, and '%.120s' has none: "
					"they are from two different saves",
					f[with].path, key, group, f[r].path);
			return 1;
		}
	return 0;
}

/*
 * A file that was saved before the first step has no moments. Without them in one file, those of
 * the others cannot be shown; and the masters are not of one step.
 */
static int check_states(struct ds_rank *x, const struct ds_file *f)
{
	int rc = 0;

	for (size_t g = 0; !rc && g < x->n_flat; g++) {
		const struct ds_flat_group *v = &x->flat[g];

		for (size_t k = 1; !rc && k < v->n; k++) {
			const struct ds_making *m = &v->columns[k];

			rc = check_have(x, f, g, m->have, m->key->data);
			if (rc || !m->mixed)
				continue;
			(void)ds_refuse(x->d,
					"'%.60s' of group %zu has different dtypes in the files of "
					"optimizer states: they are from two different saves",
					m->key->data, g);
			rc = 1;
		}
		if (!rc && v->have_step)
			rc = check_have(x, f, g, v->have_step, "step");
	}
	return rc;
}

/* Does each file hold values of its own? 1: no, which has been recorded. */
static int check_copies(struct ds_rank *x, const struct ds_file *f, struct ckpt_err *e)
{
	size_t same[2];
	int rc = ds_find_copy(x->masters, x->world, same, e);

	if (rc > 0)
		(void)ds_refuse(x->d,
				"'%.120s' and '%.120s' hold the same values: one of them has "
				"another rank's file in its place; restore it",
				f[same[0]].path, f[same[1]].path);
	return rc;
}

int ds_check_whole(struct ds_rank *x, const struct ds_file *f, struct ckpt_err *e)
{
	int rc = check_states(x, f);

	if (!rc)
		check_models(x, f);
	return rc ? rc : check_copies(x, f, e);
}
