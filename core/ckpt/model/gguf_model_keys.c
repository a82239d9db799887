/* SPDX-License-Identifier: Apache-2.0 */
/* Looks up keys and tensors of a GGUF, and copies keys to config.json. */
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "base/text.h"
#include "ckpt/model/gguf_model_internal.h"
#include "index/catalog_query.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void gguf_no_config(struct gguf_reading *r, const char *fmt, ...)
{
	va_list ap;

	if (*r->ret->why)
		return;
	va_start(ap, fmt);
	(void)vsnprintf(r->ret->why, sizeof(r->ret->why), fmt, ap);
	va_end(ap);
}

const struct catalog_object *gguf_key_of(const struct gguf_reading *r, const char *key)
{
	char name[2 * GGUF_KEY_CAP];
	int64_t at;

	(void)snprintf(name, sizeof(name), "%s%s", *key == '.' ? r->arch : "", key);
	at = catalog_find_object(r->c, name, strlen(name));
	return at >= 0 && r->o[at].text ? &r->o[at] : NULL;
}

bool gguf_key_parse(const struct gguf_reading *r, const struct catalog_object *o, struct jdoc *ret)
{
	struct ckpt_err why;
	int rc =
		o ? jdoc_parse_copy(ret, o->text, o->text_len, JDOC_ANY | JDOC_BIG, &why) : -ENOENT;

	*r->no_memory |= rc == -ENOMEM;
	return !rc;
}

bool gguf_count_of(const struct gguf_reading *r, const char *key, uint64_t *ret)
{
	struct jdoc d CLEANUP(jdoc_release) = { 0 };

	return gguf_key_parse(r, gguf_key_of(r, key), &d) && jval_u64(jdoc_root(&d), ret);
}

bool gguf_number_of(const struct gguf_reading *r, const char *key, double *ret)
{
	struct jdoc d CLEANUP(jdoc_release) = { 0 };

	return gguf_key_parse(r, gguf_key_of(r, key), &d) && jval_number(jdoc_root(&d), ret);
}

bool gguf_flag_of(const struct gguf_reading *r, const char *key)
{
	struct jdoc d CLEANUP(jdoc_release) = { 0 };

	return gguf_key_parse(r, gguf_key_of(r, key), &d) && jval_is(jdoc_root(&d), J_TRUE);
}

bool gguf_text_of(const struct gguf_reading *r, const char *key, char out[GGUF_KEY_CAP])
{
	struct jdoc d CLEANUP(jdoc_release) = { 0 };
	const char *s = gguf_key_parse(r, gguf_key_of(r, key), &d) ? jval_str(jdoc_root(&d)) : NULL;

	if (!s || strlen(s) >= GGUF_KEY_CAP)
		return false;
	memcpy(out, s, strlen(s) + 1);
	return true;
}

const struct catalog_tensor *gguf_tensor_of(const struct gguf_reading *r, const char *name)
{
	int64_t at = catalog_find_tensor(r->c, name, strlen(name));

	return at < 0 ? NULL : &r->t[at];
}

bool gguf_copy(struct gguf_reading *r, const char *to, const char *key)
{
	const struct catalog_object *o = gguf_key_of(r, key);
	struct jdoc d CLEANUP(jdoc_release) = { 0 };
	size_t len = o ? o->text_len : 0;
	double x;

	if (!o)
		return false;
	while (len && (o->text[len - 1] == '\n' || o->text[len - 1] == ' '))
		len--;
	if (!gguf_key_parse(r, o, &d) || !jval_number(jdoc_root(&d), &x) || !isfinite(x)) {
		gguf_no_config(r, "the key '%s%s' is not a number", *key == '.' ? r->arch : "",
			       key);
		return false;
	}
	json_raw_n(&r->j, to, o->text, len);
	return true;
}

void gguf_put_number(struct gguf_reading *r, const char *to, double x)
{
	char text[40];

	(void)snprintf(text, sizeof(text), "%.8g", x);
	json_raw_n(&r->j, to, text, strlen(text));
}

void gguf_need(struct gguf_reading *r, const char *to, const char *key)
{
	if (gguf_copy(r, to, key))
		return;
	gguf_no_config(r, "the GGUF has no key '%s%s'", *key == '.' ? r->arch : "", key);
	r->failed = true;
}

uint64_t gguf_head_dim(const struct gguf_reading *r)
{
	uint64_t hidden = 0, heads = 0, dim;

	(void)gguf_count_of(r, ".embedding_length", &hidden);
	(void)gguf_count_of(r, ".attention.head_count", &heads);
	dim = heads ? hidden / heads : 0;
	(void)gguf_count_of(r, ".attention.key_length", &dim);
	return dim;
}

uint64_t gguf_rotated(const struct gguf_reading *r)
{
	uint64_t n = gguf_head_dim(r);

	(void)gguf_count_of(r, ".rope.dimension_count", &n);
	return n;
}

/* Keys of an architecture that are taken into account; others may mean anything. */
static const char *const known[] = {
	"block_count",
	"context_length",
	"embedding_length",
	"feed_forward_length",
	"vocab_size",
	"attention.head_count",
	"attention.head_count_kv",
	"attention.key_length",
	"attention.value_length",
	"attention.layer_norm_epsilon",
	"attention.layer_norm_rms_epsilon",
	"rope.freq_base",
	"rope.dimension_count",
	"rope.scaling.type",
	"rope.scaling.factor",
	"rope.scaling.original_context_length",
	"rope.scaling.yarn_ext_factor",
	"rope.scaling.yarn_attn_factor",
	"rope.scaling.yarn_beta_fast",
	"rope.scaling.yarn_beta_slow",
	"expert_count",
	"expert_used_count",
	"expert_feed_forward_length",
	"expert_shared_feed_forward_length",
};

/* Those of Granite, and their names in its config.json. */
static const struct {
	const char *key, *to;
} multipliers[] = {
	{ "attention.scale", "attention_multiplier" },
	{ "embedding_scale", "embedding_multiplier" },
	{ "residual_scale", "residual_multiplier" },
	{ "logit_scale", "logits_scaling" },
};

void gguf_put_multipliers(struct gguf_reading *r)
{
	char key[GGUF_KEY_CAP];

	for (size_t i = 0; i < ARRAY_LEN(multipliers); i++) {
		(void)snprintf(key, sizeof(key), ".%s", multipliers[i].key);
		if (!gguf_copy(r, multipliers[i].to, key))
			gguf_no_config(r, "the GGUF has no key '%s%s'", r->arch, key);
	}
}

/* Those of some families only. */
static const struct {
	unsigned kinds;
	const char *key;
} of_families[] = {
	{ KIND_PHI3, "rope.scaling.attn_factor" },
	{ KIND_PHI3 | KIND_GEMMA2 | KIND_GEMMA3 | KIND_OLMO2, "attention.sliding_window" },
	{ KIND_OLMO2, "attention.sliding_window_pattern" },
	{ KIND_GEMMA2, "attn_logit_softcapping" },
	{ KIND_GEMMA2 | KIND_GEMMA3, "final_logit_softcapping" },
	{ KIND_GEMMA3, "rope.freq_base_swa" },
	{ KIND_ROUTED | KIND_GLM4, "nextn_predict_layers" },
	{ KIND_ROUTED, "leading_dense_block_count" },
	{ KIND_ROUTED, "expert_shared_count" },
	{ KIND_ROUTED, "expert_gating_func" },
	{ KIND_ROUTED, "expert_weights_scale" },
	{ KIND_ROUTED, "expert_weights_norm" },
	{ KIND_ROUTED, "expert_group_count" },
	{ KIND_ROUTED, "expert_group_used_count" },
	{ KIND_LATENT, "attention.q_lora_rank" },
	{ KIND_LATENT, "attention.kv_lora_rank" },
	{ KIND_LATENT, "attention.key_length_mla" },
	{ KIND_LATENT, "attention.value_length_mla" },
	{ KIND_LATENT, "rope.scaling.yarn_log_multiplier" },
};

void gguf_check_keys(struct gguf_reading *r, enum arch_kind kind)
{
	size_t prefix = strlen(r->arch) + 1;

	for (size_t i = 0; i < r->n_objects; i++) {
		const struct catalog_object *o = &r->o[i];
		bool is_known = false;

		if (o->fqn_len <= prefix || o->fqn[prefix - 1] != '.' ||
		    !bytes_begin(o->fqn, o->fqn_len, r->arch))
			continue;
		for (size_t k = 0; k < ARRAY_LEN(known); k++)
			is_known |= bytes_are(o->fqn + prefix, o->fqn_len - prefix, known[k]);
		for (size_t k = 0; k < ARRAY_LEN(of_families); k++)
			is_known |=
				of_families[k].kinds & kind &&
				bytes_are(o->fqn + prefix, o->fqn_len - prefix, of_families[k].key);
		for (size_t k = 0; kind == KIND_GRANITE && k < ARRAY_LEN(multipliers); k++)
			is_known |=
				bytes_are(o->fqn + prefix, o->fqn_len - prefix, multipliers[k].key);
		if (!is_known)
			gguf_no_config(r, "the key '%s' has no known counterpart in a config.json",
				       FQN_TEXT(o->fqn, o->fqn_len));
	}
}
