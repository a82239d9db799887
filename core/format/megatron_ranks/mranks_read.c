/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the ranks' files: what torch.save has made of
 *
 *	args			 an argparse.Namespace
 *	checkpoint_version	 3.0; absent: 0
 *	iteration
 *	model			 a state dict, flat or nested; or, with a virtual pipeline,
 *	model0, model1, ...	 one of each virtual stage
 *	optimizer, rng_state, ...
 *
 * (generate_state_dict in megatron/training/checkpointing.py); NeMo's are a state dict.
 */
#include "base/buf.h"
#include "base/checked.h"
#include "base/text.h"
#include "base/vec.h"
#include "format/megatron_ranks/mranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	MAX_SAMPLES = 1 << 22,
	MAX_DEPTH = 16, /* of a state dict in state dicts */
	MAX_STAGES = 1 << 10,
};

struct walk {
	struct mr *d;
	struct mr_file *f;
	struct torch_file file;
	uint32_t v;
	struct buf fqn;
};

/* ---- tensors ---- */

/* Are there copies of it that must be compared? */
static bool has_copies(const struct mr *d, const char *name, size_t len)
{
	enum mr_rule rule = mr_rule_of(name, len);

	if (d->n_files == 1)
		return false;
	return rule == MR_UNKNOWN || rule == MR_COPY || rule == MR_EITHER || rule == MR_VOCAB ||
	       (d->ep > 1 && !mr_is_expert(name)) || d->expert_tp != UINT64_MAX;
}

/* Hashes its ends, in which tensors that are not copies almost certainly differ. */
static int sample(struct walk *w, const struct torch_view *v, struct digest *ret,
		  struct ckpt_err *e)
{
	if (!v->numel)
		return 0;
	if (w->d->samples++ >= MAX_SAMPLES)
		return err_set(e, EFBIG,
			       "there are more than %d tensors of which there may be copies",
			       MAX_SAMPLES);
	return torch_file_sample(&w->file, v, ret, e);
}

/* Notes what makes a rank's file differ from those of others. */
static void note_kind(struct mr_file *f, const char *name, size_t len)
{
	enum mr_rule rule = mr_rule_of(name, len);

	if (mr_is_expert(name))
		f->experts = true;
	else if (rule != MR_UNKNOWN && rule != MR_COPY && rule != MR_EITHER)
		f->slices = true;
}

static int add_tensor(struct walk *w, const struct pk_value *v, struct ckpt_err *e)
{
	struct mr *d = w->d;
	struct mr_part p = { .file = w->f, .v = w->v };
	struct torch_view *view = arena_alloc(&d->arena, sizeof(*view));
	struct ckpt_err why;
	int rc;

	p.view = view;
	p.name = pk_intern(d->names, w->fqn.data, w->fqn.len);
	if (!p.name)
		return err_set(e, errno, "the names of all tensors take too much memory");
	if (!view || !VEC_ROOM(d->parts, d->cap_parts, d->n_parts + 1))
		return err_nomem(e);
	rc = torch_file_view(&w->file, v, view, &why);
	if (rc == -ERR_UNSUPPORTED)
		return format_note(d->not_shown, "'%.150s' of '%.100s': %s", p.name->data,
				   w->f->path, why.msg);
	if (rc)
		*e = why;
	else if (has_copies(d, p.name->data, p.name->len))
		rc = sample(w, view, &p.sample, e);
	if (rc)
		return err_wrap(e, "'%.100s': '%s'", w->f->path, FQN_TEXT(w->fqn.data, w->fqn.len));
	if (view->numel)
		note_kind(w->f, p.name->data, p.name->len);
	d->parts[d->n_parts++] = p;
	return 0;
}

/* 1: it contains a tensor, or is nested too deep to tell. */
static int has_tensor(struct walk *w, const struct pk_value *v, unsigned depth, struct ckpt_err *e)
{
	size_t step = v->type == PK_DICT ? 2 : 1;
	size_t n = v->type == PK_DICT || v->type == PK_LIST || v->type == PK_TUPLE ? pk_len(v) : 0;
	int rc = torch_file_spend(&w->file, 1 + n, e);

	if (rc || torch_is_tensor(v))
		return rc ? rc : 1;
	if (depth == MAX_DEPTH)
		return n > 0;
	for (size_t i = 0; !rc && i < n; i++)
		rc = has_tensor(w, &v->n->v[step * i + step - 1], depth + 1, e);
	return rc;
}

/* State dicts are not lists, and their keys are not numbers: tensors in such values are not
 * shown. */
static int tell_tensors_in(struct walk *w, const struct pk_value *v, unsigned depth,
			   struct ckpt_err *e)
{
	int rc = has_tensor(w, v, depth, e);

	return rc <= 0 ? rc
		       : format_note(w->d->not_shown,
				     "tensors in lists or under keys that are not names, in "
				     "'%.120s' of '%.100s'",
				     w->fqn.len ? w->fqn.data : "model", w->f->path);
}

/* Legacy models nest state dicts: {"language_model": {"encoder": {"layers.0...": tensor}}}. */
static int read_dict(struct walk *w, const struct pk_value *dict, unsigned depth,
		     struct ckpt_err *e)
{
	int rc = torch_file_spend(&w->file, 1 + pk_len(dict), e);

	for (size_t i = 0; !rc && i < pk_len(dict); i++) {
		const struct pk_value *key = &dict->n->v[2 * i], *v = key + 1;
		size_t len = w->fqn.len;

		if (key->type != PK_STR || strlen(key->s->data) != key->s->len) {
			rc = tell_tensors_in(w, v, depth, e);
			continue; /* no name of a module or parameter */
		}
		buf_str(&w->fqn, len ? "." : "");
		buf_add(&w->fqn, key->s->data, key->s->len);
		if (buf_check(&w->fqn, e, "a name of more than %d bytes", MR_MAX_FQN))
			return -e->code;
		if (torch_is_tensor(v))
			rc = add_tensor(w, v, e);
		else if (v->type == PK_DICT && depth == MAX_DEPTH)
			rc = err_set(e, ERR_UNSUPPORTED, "'%.150s' is nested more than %d deep",
				     w->f->path, MAX_DEPTH);
		else if (v->type == PK_DICT)
			rc = read_dict(w, v, depth + 1, e);
		else
			rc = tell_tensors_in(w, v, depth, e);
		w->fqn.len = len;
		w->fqn.data[len] = 0;
	}
	return rc;
}

/* ---- what describes the checkpoint ---- */

static const struct pk_value *arg_of(const struct pk_value *root, const char *name)
{
	const struct pk_value *args = pk_get(root, "args");

	return !args			 ? NULL
	       : args->type == PK_DICT	 ? pk_get(args, name)
	       : args->type == PK_OBJECT ? pk_attr(args, name)
					 : NULL;
}

/* UINT64_MAX: it is not there, or no number that could be one. */
static uint64_t number_arg(const struct pk_value *root, const char *name)
{
	const struct pk_value *v = arg_of(root, name);

	return v && v->type == PK_INT && v->i > 0 ? (uint64_t)v->i : UINT64_MAX;
}

static uint64_t rank_of(const struct pk_value *root)
{
	const struct pk_value *v = arg_of(root, "rank");

	return v && v->type == PK_INT && v->i >= 0 ? (uint64_t)v->i : UINT64_MAX;
}

/* checkpoint_version is a float, of which only 0, 1, 2 and 3 have occurred. */
static uint64_t version_of(const struct pk_value *root)
{
	const struct pk_value *v = pk_get(root, "checkpoint_version");

	if (!v || v->type == PK_NONE)
		return 0;
	if (v->type == PK_INT)
		return v->i >= 0 && v->i < 1000 ? 10 * (uint64_t)v->i : UINT64_MAX;
	return v->type == PK_FLOAT && v->f >= 0 && v->f < 1000 ? (uint64_t)(v->f * 10) : UINT64_MAX;
}

static uint64_t iteration_of(const struct pk_value *root)
{
	const struct pk_value *v = pk_get(root, "iteration");

	return v && v->type == PK_INT && v->i >= 0 ? (uint64_t)v->i : UINT64_MAX;
}

/*
 * A name's only number besides the tensor-parallel rank is the stage, if there are several, else
 * the expert-parallel rank.
 */
static void place_ranks(struct mr *d, const struct pk_value *root)
{
	uint64_t pp = number_arg(root, "pipeline_model_parallel_size");
	uint64_t ep = number_arg(root, "expert_model_parallel_size");
	bool expert = pp == 1 && ep != UINT64_MAX && ep > 1;

	for (size_t i = 0; i < d->n_files; i++) {
		struct mr_file *f = &d->files[i];

		if (f->n_numbers == 2) {
			f->p = f->n[0];
			f->e = f->n[1];
		} else if (f->n_numbers == 1 && expert) {
			f->e = f->n[0];
		} else if (f->n_numbers == 1) {
			f->p = f->n[0];
		}
	}
}

static int by_rank(const void *ap, const void *bp)
{
	const struct mr_file *a = ap, *b = bp;
	const uint32_t x[] = { a->p, a->t, a->e }, y[] = { b->p, b->t, b->e };

	for (size_t i = 0; i < ARRAY_LEN(x); i++)
		if (x[i] != y[i])
			return x[i] < y[i] ? -1 : 1;
	return strcmp(a->path, b->path);
}

/*
 * The size of one kind of parallelism, at least *ret: what args or the configuration say must be
 * what the files' names do.
 */
static int count(const struct mr *d, uint64_t says, const char *arg, size_t number, uint32_t *ret,
		 struct ckpt_err *e)
{
	const struct mr_file *last = NULL;
	uint32_t highest = 0;
	char by[160] = "'" MR_CONFIG "' has";

	if (!d->files->nemo)
		(void)snprintf(by, sizeof(by), "the args in '%.100s' have", d->files->path);
	for (size_t i = 0; i < d->n_files; i++) {
		const struct mr_file *f = &d->files[i];
		uint32_t n = number == 0 ? f->t : number == 1 ? f->p : f->e;

		if (n >= highest)
			last = f;
		highest = n > highest ? n : highest;
	}
	if (says != UINT64_MAX && says != highest + (uint64_t)1)
		return err_set(e, says < highest + (uint64_t)1 ? ERR_CORRUPT : ENOENT,
			       "%s %s=%llu, but the last rank's file is '%.100s': %s", by, arg,
			       (unsigned long long)says, last->path,
			       says > highest ? "others are missing"
					      : "it is from another checkpoint");
	*ret = highest + 1 > *ret ? highest + 1 : *ret;
	return 0;
}

/* The directory of a rank, named as the others are. */
static int missing(const struct mr *d, uint32_t p, uint32_t t, uint32_t expert_rank,
		   struct ckpt_err *e)
{
	bool nemo = *d->files->path == 't';
	char stage[24] = "", expert[16] = "";

	if (d->pp > 1)
		(void)snprintf(stage, sizeof(stage), "%s_%03u", nemo ? "_pp_rank" : "", p);
	if (d->ep > 1)
		(void)snprintf(expert, sizeof(expert), "_%03u", expert_rank);
	return err_set(e, ENOENT, "'%cp_rank_%02u%s%s' is missing beside '%.*s'", nemo ? 't' : 'm',
		       t, stage, expert, (int)d->files->dir_len, d->files->path);
}

/*
 * Are all ranks' files there? If experts have a tensor parallelism of their own, not every
 * tensor-parallel rank occurs with every expert-parallel rank, but each occurs.
 */
static int check_ranks(const struct mr *d, struct ckpt_err *e)
{
	bool loose = d->ep > 1 && d->expert_tp != UINT64_MAX && d->expert_tp < d->tp;
	size_t i = 0;

	for (i = 1; i < d->n_files; i++)
		if (d->files[i].p == d->files[i - 1].p && d->files[i].t == d->files[i - 1].t &&
		    d->files[i].e == d->files[i - 1].e)
			return err_set(e, ERR_CORRUPT,
				       "'%.100s' and '%.100s' are of the same rank: one is from "
				       "another checkpoint",
				       d->files[i - 1].path, d->files[i].path);
	i = 0;
	for (uint32_t p = 0; p < d->pp; p++) {
		size_t stage = i;

		for (uint32_t t = 0; t < d->tp; t++) {
			size_t first = i;
			uint32_t next = 0;

			for (; i < d->n_files && d->files[i].p == p && d->files[i].t == t; i++)
				if (d->files[i].e == next)
					next++;
			if (loose ? i == first : next < d->ep)
				return missing(d, p, t, loose ? 0 : next, e);
		}
		for (uint32_t x = 0; loose && x < d->ep; x++) {
			size_t k = stage;

			while (k < i && d->files[k].e != x)
				k++;
			if (k == i)
				return missing(d, p, 0, x, e);
		}
	}
	return 0;
}

static int read_sizes(struct mr *d, const struct pk_value *root, struct ckpt_err *e)
{
	bool old = arg_of(root, "model_parallel_size") != NULL, nemo = d->files->nemo;
	const char *tp = old ? "model_parallel_size" : "tensor_model_parallel_size";
	const char *pp = "pipeline_model_parallel_size", *ep = "expert_model_parallel_size";
	int rc = nemo ? mr_read_config(d, e) : 0;

	d->heads = number_arg(root, "num_attention_heads");
	d->layers = number_arg(root, "num_layers");
	d->expert_tp = number_arg(root, "expert_tensor_parallel_size");
	d->version_times_10 = d->files->nemo ? 30 : version_of(root);
	d->iteration = iteration_of(root);
	if (d->version_times_10 == UINT64_MAX)
		return err_set(e, ERR_CORRUPT, "'%.200s': its checkpoint_version is not a number",
			       d->files->path);
	place_ranks(d, root);
	qsort(d->files, d->n_files, sizeof(*d->files), by_rank);
	/* If there is only one rank, NeMo's directory is named in neither way. */
	d->tp = nemo && !d->files->n_numbers ? 2 : 1;
	d->pp = nemo && d->files->n_numbers ? 2 : 1;
	d->ep = 1;
	if (!rc)
		rc = count(d, nemo ? d->config_tp : number_arg(root, tp), tp, 0, &d->tp, e);
	if (!rc)
		rc = count(d, nemo ? d->config_pp : number_arg(root, pp), pp, 1, &d->pp, e);
	if (!rc)
		rc = count(d, number_arg(root, ep), ep, 2, &d->ep, e);
	return rc ? rc : check_ranks(d, e);
}

/* Files of one save are of the same iteration and version. */
static int check_file(const struct walk *w, const struct pk_value *root, struct ckpt_err *e)
{
	const struct mr *d = w->d;
	uint64_t n = iteration_of(root);

	if (n != d->iteration)
		return err_set(e, ERR_CORRUPT,
			       "'%.100s' is of iteration %lld, and '%.100s' of %lld: are these "
			       "files from one save?",
			       w->f->path, (long long)n, d->files->path, (long long)d->iteration);
	if (!w->f->nemo && version_of(root) != d->version_times_10)
		return err_set(e, ERR_CORRUPT,
			       "'%.100s' and '%.100s' have different values of checkpoint_version",
			       w->f->path, d->files->path);
	return 0;
}

/* ---- files ---- */

/* The other values of the first file: those of other ranks are the same. */
static int read_objects(struct walk *w, const struct pk_value *root, struct ckpt_err *e)
{
	static const char *const keys[] = {
		"args",		"checkpoint_version",
		"iteration",	"opt_param_scheduler",
		"lr_scheduler", "num_floating_point_operations_so_far"
	};
	int rc = 0;

	for (size_t i = 0; !rc && i < ARRAY_LEN(keys); i++) {
		const char *const steps[] = { keys[i], NULL };
		const struct pk_value *v = pk_get(root, keys[i]);

		if (v && v->type != PK_NONE)
			rc = torch_file_report(&w->file, v, steps, w->d->w, e);
	}
	return rc;
}

/* Reads model, or model0, model1, ...; every rank has as many. */
static int read_models(struct walk *w, const struct pk_value *root, struct ckpt_err *e)
{
	const struct pk_value *model = pk_get(root, "model");
	uint32_t n = 0;
	int rc = 0;

	if (w->f->nemo)
		model = root;
	if (model && model->type == PK_DICT) {
		rc = read_dict(w, model, 0, e);
		n = 1;
	}
	for (; !rc && !model && n < MAX_STAGES; n++) {
		char key[16];
		const struct pk_value *v;

		(void)snprintf(key, sizeof(key), "model%u", n);
		v = pk_get(root, key);
		if (!v || v->type != PK_DICT)
			break;
		w->v = n;
		rc = read_dict(w, v, 0, e);
	}
	if (!rc && !n)
		return err_set(e, ERR_CORRUPT, "'%.200s' has no model", w->f->path);
	if (!rc && w->d->vp && w->d->vp != n)
		return err_set(e, ERR_CORRUPT,
			       "'%.100s' has %u virtual stages, and '%.100s' has %u", w->f->path, n,
			       w->d->files->path, w->d->vp);
	w->d->vp = n;
	return rc;
}

/* The first file that is read describes the checkpoint: then all files get their places. */
static struct mr_file *describe(struct mr *d, const struct mr_file *f, const struct pk_value *root,
				struct ckpt_err *e)
{
	const char *path = f->path;
	size_t i = 0;

	if (read_sizes(d, root, e))
		return NULL;
	while (d->files[i].path != path)
		i++;
	return &d->files[i];
}

static int read_file(struct mr *d, struct mr_file *f, bool first, struct ckpt_err *e)
{
	struct walk w = { .d = d, .f = f, .fqn = BUF_INIT(MR_MAX_FQN) };
	const struct pk_value *root = &w.file.root;
	int rc = torch_file_open(&w.file, d->place, f->path, d->w, e);

	buf_str(&w.fqn, "");
	if (!rc && w.fqn.err)
		rc = err_nomem(e);
	if (!rc && root->type != PK_DICT)
		rc = err_set(e, ERR_CORRUPT, "'%.200s' does not hold a dict", f->path);
	if (!rc && first) {
		f = describe(d, f, root, e);
		w.f = f;
		rc = f ? 0 : -e->code;
	} else if (!rc) {
		rc = check_file(&w, root, e);
	}
	if (!rc) {
		f->number = w.file.number;
		f->done = true;
		f->sums = w.file.t.sums;
		f->has_sums = w.file.t.has_sums;
		f->rank = rank_of(root);
		d->optimizer |= pk_get(root, "optimizer") != NULL;
		rc = read_models(&w, root, e);
	}
	if (!rc && first && !f->nemo)
		rc = read_objects(&w, root, e);
	if (!rc && d->opts->progress)
		d->opts->progress(d->opts->progress_arg, ++d->n_read, d->n_files);
	rc = torch_file_close(&w.file, rc, e);
	buf_release(&w.fqn);
	return rc;
}

int mr_read(struct mr *d, struct ckpt_err *e)
{
	int rc = read_file(d, d->files, true, e);

	for (size_t i = 0; !rc && i < d->n_files; i++)
		if (!d->files[i].done)
			rc = read_file(d, &d->files[i], false, e);
	return rc ? rc : mr_check_copies(d, e);
}
