/* SPDX-License-Identifier: Apache-2.0 */
#include "read/derived.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "codec/coding.h"
#include "index/catalog_query.h"
#include "model/box.h"
#include "read/fetch_internal.h"
#include "read/tensor_read.h"
#include "tensor/vtensor.h"

#include <stdlib.h>

/* The inputs of an opened tensor. */
struct derived_in {
	struct fetch *f; /* the tensor's */
	const struct derived *d;
	struct tensor_reader **readers;
};

static struct fetch *fetch_of(struct fetch *f, const struct derived_input *in)
{
	return in->fetch ? in->fetch : f;
}

uint32_t derived_coding(const struct fetch *f, size_t i)
{
	const struct derived *d = fetch_derived(f, i);

	return CODING_COMPUTED(d->shift ? d->shift : DECODED_SHIFT);
}

int derived_map(const struct fetch *f, size_t i, struct chunkmap **ret, struct ckpt_err *e)
{
	const struct catalog_tensor *t = &f->tensors[i];
	uint64_t box[2 * CKPT_MAX_DIMS] = { 0 };
	struct chunkmap *m;

	for (size_t d = 0; d < t->n_dims; d++)
		box[t->n_dims + d] = t->shape[d];
	m = chunkmap_new(t->n_dims, t->shape, box, t->bytes > 0);
	if (!m)
		return err_nomem(e);
	if (t->bytes)
		m->locs[0] = (struct chunk_loc){ .length = t->bytes,
						 .file = (uint32_t)i,
						 .encoding = f->computed };
	*ret = m;
	return 0;
}

void derived_close(struct fetch *f, struct otensor *t)
{
	const struct derived *d = fetch_derived(f, t->index);
	struct tensor_reader **inputs = t->inputs;

	t->inputs = NULL;
	for (size_t i = 0; inputs && i < d->n_inputs; i++)
		tensor_close(fetch_of(f, &d->inputs[i]), inputs[i]);
	free(inputs);
}

/* An input as a virtual tensor. *ret_own: what the caller frees, or NULL. */
static int input_of(struct fetch *f, const struct derived_input *in, const struct vtensor **ret,
		    struct vtensor **ret_own, struct ckpt_err *e)
{
	const struct catalog_tensor *t = &fetch_of(f, in)->tensors[in->tensor];
	int rc = 0;

	*ret_own = NULL;
	*ret = in->made;
	if (!in->made) {
		rc = vtensor_whole(t, in->tensor, (enum ckpt_dtype)t->dtype, ret_own, e);
		*ret = *ret_own;
	}
	return rc;
}

static int open_input(struct fetch *f, const struct derived_input *in, struct tensor_reader **ret,
		      struct ckpt_err *e)
{
	const struct vtensor *v;
	struct vtensor *own;
	int rc = input_of(f, in, &v, &own, e);

	if (!rc && !own)
		rc = vtensor_copy(v, &own, e);
	return rc ? rc : tensor_open(fetch_of(f, in), own, ret, e);
}

int derived_open(struct fetch *f, struct otensor *t, struct ckpt_err *e)
{
	const struct derived *d = fetch_derived(f, t->index);
	const struct raw_layout plain = { 0 };
	struct item_want want = { .dtype = (enum ckpt_dtype)t->t->dtype,
				  .n_dims = t->t->n_dims,
				  .len = t->t->shape };
	int rc = 0;

	t->encoded = true;
	if (t->map->count)
		rc = raw_open(&plain, &want, t->t->bytes, &t->payloads[0], e);
	if (rc)
		return rc;
	t->inputs = calloc(d->n_inputs + 1, sizeof(struct tensor_reader *));
	if (!t->inputs)
		return err_nomem(e);
	for (size_t i = 0; !rc && i < d->n_inputs; i++)
		rc = open_input(f, &d->inputs[i], &t->inputs[i], e);
	if (rc)
		derived_close(f, t);
	return rc;
}

/* ---- reading inputs ---- */

/* What an input consists of, as it is read. */
struct form {
	enum ckpt_dtype dtype;
	size_t n_dims;
	const uint64_t *shape;
	uint64_t bytes;
};

static struct form form_of(struct fetch *f, const struct derived_input *in)
{
	const struct catalog_tensor *t = &fetch_of(f, in)->tensors[in->tensor];

	if (in->made)
		return (struct form){ (enum ckpt_dtype)in->made->dtype, in->made->n_dims,
				      in->made->shape, in->made->bytes };
	return (struct form){ (enum ckpt_dtype)t->dtype, t->n_dims, t->shape, t->bytes };
}

/* Are the box's elements adjacent in the tensor, from element *ret_first on? */
static bool is_run(const struct form *t, const uint64_t *off, const uint64_t *len,
		   uint64_t *ret_first)
{
	uint64_t first = 0;
	bool whole = true; /* so far, from the outermost dimension on, only single indices */

	for (size_t d = 0; d < t->n_dims; d++) {
		if (!whole && len[d] != t->shape[d])
			return false;
		whole &= len[d] == 1;
		first = first * t->shape[d] + off[d];
	}
	*ret_first = first;
	return true;
}

static int read_slice(struct fetch *f, const struct derived_input *in, const uint64_t *off,
		      const uint64_t *len, uint64_t bytes, void *to, struct ckpt_err *e)
{
	autofree struct vtensor *own = NULL;
	const struct vtensor *whole;
	struct vtensor *part = NULL;
	struct tensor_reader *r = NULL;
	struct fetch *from = fetch_of(f, in);
	int rc = input_of(f, in, &whole, &own, e);

	if (!rc)
		rc = vtensor_slice(whole, off, len, &part, e);
	if (!rc)
		rc = tensor_open(from, part, &r, e);
	if (!rc)
		rc = tensor_read(from, r, to, (size_t)bytes, 0, NULL, e);
	tensor_close(from, r);
	return rc;
}

enum ckpt_dtype derived_dtype(const struct derived_in *in, size_t i)
{
	return form_of(in->f, &in->d->inputs[i]).dtype;
}

int derived_read(const struct derived_in *in, size_t i, const uint64_t *off, const uint64_t *len,
		 void *to, struct ckpt_err *e)
{
	const struct derived_input *input = &in->d->inputs[i];
	const struct form t = form_of(in->f, input);
	uint64_t size = dtype_info(t.dtype)->size, n = 1, first;

	for (size_t d = 0; d < t.n_dims; d++)
		n *= len[d];
	if (is_run(&t, off, len, &first))
		return tensor_read(fetch_of(in->f, input), in->readers[i], to, (size_t)(n * size),
				   first * size, NULL, e);
	return read_slice(in->f, input, off, len, n * size, to, e);
}

/* ---- computing ---- */

struct computing {
	struct derived_in in;
	uint64_t size; /* bytes of an element */
	uint8_t *out;
	struct ckpt_err *e;
};

static int compute_box(void *arg, const uint64_t *off, const uint64_t *len, uint64_t pos)
{
	const struct computing *x = arg;
	const struct derived *d = x->in.d;

	return d->run(d->how, &x->in, off, len, x->out + pos * x->size, x->e);
}

int derived_compute(void *arg, uint32_t number, void *buf, size_t len, uint64_t off,
		    struct ckpt_err *e)
{
	struct fetch *f = arg;
	struct computing x = { .in = { .f = f, .d = fetch_derived(f, number) },
			       .out = buf,
			       .e = e };
	struct otensor *t;
	int rc = otensor_open(f, number, &t, e); /* it is, unless this is read-ahead */

	if (rc)
		return rc;
	/* Blocks consist of whole elements: the sizes of both are powers of two. */
	x.size = dtype_info((enum ckpt_dtype)t->t->dtype)->size;
	x.in.readers = t->inputs;
	rc = box_of_range(t->t->n_dims, t->t->shape, off / x.size, len / x.size, compute_box, &x);
	otensor_close(f, t);
	return rc;
}

/*
 * Announces the same share of each input: the part that is read if inputs are in the order of the
 * result.
 */
bool derived_want(void *arg, uint32_t number, uint64_t off, uint64_t len)
{
	struct fetch *f = arg;
	const struct derived *d = fetch_derived(f, number);
	uint64_t bytes = f->tensors[number].bytes;
	struct ckpt_err ignored;
	struct otensor *t;
	bool missing = false;

	if (!bytes || otensor_open(f, number, &t, &ignored))
		return false;
	for (size_t i = 0; i < d->n_inputs; i++) {
		struct fetch *from = fetch_of(f, &d->inputs[i]);
		uint64_t all = form_of(f, &d->inputs[i]).bytes;
		double share = (double)all / (double)bytes;
		uint64_t first = min_u64((uint64_t)((double)off * share), all);
		uint64_t n = min_u64((uint64_t)((double)len * share) + 1, all - first);

		missing |= n && tensor_want(from, t->inputs[i], first, n);
	}
	otensor_close(f, t);
	return missing;
}
