/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/computed/computed.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/vec.h"
#include "index/catalog_query.h"

#include <stdlib.h>
#include <string.h>

#define MAX_MEMORY ((size_t)8 << 30)

/* Room for more tensors and inputs: all pointers to inputs change. */
static int grow(struct computed *c, size_t more, size_t more_inputs, struct ckpt_err *e)
{
	struct derived *v = calloc(c->n + more + 1, sizeof(*v));
	struct derived_input *inputs = calloc(c->n_inputs + more_inputs + 1, sizeof(*inputs));

	if (!v || !inputs) {
		free(v);
		free(inputs);
		return err_nomem(e);
	}
	for (size_t i = 0; i < c->n; i++) {
		v[i] = c->v[i];
		v[i].inputs = inputs + (c->v[i].inputs - c->inputs);
	}
	if (c->n_inputs)
		memcpy(inputs, c->inputs, c->n_inputs * sizeof(*inputs));
	free(c->v);
	free(c->inputs);
	c->v = v;
	c->inputs = inputs;
	return 0;
}

/* After grow: there is room. */
static void put(struct computed *c, const struct derived *d)
{
	struct derived *to = &c->v[c->n++];

	*to = *d;
	to->inputs = c->inputs + c->n_inputs;
	memcpy(c->inputs + c->n_inputs, d->inputs, d->n_inputs * sizeof(*d->inputs));
	c->n_inputs += d->n_inputs;
}

int computed_begin(struct computed *c, const struct derived *v, size_t n, struct ckpt_err *e)
{
	size_t inputs = 0;
	int rc;

	*c = (struct computed){ .mem = ARENA_INIT(MAX_MEMORY) };
	for (size_t i = 0; i < n; i++)
		inputs += v[i].n_inputs;
	rc = grow(c, n, inputs, e);
	for (size_t i = 0; !rc && i < n; i++)
		put(c, &v[i]);
	return rc;
}

int computed_add(struct computed *c, struct catalog *catalog, const struct computed_new *v,
		 size_t n, const bool *hide, struct ckpt_err *e)
{
	size_t before = c->n, inputs = 0;
	autofree struct catalog_computed *make = calloc(n + 1, sizeof(*make));
	autofree uint32_t *numbers = calloc(catalog_all_tensors(catalog) + 1, sizeof(*numbers));
	int rc = make && numbers ? 0 : err_nomem(e);

	for (size_t i = 0; !rc && i < n; i++) {
		make[i] = (struct catalog_computed){ .fqn = v[i].fqn,
						     .fqn_len = v[i].fqn_len,
						     .like = v[i].like,
						     .dtype = v[i].dtype,
						     .n_dims = v[i].n_dims,
						     .shape = v[i].shape,
						     .hidden = v[i].hidden };
		inputs += v[i].n_inputs;
	}
	if (!rc)
		rc = grow(c, n, inputs, e);
	if (!rc)
		rc = catalog_compute(catalog, make, n, hide, numbers, e);
	if (rc)
		return rc;
	for (size_t i = 0; i < n; i++)
		put(c, &(struct derived){ .run = v[i].run,
					  .how = v[i].how,
					  .inputs = v[i].inputs,
					  .n_inputs = v[i].n_inputs,
					  .shift = v[i].shift });
	for (size_t i = 0; i < c->n_inputs; i++)
		if (!c->inputs[i].fetch)
			c->inputs[i].tensor = numbers[c->inputs[i].tensor];
	for (size_t i = 0; i < before; i++)
		c->v[i].number = numbers[c->v[i].number];
	for (size_t i = 0; i < n; i++)
		c->v[before + i].number = make[i].number;
	return 0;
}

int computed_keep(struct computed *c, struct vtensor *made, struct ckpt_err *e)
{
	if (!VEC_ROOM(c->made, c->cap_made, c->n_made + 1)) {
		free(made);
		return err_nomem(e);
	}
	c->made[c->n_made++] = made;
	return 0;
}

void computed_release(struct computed *c)
{
	for (size_t i = 0; i < c->n_made; i++)
		free(c->made[i]);
	free(c->made);
	free(c->v);
	free(c->inputs);
	arena_release(&c->mem);
	*c = (struct computed){ 0 };
}
