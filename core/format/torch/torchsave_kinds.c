/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors that torch.save writes as several (torch/_tensor.py, _reduce_ex_internal, and
 * torch/csrc/jit/serialization/pickler.cpp, which writes TorchScript). Each of the parts is shown,
 * and where no tensor has the name itself, an object of that name says what they make up:
 *
 *	quantised	w: the integers, w.scale, w.zero_point; per channel tensors, and w.axis
 *	sparse		w.indices, w.values; w.crow_indices, w.col_indices, w.values; ...
 *	nested		w.0, w.1, ...
 *	a subclass	w.ATTRIBUTE, for each attribute with a tensor in it; Transformer Engine's have
 *			names of arguments in their place
 */
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "format/raw.h"
#include "format/torch/torchsave_tar.h"
#include "format/torch/torchsave_walk.h"
#include "format/torch_tensor.h"
#include "model/dtype.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_NUMBERS = 1 << 20 }; /* in a tensor that says how a nested one is divided */

/* With the sentence that says why in *e. */
enum { NOT_SHOWN = 1 };

static int not_shown(struct ckpt_err *e, const char *why)
{
	(void)err_set(e, ERR_UNSUPPORTED, "%s", why);
	return NOT_SHOWN;
}

/* The two dicts of (attributes, slots), or the one of attributes. */
static const struct pk_value *dict_of(const struct pk_value *state, size_t i)
{
	const struct pk_value *d = state;

	if (state->type == PK_TUPLE)
		d = i < pk_len(state) ? &state->n->own[i] : NULL;
	else if (i)
		d = NULL;
	return d && d->type == PK_DICT ? d : NULL;
}

enum { N_DICTS = 2 };

/* Charges for the values in a call's arguments and dicts, which are searched for a key. */
static int charge_call(struct walk *w, const struct torch_call *c, struct ckpt_err *e)
{
	size_t n_args = c->args && c->args->type == PK_TUPLE ? pk_len(c->args) : 0;
	uint64_t n = n_args;

	for (size_t i = 0; i < n_args; i++)
		n += pk_dict_len(&c->args->n->own[i]);
	for (size_t s = 0; s < c->n_states * N_DICTS; s++)
		n += pk_dict_len(dict_of(c->state[s / N_DICTS], s % N_DICTS));
	return walk_charge(w->t, n, e);
}

static int read_tensor(struct walk *w, const struct pk_value *v, struct torch_tensor *ret,
		       struct ckpt_err *e)
{
	struct torch_call c;
	int rc;

	(void)torch_call_of(v, &c);
	rc = charge_call(w, &c, e);
	if (!rc)
		rc = torch_call_read(&c, ret, e);
	return rc == -ERR_UNSUPPORTED ? NOT_SHOWN : rc;
}

static int beside(struct walk *w, const char *word, const struct pk_value *v, unsigned depth,
		  struct ckpt_err *e)
{
	return walk_beside(w, word, strlen(word), v, depth, e);
}

/* ---- the text of what is made of others ---- */

static void begin_text(struct walk *w, const struct pk_value *class)
{
	w->text.len = 0;
	w->text.err = 0;
	buf_str(&w->text, "{\"__class__\": ");
	if (class && class->type == PK_GLOBAL) {
		struct buf name = BUF_INIT(1 << 16);

		buf_add(&name, class->g->module->data, class->g->module->len);
		buf_str(&name, ".");
		buf_add(&name, class->g->name->data, class->g->name->len);
		buf_json_str(&w->text, name.data ? name.data : "", name.len);
		if (name.err)
			w->text.err = name.err;
		buf_release(&name);
	} else {
		buf_str(&w->text, "\"torch.Tensor\"");
	}
}

static void put_shape(struct walk *w, const uint64_t *shape, size_t n)
{
	buf_str(&w->text, ", \"shape\": [");
	for (size_t i = 0; i < n; i++)
		buf_printf(&w->text, "%s%llu", i ? ", " : "", (unsigned long long)shape[i]);
	buf_str(&w->text, "]");
}

static int end_text(struct walk *w, struct ckpt_err *e)
{
	buf_str(&w->text, "}");
	return walk_own_text(w, e);
}

/* ---- quantised ---- */

/* (per_tensor_affine, 0.1, 10) or (per_channel_affine, scales, zero points, axis), which torch also
 * writes for per_channel_affine_float_qparams */
int kinds_quantiser(struct walk *w, const struct torch_call *c, unsigned depth, struct ckpt_err *e)
{
	const struct pk_value *q =
		c->args->type == PK_TUPLE && pk_len(c->args) > 4 ? &c->args->n->own[4] : NULL;
	const struct pk_value *f = q && q->type == PK_TUPLE && pk_len(q) >= 3 ? q->n->own : NULL;
	int rc;

	if (!f || f[0].type != PK_GLOBAL)
		return not_shown(e, "a quantised tensor without its quantiser");
	rc = beside(w, "scale", &f[1], depth, e);
	if (!rc)
		rc = beside(w, "zero_point", &f[2], depth, e);
	if (!rc && pk_len(q) > 3)
		rc = beside(w, "axis", &f[3], depth, e);
	return rc;
}

/* ---- sparse ---- */

enum { MAX_PARTS = 3 };

static const struct layout {
	const char *name;
	int number; /* c10/core/Layout.h */
	const char *parts[MAX_PARTS];
} layouts[] = {
	{ "torch.sparse_coo", 1, { "indices", "values" } },
	{ "torch.sparse_csr", 2, { "crow_indices", "col_indices", "values" } },
	{ "torch.sparse_csc", 4, { "ccol_indices", "row_indices", "values" } },
	{ "torch.sparse_bsr", 5, { "crow_indices", "col_indices", "values" } },
	{ "torch.sparse_bsc", 6, { "ccol_indices", "row_indices", "values" } },
};

/* _get_layout("torch.sparse_coo"), or in TorchScript a number */
static const struct layout *layout_of(const struct pk_value *v)
{
	const struct pk_value *args = v->type == PK_OBJECT ? &v->n->own[PK_ARGS] : NULL;
	const struct pk_value *name = args && pk_len(args) == 1 ? &args->n->v[0] : NULL;

	for (size_t i = 0; i < ARRAY_LEN(layouts); i++)
		if ((name && pk_is_text(name, layouts[i].name)) ||
		    (v->type == PK_INT && v->i == layouts[i].number))
			return &layouts[i];
	return NULL;
}

/* Python: (layout, (part..., size[, is_coalesced])); TorchScript: (number, size, requires_grad,
 * part..., hooks) */
static int report_sparse(struct walk *w, const struct torch_call *c, unsigned depth,
			 struct ckpt_err *e)
{
	size_t n = c->args->type == PK_TUPLE ? pk_len(c->args) : 0, n_parts = 2, n_dims = 0;
	const struct pk_value *a = n ? c->args->n->own : NULL, *part = NULL, *size = NULL;
	const struct layout *l = n > 1 ? layout_of(&a[0]) : NULL;
	uint64_t shape[CKPT_MAX_DIMS];
	const struct pk_value *coalesced = NULL;
	int rc = 0;

	if (l)
		n_parts = l->parts[2] ? 3 : 2;
	if (l && n == 2 && a[1].type == PK_TUPLE && pk_len(&a[1]) > n_parts) {
		part = a[1].n->own;
		size = &part[n_parts];
		coalesced = pk_len(&a[1]) > n_parts + 1 ? size + 1 : NULL;
	} else if (l && n >= 3 + n_parts) {
		part = &a[3];
		size = &a[1];
	}
	if (!part || !pk_numbers(size, shape, CKPT_MAX_DIMS, &n_dims))
		return not_shown(e, "a sparse tensor that is not written as torch writes it");
	for (size_t i = 0; i < n_parts; i++)
		if (!torch_is_tensor(&part[i]))
			return not_shown(e, "a sparse tensor without its indices or values");
	begin_text(w, c->class);
	buf_printf(&w->text, ", \"layout\": \"%s\"", l->name);
	put_shape(w, shape, n_dims);
	if (coalesced && coalesced->type == PK_BOOL)
		buf_printf(&w->text, ", \"coalesced\": %s", coalesced->i ? "true" : "false");
	rc = end_text(w, e);
	for (size_t i = 0; !rc && i < n_parts; i++)
		rc = beside(w, l->parts[i], &part[i], depth, e);
	return rc;
}

/* ---- nested ---- */

/* A small tensor of integers, read from the file. */
struct numbers {
	uint64_t *v;
	size_t n, n_dims;
	uint64_t size[CKPT_MAX_DIMS];
};

static void numbers_release(struct numbers *x)
{
	free(x->v);
}

static int bad_nested(struct ckpt_err *e)
{
	return err_set(e, ERR_CORRUPT, "a nested tensor that is not divided as torch divides it");
}

static int read_numbers(struct walk *w, const struct pk_value *v, struct numbers *ret,
			struct ckpt_err *e)
{
	const struct blob *file = w->t->file;
	struct torch_tensor t = { 0 };
	autofree uint8_t *bytes = NULL;
	struct raw_layout l;
	uint64_t end, at, n, size;
	int64_t got;
	int rc = read_tensor(w, v, &t, e);

	if (!rc)
		rc = torch_tensor_reach(&t, &end, e);
	if (!rc)
		rc = torchsave_find(w->t, &t, &at, e);
	if (rc)
		return rc;
	torch_tensor_layout(&t, w->t->big_endian, &l);
	size = dtype_info(t.dtype)->size;
	if ((t.dtype != CKPT_DTYPE_I64 && t.dtype != CKPT_DTYPE_I32) || l.strided || l.neg ||
	    !box_volume(t.n_dims, t.size, &n) || n > MAX_NUMBERS)
		return bad_nested(e);
	rc = walk_charge(w->t, n, e);
	if (rc)
		return rc;
	bytes = malloc(n * size + 1);
	ret->v = calloc(n + 1, sizeof(*ret->v));
	if (!bytes || !ret->v)
		return err_nomem(e);
	got = n ? file->read(file->arg, at + t.offset * size, bytes, n * size, e) : 0;
	if (got < 0)
		return (int)got;
	if ((uint64_t)got != n * size)
		return bad_nested(e);
	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < size; k++)
			ret->v[i] |= (uint64_t)bytes[i * size + k]
				     << 8 * (l.swap ? size - 1 - k : k);
	for (size_t i = 0; i < n; i++)
		if (ret->v[i] > (size == 8 ? INT64_MAX : INT32_MAX))
			return bad_nested(e);
	ret->n = n;
	ret->n_dims = t.n_dims;
	memcpy(ret->size, t.size, sizeof(ret->size));
	return 0;
}

/* A list of numbers, as torch 1.13 wrote the offsets, or a tensor. */
static int read_offsets(struct walk *w, const struct pk_value *v, struct numbers *ret,
			struct ckpt_err *e)
{
	size_t n = pk_len(v);

	if (v->type != PK_LIST && v->type != PK_TUPLE)
		return read_numbers(w, v, ret, e);
	if (n > MAX_NUMBERS)
		return bad_nested(e);
	ret->v = calloc(n + 1, sizeof(*ret->v));
	if (!ret->v)
		return err_nomem(e);
	if (!pk_numbers(v, ret->v, n, &ret->n))
		return bad_nested(e);
	ret->n_dims = 1;
	return 0;
}

static int report_count(struct walk *w, const struct pk_value *class, size_t n, struct ckpt_err *e)
{
	begin_text(w, class);
	buf_printf(&w->text, ", \"nested\": %zu", n);
	return end_text(w, e);
}

/* (buffer, sizes, strides, offsets): rows of sizes and strides; offsets count from the beginning of
 * the storage */
static int report_nested(struct walk *w, const struct torch_call *c, struct ckpt_err *e)
{
	CLEANUP(numbers_release) struct numbers sizes = { 0 };
	CLEANUP(numbers_release) struct numbers strides = { 0 };
	CLEANUP(numbers_release) struct numbers offsets = { 0 };
	const struct pk_value *a = pk_len(c->args) >= 4 ? c->args->n->v : NULL;
	struct torch_tensor t = { 0 };
	size_t n, dims;
	int rc;

	if (!a)
		return bad_nested(e);
	rc = read_tensor(w, &a[0], &t, e);
	if (!rc)
		rc = read_numbers(w, &a[1], &sizes, e);
	if (!rc)
		rc = read_numbers(w, &a[2], &strides, e);
	if (!rc)
		rc = read_offsets(w, &a[3], &offsets, e);
	if (rc)
		return rc;
	n = offsets.n;
	dims = sizes.n_dims == 2 ? sizes.size[1] : 0;
	if (offsets.n_dims != 1 || dims > CKPT_MAX_DIMS || strides.n != sizes.n ||
	    sizes.n != n * dims || (sizes.n_dims == 2 && sizes.size[0] != n))
		return bad_nested(e);
	rc = report_count(w, c->class, n, e);
	for (size_t i = 0; !rc && i < n; i++) {
		t.n_dims = dims;
		t.offset = offsets.v[i];
		for (size_t d = 0; d < dims; d++) {
			t.size[d] = sizes.v[i * dims + d];
			t.stride[d] = strides.v[i * dims + d];
		}
		rc = walk_dense_beside(w, i, &t, e);
	}
	return rc;
}

/* layout=torch.jagged: rows of `values`, from one offset to the next, or as many as `lengths` says,
 * along the dimension that is _ragged_idx of the whole. */
static int report_jagged(struct walk *w, const struct torch_call *c, struct ckpt_err *e)
{
	CLEANUP(numbers_release) struct numbers offsets = { 0 };
	CLEANUP(numbers_release) struct numbers lengths = { 0 };
	const struct pk_value *dict = pk_len(c->args) ? &c->args->n->v[0] : NULL;
	const struct pk_value *values = pk_get(dict, "values"), *at = pk_get(dict, "offsets");
	const struct pk_value *len = pk_get(dict, "lengths"), *r = pk_get(dict, "_ragged_idx");
	struct torch_tensor t = { 0 }, part;
	size_t ragged, n;
	int rc;

	if (!values || !at)
		return not_shown(e, "a nested tensor of an unknown torch version");
	rc = read_tensor(w, values, &t, e);
	if (!rc)
		rc = read_numbers(w, at, &offsets, e);
	if (!rc && len && len->type != PK_NONE)
		rc = read_numbers(w, len, &lengths, e);
	if (rc)
		return rc;
	if (!offsets.n || (r && (r->type != PK_INT || r->i < 1)))
		return bad_nested(e);
	ragged = r ? (size_t)r->i - 1 : 0;
	n = lengths.v ? lengths.n : offsets.n - 1;
	if (ragged >= t.n_dims || n > offsets.n)
		return bad_nested(e);
	rc = report_count(w, c->class, n, e);
	for (size_t i = 0; !rc && i < n; i++) {
		uint64_t begin = offsets.v[i], size, skip;

		if (!lengths.v && offsets.v[i + 1] < begin)
			return bad_nested(e);
		size = lengths.v ? lengths.v[i] : offsets.v[i + 1] - begin;
		part = t;
		part.size[ragged] = size;
		if (!range_ok(begin, size, t.size[ragged]) ||
		    ckd_mul(&skip, begin, t.stride[ragged]) ||
		    ckd_add(&part.offset, t.offset, skip))
			return bad_nested(e);
		rc = walk_dense_beside(w, i, &part, e);
	}
	return rc;
}

/* ---- subclasses ---- */

typedef int attr_fn(struct walk *w, const struct pk_value *pair, bool has_tensor, unsigned depth,
		    struct ckpt_err *e);

/* Calls `each` for all attributes; `whole` is what the wrapper holds anyway. */
static int each_attr(struct walk *w, const struct torch_call *c, attr_fn *each, unsigned depth,
		     struct ckpt_err *e)
{
	int rc = 0;

	for (size_t s = 0; !rc && s < c->n_states * N_DICTS; s++) {
		const struct pk_value *d = dict_of(c->state[s / N_DICTS], s % N_DICTS);

		for (size_t i = 0; d && !rc && i < pk_len(d); i++) {
			const struct pk_value *pair = &d->n->v[2 * i];
			bool same =
				c->value && pair[1].type == PK_OBJECT && pair[1].n == c->value->n;
			int has = same ? 0 : walk_has_tensor(w, pair + 1, e);

			if (has < 0)
				return has;
			if (pair->type == PK_STR && !same)
				rc = each(w, pair, has, depth, e);
		}
	}
	return rc;
}

static int report_attr(struct walk *w, const struct pk_value *pair, bool has_tensor, unsigned depth,
		       struct ckpt_err *e)
{
	return has_tensor ? walk_beside(w, pair->s->data, pair->s->len, pair + 1, depth, e) : 0;
}

static int count_attr(struct walk *w, const struct pk_value *pair, bool has_tensor, unsigned depth,
		      struct ckpt_err *e)
{
	(void)w;
	(void)pair;
	(void)depth;
	(void)e;
	return has_tensor;
}

static int put_attr(struct walk *w, const struct pk_value *pair, bool has_tensor, unsigned depth,
		    struct ckpt_err *e)
{
	struct ckpt_err why;
	size_t len = w->text.len;

	(void)depth;
	(void)e;
	if (has_tensor)
		return 0;
	buf_str(&w->text, ", ");
	buf_json_str(&w->text, pair->s->data, pair->s->len);
	buf_str(&w->text, ": ");
	if (walk_json(w, pair + 1, &why))
		w->text.len = len;
	return 0;
}

/* The tensor of a DTensor, if this rank has all of it. */
static bool whole_dtensor(const struct torch_call *c, const uint64_t *shape, size_t n_dims,
			  struct torch_tensor *ret)
{
	struct ckpt_err ignored;

	if (!c->class || !pk_is(c->class, NULL, "DTensor"))
		return false;
	for (size_t s = 0; s < c->n_states * N_DICTS; s++) {
		const struct pk_value *d = dict_of(c->state[s / N_DICTS], s % N_DICTS);
		const struct pk_value *v = d ? pk_get(d, "_local_tensor") : NULL;

		if (v && !torch_tensor_read(v, ret, &ignored) && ret->n_dims == n_dims &&
		    dims_equal(n_dims, ret->size, shape))
			return true;
	}
	return false;
}

/* A class that only says how a weight is multiplied; it is shown as the weight. */
static bool is_plain(const struct torch_call *c, struct torch_tensor *ret)
{
	struct ckpt_err ignored;

	return torch_call_plain(c) && !torch_call_read(c, ret, &ignored);
}

/* A DTensor's mesh has tensors too, of rank numbers. */
static int report_local(struct walk *w, const struct pk_value *pair, bool has_tensor,
			unsigned depth, struct ckpt_err *e)
{
	return pk_is_text(pair, "_local_tensor") ? report_attr(w, pair, has_tensor, depth, e) : 0;
}

/* (class, dtype, size, ...): no elements of its own */
static int report_wrapper(struct walk *w, const struct torch_call *c, unsigned depth,
			  struct ckpt_err *e)
{
	const struct pk_value *a = pk_len(c->args) >= 3 ? c->args->n->v : NULL;
	bool is_dtensor = c->class && pk_is(c->class, NULL, "DTensor");
	uint64_t shape[CKPT_MAX_DIMS];
	struct torch_tensor t = { 0 };
	size_t n_dims = 0;
	bool sized = a && pk_numbers(&a[2], shape, CKPT_MAX_DIMS, &n_dims);
	int rc;

	if (is_plain(c, &t) || (sized && whole_dtensor(c, shape, n_dims, &t)))
		return walk_dense(w, &t, e);
	rc = each_attr(w, c, count_attr, depth, e);
	if (!rc)
		return not_shown(e, "a wrapper without a tensor in it");
	if (rc < 0)
		return rc;
	begin_text(w, c->class);
	if (a && a[1].type == PK_GLOBAL) {
		buf_str(&w->text, ", \"dtype\": ");
		buf_json_str(&w->text, a[1].g->name->data, a[1].g->name->len);
	}
	if (w->wrapped && w->wrapped->shape)
		put_shape(w, w->wrapped->shape, w->wrapped->n_dims);
	else if (sized)
		put_shape(w, shape, n_dims);
	rc = is_dtensor ? 0 : each_attr(w, c, put_attr, depth, e);
	if (!rc)
		rc = end_text(w, e);
	return rc ? rc : each_attr(w, c, is_dtensor ? report_local : report_attr, depth, e);
}

/* ---- Transformer Engine's tensors, which are not wrappers to torch ---- */

/*
 * They are pickled as calls of CLASS._make_in_reduce_ex, since 2.16 of a function, with these
 * arguments (transformer_engine/pytorch/tensor/, 1.5 to 2.18). `type` is a number of an enum, into
 * which 2.4 inserted kInt16: E4M3 was 6 and is 7, E5M2 was 7 and is 8 (NVTEDType in
 * transformer_engine.h). The number of arguments grew as well, and tells which enum it is, except
 * where versions before and after 2.4 have the same number.
 */
static const struct engine_class {
	const char *name, *function;
	const char *parts[7]; /* arguments that are tensors, or None */
	uint8_t type, dtype, shape;
	uint8_t before,
		since; /* arguments: at most so many, before 2.4; at least so many, since then */
	struct {
		uint8_t at;
		const char *name;
	} more[2]; /* arguments that say what the parts mean */
} engine_classes[] = {
	{ .name = "Float8Tensor",
	  .function = "_make_float8_tensor_in_reduce_ex",
	  .parts = { "_data", NULL, "_scale_inv", NULL, NULL, "_transpose" },
	  .type = 1,
	  .dtype = 3,
	  .shape = 4,
	  .before = 4,
	  .since = 6 },
	{ .name = "MXFP8Tensor",
	  .function = "_make_mxfp8_tensor_in_reduce_ex",
	  .parts = { "_rowwise_data", "_rowwise_scale_inv", "_columnwise_data",
		     "_columnwise_scale_inv" },
	  .type = 4,
	  .dtype = 5,
	  .shape = 6,
	  .before = 6,
	  .since = 8,
	  .more = { { 8, "with_gemm_swizzled_scales" } } },
	{ .name = "Float8BlockwiseQTensor",
	  .function = "_make_float8_blockwise_tensor_in_reduce_ex",
	  .parts = { NULL, "_rowwise_data", "_rowwise_scale_inv", "_columnwise_data",
		     "_columnwise_scale_inv" },
	  .type = 5,
	  .dtype = 6,
	  .shape = 0,
	  .since = 10,
	  .more = { { 8, "is_2D_scaled" }, { 9, "data_format" } } },
	{ .name = "NVFP4Tensor",
	  .function = "_make_nvfp4_tensor_in_reduce_ex",
	  .parts = { NULL, "_rowwise_data", "_rowwise_scale_inv", "_columnwise_data",
		     "_columnwise_scale_inv", "_amax_rowwise", "_amax_columnwise" },
	  .type = UINT8_MAX,
	  .dtype = 8,
	  .shape = 0 },
};

/* *ret_function: it is a call of the function. NULL: it is no such tensor. */
static const struct engine_class *engine_class_of(const struct pk_value *fn, bool *ret_function)
{
	const struct pk_value *args =
		fn && fn->type == PK_OBJECT && pk_is(&fn->n->own[PK_CALLEE], NULL, "getattr")
			? &fn->n->own[PK_ARGS]
			: NULL; /* getattr(Float8Tensor, "_make_in_reduce_ex") */

	*ret_function = !args;
	if (args && (args->type != PK_TUPLE || pk_len(args) != 2 ||
		     !pk_is_text(&args->n->own[1], "_make_in_reduce_ex")))
		return NULL;
	for (size_t i = 0; fn && i < ARRAY_LEN(engine_classes); i++)
		if (args ? pk_is(&args->n->own[0], NULL, engine_classes[i].name)
			 : pk_is(fn, NULL, engine_classes[i].function))
			return &engine_classes[i];
	return NULL;
}

static const struct engine_class *engine_of(const struct torch_call *c, bool *ret_function)
{
	return c->args && c->args->type == PK_TUPLE ? engine_class_of(c->fn, ret_function) : NULL;
}

bool kinds_is_engine(const struct pk_value *v)
{
	bool function;

	return v->type == PK_OBJECT && v->n->own[PK_ARGS].type == PK_TUPLE &&
	       engine_class_of(&v->n->own[PK_CALLEE], &function);
}

/* A number; pybind11's enum with it as its state; or DType(number). */
static bool engine_number(const struct pk_value *v, int64_t *ret)
{
	if (v->type == PK_OBJECT) {
		const struct pk_value *args = &v->n->own[PK_ARGS];

		v = args->type == PK_TUPLE && pk_len(args) == 1 ? &args->n->own[0]
								: &v->n->own[PK_STATE];
	}
	if (v->type != PK_INT)
		return false;
	*ret = v->i;
	return true;
}

/* The dtype of the codes; NULL: in other versions its number stands for another dtype. */
static const char *engine_dtype(const struct engine_class *x, bool function, size_t n_args,
				int64_t number)
{
	bool before = !function && n_args <= x->before, since = function || n_args >= x->since;

	if (number == 6 || (number == 7 && since))
		return "float8_e4m3fn";
	return (number == 8 && !before) || (number == 7 && before) ? "float8_e5m2" : NULL;
}

static void put_engine(struct walk *w, const struct torch_call *c, const struct engine_class *x,
		       bool function)
{
	const struct pk_value *a = c->args->n->own;
	size_t n = pk_len(c->args), n_dims;
	uint64_t shape[CKPT_MAX_DIMS];
	struct ckpt_err why;
	int64_t number;

	w->text.len = 0;
	w->text.err = 0;
	buf_printf(&w->text, "{\"__class__\": \"transformer_engine.%s\"", x->name);
	if (x->dtype < n && a[x->dtype].type == PK_GLOBAL) {
		buf_str(&w->text, ", \"dtype\": ");
		buf_json_str(&w->text, a[x->dtype].g->name->data, a[x->dtype].g->name->len);
	}
	if (x->shape < n && pk_numbers(&a[x->shape], shape, CKPT_MAX_DIMS, &n_dims))
		put_shape(w, shape, n_dims);
	if (x->type < n && engine_number(&a[x->type], &number)) {
		const char *dtype = engine_dtype(x, function, n, number);

		if (dtype)
			buf_printf(&w->text, ", \"fp8_dtype\": \"%s\"", dtype);
		else
			buf_printf(&w->text, ", \"fp8_dtype\": %lld", (long long)number);
	}
	for (size_t i = 0; i < ARRAY_LEN(x->more); i++) {
		size_t len = w->text.len;

		if (!x->more[i].name || x->more[i].at >= n)
			continue;
		buf_printf(&w->text, ", \"%s\": ", x->more[i].name);
		if (walk_json(w, &a[x->more[i].at], &why))
			w->text.len = len;
	}
}

static int report_engine(struct walk *w, const struct torch_call *c, const struct engine_class *x,
			 bool function, unsigned depth, struct ckpt_err *e)
{
	size_t n = pk_len(c->args);
	int rc;

	if (!n)
		return not_shown(e, "a tensor of Transformer Engine without its parts");
	put_engine(w, c, x, function);
	rc = end_text(w, e);
	for (size_t i = 0; !rc && i < n && i < ARRAY_LEN(x->parts); i++)
		if (x->parts[i] && walk_is_tensor(w, &c->args->n->own[i]))
			rc = beside(w, x->parts[i], &c->args->n->own[i], depth, e);
	return rc;
}

bool kinds_is_wrapper(const struct torch_call *c)
{
	struct torch_tensor t;
	bool function;

	return engine_of(c, &function) ||
	       (pk_is(c->fn, NULL, "_rebuild_wrapper_subclass") && !is_plain(c, &t));
}

int kinds_report(struct walk *w, const struct torch_call *c, unsigned depth, struct ckpt_err *e)
{
	const struct engine_class *engine;
	struct torch_tensor t = { 0 };
	bool function;
	int rc = charge_call(w, c, e);

	if (rc)
		return rc;
	if (!c->fn && torchsave_tar_has(w->t, c->value, true)) {
		rc = torchsave_tar_tensor(w->t, c->value, &t, e);
		return rc ? rc : walk_dense(w, &t, e);
	}
	if (!c->fn)
		return not_shown(e, "a parameter without a tensor");
	if (pk_is(c->fn, NULL, "_rebuild_sparse_tensor") ||
	    pk_is(c->fn, NULL, "_rebuild_sparse_csr_tensor"))
		return report_sparse(w, c, depth, e);
	if (pk_is(c->fn, NULL, "_rebuild_nested_tensor"))
		return report_nested(w, c, e);
	if (pk_is(c->fn, NULL, "_rebuild_njt"))
		return report_jagged(w, c, e);
	if (pk_is(c->fn, NULL, "_rebuild_wrapper_subclass"))
		return report_wrapper(w, c, depth, e);
	engine = engine_of(c, &function);
	if (engine)
		return report_engine(w, c, engine, function, depth, e);
	rc = torch_call_read(c, &t, e);
	if (rc == -ERR_UNSUPPORTED)
		return NOT_SHOWN;
	if (!rc)
		rc = walk_dense(w, &t, e);
	if (!rc && pk_is(c->fn, NULL, "_rebuild_qtensor"))
		rc = kinds_quantiser(w, c, depth, e);
	return rc ? rc : each_attr(w, c, report_attr, depth, e);
}
