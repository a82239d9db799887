/* SPDX-License-Identifier: Apache-2.0 */
#include "tree/gguf_place.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "base/vec.h"
#include "codec/cast.h"
#include "codec/q8_0.h"
#include "gguf/gguf_config.h"
#include "model/box.h"
#include "tensor/vtensor.h"
#include "tensor/vtensor_ops.h"
#include "tree/view_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_NAME 160 /* bytes of a model's tensor's name with its NUL */

struct placing {
	const struct view *v;
	const struct gguf_config *c;
	enum ggml_type type;
	const char *prefix; /* of all names but lm_head.weight */
	bool *used;	    /* by position in the model */
	struct gguf_tensors *ret;
	struct ckpt_err *e;
};

/* ---- the rules ---- */

enum size { ONE, HIDDEN, VOCAB, POSITIONS, QUERY, KEY, HEAD, FFN, QKV, EXPERTS, SHARED };

/* What happens to it besides being copied. */
enum how { PLAIN, QUERIES, KEYS, TURNED };

struct rule {
	const char *from, *to; /* without what is the same for all, and the layer */
	unsigned kinds;	       /* that may have it */
	unsigned needed;       /* kinds that must */
	enum size shape[2];
	uint8_t n_dims;
	enum how how;
	bool precise; /* float32 though it is a matrix */
};

#define ALL	(~(unsigned)KIND_GPT2)
#define ROTATES ((unsigned)(KIND_LLAMA | KIND_MIXTRAL))
#define DENSE	((unsigned)(KIND_LLAMA | KIND_QWEN2 | KIND_QWEN3))
#define BIASED	((unsigned)(KIND_QWEN2 | KIND_QWEN2_MOE))
#define NORMED	((unsigned)(KIND_QWEN3 | KIND_QWEN3_MOE))
#define SHARES	((unsigned)KIND_QWEN2_MOE)
#define GPT2	((unsigned)KIND_GPT2)

static const struct rule once[] = {
	{ "embed_tokens.weight", "token_embd.weight", ALL, ALL, { VOCAB, HIDDEN }, 2, 0, 0 },
	{ "norm.weight", "output_norm.weight", ALL, ALL, { HIDDEN }, 1, 0, 0 },
	{ "wte.weight", "token_embd.weight", GPT2, GPT2, { VOCAB, HIDDEN }, 2, 0, 0 },
	{ "wpe.weight", "position_embd.weight", GPT2, GPT2, { POSITIONS, HIDDEN }, 2, 0, true },
	{ "ln_f.weight", "output_norm.weight", GPT2, GPT2, { HIDDEN }, 1, 0, 0 },
	{ "ln_f.bias", "output_norm.bias", GPT2, GPT2, { HIDDEN }, 1, 0, 0 },
};

static const struct rule each_layer[] = {
	{ "input_layernorm.weight", "attn_norm.weight", ALL, ALL, { HIDDEN }, 1, 0, 0 },
	{ "post_attention_layernorm.weight", "ffn_norm.weight", ALL, ALL, { HIDDEN }, 1, 0, 0 },
	{ "self_attn.q_proj.weight", "attn_q.weight", ALL, ALL, { QUERY, HIDDEN }, 2, QUERIES, 0 },
	{ "self_attn.q_proj.bias", "attn_q.bias", ALL, BIASED, { QUERY }, 1, QUERIES, 0 },
	{ "self_attn.k_proj.weight", "attn_k.weight", ALL, ALL, { KEY, HIDDEN }, 2, KEYS, 0 },
	{ "self_attn.k_proj.bias", "attn_k.bias", ALL, BIASED, { KEY }, 1, KEYS, 0 },
	{ "self_attn.v_proj.weight", "attn_v.weight", ALL, ALL, { KEY, HIDDEN }, 2, 0, 0 },
	{ "self_attn.v_proj.bias", "attn_v.bias", ALL, BIASED, { KEY }, 1, 0, 0 },
	{ "self_attn.o_proj.weight", "attn_output.weight", ALL, ALL, { HIDDEN, QUERY }, 2, 0, 0 },
	{ "self_attn.o_proj.bias", "attn_output.bias", KIND_LLAMA, 0, { HIDDEN }, 1, 0, 0 },
	{ "self_attn.q_norm.weight", "attn_q_norm.weight", NORMED, NORMED, { HEAD }, 1, 0, 0 },
	{ "self_attn.k_norm.weight", "attn_k_norm.weight", NORMED, NORMED, { HEAD }, 1, 0, 0 },
	{ "mlp.gate_proj.weight", "ffn_gate.weight", DENSE, DENSE, { FFN, HIDDEN }, 2, 0, 0 },
	{ "mlp.gate_proj.bias", "ffn_gate.bias", KIND_LLAMA, 0, { FFN }, 1, 0, 0 },
	{ "mlp.up_proj.weight", "ffn_up.weight", DENSE, DENSE, { FFN, HIDDEN }, 2, 0, 0 },
	{ "mlp.up_proj.bias", "ffn_up.bias", KIND_LLAMA, 0, { FFN }, 1, 0, 0 },
	{ "mlp.down_proj.weight", "ffn_down.weight", DENSE, DENSE, { HIDDEN, FFN }, 2, 0, 0 },
	{ "mlp.down_proj.bias", "ffn_down.bias", KIND_LLAMA, 0, { HIDDEN }, 1, 0, 0 },
	{ "mlp.shared_expert.gate_proj.weight",
	  "ffn_gate_shexp.weight",
	  SHARES,
	  SHARES,
	  { SHARED, HIDDEN },
	  2,
	  0,
	  0 },
	{ "mlp.shared_expert.up_proj.weight",
	  "ffn_up_shexp.weight",
	  SHARES,
	  SHARES,
	  { SHARED, HIDDEN },
	  2,
	  0,
	  0 },
	{ "mlp.shared_expert.down_proj.weight",
	  "ffn_down_shexp.weight",
	  SHARES,
	  SHARES,
	  { HIDDEN, SHARED },
	  2,
	  0,
	  0 },
	{ "mlp.shared_expert_gate.weight",
	  "ffn_gate_inp_shexp.weight",
	  SHARES,
	  SHARES,
	  { ONE, HIDDEN },
	  2,
	  0,
	  true },
	{ "ln_1.weight", "attn_norm.weight", GPT2, GPT2, { HIDDEN }, 1, 0, 0 },
	{ "ln_1.bias", "attn_norm.bias", GPT2, GPT2, { HIDDEN }, 1, 0, 0 },
	{ "ln_2.weight", "ffn_norm.weight", GPT2, GPT2, { HIDDEN }, 1, 0, 0 },
	{ "ln_2.bias", "ffn_norm.bias", GPT2, GPT2, { HIDDEN }, 1, 0, 0 },
	{ "attn.c_attn.weight", "attn_qkv.weight", GPT2, GPT2, { HIDDEN, QKV }, 2, TURNED, 0 },
	{ "attn.c_attn.bias", "attn_qkv.bias", GPT2, GPT2, { QKV }, 1, 0, 0 },
	{ "attn.c_proj.weight",
	  "attn_output.weight",
	  GPT2,
	  GPT2,
	  { HIDDEN, HIDDEN },
	  2,
	  TURNED,
	  0 },
	{ "attn.c_proj.bias", "attn_output.bias", GPT2, GPT2, { HIDDEN }, 1, 0, 0 },
	{ "mlp.c_fc.weight", "ffn_up.weight", GPT2, GPT2, { HIDDEN, FFN }, 2, TURNED, 0 },
	{ "mlp.c_fc.bias", "ffn_up.bias", GPT2, GPT2, { FFN }, 1, 0, 0 },
	{ "mlp.c_proj.weight", "ffn_down.weight", GPT2, GPT2, { FFN, HIDDEN }, 2, TURNED, 0 },
	{ "mlp.c_proj.bias", "ffn_down.bias", GPT2, GPT2, { HIDDEN }, 1, 0, 0 },
};

static const struct rule head = {
	"lm_head.weight", "output.weight", ~0u, 0, { VOCAB, HIDDEN }, 2, PLAIN, false
};
static const struct rule router = {
	NULL, "ffn_gate_inp.weight", KIND_EXPERTS, KIND_EXPERTS, { EXPERTS, HIDDEN }, 2, PLAIN, true
};

/* What training leaves behind and nobody computes with. */
static const char *const ignored[] = { "*.attention.masked_bias", "*.attention.bias",
				       "*.attn.masked_bias",	  "*.attn.bias",
				       "*.rotary_emb.inv_freq",	  NULL };

static uint64_t size_of(const struct gguf_config *c, enum size s)
{
	switch (s) {
	case ONE:
		return 1;
	case HIDDEN:
		return c->hidden;
	case VOCAB:
		return c->vocab;
	case POSITIONS:
		return c->positions;
	case QUERY:
		return c->heads * c->head_dim; /* below 2^62 */
	case KEY:
		return c->kv_heads * c->head_dim;
	case HEAD:
		return c->head_dim;
	case FFN:
		return c->ffn;
	case QKV:
		return 3 * c->hidden;
	case EXPERTS:
		return c->experts;
	case SHARED:
		return c->shared_ffn;
	}
	return 0;
}

/* ---- tensors of the model ---- */

/* 1: there is none of that name. */
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
	if (view_left_out(p->v, (size_t)at, &why))
		return err_set(p->e, why.code, "'%.80s': %.140s", name, why.msg);
	(void)view_info(p->v, OF_MODEL, (size_t)at, &m, have);
	if (m.n_dims != n_dims || (n_dims && memcmp(m.shape, shape, n_dims * sizeof(*shape)) != 0))
		return err_set(p->e, EINVAL, "'%.80s' is %s, by config.json it should be %s", name,
			       TUPLE_TEXT(m.shape, m.n_dims), TUPLE_TEXT(shape, n_dims));
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

/* Q8_0 has blocks along the innermost dimension; where they do not come out even llama-quantize
 * takes float16. */
static enum ggml_type type_of(const struct placing *p, const struct gguf_tensor *t, bool precise)
{
	if (precise)
		return GGML_F32;
	if (p->type == GGML_Q8_0 && t->shape[t->n_dims - 1] % Q8_0_ELEMENTS != 0)
		return GGML_F16;
	return p->type;
}

static void show_as(struct vtensor *v, enum ggml_type type)
{
	uint64_t elements = v->bytes / dtype_info(v->dtype)->size;

	v->dtype = type == GGML_F16    ? CKPT_DTYPE_F16
		   : type == GGML_BF16 ? CKPT_DTYPE_BF16
				       : CKPT_DTYPE_F32;
	v->q8_0 = type == GGML_Q8_0;
	v->bytes = v->q8_0 ? elements / Q8_0_ELEMENTS * Q8_0_BYTES
			   : elements * dtype_info(v->dtype)->size;
}

/* v is taken over. */
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
	t->type = (uint8_t)type_of(p, t, precise || n_dims == 1);
	show_as(v, t->type);
	t->bytes = v->bytes;
	p->ret->v[p->ret->n - 1] = v;
	return 0;
}

/* What the rule does to the tensor and its shape; the old one is freed. */
static int change(const struct placing *p, const struct rule *r, struct vtensor **v,
		  uint64_t *shape)
{
	autofree struct vtensor *old = *v;
	uint64_t first = shape[0];

	*v = NULL;
	if (r->how == TURNED) {
		shape[0] = shape[1];
		shape[1] = first;
		return vtensor_transpose(old, v, p->e);
	}
	if (r->how != PLAIN && p->c->kind & ROTATES)
		return vtensor_interleave(old, r->how == KEYS ? p->c->kv_heads : p->c->heads, v,
					  p->e);
	*v = steal_ptr(&old);
	return 0;
}

/* The tensor `name` as `to`; 1: there is none. */
static int place(struct placing *p, const struct rule *r, const char *name, const char *to)
{
	uint64_t shape[2] = { size_of(p->c, r->shape[0]), size_of(p->c, r->shape[1]) };
	struct vtensor *v = NULL;
	int rc = take(p, name, r->n_dims, shape, &v);

	if (!rc)
		rc = change(p, r, &v, shape);
	if (rc) {
		free(v);
		return rc;
	}
	return add_tensor(p, to, v, r->n_dims, shape, r->precise);
}

static int place_needed(struct placing *p, const struct rule *r, const char *name, const char *to)
{
	int rc = r->kinds & p->c->kind ? place(p, r, name, to) : 0;

	if (rc > 0)
		rc = r->needed & p->c->kind ? absent(p, name) : 0;
	return rc;
}

/* ---- experts ---- */

enum part { GATE, UP, DOWN };
static const char *const part_name[] = { "gate", "up", "down" };

/* All in one tensor: [experts, 2 * ffn, hidden], gate above up, and [experts, hidden, ffn]. */
static int take_fused(struct placing *p, uint64_t layer, enum part part, struct vtensor **ret)
{
	const struct gguf_config *c = p->c;
	uint64_t off[3] = { 0, part == UP ? c->expert_ffn : 0, 0 };
	uint64_t len[3] = { c->experts, part == DOWN ? c->hidden : c->expert_ffn,
			    part == DOWN ? c->expert_ffn : c->hidden };
	uint64_t shape[3] = { len[0], part == DOWN ? len[1] : 2 * len[1], len[2] };
	autofree struct vtensor *whole = NULL;
	char name[MAX_NAME];
	int rc;

	(void)snprintf(name, sizeof(name), "%slayers.%llu.mlp.experts.%s_proj", p->prefix,
		       (unsigned long long)layer, part == DOWN ? "down" : "gate_up");
	rc = take(p, name, 3, shape, &whole);
	return rc ? rc : vtensor_slice(whole, off, len, ret, p->e);
}

static void expert_name(const struct placing *p, uint64_t layer, uint64_t expert, enum part part,
			char out[static MAX_NAME])
{
	static const char *const mixtral[] = { "w1", "w3", "w2" };

	if (p->c->kind == KIND_MIXTRAL)
		(void)snprintf(out, MAX_NAME,
			       "%slayers.%llu.block_sparse_moe.experts.%llu.%s.weight", p->prefix,
			       (unsigned long long)layer, (unsigned long long)expert,
			       mixtral[part]);
	else
		(void)snprintf(out, MAX_NAME, "%slayers.%llu.mlp.experts.%llu.%s_proj.weight",
			       p->prefix, (unsigned long long)layer, (unsigned long long)expert,
			       part_name[part]);
}

static void free_all(struct vtensor **v, size_t n)
{
	for (size_t i = 0; v && i < n; i++)
		free(v[i]);
	free(v);
}

/* Each has tensors of its own. */
static int take_split(struct placing *p, uint64_t layer, enum part part, struct vtensor **ret)
{
	const struct gguf_config *c = p->c;
	uint64_t shape[2] = { part == DOWN ? c->hidden : c->expert_ffn,
			      part == DOWN ? c->expert_ffn : c->hidden };
	struct vtensor **one;
	char name[MAX_NAME];
	int rc = 0;

	if (c->experts > p->v->model.names.n) { /* a bound on what is allocated */
		expert_name(p, layer, p->v->model.names.n, part, name);
		return absent(p, name);
	}
	one = calloc(c->experts, sizeof(struct vtensor *));
	if (!one)
		return err_set(p->e, ENOMEM, "out of memory");
	for (uint64_t i = 0; !rc && i < c->experts; i++) {
		expert_name(p, layer, i, part, name);
		rc = take(p, name, 2, shape, &one[i]);
		if (rc > 0)
			rc = absent(p, name);
		if (!rc && one[i]->stored != one[0]->stored)
			rc = err_set(p->e, ERR_UNSUPPORTED,
				     "'%.80s' is %s, the first expert's is %s", name,
				     dtype_info(one[i]->stored)->name,
				     dtype_info(one[0]->stored)->name);
	}
	if (!rc)
		rc = vtensor_stack((const struct vtensor *const *)one, c->experts, ret, p->e);
	free_all(one, c->experts);
	return rc;
}

static int place_experts(struct placing *p, uint64_t layer)
{
	const struct gguf_config *c = p->c;
	char name[MAX_NAME], to[GGUF_NAME_CAP];
	int rc;

	(void)snprintf(name, sizeof(name), "%slayers.%llu.mlp.gate.weight", p->prefix,
		       (unsigned long long)layer);
	(void)snprintf(to, sizeof(to), "blk.%llu.%s", (unsigned long long)layer, router.to);
	rc = place(p, &router, name, to);
	if (rc > 0 && c->kind == KIND_MIXTRAL) {
		(void)snprintf(name, sizeof(name), "%slayers.%llu.block_sparse_moe.gate.weight",
			       p->prefix, (unsigned long long)layer);
		rc = place(p, &router, name, to);
	}
	if (rc > 0)
		rc = absent(p, name);
	for (enum part part = GATE; !rc && part <= DOWN; part++) {
		uint64_t shape[3] = { c->experts, part == DOWN ? c->hidden : c->expert_ffn,
				      part == DOWN ? c->expert_ffn : c->hidden };
		struct vtensor *v = NULL;

		rc = take_fused(p, layer, part, &v);
		if (rc > 0)
			rc = take_split(p, layer, part, &v);
		(void)snprintf(to, sizeof(to), "blk.%llu.ffn_%s_exps.weight",
			       (unsigned long long)layer, part_name[part]);
		if (!rc)
			rc = add_tensor(p, to, v, 3, shape, false);
	}
	return rc;
}

/* ---- all of them ---- */

static int place_layer(struct placing *p, uint64_t layer)
{
	const char *layers = p->c->kind == KIND_GPT2 ? "h" : "layers";
	char name[MAX_NAME], to[GGUF_NAME_CAP];
	int rc = 0;

	for (size_t i = 0; !rc && i < ARRAY_LEN(each_layer); i++) {
		const struct rule *r = &each_layer[i];

		(void)snprintf(name, sizeof(name), "%s%s.%llu.%s", p->prefix, layers,
			       (unsigned long long)layer, r->from);
		(void)snprintf(to, sizeof(to), "blk.%llu.%s", (unsigned long long)layer, r->to);
		rc = place_needed(p, r, name, to);
	}
	return !rc && p->c->kind & KIND_EXPERTS ? place_experts(p, layer) : rc;
}

/* Are they made of the same elements? Pieces of one tensor in the same order. */
static bool same_elements(const struct vtensor *a, const struct vtensor *b)
{
	size_t n = a->n_dims * sizeof(uint64_t);
	bool same = a->n_dims == b->n_dims && a->n_pieces == b->n_pieces;

	for (uint32_t i = 0; same && i < a->n_pieces; i++) {
		const struct piece *x = &a->pieces[i], *y = &b->pieces[i];

		same = x->source == y->source && x->n_source == y->n_source &&
		       !memcmp(x->off, y->off, n) && !memcmp(x->len, y->len, n) &&
		       !memcmp(x->coeff, y->coeff, n) && !memcmp(x->dim, y->dim, a->n_dims) &&
		       !memcmp(x->base, y->base, x->n_source * sizeof(uint64_t));
	}
	return same;
}

/* embeddings: where they are in the list. */
static int place_head(struct placing *p, size_t embeddings)
{
	struct gguf_tensors *l = p->ret;
	int rc = place(p, &head, head.from, head.to);

	if (rc > 0)
		return p->c->tied ? 0 : absent(p, head.from);
	if (!rc && same_elements(l->v[l->n - 1], l->v[embeddings]))
		free(l->v[--l->n]);
	return rc;
}

static int check_leftovers(const struct placing *p)
{
	uint64_t steps = UINT64_MAX; /* our own globs */

	for (size_t i = 0; i < p->v->model.names.n; i++) {
		const struct named *n = &p->v->model.names.v[i];

		if (!p->used[i] && !text_glob_any(ignored, n->fqn, n->len, &steps))
			return err_set(p->e, ERR_UNSUPPORTED,
				       "a GGUF of architecture '%s' has no place for '%s'",
				       p->c->arch, FQN_TEXT(n->fqn, n->len));
	}
	return 0;
}

static int place_rope(struct placing *p)
{
	struct gguf_tensor *t = p->c->n_rope ? add(p, "rope_freqs.weight") : NULL;

	if (!t)
		return p->c->n_rope ? -ENOMEM : 0;
	t->n_dims = 1;
	t->type = GGML_F32;
	t->shape[0] = p->c->n_rope;
	t->bytes = p->c->n_rope * 4;
	return 0;
}

static int place_all(struct placing *p)
{
	size_t embeddings;
	char name[MAX_NAME];
	int rc = place_rope(p);

	embeddings = p->ret->n; /* the first rule */
	for (size_t i = 0; !rc && i < ARRAY_LEN(once); i++) {
		(void)snprintf(name, sizeof(name), "%s%s", p->prefix, once[i].from);
		rc = place_needed(p, &once[i], name, once[i].to);
	}
	for (uint64_t i = 0; !rc && i < p->c->layers; i++) /* ends at the first that is not there */
		rc = place_layer(p, i);
	if (!rc)
		rc = place_head(p, embeddings);
	return rc ? rc : check_leftovers(p);
}

int gguf_place(const struct view *v, const struct gguf_config *c, enum ggml_type type,
	       struct gguf_tensors *ret, struct ckpt_err *e)
{
	bool *used = calloc(v->model.names.n + 1, sizeof(*used));
	struct placing p = { v, c, type, "model.", used, ret, e };
	int rc;

	*ret = (struct gguf_tensors){ 0 };
	if (!used)
		return err_set(e, ENOMEM, "out of memory");
	if (c->kind == KIND_GPT2) /* the first ones were published without */
		p.prefix = namelist_find(&v->model.names, "wte.weight", strlen("wte.weight")) < 0
				   ? "transformer."
				   : "";
	rc = place_all(&p);
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
