/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/computed/dequantise_parts.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "base/err.h"
#include "base/vec.h"
#include "model/box.h"

#include <errno.h>
#include <string.h>

enum { MAX_NAME = 1024 };

const char deq_scale[] = "_scale", deq_scale_inv[] = "_scale_inv";

/* ---- names ---- */

bool deq_ends(const struct catalog_tensor *t, const char *end)
{
	return t->fqn_len > strlen(end) && bytes_end(t->fqn, t->fqn_len, end);
}

int64_t deq_sibling(const struct deq_finder *f, const struct catalog_tensor *t, const char *end,
		    const char *by)
{
	size_t cut = t->fqn_len - strlen(end), more = strlen(by);
	char name[MAX_NAME];

	if (cut + more >= sizeof(name))
		return -1;
	memcpy(name, t->fqn, cut);
	memcpy(name + cut, by, more + 1);
	return catalog_find_tensor(f->catalog, name, cut + more);
}

int deq_no_scales(const struct deq_finder *f, const struct catalog_tensor *t, const char *end,
		  const char *by)
{
	return err_set(f->e, EINVAL,
		       "option 'dequantize': '%.120s' holds codes (%s), but '%.120s%s', "
		       "which would "
		       "be their scales, does not exist",
		       SHOWN(t), DTYPE_TEXT(t), FQN_TEXT(t->fqn, t->fqn_len - strlen(end)), by);
}

int deq_bad_scales(const struct deq_finder *f, const struct catalog_tensor *t,
		   const struct catalog_tensor *s, const char *want)
{
	return err_set(f->e, EINVAL,
		       "option 'dequantize': '%.100s' has codes of shape %s (%s), and "
		       "'%.100s' has "
		       "shape %s (%s): %s",
		       SHOWN(t), SHAPE_TEXT(t), DTYPE_TEXT(t), SHOWN(s), SHAPE_TEXT(s),
		       DTYPE_TEXT(s), want);
}

/* ---- what was found ---- */

/* name: of the arena. */
static struct deq_found *add(struct deq_finder *f, char *name, size_t len, const uint64_t *shape,
			     size_t n_dims)
{
	struct deq_found *x;

	if (!name || !VEC_ROOM(f->v, f->cap, f->n + 1)) {
		(void)err_nomem(f->e);
		return NULL;
	}
	x = &f->v[f->n++];
	*x = (struct deq_found){ .q = { .dtype = f->dtype,
					.bits = 8,
					.per = 1,
					.rows = 1,
					.columns = 1,
					.zeros_per = 1,
					.order = { 0, 1, 2, 3, 4, 5, 6, 7 } },
				 .name = name,
				 .name_len = (uint32_t)len,
				 .n_dims = (uint8_t)n_dims };
	memcpy(x->shape, shape, n_dims * sizeof(*shape));
	return x;
}

struct deq_found *deq_add_named(struct deq_finder *f, const char *name, size_t len,
				const uint64_t *shape, size_t n_dims)
{
	char *copy = arena_alloc(f->mem, len + 1);

	if (copy) {
		memcpy(copy, name, len);
		copy[len] = 0;
	}
	return add(f, copy, len, shape, n_dims);
}

struct deq_found *deq_add(struct deq_finder *f, const struct catalog_tensor *t, const char *end,
			  const char *by, const uint64_t *shape, size_t n_dims)
{
	size_t cut = t->fqn_len - strlen(end), len = cut + strlen(by);
	char *name = arena_alloc(f->mem, len + 1);

	if (name) {
		memcpy(name, t->fqn, cut);
		memcpy(name + cut, by, strlen(by) + 1);
	}
	return add(f, name, len, shape, n_dims);
}

uint8_t deq_add_input(struct deq_finder *f, struct deq_found *x, const struct catalog_tensor *t)
{
	f->hide[t - f->t] = true;
	x->inputs[x->n_inputs] = (uint32_t)(t - f->t);
	return x->n_inputs++;
}

/* ---- scales ---- */

bool deq_is_one(const struct catalog_tensor *t)
{
	for (size_t d = 0; d < t->n_dims; d++)
		if (t->shape[d] != 1)
			return false;
	return true;
}

uint64_t deq_blocks_in(uint64_t n, uint64_t block)
{
	return n / block + !!(n % block);
}

bool deq_set_grid(const struct deq_finder *f, struct dequant *q, const struct catalog_tensor *s,
		  size_t prefix, const uint64_t *shape, uint64_t m, uint64_t n)
{
	const uint64_t tries[4][2] = {
		{ f->config.block[0], f->config.block[1] }, { 128, 128 }, { 1, 32 }, { 1, 16 }
	};
	uint64_t rows, columns;

	q->exponents = s->dtype == CKPT_DTYPE_U8 || s->dtype == CKPT_DTYPE_F8_E8M0FNU;
	q->rows = max_u64(m, 1);
	q->columns = max_u64(n, 1);
	if (deq_is_one(s) && !prefix)
		return true;
	if (s->n_dims == 1 && !prefix) {
		q->rows = 1;
		q->scale_dims = 1;
		return s->shape[0] == m;
	}
	q->scale_dims = 2;
	if (s->n_dims != prefix + 2 || !dims_equal(prefix, s->shape, shape))
		return false;
	rows = s->shape[prefix];
	columns = s->shape[prefix + 1];
	if (rows == 1 && columns == 1)
		return true;
	q->rows = 1;
	if (rows == m && columns == 1)
		return true;
	for (size_t i = 0; i < ARRAY_LEN(tries); i++)
		if (rows == deq_blocks_in(m, tries[i][0]) &&
		    columns == deq_blocks_in(n, tries[i][1])) {
			q->rows = tries[i][0];
			q->columns = tries[i][1];
			return true;
		}
	q->columns = columns ? n / columns : 0;
	return q->columns && rows == m && q->columns * columns == n;
}
