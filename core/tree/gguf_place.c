/* SPDX-License-Identifier: Apache-2.0 */
#include "tree/gguf_place.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "base/vec.h"
#include "codec/blocks.h"
#include "codec/cast.h"
#include "gguf/gguf_config.h"
#include "gguf/gguf_mix.h"
#include "index/catalog_query.h"
#include "model/box.h"
#include "tensor/vtensor.h"
#include "tensor/vtensor_ops.h"
#include "tree/gguf_linear.h"
#include "tree/view_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct placing {
	const struct view *v;
	const struct gguf_config *c;
	const struct arch_prefix *prefix;
	bool *used; /* by position in the model */
	struct gguf_tensors *ret;
	struct ckpt_err *e;
};

/* ---- tensors of the model ---- */

/* Returns 1 if there is no tensor with that name. */
static int take(struct placing *p, const char *name, size_t n_dims, const uint64_t *shape,
		struct vtensor **ret)
{
	int64_t at = namelist_find(&p->v->model.names, name, strlen(name));
	uint64_t have[CKPT_MAX_DIMS];
	struct tensor_info m;
	struct ckpt_err why;
	int rc;

	if (at < 0)
		return 1;
	if (view_is_left_out(p->v, OF_MODEL, (size_t)at, &why))
		return err_set(p->e, why.code, "'%.80s': %.140s", name, why.msg);
	(void)view_info(p->v, OF_MODEL, (size_t)at, &m, have);
	if (m.n_dims != n_dims || !dims_equal(n_dims, m.shape, shape))
		return err_set(p->e, EINVAL, "'%.80s' is %s, but by config.json it should be %s",
			       name, TUPLE_TEXT(m.shape, m.n_dims), TUPLE_TEXT(shape, n_dims));
	rc = view_vtensor(p->v, m.id, ret, p->e);
	if (rc)
		return rc;
	if (!cast_possible((*ret)->stored, CKPT_DTYPE_F32))
		rc = err_set(p->e, ERR_UNSUPPORTED, "'%.80s' is of dtype %s", name,
			     dtype_info((*ret)->stored)->name);
	p->used[at] = true;
	return rc;
}

static int absent(const struct placing *p, const char *name)
{
	return err_set(p->e, ENOENT, "the model has no '%.120s'", name);
}

/* ---- tensors of the GGUF ---- */

static struct gguf_tensor *add(struct placing *p, const char *name)
{
	struct gguf_tensors *l = p->ret;

	if (!VEC_ROOM(l->t, l->cap_t, l->n + 1) || !VEC_ROOM(l->v, l->cap_v, l->n + 1)) {
		(void)err_nomem(p->e);
		return NULL;
	}
	l->t[l->n] = (struct gguf_tensor){ 0 };
	l->v[l->n] = NULL;
	(void)snprintf(l->t[l->n].name, GGUF_NAME_CAP, "%s", name);
	return &l->t[l->n++];
}

static void show_as(struct vtensor *v, enum ggml_type type)
{
	uint64_t elements = v->bytes / dtype_info(v->dtype)->size;

	v->dtype = type == GGML_F16    ? CKPT_DTYPE_F16
		   : type == GGML_BF16 ? CKPT_DTYPE_BF16
				       : CKPT_DTYPE_F32;
	v->blocks = block_type(type);
	v->bytes = v->blocks ? elements / v->blocks->elements * v->blocks->bytes
			     : elements * dtype_info(v->dtype)->size;
}

/* Takes over v. precise: float32 although it is a matrix; others get their type at the end. */
static int add_tensor(struct placing *p, const char *name, struct vtensor *v, size_t n_dims,
		      const uint64_t *shape, bool precise)
{
	struct gguf_tensor *t = add(p, name);

	if (!t) {
		free(v);
		return -ENOMEM;
	}
	t->n_dims = (uint8_t)n_dims;
	memcpy(t->shape, shape, n_dims * sizeof(*shape));
	t->type = precise || n_dims == 1 ? GGML_F32 : GGML_F16;
	p->ret->v[p->ret->n - 1] = v;
	return 0;
}

static void swap_last(uint64_t *shape, size_t n)
{
	uint64_t last = shape[n - 1];

	shape[n - 1] = shape[n - 2];
	shape[n - 2] = last;
}

static const struct arith plus_one = { ARITH_PLUS, 1 }, minus_exp = { ARITH_MINUS_EXP, 0 };

/* The converter computes in float16 if that is stored, and otherwise in float32. */
static void compute(struct vtensor *v, struct arith a)
{
	bool half = v->stored == CKPT_DTYPE_F16 && v->arith.op == ARITH_NONE;

	*(half ? &v->arith : &v->after) = a;
}

/* Transforms the tensor and its shape as llama.cpp requires; the old tensor is freed. */
static int change(const struct placing *p, const struct arch_weight *r, struct vtensor **v,
		  uint64_t *shape)
{
	autofree struct vtensor *old = *v;
	size_t n = r->n_dims;

	*v = NULL;
	if (r->turn == ARCH_TURNED) {
		swap_last(shape, n);
		return vtensor_transpose(old, v, p->e);
	}
	if (arch_adds_one(&p->c->a, r) || r->turn == ARCH_DECAY)
		compute(old, r->turn == ARCH_DECAY ? minus_exp : plus_one);
	if (r->turn >= ARCH_KERNEL && r->turn <= ARCH_V_COLUMNS)
		return gguf_linear_rows(&p->c->a, r, old, shape, v, p->e);
	if (arch_rotates(&p->c->a, r))
		return vtensor_interleave(
			old, r->turn == ARCH_KEYS ? p->c->a.kv_heads : p->c->a.heads, v, p->e);
	*v = steal_ptr(&old);
	return 0;
}

/* A name below the layer, if the weight belongs to one. */
static void name_there(const struct arch_weight *r, const char *name, uint64_t layer,
		       char out[static GGUF_NAME_CAP])
{
	if (r->scope == ARCH_ONCE || r->scope == ARCH_TOP)
		(void)snprintf(out, GGUF_NAME_CAP, "%s", name);
	else
		(void)snprintf(out, GGUF_NAME_CAP, "blk.%llu.%s", (unsigned long long)layer, name);
}

/* ---- two weights in one ---- */

/* The columns of gates, or those of ups: they alternate. */
static int take_column(const struct placing *p, const struct arch_weight *r,
		       const struct vtensor *whole, bool second, uint64_t *shape,
		       struct vtensor **ret)
{
	const uint64_t step[3] = { 1, r->n_dims == 2 ? 2 : 1, 2 };
	uint64_t off[3] = { 0 };
	autofree struct vtensor *v = NULL;
	size_t n = r->n_dims;
	int rc;

	arch_shape(&p->c->a, r, shape);
	shape[n - 1] /= 2;
	off[n - 1] = second;
	rc = vtensor_steps(whole, off, step, shape, &v, p->e);
	if (!rc && n == 2)
		*ret = steal_ptr(&v);
	if (rc || n == 2)
		return rc;
	swap_last(shape, n);
	return vtensor_transpose(v, ret, p->e);
}

/* The rows of gates, or those of ups, of each expert. */
static int take_half(const struct placing *p, const struct arch_weight *r,
		     const struct vtensor *whole, bool second, uint64_t *shape,
		     struct vtensor **ret)
{
	uint64_t off[3] = { 0 };

	arch_shape(&p->c->a, r, shape);
	shape[1] /= 2;
	off[1] = second ? shape[1] : 0;
	return vtensor_slice(whole, off, shape, ret, p->e);
}

/* The rows of each head: first those that make keys, then those that make values. */
static int take_latent(const struct placing *p, const struct vtensor *whole, bool second,
		       uint64_t *shape, struct vtensor **ret)
{
	const struct arch *a = &p->c->a;
	const uint64_t off[3] = { 0, second ? a->nope_dim : 0, 0 };
	autofree struct vtensor *heads = NULL, *v = NULL;
	int rc = vtensor_group(whole, a->heads, &heads, p->e);

	shape[0] = a->heads;
	shape[1] = second ? a->v_dim : a->nope_dim;
	shape[2] = a->kv_lora;
	if (!rc)
		rc = vtensor_slice(heads, off, shape, &v, p->e);
	if (!rc && second)
		*ret = steal_ptr(&v);
	if (rc || second)
		return rc;
	swap_last(shape, 3);
	return vtensor_transpose(v, ret, p->e);
}

static int add_both(struct placing *p, const struct arch_weight *r, uint64_t layer,
		    const struct vtensor *whole)
{
	const char *const names[] = { r->gguf, r->second };
	char to[GGUF_NAME_CAP];
	int rc = 0;

	for (int i = 0; !rc && i < 2; i++) {
		struct vtensor *v = NULL;
		uint64_t shape[3];

		name_there(r, names[i], layer, to);
		if (r->turn == ARCH_LATENT)
			rc = take_latent(p, whole, i, shape, &v);
		else if (r->turn == ARCH_MIXED)
			rc = gguf_linear_mixed(&p->c->a, whole, i, shape, &v, p->e);
		else if (r->turn == ARCH_HALVES)
			rc = take_half(p, r, whole, i, shape, &v);
		else
			rc = take_column(p, r, whole, i, shape, &v);
		if (!rc)
			rc = add_tensor(p, to, v, r->turn == ARCH_LATENT ? 3 : r->n_dims, shape,
					r->precise);
	}
	return rc;
}

/* ---- one weight ---- */

/* Places a weight of the layer under llama.cpp's name; 1: the model does not have it. */
static int place(struct placing *p, const struct arch_weight *r, uint64_t layer)
{
	char name[ARCH_NAME_CAP], to[GGUF_NAME_CAP];
	autofree struct vtensor *v = NULL;
	uint64_t shape[3];
	int rc;

	arch_name(&p->c->a, r, p->prefix, layer, 0, name);
	arch_shape(&p->c->a, r, shape);
	rc = take(p, name, r->n_dims, shape, &v);
	if (!rc && r->second)
		return add_both(p, r, layer, v);
	if (!rc)
		rc = change(p, r, &v, shape);
	if (rc)
		return rc;
	name_there(r, r->gguf, layer, to);
	return add_tensor(p, to, steal_ptr(&v), r->turn == ARCH_KERNEL ? 2 : r->n_dims, shape,
			  r->precise);
}

static int place_needed(struct placing *p, const struct arch_weight *r, uint64_t layer)
{
	int rc = place(p, r, layer);
	char name[ARCH_NAME_CAP];

	if (rc <= 0)
		return rc;
	if (arch_needs(&p->c->a, r, layer) != ARCH_MUST)
		return 0;
	arch_name(&p->c->a, r, p->prefix, layer, 0, name);
	return absent(p, name);
}

/* ---- experts ---- */

/* Experts in one tensor: [experts, 2 * ffn, hidden], gate above up, and [experts, hidden, ffn]. */
static int take_fused(struct placing *p, const struct arch_weight *r, uint64_t layer,
		      const uint64_t *one, struct vtensor **ret)
{
	bool down = r->turn == ARCH_DOWN;
	uint64_t off[3] = { 0, r->turn == ARCH_UP ? one[0] : 0, 0 };
	uint64_t len[3] = { p->c->a.experts, one[0], one[1] };
	uint64_t shape[3] = { len[0], down ? len[1] : 2 * len[1], len[2] };
	autofree struct vtensor *whole = NULL;
	char name[ARCH_NAME_CAP];
	int rc;

	(void)snprintf(name, sizeof(name), "%slayers.%llu.mlp.experts.%s_proj", p->prefix->most,
		       (unsigned long long)layer, down ? "down" : "gate_up");
	rc = take(p, name, 3, shape, &whole);
	return rc ? rc : vtensor_slice(whole, off, len, ret, p->e);
}

static void free_all(struct vtensor **v, size_t n)
{
	for (size_t i = 0; v && i < n; i++)
		free(v[i]);
	free(v);
}

static const char *computed(const struct vtensor *v)
{
	return v->arith.op == ARITH_NONE ? "" : ", computed";
}

/* Experts in a tensor each. */
static int take_split(struct placing *p, const struct arch_weight *r, uint64_t layer,
		      const uint64_t *shape, struct vtensor **ret)
{
	const struct arch *a = &p->c->a;
	struct vtensor **one;
	char name[ARCH_NAME_CAP];
	int rc = 0;

	if (a->experts > p->v->model.names.n) { /* bounds the allocation */
		arch_name(a, r, p->prefix, layer, p->v->model.names.n, name);
		return absent(p, name);
	}
	one = calloc(a->experts, sizeof(struct vtensor *));
	if (!one)
		return err_nomem(p->e);
	for (uint64_t i = 0; !rc && i < a->experts; i++) {
		arch_name(a, r, p->prefix, layer, i, name);
		rc = take(p, name, 2, shape, &one[i]);
		if (rc > 0)
			rc = absent(p, name);
		if (!rc && !vtensor_alike(one[i], one[0]))
			rc = err_set(p->e, ERR_UNSUPPORTED,
				     "'%.80s' is %s%s, the first expert is %s%s", name,
				     dtype_info(one[i]->stored)->name, computed(one[i]),
				     dtype_info(one[0]->stored)->name, computed(one[0]));
	}
	if (!rc)
		rc = vtensor_stack((const struct vtensor *const *)one, a->experts, ret, p->e);
	free_all(one, a->experts);
	return rc;
}

static int place_experts(struct placing *p, const struct arch_weight *r, uint64_t layer)
{
	uint64_t one[3], shape[3] = { p->c->a.experts };
	struct vtensor *v = NULL;
	char to[GGUF_NAME_CAP];
	int rc;

	arch_shape(&p->c->a, r, one);
	shape[1] = one[0];
	shape[2] = one[1];
	(void)snprintf(to, sizeof(to), "blk.%llu.%s", (unsigned long long)layer, r->gguf);
	rc = take_fused(p, r, layer, one, &v);
	if (rc > 0)
		rc = take_split(p, r, layer, one, &v);
	return rc ? rc : add_tensor(p, to, v, 3, shape, false);
}

/* ---- the whole model ---- */

/* Does llama.cpp have a place for a weight of this scope? */
static bool has_place(const struct placing *p, const struct arch_weight *r, bool of_layer)
{
	return r->gguf && r->kinds & p->c->a.kind &&
	       (r->scope == ARCH_LAYER || r->scope == ARCH_EXPERT) == of_layer;
}

/* Mixtral's router has one of two names. *placed: it was found under the first one. */
static int place_router(struct placing *p, const struct arch_weight *r, uint64_t layer,
			bool *placed)
{
	int rc;

	if (r->style == ARCH_FUSED_ROUTER)
		return *placed ? 0 : place_needed(p, r, layer);
	rc = place(p, r, layer);
	*placed = !rc;
	return rc > 0 ? 0 : rc;
}

static int place_layer(struct placing *p, uint64_t layer)
{
	bool router = false;
	int rc = 0;

	for (size_t i = 0; !rc && i < arch_n_weights; i++) {
		const struct arch_weight *r = &arch_weights[i];

		if (!has_place(p, r, true) || arch_needs(&p->c->a, r, layer) == ARCH_NONE)
			continue;
		if (r->scope == ARCH_EXPERT)
			rc = place_experts(p, r, layer);
		else if (r->style == ARCH_SPLIT_ROUTER || r->style == ARCH_FUSED_ROUTER)
			rc = place_router(p, r, layer, &router);
		else
			rc = place_needed(p, r, layer);
	}
	return rc;
}

/* Are they the same elements: pieces of one tensor in the same order, computed in one way? */
static bool same_elements(const struct vtensor *a, const struct vtensor *b)
{
	size_t n = a->n_dims * sizeof(uint64_t);
	bool same = vtensor_alike(a, b) && a->n_dims == b->n_dims && a->n_pieces == b->n_pieces;

	for (uint32_t i = 0; same && i < a->n_pieces; i++) {
		const struct piece *x = &a->pieces[i], *y = &b->pieces[i];

		same = x->source == y->source && x->n_source == y->n_source &&
		       !memcmp(x->off, y->off, n) && !memcmp(x->len, y->len, n) &&
		       !memcmp(x->coeff, y->coeff, n) && !memcmp(x->dim, y->dim, a->n_dims) &&
		       !memcmp(x->base, y->base, x->n_source * sizeof(uint64_t));
	}
	return same;
}

/* embeddings: their index in the list. */
static int place_head(struct placing *p, const struct arch_weight *r, size_t embeddings)
{
	struct gguf_tensors *l = p->ret;
	size_t before = l->n;
	int rc = place_needed(p, r, 0);

	/* llama.cpp's Gemma, Gemma 2 and Command R have no place for another head; transformers
	 * ties whatever is stored. */
	if (!rc && l->n > before &&
	    (p->c->a.kind & (KIND_GEMMA | KIND_GEMMA2 | KIND_COHERE) ||
	     same_elements(l->v[l->n - 1], l->v[embeddings])))
		free(l->v[--l->n]);
	return rc;
}

static int check_leftovers(const struct placing *p)
{
	for (size_t i = 0; i < p->v->model.names.n; i++) {
		const struct named *n = &p->v->model.names.v[i];

		if (!p->used[i] && !arch_ignores(&p->c->a, n->fqn, n->len) &&
		    !arch_is_other(&p->c->a, n->fqn, n->len))
			return err_set(p->e, ERR_UNSUPPORTED,
				       "a GGUF of architecture '%s' has no place for '%s'",
				       p->c->arch, FQN_TEXT(n->fqn, n->len));
	}
	return 0;
}

static int place_factors(struct placing *p)
{
	for (size_t i = 0; i < ARRAY_LEN(p->c->factors); i++) {
		const struct gguf_factors *f = &p->c->factors[i];
		struct gguf_tensor *t = f->n ? add(p, f->name) : NULL;

		if (f->n && !t)
			return -ENOMEM;
		if (!t)
			continue;
		t->n_dims = 1;
		t->type = GGML_F32;
		t->shape[0] = f->n;
		t->bytes = f->n * 4;
	}
	return 0;
}

static int place_all(struct placing *p)
{
	const struct arch_weight *head = NULL;
	size_t embeddings;
	int rc = place_factors(p);

	embeddings = p->ret->n; /* the embeddings are the first weight */
	for (size_t i = 0; !rc && i < arch_n_weights; i++) {
		const struct arch_weight *r = &arch_weights[i];

		if (has_place(p, r, false) && r->scope == ARCH_ONCE)
			rc = place_needed(p, r, 0);
		else if (has_place(p, r, false))
			head = r;
	}
	for (uint64_t i = 0; !rc && i < p->c->a.layers; i++) /* ends at the first missing weight */
		rc = place_layer(p, i);
	if (!rc && head)
		rc = place_head(p, head, embeddings);
	return rc ? rc : check_leftovers(p);
}

/*
 * Experts whose blocks are stored, in another order of nibbles, are these blocks. 1: they are not.
 * They are whole columns of a tensor that is shown as [experts, columns, rows].
 */
static int take_blocks(const struct placing *p, const struct vtensor *v, struct vtensor **ret)
{
	const struct block_type *type = block_type(GGML_MXFP4);
	const struct piece *x = v->pieces;
	const uint32_t blocks =
		v->n_pieces == 1 ? catalog_tensors(p->v->c, NULL)[x->source].blocks : 0;
	struct vtensor made = {
		.stored = CKPT_DTYPE_U8, .dtype = CKPT_DTYPE_U8, .n_dims = 3, .n_pieces = 1
	};
	uint64_t shape[3], base[3];
	struct piece one;

	if (!blocks || v->n_dims != 3 || x->n_source != 3 || v->arith.op != ARITH_NONE ||
	    v->after.op != ARITH_NONE || x->dim[0] || x->dim[1] != 2 || x->dim[2] != 1 ||
	    x->base[1] || x->coeff[2] != 1)
		return 1;
	memcpy(shape, v->shape, sizeof(shape));
	shape[2] = shape[2] / type->elements * type->bytes;
	base[0] = x->base[0];
	base[1] = x->base[2];
	base[2] = 0;
	one = (struct piece){ .source = blocks,
			      .n_source = 3,
			      .off = x->off,
			      .len = shape,
			      .coeff = x->coeff,
			      .dim = (const uint8_t[]){ 0, 1, 2 },
			      .base = base };
	made.shape = shape;
	made.pieces = &one;
	return vtensor_copy(&made, ret, p->e);
}

static int set_type(const struct placing *p, struct vtensor **v, enum ggml_type type)
{
	autofree struct vtensor *old = *v;
	int rc = type == GGML_MXFP4 ? take_blocks(p, old, v) : 1;

	if (rc > 0) {
		*v = steal_ptr(&old);
		show_as(*v, type);
	} else if (rc < 0) {
		*v = NULL;
	}
	return rc < 0 ? rc : 0;
}

static int choose_types(const struct placing *p, const struct gguf_mix *mix, enum ggml_type plain)
{
	struct gguf_tensors *l = p->ret;
	int rc = 0;

	gguf_mix_choose(mix, &p->c->a, plain, l->t, l->n);
	for (size_t i = 0; !rc && i < l->n; i++)
		if (l->v[i]) {
			rc = set_type(p, &l->v[i], l->t[i].type);
			if (!rc)
				l->t[i].bytes = l->v[i]->bytes;
		}
	return rc;
}

static int64_t find_name(const void *arg, const char *name, size_t len)
{
	return namelist_find(arg, name, len);
}

int gguf_place(const struct view *v, const struct gguf_config *c, const struct gguf_mix *mix,
	       enum ggml_type plain, struct gguf_tensors *ret, struct ckpt_err *e)
{
	bool *used = calloc(v->model.names.n + 1, sizeof(*used));
	struct placing p = { v, c, NULL, used, ret, e };
	int rc;

	*ret = (struct gguf_tensors){ 0 };
	if (!used)
		return err_nomem(e);
	p.prefix = arch_find_prefix(&c->a, find_name, &v->model.names);
	rc = place_all(&p);
	if (!rc)
		rc = choose_types(&p, mix, plain);
	free(used);
	return rc;
}

void gguf_tensors_release(struct gguf_tensors *t)
{
	for (size_t i = 0; i < t->n; i++)
		free(t->v[i]);
	free(t->v);
	free(t->t);
	*t = (struct gguf_tensors){ 0 };
}
