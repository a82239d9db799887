/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two ways in which models store experts:
 *
 *	fused   P.mlp.experts.gate_up_proj [experts, 2 * ffn, hidden], gate above up
 *	        P.mlp.experts.down_proj [experts, hidden, ffn]
 *	split   P.mlp.experts.E.{gate,up,down}_proj.weight; for Mixtral
 *	        P.block_sparse_moe.experts.E.{w1,w3,w2}.weight, with its router there, too
 *
 * transformers 5 has them fused in memory, which training checkpoints are made from;
 * save_pretrained splits them.
 */
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "base/vec.h"
#include "gguf/gguf_config.h"
#include "model/box.h"
#include "tensor/vtensor.h"
#include "tensor/vtensor_ops.h"
#include "tree/view_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CONFIG ((uint64_t)16 << 20) /* bytes */
#define MAX_NAME   1024
/* Weights that are made: 512 experts in 100 layers are 153,600. Bounds memory, because few bytes
 * can describe a tensor of very many experts. */
#define MAX_SPLIT ((uint64_t)1 << 18)

enum { GATE, UP, DOWN, PARTS };

struct style {
	const char *type, *block; /* model_type; the path element that contains the experts */
	const char *part[PARTS];
};
static const struct style styles[] = {
	{ "mixtral", "block_sparse_moe", { "w1", "w3", "w2" } },
	{ "qwen2_moe", "mlp", { "gate_proj", "up_proj", "down_proj" } },
	{ "qwen3_moe", "mlp", { "gate_proj", "up_proj", "down_proj" } },
	{ "deepseek_v2", "mlp", { "gate_proj", "up_proj", "down_proj" } },
	{ "deepseek_v3", "mlp", { "gate_proj", "up_proj", "down_proj" } },
	{ "glm4_moe", "mlp", { "gate_proj", "up_proj", "down_proj" } },
	{ "qwen3_next", "mlp", { "gate_proj", "up_proj", "down_proj" } },
	{ "qwen3_5_moe_text", "mlp", { "gate_proj", "up_proj", "down_proj" } },
};

struct regrouping {
	struct view *v;
	bool split; /* split fused experts, rather than fuse split ones */
	const struct style *style;
	struct model out;
	size_t cap; /* capacity of its weights */
	bool *gone; /* by position in the model */
	bool any;
	struct ckpt_err *e;
};

/* ---- identifying the model ---- */

static int find_style(const struct view *v, const struct style **ret, struct ckpt_err *e)
{
	CLEANUP(asset_text_release) struct asset_text t = { 0 };
	CLEANUP(jdoc_release) struct jdoc d = { 0 };
	const char *type;
	int rc = view_read_asset(v, "config.json", MAX_CONFIG, &t, e);

	if (!rc && !t.s)
		rc = err_set(e, ENOENT,
			     "it needs a config.json, beside the checkpoint or in assets=");
	if (!rc)
		rc = gguf_json("config.json", t.s, t.len, &d, e);
	if (rc)
		return rc;
	*ret = NULL;
	type = jval_str(jval_get(jdoc_root(&d), "model_type"));
	for (size_t i = 0; type && i < ARRAY_LEN(styles); i++)
		if (!strcmp(type, styles[i].type))
			*ret = &styles[i];
	if (!*ret)
		rc = err_set(e, EINVAL,
			     "config.json: model_type '%.60s' has no experts that are known",
			     type ? type : "");
	return rc;
}

/* ---- building the new model ---- */

/* Takes over w, also on failure. */
static int add(struct regrouping *g, const char *name, size_t len, struct weight w)
{
	struct model *m = &g->out;
	const char *copy = namelist_copy(&m->names, name, len);
	int rc = 0;

	if (!copy || !VEC_ROOM(m->weights, g->cap, m->n_weights + 1))
		rc = err_nomem(g->e);
	if (!rc && m->n_weights == VIEW_MAX_NAMES)
		rc = err_set(g->e, EFBIG, "the tree has numbers for %u tensors", VIEW_MAX_NAMES);
	if (!rc && w.made)
		rc = view_weight_sources(&w, g->e);
	if (!rc)
		rc = namelist_add(&m->names, copy, len, (uint32_t)m->n_weights, g->e);
	if (rc) {
		free(w.made);
		free(w.sources);
		return rc;
	}
	m->weights[m->n_weights++] = w;
	return 0;
}

static int add_made(struct regrouping *g, const char *name, struct vtensor *made)
{
	return add(g, name, strlen(name), (struct weight){ .made = made });
}

static int whole(const struct regrouping *g, size_t i, size_t n_dims, struct vtensor **ret)
{
	const struct named *name = &g->v->model.names.v[i];
	int rc = view_vtensor(g->v, view_id(OF_MODEL, i), ret, g->e);

	if (!rc && (*ret)->n_dims != n_dims)
		rc = err_set(g->e, EINVAL, "'%s' is %s", FQN_TEXT(name->fqn, name->len),
			     TUPLE_TEXT((*ret)->shape, (*ret)->n_dims));
	return rc;
}

/* Does the name end in `end`? *ret_len: length of the part before it. */
static bool ends(const struct named *name, const char *end, int *ret_len)
{
	if (name->len > MAX_NAME / 2 || !bytes_end(name->fqn, name->len, end))
		return false;
	*ret_len = (int)(name->len - strlen(end));
	return true;
}

/* ---- split ---- */

static int split_one(struct regrouping *g, const struct vtensor *v, const char *prefix, int len,
		     int part, uint64_t expert)
{
	uint64_t rows = part == DOWN ? v->shape[1] : v->shape[1] / 2;
	uint64_t off[] = { part == UP ? rows : 0, 0 }, size[] = { rows, v->shape[2] };
	autofree struct vtensor *one = NULL;
	struct vtensor *made = NULL;
	char name[MAX_NAME];
	int rc = vtensor_pick(v, expert, &one, g->e);

	if (!rc)
		rc = vtensor_slice(one, off, size, &made, g->e);
	(void)snprintf(name, sizeof(name), "%.*s.%s.experts.%llu.%s.weight", len, prefix,
		       g->style->block, (unsigned long long)expert, g->style->part[part]);
	return rc ? rc : add_made(g, name, made);
}

static int split(struct regrouping *g, size_t i, const char *prefix, int len, bool down)
{
	autofree struct vtensor *v = NULL;
	int rc = whole(g, i, 3, &v);

	if (!rc && !v->bytes) /* however many experts, there is nothing to separate */
		return 0;
	if (!rc && !down && v->shape[1] % 2)
		rc = err_set(g->e, EINVAL, "'%.80s' is %s", prefix, TUPLE_TEXT(v->shape, 3));
	if (!rc && (v->shape[0] > MAX_SPLIT ||
		    g->out.n_weights + (down ? 1 : 2) * v->shape[0] > MAX_SPLIT))
		rc = err_set(g->e, EFBIG,
			     "'%.80s' is %s: the experts would be more than %llu tensors in all",
			     prefix, TUPLE_TEXT(v->shape, 3), (unsigned long long)MAX_SPLIT);
	for (uint64_t x = 0; !rc && x < v->shape[0]; x++)
		for (int part = down ? DOWN : GATE; !rc && part <= (down ? DOWN : UP); part++)
			rc = split_one(g, v, prefix, len, part, x);
	g->gone[i] = g->any = true;
	return rc;
}

/* ---- fused ---- */

/* 1: there is no such expert. */
static int find_expert(struct regrouping *g, const char *prefix, int len, uint64_t expert, int part,
		       struct vtensor **ret)
{
	char name[MAX_NAME];
	int n = snprintf(name, sizeof(name), "%.*s.%s.experts.%llu.%s.weight", len, prefix,
			 g->style->block, (unsigned long long)expert, g->style->part[part]);
	int64_t at = namelist_find(&g->v->model.names, name, (size_t)n);
	int rc = at < 0 ? 1 : whole(g, (size_t)at, 2, ret);

	if (!rc)
		g->gone[at] = true;
	return rc;
}

struct experts {
	struct vtensor **v; /* gate above up, or down */
	size_t n, cap;
};

static void experts_release(struct experts *x)
{
	for (size_t i = 0; i < x->n; i++)
		free(x->v[i]);
	free(x->v);
}

/* Takes over v, unless it is NULL. */
static int push(struct regrouping *g, struct experts *x, struct vtensor *v)
{
	const struct vtensor *first = x->n ? x->v[0] : v;

	if (!VEC_ROOM(x->v, x->cap, x->n + 1)) {
		free(v);
		return err_nomem(g->e);
	}
	x->v[x->n++] = v;
	return vtensor_alike(v, first) && v->shape[0] == first->shape[0] &&
			       v->shape[1] == first->shape[1]
		       ? 0
		       : err_set(g->e, EINVAL,
				 "expert %zu differs from the first in dtype or shape", x->n - 1);
}

static int gate_and_up(struct regrouping *g, const char *prefix, int len, uint64_t expert,
		       struct vtensor **ret)
{
	autofree struct vtensor *gate = NULL;
	autofree struct vtensor *up = NULL;
	int rc = find_expert(g, prefix, len, expert, GATE, &gate);

	if (!rc)
		rc = find_expert(g, prefix, len, expert, UP, &up);
	if (!rc && (!vtensor_alike(gate, up) || gate->shape[1] != up->shape[1]))
		rc = err_set(g->e, EINVAL, "expert %llu: gate and up differ in dtype or shape",
			     (unsigned long long)expert);
	return rc ? rc : vtensor_concat((const struct vtensor *const[]){ gate, up }, 2, ret, g->e);
}

/* Fuses all experts of a block into one of its two tensors. */
static int fuse(struct regrouping *g, const char *prefix, int len, bool down, size_t *ret_n)
{
	CLEANUP(experts_release) struct experts x = { 0 };
	struct vtensor *v = NULL;
	char name[MAX_NAME];
	int rc = 0;

	for (uint64_t i = 0; !rc; i++) {
		v = NULL;
		rc = down ? find_expert(g, prefix, len, i, DOWN, &v)
			  : gate_and_up(g, prefix, len, i, &v);
		if (!rc)
			rc = push(g, &x, v);
		else
			free(v);
	}
	if (rc < 0)
		return rc;
	*ret_n = x.n;
	if (!x.n)
		return err_set(g->e, EINVAL, "the experts of '%.*s' are not complete",
			       len < 100 ? len : 100, prefix);
	rc = vtensor_stack((const struct vtensor *const *)x.v, x.n, &v, g->e);
	(void)snprintf(name, sizeof(name), "%.*s.mlp.experts.%s", len, prefix,
		       down ? "down_proj" : "gate_up_proj");
	g->any = true;
	return rc ? rc : add_made(g, name, v);
}

/* ---- entry points ---- */

static int regroup_tensor(struct regrouping *g, size_t i)
{
	const struct named *name = &g->v->model.names.v[i];
	size_t n, n_down;
	char first[64];
	int len, rc;

	if (g->split) {
		if (ends(name, ".mlp.experts.gate_up_proj", &len))
			return split(g, i, name->fqn, len, false);
		return ends(name, ".mlp.experts.down_proj", &len)
			       ? split(g, i, name->fqn, len, true)
			       : 0;
	}
	(void)snprintf(first, sizeof(first), ".%s.experts.0.%s.weight", g->style->block,
		       g->style->part[GATE]);
	if (!ends(name, first, &len))
		return 0;
	rc = fuse(g, name->fqn, len, false, &n);
	if (!rc)
		rc = fuse(g, name->fqn, len, true, &n_down);
	if (!rc && n != n_down)
		rc = err_set(g->e, EINVAL, "'%s' is one of %zu experts, of which %zu %s complete",
			     FQN_TEXT(name->fqn, name->len), n, n_down, n_down == 1 ? "is" : "are");
	return rc;
}

/* Copies a tensor unchanged, except that the router's name follows that of its experts. */
static int keep(struct regrouping *g, size_t i)
{
	const struct named *name = &g->v->model.names.v[i];
	struct weight w = { .at = g->v->model.weights[name->index].at };
	char from[40], to[MAX_NAME];
	int len, rc = 0;

	if (g->v->model.weights[name->index].made)
		rc = view_vtensor(g->v, view_id(OF_MODEL, i), &w.made, g->e);
	if (rc)
		return rc;
	(void)snprintf(from, sizeof(from), ".%s.gate.weight", g->split ? "mlp" : g->style->block);
	if (!ends(name, from, &len))
		return add(g, name->fqn, name->len, w);
	(void)snprintf(to, sizeof(to), "%.*s.%s.gate.weight", len, name->fqn,
		       g->split ? g->style->block : "mlp");
	return add(g, to, strlen(to), w);
}

static void new_name(const void *arg, uint32_t index, const char **ret, size_t *ret_len)
{
	(void)arg;
	(void)index;
	*ret = "an expert"; /* both names would come from the same tensor */
	*ret_len = strlen(*ret);
}

static int regroup(struct regrouping *g)
{
	struct view *v = g->v;
	int rc = find_style(v, &g->style, g->e);

	for (size_t i = 0; !rc && i < v->model.names.n; i++)
		rc = regroup_tensor(g, i);
	for (size_t i = 0; !rc && g->any && i < v->model.names.n; i++)
		if (!g->gone[i])
			rc = keep(g, i);
	return rc || !g->any ? rc : namelist_finish(&g->out.names, new_name, NULL, g->e);
}

/* Builds *ret, which stays empty if there is nothing to do. */
static int regrouped(struct view *v, bool split, struct model *ret, struct ckpt_err *e)
{
	struct regrouping g = { .v = v, .split = split, .e = e };
	int rc;

	g.gone = calloc(v->model.names.n + 1, sizeof(*g.gone));
	rc = g.gone ? regroup(&g) : err_nomem(e);
	free(g.gone);
	if (rc || !g.any)
		model_release(&g.out);
	*ret = g.out;
	return rc ? err_wrap(e, "option 'experts'") : 0;
}

static bool has_fused(const struct view *v)
{
	int len;

	for (size_t i = 0; i < v->model.names.n; i++)
		if (ends(&v->model.names.v[i], ".mlp.experts.gate_up_proj", &len))
			return true;
	return false;
}

/*
 * Regroups as save_pretrained would, if that is known; no option requested this, so failures are
 * not errors.
 */
static int for_hf(struct view *v, struct ckpt_err *e)
{
	int rc = has_fused(v) ? regrouped(v, true, &v->regrouped, e) : 0;

	if (v->regrouped.names.n)
		v->hf = &v->regrouped;
	return rc == -ENOMEM ? rc : 0;
}

int view_experts_init(struct view *v, struct ckpt_err *e)
{
	struct model m;
	int rc;

	if (v->o.experts == EXPERTS_STORED)
		return 0;
	if (v->o.experts == EXPERTS_AUTO)
		return for_hf(v, e);
	rc = regrouped(v, v->o.experts == EXPERTS_SPLIT, &m, e);
	if (m.names.n) {
		model_release(&v->model);
		v->model = m;
	} else if (!rc && v->o.warn) {
		v->o.warn(v->o.warn_arg, "option 'experts': the model stores its experts that way "
					 "already, or has none");
	}
	return rc;
}
