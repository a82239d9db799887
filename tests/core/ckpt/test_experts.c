/* SPDX-License-Identifier: Apache-2.0 */
/* Option experts: a tensor for each expert, or one for all experts of a layer, and models for which
 * that is not known. */
#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "dir_util.h"
#include "fault.h"
#include "opts_util.h"
#include "rng.h"
#include "st_util.h"
#include "suites.h"
#include <ckptfs/ckpt.h>
#include <ckptfs/ckpt_mount.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIXTRAL "{\"model_type\": \"mixtral\"}"
#define QWEN	"{\"model_type\": \"qwen3_moe\"}"
#define B	"l.0.block_sparse_moe.experts."
#define M	"l.0.mlp.experts."
#define ONE(i)	B #i ".w1.weight F32 3x2; " B #i ".w2.weight F32 2x3; " B #i ".w3.weight F32 3x2; "
#define FUSED	"l.0.mlp.experts.gate_up_proj F32 2x6x2; l.0.mlp.experts.down_proj F32 2x2x3; "
#define GATE	"l.0.mlp.gate.weight F32 2x2"
#define UNLIKE	"!expert 1 differs from the first in dtype or shape"

static const struct {
	const char *config, *experts, *tensors;
	const char *want; /* of hf/; after "!": the error; after "?": a warning */
} rows[] = {
	{ MIXTRAL, "split", FUSED GATE,
	  "l.0.block_sparse_moe.experts.0.w1.weight [3,2]; "
	  "l.0.block_sparse_moe.experts.0.w2.weight [2,3]; "
	  "l.0.block_sparse_moe.experts.0.w3.weight [3,2]; "
	  "l.0.block_sparse_moe.experts.1.w1.weight [3,2]; "
	  "l.0.block_sparse_moe.experts.1.w2.weight [2,3]; "
	  "l.0.block_sparse_moe.experts.1.w3.weight [3,2]; "
	  "l.0.block_sparse_moe.gate.weight [2,2]" },
	{ MIXTRAL, "fused", ONE(0) ONE(1) "l.0.block_sparse_moe.gate.weight F32 2x2; x F32 2",
	  "l.0.mlp.experts.down_proj [2,2,3]; l.0.mlp.experts.gate_up_proj [2,6,2]; "
	  "l.0.mlp.gate.weight [2,2]; "
	  "x [2]" },
	{ QWEN, "fused",
	  M "0.gate_proj.weight F32 3x2; " M "0.up_proj.weight F32 3x2; " M
	    "0.down_proj.weight F32 2x3",
	  "l.0.mlp.experts.down_proj [1,2,3]; l.0.mlp.experts.gate_up_proj [1,6,2]" },
	/* Without the option, experts are as save_pretrained writes them; in an unknown model they
	 * stay as they are. */
	{ QWEN, NULL, "l.0.mlp.experts.gate_up_proj F32 1x6x2; l.0.mlp.experts.down_proj F32 1x2x3",
	  M "0.down_proj.weight [2,3]; " M "0.gate_proj.weight [3,2]; " M
	    "0.up_proj.weight [3,2]" },
	{ "{}", NULL, "l.0.mlp.experts.gate_up_proj F32 1x6x2",
	  "l.0.mlp.experts.gate_up_proj [1,6,2]" },
	{ NULL, NULL, "l.0.mlp.experts.gate_up_proj F32 1x6x2",
	  "l.0.mlp.experts.gate_up_proj [1,6,2]" },
	{ QWEN, NULL, "l.0.mlp.experts.gate_up_proj F32 1x5x2",
	  "l.0.mlp.experts.gate_up_proj [1,5,2]" },
	{ QWEN, "stored", "l.0.mlp.experts.gate_up_proj F32 1x6x2",
	  "l.0.mlp.experts.gate_up_proj [1,6,2]" },
	{ QWEN, "split", "x F32 2",
	  "?option 'experts': the model stores its experts that way already" },
	{ QWEN, "fused", FUSED,
	  "?option 'experts': the model stores its experts that way already" },
	/* Models whose experts are not known. */
	{ NULL, "split", FUSED, "!it needs a config.json" },
	{ "[]", "split", FUSED, "!config.json is not an object" },
	{ "{}", "split", FUSED, "!model_type '' has no experts that are known" },
	{ "{\"model_type\": \"llama\"}", "fused", FUSED,
	  "!model_type 'llama' has no experts that are known" },
	{ QWEN, "split", "l.0.mlp.experts.gate_up_proj F32 6x2",
	  "!'l.0.mlp.experts.gate_up_proj' is (6, 2)" },
	{ QWEN, "split", "l.0.mlp.experts.gate_up_proj F32 1x5x2",
	  "!'l.0.mlp.experts.gate_up_proj' is (1, 5, 2)" },
	/* A huge number of experts costs a file no more than a small one. */
	{ QWEN, NULL,
	  "l.0.mlp.experts.gate_up_proj F32 16000000x2x0; l.0.mlp.experts.down_proj F32 "
	  "16000000x0x1",
	  "l.0.mlp.experts.down_proj [16000000,0,1]; l.0.mlp.experts.gate_up_proj "
	  "[16000000,2,0]" },
	{ QWEN, "split", "l.0.mlp.experts.down_proj F32 16000000x2x0",
	  "?option 'experts': the model stores its experts that way already, or has none" },
	{ QWEN, "split", "l.0.mlp.experts.down_proj U8 262145x1x1",
	  "!'l.0.mlp.experts.down_proj' is (262145, 1, 1): the experts would be more than 262144 "
	  "tensors in all" },
	{ QWEN, "split", "l.0.mlp.experts.down_proj F32 6",
	  "!'l.0.mlp.experts.down_proj' is (6,)" },
	{ QWEN, "split", "l.0.mlp.experts.down_proj F32 1x2x3; " M "0.down_proj.weight F32 2x3",
	  "!an expert" },
	{ MIXTRAL, "fused",
	  ONE(0) B "1.w1.weight F32 4x2; " B "1.w2.weight F32 2x3; " B "1.w3.weight F32 4x2",
	  UNLIKE },
	{ MIXTRAL, "fused",
	  ONE(0) B "1.w1.weight F32 3x5; " B "1.w2.weight F32 2x3; " B "1.w3.weight F32 3x5",
	  UNLIKE },
	{ MIXTRAL, "fused",
	  ONE(0) B "1.w1.weight F16 3x2; " B "1.w2.weight F32 2x3; " B "1.w3.weight F16 3x2",
	  UNLIKE },
	{ MIXTRAL, "fused",
	  ONE(0) B "1.w1.weight F32 3x2; " B "1.w2.weight F32 2x4; " B "1.w3.weight F32 3x2",
	  UNLIKE },
	{ MIXTRAL, "fused",
	  B "0.w1.weight F32 3x2; " B "0.w3.weight F32 3x4; " B "0.w2.weight F32 2x3",
	  "!expert 0: gate and up differ in dtype or shape" },
	{ MIXTRAL, "fused",
	  B "0.w1.weight F32 3x2; " B "0.w3.weight F16 3x2; " B "0.w2.weight F32 2x3",
	  "!expert 0: gate and up differ in dtype or shape" },
	{ MIXTRAL, "fused", B "0.w1.weight F32 3x2; " B "0.w2.weight F32 2x3",
	  "!the experts of 'l.0' are not complete" },
	{ MIXTRAL, "fused", B "0.w1.weight F32 3x2; " B "0.w3.weight F32 3x2",
	  "!the experts of 'l.0' are not complete" },
	{ MIXTRAL, "fused", B "0.w1.weight F32 6; " B "0.w3.weight F32 3x2",
	  "!.0.w1.weight' is (6,)" },
	{ MIXTRAL, "fused", ONE(0) B "1.w1.weight F32 3x2; " B "1.w3.weight F32 3x2",
	  "!.experts.0.w1.weight' is one of 2 experts, of which 1 is complete" },
};

static void warn(void *arg, const char *what)
{
	(void)snprintf(arg, 300, "%s", what);
}

static int open_row(int i, char said[static 300], struct ckpt **ret, struct ckpt_err *e)
{
	struct ckpt_opts o = { .experts = rows[i].experts,
			       .index = ":memory:",
			       .weights = "",
			       .warn = warn,
			       .warn_arg = said };

	*said = 0;
	return open_typed(dir, &o, ret, e);
}

static void put_row(int i)
{
	struct rng r = rng_new();

	if (rows[i].config)
		put_file(dir_fd, "config.json", rows[i].config, strlen(rows[i].config));
	st_put(dir_fd, "model.safetensors", &r, rows[i].tensors);
}

/* "NAME [shape]; ..." of hf/. */
static char *shown(const struct ckpt *c)
{
	struct buf b = BUF_INIT(1 << 16);
	struct ckpt_tensor t;

	buf_str(&b, "");
	for (uint64_t i = 0; i < ckpt_model_tensors(c); i++) {
		ckpt_model_tensor(c, i, &t);
		buf_printf(&b, "%s%s [", i ? "; " : "", t.fqn);
		for (size_t d = 0; d < t.n_dims; d++)
			buf_printf(&b, "%s%llu", d ? "," : "", (unsigned long long)t.shape[d]);
		buf_str(&b, "]");
	}
	buf_add(&b, "", 1);
	REQUIRE(!b.err);
	return (char *)b.data;
}

/* The values of a float32 tensor of the model; the caller frees them. */
static float *values(struct ckpt *c, const char *name, size_t *ret_n)
{
	int64_t i = ckpt_model_find(c, name, strlen(name));
	struct ckpt_file *f = NULL;
	struct ckpt_err e = { 0 };
	float *v;

	REQUIRE(i >= 0 && !ckpt_model_open(c, (uint64_t)i, &f, &e));
	*ret_n = ckpt_file_size(f) / sizeof(*v);
	v = malloc(ckpt_file_size(f) + 1);
	REQUIRE(v && ckpt_file_read(f, v, ckpt_file_size(f), 0, &e) == (int64_t)ckpt_file_size(f));
	ckpt_file_close(f);
	return v;
}

START_LOOP_TEST(experts_are_shown_as_was_asked_for, ARRAY_LEN(rows))
{
	const char *want = rows[_i].want;
	struct ckpt_err e = { 0 };
	struct ckpt *c = NULL;
	char said[300];
	int rc;

	put_row(_i);
	rc = open_row(_i, said, &c, &e);
	if (*want == '!') {
		ck_assert_int_lt(rc, 0);
		ck_assert_msg(strstr(e.msg, want + 1) != NULL, "%s", e.msg);
		return;
	}
	ck_assert_msg(!rc, "%s", e.msg);
	if (*want == '?') {
		ck_assert_msg(strstr(said, want + 1) == said, "%s", said);
	} else {
		autofree char *have = shown(c);

		ck_assert_str_eq(have, want);
	}
	ckpt_close(c);
}
END_TEST

START_LOOP_TEST(an_expert_is_a_part_of_all, 2)
{
	const char *one[] = { B "1.w1.weight", B "1.w3.weight", B "1.w2.weight" };
	static const struct ckpt_opts
		fused = { .index = ":memory:", .weights = "", .experts = "fused" },
		split = { .index = ":memory:", .weights = "", .experts = "split" };
	struct ckpt_err e = { 0 };
	struct ckpt *a = NULL, *b = NULL;

	put_row(_i);
	ck_assert_msg(!open_typed(dir, _i ? &fused : &split, &a, &e), "%s", e.msg);
	{
		static const struct ckpt_opts stored = {
			.index = ":memory:", .weights = "", .experts = "stored"
		};

		ck_assert_msg(!open_typed(dir, &stored, &b, &e), "%s", e.msg);
	}
	for (int part = 0; part < 3; part++) {
		size_t n, all;
		autofree float *x = values(_i ? b : a, one[part], &n);
		autofree float *whole =
			values(_i ? a : b, part < 2 ? M "gate_up_proj" : M "down_proj", &all);

		ck_assert_uint_eq(n, 6);
		/* Expert 1 of 2: gate above up. */
		ck_assert(!memcmp(x, whole + all / 2 + (part == 1 ? 6 : 0), n * sizeof(*x)));
	}
	ckpt_close(a);
	ckpt_close(b);
}
END_TEST

START_LOOP_TEST(without_memory_it_says_so, ARRAY_LEN(rows))
{
	put_row(_i);
	fault_sqlite();
	FAULT_LOOP_SOME(FAULT_ALLOC, 1)
	{
		struct ckpt_err e = { 0 };
		struct ckpt *c = NULL;
		char said[300];
		int rc = open_row(_i, said, &c, &e);

		(void)fault_off();
		ck_assert_int_eq(e.code, -rc);
		ck_assert(*rows[_i].want == '!' ? rc != 0 : !rc || fault_hit());
		if (!rc && *rows[_i].want != '?') {
			autofree char *have = shown(c);

			ck_assert_str_eq(have, rows[_i].want);
		}
		ckpt_close(c);
	}
}
END_TEST

SUITE(experts, .setup = dir_setup, .teardown = dir_teardown, .seconds = 60)
