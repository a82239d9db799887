/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a rank's part of a tensor belongs, according to what torch has pickled with it. Attributes
 * are found by name, so that files of torch 2.1 to 2.14 are read alike:
 *
 *	_rebuild_from_type_v2(_rebuild_wrapper_subclass, DTensor, (DTensor, dtype, size, ...),
 *	                      state)
 *	state            {_local_tensor, _spec}, or (None, that): the class has slots
 *	_spec            DTensorSpec: mesh, placements; since 2.10 shard_order
 *	mesh             DeviceMesh: mesh, a tensor of ranks; or, since 2.10, _rank_map, a flat
 *	                 one, and _layout: per axis sizes and strides in it
 *	placements       Shard(dim), _StridedShard(dim, split_factor), Replicate(), Partial(op)
 *
 *	_rebuild_from_type_v2(..., ShardedTensor, ..., state)
 *	state            ([Shard(tensor, metadata: shard_offsets, shard_sizes)], metadata: size,
 *	                 ..., ProcessGroupState: global_rank, global_world_size, ...)
 *
 * (torch/distributed/tensor/api.py, _dtensor_spec.py, placement_types.py, device_mesh.py;
 * _shard/sharded_tensor/api.py, __getstate__.)
 */
#include "base/bytes.h"
#include "base/checked.h"
#include "base/text.h"
#include "format/fsdp/fsdp.h"
#include "source/source.h"

#include <stdio.h>
#include <string.h>

enum {
	MAX_RUNS = 1 << 12, /* along a dimension */
	MAX_RANKS = 1 << 20,
	MAX_NESTING = 4, /* of an axis that was flattened from several */
};

/* ---- attributes ---- */

static const struct pk_value *in_state(const struct pk_value *state, const char *name)
{
	const struct pk_value *r = NULL;

	if (state && state->type == PK_DICT)
		return pk_get(state, name);
	for (size_t i = 0; state && state->type == PK_TUPLE && i < pk_len(state) && !r && i < 2;
	     i++)
		if (state->n->own[i].type == PK_DICT)
			r = pk_get(&state->n->own[i], name);
	return r;
}

static const struct pk_value *attr(const struct pk_value *v, const char *name)
{
	return v && v->type == PK_OBJECT ? in_state(&v->n->own[PK_STATE], name) : NULL;
}

static bool is_class(const struct pk_value *v, const char *name)
{
	return v && v->type == PK_OBJECT && pk_is(&v->n->own[PK_CALLEE], NULL, name);
}

/* An integer attribute; extension types pickle it as an argument, or as an element of the state. */
static bool int_attr(const struct pk_value *v, const char *name, size_t at, int64_t *ret)
{
	const struct pk_value *a = attr(v, name);

	for (int i = 0; !a && i < 2; i++) {
		const struct pk_value *t = &v->n->own[i ? PK_STATE : PK_ARGS];

		if (t->type == PK_TUPLE && at < pk_len(t) && t->n->own[at].type == PK_INT)
			a = &t->n->own[at];
	}
	if (!a || a->type != PK_INT)
		return false;
	*ret = a->i;
	return true;
}

/* Splits a wrapper subclass into (type, dtype, size, ...) and its state. */
static bool wrapper(const struct pk_value *v, const struct pk_value **ret_args,
		    const struct pk_value **ret_state)
{
	const struct pk_value *args =
		is_class(v, "_rebuild_from_type_v2") ? &v->n->own[PK_ARGS] : NULL;

	if (!args || args->type != PK_TUPLE || pk_len(args) < 4 ||
	    !pk_is(&args->n->own[0], NULL, "_rebuild_wrapper_subclass") ||
	    args->n->own[2].type != PK_TUPLE || pk_len(&args->n->own[2]) < 3)
		return false;
	*ret_args = args->n->own[2].n->own;
	*ret_state = &args->n->own[3];
	return true;
}

enum fsdp_what fsdp_what(const struct pk_value *v)
{
	const struct pk_value *args, *state;

	if (!wrapper(v, &args, &state))
		return FSDP_PLAIN;
	if (pk_is(&args[0], NULL, "ShardedTensor"))
		return FSDP_SHARDED;
	return in_state(state, "_local_tensor") && in_state(state, "_spec") ? FSDP_DTENSOR
									    : FSDP_PLAIN;
}

const struct pk_value *fsdp_local(const struct pk_value *v)
{
	const struct pk_value *args, *state, *shards;

	if (!wrapper(v, &args, &state))
		return v;
	if (fsdp_what(v) == FSDP_DTENSOR)
		return in_state(state, "_local_tensor");
	shards = state->type == PK_TUPLE && pk_len(state) ? &state->n->own[0] : NULL;
	return shards && shards->type == PK_LIST && pk_len(shards) ? attr(shards->n->v, "tensor")
								   : NULL;
}

static int read_shape(const struct pk_value *args, struct fsdp_part *p, struct ckpt_err *e)
{
	uint64_t numel;

	p->dtype = args[1].type == PK_GLOBAL
			   ? ckpt_dtype_by_name(args[1].g->name->data, args[1].g->name->len)
			   : CKPT_DTYPE_NONE;
	if (p->dtype == CKPT_DTYPE_NONE)
		return err_set(e, ERR_UNSUPPORTED, "a tensor whose dtype is not known");
	if (!pk_numbers(&args[2], p->shape, CKPT_MAX_DIMS, &p->n_dims) ||
	    !box_volume(p->n_dims, p->shape, &numel))
		return err_set(e, ERR_CORRUPT, "its shape is not written as torch writes it");
	return 0;
}

/* ---- meshes ---- */

/* Reads the numbers in a tensor of ranks. */
static int read_ranks(struct fsdp_reader *r, const struct pk_value *v, struct torch_view *t,
		      int64_t **ret, struct ckpt_err *e)
{
	int rc = torch_file_view(r->file, v, t, e);
	size_t size = rc ? 0 : dtype_info(t->dtype)->size;
	uint8_t *bytes;
	int64_t got;

	if (rc)
		return rc;
	if ((t->dtype != CKPT_DTYPE_I32 && t->dtype != CKPT_DTYPE_I64) || t->layout.strided ||
	    t->layout.neg || !t->numel || t->numel > MAX_RANKS)
		return err_set(e, ERR_UNSUPPORTED, "its mesh is not written as torch writes it");
	bytes = arena_alloc(r->arena, t->numel * size);
	*ret = arena_array(r->arena, t->numel, sizeof(**ret));
	if (!bytes || !*ret)
		return err_nomem(e);
	got = source_read(r->file->source, bytes, t->numel * size, t->at, e);
	if (got < (int64_t)(t->numel * size))
		return got < 0 ? (int)got : err_set(e, ERR_CORRUPT, "the file ends in its mesh");
	for (uint64_t i = 0; i < t->numel; i++) {
		uint64_t n = size == 4 ? load_le32(bytes + 4 * i) : load_le64(bytes + 8 * i);

		if (t->layout.swap)
			n = size == 4 ? __builtin_bswap32((uint32_t)n) : __builtin_bswap64(n);
		(*ret)[i] = size == 4 ? (int32_t)n : (int64_t)n;
		if ((*ret)[i] < 0 || (*ret)[i] >= (int64_t)r->world)
			return err_set(
				e, ERR_CORRUPT,
				"its mesh has rank %lld, but there are files of only %u rank%s: "
				"the others are missing, or these are from two different saves",
				(long long)(*ret)[i], r->world, text_s(r->world));
	}
	return 0;
}

/* Finds the rank's position among them. */
static int find_rank(struct fsdp_reader *r, const int64_t *ranks, uint64_t n, uint64_t *ret,
		     struct ckpt_err *e)
{
	r->outside = true;
	for (uint64_t i = 0; i < n; i++) {
		if (ranks[i] != (int64_t)r->rank)
			continue;
		if (!r->outside)
			return err_set(e, ERR_CORRUPT, "its mesh has rank %u twice", r->rank);
		r->outside = false;
		*ret = i;
	}
	return 0;
}

/* The size of an axis: a number, or several if it was flattened; the last one varies fastest. */
static bool read_sizes(const struct pk_value *v, uint64_t *ret, size_t *ret_n)
{
	if (v && v->type == PK_INT && v->i >= 0) {
		*ret = (uint64_t)v->i;
		*ret_n = 1;
		return true;
	}
	return pk_numbers(v, ret, MAX_NESTING, ret_n);
}

static bool read_axis(const struct pk_value *shape, const struct pk_value *stride, uint64_t at,
		      uint64_t *ret_size, uint64_t *ret_coord)
{
	uint64_t n[MAX_NESTING], step[MAX_NESTING];
	size_t k, steps;

	if (!read_sizes(shape, n, &k) || !read_sizes(stride, step, &steps) || k != steps)
		return false;
	*ret_size = 1;
	*ret_coord = 0;
	for (size_t i = 0; i < k; i++) {
		if (!n[i] || n[i] > MAX_RANKS || (n[i] > 1 && !step[i]) ||
		    *ret_size * n[i] > MAX_RANKS)
			return false;
		*ret_size *= n[i];
		*ret_coord = *ret_coord * n[i] + (n[i] > 1 ? at / step[i] % n[i] : 0);
	}
	return true;
}

/* _layout: {axes: (each with shape and stride)} since 2.13, {shape, stride} before. */
static int read_layout(struct fsdp_reader *r, const struct pk_value *layout, uint64_t at,
		       struct ckpt_err *e)
{
	const struct pk_value *axes = attr(layout, "axes"), *shape = attr(layout, "shape"),
			      *stride = attr(layout, "stride");
	const struct pk_value *of = axes ? axes : shape;
	size_t n = of && of->type == PK_TUPLE ? pk_len(of) : of && of->type == PK_INT;
	bool ok = n && n <= FSDP_MAX_AXES &&
		  (axes ? of->type == PK_TUPLE
			: stride && stride->type == of->type &&
				   (of->type == PK_INT || pk_len(stride) == n));

	for (size_t i = 0; ok && i < n; i++) {
		if (axes)
			ok = read_axis(attr(&axes->n->own[i], "shape"),
				       attr(&axes->n->own[i], "stride"), at, &r->sizes[i],
				       &r->coords[i]);
		else if (of->type == PK_INT)
			ok = read_axis(shape, stride, at, &r->sizes[i], &r->coords[i]);
		else
			ok = read_axis(&shape->n->own[i], &stride->n->own[i], at, &r->sizes[i],
				       &r->coords[i]);
	}
	r->n_axes = n;
	return ok ? 0 : err_set(e, ERR_UNSUPPORTED, "its mesh is not written as torch writes it");
}

/* Compares with the coordinate that torch has computed, if it is recorded. */
static int check_coordinate(const struct fsdp_reader *r, const struct pk_value *mesh,
			    struct ckpt_err *e)
{
	const struct pk_value *rank = attr(mesh, "_rank");
	uint64_t c[FSDP_MAX_AXES];
	size_t n;

	if (rank && rank->type == PK_INT && rank->i != (int64_t)r->rank)
		return err_set(e, ERR_CORRUPT,
			       "rank %lld has written it, not rank %u as the file's name says",
			       (long long)rank->i, r->rank);
	if (r->outside || !pk_numbers(attr(mesh, "_coordinate_on_dim"), c, FSDP_MAX_AXES, &n))
		return 0;
	for (size_t i = 0; i < r->n_axes; i++)
		if (n != r->n_axes || c[i] != r->coords[i])
			return err_set(e, ERR_CORRUPT,
				       "it says that it belongs to another rank than the file's "
				       "name does (%u)",
				       r->rank);
	return 0;
}

static int read_mesh(struct fsdp_reader *r, const struct pk_value *mesh, struct ckpt_err *e)
{
	const struct pk_value *ranks = attr(mesh, "mesh"), *layout = attr(mesh, "_layout");
	bool whole = torch_is_tensor(ranks);
	struct torch_view t = { 0 };
	int64_t *v = NULL;
	uint64_t at = 0;
	int rc;

	if (!mesh || mesh->type != PK_OBJECT)
		return err_set(e, ERR_UNSUPPORTED, "a DTensor without a mesh");
	if (mesh->n == r->mesh)
		return 0;
	r->mesh = NULL;
	ranks = whole ? ranks : attr(mesh, "_rank_map");
	if (!torch_is_tensor(ranks) || (!whole && !layout))
		return err_set(e, ERR_UNSUPPORTED, "its mesh is not written as torch writes it");
	rc = read_ranks(r, ranks, &t, &v, e);
	if (!rc)
		rc = find_rank(r, v, t.numel, &at, e);
	if (!rc && whole) {
		if (!t.n_dims || t.n_dims > FSDP_MAX_AXES)
			return err_set(e, ERR_UNSUPPORTED, "its mesh has %zu axes", t.n_dims);
		r->n_axes = t.n_dims;
		for (size_t i = t.n_dims; i-- > 0; at /= t.size[i]) {
			r->sizes[i] = t.size[i];
			r->coords[i] = at % t.size[i];
		}
	} else if (!rc) {
		rc = read_layout(r, layout, at, e);
	}
	if (!rc)
		rc = check_coordinate(r, mesh, e);
	if (!rc)
		r->mesh = mesh->n;
	return rc;
}

/* ---- splitting ---- */

/* Appends positions [from, to) of the runs to *out. */
static bool take_range(const struct fsdp_run *v, size_t n, uint64_t from, uint64_t to,
		       struct fsdp_run *out, size_t *n_out)
{
	uint64_t at = 0;

	for (size_t i = 0; i < n && at < to; at += v[i++].len) {
		uint64_t a = max_u64(from, at), b = min_u64(to, at + v[i].len);
		struct fsdp_run *last = *n_out ? &out[*n_out - 1] : NULL;

		if (a >= b)
			continue;
		if (last && last->off + last->len == v[i].off + (a - at)) {
			last->len += b - a;
			continue;
		}
		if (*n_out == MAX_RUNS)
			return false;
		out[(*n_out)++] = (struct fsdp_run){ v[i].off + (a - at), b - a };
	}
	return true;
}

/* As in torch.chunk: part number `part` of [0, total). */
static void chunk_of(uint64_t total, uint64_t parts, uint64_t part, uint64_t *ret_from,
		     uint64_t *ret_to)
{
	uint64_t each = total / parts + (total % parts != 0);

	*ret_from = part && each > total / part ? total : part * each;
	*ret_to = *ret_from + min_u64(each, total - *ret_from);
}

/*
 * Each of `pieces` chunks of the dimension is split, and the rank gets its part of every chunk.
 * With 1 piece: a plain Shard.
 */
static int split(struct fsdp_reader *r, struct fsdp_part *p, size_t dim, uint64_t pieces,
		 size_t axis, struct ckpt_err *e)
{
	struct fsdp_run *out;
	uint64_t total = 0;
	size_t n = 0;

	for (size_t i = 0; i < p->n_runs[dim]; i++)
		total += p->runs[dim][i].len;
	/* others would be empty: each has at least 1 element */
	pieces = max_u64(1, min_u64(pieces, total));
	if (pieces > MAX_RUNS)
		return err_set(e, ERR_UNSUPPORTED, "it is in more than %d pieces", MAX_RUNS);
	if (torch_file_spend(r->file, pieces * (p->n_runs[dim] + 1), e))
		return -e->code;
	out = arena_array(r->arena, min_u64(p->n_runs[dim] + pieces, MAX_RUNS), sizeof(*out));
	if (!out)
		return err_nomem(e);
	for (uint64_t i = 0; i < pieces; i++) {
		uint64_t from, to, a, b;

		chunk_of(total, pieces, i, &from, &to);
		chunk_of(to - from, r->sizes[axis], r->coords[axis], &a, &b);
		if (!take_range(p->runs[dim], p->n_runs[dim], from + a, from + b, out, &n))
			return err_set(e, ERR_UNSUPPORTED, "it is in more than %d pieces",
				       MAX_RUNS);
	}
	p->runs[dim] = out;
	p->n_runs[dim] = n;
	return 0;
}

struct placement {
	enum { REPLICATE, SHARD, STRIDED } kind;
	size_t dim;
	uint64_t pieces;
};

static int read_placement(const struct pk_value *v, const struct fsdp_part *p,
			  struct placement *ret, struct ckpt_err *e)
{
	int64_t dim, pieces = 1;
	bool strided = is_class(v, "_StridedShard");

	*ret = (struct placement){ .kind = REPLICATE };
	if (is_class(v, "Replicate"))
		return 0;
	if (is_class(v, "Partial") || is_class(v, "_Partial") || is_class(v, "_MaskPartial") ||
	    is_class(v, "MaskPartial"))
		return err_set(e, ERR_UNSUPPORTED,
			       "its placement is Partial: each rank holds a summand, and the sum "
			       "was not computed before the save");
	if (!strided && !is_class(v, "Shard"))
		return err_set(e, ERR_UNSUPPORTED, "a placement of class '%.60s'",
			       v->type == PK_OBJECT && v->n->own[PK_CALLEE].type == PK_GLOBAL
				       ? v->n->own[PK_CALLEE].g->name->data
				       : "?");
	if (!int_attr(v, "dim", 0, &dim) || (strided && !int_attr(v, "split_factor", 1, &pieces)))
		return err_set(e, ERR_UNSUPPORTED,
			       "its placements are not written as torch writes them");
	dim += dim < 0 ? (int64_t)p->n_dims : 0;
	if (dim < 0 || dim >= (int64_t)p->n_dims || pieces < 1)
		return err_set(e, ERR_CORRUPT, "it is sharded along a dimension that it lacks");
	*ret = (struct placement){ strided ? STRIDED : SHARD, (size_t)dim, (uint64_t)pieces };
	return 0;
}

/*
 * Axes that split the dimension that axis number `first` splits, in the order in which they did.
 * _StridedShard says that later axes, split_factor parts in all, came before it: FSDP splits what
 * tensor parallelism has left to a rank. Then a plain Shard is split after them. The two are alike
 * only if sizes are divisible. A split_factor that no such axes account for is kept.
 */
static size_t order_dim(const struct fsdp_reader *r, struct placement *v, size_t first,
			size_t *order)
{
	size_t n = 0, k;
	bool told = true;

	for (size_t i = r->n_axes; i-- > first;) {
		uint64_t parts = 1;

		if (v[i].kind == REPLICATE || v[i].dim != v[first].dim)
			continue;
		for (k = 0; k < n && parts < v[i].pieces; k++)
			parts *= r->sizes[order[k]];
		told &= parts == v[i].pieces;
		memmove(order + k + 1, order + k, (n++ - k) * sizeof(*order));
		order[k] = i;
	}
	k = 0;
	for (size_t i = first; i < r->n_axes; i++)
		if (v[i].kind == REPLICATE || v[i].dim != v[first].dim)
			continue;
		else if (told)
			v[i].pieces = 1;
		else
			order[k++] = i;
	return n;
}

static void order_all(const struct fsdp_reader *r, struct placement *v, size_t order[FSDP_MAX_AXES])
{
	size_t n = 0;

	for (size_t i = 0; i < r->n_axes; i++) {
		bool seen = false;

		for (size_t j = 0; j < i; j++)
			seen |= v[j].kind != REPLICATE && v[j].dim == v[i].dim;
		if (v[i].kind == REPLICATE)
			order[n++] = i;
		else if (!seen)
			n += order_dim(r, v, i, order + n);
	}
}

/*
 * The order in which the axes split the tensor: shard_order, ((dim, (axis, ...)), ...), since torch
 * 2.10; otherwise as _StridedShard says, or ascending.
 */
static int read_order(const struct fsdp_reader *r, const struct pk_value *spec, struct placement *v,
		      size_t order[FSDP_MAX_AXES], struct ckpt_err *e)
{
	const struct pk_value *entries = attr(spec, "shard_order"),
			      *flag = attr(spec, "use_strided_shard_as_shard_order");
	size_t n = r->n_axes, same = 0, strided = 0, k = 0;
	bool used[FSDP_MAX_AXES] = { false };

	for (size_t i = 0; i < n; i++) {
		strided += v[i].kind == STRIDED;
		for (size_t j = 0; j < i; j++)
			same += v[i].kind == SHARD && v[j].kind == SHARD && v[i].dim == v[j].dim;
	}
	if (strided && flag && flag->type == PK_BOOL && !flag->i)
		return err_set(e, ERR_UNSUPPORTED, "its _StridedShard does not say the order");
	/*
	 * Until 2.4, FSDP2 also wrote (Shard, Shard) if tensor parallelism had split the tensor
	 * first.
	 */
	if (same && !strided && spec->n->own[PK_CALLEE].type == PK_GLOBAL &&
	    !strncmp(spec->n->own[PK_CALLEE].g->module->data, "torch.distributed._tensor.", 26))
		return err_set(e, ERR_UNSUPPORTED,
			       "two axes of the mesh split one dimension, and torch before 2.5 "
			       "does not record which came first");
	if (!same || strided || !entries || entries->type != PK_TUPLE) {
		order_all(r, v, order);
		return 0;
	}
	if (pk_len(entries) > CKPT_MAX_DIMS) /* for each tensor that has it */
		return err_set(e, ERR_UNSUPPORTED, "its shard_order is not known");
	for (size_t i = 0; i < pk_len(entries); i++) {
		const struct pk_value *x = &entries->n->own[i];
		const struct pk_value *t = x->type == PK_OBJECT ? &x->n->own[PK_ARGS] : x;
		uint64_t axes[FSDP_MAX_AXES];
		size_t m;

		if (t->type != PK_TUPLE || pk_len(t) != 2 ||
		    !pk_numbers(&t->n->own[1], axes, FSDP_MAX_AXES, &m))
			return err_set(e, ERR_UNSUPPORTED, "its shard_order is not known");
		for (size_t j = 0; j < m; j++) {
			if (axes[j] >= n || used[axes[j]] || v[axes[j]].kind != SHARD)
				return err_set(e, ERR_CORRUPT,
					       "its shard_order contradicts its placements");
			used[axes[j]] = true;
			order[k++] = axes[j];
		}
	}
	for (size_t i = 0; i < n; i++)
		if (!used[i] && v[i].kind == SHARD)
			return err_set(e, ERR_CORRUPT,
				       "its shard_order contradicts its placements");
		else if (!used[i])
			order[k++] = i;
	return 0;
}

static void describe(const struct fsdp_reader *r, const struct placement *v, struct fsdp_part *p)
{
	size_t at = 0;

	p->layout[0] = 0;
	for (size_t i = 0; i < r->n_axes && at < sizeof(p->layout); i++) {
		if (v[i].kind == REPLICATE)
			at += (size_t)snprintf(p->layout + at, sizeof(p->layout) - at, "%s%llu",
					       i ? ", " : "", (unsigned long long)r->sizes[i]);
		else
			at += (size_t)snprintf(p->layout + at, sizeof(p->layout) - at,
					       "%s%llu:%zu/%llu", i ? ", " : "",
					       (unsigned long long)r->sizes[i], v[i].dim,
					       (unsigned long long)v[i].pieces);
	}
}

static int read_dtensor(struct fsdp_reader *r, const struct pk_value *args,
			const struct pk_value *state, struct ckpt_err *e)
{
	const struct pk_value *spec = in_state(state, "_spec"), *list = attr(spec, "placements");
	struct fsdp_run whole[CKPT_MAX_DIMS];
	struct placement v[FSDP_MAX_AXES];
	size_t order[FSDP_MAX_AXES];
	struct fsdp_part p = { .local = in_state(state, "_local_tensor") };
	int rc = read_shape(args, &p, e);

	if (!rc)
		rc = read_mesh(r, attr(spec, "mesh"), e);
	if (rc)
		return rc;
	if (!list || (list->type != PK_TUPLE && list->type != PK_LIST) || pk_len(list) != r->n_axes)
		return err_set(e, ERR_CORRUPT, "its mesh has %zu axes and there are %zu placements",
			       r->n_axes, list ? pk_len(list) : 0);
	for (size_t i = 0; !rc && i < r->n_axes; i++) {
		rc = read_placement(&list->n->v[i], &p, &v[i], e);
		p.copy |= !rc && v[i].kind == REPLICATE && r->coords[i];
	}
	if (!rc) {
		describe(r, v, &p);
		rc = read_order(r, spec, v, order, e);
	}
	for (size_t d = 0; !rc && d < p.n_dims; d++) {
		whole[d] = (struct fsdp_run){ 0, p.shape[d] };
		p.runs[d] = &whole[d];
		p.n_runs[d] = p.shape[d] > 0;
	}
	for (size_t i = 0; !rc && i < r->n_axes; i++) {
		size_t a = order[i];

		if (v[a].kind != REPLICATE)
			rc = split(r, &p, v[a].dim, v[a].pieces, a, e);
	}
	if (rc)
		return rc;
	if (r->outside) /* this rank does not train the tensor */
		p.local = NULL;
	return r->add(r->arg, &p, e);
}

/* ---- ShardedTensor ---- */

static int check_group(const struct fsdp_reader *r, const struct pk_value *group,
		       struct ckpt_err *e)
{
	int64_t rank, world;

	if (!group || group->type != PK_OBJECT ||
	    !int_attr(group, "global_rank", SIZE_MAX, &rank) ||
	    !int_attr(group, "global_world_size", SIZE_MAX, &world))
		return 0;
	if (rank != (int64_t)r->rank)
		return err_set(e, ERR_CORRUPT,
			       "rank %lld has written it, not rank %u as the file's name says",
			       (long long)rank, r->rank);
	if (world != (int64_t)r->world)
		return err_set(e, ERR_CORRUPT,
			       "it was written by one of %lld ranks, but there are files of %u",
			       (long long)world, r->world);
	return 0;
}

static int read_sharded(struct fsdp_reader *r, const struct pk_value *args,
			const struct pk_value *state, struct ckpt_err *e)
{
	struct fsdp_run runs[CKPT_MAX_DIMS];
	struct fsdp_part p = { 0 };
	const struct pk_value *shards;
	int rc = read_shape(args, &p, e);

	if (rc)
		return rc;
	if (state->type != PK_TUPLE || pk_len(state) < 3 || state->n->own[0].type != PK_LIST)
		return err_set(e, ERR_UNSUPPORTED,
			       "its ShardedTensor is not written as torch writes it");
	shards = &state->n->own[0];
	rc = check_group(r, &state->n->own[2], e);
	if (!rc && !pk_len(shards))
		rc = r->add(r->arg, &p, e);
	for (size_t i = 0; !rc && i < pk_len(shards); i++) {
		const struct pk_value *shard = &shards->n->v[i], *where = attr(shard, "metadata");
		uint64_t off[CKPT_MAX_DIMS], len[CKPT_MAX_DIMS];
		size_t n, m;

		p.local = attr(shard, "tensor");
		if (!p.local || !pk_numbers(attr(where, "shard_offsets"), off, CKPT_MAX_DIMS, &n) ||
		    !pk_numbers(attr(where, "shard_sizes"), len, CKPT_MAX_DIMS, &m))
			return err_set(e, ERR_UNSUPPORTED,
				       "its ShardedTensor is not written as torch writes it");
		if (n != p.n_dims || m != n || !box_inside(n, off, len, p.shape))
			return err_set(e, ERR_CORRUPT, "a shard is outside the tensor");
		for (size_t d = 0; d < n; d++) {
			runs[d] = (struct fsdp_run){ off[d], len[d] };
			p.runs[d] = &runs[d];
			p.n_runs[d] = len[d] > 0;
		}
		rc = r->add(r->arg, &p, e);
	}
	return rc;
}

int fsdp_read_parts(struct fsdp_reader *r, const struct pk_value *v, struct ckpt_err *e)
{
	const struct pk_value *args, *state;

	if (!wrapper(v, &args, &state))
		return err_set(e, ERR_UNSUPPORTED, "this is not a sharded tensor");
	return pk_is(&args[0], NULL, "ShardedTensor") ? read_sharded(r, args, state, e)
						      : read_dtensor(r, args, state, e);
}
