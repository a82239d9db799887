/* SPDX-License-Identifier: Apache-2.0 */
/* Small checkpoints of FSDP's ranks, and what is wrong with others. What real torch has written is
 * compared in ckpt_data, test_fsdp.sh and tests/torch/fsdp.sh. */
#include "base/checked.h"
#include "dir_util.h"
#include "opts_util.h"
#include "saved_util.h"
#include "scan_util.h"
#include "suites.h"

#include <ckptfs/ckpt.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define WRAPPED(class, dtype, size, state) \
	"torch._tensor._rebuild_from_type_v2(torch._tensor._rebuild_wrapper_subclass," \
	" torch.distributed." class ", (torch.distributed." class ", " dtype ", " size \
								  ", (1,), 0, torch.strided, " \
								  "'cpu', F), " state ")"
#define DTENSOR_OF(dtype, local, size, spec) \
	WRAPPED("tensor.DTensor", dtype, size, "{'_local_tensor': " local ", '_spec': " spec "}")
#define DTENSOR(local, size, spec) DTENSOR_OF("torch.float32", local, size, spec)
#define SPEC_MORE(mesh, placements, more) \
	"torch.distributed.tensor._dtensor_spec.DTensorSpec()!{'mesh': " mesh \
	", 'placements': " placements more "}"
#define SPEC(mesh, placements) SPEC_MORE(mesh, placements, "")
#define MESH_OF(state)	       "torch.distributed.device_mesh.DeviceMesh()!{" state "}"
#define MESH(ranks)	       MESH_OF("'mesh': " ranks)
#define PLACEMENT(x)	       "torch.distributed.tensor.placement_types." x
#define SHARD(dim)	       PLACEMENT("Shard(" #dim ")")
#define STRIDED(dim, pieces)   PLACEMENT("_StridedShard(" #dim ", " #pieces ")")
#define REPLICATE	       PLACEMENT("Replicate()")
#define SHARDED(size, state) \
	WRAPPED("_shard.sharded_tensor.ShardedTensor", "torch.float32", size, state)
#define PIECE(local, off, len) \
	"torch.distributed._shard.Shard()!{'tensor': " local \
	", 'metadata': torch.distributed._shard.ShardMetadata()!{'shard_offsets': " off \
	", 'shard_sizes': " len "}}"
#define GROUP(rank, world) \
	"torch.distributed.ProcessGroupState()!{'global_rank': " #rank \
	", 'global_world_size': " #world "}"

/* A rank's state dict in a file of this kind. */
static void put(const char *kind, unsigned world, unsigned rank, const char *text, unsigned first)
{
	char path[100];

	(void)snprintf(path, sizeof(path), "%s_world_size_%u_rank_%u.pt", kind, world, rank);
	saved_put(dir_fd, path, text, first);
}

/* One of two ranks; its file has only this tensor. */
static void put_two(unsigned rank, const char *value)
{
	char *text;

	REQUIRE(asprintf(&text, "{'w': %s}", value) > 0);
	put("model", 2, rank, text, 1000 * rank);
	free(text);
}

/* The only rank; its file has only this tensor. */
static void put_one(const char *value)
{
	char *text;

	REQUIRE(asprintf(&text, "{'w': %s}", value) > 0);
	put("model", 1, 0, text, 0);
	free(text);
}

static void expect(const char *want)
{
	saved_expect(dir, "fsdp", want);
}

static void expect_error(const char *want)
{
	saved_expect_error(dir, want);
}

/* The checkpoint can only be opened if 'w' may be missing. */
static void expect_fault(const char *why)
{
	char want[400];

	(void)snprintf(want, sizeof(want), "object 'w': %s", why);
	expect_error(want);
}

/* ---- DTensor ---- */

#define PAIR	MESH("I[0,1](2)")
#define SHARD_0 SPEC(PAIR, "(" SHARD(0) ",)")
#define BY_LAYOUT(layout) \
	SPEC(MESH_OF("'_rank_map': I[0,1](2), '_layout': " layout), "(" SHARD(0) ",)")
#define LAYOUT(state) "torch.distributed._mesh_layout._MeshLayout()!{" state "}"
#define AXIS(state)   "torch.distributed._mesh_layout._Axis()!{" state "}"

/* The same tensor of three rows: two of them on rank 0, one on rank 1. */
START_TEST(meshes_of_all_versions_say_the_same)
{
	static const char *const specs[] = {
		SHARD_0,
		SPEC(MESH("J[0,1](2)"), "[" SHARD(-2) "]"),
		SPEC(PAIR, "(" PLACEMENT("Shard()!{'dim': 0}") ",)"),
		SPEC(PAIR, "(" PLACEMENT("Shard()!(N, {'dim': 0})") ",)"),
		SPEC(PAIR, "(" PLACEMENT("Shard()!(0,)") ",)"),
		SPEC(MESH("I[0,1](2,1)"), "(" SHARD(0) ", " REPLICATE ")"),
		SPEC(MESH("I[0,1](1,2)"), "(" PLACEMENT("Shard(1)") ", " SHARD(0) ")"),
		SPEC(PAIR, "(" STRIDED(0, 1) ",)"),
		BY_LAYOUT(LAYOUT("'shape': 2, 'stride': 1")),
		BY_LAYOUT(LAYOUT("'shape': (2,), 'stride': (1,)")),
		BY_LAYOUT(LAYOUT("'axes': (" AXIS("'shape': 2, 'stride': 1") ",)")),
		/* Of two that were flattened, the last one varies fastest; one has no ranks beside
		 * it. */
		BY_LAYOUT(LAYOUT("'shape': ((1,2),), 'stride': ((0,1),)")),
		SPEC(MESH_OF("'mesh': I[0,1](2), '_coordinate_on_dim': N"), "(" SHARD(0) ",)"),
	};
	char *text;

	for (size_t i = 0; i < ARRAY_LEN(specs); i++)
		for (unsigned rank = 0; rank < 2; rank++) {
			REQUIRE(asprintf(&text, DTENSOR("t0+0(%u,2)", "(3,2)", "%s"), 2 - rank,
					 specs[i]) > 0);
			put_two(rank, text);
			free(text);
			if (rank)
				expect("w[3,2] 0 1 2 3 1000 1001\n");
		}
}
END_TEST

START_TEST(sizes_may_be_torch_sizes_and_states_slots)
{
	put_two(0, WRAPPED("tensor.DTensor", "torch.float32", "(3,)",
			   "(N, {'_local_tensor': t0+0(2), '_spec': " SHARD_0 "})"));
	put_two(1, WRAPPED("tensor.DTensor", "torch.float32", "(3,)",
			   "({}, {'_local_tensor': t0+0(1), '_spec': " SHARD_0 "})"));
	expect("w[3] 0 1 1000\n");
}
END_TEST

START_TEST(meshes_are_read_in_the_files_byte_order)
{
	for (int wide = 0; wide < 2; wide++) {
		put("model", 2, 0,
		    wide ? "> {'w': " DTENSOR("t0+0(2)", "(3,)", SHARD_0) "}"
			 : "> {'w': " DTENSOR("t0+0(2)", "(3,)",
					      SPEC(MESH("J[0,1](2)"), "(" SHARD(0) ",)")) "}",
		    7);
		put("model", 2, 1, "{'w': " DTENSOR("t0+0(1)", "(3,)", SHARD_0) "}", 1000);
		expect("w[3] 7 8 1000\n");
	}
}
END_TEST

START_TEST(a_rank_outside_of_the_mesh_has_no_part)
{
#define ONLY_1 SPEC(MESH("I[1](1)"), "(" SHARD(0) ",)")
	put_two(0, DTENSOR("t0+0(0)", "(3,)", ONLY_1));
	put_two(1, DTENSOR("t0+0(3)", "(3,)", ONLY_1));
	expect("w[3] 1000 1001 1002\n");
}
END_TEST

START_TEST(a_rank_with_nothing_has_an_empty_part)
{
	put_two(0, DTENSOR("t0+0(1)", "(1,)", SHARD_0));
	put_two(1, DTENSOR("t0+0(0)", "(1,)", SHARD_0));
	expect("w[1] 0\n");
	/* torch writes an empty part with any shape. */
	put_two(0, DTENSOR("t0+0(1,2)", "(1,2)", SHARD_0));
	put_two(1, DTENSOR("t0+0(0)", "(1,2)", SHARD_0));
	expect("w[1,2] 0 1\n");
	put_two(1, DTENSOR("t0+0(1)", "(1,2)", SHARD_0));
	expect_error("rank 1's part is torch.Size([1]), but by its sharding it should be "
		     "torch.Size([0, 2])");
}
END_TEST

START_TEST(scalars_and_what_is_replicated_are_rank_0s)
{
	for (unsigned rank = 0; rank < 2; rank++)
		put_two(rank, DTENSOR("t0+0()", "()", SPEC(PAIR, "(" REPLICATE ",)")));
	expect("w[] 0\n");
	for (unsigned rank = 0; rank < 2; rank++)
		put_two(rank, DTENSOR("t0+0(2)", "(2,)", SPEC(PAIR, "(" REPLICATE ",)")));
	expect("w[2] 0 1\n");
}
END_TEST

/* Four ranks on two axes: the second axis splits what the first has left, or the other way
 * round. */
START_TEST(axes_that_split_one_dimension_do_so_in_the_order_told)
{
#define SQUARE	    MESH("I[0,1,2,3](2,2)")
#define TWICE(more) SPEC_MORE(SQUARE, "(" SHARD(0) ", " SHARD(0) ")", more)
	static const struct {
		const char *spec, *want;
	} v[] = {
		{ TWICE(""), "w[8] 0 1 1000 1001 2000 2001 3000 3001\n" },
		{ TWICE(", 'shard_order': N"), "w[8] 0 1 1000 1001 2000 2001 3000 3001\n" },
		{ TWICE(", 'shard_order': ((0,(0,1)),)"),
		  "w[8] 0 1 1000 1001 2000 2001 3000 3001\n" },
		{ TWICE(", 'shard_order': ((0,(1,0)),)"),
		  "w[8] 0 1 2000 2001 1000 1001 3000 3001\n" },
		{ TWICE(", 'shard_order': (torch.distributed.tensor.ShardOrderEntry(0,(1,0)),)"),
		  "w[8] 0 1 2000 2001 1000 1001 3000 3001\n" },
		/* With _StridedShard, the first axis splits each half of the tensor. */
		{ SPEC(SQUARE, "(" STRIDED(0, 2) ", " SHARD(0) ")"),
		  "w[8] 0 1 2000 2001 1000 1001 3000 3001\n" },
		{ SPEC_MORE(SQUARE, "(" STRIDED(0, 2) ", " SHARD(0) ")",
			    ", 'use_strided_shard_as_shard_order': T"),
		  "w[8] 0 1 2000 2001 1000 1001 3000 3001\n" },
		{ SPEC_MORE(SQUARE, "(" STRIDED(0, 2) ", " SHARD(0) ")",
			    ", 'use_strided_shard_as_shard_order': 0"),
		  "w[8] 0 1 2000 2001 1000 1001 3000 3001\n" },
	};
	char *text;

	for (size_t i = 0; i < ARRAY_LEN(v); i++) {
		for (unsigned rank = 0; rank < 4; rank++) {
			REQUIRE(asprintf(&text, "{'w': " DTENSOR("t0+0(2)", "(8,)", "%s") "}",
					 v[i].spec) > 0);
			put("model", 4, rank, text, 1000 * rank);
			free(text);
		}
		expect(v[i].want);
	}
}
END_TEST

/*
 * FSDP splits what tensor parallelism, whose axes come later, has left to a rank. Sizes that are
 * not divisible show that: if the axes split in their order, ranks would get other rows.
 */
START_TEST(strided_axes_split_after_those_that_they_count)
{
	static const struct {
		const char *mesh, *placements, *size;
		const char *rows; /* of each rank */
		const char *want;
	} v[] = {
		{ "I[0,1,2,3,4,5](3,2)", "(" STRIDED(0, 2) ", " SHARD(0) ")", "7", "212101",
		  "w[7] 0 1 2000 2001 1000 3000 5000\n" },
		/* the same, twice */
		{ "I[0,1,2,3,4,5,6,7,8,9,10,11](2,3,2)",
		  "(" REPLICATE ", " STRIDED(0, 2) ", " SHARD(0) ")", "7", "212101212101",
		  "w[7] 0 1 2000 2001 1000 3000 5000\n" },
		/* two axes of tensor parallelism; then two strided axes, of which the last splits
		 * first */
		{ "I[0,1,2,3,4,5,6,7](2,2,2)", "(" STRIDED(0, 4) ", " SHARD(0) ", " SHARD(0) ")",
		  "5", "11111000", "w[5] 0 4000 1000 2000 3000\n" },
		{ "I[0,1,2,3,4,5,6,7](2,2,2)",
		  "(" STRIDED(0, 4) ", " STRIDED(0, 2) ", " SHARD(0) ")", "5", "11111000",
		  "w[5] 0 4000 2000 1000 3000\n" },
		/* this one splits after the second axis, but before the third */
		{ "I[0,1,2,3,4,5,6,7](2,2,2)", "(" STRIDED(0, 2) ", " SHARD(0) ", " SHARD(0) ")",
		  "5", "11101010", "w[5] 0 1000 4000 2000 6000\n" },
	};
	char *text;

	for (size_t i = 0; i < ARRAY_LEN(v); i++) {
		unsigned world = (unsigned)strlen(v[i].rows);
		unsigned apart = strstr(v[i].placements, "Replicate") ? world / 2 : world;

		dir_teardown();
		dir_setup();
		for (unsigned rank = 0; rank < world; rank++) {
			REQUIRE(asprintf(&text,
					 "{'w': " DTENSOR("t0+0(%c)", "(%s,)",
							  SPEC(MESH("%s"), "%s")) "}",
					 v[i].size, v[i].rows[rank], v[i].mesh,
					 v[i].placements) > 0);
			put("model", world, rank, text, 1000 * (rank % apart));
			free(text);
		}
		expect(v[i].want);
	}
}
END_TEST

/* The third axis is replicated and not part of the order, so it comes last. */
START_TEST(axes_that_are_not_in_the_order_come_last)
{
	for (unsigned rank = 0; rank < 4; rank++)
		put("model", 4, rank,
		    "{'w': " DTENSOR("t0+0(2,2)", "(4,4)",
				     SPEC_MORE(MESH("I[0,1,2,3](1,1,2,2)"),
					       "(" SHARD(0) ", " SHARD(0) ", " SHARD(
						       1) ", " STRIDED(0, 2) ")",
					       "")) "}",
		    100 * rank);
	expect("w[4,4] 0 1 200 201 100 101 300 301 2 3 202 203 102 103 302 303\n");
	for (unsigned rank = 0; rank < 4; rank++)
		put("model", 4, rank,
		    "{'w': " DTENSOR("t0+0(2,4)", "(4,4)",
				     SPEC_MORE(MESH("I[0,1,2,3](1,2,2)"),
					       "(" SHARD(0) ", " SHARD(0) ", " REPLICATE ")",
					       ", 'shard_order': ((0,(1,0)),)")) "}",
		    100 * rank);
	expect("w[4,4] 0 1 2 3 4 5 6 7 200 201 202 203 204 205 206 207\n");
}
END_TEST

/* A part in two dimensions of runs, each with boxes of its own. */
START_TEST(strided_parts_are_boxes)
{
	for (unsigned rank = 0; rank < 2; rank++)
		put_two(rank, DTENSOR("t0+0(4,2)", "(4,4)", SPEC(PAIR, "(" STRIDED(1, 2) ",)")));
	expect("w[4,4] 0 1000 1 1001 2 1002 3 1003 4 1004 5 1005 6 1006 7 1007\n");
	for (unsigned rank = 0; rank < 4; rank++)
		put("model", 4, rank,
		    "{'w': " DTENSOR("t0+0(2,2)", "(4,4)",
				     SPEC(SQUARE, "(" STRIDED(0, 2) ", " STRIDED(1, 2) ")")) "}",
		    100 * rank);
	unlinkat(dir_fd, "model_world_size_2_rank_0.pt", 0);
	unlinkat(dir_fd, "model_world_size_2_rank_1.pt", 0);
	expect("w[4,4] 0 100 1 101 200 300 201 301 2 102 3 103 202 302 203 303\n");
}
END_TEST

#define ONE	  MESH("I[0](1)")
#define ODD_MESH  "its mesh is not written as torch writes it"
#define ODD_PLACE "its placements are not written as torch writes them"
#define LACKS	  "it is sharded along a dimension that it lacks"
#define ODD_LAYOUT(state) \
	DTENSOR("t0+0(2)", "(2,)", \
		SPEC(MESH_OF("'_rank_map': I[0](1), '_layout': " LAYOUT(state)), \
		     "(" SHARD(0) ",)"))
#define ODD_PLACEMENT(p) DTENSOR("t0+0(2)", "(2,)", SPEC(ONE, "(" p ",)"))
#define ODD_ORDER(order) \
	DTENSOR("t0+0(2)", "(2,)", \
		SPEC_MORE(MESH("I[0](1,1,1)"), "(" SHARD(0) ", " SHARD(0) ", " REPLICATE ")", \
			  ", 'shard_order': " order))
/* more than there are dimensions */
#define EMPTY "(0,()),(0,()),(0,()),(0,()),"
#define MANY_EMPTY \
	EMPTY EMPTY EMPTY EMPTY EMPTY EMPTY EMPTY EMPTY EMPTY EMPTY EMPTY EMPTY EMPTY EMPTY EMPTY \
		EMPTY EMPTY
#define CONTRADICTS "its shard_order contradicts its placements"

START_TEST(dtensors_that_cannot_be_shown_are_listed)
{
	static const struct {
		const char *value, *why;
	} v[] = {
		{ DTENSOR_OF("'float32'", "t0+0(2)", "(2,)", SPEC(ONE, "(" SHARD(0) ",)")),
		  "a tensor whose dtype is not known" },
		{ DTENSOR_OF("torch.strange", "t0+0(2)", "(2,)", SPEC(ONE, "(" SHARD(0) ",)")),
		  "a tensor whose dtype is not known" },
		{ DTENSOR("t0+0(2)", "(2,)", SPEC("5", "(" SHARD(0) ",)")),
		  "a DTensor without a mesh" },
		{ DTENSOR("t0+0(2)", "(2,)",
			  PLACEMENT("DTensorSpec()!{'placements': (" SHARD(0) ",)}")),
		  "a DTensor without a mesh" },
		{ DTENSOR("t0+0(2)", "(2,)", "5"), "a DTensor without a mesh" },
		{ DTENSOR("t0+0(2)", "(2,)", SPEC(MESH_OF("'mesh': 5"), "(" SHARD(0) ",)")),
		  ODD_MESH },
		{ DTENSOR("t0+0(2)", "(2,)",
			  SPEC(MESH_OF("'_rank_map': I[0](1)"), "(" SHARD(0) ",)")),
		  ODD_MESH },
		{ DTENSOR("t0+0(2)", "(2,)", SPEC(MESH("t0+0(1)"), "(" SHARD(0) ",)")), ODD_MESH },
		{ DTENSOR("t0+0(2)", "(2,)", SPEC(MESH("I[0,0](1)/(2)"), "(" SHARD(0) ",)")),
		  NULL },
		{ DTENSOR("t0+0(2)", "(2,)",
			  SPEC(MESH("I[0,1,2,3](2,2)/(1,2)"), "(" SHARD(0) ",)")),
		  ODD_MESH },
		{ DTENSOR("t0+0(2)", "(2,)", SPEC(MESH("I[0](0)"), "(" SHARD(0) ",)")), ODD_MESH },
		{ DTENSOR("t0+0(2)", "(2,)", SPEC(MESH("I[0]()"), "(" SHARD(0) ",)")),
		  "its mesh has 0 axes" },
		{ DTENSOR("t0+0(2)", "(2,)",
			  SPEC(MESH("I[0](1,1,1,1,1,1,1,1)"), "(" SHARD(0) ",)")),
		  "" },
		{ ODD_LAYOUT("'shape': (1,), 'stride': (0,)"), NULL },
		{ ODD_LAYOUT("'shape': (1,), 'stride': 1"), ODD_MESH },
		{ ODD_LAYOUT("'shape': (1,), 'stride': (1,1)"), ODD_MESH },
		{ ODD_LAYOUT("'shape': (1,)"), ODD_MESH },
		{ ODD_LAYOUT("'stride': (1,)"), ODD_MESH },
		{ ODD_LAYOUT("'shape': 'x', 'stride': (1,)"), ODD_MESH },
		{ ODD_LAYOUT("'shape': (), 'stride': ()"), ODD_MESH },
		{ ODD_LAYOUT("'shape': -1, 'stride': 1"), ODD_MESH },
		{ ODD_LAYOUT("'shape': 1, 'stride': -1"), ODD_MESH },
		{ ODD_LAYOUT("'shape': 0, 'stride': 1"), ODD_MESH },
		{ ODD_LAYOUT("'shape': 2, 'stride': 0"), ODD_MESH },
		{ ODD_LAYOUT("'shape': 1048577, 'stride': 1"), ODD_MESH },
		{ ODD_LAYOUT("'shape': ((1024,1025),), 'stride': ((1,1),)"), ODD_MESH },
		{ ODD_LAYOUT("'shape': ((1,1),), 'stride': ((1,),)"), ODD_MESH },
		{ ODD_LAYOUT("'shape': ((1,1,1,1,1),), 'stride': ((1,1,1,1,1),)"), ODD_MESH },
		{ ODD_LAYOUT("'shape': (1,1,1,1,1,1,1,1,1), 'stride': (1,1,1,1,1,1,1,1,1)"),
		  ODD_MESH },
		{ ODD_LAYOUT("'axes': ()"), ODD_MESH },
		{ ODD_LAYOUT("'axes': 5"), ODD_MESH },
		{ ODD_LAYOUT("'axes': (1,)"), ODD_MESH },
		{ ODD_LAYOUT("'axes': (" AXIS("'shape': 1") ",)"), ODD_MESH },
		{ ODD_PLACEMENT(PLACEMENT("Partial()!{'reduce_op': 'sum'}")),
		  "its placement is Partial: each rank holds a summand, and the sum was not "
		  "computed before the save" },
		{ ODD_PLACEMENT(PLACEMENT("_Partial()")),
		  "its placement is Partial: each rank holds a summand, and the sum was not "
		  "computed before the save" },
		{ ODD_PLACEMENT(PLACEMENT("_MaskPartial()")),
		  "its placement is Partial: each rank holds a summand, and the sum was not "
		  "computed before the save" },
		{ ODD_PLACEMENT(PLACEMENT("MaskPartial()")),
		  "its placement is Partial: each rank holds a summand, and the sum was not "
		  "computed before the save" },
		{ ODD_PLACEMENT(PLACEMENT("Ragged()")), "a placement of class 'Ragged'" },
		{ ODD_PLACEMENT("5"), "a placement of class '?'" },
		{ ODD_PLACEMENT(PLACEMENT("Shard()")), ODD_PLACE },
		{ ODD_PLACEMENT(PLACEMENT("Shard('0')")), ODD_PLACE },
		{ ODD_PLACEMENT(PLACEMENT("Shard()!{'dim': '0'}")), ODD_PLACE },
		{ ODD_PLACEMENT(PLACEMENT("_StridedShard(0)")), ODD_PLACE },
		{ DTENSOR("t0+0(2)", "(2,)",
			  SPEC_MORE(ONE, "(" STRIDED(0, 1) ",)",
				    ", 'use_strided_shard_as_shard_order': F")),
		  "its _StridedShard does not say the order" },
		{ DTENSOR("t0+0(2)", "(2,)",
			  "torch.distributed._tensor.placement_types.DTensorSpec()!{'mesh': " MESH(
				  "I[0](1,1)") ", 'placements': (" SHARD(0) ", " SHARD(0) ")}"),
		  "two axes of the mesh split one dimension, and torch before 2.5 does not record "
		  "which came first" },
		{ DTENSOR("t0+0(2)", "(2,)",
			  SPEC(MESH("I[0](1,1,1,1,1,1,1,1,1)"), "(" SHARD(0) ",)")),
		  "its mesh has 9 axes" },
		{ "torch._utils._rebuild_qtensor(&('storage', torch.QInt8Storage, '0', 'cpu', 8), "
		  "0,"
		  " (2,), (1,), 5, F, N)",
		  "a quantised tensor" },
		{ ODD_ORDER("(5,)"), "its shard_order is not known" },
		{ ODD_ORDER("((0,),)"), "its shard_order is not known" },
		{ ODD_ORDER("(" MANY_EMPTY ")"), "its shard_order is not known" },
		{ ODD_ORDER("((0,5),)"), "its shard_order is not known" },
	};

	for (size_t i = 0; i < ARRAY_LEN(v); i++) {
		put_one(v[i].value);
		if (!v[i].why)
			expect("w[2] 0 1\n");
		else if (*v[i].why)
			expect_fault(v[i].why);
		else
			expect_error("its mesh has 8 axes and there are 1 placements");
	}
}
END_TEST

START_TEST(dtensors_that_contradict_themselves_are_refused)
{
	static const struct {
		const char *value, *why;
	} v[] = {
		{ DTENSOR("t0+0(2)", "5", SPEC(ONE, "(" SHARD(0) ",)")),
		  "its shape is not written as torch writes it" },
		{ DTENSOR("t0+0(2)", "(-2,)", SPEC(ONE, "(" SHARD(0) ",)")),
		  "its shape is not written as torch writes it" },
		{ DTENSOR("t0+0(2)", "(4611686018427387904,4611686018427387904)",
			  SPEC(ONE, "(" SHARD(0) ",)")),
		  "its shape is not written as torch writes it" },
		{ DTENSOR("t0+0(2)", "(2,)", SPEC(MESH("I[1](1)"), "(" SHARD(0) ",)")),
		  "its mesh has rank 1, but there are files of only 1 rank: the others are "
		  "missing, or these are from two different saves" },
		{ DTENSOR("t0+0(2)", "(2,)", SPEC(MESH("I[-1](1)"), "(" SHARD(0) ",)")),
		  "its mesh has rank -1," },
		{ DTENSOR("t0+0(2)", "(2,)", SPEC(MESH("J[-1](1)"), "(" SHARD(0) ",)")),
		  "its mesh has rank -1," },
		{ DTENSOR("t0+0(2)", "(2,)", SPEC(MESH("I[0,0](2)"), "(" SHARD(0) ",)")),
		  "its mesh has rank 0 twice" },
		{ DTENSOR("t0+0(2)", "(2,)", SPEC(MESH("I[0](9)"), "(" SHARD(0) ",)")),
		  "its view reaches outside its storage" },
		{ DTENSOR("t0+0(2)", "(2,)",
			  SPEC(MESH_OF("'mesh': I[0](1), '_rank': 3"), "(" SHARD(0) ",)")),
		  "rank 3 has written it, not rank 0 as the file's name says" },
		{ DTENSOR("t0+0(2)", "(2,)",
			  SPEC(MESH_OF("'mesh': I[0](1), '_rank': 0, '_coordinate_on_dim': [1]"),
			       "(" SHARD(0) ",)")),
		  "it belongs to another rank than the file's name does (0)" },
		{ DTENSOR("t0+0(2)", "(2,)",
			  SPEC(MESH_OF("'mesh': I[0](1), '_rank': 'x', '_coordinate_on_dim': "
				       "[0,0]"),
			       "(" SHARD(0) ",)")),
		  "it belongs to another rank than the file's name does (0)" },
		{ DTENSOR("t0+0(2)", "(2,)", SPEC(ONE, "()")),
		  "its mesh has 1 axes and there are 0 placements" },
		{ DTENSOR("t0+0(2)", "(2,)", SPEC(ONE, "{}")),
		  "its mesh has 1 axes and there are 0 placements" },
		{ DTENSOR("t0+0(2)", "(2,)", PLACEMENT("DTensorSpec()!{'mesh': " ONE "}")),
		  "its mesh has 1 axes and there are 0 placements" },
		{ ODD_PLACEMENT(SHARD(1)), LACKS },
		{ ODD_PLACEMENT(SHARD(-2)), LACKS },
		{ ODD_PLACEMENT(STRIDED(0, 0)), LACKS },
		{ ODD_ORDER("((0,(0,3)),)"), CONTRADICTS },
		{ ODD_ORDER("((0,(0,0)),)"), CONTRADICTS },
		{ ODD_ORDER("((0,(0,2)),)"), CONTRADICTS },
		{ ODD_ORDER("((0,(0,)),)"), CONTRADICTS },
		{ ODD_PLACEMENT(STRIDED(0, 2)), NULL },
		{ DTENSOR("t0+0(3)", "(2,)", SPEC(ONE, "(" SHARD(0) ",)")),
		  "rank 0's part is torch.Size([3]), but by its sharding it should be "
		  "torch.Size([2])" },
		{ DTENSOR("t0+0(2,1)", "(2,)", SPEC(ONE, "(" SHARD(0) ",)")),
		  "rank 0's part is torch.Size([2, 1]), but by its sharding it should be "
		  "torch.Size([2])" },
		{ DTENSOR("h0+0(2)", "(2,)", SPEC(ONE, "(" SHARD(0) ",)")),
		  "rank 0's part is float16, but the tensor is float32" },
		{ "t0+0(4611686018427387905)/(0)", "'w': a tensor of more than 2^62 elements" },
		{ "t0+0(4611686018427387905,4611686018427387905)/(0,0)",
		  "'w': a tensor of more than 2^62 elements" },
		{ DTENSOR("t0+39(2)", "(2,)", SPEC(ONE, "(" SHARD(0) ",)")),
		  "its view reaches outside its storage" },
	};

	for (size_t i = 0; i < ARRAY_LEN(v); i++) {
		put_one(v[i].value);
		if (v[i].why)
			expect_error(v[i].why);
		else
			expect("w[2] 0 1\n");
	}
}
END_TEST

START_TEST(more_than_4096_pieces_are_not_shown)
{
	static char pad[300000];
	char *text;

	put_one(DTENSOR("t0+0(0,9000)", "(0,9000)", SPEC(ONE, "(" STRIDED(1, 4097) ",)")));
	expect_fault("it is in more than 4096 pieces");
	/*
	 * 4096 runs of 5 elements, of which another axis takes 3 out of 6. As much work is only
	 * accepted in a large file.
	 */
	memset(pad, 'x', sizeof(pad) - 1);
	REQUIRE(asprintf(&text,
			 "{'pad': '%s', 'w': " DTENSOR(
				 "t0+0(0,5000)", "(0,40960)",
				 SPEC(SQUARE, "(" STRIDED(1, 4096) ", " STRIDED(1, 4095) ")")) "}",
			 pad) > 0);
	for (unsigned rank = 0; rank < 4; rank++)
		put("model", 4, rank, text, 0);
	free(text);
	REQUIRE(!unlinkat(dir_fd, "model_world_size_1_rank_0.pt", 0));
	expect_fault("it is in more than 4096 pieces");
}
END_TEST

/* ---- ShardedTensor ---- */

START_TEST(shards_lie_where_their_offsets_say)
{
	put_two(0,
		SHARDED("(3,2)", "([" PIECE("t0+0(1,2)", "[2,0]", "[1,2]") "," PIECE(
					 "t0+5(0,2)", "[0,0]", "[0,2]") "], N, " GROUP(0, 2) ")"));
	put_two(1, SHARDED("(3,2)", "([" PIECE("t0+0(2,2)", "(0,0)", "(2,2)") "], N, N)"));
	expect("w[3,2] 1000 1001 1002 1003 0 1\n");
	put_two(0, SHARDED("(2,2)", "([], N, " GROUP(0, 2) ")"));
	put_two(1, SHARDED("(2,2)", "([" PIECE("t0+0(2,2)", "(0,0)", "(2,2)") "], N, 5)"));
	expect("w[2,2] 1000 1001 1002 1003\n");
}
END_TEST

#define WHOLE PIECE("t0+0(2)", "(0,)", "(2,)")

START_TEST(odd_sharded_tensors_are_refused_or_listed)
{
	static const char odd[] = "its ShardedTensor is not written as torch writes it";
	static const struct {
		const char *value, *fault, *error;
	} v[] = {
		{ SHARDED("(2,)", "{}"), odd, NULL },
		{ SHARDED("(2,)", "([], N)"), odd, NULL },
		{ SHARDED("(2,)", "({}, N, N)"), odd, NULL },
		{ SHARDED("(2,)", "([5], N, N)"), odd, NULL },
		{ SHARDED("(2,)", "([" PIECE("t0+0(2)", "5", "(2,)") "], N, N)"), odd, NULL },
		{ SHARDED("(2,)", "([" PIECE("t0+0(2)", "(0,)", "5") "], N, N)"), odd, NULL },
		{ WRAPPED("_shard.ShardedTensor", "5", "(2,)", "([], N, N)"),
		  "a tensor whose dtype is not known", NULL },
		{ SHARDED("(2,)", "([" PIECE("t0+0(2)", "(1,)", "(2,)") "], N, N)"), NULL,
		  "a shard is outside the tensor" },
		{ SHARDED("(2,)", "([" PIECE("t0+0(2)", "(0,0)", "(2,)") "], N, N)"), NULL,
		  "a shard is outside the tensor" },
		{ SHARDED("(2,)", "([" PIECE("t0+0(2)", "(0,)", "(2,1)") "], N, N)"), NULL,
		  "a shard is outside the tensor" },
		{ SHARDED("(2,)", "([" WHOLE "], N, " GROUP(1, 1) ")"), NULL,
		  "rank 1 has written it, not rank 0 as the file's name says" },
		{ SHARDED("(2,)", "([" WHOLE "], N, " GROUP(0, 2) ")"), NULL,
		  "it was written by one of 2 ranks, but there are files of 1" },
		{ SHARDED("(2,)", "([" WHOLE "], N, torch.G()!{'global_rank': 0})"), NULL, NULL },
		{ SHARDED("(2,)", "([" WHOLE "], N, torch.G()!{'global_world_size': 7})"), NULL,
		  NULL },
	};

	for (size_t i = 0; i < ARRAY_LEN(v); i++) {
		put_one(v[i].value);
		if (v[i].fault)
			expect_fault(v[i].fault);
		else if (v[i].error)
			expect_error(v[i].error);
		else
			expect("w[2] 0 1\n");
	}
}
END_TEST

/* A tensor with another kind of wrapper is read like any other, or reported not to be one. */
START_TEST(wrappers_of_other_forms_are_plain_tensors)
{
#define FROM_TYPE(args) "torch._tensor._rebuild_from_type_v2(" args ")"
#define WRAPPER		"torch._tensor._rebuild_wrapper_subclass"
	static const char *const v[] = {
		FROM_TYPE("5"),
		FROM_TYPE("5, torch.T, (torch.T, torch.float32, (2,)), {}"),
		FROM_TYPE(WRAPPER ", torch.T, 5, {}"),
		FROM_TYPE(WRAPPER ", torch.T, (torch.T, torch.float32), {}"),
		FROM_TYPE(WRAPPER ", torch.T, (torch.T, torch.float32, (2,)), 5"),
		FROM_TYPE(WRAPPER ", torch.T, (torch.T, torch.float32, (2,)), {'_spec': 5}"),
		FROM_TYPE(WRAPPER
			  ", torch.T, (torch.T, torch.float32, (2,)), {'_local_tensor': t0+0(2)}"),
		FROM_TYPE(WRAPPER ", torch.T, (torch.T, torch.float32, (2,)), ()"),
		FROM_TYPE(WRAPPER ", torch.T, (torch.T, torch.float32, (2,)), (N, N, {'_spec': 5, "
				  "'_local_tensor': t0+0(2)})"),
	};

	for (size_t i = 0; i < ARRAY_LEN(v); i++) {
		char *text;

		REQUIRE(asprintf(&text, "{'v': t0+4(1), 'w': %s}", v[i]) > 0);
		put("model", 1, 0, text, 0);
		free(text);
		expect_error("object 'w': data.pkl: ");
	}
}
END_TEST

/* ---- several ranks, kinds of files ---- */

static void drop(const char *name)
{
	REQUIRE(!unlinkat(dir_fd, name, 0));
}

START_TEST(ranks_that_disagree_are_of_two_saves)
{
	static const struct {
		const char *zero, *one, *why;
	} v[] = {
		{ DTENSOR("t0+0(1)", "(2,)", SHARD_0), DTENSOR("t0+0(2)", "(3,)", SHARD_0),
		  "rank 0 has torch.Size([2]), rank 1 has torch.Size([3]): are these files from "
		  "one save?" },
		{ DTENSOR("t0+0(1)", "(2,)", SHARD_0), DTENSOR("t0+0(1,1)", "(2,1)", SHARD_0),
		  "rank 0 has torch.Size([2]), rank 1 has torch.Size([2, 1])" },
		{ DTENSOR("t0+0(1)", "(2,)", SHARD_0),
		  DTENSOR_OF("torch.float16", "h0+0(1)", "(2,)", SHARD_0),
		  "rank 0 has float32, rank 1 has float16" },
		{ DTENSOR("t0+0(1,2)", "(2,2)", SHARD_0),
		  DTENSOR("t0+0(2,1)", "(2,2)", SPEC(PAIR, "(" SHARD(1) ",)")),
		  "ranks 0 and 1 disagree on how it is sharded (2:0/1; 2:1/1)" },
		{ DTENSOR("t0+0(1)", "(2,)", SHARD_0),
		  DTENSOR("t0+0(1)", "(2,)", SPEC(PAIR, "(" REPLICATE ",)")),
		  "ranks 0 and 1 disagree on how it is sharded (2:0/1; 2)" },
		{ DTENSOR("t0+0(1)", "(2,)", SHARD_0), "t0+0(2)",
		  "'w': it is sharded in some ranks' files and not in others'" },
		{ "t0+0(2)", SHARDED("(2,)", "([], N, N)"),
		  "'w': it is sharded in some ranks' files and not in others'" },
	};

	for (size_t i = 0; i < ARRAY_LEN(v); i++) {
		put_two(0, v[i].zero);
		put_two(1, v[i].one);
		expect_error(v[i].why);
	}
	put("model", 2, 0, "{'optimizer': {'w': t0+0(1)}}", 0);
	put("model", 2, 1, "{'optimizer': {'w': t0+0(1)}}", 0);
	put("optim", 2, 0, "{'w': t0+0(1)}", 0);
	put("optim", 2, 1, "{'w': t0+0(1)}", 0);
	expect_error("'optimizer.w': it is sharded in some ranks' files and not in others'");
}
END_TEST

/* Each rank has a whole tensor. It is shown once if all are equal. */
START_TEST(copies_are_shown_once_unless_they_differ)
{
#define APART \
	"! not everything is shown: which parameters 'w' and others are made of: the files do " \
	"not say " \
	"it, so each rank's are shown as rank_R/NAME; save with SHARDED_STATE_DICT"
	static const struct {
		const char *zero, *one, *want;
	} v[] = {
		{ "t0+0(2)", "t0+0(2)", "w[2] 0 1\n" },
		{ "t0+0(2)", "t1+4(2)",
		  "w[2] 0 1\n! not everything is shown: 'w' of other ranks: rank 1 has other "
		  "values than rank 0, whose values are shown" },
		{ "t0+0(2,2)", "t0+0(2,2)/(1,2)", "w[2,2] 0 1 2 3\n" },
		{ "t0+0(2,2)/(1,2)", "t0+0(2,2)/(1,2)", "w[2,2] 0 2 1 3\n" },
		{ "t0+0(2,2)/(1,2)", "t0+0(2,2)/(1,3)",
		  "w[2,2] 0 2 1 3\n! not everything is shown: 'w' of other ranks: rank 1 has other "
		  "values than rank 0, whose values are shown" },
		{ "t0+0(0)", "t0+7(0)", "w[0]\n" },
		{ "t0+0()", "t0+0()", "w[] 0\n" },
		{ "t0+0(2)", "t0+0(3)", "rank_0/w[2] 0 1\nrank_1/w[3] 0 1 2\n" APART },
		{ "t0+0(2)", "t0+0(2,1)", "rank_0/w[2] 0 1\nrank_1/w[2,1] 0 1\n" APART },
		{ "t0+0(2)", "h0+0(2)", "rank_0/w[2] 0 1\nrank_1/w[2] float16\n" APART },
		{ "t0+0(2)", "h0+0(2)", "rank_0/w[2] 0 1\nrank_1/w[2] float16\n" APART },
	};
	char *text;

	for (size_t i = 0; i < ARRAY_LEN(v); i++) {
		for (unsigned rank = 0; rank < 2; rank++) {
			REQUIRE(asprintf(&text, "{'w': %s}", rank ? v[i].one : v[i].zero) > 0);
			put("model", 2, rank, text, 0);
			free(text);
		}
		expect(v[i].want);
	}
	put("model", 2, 0, "{'w': t0+0(2)}", 0);
	put("model", 2, 1, ">{'w': t0+0(2)}", 0);
	expect("w[2] 0 1\n! not everything is shown: 'w' of other ranks: rank 1 has other values "
	       "than rank 0, whose values are shown");
}
END_TEST

START_TEST(pieces_of_flat_parameters_are_each_ranks_own)
{
#define FLAT \
	"! not everything is shown: the parameters that FSDP1 has flattened (LOCAL_STATE_DICT): "
#define FLAT_PARAM(local, off) SHARDED("(4,)", "([" PIECE(local, off, "(2,)") "], N, N)")
#define PIECES		       "'a.norm': t0+0(2), 'b.norm': t2+0(2), 'c': t1+0(2)}"
	for (unsigned rank = 0; rank < 2; rank++)
		put("model", 2, rank,
		    "{'_flat_param': t0+0(6), 'a': t0+0(2), 'b': t1+0(2), 'c': t1+0(0), 'd': "
		    "t0+0(2,2), 'e': " DTENSOR("t1+0(1)", "(2,)", SHARD_0) "}",
		    0);
	saved_expect_begin(
		dir, "fsdp",
		"b[2] 100 101\nd[2,2] 0 1 2 3\ne[2] 100 100\n"
		"rank_0/_flat_param[6] 0 1 2 3 4 5\nrank_0/a[2] 0 1\nrank_0/c[0]\n"
		"rank_1/_flat_param[6] 0 1 2 3 4 5\nrank_1/a[2] 0 1\nrank_1/c[0]\n" FLAT);
	for (unsigned rank = 0; rank < 2; rank++)
		put("model", 2, rank,
		    "{'model': {'x._flat_param': " SHARDED(
			    "(1,)",
			    "([" PIECE(
				    "t0+0(1)", "(0,)",
				    "(1,)") "], N, N)") ", 'y._flat_param': t1+0(1), 'z': t0+0(1)},"
							" 'n': {'_flat_param': 5}}",
		    0);
	saved_expect_begin(dir, "fsdp",
			   "model.x._flat_param[1] 0\nrank_0/model.y._flat_param[1] 100\n"
			   "rank_0/model.z[1] 0\nrank_1/model.y._flat_param[1] 100\n"
			   "rank_1/model.z[1] 0\nobject n\n" FLAT);
	/* Each wrapped module has a flat parameter; a norm's pieces may be equal in all ranks. */
	put("model", 2, 0,
	    "{'b._flat_param': " FLAT_PARAM("t2+0(2)", "(0,)") ", 'a._flat_param': " FLAT_PARAM(
		    "t0+0(2)", "(0,)") ", " PIECES,
	    0);
	put("model", 2, 1,
	    "{'b._flat_param': " FLAT_PARAM("t2+0(2)", "(2,)") ", 'a._flat_param': " FLAT_PARAM(
		    "t0+0(2)", "(2,)") ", " PIECES,
	    0);
	saved_expect_begin(
		dir, "fsdp",
		"a._flat_param[4] 0 1 0 1\nb._flat_param[4] 200 201 200 201\nc[2] 100 101\n"
		"rank_0/a.norm[2] 0 1\nrank_0/b.norm[2] 200 201\n"
		"rank_1/a.norm[2] 0 1\nrank_1/b.norm[2] 200 201\n" FLAT);
}
END_TEST

/* LocalStateDictConfig(offload_to_cpu=True) copies flat parameters, but not the pieces of them. */
START_TEST(pieces_of_copied_flat_parameters_are_each_ranks_own)
{
#define COPIED(off) SHARDED("(40,)", "([" PIECE("t0+0(20)", off, "(20,)") "], N, N)")
	static const char *const more[] = { ", 'n.bias': t2+0(2)}", "}" };
	char *text;

	for (size_t i = 0; i < 2; i++) {
		for (unsigned rank = 0; rank < 2; rank++) {
			REQUIRE(asprintf(&text,
					 "{'n._flat_param': %s, 'n.half': h2+5(2), 'n.two': "
					 "t1+0(1,4), 'n.weight': t1+0(1)%s",
					 rank ? COPIED("(20,)") : COPIED("(0,)"), more[i]) > 0);
			put("model", 2, rank, text, 0);
			free(text);
		}
		/* One is too short to be all the parameters of which the rank has parts. */
		saved_expect_begin(
			dir, "fsdp",
			i ? "n._flat_param[40] 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 "
			    "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19\n"
			    "n.half[2] float16\nn.two[1,4] 100 101 102 103\nn.weight[1] 100\n" FLAT
			  : "n._flat_param[40] 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 "
			    "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19\n"
			    "n.half[2] float16\nn.two[1,4] 100 101 102 103\n"
			    "rank_0/n.bias[2] 200 201\nrank_0/n.weight[1] 100\n"
			    "rank_1/n.bias[2] 200 201\nrank_1/n.weight[1] 100\n" FLAT);
	}
}
END_TEST

/* The flat parameter may be a DTensor, or this rank may have no part of it. */
START_TEST(odd_flat_parameters_have_no_pieces)
{
	static const char *const flat[] = { DTENSOR("t0+0(2)", "(2,)",
						    SPEC(PAIR, "(" REPLICATE ",)")),
					    SHARDED("(0,)", "([], N, N)"), NULL };
	char *text;

	for (size_t i = 0; flat[i]; i++) {
		for (unsigned rank = 0; rank < 2; rank++) {
			REQUIRE(asprintf(&text, "{'_flat_param': %s, 'a': t0+0(1), 'b': t1+0(1)}",
					 flat[i]) > 0);
			put("model", 2, rank, text, 0);
			free(text);
		}
		saved_expect_begin(
			dir, "fsdp",
			i ? "_flat_param[0]\na[1] 0\nb[1] 100\n" FLAT
			  : "_flat_param[2] 0 1\nb[1] 100\nrank_0/a[1] 0\nrank_1/a[1] 0\n" FLAT);
	}
}
END_TEST

/* The first parameter is replicated; of the second, each rank has a shard. */
static void put_optimizer(const char *zero, const char *one)
{
	static const char model[] = "{'a': " DTENSOR(
		"t0+0(2)", "(2,)",
		SPEC(PAIR, "(" REPLICATE ",)")) ", 'b': " DTENSOR("t1+0(1)", "(2,)", SHARD_0) "}";

	for (unsigned rank = 0; rank < 2; rank++) {
		put("model", 2, rank, model, 1000 * rank);
		put("optim", 2, rank, rank ? one : zero, 5000 + 1000 * rank);
	}
}

#define STATES \
	"'state': {0: {'m': " DTENSOR("t0+0(2)", "(2,)", \
				      SPEC(PAIR, "(" REPLICATE ",)")) ", 'step': 3}," \
								      " 1: {'m': " DTENSOR( \
									      "t1+0(1)", "(2,)", \
									      SHARD_0) "}}"
#define MODEL "a[2] 0 1\nb[2] 100 1100\n"

START_TEST(numbered_states_have_the_parameters_names_if_all_fits)
{
	static const char named[] =
		MODEL "optimizer.state.a.m[2] 5000 5001\noptimizer.state.b.m[2] 5100 6100\n";
	static const char numbered[] =
		MODEL "optimizer.state.0.m[2] 5000 5001\noptimizer.state.1.m[2] 5100 6100\n";
	static const struct {
		const char *groups;
		bool known;
	} v[] = {
		{ "[{'params': [0, 1], 'lr': 0.5}]", true },
		{ "({'params': [0, 1]},)", false },
		{ "[{'params': [0, 1]}, {}]", false },
		{ "[]", false },
		{ "[5]", false },
		{ "[{}]", false },
		{ "[{'params': 5}]", false },
		{ "[{'params': [0]}]", false },
		{ "[{'params': [1, 0]}]", false },
		{ "[{'params': [0, 'x']}]", false },
		{ "[{'params': [0, 1, 2]}]", false },
		{ "5", false },
	};
	char *text;

	for (size_t i = 0; i < ARRAY_LEN(v); i++) {
		REQUIRE(asprintf(&text, "{%s, 'param_groups': %s}", STATES, v[i].groups) > 0);
		put_optimizer(text, text);
		free(text);
		saved_expect_begin(dir, "fsdp", v[i].known ? named : numbered);
	}
	put_optimizer("{" STATES "}", "{" STATES "}");
	saved_expect_begin(dir, "fsdp", numbered);
}
END_TEST

START_TEST(numbered_states_that_do_not_fit_keep_their_numbers)
{
#define ALL ", 'param_groups': [{'params': [0, 1]}]}"
	static const struct {
		const char *state, *want;
	} v[] = {
		{ "{'state': {2: {'m': t0+0(1)}}" ALL, MODEL "optimizer.state.2.m[1] 5000\n" },
		{ "{'state': {0: {'m': " DTENSOR("t0+0(3)", "(3,)",
						 SPEC(PAIR, "(" REPLICATE ",)")) "}}" ALL,
		  MODEL "optimizer.state.0.m[3] 5000 5001 5002\n" },
		{ "{'state': {0: {'m': " DTENSOR("t0+0(2,1)", "(2,1)",
						 SPEC(PAIR, "(" REPLICATE ",)")) "}}" ALL,
		  MODEL "optimizer.state.0.m[2,1] 5000 5001\n" },
		/* Nothing has a shape that could be compared. */
		{ "{'state': {0: {'step': t0+0()}}" ALL, MODEL "optimizer.state.0.step[] 5000\n" },
		{ "{'state': {'0': {'m': " DTENSOR(
			  "t0+0(2)", "(2,)",
			  SPEC(PAIR,
			       "(" REPLICATE ",)")) "}, 'x': {'m': t0+0()}, '0x': t0+0()}" ALL,
		  MODEL "optimizer.state.0x[] 5000\noptimizer.state.a.m[2] 5000 5001\n"
			"optimizer.state.x.m[] 5000\n" },
		{ "{'states': {0: {'m': t0+0()}}" ALL, MODEL "optimizer.states.0.m[] 5000\n" },
	};

	for (size_t i = 0; i < ARRAY_LEN(v); i++) {
		put_optimizer(v[i].state, v[i].state);
		put("optim", 2, 1, v[i].state, 5000);
		saved_expect_begin(dir, "fsdp", v[i].want);
	}
}
END_TEST

/* A tensor that cannot be shown has no shape to compare. */
START_TEST(states_or_parameters_that_cannot_be_shown_fit_nothing)
{
#define RAGGED ODD_PLACEMENT(PLACEMENT("Ragged()"))
	put("model", 1, 0, "{'a': " DTENSOR("t0+0(2)", "(2,)", SPEC(ONE, "(" SHARD(0) ",)")) "}",
	    0);
	put("optim", 1, 0,
	    "{'state': {0: {'m': " RAGGED "}}"
	    ", 'param_groups': [{'params': [0]}]}",
	    0);
	expect_error("object 'optimizer.state.0.m': a placement of class 'Ragged'");
	put("optim", 1, 0,
	    "{'state': {0: {'m': " RAGGED ", 'n': " DTENSOR(
		    "t0+0(2)", "(2,)",
		    SPEC(ONE, "(" SHARD(0) ",)")) "}}, 'param_groups': [{'params': [0]}]}",
	    0);
	expect_error("object 'optimizer.state.a.m': a placement of class 'Ragged'");
	put("model", 1, 0, "{'a': " RAGGED "}", 0);
	expect_error("object 'a': a placement of class 'Ragged' (and 1 more is incomplete)");
}
END_TEST

START_TEST(states_of_flat_parameters_are_each_ranks_own)
{
	/* The model has ShardedTensors: FSDP1. */
	for (unsigned rank = 0; rank < 2; rank++) {
		put("model", 2, rank,
		    rank ? "{'w': " SHARDED("(2,)", "([], N, N)") "}"
			 : "{'w': " SHARDED("(2,)", "([" WHOLE "], N, N)") "}",
		    0);
		put("optim", 2, rank, "{'state': {'m': t0+0(2), 'step': t0+0()}}", 50);
	}
	saved_expect_begin(dir, "fsdp",
			   "optimizer.state.step[] 50\nrank_0/optimizer.state.m[2] 50 51\n"
			   "rank_1/optimizer.state.m[2] 50 51\nw[2] 0 1\n"
			   "! not everything is shown: which parameters 'optimizer.state.m' and "
			   "others are made of");
	/* The model has DTensors, and the ranks' states have different values; a number is rank
	 * 0's. */
	for (unsigned rank = 0; rank < 2; rank++) {
		put("model", 2, rank, "{'w': t0+0(2)}", 0);
		put("optim", 2, rank, "{'state': {'m': t0+0(2), 'step': t0+0()}}", 50 + rank);
	}
	saved_expect_begin(dir, "fsdp",
			   "optimizer.state.step[] 50\nrank_0/optimizer.state.m[2] 50 51\n"
			   "rank_1/optimizer.state.m[2] 51 52\nw[2] 0 1\n! ");
}
END_TEST

START_TEST(objects_are_rank_0s_and_extra_states_all_ranks)
{
	for (unsigned rank = 0; rank < 2; rank++) {
		put("model", 2, rank,
		    rank ? "{'v': 1, 'w': t0+0(1)}"
			 : "{'o': {'p': [1]}, 5: [t0+0(1), 6], (1,): 7, 'w': t0+0(1)}",
		    0);
		put("extra_state", 2, rank, "{'rng': [1, 2]}", 0);
	}
	expect("5.0[1] 0\nw[1] 0\nobject 5.1\nobject extra_state.rank_0\n"
	       "object extra_state.rank_1\nobject o\n");
}
END_TEST

START_TEST(objects_may_lead_back_to_themselves)
{
	put("model", 1, 0, "{'w': t0+0(1)}", 0);
	put("extra_state", 1, 0,
	    "{'cfg': #1=m.Dict()!{'a': m.Node()!{'of': #1}, 'b': m.Node()!{'of': #1}},"
	    " 'data': #2=m.Data()!{'store': m.Store()!{'of': #2, 'x': t0+1(1)}}}",
	    0);
	expect("extra_state.rank_0.data.store.x[1] 1\nw[1] 0\nobject extra_state.rank_0.cfg\n");
	put("extra_state", 1, 0, "{'x': [t0+39(2)]}", 0);
	expect_error(
		"read 'extra_state_world_size_1_rank_0.pt': 'extra_state.rank_0.x.0': its view "
		"reaches outside its storage of 160 bytes");
}
END_TEST

/* Otherwise one would be taken for a copy of the other, or be left out. */
START_TEST(two_tensors_of_one_name_are_not_shown)
{
	static const char *const values[][2] = {
		{ "t0+0(2)", "t1+0(2)" },
		{ DTENSOR("t0+0(2)", "(2,)", SPEC(MESH("I[0](1)"), "(" SHARD(0) ",)")),
		  DTENSOR("t1+0(2)", "(2,)", SPEC(MESH("I[0](1)"), "(" SHARD(0) ",)")) },
		{ "t0+0(2)", DTENSOR("t1+0(2)", "(2,)", SPEC(MESH("I[0](1)"), "(" SHARD(0) ",)")) },
	};
	char *text;

	for (size_t i = 0; i < ARRAY_LEN(values); i++) {
		REQUIRE(asprintf(&text, "{'a.b': %s, 'w': t0+0(1), 'a': {'b': %s}}", values[i][0],
				 values[i][1]) > 0);
		put("model", 1, 0, text, 0);
		free(text);
		expect_error("object 'a.b': rank 0's file has two tensors of that name");
	}
	for (unsigned rank = 0; rank < 2; rank++)
		put("model", 2, rank, "{5: t0+0(1), '5': t1+0(1)}", 0);
	unlinkat(dir_fd, "model_world_size_1_rank_0.pt", 0);
	expect_error("object '5': rank 0's file has two tensors of that name");
}
END_TEST

START_TEST(tensors_with_other_keys_are_not_left_out_silently)
{
	static const char *const keys[] = { "(1, 2)", "T", "1.5", "'x\\0y'" };
	char *text;

	for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
		REQUIRE(asprintf(&text, "{'w': t0+0(1), 'd': {%s: [t0+0(1)], 'v': t0+1(1)}}",
				 keys[i]) > 0);
		put("model", 1, 0, text, 0);
		free(text);
		expect("d.v[1] 1\nw[1] 0\n! not everything is shown: tensors in "
		       "'model_world_size_1_rank_0.pt' whose keys are neither text nor integers");
	}
}
END_TEST

START_TEST(files_that_hold_no_state_dict_are_refused)
{
	char *deep = strdup("t0+0(1)"), *text;

	put("model", 1, 0, "[t0+0(1)]", 0);
	expect_error("'model_world_size_1_rank_0.pt' does not hold a state dict");
	put_file(dir_fd, "model_world_size_1_rank_0.pt", "x", 1);
	expect_error("read 'model_world_size_1_rank_0.pt'");
	put("model", 1, 0, "{'w': t0+39(2)}", 0);
	expect_error("'model_world_size_1_rank_0.pt': 'w': ");
	for (unsigned i = 0; i < 32; i++) {
		REQUIRE(asprintf(&text, i % 2 ? "{'x': %s}" : "[%s]", deep) > 0);
		free(deep);
		deep = text;
	}
	put("model", 1, 0, deep, 0);
	expect("x.0.x.0.x.0.x.0.x.0.x.0.x.0.x.0.x.0.x.0.x.0.x.0.x.0.x.0.x.0.x.0[1] 0\n");
	for (unsigned i = 0; i < 2; i++) {
		REQUIRE(asprintf(&text, i ? "{'x': [1, {'y': %s}]}" : "{'x': {'y': %s}}", deep) >
			0);
		put("model", 1, 0, text, 0);
		free(text);
		expect_error("'model_world_size_1_rank_0.pt' is nested more than 32 deep");
	}
	free(deep);
}
END_TEST

START_TEST(more_values_than_the_file_has_bytes_are_refused)
{
	char text[8000], *at = text;

	/* Each list contains the one before it ten times. */
	at += sprintf(at, "{'a': #0=[5]");
	for (unsigned i = 1; i < 9; i++) {
		at += sprintf(at, ", 'b%u': #%u=[", i, i);
		for (unsigned k = 0; k < 10; k++)
			at += sprintf(at, "#%u,", i - 1);
		at += sprintf(at, "]");
	}
	sprintf(at, "}");
	put("model", 1, 0, text, 0);
	expect_error("'model_world_size_1_rank_0.pt' repeats itself without end");
}
END_TEST

START_TEST(names_of_more_than_64_kib_are_refused)
{
	char name[(1 << 15) + 1] = "", *text;

	memset(name, 'x', sizeof(name) - 1);
	REQUIRE(asprintf(&text, "{'%s': {'%s': t0+0(1)}}", name, name) > 0);
	put("model", 1, 0, text, 0);
	expect_error("a name of more than 65536 bytes");
	free(text);
}
END_TEST

/* ---- names of files ---- */

#define W "{'w': t0+0(1)}"

START_TEST(every_rank_has_a_file)
{
	put("model", 3, 0, W, 0);
	put("model", 3, 2, W, 0);
	expect_error(
		"'model_world_size_3_rank_1.pt' is missing: the files of 2 of 3 ranks are there");
	drop("model_world_size_3_rank_0.pt");
	expect_error(
		"'model_world_size_3_rank_0.pt' is missing: the files of 1 of 3 ranks are there");
	put("model", 3, 0, W, 0);
	put("model", 3, 1, W, 0);
	expect("w[1] 0\n");
	drop("model_world_size_3_rank_2.pt");
	expect_error(
		"'model_world_size_3_rank_2.pt' is missing: the files of 2 of 3 ranks are there");
	put("model", 3, 2, W, 0);
	put("model", 3, 3, W, 0);
	expect_error("'model_world_size_3_rank_3.pt' is of a rank beyond the 3 ranks of the save");
	drop("model_world_size_3_rank_3.pt");
	/* The same rank twice. */
	saved_put(dir_fd, "model_world_size_3_rank_02.pt", W, 0);
	expect_error("'model_world_size_3_rank_02.pt' and 'model_world_size_3_rank_2.pt' are of "
		     "the same rank: one is from another checkpoint");
	drop("model_world_size_3_rank_02.pt");
	put("optim", 3, 0, W, 0);
	put("optim", 3, 1, W, 0);
	put("optim", 3, 2, W, 0);
	saved_put(dir_fd, "optim_world_size_3_rank_01.pt", "{'w': t1+0(1)}", 0);
	expect_error("'optim_world_size_3_rank_01.pt' and 'optim_world_size_3_rank_1.pt' are of "
		     "the same rank: one is from another checkpoint");
	drop("optim_world_size_3_rank_01.pt");
	drop("optim_world_size_3_rank_1.pt");
	expect("w[1] 0\n! not everything is there: rank 1's file of optimizer states is "
	       "missing; without it, none of these are shown");
}
END_TEST

START_TEST(other_names_are_not_of_ranks)
{
	static const char *const names[] = {
		"model_world_size__rank_0.pt",
		"model_world_size_0_rank_0.pt",
		"model_world_size_1_rank_.pt",
		"model_world_size_1_rank_0.bin",
		"model_world_size_1.pt",
		"models_world_size_1_rank_0.pt",
		"pytorch_model_fsdp_0.bin",
		"pytorch_model_fsdp_1rank0.bin",
		"pytorch_model_fsdp_rank.bin",
		"pytorch_model_fsdp_rank0.pt",
		"pytorch_model_fsdp_1_0.bin",
		".rank_0.pth",
		"x.rank_.pth",
		"x.rank_0.pt",
		"model_world_size_12345678_rank_0.pt",
		"x.rank_12345678.pth",
	};

	put("model", 1, 0, "{'right': t0+0(1)}", 0);
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		saved_put(dir_fd, names[i], W, 0);
	expect("right[1] 0\n");
	drop("model_world_size_1_rank_0.pt");
	saved_expect_not(dir, "fsdp");
}
END_TEST

START_TEST(accelerates_and_dinov2s_files_are_found_by_their_names)
{
	saved_put(dir_fd, "pytorch_model_fsdp_rank0.bin", W, 5);
	saved_put(dir_fd, "pytorch_model_fsdp_rank1.bin", W, 5);
	expect("w[1] 5\n");
	saved_put(dir_fd, "pytorch_model_fsdp_1_rank0.bin", W, 7);
	expect_error("are from two different saves, and it is not clear which one to open");
	drop("pytorch_model_fsdp_rank0.bin");
	drop("pytorch_model_fsdp_1_rank0.bin");
	expect_error("the file of rank 0 is missing beside 'pytorch_model_fsdp_rank1.bin'");
	drop("pytorch_model_fsdp_rank1.bin");
	saved_put(dir_fd, "m_1.rank_0.pth", W, 1);
	saved_put(dir_fd, "m_2.rank_0.pth", W, 2);
	expect_error("are from two different saves, and it is not clear which one to open");
	put_file(dir_fd, "last_checkpoint.rank_0", "m_2.rank_0.pth\n", 15);
	expect("w[1] 2\n");
	put_file(dir_fd, "last_checkpoint.rank_0", "m_3.rank_0.pth\n", 15);
	expect_error("are from two different saves, and it is not clear which one to open");
	drop("last_checkpoint.rank_0");
	REQUIRE(!mkdirat(dir_fd, "last_checkpoint.rank_0", 0755));
	expect_error("last_checkpoint.rank_0");
}
END_TEST

START_TEST(a_configuration_says_which_of_two_saves_is_meant)
{
	static const char *const odd[] = { "{}", "{\"world_size\": \"2\"}", "{\"world_size\": 0}",
					   "{\"world_size\": 4294967298}", "{\"world_size\": 3}" };

	put("model", 1, 0, W, 1);
	put("model", 2, 0, W, 2);
	put("model", 2, 1, W, 2);
	expect_error("are from two different saves, and it is not clear which one to open");
	put_file(dir_fd, "fsdp_config.json", "{\"world_size\": 2}", 17);
	expect("w[1] 2\n");
	put_file(dir_fd, "fsdp_config.json", "{\"world_size\": 1}", 17);
	expect("w[1] 1\n");
	for (size_t i = 0; i < ARRAY_LEN(odd); i++) {
		put_file(dir_fd, "fsdp_config.json", odd[i], strlen(odd[i]));
		expect_error("are from two different saves, and it is not clear which one to open");
	}
	put_file(dir_fd, "fsdp_config.json", "{", 1);
	expect_error("fsdp_config.json");
	drop("model_world_size_1_rank_0.pt");
	drop("model_world_size_2_rank_0.pt");
	drop("model_world_size_2_rank_1.pt");
	put("optim", 2, 1, W, 0);
	expect_error(
		"'model_world_size_2_rank_0.pt' is missing beside 'optim_world_size_2_rank_1.pt'");
}
END_TEST

START_TEST(the_policy_of_a_run_is_used)
{
	static const char *const names[] = { "critic", "policy", "actor" };
	char path[100], want[20];

	for (unsigned i = 0; i < 3; i++) {
		REQUIRE(!mkdirat(dir_fd, names[i], 0755));
		(void)snprintf(path, sizeof(path), "%s/model_world_size_1_rank_0.pt", names[i]);
		saved_put(dir_fd, path, W, i);
		(void)snprintf(want, sizeof(want), "w[1] %u\n", i);
		expect(want);
	}
	/* A link is not followed. */
	REQUIRE(!unlinkat(dir_fd, "actor/model_world_size_1_rank_0.pt", 0));
	REQUIRE(!unlinkat(dir_fd, "actor", AT_REMOVEDIR));
	REQUIRE(!symlinkat("critic", dir_fd, "actor"));
	expect("w[1] 1\n");
}
END_TEST

START_TEST(without_memory_or_a_disk_there_is_a_clean_error)
{
	for (unsigned rank = 0; rank < 2; rank++) {
		put(
			"model", 2, rank,
			"{'a': " DTENSOR("t0+0(4,2)", "(4,4)", SPEC(PAIR, "(" STRIDED(1, 2) ",)")) ", 'b': " SHARDED(
				"(2,)",
				"([], N, N)") ", 'c': " ODD_PLACEMENT(PLACEMENT("Ragged()")) ", "
											     "'d':"
											     " {'e'"
											     ": "
											     "[t0+"
											     "0(2),"
											     " t0+"
											     "0(2,"
											     "2)/"
											     "(1,2)"
											     "]}, "
											     "'o': "
											     "{'x':"
											     " 1}, "
											     "'x._"
											     "flat_"
											     "param"
											     "': "
											     "t1+0("
											     "2)}",
			100 * rank);
		put("optim", 2, rank, "{'state': {0: {'m': t0+0(2), 'step': t0+0()}}}", 50);
		put("extra_state", 2, rank, "{'rng': [1]}", 0);
	}
	scan_failing(dir_fd);
}
END_TEST

START_TEST(elements_of_a_list_have_their_positions)
{
	struct ckpt_step steps[4];
	struct ckpt *c = NULL;
	struct ckpt_err e = { 0 };
	int64_t i;

	for (unsigned rank = 0; rank < 2; rank++)
		put("model", 2, rank,
		    "{'l': [" DTENSOR("t0+0(1)", "(2,)", SHARD_0) ", " DTENSOR("t0+1(1)", "(2,)",
									       SHARD_0) "]}",
		    1000 * rank);
	ck_assert_msg(!open_typed(dir, &(struct ckpt_opts){ .index = ":memory:" }, &c, &e), "%s",
		      e.msg);
	i = ckpt_tensor_find(c, "l.1", 3);
	REQUIRE(i >= 0);
	ck_assert_uint_eq(ckpt_tensor_path(c, (uint64_t)i, steps, 4), 2);
	ck_assert(!steps[0].is_position && steps[0].len == 1 && *steps[0].text == 'l');
	ck_assert(steps[1].is_position && steps[1].position == 1);
	ckpt_close(c);
}
END_TEST

SUITE(fsdp, .setup = dir_setup, .teardown = dir_teardown, .seconds = 120)
