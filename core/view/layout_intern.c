/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout_intern - what a layout's readers share: arrays that grow, strings and specs kept once.
 */
#include "base/checked.h"
#include "base/err.h"
#include "view/layout_internal.h"

#include <search.h>
#include <stdlib.h>
#include <string.h>

int layout_no_memory(struct ckpt_err *e)
{
	return err_set(e, ENOMEM, "out of memory");
}

int layout_grow(void *array, size_t n, size_t *cap, size_t size)
{
	void **a = array;
	size_t more = *cap + *cap / 2 + 16;
	void *p;

	if (n < *cap)
		return 0;
	p = realloc(*a, more * size);
	if (!p)
		return -ENOMEM;
	*a = p;
	*cap = more;
	return 0;
}

bool layout_number(const char *s, uint64_t max, uint64_t *ret)
{
	uint64_t v = 0;

	if (!*s)
		return false;
	for (; *s; s++) {
		if (*s < '0' || *s > '9')
			return false;
		v = min_u64(v * 10 + (uint64_t)(*s - '0'), max + 1);
	}
	*ret = v;
	return true;
}

/* ---- interning ---- */

static int interned_cmp(const void *ap, const void *bp)
{
	const struct interned *a = ap, *b = bp;

	if (a->len != b->len)
		return a->len < b->len ? -1 : 1;
	return memcmp(a->bytes, b->bytes, a->len);
}

uint32_t intern_find(const struct interner *p, const void *bytes, size_t len)
{
	const struct interned key = { .bytes = bytes, .len = len };
	struct interned *const *at = tfind(&key, &p->tree, interned_cmp);

	return at ? (*at)->number : LAYOUT_NONE;
}

int intern_add(struct interner *p, const void *bytes, size_t len, uint32_t *ret)
{
	uint32_t number = intern_find(p, bytes, len);
	struct interned *item;

	if (number == LAYOUT_NONE) {
		if (layout_grow(&p->items, p->n, &p->cap, sizeof(struct interned *)))
			return -ENOMEM;
		item = malloc(sizeof(*item) + len + 1);
		if (!item)
			return -ENOMEM;
		memcpy(item->data, bytes, len);
		((char *)item->data)[len] = 0;
		*item = (struct interned){ item->data, len, (uint32_t)p->n };
		if (!tsearch(item, &p->tree, interned_cmp)) {
			free(item);
			return -ENOMEM;
		}
		number = item->number;
		p->items[p->n++] = item;
	}
	*ret = number;
	return 0;
}

static void leave(void *item)
{
	(void)item;
}

void intern_release(struct interner *p)
{
	tdestroy(p->tree, leave);
	for (size_t i = 0; i < p->n; i++)
		free(p->items[i]);
	free(p->items);
}

/* ---- specs ---- */

int layout_add_spec(struct layout *l, const struct layout_spec *s, uint32_t *ret,
		    struct ckpt_err *e)
{
	uint64_t room[1 + CKPT_MESH_MAX_AXES + CKPT_MAX_DIMS + CKPT_MESH_MAX_AXES] = { 0 };
	struct layout_packed *p = (struct layout_packed *)room;
	size_t n_shape = s->has_shape ? s->n_dims : 0;
	uint8_t *at = (uint8_t *)p->numbers;

	*p = (struct layout_packed){ s->n_axes, s->n, s->n_dims, s->has_shape, s->has_map, { 0 } };
	at = mempcpy(at, s->mesh, s->n_axes * sizeof(*s->mesh));
	at = mempcpy(at, s->shape, n_shape * sizeof(*s->shape));
	at = mempcpy(at, s->placements, s->n * sizeof(*s->placements));
	if (intern_add(&l->specs, room, (size_t)(at - (uint8_t *)room), ret))
		return layout_no_memory(e);
	return 0;
}

const struct layout_packed *layout_packed(const struct layout *l, uint32_t spec)
{
	return l->specs.items[spec]->bytes;
}

struct ckpt_sharding layout_sharding(const struct layout_packed *p)
{
	const void *behind = p->numbers + p->n_axes + (p->has_shape ? p->n_dims : 0);

	return (struct ckpt_sharding){ p->numbers, behind, p->n_axes, p->n };
}
