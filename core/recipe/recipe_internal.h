/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recipe_internal - a recipe in memory.
 *
 * recipe_parse.c builds it, recipe_walk.c executes its statements, for recipe_apply.c or,
 * backwards, for recipe_invert.c; recipe_eval.c evaluates numbers, recipe_slice.c cuts tensors. All
 * elements of a kind are in one array and are referred to by their index. Private to core/recipe.
 */
#ifndef RECIPE_RECIPE_INTERNAL_H
#define RECIPE_RECIPE_INTERNAL_H

#include "recipe/recipe.h"

struct buf;

enum {
	RECIPE_MAX_DEPTH = 8,	  /* nested loops and conditions */
	RECIPE_MAX_STACK = 32,	  /* values on an expression's stack */
	RECIPE_MAX_BRACKETS = 4,  /* [i] in a name */
	RECIPE_MAX_FACTORS = 8,	  /* of an axis */
	RECIPE_MAX_NAME = 4096,	  /* bytes */
	RECIPE_MAX_PIECES = 65536 /* of a tensor */
};

/* Elements [at, at+n) of the array of their kind. */
struct run {
	uint32_t at, n;
};

/* An expression is a run of these in postfix order. */
enum rx_op { RX_NUMBER, RX_PARAM, RX_LOOP, RX_FACT, RX_IS, RX_ADD, RX_SUB, RX_MUL, RX_DIV, RX_MOD };
struct rx_token {
	enum rx_op op;
	enum recipe_from from;	/* of RX_FACT, RX_IS */
	uint64_t number;	/* the number; index of the parameter; nesting depth of the loop */
	const char *key, *text; /* of RX_FACT, RX_IS; strings; text: of RX_IS */
};

struct name_part {
	enum { PART_TEXT, PART_NUMBER, PART_STACKED } kind;
	const char *text; /* len bytes */
	size_t len;
	struct run expr; /* of PART_NUMBER: tokens */
	uint32_t loop;	 /* of PART_STACKED */
};

struct factor {
	bool any, cut, one;	 /* `any`; has an `of`; and has no `..` */
	bool swap;		 /* the result has this factor inside the next one */
	struct run from, to, of; /* tokens; without `cut` only `of` is used */
};

#define ORDER_JOINED ((uint8_t)0x80)

struct rule_source {
	struct run name; /* parts */
	struct run axes;
	/*
	 * Axes of the selection that become those of the result; empty: as is. ORDER_JOINED: forms
	 * one axis with the one before.
	 */
	struct run order;
	struct computation {
		uint8_t op; /* enum arith_op */
		bool minus, root, bfloat16;
		struct run number; /* tokens */
	} compute;
	bool joined; /* follows the one before it in the result */
};

struct choice {
	struct run value, condition; /* tokens; empty condition: always */
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
	/* for, if: statement after the last one inside; start of `else`, or end */
	uint32_t end, other;
	struct run name;     /* rule, if: parts */
	struct run sources;  /* rule */
	struct run from, to; /* for; refuse: to */
	uint32_t loop;	     /* for: nesting depth */
	const char *text;    /* refuse */
};

#define RECIPE_ARRAYS(X) \
	X(struct rx_token, tokens) \
	X(struct name_part, parts) \
	X(struct factor, factors) \
	X(struct run, axes) /* factors */ \
	X(uint8_t, orders) \
	X(struct rule_source, sources) \
	X(struct choice, choices) \
	X(struct param, params) \
	X(struct statement, statements) \
	X(const char *, prefixes) \
	X(const char *, ignored)

struct recipe {
	char *file;
	char *strings; /* names, keys, globs and texts point into it */
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
	uint64_t loops[RECIPE_MAX_DEPTH];     /* current value of each */
	uint64_t loop_ends[RECIPE_MAX_DEPTH]; /* exclusive */
	uint64_t steps, results; /* amounts used of RECIPE_MAX_STEPS and RECIPE_MAX_RESULTS */
};

/* Charges work, or memory for results, before it is used. EFBIG: the limit is exceeded. */
int recipe_count_steps(struct eval *x, uint64_t steps, uint32_t line, struct ckpt_err *e);
int recipe_count_result(struct eval *x, uint64_t bytes, uint32_t line, struct ckpt_err *e);

/* Returns 0; 1: a value is unknown (only in recipes that look it up); or an error. */
int recipe_eval(struct eval *x, struct run expr, uint32_t line, uint64_t *ret, struct ckpt_err *e);

/* ---- cutting ---- */

struct cut_from {
	const struct recipe_source *source;
	const char *out, *stored; /* names for messages; strings */
	uint32_t line;
	size_t n_stacked;
	uint64_t index[RECIPE_MAX_BRACKETS], count[RECIPE_MAX_BRACKETS]; /* of stacked axes */
};
/* Cuts the tensor that the source's axes and order describe. */
int recipe_cut(struct eval *x, const struct cut_from *c, const struct rule_source *s,
	       struct vtensor **ret, struct ckpt_err *e);
/* The n parts of `out`, one after another along their first axis. */
int recipe_join(struct eval *x, const char *out, uint32_t line, struct vtensor *const *parts,
		size_t n, struct vtensor **ret, struct ckpt_err *e);

/* ---- statements ---- */

/*
 * Writes a name to *b, leaving out those [i] that are axes (their bit in `stacked` is set), and
 * charges for it.
 */
int recipe_write_name(struct eval *x, struct run parts, uint32_t line, const char *prefix,
		      unsigned stacked, struct buf *b, struct ckpt_err *e);
/* Where in `source` the tensor of that name lies; the caller sets ->out. */
struct cut_from recipe_cut_from(const struct eval *x, struct run name, uint32_t line,
				unsigned stacked, const char *stored,
				const struct recipe_source *source);

/* Executes statements [at, end): loops and refusals here, rules and conditions by the functions. */
struct recipe_walk {
	struct eval *x;
	struct ckpt_err *e;
	int (*rule)(void *arg, const struct statement *s);
	int (*holds)(void *arg, uint32_t at, bool *ret); /* of the `if` at this position */
	void *arg;
};
int recipe_walk(struct recipe_walk *w, uint32_t at, uint32_t end);

#endif
