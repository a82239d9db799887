/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/model/gguf_recipe.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "tensor/arch.h"
#include "tensor/config_values.h"

#include <string.h>

static void add_axes(struct buf *b, const struct arch *a, const struct arch_weight *w)
{
	uint64_t shape[3], heads = w->turn == ARCH_KEYS ? a->kv_heads : a->heads;

	arch_shape(a, w, shape);
	if (w->scope == ARCH_EXPERT)
		buf_printf(b, " [e of %llu, ", (unsigned long long)a->experts);
	else
		buf_str(b, " [");
	if (w->turn == ARCH_TURNED)
		buf_printf(b, "%llu, %llu] order 1 0", (unsigned long long)shape[1],
			   (unsigned long long)shape[0]);
	else if (arch_rotates(a, w))
		buf_printf(b, "%llu : swap %llu : 2", (unsigned long long)heads,
			   (unsigned long long)(a->head_dim / 2));
	else
		buf_u64(b, shape[0]);
	if (w->turn == ARCH_TURNED)
		return;
	if (w->n_dims == 2)
		buf_printf(b, ", %llu", (unsigned long long)shape[1]);
	buf_str(b, "]");
	if (arch_adds_one(a, w))
		buf_str(b, " minus 1");
}

/* The rows of each head: those that make keys, turned, and those that make values. */
static void add_latent(struct buf *b, const struct arch *a, const struct arch_weight *w)
{
	for (uint64_t i = 0; i < a->heads && !b->err; i++)
		buf_printf(b,
			   "%s blk.{i}.%s [%llu of %llu, %llu, %llu] order 1 0 + blk.{i}.%s "
			   "[%llu of %llu, %llu, %llu]",
			   i ? " +" : "", w->gguf, (unsigned long long)i,
			   (unsigned long long)a->heads, (unsigned long long)a->kv_lora,
			   (unsigned long long)a->nope_dim, w->second, (unsigned long long)i,
			   (unsigned long long)a->heads, (unsigned long long)a->v_dim,
			   (unsigned long long)a->kv_lora);
}

static void add_weight(struct buf *b, const struct arch *a, const struct arch_weight *w,
		       uint64_t layer)
{
	bool in_layer = w->scope == ARCH_LAYER || w->scope == ARCH_EXPERT;
	const char *brace = w->scope == ARCH_EXPERT ? strstr(w->name, "{}") : NULL;
	enum arch_need need = arch_needs(a, w, layer);

	if (!w->gguf || need == ARCH_NONE || w->style == ARCH_FUSED_ROUTER)
		return;
	buf_str(b, w->scope == ARCH_TOP ? arch_prefix(a, 0)->head : arch_prefix(a, 0)->most);
	if (in_layer)
		buf_printf(b, "%s{i}.", arch_layers(a));
	if (brace)
		buf_printf(b, "%.*s{e}%s", (int)(brace - w->name), w->name, brace + 2);
	else
		buf_str(b, w->name);
	buf_str(b, need == ARCH_MUST ? " =" : " ?=");
	if (w->turn == ARCH_LATENT) {
		add_latent(b, a, w);
	} else {
		buf_printf(b, " %s%s", in_layer ? "blk.{i}." : "", w->gguf);
		add_axes(b, a, w);
	}
	buf_str(b, "\n");
}

static void add_scope(struct buf *b, const struct arch *a, enum arch_scope scope, uint64_t layer)
{
	for (size_t i = 0; i < arch_n_weights; i++)
		if (arch_weights[i].scope == scope)
			add_weight(b, a, &arch_weights[i], layer);
}

/* Layers that have the same weights. */
static void add_layers(struct buf *b, const struct arch *a, uint64_t from, uint64_t to)
{
	if (from == to)
		return;
	buf_printf(b, "for i in %llu..%llu\n", (unsigned long long)from, (unsigned long long)to);
	add_scope(b, a, ARCH_LAYER, from);
	if (arch_has_experts(a, from)) {
		buf_printf(b, "for e in %llu\n", (unsigned long long)a->experts);
		add_scope(b, a, ARCH_EXPERT, from);
		buf_str(b, "end\n");
	}
	buf_str(b, "end\n");
}

static void put_recipe(struct buf *b, const struct arch *a, uint64_t further)
{
	uint64_t dense = min_u64(a->first_experts, a->layers);

	buf_str(b, "ignore rope_freqs.weight rope_factors_long.weight rope_factors_short.weight");
	for (uint64_t i = 0; i < further; i++)
		buf_printf(b, " blk.%llu.*", (unsigned long long)(a->layers + i));
	buf_str(b, "\n");
	add_scope(b, a, ARCH_ONCE, 0);
	add_scope(b, a, ARCH_TOP, 0);
	add_layers(b, a, 0, dense);
	add_layers(b, a, dense, a->layers);
}

int gguf_recipe_make(const struct buf *config, uint64_t further, struct buf *ret,
		     struct ckpt_err *e)
{
	struct jdoc d CLEANUP(jdoc_release) = { 0 };
	struct config_in in = { .e = e };
	struct arch a = { 0 };
	int rc = jdoc_parse_copy(&d, config->data, config->len, JDOC_BIG, e);

	in.from = jdoc_root(&d);
	if (!rc)
		rc = arch_read(&in, &a);
	if (!rc && a.head_dim % 2)
		rc = err_set(e, ERR_UNSUPPORTED, "heads of an odd size");
	if (!rc)
		put_recipe(ret, &a, further);
	arch_release(&a);
	return rc;
}
