/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout_intern - shared by the parsers of layouts: interned strings and specs.
 */
#include "base/checked.h"
#include "base/err.h"
#include "base/vec.h"
#include "layout/layout_internal.h"

#include <search.h>
#include <stdlib.h>
#include <string.h>

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

int layout_in_file(int rc, struct ckpt_err *e, const char *file)
{
	return rc == -EFBIG ? err_wrap(e, "%.150s", file) : rc;
}

int intern_add(struct interner *p, const void *bytes, size_t len, uint32_t *ret, struct ckpt_err *e)
{
	enum { NODE = 64 }; /* minimum bytes that malloc and tsearch use per item */
	uint32_t number = intern_find(p, bytes, len);
	struct interned *item;

	if (number == LAYOUT_NONE) {
		if (len + sizeof(*item) + NODE > LAYOUT_MAX_INTERNED - p->bytes)
			return err_set(
				e, EFBIG,
				"the names or placements of the layout take more than %zu MiB",
				LAYOUT_MAX_INTERNED >> 20);
		if (!VEC_ROOM(p->items, p->cap, p->n + 1))
			return err_nomem(e);
		item = malloc(sizeof(*item) + len + 1);
		if (!item)
			return err_nomem(e);
		memcpy(item->data, bytes, len);
		((char *)item->data)[len] = 0;
		*item = (struct interned){ item->data, len, (uint32_t)p->n };
		if (!tsearch(item, &p->tree, interned_cmp)) {
			free(item);
			return err_nomem(e);
		}
		number = item->number;
		p->bytes += len + sizeof(*item) + NODE;
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
	return intern_add(&l->specs, room, (size_t)(at - (uint8_t *)room), ret, e);
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
