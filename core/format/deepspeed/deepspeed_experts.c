/* SPDX-License-Identifier: Apache-2.0 */
/* The files of experts: their weights, and without ZeRO their optimizer states. */
#include "format/deepspeed/deepspeed.h"

#include "base/cleanup.h"
#include "base/search.h"
#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>

/*
 * Does each layer have the experts that the model states record? A tag that is used again keeps the
 * files of experts that no longer exist.
 */
static int check_experts(const struct ds *d, const struct ds_file *f, size_t n, struct ckpt_err *e)
{
	uint32_t next = 0;

	for (size_t i = 0; i < n; i++) {
		bool last = i + 1 == n || f[i + 1].layer != f[i].layer || f[i + 1].mp != f[i].mp;
		uint64_t count = f[i].layer < d->n_experts ? d->experts[f[i].layer] : 0;

		if (f[i].mp >= d->tp || !count)
			continue;
		if (f[i].rank >= count)
			return err_set(e, ERR_CORRUPT,
				       "'%.200s' is of another save: the model states say that its "
				       "layer has %llu expert%s",
				       f[i].path, (unsigned long long)count, text_s(count));
		if (f[i].rank != next || (last && next + 1 != count))
			return err_set(
				e, ENOENT,
				"the file of expert %u of layer %u is missing, though '%.200s' "
				"is there",
				f[i].rank != next ? next : next + 1, f[i].layer, f[i].path);
		next = last ? 0 : next + 1;
	}
	return 0;
}

/*
 * Does each file hold weights of its own? With a copy of another expert's in its place, an expert
 * would be missing unnoticed. File i holds the tensors [first[i], first[i + 1]).
 */
static int check_copies(const struct ds *d, const struct ds_file *f, const size_t *first, size_t n,
			struct ckpt_err *e)
{
	size_t count = first[n] - first[0];
	autofree const struct ds_tensor **v = calloc(count + 1, sizeof(struct ds_tensor *));

	if (!v)
		return err_nomem(e);
	for (size_t i = 0; i < count; i++)
		v[i] = &d->tensors[first[0] + i];
	qsort(v, count, sizeof(struct ds_tensor *), ds_by_name);
	for (size_t i = 1; i < count; i++) {
		const struct ds_tensor *a = v[i - 1], *b = v[i];
		size_t one, other;

		if (a->name != b->name || a->stage != b->stage || a->t != b->t)
			continue;
		one = PARTITION_POINT(k, n, first[k + 1] <= (size_t)(a - d->tensors));
		other = PARTITION_POINT(k, n, first[k + 1] <= (size_t)(b - d->tensors));
		return err_set(e, ERR_CORRUPT,
			       "'%.200s' and '%.200s' both hold '%.150s': one of them has another "
			       "expert's file in its place; restore it",
			       f[one].path, f[other].path, a->name->data);
	}
	return 0;
}

/* Their names are complete, with the expert's number among all experts. */
static int read_weights(struct ds *d, struct ckpt_err *e)
{
	size_t n;
	struct ds_file *f = ds_files_of(d, DS_EXPERT, UINT32_MAX, &n);
	autofree size_t *first = calloc(n + 1, sizeof(*first));
	int rc = first ? ds_check_twice(f, n, e) : err_nomem(e);

	if (!rc)
		rc = check_experts(d, f, n, e);
	for (size_t i = 0; !rc && i < n; i++) {
		struct ds_weights w = { .prefix = "",
					.stage = f[i].mp / d->tp,
					.t = f[i].mp % d->tp };
		struct ds_open o;

		first[i] = d->n_tensors;
		rc = ds_open(d, &f[i], &o, e);
		w.dict = &o.file.root;
		if (!rc)
			rc = ds_read_weights(d, &o, &w, e);
		rc = ds_close(d, &o, rc, e);
	}
	if (rc)
		return rc;
	first[n] = d->n_tensors;
	return check_copies(d, f, first, n, e);
}

/* Reads experts' optimizer states without ZeRO, which torch.optim numbers. */
static int read_states(struct ds *d, struct ckpt_err *e)
{
	size_t n;
	struct ds_file *f = ds_files_of(d, DS_EXPP, UINT32_MAX, &n);
	int rc = 0;

	for (size_t i = 0; !rc && i < n; i++) {
		char rank[64];
		const char *const steps[] = { "optimizer", rank, NULL };
		const struct pk_value *v;
		struct ds_open o;

		(void)snprintf(rank, sizeof(rank), "expp_rank_%u_mp_rank_%02u", f[i].rank, f[i].mp);
		rc = ds_open(d, &f[i], &o, e);
		v = rc ? NULL : pk_get(&o.file.root, "optimizer");
		if (v && v->type == PK_DICT)
			rc = torchsave_report_at(&o.file.t, f[i].path, v, steps, d->w, e);
		rc = ds_close(d, &o, rc, e);
	}
	return rc;
}

int ds_read_experts(struct ds *d, struct ckpt_err *e)
{
	int rc = read_weights(d, e);

	return rc ? rc : read_states(d, e);
}
