/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Building tuples, globals, objects and containers. Every function takes its operands from the
 * stack, after checking that they exist, and pushes its result.
 */
#include "parse/pickle_internal.h"

#include "base/checked.h"
#include "base/err.h"

#include <string.h>

enum known { KNOWN_NONE, KNOWN_SIZE, KNOWN_ORDERED_DICT };

struct pk_known_global {
	struct pk_global g; /* must be first: values point to it */
	enum known known;
	struct pk_known_global *next;
};

int pk_make_tuple(struct pickle *p, size_t count, struct ckpt_err *e)
{
	struct pk_node *n;

	if (!pk_has(p, count))
		return pk_need(p, count, e);
	if (!count)
		return pk_push(p, (struct pk_value){ .type = PK_TUPLE }, e); /* () has no node */
	if (count > UINT32_MAX / 64)
		return pk_too_big(p, e);
	n = pk_node_new(p, (uint32_t)count);
	if (!n)
		return pk_too_big(p, e);
	p->n -= count;
	for (size_t i = 0; i < count; i++)
		n->own[i] = p->stack[p->n + i];
	p->stack[p->n++] = (struct pk_value){ .type = PK_TUPLE, .n = n };
	return 0;
}

static enum known known_global(const char *module, const char *name)
{
	static const struct {
		const char *module, *name;
		enum known known;
	} table[] = {
		{ "torch", "Size", KNOWN_SIZE },
		{ "collections", "OrderedDict", KNOWN_ORDERED_DICT },
	};

	for (size_t i = 0; i < ARRAY_LEN(table); i++)
		if (!strcmp(module, table[i].module) && !strcmp(name, table[i].name))
			return table[i].known;
	return KNOWN_NONE;
}

int pk_add_global(struct pickle *p, const struct pk_str *module, const struct pk_str *name,
		  struct ckpt_err *e)
{
	struct pk_known_global **head, *g;

	head = &p->globals[(module->hash * 31 + name->hash) % PK_GLOBAL_BUCKETS];
	for (g = *head; g; g = g->next)
		if (g->g.module == module && g->g.name == name)
			break;
	if (!g) {
		if (p->n_globals++ == PK_MAX_GLOBALS)
			return pk_bad(p, "too many different globals", e);
		g = pool_get(&p->pool, pool_class(sizeof(*g)));
		if (!g)
			return pk_too_big(p, e);
		*g = (struct pk_known_global){ .g = { .module = module, .name = name },
					       .next = *head };
		/* A name that contains a NUL is not the name that a hook would see. */
		if (strlen(module->data) == module->len && strlen(name->data) == name->len) {
			g->known = known_global(module->data, name->data);
			if (p->hooks && p->hooks->classify)
				g->g.cls = p->hooks->classify(p->arg, module->data, name->data);
		}
		*head = g;
	}
	return pk_push(p, (struct pk_value){ .type = PK_GLOBAL, .g = &g->g }, e);
}

/* torch.Size((a, b)) becomes its argument. False if that is not what is on the stack. */
static bool make_size(struct pickle *p)
{
	struct pk_value *args = &p->stack[p->n - 1];
	struct pk_node *n = args->n;

	if (pk_len(args) != 1 || n->own[0].type != PK_TUPLE)
		return false;
	p->stack[--p->n - 1] = n->own[0];
	if (n->refs == 1) {
		pool_put(&p->pool, n, n->own_class);
	} else {
		pk_ref(&n->own[0]);
		n->refs--;
	}
	return true;
}

/*
 * OrderedDict() becomes a dict, and so does OrderedDict([[key, value], ...]), Python 2's form, if
 * its list is not shared: a shared list could be expanded again and again. 0: the stack has
 * neither.
 */
static int make_ordered_dict(struct pickle *p, struct ckpt_err *e)
{
	const struct pk_value *args = &p->stack[p->n - 1];
	const struct pk_value *list = pk_len(args) == 1 ? &args->n->own[0] : NULL;
	size_t n = list ? pk_len(list) : 0;
	struct pk_node *dict;
	int rc;

	if (pk_len(args) > 1 ||
	    (list && (list->type != PK_LIST || !list->n || list->n->refs > 1 || args->n->refs > 1)))
		return 0;
	for (size_t i = 0; i < n; i++) {
		const struct pk_value *pair = &list->n->v[i];

		if ((pair->type != PK_LIST && pair->type != PK_TUPLE) || pk_len(pair) != 2)
			return 0;
	}
	dict = pk_node_new(p, 0);
	if (!dict)
		return pk_too_big(p, e);
	rc = pk_dict_grow(p, dict, 0, 2 * n, e);
	if (rc)
		return rc;
	for (size_t i = 0; i < 2 * n; i++) {
		dict->v[i] = list->n->v[i / 2].n->v[i % 2];
		pk_ref(&dict->v[i]);
	}
	dict->len = (uint32_t)n;
	pk_drop_from(p, p->n - 2);
	rc = pk_push_node(p, PK_DICT, dict, e);
	return rc ? rc : 1;
}

/* Callee and arguments on top of the stack become an object, or the value the callee is known to
 * return. */
int pk_make_object(struct pickle *p, bool reduce, struct ckpt_err *e)
{
	struct pk_value *callee, *args;
	struct pk_node *n;

	if (!pk_has(p, 2))
		return pk_need(p, 2, e);
	callee = &p->stack[p->n - 2];
	args = &p->stack[p->n - 1];
	if (reduce && callee->type == PK_GLOBAL && args->type == PK_TUPLE) {
		const struct pk_known_global *g = (const void *)callee->g;

		if (g->known == KNOWN_SIZE && make_size(p))
			return 0;
		if (g->known == KNOWN_ORDERED_DICT) {
			int rc = make_ordered_dict(p, e);

			if (rc)
				return rc < 0 ? rc : 0;
		}
	}
	if (p->drop_unknown && (callee->type != PK_GLOBAL || !callee->g->cls)) {
		pk_drop_from(p, p->n - 2);
		return pk_push(p, (struct pk_value){ .type = PK_OPAQUE }, e);
	}
	n = pk_node_new(p, PK_OBJECT_FIELDS);
	if (!n)
		return pk_too_big(p, e);
	n->own[PK_CALLEE] = *callee;
	n->own[PK_ARGS] = *args;
	n->own[PK_STATE] = n->own[PK_ITEMS] = (struct pk_value){ .type = PK_NONE };
	*callee = (struct pk_value){ .type = PK_OBJECT, .n = n };
	p->n--;
	return 0;
}

/* An empty set: an object of its class, whose elements follow as items. */
int pk_make_set(struct pickle *p, const char *class, struct ckpt_err *e)
{
	const struct pk_str *module, *name;
	int rc;

	if (p->drop_unknown)
		return pk_push(p, (struct pk_value){ .type = PK_OPAQUE }, e);
	module = pk_intern(p->strings, "builtins", strlen("builtins"));
	name = module ? pk_intern(p->strings, class, strlen(class)) : NULL;
	if (!name)
		return pk_no_string(p, e);
	rc = pk_add_global(p, module, name, e);
	if (!rc)
		rc = pk_make_tuple(p, 0, e);
	return rc ? rc : pk_make_object(p, false, e);
}

int pk_make_persid(struct pickle *p, struct ckpt_err *e)
{
	struct pk_node *n;

	if (!pk_has(p, 1))
		return pk_need(p, 1, e);
	n = pk_node_new(p, 1);
	if (!n)
		return pk_too_big(p, e);
	n->own[0] = p->stack[--p->n];
	if (p->persid) {
		int rc = p->persid(p->arg, &n->own[0], e);

		if (rc)
			return rc;
	}
	return pk_push_node(p, PK_PERSID, n, e);
}

int pk_build(struct pickle *p, struct ckpt_err *e)
{
	struct pk_value state, *obj, *slot, *callee;

	if (!pk_has(p, 2))
		return pk_need(p, 2, e);
	state = p->stack[--p->n];
	obj = &p->stack[p->n - 1];
	if (obj->type != PK_OBJECT) { /* state of a value that is not kept */
		pk_drop(p, &state);
		return 0;
	}
	slot = &obj->n->own[PK_STATE];
	pk_drop(p, slot);
	*slot = state;
	callee = &obj->n->own[PK_CALLEE];
	if (callee->type == PK_GLOBAL && callee->g->cls && p->hooks && p->hooks->built)
		return p->hooks->built(p->arg, p, obj, e);
	return 0;
}

/*
 * The name of the attribute of the outermost object that the dict at stack position `at` will
 * become, or NULL. While it is being filled the stack is: object, its state dict, MARK, key, value,
 * key, value ... key, this dict; without the MARK where the object has only one attribute.
 */
static const struct pk_str *root_attr(const struct pickle *p, size_t at, int *ret_class)
{
	const struct pk_value *s = p->stack;

	if (p->n_marks > 1 || (p->n_marks ? p->marks[0] != 2 || at < 3 || at % 2 != 1 : at != 3))
		return NULL;
	if (s[0].type != PK_OBJECT || s[1].type != PK_DICT || s[at - 1].type != PK_STR ||
	    s[0].n->own[PK_CALLEE].type != PK_GLOBAL)
		return NULL;
	*ret_class = s[0].n->own[PK_CALLEE].g->cls;
	return s[at - 1].s;
}

/*
 * root_attr() may be wrong: a dict that is the only item of an attribute's dict is on the stack
 * exactly like an attribute. The difference shows when the outer dict takes it in, whereas an
 * attribute stays in place until the object's state takes all of them.
 */
int pk_check_taken(const struct pickle *p, struct ckpt_err *e)
{
	if (!p->taken)
		return 0;
	if (p->taken_at < p->n && p->stack[p->taken_at].type == PK_DICT &&
	    p->stack[p->taken_at].n == p->taken)
		return 0;
	return err_set(
		e, ERR_UNSUPPORTED,
		"pickle: a dict inside attribute data was taken for an attribute, before byte %llu",
		(unsigned long long)pk_reader_pos(&p->in));
}

static int note_taken(struct pickle *p, size_t at, struct ckpt_err *e)
{
	int rc;

	if (p->taken == p->stack[at].n)
		return 0;
	rc = pk_check_taken(p, e);
	p->taken = p->stack[at].n;
	p->taken_at = at;
	return rc;
}

/* Offers the pairs [from, p->n) to the hook and closes the gaps of those it takes. */
static int offer_items(struct pickle *p, size_t from, int root_class, const struct pk_str *attr,
		       struct ckpt_err *e)
{
	size_t to = from;

	for (size_t i = from; i < p->n; i += 2) {
		struct pk_value key = p->stack[i], value = p->stack[i + 1];
		bool consumed = false;
		int rc = p->hooks->attr_item(p->arg, root_class, attr, &key, &value, &consumed, e);

		if (rc)
			return rc;
		if (consumed) {
			pk_drop(p, &key);
			pk_drop(p, &value);
		} else {
			p->stack[to++] = key;
			p->stack[to++] = value;
		}
	}
	if (to < p->n) {
		int rc = note_taken(p, from - 1, e);

		if (rc)
			return rc;
	}
	p->n = to;
	return 0;
}

/*
 * The container that items for stack position `at` go into: the value itself or, for an object of
 * some class, its items. PK_NONE: it cannot hold items.
 */
static int items_of(struct pickle *p, size_t at, enum pk_type type, struct pk_value *ret,
		    struct ckpt_err *e)
{
	struct pk_value *slot = &p->stack[at];

	*ret = (struct pk_value){ .type = PK_NONE };
	if (slot->type == PK_OBJECT) {
		slot = &slot->n->own[PK_ITEMS];
		if (slot->type == PK_NONE) {
			struct pk_node *n = pk_node_new(p, 0);

			if (!n)
				return pk_too_big(p, e);
			*slot = (struct pk_value){ .type = type, .n = n };
		}
	}
	if (slot->type == type)
		*ret = *slot;
	return 0;
}

int pk_set_items(struct pickle *p, size_t from, struct ckpt_err *e)
{
	bool plain = p->stack[from - 1].type == PK_DICT;
	struct pk_value dict;
	size_t used;
	int rc;

	if ((p->n - from) % 2)
		return pk_bad(p, "SETITEMS with half a pair", e);
	rc = items_of(p, from - 1, PK_DICT, &dict, e);
	if (rc)
		return rc;
	if (dict.type == PK_NONE) {
		pk_drop_from(p, from);
		return 0;
	}
	if (p->hooks && p->hooks->attr_item && plain) {
		int root_class = 0;
		const struct pk_str *attr = root_attr(p, from - 1, &root_class);

		rc = attr ? offer_items(p, from, root_class, attr, e) : 0;
		if (rc)
			return rc;
	}
	/* The state of the outermost object takes its attributes. */
	if (p->taken && plain && from == 2) {
		rc = pk_check_taken(p, e);
		if (rc)
			return rc;
		p->taken = NULL;
	}
	used = 2 * (size_t)dict.n->len;
	rc = pk_dict_grow(p, dict.n, used, p->n - from, e);
	if (rc)
		return rc;
	for (size_t i = from; i < p->n; i++)
		dict.n->v[used++] = p->stack[i];
	dict.n->len = (uint32_t)(used / 2);
	p->n = from;
	return 0;
}

int pk_append_items(struct pickle *p, size_t from, struct ckpt_err *e)
{
	struct pk_value list;
	int rc = items_of(p, from - 1, PK_LIST, &list, e);

	if (rc)
		return rc;
	if (list.type == PK_NONE) {
		pk_drop_from(p, from);
		return 0;
	}
	rc = pk_node_grow(p, list.n, list.n->len, p->n - from, e);
	if (rc)
		return rc;
	for (size_t i = from; i < p->n; i++)
		list.n->v[list.n->len++] = p->stack[i];
	p->n = from;
	return 0;
}

/* Moves the container on top below the values from `from` on, which become its items. */
static int fill(struct pickle *p, size_t from, bool is_dict, struct ckpt_err *e)
{
	struct pk_value v = p->stack[p->n - 1];

	memmove(p->stack + from + 1, p->stack + from, (p->n - 1 - from) * sizeof(v));
	p->stack[from] = v;
	return is_dict ? pk_set_items(p, from + 1, e) : pk_append_items(p, from + 1, e);
}

/* LIST and DICT: as if the empty container had been pushed before the mark. */
static int make_container(struct pickle *p, enum pk_type type, size_t from, struct ckpt_err *e)
{
	int rc = pk_push_node(p, type, pk_node_new(p, 0), e);

	return rc ? rc : fill(p, from, type == PK_DICT, e);
}

int pk_marked(struct pickle *p, uint8_t op, struct ckpt_err *e)
{
	size_t from = 0;
	int rc = pk_mark_pop(p, &from, e);

	if (rc)
		return rc;
	switch (op) {
	case OP_TUPLE:
		return pk_make_tuple(p, p->n - from, e);
	case OP_POP_MARK:
		pk_drop_from(p, from);
		return 0;
	case OP_FROZENSET:
		rc = pk_make_set(p, "frozenset", e);
		return rc ? rc : fill(p, from, false, e);
	case OP_LIST:
		return make_container(p, PK_LIST, from, e);
	case OP_DICT:
		return make_container(p, PK_DICT, from, e);
	case OP_OBJ: /* class, arguments */
		if (p->n == from)
			return pk_bad(p, "stack underflow", e);
		rc = pk_make_tuple(p, p->n - from - 1, e);
		return rc ? rc : pk_make_object(p, false, e);
	default:
		break;
	}
	if (from <= p->floor)
		return pk_bad(p, "stack underflow", e);
	return op == OP_SETITEMS ? pk_set_items(p, from, e) : pk_append_items(p, from, e);
}
