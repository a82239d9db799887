/* SPDX-License-Identifier: Apache-2.0 */
#include "format/torch_tensor.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "base/err.h"
#include "format/raw.h"
#include "parse/pickle.h"

#include <string.h>

/* (..., count, (key, offset, size)): in legacy files a storage could be part of another. */
static int read_window(const struct pk_value *tuple, uint64_t size, struct torch_tensor *ret,
		       struct ckpt_err *e)
{
	const struct pk_value *v = pk_len(tuple) > 5 ? &tuple->n->own[5] : NULL, *f;
	uint64_t first, bytes;

	if (!v || v->type == PK_NONE)
		return 0;
	f = v->type == PK_TUPLE && pk_len(v) == 3 ? v->n->own : NULL;
	if (!f || f[1].type != PK_INT || f[1].i < 0 || f[2].type != PK_INT || f[2].i < 0 ||
	    ckd_mul(&first, (uint64_t)f[1].i, size) || ckd_mul(&bytes, (uint64_t)f[2].i, size) ||
	    !range_ok(first, bytes, ret->storage_bytes))
		return err_set(e, ERR_CORRUPT, "data.pkl: a storage is not part of its root");
	ret->storage_first = first;
	ret->storage_bytes = bytes;
	return 0;
}

/* ('storage', torch.FloatStorage, '0', 'cpu', count) */
static int read_storage(const struct pk_value *v, struct torch_tensor *ret, struct ckpt_err *e)
{
	const struct pk_value *t = v->type == PK_PERSID ? &v->n->own[0] : NULL, *f;

	if (!t || t->type != PK_TUPLE || pk_len(t) < 5)
		return err_set(e, ERR_CORRUPT, "data.pkl: a tensor without a storage");
	f = t->n->own;
	if (f[0].type != PK_STR || strcmp(f[0].s->data, "storage") != 0 || f[1].type != PK_GLOBAL ||
	    f[2].type != PK_STR || f[2].s->len >= sizeof(ret->key) || f[4].type != PK_INT ||
	    f[4].i < 0)
		return err_set(e, ERR_CORRUPT,
			       "data.pkl: a storage is not written as torch writes it");
	memcpy(ret->key, f[2].s->data, f[2].s->len + 1);
	if (ret->untyped) { /* counts bytes */
		ret->storage_bytes = (uint64_t)f[4].i;
		return read_window(t, 1, ret, e);
	}
	ret->dtype = dtype_by_storage(f[1].g->name->data);
	if (ret->dtype == CKPT_DTYPE_NONE)
		return err_set(e, ERR_UNSUPPORTED, "data.pkl: storage class '%.60s'",
			       f[1].g->name->data);
	if (ckd_mul(&ret->storage_bytes, (uint64_t)f[4].i, dtype_info(ret->dtype)->size))
		return err_set(e, ERR_CORRUPT, "data.pkl: storage of %lld elements",
			       (long long)f[4].i);
	return read_window(t, dtype_info(ret->dtype)->size, ret, e);
}

static void read_bits(const struct pk_value *v, struct torch_tensor *ret)
{
	const struct pk_value *conj = pk_get(v, "conj"), *neg = pk_get(v, "neg");

	ret->conj = conj && conj->type == PK_BOOL && conj->i;
	ret->neg = neg && neg->type == PK_BOOL && neg->i;
}

/* Arguments: storage, offset, size, stride, requires_grad, hooks [, dtype if v3] [, bits] */
static int read_rebuild(const struct pk_value *args, bool v3, bool bits, struct torch_tensor *ret,
			struct ckpt_err *e)
{
	size_t n = pk_len(args), strides;
	const struct pk_value *a;
	int rc;

	if (args->type != PK_TUPLE || n < (v3 ? 7 : 4))
		return err_set(e, ERR_CORRUPT, "data.pkl: a tensor with %zu arguments", n);
	a = args->n->own;
	ret->untyped = v3;
	if (v3) {
		ret->dtype = a[6].type == PK_GLOBAL
				     ? ckpt_dtype_by_name(a[6].g->name->data, a[6].g->name->len)
				     : CKPT_DTYPE_NONE;
		if (ret->dtype == CKPT_DTYPE_NONE)
			return err_set(e, ERR_UNSUPPORTED, "data.pkl: unknown dtype");
	}
	rc = read_storage(&a[0], ret, e);
	if (rc)
		return rc;
	if (a[1].type != PK_INT || a[1].i < 0 ||
	    !pk_numbers(&a[2], ret->size, CKPT_MAX_DIMS, &ret->n_dims) ||
	    !pk_numbers(&a[3], ret->stride, CKPT_MAX_DIMS, &strides) || strides != ret->n_dims)
		return err_set(e, ERR_CORRUPT,
			       "data.pkl: offset, size and stride do not fit together");
	ret->offset = (uint64_t)a[1].i;
	if (bits && n > (v3 ? 7u : 6u))
		read_bits(&a[v3 ? 7 : 6], ret);
	return 0;
}

/* Is it a class whose only argument is the tensor's data? Before torch 0.4 and in pickled modules. */
static bool is_tensor_class(const struct pk_value *fn)
{
	return pk_is(fn, "torch.nn.parameter", "Parameter") ||
	       pk_is(fn, "torch.nn.parameter", "Buffer") ||
	       pk_is(fn, "torch.autograd.variable", "Variable");
}

bool torch_is_tensor(const struct pk_value *v)
{
	const struct pk_value *fn = v && v->type == PK_OBJECT ? &v->n->own[PK_CALLEE] : NULL;

	if (!fn || fn->type != PK_GLOBAL ||
	    !bytes_begin(fn->g->module->data, fn->g->module->len, "torch"))
		return false;
	return !strncmp(fn->g->name->data, "_rebuild_", 9) || is_tensor_class(fn);
}

/* Does it take the tensor as its first argument, and attributes as its fourth? */
static bool is_parameter(const struct pk_value *fn)
{
	return pk_is(fn, NULL, "_rebuild_parameter") ||
	       pk_is(fn, NULL, "_rebuild_parameter_with_state") || is_tensor_class(fn);
}

/* (function, class, arguments, attributes) */
static bool is_subclass(const struct pk_value *fn)
{
	return pk_is(fn, NULL, "_rebuild_from_type_v2") || pk_is(fn, NULL, "_rebuild_from_type");
}

bool torch_call_of(const struct pk_value *v, struct torch_call *ret)
{
	*ret = (struct torch_call){ .value = v };
	if (v->type != PK_OBJECT)
		return false;
	ret->fn = &v->n->own[PK_CALLEE];
	ret->args = &v->n->own[PK_ARGS];
	for (int depth = 0; depth < TORCH_MAX_WRAPPERS; depth++) {
		size_t n = ret->args->type == PK_TUPLE ? pk_len(ret->args) : 0;
		const struct pk_value *a = n ? ret->args->n->own : NULL;
		bool subclass = is_subclass(ret->fn) && n >= 3;

		if (!subclass && (!is_parameter(ret->fn) || !n))
			break;
		if (!subclass && a[0].type != PK_OBJECT && a[0].type != PK_PERSID)
			break;
		if (n > 3)
			ret->state[ret->n_states++] = &a[3];
		if (subclass) {
			ret->class = ret->class ? ret->class : &a[1];
			ret->value = NULL;
			ret->fn = &a[0];
			ret->args = &a[2];
			continue;
		}
		ret->value = &a[0];
		ret->fn = a[0].type == PK_OBJECT ? &a[0].n->own[PK_CALLEE] : NULL;
		ret->args = ret->fn ? &a[0].n->own[PK_ARGS] : NULL;
		if (!ret->fn)
			break;
	}
	return true;
}

int torch_call_read(const struct torch_call *c, struct torch_tensor *ret, struct ckpt_err *e)
{
	if (!c->fn)
		return err_set(e, ERR_CORRUPT, "data.pkl does not hold a tensor");
	if (pk_is(c->fn, NULL, "_rebuild_tensor_v3"))
		return read_rebuild(c->args, true, true, ret, e);
	if (pk_is(c->fn, NULL, "_rebuild_tensor_v2"))
		return read_rebuild(c->args, false, true, ret, e);
	if (pk_is(c->fn, NULL, "_rebuild_tensor") || pk_is(c->fn, NULL, "_rebuild_qtensor"))
		return read_rebuild(c->args, false, false, ret, e);
	return err_set(e, ERR_UNSUPPORTED, "data.pkl: '%.80s' is not a dense tensor",
		       c->fn->type == PK_GLOBAL ? c->fn->g->name->data : "?");
}

int torch_tensor_read(const struct pk_value *v, struct torch_tensor *ret, struct ckpt_err *e)
{
	struct torch_call c;

	(void)torch_call_of(v, &c);
	return torch_call_read(&c, ret, e);
}

int torch_tensor_reach(const struct torch_tensor *t, uint64_t *ret, struct ckpt_err *e)
{
	uint64_t last = t->offset, end, step;
	bool empty = false, bad = false;

	for (size_t i = 0; i < t->n_dims; i++) {
		empty |= !t->size[i];
		if (t->size[i] > 1)
			bad |= ckd_mul(&step, t->size[i] - 1, t->stride[i]) ||
			       ckd_add(&last, last, step);
	}
	bad |= ckd_add(&end, last, 1) || ckd_mul(&end, end, dtype_info(t->dtype)->size);
	if (!empty && (bad || end > t->storage_bytes))
		return err_set(e, ERR_CORRUPT, "its view reaches outside its storage of %llu bytes",
			       (unsigned long long)t->storage_bytes);
	*ret = empty ? 0 : end;
	return 0;
}

void torch_tensor_layout(const struct torch_tensor *t, bool big_endian, struct raw_layout *ret)
{
	const struct dtype_info *d = dtype_info(t->dtype);
	uint64_t step = 1;

	*ret = (struct raw_layout){ .n_dims = (uint8_t)t->n_dims };
	for (size_t i = t->n_dims; i-- > 0; step *= t->size[i]) {
		/* Strides of dimensions with one element are meaningless; 0 keeps sums from
		 * overflowing. */
		ret->stride[i] = t->size[i] > 1 ? t->stride[i] : 0;
		ret->strided |= t->size[i] > 1 && t->stride[i] != step;
	}
	/* torch swaps untyped storages bytewise, that is, not at all (torch/serialization.py). */
	ret->swap = big_endian && !t->untyped && d->unit > 1;
	ret->neg = t->neg;
	ret->conj = t->conj && d->size == 2 * d->unit; /* of a real number: itself */
}
