/* SPDX-License-Identifier: Apache-2.0 */
/* whole_util - a stored tensor as the virtual tensor that shows all of it, for tests of plans. */
#ifndef CORE_WHOLE_UTIL_H
#define CORE_WHOLE_UTIL_H

#include "model/box.h"
#include "read/plan.h"

#include <stdlib.h>

struct whole {
	struct vtensor v;
	struct piece piece;
	uint64_t zero[CKPT_MAX_DIMS], one[CKPT_MAX_DIMS];
	uint8_t dim[CKPT_MAX_DIMS];
	struct plan_source source;
};

static inline enum ckpt_dtype dtype_of_size(uint32_t size)
{
	return size == 1   ? CKPT_DTYPE_U8
	       : size == 2 ? CKPT_DTYPE_BF16
	       : size == 4 ? CKPT_DTYPE_F32
	       : size == 8 ? CKPT_DTYPE_I64
			   : CKPT_DTYPE_C128;
}

static inline void whole_init(struct whole *w, const struct chunkmap *m, uint32_t element,
			      const struct payload *payloads)
{
	*w = (struct whole){ .source = { m, payloads, m->locs } };
	for (uint32_t d = 0; d < m->n_dims; d++) {
		w->one[d] = 1;
		w->dim[d] = (uint8_t)d;
	}
	w->piece = (struct piece){ .n_source = (uint8_t)m->n_dims,
				   .off = w->zero,
				   .len = m->shape,
				   .coeff = w->one,
				   .dim = w->dim,
				   .base = w->zero };
	w->v = (struct vtensor){ .stored = (uint8_t)dtype_of_size(element),
				 .dtype = (uint8_t)dtype_of_size(element),
				 .n_dims = (uint8_t)m->n_dims,
				 .n_pieces = 1,
				 .shape = m->shape,
				 .pieces = &w->piece };
}

static inline int plan_whole_to(const struct chunkmap *m, uint32_t element,
				const struct payload *payloads, uint64_t off, uint64_t len,
				const int64_t *strides, struct plan *p)
{
	struct whole w;

	whole_init(&w, m, element, payloads);
	return plan_read(&w.v, &w.source, off, len, strides, p);
}

static inline int plan_whole(const struct chunkmap *m, uint32_t element,
			     const struct payload *payloads, uint64_t off, uint64_t len,
			     struct plan *p)
{
	return plan_whole_to(m, element, payloads, off, len, NULL, p);
}

#endif
