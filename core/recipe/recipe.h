/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recipe - a model made of slices of stored tensors: their names and shapes in, other names and
 * shapes out.
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
 * A statement is a line, and lines behind it that begin with =, ?= or |. Blank lines, and what
 * follows a # at the start of a line or behind a blank, say nothing.
 *
 *	param NAME = CHOICE | CHOICE ...    CHOICE: EXPR or EXPR if EXPR
 *		A number. The first choice counts of which all is known, and whose condition is
 *		known and not 0. config.KEY is what config.json says, args.KEY what the
 *		checkpoint's args say: whole numbers, and true and false as 1 and 0. Looked up
 *		when it is first needed.
 *	refuse EXPR TEXT
 *		End with the error TEXT where EXPR is known and not 0.
 *	prefix STORED PREFIX ...
 *		All stored names begin with the first PREFIX with which STORED is there; `none` is
 *		the empty one.
 *	ignore GLOB ...
 *		Stored tensors that nobody misses. Others that no rule uses are a warning.
 *	for NAME in EXPR ... end, for NAME in EXPR..EXPR ... end
 *		From 0, or the first, up to but not including the last.
 *	if stored STORED ... else ... end
 *	OUT = STORED [AXES] | STORED [AXES] ...
 *		The tensor OUT is cut from the first STORED that is there. `?=` in place of `=`:
 *		where none is, there is no OUT; otherwise that is an error.
 *
 * EXPR is made of numbers, names, + - * / and parentheses. Nothing may be negative, and division
 * is exact. In the name OUT, and in STORED, {EXPR} is a number. In STORED .[i]. is the number of
 * the loop variable i, or nothing: then i is the index of a leading axis, which is as long as the
 * last of the loop, and several such axes are in the order of their brackets. Both being there is
 * an error.
 *
 * AXES are the axes that STORED must have behind those, separated by commas. An axis consists of
 * factors, the outermost first, separated by colons, whose sizes multiply to its length. A factor is
 *
 *	N               all N of it
 *	A..B of N       A up to but not including B, of N
 *	A of N          one
 *	any             an axis of any length; also A..B of any, A of any; alone in its axis
 *
 * The result has the chosen parts in their order. An axis that is one `A of N` alone is not an
 * axis of the result. The rows of a query, say, in a projection whose rows are, for each group of
 * heads, r of its queries, then a key, then a value, each of d: [groups : 0..r of r+2 : d, hidden].
 *
 * Errors are EINVAL with file and line, then what is wrong.
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
#define RECIPE_MAX_PARAMS 1000		    /* each may be made of those above it */
/*
 * What a recipe may cost, however its loops, alternatives and conditions multiply. Steps: 64 for a
 * statement, a round of a loop, a name and an axis, 4 for each part of an expression, 1 for a byte
 * of a name, more where it has to be looked for among many, 1 for a number that says where a piece
 * lies. Results: bytes of what is kept of them. A model of 500,000 tensors takes less than a
 * quarter of either.
 */
#define RECIPE_MAX_STEPS   ((uint64_t)1 << 31) /* a few seconds */
#define RECIPE_MAX_RESULTS ((uint64_t)512 << 20)

/* file: what sentences call the text, copied, as text is. */
int recipe_parse(const char *text, size_t len, const char *file, struct recipe **ret,
		 struct ckpt_err *e);
void recipe_free(struct recipe *r); /* NULL is fine */

/* ---- the ones that come with the program ---- */

struct recipe_builtin {
	const char *name, *summary;
	const char *text, *end;	   /* a NUL follows */
	const char *const *models; /* model_types of config.json that it fits, NULL-terminated */
};
/* NULL behind the last. */
const struct recipe_builtin *recipe_builtin(size_t i);
const struct recipe_builtin *recipe_builtin_named(const char *name);
/* The one for a model_type of config.json, or NULL. */
const struct recipe_builtin *recipe_builtin_for(const char *model_type);

/* ---- use ---- */

enum recipe_from { RECIPE_CONFIG, RECIPE_ARGS };
struct recipe_facts {
	bool has[2]; /* is there such a place at all? By enum recipe_from; for messages */
	/* 0; 1: it does not say; or a negative errno: it says something else than a number. */
	int (*number)(void *arg, enum recipe_from from, const char *key, uint64_t *ret,
		      struct ckpt_err *e);
	void *arg;
};

struct recipe_source {
	const uint64_t *shape;
	uint32_t number; /* in the catalog: for the pieces */
	uint8_t stored,
		shown; /* enum ckpt_dtype: as it is, and as what it is made from it is shown */
	uint8_t n_dims;
};

struct recipe_in {
	const struct namelist *names; /* of the stored tensors; index: in sources */
	const struct recipe_source *sources;
	const struct recipe_facts *facts;
	void (*warn)(void *arg, const char *what); /* may be NULL */
	void *warn_arg;
};

struct recipe_out {
	struct namelist names;	  /* index: in tensors */
	struct vtensor **tensors; /* each of at least one piece, unless it is empty */
};

/* *ret is the caller's to release. EEXIST: two results of one name. EFBIG: more than RECIPE_MAX_STEPS
 * or RECIPE_MAX_RESULTS. */
int recipe_apply(const struct recipe *r, const struct recipe_in *in, struct recipe_out *ret,
		 struct ckpt_err *e);
void recipe_out_release(struct recipe_out *o);

#endif
