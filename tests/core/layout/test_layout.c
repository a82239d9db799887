/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buf.h"
#include "base/checked.h"
#include "base/err.h"
#include "base/text.h"
#include "fault.h"
#include "layout/layout.h"
#include "layout_util.h"
#include "model/box.h"
#include "model/mesh.h"
#include "rng.h"
#include "suites.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DIMS = 3, MAX_TENSORS = 6 };

#define TENSOR(name, ...) \
	{ \
		name, sizeof(name) - 1, sizeof((uint64_t[]){ __VA_ARGS__ }) / sizeof(uint64_t), \
			(const uint64_t[]) \
		{ \
			__VA_ARGS__ \
		} \
	}

static struct layout *parse(const char *text)
{
	struct ckpt_err e = { 0 };
	struct layout *l = NULL;

	ck_assert_msg(!parse_copy(text, strlen(text), "L", &l, &e), "%s", e.msg);
	return l;
}

static struct layout *parse_for(const char *text, const struct layout_tensor *t, size_t n)
{
	struct layout *l = parse(text);
	struct ckpt_err e = { 0 };

	ck_assert_msg(!layout_bind(l, t, n, &e), "%s", e.msg);
	return l;
}

/* "off+len off+len" of rank i's part of tensor t, or "-". */
static const char *box(const struct layout *l, size_t i, size_t t, size_t n_dims)
{
	static char out[200];
	uint64_t off[CKPT_MAX_DIMS], len[CKPT_MAX_DIMS];
	size_t at = 0;

	out[0] = 0;
	if (!layout_box(l, i, t, off, len))
		return "-";
	for (size_t d = 0; d < n_dims; d++)
		at += (size_t)snprintf(out + at, sizeof(out) - at, "%s%llu+%llu", d ? " " : "",
				       (unsigned long long)off[d], (unsigned long long)len[d]);
	return out;
}

/* Boxes of all ranks, in order. */
static void check_boxes(const struct layout *l, size_t t, size_t n_dims, const char *const *want)
{
	for (size_t i = 0; i < layout_ranks(l); i++)
		ck_assert_str_eq(box(l, i, t, n_dims), want[i]);
}

/* ---- the language ---- */

START_TEST(the_first_rule_that_matches_counts)
{
	const struct layout_tensor t[] = {
		TENSOR("a.q_proj.weight", 8, 6),    TENSOR("a.o_proj.weight", 8, 6),
		TENSOR("a.experts.0.weight", 8, 6), TENSOR("norm", 4),
		TENSOR("a.q_proj.bias", 8, 6),
	};
	struct layout *l = parse_for("# for two nodes\n"
				     "\n"
				     "mesh dp=2 tp=2   # rank = dp*2 + tp\n"
				     "*.q_proj.weight\ttp:0\r\n"
				     "  *.o_proj.weight tp:-1 # negative: from the end\n"
				     "*.experts.*.weight dp:0 tp:1\n"
				     "*.weight dp:0\n"
				     "*.bias replicate\n"
				     "*.bias dp:0",
				     t, ARRAY_LEN(t));

	ck_assert_uint_eq(layout_ranks(l), 4);
	for (size_t i = 0; i < 4; i++)
		ck_assert_uint_eq(layout_rank(l, i), i);
	check_boxes(l, 0, 2, (const char *const[]){ "0+4 0+6", "4+4 0+6", "0+4 0+6", "4+4 0+6" });
	check_boxes(l, 1, 2, (const char *const[]){ "0+8 0+3", "0+8 3+3", "0+8 0+3", "0+8 3+3" });
	check_boxes(l, 2, 2, (const char *const[]){ "0+4 0+3", "0+4 3+3", "4+4 0+3", "4+4 3+3" });
	check_boxes(l, 3, 1, (const char *const[]){ "0+4", "0+4", "0+4", "0+4" });
	check_boxes(l, 4, 2, (const char *const[]){ "0+8 0+6", "0+8 0+6", "0+8 0+6", "0+8 0+6" });
	layout_free(l);
}
END_TEST

START_TEST(splits_are_those_of_torch_chunk)
{
	const struct layout_tensor t[] = { TENSOR("w", 10), TENSOR("v", 2), TENSOR("u", 5, 0) };
	struct layout *l = parse_for("mesh tp=4\n* tp:0\n", t, ARRAY_LEN(t));

	check_boxes(l, 0, 1, (const char *const[]){ "0+3", "3+3", "6+3", "9+1" });
	check_boxes(l, 1, 1, (const char *const[]){ "0+1", "1+1", "2+0", "2+0" });
	check_boxes(l, 2, 2, (const char *const[]){ "0+2 0+0", "2+2 0+0", "4+1 0+0", "5+0 0+0" });
	layout_free(l);
}
END_TEST

/* DTensor: [Shard(0), Shard(0)] of 7 rows on 2 x 2; and the other way round. */
START_TEST(two_axes_on_one_dimension_nest_as_written)
{
	const struct layout_tensor t[] = { TENSOR("ab", 7), TENSOR("ba", 7) };
	struct layout *l = parse_for("mesh a=2 b=2\nab a:0 b:0\nba b:0 a:0\n", t, 2);

	check_boxes(l, 0, 1, (const char *const[]){ "0+2", "2+2", "4+2", "6+1" });
	check_boxes(l, 1, 1, (const char *const[]){ "0+2", "4+2", "2+2", "6+1" });
	layout_free(l);
}
END_TEST

START_TEST(globs_may_hold_blanks_hashes_and_the_word_mesh)
{
	const struct layout_tensor t[] = { TENSOR("a b", 4),	     TENSOR("#c", 4),
					   TENSOR("mesh", 4),	     TENSOR("d#e", 4),
					   TENSOR("back\\slash", 4), TENSOR("x]", 4),
					   TENSOR("other", 4) };
	struct layout *l = parse_for("mesh tp=2\na\\ b tp:0\n\\#c tp:0\n\\mesh tp:0\nd#e tp:0\n"
				     "back\\\\slash tp:0\n[w-y]] tp:0\n",
				     t, ARRAY_LEN(t));
	char what[200];

	for (size_t i = 0; i + 1 < ARRAY_LEN(t); i++)
		ck_assert_str_eq(box(l, 1, i, 1), "2+2");
	ck_assert_str_eq(box(l, 1, ARRAY_LEN(t) - 1, 1), "0+4");
	ck_assert(!layout_unused(l, 0, what, sizeof(what)));
	layout_free(l);
}
END_TEST

START_TEST(scalars_lie_whole_on_every_rank)
{
	const struct layout_tensor t[] = { { "step", 4, 0, NULL }, TENSOR("w", 4) };
	struct layout *l = parse_for("mesh tp=2\nstep replicate\n* tp:0\n", t, 2);
	uint64_t off[1], len[1];

	ck_assert(layout_box(l, 1, 0, off, len));
	layout_free(l);
}
END_TEST

/* ---- what rules times names may cost ---- */

enum { MANY = 20000 }; /* tensors: "t0" and so on */

static struct layout_tensor *many_tensors(void)
{
	static const uint64_t shape[] = { 2 };
	struct layout_tensor *t = calloc(MANY, sizeof(*t));
	char *names = malloc(MANY * 8);

	REQUIRE(t && names);
	for (size_t i = 0; i < MANY; i++) {
		int len = snprintf(names + 8 * i, 8, "t%zu", i);

		t[i] = (struct layout_tensor){ names + 8 * i, (size_t)len, 1, shape };
	}
	return t;
}

static const struct {
	const char *before, *behind; /* of the rule's number */
	size_t rules, repeat;
	bool fits;
	bool slow; /* seconds */
} costs[] = {
	{ "t", "", 400000, 0, true, false }, /* names are not tried one by one */
	{ "*.", "", 10000, 0, true, false },  { "*", "*", 200000, 0, false, true },
	{ "*[", "", 1, 100000, false, true }, /* a class of 100 KB, searched for every byte */
	{ "*[", "", 1, 1000, true, false },
};

START_FEW_TEST(rules_times_names_have_a_bound, ARRAY_LEN(costs), 2)
{
	struct layout_tensor *t;
	struct buf b = BUF_INIT(32 << 20);
	struct ckpt_err e = { 0 };
	struct layout *l = NULL;
	int rc;

	if (costs[_i].slow && !CHECK_FULL())
		return;
	t = many_tensors();
	buf_str(&b, "mesh m=2\n");
	for (size_t i = costs[_i].rules; i-- > 0;) {
		buf_printf(&b, "%s%zu%s", costs[_i].before, i, costs[_i].behind);
		for (size_t k = 0; k < costs[_i].repeat; k++)
			buf_str(&b, "b");
		buf_str(&b, costs[_i].repeat ? "] m:0\n" : " m:0\n");
	}
	ck_assert_int_eq(layout_parse(b.data, b.len, "L", &l, &e), 0);
	rc = layout_bind(l, t, MANY, &e);
	if (costs[_i].fits) {
		ck_assert_msg(!rc, "%s", e.msg);
	} else {
		ck_assert_int_eq(rc, -EFBIG);
		ck_assert_str_eq(e.msg, "L: matching all names with the globs takes more than "
					"2147483648 steps: use fewer or simpler globs");
	}
	layout_free(l);
	buf_release(&b);
	free((char *)(uintptr_t)t[0].fqn);
	free(t);
}
END_TEST

/* A string of up to 5 of the pieces, at least one. */
static void random_string(struct rng *r, const char *const *pieces, size_t n, char out[static 32])
{
	size_t at = 0;

	for (uint64_t left = 1 + rng_below(r, 5); left; left--)
		at += (size_t)snprintf(out + at, 32 - at, "%s", pieces[rng_below(r, n)]);
}

/* Rule k splits dimension k, so the box says which one it was. */
START_TEST(the_rule_is_the_first_that_text_glob_says)
{
	static const char *const globs[] = { "a", "b",	  "ab",	 "bb",	".",   "*",    "?", "[ab]",
					     "]", "[!a]", "[a.", "\\a", "\\ ", "\\\\", "#", "*a" };
	static const char *const names[] = { "a", "b", "ab", "bb", ".", "]", "[", " ", "\\", "#" };
	const uint64_t shape[] = { 2, 2, 2, 2, 2, 2 };
	struct rng r = rng_new();
	unsigned some = 0;

	for (int round = 0; round < 20000; round++) {
		char text[400] = "mesh m=2\n", glob[6][32], name[32];
		struct layout_tensor t = { name, 0, 6, shape };
		uint64_t off[6], len[6];
		size_t n = strlen(text), first = 6;
		struct layout *l;

		random_string(&r, names, ARRAY_LEN(names), name);
		t.fqn_len = strlen(name);
		for (size_t k = 0; k < 6; k++) {
			do
				random_string(&r, globs, ARRAY_LEN(globs), glob[k]);
			while (glob[k][0] == '#');
			n += (size_t)snprintf(text + n, sizeof(text) - n, "%s m:%zu\n", glob[k], k);
			if (first == 6 && text_glob(glob[k], name, t.fqn_len))
				first = k;
		}
		l = parse_for(text, &t, 1);
		REQUIRE(layout_box(l, 1, 0, off, len));
		for (size_t k = 0; k < 6; k++)
			REQUIRE(len[k] == (k == first ? 1 : 2));
		some += first < 6;
		layout_free(l);
	}
	ck_assert_uint_gt(some, 2000);
}
END_TEST

static const struct {
	const char *text, *msg;
} text_errors[] = {
	{ "", "L: no mesh line" },
	{ "# nothing\n\n", "L: no mesh line" },
	{ "* replicate\n", "L:1: a rule before the mesh line" },
	{ "\n#\nmesh a=1\nmesh b=1\n", "L:4: a second mesh line" },
	{ "mesh", "L:1: a mesh without axes" },
	{ "mesh # a=1", "L:1: a mesh without axes" },
	{ "mesh a", "L:1: 'a' is not NAME=SIZE" },
	{ "mesh a=", "L:1: 'a=' is not NAME=SIZE" },
	{ "mesh =2", "L:1: '=2' is not NAME=SIZE" },
	{ "mesh a=-1", "L:1: 'a=-1' is not NAME=SIZE" },
	{ "mesh a=2x", "L:1: 'a=2x' is not NAME=SIZE" },
	{ "mesh a = 2", "L:1: 'a' is not NAME=SIZE" },
	{ "mesh 1a=2", "L:1: '1a=2' is not NAME=SIZE" },
	{ "mesh a:b=2", "L:1: 'a:b=2' is not NAME=SIZE" },
	{ "mesh a=2 a=3", "L:1: axis 'a' is named twice" },
	{ "mesh a=2 b=0", "L:1: axis 'b' has size 0" },
	{ "mesh a=1001 b=1000", "L:1: a mesh of more than 1000000 ranks" },
	{ "mesh a=18446744073709551617", "L:1: a mesh of more than 1000000 ranks" },
	{ "mesh a=2\n*.w\n", "L:2: '*.w' is followed by neither 'replicate' nor AXIS:DIM" },
	{ "mesh a=2\n*.w # a:0\n", "L:2: '*.w' is followed by neither 'replicate' nor AXIS:DIM" },
	{ "mesh a=2\n*.w b:0\n", "L:2: unknown axis 'b'" },
	{ "mesh a=2\n*.w a:0 a:1\n", "L:2: axis 'a' is used twice" },
	{ "mesh a=2\n*.w a:0 replicate\n", "L:2: 'replicate' cannot be combined with an axis" },
	{ "mesh a=2\n*.w replicate a:0\n", "L:2: 'replicate' cannot be combined with an axis" },
	{ "mesh a=2\n*.w replicate replicate\n",
	  "L:2: 'replicate' cannot be combined with an axis" },
	{ "mesh a=2\n*.w a\n", "L:2: 'a' is not AXIS:DIM" },
	{ "mesh a=2\n*.w a:\n", "L:2: 'a:' is not AXIS:DIM" },
	{ "mesh a=2\n*.w a:-\n", "L:2: 'a:-' is not AXIS:DIM" },
	{ "mesh a=2\n*.w :0\n", "L:2: ':0' is not AXIS:DIM" },
	{ "mesh a=2\n*.w a:0x\n", "L:2: 'a:0x' is not AXIS:DIM" },
	{ "mesh a=2\n*.w a:+1\n", "L:2: 'a:+1' is not AXIS:DIM" },
	{ "mesh a=2\n*.w a:64\n", "L:2: 'a:64': tensors have at most 64 dimensions" },
	{ "mesh a=2\n*.w a:-65\n", "L:2: 'a:-65': tensors have at most 64 dimensions" },
	{ "mesh a=2\n*.w a:99999999999999999999\n",
	  "L:2: 'a:99999999999999999999': tensors have at most 64 dimensions" },
};

START_LOOP_TEST(errors_name_file_and_line, ARRAY_LEN(text_errors))
{
	struct layout *l = NULL;
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(
		parse_copy(text_errors[_i].text, strlen(text_errors[_i].text), "L", &l, &e),
		-EINVAL);
	ck_assert_str_eq(e.msg, text_errors[_i].msg);
	ck_assert_int_eq(e.code, EINVAL);
	ck_assert_ptr_null(l);
}
END_TEST

START_TEST(a_nul_byte_is_no_part_of_a_line)
{
	static const char text[] = "mesh a=2\n*\0 a:0\n";
	struct layout *l = NULL;
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(parse_copy(text, sizeof(text) - 1, "L", &l, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "L:2: a NUL byte");
}
END_TEST

START_TEST(a_mesh_has_at_most_64_axes)
{
	char text[1000] = "mesh";
	size_t n = 4;
	struct layout *l = NULL;
	struct ckpt_err e = { 0 };

	for (int i = 0; i < 64; i++)
		n += (size_t)snprintf(text + n, sizeof(text) - n, " a%d=1", i);
	l = parse(text);
	ck_assert_uint_eq(layout_ranks(l), 1);
	layout_free(l);
	(void)snprintf(text + n, sizeof(text) - n, " b=1");
	ck_assert_int_eq(parse_copy(text, strlen(text), "L", &l, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "L:1: more than 64 axes");
}
END_TEST

/* Rules that are plain names need no comparisons; their number has a bound of its own. */
START_LONG_TEST(rules_are_bounded_in_number)
{
	struct buf b = BUF_INIT(64 << 20);
	struct layout *l = NULL;
	struct ckpt_err e = { 0 };

	buf_str(&b, "mesh m=2\n");
	for (size_t i = 0; i < (size_t)1 << 20; i++)
		buf_str(&b, "a m:0\n");
	ck_assert_msg(!layout_parse(b.data, b.len, "L", &l, &e), "%s", e.msg);
	layout_free(l);
	buf_str(&b, "a m:0\n");
	ck_assert_int_eq(layout_parse(b.data, b.len, "L", &l, &e), -EFBIG);
	ck_assert_str_eq(e.msg, "L:1048578: more than 1048576 rules");
	buf_release(&b);
}
END_TEST

static void check_bind_error(const char *text, const struct layout_tensor *t, size_t n,
			     const char *msg)
{
	struct layout *l = parse(text);
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(layout_bind(l, t, n, &e), -EINVAL);
	ck_assert_str_eq(e.msg, msg);
	ck_assert_int_eq(e.code, EINVAL);
	layout_free(l);
}

START_TEST(a_dimension_that_is_not_there_is_named)
{
	const struct layout_tensor t[] = { TENSOR("w", 4, 4),
					   TENSOR("norm\n", 7),
					   { "step", 4, 0, NULL } };

	check_bind_error("mesh a=2\nw a:1\n* a:1\n", t, 2,
			 "L:3: 'norm%0A' of shape [7] has no dimension 1 to split");
	check_bind_error("mesh a=2\nw a:1\nn* a:-2", t, 2,
			 "L:3: 'norm%0A' of shape [7] has no dimension -2 to split");
	check_bind_error("mesh a=2 b=2\nw a:0\nn* b:0\ns* a:0", t, 3,
			 "L:4: 'step' of shape [] has no dimension 0 to split");
}
END_TEST

START_TEST(a_layout_can_be_bound_again_after_an_error)
{
	const struct layout_tensor t[] = { TENSOR("w", 4, 4), TENSOR("norm", 7) };
	struct layout *l = parse("mesh a=2\n* a:1\n");
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(layout_bind(l, t, 2, &e), -EINVAL);
	ck_assert_int_eq(layout_bind(l, t, 1, &e), 0);
	ck_assert_str_eq(box(l, 1, 0, 2), "0+4 2+2");
	layout_free(l);
}
END_TEST

START_TEST(rules_without_tensors_are_told)
{
	const struct layout_tensor t[] = { TENSOR("a", 4), TENSOR("b", 4) };
	struct layout *l =
		parse_for("mesh m=2\na m:0\nnone.* m:0\n[ab] m:0\na replicate\n* m:0\n", t, 2);
	char what[200];

	ck_assert(layout_unused(l, 0, what, sizeof(what)));
	ck_assert_str_eq(what, "L:3: no tensor for 'none.*'");
	ck_assert(layout_unused(l, 1, what, sizeof(what)));
	ck_assert_str_eq(what, "L:5: no tensor for 'a'");
	ck_assert(!layout_unused(l, 2, what, sizeof(what))); /* "*" is for what may be left */
	layout_free(l);
}
END_TEST

/* ---- JSON ---- */

#define FULL(mesh, map, ranks) \
	"\"mesh_shape\": " mesh ", \"tensor_map\": " map ", \"rank_list\": " ranks

START_TEST(ranks_and_axes_are_numbered_as_hyperparallel_does)
{
	const struct layout_tensor t[] = { TENSOR("w", 8, 6), TENSOR("v", 8), TENSOR("n", 3),
					   TENSOR("only7", 2), TENSOR("elsewhere", 2) };
	struct layout *l = parse_for(
		" {\"9\": {\"v\": {" FULL(
			"[2, 2]", "[[0, 1]]",
			"[4, 9, 7, 12]") "}, \"n\": {}},\n"
					 "  \"7\": {\"w\": {" FULL(
						 "[2, 2]", "[0, -1]",
						 "[4, 9, 7, 12]") ", \"full_shape\": [8, 6], "
								  "\"type\": \"torch.float32\", "
								  "\"alias_name\": [\"dp\", "
								  "\"tp\"],"
								  " \"interleaved_parallel\": "
								  "false, \"more\": {\"x\": [1.5, "
								  "null]}},\n"
								  "  \"v\": {" FULL(
									  "[2, 2]", "[[1, 0]]",
									  "[4, 9, 7, 12]") "},\n"
											   "  "
											   "\"n\": "
											   "{\"type"
											   "\": "
											   "\"torch"
											   ".float3"
											   "2\", "
											   "\"full_"
											   "shape\""
											   ": "
											   "[3]}, "
											   "\"only7"
											   "\": "
											   "{}}}\n",
		t, ARRAY_LEN(t));

	/* rank 7 is number 2 of rank_list, at (1, 0); rank 9 number 1, at (0, 1) */
	ck_assert_uint_eq(layout_ranks(l), 2);
	ck_assert_uint_eq(layout_rank(l, 0), 7);
	ck_assert_uint_eq(layout_rank(l, 1), 9);
	check_boxes(l, 0, 2, (const char *const[]){ "0+4 0+6", "-" });
	check_boxes(l, 1, 1, (const char *const[]){ "4+2", "4+2" });
	check_boxes(l, 2, 1, (const char *const[]){ "0+3", "0+3" });
	check_boxes(l, 3, 1, (const char *const[]){ "0+2", "-" });
	check_boxes(l, 4, 1, (const char *const[]){ "-", "-" });
	layout_free(l);
}
END_TEST

START_TEST(device_matrix_is_mesh_shape)
{
	const struct layout_tensor t[] = { TENSOR("w", 8) };
	struct layout *l =
		parse_for("{\"1\": {\"w\": {\"device_matrix\": [2], \"mesh_shape\": null,"
			  "\"tensor_map\": [[-1, 0]], \"rank_list\": [0, 1]}}}",
			  t, 1);

	ck_assert_str_eq(box(l, 0, 0, 1), "4+4");
	layout_free(l);
}
END_TEST

/* Axis 0 in ceil parts, axis 1 in balanced ones: 11 = 6 + 5, 6 = 2+2+1+1, 5 = 2+1+1+1. */
START_TEST(uneven_axes_are_cut_as_torch_does_and_others_balanced)
{
	const struct layout_tensor t[] = { TENSOR("w", 11), TENSOR("v", 3) };
	static const char *const want[] = {
		"0+2", "2+2", "4+1", "5+1", "6+2", "8+1", "9+1", "10+1"
	};
	static const char *const ceil[] = { "0+1", "1+1", "2+1", "3+0" };

	for (unsigned rank = 0; rank < 8; rank++) {
		struct layout *l;
		char text[500];

		(void)snprintf(
			text, sizeof(text),
			"{\"%u\": {\"w\": {\"uneven_shard_mesh_dims\": [0], " FULL(
				"[2, 4]", "[[1, 0]]",
				"[0, 1, 2, 3, 4, 5, 6, 7]") "},"
							    "\"v\": {\"uneven_shard_mesh_dims\": "
							    "%s, " FULL(
								    "[2, 4]", "[0]",
								    "[0, 1, 2, 3, 4, 5, 6, 7]") "}}"
												"}",
			rank,
			rank % 2   ? "[1]"
			: rank % 4 ? "[]"
				   : "null");
		l = parse_for(text, t, 2);
		ck_assert_str_eq(box(l, 0, 0, 1), want[rank]);
		ck_assert_str_eq(box(l, 0, 1, 1), ceil[rank % 4]);
		layout_free(l);
	}
}
END_TEST

START_TEST(parameters_without_tensors_are_told_once)
{
	const struct layout_tensor t[] = { TENSOR("w", 8) };
	struct layout *l = parse_for(
		"{\"0\": {\"w\": {}, \"x\\ny\": {}}, \"1\": {\"x\\ny\": {}, \"w\": {}}}", t, 1);
	char what[200];

	ck_assert(layout_unused(l, 0, what, sizeof(what)));
	ck_assert_str_eq(what, "L: no tensor 'x%0Ay' in the checkpoint");
	ck_assert(!layout_unused(l, 1, what, sizeof(what)));
	layout_free(l);
}
END_TEST

START_TEST(a_rank_may_hold_nothing)
{
	const struct layout_tensor t[] = { TENSOR("w", 8) };
	struct layout *l = parse_for("{\"0\": {}}", t, 1);

	ck_assert_uint_eq(layout_ranks(l), 1);
	ck_assert_str_eq(box(l, 0, 0, 1), "-");
	layout_free(l);
}
END_TEST

#define P(members) "{\"3\": {\"w\": {" members "}}}"
static const struct {
	const char *text, *msg;
} json_errors[] = {
	{ "{}", "L: no rank is listed" },
	{ "{", "L: byte 1: a string expected" },
	{ "{\"0\" {}}", "L: byte 5: ':' expected" },
	{ "{\"0\": {},}", "L: byte 9: a string expected" },
	{ "{\"0\": {} \"1\": {}}", "L: byte 9: ',' or '}' expected" },
	{ "{\"0\": {}", "L: byte 8: ',' or '}' expected" },
	{ "{\"0\": {}} x", "L: byte 10: data after the end" },
	{ "{\"0\": []}", "L: byte 6: '{' expected" },
	{ "{\"0\": {\"w\": {]}}", "L: byte 13: string or '}' expected near ']'" },
	{ "{\"-1\": {}}", "L: '-1' is not a rank, a number below 1000000" },
	{ "{\"01\": {}}", "L: '01' is not a rank, a number below 1000000" },
	{ "{\"\": {}}", "L: '' is not a rank, a number below 1000000" },
	{ "{\"1000000\": {}}", "L: '1000000' is not a rank, a number below 1000000" },
	{ "{\"0\": {}, \"1\": {}, \"0\": {}}", "L: rank 0 is listed twice" },
	{ "{\"3\": {\"w\": {}, \"v\": {}, \"w\": {}}}", "L: rank 3: 'w': listed twice" },
	{ "{\"3\": {\"w\": []}}", "L: rank 3: 'w': not an object" },
	{ P("\"type\": 1"), "L: rank 3: 'w': type is not a string" },
	{ P("\"alias_name\": 1"), "L: rank 3: 'w': alias_name is not a list" },
	{ P("\"alias_name\": [\"a\", 1]"), "L: rank 3: 'w': alias_name[1] is not a string" },
	{ P("\"interleaved_parallel\": 1"),
	  "L: rank 3: 'w': interleaved_parallel is neither true nor false" },
	{ P("\"full_shape\": 4"),
	  "L: rank 3: 'w': full_shape is not a list of at most 64 numbers" },
	{ P("\"full_shape\": [1, -1]"), "L: rank 3: 'w': full_shape[1] is not a valid number" },
	{ P("\"full_shape\": [1.0]"), "L: rank 3: 'w': full_shape[0] is not a valid number" },
	{ P("\"tensor_map\": [0]"), "L: rank 3: 'w': neither mesh_shape nor device_matrix" },
	{ P("\"device_matrix\": 4"),
	  "L: rank 3: 'w': device_matrix is not a list of at most 64 numbers" },
	{ P("\"mesh_shape\": [2], \"device_matrix\": [3]"),
	  "L: rank 3: 'w': mesh_shape and device_matrix differ" },
	{ P("\"mesh_shape\": []"), "L: rank 3: 'w': its mesh has no ranks, or more than 1000000" },
	{ P("\"mesh_shape\": [1, 0]"),
	  "L: rank 3: 'w': its mesh has no ranks, or more than 1000000" },
	{ P("\"mesh_shape\": [1001, 1000]"),
	  "L: rank 3: 'w': its mesh has no ranks, or more than 1000000" },
	{ P("\"mesh_shape\": [2], \"rank_list\": [3, 4]"),
	  "L: rank 3: 'w': tensor_map is not a list of at most 64 entries" },
	{ P(FULL("[2]", "[1]", "[3, 4]")),
	  "L: rank 3: 'w': tensor_map[0] does not name axes of a mesh of 1" },
	{ P(FULL("[2]", "[-1, -2]", "[3, 4]")),
	  "L: rank 3: 'w': tensor_map[1] does not name axes of a mesh of 1" },
	{ P(FULL("[2]", "[\"dp\"]", "[3, 4]")),
	  "L: rank 3: 'w': tensor_map[0] does not name axes of a mesh of 1" },
	{ P(FULL("[2]", "[[0, [0]]]", "[3, 4]")),
	  "L: rank 3: 'w': tensor_map[0] does not name axes of a mesh of 1" },
	{ P(FULL("[2, 1]", "[1, 1]", "[3, 4]")), "L: rank 3: 'w': tensor_map uses axis 1 twice" },
	{ P(FULL("[2, 1]", "[[0, 0]]", "[3, 4]")), "L: rank 3: 'w': tensor_map uses axis 0 twice" },
	{ P("\"mesh_shape\": [2], \"tensor_map\": [0]"),
	  "L: rank 3: 'w': rank_list is not a list" },
	{ P(FULL("[2]", "[0]", "3")), "L: rank 3: 'w': rank_list is not a list" },
	{ P(FULL("[2]", "[0]", "[]")), "L: rank 3: 'w': rank_list has 0 ranks, the mesh 2" },
	{ P(FULL("[2]", "[0]", "[3, 4,]")), "L: byte 70: invalid token near ']'" },
	{ P(FULL("[2]", "[0]", "[3, 04]")), "L: byte 68: invalid token near '04'" },
	{ P(FULL("[2]", "[0]", "[3, 1000000]")),
	  "L: rank 3: 'w': rank_list[1] is not a number below 1000000" },
	{ P(FULL("[2]", "[0]", "[-3, 4]")),
	  "L: rank 3: 'w': rank_list[0] is not a number below 1000000" },
	{ P(FULL("[2]", "[0]", "[3.0, 4]")),
	  "L: rank 3: 'w': rank_list[0] is not a number below 1000000" },
	{ P(FULL("[2]", "[0]", "[3, 18446744073709551620]")),
	  "L: byte 68: too big integer near '18446744073709551620'" },
	{ P("\"rank_list\": [3"), "L: byte 28: ']' expected near '}'" },
	{ P(FULL("[2]", "[0]", "[3]")), "L: rank 3: 'w': rank_list has 1 ranks, the mesh 2" },
	{ P(FULL("[2]", "[0]", "[4, 5]")), "L: rank 3: 'w': the rank is not in rank_list" },
	{ P(FULL("[2]", "[0]", "[3, 3]")), "L: rank 3: 'w': the rank is twice in rank_list" },
	{ P(FULL("[2]", "[0]", "[3, \"4\"]")),
	  "L: rank 3: 'w': rank_list[1] is not a number below 1000000" },
	{ P(FULL("[2]", "[0]", "[3, 4]") ", \"full_shape\": [4, 4]"),
	  "L: rank 3: 'w': tensor_map has 1 entries, full_shape 2" },
	{ P(FULL("[2]", "[0]", "[3, 4]") ", \"uneven_shard_mesh_dims\": [1]"),
	  "L: rank 3: 'w': uneven_shard_mesh_dims[0]: no axis 1 in a mesh of 1" },
	{ P(FULL("[2]", "[0]", "[3, 4]") ", \"uneven_shard_mesh_dims\": 0"),
	  "L: rank 3: 'w': uneven_shard_mesh_dims is not a list of at most 64 numbers" },
};

START_LOOP_TEST(json_errors_name_rank_and_parameter, ARRAY_LEN(json_errors))
{
	struct layout *l = NULL;
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(
		parse_copy(json_errors[_i].text, strlen(json_errors[_i].text), "L", &l, &e),
		-EINVAL);
	ck_assert_str_eq(e.msg, json_errors[_i].msg);
	ck_assert_ptr_null(l);
}
END_TEST

START_TEST(keys_inside_a_parameter_may_not_come_twice)
{
	static const char text[] = P("\"type\": \"a\", \"type\": \"b\"");
	struct layout *l = NULL;
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(parse_copy(text, sizeof(text) - 1, "L", &l, &e), -EINVAL);
	ck_assert_str_eq(e.msg, "L: byte 38: duplicate object key near '\"type\"'");
}
END_TEST

START_TEST(a_layout_for_another_tensor_is_refused)
{
	const struct layout_tensor t[] = { TENSOR("w", 10, 4) };

	check_bind_error(P("\"full_shape\": [10, 5]"), t, 1,
			 "L: rank 3: 'w' of shape [10,4]: full_shape is [10,5]");
	check_bind_error(P("\"full_shape\": [10]"), t, 1,
			 "L: rank 3: 'w' of shape [10,4]: full_shape is [10]");
	check_bind_error(P(FULL("[2]", "[0]", "[2, 3]")), t, 1,
			 "L: rank 3: 'w' of shape [10,4]: tensor_map has 1 entries");
	check_bind_error(
		P(FULL("[2, 2]", "[[0, 1], -1]", "[0, 1, 2, 3]")), t, 1,
		"L: rank 3: 'w' of shape [10,4]: dimension 0 cannot be divided into 4 equal parts");
	check_bind_error(
		P(FULL("[2, 3]", "[1, 0]", "[5, 4, 3, 2, 1, 0]")), t, 1,
		"L: rank 3: 'w' of shape [10,4]: dimension 1 cannot be divided into 3 equal parts");
	/* only the second rank's entry says so */
	check_bind_error("{\"0\": {\"w\": {}}, \"3\": {\"w\": {\"full_shape\": []}}}", t, 1,
			 "L: rank 3: 'w' of shape [10,4]: full_shape is []");
}
END_TEST

/* ---- files ---- */

static const char *path_of(const char *name)
{
	static char path[4][4096];
	static int at;

	at = (at + 1) % 4;
	(void)snprintf(path[at], sizeof(path[at]), "%s/%s", getenv("TMPDIR"), name);
	return path[at];
}

static void write_file(const char *name, const char *text)
{
	FILE *f = fopen(path_of(name), "w");

	ck_assert_ptr_nonnull(f);
	ck_assert_int_ge(fputs(text, f), 0);
	ck_assert_int_eq(fclose(f), 0);
}

static void check_read_error(const char *name, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
static void check_read_error(const char *name, int code, const char *fmt, ...)
{
	struct layout *l = NULL;
	struct ckpt_err e = { 0 };
	char want[500];
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(want, sizeof(want), fmt, ap);
	va_end(ap);
	ck_assert_int_eq(layout_read(path_of(name), &l, &e), -code);
	ck_assert_str_eq(e.msg, want);
	ck_assert_ptr_null(l);
}

START_TEST(files_are_read_by_what_they_hold)
{
	struct layout *l = NULL;
	struct ckpt_err e = { 0 };

	write_file("t.layout", "mesh a=3\n");
	ck_assert_int_eq(layout_read(path_of("t.layout"), &l, &e), 0);
	ck_assert_uint_eq(layout_ranks(l), 3);
	layout_free(l);
	write_file("t.txt", "\n {\"5\": {}}");
	ck_assert_int_eq(layout_read(path_of("t.txt"), &l, &e), 0);
	ck_assert_uint_eq(layout_rank(l, 0), 5);
	layout_free(l);
	l = NULL;
	write_file("t.txt", "");
	check_read_error("t.txt", EINVAL, "%s: no mesh line", path_of("t.txt"));
	check_read_error("none", ENOENT, "open layout '%s': No such file or directory",
			 path_of("none"));
	ck_assert_int_eq(mkfifo(path_of("fifo"), 0600), 0);
	check_read_error("fifo", EINVAL, "read layout '%s': neither a file nor a directory",
			 path_of("fifo"));
	write_file("t.txt", "mesh a=1");
	ck_assert_int_eq(truncate(path_of("t.txt"), (off_t)LAYOUT_MAX_FILE + 1), 0);
	check_read_error("t.txt", EFBIG, "read layout '%s': more than 256 MiB", path_of("t.txt"));
}
END_TEST

START_TEST(a_directory_is_all_its_layout_files)
{
	const struct layout_tensor t[] = { TENSOR("w", 4) };
	struct layout *l = NULL;
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(mkdir(path_of("d"), 0700), 0);
	write_file("d/readme", "not a layout");
	check_read_error("d", EINVAL, "%s: no *.layout file in it", path_of("d"));
	write_file("d/b.layout", "{\"1\": {\"w\": {" FULL("[2]", "[0]", "[0, 1]") "}}}");
	write_file("d/a.layout",
		   "{\"10\": {}, \"0\": {\"w\": {" FULL("[2]", "[0]", "[0, 1]") "}}}");
	ck_assert_msg(!layout_read(path_of("d"), &l, &e), "%s", e.msg);
	ck_assert_int_eq(layout_bind(l, t, 1, &e), 0);
	ck_assert_uint_eq(layout_ranks(l), 3);
	ck_assert_uint_eq(layout_rank(l, 2), 10);
	check_boxes(l, 0, 1, (const char *const[]){ "0+2", "2+2", "-" });
	layout_free(l);
	l = NULL;
	write_file("d/c.layout", "{\"10\": {}}");
	check_read_error("d", EINVAL, "rank 10 is listed in '%s' and in '%s'",
			 path_of("d/a.layout"), path_of("d/c.layout"));
	write_file("d/c.layout", "mesh a=2");
	check_read_error("d", EINVAL, "%s: byte 0: '{' expected", path_of("d/c.layout"));
	write_file("d/c.layout", "{\"2\": {\"w\": {\"full_shape\": [5]}}}");
	ck_assert_int_eq(layout_read(path_of("d"), &l, &e), 0);
	ck_assert_int_eq(layout_bind(l, t, 1, &e), -EINVAL);
	ck_assert_ptr_nonnull(
		strstr(e.msg, "c.layout: rank 2: 'w' of shape [4]: full_shape is [5]"));
	layout_free(l);
}
END_TEST

/* ---- compared with a model that is asked for every element ---- */

struct model {
	uint64_t mesh[3], shape[DIMS];
	size_t n_axes, n_dims, n;
	struct {
		size_t axis, dim;
		enum ckpt_split how;
	} p[3];
};

static void random_model(struct rng *r, struct model *m, bool even)
{
	size_t axes[3] = { 0, 1, 2 };

	*m = (struct model){ .n_axes = 1 + rng_below(r, 3), .n_dims = 1 + rng_below(r, DIMS) };
	for (size_t i = 0; i < m->n_axes; i++)
		m->mesh[i] = 1 + rng_below(r, 3);
	for (size_t d = 0; d < m->n_dims; d++)
		m->shape[d] = rng_below(r, 8);
	m->n = rng_below(r, m->n_axes + 1);
	for (size_t i = 0; i < m->n; i++) {
		size_t k = i + rng_below(r, m->n_axes - i);

		m->p[i].axis = axes[k];
		axes[k] = axes[i];
		m->p[i].dim = rng_below(r, m->n_dims);
		if (even && m->shape[m->p[i].dim] % 27)
			m->shape[m->p[i].dim] = 27 * 8;
	}
}

/* The elements of one dimension that are left to a rank, selected from a list one by one. */
static size_t elements_of(const struct model *m, uint64_t rank, size_t dim, uint64_t *ret)
{
	uint64_t at[3];
	size_t n = m->shape[dim];

	mesh_coords(m->n_axes, m->mesh, rank, at);
	for (size_t i = 0; i < n; i++)
		ret[i] = i;
	for (size_t i = 0; i < m->n; i++) {
		uint64_t parts = m->mesh[m->p[i].axis], mine = at[m->p[i].axis];
		size_t kept = 0, part = 0, in_part = 0;

		if (m->p[i].dim != dim)
			continue;
		for (size_t x = 0; x < n; x++) {
			size_t size = m->p[i].how == CKPT_SPLIT_BALANCED
					      ? n / parts + (part < n % parts)
					      : (n + parts - 1) / parts;

			if (part == mine)
				ret[kept++] = ret[x];
			if (++in_part == size) {
				part++;
				in_part = 0;
			}
		}
		n = kept;
	}
	return n;
}

static void check_model(const struct layout *l, const struct model *m, size_t i, uint64_t pos)
{
	uint64_t off[DIMS], len[DIMS], want[27 * 8];

	REQUIRE(layout_box(l, i, 0, off, len));
	REQUIRE(box_inside(m->n_dims, off, len, m->shape));
	for (size_t d = 0; d < m->n_dims; d++) {
		size_t n = elements_of(m, pos, d, want);

		REQUIRE(len[d] == n);
		for (size_t x = 0; x < n; x++)
			REQUIRE(want[x] == off[d] + x);
	}
}

START_TEST(random_rules_give_what_the_splits_leave)
{
	struct rng r = rng_new();

	for (int round = 0; round < 3000; round++) {
		struct model m;
		struct layout_tensor t = { "w", 1, 0, m.shape };
		char text[300];
		size_t n = 0;
		struct layout *l;

		random_model(&r, &m, false);
		t.n_dims = m.n_dims;
		n += (size_t)snprintf(text, sizeof(text), "mesh");
		for (size_t i = 0; i < m.n_axes; i++)
			n += (size_t)snprintf(text + n, sizeof(text) - n, " a%zu=%llu", i,
					      (unsigned long long)m.mesh[i]);
		n += (size_t)snprintf(text + n, sizeof(text) - n, m.n ? "\nw" : "\nw replicate");
		for (size_t i = 0; i < m.n; i++)
			n += (size_t)snprintf(text + n, sizeof(text) - n, " a%zu:%d", m.p[i].axis,
					      (int)m.p[i].dim -
						      (rng_chance(&r, 50) ? (int)m.n_dims : 0));
		l = parse_for(text, &t, 1);
		for (size_t i = 0; i < layout_ranks(l); i++)
			check_model(l, &m, i, i);
		layout_free(l);
	}
}
END_TEST

/* The entry of one rank; `first` is the number of the first rank in rank_list. */
static size_t json_of(const struct model *m, int uneven, uint64_t rank, uint64_t first,
		      uint64_t ranks, char *out, size_t cap)
{
	size_t n = 0;

#define ADD(...) n += (size_t)snprintf(out + n, cap - n, __VA_ARGS__)
	ADD("\"%llu\": {\"w\": {\"mesh_shape\": [", (unsigned long long)(first + rank));
	for (size_t i = 0; i < m->n_axes; i++)
		ADD("%s%llu", i ? "," : "", (unsigned long long)m->mesh[i]);
	ADD("], \"rank_list\": [");
	for (uint64_t i = 0; i < ranks; i++)
		ADD("%s%llu", i ? "," : "", (unsigned long long)(first + i));
	ADD("], \"tensor_map\": [");
	for (size_t d = 0; d < m->n_dims; d++) {
		ADD("%s[-1", d ? "," : "");
		for (size_t i = 0; i < m->n; i++)
			if (m->p[i].dim == d)
				ADD(",%zu", m->n_axes - 1 - m->p[i].axis);
		ADD("]");
	}
	ADD("]");
	if (uneven >= 0) {
		ADD(", \"uneven_shard_mesh_dims\": [-1");
		n -= 2;
		for (size_t i = 0, k = 0; i < m->n_axes; i++)
			if (uneven >> i & 1)
				ADD("%s%zu", k++ ? "," : "", i);
		ADD("]");
	}
	ADD("}}");
#undef ADD
	return n;
}

START_TEST(random_json_gives_what_the_splits_leave)
{
	struct rng r = rng_new();

	for (int round = 0; round < 2000; round++) {
		int uneven = rng_chance(&r, 60) ? (int)rng_below(&r, 8) : -1;
		uint64_t first = rng_below(&r, 50), ranks;
		struct model m;
		struct layout_tensor t = { "w", 1, 0, m.shape };
		char text[20000];
		size_t n = 1;
		struct layout *l;

		random_model(&r, &m, uneven < 0);
		t.n_dims = m.n_dims;
		for (size_t i = 0; i < m.n; i++)
			m.p[i].how = uneven >= 0 && !(uneven >> m.p[i].axis & 1)
					     ? CKPT_SPLIT_BALANCED
					     : CKPT_SPLIT_CEIL;
		REQUIRE(mesh_size(m.n_axes, m.mesh, &ranks));
		text[0] = '{';
		for (uint64_t i = 0; i < ranks; i++) {
			n += json_of(&m, uneven, i, first, ranks, text + n, sizeof(text) - n);
			text[n++] = i + 1 < ranks ? ',' : '}';
		}
		text[n] = 0;
		l = parse_for(text, &t, 1);
		REQUIRE(layout_ranks(l) == ranks && layout_rank(l, 0) == first);
		for (size_t i = 0; i < ranks; i++)
			check_model(l, &m, i, i);
		layout_free(l);
	}
}
END_TEST

/* ---- limits ---- */

static const char *const fault_texts[] = {
	"mesh a=2 b=2\nw a:0\nv b:0 a:0\n* replicate\n",
	"{\"0\": {\"w\": {" FULL("[2]", "[0]", "[0, 1]") "}, \"v\": {}}, \"1\": {\"w\": {}}}",
};

START_LOOP_TEST(out_of_memory_is_an_error, ARRAY_LEN(fault_texts))
{
	const struct layout_tensor t[] = { TENSOR("w", 4), TENSOR("v", 4) };
	unsigned failed = 0;

	FAULT_LOOP(FAULT_ALLOC)
	{
		struct layout *l = NULL;
		struct ckpt_err e = { 0 };
		int rc = parse_copy(fault_texts[_i], strlen(fault_texts[_i]), "L", &l, &e);

		if (!rc)
			rc = layout_bind(l, t, 2, &e);
		fault_off();
		ck_assert_int_eq(rc, -e.code);
		if (rc) {
			ck_assert_msg(e.code == ENOMEM, "%s", e.msg);
			failed++;
		}
		layout_free(l);
	}
	ck_assert_uint_gt(failed, 8);
}
END_TEST

START_LOOP_TEST(a_directory_is_read_whole_or_not_at_all, 2)
{
	static const enum fault_kind kinds[] = { FAULT_ALLOC, FAULT_READ };
	static const int codes[] = { ENOMEM, EIO };
	unsigned failed = 0;

	char dir[16], file[40];

	(void)snprintf(dir, sizeof(dir), "faults%d", _i);
	ck_assert_int_eq(mkdir(path_of(dir), 0700), 0);
	for (int i = 0; i < 2; i++) {
		(void)snprintf(file, sizeof(file), "%s/%d.layout", dir, i);
		write_file(file, i ? "{\"1\": {}}" : "{\"0\": {}}");
	}
	FAULT_LOOP(kinds[_i])
	{
		struct layout *l = NULL;
		struct ckpt_err e = { 0 };
		int rc = layout_read(path_of(dir), &l, &e);

		fault_off();
		ck_assert_int_eq(rc, -e.code);
		if (rc)
			ck_assert_msg(e.code == codes[_i], "%s", e.msg);
		else
			ck_assert_uint_eq(layout_ranks(l), 2);
		failed += rc != 0;
		layout_free(l);
	}
	ck_assert_uint_ge(failed, 2);
}
END_TEST

SUITE(layout, .seconds = 240)
