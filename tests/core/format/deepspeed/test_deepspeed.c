/* SPDX-License-Identifier: Apache-2.0 */
/* Small checkpoints as DeepSpeed writes them, and as it might have written them. ckpt_data compares
 * what real ones hold. */
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "dir_util.h"
#include "format/deepspeed/deepspeed_pattern.h"
#include "saved_util.h"
#include "scan_util.h"
#include "suites.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void put(const char *path, const char *text, unsigned first)
{
	saved_put(dir_fd, path, text, first);
}

static void directory(const char *name)
{
	char path[4400];

	(void)snprintf(path, sizeof(path), "%s/%s", dir, name);
	REQUIRE(!mkdir(path, 0755));
}

static void expect(const char *sub, const char *want)
{
	char path[4400];

	(void)snprintf(path, sizeof(path), "%s/%s", dir, sub);
	saved_expect(path, "deepspeed", want);
}

/* What is said about it, or "" */
static void expect_warning(const char *want)
{
	saved_expect_warning(dir, "deepspeed", want);
}

static void expect_error(const char *sub, const char *want)
{
	char path[4400];

	(void)snprintf(path, sizeof(path), "%s/%s", dir, sub);
	saved_expect_error(path, want);
}

/* ---- ZeRO 1 and 2 ---- */

#define MODEL	    "mp_rank_00_model_states.pt"
#define OPTIM(rank) "zero_pp_rank_" #rank "_mp_rank_00_optim_states.pt"
#define SHARD(rank) "zero_pp_rank_" #rank "_mp_rank_00_model_states.pt"

static void put_rank(const char *path, const char *masters, const char *state, const char *count,
		     unsigned first)
{
	char text[1500];

	(void)snprintf(text, sizeof(text),
		       "{'optimizer_state_dict': {'loss_scaler': E, 'zero_stage': Z,"
		       " 'partition_count': %s, 'single_partition_of_fp32_groups': %s,"
		       " 'base_optimizer_state': %s}}",
		       count, masters, state);
	put(path, text, first);
}

static void put_shard(const char *path, const char *masters, const char *state, const char *count,
		      unsigned first)
{
	char text[1000];

	(void)snprintf(text, sizeof(text),
		       "{'optimizer_state_dict': {'zero_stage': 3, 'partition_count': %s,"
		       " 'fp32_flat_groups': %s, 'optimizer_state_dict': %s}}",
		       count, masters, state);
	put(path, text, first);
}

/* (2,3), (1,) and (2,): 9 elements, on two ranks 5 and 4, and an element of padding. */
static const char shapes[] = "{'module': {'a': h0+0(2,3), 'b': h0+6(1), 'c': h0+7(2)},"
			     " 'buffer_names': [],"
			     " 'param_shapes': [{'a': (2,3), 'b': (1,), 'c': (2,)}],"
			     " 'shared_params': {'tied': 'c'}, 'epoch': 3, 'x': E}";

START_TEST(a_parameter_may_lie_in_two_ranks_files)
{
	put(MODEL, shapes, 0);
	put_rank(OPTIM(0), "[t0+0(5)]", "{'state': {0: {'step': 7, 'exp_avg': t1+0(5)}}}", "[2]",
		 1000);
	/* The moments still have padding, which was cut from the masters. */
	put_rank(OPTIM(1), "[t0+3(4)]", "{'state': {0: {'step': 7, 'exp_avg': t1+0(5)}}}", "[2]",
		 2000);
	expect("", "a[2,3] float16\nb[1] float16\nc[2] float16\n"
		   "optimizer.state.a.exp_avg[2,3] 1100 1101 1102 1103 1104 2100\n"
		   "optimizer.state.a.fp32[2,3] 1000 1001 1002 1003 1004 2003\n"
		   "optimizer.state.b.exp_avg[1] 2101\n"
		   "optimizer.state.b.fp32[1] 2004\n"
		   "optimizer.state.c.exp_avg[2] 2102 2103\n"
		   "optimizer.state.c.fp32[2] 2005 2006\n"
		   "optimizer.state.tied.exp_avg[2] 2102 2103\n"
		   "optimizer.state.tied.fp32[2] 2005 2006\n"
		   "tied[2] float16\n"
		   "object optimizer.loss_scaler\n"
		   "object optimizer.state.a.step\n"
		   "object optimizer.state.b.step\n"
		   "object optimizer.state.c.step\n"
		   "object optimizer.state.tied.step\n");
}
END_TEST

START_TEST(files_that_are_not_of_one_save_are_named)
{
	put(MODEL, "{'module': {'a': h0+0(2)}, 'param_shapes': [{'a': (2,)}]}", 0);
	put_rank(OPTIM(0), "[t0+0(1)]", "{}", "[2]", 0);
	expect("",
	       "a[2] float16\nobject optimizer.loss_scaler\n! not everything is there: optimizer "
	       "states of 1 of 2 ranks are there: '" OPTIM(1) "' is missing");
	put_rank(OPTIM(1), "[t0+0(1)]", "{}", "[2]", 0);
	put_rank(OPTIM(2), "[t0+0(1)]", "{}", "[2]", 0);
	expect("",
	       "a[2] float16\nobject optimizer.loss_scaler\n! not everything is shown: there are "
	       "optimizer states of 3 ranks, and 2 were saved: files of an older, larger save "
	       "lie under the same tag");
	REQUIRE(!unlinkat(dir_fd, OPTIM(1), 0));
	expect("",
	       "a[2] float16\n! not everything is there: 'zero_pp_rank_1_mp_rank_00_optim_states"
	       ".pt' is missing, though '" OPTIM(2) "' is there");
	REQUIRE(!unlinkat(dir_fd, OPTIM(2), 0));
	put_rank("bf16_" OPTIM(1), "[t0+0(1)]", "{}", "[2]", 0);
	expect("",
	       "a[2] float16\n! not everything is shown: '" OPTIM(0) "' and 'bf16_" OPTIM(
		       1) "' are from two different saves with different precisions: remove those "
			  "of the older one");
	REQUIRE(!unlinkat(dir_fd, "bf16_" OPTIM(1), 0));
	put_rank(OPTIM(1), "[t0+0(1)]", "{}", "[1]", 0);
	expect("", "a[2] float16\nobject optimizer.loss_scaler\n! not everything is shown: '" OPTIM(
			   1) "': its partition_count is not that of rank 0's file: they are from "
			      "two different saves");
	put_rank(OPTIM(1), "[t0+0(7)]", "{}", "[2]", 0);
	expect("", "a[2] float16\nobject optimizer.loss_scaler\n! not everything is shown: group 0 "
		   "of the optimizer states does not have the elements that the model states list, "
		   "2: they are from two different saves");
	put_rank(OPTIM(1), "[t0+0(1), t0+0(1)]", "{}", "[2]", 0);
	expect("", "a[2] float16\nobject optimizer.loss_scaler\n! not everything is shown: '" OPTIM(
			   1) "' has other groups than rank 0's file: they are from two different "
			      "saves");
}
END_TEST

START_TEST(ranks_with_nothing_but_padding_have_no_part)
{
	put(MODEL, "{'module': {}, 'param_shapes': [{'a': (), 'b': (0,2), 'c': (1,1)}]}", 0);
	put_rank(OPTIM(0), "[t0+0(2)]", "[{'m': t1+0(2), 'worker_error': t1+0(2)}]", "[3]", 0);
	put_rank(OPTIM(1), "[t0+0(0)]", "[{'m': t1+0(2)}]", "[3]", 1000);
	put_rank(OPTIM(2), "[t0+0(0)]", "[{}]", "[3]", 2000);
	expect("", "a[] 0\nb[0,2]\nc[1,1] 1\n"
		   "optimizer.state.a.fp32[] 0\noptimizer.state.a.m[] 100\n"
		   "optimizer.state.b.fp32[0,2]\noptimizer.state.b.m[0,2]\n"
		   "optimizer.state.c.fp32[1,1] 1\noptimizer.state.c.m[1,1] 101\n"
		   "object optimizer.loss_scaler\n");
}
END_TEST

START_TEST(old_versions_list_names_elsewhere)
{
	/* before 0.6.0: with the optimizer states; before 0.5.4: all groups in one dict */
	put(MODEL, "{'module': {'a': t0+0(3), 'b': t0+3(12)}}", 0);
	put("zero_pp_rank_0_mp_rank_00_optim_states.pt",
	    "{'param_shapes': {'a': (3,), 'b': (12,)}, 'optimizer_state_dict': {'zero_stage': 2,"
	    " 'single_partition_of_fp32_groups': [t0+0(3), t1+0(12)],"
	    " 'base_optimizer_state': {'state': {}, 'param_groups': []}}}",
	    1000);
	expect("", "a[3] 0 1 2\nb[12] 3 4 5 6 7 8 9 10 11 12 13 14\n"
		   "optimizer.state.a.fp32[3] 1000 1001 1002\n"
		   "optimizer.state.b.fp32[12] 1100 1101 1102 1103 1104 1105 1106 1107 1108 1109 "
		   "1110 1111\n"
		   "object optimizer.param_groups\n");
	put("zero_pp_rank_0_mp_rank_00_optim_states.pt",
	    "{'param_shapes': {'a': (3,), 'b': (1,), 'c': (11,)}, 'optimizer_state_dict': {"
	    " 'single_partition_of_fp32_groups': [t0+0(4), t1+0(11)],"
	    " 'base_optimizer_state': N}}",
	    1000);
	expect("",
	       "a[3] 0 1 2\nb[12] 3 4 5 6 7 8 9 10 11 12 13 14\n! not everything is shown: it is "
	       "not clear to which group 'b' belongs");
	put("zero_pp_rank_0_mp_rank_00_optim_states.pt",
	    "{'optimizer_state_dict': {'local_sub_partitions_of_fp32_groups': []}}", 0);
	expect("",
	       "a[3] 0 1 2\nb[12] 3 4 5 6 7 8 9 10 11 12 13 14\n! not everything is shown: '" OPTIM(
		       0) "' is of ZeRO 1 before DeepSpeed 0.5.9, which recorded no names");
}
END_TEST

START_TEST(names_of_one_module_for_one_parameter_are_found)
{
	put(MODEL,
	    "{'module': {'a': t0+0(2), 'same': t0+0(2), 'other': t0+0(1), 'run': t0+0(2)},"
	    " 'buffer_names': ['run', 'gone'], 'param_shapes': [{'a': (2,)}]}",
	    0);
	put_rank(OPTIM(0), "[t0+4(2)]", "{}", "[1]", 0);
	expect("", "a[2] 0 1\noptimizer.state.a.fp32[2] 4 5\noptimizer.state.same.fp32[2] 4 5\n"
		   "other[1] 0\nrun[2] 0 1\nsame[2] 0 1\nobject optimizer.loss_scaler\n");
}
END_TEST

/* As DeepSpeed 0.19.7 aligns parameters: here to 4 elements. */
START_TEST(padding_behind_a_parameter_is_not_part_of_it)
{
	static const char state[] =
		"{'state': {0: {'m': t1+0(6)}}}, 'param_alignment_paddings': %s,"
		" 'group_paddings': [%d]";
	static const char wrong[] =
		"a[1] float16\nb[4] float16\nc[2] float16\nobject optimizer.loss_scaler\n"
		"! not everything is shown: '" OPTIM(0) "': its param_alignment_paddings are not "
							"those of the parameters that the model "
							"states list";
	static const char *const odd[] = { "[[3]]",
					   "[[3, 0, 0, 0]]",
					   "[[3, 0, 0], []]",
					   "5",
					   "[5]",
					   "[[3, -1, 0]]",
					   "[['x', 0, 0]]",
					   "[]",
					   "[[3, 4611686018427387904, 0]]" };
	char text[300];

	put(MODEL,
	    "{'module': {'a': h0+0(1), 'b': h0+1(4), 'c': h0+5(2)},"
	    " 'param_shapes': [{'a': (1,), 'b': (4,), 'c': (2,)}]}",
	    0);
	/* a . . . b b | b b c c (. .) */
	for (int rank = 0; rank < 2; rank++) {
		(void)snprintf(text, sizeof(text), state, "[[3, 0, 0]]", rank ? 2 : 0);
		if (rank)
			put_rank(OPTIM(1), "[t0+0(4)]", text, "[2]", 2000);
		else
			put_rank(OPTIM(0), "[t0+0(6)]", text, "[2]", 1000);
	}
	expect("", "a[1] float16\nb[4] float16\nc[2] float16\n"
		   "optimizer.state.a.fp32[1] 1000\noptimizer.state.a.m[1] 1100\n"
		   "optimizer.state.b.fp32[4] 1004 1005 2000 2001\n"
		   "optimizer.state.b.m[4] 1104 1105 2100 2101\n"
		   "optimizer.state.c.fp32[2] 2002 2003\noptimizer.state.c.m[2] 2102 2103\n"
		   "object optimizer.loss_scaler\n");
	(void)snprintf(text, sizeof(text), state, "[[2, 1, 0]]", 2);
	put_rank(OPTIM(1), "[t0+0(4)]", text, "[2]", 2000);
	expect("",
	       "a[1] float16\nb[4] float16\nc[2] float16\nobject optimizer.loss_scaler\n"
	       "! not everything is shown: '" OPTIM(1) "': its param_alignment_paddings are not "
						       "those of the parameters that the model "
						       "states list, or not those of rank 0's "
						       "file");
	for (size_t i = 0; i < ARRAY_LEN(odd); i++) {
		(void)snprintf(text, sizeof(text), state, odd[i], 0);
		put_rank(OPTIM(0), "[t0+0(6)]", text, "[2]", 1000);
		expect("", wrong);
	}
	/* Without the list there would be three elements too many, and not all at the end. */
	for (int rank = 0; rank < 2; rank++) {
		(void)snprintf(text, sizeof(text), state, "N", rank ? 2 : 0);
		if (rank)
			put_rank(OPTIM(1), "[t0+0(4)]", text, "[2]", 2000);
		else
			put_rank(OPTIM(0), "[t0+0(6)]", text, "[2]", 1000);
	}
	expect("", "a[1] float16\nb[4] float16\nc[2] float16\nobject optimizer.loss_scaler\n"
		   "! not everything is shown: group 0 of the optimizer states does not have the "
		   "elements that the model states list, 7: they are from two different saves");
	/* As BF16_Optimizer leaves them: three elements of padding, all at the end. */
	for (int rank = 0; rank < 2; rank++) {
		(void)snprintf(text, sizeof(text), state, "N", rank ? 3 : 0);
		put_rank(rank ? OPTIM(1) : OPTIM(0), "[t0+0(5)]", text, "[2]", rank ? 2000 : 1000);
	}
	saved_expect_begin(dir, "deepspeed",
			   "a[1] float16\nb[4] float16\nc[2] float16\n"
			   "optimizer.state.a.fp32[1] 1000\noptimizer.state.a.m[1] 1100\n"
			   "optimizer.state.b.fp32[4] 1001 1002 1003 1004\n");
}
END_TEST

/* ZenFlow flattens matrices transposed; those of the module are views of that. */
START_TEST(transposed_optimizer_states_are_not_shown)
{
	static const char model[] =
		"{'module': {'a': t0+0(2,2)/(1,2)}, 'param_shapes': [{'a': (2,2)}],"
		" 'ds_config': {'zero_optimization': {'zenflow': %s}}}";
	char text[300];

	(void)snprintf(text, sizeof(text), model, "N");
	put(MODEL, text, 0);
	put_rank(OPTIM(0), "[t0+0(4)]", "{}", "[1]", 10);
	expect("", "a[2,2] 0 2 1 3\noptimizer.state.a.fp32[2,2] 10 11 12 13\n"
		   "object optimizer.loss_scaler\n");
	(void)snprintf(text, sizeof(text), model, "{}");
	put(MODEL, text, 0);
	expect("", "a[2,2] 0 2 1 3\n! not everything is shown: the optimizer states: the run used "
		   "ZenFlow, which stores matrices transposed there");
	directory("zero");
	directory("zero/a");
	put("zero/a/fp32.pt", "{'param': t0+0(2,2)}", 10);
	expect("", "a[2,2] 0 2 1 3\n! not everything is shown: the optimizer states: the run used "
		   "ZenFlow, which stores matrices transposed there");
}
END_TEST

START_TEST(transposed_parameters_of_zero_3_are_not_shown)
{
	put(SHARD(0),
	    "{'module': {'n': t0+0(1)}, 'buffer_names': ['n'], 'param_shapes': [{'a': (2,2)}],"
	    " 'frozen_param_shapes': {'f': (2,2)}, 'frozen_param_fragments': {'f': t1+0(4)},"
	    " 'ds_config': {'zero_optimization': {'zenflow': {'topk_ratio': 1.5}}}}",
	    0);
	put_shard(OPTIM(0), "[t0+0(4)]", "{}", "1", 10);
	expect("", "n[1] 0\n! not everything is shown: the parameters: the run used ZenFlow, which "
		   "stores matrices transposed there");
}
END_TEST

/* ---- ZeRO 3 ---- */

static void put_model3(const char *path, const char *more, unsigned first)
{
	char text[1000];

	(void)snprintf(text, sizeof(text),
		       "{'module': {'a': t0+0(0), 'b': t1+0(0), 'n': t2+0(2)},"
		       " 'buffer_names': ['n'], 'param_shapes': [{'a': (2,2), 'b': (1,)}],"
		       " 'frozen_param_shapes': {'f': (3,)}, %s}",
		       more);
	put(path, text, first);
}

START_TEST(each_parameter_of_zero_3_is_padded_by_itself)
{
	put_model3(SHARD(0),
		   "'frozen_param_fragments': {'f': h3+0(1)}, 'shared_params': {'t': 'a'}", 0);
	put_model3(SHARD(1), "'frozen_param_fragments': {'f': h3+0(1)}, 'shared_params': {}", 0);
	put_model3(SHARD(2), "'frozen_param_fragments': {'f': h3+0(1)}", 0);
	/* shares of the ranks: of a's four elements 2, 2 and 0; of b's one element 1, 0 and 0 */
	put_shard(OPTIM(0), "[t0+0(3)]",
		  "{'state': {0: {'m': t1+0(3)}}, 'param_groups': [{'params': [0], 'step': 4}]}",
		  "3", 1000);
	put_shard(OPTIM(1), "[t0+0(3)]",
		  "{'state': {0: {'m': t1+0(3)}}, 'param_groups': [{'params': [0], 'step': 4}]}",
		  "3", 2000);
	put_shard(OPTIM(2), "[t0+0(3)]",
		  "{'state': {0: {'m': t1+0(3)}}, 'param_groups': [{'params': [0], 'step': 4}]}",
		  "3", 3000);
	expect("", "a[2,2] 1000 1001 2000 2001\nb[1] 1002\nf[3] float16\nn[2] 200 201\n"
		   "optimizer.state.a.fp32[2,2] 1000 1001 2000 2001\n"
		   "optimizer.state.a.m[2,2] 1100 1101 2100 2101\n"
		   "optimizer.state.b.fp32[1] 1002\noptimizer.state.b.m[1] 1102\n"
		   "optimizer.state.t.fp32[2,2] 1000 1001 2000 2001\n"
		   "optimizer.state.t.m[2,2] 1100 1101 2100 2101\n"
		   "t[2,2] 1000 1001 2000 2001\n"
		   "object optimizer.param_groups\n"
		   "object optimizer.state.a.step\nobject optimizer.state.b.step\n"
		   "object optimizer.state.t.step\n");
	put_shard(OPTIM(2), "[t0+0(3)]", "{'state': {}}", "3", 3000);
	expect("", "f[3] float16\nn[2] 200 201\nobject optimizer.param_groups\n! not everything is "
		   "shown: '" OPTIM(0) "' has 'm' of group 0, and '" OPTIM(
			   2) "' has none: they are from two different saves");
	/* A file that a save on fewer ranks has left; its parts are larger. */
	put_model3(SHARD(2), "'frozen_param_fragments': {'f': h3+0(2)}", 0);
	put_shard(OPTIM(2), "[t0+0(2)]", "{'state': {}}", "3", 3000);
	expect("",
	       "n[2] 200 201\nobject optimizer.param_groups\n! not everything is there: parts of "
	       "frozen parameter 'f' are missing");
	put_model3(SHARD(2), "'frozen_param_fragments': {'f': h3+0(1)}", 0);
	put_shard(OPTIM(2), "[t0+0(0)]", "{'state': {}}", "3", 3000);
	expect("", "f[3] float16\nn[2] 200 201\nobject optimizer.param_groups\n! not everything is "
		   "shown: the masters of rank 2 are not in its file: they were offloaded to NVMe");
	put(SHARD(2), "{'module': {}, 'param_shapes': [{'a': (2,2), 'c': (1,)}]}", 0);
	expect("", "n[2] 200 201\n! not everything is shown: '" SHARD(
			   2) "' lists other parameters than '" SHARD(0) "': they are from two "
									 "different saves");
	REQUIRE(!unlinkat(dir_fd, SHARD(1), 0));
	expect("", "n[2] 200 201\n! not everything is shown: '" SHARD(
			   2) "' lists other parameters than '" SHARD(0) "': they are from two "
									 "different saves");
}
END_TEST

START_TEST(other_values_of_a_zero_3_module_are_shown)
{
	put(SHARD(0),
	    "{'module': {'a': t0+0(0), 'same': t0+0(1), 'tied': t1+0(2), 'lone': t1+0(1),"
	    " 'norm._extra_state': t2+0(3), 'act._extra_state': {'scale': 1}, 'none': N},"
	    " 'param_shapes': [{'a': (2,)}], 'shared_params': {'tied': 'a'}}",
	    0);
	put_shard(OPTIM(0), "[t0+0(2)]", "{'state': {}}", "1", 1000);
	expect("", "a[2] 1000 1001\nnorm._extra_state[3] 200 201 202\n"
		   "optimizer.state.a.fp32[2] 1000 1001\n"
		   "optimizer.state.tied.fp32[2] 1000 1001\ntied[2] 1000 1001\n"
		   "object act._extra_state\nobject none\n");
}
END_TEST

START_TEST(zero_3_without_optimizer_states_has_no_weights)
{
	put_model3(SHARD(0), "'frozen_param_fragments': N", 0);
	expect("", "n[2] 200 201\n! not everything is there: parts of frozen parameter 'f' are "
		   "missing");
	put(SHARD(0), "{'module': {'n': t0+0(1)}, 'buffer_names': [5, 'n'], 'param_shapes': []}",
	    0);
	expect("", "n[1] 0\n! not everything is shown: the weights: ZeRO 3 has them in the "
		   "optimizer states' files, but there are none");
	put(SHARD(0), "{'module': {}, 'param_shapes': []}", 0);
	expect_error("", "the weights: ZeRO 3 has them");
}
END_TEST

/* ---- experts, layers, slices ---- */

START_TEST(experts_of_a_group_have_the_numbers_of_their_rank)
{
	static const char model[] = "{'module': {'g': t0+0(2)}, 'ds_config': {%s},"
				    " 'param_shapes': [{'g': (2,)},"
				    " {'m.deepspeed_moe.experts.deepspeed_experts.0.w': (1,),"
				    "  'm.deepspeed_moe.experts.deepspeed_experts.1.w': (1,)}]}";
	char text[1000];

	for (int by_data = 0; by_data < 2; by_data++) {
		(void)snprintf(text, sizeof(text), model,
			       by_data ? "'use_data_before_expert_parallelism': T" : "");
		put(MODEL, text, 0);
		put("layer_0_expert_0_mp_rank_00_model_states.pt",
		    "{'m.deepspeed_moe.experts.deepspeed_experts.3.w': t0+9(1)}", 0);
		put_rank(OPTIM(0), "[t0+0(1), t1+0(1)]", "{}", "[4, 2]", 1000);
		put_rank(OPTIM(1), "[t0+0(1), t1+0(1)]", "{}", "[4, 2]", 2000);
		put_rank(OPTIM(2), "[t0+0(0), t1+0(1)]", "{}", "[4, 2]", 3000);
		put_rank(OPTIM(3), "[t0+0(0), t1+0(1)]", "{}", "[4, 2]", 4000);
#define EXPERT(n, v) "m.deepspeed_moe.experts.deepspeed_experts." #n ".w[1] " #v "\n"
#define MASTER(n, v) \
	"optimizer.state.m.deepspeed_moe.experts.deepspeed_experts." #n ".w.fp32[1] " #v "\n"
		expect("",
		       by_data ? "g[2] 0 1\n" EXPERT(0, 1100) EXPERT(1, 2100) EXPERT(2, 3100)
					 EXPERT(3, 9) "optimizer.state.g.fp32[2] 1000 "
						      "2000\n" MASTER(0, 1100) MASTER(
							      1, 2100) MASTER(2, 3100)
							      MASTER(3,
								     4100) "object "
									   "optimizer.loss_scaler\n"
			       : "g[2] 0 1\n" EXPERT(0, 1100) EXPERT(1, 3100) EXPERT(2, 2100)
					 EXPERT(3, 9) "optimizer.state.g.fp32[2] 1000 "
						      "2000\n" MASTER(0, 1100) MASTER(1, 3100)
							      MASTER(2, 2100) MASTER(
								      3, 4100) "object "
									       "optimizer.loss_"
									       "scaler\n");
	}
}
END_TEST

/* A pipeline of two stages; layer 0 is tied with one of the other stage. */
START_TEST(layers_have_the_names_of_the_module_list)
{
	put(MODEL,
	    "{'module': N, 'checkpoint_parallel_dimensions': {'pp_degree': 2, 'tp_degree': 1},"
	    " 'param_shapes': [{'tied_modules.e.w': (2,2), '1.w': (2,)}]}",
	    0);
	put("mp_rank_01_model_states.pt",
	    "{'module': N, 'param_shapes': [{'3.w': (2,), 'tied_modules.e.w': (2,2)}]}", 0);
	put("layer_00-model_states.pt", "{'w': t0+0(2,2)}", 100);
	put("layer_01-model_states.pt", "{'w': t0+0(2), 'buffer': t0+9(1)}", 200);
	put("layer_03-model_states.pt", "{'w': t0+0(2)}", 300);
	put_rank(OPTIM(0), "[t0+0(6)]", "{}", "[1]", 1000);
	put_rank("zero_pp_rank_0_mp_rank_01_optim_states.pt", "[t0+0(6)]", "{}", "[1]", 2000);
	expect("", "1.buffer[1] 209\n1.w[2] 200 201\n3.w[2] 300 301\n"
		   "optimizer.state.1.w.fp32[2] 1004 1005\n"
		   "optimizer.state.3.w.fp32[2] 2000 2001\n"
		   "optimizer.state.tied_modules.e.w.fp32[2,2] 1000 1001 1002 1003\n"
		   "tied_modules.e.w[2,2] 100 101 102 103\nobject optimizer.loss_scaler\n");
}
END_TEST

/* Stage-major: 00 and 01 are the slices of the first stage. */
START_TEST(slices_of_a_pipelines_layers_are_of_its_stage)
{
	static const char model[] =
		"{'module': N, 'checkpoint_parallel_dimensions': {'pp_degree': 2, 'tp_degree': 2},"
		" 'universal_checkpoint_info': {'parameter_to_average_patterns': ['.*mean']},"
		" 'param_shapes': [{'%d.w': (1,), '%d.mean': (1,)}]}";
	static const char optim[] = "zero_pp_rank_0_mp_rank_%02u_optim_states.pt";
	char path[100], text[1000];

	for (unsigned mp = 0; mp < 4; mp++) {
		(void)snprintf(path, sizeof(path), "mp_rank_%02u_model_states.pt", mp);
		(void)snprintf(text, sizeof(text), model, (int)mp / 2, (int)mp / 2);
		put(path, text, 0);
		(void)snprintf(path, sizeof(path), optim, mp);
		put_rank(path, "[t0+0(2)]", "{}", "[1]", 1000 * (mp + 1));
		(void)snprintf(path, sizeof(path), "layer_%02u-model_%02u-model_states.pt", mp / 2,
			       mp % 2);
		put(path, "{'w': t0+0(1), 'mean': t0+1(1)}", 100 * (mp + 1));
	}
	expect("", "0.w[2] 100 200\n1.w[2] 300 400\n"
		   "mp_rank_00/0.mean[1] 101\nmp_rank_01/0.mean[1] 201\n"
		   "mp_rank_02/1.mean[1] 301\nmp_rank_03/1.mean[1] 401\n"
		   "optimizer.state.0.w.fp32[2] 1000 2000\n"
		   "optimizer.state.1.w.fp32[2] 3000 4000\n"
		   "optimizer.state.mp_rank_00/0.mean.fp32[1] 1001\n"
		   "optimizer.state.mp_rank_01/0.mean.fp32[1] 2001\n"
		   "optimizer.state.mp_rank_02/1.mean.fp32[1] 3001\n"
		   "optimizer.state.mp_rank_03/1.mean.fp32[1] 4001\n"
		   "object optimizer.loss_scaler\n");
}
END_TEST

/* DeepSpeed itself would not do so: its layers have files of their own, and their numbers in the
 * names. */
START_TEST(stages_may_use_a_name_for_different_tensors)
{
	static const char model[] =
		"{'module': {'0.w': t0+0(1), 'only%d': t0+1(1)},"
		" 'checkpoint_parallel_dimensions': {'pp_degree': 2, 'tp_degree': %d}}";
	char path[40], text[300];

	for (int tp = 1; tp <= 2; tp++) {
		for (int mp = 0; mp < 2 * tp; mp++) {
			(void)snprintf(path, sizeof(path), "mp_rank_%02d_model_states.pt", mp);
			(void)snprintf(text, sizeof(text), model, mp / tp, tp);
			put(path, text, 100 * (unsigned)mp);
		}
		expect("", tp == 1 ? "mp_rank_00/0.w[1] 0\nmp_rank_01/0.w[1] 100\nonly0[1] 1\n"
				     "only1[1] 101\n"
				   : "mp_rank_00/0.w[1] 0\nmp_rank_00/only0[1] 1\n"
				     "mp_rank_01/0.w[1] 100\nmp_rank_01/only0[1] 101\n"
				     "mp_rank_02/0.w[1] 200\nmp_rank_02/only1[1] 201\n"
				     "mp_rank_03/0.w[1] 300\nmp_rank_03/only1[1] 301\n");
	}
}
END_TEST

START_TEST(slices_are_joined_by_what_the_checkpoint_says)
{
	static const char model[] =
		"{'module': {'col': t0+0(2,2), 'row': t0+4(2,1), 'two': t0+6(2), 'sub': t0+8(3),"
		" 'voc': t0+11(2), 'all': t0+13(1), 'mean': t0+14(1), 'odd': t0+15(%d)}, %s}";
	static const char info[] =
		"'universal_checkpoint_info': {'tp_replicated_parameter_patterns': ['al+$'],"
		" 'parameter_to_average_patterns': ['m[a-e]{2}n'],"
		" 'parameter_with_2_sub_params_cat_dim_0': ['two'],"
		" 'parameter_with_sub_params': [{'patterns': ['sub'], 'shape': ((2, 4),),"
		" 'partition_dim': 0}],"
		" 'parameter_with_row_parallelism_patterns': ['(?:x|row)'],"
		" 'vocabulary_parameter_patterns': ['voc'], 'original_vocab_size': 3}";
	char text[1500];

	(void)snprintf(text, sizeof(text), model, 1, info);
	put(MODEL, text, 0);
	put("mp_rank_01_model_states.pt", text, 1000);
	expect("", "all[1] 13\ncol[4,2] 0 1 2 3 1000 1001 1002 1003\n"
		   "mp_rank_00/mean[1] 14\nmp_rank_01/mean[1] 1014\nodd[2] 15 1015\n"
		   "row[2,2] 4 1004 5 1005\nsub[6] 8 1008 9 10 1009 1010\n"
		   "two[4] 6 1006 7 1007\nvoc[3] 11 12 1011\n");
	(void)snprintf(text, sizeof(text), model, 1, "'epoch': 1");
	put(MODEL, text, 0);
	expect("", "mp_rank_00/all[1] 13\nmp_rank_00/col[2,2] 0 1 2 3\nmp_rank_00/mean[1] 14\n"
		   "mp_rank_00/odd[1] 15\nmp_rank_00/row[2,1] 4 5\nmp_rank_00/sub[3] 8 9 10\n"
		   "mp_rank_00/two[2] 6 7\nmp_rank_00/voc[2] 11 12\n"
		   "mp_rank_01/all[1] 1013\nmp_rank_01/col[2,2] 1000 1001 1002 1003\n"
		   "mp_rank_01/mean[1] 1014\nmp_rank_01/odd[1] 1015\n"
		   "mp_rank_01/row[2,1] 1004 1005\nmp_rank_01/sub[3] 1008 1009 1010\n"
		   "mp_rank_01/two[2] 1006 1007\nmp_rank_01/voc[2] 1011 1012\n");
	put(MODEL,
	    "{'module': {'a': t0+0(1)}, 'universal_checkpoint_info':"
	    " {'parameter_to_average_patterns': ['(?=a)']}}",
	    0);
	put("mp_rank_01_model_states.pt", "{'module': {'a': t0+0(1)}}", 1000);
	expect("", "mp_rank_00/a[1] 0\nmp_rank_01/a[1] 1000\n! not everything is shown: slices of "
		   "tensor parallelism are listed as they are: pattern '(?=a)' of "
		   "universal_checkpoint_info is not understood");
}
END_TEST

START_TEST(patterns_match_as_pythons_do)
{
	static const struct {
		const char *pattern, *text;
		bool want;
	} v[] = {
		{ "", "", true },
		{ "", "a", true },
		{ "a", "ba", false },
		{ "word\\.weight", "word.weight.x", true },
		{ "word\\.weight", "wordxweight", false },
		{ "norm\\..*", "norm.", true },
		{ "\\d+\\.mlp", "12.mlp.w", true },
		{ "\\d+\\.mlp", ".mlp", false },
		{ "a|b", "b", true },
		{ "(a|bc)d", "bcd", true },
		{ "(a|bc)+$", "abcbca", true },
		{ "(a|bc)+$", "abcbcx", false },
		{ "x{2,3}$", "xx", true },
		{ "x{2,3}$", "xxxx", false },
		{ "x{2}y", "xxy", true },
		{ "x{0,1}y", "y", true },
		{ "[^.]+\\.w$", "ab.w", true },
		{ "[^.]+\\.w$", "a.b.w", false },
		{ "[\\d_-]+x", "1_-x", true },
		{ "[]a]+$", "a]", true },
		{ "^a", "a", true },
		{ ".*?b$", "aab", true },
		{ "(?:(?:a*)*)*b", "aaaaaaaaaaaaaaaaaaaaaaaaac", false },
		{ "\\w\\W\\S\\D", "a.bc", true },
		{ "a?b", "b", true },
		{ "a?b", "aab", false },
		{ "a{2,}$", "aaaa", true },
		{ "a{2,}$", "a", false },
		{ "[\\.x-]+$", ".x-", true },
		{ "[\\s]\\?", " ?", true },
	};
	static const char *const refused[] = {
		"(",	    ")",       "a)",	     "[a",	 "a**",	   "*",		"\\1",
		"\\b",	    "(?=a)",   "(?i)a",	     "x{2",	 "x{3,2}", "\\",	"x{0}",
		"[z-a]",    "a{1000}", "a{,3}",	     "a{1,x}",	 "a{1,0}", "a{1,1000}", "a{1,2x",
		"a{12345}", "[a-\\]]", "[\xc3\xa9]", "[a-\xc3]", "[\\q]",  "[\\",	"^*",
		"$+",	    "(a",      "a|(",	     "(a**)",	 "\\9"
	};
	struct ds_pattern *p = NULL;
	struct ckpt_err e = { 0 };
	uint64_t work = DS_PATTERN_WORK;
	char deep[500] = "";

	for (size_t i = 0; i < ARRAY_LEN(v); i++) {
		ck_assert_msg(!ds_pattern_new(v[i].pattern, &work, &p, &e), "%s", e.msg);
		ck_assert_msg(ds_pattern_match(p, v[i].text, strlen(v[i].text), &work) == v[i].want,
			      "'%s' and '%s'", v[i].pattern, v[i].text);
		ds_pattern_free(p);
	}
	REQUIRE(work);
	for (size_t i = 0; i < ARRAY_LEN(refused); i++)
		ck_assert_msg(ds_pattern_new(refused[i], &work, &p, &e) == -ERR_UNSUPPORTED, "%s",
			      refused[i]);
	memset(deep, '(', 100);
	ck_assert_int_eq(ds_pattern_new(deep, &work, &p, &e), -ERR_UNSUPPORTED);
	/* A pattern that matches nothing takes time as well. */
	strcpy(deep, "((((((){100}){100}){100}){100}){100})");
	ck_assert_int_eq(ds_pattern_new(deep, &work, &p, &e), -ERR_UNSUPPORTED);
	ck_assert_int_eq(ds_pattern_new("(a{50}){50}", &work, &p, &e), -ERR_UNSUPPORTED);
	REQUIRE(!ds_pattern_new("a*", &work, &p, &e));
	work = 5;
	REQUIRE(!ds_pattern_match(p, "aaaa", 4, &work) && !work);
	ds_pattern_free(p);
}
END_TEST

/* Compiling the pattern takes at least this of the budget, and nothing beyond it. */
static void expect_work(const char *pattern, uint64_t least)
{
	struct ds_pattern *p = NULL;
	struct ckpt_err e = { 0 };
	uint64_t work = least;

	ck_assert_int_eq(ds_pattern_new(pattern, &work, &p, &e), -ERR_UNSUPPORTED);
	ck_assert_uint_eq(work, 0);
}

START_TEST(compiling_a_pattern_has_a_budget)
{
	enum { LONGEST = 4096 };
	char text[LONGEST + 2];
	struct ds_pattern *p = NULL;
	struct ckpt_err e = { 0 };
	uint64_t work = DS_PATTERN_WORK;

	/* A class is read again for each copy of the groups around it, which has a state. */
	memset(text, 'q', LONGEST + 1);
	text[LONGEST + 1] = 0;
	memcpy(text, "(([", 3);
	memcpy(text + LONGEST - 14, "]){19}){100}zz", 15);
	expect_work(text, 1900 * (uint64_t)(LONGEST - 20));
	expect_work("((q{100}){19}z)", 1900 * (uint64_t)40); /* 40 bytes for each state */
	memset(text, 'q', LONGEST + 1);
	text[LONGEST + 1] = 0;
	ck_assert_int_eq(ds_pattern_new(text, &work, &p, &e), -ERR_UNSUPPORTED);
	REQUIRE(work);
	/* It is 64 long classes that count as one atom each. */
	for (size_t i = 0; i < 64; i++) {
		text[64 * i] = '[';
		text[64 * i + 63] = ']';
	}
	text[LONGEST] = 0;
	ck_assert_msg(!ds_pattern_new(text, &work, &p, &e), "%s", e.msg);
	ds_pattern_free(p);
}
END_TEST

START_TEST(universal_checkpoints_have_a_file_for_each_state)
{
	put(MODEL, "{'module': {'b': h0+0(2)}, 'param_shapes': [{'a': (2,2)}]}", 0);
	directory("zero");
	directory("zero/a");
	directory("zero/b");
	put("zero/optimizer_state.pt",
	    "{'clip_grad': 1.5, 'zero_stage': Z, 'fp32_flat_groups': [t0+0(2)],"
	    " 'param_groups': [{'lr': 2.5}]}",
	    0);
	put("zero/a/fp32.pt", "t0+0(4)", 10);
	put("zero/a/exp_avg.pt", "t0+4(4)", 10);
	put("zero/a/step.pt", "5", 0);
	put("zero/b/fp32.pt", "{'param': t0+0(2), 'cat_dim': 0}", 20);
	put("zero/b/exp_avg.pt", "{'param': t0+2(2)}", 20);
	put("zero/b/step.pt", "t0+9()", 20);
	expect("", "a[2,2] 10 11 12 13\nb[2] float16\n"
		   "optimizer.state.a.exp_avg[2,2] 14 15 16 17\n"
		   "optimizer.state.a.fp32[2,2] 10 11 12 13\n"
		   "optimizer.state.b.exp_avg[2] 22 23\noptimizer.state.b.fp32[2] 20 21\n"
		   "optimizer.state.b.step[] 29\nobject optimizer.clip_grad\n"
		   "object optimizer.param_groups\nobject optimizer.state.a.step\n");
	put("zero/optimizer_state.pt", "5", 0);
	put("zero/a/step.pt", "'x'", 0);
	put("zero/b/exp_avg.pt", "{'param': t0+2(1,2)}", 20);
	expect("", "a[2,2] 10 11 12 13\nb[2] float16\n"
		   "optimizer.state.a.exp_avg[2,2] 14 15 16 17\n"
		   "optimizer.state.a.fp32[2,2] 10 11 12 13\n"
		   "optimizer.state.b.fp32[2] 20 21\noptimizer.state.b.step[] 29\n"
		   "! not everything is shown: 'zero/b/exp_avg.pt' has shape (1, 2), but the "
		   "fp32.pt beside it (2,): they are from two different saves");
	put("zero/a/fp32.pt", "t0+0(5)", 10);
	expect_error("", "'zero/a/fp32.pt' has 5 elements, the model states say 4");
}
END_TEST

/* ---- directories ---- */

START_TEST(latest_says_which_directory_it_is)
{
	static const char model[] = "{'module': {'w': t0+0(1)}}";

	directory("one");
	put("one/" MODEL, model, 1);
	expect("one", "w[1] 1\n");
	expect("", "w[1] 1\n"); /* there is no other */
	directory("two");
	put("two/" MODEL, model, 2);
	expect_error("", "it is a run with 2 checkpoints");
	put_file(dir_fd, "latest", " two\n", 5);
	expect("", "w[1] 2\n");
	put_file(dir_fd, "latest", "three", 5);
	expect_error("", "it is a run with 2 checkpoints");
	put_file(dir_fd, "latest", "../x", 4);
	expect_error("", "it is a run with 2 checkpoints");
}
END_TEST

START_TEST(latest_that_leads_elsewhere_is_refused)
{
	static const char *const names[] = { "../x", "/etc", "..", ".", "" };

	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		put_file(dir_fd, "latest", names[i], strlen(names[i]));
		expect_error("", "which is not a directory beside it");
	}
}
END_TEST

START_TEST(what_is_damaged_is_an_error)
{
	put_rank(OPTIM(0), "[t0+0(1)]", "{}", "[1]", 0);
	expect_error("", "'mp_rank_00_model_states.pt' is missing");
	put_file(dir_fd, MODEL, "x", 1);
	expect_error("", "read 'mp_rank_00_model_states.pt'");
	put(MODEL, "[]", 0);
	expect_error("", "does not hold DeepSpeed's dict");
	put(MODEL, "{'module': 5}", 0);
	expect_error("", "its 'module' is not a state dict");
	put(MODEL, "{'param_shapes': 5}", 0);
	expect_error("", "param_shapes is not in DeepSpeed's form");
	put(MODEL, "{'param_shapes': [{'a': 'x'}]}", 0);
	expect_error("", "its names and shapes are not in DeepSpeed's form");
	put(MODEL, "{'param_shapes': [{'a': (4611686018427387904, 4)}]}", 0);
	expect_error("", "a tensor of more than 2^62 elements");
	put(MODEL, "{'param_shapes': [{'a': (4611686018427387904,), 'b': (4611686018427387904,)}]}",
	    0);
	expect_error("", "a group of more than 2^62 elements");
	put(MODEL, "{'module': {'w': t0+39(2)}}", 0);
	expect_error("", "its view reaches outside its storage");
	put(MODEL, "{'module': {'w': t0+0(1)}, 'param_shapes': [{'w': (1,)}]}", 0);
	put("mp_rank_02_model_states.pt", "{'module': {'w': t0+0(1)}}", 0);
	expect_error("", "the model states of mp_rank_01 are missing");
	REQUIRE(!unlinkat(dir_fd, "mp_rank_02_model_states.pt", 0));
	put(SHARD(1), "{}", 0);
	expect_error("",
		     "are from two different saves: ZeRO 3 writes one, the other stages the other");
	REQUIRE(!unlinkat(dir_fd, SHARD(1), 0));
	put_rank(OPTIM(0), "[t0+0(2,1)]", "{}", "[1]", 0);
	expect_error("", "fp32: it is not flat");
}
END_TEST

/* ---- what is odd or wrong in one file ---- */

struct odd {
	const char *text, *want; /* after a '?': part of the error */
};

static void expect_odd(const char *want)
{
	if (*want == '?')
		expect_error("", want + 1);
	else
		expect("", want);
}

#define SPARSE \
	"torch._utils._rebuild_sparse_tensor(torch.serialization._get_layout('torch.sparse_coo')," \
	" (I[1,2](1,2), t0+0(2), torch.Size((3,)), T))"

START_TEST(odd_model_states)
{
	static const struct odd v[] = {
		{ "{'module': {'w': t0+0(1), 5: t0+0(1), 'o': [1], 's': " SPARSE "},"
		  " 5: 6, '': 7, 'none': N, 'optimizer': {'a': 1}, 'lr_scheduler': {'b': 2},"
		  " 'sparse_tensor_module_names': []}",
		  "s.indices[1,2] int64\ns.values[2] 0 1\nw[1] 0\nobject lr_scheduler\nobject "
		  "o\nobject optimizer\nobject s\n" },
		{ "{'module': {'a': t0+0(2), 'b': t0+0(1)}, 'buffer_names': [5, 'b'],"
		  " 'shared_params': {5: 'a', 't': 5, 'u': 'a'}}",
		  "a[2] 0 1\nb[1] 0\nu[2] 0 1\n" },
		{ "{'module': {'a': t0+0(2)}, 'frozen_param_shapes': {'f': (2,), 'g': (1,), 'h': "
		  "(1,)},"
		  " 'frozen_param_fragments': {'g': t1+2(1), 'f': t1+0(2), 5: 6}}",
		  "a[2] 0 1\nf[2] 100 101\ng[1] 102\n" },
		{ "{'module': {'a': t0+0(2)}, 'frozen_param_shapes': {'f': (2,)},"
		  " 'frozen_param_fragments': N}",
		  "a[2] 0 1\n" },
		{ "{'module': {'a': t0+0(2)}, 'frozen_param_shapes': {'f': (2,)},"
		  " 'frozen_param_fragments': {'f': t1+39(2)}}",
		  "?its view reaches outside its storage" },
		{ "{'module': {'a': t0+0(2)}, 'frozen_param_shapes': [1]}",
		  "?param_shapes is not in DeepSpeed's form" },
		{ "{'module': {'a': t0+0(2), 'b\\0c': 5}, 'd\\0e': 6}", "a[2] 0 1\n" },
		{ "{'module': {'a': t0+0(2)}, 'frozen_param_shapes': {'f': (2,), 'gg': (1,), 'h': "
		  "(1,)},"
		  " 'frozen_param_fragments': {5: 6, 'g': 7, 'i': 8, 'h': t1+3(1), 'f': t1+0(2)}}",
		  "a[2] 0 1\nf[2] 100 101\nh[1] 103\n" },
		{ "{'param_shapes': [5]}", "?param_shapes is not in DeepSpeed's form" },
		{ "{'param_shapes': ({'a': 5},)}",
		  "?its names and shapes are not in DeepSpeed's form" },
		{ "{'param_shapes': ({5: (1,)},)}",
		  "?its names and shapes are not in DeepSpeed's form" },
		{ "{'param_shapes': ({'a': (1,-1)},)}",
		  "?its names and shapes are not in DeepSpeed's form" },
		{ "{'module': {'w': t0+0(2,3)/(1,2)}}", "w[2,3] 0 2 4 1 3 5\n" },
		{ "{'module': {'w': t0+0(0,3)/(1,2)}}", "w[0,3]\n" },
	};

	for (size_t i = 0; i < ARRAY_LEN(v); i++) {
		put(MODEL, v[i].text, 0);
		expect_odd(v[i].want);
	}
}
END_TEST

START_TEST(names_of_one_parameter_have_the_same_shape)
{
	put(MODEL,
	    "{'module': {'a': t0+0(2), 'b': t0+0(2), 'c': t0+0(1,2), 'd': t0+0(), 'e': t0+0(),"
	    " 'f': t0+1(2), 'g': t1+0(2), 'h': t0+0(1), 5: t0+0(2), 'i': 5, 'j': " SPARSE
	    "}, 'param_shapes': [{'a': (2,), 'd': ()}]}",
	    0);
	put_rank(OPTIM(0), "[t1+0(3)]", "{}", "[1]", 0);
	saved_expect_begin(
		dir, "deepspeed",
		"a[2] 0 1\nb[2] 0 1\nc[1,2] 0 1\nd[] 0\ne[] 0\nf[2] 1 2\ng[2] 100 101\n"
		"h[1] 0\nj.indices[1,2] int64\nj.values[2] 0 1\noptimizer.state.a.fp32[2] 100 101\n"
		"optimizer.state.b.fp32[2] 100 101\noptimizer.state.d.fp32[] 102\n"
		"optimizer.state.e.fp32[] 102\nobject i\nobject j\n");
}
END_TEST

START_TEST(odd_optimizer_states)
{
#define NOT   "a[2] float16\n! not everything is shown: "
#define THERE "a[2] float16\n! not everything is there: "
#define LOSS  "a[2] float16\nobject optimizer.loss_scaler\n! not everything is shown: "
#define STATES(count, masters, more) \
	"{'optimizer_state_dict': {'partition_count': " count \
	", 'single_partition_of_fp32_groups': " masters more "}}"
#define BASE(state) STATES("[1]", "[t0+0(2)]", ", 'base_optimizer_state': " state)
#define FP32	    "optimizer.state.a.fp32[2] 0 1\n"
#define LENGTH \
	"! not everything is shown: 'm' of group 0 of the optimizer states is not as long as the " \
	"masters"
#define COUNTS \
	NOT "'" OPTIM(0) "': its partition_count is not that of rank 0's file: they are from two " \
			 "different saves"
	static const struct odd v[] = {
		{ "[]", NOT "'" OPTIM(0) "' holds no flat groups as ZeRO has them" },
		{ "{'optimizer_state_dict': {'single_partition_of_fp32_groups': {}}}",
		  NOT "'" OPTIM(0) "' holds no flat groups as ZeRO has them" },
		{ STATES("[1]", "[t0+0(2)]", ", 'ds_zero_partition_groups': [1]"),
		  NOT "'" OPTIM(0) "' partitions experts by replica groups (AutoEP), which is not "
				   "supported" },
		{ STATES("[1]", "[t0+0(2)]", ", 'ds_zero_partition_groups': []"),
		  "a[2] float16\n" FP32 },
		{ STATES("[1]", "[5]", ""), "?fp32: no tensor" },
		{ STATES("[1]", "[t0+0(1,2)/(1,2)]", ""), "?fp32: it is not flat" },
		{ STATES("[1]", "[t0+0(2)/(2)]", ""), "?fp32: it is not flat" },
		{ STATES("[1]", "[t0+0(2), t0+0(2)]", ""), COUNTS },
		{ STATES("1", "[t0+0(2), t0+0(2)]", ""),
		  NOT "the optimizer states have 2 groups, the model states 1: they are from two "
		      "different saves" },
		{ STATES("N", "[t0+0(2)]", ""), "a[2] float16\n" FP32 },
		{ STATES("[Z]", "[t0+0(2)]", ""),
		  THERE "optimizer states of 1 of 2 ranks are there: '" OPTIM(1) "' is missing" },
		{ STATES("torch.X(1)", "[t0+0(2)]", ""), "a[2] float16\n" FP32 },
		{ STATES("torch.X()", "[t0+0(2)]", ""), COUNTS },
		{ STATES("torch.X(1,2)", "[t0+0(2)]", ""), COUNTS },
		{ STATES("'1'", "[t0+0(2)]", ""), COUNTS },
		{ STATES("['1']", "[t0+0(2)]", ""), COUNTS },
		{ STATES("0", "[t0+0(2)]", ""), COUNTS },
		{ STATES("[]", "[t0+0(2)]", ""), COUNTS },
		{ STATES("[1]", "[]", ""), NOT "the optimizer states have 0 groups, the model "
					       "states 1: they are from two different saves" },
		/* Elastic checkpoints: a list of the groups' states. */
		{ BASE("[{'m': t1+0(2)}, {'m': t1+0(3)}]"),
		  "a[2] float16\n" FP32 "optimizer.state.a.m[2] 100 101\n" },
		{ BASE("[{5: t1+0(2), 'm': t1+0(1,2), 'n': 5, 'server_error': t1+0(2), "
		       "'worker_error':"
		       " t1+0(2), 's': torch._utils._rebuild_sparse_tensor(5)}]"),
		  "a[2] float16\n" FP32 },
		{ BASE("{'state': {-1: {'m': t1+0(2)}, 99999999: {'m': t1+0(2)}, 'x': {}, 0: "
		       "{'step': 'x', 'm': t1+0(2)}}}"),
		  "a[2] float16\n" FP32 "optimizer.state.a.m[2] 100 101\n" },
		{ BASE("{'state': {0: {'step': t1+7()}}}"),
		  "a[2] float16\n" FP32 "optimizer.state.a.step[] 107\n" },
		{ BASE("{'state': {0: {'step': 1.5}}}"),
		  "a[2] float16\n" FP32 "object optimizer.state.a.step\n" },
		{ BASE("{'state': {0: {'step': t1+39(2)}}}"),
		  "?its view reaches outside its storage" },
		{ BASE("{'param_groups': [{'params': ['x', -1, 1], 'step': 4}, {'params': [0]}, 5,"
		       " {'params': 0, 'step': 4}]}"),
		  "a[2] float16\n" FP32 "object optimizer.param_groups\n" },
		{ BASE("{'state': {0: {'step': 3}}, 'param_groups': [{'params': [0], 'step': 4}]}"),
		  "a[2] float16\n" FP32 "object optimizer.param_groups\n"
		  "object optimizer.state.a.step\n" },
		/* Moments that are shorter than the masters; far longer. */
		{ BASE("{'state': {0: {'m': t1+0(1)}}}"), "a[2] float16\n" FP32 LENGTH },
		{ BASE("{'state': {0: {'m': t1+0(5)}}}"), "a[2] float16\n" FP32 LENGTH },
		{ BASE("{'state': {0: {'m': t1+0(4)}}}"),
		  "a[2] float16\n" FP32 "optimizer.state.a.m[2] 100 101\n" },
		{ STATES("[1]", "[t0+0(3)]", ""), "a[2] float16\n" FP32 },
		{ STATES("[1]", "[t0+0(4)]", ""),
		  NOT "group 0 of the optimizer states does not have the elements that the model "
		      "states list, 2: they are from two different saves" },
		{ STATES("[1]", "[t0+0(1)]", ""),
		  NOT "group 0 of the optimizer states does not have the elements that the model "
		      "states list, 2: they are from two different saves" },
	};
	char text[1000], *at = text;

	put(MODEL, "{'module': {'a': h0+0(2)}, 'param_shapes': [{'a': (2,)}]}", 0);
	for (size_t i = 0; i < ARRAY_LEN(v); i++) {
		put(OPTIM(0), v[i].text, 0);
		expect_odd(v[i].want);
	}
	at += sprintf(at, "{'state': {0: {");
	for (unsigned i = 0; i < 16; i++)
		at += sprintf(at, "'m%u': t1+0(2),", i);
	sprintf(at, "}}}");
	put_rank(OPTIM(0), "[t0+0(2)]", text, "[1]", 0);
	expect_error("", "more than 16 kinds of optimizer state");
}
END_TEST

START_TEST(optimizer_states_without_names_are_not_shown)
{
	put(MODEL, "{'module': {'a': h0+0(2)}, 'universal_checkpoint_info': 5}", 0);
	put("mp_rank_01_model_states.pt",
	    "{'module': {'a': h0+0(2)}, 'universal_checkpoint_info': 5}", 0);
	put_rank(OPTIM(0), "[t0+0(2)]", "{}", "[1]", 0);
	expect("", "mp_rank_00/a[2] float16\nmp_rank_01/a[2] float16\nobject "
		   "optimizer.loss_scaler\n! not everything is there: 'zero_pp_rank_0_mp_rank_01_"
		   "optim_states.pt' is missing, though '" OPTIM(0) "' is there");
}
END_TEST

START_TEST(columns_that_ranks_do_not_share_are_not_shown)
{
	put(MODEL, "{'module': {'a': h0+0(2)}, 'param_shapes': [{'a': (2,)}]}", 0);
	put_rank(OPTIM(0), "[t0+0(1)]", "{'state': {0: {'m': t1+0(1), 'n': t1+0(1)}}}", "[2]",
		 1000);
	put_rank(OPTIM(1), "[t0+0(1)]", "{'state': {0: {'m': h1+0(1), 'n': t1+0(1)}}}", "[2]",
		 2000);
	expect("", LOSS "'m' of group 0 has different dtypes in the files of optimizer states: "
			"they are from two different saves");
	put_rank(OPTIM(0), "[t0+0(1)]", "{}", "[2]", 1000);
	put_rank(OPTIM(1), "[h0+0(1)]", "{}", "[2]", 2000);
	expect("", LOSS "group 0 of the optimizer states does not have the elements that the model "
			"states list, 2: they are from two different saves");
	put_shard(OPTIM(1), "[t0+0(1)]", "{}", "[2]", 2000);
	expect("", LOSS "'" OPTIM(1) "' has other groups than rank 0's file: they are from two "
				     "different saves");
	put_rank(OPTIM(1), "[t0+0(1)]", "{}", "2", 2000);
	saved_put(dir_fd, "zero_pp_rank_01_mp_rank_00_optim_states.pt", "{}", 0);
	saved_expect_begin(dir, "deepspeed", NOT "'zero_pp_rank_");
	expect("", NOT "'zero_pp_rank_01_mp_rank_00_optim_states.pt' and '" OPTIM(
			   1) "' are both of rank 1");
}
END_TEST

/* What a client saves besides, such as a configuration of OmegaConf. */
START_TEST(client_states_may_lead_back_to_themselves)
{
	put(MODEL,
	    "{'module': {'w': t0+0(1)}, 'data': #2=m.Data()!{'store': m.Store()!{'of': #2, 'x': "
	    "t0+1(1)}},"
	    " 'cfg': #1=m.Dict()!{'a': m.Node()!{'of': #1}, 'b': m.Node()!{'of': #1}}}",
	    0);
	expect("", "train_state.data.store.x[1] 1\nw[1] 0\n");
	put(MODEL, "{'module': {'w': t0+0(1)}, 'x': [t0+39(2)]}", 0);
	expect_error("",
		     "read '" MODEL "': 'train_state.x.0': its view reaches outside its storage "
		     "of 160 bytes");
}
END_TEST

START_TEST(groups_of_old_versions_are_told_apart_by_their_sizes)
{
	static const struct odd v[] = {
		{ STATES("[1, 1]", "[t0+0(3), t1+0(4)]", ""),
		  "a[3] 0 1 2\nb[4] 100 101 102 103\noptimizer.state.a.fp32[3] 0 1 2\n"
		  "optimizer.state.b.fp32[4] 100 101 102 103\n" },
		/* The second parameter has more elements than are left. */
		{ STATES("[1, 1]", "[t0+0(3), t1+0(3)]", ""),
		  "?param_shapes has more elements than the optimizer states" },
		{ "{'optimizer_state_dict': {'fp32_flat_groups': [t0+0(3), t1+0(4)]}}",
		  "a[3] 0 1 2\nb[4] 100 101 102 103\noptimizer.state.a.fp32[3] 0 1 2\n"
		  "optimizer.state.b.fp32[4] 100 101 102 103\n" },
	};

	put(MODEL, "{'module': {}, 'param_shapes': {'a': (3,), 'z': (0,), 'b': (4,)}}", 0);
	for (size_t i = 0; i < ARRAY_LEN(v); i++) {
		put(OPTIM(0), v[i].text, 0);
		if (*v[i].want == '?')
			expect_odd(v[i].want);
		else
			saved_expect_begin(dir, "deepspeed", v[i].want);
	}
}
END_TEST

START_TEST(odd_files_of_zero_3)
{
	static const char frozen[] = "'frozen_param_fragments': {'f': h3+0(1)}";

	put_model3(SHARD(0), frozen, 0);
	put_model3(SHARD(2), frozen, 0);
	expect("", "n[2] 200 201\n! not everything is shown: model states of rank 1 are missing "
		   "(found '" SHARD(2) "')");
	put_model3(SHARD(1), "'frozen_param_fragments': {'f': t3+0(1)}", 0);
	saved_expect_begin(dir, "deepspeed",
			   "n[2] 200 201\n! not everything is there: parts of frozen parameter 'f' "
			   "are missing");
	put_model3(SHARD(1), "'frozen_param_fragments': {}", 0);
	saved_expect_begin(dir, "deepspeed",
			   "n[2] 200 201\n! not everything is there: parts of frozen parameter 'f' "
			   "are missing");
	put_model3(SHARD(1), "'frozen_param_fragments': {'f': 5}", 0);
	expect_error("", "f: no tensor");
	put_model3(SHARD(1), frozen, 0);
	saved_put(dir_fd, "zero_pp_rank_01_mp_rank_00_model_states.pt", "{}", 0);
	expect_error("", "'zero_pp_rank_01_mp_rank_00_model_states.pt' and '" SHARD(
				 1) "' are of the same rank: one is from another checkpoint");
	REQUIRE(!unlinkat(dir_fd, "zero_pp_rank_01_mp_rank_00_model_states.pt", 0));
	/* Moments as long as the masters, shorter ones, and some that one file lacks. */
	put_shard(OPTIM(0), "[t0+0(3)]",
		  "{'state': {0: {'m': t1+0(3), 'n': t1+0(4), 'o': t1+0(3)}}}", "3", 1000);
	put_shard(OPTIM(1), "[t0+0(3)]",
		  "{'state': {0: {'m': t1+0(3), 'n': t1+0(4), 'o': t1+0(3)}}}", "3", 2000);
	put_shard(OPTIM(2), "[t0+0(3)]", "{'state': {0: {'m': t1+0(3), 'n': t1+0(4)}}}", "3", 3000);
	expect("", "f[3] float16\nn[2] 200 201\n! not everything is shown: '" OPTIM(
			   0) "' has 'o' of group 0, and '" OPTIM(2) "' has none: they are from "
								     "two different saves");
	put_shard(OPTIM(2), "[t0+0(3)]",
		  "{'state': {0: {'m': t1+0(3), 'n': t1+0(4), 'o': t1+0(2)}}}", "3", 3000);
	expect("", "a[2,2] 1000 1001 2000 2001\nb[1] 1002\nf[3] float16\nn[2] 200 201\n"
		   "optimizer.state.a.fp32[2,2] 1000 1001 2000 2001\n"
		   "optimizer.state.a.m[2,2] 1100 1101 2100 2101\n"
		   "optimizer.state.b.fp32[1] 1002\noptimizer.state.b.m[1] 1102\n"
		   "! not everything is shown: 'n' of group 0 of the optimizer states is not as "
		   "long as the masters");
}
END_TEST

/* Each name is looked at once; if each were searched for among all names, this would take
 * minutes. */
START_TEST(there_may_be_many_experts)
{
	enum { N = 24000 };
	struct buf b CLEANUP(buf_release) = BUF_INIT(64 << 20);

	buf_str(&b, "{'module': {'g': t0+0(2)}, 'param_shapes': [{'g': (2,)}, {");
	for (unsigned i = 0; i < N; i++) {
		buf_str(&b, "'a.deepspeed_moe.experts.deepspeed_experts.");
		buf_u64(&b, i);
		buf_str(&b, "': (0,), ");
	}
	buf_str(&b, "}]}");
	REQUIRE(!b.err);
	put(MODEL, b.data, 0);
	put_rank(OPTIM(0), "[t0+0(1), h1+0(0)]", "{}", "[2, 1]", 1000);
	put_rank(OPTIM(1), "[t0+0(1), h1+0(0)]", "{}", "[2, 1]", 2000);
	saved_expect_begin(dir, "deepspeed",
			   "a.deepspeed_moe.experts.deepspeed_experts.0[0] float16\n"
			   "a.deepspeed_moe.experts.deepspeed_experts.1[0] float16\n"
			   "a.deepspeed_moe.experts.deepspeed_experts.2[0] float16\n");
}
END_TEST

START_TEST(experts_without_numbers_are_not_named)
{
	static const char word[] = "'m.deepspeed_moe.experts.deepspeed_experts.";
	char text[500];

	put(MODEL, "{'module': {'g': t0+0(2)}, 'param_shapes': [{'g': (2,)}, {'x': (1,)}]}", 0);
	put_rank(OPTIM(0), "[t0+0(1), t1+0(1)]", "{}", "[2, 1]", 1000);
	put_rank(OPTIM(1), "[t0+0(1), t1+0(1)]", "{}", "[2, 1]", 2000);
	expect("", "g[2] 0 1\nobject optimizer.loss_scaler\n! not everything is shown: 'x' is an "
		   "expert's, and its name does not say which one's");
	(void)snprintf(text, sizeof(text),
		       "{'module': {'g': t0+0(2)}, 'param_shapes': [{'g': (2,)}, {%s': (1,)}]}",
		       word);
	put(MODEL, text, 0);
	saved_expect_begin(dir, "deepspeed", "g[2] 0 1\nobject optimizer.loss_scaler\n! ");
	for (unsigned i = 0; i < 2; i++) {
		(void)snprintf(text, sizeof(text),
			       "{'module': {'g': t0+0(2)}, 'param_shapes': [{'g': (2,)}, {%s%s.w': "
			       "(1,)}]}",
			       word, i ? "1234567890" : "x");
		put(MODEL, text, 0);
		saved_expect_begin(dir, "deepspeed",
				   i ? "g[2] 0 1\nm.deepspeed_moe.experts.deepspeed_experts."
				     : "g[2] 0 1\nobject optimizer.loss_scaler\n! ");
	}
	/* Two modules, with one expert and with two for each rank. */
	(void)snprintf(
		text, sizeof(text),
		"{'module': {'g': t0+0(2)}, 'ds_config': {'use_data_before_expert_parallelism': F},"
		" 'param_shapes': [{'g': (2,)}, {%s0': (1,), 'l.%s0.w': (1,), 'l.%s1.w': (1,)}]}",
		word, word + 1, word + 1);
	put(MODEL, text, 0);
	put_rank(OPTIM(0), "[t0+0(1), t1+0(3)]", "{}", "[2, 1]", 1000);
	put_rank(OPTIM(1), "[t0+0(1), t1+0(3)]", "{}", "[2, 1]", 2000);
	saved_expect_begin(dir, "deepspeed",
			   "g[2] 0 1\nl.m.deepspeed_moe.experts.deepspeed_experts.0.w[1] 1101\n"
			   "l.m.deepspeed_moe.experts.deepspeed_experts.1.w[1] 1102\n"
			   "l.m.deepspeed_moe.experts.deepspeed_experts.2.w[1] 2101\n"
			   "l.m.deepspeed_moe.experts.deepspeed_experts.3.w[1] 2102\n"
			   "m.deepspeed_moe.experts.deepspeed_experts.0[1] 1100\n"
			   "m.deepspeed_moe.experts.deepspeed_experts.1[1] 2100\n");
	put(MODEL, "{'module': {'g': t0+0(2)}, 'param_shapes': [{'g': (2,)}, {'x': (1,)}]}", 0);
	put_rank(OPTIM(0), "[t0+0(1), t1+0(1)]", "{}", "[3, 2]", 1000);
	put_rank(OPTIM(1), "[t0+0(1), t1+0(1)]", "{}", "[3, 2]", 2000);
	put_rank(OPTIM(2), "[t0+0(0), t1+0(1)]", "{}", "[3, 2]", 2000);
	expect("", "g[2] 0 1\nobject optimizer.loss_scaler\n! not everything is shown: group 1 "
		   "has 2 of the 3 ranks, which is not supported");
}
END_TEST

START_TEST(experts_without_zero_have_objects_of_their_own)
{
	static const char expp[] = "expp_rank_0_mp_rank_00_optim_states.pt";

	put(MODEL, "{'module': {'w': t0+0(1)}}", 0);
	put(expp, "{'optimizer': {'state': {0: {'m': t0+0(2)}}, 'x': 5}}", 0);
	saved_expect_begin(dir, "deepspeed",
			   "optimizer.expp_rank_0_mp_rank_00.state.0.m[2] 0 1\nw[1] 0\n");
	put(expp, "{'optimizer': 5}", 0);
	expect("", "w[1] 0\n");
	put(expp, "[]", 0);
	expect("", "w[1] 0\n");
	put_file(dir_fd, expp, "x", 1);
	expect_error("", expp);
	REQUIRE(!unlinkat(dir_fd, expp, 0));
	put("expert_0_mp_rank_00_model_states.pt", "{'e': t0+1(1), 'o': 5}", 0);
	expect("", "e[1] 1\nw[1] 0\nobject o\n");
	put_file(dir_fd, "expert_0_mp_rank_00_model_states.pt", "x", 1);
	expect_error("", "expert_0_mp_rank_00_model_states.pt");
}
END_TEST

START_TEST(each_slice_has_optimizer_states_without_zero)
{
	static const char model[] = "{'module': {'w': t0+0(1)}, 'optimizer': {'state': {0: {'m': "
				    "t0+1(1)}}, 'param_groups': [{'params': [0]}]}}";

	put(MODEL, model, 0);
	expect("", "optimizer.state.0.m[1] 1\nw[1] 0\nobject optimizer.param_groups\n");
	put("mp_rank_01_model_states.pt", model, 10);
	expect("", "mp_rank_00/w[1] 0\nmp_rank_01/w[1] 10\n"
		   "optimizer.mp_rank_00.state.0.m[1] 1\noptimizer.mp_rank_01.state.0.m[1] 11\n"
		   "object optimizer.mp_rank_00.param_groups\n"
		   "object optimizer.mp_rank_01.param_groups\n");
}
END_TEST

#define EXPERT_FILE(layer, number) "layer_" #layer "_expert_" #number "_mp_rank_00_model_states.pt"

START_TEST(every_layer_has_all_of_its_experts)
{
	/* Versions before 0.6.0 have a number for all layers. */
	put(MODEL, "{'module': {'w': t0+0(1)}, 'num_experts': 2}", 0);
	put(EXPERT_FILE(0, 0), "{'a': t0+1(1)}", 0);
	expect_error("", "the file of expert 1 of layer 0 is missing, though '" EXPERT_FILE(
				 0, 0) "' is there");
	put(EXPERT_FILE(0, 1), "{'b': t0+2(1)}", 0);
	expect("", "a[1] 1\nb[1] 2\nw[1] 0\n");
	put(EXPERT_FILE(0, 2), "{'c': t0+3(1)}", 0);
	expect_error("",
		     "'" EXPERT_FILE(0, 2) "' is of another save: the model states say that its "
					   "layer has 2 experts");
	/* Without any number there may be no gap. */
	put(MODEL, "{'module': {'w': t0+0(1)}}", 0);
	expect("", "a[1] 1\nb[1] 2\nc[1] 3\nw[1] 0\n");
	REQUIRE(!unlinkat(dir_fd, EXPERT_FILE(0, 1), 0));
	expect_error("", "the file of expert 1 of layer 0 is missing, though '" EXPERT_FILE(
				 0, 2) "' is there");
	/* Layers may be missing, too. */
	put(EXPERT_FILE(0, 1), "{'b': t0+2(1)}", 0);
	put(MODEL, "{'module': {'w': t0+0(1)}, 'num_experts': [3, 1]}", 0);
	expect_error("", "the file of expert 0 of layer 1 is missing, though '" EXPERT_FILE(
				 0, 0) "' is there");
	put(MODEL, "{'module': {'w': t0+0(1)}, 'num_experts': [3, 1, 1]}", 0);
	put(EXPERT_FILE(2, 0), "{'d': t0+4(1)}", 0);
	expect_error("", "the file of expert 0 of layer 1 is missing, though '" EXPERT_FILE(
				 2, 0) "' is there");
	put(EXPERT_FILE(1, 0), "{'e': t0+5(1)}", 0);
	expect("", "a[1] 1\nb[1] 2\nc[1] 3\nd[1] 4\ne[1] 5\nw[1] 0\n");
}
END_TEST

#define FOLDED_FILE(number, mp) "layer_0_expert_" #number "_mp_rank_0" #mp "_model_states.pt"

/* AutoEP and AutoTP folded: a tensor-parallel rank has some of the experts, and these are whole. */
START_TEST(folded_experts_are_those_of_all_ranks)
{
	static const char model[] = "{'module': {'w': t0+0(1)}, 'num_experts': [3]}";

	put(MODEL, model, 0);
	put("mp_rank_01_model_states.pt", model, 10);
	put(FOLDED_FILE(0, 0), "{'e.0': t0+1(1), 'folding': {'ep_rank': 0}}", 0);
	put(FOLDED_FILE(2, 0), "{'e.2': t0+3(1), 'folding': {'ep_rank': 0}}", 0);
	put(FOLDED_FILE(1, 1), "{'e.1': t0+2(1), 'folding': {'ep_rank': 1}}", 0);
	expect("", "e.0[1] 1\ne.1[1] 2\ne.2[1] 3\nmp_rank_00/w[1] 0\nmp_rank_01/w[1] 10\n");
	/* An expert may be saved by several ranks. */
	put(FOLDED_FILE(2, 1), "{'e.2': t0+3(1), 'folding': {'ep_rank': 1}}", 0);
	expect("", "e.0[1] 1\ne.1[1] 2\ne.2[1] 3\nmp_rank_00/w[1] 0\nmp_rank_01/w[1] 10\n");
	put(FOLDED_FILE(2, 1), "{'e.1': t0+3(1), 'folding': {'ep_rank': 1}}", 0);
	expect_error("", "'" FOLDED_FILE(1, 1) "' and '" FOLDED_FILE(2, 1) "' both hold 'e.1'");
	REQUIRE(!unlinkat(dir_fd, FOLDED_FILE(2, 1), 0));
	REQUIRE(!unlinkat(dir_fd, FOLDED_FILE(1, 1), 0));
	expect_error("", "the file of expert 1 of layer 0 is missing, though '" FOLDED_FILE(
				 2, 0) "' is there");
}
END_TEST

START_TEST(other_values_of_layers_are_shown)
{
	put(MODEL,
	    "{'module': N, 'checkpoint_parallel_dimensions': {'pp_degree': 2, 'tp_degree': 1},"
	    " 'param_shapes': [{'tied_modules.e.w': (2,), '1.w': (1,)}]}",
	    0);
	put("mp_rank_01_model_states.pt",
	    "{'module': N, 'param_shapes': [{'3.w': (1,), 'tied_modules.e.w': (2,)}]}", 0);
	put("layer_00-model_states.pt", "{'w': t0+0(2), 'o': 5}", 0);
	put("layer_01-model_states.pt", "{'w': t0+0(1), 'lin._extra_state': {'a': 5}}", 0);
	put("layer_02-model_states.pt", "{'w': t0+0(2), 'o': 5}", 0);
	put("layer_03-model_states.pt", "{'w': t0+0(1), 'o': 5, 'n': 6, 'x\\0y': 7}", 0);
	expect("", "1.w[1] 0\n3.w[1] 0\ntied_modules.e.w[2] 0 1\n"
		   "object 1.lin._extra_state\nobject 3.n\nobject 3.o\n"
		   "object tied_modules.e.o\n");
}
END_TEST

START_TEST(only_one_tied_module_may_fit_a_layer)
{
	put(MODEL,
	    "{'module': N, 'param_shapes': [{'tied_modules.a.w': (2,), 'tied_modules.a.b': (1,),"
	    " 'tied_modules.c.w': (2,1), 'tied_modules.d': (1,), 'x': (1,)}]}",
	    0);
	put("layer_00-model_states.pt", "{'w': t0+0(2), 'b': t0+2(1), 5: 6, 'n': 7}", 0);
	put("layer_01-model_states.pt", "{'w': t0+0(2)}", 0);
	put("layer_02-model_states.pt", "{'w': t0+0(2,1)}", 0);
	put("layer_03-model_states.pt", "{'w': t0+0(1,2)}", 0);
	expect("", "1.w[2] 0 1\n3.w[1,2] 0 1\ntied_modules.a.b[1] 2\ntied_modules.a.w[2] 0 1\n"
		   "tied_modules.c.w[2,1] 0 1\nobject tied_modules.a.n\n");
	put(MODEL,
	    "{'module': N, 'param_shapes': [{'tied_modules.c.w': (2,1), 'tied_modules.e.w': "
	    "(2,1)}]}",
	    0);
	expect("", "0.b[1] 2\n0.w[2] 0 1\n1.w[2] 0 1\n2.w[2,1] 0 1\n3.w[1,2] 0 1\nobject 0.n\n");
	put("layer_00-model_states.pt", "[]", 0);
	expect_error("", "'layer_00-model_states.pt' does not hold a state dict");
}
END_TEST

/* The second file would otherwise go unnoticed. */
START_TEST(a_layer_and_an_expert_have_one_file)
{
	put(MODEL, "{'module': {}}", 0);
	put("layer_00-model_states.pt", "{'w': t0+0(2)}", 0);
	put("layer_01-model_states.pt", "{'w': t0+0(2)}", 0);
	expect("", "0.w[2] 0 1\n1.w[2] 0 1\n");
	put("layer_00-model_00-model_states.pt", "{'w': t1+0(2)}", 0);
	expect_error("",
		     "'layer_00-model_00-model_states.pt' and 'layer_00-model_states.pt' are of "
		     "the same rank: one is from another checkpoint");
	REQUIRE(!unlinkat(dir_fd, "layer_00-model_00-model_states.pt", 0));
	put("layer_0_expert_0_mp_rank_00_model_states.pt", "{'x': t0+0(2)}", 0);
	expect("", "0.w[2] 0 1\n1.w[2] 0 1\nx[2] 0 1\n");
	put("layer_0_expert_00_mp_rank_00_model_states.pt", "{'x': t1+0(2)}", 0);
	expect_error("", "'layer_0_expert_00_mp_rank_00_model_states.pt' and "
			 "'layer_0_expert_0_mp_rank_00_model_states.pt' are of the same rank: one "
			 "is from another checkpoint");
}
END_TEST

/* If two files are of one expert, another expert is missing. */
START_TEST(an_expert_has_weights_of_its_own)
{
	put(MODEL, "{'module': {'w': t0+0(2)}}", 0);
	put("layer_0_expert_0_mp_rank_00_model_states.pt", "{'e.0.x': t0+0(2)}", 0);
	put("layer_0_expert_1_mp_rank_00_model_states.pt", "{'e.1.x': t0+2(2)}", 0);
	put("layer_1_expert_0_mp_rank_00_model_states.pt", "{'f.0.x': t0+4(2)}", 0);
	put("layer_1_expert_1_mp_rank_00_model_states.pt", "{'f.1.x': t0+6(2)}", 0);
	expect("", "e.0.x[2] 0 1\ne.1.x[2] 2 3\nf.0.x[2] 4 5\nf.1.x[2] 6 7\nw[2] 0 1\n");
	put("layer_1_expert_1_mp_rank_00_model_states.pt", "{'z': t0+0(2), 'e.1.x': t0+2(2)}", 0);
	expect_error("", "'layer_0_expert_1_mp_rank_00_model_states.pt' and "
			 "'layer_1_expert_1_mp_rank_00_model_states.pt' both hold 'e.1.x': one of "
			 "them has another expert's file in its place; restore it");
	put("layer_1_expert_1_mp_rank_00_model_states.pt", "{'f.0.x': t0+6(2)}", 0);
	expect_error("", "'layer_1_expert_0_mp_rank_00_model_states.pt' and "
			 "'layer_1_expert_1_mp_rank_00_model_states.pt' both hold 'f.0.x'");
}
END_TEST

/* If a tag is used again, files that the newer save does not write stay. */
START_TEST(files_of_an_older_save_are_not_part_of_it)
{
	static const char model[] = "{'module': {'w': t0+0(2)}, 'mp_world_size': %d, "
				    "'num_experts': [1, 2]}";
	char text[300];

	(void)snprintf(text, sizeof(text), model, 1);
	put(MODEL, text, 0);
	put("layer_0_expert_0_mp_rank_00_model_states.pt", "{'x': t0+0(2)}", 0);
	put("layer_1_expert_0_mp_rank_00_model_states.pt", "{}", 0);
	expect_error("", "the file of expert 1 of layer 1 is missing, though "
			 "'layer_1_expert_0_mp_rank_00_model_states.pt' is there");
	put("layer_1_expert_1_mp_rank_00_model_states.pt", "{'y': t0+0(2)}", 0);
	expect("", "w[2] 0 1\nx[2] 0 1\ny[2] 0 1\n");
	REQUIRE(!renameat(dir_fd, "layer_1_expert_0_mp_rank_00_model_states.pt", dir_fd, "x"));
	expect_error("", "the file of expert 0 of layer 1 is missing, though "
			 "'layer_1_expert_1_mp_rank_00_model_states.pt' is there");
	REQUIRE(!renameat(dir_fd, "x", dir_fd, "layer_1_expert_0_mp_rank_00_model_states.pt"));
	put("layer_0_expert_1_mp_rank_00_model_states.pt", "{'z': t0+0(2)}", 0);
	expect_error("", "'layer_0_expert_1_mp_rank_00_model_states.pt' is of another save: the "
			 "model states say that its layer has 1 expert");
	REQUIRE(!unlinkat(dir_fd, "layer_0_expert_1_mp_rank_00_model_states.pt", 0));
	put("mp_rank_01_model_states.pt", "{'module': {'w': t0+0(1)}, 'mp_world_size': 2}", 0);
	expect_error("", "there are model states of 2 model-parallel ranks, but "
			 "'mp_rank_00_model_states.pt' was saved with 1: files of an older, larger "
			 "save lie under the same tag");
	(void)snprintf(text, sizeof(text), model, 2);
	put(MODEL, text, 0);
	expect("", "mp_rank_00/w[2] 0 1\nmp_rank_00/x[2] 0 1\nmp_rank_00/y[2] 0 1\n"
		   "mp_rank_01/w[1] 0\n");
	REQUIRE(!unlinkat(dir_fd, "mp_rank_01_model_states.pt", 0));
	expect_error("", "there are model states of 1 model-parallel rank, but "
			 "'mp_rank_00_model_states.pt' was saved with 2: files are missing");
}
END_TEST

/* Model states of two ranks, which are stages or, with tp 2, slices. With 0 they do not say
 * which. */
static void put_stages(int pp, int tp)
{
	static const char dims[] =
		"'checkpoint_parallel_dimensions': {'pp_degree': %d, 'tp_degree': %d}, ";
	char path[40], some[100] = "", text[300];

	if (tp)
		(void)snprintf(some, sizeof(some), dims, pp, tp);
	for (int mp = 0; mp < 2; mp++) {
		(void)snprintf(path, sizeof(path), "mp_rank_%02d_model_states.pt", mp);
		(void)snprintf(
			text, sizeof(text),
			"{'module': N, 'mp_world_size': 2, %s'param_shapes': [{'%d.w': (1,)}]}",
			some, tp == 2 ? 0 : mp);
		put(path, text, 0);
	}
}

START_TEST(slices_of_an_older_save_are_not_part_of_it)
{
	for (int tp = 1; tp <= 2; tp++) {
		put_stages(3 - tp, tp);
		put("layer_00-model_00-model_states.pt", "{'w': t0+0(1)}", 0);
		put("layer_01-model_00-model_states.pt", "{'w': t0+0(1)}", 100);
		if (tp == 1)
			expect("", "0.w[1] 0\n1.w[1] 100\n");
		else
			expect_error("", "'layer_01-model_01-model_states.pt' is missing, though "
					 "'layer_01-model_00-model_states.pt' is there");
		put("layer_00-model_01-model_states.pt", "{'w': t0+0(1)}", 200);
		if (tp == 1)
			expect_error("", "'layer_00-model_01-model_states.pt' is of another save: "
					 "the model states are of 1 tensor-parallel rank");
	}
	REQUIRE(!unlinkat(dir_fd, "layer_01-model_00-model_states.pt", 0));
	expect("", "mp_rank_00/0.w[1] 0\nmp_rank_01/0.w[1] 200\n");
	put_stages(0, 0); /* from a layer's files, two stages look like one */
	expect_error("",
		     "the model states of mp_rank_00 and mp_rank_01 list different parameters, but "
		     "the layers' files are of 2 tensor-parallel ranks: files of an older save lie "
		     "under the same tag");
	put("mp_rank_00_model_states.pt",
	    "{'module': N, 'checkpoint_parallel_dimensions': {'pp_degree': 1, 'tp_degree': 2}}", 0);
	put("mp_rank_01_model_states.pt",
	    "{'module': N, 'checkpoint_parallel_dimensions': {'pp_degree': 2, 'tp_degree': 1}}", 0);
	expect_error("",
		     "'mp_rank_01_model_states.pt' is of another save: it has 1 tensor-parallel "
		     "rank, and the file of the first rank has 2");
	put_stages(1, 2);
	REQUIRE(!unlinkat(dir_fd, "layer_00-model_00-model_states.pt", 0));
	expect_error("", "'layer_00-model_00-model_states.pt' is missing, though "
			 "'layer_00-model_01-model_states.pt' is there");
}
END_TEST

/* A save that was interrupted leaves files of the one before under its tag. */
START_TEST(files_of_different_steps_are_not_of_one_save)
{
#define OTHER_STEP \
	"! not everything is shown: '" OPTIM(1) "' is of another step than '" OPTIM( \
		0) "': they are from two different saves"
	static const char *const steps[][2] = {
		{ "{'state': {0: {'step': 3}}}", "{'state': {0: {'step': 4}}}" },
		{ "{'state': {0: {'step': t1+3()}}}", "{'state': {0: {'step': t1+4()}}}" },
		{ "{'state': {0: {'step': 3.0}}}", "{'state': {0: {'step': t1+3()}}}" },
		{ "{'param_groups': [{'params': [0], 'step': 3}]}",
		  "{'param_groups': [{'params': [0], 'step': 4}]}" },
	};

	put(MODEL, "{'module': {'a': t0+0(2)}, 'param_shapes': [{'a': (2,)}]}", 0);
	for (size_t i = 0; i < ARRAY_LEN(steps); i++)
		for (int same = 0; same < 2; same++) {
			put_rank(OPTIM(0), "[t0+0(1)]", steps[i][0], "[2]", 0);
			put_rank(OPTIM(1), "[t0+0(1)]", steps[i][!same], "[2]", 0);
			saved_expect_begin(
				dir, "deepspeed",
				same	 ? "a[2] 0 1\noptimizer.state.a.fp32[2] 0 0\n"
				: i == 3 ? "a[2] 0 1\nobject optimizer.loss_scaler\n"
					   "object optimizer.param_groups\n" OTHER_STEP
					 : "a[2] 0 1\nobject optimizer.loss_scaler\n" OTHER_STEP);
		}
	/* The step may be in both places, and in another form. */
	put_rank(OPTIM(0), "[t0+0(1)]",
		 "{'state': {0: {'step': 3}}, 'param_groups': [{'params': [0], 'step': 4}]}", "[2]",
		 0);
	put_rank(OPTIM(1), "[t0+0(1)]",
		 "{'state': {0: {'step': 3}}, 'param_groups': [{'params': [0], 'step': 4}]}", "[2]",
		 0);
	saved_expect_begin(dir, "deepspeed", "a[2] 0 1\noptimizer.state.a.fp32[2] 0 0\n");

	put(MODEL, "{'module': {'a': t0+0(2)}, 'global_steps': 5}", 0);
	put("mp_rank_01_model_states.pt", "{'module': {'a': t0+0(2)}, 'global_steps': 5}", 10);
	saved_expect_begin(dir, "deepspeed", "mp_rank_00/a[2] 0 1\nmp_rank_01/a[2] 10 11\n");
	put("mp_rank_01_model_states.pt", "{'module': {'a': t0+0(2)}, 'global_steps': 4}", 10);
	expect_error("", "'mp_rank_00_model_states.pt' was saved after 5 steps and "
			 "'mp_rank_01_model_states.pt' after 4: they are from two different saves");
}
END_TEST

/* Without that rank's state, the moments of the others cannot be shown; and its masters are of
 * another save. */
START_TEST(a_file_from_before_the_first_step_is_of_another_save)
{
	static const struct {
		const char *state, *key;
	} v[] = {
		{ "{'state': {0: {'step': 3, 'm': t1+0(1)}}}", "m" },
		{ "{'state': {0: {'step': 3}}}", "step" },
		{ "{'state': {}, 'param_groups': [{'params': [0], 'step': 3}]}", "step" },
	};
	char want[500];

	put(MODEL, "{'module': {'a': t0+0(2)}, 'param_shapes': [{'a': (2,)}]}", 0);
	for (size_t i = 0; i < ARRAY_LEN(v); i++)
		for (int old = 0; old < 2; old++) {
			put_rank(OPTIM(0), "[t0+0(1)]", old ? v[i].state : "{}", "[2]", 0);
			put_rank(OPTIM(1), "[t0+0(1)]", old ? "{}" : v[i].state, "[2]", 100);
			(void)snprintf(
				want, sizeof(want),
				"a[2] 0 1\nobject optimizer.loss_scaler\n%s! not everything "
				"is shown: '%s' has '%s' of group 0, and '%s' has none: they "
				"are from two different saves",
				old && i == 2 ? "object optimizer.param_groups\n" : "",
				old ? OPTIM(0) : OPTIM(1), v[i].key, old ? OPTIM(1) : OPTIM(0));
			expect("", want);
		}
}
END_TEST

/* If a file is overwritten with a copy of another rank's, its values are gone, and nothing else
 * tells. */
START_TEST(a_rank_has_values_of_its_own)
{
	static const char model[] = "{'module': {'a': h0+0(2)}, 'param_shapes': [{'a': (20,)}]}";
	static const char frozen[] = "{'module': {}, 'param_shapes': [{'a': (20,)}], "
				     "'frozen_param_shapes': {'f': (20,)},"
				     " 'frozen_param_fragments': {'f': t0+0(10)}}";

	put(MODEL, model, 0);
	put_rank(OPTIM(0), "[t0+0(10)]", "{}", "[2]", 0);
	put_rank(OPTIM(1), "[t0+0(10)]", "{}", "[2]", 1);
	saved_expect_begin(dir, "deepspeed",
			   "a[2] float16\noptimizer.state.a.fp32[20] 0 1 2 3 4 5 6 7 8 9 1 2 3");
	put_rank(OPTIM(1), "[t0+0(10)]", "{}", "[2]", 0);
	expect("", LOSS "'" OPTIM(0) "' and '" OPTIM(
			   1) "' hold the same values: one of them has another rank's file in its "
			      "place; restore it");
	/* Here not all groups are equal; and ranks may have the same zeros or ones. */
	put(MODEL, "{'module': {'a': h0+0(2)}, 'param_shapes': [{'a': (20,)}, {'b': (2,)}]}", 0);
	put_rank(OPTIM(0), "[t0+0(10), t1+0(1)]", "{}", "[2, 2]", 0);
	put_rank(OPTIM(1), "[t0+0(10), t1+1(1)]", "{}", "[2, 2]", 0);
	saved_expect_begin(dir, "deepspeed", "a[2] float16\nb[2] 100 101\noptimizer.");
	put(MODEL, model, 0);
	put_rank(OPTIM(0), "[I[1,1,1,1,1,1,1,1,1,1](10)]", "{}", "[2]", 0);
	put_rank(OPTIM(1), "[I[1,1,1,1,1,1,1,1,1,1](10)]", "{}", "[2]", 0);
	saved_expect_begin(dir, "deepspeed", "a[2] float16\noptimizer.state.a.fp32[20] int64");
	REQUIRE(!unlinkat(dir_fd, MODEL, 0));
	put_shard(OPTIM(0), "[t0+0(10)]", "{}", "2", 0);
	put_shard(OPTIM(1), "[t0+0(10)]", "{}", "2", 1);
	put(SHARD(0), frozen, 0);
	put(SHARD(1), frozen, 1);
	saved_expect_begin(dir, "deepspeed",
			   "a[20] 0 1 2 3 4 5 6 7 8 9 1 2 3 4 5 6 7 8 9 10\n"
			   "f[20] 0 1 2 3 4 5 6 7 8 9 1 2 3 4 5 6 7 8 9 10\n");
	put(SHARD(1), frozen, 0);
	expect("", "a[20] 0 1 2 3 4 5 6 7 8 9 1 2 3 4 5 6 7 8 9 10\n"
		   "optimizer.state.a.fp32[20] 0 1 2 3 4 5 6 7 8 9 1 2 3 4 5 6 7 8 9 10\n"
		   "! not everything is shown: '" SHARD(0) "' and '" SHARD(
			   1) "' hold the same parts of frozen parameters: one of them has another "
			      "rank's file in its place; restore it");
	put_shard(OPTIM(1), "[t0+0(10)]", "{}", "2", 0);
	put(SHARD(1), frozen, 1);
	expect("", "f[20] 0 1 2 3 4 5 6 7 8 9 1 2 3 4 5 6 7 8 9 10\n"
		   "! not everything is shown: '" OPTIM(0) "' and '" OPTIM(
			   1) "' hold the same values: one of them has another rank's file in its "
			      "place; restore it");
}
END_TEST

/* Elastic states have their step beside them if the optimizer has it among its groups' options. */
START_TEST(a_step_beside_elastic_states_is_that_of_all_groups)
{
	static const char state[] = "[{'m': t1+0(1)}, {}], 'base_optimizer_state_step': %d";
	char text[100];

	put(MODEL,
	    "{'module': {'a': h0+0(2), 'b': h0+0(2)}, 'param_shapes': [{'a': (2,)}, {'b': (2,)}]}",
	    0);
	(void)snprintf(text, sizeof(text), state, 4);
	put_rank(OPTIM(0), "[t0+0(1), t0+1(1)]", text, "[2, 2]", 1000);
	put_rank(OPTIM(1), "[t0+0(1), t0+1(1)]", text, "[2, 2]", 2000);
	expect("", "a[2] float16\nb[2] float16\noptimizer.state.a.fp32[2] 1000 2000\n"
		   "optimizer.state.a.m[2] 1100 2100\noptimizer.state.b.fp32[2] 1001 2001\n"
		   "object optimizer.loss_scaler\nobject optimizer.state.a.step\n"
		   "object optimizer.state.b.step\n");
	(void)snprintf(text, sizeof(text), state, 5);
	put_rank(OPTIM(1), "[t0+0(1), t0+1(1)]", text, "[2, 2]", 2000);
	expect("", "a[2] float16\nb[2] float16\nobject optimizer.loss_scaler\n"
		   "! not everything is shown: '" OPTIM(1) "' is of another step than '" OPTIM(
			   0) "': they are from two different saves");
}
END_TEST

START_TEST(slices_of_different_steps_are_not_of_one_save)
{
	static const char model[] = "{'module': {'a': t0+0(1)}, 'param_shapes': [{'a': (1,)}]}";
	static const char other[] = "zero_pp_rank_0_mp_rank_01_optim_states.pt";

	put(MODEL, model, 0);
	put("mp_rank_01_model_states.pt", model, 10);
	put_rank(OPTIM(0), "[t0+0(1)]", "{'state': {0: {'step': t1+3()}}}", "[1]", 0);
	put_rank(other, "[t0+0(1)]", "{'state': {0: {'step': t1+3()}}}", "[1]", 0);
	saved_expect_begin(dir, "deepspeed",
			   "mp_rank_00/a[1] 0\nmp_rank_01/a[1] 10\noptimizer.state.a.step[] 103\n"
			   "optimizer.state.mp_rank_00/a.fp32[1] 0\n"
			   "optimizer.state.mp_rank_01/a.fp32[1] 0\n");
	put_rank(other, "[t0+0(1)]", "{'state': {0: {'step': t1+8()}}}", "[1]", 0);
	expect("", "mp_rank_00/a[1] 0\nmp_rank_01/a[1] 10\noptimizer.state.a.step[] 103\n"
		   "optimizer.state.mp_rank_00/a.fp32[1] 0\nobject optimizer.loss_scaler\n"
		   "! not everything is shown: 'zero_pp_rank_0_mp_rank_01_optim_states.pt' is of "
		   "another step than '" OPTIM(0) "': they are from two different saves");
	/* If the groups differ, there is nothing to compare. */
	put("mp_rank_01_model_states.pt",
	    "{'module': {'a': t0+0(1)}, 'param_shapes': [{'a': (1,)}, {}]}", 10);
	put_rank(other, "[t0+0(1), t0+0(0)]", "{'state': {0: {'step': t1+8()}}}", "[1, 1]", 0);
	saved_expect_begin(dir, "deepspeed",
			   "mp_rank_00/a[1] 0\nmp_rank_01/a[1] 10\noptimizer.state.a.step[] 103\n"
			   "optimizer.state.mp_rank_00/a.fp32[1] 0\n"
			   "optimizer.state.mp_rank_01/a.fp32[1] 0\n");
}
END_TEST

START_TEST(missing_files_are_told)
{
	put(MODEL,
	    "{'module': N, 'buffer_names': ['2.b'], 'param_shapes': [{'0.w': (2,), "
	    "'tied_modules.e.w': (1,), '1x.w': (1,)}]}",
	    0);
	put("layer_01-model_states.pt", "{'w': t0+0(2)}", 0);
	expect_error("", "the file of layer 2 is missing: the model states list '2.b'");
	put("layer_02-model_states.pt", "{'b': t0+0(2)}", 0);
	expect_error("", "the file of layer 0 is missing: the model states list '0.w'");
	put("layer_00-model_states.pt", "{'w': t0+0(2)}", 0);
	expect("", "0.w[2] 0 1\n1.w[2] 0 1\n2.b[2] 0 1\n! not everything is shown: no file of a "
		   "layer holds 'tied_modules.e.w': it is missing");
	put("layer_05-model_states.pt", "{'w': t0+5(1)}", 0);
	expect("", "0.w[2] 0 1\n1.w[2] 0 1\n2.b[2] 0 1\ntied_modules.e.w[1] 5\n");
	for (int i = 0; i < 6; i += i ? i == 2 ? 3 : 1 : 1) {
		char path[40];

		(void)snprintf(path, sizeof(path), "layer_%02d-model_states.pt", i);
		REQUIRE(!unlinkat(dir_fd, path, 0));
	}
	expect_error("", "the files of layers are missing: the model states have no weights");

	directory("one");
	directory("one/zero");
	directory("one/zero/a");
	directory("one/zero/b");
	put("one/" MODEL,
	    "{'module': {}, 'frozen_param_shapes': {'f': (2,)}, 'param_shapes': "
	    "[{'a': (2,), 'b': (2,)}]}",
	    0);
	put("one/zero/a/fp32.pt", "t0+0(2)", 0);
	put("one/zero/b/exp_avg.pt", "t0+2(2)", 0);
	expect("one",
	       "a[2] 0 1\noptimizer.state.a.fp32[2] 0 1\noptimizer.state.b.exp_avg[2] 2 3\n! not "
	       "everything is there: 'zero/b/fp32.pt' is missing, and perhaps others");
	put("one/zero/b/fp32.pt", "t0+4(2)", 0);
#define B_STATES "optimizer.state.b.exp_avg[2] 2 3\noptimizer.state.b.fp32[2] 4 5\n"
	expect("one", "a[2] 0 1\nb[2] 4 5\noptimizer.state.a.fp32[2] 0 1\n" B_STATES
		      "! not everything is there: 'zero/a/exp_avg.pt' is missing, and perhaps "
		      "others: 'zero/b/exp_avg.pt' is there");
	put("one/zero/a/exp_avg.pt", "t0+6(2)", 0);
	put("one/zero/a/step.pt", "5", 0);
	expect("one", "a[2] 0 1\nb[2] 4 5\noptimizer.state.a.exp_avg[2] 6 7\n"
		      "optimizer.state.a.fp32[2] 0 1\n" B_STATES "object optimizer.state.a.step\n"
		      "! not everything is there: 'zero/b/step.pt' is missing, and perhaps "
		      "others: 'zero/a/step.pt' is there");
	REQUIRE(!unlinkat(dir_fd, "one/zero/a/step.pt", 0));
	expect("one", "a[2] 0 1\nb[2] 4 5\noptimizer.state.a.exp_avg[2] 6 7\n"
		      "optimizer.state.a.fp32[2] 0 1\n" B_STATES);
	/* With experts, a name may be that of any rank. */
	REQUIRE(!unlinkat(dir_fd, "one/zero/b/fp32.pt", 0));
	put("one/expert_0_mp_rank_00_model_states.pt", "{}", 0);
	expect("one", "a[2] 0 1\noptimizer.state.a.exp_avg[2] 6 7\noptimizer.state.a.fp32[2] 0 1\n"
		      "optimizer.state.b.exp_avg[2] 2 3\n");
}
END_TEST

/* Files of optimizer states may all have been deleted to save space, but not those of one rank. */
START_TEST(a_rank_without_optimizer_states_is_told)
{
	static const char slice[] = "{'module': {'a': h0+0(2)}, 'param_shapes': [{'a': (2,)}], %s}";
	static const char info[] = "'universal_checkpoint_info':"
				   " {'tp_replicated_parameter_patterns': ['x']}";
	static const char other[] = "mp_rank_01_model_states.pt";
	char text[300];

	(void)snprintf(text, sizeof(text), slice, info);
	put(MODEL, text, 0);
	put(other, text, 0);
	expect("", "a[4] float16\n");
	put_rank("bf16_" OPTIM(0), "[t0+0(2)]", "{}", "[1]", 10);
	expect("",
	       "a[4] float16\nobject optimizer.loss_scaler\n! not everything is there: "
	       "'bf16_zero_pp_rank_0_mp_rank_01_optim_states.pt' is missing, though 'bf16_" OPTIM(
		       0) "' is there");
	put_rank("bf16_zero_pp_rank_0_mp_rank_01_optim_states.pt", "[t0+0(2)]", "{}", "[1]", 20);
	expect("", "a[4] float16\noptimizer.state.a.fp32[4] 10 11 20 21\n"
		   "object optimizer.loss_scaler\n");
	/* Where nothing says how to join them, slices are shown as slices. */
	REQUIRE(!unlinkat(dir_fd, "bf16_zero_pp_rank_0_mp_rank_01_optim_states.pt", 0));
	(void)snprintf(text, sizeof(text), slice, "");
	put(MODEL, text, 0);
	expect("", "mp_rank_00/a[2] float16\nmp_rank_01/a[2] float16\n"
		   "optimizer.state.mp_rank_00/a.fp32[2] 10 11\nobject optimizer.loss_scaler\n"
		   "! not everything is there: 'bf16_zero_pp_rank_0_mp_rank_01_optim_states.pt' is "
		   "missing, though 'bf16_" OPTIM(0) "' is there");
	/* A stage of which nothing is trained has none; but slices are trained together. */
	put(other, "{'module': {'a': h0+0(2)}}", 0);
	saved_expect_begin(dir, "deepspeed",
			   "mp_rank_00/a[2] float16\nmp_rank_01/a[2] float16\n"
			   "optimizer.state.mp_rank_00/a.fp32[2] 10 11\n"
			   "object optimizer.loss_scaler\n! not everything is there: 'bf16_");
	(void)snprintf(text, sizeof(text), slice,
		       "'checkpoint_parallel_dimensions': {'pp_degree': 2, 'tp_degree': 1}");
	put(MODEL, text, 0);
	put(other, "{'module': {'b': h0+0(2)}}", 0);
	expect("", "a[2] float16\nb[2] float16\noptimizer.state.a.fp32[2] 10 11\n"
		   "object optimizer.loss_scaler\n");
	put(other, "{'module': {'b': h0+0(2)}, 'param_shapes': [{}]}", 0);
	expect("", "a[2] float16\nb[2] float16\noptimizer.state.a.fp32[2] 10 11\n"
		   "object optimizer.loss_scaler\n");
	put(other, "{'module': {'b': h0+0(2)}, 'param_shapes': [{'b': (2,)}]}", 0);
	expect("",
	       "a[2] float16\nb[2] float16\noptimizer.state.a.fp32[2] 10 11\n"
	       "object optimizer.loss_scaler\n! not everything is there: "
	       "'bf16_zero_pp_rank_0_mp_rank_01_optim_states.pt' is missing, though 'bf16_" OPTIM(
		       0) "' is there");
}
END_TEST

START_TEST(a_rank_of_zero_3_has_model_states_too)
{
	static const char model[] = "{'module': {'a': t0+0(0), 'n': t1+0(1)},"
				    " 'buffer_names': ['n'], 'param_shapes': [{'a': (2,)}]}";

	put(SHARD(0), model, 0);
	put_shard(OPTIM(0), "[t0+0(1)]", "{'state': {}}", "2", 1000);
	put_shard(OPTIM(1), "[t0+0(1)]", "{'state': {}}", "2", 2000);
	expect("", "a[2] 1000 2000\nn[1] 100\noptimizer.state.a.fp32[2] 1000 2000\n"
		   "! not everything is there: '" SHARD(1) "' is missing, though '" OPTIM(
			   1) "' is there");
	put(SHARD(1), model, 0);
	expect("", "a[2] 1000 2000\nn[1] 100\noptimizer.state.a.fp32[2] 1000 2000\n");
}
END_TEST

#define EXPP(rank, mp) "expp_rank_" #rank "_mp_rank_0" #mp "_optim_states.pt"

START_TEST(experts_states_of_all_ranks_are_there)
{
	static const char state[] = "{'optimizer': {'state': {0: {'m': t0+0(1)}}, 'param_groups': "
				    "[{'name': 'all'}, {'name': 'ep_size_%d'}, {'name': 5}]}}";
	static const char model[] = "{'module': {'w': t0+0(1)}}";
	char text[300];

	put(MODEL, model, 0);
	(void)snprintf(text, sizeof(text), state, 2);
	put(EXPP(0, 0), text, 0);
#define STATE(rank, mp, v) "optimizer.expp_rank_" #rank "_mp_rank_0" #mp ".state.0.m[1] " #v "\n"
#define GROUPS(rank, mp)   "object optimizer.expp_rank_" #rank "_mp_rank_0" #mp ".param_groups\n"
	expect("", STATE(0, 0, 0) "w[1] 0\n" GROUPS(0, 0) "! not everything is there: '" EXPP(
			   1, 0) "' is missing, though '" EXPP(0, 0) "' is there");
	put(EXPP(1, 0), text, 10);
	expect("", STATE(0, 0, 0) STATE(1, 0, 10) "w[1] 0\n" GROUPS(0, 0) GROUPS(1, 0));
	/* The number of ranks may be unknown. */
	(void)snprintf(text, sizeof(text), state, 1);
	put(EXPP(0, 0), text, 0);
	put(EXPP(2, 0), text, 0);
	REQUIRE(!unlinkat(dir_fd, EXPP(1, 0), 0));
	expect("", STATE(0, 0, 0) STATE(2, 0, 0) "w[1] 0\n" GROUPS(0, 0)
			   GROUPS(2, 0) "! not everything is there: '" EXPP(
				   1, 0) "' is missing, though '" EXPP(2, 0) "' is there");
	/* With ZeRO they hold nothing. */
	put(EXPP(0, 0), "{'optimizer': N}", 0);
	put(EXPP(2, 0), "{'optimizer': N}", 0);
	expect("", "w[1] 0\n");
	/* Each slice has the states of all of its experts; if AutoEP and AutoTP are folded, of some. */
	(void)snprintf(text, sizeof(text), state, 2);
	put("mp_rank_01_model_states.pt", model, 0);
	put(EXPP(0, 0), text, 0);
	put(EXPP(1, 1), text, 10);
	REQUIRE(!unlinkat(dir_fd, EXPP(2, 0), 0));
	expect("", "mp_rank_00/w[1] 0\nmp_rank_01/w[1] 0\n" STATE(0, 0, 0) STATE(1, 1, 10)
			   GROUPS(0, 0) GROUPS(1, 1) "! not everything is there: '" EXPP(
				   1, 0) "' is missing, though '" EXPP(0, 0) "' is there");
	put(FOLDED_FILE(0, 0), "{'e.0': t0+1(1), 'folding': {'ep_rank': 0}}", 0);
	put(FOLDED_FILE(1, 1), "{'e.1': t0+2(1), 'folding': {'ep_rank': 1}}", 0);
	expect("", "e.0[1] 1\ne.1[1] 2\nmp_rank_00/w[1] 0\nmp_rank_01/w[1] 0\n" STATE(0, 0, 0)
			   STATE(1, 1, 10) GROUPS(0, 0) GROUPS(1, 1));
}
END_TEST

START_TEST(experts_that_the_model_states_list_have_files)
{
	put(MODEL, "{'module': {'w': t0+0(1)}, 'num_experts': [2]}", 0);
	expect_error("", "the file of expert 0 of layer 0 is missing, though '" MODEL "' is there");
	put(MODEL, "{'module': {'w': t0+0(1)}, 'num_experts': []}", 0);
	expect("", "w[1] 0\n");
	/* Experts that ZeRO 3 partitions have none. */
	put(SHARD(0),
	    "{'module': {}, 'buffer_names': [], 'num_experts': [2], 'param_shapes': [{'a': (1,)}]}",
	    0);
	REQUIRE(!unlinkat(dir_fd, MODEL, 0));
	put_shard(OPTIM(0), "[t0+0(1)]", "{'state': {}}", "1", 1000);
	expect("", "a[1] 1000\noptimizer.state.a.fp32[1] 1000\n");
}
END_TEST

/*
 * Without ZeRO the model states list no names. But each weight that has been trained must be in a
 * layer's file; one that two stages share has equal states in both.
 */
START_TEST(weights_that_were_trained_without_zero_are_in_a_layers_file)
{
	static const char first[] =
		"{'module': N, 'checkpoint_parallel_dimensions': {'pp_degree': 2, 'tp_degree': 1},"
		" 'buffer_names': ['1.b'], 'optimizer': %s}";
	static const char second[] = "{'module': N, 'optimizer': %s}";
	static const char adam[] = "{'state': {0: {'exp_avg': t0+0(3), 'step': t1+0()}, 1: "
				   "{'exp_avg': t0+%d(2), 'step': t1+0()}}, 'param_groups': []}";
	static const char some[] = "! not everything is shown: there are optimizer states of 2 "
				   "weights of shape (2,), and the files of layers hold 1: the "
				   "file of a layer is missing";
	char state[400], text[700];

	for (int tied = 0; tied < 2; tied++) {
		(void)snprintf(state, sizeof(state), adam, 5);
		(void)snprintf(text, sizeof(text), first, state);
		put(MODEL, text, 0);
		(void)snprintf(state, sizeof(state), adam, tied ? 5 : 6);
		(void)snprintf(text, sizeof(text), second, state);
		put("mp_rank_01_model_states.pt", text, 0);
		put("layer_00-model_states.pt", "{'w': t0+0(3)}", 0);
		put("layer_01-model_states.pt", "{'v': t0+0(2), 'b': t0+2(2)}", 0);
		expect_warning(tied ? "" : some);
		put("layer_02-model_states.pt", "{'v': t0+0(2)}", 0);
		expect_warning("");
		REQUIRE(!unlinkat(dir_fd, "layer_02-model_states.pt", 0));
	}
	REQUIRE(!unlinkat(dir_fd, "layer_00-model_states.pt", 0));
	expect_warning("! not everything is shown: there are optimizer states of 1 weight of shape "
		       "(3,), and the files of layers hold 0: the file of a layer is missing");
	/* Other optimizers may have states of other shapes. */
	(void)snprintf(text, sizeof(text), first,
		       "{'state': {0: {'exp_avg': t0+0(7), 'projector': 5}, 1: 5, 2: {}}}");
	put(MODEL, text, 0);
	(void)snprintf(text, sizeof(text), second, "5");
	put("mp_rank_01_model_states.pt", text, 0);
	expect_warning("");
	/* In 16 bits there are masters. */
	(void)snprintf(text, sizeof(text), second, "{'fp32_groups': [[t0+0(2), t0+4(2)], 5, [6]]}");
	put("mp_rank_01_model_states.pt", text, 0);
	expect_warning(some);
}
END_TEST

/* A tensor that is whole gets no rank in its name, even if others of that name are slices. */
START_TEST(a_whole_tensor_beside_slices_has_its_name)
{
	put(MODEL, "{'module': {}, 'param_shapes': [{'w': (1,)}]}", 0);
	put("mp_rank_01_model_states.pt", "{'module': {}, 'param_shapes': [{'w': (1,)}]}", 0);
	put_rank(OPTIM(0), "[t0+0(1)]", "{}", "[1]", 1000);
	directory("zero");
	directory("zero/w");
	put("zero/w/fp32.pt", "{'param': t0+0(2)}", 0);
	saved_expect_begin(dir, "deepspeed",
			   "mp_rank_00/w[1] 1000\noptimizer.state.mp_rank_00/w.fp32[1] 1000\n"
			   "optimizer.state.w.fp32[2] 0 1\nw[2] 0 1\n");
}
END_TEST

/* If the degrees are not known, the files of the first layer are counted. */
START_TEST(layers_say_how_many_slices_there_are)
{
	static const struct odd v[] = {
		{ "N", "0.w[2] 0 1\nmp_rank_00/" },
		{ "{'tp_degree': 2, 'pp_degree': 1}", "" },
		{ "{'tp_degree': 0, 'pp_degree': 1}", "" },
		{ "{'tp_degree': 2, 'pp_degree': -1}", "" },
		{ "{'tp_degree': 3, 'pp_degree': 1}", "" },
		{ "{'tp_degree': 1, 'pp_degree': 3}", "" },
		{ "{'tp_degree': 1, 'pp_degree': 1}", "" },
		{ "{'tp_degree': 'x', 'pp_degree': 1}", "" },
		{ "{'tp_degree': 2}", "" },
	};
	char text[300];

	for (size_t i = 0; i < ARRAY_LEN(v); i++) {
		(void)snprintf(text, sizeof(text),
			       "{'module': N, 'checkpoint_parallel_dimensions': %s, "
			       "'param_shapes': [{'0.w': (1,)}],"
			       " 'universal_checkpoint_info': {}}",
			       v[i].text);
		put(MODEL, text, 0);
		put("mp_rank_01_model_states.pt", "{'module': N}", 0);
		put("layer_00-model_00-model_states.pt", "{'w': t0+0(1)}", 0);
		put("layer_00-model_01-model_states.pt", "{'w': t0+0(1)}", 100);
		expect("", "0.w[2] 0 100\n");
	}
	put("mp_rank_02_model_states.pt", "{'module': N}", 0);
	expect_error("", "'layer_00-model_00-model_states.pt' and others are of 2 tensor-parallel "
			 "ranks, but there are model states of 3 ranks");
	put("layer_00-model_02-model_states.pt", "{'w': t0+0(1)}", 0);
	put("layer_00-model_03-model_states.pt", "{'w': t0+0(1)}", 0);
	expect_error("", "are of 4 tensor-parallel ranks, but there are model states of 3 ranks");
}
END_TEST

#define INFO_PARTS(shape_and_dim) \
	"'parameter_with_sub_params': [{'patterns': ['w'], " shape_and_dim "}]"
#define SLICES "mp_rank_00/w[4,1] 0 1 2 3\nmp_rank_01/w[4,1] 100 101 102 103\n"

/* A kind that is shown as the tensors it is made of. */
START_TEST(what_is_no_tensor_of_ours_is_shown_once)
{
	static const char model[] =
		"{'module': {'w': t0+0(1), 's': " SPARSE "}, 'universal_checkpoint_info': {}}";

	put(MODEL, model, 0);
	put("mp_rank_01_model_states.pt", model, 100);
	expect("", "s.indices[1,2] int64\ns.values[2] 0 1\nw[2] 0 100\nobject s\n");
}
END_TEST

/* ds_to_universal.py joins masters, and copies the model states with their slices. */
START_TEST(slices_with_a_whole_master_are_not_listed)
{
	static const char model[] = "{'module': {'a': h0+0(1), 'b': t0+0(1), 'f': t0+1(1)},"
				    " 'param_shapes': [{'a': (1,), 'b': (1,)}],"
				    " 'shared_params': {'tied': 'a'}, 'universal_checkpoint_info':"
				    " {'parameter_to_average_patterns': ['a', 'f']}}";

	put(MODEL, model, 0);
	put("mp_rank_01_model_states.pt", model, 100);
	directory("zero");
	directory("zero/a");
	directory("zero/b");
	put("zero/a/fp32.pt", "{'param': t0+0(1)}", 10);
	put("zero/b/fp32.pt", "{'param': t0+0(2)}", 20);
	expect("", "a[1] 10\nb[2] 0 100\nmp_rank_00/f[1] 1\nmp_rank_01/f[1] 101\n"
		   "optimizer.state.a.fp32[1] 10\noptimizer.state.b.fp32[2] 20 21\n"
		   "optimizer.state.tied.fp32[1] 10\ntied[1] 10\n");
}
END_TEST

START_TEST(odd_rules_leave_slices_as_they_are)
{
	static const char rows[] = "w[8,1] 0 1 2 3 100 101 102 103\n";
	static const struct odd v[] = {
		{ "", rows },
		{ INFO_PARTS("'shape': (2,1), 'partition_dim': 0"),
		  "w[8,1] 0 1 100 101 2 3 102 103\n" },
		{ INFO_PARTS("'shape': [2,1], 'partition_dim': 0"),
		  "w[8,1] 0 1 100 101 2 3 102 103\n" },
		{ INFO_PARTS("'shape': ((2,6),1), 'partition_dim': 0"),
		  "w[8,1] 0 100 1 2 3 101 102 103\n" },
		{ INFO_PARTS("'shape': 5, 'partition_dim': 0"), SLICES },
		{ INFO_PARTS("'partition_dim': 0"), SLICES },
		{ INFO_PARTS("'shape': (2,1)"), SLICES },
		{ INFO_PARTS("'shape': (2,1), 'partition_dim': 'x'"), SLICES },
		{ INFO_PARTS("'shape': (2,1), 'partition_dim': -1"), SLICES },
		{ INFO_PARTS("'shape': (2,1), 'partition_dim': 2"), SLICES },
		{ INFO_PARTS("'shape': "
			     "(1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,"
			     "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1),"
			     " 'partition_dim': 66"),
		  SLICES },
		{ INFO_PARTS("'shape': (1,1,1), 'partition_dim': 2"), SLICES },
		{ INFO_PARTS("'shape': (0,1), 'partition_dim': 0"), SLICES },
		{ INFO_PARTS("'shape': (65,1), 'partition_dim': 0"), SLICES },
		{ INFO_PARTS("'shape': ('x',1), 'partition_dim': 0"), SLICES },
		{ INFO_PARTS("'shape': ((),1), 'partition_dim': 0"), SLICES },
		{ INFO_PARTS("'shape': ((4,4),1), 'partition_dim': 0, 'sub_param_shard_widths': 5"),
		  SLICES },
		{ INFO_PARTS("'shape': (3,1), 'partition_dim': 0"), SLICES },
		{ INFO_PARTS("'shape': ((3,5),1), 'partition_dim': 0"), SLICES },
		{ INFO_PARTS("'shape': ((4,8),1), 'partition_dim': 0"), SLICES },
		{ INFO_PARTS("'shape': ((4,2),1), 'partition_dim': 0"), SLICES },
		{ "'parameter_with_sub_params': [5]", rows },
		{ "'parameter_with_sub_params': [{'patterns': [5]}]", SLICES
		  "! not everything is shown: slices of tensor parallelism are listed as they are: "
		  "pattern '?' of universal_checkpoint_info is not understood" },
		{ "'sub_param_shard_widths': 5", rows },
		/* The widths of parts in each slice, from version 0.4 on. */
		{ INFO_PARTS(
			  "'shape': ((4,4),1), 'partition_dim': 0") ", 'sub_param_shard_widths': "
								    "{'w': [[1,3],[3,1]]}",
		  "w[8,1] 0 100 101 102 1 2 3 103\n" },
		{ INFO_PARTS(
			  "'shape': [(4,4),1], 'partition_dim': 0") ", 'sub_param_shard_widths': "
								    "{'x': 5, 'w': [[0,4],[4,0]]}",
		  "w[8,1] 100 101 102 103 0 1 2 3\n" },
		{ INFO_PARTS(
			  "'shape': ((4,4),1), 'partition_dim': 0") ", 'sub_param_shard_widths': "
								    "{'w': [[1,3],[2,2]]}",
		  SLICES },
		{ INFO_PARTS(
			  "'shape': ((4,4),1), 'partition_dim': 0") ", 'sub_param_shard_widths': "
								    "{'w': [[1,3],[4,1]]}",
		  SLICES },
		{ INFO_PARTS(
			  "'shape': ((4,4),1), 'partition_dim': 0") ", 'sub_param_shard_widths': "
								    "{'w': [[5,-1],[3,1]]}",
		  SLICES },
		{ INFO_PARTS(
			  "'shape': ((4,4),1), 'partition_dim': 0") ", 'sub_param_shard_widths': "
								    "{'w': [[2,2,0],[2,2]]}",
		  SLICES },
		{ INFO_PARTS(
			  "'shape': ((4,4),1), 'partition_dim': 0") ", 'sub_param_shard_widths': "
								    "{'w': [[4,4]]}",
		  SLICES },
		{ INFO_PARTS(
			  "'shape': ((4,4),1), 'partition_dim': 0") ", 'sub_param_shard_widths': "
								    "{'x': [[1,3],[3,1]]}",
		  SLICES },
		{ INFO_PARTS("'shape': ((4,4),1), 'partition_dim': 0") ", "
								       "'universal_checkpoint_"
								       "version': 0.4",
		  SLICES },
		{ INFO_PARTS("'shape': ((4,4),1), 'partition_dim': 0") ", "
								       "'universal_checkpoint_"
								       "version': 0.3",
		  "w[8,1] 0 1 100 101 2 3 102 103\n" },
		{ INFO_PARTS(
			  "'shape': (2,1), 'partition_dim': 0") ", 'universal_checkpoint_version': "
								"1",
		  SLICES },
		{ INFO_PARTS("'shape': (1,2,1), 'partition_dim': 1"), SLICES },
		/* AutoTP cannot say how to join it, and AutoEP has other experts in each slice. */
		{ "'autotp_unsupported_parameter_patterns': {'^w$': 'it is interleaved'},"
		  " 'tp_replicated_parameter_patterns': ['w']",
		  SLICES "! not everything is shown: slices of 'w' are listed as they are: it is "
			 "interleaved" },
		{ "'autotp_unsupported_parameter_patterns': {'x': 5, 'w': 5}",
		  SLICES "! not everything is shown: slices of 'w' are listed as they are: "
			 "universal_checkpoint_info says so" },
		{ "'expert_parameter_patterns': ['w'], 'tp_replicated_parameter_patterns': ['^w$']",
		  SLICES },
		/* Names with their special characters escaped. */
		{ "'tp_replicated_parameter_patterns': ['^w$']", "w[4,1] 0 1 2 3\n" },
		{ "'tp_replicated_parameter_patterns': ['^\\w$']", "w[4,1] 0 1 2 3\n" },
		{ "'tp_replicated_parameter_patterns': ['^\\.$', '^w\\$', '^$', '$', '^']",
		  "w[4,1] 0 1 2 3\n" },
		{ "'tp_replicated_parameter_patterns': ['^\\.$', '^w\\$', '^$', '$']", rows },
		{ "'original_vocab_size': 'x', 'vocabulary_parameter_patterns': ['w']", rows },
		{ "'original_vocab_size': -1, 'vocabulary_parameter_patterns': ['w']", rows },
		{ "'original_vocab_size': 100, 'vocabulary_parameter_patterns': ['w']", rows },
		{ "'original_vocab_size': 2, 'vocabulary_parameter_patterns': ['w']",
		  "w[2,1] 0 1\n" },
		{ "'original_vocab_size': 2, 'vocabulary_parameter_patterns': ['w'],"
		  " 'parameter_with_row_parallelism_patterns': ['w']",
		  SLICES },
	};
	char text[1000];

	for (size_t i = 0; i < ARRAY_LEN(v); i++)
		for (unsigned mp = 0; mp < 2; mp++) {
			(void)snprintf(
				text, sizeof(text),
				"{'module': {'w': t0+0(4,1)}, 'universal_checkpoint_info': {%s}}",
				v[i].text);
			put(mp ? "mp_rank_01_model_states.pt" : MODEL, text, 100 * mp);
			if (mp)
				expect("", v[i].want);
		}
}
END_TEST

/* AutoTP writes one for each parameter, which costs little. */
START_TEST(there_may_be_many_names_but_not_many_patterns)
{
	enum { MANY = 10001 };
	autofree char *text = malloc(20 * MANY + 300);
	static const char *const lists[] = { "'tp_replicated_parameter_patterns': [",
					     "'parameter_with_sub_params': [" };

	REQUIRE(text);
	put("mp_rank_01_model_states.pt", "{'module': {'a.7': t0+0(1)}}", 100);
	for (size_t list = 0; list < ARRAY_LEN(lists); list++)
		for (int literal = 0; literal < 2; literal++) {
			char *at = text + sprintf(text,
						  "{'module': {'a.7': t0+0(1)},"
						  " 'universal_checkpoint_info': {%s%s",
						  lists[list], list ? "{'patterns': [" : "");

			for (unsigned i = 0; i < MANY; i++)
				at += sprintf(at, literal ? "'^a\\.%u$'," : "'b.%u',", i);
			sprintf(at, "%s]}}",
				list ? "], 'shape': ((2,),), 'partition_dim': 0}" : "");
			put(MODEL, text, 0);
			expect("", !literal ? "mp_rank_00/a.7[1] 0\nmp_rank_01/a.7[1] 100\n! not "
					      "everything is shown: slices of tensor parallelism "
					      "are listed as they are: universal_checkpoint_info "
					      "has more than 10000 patterns"
				   : list   ? "a.7[2] 0 100\n"
					    : "a.7[1] 0\n");
		}
}
END_TEST

/* None are joined then, rather than some. */
START_TEST(patterns_that_take_too_long_are_not_used)
{
	enum { NAMES = 3000, PATTERNS = 400 };
	autofree char *text = malloc(400 * NAMES);
	char *at = text, want[300];

	REQUIRE(text);
	at += sprintf(at, "{'module': {");
	for (unsigned i = 0; i < NAMES; i++)
		at += sprintf(at, "'%u%0200u': t0+0(1),", i, 0);
	at += sprintf(at, "}, 'universal_checkpoint_info': {'parameter_to_average_patterns': [");
	for (unsigned i = 0; i < PATTERNS; i++)
		at += sprintf(at, "'x[abc]{9}%u',", i);
	sprintf(at, "]}}");
	put(MODEL, text, 0);
	put("mp_rank_01_model_states.pt", text, 100);
	(void)snprintf(want, sizeof(want), "mp_rank_00/%0201u[1] 0\n", 0);
	saved_expect_begin(dir, "deepspeed", want);
}
END_TEST

START_TEST(names_of_more_than_64_kib_are_refused)
{
	char name[(1 << 16) + 1] = "";
	autofree char *text = NULL;

	memset(name, 'x', sizeof(name) - 1);
	REQUIRE(asprintf(&text, "{'module': {'%s': t0+0(1)}}", name) > 0);
	put(MODEL, text, 0);
	expect_error("", "a name of more than 65535 bytes");
}
END_TEST

/* A list can name one pattern of many states again and again. */
START_TEST(patterns_that_need_too_much_memory_are_not_used)
{
	enum { TIMES = 600 };
	autofree char *text = malloc(4 * TIMES + 200);
	char *at = text;

	REQUIRE(text);
	at += sprintf(at, "{'module': {'w': t0+0(1)}, 'universal_checkpoint_info':"
			  " {'expert_parameter_patterns': [#1='((a{100}){19}z)'");
	for (int k = 1; k < TIMES; k++)
		at += sprintf(at, ", #1");
	sprintf(at, "]}}");
	put(MODEL, text, 0);
	put("mp_rank_01_model_states.pt", "{'module': {'w': t0+0(1)}}", 100);
	expect("", "mp_rank_00/w[1] 0\nmp_rank_01/w[1] 100\n! not everything is shown: slices of "
		   "tensor parallelism are listed as they are: the patterns of "
		   "universal_checkpoint_info take too long");
}
END_TEST

START_TEST(slices_that_do_not_fit_are_left_as_they_are)
{
	static const struct {
		const char *zero, *one, *want;
	} v[] = {
		{ "t0+0(2,2)", "t0+0(1,2)", "w[3,2] 0 1 2 3 100 101\n" },
		{ "t0+0(2,2)", "t0+0(2,1)",
		  "mp_rank_00/w[2,2] 0 1 2 3\nmp_rank_01/w[2,1] 100 101\n" },
		{ "t0+0(2)", "t0+0(2,1)", "mp_rank_00/w[2] 0 1\nmp_rank_01/w[2,1] 100 101\n" },
		{ "t0+0(2)", "h0+0(2)", "mp_rank_00/w[2] 0 1\nmp_rank_01/w[2] float16\n" },
		{ "t0+0()", "t0+0()", "mp_rank_00/w[] 0\nmp_rank_01/w[] 100\n" },
		{ "t0+0(2,2)/(1,2)", "t0+0(2,2)", "w[4,2] 0 2 1 3 100 101 102 103\n" },
		{ "t0+0(4611686018427387904,0)", "t0+0(4611686018427387904,0)",
		  "mp_rank_00/w[4611686018427387904,0]\nmp_rank_01/w[4611686018427387904,0]\n" },
		/* for names that all ranks have in full */
		{ "t1+0(2)", "t1+0(2)", "w[4] 100 101 200 201\n" },
	};
	char text[1000];

	for (size_t i = 0; i < ARRAY_LEN(v); i++) {
		for (unsigned mp = 0; mp < 2; mp++) {
			(void)snprintf(text, sizeof(text),
				       "{'module': {'w': %s}, 'universal_checkpoint_info':"
				       " {'tp_replicated_parameter_patterns': ['s'],"
				       " 'parameter_with_row_parallelism_patterns': ['r']}}",
				       mp ? v[i].one : v[i].zero);
			put(mp ? "mp_rank_01_model_states.pt" : MODEL, text, 100 * mp);
		}
		expect("", v[i].want);
	}
	for (unsigned mp = 0; mp < 2; mp++)
		put(mp ? "mp_rank_01_model_states.pt" : MODEL,
		    "{'module': {'r': t0+0(2), 's': t0+0(), 'same': t0+0(2,2)}, "
		    "'universal_checkpoint_info':"
		    " {'tp_replicated_parameter_patterns': ['s'],"
		    " 'parameter_with_row_parallelism_patterns': ['r']}}",
		    100 * mp);
	expect("", "mp_rank_00/r[2] 0 1\nmp_rank_01/r[2] 100 101\ns[] 0\nsame[2,2] 0 1 2 3\n");
	put("mp_rank_01_model_states.pt", "{'module': {'r': t0+0(2), 'x': t0+0(1)}}", 100);
	expect("", "mp_rank_00/r[2] 0 1\nmp_rank_00/s[] 0\nmp_rank_00/same[2,2] 0 1 2 3\n"
		   "mp_rank_01/r[2] 100 101\nmp_rank_01/x[1] 100\n");
}
END_TEST

START_TEST(model_states_that_are_there_twice_are_refused)
{
	put(MODEL, "{'module': {'w': t0+0(1)}}", 0);
	put("mp_rank_0_model_states.pt", "{'module': {'w': t0+0(1)}}", 0);
	expect_error("", "'mp_rank_00_model_states.pt' and 'mp_rank_0_model_states.pt' are of the "
			 "same rank: one is from another checkpoint");
}
END_TEST

START_TEST(other_names_are_of_no_checkpoint)
{
	static const char *const names[] = {
		"zero_pp_rank_x_mp_rank_00_model_states.pt",
		"zero_pp_rank_0mp_rank_00_model_states.pt",
		"mp_rank__model_states.pt",
		"mp_rank_00_model_states.pth",
		"layer_x-model_states.pt",
		"layer_00-model_x-model_states.pt",
		"layer_00-model_00-model_states.pth",
		"layer_00.pt",
		"layer_0expert_0_mp_rank_00_model_states.pt",
		"layer_x_expert_0_mp_rank_00_model_states.pt",
		"expert_x_mp_rank_00_model_states.pt",
		"expert_0_model_states.pt",
		"expert_0_mp_rank_x_model_states.pt",
		"expert_0_mp_rank_00_states.pt",
		"fp16_zero_pp_rank_x_mp_rank_00_optim_states.pt",
		"zero_pp_rank_0_optim_states.pt",
		"zero_pp_rank_0_mp_rank_x_optim_states.pt",
		"zero_pp_rank_0_mp_rank_00_optim_states.pth",
		"expp_rank_x_mp_rank_00_optim_states.pt",
		"expp_rank_0_rank_00_optim_states.pt",
		"expp_rank_0_mp_rank_x_optim_states.pt",
		"expp_rank_0_mp_rank_00_optim_states.pth",
	};

	put(MODEL, "{'module': {'w': t0+0(1)}}", 0);
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		put(names[i], "5", 0);
	directory("layer_00-model_states.pt");
	expect("", "w[1] 0\n");
	REQUIRE(!unlinkat(dir_fd, MODEL, 0));
	saved_expect_not(dir, "deepspeed");
	put("layer_01-model_states.pt", "{}", 0);
	expect_error("", "DeepSpeed's 'mp_rank_00_model_states.pt' is missing");
	put("fp16_zero_pp_rank_1_mp_rank_00_optim_states.pt", "{}", 0);
	put(MODEL, "{'module': {'w': t0+0(1)}}", 0);
	expect("", "w[1] 0\n! not everything is there: "
		   "'fp16_zero_pp_rank_0_mp_rank_00_optim_states.pt' is "
		   "missing, though 'fp16_zero_pp_rank_1_mp_rank_00_optim_states.pt' is there");
}
END_TEST

START_TEST(odd_files_of_a_universal_checkpoint)
{
	static const struct odd v[] = {
		{ "{'param': 5}", "a[2,2] 10 11 12 13\n" },
		{ "{}", "a[2,2] 10 11 12 13\n" },
		{ "t0+39(2)", "?'zero/a/m.pt'" },
		{ "t0+0(2,2)", "a[2,2] 10 11 12 13\noptimizer.state.a.m[2,2] 0 1 2 3\n" },
		{ "t0+0(4)/(2)", "a[2,2] 10 11 12 13\noptimizer.state.a.m[4] 0 2 4 6\n" },
		{ "{'param': t0+0(4)}", "a[2,2] 10 11 12 13\noptimizer.state.a.m[4] 0 1 2 3\n" },
	};

	put(MODEL, "{'module': {'a': t0+0(2,2)}, 'frozen_param_shapes': {'a': (2,2)}}", 10);
	directory("zero");
	directory("zero/a");
	directory("zero/a/x.pt");
	put_file(dir_fd, "zero/a/.pt", "x", 1);
	put_file(dir_fd, "zero/a/x.bin", "x", 1);
	put_file(dir_fd, "zero/a/x", "x", 1);
	for (size_t i = 0; i < ARRAY_LEN(v); i++) {
		put("zero/a/m.pt", v[i].text, 0);
		expect_odd(v[i].want);
	}
	directory("zero/b");
	put("zero/b/m.pt", "t0+0(4)", 0);
	expect("", "a[2,2] 10 11 12 13\noptimizer.state.a.m[4] 0 1 2 3\noptimizer.state.b.m[4] 0 1 "
		   "2 3\n");
	put_file(dir_fd, "zero/b/m.pt", "x", 1);
	expect_error("", "zero/b/m.pt");
	/* A link to a directory is not followed. */
	REQUIRE(!unlinkat(dir_fd, "zero/b/m.pt", 0));
	REQUIRE(!unlinkat(dir_fd, "zero/b", AT_REMOVEDIR));
	REQUIRE(!symlinkat("a", dir_fd, "zero/b"));
	expect("", "a[2,2] 10 11 12 13\noptimizer.state.a.m[4] 0 1 2 3\n");
}
END_TEST

START_TEST(latest_may_name_what_is_no_checkpoint)
{
	directory("one");
	put("one/" MODEL, "{'module': {'w': t0+0(1)}}", 1);
	directory("latest");
	expect("", "w[1] 1\n");
	REQUIRE(!unlinkat(dir_fd, "latest", AT_REMOVEDIR));
	put_file(dir_fd, "latest", "file", 4);
	put_file(dir_fd, "file", "x", 1);
	saved_expect_not(dir, "deepspeed");
	put_file(dir_fd, "latest", "one", 3);
	put("one/layer_00-model_states.pt", "{}", 0);
	expect("", "w[1] 1\n");
	REQUIRE(!unlinkat(dir_fd, "one/" MODEL, 0));
	expect_error("", "DeepSpeed's 'one/mp_rank_00_model_states.pt' is missing");
}
END_TEST

START_TEST(without_memory_or_a_disk_there_is_a_clean_error)
{
	static const char info[] =
		"'universal_checkpoint_info': {'parameter_to_average_patterns': ['m[a-e]{2}n'],"
		" 'autotp_unsupported_parameter_patterns': {'^col$': 'why'},"
		" 'sub_param_shard_widths': {'sub': [[1, 1], [2, 2]]},"
		" 'parameter_with_sub_params': [{'patterns': ['sub'], 'shape': ((2, 4),),"
		" 'partition_dim': 0}], 'parameter_with_row_parallelism_patterns': ['(?:x|row)']}";
	char text[1000];

	/* Slices and Universal. */
	(void)snprintf(text, sizeof(text),
		       "{'module': {'col': t0+0(2,2), 'row': t0+4(2,1), 'sub': t0+8(3), 'n': 5},"
		       " 'buffer_names': ['col'], 'shared_params': {'tied': 'row'}, 'epoch': 3,"
		       " 'param_shapes': [{'row': (2,1)}], %s}",
		       info);
	put(MODEL, text, 0);
	put("mp_rank_01_model_states.pt", text, 0);
	directory("zero");
	directory("zero/row");
	put("zero/row/fp32.pt", "t0+0(2)", 10);
	put("zero/row/step.pt", "5", 0);
	put("zero/optimizer_state.pt", "{'clip_grad': 1.5}", 0);
	scan_failing(dir_fd);
}
END_TEST

START_TEST(without_memory_there_is_a_clean_error_for_partitions)
{
	for (unsigned rank = 0; rank < 2; rank++) {
		char path[100];

		(void)snprintf(path, sizeof(path), "zero_pp_rank_%u_mp_rank_00_model_states.pt",
			       rank);
		put_model3(path, "'frozen_param_fragments': {'f': h3+0(2)}", 0);
		(void)snprintf(path, sizeof(path), "zero_pp_rank_%u_mp_rank_00_optim_states.pt",
			       rank);
		put_shard(path, "[t0+0(3)]", "{'state': {0: {'m': t1+0(3), 'step': 4}}}", "2",
			  1000);
	}
	scan_failing(dir_fd);
}
END_TEST

START_TEST(without_memory_there_is_a_clean_error_for_experts_and_layers)
{
	put(MODEL,
	    "{'module': N, 'param_shapes': [{'tied_modules.e.w': (2,), '1.w': (2,)},"
	    " {'1.deepspeed_moe.experts.deepspeed_experts.0.w': (1,)}]}",
	    0);
	put("layer_00-model_states.pt", "{'w': t0+0(2)}", 100);
	put("layer_01-model_states.pt", "{'w': t0+0(2), 'o': 5}", 200);
	put("layer_0_expert_0_mp_rank_00_model_states.pt",
	    "{'1.deepspeed_moe.experts.deepspeed_experts.1.w': t0+9(1)}", 0);
	put_rank(OPTIM(0), "[t0+0(2), t1+0(1)]",
		 "{'state': {0: {'step': 4}}}, 'group_paddings': [0, 0],"
		 " 'param_alignment_paddings': [[0, 0], [0]]",
		 "[2, 1]", 1000);
	put_rank(OPTIM(1), "[t0+0(2), t1+0(1)]",
		 "{'state': {0: {'step': 4}}}, 'group_paddings': [0, 0],"
		 " 'param_alignment_paddings': [[0, 0], [0]]",
		 "[2, 1]", 2000);
	put("expp_rank_0_mp_rank_00_optim_states.pt",
	    "{'optimizer': {'state': {0: {'m': t0+0(2)}}}}", 0);
	scan_failing(dir_fd);
}
END_TEST

SUITE(deepspeed, .setup = dir_setup, .teardown = dir_teardown, .seconds = 60)
