/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recipe_internal - what a recipe is in memory.
 *
 * recipe_parse.c makes it, recipe_apply.c goes through its statements, recipe_eval.c knows
 * numbers, recipe_slice.c cuts. Everything that there are many of lies in one array of its kind,
 * and is named by its place there. Private to core/recipe.
 */
#ifndef RECIPE_RECIPE_INTERNAL_H
#define RECIPE_RECIPE_INTERNAL_H

#include "recipe/recipe.h"

enum {
	RECIPE_MAX_DEPTH = 8,	  /* loops and conditions inside each other */
	RECIPE_MAX_STACK = 32,	  /* numbers that an expression keeps at once */
	RECIPE_MAX_BRACKETS = 4,  /* [i] in a name */
	RECIPE_MAX_FACTORS = 8,	  /* of an axis */
	RECIPE_MAX_NAME = 4096,	  /* bytes */
	RECIPE_MAX_PIECES = 65536 /* of one tensor */
};

/* Elements [at, at+n) of the array of that kind. */
struct run {
	uint32_t at, n;
};

/* An expression is a run of these in postfix order. */
enum rx_op { RX_NUMBER, RX_PARAM, RX_LOOP, RX_FACT, RX_ADD, RX_SUB, RX_MUL, RX_DIV };
struct rx_token {
	enum rx_op op;
	enum recipe_from from; /* of RX_FACT */
	uint64_t number;       /* the number; which parameter; how many loops are around it */
	const char *key;       /* of RX_FACT; a string */
};

struct name_part {
	enum { PART_TEXT, PART_NUMBER, PART_STACKED } kind;
	const char *text; /* len bytes */
	size_t len;
	struct run expr; /* of PART_NUMBER: tokens */
	uint32_t loop;	 /* of PART_STACKED */
};

struct factor {
	bool any, cut, one;	 /* `any`; there is an `of`; and no `..` before it */
	struct run from, to, of; /* tokens; without `cut` only `of` counts */
};

struct rule_source {
	struct run name; /* parts */
	struct run axes;
};

struct choice {
	struct run value, condition; /* tokens; no condition: none of them */
};

struct param {
	const char *name; /* a string */
	uint32_t line;
	struct run choices;
};

struct statement {
	enum { DO_RULE, DO_FOR, DO_IF, DO_REFUSE } kind;
	bool optional; /* rule: ?= */
	uint32_t line;
	uint32_t end, other; /* for, if: statement behind their last; where `else` begins, or end */
	struct run name;     /* rule, if: parts */
	struct run sources;  /* rule */
	struct run from, to; /* for; refuse: to */
	uint32_t loop;	     /* for: how many are around it */
	const char *text;    /* refuse */
};

#define RECIPE_ARRAYS(X) \
	X(struct rx_token, tokens) \
	X(struct name_part, parts) \
	X(struct factor, factors) \
	X(struct run, axes) /* factors */ \
	X(struct rule_source, sources) \
	X(struct choice, choices) \
	X(struct param, params) \
	X(struct statement, statements) \
	X(const char *, prefixes) \
	X(const char *, ignored)

struct recipe {
	char *file;
	char *strings; /* what names, keys, globs and texts point into */
	size_t strings_len;
#define RECIPE_ARRAY(type, name) \
	type *name; \
	uint32_t n_##name; \
	size_t cap_##name;
	RECIPE_ARRAYS(RECIPE_ARRAY)
#undef RECIPE_ARRAY
	const char *probe; /* of the prefix statement, or NULL */
	uint32_t probe_line;
};

/* EINVAL: "FILE:LINE: ..." */
int recipe_bad(const struct recipe *r, uint32_t line, struct ckpt_err *e, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

/* ---- numbers ---- */

struct eval {
	const struct recipe *r;
	const struct recipe_facts *facts;
	struct param_value {
		bool known;
		uint64_t value;
	} * params;
	uint64_t loops[RECIPE_MAX_DEPTH];     /* where each is */
	uint64_t loop_ends[RECIPE_MAX_DEPTH]; /* behind its last round */
	uint64_t steps, results;	      /* of RECIPE_MAX_STEPS and RECIPE_MAX_RESULTS */
};

/* Count what is about to be done, or kept. EFBIG: it is too much. */
int recipe_count_steps(struct eval *x, uint64_t steps, uint32_t line, struct ckpt_err *e);
int recipe_count_result(struct eval *x, uint64_t bytes, uint32_t line, struct ckpt_err *e);

/* 0; 1: something in it is not known (only where the recipe looks something up); an error. */
int recipe_eval(struct eval *x, struct run expr, uint32_t line, uint64_t *ret, struct ckpt_err *e);

/* ---- cutting ---- */

struct cut_from {
	const struct recipe_source *source;
	const char *out, *stored; /* names for messages; strings */
	uint32_t line;
	size_t n_stacked;
	uint64_t index[RECIPE_MAX_BRACKETS], count[RECIPE_MAX_BRACKETS]; /* of stacked axes */
};
/* The tensor that these axes (a run of axes) make of it. */
int recipe_cut(struct eval *x, const struct cut_from *c, struct run axes, struct vtensor **ret,
	       struct ckpt_err *e);

#endif
