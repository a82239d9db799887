/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The second pass: a stack machine over counted nodes.
 *
 * A value is 16 bytes: numbers, strings and globals carry no node. What leaves the stack or a
 * consumed container drops its count; nodes that reach zero go to a list (not to the C stack:
 * nesting is the input's to choose) and from there back to the pool. Cycles, which a pickle can
 * make, stay until pickle_free.
 *
 * The marks are positions in the stack, kept apart from it.
 */
#include "parse/pickle.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "base/err.h"
#include "parse/pickle_lex.h"
#include "parse/pickle_pool.h"

#include <stdlib.h>

enum known_global { G_OTHER, G_SIZE, G_ORDERED_DICT };

struct global {
	struct pk_global g;
	enum known_global known;
	struct global *next;
};

struct pickle {
	const struct pickle_hooks *hooks;
	void *arg;
	bool drop_unknown;
	struct pk_strings *strings, *own_strings;
	struct pool pool;
	struct pk_value *stack;
	size_t n, cap;
	size_t *marks;
	size_t n_marks, marks_cap;
	struct pk_memo_plan plan;
	struct pk_value *memo;
	uint64_t n_puts;
	struct global *globals;
	struct pk_value root;
	struct pk_reader in;
};

static int bad(struct pickle *p, struct err *e, const char *what)
{
	return err_set(e, ERR_CORRUPT, "pickle: %s at byte %llu", what,
		       (unsigned long long)pk_reader_pos(&p->in));
}

static int too_big(struct pickle *p, struct err *e)
{
	return err_set(e, EFBIG, "pickle: needs more than %zu MiB of memory at byte %llu",
		       p->pool.max_bytes >> 20, (unsigned long long)pk_reader_pos(&p->in));
}

/* ---- nodes ---- */

static struct pk_node *node_new(struct pickle *p, uint32_t n_own)
{
	size_t size = sizeof(struct pk_node) + n_own * sizeof(struct pk_value);
	struct pk_node *n = pool_alloc(&p->pool, size);

	if (n)
		*n = (struct pk_node){ .refs = 1, .len = n_own, .size = (uint32_t)size,
				       .v = n_own ? n->own : NULL };
	return n;
}

static inline void value_ref(const struct pk_value *v)
{
	if (v->type >= PK_TUPLE && v->n)
		v->n->refs++;
}

static size_t n_values(const struct pk_value *v)
{
	return v->type == PK_RECORD ? 0 : v->type == PK_DICT ? 2 * (size_t)v->n->len : v->n->len;
}

/* Takes the count that *v holds. Dead nodes queue through their `v` field. */
static void value_drop_slow(struct pickle *p, const struct pk_value *dead)
{
	struct pk_value todo = *dead;
	struct {
		struct pk_node *n;
		struct pk_value *v;
		size_t i, len;
	} stack[32];
	size_t depth = 0;

	/*
	 * Depth first with a short stack of our own; deeper nodes are left to pickle_free. Legitimate
	 * metadata nests seven deep.
	 */
	for (;;) {
		if (todo.type >= PK_TUPLE && todo.n && --todo.n->refs == 0 && depth < ARRAY_LEN(stack)) {
			stack[depth].n = todo.n;
			stack[depth].v = todo.n->v;
			stack[depth].i = 0;
			stack[depth++].len = n_values(&todo);
		}
		while (depth && stack[depth - 1].i == stack[depth - 1].len) {
			struct pk_node *n = stack[--depth].n;

			if (n->cap)
				pool_free(&p->pool, n->v, n->cap * sizeof(struct pk_value));
			pool_free(&p->pool, n, n->size);
		}
		if (!depth)
			return;
		todo = stack[depth - 1].v[stack[depth - 1].i++];
	}
}

static inline void value_drop(struct pickle *p, const struct pk_value *v)
{
	if (v->type >= PK_TUPLE && v->n) {
		if (v->n->refs > 1)
			v->n->refs--;
		else
			value_drop_slow(p, v);
	}
}

/* Room for `more` further values in a list's or dict's array. */
static int node_grow(struct pickle *p, struct pk_node *n, size_t used, size_t more, struct err *e)
{
	size_t need = used + more, cap;
	struct pk_value *v;

	if (need <= n->cap)
		return 0;
	if (need > UINT32_MAX / 2)
		return too_big(p, e);
	cap = pool_size(need * sizeof(*v)) / sizeof(*v);
	v = pool_alloc(&p->pool, cap * sizeof(*v));
	if (!v)
		return too_big(p, e);
	if (used)
		memcpy(v, n->v, used * sizeof(*v));
	if (n->cap)
		pool_free(&p->pool, n->v, n->cap * sizeof(*v));
	n->v = v;
	n->cap = (uint32_t)cap;
	return 0;
}

/* ---- stack ---- */

static int stack_grow(struct pickle *p, struct err *e)
{
	size_t cap = p->cap ? p->cap * 2 : 64;
	struct pk_value *s;

	if (cap * sizeof(*s) > p->pool.max_bytes)
		return too_big(p, e);
	s = realloc(p->stack, cap * sizeof(*s));
	if (!s)
		return err_set(e, ENOMEM, "pickle: out of memory");
	p->stack = s;
	p->cap = cap;
	return 0;
}

static inline int push(struct pickle *p, struct pk_value v, struct err *e)
{
	if (p->n == p->cap) {
		int rc = stack_grow(p, e);

		if (rc)
			return rc;
	}
	p->stack[p->n++] = v;
	return 0;
}

static int push_node(struct pickle *p, enum pk_type type, struct pk_node *n, struct err *e)
{
	return n ? push(p, (struct pk_value){ .type = type, .n = n }, e) : too_big(p, e);
}

/* Values above the innermost mark (or above everything when there is none). */
static inline size_t frame(const struct pickle *p)
{
	return p->n - (p->n_marks ? p->marks[p->n_marks - 1] : 0);
}

static int need(struct pickle *p, size_t n, struct err *e)
{
	return frame(p) < n ? bad(p, e, "stack underflow") : 0;
}

static int push_mark(struct pickle *p, struct err *e)
{
	if (p->n_marks == p->marks_cap) {
		size_t cap = p->marks_cap ? p->marks_cap * 2 : 16, *m;

		if (cap * sizeof(*m) > p->pool.max_bytes)
			return too_big(p, e);
		m = realloc(p->marks, cap * sizeof(*m));
		if (!m)
			return err_set(e, ENOMEM, "pickle: out of memory");
		p->marks = m;
		p->marks_cap = cap;
	}
	p->marks[p->n_marks++] = p->n;
	return 0;
}

static int pop_mark(struct pickle *p, size_t *ret, struct err *e)
{
	if (!p->n_marks)
		return bad(p, e, "no mark");
	*ret = p->marks[--p->n_marks];
	return 0;
}

static void drop_from(struct pickle *p, size_t at)
{
	while (p->n > at)
		value_drop(p, &p->stack[--p->n]);
}

/* ---- building ---- */

/* The `count` values on top become one tuple. */
static int make_tuple(struct pickle *p, size_t count, struct err *e)
{
	struct pk_node *n = NULL;

	if (count > UINT32_MAX / 64)
		return too_big(p, e);
	if (count) {
		n = node_new(p, (uint32_t)count);
		if (!n)
			return too_big(p, e);
		p->n -= count;
		memcpy(n->own, p->stack + p->n, count * sizeof(*n->own));
	}
	return push(p, (struct pk_value){ .type = PK_TUPLE, .n = n }, e); /* () has no node */
}

static int add_global(struct pickle *p, const struct pk_str *module, const struct pk_str *name,
		      struct err *e)
{
	struct global *g;

	for (g = p->globals; g; g = g->next)
		if (g->g.module == module && g->g.name == name)
			break;
	if (!g) {
		g = pool_alloc(&p->pool, sizeof(*g));
		if (!g)
			return too_big(p, e);
		*g = (struct global){ .g = { .module = module, .name = name }, .next = p->globals };
		if (p->hooks && p->hooks->classify)
			g->g.cls = p->hooks->classify(p->arg, module->data, name->data);
		if (!strcmp(module->data, "torch") && !strcmp(name->data, "Size"))
			g->known = G_SIZE;
		else if (!strcmp(module->data, "collections") && !strcmp(name->data, "OrderedDict"))
			g->known = G_ORDERED_DICT;
		p->globals = g;
	}
	return push(p, (struct pk_value){ .type = PK_GLOBAL, .g = &g->g }, e);
}

/* callee and arguments on top become an object, or what the callee is known to yield. */
static int make_object(struct pickle *p, bool reduce, struct err *e)
{
	struct pk_value args = p->stack[p->n - 1], callee = p->stack[p->n - 2];
	struct pk_node *n;

	p->n -= 2;
	if (reduce && callee.type == PK_GLOBAL && args.type == PK_TUPLE) {
		const struct global *g = (const struct global *)(const void *)callee.g;

		if (g->known == G_SIZE && pk_len(&args) == 1 && args.n->own[0].type == PK_TUPLE) {
			struct pk_value size = args.n->own[0];

			value_ref(&size);
			value_drop(p, &args);
			return push(p, size, e);
		}
		if (g->known == G_ORDERED_DICT && !pk_len(&args))
			return push_node(p, PK_DICT, node_new(p, 0), e);
	}
	if (p->drop_unknown && (callee.type != PK_GLOBAL || !callee.g->cls)) {
		value_drop(p, &callee);
		value_drop(p, &args);
		return push(p, (struct pk_value){ .type = PK_OPAQUE }, e);
	}
	n = node_new(p, PK_OBJECT_FIELDS);
	if (!n) {
		value_drop(p, &callee);
		value_drop(p, &args);
		return too_big(p, e);
	}
	n->own[PK_CALLEE] = callee;
	n->own[PK_ARGS] = args;
	n->own[PK_STATE] = (struct pk_value){ .type = PK_NONE };
	return push_node(p, PK_OBJECT, n, e);
}

static int build(struct pickle *p, struct err *e)
{
	struct pk_value state, *obj, *slot;
	int rc = need(p, 2, e);

	if (rc)
		return rc;
	state = p->stack[--p->n];
	obj = &p->stack[p->n - 1];
	if (obj->type != PK_OBJECT) { /* state of something that is not kept */
		value_drop(p, &state);
		return 0;
	}
	slot = &obj->n->own[PK_STATE];
	value_drop(p, slot);
	*slot = state;
	if (p->hooks && p->hooks->built && obj->n->own[PK_CALLEE].type == PK_GLOBAL &&
	    obj->n->own[PK_CALLEE].g->cls)
		return p->hooks->built(p->arg, p, obj, e);
	return 0;
}

/*
 * The attribute of the outermost object that the dict at stack position `at` will become, or
 * NULL. While it is being filled the stack reads: object, its state dict, MARK, key, value, key,
 * value ... key, this dict.
 */
static const struct pk_str *root_attr(const struct pickle *p, size_t at, int *ret_class)
{
	const struct pk_value *s = p->stack;

	if (p->n_marks != 1 || p->marks[0] != 2 || at < 3 || at % 2 != 1 || s[0].type != PK_OBJECT ||
	    s[1].type != PK_DICT || s[at - 1].type != PK_STR ||
	    s[0].n->own[PK_CALLEE].type != PK_GLOBAL)
		return NULL;
	*ret_class = s[0].n->own[PK_CALLEE].g->cls;
	return s[at - 1].s;
}

/* Pairs [from, p->n) enter the dict at `from` - 1. */
static int set_items(struct pickle *p, size_t from, struct err *e)
{
	size_t n_pairs = (p->n - from) / 2, kept = 0;
	const struct pk_str *attr = NULL;
	struct pk_value dict;
	int root_class = 0, rc;

	if ((p->n - from) % 2)
		return bad(p, e, "SETITEMS with half a pair");
	dict = p->stack[from - 1];
	if (dict.type != PK_DICT) { /* items of an object: nothing here needs them */
		drop_from(p, from);
		return 0;
	}
	if (p->hooks && p->hooks->attr_item)
		attr = root_attr(p, from - 1, &root_class);
	for (size_t i = from; attr && i < p->n; i += 2) {
		bool consumed = false;

		rc = p->hooks->attr_item(p->arg, root_class, attr, &p->stack[i], &p->stack[i + 1],
					 &consumed, e);
		if (rc)
			return rc;
		if (consumed) {
			value_drop(p, &p->stack[i]);
			value_drop(p, &p->stack[i + 1]);
			p->stack[i].type = p->stack[i + 1].type = PK_NONE;
		} else {
			p->stack[from + 2 * kept] = p->stack[i];
			p->stack[from + 2 * kept++ + 1] = p->stack[i + 1];
		}
	}
	if (!attr)
		kept = n_pairs;
	if (kept) {
		rc = node_grow(p, dict.n, 2 * (size_t)dict.n->len, 2 * kept, e);
		if (rc)
			return rc;
		memcpy(dict.n->v + 2 * (size_t)dict.n->len, p->stack + from, 2 * kept * sizeof(dict));
		dict.n->len += (uint32_t)kept;
	}
	p->n = from;
	return 0;
}

static int append_items(struct pickle *p, size_t from, struct err *e)
{
	struct pk_value list = p->stack[from - 1];
	size_t count = p->n - from;
	int rc;

	if (list.type != PK_LIST) {
		drop_from(p, from);
		return 0;
	}
	rc = count ? node_grow(p, list.n, list.n->len, count, e) : 0;
	if (rc)
		return rc;
	if (count)
		memcpy(list.n->v + list.n->len, p->stack + from, count * sizeof(list));
	list.n->len += (uint32_t)count;
	p->n = from;
	return 0;
}

/* Ops that act on everything above a mark. */
static int op_marked(struct pickle *p, uint8_t op, struct err *e)
{
	size_t from = 0;
	int rc = pop_mark(p, &from, e);

	if (rc)
		return rc;
	switch (op) {
	case OP_TUPLE:
		return make_tuple(p, p->n - from, e);
	case OP_POP_MARK:
		drop_from(p, from);
		return 0;
	case OP_FROZENSET:
		drop_from(p, from);
		return push(p, (struct pk_value){ .type = PK_OPAQUE }, e);
	case OP_LIST:
	case OP_DICT: {
		/* As if the empty container had been there before the mark. */
		struct pk_node *n = node_new(p, 0);

		rc = push_node(p, op == OP_LIST ? PK_LIST : PK_DICT, n, e);
		if (rc)
			return rc;
		memmove(p->stack + from + 1, p->stack + from, (p->n - 1 - from) * sizeof(*p->stack));
		p->stack[from++] = (struct pk_value){ .type = op == OP_LIST ? PK_LIST : PK_DICT, .n = n };
		return op == OP_LIST ? append_items(p, from, e) : set_items(p, from, e);
	}
	default:
		break;
	}
	if (!from || (p->n_marks && from <= p->marks[p->n_marks - 1]))
		return bad(p, e, "stack underflow");
	return op == OP_SETITEMS ? set_items(p, from, e) : append_items(p, from, e);
}

static int op_string(struct pickle *p, uint8_t op, struct err *e)
{
	bool text = op == OP_SHORT_BINUNICODE || op == OP_BINUNICODE || op == OP_BINUNICODE8 ||
		    op == OP_BINSTRING || op == OP_SHORT_BINSTRING;
	const struct pk_str *s;
	uint64_t n;
	int rc = pk_reader_length(&p->in, op, &n, e);

	if (rc)
		return rc;
	if (n > PK_MAX_STRING) {
		if (text)
			return err_set(e, EFBIG, "pickle: string of %llu bytes at byte %llu",
				       (unsigned long long)n,
				       (unsigned long long)pk_reader_pos(&p->in));
		rc = pk_reader_skip(&p->in, n, e);
		return rc ? rc : push(p, (struct pk_value){ .type = PK_OPAQUE }, e);
	}
	rc = pk_reader_fill(&p->in, n, e);
	if (rc)
		return rc;
	s = pk_intern(p->strings, (const char *)p->in.p, n);
	if (!s)
		return err_set(e, EFBIG, "pickle: too many strings at byte %llu",
			       (unsigned long long)pk_reader_pos(&p->in));
	p->in.p += n;
	return push(p, (struct pk_value){ .type = text ? PK_STR : PK_BYTES, .s = s }, e);
}

static int op_long(struct pickle *p, uint8_t op, struct err *e)
{
	uint64_t n, v = 0;
	int rc = pk_reader_length(&p->in, op, &n, e);

	if (rc)
		return rc;
	if (n > 8) {
		rc = pk_reader_skip(&p->in, n, e);
		return rc ? rc : push(p, (struct pk_value){ .type = PK_OPAQUE }, e);
	}
	rc = pk_reader_fill(&p->in, n, e);
	if (rc)
		return rc;
	for (size_t i = 0; i < n; i++)
		v |= (uint64_t)p->in.p[i] << (8 * i);
	if (n && n < 8 && p->in.p[n - 1] & 0x80)
		v |= ~(uint64_t)0 << (8 * n);
	p->in.p += n;
	return push(p, (struct pk_value){ .type = PK_INT, .i = (int64_t)v }, e);
}

static int op_global(struct pickle *p, uint8_t op, struct err *e)
{
	const struct pk_str *module, *name;
	const char *line;
	size_t len;
	int rc;

	if (op == OP_STACK_GLOBAL) {
		rc = need(p, 2, e);
		if (rc)
			return rc;
		if (p->stack[p->n - 1].type != PK_STR || p->stack[p->n - 2].type != PK_STR)
			return bad(p, e, "global whose name is no string");
		p->n -= 2;
		return add_global(p, p->stack[p->n].s, p->stack[p->n + 1].s, e);
	}
	rc = pk_reader_line(&p->in, &line, &len, e);
	if (rc)
		return rc;
	module = pk_intern(p->strings, line, len);
	rc = pk_reader_line(&p->in, &line, &len, e);
	if (rc)
		return rc;
	name = pk_intern(p->strings, line, len);
	return module && name ? add_global(p, module, name, e) : too_big(p, e);
}

/* Dense index of memo entry id, or -1 when no GET names it. */
static inline int64_t memo_slot(const struct pickle *p, uint64_t id)
{
	uint64_t w = id / 64, bit = (uint64_t)1 << (id % 64);

	if (w >= p->plan.words || !(p->plan.wanted[w] & bit))
		return -1;
	return p->plan.rank[w] + (uint32_t)__builtin_popcountll(p->plan.wanted[w] & (bit - 1));
}

static inline int memo_put(struct pickle *p, struct err *e)
{
	int64_t slot = memo_slot(p, p->n_puts++);

	if (slot < 0)
		return 0;
	if (!p->n)
		return bad(p, e, "stack underflow");
	value_ref(&p->stack[p->n - 1]);
	p->memo[slot] = p->stack[p->n - 1];
	return 0;
}

static int op_get(struct pickle *p, uint64_t id, struct err *e)
{
	int64_t slot = memo_slot(p, id);

	if (slot < 0)
		return bad(p, e, "memo entry that was never stored");
	value_ref(&p->memo[slot]);
	return push(p, p->memo[slot], e);
}

static int op_persid(struct pickle *p, struct err *e)
{
	struct pk_node *n = node_new(p, 1);

	if (!n)
		return too_big(p, e);
	n->own[0] = p->stack[--p->n];
	return push_node(p, PK_PERSID, n, e);
}

static int op_newobj_ex(struct pickle *p, struct err *e)
{
	value_drop(p, &p->stack[--p->n]); /* keyword arguments */
	return make_object(p, false, e);
}

/* Everything but STOP. Operands of fixed size are readable at p->in.p. */
static int step(struct pickle *p, uint8_t op, struct err *e)
{
	struct pk_value v = { .type = PK_NONE };
	double f;
	uint64_t u;
	int rc;

	switch (op) {
	case OP_MEMOIZE:
		return memo_put(p, e);
	case OP_BINPUT:
		p->in.p += 1;
		return memo_put(p, e);
	case OP_LONG_BINPUT:
		p->in.p += 4;
		return memo_put(p, e);
	case OP_BINGET:
		return op_get(p, *p->in.p++, e);
	case OP_LONG_BINGET:
		p->in.p += 4;
		return op_get(p, load_le32(p->in.p - 4), e);
	case OP_BININT1:
		return push(p, (struct pk_value){ .type = PK_INT, .i = *p->in.p++ }, e);
	case OP_BININT2:
		p->in.p += 2;
		return push(p, (struct pk_value){ .type = PK_INT, .i = load_le16(p->in.p - 2) }, e);
	case OP_BININT:
		p->in.p += 4;
		return push(p, (struct pk_value){ .type = PK_INT, .i = (int32_t)load_le32(p->in.p - 4) },
			    e);
	case OP_LONG1:
	case OP_LONG4:
		return op_long(p, op, e);
	case OP_BINFLOAT:
		u = load_be64(p->in.p);
		p->in.p += 8;
		memcpy(&f, &u, sizeof(f));
		return push(p, (struct pk_value){ .type = PK_FLOAT, .f = f }, e);
	case OP_NONE:
		return push(p, v, e);
	case OP_NEWTRUE:
	case OP_NEWFALSE:
		return push(p, (struct pk_value){ .type = PK_BOOL, .i = op == OP_NEWTRUE }, e);
	case OP_SHORT_BINUNICODE:
	case OP_BINUNICODE:
	case OP_BINUNICODE8:
	case OP_BINSTRING:
	case OP_SHORT_BINSTRING:
	case OP_SHORT_BINBYTES:
	case OP_BINBYTES:
	case OP_BINBYTES8:
	case OP_BYTEARRAY8:
		return op_string(p, op, e);
	case OP_GLOBAL:
	case OP_STACK_GLOBAL:
		return op_global(p, op, e);
	case OP_EMPTY_TUPLE:
		return push(p, (struct pk_value){ .type = PK_TUPLE }, e);
	case OP_TUPLE1:
	case OP_TUPLE2:
	case OP_TUPLE3:
		rc = need(p, op - OP_TUPLE1 + 1u, e);
		return rc ? rc : make_tuple(p, op - OP_TUPLE1 + 1u, e);
	case OP_EMPTY_LIST:
		return push_node(p, PK_LIST, node_new(p, 0), e);
	case OP_EMPTY_DICT:
		return push_node(p, PK_DICT, node_new(p, 0), e);
	case OP_EMPTY_SET:
		return push(p, (struct pk_value){ .type = PK_OPAQUE }, e);
	case OP_MARK:
		return push_mark(p, e);
	case OP_TUPLE:
	case OP_LIST:
	case OP_DICT:
	case OP_SETITEMS:
	case OP_APPENDS:
	case OP_ADDITEMS:
	case OP_FROZENSET:
	case OP_POP_MARK:
		return op_marked(p, op, e);
	case OP_SETITEM:
		rc = need(p, 3, e);
		return rc ? rc : set_items(p, p->n - 2, e);
	case OP_APPEND:
		rc = need(p, 2, e);
		return rc ? rc : append_items(p, p->n - 1, e);
	case OP_REDUCE:
	case OP_NEWOBJ:
		rc = need(p, 2, e);
		return rc ? rc : make_object(p, op == OP_REDUCE, e);
	case OP_NEWOBJ_EX:
		rc = need(p, 3, e);
		return rc ? rc : op_newobj_ex(p, e);
	case OP_BUILD:
		return build(p, e);
	case OP_BINPERSID:
		rc = need(p, 1, e);
		return rc ? rc : op_persid(p, e);
	case OP_POP:
		if (p->n_marks && p->marks[p->n_marks - 1] == p->n) {
			p->n_marks--;
			return 0;
		}
		rc = need(p, 1, e);
		if (!rc)
			drop_from(p, p->n - 1);
		return rc;
	case OP_DUP:
		rc = need(p, 1, e);
		if (rc)
			return rc;
		value_ref(&p->stack[p->n - 1]);
		v = p->stack[p->n - 1];
		return push(p, v, e);
	case OP_PROTO:
		p->in.p += 1;
		return 0;
	case OP_FRAME:
		p->in.p += 8;
		return 0;
	default:
		return bad(p, e, "unknown opcode"); /* the first pass has refused it */
	}
}

static int run(struct pickle *p, struct err *e)
{
	for (;;) {
		uint8_t op;
		int rc;

		if (p->in.end - p->in.p < 9) {
			rc = pk_reader_fill(&p->in, 1, e);
			if (!rc)
				rc = pk_reader_fill(&p->in, 1 + pk_operand_size(*p->in.p), e);
			if (rc)
				return rc;
		}
		op = *p->in.p++;
		if (op == OP_STOP)
			return 0;
		rc = step(p, op, e);
		if (rc)
			return rc;
	}
}

int pickle_load(const struct pickle_input *in, const struct pickle_opts *opts, struct pickle **ret,
		struct err *e)
{
	struct pickle *p = calloc(1, sizeof(*p));
	int rc;

	if (!p)
		return err_set(e, ENOMEM, "pickle: out of memory");
	p->hooks = opts->hooks;
	p->arg = opts->arg;
	p->drop_unknown = opts->drop_unknown;
	p->pool.max_bytes = opts->max_bytes;
	p->strings = opts->strings;
	if (!p->strings)
		p->strings = p->own_strings = pk_strings_new(opts->max_bytes);
	rc = p->strings ? pk_reader_init(&p->in, in, e) : err_set(e, ENOMEM, "pickle: out of memory");
	if (rc)
		goto fail;
	rc = pk_prescan(&p->in, &p->plan, e);
	if (rc)
		goto fail;
	p->memo = calloc(p->plan.n_wanted + 1u, sizeof(*p->memo));
	if (!p->memo) {
		rc = err_set(e, ENOMEM, "pickle: out of memory");
		goto fail;
	}
	pk_reader_rewind(&p->in);
	rc = run(p, e);
	if (!rc && (!p->n || p->n_marks))
		rc = bad(p, e, "STOP without a value");
	if (rc)
		goto fail;
	p->root = p->stack[p->n - 1];
	pk_reader_release(&p->in);
	*ret = p;
	return 0;
fail:
	pickle_free(p);
	return rc;
}

void pickle_free(struct pickle *p)
{
	if (!p)
		return;
	pk_reader_release(&p->in);
	pk_memo_plan_release(&p->plan);
	pool_release(&p->pool);
	pk_strings_free(p->own_strings);
	free(p->memo);
	free(p->stack);
	free(p->marks);
	free(p);
}

struct pk_value pickle_root(const struct pickle *p)
{
	return p->root;
}

uint64_t pickle_end(const struct pickle *p)
{
	return p->plan.end;
}

int pickle_to_record(struct pickle *p, struct pk_value *obj, const void *bytes, size_t len,
		     struct err *e)
{
	size_t size = sizeof(struct pk_node) + len;
	struct pk_node *r;

	if (obj->n->refs > 1)
		return 1;
	r = len < UINT32_MAX / 2 ? pool_alloc(&p->pool, size) : NULL;
	if (!r)
		return too_big(p, e);
	value_drop(p, obj);
	*r = (struct pk_node){ .refs = 1, .len = (uint32_t)len, .size = (uint32_t)size };
	memcpy(r->own, bytes, len);
	obj->type = PK_RECORD;
	obj->n = r;
	return 0;
}

/* ---- looking ---- */

bool pk_is(const struct pk_value *v, const char *module, const char *name)
{
	return v->type == PK_GLOBAL && !strcmp(v->g->name->data, name) &&
	       (!module || !strcmp(v->g->module->data, module));
}

const struct pk_value *pk_get(const struct pk_value *dict, const char *key)
{
	if (!dict || dict->type != PK_DICT)
		return NULL;
	for (size_t i = dict->n->len; i-- > 0;) /* a later duplicate counts */
		if (dict->n->v[2 * i].type == PK_STR && !strcmp(dict->n->v[2 * i].s->data, key))
			return &dict->n->v[2 * i + 1];
	return NULL;
}

const struct pk_value *pk_attr(const struct pk_value *obj, const char *name)
{
	const struct pk_value *state;

	if (!obj || obj->type != PK_OBJECT)
		return NULL;
	state = &obj->n->own[PK_STATE];
	if (state->type == PK_TUPLE && pk_len(state))
		state = &state->n->own[0];
	return pk_get(state, name);
}
