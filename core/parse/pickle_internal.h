/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pickle_internal - the stack machine of the second pass, shared by the files that make it up:
 * pickle_node.c counts and frees, pickle_build.c builds, pickle_index.c finds keys, pickle.c reads
 * opcodes.
 *
 * A value is 16 bytes: numbers, strings and globals have no node. A value that leaves the stack or
 * a consumed container drops its reference, and a node without references returns to the pool at
 * once. Cycles, which a pickle can create, and structures that nest too deeply stay until
 * pickle_free.
 *
 * Marks are positions in the stack, kept apart from it; nothing below `floor`, the innermost one,
 * may be touched.
 *
 * Private to core/parse. Threads: one at a time.
 */
#ifndef PARSE_PICKLE_INTERNAL_H
#define PARSE_PICKLE_INTERNAL_H

#include "parse/pickle.h"
#include "parse/pickle_lex.h"
#include "parse/pickle_pool.h"

enum { PK_GLOBAL_BUCKETS = 64, PK_MAX_GLOBALS = 4096, PK_PLACES = 256 };

/* Keeps the reference counts of nodes, each held by a value somewhere, within 32 bits. */
#define PK_MAX_MEMORY ((uint64_t)32 << 30)

struct pk_known_global;

struct pickle {
	struct pk_reader in;
	struct pk_value *stack;
	size_t n, cap, floor;
	struct pk_prescan plan;
	uint64_t n_stored, next_wanted; /* memo entries so far; the next one to be requested */
	struct pk_value *memo; /* the requested ones, by place; PK_STR with NULL: not stored yet */
	uint32_t n_memo;       /* places filled, if entries come in order */
	struct pk_memo_place {
		uint32_t key, place;
	} places[PK_PLACES]; /* cache of pk_memo_place, by key modulo PK_PLACES */
	size_t *marks;
	size_t n_marks, marks_cap;
	struct pool pool;
	const struct pickle_hooks *hooks;
	int (*persid)(void *arg, const struct pk_value *id, struct ckpt_err *e);
	void *arg;
	bool drop_unknown, keep_long;
	struct pk_strings *strings, *own_strings;
	struct pk_known_global *globals[PK_GLOBAL_BUCKETS];
	uint32_t n_globals;
	const struct pk_node *taken; /* the dict from which attr_item last took pairs, */
	size_t taken_at;	     /* and its stack position if it is an attribute */
	struct pk_value root;
};

/* "pickle: WHAT at byte N" */
int pk_bad(const struct pickle *p, const char *what, struct ckpt_err *e);
/* Reports that the ceiling was reached, or memory ran out. */
int pk_too_big(const struct pickle *p, struct ckpt_err *e);
/* Reports why pk_intern has just failed. */
int pk_no_string(const struct pickle *p, struct ckpt_err *e);

/* ---- pickle_node.c ---- */

void pk_node_free(struct pickle *p, enum pk_type type, struct pk_node *n);
/* Makes room for `more` values after the first `used` ones of a list's or dict's array. */
int pk_node_grow(struct pickle *p, struct pk_node *n, size_t used, size_t more, struct ckpt_err *e);
/* The same for a dict, with its index. */
int pk_dict_grow(struct pickle *p, struct pk_node *n, size_t used, size_t more, struct ckpt_err *e);
int pk_stack_grow(struct pickle *p, struct ckpt_err *e);
int pk_mark_push(struct pickle *p, struct ckpt_err *e);
/* Pops the innermost mark; *ret: the first stack position above it. */
int pk_mark_pop(struct pickle *p, size_t *ret, struct ckpt_err *e);
void pk_drop_from(struct pickle *p, size_t at);

/*
 * A dict may be looked into once for each object that shares it, or for each of its own keys, so
 * one of more than PK_FEW pairs has a hash table. It is filled when the dict is first looked into.
 */
enum { PK_FEW = 64 };
struct pk_index;

/* In a list's or dict's node: it takes no memory, as no piece of the pool is smaller than both. */
static inline struct pk_index **pk_index_of(struct pk_node *n)
{
	return (struct pk_index **)(void *)n->own;
}

/* A node with n_own inline values, uninitialised; NULL at the ceiling. */
static inline struct pk_node *pk_node_new(struct pickle *p, uint32_t n_own)
{
	unsigned cls = pool_class(sizeof(struct pk_node) + n_own * sizeof(struct pk_value));
	struct pk_node *n = pool_get(&p->pool, cls);

	if (n)
		*n = (struct pk_node){ .refs = 1,
				       .len = n_own,
				       .own_class = (uint16_t)cls,
				       .v = n_own ? n->own : NULL };
	if (n && !n_own)
		*pk_index_of(n) = NULL;
	return n;
}

static inline void pk_ref(const struct pk_value *v)
{
	if (v->type >= PK_TUPLE && v->n)
		v->n->refs++;
}

/* Drops the reference that *v holds. */
static inline void pk_drop(struct pickle *p, const struct pk_value *v)
{
	if (v->type >= PK_TUPLE && v->n && --v->n->refs == 0)
		pk_node_free(p, v->type, v->n);
}

static inline int pk_push(struct pickle *p, struct pk_value v, struct ckpt_err *e)
{
	if (p->n == p->cap) {
		int rc = pk_stack_grow(p, e);

		if (rc)
			return rc;
	}
	p->stack[p->n++] = v;
	return 0;
}

static inline int pk_push_node(struct pickle *p, enum pk_type type, struct pk_node *n,
			       struct ckpt_err *e)
{
	return n ? pk_push(p, (struct pk_value){ .type = type, .n = n }, e) : pk_too_big(p, e);
}

static inline int pk_push_int(struct pickle *p, int64_t i, struct ckpt_err *e)
{
	return pk_push(p, (struct pk_value){ .type = PK_INT, .i = i }, e);
}

/* Are there n values above the innermost mark? */
static inline bool pk_has(const struct pickle *p, size_t n)
{
	return p->n - p->floor >= n;
}

static inline int pk_need(const struct pickle *p, size_t n, struct ckpt_err *e)
{
	return pk_has(p, n) ? 0 : pk_bad(p, "stack underflow", e);
}

/* ---- pickle_index.c ---- */

/* Gives a dict that has none an index for n->cap values, if these are not few; false: no memory. */
bool pk_index_add(struct pickle *p, struct pk_node *n);
void pk_index_free(struct pickle *p, struct pk_node *n); /* it may have none */

/* ---- pickle_build.c: each function checks the stack itself ---- */

int pk_make_tuple(struct pickle *p, size_t count, struct ckpt_err *e);
int pk_make_object(struct pickle *p, bool reduce, struct ckpt_err *e);
int pk_make_set(struct pickle *p, const char *class, struct ckpt_err *e);
int pk_make_persid(struct pickle *p, struct ckpt_err *e);
int pk_add_global(struct pickle *p, const struct pk_str *module, const struct pk_str *name,
		  struct ckpt_err *e);
int pk_build(struct pickle *p, struct ckpt_err *e);
/* Moves values [from, p->n) into the container at `from` - 1. */
int pk_set_items(struct pickle *p, size_t from, struct ckpt_err *e);
int pk_append_items(struct pickle *p, size_t from, struct ckpt_err *e);
/* Did everything that attr_item took belong to an attribute? */
int pk_check_taken(const struct pickle *p, struct ckpt_err *e);
/* Opcodes that act on everything above a mark. */
int pk_marked(struct pickle *p, uint8_t op, struct ckpt_err *e);

#endif
