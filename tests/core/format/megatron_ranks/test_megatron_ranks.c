/* SPDX-License-Identifier: Apache-2.0 */
/* Small checkpoints in Megatron-LM's format `torch`, and what is wrong with others. What real torch
 * has written is compared in ckpt_data and tests/torch/megatron_ranks.sh. */
#include "base/checked.h"
#include "dir_util.h"
#include "saved_util.h"
#include "scan_util.h"
#include "suites.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* The state of rank mp_rank_NAME. */
static void put(const char *name, const char *text, unsigned first)
{
	char path[200];

	(void)snprintf(path, sizeof(path), "mp_rank_%s", name);
	(void)mkdirat(dir_fd, path, 0755);
	(void)snprintf(path, sizeof(path), "mp_rank_%s/model_optim_rng.pt", name);
	saved_put(dir_fd, path, text, first);
}

static void drop(const char *name)
{
	char path[200];

	(void)snprintf(path, sizeof(path), "mp_rank_%s/model_optim_rng.pt", name);
	REQUIRE(!unlinkat(dir_fd, path, 0));
	(void)snprintf(path, sizeof(path), "mp_rank_%s", name);
	REQUIRE(!unlinkat(dir_fd, path, AT_REMOVEDIR));
}

/* A rank's state with this model, args and version, as if written by a process of its own. */
static void put_model(const char *name, const char *model, const char *args, int version,
		      unsigned first)
{
	static unsigned rank;
	char text[3000];

	(void)snprintf(text, sizeof(text),
		       "{'args': A{'rank': %u, %s}, 'checkpoint_version': %d, 'iteration': 5, "
		       "'model': {%s}}",
		       rank++, args, version, model);
	put(name, text, first);
}

/* Objects that put_model writes. */
#define OBJECTS "object args\nobject checkpoint_version\nobject iteration\n"

static void expect(const char *want)
{
	saved_expect(dir, "megatron-legacy", want);
}

static void expect_error(const char *want)
{
	saved_expect_error(dir, want);
}

START_TEST(slices_are_joined_by_names_and_shapes)
{
	static const char model[] =
		"'embedding.word_embeddings.weight': t0+0(1,2),"
		"'decoder.layers.0.self_attention.linear_qkv.weight': t0+2(3,1),"
		"'decoder.layers.0.self_attention.linear_proj.weight': t0+5(2,1),"
		"'decoder.layers.0.self_attention.linear_proj.bias': t1+0(2),"
		"'decoder.layers.0.mlp.linear_fc1.weight': t0+7(4,1),"
		"'decoder.layers.0.mlp.linear_fc1.bias': t0+11(4),"
		"'decoder.layers.0.mlp.linear_fc2.weight': t0+15(1,2),"
		"'decoder.final_layernorm.weight': t1+2(2)";

	put_model("00", model, "", 3, 0);
	put_model("01", model, "", 3, 0);
	/* Both have the same values, or there would be a warning that copies differ. */
	expect("decoder.final_layernorm.weight[2] 102 103\n"
	       "decoder.layers.0.mlp.linear_fc1.bias[8] 11 12 11 12 13 14 13 14\n"
	       "decoder.layers.0.mlp.linear_fc1.weight[8,1] 7 8 7 8 9 10 9 10\n"
	       "decoder.layers.0.mlp.linear_fc2.weight[1,4] 15 16 15 16\n"
	       "decoder.layers.0.self_attention.linear_proj.bias[2] 100 101\n"
	       "decoder.layers.0.self_attention.linear_proj.weight[2,2] 5 5 6 6\n"
	       "decoder.layers.0.self_attention.linear_qkv.weight[6,1] 2 3 4 2 3 4\n"
	       "embedding.word_embeddings.weight[2,2] 0 1 0 1\n" OBJECTS);
}
END_TEST

/* Rank 1 has its slice in the first stage, rank 0 in the second. */
START_TEST(slices_are_joined_by_rank_not_by_stage)
{
	static const char model[] = "'embedding.word_embeddings.weight': t0+0(1,2)";

	put_model("00_000", "", "", 3, 0);
	put_model("01_000", model, "", 3, 1000);
	put_model("00_001", model, "", 3, 2000);
	put_model("01_001", "", "", 3, 3000);
	expect("embedding.word_embeddings.weight[2,2] 2000 2001 1000 1001\n" OBJECTS);
}
END_TEST

START_TEST(without_a_gate_the_first_projection_is_not_halved)
{
	static const char model[] = "'layers.0.mlp.dense_h_to_4h.bias': t0+0(2),"
				    "'layers.0.mlp.dense_4h_to_h.weight': t0+2(1,2)";

	put_model("00", model, "", 3, 0);
	put_model("01", model, "", 3, 1000);
	expect("layers.0.mlp.dense_4h_to_h.weight[1,4] 2 3 1002 1003\n"
	       "layers.0.mlp.dense_h_to_4h.bias[4] 0 1 1000 1001\n" OBJECTS);
	/* Neither as many rows as columns, nor twice as many. */
	put_model("00", "'layers.0.mlp.dense_h_to_4h.bias': t0+0(2)", "", 3, 0);
	put_model("01", "'layers.0.mlp.dense_h_to_4h.bias': t0+0(2)", "", 3, 1000);
	expect("mp_rank_00/layers.0.mlp.dense_h_to_4h.bias[2] 0 1\n"
	       "mp_rank_01/layers.0.mlp.dense_h_to_4h.bias[2] 1000 1001\n" OBJECTS
	       "! not everything is shown: how the ranks' slices of "
	       "'layers.0.mlp.dense_h_to_4h.bias' are joined: its shape is not that of such a "
	       "tensor, so they are shown as mp_rank_00/NAME");
}
END_TEST

START_TEST(stages_number_their_layers_from_0)
{
	put_model(
		"00_000",
		"'decoder.layers.0.norm.weight': t0+0(1), 'decoder.layers.1.norm.weight': t0+1(1)",
		"", 3, 0);
	put_model("00_001", "", "", 3, 1000);
	put_model("00_002",
		  "'decoder.layers.0.norm.weight': t0+0(1), 'mtp.layers.0.norm.weight': t0+1(1)",
		  "'num_layers': 3", 3, 2000);
	expect("decoder.layers.0.norm.weight[1] 0\ndecoder.layers.1.norm.weight[1] 1\n"
	       "decoder.layers.2.norm.weight[1] 2000\nmtp.layers.0.norm.weight[1] 2001\n" OBJECTS);
}
END_TEST

START_TEST(missing_layers_are_told)
{
	put_model("00", "'decoder.layers.2.norm.weight': t0+0(1)", "'num_layers': 4", 3, 0);
	expect("decoder.layers.2.norm.weight[1] 0\n" OBJECTS
	       "! not everything is shown: some layers: the args in "
	       "'mp_rank_00/model_optim_rng.pt' have num_layers=4, but the files have 3");
}
END_TEST

START_TEST(virtual_stages_come_before_stages)
{
	static const char state[] = "{'iteration': 5, 'checkpoint_version': 3,"
				    "'model0': {'layers.0.norm.weight': t0+0(1)},"
				    "'model1': {'layers.0.norm.weight': t0+1(1)}}";

	put("00_000", state, 0);
	put("00_001", state, 1000);
	expect("layers.0.norm.weight[1] 0\nlayers.1.norm.weight[1] 1000\n"
	       "layers.2.norm.weight[1] 1\nlayers.3.norm.weight[1] 1001\n"
	       "object checkpoint_version\nobject iteration\n");
	put("00_001",
	    "{'iteration': 5, 'checkpoint_version': 3, 'model': {'layers.0.norm.weight': t0+0(1)}}",
	    0);
	expect_error("'mp_rank_00_001/model_optim_rng.pt' has 1 virtual stages, and "
		     "'mp_rank_00_000/model_optim_rng.pt' has 2");
}
END_TEST

START_TEST(a_number_alone_is_the_stage_or_the_expert_parallel_rank)
{
	static const char args[] = "'pipeline_model_parallel_size': 1,"
				   "'expert_model_parallel_size': 2";
	static const char model[] =
		"'layers.0.mlp.experts.local_experts.0.linear_fc2.weight': t0+0(1,1),"
		"'layers.0.mlp.experts.local_experts.1.linear_fc2.weight': t0+1(1,1),"
		"'layers.0.mlp.experts.linear_fc2.weight0': t0+2(1,1)";

	put_model("00_000", model, args, 3, 0);
	put_model("00_001", model, args, 3, 1000);
	expect("layers.0.mlp.experts.linear_fc2.weight0[1,1] 2\n"
	       "layers.0.mlp.experts.linear_fc2.weight1[1,1] 1002\n"
	       "layers.0.mlp.experts.local_experts.0.linear_fc2.weight[1,1] 0\n"
	       "layers.0.mlp.experts.local_experts.1.linear_fc2.weight[1,1] 1\n"
	       "layers.0.mlp.experts.local_experts.2.linear_fc2.weight[1,1] 1000\n"
	       "layers.0.mlp.experts.local_experts.3.linear_fc2.weight[1,1] 1001\n" OBJECTS);
}
END_TEST

START_TEST(rows_of_old_versions_are_put_in_order)
{
	static const char model[] = "'attention.query_key_value.weight': t0+0(12,1)";
	static const char args[] = "'model_parallel_size': 1, 'num_attention_heads': 2";

	/* Two heads of two dimensions; an element's value tells where it was stored. */
	put_model("00", "'layers.0.attention.query_key_value.weight': t0+0(12,1)", args, 0, 0);
	expect("layers.0.attention.query_key_value.weight[12,1] 0 1 4 5 8 9 2 3 6 7 10 "
	       "11\n" OBJECTS);
	put_model("00", "'layers.0.attention.query_key_value.weight': t0+0(12,1)", args, 1, 0);
	expect("layers.0.attention.query_key_value.weight[12,1] 0 3 1 4 2 5 6 9 7 10 8 "
	       "11\n" OBJECTS);
	put_model("00", "'layers.0.attention.key_value.weight': t0+0(8,1)", args, 0, 0);
	expect("layers.0.attention.key_value.weight[8,1] 0 1 4 5 2 3 6 7\n" OBJECTS);
	put_model("00", model, "'num_attention_heads': 5", 0, 0);
	expect("mp_rank_00/attention.query_key_value.weight[12,1] 0 1 2 3 4 5 6 7 8 9 10 "
	       "11\n" OBJECTS "! not everything is shown: how the ranks' slices of "
	       "'attention.query_key_value.weight' are joined: checkpoint_version is below 2, and "
	       "the number of heads is not known, so they are shown as mp_rank_00/NAME");
	put_model("00", model, "'num_attention_heads': 4611686018427387904", 0, 0);
	expect("mp_rank_00/attention.query_key_value.weight[12,1] 0 1 2 3 4 5 6 7 8 9 10 "
	       "11\n" OBJECTS "! not everything is shown: how the ranks' slices of "
	       "'attention.query_key_value.weight' are joined: checkpoint_version is below 2, and "
	       "the number of heads is not known, so they are shown as mp_rank_00/NAME");
}
END_TEST

START_TEST(experts_in_one_tensor_have_a_dimension_of_their_own)
{
	static const char model[] = "'layers.0.mlp.router.weight': t1+0(2,1),"
				    "'layers.0.mlp.experts.weight1': t0+0(1,8),"
				    "'layers.0.mlp.experts.weight2': t0+8(4,1)";

	put_model("00", model, "", 3, 0);
	put_model("01", model, "", 3, 0);
	expect("layers.0.mlp.experts.weight1[2,1,8] 0 1 0 1 2 3 2 3 4 5 4 5 6 7 6 7\n"
	       "layers.0.mlp.experts.weight2[2,4,1] 8 9 8 9 10 11 10 11\n"
	       "layers.0.mlp.router.weight[2,1] 100 101\n" OBJECTS);
	put_model("00", "'layers.0.mlp.experts.weight2': t0+8(4,1)", "", 3, 0);
	drop("01");
	expect("mp_rank_00/layers.0.mlp.experts.weight2[4,1] 8 9 10 11\n" OBJECTS
	       "! not everything is shown: how the ranks' slices of 'layers.0.mlp.experts.weight2' "
	       "are joined: the number of experts is not known, so they are shown as "
	       "mp_rank_00/NAME");
}
END_TEST

START_TEST(copies_are_shown_once_and_others_apart)
{
	put_model("00", "'a.norm.weight': t0+0(1), 'same': t0+1(1), 'odd': t0+2(1)", "", 3, 0);
	put_model("01", "'a.norm.weight': t0+1(1), 'same': t0+1(1), 'odd': t0+2(1)", "", 3, 0);
	expect("a.norm.weight[1] 0\nodd[1] 2\nsame[1] 1\n" OBJECTS
	       "! not everything is shown: 'a.norm.weight' of other ranks: "
	       "'mp_rank_01/model_optim_rng.pt' has other values than "
	       "'mp_rank_00/model_optim_rng.pt', whose values are shown");
	put_model("01", "'a.norm.weight': t0+0(1), 'same': t0+1(1), 'odd': t0+3(1)", "", 3, 0);
	expect("a.norm.weight[1] 0\nmp_rank_00/odd[1] 2\nmp_rank_01/odd[1] 3\nsame[1] 1\n" OBJECTS
	       "! not everything is shown: how the ranks' slices of 'odd' are joined: its name is "
	       "not one of Megatron's, so they are shown as mp_rank_00/NAME");
}
END_TEST

/* The warning says where each of them is. */
START_TEST(unknown_tensors_of_all_stages_are_shown)
{
	static const char two[] = "{'model0': {'odd': t0+0(1)}, 'model1': {'odd': t0+1(1)}}";

	put_model("00_000", "'odd': t0+0(1)", "", 3, 0);
	put_model("00_001", "'odd': t0+0(2)", "", 3, 1000);
	expect("mp_rank_00_000/odd[1] 0\nmp_rank_00_001/odd[2] 1000 1001\n" OBJECTS
	       "! not everything is shown: how the ranks' slices of 'odd' are joined: its name is "
	       "not one of Megatron's, so they are shown as mp_rank_00_000/NAME");
	put("00_000", two, 0);
	put("00_001", two, 1000);
	saved_expect_begin(dir, "megatron-legacy",
			   "mp_rank_00_000/model1/odd[1] 1\nmp_rank_00_000/odd[1] 0\n"
			   "mp_rank_00_001/model1/odd[1] 1001\nmp_rank_00_001/odd[1] 1000\n");
}
END_TEST

START_TEST(tensors_that_have_no_names_are_told)
{
	static const char *const models[] = { "'m': {'d': 0, 'l': [(t0+0(1),)]}",
					      "'m': {'l': {1: {'x': t0+0(1)}}}" };

	for (size_t i = 0; i < ARRAY_LEN(models); i++) {
		put_model("00", models[i], "", 3, 0);
		expect(OBJECTS "! not everything is shown: tensors in lists or under keys that "
			       "are not names, in 'm.l' of 'mp_rank_00/model_optim_rng.pt'");
	}
	put_model("00", "2: t0+0(1)", "", 3, 0);
	expect(OBJECTS "! not everything is shown: tensors in lists or under keys that are not "
		       "names, in 'model' of 'mp_rank_00/model_optim_rng.pt'");
}
END_TEST

START_TEST(extra_states_are_each_ranks_own)
{
	put_model("00", "'layers.0.linear_qkv._extra_state': t0+0(1)", "", 3, 0);
	put_model("01", "'layers.0.linear_qkv._extra_state': t0+1(2)", "", 3, 0);
	expect("mp_rank_00/layers.0.linear_qkv._extra_state[1] 0\n"
	       "mp_rank_01/layers.0.linear_qkv._extra_state[2] 1 2\n" OBJECTS);
}
END_TEST

START_TEST(nested_state_dicts_of_old_models_and_an_optimizer)
{
	put("00",
	    "{'model': {'language_model': {'encoder': {'layers.0.input_layernorm.weight': "
	    "t0+0(1)}}},"
	    " 'checkpoint_version': 3, 'optimizer': {'state': {0: t0+1(1)}}, 'rng_state': [E]}",
	    0);
	expect("language_model.encoder.layers.0.input_layernorm.weight[1] 0\n"
	       "object checkpoint_version\n"
	       "! not everything is shown: the optimizer's states: the files number them, and do "
	       "not say which parameters they belong to");
}
END_TEST

START_TEST(weights_of_nemo)
{
	for (unsigned p = 0; p < 2; p++) {
		char path[100];

		(void)snprintf(path, sizeof(path), "tp_rank_00_pp_rank_%03u", p);
		REQUIRE(!mkdirat(dir_fd, path, 0755));
		(void)snprintf(path, sizeof(path), "tp_rank_00_pp_rank_%03u/model_weights.ckpt", p);
		saved_put(dir_fd, path, "{'model.decoder.layers.0.norm.weight': t0+0(1)}", p);
	}
	expect("model.decoder.layers.0.norm.weight[1] 0\nmodel.decoder.layers.1.norm.weight[1] "
	       "1\n");
	REQUIRE(!renameat(dir_fd, "tp_rank_00_pp_rank_001", dir_fd, "tp_rank_00_pp_rank_002"));
	expect_error("'tp_rank_00_pp_rank_001' is missing beside 'tp_rank_00_pp_rank_000'");
}
END_TEST

static void put_nemo(const char *name)
{
	char path[100];

	(void)mkdirat(dir_fd, name, 0755);
	(void)snprintf(path, sizeof(path), "%s/model_weights.ckpt", name);
	saved_put(dir_fd, path, "{'a.norm.weight': t0+0(1)}", 0);
}

/* Its files do not say how many there are. */
START_TEST(ranks_of_nemo_are_as_many_as_its_configuration_says)
{
	static const char *const configs[] = {
		"a: 1\ntensor_model_parallel_size: 3\npipeline_model_parallel_size: 2\n",
		"tensor_model_parallel_size:  3 # ranks\r\n",
		"tensor_model_parallel_size: 3",
	};
	static const char *const silent[] = {
		"",
		"tensor_model_parallel_size: null\n",
		"  tensor_model_parallel_size: 3\n",
		"tensor_model_parallel_size: 3x\n",
		"tensor_model_parallel_size: 3 4\n",
		"tensor_model_parallel_size: 0\n",
		"tensor_model_parallel_size: ''\n",
		"tensor_model_parallel_size:\n",
		"old_tensor_model_parallel_size: 3\n",
		"tensor_model_parallel_size: 99999999999\n",
	};

	put_nemo("tp_rank_00_pp_rank_000");
	put_nemo("tp_rank_01_pp_rank_000");
	put_nemo("tp_rank_00_pp_rank_001");
	put_nemo("tp_rank_01_pp_rank_001");
	for (size_t i = 0; i < ARRAY_LEN(configs); i++) {
		put_file(dir_fd, "model_config.yaml", configs[i], strlen(configs[i]));
		expect_error("'model_config.yaml' has tensor_model_parallel_size=3, but the last "
			     "rank's file is 'tp_rank_01_pp_rank_001/model_weights.ckpt': others "
			     "are missing");
	}
	for (size_t i = 0; i < ARRAY_LEN(silent); i++) {
		put_file(dir_fd, "model_config.yaml", silent[i], strlen(silent[i]));
		expect("a.norm.weight[1] 0\n");
	}
	put_file(dir_fd, "model_config.yaml", "pipeline_model_parallel_size: 4\n", 32);
	expect_error("'model_config.yaml' has pipeline_model_parallel_size=4, but the last rank's "
		     "file is 'tp_rank_01_pp_rank_001/model_weights.ckpt': others are missing");
}
END_TEST

/* NeMo names the directory of an only rank neither way; Megatron-LM always has mp_rank_00. */
START_TEST(a_lone_rank_of_nemo_is_not_complete)
{
	put_nemo("mp_rank_00");
	expect_error("'mp_rank_01' is missing beside 'mp_rank_00'");
	put_nemo("mp_rank_01");
	expect("a.norm.weight[1] 0\n");
	for (unsigned t = 0; t < 2; t++) {
		char path[64];

		(void)snprintf(path, sizeof(path), "mp_rank_%02u/model_weights.ckpt", t);
		REQUIRE(!unlinkat(dir_fd, path, 0));
	}
	put_nemo("tp_rank_00_pp_rank_000");
	put_nemo("tp_rank_01_pp_rank_000");
	expect_error("'tp_rank_00_pp_rank_001' is missing beside 'tp_rank_00_pp_rank_000'");
}
END_TEST

START_TEST(files_that_are_not_of_one_save_are_refused)
{
	static const char two[] =
		"'tensor_model_parallel_size': 2, 'pipeline_model_parallel_size': 2";
	static const char norm[] = "'norm.weight': t0+0(1)";

	put_model("00_000", norm, two, 3, 0);
	put_model("00_001", norm, two, 3, 0);
	expect_error("have tensor_model_parallel_size=2, but the last rank's file is "
		     "'mp_rank_00_001/model_optim_rng.pt': others are missing");
	put_model("01_001", norm, two, 3, 0);
	expect_error("'mp_rank_01_000' is missing beside 'mp_rank_00_000'");
	put_model("01_000", norm, two, 3, 0);
	put_model("02_000", norm, two, 3, 0);
	expect_error("the last rank's file is 'mp_rank_02_000/model_optim_rng.pt': it is from "
		     "another checkpoint");
	drop("02_000");
	put_model("1_0", norm, two, 3, 0);
	expect_error("are of the same rank: one is from another checkpoint");
	drop("1_0");
	put_model("01_000", "'norm.weight': t0+0(2)", two, 3, 0);
	expect_error("'norm.weight': 'mp_rank_00_000/model_optim_rng.pt' has torch.Size([1]), "
		     "'mp_rank_01_000/model_optim_rng.pt' has torch.Size([2]): are these files "
		     "from one save?");
	put_model("01_000", "'norm.weight': h0+0(1)", two, 3, 0);
	expect_error("has float32, 'mp_rank_01_000/model_optim_rng.pt' has float16");
	put_model("01_000", norm, two, 2, 0);
	expect_error("have different values of checkpoint_version");
	put("01_000", "{'iteration': 6, 'checkpoint_version': 3, 'model': {}}", 0);
	expect_error("'mp_rank_01_000/model_optim_rng.pt' is of iteration 6, and "
		     "'mp_rank_00_000/model_optim_rng.pt' of 5: are these files from one save?");
}
END_TEST

/* One is a copy of the other. */
#define COPIES(a, b) \
	"'mp_rank_" a "/model_optim_rng.pt' and 'mp_rank_" b \
	"/model_optim_rng.pt' have the same bytes"

START_TEST(a_file_copied_over_anothers_is_refused)
{
	static const char slice[] = "{'model': {'layers.0.linear_proj.weight': t0+0(1,2)}}";
	static const char copy[] = "{'model': {'layers.0.norm.weight': t0+0(2)}}";
	static const char expert[] =
		"{'args': A{'pipeline_model_parallel_size': 1, 'expert_model_parallel_size': 2,"
		" 'rank': %u}, 'model': {'layers.0.experts.linear_fc2.weight0': t0+0(1,2)}}";
	char text[400];

	put("00", slice, 0);
	put("01", slice, 0);
	expect_error(COPIES("00", "01"));
	put("01", slice, 1000);
	expect("layers.0.linear_proj.weight[1,4] 0 1 1000 1001\n");
	/* Tensors that are not sliced may be equal. */
	put("00", copy, 0);
	put("01", copy, 0);
	expect("layers.0.norm.weight[2] 0 1\n");
	drop("00");
	drop("01");
	/* Stages have different layers, so equal files are copies. */
	put("00_000", slice, 0);
	put("00_001", slice, 0);
	expect_error(COPIES("00_000", "00_001"));
	/* Experts may be equal, but each process has written one file. */
	(void)snprintf(text, sizeof(text), expert, 0U);
	put("00_000", text, 0);
	put("00_001", text, 0);
	expect("layers.0.experts.linear_fc2.weight0[1,2] 0 1\n"
	       "layers.0.experts.linear_fc2.weight1[1,2] 0 1\nobject args\n"
	       "! not everything is shown: the experts in 'mp_rank_00_001/model_optim_rng.pt', if "
	       "it was overwritten with 'mp_rank_00_000/model_optim_rng.pt': both have the same "
	       "bytes");
	(void)snprintf(text, sizeof(text), expert, 2U);
	put("01_000", text, 0);
	(void)snprintf(text, sizeof(text), expert, 3U);
	put("01_001", text, 0);
	expect_error(COPIES("00_000", "00_001"));
}
END_TEST

START_TEST(what_is_damaged_is_an_error)
{
	REQUIRE(!mkdirat(dir_fd, "mp_rank_00", 0755));
	expect_error("'mp_rank_00' is in it");
	put("00", "[]", 0);
	expect_error("'mp_rank_00/model_optim_rng.pt' does not hold a dict");
	put("00", "{'args': E}", 0);
	expect_error("'mp_rank_00/model_optim_rng.pt' has no model");
	put("00", "{'model': 5}", 0);
	expect_error("'mp_rank_00/model_optim_rng.pt' has no model");
	put("00", "{'model': {}, 'checkpoint_version': 4611686018427387904}", 0);
	expect_error("its checkpoint_version is not a number");
	put("00", "{'model': {'w': t0+39(2)}}", 0);
	expect_error("its view reaches outside its storage");
	put("00", "{'model': {'a': {'b': t0+0(1)}, 'a.b': t0+1(1)}}", 0);
	expect_error("has two tensors called 'a.b'");
	put_file(dir_fd, "mp_rank_00/model_optim_rng.pt", "x", 1);
	expect_error("read 'mp_rank_00/model_optim_rng.pt'");
}
END_TEST

START_TEST(links_to_ranks_elsewhere_are_not_followed)
{
	put_model("00", "'norm.weight': t0+0(1)", "", 3, 0);
	REQUIRE(!symlinkat("/tmp", dir_fd, "mp_rank_01"));
	expect("norm.weight[1] 0\n" OBJECTS);
	REQUIRE(!unlinkat(dir_fd, "mp_rank_00/model_optim_rng.pt", 0));
	REQUIRE(!symlinkat("/etc/passwd", dir_fd, "mp_rank_00/model_optim_rng.pt"));
	expect_error("mp_rank_00/model_optim_rng.pt");
}
END_TEST

/* ---- shapes and args that do not fit ---- */

/* Two tensor-parallel ranks. */
static void put_pair(const char *zero, const char *one, const char *args)
{
	put_model("00", zero, args, 3, 0);
	put_model("01", one, args, 3, 0);
}

#define APART(name, why) \
	"! not everything is shown: how the ranks' slices of '" name "' are joined: " why \
	", so they are shown as mp_rank_00/NAME"
#define ODD_SHAPE "its shape is not that of such a tensor"

START_TEST(slices_of_odd_shapes_are_shown_apart)
{
	static const struct {
		const char *zero, *one, *want;
	} v[] = {
		{ "'a.linear_proj.weight': t0+0(2)", NULL,
		  "mp_rank_00/a.linear_proj.weight[2] 0 1\nmp_rank_01/a.linear_proj.weight[2] 0 "
		  "1\n" OBJECTS APART("a.linear_proj.weight", ODD_SHAPE) },
		{ "'output_layer.weight': t0+0()", NULL,
		  "mp_rank_00/output_layer.weight[] 0\nmp_rank_01/output_layer.weight[] 0\n" OBJECTS
			  APART("output_layer.weight", ODD_SHAPE) },
		{ "'a.linear_fc1.weight': t0+0(3,1)", NULL,
		  "mp_rank_00/a.linear_fc1.weight[3,1] 0 1 2\nmp_rank_01/a.linear_fc1.weight[3,1] "
		  "0 1 2\n" OBJECTS APART("a.linear_fc1.weight", ODD_SHAPE) },
		/* The second projection is not a matrix. */
		{ "'a.linear_fc1.weight': t0+0(2,1), 'a.linear_fc2.weight': t0+0(2)", NULL,
		  "mp_rank_00/a.linear_fc1.weight[2,1] 0 1\nmp_rank_00/a.linear_fc2.weight[2] 0 1\n"
		  "mp_rank_01/a.linear_fc1.weight[2,1] 0 1\nmp_rank_01/a.linear_fc2.weight[2] 0 "
		  "1\n" OBJECTS APART("a.linear_fc1.weight", ODD_SHAPE) },
		{ "'a.linear_fc1.bias': t0+0(), 'a.linear_fc2.weight': t0+0(1,1)", NULL,
		  "a.linear_fc2.weight[1,2] 0 0\nmp_rank_00/a.linear_fc1.bias[] 0\n"
		  "mp_rank_01/a.linear_fc1.bias[] 0\n" OBJECTS APART("a.linear_fc1.bias",
								     ODD_SHAPE) },
		/* The last such word in the name counts. */
		{ "'linear_fc1.linear_fc1.weight': t0+0(1,2), 'linear_fc1.linear_fc2.weight': "
		  "t0+0(2,1)",
		  NULL,
		  "linear_fc1.linear_fc1.weight[2,2] 0 1 0 1\nlinear_fc1.linear_fc2.weight[2,2] 0 "
		  "0 1 1\n" OBJECTS },
		{ "'a.linear_proj.weight': t0+0(2,1)", "",
		  "mp_rank_00/a.linear_proj.weight[2,1] 0 1\n" OBJECTS APART(
			  "a.linear_proj.weight", "some ranks have none") },
		{ "'a.linear_q_down_proj.weight': t0+0(1,2)", NULL,
		  "a.linear_q_down_proj.weight[1,2] 0 1\n" OBJECTS },
		{ "'a.linear_q_down_proj.weight': t0+0(1,2)",
		  "'a.linear_q_down_proj.weight': t0+1(1,2)",
		  "a.linear_q_down_proj.weight[2,2] 0 1 1 2\n" OBJECTS },
		{ "'a.linear_qkv.weight': t0+0(0,2)", NULL, "a.linear_qkv.weight[0,2]\n" OBJECTS },
		{ "'a.final_norm.weight': t0+0(0)", NULL, "a.final_norm.weight[0]\n" OBJECTS },
		{ "'a.linear_qkv.weight': t0+0(1,2), 5: [6], 'n': (6,), 's': "
		  "torch._utils._rebuild_sparse_tensor(5)",
		  NULL,
		  "a.linear_qkv.weight[2,2] 0 1 0 1\n" OBJECTS
		  "! not everything is shown: 's' of 'mp_rank_00/model_optim_rng.pt': data.pkl: "
		  "'_rebuild_sparse_tensor' is not a dense tensor" },
		{ "'a.attention.query_key_value.weight': t0+0(6,1)", NULL,
		  "a.attention.query_key_value.weight[12,1] 0 1 2 3 4 5 0 1 2 3 4 5\n" OBJECTS },
		{ "", "'a.final_norm.weight': t0+0(1), 'odd': t0+1(1)",
		  "a.final_norm.weight[1] 0\nodd[1] 1\n" OBJECTS },
		/* These are slices, even if they are equal. */
		{ "'a.mixer.norm.weight': t0+0(1)", NULL, "a.mixer.norm.weight[2] 0 0\n" OBJECTS },
		{ "'a.self_attention.dt_bias': t0+0(1), 'a.self_attention.out_proj.weight': "
		  "t0+1(1,2)",
		  NULL,
		  "a.self_attention.dt_bias[2] 0 0\na.self_attention.out_proj.weight[1,4] 1 2 1 "
		  "2\n" OBJECTS },
		{ "'a.mixer.conv1d.bias': t0+0(1)", NULL,
		  "mp_rank_00/a.mixer.conv1d.bias[1] 0\nmp_rank_01/a.mixer.conv1d.bias[1] "
		  "0\n" OBJECTS APART("a.mixer.conv1d.bias", ODD_SHAPE) },
		{ "'layers.x.norm.weight': t0+0(1), 'xlayers.0.norm.weight': t0+1(1), "
		  "'layers.0norm.weight': t0+2(1)",
		  NULL,
		  "layers.0norm.weight[1] 2\nlayers.x.norm.weight[1] 0\nxlayers.0.norm.weight[1] "
		  "1\n" OBJECTS },
	};

	for (size_t i = 0; i < ARRAY_LEN(v); i++) {
		put_pair(v[i].zero, v[i].one ? v[i].one : v[i].zero, "");
		expect(v[i].want);
	}
	put_pair("'a.linear_qkv.weight': t0+0(4611686018427387904,0)",
		 "'a.linear_qkv.weight': t0+0(4611686018427387904,0)", "");
	expect_error("'a.linear_qkv.weight': its sizes are more than 2^62");
	put_pair("'a.norm.weight': t0+0(1)", "'a.norm.weight': t0+0(1,1)", "");
	expect_error("has torch.Size([1]), 'mp_rank_01/model_optim_rng.pt' has torch.Size([1, 1])");
	put_pair("'m.router.weight': t1+0(2,1), 'm.experts.weight1': t0+0(0,4611686018427387904),"
		 " 'm.experts.weight2': t0+0(4611686018427387904,0)",
		 "'m.router.weight': t1+0(2,1), 'm.experts.weight1': t0+0(0,4611686018427387904),"
		 " 'm.experts.weight2': t0+0(4611686018427387904,0)",
		 "");
	expect_error("its sizes are more than 2^62");
	put_pair("'a.key_value.weight': t0+0(6,1)", "'a.key_value.weight': t0+0(6,1)", "");
	put_model("00", "'a.key_value.weight': t0+0(6,1)", "", 1, 0);
	put_model("01", "'a.key_value.weight': t0+0(6,1)", "", 1, 0);
	saved_expect_begin(dir, "megatron-legacy",
			   "mp_rank_00/a.key_value.weight[6,1] 0 1 2 3 4 5\n");
	put_pair("'x': t0+0(1)", "'x': t0+1(1)", "'tensor_model_parallel_size': 'x'");
	saved_expect_begin(dir, "megatron-legacy", "mp_rank_00/x[1] 0\nmp_rank_01/x[1] 1\n");
}
END_TEST

START_TEST(sections_of_mamba_are_joined_one_by_one)
{
	/* Two inner dimensions, one each for B and C, and one head. */
	static const char model[] =
		"'a.mixer.in_proj.weight': t0+0(7,1), 'a.mixer.in_proj.layer_norm_weight': t1+0(1),"
		" 'a.mixer.conv1d.weight': t0+10(4,1,1), 'a.mixer.conv1d.bias': t0+20(4),"
		" 'a.mixer.A_log': t0+30(1), 'a.mixer.D': t1+5(1), 'a.mixer.dt_bias': t0+31(1),"
		" 'a.mixer.norm.weight': t0+32(2), 'a.mixer.out_proj.weight': t0+34(1,2)";
	static const char renamed[] =
		"'a.mixer.in_proj.weight': t0+0(7,1), 'a.mixer.conv1d_weight': t0+10(4,1,1),"
		" 'a.mixer.A_log': t0+30(1), 'a.mixer.out_proj.weight': t0+34(1,2)";
	/* GatedDeltaNet's, with twice as many rows for heads. */
	static const char other[] =
		"'a.mixer.in_proj.weight': t0+0(8,1), 'a.mixer.conv1d.weight': t0+10(4,1,1),"
		" 'a.mixer.A_log': t0+30(1), 'a.mixer.out_proj.weight': t0+34(1,2)";

	put_pair(model, model, "");
	expect("a.mixer.A_log[2] 30 30\na.mixer.D[2] 105 105\n"
	       "a.mixer.conv1d.bias[8] 20 21 20 21 22 22 23 23\n"
	       "a.mixer.conv1d.weight[8,1,1] 10 11 10 11 12 12 13 13\na.mixer.dt_bias[2] 31 31\n"
	       "a.mixer.in_proj.layer_norm_weight[1] 100\n"
	       "a.mixer.in_proj.weight[14,1] 0 1 0 1 2 3 2 3 4 4 5 5 6 6\n"
	       "a.mixer.norm.weight[4] 32 33 32 33\n"
	       "a.mixer.out_proj.weight[1,4] 34 35 34 35\n" OBJECTS);
	put_pair(renamed, renamed, "");
	expect("a.mixer.A_log[2] 30 30\na.mixer.conv1d_weight[8,1,1] 10 11 10 11 12 12 13 13\n"
	       "a.mixer.in_proj.weight[14,1] 0 1 0 1 2 3 2 3 4 4 5 5 6 6\n"
	       "a.mixer.out_proj.weight[1,4] 34 35 34 35\n" OBJECTS);
	put_pair(other, other, "");
	saved_expect_begin(dir, "megatron-legacy",
			   "a.mixer.A_log[2] 30 30\na.mixer.out_proj.weight[1,4] 34 35 34 35\n"
			   "mp_rank_00/a.mixer.conv1d.weight[4,1,1] 10 11 12 13\n"
			   "mp_rank_00/a.mixer.in_proj.weight[8,1] 0 1 2 3 4 5 6 7\n"
			   "mp_rank_01/a.mixer.conv1d.weight[4,1,1] 10 11 12 13\n"
			   "mp_rank_01/a.mixer.in_proj.weight[8,1] 0 1 2 3 4 5 6 7\n");
	drop("01");
	put_model("00", "'a.mixer.in_proj.weight': t0+0(3,1)", "", 3, 0);
	expect("a.mixer.in_proj.weight[3,1] 0 1 2\n" OBJECTS);
}
END_TEST

START_TEST(old_rows_need_heads_that_divide)
{
	static const struct {
		const char *model, *args;
		int version;
		const char *want; /* NULL: each rank's is shown apart */
	} v[] = {
		{ "t0+0(6,1)", "'num_attention_heads': 2", 0,
		  "a.query_key_value.weight[12,1] 0 1 2 3 4 5 0 1 2 3 4 5\n" OBJECTS },
		{ "t0+0(6)", "'num_attention_heads': 2", 1,
		  "a.query_key_value.weight[12] 0 3 1 4 2 5 0 3 1 4 2 5\n" OBJECTS },
		{ "t0+0(6,1)", "'num_attention_heads': 3", 0, NULL },
		{ "t0+0(6,1)", "'num_attention_heads': 8", 0, NULL },
		{ "t0+0(6,1)", "'num_attention_heads': 262144", 0, NULL },
		{ "t0+0(0,1)", "'num_attention_heads': 2", 0, NULL },
		{ "t0+0()", "'num_attention_heads': 2", 0, NULL },
		{ "t0+0(6,1)", "'num_attention_heads': -2", 0, NULL },
		{ "t0+0(6,1)", "'num_attention_heads': 'x'", 0, NULL },
	};
	char model[200];

	for (size_t i = 0; i < ARRAY_LEN(v); i++) {
		(void)snprintf(model, sizeof(model), "'a.query_key_value.weight': %s", v[i].model);
		put_model("00", model, v[i].args, v[i].version, 0);
		put_model("01", model, v[i].args, v[i].version, 0);
		if (v[i].want)
			expect(v[i].want);
		else
			saved_expect_begin(dir, "megatron-legacy",
					   "mp_rank_00/a.query_key_value.weight[");
	}
	put_model("00", "'a.query_key_value.weight': t0+0(4611686018427387906,0)",
		  "'num_attention_heads': 2", 0, 0);
	put_model("01", "'a.query_key_value.weight': t0+0(4611686018427387906,0)",
		  "'num_attention_heads': 2", 0, 0);
	expect_error("'a.query_key_value.weight': its sizes are more than 2^62");
}
END_TEST

START_TEST(experts_of_grouped_mlps_need_all_of_the_shapes)
{
#define JOINED "m.experts.weight1[2,"
#define FIRST  "m.router.weight[2,1] 100 101\nmp_rank_00/m.experts.weight1["
#define SECOND "m.router.weight[2,1] 100 101\nmp_rank_00/m.experts.weight2["
	static const char router[] = "'m.router.weight': t1+0(2,1)";
	static const struct {
		const char *more, *args, *want;
	} v[] = {
		{ "'m.experts.weight1': t0+0(1,4), 'm.experts.weight2': t0+8(4,1)", "", JOINED },
		{ "'m.experts.weight1': t0+0(1,8), 'm.experts.weight2': t0+8(4,1)", "", JOINED },
		{ "'m.experts.weight1': t0+0(1,4), 'm.experts.weight2': t0+8(4,1)",
		  "'expert_tensor_parallel_size': 1", JOINED },
		{ "'m.experts.weight1': t0+0(1,4)", "", FIRST },
		{ "'m.experts.weight2': t0+0(4,1)", "", SECOND },
		{ "'m.experts.weight1': t0+0(4), 'm.experts.weight2': t0+8(4,1)", "", FIRST },
		{ "'m.experts.weight1': t0+0(1,3), 'm.experts.weight2': t0+8(4,1)", "", FIRST },
		{ "'m.experts.weight1': t0+0(1,0), 'm.experts.weight2': t0+8(4,1)", "", FIRST },
		{ "'m.experts.weight1': t0+0(2,4)/(1,2), 'm.experts.weight2': t0+8(4,2)", "",
		  FIRST },
		{ "'m.experts.weight1': t0+0(1,6), 'm.experts.weight2': t0+8(4,1)", "",
		  "m.experts.weight2[2,2,1] 8 9 10 11\n" FIRST },
		{ "'m.experts.weight1': t0+0(1,4), 'm.experts.weight2': t0+8(4,1)",
		  "'expert_tensor_parallel_size': 2", FIRST },
	};
	char model[400];

	for (size_t i = 0; i < ARRAY_LEN(v); i++) {
		(void)snprintf(model, sizeof(model), "%s, %s", router, v[i].more);
		put_model("00", model, v[i].args, 3, 0);
		saved_expect_begin(dir, "megatron-legacy", v[i].want);
	}
	put_model("00", "'m.experts.weight1': t0+0(1,4), 'm.router.weight': t0+0()", "", 3, 0);
	saved_expect_begin(dir, "megatron-legacy",
			   "m.router.weight[] 0\nmp_rank_00/m.experts.weight1[");
}
END_TEST

/* Two ranks have two experts each; the second rank's have other shapes, or are not there. */
START_TEST(experts_of_grouped_mlps_are_of_all_ranks)
{
	static const char args[] =
		"'pipeline_model_parallel_size': 1, 'expert_model_parallel_size': 2";
	static const char model[] = "'m.router.weight': t1+0(4,1), 'm.experts.weight1': t0+0(1,4),"
				    " 'm.experts.weight2': t0+8(4,1)";

	put_model("00_000", model, args, 3, 0);
	put_model("00_001", model, args, 3, 0);
	expect("m.experts.weight1[4,1,2] 0 1 2 3 0 1 2 3\nm.experts.weight2[4,2,1] 8 9 10 11 8 9 "
	       "10 11\n"
	       "m.router.weight[4,1] 100 101 102 103\n" OBJECTS);
	put_model("00_001",
		  "'m.router.weight': t1+0(4,1), 'm.experts.weight1': t0+0(1,8), "
		  "'m.experts.weight2': t0+8(8,1)",
		  args, 3, 0);
	saved_expect_begin(
		dir, "megatron-legacy",
		"m.router.weight[4,1] 100 101 102 103\nmp_rank_00_000/m.experts.weight1[");
	put_model("00_001",
		  "'m.router.weight': t1+0(4,1), 'm.experts.weight1': t0+0(1,4)/(1,2), "
		  "'m.experts.weight2': h0+8(4,1)",
		  args, 3, 0);
	saved_expect_begin(
		dir, "megatron-legacy",
		"m.router.weight[4,1] 100 101 102 103\nmp_rank_00_000/m.experts.weight1[");
	put_model("00_001", "'m.router.weight': t1+0(4,1)", args, 3, 0);
	saved_expect_begin(
		dir, "megatron-legacy",
		"m.router.weight[4,1] 100 101 102 103\nmp_rank_00_000/m.experts.weight1[");
	put_model("00_000", "'m.router.weight': t1+0(3,1), 'm.experts.weight1': t0+0(1,4)", args, 3,
		  0);
	put_model("00_001", "'m.router.weight': t1+0(3,1), 'm.experts.weight1': t0+0(1,4)", args, 3,
		  0);
	saved_expect_begin(dir, "megatron-legacy",
			   "m.router.weight[3,1] 100 101 102\nmp_rank_00_000/");
}
END_TEST

/* The last of four ranks has other sizes. */
START_TEST(experts_of_grouped_mlps_have_one_size_on_all_ranks)
{
	static const char args[] =
		"'pipeline_model_parallel_size': 1, 'expert_model_parallel_size': 4";
	static const char model[] = "'m.router.weight': t1+0(4,1), 'm.experts.weight1': t0+0(1,2),"
				    " 'm.experts.weight2': t0+8(2,1)";
	static const char *const paths[] = { "00_000", "00_001", "00_002", "00_003" };

	for (size_t i = 0; i < ARRAY_LEN(paths); i++)
		put_model(paths[i], model, args, 3, 0);
	saved_expect_begin(dir, "megatron-legacy",
			   "m.experts.weight1[4,1,2] 0 1 0 1 0 1 0 1\nm.experts.weight2[4,2,1] ");
	put_model(paths[3],
		  "'m.router.weight': t1+0(4,1), 'm.experts.weight1': t0+0(1,4), "
		  "'m.experts.weight2': t0+8(4,1)",
		  args, 3, 0);
	saved_expect_begin(
		dir, "megatron-legacy",
		"m.router.weight[4,1] 100 101 102 103\nmp_rank_00_000/m.experts.weight1[");
}
END_TEST

/* Experts that are split among fewer ranks than other tensors are. */
START_TEST(experts_may_have_a_tensor_parallelism_of_their_own)
{
	static const char model[] =
		"'layers.0.mlp.experts.local_experts.0.linear_fc2.weight': t0+0(2,1),"
		" 'layers.0.mlp.linear_fc2.weight': t0+4(2,1)";
	char args[300];

	(void)snprintf(args, sizeof(args), "%s", "'expert_tensor_parallel_size': 1");
	put_model("00", model, args, 3, 0);
	put_model("01", model, args, 3, 0);
	expect("layers.0.mlp.experts.local_experts.0.linear_fc2.weight[2,1] 0 1\n"
	       "layers.0.mlp.linear_fc2.weight[2,2] 4 4 5 5\n" OBJECTS);
	put_model("01",
		  "'layers.0.mlp.experts.local_experts.0.linear_fc2.weight': t0+1(2,1),"
		  " 'layers.0.mlp.linear_fc2.weight': t0+4(2,1)",
		  args, 3, 0);
	saved_expect_begin(dir, "megatron-legacy",
			   "layers.0.mlp.experts.local_experts.0.linear_fc2.weight[2,1] 0 1\n");
	(void)snprintf(args, sizeof(args), "%s", "'expert_tensor_parallel_size': 3");
	put_model("00", model, args, 3, 0);
	put_model("01", model, args, 3, 0);
	saved_expect_begin(
		dir, "megatron-legacy",
		"layers.0.mlp.linear_fc2.weight[2,2] 4 4 5 5\n"
		"mp_rank_00/layers.0.mlp.experts.local_experts.0.linear_fc2.weight[2,1] 0 1\n");
	put_model("01", "'layers.0.mlp.linear_fc2.weight': t0+4(2,1)", args, 3, 0);
	expect("layers.0.mlp.experts.local_experts.0.linear_fc2.weight[2,1] 0 1\n"
	       "layers.0.mlp.linear_fc2.weight[2,2] 4 4 5 5\n" OBJECTS);
	(void)snprintf(args, sizeof(args), "%s", "'expert_tensor_parallel_size': 2");
	put_model("00", model, args, 3, 0);
	put_model("01", model, args, 3, 0);
	expect("layers.0.mlp.experts.local_experts.0.linear_fc2.weight[2,2] 0 0 1 1\n"
	       "layers.0.mlp.linear_fc2.weight[2,2] 4 4 5 5\n" OBJECTS);
}
END_TEST

/* If several stages have a tensor, the first stage's is taken. */
START_TEST(tensors_of_several_stages_are_the_first_ones)
{
	static const char model[] =
		"'m.router.weight': t1+0(2,1), 'm.experts.weight1': t0+0(1,4), "
		"'m.experts.weight2': t0+8(4,1),"
		" 'output_layer.weight': t0+0(), 'layers.0.norm.weight': t0+0(1)";

	put_model("00_000", model, "'num_layers': 1", 3, 0);
	put_model("00_001", model, "'num_layers': 1", 3, 0);
	expect("layers.0.norm.weight[1] 0\nlayers.1.norm.weight[1] 0\n"
	       "m.experts.weight1[2,1,2] 0 1 2 3\nm.experts.weight2[2,2,1] 8 9 10 11\n"
	       "m.router.weight[2,1] 100 101\nmp_rank_00_000/output_layer.weight[] 0\n"
	       "mp_rank_00_001/output_layer.weight[] 0\n" OBJECTS
	       "! not everything is shown: how the ranks' slices of 'output_layer.weight' are "
	       "joined: "
	       "its shape is not that of such a tensor, so they are shown as mp_rank_00_000/NAME");
}
END_TEST

START_TEST(a_copy_that_differs_is_named)
{
	put_model("00", "'a.norm.weight': t0+0(1)", "", 3, 0);
	put_model("01", "'a.norm.weight': t0+0(1)", "", 3, 0);
	put_model("02", "'a.norm.weight': t0+1(1)", "", 3, 0);
	expect("a.norm.weight[1] 0\n" OBJECTS
	       "! not everything is shown: 'a.norm.weight' of other ranks: "
	       "'mp_rank_02/model_optim_rng.pt' has other values than "
	       "'mp_rank_00/model_optim_rng.pt', whose values are shown");
}
END_TEST

START_TEST(stages_and_expert_ranks_are_two_numbers)
{
	static const char args[] =
		"'pipeline_model_parallel_size': 2, 'expert_model_parallel_size': 2";
	static const char loose[] =
		"'pipeline_model_parallel_size': 1, 'expert_model_parallel_size': 2,"
		" 'tensor_model_parallel_size': 2, 'expert_tensor_parallel_size': 1";
	static const char norm[] = "'layers.0.norm.weight': t0+0(1)";

	put_model("00_000_000", norm, args, 3, 0);
	put_model("00_000_001", norm, args, 3, 0);
	put_model("00_001_000", norm, args, 3, 1000);
	expect_error("'mp_rank_00_001_001' is missing beside 'mp_rank_00_000_000'");
	put_model("00_001_001", norm, args, 3, 2000);
	expect("layers.0.norm.weight[1] 0\nlayers.1.norm.weight[1] 1000\n" OBJECTS
	       "! not everything is shown: 'layers.1.norm.weight' of other ranks: "
	       "'mp_rank_00_001_001/model_optim_rng.pt' has other values than "
	       "'mp_rank_00_001_000/model_optim_rng.pt', whose values are shown");
	drop("00_000_000");
	drop("00_000_001");
	drop("00_001_000");
	drop("00_001_001");
	/* Not every tensor-parallel rank occurs with every expert-parallel rank. */
	put_model("00_000", norm, loose, 3, 0);
	put_model("01_001", norm, loose, 3, 0);
	expect("layers.0.norm.weight[1] 0\n" OBJECTS);
	drop("00_000");
	put_model("00_001", norm, loose, 3, 0);
	expect_error("'mp_rank_00_000' is missing beside 'mp_rank_00_001'");
	drop("00_001");
	put_model("00_000", norm, loose, 3, 0);
	drop("01_001");
	put_model("02_001", norm, loose, 3, 0);
	expect_error(
		"the last rank's file is 'mp_rank_02_001/model_optim_rng.pt': it is from another");
	drop("02_001");
	drop("00_000");
	/* The file that is listed first is not of the first stage. */
	put_model("00_001", norm, "", 3, 0);
	put_model("01_000", norm, "", 3, 0);
	expect_error("'mp_rank_00_000' is missing beside 'mp_rank_01_000'");
}
END_TEST

START_TEST(odd_values_that_describe_a_checkpoint)
{
	static const struct {
		const char *text, *want; /* after a '?': an error */
	} v[] = {
		{ "{'model': {'x': t0+0(1), 'y\\0z': t0+1(1)}}",
		  "x[1] 0\n! not everything is shown: tensors in lists or under keys that are not "
		  "names, in 'model' of 'mp_rank_00/model_optim_rng.pt'" },
		{ "{'model': {'x': t0+0(1)}, 'checkpoint_version': N, 'iteration': -1}",
		  "x[1] 0\nobject iteration\n" },
		{ "{'model': {'x': t0+0(1)}, 'checkpoint_version': 3.0, 'iteration': 'x'}",
		  "x[1] 0\nobject checkpoint_version\nobject iteration\n" },
		{ "{'model': {'x': t0+0(1)}, 'args': {'num_layers': 1}}", "x[1] 0\nobject args\n" },
		{ "{'model': {'x': t0+0(1)}, 'args': 5}", "x[1] 0\nobject args\n" },
		{ "{'model': {'x': t0+0(1)}, 'args': N}", "x[1] 0\n" },
		{ "{'model': {'x': t0+0(1)}, 'args': A{'pipeline_model_parallel_size': 0}}",
		  "x[1] 0\nobject args\n" },
		{ "{'model': {}, 'checkpoint_version': -1}",
		  "?its checkpoint_version is not a number" },
		{ "{'model': {}, 'checkpoint_version': 1000}",
		  "?its checkpoint_version is not a number" },
		{ "{'model': {}, 'checkpoint_version': -1.5}",
		  "?its checkpoint_version is not a number" },
		{ "{'model': {}, 'checkpoint_version': 1000.5}",
		  "?its checkpoint_version is not a number" },
		{ "{'model': {}, 'checkpoint_version': '3'}",
		  "?its checkpoint_version is not a number" },
		{ "{'model0': {'x': t0+0(1)}, 'model1': 5}", "x[1] 0\n" },
		{ "{'model0': {'x': t0+39(2)}}", "?its view reaches outside its storage" },
		{ "{'model': {}}", "" },
		{ "{'model': {'x': t0+0(1)}, 'args': #1=A{'a': A{'of': #1}, 'b': A{'of': #1}}}",
		  "x[1] 0\nobject args\n" },
		{ "{'model': {'x': t0+0(1)}, 'args': A{'t': t0+39(2)}}",
		  "?read 'mp_rank_00/model_optim_rng.pt': 'args.t': its view reaches outside its "
		  "storage" },
		{ "{'model': {'layers.0.w': t0+0(1)}, 'args': A{'num_layers': 1}}",
		  "layers.0.w[1] 0\nobject args\n" },
	};
	char *deep = strdup("t0+0(1)"), *text, name[70000];

	for (size_t i = 0; i < ARRAY_LEN(v); i++) {
		put("00", v[i].text, 0);
		if (*v[i].want == '?')
			expect_error(v[i].want + 1);
		else
			expect(v[i].want);
	}
	for (unsigned i = 0; i < 18; i++) {
		REQUIRE(asprintf(&text, "{'m': %s}", deep) > 0);
		free(deep);
		deep = text;
	}
	REQUIRE(asprintf(&text, "{'model': %s}", deep) > 0);
	put("00", text, 0);
	expect_error("'mp_rank_00/model_optim_rng.pt' is nested more than 16 deep");
	free(deep);
	free(text);
	memset(name, 'x', sizeof(name) - 1);
	name[sizeof(name) - 1] = 0;
	REQUIRE(asprintf(&text, "{'model': {'%s': {'y': t0+0(1)}}}", name) > 0);
	put("00", text, 0);
	expect_error("a name of more than 65536 bytes");
	free(text);
}
END_TEST

START_TEST(other_directories_are_of_no_rank)
{
	static const char *const names[] = {
		"mp_rank_x",
		"mp_rank_00x",
		"mp_rank_00_x",
		"mp_rank_00_000_000_000",
		"tp_rank_00",
		"tp_rank_00_pp_rank_x",
		"tp_rank_00_pp_rank_000_pp_rank_000",
		"mp_rank_1234567",
		"rank_00",
	};

	put("00", "{'model': {'a': t0+0(1)}, 'optimizer': {}}", 0);
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		char path[100];

		REQUIRE(!mkdirat(dir_fd, names[i], 0755));
		(void)snprintf(path, sizeof(path), "%s/model_optim_rng.pt", names[i]);
		saved_put(dir_fd, path, "{'model': {'b': t0+0(1)}}", 0);
	}
	put_file(dir_fd, "mp_rank_01", "x", 1);
	expect("a[1] 0\n! not everything is shown: the optimizer's states: the files number them, "
	       "and do "
	       "not say which parameters they belong to");
	put("00", "{'model': {'a': t0+0(1)}}", 0);
	expect("a[1] 0\n");
	put_file(dir_fd, "mp_rank_00/distrib_optim.pt", "x", 1);
	expect("a[1] 0\n! not everything is shown: the optimizer's states: the files number them, "
	       "and do "
	       "not say which parameters they belong to");
}
END_TEST

START_TEST(experts_need_numbers_in_their_names)
{
	static const char args[] =
		"'pipeline_model_parallel_size': 1, 'expert_model_parallel_size': 2";
	static const char model[] = "'layers.0.experts.linear_fc1.bias1': t0+0(1), "
				    "'layers.0.experts.linear_fc1.bias0': t0+1(1),"
				    " 'layers.0.experts.linear_fc2.bias': t0+2(1), "
				    "'a.local_experts.x.linear_fc2.bias': t0+3(1)";

	put_model("00_000", model, args, 3, 0);
	put_model("00_001", model, args, 3, 0);
	saved_expect_begin(
		dir, "megatron-legacy",
		"a.local_experts.x.linear_fc2.bias[1] 3\n"
		"layers.0.experts.linear_fc1.bias0[1] 1\nlayers.0.experts.linear_fc1.bias1[1] 0\n"
		"layers.0.experts.linear_fc1.bias2[1] 1\nlayers.0.experts.linear_fc1.bias3[1] 0\n"
		"layers.0.experts.linear_fc2.bias[1] 2\n" OBJECTS);
}
END_TEST

START_TEST(without_memory_or_a_disk_there_is_a_clean_error)
{
	static const char args[] =
		"'pipeline_model_parallel_size': 1, 'expert_model_parallel_size': 2,"
		" 'num_attention_heads': 2";
	static const char model[] =
		"'layers.0.query_key_value.weight': t0+0(6,1), 'm.router.weight': t1+0(4,1),"
		" 'm.experts.weight1': t0+0(1,4), 'm.experts.weight2': t0+8(4,1), 'odd': t0+0(2),"
		" 'layers.0.mlp.experts.linear_fc2.weight0': t0+2(1,1), 'a': {'norm.weight': "
		"t0+0(2)}";

	put_model("00_000", model, args, 0, 0);
	put_model("00_001", model, args, 0, 0);
	scan_failing(dir_fd);
}
END_TEST

START_TEST(without_memory_or_a_disk_nemo_is_a_clean_error)
{
	put_nemo("mp_rank_00");
	put_nemo("mp_rank_01");
	put_file(dir_fd, "model_config.yaml", "tensor_model_parallel_size: 2\n", 30);
	scan_failing(dir_fd);
}
END_TEST

SUITE(megatron_ranks, .setup = dir_setup, .teardown = dir_teardown, .seconds = 60)
