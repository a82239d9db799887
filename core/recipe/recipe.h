/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recipe - a model made of slices of stored tensors: maps stored names and shapes to other names
 * and shapes.
 *
 *	# take layers off their stack and queries out of a fused projection, leave out padding
 *	param layers = config.num_hidden_layers | args.num_layers
 *	param hidden = config.hidden_size | args.hidden_size
 *	param vocab = config.vocab_size
 *	param heads = config.num_attention_heads | args.num_attention_heads
 *	param groups = args.num_query_groups if args.group_query_attention | heads
 *	param d = config.head_dim | args.kv_channels | hidden / heads
 *	param r = heads / groups
 *	prefix embedding.word_embeddings.weight model. none
 *	model.embed_tokens.weight = embedding.word_embeddings.weight [0..vocab of any, hidden]
 *	for i in layers
 *	  layers.{i}.q.weight  = layers.[i].qkv.weight [groups : 0..r of r+2 : d, hidden]
 *	  layers.{i}.q.bias   ?= layers.[i].qkv.bias [groups : 0..r of r+2 : d]
 *	end
 *
 * A statement is a line, continued by the lines after it that begin with =, ?=, | or +. Blank lines
 * are ignored, and so is text after a # at the start of a line or after a blank.
 *
 *	param NAME = CHOICE | CHOICE ...    CHOICE: EXPR or EXPR if EXPR
 *		A number: the first choice whose values are all known and whose condition, if any,
 *		is known and not 0. config.KEY is a value of config.json, args.KEY one of the
 *		checkpoint's args: integers, or true and false as 1 and 0. Looked up when first
 *		needed. A KEY with dots leads into objects, and config.KEY is WORD is 1 if the
 *		value is that text, 0 if it is another.
 *	refuse EXPR TEXT
 *		Stop with the error TEXT if EXPR is known and not 0.
 *	prefix STORED PREFIX ...
 *		All stored names begin with the first PREFIX under which STORED exists; `none` is
 *		the empty prefix.
 *	ignore GLOB ...
 *		Stored tensors that need not be used. Other unused tensors cause a warning.
 *	for NAME in EXPR ... end, for NAME in EXPR..EXPR ... end
 *		From 0, or the first value, up to but not including the last.
 *	if stored STORED ... else ... end
 *	OUT = PART + PART ... | PART + PART ...        PART: STORED [AXES] ORDER COMPUTATION
 *		The tensor OUT is cut from the first alternative whose first STORED exists: its
 *		parts, one after another along their first axis. If there is none, that is an error,
 *		or, with `?=` in place of `=`, OUT is left out.
 *
 * ORDER, if any, is `order N N ...` and exchanges the axes of a part: the first one is that
 * numbered by the first N, from 0, and so on. N:N, or more of them, are joined to one axis, the
 * outermost first: from [hidden, heads, d], `order 1:2 0` makes [heads * d, hidden].
 *
 * COMPUTATION, if any, is done to each element of the part; all parts of a tensor have the same:
 * times NUMBER, over NUMBER, plus NUMBER or minus NUMBER, as in codec/arith.h. NUMBER: a number, a
 * name, (EXPR), sqrt(EXPR), or one of them rounded: bfloat16(EXPR), bfloat16(sqrt(EXPR)); not 0.
 *
 * EXPR consists of numbers, names, + - * / % and parentheses. Negative results are errors, and
 * division must be exact; % is the remainder. In OUT and STORED, {EXPR} is replaced by its value.
 * In STORED, .[i]. is replaced by the value of the loop variable i, or removed: then i is the index
 * of a leading axis, which must be as long as the end of the loop; several such axes are in the
 * order of their brackets. It is an error if both exist.
 *
 * AXES are the axes that STORED must have after those, separated by commas. An axis consists of
 * factors separated by colons, the outermost first, whose sizes multiply to its length. A factor is
 *
 *	N               all of N
 *	A..B of N       A up to but not including B, of N
 *	A of N          only A
 *	any             an axis of any length; also A..B of any, A of any; must be alone in its axis
 *
 * The result has the selected parts in their order, except that of two factors `swap F : G`, those
 * of G are outside those of F: [heads : swap d/2 : 2] takes the even rows of every head, then the
 * odd ones. An axis that is a single `A of N` is dropped from the result. Example: in a projection
 * whose rows are, for each group of heads, r queries, then a key, then a value, each of d rows, the
 * rows of the queries are [groups : 0..r of r+2 : d, hidden].
 *
 * Errors are EINVAL with the file, the line and the problem.
 *
 * Threads: a recipe is immutable once parsed; the rest is pure.
 */
#ifndef RECIPE_RECIPE_H
#define RECIPE_RECIPE_H

#include "tensor/namelist.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt_err;
struct recipe;
struct vtensor;

#define RECIPE_MAX_FILE	  ((size_t)1 << 20) /* bytes */
#define RECIPE_MAX_PARAMS 1000		    /* each may use those defined before it */
/*
 * Limits on the cost of a recipe, however its loops, alternatives and conditions multiply. Steps:
 * 64 for a statement, a round of a loop, a name and an axis, 4 for each part of an expression, 1
 * for a byte of a name, more if it is looked up among many, 1 for a number that positions a piece.
 * Results: bytes of memory for them. A model of 500,000 tensors takes less than a quarter of
 * either.
 */
#define RECIPE_MAX_STEPS   ((uint64_t)1 << 31) /* a few seconds */
#define RECIPE_MAX_RESULTS ((uint64_t)512 << 20)

/* file: the name of the text in messages; copied, like text. */
int recipe_parse(const char *text, size_t len, const char *file, struct recipe **ret,
		 struct ckpt_err *e);
void recipe_free(struct recipe *r); /* NULL is fine */

/* ---- built-in recipes ---- */

struct recipe_builtin {
	const char *name, *summary;
	/* NUL-terminated. Empty: the name stands for those that begin with it and '-'. */
	const char *text, *end;
	const char *const *models; /* model_types of config.json it is for; ends with NULL */
};
/* NULL past the last. */
const struct recipe_builtin *recipe_builtin(size_t i);
const struct recipe_builtin *recipe_builtin_named(const char *name);
/* The recipe that `choice`, a name without a text, stands for with this model_type, or NULL. */
const struct recipe_builtin *recipe_builtin_for(const char *choice, const char *model_type);

/* ---- use ---- */

enum recipe_from { RECIPE_CONFIG, RECIPE_ARGS };
struct recipe_facts {
	bool has[2]; /* does the source exist at all? By enum recipe_from; for messages */
	/* 0; 1: not given; or a negative errno: given, but not a number. */
	int (*number)(void *arg, enum recipe_from from, const char *key, uint64_t *ret,
		      struct ckpt_err *e);
	/* NULL: not given, or not a text. May be NULL. */
	const char *(*text)(void *arg, enum recipe_from from, const char *key);
	void *arg;
};

struct recipe_source {
	const uint64_t *shape;
	uint32_t number; /* in the catalog; used in pieces */
	uint8_t stored,
		shown; /* enum ckpt_dtype: as stored, and as shown, also for results made from it */
	uint8_t n_dims;
};

struct recipe_in {
	const struct namelist *names; /* of the stored tensors; their index is into sources */
	const struct recipe_source *sources;
	const struct recipe_facts *facts;
	void (*warn)(void *arg, const char *what); /* may be NULL */
	void *warn_arg;
	size_t *found; /* how many of the names looked for exist, also set on failure; or NULL */
};

struct recipe_out {
	struct namelist names;	  /* their index is into tensors */
	struct vtensor **tensors; /* each has at least one piece, unless it is empty */
};

/* The caller releases *ret. EEXIST: two results have the same name. EFBIG: more than
 * RECIPE_MAX_STEPS or RECIPE_MAX_RESULTS. */
int recipe_apply(const struct recipe *r, const struct recipe_in *in, struct recipe_out *ret,
		 struct ckpt_err *e);
void recipe_out_release(struct recipe_out *o);
/*
 * Runs the recipe backwards: the names of `in` are those of results, and *ret are the tensors that
 * the recipe would make them from, in its first alternatives. Indices in brackets become axes,
 * unless the rounds of the outermost loops differ: then the tensors of each round have names of
 * their own. Padding is left out. The recipe would make the same results again: EINVAL, with the
 * rule, if it drops elements or uses some twice, if a result is missing or has another shape, or if
 * no rule makes it. warn and found of `in` are not used.
 */
int recipe_invert(const struct recipe *r, const struct recipe_in *in, struct recipe_out *ret,
		  struct ckpt_err *e);

#endif
