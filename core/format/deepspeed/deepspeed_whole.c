/* SPDX-License-Identifier: Apache-2.0 */
/* Are the files of optimizer states those of all ranks, and of one save? */
#include "base/checked.h"
#include "format/deepspeed/deepspeed_states.h"

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
		if (f[i].rank != i) {
			(void)ds_refuse(x->d,
					"'%szero_pp_rank_%zu_mp_rank_%02u_optim_states.pt' is "
					"missing, though '%.120s' is there",
					f->prefix == DS_BF16   ? "bf16_"
					: f->prefix == DS_FP16 ? "fp16_"
							       : "",
					i, x->mp, f[i].path);
			return 1;
		}
	}
	return 0;
}

int ds_check_world(struct ds_rank *x)
{
	uint64_t most = 0;

	for (size_t g = 0; g < x->n_flat; g++)
		most = max_u64(most, x->counts[g]);
	if (!x->n_flat || most == x->world)
		return 0;
	(void)ds_refuse(x->d,
			most < x->world
				? "there are optimizer states of %u ranks, and %llu were saved: "
				  "files of an older, larger save lie under the same tag"
				: "there are optimizer states of %u ranks, and %llu were saved: "
				  "files are missing",
			x->world, (unsigned long long)most);
	return 1;
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

	return rc ? rc : check_copies(x, f, e);
}
