/* SPDX-License-Identifier: Apache-2.0 */
#include "format/torch_tensor.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "base/err.h"
#include "base/text.h"
#include "format/raw.h"
#include "parse/pickle.h"

#include <stdio.h>
#include <string.h>

enum { MAX_ID_TEXT = 1000 };

/* ---- storages ---- */

/* ("storage", torch.FloatStorage, "0", "cpu", count[, (key, offset, size)]) */
static int id_of_tuple(const struct pk_value *t, struct torch_storage_id *ret, struct ckpt_err *e)
{
	const struct pk_value *f = t->n->own, *window = pk_len(t) > 5 ? &f[5] : NULL, *w;

	if (f[0].type != PK_STR || strcmp(f[0].s->data, "storage") != 0 || f[1].type != PK_GLOBAL ||
	    f[2].type != PK_STR || f[2].s->len >= sizeof(ret->key) || f[4].type != PK_INT ||
	    f[4].i < 0)
		return err_set(e, ERR_CORRUPT,
			       "data.pkl: a storage is not written as torch writes it");
	memcpy(ret->key, f[2].s->data, f[2].s->len + 1);
	(void)snprintf(ret->class, sizeof(ret->class), "%.*s", (int)sizeof(ret->class) - 1,
		       f[1].g->name->data); /* which may have a megabyte, for each tensor */
	ret->count = (uint64_t)f[4].i;
	if (!window || window->type == PK_NONE)
		return 0;
	w = window->type == PK_TUPLE && pk_len(window) == 3 ? window->n->own : NULL;
	if (!w || w[1].type != PK_INT || w[1].i < 0 || w[2].type != PK_INT || w[2].i < 0)
		return err_set(e, ERR_CORRUPT, "data.pkl: a storage is not part of its root");
	ret->is_window = true;
	ret->window[0] = (uint64_t)w[1].i;
	ret->window[1] = (uint64_t)w[2].i;
	return 0;
}

/* What is in quotes, or angle brackets, up to `end`. */
static bool take_until(const char **s, char end, char *ret, size_t cap)
{
	const char *stop = strchr(*s, end);
	size_t n = stop ? (size_t)(stop - *s) : cap;

	if (n >= cap)
		return false;
	memcpy(ret, *s, n);
	ret[n] = 0;
	*s = stop + 1;
	return true;
}

static bool take_number(const char **s, uint64_t *ret)
{
	uint64_t n = 0;
	size_t digits = strspn(*s, "0123456789");

	for (size_t i = 0; i < digits; i++)
		if (ckd_mul(&n, n, 10u) || ckd_add(&n, n, (uint64_t)((*s)[i] - '0')))
			return false;
	*s += digits;
	(void)text_take(s, "L"); /* Python 2 */
	*ret = n;
	return digits && n <= INT64_MAX;
}

/*
 * Protocol 0 writes the str() of that tuple, which no torch can read again:
 *
 *	('storage', <class 'torch.FloatStorage'>, '0', 'cpu', 2, None)
 */
static bool id_of_text(const char *s, struct torch_storage_id *ret)
{
	char class[sizeof(ret->class)], ignored[200];
	const char *dot;

	if (!text_take(&s, "('storage', <class '") || !take_until(&s, '\'', class, sizeof(class)) ||
	    !text_take(&s, ">, '") || !take_until(&s, '\'', ret->key, sizeof(ret->key)) ||
	    !text_take(&s, ", '") || !take_until(&s, '\'', ignored, sizeof(ignored)) ||
	    !text_take(&s, ", ") || !take_number(&s, &ret->count))
		return false;
	dot = strrchr(class, '.');
	memcpy(ret->class, dot ? dot + 1 : class, strlen(dot ? dot + 1 : class) + 1);
	if (text_take(&s, ", ('")) {
		ret->is_window = take_until(&s, '\'', ignored, sizeof(ignored)) &&
				 text_take(&s, ", ") && take_number(&s, &ret->window[0]) &&
				 text_take(&s, ", ") && take_number(&s, &ret->window[1]) &&
				 text_take(&s, ")");
		if (!ret->is_window)
			return false;
	} else {
		(void)text_take(&s, ", None");
	}
	return text_take(&s, ")") && !*s;
}

bool torch_is_storage_id(const struct pk_value *id)
{
	if (id->type == PK_STR)
		return bytes_begin(id->s->data, id->s->len, "('storage', ");
	return id->type == PK_TUPLE && pk_len(id) && pk_is_text(&id->n->own[0], "storage");
}

int torch_storage_id_read(const struct pk_value *id, struct torch_storage_id *ret,
			  struct ckpt_err *e)
{
	*ret = (struct torch_storage_id){ 0 };
	if (id->type == PK_TUPLE && pk_len(id) >= 5)
		return id_of_tuple(id, ret, e);
	if (id->type == PK_STR && torch_is_storage_id(id)) {
		if (id->s->len < MAX_ID_TEXT && strlen(id->s->data) == id->s->len &&
		    id_of_text(id->s->data, ret))
			return 0;
		return err_set(e, ERR_CORRUPT,
			       "data.pkl: a storage is not written as torch writes it");
	}
	return err_set(e, ERR_CORRUPT, "data.pkl: a tensor without a storage");
}

/* In legacy files a storage could be part of another. */
static int read_window(const struct torch_storage_id *id, uint64_t size, struct torch_tensor *ret,
		       struct ckpt_err *e)
{
	uint64_t first, bytes;

	if (!id->is_window)
		return 0;
	if (ckd_mul(&first, id->window[0], size) || ckd_mul(&bytes, id->window[1], size) ||
	    !range_ok(first, bytes, ret->storage_bytes))
		return err_set(e, ERR_CORRUPT, "data.pkl: a storage is not part of its root");
	ret->storage_first = first;
	ret->storage_bytes = bytes;
	return 0;
}

static int read_storage(const struct pk_value *v, struct torch_tensor *ret, struct ckpt_err *e)
{
	struct torch_storage_id id;
	int rc;

	if (v->type != PK_PERSID)
		return err_set(e, ERR_CORRUPT, "data.pkl: a tensor without a storage");
	rc = torch_storage_id_read(&v->n->own[0], &id, e);
	if (rc)
		return rc;
	memcpy(ret->key, id.key, sizeof(ret->key));
	if (ret->untyped) { /* counts bytes */
		ret->storage_bytes = id.count;
		return read_window(&id, 1, ret, e);
	}
	ret->dtype = dtype_by_storage(id.class);
	if (ret->dtype == CKPT_DTYPE_NONE)
		return err_set(e, ERR_UNSUPPORTED, "data.pkl: storage class '%.60s'", id.class);
	if (ckd_mul(&ret->storage_bytes, id.count, dtype_info(ret->dtype)->size))
		return err_set(e, ERR_CORRUPT, "data.pkl: storage of %llu elements",
			       (unsigned long long)id.count);
	return read_window(&id, dtype_info(ret->dtype)->size, ret, e);
}

/* ---- tensors ---- */

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
	if (ret->dtype == CKPT_DTYPE_QU4X2 || ret->dtype == CKPT_DTYPE_QU2X4) /* rows are padded */
		return err_set(e, ERR_UNSUPPORTED,
			       "data.pkl: %s, which has several elements in a byte",
			       dtype_info(ret->dtype)->name);
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

/* Is it a class whose only argument is the tensor's data? Before torch 0.4 and in pickled
 * modules. */
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

/* (tensor, dtype, device, requires_grad): a copy from XLA and other devices, since torch 2.6. */
static bool is_copied(const struct pk_value *fn)
{
	return pk_is(fn, NULL, "_rebuild_device_tensor_from_cpu_tensor");
}

/* Does it take the tensor as its first argument, and attributes, if any, as its fourth? */
static bool is_parameter(const struct pk_value *fn)
{
	return pk_is(fn, NULL, "_rebuild_parameter") ||
	       pk_is(fn, NULL, "_rebuild_parameter_with_state") || is_tensor_class(fn) ||
	       is_copied(fn);
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
		if (is_copied(ret->fn) && n > 1)
			ret->dtype = &a[1];
		ret->value = &a[0];
		ret->fn = a[0].type == PK_OBJECT ? &a[0].n->own[PK_CALLEE] : NULL;
		ret->args = ret->fn ? &a[0].n->own[PK_ARGS] : NULL;
		if (!ret->fn)
			break;
	}
	return true;
}

/* ---- subclasses that only change how a weight is multiplied ---- */

/*
 * They have no elements of their own; those of the attribute are meant, in the precision in which
 * they are trained. torchao/: float8/fsdp_utils.py (before, float8_experimental),
 * prototype/moe_training/tensor.py, prototype/quantized_training/; xtuner's have more words in
 * their names.
 */
static const struct {
	const char *begin, *end, *attribute;
} plain_classes[] = {
	{ "WeightWith", "Float8CastTensor", "_tensor" },
	{ "WeightWith", "Float8CastTensorGMM", "_tensor" },
	{ "", "Float8DynamicLinearWeightTensor", "_tensor" },
	{ "", "ScaledGroupedMMTensor", "_data" },
	{ "", "TrainingWeightWrapperTensor", "_data" },
	{ "", "TrainingWeightWrapperBaseTensor", "_data" },
	{ "", "Int8MixedPrecisionTrainingLinearWeight", "_data" },
	{ "", "BitNetTrainingLinearWeight", "_data" },
};

/* The attribute of this name in (attributes, slots), or in the dict of attributes alone. */
static const struct pk_value *attribute(const struct torch_call *c, const char *name)
{
	const struct pk_value *ret = NULL;

	for (size_t i = 0; !ret && i < c->n_states; i++) {
		const struct pk_value *s = c->state[i];

		if (s->type == PK_TUPLE && pk_len(s))
			s = &s->n->own[0];
		ret = s->type == PK_DICT ? pk_get(s, name) : NULL;
	}
	return ret;
}

const struct pk_value *torch_call_plain(const struct torch_call *c)
{
	const struct pk_str *name =
		c->class && c->class->type == PK_GLOBAL ? c->class->g->name : NULL;
	const char *has = NULL;

	if (!name || !pk_is(c->fn, NULL, "_rebuild_wrapper_subclass"))
		return NULL;
	for (size_t i = 0; !has && i < ARRAY_LEN(plain_classes); i++)
		if (bytes_begin(name->data, name->len, plain_classes[i].begin) &&
		    bytes_end(name->data, name->len, plain_classes[i].end))
			has = plain_classes[i].attribute;
	return has ? attribute(c, has) : NULL;
}

static bool is_dtype(const struct pk_value *v, enum ckpt_dtype dtype)
{
	return pk_is(v, NULL, dtype_info(dtype)->name);
}

/* (class, dtype, size, ...), which the elements must have */
static int read_plain(const struct torch_call *c, const struct pk_value *v,
		      struct torch_tensor *ret, struct ckpt_err *e)
{
	const struct pk_value *a =
		c->args->type == PK_TUPLE && pk_len(c->args) >= 3 ? c->args->n->own : NULL;
	uint64_t size[CKPT_MAX_DIMS];
	struct torch_call inner;
	size_t n_dims;
	int rc;

	(void)torch_call_of(v, &inner);
	rc = torch_call_plain(&inner)
		     ? err_set(e, ERR_UNSUPPORTED, "data.pkl: a '%.60s' in another one",
			       c->class->g->name->data)
		     : torch_call_read(&inner, ret, e);
	if (rc)
		return rc;
	if (!a || !is_dtype(&a[1], ret->dtype) ||
	    !pk_numbers(&a[2], size, CKPT_MAX_DIMS, &n_dims) || n_dims != ret->n_dims ||
	    !dims_equal(n_dims, size, ret->size))
		return err_set(e, ERR_CORRUPT,
			       "data.pkl: a '%.60s' and the tensor in it differ in dtype or size",
			       c->class->g->name->data);
	return 0;
}

/* ---- all ---- */

static int read_call(const struct torch_call *c, struct torch_tensor *ret, struct ckpt_err *e)
{
	const struct pk_value *plain = c->fn ? torch_call_plain(c) : NULL;

	if (!c->fn)
		return err_set(e, ERR_CORRUPT, "data.pkl does not hold a tensor");
	if (plain)
		return read_plain(c, plain, ret, e);
	if (c->class && c->class->type == PK_GLOBAL &&
	    pk_is(c->fn, NULL, "_rebuild_wrapper_subclass"))
		return err_set(e, ERR_UNSUPPORTED, "data.pkl: a '%.80s' has no elements of its own",
			       c->class->g->name->data);
	if (pk_is(c->fn, NULL, "_rebuild_tensor_v3"))
		return read_rebuild(c->args, true, true, ret, e);
	if (pk_is(c->fn, NULL, "_rebuild_tensor_v2"))
		return read_rebuild(c->args, false, true, ret, e);
	if (pk_is(c->fn, NULL, "_rebuild_tensor") || pk_is(c->fn, NULL, "_rebuild_qtensor"))
		return read_rebuild(c->args, false, false, ret, e);
	if (pk_is(c->fn, NULL, "_rebuild_device_tensor_from_numpy") ||
	    pk_is(c->fn, NULL, "_rebuild_xla_tensor"))
		return err_set(e, ERR_UNSUPPORTED,
			       "data.pkl: its elements are a NumPy array in the pickle, as torch "
			       "before 2.6 "
			       "saves those of XLA and other devices; save tensor.cpu() instead");
	return err_set(e, ERR_UNSUPPORTED, "data.pkl: '%.80s' is not a dense tensor",
		       c->fn->type == PK_GLOBAL ? c->fn->g->name->data : "?");
}

int torch_call_read(const struct torch_call *c, struct torch_tensor *ret, struct ckpt_err *e)
{
	int rc = read_call(c, ret, e);

	if (!rc && c->dtype && !is_dtype(c->dtype, ret->dtype))
		return err_set(e, ERR_UNSUPPORTED,
			       "data.pkl: %s, which torch.load converts to another dtype",
			       dtype_info(ret->dtype)->name);
	return rc;
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
