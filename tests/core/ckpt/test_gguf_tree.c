/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gguf/ of small models: which tensors it has, read back from the file, or why there is no gguf/.
 * tests/torch/gguf.sh compares the values with those of llama.cpp's converter.
 */
#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "ckpt/ckpt_internal.h"
#include "codec/cast.h"
#include "dir_util.h"
#include "fault.h"
#include "format/format.h"
#include "index/catalog_query.h"
#include "opts_util.h"
#include "rng.h"
#include "scan_util.h"
#include "st_util.h"
#include "suites.h"
#include "tensor/arch.h"
#include "tensor/config_values.h"
#include "tree_util.h"
#include "weights_util.h"
#include <ckptfs/ckpt.h>
#include <ckptfs/ckpt_mount.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* In all texts, ' stands for ". */
#define CONFIG(name, more) \
	"{'architectures': ['" name "ForCausalLM'], 'vocab_size': 8, 'hidden_size': 8, " \
	"'intermediate_size': 12, 'num_hidden_layers': 1, 'num_attention_heads': 2, " \
	"'num_key_value_heads': 1, 'head_dim': 4, 'max_position_embeddings': 16, " \
	"'rms_norm_eps': 1e-5" more "}"
#define L     "model.layers.0."
#define TOP   "model.embed_tokens.weight F32 8x8; model.norm.weight F32 8; "
#define NORMS L "input_layernorm.weight F32 8; " L "post_attention_layernorm.weight F32 8; "
#define ATTENTION \
	L "self_attn.q_proj.weight F32 8x8; " L "self_attn.k_proj.weight F32 4x8; " L \
	  "self_attn.v_proj.weight F32 4x8; " L "self_attn.o_proj.weight F32 8x8; "
#define MLP \
	L "mlp.gate_proj.weight F32 12x8; " L "mlp.up_proj.weight F32 12x8; " L \
	  "mlp.down_proj.weight F32 8x12; "
#define HEAD "lm_head.weight F32 8x8; "
#define MOE  ", 'num_local_experts': 2, 'num_experts_per_tok': 1"
#define EXPERT(i, t) \
	L "block_sparse_moe.experts." #i ".w1.weight " t " 12x8; " L \
	  "block_sparse_moe.experts." #i ".w2.weight " t " 8x12; " L \
	  "block_sparse_moe.experts." #i ".w3.weight " t " 12x8; "
#define SPLIT_ROUTER L "block_sparse_moe.gate.weight F32 2x8; "
#define FUSED_ROUTER L "mlp.gate.weight F32 2x8; "
#define FUSED	     L "mlp.experts.gate_up_proj F32 2x24x8; " L "mlp.experts.down_proj F32 2x8x12; "
#define OSS \
	", 'num_local_experts': 2, 'num_experts_per_tok': 1, 'sliding_window': 8, " \
	"'rope_parameters': {}"
#define OSS_ATTENTION \
	ATTENTION L "self_attn.q_proj.bias F32 8; " L "self_attn.k_proj.bias F32 4; " L \
		    "self_attn.v_proj.bias F32 4; " L "self_attn.o_proj.bias F32 8; " L \
		    "self_attn.sinks F32 2; "
#define OSS_EXPERTS \
	L "mlp.router.weight F32 2x8; " L "mlp.router.bias F32 2; " L \
	  "mlp.experts.gate_up_proj F32 2x8x24; " L "mlp.experts.gate_up_proj_bias F32 2x24; " L \
	  "mlp.experts.down_proj F32 2x12x8; " L "mlp.experts.down_proj_bias F32 2x8; "
#define GEMMA ", 'tie_word_embeddings': true"

static const struct model {
	const char *config, *tensors;
} llama = { CONFIG("Llama", ""), TOP NORMS ATTENTION MLP HEAD },
  tied = { CONFIG("Llama", ", 'tie_word_embeddings': true"), TOP NORMS ATTENTION MLP },
  scaled = { CONFIG("Llama", ", 'rope_scaling': {'rope_type': 'llama3', 'factor': 8.0, "
			     "'low_freq_factor': 1.0, "
			     "'high_freq_factor': 4.0, 'original_max_position_embeddings': 8192}"),
	     TOP NORMS ATTENTION MLP HEAD },
  mixtral = { CONFIG("Mixtral", MOE),
	      TOP NORMS ATTENTION EXPERT(0, "F32") EXPERT(1, "F32") SPLIT_ROUTER HEAD },
  fused = { CONFIG("Mixtral", MOE), TOP NORMS ATTENTION FUSED FUSED_ROUTER HEAD },
  many = { CONFIG("Mixtral", ", 'num_local_experts': 1000000000, 'num_experts_per_tok': 1"),
	   TOP NORMS ATTENTION L "block_sparse_moe.gate.weight F32 1000000000x0; " HEAD },
  oss = { CONFIG("GptOss", OSS), TOP NORMS OSS_ATTENTION OSS_EXPERTS HEAD },
  gemma = { CONFIG("Gemma", GEMMA), TOP NORMS ATTENTION MLP };

#define ROPE(name, members) \
	&(const struct model) \
	{ \
		CONFIG(name, ", 'rope_scaling': {" members "}"), TOP NORMS ATTENTION MLP HEAD \
	}
#define LLAMA3 "'rope_type': 'llama3', 'original_max_position_embeddings': 8192, "
#define YARN   "'rope_type': 'yarn', 'factor': 2, 'original_max_position_embeddings': 8"

static const struct row {
	const struct model *model;
	const char *
		changes; /* of tensors: one in place of that name, or one more; "NAME -": it is not there */
	const char *
		want; /* tensors of the file, with bars between; "-NAME": it is not there; after "!": why there is none */
	const char *dtype, *tokenizer, *generation;
	size_t shard_size;
} rows[] = {
	{ &llama, "",
	  "blk.0.attn_q.weight float32 [8,8]|blk.0.ffn_norm.weight float32 [8]|output.weight "
	  "float32 [8,8]",
	  NULL, NULL, NULL, 0 },
	{ &tied, "", "token_embd.weight float32 [8,8]|-; output.weight", NULL, NULL, NULL, 0 },
	{ &scaled, "", "rope_freqs.weight float32 [2]", NULL, NULL, NULL, 0 },
	{ &tied, "lm_head.weight F32 8x8", "output.weight float32 [8,8]", NULL, NULL, NULL, 0 },
	{ &llama, "model.embed_tokens.weight BF16 80x8; lm_head.weight BF16 8x8",
	  "!'model.embed_tokens.weight' is (80, 8), but by config.json it should be (8, 8)", NULL,
	  NULL, NULL, 0 },
	{ &llama, L "mlp.gate_proj.weight BF16 12x8; " L "mlp.up_proj.weight F16 12x8",
	  "blk.0.ffn_up.weight float32 [12,8]|blk.0.ffn_gate.weight float32 [12,8]", NULL, NULL,
	  NULL, 0 },
	{ &llama, "", "blk.0.attn_q.weight bfloat16 [8,8]|blk.0.attn_norm.weight float32 [8]",
	  "bf16", NULL, NULL, 0 },
	{ &llama, "", "blk.0.attn_q.weight float16 [8,8]|blk.0.attn_norm.weight float32 [8]", "f16",
	  NULL, NULL, 0 },
	{ &llama, L "self_attn.k_proj.weight F32 4x9",
	  "!'model.layers.0.self_attn.k_proj.weight' is (4, 9), but by config.json it should be "
	  "(4, 8)",
	  NULL, NULL, NULL, 0 },
	{ &llama, L "self_attn.k_proj.weight F32 32",
	  "!'model.layers.0.self_attn.k_proj.weight' is (32,), but by config.json it should be (4, "
	  "8)",
	  NULL, NULL, NULL, 0 },
	{ &llama, L "self_attn.k_proj.weight I64 4x8",
	  "!'model.layers.0.self_attn.k_proj.weight' is of dtype int64", NULL, NULL, NULL, 0 },
	{ &llama, L "self_attn.o_proj.weight -",
	  "!the model has no 'model.layers.0.self_attn.o_proj.weight'", NULL, NULL, NULL, 0 },
	{ &llama, "lm_head.weight -", "!the model has no 'lm_head.weight'", NULL, NULL, NULL, 0 },
	{ &llama, "extra.weight F32 4",
	  "!a GGUF of architecture 'llama' has no place for 'extra.weight'", NULL, NULL, NULL, 0 },
	{ &llama, "", "!tokenizer.json is not an object", NULL, "[]", NULL, 0 },
	{ &llama, "", "token_embd.weight", NULL, NULL, "{'top_k': 3}", 0 },
	{ &llama, "", "!generation_config.json", NULL, NULL, "{", 0 },
	{ &mixtral, "",
	  "blk.0.ffn_gate_exps.weight float32 [2,12,8]|blk.0.ffn_down_exps.weight float32 "
	  "[2,8,12]|blk.0.ffn_gate_inp.weight float32 [2,8]",
	  NULL, NULL, NULL, 0 },
	{ &fused, "",
	  "blk.0.ffn_up_exps.weight float32 [2,12,8]|blk.0.ffn_gate_inp.weight float32 [2,8]", NULL,
	  NULL, NULL, 0 },
	{ &fused, L "mlp.experts.down_proj F32 2x8x11",
	  "!'model.layers.0.mlp.experts.down_proj' is (2, 8, 11), but by config.json it should be "
	  "(2, "
	  "8, 12)",
	  NULL, NULL, NULL, 0 },
	{ &fused, L "mlp.gate.weight -", "!the model has no 'model.layers.0.mlp.gate.weight'", NULL,
	  NULL, NULL, 0 },
	{ &mixtral, EXPERT(1, "BF16"),
	  "!'model.layers.0.block_sparse_moe.experts.1.w1.weight' is bfloat16, the first expert is "
	  "float32",
	  NULL, NULL, NULL, 0 },
	{ &mixtral, L "block_sparse_moe.experts.1.w3.weight -",
	  "!the model has no 'model.layers.0.block_sparse_moe.experts.1.w3.weight'", NULL, NULL,
	  NULL, 0 },
	{ &mixtral, L "block_sparse_moe.experts.1.w2.weight I32 8x12",
	  "!'model.layers.0.block_sparse_moe.experts.1.w2.weight' is of dtype int32", NULL, NULL,
	  NULL, 0 },
	{ &many, "", "!", NULL, NULL, NULL, 0 },
	{ &oss, "",
	  "blk.0.ffn_gate_exps.weight float32 [2,12,8]|blk.0.ffn_up_exps.weight float32 "
	  "[2,12,8]|blk.0.ffn_gate_exps.bias float32 [2,12]|blk.0.ffn_down_exps.weight float32 "
	  "[2,8,12]|blk.0.attn_sinks.weight float32 [2]",
	  NULL, NULL, NULL, 0 },
	{ &gemma, "", "blk.0.attn_norm.weight float32 [8]|-; output.weight", NULL, NULL, NULL, 0 },
	{ &gemma, "lm_head.weight F32 8x8", "token_embd.weight|-; output.weight", NULL, NULL, NULL,
	  0 },
	/* Rotary embeddings. */
	{ ROPE("Llama", LLAMA3 "'low_freq_factor': 4, 'high_freq_factor': 4"), "",
	  "!config.json: not supported: these 'llama3' rotary embeddings", NULL, NULL, NULL, 0 },
	{ ROPE("Llama", LLAMA3 "'factor': 1e-44, 'rope_theta': 500000"), "",
	  "!'factor' gives a frequency that does not fit a float32", NULL, NULL, NULL, 0 },
	{ ROPE("Llama", LLAMA3 "'factor': -8"), "",
	  "!'factor' is not a number greater than 0 that fits a float32", NULL, NULL, NULL, 0 },
	{ ROPE("SmolLM3", LLAMA3 "'factor': 8"), "",
	  "!rotary embeddings of type 'llama3' are not supported", NULL, NULL, NULL, 0 },
	{ ROPE("Llama", YARN ", 'truncate': false"), "", "!'truncate' is false", NULL, NULL, NULL,
	  0 },
	{ ROPE("Llama", YARN ", 'truncate': true, 'beta_fast': 16"), "", "token_embd.weight", NULL,
	  NULL, NULL, 0 },
	{ ROPE("Llama", YARN ", 'mscale': 1, 'mscale_all_dim': 1"), "",
	  "!'mscale' and 'mscale_all_dim'", NULL, NULL, NULL, 0 },
	{ ROPE("Llama", YARN ", 'mscale': 1"), "", "token_embd.weight", NULL, NULL, NULL, 0 },
	{ ROPE("Llama", YARN ", 'attn_factor': 2"), "", "!an 'attention_factor' of yarn", NULL,
	  NULL, NULL, 0 },
	{ ROPE("Llama", YARN ", 'extrapolation_factor': 2"), "",
	  "!an 'extrapolation_factor' other than 1", NULL, NULL, NULL, 0 },
	/* Several files. */
	{ &llama, "",
	  "blk.0.attn_q.weight float32 [8,8]|output_norm.weight float32 "
	  "[8]|@model-00012-of-00012.gguf",
	  NULL, NULL, NULL, 1 },
};

/* ---- putting and reading back ---- */

static void put_json(const char *name, const char *text)
{
	struct buf b CLEANUP(buf_release) = BUF_INIT(1 << 20);

	for (; *text; text++)
		buf_add(&b, *text == '\'' ? "\"" : text, 1);
	REQUIRE(!b.err);
	put_file(dir_fd, name, b.data, b.len);
}

static void put_tensors(const char *base, const char *changes)
{
	struct buf b CLEANUP(buf_release) = BUF_INIT(1 << 20);
	autofree char *first = strdup(base), *more = strdup(changes);
	struct rng r = rng_new();
	char *at, *one;

	REQUIRE(first && more);
	for (at = first; (one = strsep(&at, ";"));) {
		char name[200];
		const char *found = NULL;

		if (sscanf(one, " %198s", name) != 1)
			continue;
		(void)strcat(name, " ");
		found = strstr(changes, name);
		if (!found || (found > changes && found[-1] != ' '))
			buf_printf(&b, "%s; ", one);
	}
	for (at = more; (one = strsep(&at, ";"));)
		if (*one && one[strlen(one) - 1] != '-')
			buf_printf(&b, "%s; ", one);
	buf_add(&b, "", 1);
	REQUIRE(!b.err);
	st_put(dir_fd, "model.safetensors", &r, (const char *)b.data);
}

/* Removes the last n bytes. */
static void cut_file(const char *name, off_t n)
{
	autoclose int fd = openat(dir_fd, name, O_WRONLY | O_CLOEXEC);
	struct stat st;

	REQUIRE(fd >= 0 && !fstat(fd, &st) && !ftruncate(fd, st.st_size - n));
}

static struct ckpt *open_row(const struct row *x)
{
	struct ckpt_opts o = {
		.gguf_dtype = x->dtype, .index = ":memory:", .shard_size = x->shard_size
	};
	struct ckpt_err e = { 0 };
	struct ckpt *c = NULL;

	put_tensors(x->model->tensors, x->changes);
	put_json("config.json", x->model->config);
	put_json("tokenizer.json",
		 x->tokenizer
			 ? x->tokenizer
			 : "{'pre_tokenizer': {'type': 'ByteLevel', 'add_prefix_space': false}, "
			   "'model': {'type': 'BPE', 'vocab': {'a': 0, 'b': 1, 'ab': 2}, "
			   "'merges': ['a b']}}");
	if (x->generation)
		put_json("generation_config.json", x->generation);
	if (open_typed(dir, &o, &c, &e))
		ck_abort_msg("%s", e.msg);
	return c;
}

/* All files of gguf/ into a directory; their names, with a blank after each. */
static void copy_out(struct ckpt *c, int to, char names[static 1000])
{
	char name[CKPT_NAME_MAX + 1], path[CKPT_NAME_MAX + 10];
	struct ckpt_err e = { 0 };
	ckpt_node at = 0, n;

	*names = 0;
	ck_assert_msg(!ckpt_walk(c, "gguf", &at, &e), "%s", e.msg);
	for (uint64_t i = 0; !ckpt_entry(c, at, i, name, &n); i++) {
		struct ckpt_file *f = NULL;

		(void)snprintf(path, sizeof(path), "gguf/%s", name);
		(void)snprintf(names + strlen(names), 1000 - strlen(names), "%s ", name);
		ck_assert_msg(!ckpt_file_open_path(c, path, &f, &e), "%s", e.msg);
		autofree uint8_t *p = malloc(ckpt_file_size(f) + 1);
		REQUIRE(p && ckpt_file_read(f, p, ckpt_file_size(f), 0, &e) ==
				     (int64_t)ckpt_file_size(f));
		put_file(to, name, p, ckpt_file_size(f));
		ckpt_file_close(f);
	}
}

static void must_have(const char *tensors, const char *names, const char *texts)
{
	autofree char *copy = strdup(texts);
	char *at = copy, *one;

	REQUIRE(copy);
	while ((one = strsep(&at, "|"))) {
		bool file = *one == '@';

		ck_assert_msg((strstr(file ? names : tensors, one + (file || *one == '-')) !=
			       NULL) == (*one != '-'),
			      "'%s' in %s %s", one, names, tensors);
	}
}

START_LOOP_TEST(a_model_is_placed_under_other_names, ARRAY_LEN(rows))
{
	const struct row *x = &rows[_i];
	struct ckpt *c = open_row(x);
	struct ckpt_err e = { 0 };
	char other[4096], names[1000];
	struct catalog *back = NULL;
	ckpt_node n = 0;
	int fd;

	if (*x->want == '!') {
		autofree char *info = NULL;
		size_t len;

		ck_assert_int_eq(ckpt_walk(c, "gguf/model.gguf", &n, &e), -ENOENT);
		REQUIRE(!ckpt_info_json(c, &info, &len, &e));
		ck_assert_msg(strstr(info, x->want + 1) != NULL, "%s", strstr(info, "\"gguf\""));
		ckpt_close(c);
		return;
	}
	fd = new_dir(other);
	copy_out(c, fd, names);
	ck_assert_msg(!scan_dir(fd, &(struct scan_opts){ 0 }, &back, &e), "%s", e.msg);
	autofree char *tensors = catalog_text(back);
	must_have(tensors, names, x->want);
	catalog_close(back);
	(void)close(fd);
	ckpt_close(c);
}
END_TEST

/* ---- there and back ---- */

#define QWEN_EXPERTS ", 'num_experts': 2, 'num_experts_per_tok': 1, 'moe_intermediate_size': 6"
#define ROUTED \
	", 'n_routed_experts': 2, 'num_experts_per_tok': 1, 'n_shared_experts': 1, " \
	"'moe_intermediate_size': 6, 'first_k_dense_replace': 1, 'routed_scaling_factor': 1.5"
#define LATENT \
	", 'kv_lora_rank': 6, 'q_lora_rank': 10, 'qk_rope_head_dim': 2, 'qk_nope_head_dim': 3, " \
	"'v_head_dim': 7"
#define QWEN2_MOE QWEN_EXPERTS ", 'shared_expert_intermediate_size': 10"
#define QWEN3_MOE QWEN_EXPERTS ", 'norm_topk_prob': true"
#define GLM_MOE	  ROUTED ", 'partial_rotary_factor': 0.5, 'n_group': 1, 'topk_group': 1"
#define V2	  ROUTED LATENT ", 'topk_method': 'greedy'"
#define V3	  ROUTED LATENT ", 'n_group': 2, 'topk_group': 1"
#define GEMMAS	  ", 'query_pre_attn_scalar': 4, 'sliding_window': 8"
#define CAPS	  ", 'attn_logit_softcapping': 50, 'final_logit_softcapping': 30"

/* Two layers, of which some families treat the first in another way. */
static const struct {
	const char *name, *more;
	const char *joined; /* model_type, if the experts of a layer are in one tensor */
} families[] = {
	{ "Llama", "", NULL },		 { "Mistral", "", NULL },
	{ "Qwen2", "", NULL },		 { "Qwen3", "", NULL },
	{ "Gemma", "", NULL },		 { "Gemma2", GEMMAS CAPS, NULL },
	{ "Gemma3", GEMMAS, NULL },	 { "Phi3", "", NULL },
	{ "Olmo2", "", NULL },		 { "Granite", "", NULL },
	{ "SmolLM3", "", NULL },	 { "Glm4", ", 'partial_rotary_factor': 0.5", NULL },
	{ "Mixtral", MOE, NULL },	 { "Mixtral", MOE, "mixtral" },
	{ "Qwen2Moe", QWEN2_MOE, NULL }, { "Qwen2Moe", QWEN2_MOE, "qwen2_moe" },
	{ "Qwen3Moe", QWEN3_MOE, NULL }, { "Qwen3Moe", QWEN3_MOE, "qwen3_moe" },
	{ "Glm4Moe", GLM_MOE, NULL },	 { "Glm4Moe", GLM_MOE, "glm4_moe" },
	{ "DeepseekV2", V2, NULL },	 { "DeepseekV2", V2, "deepseek_v2" },
	{ "DeepseekV3", V3, NULL },	 { "DeepseekV3", V3, "deepseek_v3" },
};

/* All tensors of a model, as safetensors; joined: with the experts of a layer in one. Elements are small multiples of 1/8, so that adding 1 to
 * them can be undone. */
static void put_model(const char *config, bool joined)
{
	struct buf text CLEANUP(buf_release) = BUF_INIT(1 << 20);
	static struct weights_tensor t[400];
	static char names[ARRAY_LEN(t)][ARCH_NAME_CAP];
	struct jdoc d CLEANUP(jdoc_release) = { 0 };
	struct ckpt_err e = { 0 };
	struct config_in in = { .e = &e };
	struct rng r = rng_new();
	struct arch a = { 0 };
	size_t n = 0;

	for (; *config; config++)
		buf_add(&text, *config == '\'' ? "\"" : config, 1);
	REQUIRE(!text.err && !jdoc_parse_copy(&d, text.data, text.len, JDOC_BIG, &e));
	in.from = jdoc_root(&d);
	ck_assert_msg(!arch_read(&in, &a), "%s", e.msg);
	for (size_t k = 0; k < arch_n_weights; k++) {
		const struct arch_weight *w = &arch_weights[k];
		bool layered = w->scope == ARCH_LAYER || w->scope == ARCH_EXPERT;

		for (uint64_t i = 0; i < (layered ? a.layers : 1); i++)
			for (uint64_t x = 0; x < (w->scope == ARCH_EXPERT ? a.experts : 1); x++) {
				if (arch_needs(&a, w, i) != ARCH_MUST ||
				    w->style == (joined ? ARCH_SPLIT : ARCH_FUSED) ||
				    w->style == (joined ? ARCH_SPLIT_ROUTER : ARCH_FUSED_ROUTER))
					continue;
				REQUIRE(n < ARRAY_LEN(t));
				arch_name(&a, w, arch_prefix(&a, 0), i, x, names[n]);
				t[n] = (struct weights_tensor){
					names[n], CKPT_DTYPE_F32, w->n_dims, { 0 }, NULL
				};
				arch_shape(&a, w, t[n].shape);
				n++;
			}
	}
	for (size_t i = 0; i < n; i++) {
		uint64_t elements = weights_elements(&t[i]);
		float *p = calloc(elements + 1, sizeof(*p));

		REQUIRE(p);
		for (uint64_t k = 0; k < elements; k++)
			p[k] = (float)(1 + rng_below(&r, 4000)) / 8;
		t[i].bytes = p;
	}
	weights_put(dir_fd, "hf", t, n);
	weights_put_text(dir_fd, "hf", "config.json", (const char *)text.data);
	for (size_t i = 0; i < n; i++)
		free((void *)(uintptr_t)t[i].bytes);
	arch_release(&a);
}

/* assets: the directory whose config.json says what the model is; NULL: the GGUF's keys say it. */
static void take_out(struct ckpt *c, const char *from, const char *assets)
{
	struct ckpt_opts o = { .assets = assets, .index = ":memory:" };
	struct ckpt_err e = { 0 };
	struct ckpt *again = NULL;

	ck_assert_msg(!open_typed(from, &o, &again, &e), "%s", e.msg);
	ck_assert_uint_eq(ckpt_model_tensors(again), ckpt_model_tensors(c));
	for (uint64_t i = 0; i < ckpt_model_tensors(c); i++) {
		struct ckpt_file *f = NULL, *g = NULL;
		struct ckpt_tensor t;
		size_t n, n_again;
		int64_t at;

		ckpt_model_tensor(c, i, &t);
		at = ckpt_model_find(again, t.fqn, t.fqn_len);
		ck_assert_msg(at >= 0, "%s", t.fqn);
		REQUIRE(!ckpt_model_open(c, i, &f, &e) &&
			!ckpt_model_open(again, (uint64_t)at, &g, &e));
		autofree uint8_t *want = tree_bytes_of(f, &n), *got = tree_bytes_of(g, &n_again);
		ck_assert_msg(n == n_again && !memcmp(want, got, n), "%s", t.fqn);
	}
	ckpt_close(again);
}

START_LOOP_TEST(what_was_placed_can_be_taken_out_again, ARRAY_LEN(families))
{
	static const char tokenizer[] =
		"{\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false}, "
		"\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}, "
		"\"merges\": [\"a b\"]}}";
	struct ckpt_opts o = { .gguf_dtype = "f32", .index = ":memory:" };
	const char *type = families[_i].joined;
	char config[2000], hf[4200], back[4096], names[1000];
	struct ckpt_err e = { 0 };
	struct ckpt *c = NULL;
	int fd = new_dir(back);

	(void)snprintf(config, sizeof(config),
		       "{'architectures': ['%sForCausalLM'], 'vocab_size': 8, 'hidden_size': 8, "
		       "'intermediate_size': 12, 'num_hidden_layers': 2, 'num_attention_heads': 2, "
		       "'num_key_value_heads': 1, 'head_dim': 4, 'max_position_embeddings': 16, "
		       "'rms_norm_eps': 1e-5, 'model_type': '%s'%s}",
		       families[_i].name, type ? type : "", families[_i].more);
	put_model(config, type);
	weights_put_text(dir_fd, "hf", "tokenizer.json", tokenizer);
	(void)snprintf(hf, sizeof(hf), "%s/hf", dir);
	ck_assert_msg(!open_typed(hf, &o, &c, &e), "%s", e.msg);
	copy_out(c, fd, names);
	ck_assert_str_eq(names, "model.gguf ");
	if (type) { /* the GGUF's are shown one by one */
		ckpt_close(c);
		o.experts = "split";
		ck_assert_msg(!open_typed(hf, &o, &c, &e), "%s", e.msg);
	}
	take_out(c, back, hf);
	take_out(c, back, NULL);
	ckpt_close(c);
	(void)close(fd);
}
END_TEST

/* ---- files ---- */

static const struct {
	size_t shard_size;
	const char *name;
	bool there;
} files[] = {
	{ 0, "model.gguf", true },
	{ 0, "model.gguf2", false },
	{ 0, "model-00001-of-00001.gguf", false },
	{ 0, "model", false },
	{ 0, "x", false },
	{ 1, "model.gguf", false },
	{ 1, "model-00001-of-00012.gguf", true },
	{ 1, "model-00012-of-00012.gguf", true },
	{ 1, "model-00000-of-00012.gguf", false },
	{ 1, "model-00013-of-00012.gguf", false },
	{ 1, "model-1-of-00012.gguf", false },
	{ 1, "model-00001-of-00013.gguf", false },
	{ 1, "m", false },
};

START_LOOP_TEST(a_file_has_one_name, ARRAY_LEN(files))
{
	struct row x = { .model = &llama, .changes = "", .shard_size = files[_i].shard_size };
	struct ckpt *c = open_row(&x);
	struct ckpt_err e = { 0 };
	char path[100];
	ckpt_node n = 0;

	(void)snprintf(path, sizeof(path), "gguf/%s", files[_i].name);
	ck_assert_int_eq(ckpt_walk(c, path, &n, &e), files[_i].there ? 0 : -ENOENT);
	ckpt_close(c);
}
END_TEST

/*
 * Without a whole tensor there is no file. hf/ has another list of tensors: it shows the experts
 * split.
 */
START_LOOP_TEST(a_damaged_tensor_is_named, 3)
{
	static const char *const names[] = { "model.norm.weight", "lm_head.weight",
					     L "mlp.experts.down_proj" };
	static const char *const tensors[] = { "model.norm.weight F32 8", "lm_head.weight F32 8x8",
					       L "mlp.experts.down_proj F32 2x8x12" };
	static const struct model typed = { CONFIG("Mixtral", MOE ", 'model_type': 'mixtral'"),
					    TOP NORMS ATTENTION FUSED FUSED_ROUTER HEAD };
	struct ckpt_opts o = { .allow_missing = true, .index = ":memory:" };
	struct row x = { .model = &typed, .changes = "" };
	struct rng r = rng_new();
	struct ckpt_err e = { 0 };
	struct ckpt *c = open_row(&x);
	char without[200], want[200];
	autofree char *info = NULL;
	ckpt_node n = 0;
	size_t len;

	ck_assert_msg(!ckpt_walk(c, "gguf/model.gguf", &n, &e), "%s", e.msg);
	ckpt_close(c);
	(void)snprintf(without, sizeof(without), "%s -", names[_i]);
	put_tensors(typed.tensors, without);
	REQUIRE(!renameat(dir_fd, "model.safetensors", dir_fd, "model-00001-of-00002.safetensors"));
	st_put(dir_fd, "model-00002-of-00002.safetensors", &r, tensors[_i]);
	cut_file("model-00002-of-00002.safetensors", 4);
	ck_assert_msg(!open_typed(dir, &o, &c, &e), "%s", e.msg);
	ck_assert_int_eq(ckpt_walk(c, "gguf/model.gguf", &n, &e), -ENOENT);
	REQUIRE(!ckpt_info_json(c, &info, &len, &e));
	(void)snprintf(want, sizeof(want), "'%s': data file 'model-00002-of-00002.safetensors'",
		       names[_i]);
	ck_assert_msg(strstr(info, want) != NULL, "%s", strstr(info, "\"gguf\""));
	ckpt_close(c);
}
END_TEST

/* The converter adds 1 to the norms of Gemma: in float16 if that is what is stored. */
START_LOOP_TEST(one_is_added_in_the_dtype_that_is_stored, 2)
{
	struct row x = { .model = &gemma, .changes = _i ? "model.norm.weight F16 8" : "" };
	struct ckpt *c = open_row(&x);
	enum ckpt_dtype dtype = _i ? CKPT_DTYPE_F16 : CKPT_DTYPE_F32;
	struct ckpt_err e = { 0 };
	struct ckpt_file *f = NULL;
	float w[8];
	uint8_t raw[32];
	char names[1000];
	uint8_t *file, *at;
	size_t n;

	ck_assert_msg(!ckpt_file_open_path(c, "tensors/model.norm.weight", &f, &e), "%s", e.msg);
	REQUIRE(ckpt_file_read(f, raw, sizeof(raw), 0, &e) == (_i ? 16 : 32));
	ckpt_file_close(f);
	cast_run(dtype, CKPT_DTYPE_F32, raw, w, 8);
	for (size_t i = 0; i < 8; i++)
		w[i] += 1;
	if (_i) {
		cast_run(CKPT_DTYPE_F32, CKPT_DTYPE_F16, w, raw, 8);
		cast_run(CKPT_DTYPE_F16, CKPT_DTYPE_F32, raw, w, 8);
	}
	REQUIRE(!mkdirat(dir_fd, "out", 0700));
	copy_out(c, dir_fd, names);
	file = get_file(dir_fd, "model.gguf", &n);
	at = memmem(file, n, w, sizeof(w)); /* random bytes: once at most */
	for (size_t i = 0; i < 8; i++)
		if (w[i] != w[i]) /* a NaN, which has more than one form */
			at = file;
	ck_assert_ptr_nonnull(at);
	free(file);
	ckpt_close(c);
}
END_TEST

/* What failed for lack of memory is tried again at the next look, with the same result. */
START_LOOP_TEST(without_memory_it_is_made_later, ARRAY_LEN(rows))
{
	const struct row *x = &rows[_i];
	struct ckpt *c = open_row(x);
	ckpt_node n = 0;
	struct ckpt_err e;

	FAULT_LOOP(FAULT_ALLOC)
	{
		struct ckpt_file *f = NULL;
		int rc;

		e = (struct ckpt_err){ 0 };
		rc = ckpt_walk(c, "gguf", &n, &e);
		if (!rc && !x->shard_size)
			rc = ckpt_file_open_path(c, "gguf/model.gguf", &f, &e);
		(void)fault_off();
		ck_assert_int_eq(e.code, -rc);
		if (*x->want == '!')
			ck_assert(rc);
		else if (rc)
			ck_assert_msg(fault_hit() && (rc == -ENOMEM || rc == -ENOENT), "%s", e.msg);
		ckpt_file_close(f);
	}
	ck_assert_int_eq(ckpt_walk(c, "gguf", &n, &e), *x->want == '!' ? -ENOENT : 0);
	ckpt_close(c);
}
END_TEST

SUITE(gguf_tree, .setup = dir_setup, .teardown = dir_teardown, .seconds = 30)
