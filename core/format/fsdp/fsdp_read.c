/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads one rank's file: its tensors become chunks, or copies that other ranks may have too.
 *
 *	model        NAME: the state dict's own names
 *	optimizer    optimizer.state.NAME.exp_avg, as in a DCP checkpoint; NAME is a number if
 *	             torch.optim has numbered the parameters and nothing tells which ones they are
 *	extra state  extra_state.rank_R...: random states and the like, of each rank
 *
 * Values that are not tensors are taken from rank 0.
 */
#include "base/buf.h"
#include "base/checked.h"
#include "base/search.h"
#include "base/text.h"
#include "base/vec.h"
#include "format/fsdp/fsdp.h"
#include "format/torch_tensor.h"
#include "index/catalog_path.h"
#include "model/box.h"
#include "source/source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SAMPLES = 1 << 21 }; /* number of copies that are compared */

struct walk {
	struct fsdp *d;
	const struct fsdp_file *f;
	struct torch_file file;
	struct arena arena;
	struct fsdp_reader reader;
	struct buf fqn;
	struct {
		uint32_t end; /* length of the FQN up to this step */
		bool is_position;
	} steps[FSDP_MAX_DEPTH + 1];
	size_t n_steps;
	struct fsdp_tensor *t; /* the tensor whose parts are being added */
	struct flat *flat;     /* sorted by storage */
	size_t n_flat;
	struct {
		uint64_t flat;	 /* elements of flat parameters that were copied, in this rank */
		uint64_t pieces; /* the most that other tensors, as their pieces, can account for */
	} copied[CKPT_DTYPE_COUNT];
};

/* A parameter that FSDP1 has flattened. */
struct flat {
	const char *storage;
	enum ckpt_dtype dtype;
	uint64_t numel;
	bool has_pieces; /* other tensors are in its storage */
};

/* ---- tensors ---- */

static const uint8_t *path_of(struct walk *w)
{
	uint8_t cuts[(FSDP_MAX_DEPTH + 2) * CATALOG_PATH_NUMBER];
	uint32_t from = 0;
	size_t at = catalog_path_put_head(cuts, w->n_steps, w->steps[w->n_steps - 1].is_position);

	for (size_t i = 0; i + 1 < w->n_steps; i++) {
		at += catalog_path_put_step(cuts + at, w->steps[i].end - from,
					    w->steps[i].is_position);
		from = w->steps[i].end + 1;
	}
	return arena_dup(&w->d->arena, cuts, at);
}

/*
 * Finds or adds the tensor with this name; a new one has no shape yet. ERR_UNSUPPORTED: the file
 * has two, as {"a.b": t, "a": {"b": t}} has.
 */
static int find_tensor(struct walk *w, enum fsdp_what what, struct ckpt_err *e)
{
	struct fsdp *d = w->d;
	const struct pk_str *s = pk_intern(d->names, w->fqn.data, w->fqn.len);
	struct fsdp_tensor *t;

	if (!s)
		return err_set(e, errno, "the names of all tensors take too much memory");
	if (!VEC_ROOM_ZEROED(d->by_name, d->cap_by_name, s->id + (size_t)1))
		return err_nomem(e);
	if (d->by_name[s->id]) {
		w->t = &d->tensors[d->by_name[s->id] - 1];
		if (w->t->last == w->file.number + (uint64_t)1)
			return err_set(e, ERR_UNSUPPORTED,
				       "rank %u's file has two tensors of that name", w->f->rank);
		w->t->last = w->file.number + (uint64_t)1;
		if (w->t->what != what || w->t->kind != w->f->kind)
			return err_set(e, ERR_CORRUPT,
				       "it is sharded in some ranks' files and not in others'");
		return 0;
	}
	if (!VEC_ROOM(d->tensors, d->cap_tensors, d->n_tensors + 1))
		return err_nomem(e);
	t = &d->tensors[d->n_tensors];
	*t = (struct fsdp_tensor){ .fqn = s,
				   .path = path_of(w),
				   .kind = w->f->kind,
				   .what = what,
				   .rank = w->f->rank,
				   .last = w->file.number + (uint64_t)1 };
	if (!t->path)
		return err_nomem(e);
	d->by_name[s->id] = (uint32_t)++d->n_tensors;
	w->t = t;
	return 0;
}

/* All ranks' files must describe the tensor alike. */
static int check_same(struct walk *w, const struct fsdp_part *p, struct ckpt_err *e)
{
	struct fsdp_tensor *t = w->t;

	if (!t->shape) {
		uint64_t *shape = arena_array(&w->d->arena, p->n_dims + 1, sizeof(*shape));

		t->layout = arena_dup(&w->d->arena, p->layout, strlen(p->layout));
		if (!shape || !t->layout)
			return err_nomem(e);
		if (p->n_dims)
			memcpy(shape, p->shape, p->n_dims * sizeof(*shape));
		t->shape = shape;
		t->n_dims = p->n_dims;
		t->dtype = p->dtype;
		return 0;
	}
	if (t->n_dims != p->n_dims || !dims_equal(p->n_dims, t->shape, p->shape))
		return err_set(e, ERR_CORRUPT,
			       "rank %u has %s, rank %u has %s: are these files from one save?",
			       t->rank, SIZE_TEXT(t->shape, t->n_dims), w->f->rank,
			       SIZE_TEXT(p->shape, p->n_dims));
	if (t->dtype != p->dtype)
		return err_set(e, ERR_CORRUPT, "rank %u has %s, rank %u has %s", t->rank,
			       dtype_info(t->dtype)->name, w->f->rank, dtype_info(p->dtype)->name);
	if (strcmp(t->layout, p->layout) != 0)
		return err_set(e, ERR_CORRUPT,
			       "ranks %u and %u disagree on how it is sharded (%s; %s)", t->rank,
			       w->f->rank, t->layout, p->layout);
	return 0;
}

/* Adds one box of the tensor, whose elements start at `from` in the local tensor. */
static int add_chunk(struct walk *w, const struct torch_view *v, const uint64_t *off,
		     const uint64_t *len, const uint64_t *from, struct ckpt_err *e)
{
	struct fsdp_tensor *t = w->t;
	struct raw_chunk x = { .dtype = t->dtype,
			       .n_dims = t->n_dims,
			       .off = off,
			       .len = len,
			       .layout = &v->layout,
			       .file = w->file.number,
			       .offset = v->at };
	uint64_t size = dtype_info(t->dtype)->size;
	int rc = torch_file_spend(&w->file, 1, e);

	for (size_t d = 0; d < t->n_dims; d++)
		x.offset += from[d] * v->layout.stride[d] * size;
	return rc ? rc : raw_chunks_add(&t->chunks, &x, w->d->w, &w->d->n_chunks, e);
}

/* Adds the boxes of a part: every combination of its dimensions' runs. */
static int add_boxes(struct walk *w, const struct fsdp_part *p, const struct torch_view *v,
		     struct ckpt_err *e)
{
	uint64_t off[CKPT_MAX_DIMS], len[CKPT_MAX_DIMS], from[CKPT_MAX_DIMS] = { 0 };
	size_t at[CKPT_MAX_DIMS] = { 0 }, d;
	int rc = 0;

	do {
		for (d = 0; d < p->n_dims; d++) {
			off[d] = p->runs[d][at[d]].off;
			len[d] = p->runs[d][at[d]].len;
		}
		rc = add_chunk(w, v, off, len, from, e);
		for (d = p->n_dims; !rc && d-- > 0;) {
			from[d] += len[d];
			if (++at[d] < p->n_runs[d])
				break;
			at[d] = 0;
			from[d] = 0;
			if (!d)
				return 0;
		}
	} while (!rc && p->n_dims);
	return rc;
}

static int add_part(void *arg, const struct fsdp_part *p, struct ckpt_err *e)
{
	struct walk *w = arg;
	uint64_t want[CKPT_MAX_DIMS] = { 0 };
	struct torch_view v;
	bool empty = false, same;
	int rc = check_same(w, p, e);

	if (!rc)
		rc = torch_file_spend(&w->file, 1, e);
	if (rc || !p->local)
		return rc;
	rc = torch_file_view(&w->file, p->local, &v, e);
	if (rc)
		return rc;
	for (size_t d = 0; d < p->n_dims; d++) {
		for (size_t i = 0; i < p->n_runs[d]; i++)
			want[d] += p->runs[d][i].len;
		empty |= !want[d];
	}
	same = v.n_dims == p->n_dims;
	for (size_t d = 0; same && d < p->n_dims; d++)
		same = v.size[d] == want[d];
	if (empty ? v.numel : !same)
		return err_set(e, ERR_CORRUPT,
			       "rank %u's part is %s, but by its sharding it should be %s",
			       w->f->rank, SIZE_TEXT(v.size, v.n_dims), SIZE_TEXT(want, p->n_dims));
	if (v.dtype != p->dtype)
		return err_set(e, ERR_CORRUPT, "rank %u's part is %s, but the tensor is %s",
			       w->f->rank, dtype_info(v.dtype)->name, dtype_info(p->dtype)->name);
	return empty || p->copy ? 0 : add_boxes(w, p, &v, e);
}

/* ---- copies ---- */

/* Hashes its ends, in which tensors that are not copies almost certainly differ. */
static int sample(struct walk *w, struct fsdp_copy *c, const struct torch_view *v,
		  struct ckpt_err *e)
{
	if (w->d->world == 1)
		return 0;
	if (v->numel && w->d->samples++ >= MAX_SAMPLES)
		return fsdp_note(w->d,
				 "whether all ranks have the same values of '%.100s' and others: "
				 "only %d are compared",
				 w->t->fqn->data, MAX_SAMPLES);
	c->sampled = true;
	return torch_file_sample(&w->file, v, &c->sample, e);
}

/* The storage of a tensor that is neither wrapped nor of a subclass. */
static const char *storage_of(const struct pk_value *v, struct torch_tensor *t)
{
	struct ckpt_err ignored;

	*t = (struct torch_tensor){ 0 };
	return !v || torch_tensor_read(v, t, &ignored) ? NULL : t->key;
}

/* A view takes a kilobyte, and many ranks have the same one. */
static bool same_view(const struct torch_view *a, const struct torch_view *b)
{
	const struct raw_layout *x = &a->layout, *y = &b->layout;
	size_t n = a->n_dims;

	return a->dtype == b->dtype && n == b->n_dims && a->numel == b->numel &&
	       x->n_dims == y->n_dims && x->strided == y->strided && x->swap == y->swap &&
	       x->neg == y->neg && x->conj == y->conj && dims_equal(n, a->size, b->size) &&
	       !memcmp(x->stride, y->stride, x->n_dims * sizeof(*x->stride));
}

static int keep_view(struct walk *w, struct torch_view *v, struct fsdp_copy *ret,
		     struct ckpt_err *e)
{
	const struct fsdp_tensor *t = w->t;

	ret->at = v->at;
	v->at = 0;
	ret->view = t->n_copies && same_view(t->copies->view, v)
			    ? t->copies->view
			    : arena_dup(&w->d->arena, v, sizeof(*v));
	return ret->view ? 0 : err_nomem(e);
}

static struct flat *flat_in(const struct walk *w, const char *storage)
{
	size_t at = PARTITION_POINT(i, w->n_flat, strcmp(w->flat[i].storage, storage) < 0);

	return at < w->n_flat && !strcmp(w->flat[at].storage, storage) ? &w->flat[at] : NULL;
}

/* Is it a piece of a flat parameter, or may it be one? */
static bool is_piece(const struct walk *w, const struct torch_view *v, const char *storage)
{
	if (!w->n_flat || v->n_dims != 1)
		return false;
	return !v->numel || (storage && flat_in(w, storage)) ||
	       (w->copied[v->dtype].flat && w->copied[v->dtype].pieces >= w->copied[v->dtype].flat);
}

static int add_copy(struct walk *w, const struct pk_value *v, struct ckpt_err *e)
{
	struct fsdp_copy c = { .rank = w->f->rank, .file = w->file.number };
	struct torch_view view = { 0 };
	struct fsdp_tensor *t = w->t;
	struct torch_tensor tensor;
	const char *key = storage_of(v, &tensor);
	int rc;

	if (!VEC_ROOM(t->copies, t->cap_copies, t->n_copies + 1))
		return err_nomem(e);
	rc = torch_file_view(&w->file, v, &view, e);
	if (!rc)
		rc = sample(w, &c, &view, e);
	if (!rc)
		rc = keep_view(w, &view, &c, e);
	if (rc)
		return rc;
	c.flat = is_piece(w, &view, key);
	t->copies[t->n_copies++] = c;
	return 0;
}

/* ---- walking ---- */

static int read_value(struct walk *w, const struct pk_value *v, struct ckpt_err *e);

static int add_object(struct walk *w, const struct pk_value *v, struct ckpt_err *e)
{
	const char *steps[FSDP_MAX_DEPTH + 2];
	struct buf copy = BUF_INIT(FSDP_MAX_FQN + 1);
	uint32_t from = 0;
	int rc;

	if (w->f->rank && w->f->kind != FSDP_EXTRA)
		return 0;
	buf_add(&copy, w->fqn.data, w->fqn.len + 1);
	if (copy.err)
		return err_nomem(e);
	for (size_t i = 0; i < w->n_steps; i++) {
		copy.data[w->steps[i].end] = 0;
		steps[i] = copy.data + from;
		from = w->steps[i].end + 1;
	}
	steps[w->n_steps] = NULL;
	rc = torch_file_report(&w->file, v, steps, w->d->w, e);
	buf_release(&copy);
	return rc;
}

/* A tensor that exists but cannot be shown: it is listed, and a warning is issued. */
static int add_fault(struct walk *w, const struct ckpt_err *why)
{
	if (!w->t->fault) {
		w->t->fault = arena_dup(&w->d->arena, why->msg, strlen(why->msg));
		(void)fsdp_note(w->d, "'%.100s': %s",
				text_show(w->fqn.data, w->fqn.len, (char[101]){ 0 }, 101),
				why->msg);
	}
	return 0;
}

static int add_param(struct walk *w, struct ckpt_err *e)
{
	struct fsdp *d = w->d;

	if (w->f->kind != FSDP_MODEL || w->f->rank)
		return 0;
	if (!VEC_ROOM(d->params, d->cap_params, d->n_params + 1))
		return err_nomem(e);
	d->params[d->n_params++] = w->t->fqn;
	return 0;
}

static int read_tensor(struct walk *w, const struct pk_value *v, struct ckpt_err *e)
{
	enum fsdp_what what = fsdp_what(v);
	struct ckpt_err why;
	int rc = find_tensor(w, what, &why);

	if (!rc && what == FSDP_DTENSOR)
		rc = add_param(w, &why);
	if (!rc)
		rc = what == FSDP_PLAIN ? add_copy(w, v, &why)
					: fsdp_read_parts(&w->reader, v, &why);
	if (rc == -ERR_UNSUPPORTED)
		return add_fault(w, &why);
	if (rc)
		*e = why;
	w->d->sharded |= what == FSDP_SHARDED && w->f->kind == FSDP_MODEL;
	return rc ? err_wrap(e, "'%.150s': '%s'", w->f->path, FQN_TEXT(w->fqn.data, w->fqn.len))
		  : 0;
}

/*
 * 1: it contains a tensor. One that is nested too deep is not overlooked: other ranks' parts of it
 * would be missing.
 */
static int has_tensor(struct walk *w, const struct pk_value *v, size_t depth, struct ckpt_err *e)
{
	size_t n = v->type == PK_DICT			       ? 2 * pk_len(v)
		   : v->type == PK_LIST || v->type == PK_TUPLE ? pk_len(v)
							       : 0;
	int rc = torch_file_spend(&w->file, 1 + n, e);

	if (rc || torch_is_tensor(v))
		return rc ? rc : 1;
	if (n && !depth)
		return err_set(e, ERR_UNSUPPORTED, "'%.150s' is nested more than %d deep",
			       w->f->path, FSDP_MAX_DEPTH);
	for (size_t i = v->type == PK_DICT; !rc && i < n; i += 1 + (v->type == PK_DICT))
		rc = has_tensor(w, &v->n->v[i], depth - 1, e);
	return rc;
}

static int read_step(struct walk *w, const struct pk_value *key, size_t number,
		     const struct pk_value *v, struct ckpt_err *e)
{
	size_t len = w->fqn.len;
	char digits[24];
	int rc;

	/* State dicts have no other keys. */
	if (key && key->type != PK_INT &&
	    (key->type != PK_STR || strlen(key->s->data) != key->s->len)) {
		rc = has_tensor(w, v, FSDP_MAX_DEPTH - w->n_steps, e);
		return rc <= 0 ? rc
			       : fsdp_note(w->d,
					   "tensors in '%.150s' whose keys are neither text nor "
					   "integers",
					   w->f->path);
	}
	if (w->n_steps)
		buf_str(&w->fqn, ".");
	if (key && key->type == PK_STR) {
		buf_add(&w->fqn, key->s->data, key->s->len);
	} else {
		(void)snprintf(digits, sizeof(digits), "%lld",
			       key ? (long long)key->i : (long long)number);
		buf_str(&w->fqn, digits);
	}
	if (buf_check(&w->fqn, e, "a name of more than %d bytes", FSDP_MAX_FQN))
		return -e->code;
	w->steps[w->n_steps].end = (uint32_t)w->fqn.len;
	w->steps[w->n_steps++].is_position = !key;
	rc = read_value(w, v, e);
	w->n_steps--;
	w->fqn.len = len;
	w->fqn.data[len] = 0;
	return rc;
}

static int read_parts_of(struct walk *w, const struct pk_value *v, struct ckpt_err *e)
{
	size_t n = pk_len(v);
	int rc = torch_file_spend(&w->file, n, e);

	for (size_t i = 0; !rc && i < n; i++)
		rc = v->type == PK_DICT ? read_step(w, &v->n->v[2 * i], 0, &v->n->v[2 * i + 1], e)
					: read_step(w, NULL, i, &v->n->v[i], e);
	return rc;
}

static int read_value(struct walk *w, const struct pk_value *v, struct ckpt_err *e)
{
	int rc;

	if (torch_is_tensor(v))
		return read_tensor(w, v, e);
	rc = has_tensor(w, v, FSDP_MAX_DEPTH - w->n_steps, e);
	if (rc < 0)
		return rc;
	return rc ? read_parts_of(w, v, e) : add_object(w, v, e);
}

/*
 * Is this the name of FSDP1's flat parameters (torch/distributed/fsdp/_flat_param.py, FLAT_PARAM)?
 * If they are saved as such, other tensors in their storage are pieces of them.
 */
static bool is_flat_name(const struct pk_value *key)
{
	static const char word[] = "_flat_param";
	size_t n = strlen(word);

	return key->type == PK_STR && key->s->len >= n &&
	       !strcmp(key->s->data + key->s->len - n, word);
}

static int by_storage(const void *ap, const void *bp)
{
	const struct flat *a = ap, *b = bp;

	return strcmp(a->storage, b->storage);
}

/*
 * LocalStateDictConfig(offload_to_cpu=True) copies flat parameters, but not their pieces, from a
 * GPU
 * (_state_dict_utils.py, _local_post_state_dict_hook), and a program may have copied all tensors.
 * Then storages tell nothing, and a piece looks like a buffer. With use_orig_params=True a rank has
 * pieces of all elements of its part, except those that fill up to 16 bytes behind each parameter
 * and to a multiple of the number of ranks (_flat_param.py); without it there are none.
 */
static void count_pieces(struct walk *w, const struct pk_value *dict)
{
	for (size_t i = 0; i < pk_len(dict); i++) {
		const struct pk_value *v = &dict->n->v[2 * i];
		struct torch_tensor t;
		struct flat *of;
		const char *key;

		if (is_flat_name(v) || !torch_is_tensor(v + 1))
			continue;
		key = storage_of(v + 1, &t);
		if (!key || t.n_dims != 1)
			continue;
		of = flat_in(w, key);
		if (of)
			of->has_pieces = true;
		else
			w->copied[t.dtype].pieces += t.size[0] + 16;
	}
	for (size_t i = 0; i < w->n_flat; i++)
		if (!w->flat[i].has_pieces) {
			w->copied[w->flat[i].dtype].flat += w->flat[i].numel;
			w->copied[w->flat[i].dtype].pieces += w->d->world;
		}
}

/* There is one for each module that was wrapped. */
static int find_flat(struct walk *w, const struct pk_value *dict, struct ckpt_err *e)
{
	const struct pk_value *model = pk_get(dict, "model");
	size_t n = 0;

	dict = model && model->type == PK_DICT ? model : dict;
	for (size_t i = 0; dict->type == PK_DICT && i < pk_len(dict); i++)
		n += is_flat_name(&dict->n->v[2 * i]) && torch_is_tensor(&dict->n->v[2 * i + 1]);
	if (!n)
		return 0;
	w->d->flat = true;
	w->flat = arena_array(&w->arena, n, sizeof(*w->flat));
	if (!w->flat)
		return err_nomem(e);
	for (size_t i = 0; i < pk_len(dict); i++) {
		const struct pk_value *v = &dict->n->v[2 * i];
		struct torch_tensor t;
		const char *key;

		if (!is_flat_name(v) || !torch_is_tensor(v + 1))
			continue;
		key = storage_of(fsdp_local(v + 1), &t);
		if (!key)
			continue;
		key = arena_dup(&w->arena, key, strlen(key));
		if (!key)
			return err_nomem(e);
		w->flat[w->n_flat++] = (struct flat){ .storage = key,
						      .dtype = t.dtype,
						      .numel = t.n_dims == 1 ? t.size[0] : 0 };
	}
	qsort(w->flat, w->n_flat, sizeof(*w->flat), by_storage);
	count_pieces(w, dict);
	return 0;
}

/* torch.optim: {state, param_groups: [{params: [0, 1, ...]}]} */
static void count_params(struct fsdp *d, const struct pk_value *dict)
{
	const struct pk_value *groups = pk_get(dict, "param_groups"), *params = NULL;

	d->one_group = groups && groups->type == PK_LIST && pk_len(groups) == 1 &&
		       groups->n->v->type == PK_DICT;
	if (d->one_group)
		params = pk_get(groups->n->v, "params");
	d->n_optim_params = params && params->type == PK_LIST ? pk_len(params) : 0;
	for (size_t i = 0; i < d->n_optim_params; i++)
		d->one_group &= params->n->v[i].type == PK_INT && params->n->v[i].i == (int64_t)i;
}

/* Starts the FQN with the prefix for this kind of file. */
static void put_prefix(struct walk *w)
{
	if (w->f->kind == FSDP_MODEL)
		return;
	buf_str(&w->fqn, w->f->kind == FSDP_OPTIM ? "optimizer" : "extra_state");
	w->steps[w->n_steps++].end = (uint32_t)w->fqn.len;
	if (w->f->kind == FSDP_OPTIM)
		return;
	buf_printf(&w->fqn, ".rank_%u", w->f->rank);
	w->steps[w->n_steps++].end = (uint32_t)w->fqn.len;
}

int fsdp_read(struct fsdp *d, const struct fsdp_file *f, struct ckpt_err *e)
{
	struct walk w = {
		.d = d, .f = f, .arena = ARENA_INIT((size_t)1 << 30), .fqn = BUF_INIT(FSDP_MAX_FQN)
	};
	int rc = torch_file_open(&w.file, d->place, f->path, d->w, e);

	w.reader = (struct fsdp_reader){ .file = &w.file,
					 .arena = &w.arena,
					 .rank = f->rank,
					 .world = d->world,
					 .add = add_part,
					 .arg = &w };
	if (!rc && w.file.root.type != PK_DICT)
		rc = err_set(e, ERR_CORRUPT, "'%.200s' does not hold a state dict", f->path);
	if (!rc && f->kind == FSDP_MODEL)
		rc = find_flat(&w, &w.file.root, e);
	if (!rc && f->kind == FSDP_OPTIM && !f->rank)
		count_params(d, &w.file.root);
	buf_str(&w.fqn, "");
	put_prefix(&w);
	if (!rc && w.fqn.err)
		rc = err_nomem(e);
	if (!rc && f->kind == FSDP_EXTRA)
		rc = add_object(&w, &w.file.root, e);
	else if (!rc)
		rc = read_parts_of(&w, &w.file.root, e);
	rc = torch_file_close(&w.file, rc, e);
	buf_release(&w.fqn);
	arena_release(&w.arena);
	if (d->opts->progress)
		d->opts->progress(d->opts->progress_arg, ++d->n_read, d->n_files);
	return rc;
}
