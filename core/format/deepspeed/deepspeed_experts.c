/* SPDX-License-Identifier: Apache-2.0 */
/* The files of experts: their weights, and without ZeRO their optimizer states. */
#include "format/deepspeed/deepspeed_states.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/search.h"
#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>

/* A file of an expert, and the model-parallel rank, or the stage, that has all of the expert's
 * layer. */
struct expert {
	const struct ds_file *f;
	uint32_t owner;
};

static int by_expert(const void *ap, const void *bp)
{
	const struct expert *a = ap, *b = bp;
	const uint32_t x[] = { a->owner, a->f->layer, a->f->rank, a->f->mp };
	const uint32_t y[] = { b->owner, b->f->layer, b->f->rank, b->f->mp };

	for (size_t i = 0; i < ARRAY_LEN(x); i++)
		if (x[i] != y[i])
			return x[i] < y[i] ? -1 : 1;
	return 0;
}

static bool same_layer(const struct expert *a, const struct expert *b)
{
	return a->owner == b->owner && a->f->layer == b->f->layer;
}

static int missing(const struct ds_file *there, uint32_t layer, uint32_t number, struct ckpt_err *e)
{
	return err_set(e, ENOENT,
		       "the file of expert %u of layer %u is missing, though '%.200s' is there",
		       number, layer, there->path);
}

/* Experts of a layer are numbered 0, 1, ...; count 0: it is not known how many there are. */
static int check_layer(const struct expert *v, size_t n, uint64_t count, struct ckpt_err *e)
{
	uint32_t next = 0;

	for (size_t i = 0; i < n; i++) {
		const struct ds_file *f = v[i].f;

		if (i && f->rank == v[i - 1].f->rank) /* several ranks may have saved it */
			continue;
		if (count && f->rank >= count)
			return err_set(e, ERR_CORRUPT,
				       "'%.200s' is of another save: the model states say that its "
				       "layer has %llu expert%s",
				       f->path, (unsigned long long)count, text_s(count));
		if (f->rank != next)
			return missing(f, f->layer, next, e);
		next++;
	}
	return count && next != count ? missing(v[n - 1].f, v->f->layer, next, e) : 0;
}

/*
 * Does each layer have the experts that the model states record? A tag that is used again keeps the
 * files of experts that no longer exist.
 */
static int check_experts(const struct ds *d, const struct ds_file *f, size_t n, bool folded,
			 struct ckpt_err *e)
{
	autofree struct expert *v = calloc(n + 1, sizeof(*v));
	int rc = v ? 0 : err_nomem(e);

	for (size_t i = 0; !rc && i < n; i++)
		v[i] = (struct expert){ .f = &f[i], .owner = folded ? f[i].mp / d->tp : f[i].mp };
	if (!rc)
		qsort(v, n, sizeof(*v), by_expert);
	/* ZeRO 3 may partition experts like other parameters. */
	if (!rc && d->n_experts && !d->universal && !d->files->sharded && (!n || v->f->mp >= d->tp))
		return missing(d->files, 0, 0, e);
	for (size_t i = 0, k; !rc && i < n; i += k) {
		bool known = v[i].f->mp < d->tp; /* the model states of the first stage were read */
		uint32_t layer = v[i].f->layer;
		uint32_t next = i && v[i - 1].owner == v[i].owner ? v[i - 1].f->layer + 1 : 0;
		bool last;

		for (k = 1; i + k < n && same_layer(&v[i], &v[i + k]);)
			k++;
		last = i + k == n || v[i + k].owner != v[i].owner;
		if (known && next < layer && next < d->n_experts)
			return missing(v[i].f, next, 0, e);
		rc = check_layer(v + i, k,
				 !known			? 0
				 : layer < d->n_experts ? d->experts[layer]
							: d->experts_each,
				 e);
		if (!rc && known && last && layer + 1ul < d->n_experts)
			rc = missing(v[i].f, layer + 1, 0, e);
	}
	return rc;
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
		if (a->t == DS_WHOLE && f[one].layer == f[other].layer &&
		    f[one].rank == f[other].rank)
			continue; /* the same expert, saved by several ranks */
		return err_set(e, ERR_CORRUPT,
			       "'%.200s' and '%.200s' both hold '%.150s': one of them has another "
			       "expert's file in its place; restore it",
			       f[one].path, f[other].path, a->name->data);
	}
	return 0;
}

/*
 * Their names are complete, with the expert's number among all experts. With tensor parallelism
 * each rank has a slice of every expert; if AutoEP and AutoTP are folded
 * (module_inject/auto_ep_folding.py), it has some of the experts, and they are whole.
 */
static int read_weights(struct ds *d, bool *ret_folded, struct ckpt_err *e)
{
	static const char folding[] = "folding";
	size_t n;
	struct ds_file *f = ds_files_of(d, DS_EXPERT, UINT32_MAX, &n);
	autofree size_t *first = calloc(n + 1, sizeof(*first));
	bool folded = false;
	int rc = first ? ds_check_twice(f, n, e) : err_nomem(e);

	for (size_t i = 0; !rc && i < n; i++) {
		struct ds_weights w = { .prefix = "",
					.stage = f[i].mp / d->tp,
					.t = f[i].mp % d->tp };
		struct ds_open o;

		first[i] = d->n_tensors;
		rc = ds_open(d, &f[i], &o, e);
		w.dict = &o.file.root;
		if (!rc && ds_get(w.dict, folding)) {
			folded = true;
			w.t = DS_WHOLE;
			w.without = folding;
		}
		if (!rc)
			rc = ds_read_weights(d, &o, &w, e);
		rc = ds_close(d, &o, rc, e);
	}
	if (rc)
		return rc;
	first[n] = d->n_tensors;
	*ret_folded = folded;
	rc = check_experts(d, f, n, folded, e);
	return rc ? rc : check_copies(d, f, first, n, e);
}

/* The expert-parallel ranks that the names of an optimizer's groups tell of; 0: none do. */
static int read_size(struct ds_open *o, const struct pk_value *groups, uint32_t *ret,
		     struct ckpt_err *e)
{
	size_t n = pk_list_len(groups);
	int rc = torch_file_spend(&o->file, n, e);

	for (size_t i = 0; !rc && i < n; i++) {
		const struct pk_value *name = ds_get(&groups->n->v[i], "name");
		const char *s = name && name->type == PK_STR ? name->s->data : "";
		uint32_t size;

		if (text_take(&s, "ep_size_") && text_take_number(&s, 8, &size) && !*s &&
		    size > *ret)
			*ret = size;
	}
	return rc;
}

/* Are there files of ranks 0, 1, ... up to this one? */
static void check_ranks(struct ds *d, const struct ds_file *f, uint32_t next, uint32_t end)
{
	if (next < end)
		(void)ds_miss(d,
			      "'expp_rank_%u_mp_rank_%02u_optim_states.pt' is missing, though "
			      "'%.120s' is there",
			      next, f->mp, f->path);
}

/*
 * Reads experts' optimizer states without ZeRO, which torch.optim numbers. If AutoEP and AutoTP are
 * folded, a model-parallel rank has some of the expert-parallel ranks.
 */
static int read_states(struct ds *d, bool folded, struct ckpt_err *e)
{
	size_t n;
	struct ds_file *f = ds_files_of(d, DS_EXPP, UINT32_MAX, &n);
	uint32_t next = 0, size = 0;
	int rc = 0;

	for (size_t i = 0; !rc && i < n; i++) {
		char rank[64];
		const char *const steps[] = { "optimizer", rank, NULL };
		const struct pk_value *v;
		struct ds_open o;

		(void)snprintf(rank, sizeof(rank), "expp_rank_%u_mp_rank_%02u", f[i].rank, f[i].mp);
		rc = ds_open(d, &f[i], &o, e);
		v = rc ? NULL : pk_get(&o.file.root, "optimizer");
		if (v && v->type == PK_DICT) {
			rc = torch_file_report(&o.file, v, steps, d->w, e);
			if (!rc)
				rc = read_size(&o, ds_get(v, "param_groups"), &size, e);
			if (!folded)
				check_ranks(d, &f[i], next, f[i].rank);
		}
		next = f[i].rank + 1;
		rc = ds_close(d, &o, rc, e);
		if (i + 1 < n && f[i + 1].mp == f[i].mp)
			continue;
		if (!folded)
			check_ranks(d, &f[i], next, size);
		next = size = 0;
	}
	return rc;
}

int ds_read_experts(struct ds *d, struct ckpt_err *e)
{
	bool folded = false;
	int rc = read_weights(d, &folded, e);

	return rc ? rc : read_states(d, folded, e);
}
