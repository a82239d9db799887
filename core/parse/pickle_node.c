/* SPDX-License-Identifier: Apache-2.0 */
#include "parse/pickle_internal.h"

#include "base/err.h"

#include <stdlib.h>
#include <string.h>

/* Metadata nests seven levels; anything deeper is freed by pickle_free, not by recursion. */
enum { MAX_FREE_DEPTH = 32 };

int pk_bad(const struct pickle *p, const char *what, struct ckpt_err *e)
{
	return err_set(e, ERR_CORRUPT, "pickle: %s at byte %llu", what,
		       (unsigned long long)pk_reader_pos(&p->in));
}

int pk_too_big(const struct pickle *p, struct ckpt_err *e)
{
	if (p->pool.no_memory)
		return err_set(e, ENOMEM, "pickle: out of memory");
	return err_set(e, EFBIG, "pickle: needs more than %zu MiB of memory at byte %llu",
		       p->pool.arena.max_bytes >> 20, (unsigned long long)pk_reader_pos(&p->in));
}

int pk_no_string(const struct pickle *p, struct ckpt_err *e)
{
	if (errno == ENOMEM)
		return err_set(e, ENOMEM, "pickle: out of memory");
	return err_set(e, EFBIG, "pickle: too many strings at byte %llu",
		       (unsigned long long)pk_reader_pos(&p->in));
}

static void node_free(struct pickle *p, enum pk_type type, struct pk_node *n, unsigned depth)
{
	size_t count = type == PK_RECORD ? 0 : type == PK_DICT ? 2 * (size_t)n->len : n->len;

	for (size_t i = 0; i < count; i++) {
		const struct pk_value *v = &n->v[i];

		if (v->type >= PK_TUPLE && v->n && --v->n->refs == 0 && depth < MAX_FREE_DEPTH)
			node_free(p, v->type, v->n, depth + 1);
	}
	if (type == PK_DICT)
		pk_index_free(p, n);
	if (n->cap)
		pool_put(&p->pool, n->v, n->v_class);
	pool_put(&p->pool, n, n->own_class);
}

void pk_node_free(struct pickle *p, enum pk_type type, struct pk_node *n)
{
	node_free(p, type, n, 0);
}

int pk_node_grow(struct pickle *p, struct pk_node *n, size_t used, size_t more, struct ckpt_err *e)
{
	size_t want = used + more;
	unsigned cls = pool_class(want * sizeof(struct pk_value));
	struct pk_value *v;

	if (want <= n->cap)
		return 0;
	if (want > UINT32_MAX / 2)
		return pk_too_big(p, e);
	v = pool_get(&p->pool, cls);
	if (!v)
		return pk_too_big(p, e);
	if (used)
		memcpy(v, n->v, used * sizeof(*v));
	if (n->cap)
		pool_put(&p->pool, n->v, n->v_class);
	n->v = v;
	n->v_class = (uint16_t)cls;
	n->cap = (uint32_t)(pool_class_size(cls) / sizeof(*v));
	return 0;
}

int pk_dict_grow(struct pickle *p, struct pk_node *n, size_t used, size_t more, struct ckpt_err *e)
{
	uint32_t cap = n->cap;
	int rc;

	if (used + more > cap)
		pk_index_free(p, n);
	rc = pk_node_grow(p, n, used, more, e);
	return rc || n->cap == cap || pk_index_add(p, n) ? rc : pk_too_big(p, e);
}

/* Doubles the capacity of an array of *cap elements, within the ceiling. */
static int grow(struct pickle *p, void **array, size_t *cap, size_t first, size_t size,
		struct ckpt_err *e)
{
	size_t more = *cap ? *cap : first;
	void *a;

	if (!arena_charge(&p->pool.arena, more * size))
		return pk_too_big(p, e);
	a = realloc(*array, (*cap + more) * size);
	if (!a)
		return err_set(e, ENOMEM, "pickle: out of memory");
	*array = a;
	*cap += more;
	return 0;
}

int pk_stack_grow(struct pickle *p, struct ckpt_err *e)
{
	void *a = p->stack;
	int rc = grow(p, &a, &p->cap, 64, sizeof(*p->stack), e);

	p->stack = a;
	return rc;
}

int pk_mark_push(struct pickle *p, struct ckpt_err *e)
{
	if (p->n_marks == p->marks_cap) {
		void *a = p->marks;
		int rc = grow(p, &a, &p->marks_cap, 16, sizeof(*p->marks), e);

		p->marks = a;
		if (rc)
			return rc;
	}
	p->marks[p->n_marks++] = p->floor = p->n;
	return 0;
}

int pk_mark_pop(struct pickle *p, size_t *ret, struct ckpt_err *e)
{
	if (!p->n_marks)
		return pk_bad(p, "no mark", e);
	*ret = p->marks[--p->n_marks];
	p->floor = p->n_marks ? p->marks[p->n_marks - 1] : 0;
	return 0;
}

void pk_drop_from(struct pickle *p, size_t at)
{
	while (p->n > at)
		pk_drop(p, &p->stack[--p->n]);
}
