/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout_intern - shared by the parsers of layouts: interned strings and specs.
 */
#include "base/checked.h"
#include "base/err.h"
#include "layout/layout_internal.h"

#include <errno.h>
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

uint32_t layout_find(const struct pk_strings *t, const void *bytes, size_t len)
{
	const struct pk_str *found = pk_find(t, bytes, len);

	return found ? found->id : LAYOUT_NONE;
}

int layout_in_file(int rc, struct ckpt_err *e, const char *file)
{
	return rc == -EFBIG ? err_wrap(e, "%.150s", file) : rc;
}

int layout_intern(struct pk_strings *t, const void *bytes, size_t len, uint32_t *ret,
		  struct ckpt_err *e)
{
	const struct pk_str *s = pk_intern(t, bytes, len);

	if (!s && errno == EFBIG)
		return err_set(e, EFBIG,
			       "the names or placements of the layout take more than %zu MiB",
			       LAYOUT_MAX_INTERNED >> 20);
	if (!s)
		return err_nomem(e);
	*ret = s->id;
	return 0;
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
	return layout_intern(l->specs, room, (size_t)(at - (uint8_t *)room), ret, e);
}

const struct layout_packed *layout_packed(const struct layout *l, uint32_t spec)
{
	return (const void *)pk_string(l->specs, spec)->data;
}

struct ckpt_sharding layout_sharding(const struct layout_packed *p)
{
	const void *behind = p->numbers + p->n_axes + (p->has_shape ? p->n_dims : 0);

	return (struct ckpt_sharding){ p->numbers, behind, p->n_axes, p->n };
}
