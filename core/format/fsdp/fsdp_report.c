/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes tensors to the catalog.
 *
 * A tensor that is not sharded is in every rank's file. If all copies have the same shape and
 * dtype, and the same first and last 4 KiB, it is shown once. Otherwise it is shown as
 *
 *	of the model       rank 0's, with a warning: buffers drift apart between ranks
 *	of other shapes, a piece of a flat parameter, or a state of the optimizer
 *	                   rank_R/NAME, for every rank
 *
 * torch.optim numbers parameters. If there is one group of them, as many as the model has, and all
 * shapes match, they are the model's parameters in its order.
 */
#include "base/buf.h"
#include "base/text.h"
#include "base/vec.h"
#include "format/fsdp/fsdp.h"
#include "index/catalog_build.h"
#include "index/catalog_path.h"
#include "model/box.h"

#include <stdlib.h>
#include <string.h>

struct reporter {
	struct fsdp *d;
	const struct fsdp_tensor *t;
	struct buf fqn;
	uint8_t path[(FSDP_MAX_DEPTH + 2) * CATALOG_PATH_NUMBER];
	struct ckpt_err *e;
};

static const char state_word[] = "optimizer.state.";

/* ---- names ---- */

/* For "optimizer.state.3.exp_avg": 3, and the rest. */
static bool numbered(const struct fsdp_tensor *t, size_t *ret, const char **ret_rest)
{
	const char *s = t->fqn->data + strlen(state_word);
	char *end;

	if (t->kind != FSDP_OPTIM || strncmp(t->fqn->data, state_word, strlen(state_word)) != 0 ||
	    *s < '0' || *s > '9')
		return false;
	*ret = strtoul(s, &end, 10);
	*ret_rest = end;
	return *end == '.';
}

static const struct fsdp_tensor *tensor_of(const struct fsdp *d, const struct pk_str *name)
{
	return &d->tensors[d->by_name[name->id] - 1];
}

/* Are the numbers those of the model's parameters? Every state that is a DTensor must match. */
static bool numbers_are_known(const struct fsdp *d)
{
	size_t n, fit = 0;
	const char *rest;

	for (size_t i = 0; i < d->n_tensors; i++) {
		const struct fsdp_tensor *t = &d->tensors[i], *p;

		if (!numbered(t, &n, &rest))
			continue;
		if (n >= d->n_params)
			return false;
		if (t->what == FSDP_PLAIN || !t->shape)
			continue;
		p = tensor_of(d, d->params[n]);
		if (p->n_dims != t->n_dims || !p->shape ||
		    !dims_equal(p->n_dims, p->shape, t->shape))
			return false;
		fit++;
	}
	return d->one_group && fit && d->n_optim_params == d->n_params;
}

/* The FQN and the path of *r->t; rank >= 0: for that rank only. */
static int make_fqn(struct reporter *r, int64_t rank)
{
	const struct fsdp_tensor *t = r->t;
	const char *rest;
	size_t n, at;

	r->fqn.len = 0;
	if (rank >= 0)
		buf_printf(&r->fqn, "rank_%lld/", (long long)rank);
	if (r->d->numbers_known && numbered(t, &n, &rest)) {
		const struct pk_str *p = r->d->params[n];

		buf_str(&r->fqn, state_word);
		buf_add(&r->fqn, p->data, p->len);
		buf_str(&r->fqn, rest);
		at = catalog_path_put_head(r->path, 4, false);
		at += catalog_path_put_step(r->path + at, strlen("optimizer"), false);
		at += catalog_path_put_step(r->path + at, strlen("state"), false);
		(void)catalog_path_put_step(r->path + at, p->len, false);
	} else {
		buf_add(&r->fqn, t->fqn->data, t->fqn->len);
		memcpy(r->path, t->path, catalog_path_size(t->path));
	}
	if (rank >= 0)
		memcpy(r->path, catalog_path_flat, sizeof(catalog_path_flat));
	return buf_check(&r->fqn, r->e, "a name of more than %d bytes", FSDP_MAX_FQN);
}

/* ---- tensors ---- */

static int report_fault(struct reporter *r)
{
	struct object_item o = { .path = r->path,
				 .loc = { .file = CATALOG_NO_FILE },
				 .fault = r->t->fault };
	int rc = make_fqn(r, -1);

	o.fqn = r->fqn.data;
	o.fqn_len = r->fqn.len;
	return rc ? rc : catalog_add_object(r->d->w, &o, r->e);
}

static int report_shards(struct reporter *r)
{
	const struct fsdp_tensor *t = r->t;
	struct tensor_chunks c = { .path = r->path,
				   .dtype = t->dtype,
				   .n_dims = t->n_dims,
				   .shape = t->shape,
				   .count = (uint32_t)t->chunks.n,
				   .boxes = t->chunks.boxes,
				   .locs = t->chunks.locs };
	int rc = make_fqn(r, -1);

	c.fqn = r->fqn.data;
	c.fqn_len = r->fqn.len;
	return rc ? rc : catalog_add_tensor(r->d->w, &c, r->e);
}

static int report_copy(struct reporter *r, const struct fsdp_copy *x, int64_t rank)
{
	const struct torch_view *v = x->view;
	uint64_t box[2 * CKPT_MAX_DIMS] = { 0 };
	struct chunk_loc loc = { .file = x->file, .offset = x->at };
	struct tensor_chunks c = { .path = r->path,
				   .dtype = v->dtype,
				   .n_dims = v->n_dims,
				   .shape = v->size,
				   .count = v->numel > 0,
				   .boxes = box,
				   .locs = &loc };
	int rc = make_fqn(r, rank);

	if (!rc)
		rc = raw_item(&v->layout, v->dtype, v->n_dims, v->size, r->d->w, &loc, r->e);
	if (v->n_dims)
		memcpy(box + v->n_dims, v->size, v->n_dims * sizeof(*box));
	c.fqn = r->fqn.data;
	c.fqn_len = r->fqn.len;
	return rc ? rc : catalog_add_tensor(r->d->w, &c, r->e);
}

static bool same_view(const struct torch_view *a, const struct torch_view *b)
{
	return a->dtype == b->dtype && a->n_dims == b->n_dims &&
	       dims_equal(a->n_dims, a->size, b->size);
}

static int report_copies(struct reporter *r)
{
	const struct fsdp_tensor *t = r->t;
	const struct fsdp_copy *other = NULL;
	/*
	 * FSDP1's optimizer holds pieces of flat parameters, which may have the same length in all
	 * ranks.
	 */
	bool apart = t->kind == FSDP_OPTIM && r->d->sharded && r->d->world > 1 &&
		     t->copies->view->n_dims;
	int rc = 0;

	for (size_t i = 0; i < t->n_copies; i++) {
		const struct fsdp_copy *x = &t->copies[i];

		apart |= x->flat || !same_view(x->view, t->copies->view);
		if (x->sampled && t->copies->sampled &&
		    memcmp(&x->sample, &t->copies->sample, sizeof(x->sample)) != 0)
			other = x;
	}
	apart |= other && t->kind == FSDP_OPTIM && t->copies->view->n_dims;
	if (!apart) {
		if (other)
			(void)fsdp_note(r->d,
					"'%.150s' of other ranks: rank %u has other values than "
					"rank %u, whose values are shown",
					t->fqn->data, other->rank, t->copies->rank);
		return report_copy(r, t->copies, -1);
	}
	(void)fsdp_note(r->d,
			"which parameters '%.150s' and others are made of: the files do not say "
			"it, so each rank's are shown as rank_R/NAME; save with SHARDED_STATE_DICT",
			t->fqn->data);
	for (size_t i = 0; !rc && i < t->n_copies; i++)
		rc = report_copy(r, &t->copies[i], t->copies[i].rank);
	return rc;
}

int fsdp_report(struct fsdp *d, struct ckpt_err *e)
{
	struct reporter r = { .d = d, .fqn = BUF_INIT(FSDP_MAX_FQN + 64), .e = e };
	int rc = 0;

	d->numbers_known = numbers_are_known(d);
	for (size_t i = 0; !rc && i < d->n_tensors; i++) {
		r.t = &d->tensors[i];
		if (r.t->fault)
			rc = report_fault(&r);
		else if (r.t->what != FSDP_PLAIN)
			rc = report_shards(&r);
		else if (r.t->n_copies)
			rc = report_copies(&r);
		if (rc)
			(void)err_wrap(e, "'%s'", FQN_TEXT(r.t->fqn->data, r.t->fqn->len));
	}
	buf_release(&r.fqn);
	return rc;
}
