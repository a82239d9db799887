/* SPDX-License-Identifier: Apache-2.0 */
/*
 * computed - the derived tensors of a checkpoint, which options add one after another: each sees
 * the catalog that the previous one has made.
 *
 * Private to core/ckpt.
 *
 * Threads: made before the checkpoint is used, then immutable.
 */
#ifndef CKPT_COMPUTED_H
#define CKPT_COMPUTED_H

#include "base/arena.h"
#include "read/derived.h"

#include <stdbool.h>

struct catalog;
struct catalog_tensor;
struct ckpt_err;

struct computed {
	struct arena mem; /* of what follows, and of what makers put there */
	struct derived *v;
	struct derived_input *inputs; /* of all */
	size_t n, n_inputs;
	struct vtensor **made; /* of inputs */
	size_t n_made, cap_made;
};

/* A derived tensor that is to be. The arrays, name and `how` are borrowed: the first three until
 * computed_add has returned, `how` for as long as the tensor. */
struct computed_new {
	const char *fqn;
	uint32_t fqn_len;
	uint32_t like; /* the number of a tensor, whose path it gets */
	enum ckpt_dtype dtype;
	size_t n_dims;
	const uint64_t *shape;
	derived_fn *run;
	const void *how;
	/* Those of this checkpoint have the numbers from before computed_add. */
	const struct derived_input *inputs;
	size_t n_inputs;
	uint8_t shift; /* as in struct derived */
	bool hidden;
};

/* Takes over what was derived before; the numbers in it are the catalog's. */
int computed_begin(struct computed *c, const struct derived *v, size_t n, struct ckpt_err *e);
/* hide: one for each shown tensor. The numbers of all tensors change. */
int computed_add(struct computed *c, struct catalog *catalog, const struct computed_new *v,
		 size_t n, const bool *hide, struct ckpt_err *e);
/* Takes over a virtual tensor that is to be an input, also after a failure. */
int computed_keep(struct computed *c, struct vtensor *made, struct ckpt_err *e);
void computed_release(struct computed *c);

#endif
