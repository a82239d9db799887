/* SPDX-License-Identifier: Apache-2.0 */
#include "tree/view.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "codec/cast.h"
#include "file/pt_write.h"
#include "file/st_write.h"
#include "index/catalog_query.h"
#include "layout/layout.h"
#include "model/box.h"
#include "tensor/rename.h"
#include "tensor/vtensor.h"
#include "tree/view_internal.h"

#include <stdlib.h>
#include <string.h>

/* In the order of the root directory; numbered by the enum in view_internal.h. */
static const struct face *const faces[N_FACES] = {
	[FACE_CONTROL] = &face_control,
	[FACE_GGUF] = &face_gguf,
	[FACE_HF] = &face_hf,
	[FACE_LOGICAL] = &face_logical,
	[FACE_NPY] = &face_npy,
	[FACE_OBJECTS] = &face_objects,
	[FACE_PT] = &face_pt,
	[FACE_RANKS] = &face_ranks,
	[FACE_SAFETENSORS] = &face_safetensors,
	[FACE_TENSORS] = &face_tensors,
	[FACE_VIEW] = &face_view,
};

/* ---- construction ---- */

/* Also tries all globs that have not matched yet, to find out which ones never match. */
static bool matches(const char *const *globs, bool *used, const char *fqn, size_t len,
		    uint64_t *steps)
{
	bool any = false;

	for (size_t i = 0; globs && globs[i]; i++)
		if ((!any || !used[i]) && text_glob_within(globs[i], fqn, len, steps))
			any = used[i] = true;
	return any;
}

static bool exists(struct view *v, const char *fqn, size_t len)
{
	bool in = matches(v->o.include, v->included, fqn, len, &v->glob_steps),
	     out = matches(v->o.exclude, v->excluded, fqn, len, &v->glob_steps);

	return (in || !v->o.include) && !out;
}

static int new_flags(const char *const *globs, bool **ret, struct ckpt_err *e)
{
	size_t n = 0;

	while (globs && globs[n])
		n++;
	*ret = calloc(n + 1, sizeof(**ret));
	return *ret ? 0 : err_nomem(e);
}

/* A glob that matches nothing is usually a typo. */
static void warn_unused(const struct view *v, const char *word, const char *const *globs,
			const bool *used)
{
	struct ckpt_err what;

	for (size_t i = 0; v->o.warn && globs && globs[i]; i++)
		if (!used[i]) {
			(void)err_set(&what, ENOENT, "option '%s': '%.200s' matches no FQN", word,
				      globs[i]);
			v->o.warn(v->o.warn_arg, what.msg);
		}
}

static void stored_tensor(const void *arg, uint32_t index, const char **ret, size_t *ret_len)
{
	const struct view *v = arg;
	const struct catalog_tensor *t = &catalog_tensors(v->c, NULL)[index];

	*ret = t->fqn;
	*ret_len = t->fqn_len;
}

static void stored_object(const void *arg, uint32_t index, const char **ret, size_t *ret_len)
{
	const struct view *v = arg;
	const struct catalog_object *o = &catalog_objects(v->c, NULL)[index];

	*ret = o->fqn;
	*ret_len = o->fqn_len;
}

/* The names of the tree: those of n stored tensors or objects that exist, after renaming. */
static int list_names(struct view *v, size_t n, namelist_stored_fn *stored, struct namelist *ret,
		      struct ckpt_err *e)
{
	int rc = 0;

	for (uint32_t i = 0; !rc && i < n; i++) {
		const char *fqn;
		size_t len;

		stored(v, i, &fqn, &len);
		if (exists(v, fqn, len))
			rc = namelist_add(ret, fqn, len, i, e);
	}
	if (!rc)
		rc = text_glob_check(v->glob_steps, "include= and exclude=", e);
	if (!rc && v->o.rename)
		rc = rename_list(v->o.rename, ret, e);
	return rc ? rc : namelist_finish(ret, stored, v, e);
}

static int list_tree(struct view *v, struct ckpt_err *e)
{
	size_t n_tensors, n_objects;
	int rc;

	(void)catalog_tensors(v->c, &n_tensors);
	(void)catalog_objects(v->c, &n_objects);
	if (n_tensors > VIEW_MAX_NAMES)
		return err_set(e, EFBIG, "%zu tensors: the tree has inode numbers for %u",
			       n_tensors, VIEW_MAX_NAMES);
	if (n_objects > VIEW_MAX_OBJECTS)
		return err_set(e, EFBIG, "%zu objects: the tree has inode numbers for %u",
			       n_objects, VIEW_MAX_OBJECTS);
	rc = new_flags(v->o.include, &v->included, e);
	if (!rc)
		rc = new_flags(v->o.exclude, &v->excluded, e);
	if (!rc)
		rc = list_names(v, n_tensors, stored_tensor, &v->tensors, e);
	if (!rc)
		rc = list_names(v, n_objects, stored_object, &v->objects, e);
	if (!rc)
		rc = view_objects_init(v, e);
	if (!rc)
		warn_unused(v, "include", v->o.include, v->included);
	if (!rc)
		warn_unused(v, "exclude", v->o.exclude, v->excluded);
	return rc;
}

static void tree_tensor(const void *arg, uint32_t index, const char **ret, size_t *ret_len)
{
	const struct view *v = arg;

	*ret = v->tensors.v[index].fqn;
	*ret_len = v->tensors.v[index].len;
}

/*
 * Is it optimizer state that was saved flattened but keeps its own shape? core_v0.8 to 0.10
 * flattened one-dimensional state. State with more dimensions is stored as blocks, with a dimension
 * for each and one for the elements, so a flattened tensor with one dimension can be nothing else.
 */
static bool is_flat_itself(const struct catalog_tensor *t)
{
	return t->n_dims == 1 && (text_glob("optimizer.state.*", t->fqn, t->fqn_len) ||
				  text_glob("chained_*.optimizer.state.*", t->fqn, t->fqn_len));
}

/*
 * If the checkpoint has tensors that are stored flattened: lists them, and one-dimensional ones
 * like them.
 */
static int list_logical(struct view *v, struct ckpt_err *e)
{
	size_t n;
	const struct catalog_tensor *t = catalog_tensors(v->c, &n);
	bool any = false;
	int rc = 0;

	for (size_t i = 0; i < n && !any; i++)
		any = t[i].n_logical;
	for (uint32_t i = 0; !rc && any && i < v->tensors.n; i++) {
		const struct named *name = &v->tensors.v[i];

		if (t[name->index].n_logical || is_flat_itself(&t[name->index]))
			rc = namelist_add(&v->logical, name->fqn, name->len, i, e);
	}
	return rc ? rc : namelist_finish(&v->logical, tree_tensor, v, e);
}

uint64_t view_logical_id(const struct view *v, size_t i)
{
	uint32_t at = v->logical.v[i].index;

	return view_id(catalog_tensors(v->c, NULL)[v->tensors.v[at].index].n_logical ? OF_LOGICAL
										     : OF_TREE,
		       at);
}

static int bind_layout(struct view *v, struct ckpt_err *e)
{
	size_t n = v->model.names.n;
	autofree struct layout_tensor *in = calloc(n + 1, sizeof(*in));
	struct tensor_info t;

	if (!in)
		return err_nomem(e);
	for (size_t i = 0; i < n; i++) {
		(void)view_info(v, OF_MODEL, i, &t, NULL);
		in[i] = (struct layout_tensor){ t.fqn, t.fqn_len, t.n_dims, t.shape };
	}
	return layout_bind(v->o.layout, in, n, e);
}

/*
 * Names of codes and of their scales, as quantisers write them: the fp8 of DeepSeek, of
 * compressed-tensors and of Transformer Engine; packed integers; GPTQ and AWQ; the MXFP4 of
 * GPT-OSS; torchao's.
 */
static const struct {
	const char *scales, *codes;
} quantised[] = {
	{ "_scale_inv", "" },
	{ "_scale", "" },
	{ "_scale", "_packed" },
	{ "._scale_inv", "._data" },
	{ "_scales", "_blocks" },
	{ "_scales", "" },
	{ ".scales", ".qweight" },
	{ ".scale", ".qdata" },
	{ "_scale", "_qdata" },
	{ "_group_scale", "_qdata" },
	{ "_scale_and_zero", "_qdata" },
	{ ".scale", ".codes" },
	{ ".scale", ".int_data" },
	{ "._rowwise_scale_inv", "._rowwise_data" },
};

/* The tensor of codes whose scales have this name, or -1. */
static int64_t codes_of(const struct view *v, const struct named *scales)
{
	const struct catalog_tensor *t = catalog_tensors(v->c, NULL);
	char name[1024];

	for (size_t i = 0; i < ARRAY_LEN(quantised); i++) {
		size_t end = strlen(quantised[i].scales), more = strlen(quantised[i].codes);
		int64_t at;

		if (scales->len <= end || scales->len > sizeof(name) - 16 ||
		    !bytes_end(scales->fqn, scales->len, quantised[i].scales))
			continue;
		memcpy(name, scales->fqn, scales->len - end);
		memcpy(name + scales->len - end, quantised[i].codes, more);
		at = namelist_find(&v->tensors, name, scales->len - end + more);
		if (at >= 0 && !cast_possible(t[v->tensors.v[at].index].dtype, CKPT_DTYPE_F32))
			return at;
	}
	return -1;
}

/* A cast would round the scales but not the codes, and no weights could be made from the result. */
static int refuse_codes(const struct view *v, struct ckpt_err *e)
{
	const struct catalog_tensor *t = catalog_tensors(v->c, NULL);

	for (size_t i = 0; i < v->tensors.n; i++) {
		const struct named *scales = &v->tensors.v[i];
		int64_t at = codes_of(v, scales);
		const struct named *codes = at < 0 ? NULL : &v->tensors.v[at];

		if (codes)
			return err_set(e, ERR_UNSUPPORTED,
				       "option 'dtype': '%.120s' holds codes (%s) whose scales are "
				       "in '%.120s', which a cast does not apply: use dequantize=, "
				       "leave the option out, or exclude both",
				       FQN_TEXT(codes->fqn, codes->len),
				       dtype_info(t[codes->index].dtype)->name,
				       FQN_TEXT(scales->fqn, scales->len));
	}
	return 0;
}

int view_new(const struct catalog *c, const struct view_opts *opts, struct view **ret,
	     struct ckpt_err *e)
{
	struct view *v = calloc(1, sizeof(*v));
	int rc;

	if (!v)
		return err_nomem(e);
	v->c = c;
	v->o = *opts;
	v->glob_steps = TEXT_GLOB_STEPS;
	rc = list_tree(v, e);
	if (!rc && v->o.dtype != CKPT_DTYPE_NONE)
		rc = refuse_codes(v, e);
	if (!rc)
		rc = list_logical(v, e);
	if (!rc)
		rc = view_model_init(v, e);
	if (!rc && v->o.layout)
		rc = bind_layout(v, e);
	if (!rc && v->has_model)
		rc = view_hf_init(v, e);
	if (!rc && v->o.layout)
		rc = view_ranks_init(v, e);
	if (!rc)
		rc = view_gguf_init(v, e);
	if (!rc)
		rc = view_page_init(v, e);
	if (rc) {
		view_free(v);
		return rc;
	}
	*ret = v;
	return 0;
}

void view_free(struct view *v)
{
	if (!v)
		return;
	namelist_release(&v->tensors);
	namelist_release(&v->objects);
	namelist_release(&v->logical);
	free(v->json);
	view_gguf_release(v);
	view_model_release(v);
	view_hf_release(v);
	free(v->held);
	free(v->held_at);
	free(v->tiles_at);
	free(v->included);
	free(v->excluded);
	free(v);
}

/* ---- nodes ---- */

enum { INDEX_BITS = 24, RANK_BITS = 20, FACE_SHIFT = INDEX_BITS + RANK_BITS };

_Static_assert(SPOT_DIR == (1u << INDEX_BITS) - 1, "the largest index");
_Static_assert(CKPT_MESH_MAX_RANKS < 1u << RANK_BITS, "ranks are numbered from 1");
_Static_assert((uint64_t)(N_FACES + 1) << FACE_SHIFT <= (uint64_t)1 << VIEW_NODE_BITS,
	       "faces are numbered from 1");

static uint64_t node_of(struct spot p)
{
	return (uint64_t)(p.face + 1) << FACE_SHIFT | (uint64_t)p.rank << INDEX_BITS | p.index;
}

struct spot view_spot(uint64_t node)
{
	return (struct spot){ (unsigned)(node >> FACE_SHIFT) - 1,
			      (uint32_t)(node >> INDEX_BITS) & ((1u << RANK_BITS) - 1),
			      (uint32_t)node & SPOT_DIR };
}

static bool shown(const struct view *v, unsigned face)
{
	if (face == FACE_RANKS)
		return v->o.layout;
	if (face == FACE_LOGICAL)
		return v->logical.n;
	if (face == FACE_GGUF)
		return v->has_model && view_has_gguf(v);
	return face < N_FACES && (v->has_model || !faces[face]->of_model);
}

enum view_kind view_kind(const struct view *v, uint64_t node)
{
	struct spot p = view_spot(node);

	if (node == VIEW_ROOT_NODE)
		return VIEW_DIR;
	if (!shown(v, p.face))
		return VIEW_NONE;
	if (p.rank && p.face != FACE_VIEW && (!v->o.layout || p.rank > layout_ranks(v->o.layout)))
		return VIEW_NONE;
	return faces[p.face]->kind(v, p);
}

uint64_t view_parent(const struct view *v, uint64_t node)
{
	struct spot p = view_spot(node), up = { p.face, p.rank, SPOT_DIR };

	if (view_kind(v, node) == VIEW_NONE || node == VIEW_ROOT_NODE)
		return VIEW_ROOT_NODE;
	if (p.face == FACE_VIEW) {
		up = (struct spot){ p.index == SPOT_DIR && !p.rank ? FACE_CONTROL : FACE_VIEW, 0,
				    SPOT_DIR };
		return node_of(up);
	}
	if (p.rank && (p.index == SPOT_DIR || p.face == FACE_SAFETENSORS)) {
		up.face = FACE_RANKS;
		up.rank = p.face == FACE_RANKS ? 0 : p.rank;
	} else if (p.index == SPOT_DIR) {
		return VIEW_ROOT_NODE;
	}
	return node_of(up);
}

static uint64_t root_entry(const struct view *v, uint64_t pos, const char *name,
			   char out[static NAME_CAP])
{
	for (unsigned i = 0; i < N_ROOT_FACES; i++) {
		if ((name && strcmp(name, faces[i]->dir) != 0) || !shown(v, i))
			continue;
		if (!name && pos--)
			continue;
		(void)stpcpy(out, faces[i]->dir);
		return node_of((struct spot){ i, 0, SPOT_DIR });
	}
	return 0;
}

uint64_t view_lookup(const struct view *v, uint64_t dir, const char *name)
{
	struct spot p = view_spot(dir), found;
	char ignored[NAME_CAP];

	if (dir == VIEW_ROOT_NODE)
		return root_entry(v, 0, name, ignored);
	if (view_kind(v, dir) != VIEW_DIR || !faces[p.face]->lookup(v, p, name, &found))
		return 0;
	return node_of(found);
}

uint64_t view_entries(const struct view *v, uint64_t dir)
{
	struct spot p = view_spot(dir);
	uint64_t n = 0;
	bool gguf;

	if (dir == VIEW_ROOT_NODE) {
		/* A stat of the root must not cause gguf/ to be prepared. */
		for (unsigned i = 0; i < N_ROOT_FACES; i++)
			n += i == FACE_GGUF ? view_gguf_known(v, &gguf) && gguf : shown(v, i);
		return n;
	}
	return view_kind(v, dir) == VIEW_DIR ? faces[p.face]->entries(v, p) : 0;
}

bool view_is_partial(const struct view *v, uint64_t dir)
{
	bool ignored;

	return dir == VIEW_ROOT_NODE && v->has_model && !view_gguf_known(v, &ignored);
}

/* p must exist and not be the root. */
static void name_of(const struct view *v, struct spot p, char out[static NAME_CAP])
{
	if (p.index == SPOT_DIR && !(p.rank && (p.face == FACE_RANKS || p.face == FACE_VIEW)))
		(void)stpcpy(out, faces[p.face]->dir);
	else
		faces[p.face]->name(v, p, out);
}

uint64_t view_entry(const struct view *v, uint64_t dir, uint64_t pos, char name[static NAME_CAP])
{
	struct spot p = view_spot(dir);

	if (dir == VIEW_ROOT_NODE)
		return root_entry(v, pos, NULL, name);
	if (pos >= view_entries(v, dir))
		return 0;
	if (faces[p.face]->entry)
		p = faces[p.face]->entry(v, p, pos);
	else
		p.index = (uint32_t)pos;
	name_of(v, p, name);
	return node_of(p);
}

bool view_name(const struct view *v, uint64_t node, char out[static NAME_CAP])
{
	if (node == VIEW_ROOT_NODE || view_kind(v, node) == VIEW_NONE)
		return false;
	name_of(v, view_spot(node), out);
	return true;
}

/* ---- files ---- */

int view_describe(const struct view *v, uint64_t node, struct vfile *ret, struct ckpt_err *e)
{
	struct spot p = view_spot(node);
	int rc;

	if (view_kind(v, node) != VIEW_FILE)
		return err_set(e, EISDIR, "not a file");
	rc = faces[p.face]->describe(v, p, ret, e);
	return rc ? rc : vfile_done(ret, e);
}

/* Describing consolidated files takes long, so their sizes are cached in v->sizes. */
static _Atomic uint64_t *remembered(const struct view *v, struct spot p)
{
	if (p.rank || !v->sizes)
		return NULL;
	switch (p.face) {
	case FACE_SAFETENSORS:
		return &v->sizes[0];
	case FACE_PT:
		return &v->sizes[1];
	case FACE_HF:
		return p.index < v->n_shards ? &v->sizes[2 + p.index] : NULL;
	default:
		return NULL;
	}
}

int view_size(const struct view *v, uint64_t node, uint64_t *ret, struct ckpt_err *e)
{
	_Atomic uint64_t *known = remembered(v, view_spot(node));
	struct vfile f = VFILE_INIT;
	size_t i;
	int rc;

	if (known && *known) {
		*ret = *known;
		return 0;
	}
	if (view_page_size(v, view_spot(node), ret))
		return 0;
	if (view_object_json(v, view_spot(node), &i))
		return v->o.object_json_size(v->o.arg, v->objects.v[i].index, ret, e);
	rc = view_describe(v, node, &f, e);
	*ret = f.size;
	vfile_release(&f);
	if (!rc && known)
		*known = *ret;
	return rc;
}

int64_t view_asset(const struct view *v, uint64_t node)
{
	struct spot p = view_spot(node);

	if (view_kind(v, node) != VIEW_FILE)
		return -1;
	return p.face == FACE_HF      ? view_hf_asset(v, p.index)
	       : p.face == FACE_RANKS ? view_ranks_asset(v, p.index)
				      : -1;
}

/* ---- tensors ---- */

/* The model that `of` refers to; NULL: the tree. */
static const struct model *model_of(const struct view *v, uint32_t of)
{
	return of < OF_HF ? NULL : of == OF_HF ? v->hf : &v->model;
}

enum { ID_SHIFT = 32 };

uint64_t view_id(uint32_t of, size_t i)
{
	return (uint64_t)of << ID_SHIFT | i;
}

bool view_rank_box(const struct view *v, uint32_t rank, size_t i, uint64_t *off, uint64_t *len)
{
	return layout_box(v->o.layout, rank - 1, i, off, len);
}

/* The part that a rank holds, for of >= OF_RANKS. */
static bool part_box(const struct view *v, uint32_t of, size_t i, uint64_t *off, uint64_t *len)
{
	return view_rank_box(v, of - OF_RANKS + 1, i, off, len);
}

/* Describes the stored tensor that has this name in the tree, as it is shown. */
static void describe_stored(const struct view *v, uint32_t of, const struct named *name,
			    struct tensor_info *ret)
{
	const struct catalog_tensor *t = &catalog_tensors(v->c, NULL)[name->index];

	ret->stored = t;
	ret->sources = &name->index;
	ret->n_sources = 1;
	ret->dtype = view_dtype(v, t->dtype);
	ret->n_dims = of == OF_LOGICAL ? t->n_logical : t->n_dims;
	ret->shape = of == OF_LOGICAL ? t->logical : t->shape;
	ret->bytes = t->bytes / dtype_info(t->dtype)->size * dtype_info(ret->dtype)->size;
}

static void describe_made(const struct weight *w, struct tensor_info *ret)
{
	ret->made = w->made;
	ret->sources = w->sources;
	ret->n_sources = w->n_sources;
	ret->dtype = w->made->dtype;
	ret->n_dims = w->made->n_dims;
	ret->shape = w->made->shape;
	ret->bytes = w->made->bytes;
}

/* A tensor of the tree or of the model; for a rank's part, the whole tensor. */
static void find_whole(const struct view *v, uint32_t of, size_t i, struct tensor_info *ret)
{
	const struct model *m = model_of(v, of);
	const struct named *name = m ? &m->names.v[i] : &v->tensors.v[i];
	const struct weight *w = m ? &m->weights[name->index] : NULL;

	*ret = (struct tensor_info){ .fqn = name->fqn, .fqn_len = name->len, .id = view_id(of, i) };
	if (w && w->made)
		describe_made(w, ret);
	else
		describe_stored(v, of, w ? &v->tensors.v[w->at] : name, ret);
}

bool view_info(const struct view *v, uint32_t of, size_t i, struct tensor_info *ret,
	       uint64_t *shape)
{
	uint64_t off[CKPT_MAX_DIMS];

	find_whole(v, of, i, ret);
	if (of < OF_RANKS)
		return true;
	if (!part_box(v, of, i, off, shape))
		return false;
	ret->shape = shape;
	/* cannot overflow: at most the whole tensor's */
	(void)box_volume(ret->n_dims, shape, &ret->bytes);
	ret->bytes *= dtype_info(ret->dtype)->size;
	return true;
}

static int slice(const struct tensor_info *t, const uint64_t *off, const uint64_t *step,
		 const uint64_t *count, struct vtensor **ret, struct ckpt_err *e)
{
	autofree struct vtensor *whole = NULL;
	int rc;

	if (t->made)
		return vtensor_steps(t->made, off, step, count, ret, e);
	rc = vtensor_whole(t->stored, t->sources[0], t->dtype, &whole, e);
	return rc ? rc : vtensor_steps(whole, off, step, count, ret, e);
}

int view_box(const struct view *v, uint64_t id, const uint64_t *off, const uint64_t *step,
	     const uint64_t *count, struct vtensor **ret, struct ckpt_err *e)
{
	struct tensor_info t;

	find_whole(v, (uint32_t)(id >> ID_SHIFT), (uint32_t)id, &t);
	return slice(&t, off, step, count, ret, e);
}

bool view_is_gguf(uint64_t id, uint32_t *ret)
{
	*ret = (uint32_t)id;
	return id >> ID_SHIFT == OF_GGUF;
}

int view_vtensor(const struct view *v, uint64_t id, struct vtensor **ret, struct ckpt_err *e)
{
	uint32_t of = (uint32_t)(id >> ID_SHIFT);
	uint64_t off[CKPT_MAX_DIMS], len[CKPT_MAX_DIMS];
	struct tensor_info t;

	if (of == OF_GGUF)
		return view_gguf_vtensor(v, (uint32_t)id, ret, e);
	find_whole(v, of, (uint32_t)id, &t);
	if (of >= OF_RANKS) {
		/* cannot fail: the rank's part was shown */
		(void)part_box(v, of, (uint32_t)id, off, len);
		return slice(&t, off, NULL, len, ret, e);
	}
	if (t.made)
		return vtensor_copy(t.made, ret, e);
	return of == OF_LOGICAL ? vtensor_logical(t.stored, t.sources[0], t.dtype, ret, e)
				: vtensor_whole(t.stored, t.sources[0], t.dtype, ret, e);
}

size_t view_tensors(const struct view *v)
{
	return v->tensors.n;
}

void view_single_tensor(const struct view *v, uint64_t id, struct tensor_info *ret)
{
	uint64_t shape[CKPT_MAX_DIMS];

	(void)view_info(v, (uint32_t)(id >> ID_SHIFT), (uint32_t)id, ret, shape);
	if (ret->shape == shape)
		ret->shape = NULL;
}

void view_tensor(const struct view *v, size_t i, struct tensor_info *ret)
{
	find_whole(v, OF_TREE, i, ret);
}

size_t view_model(const struct view *v)
{
	return v->hf->names.n;
}

void view_model_tensor(const struct view *v, size_t i, struct tensor_info *ret)
{
	find_whole(v, OF_HF, i, ret);
}

size_t view_objects(const struct view *v)
{
	return v->objects.n;
}

size_t view_object(const struct view *v, size_t i, const char **ret_fqn, size_t *ret_len)
{
	*ret_fqn = v->objects.v[i].fqn;
	*ret_len = v->objects.v[i].len;
	return v->objects.v[i].index;
}

int64_t view_find_tensor(const struct view *v, const char *fqn, size_t len)
{
	return namelist_find(&v->tensors, fqn, len);
}

int64_t view_find_model_tensor(const struct view *v, const char *name, size_t len)
{
	return namelist_find(&v->hf->names, name, len);
}

int64_t view_rank_tensor(const struct view *v, size_t i)
{
	const struct named *name = &v->hf->names.v[i];

	return v->hf == &v->model ? (int64_t)i
				  : namelist_find(&v->model.names, name->fqn, name->len);
}

int64_t view_find_object(const struct view *v, const char *fqn, size_t len)
{
	return namelist_find(&v->objects, fqn, len);
}

uint64_t view_tensor_node(size_t i)
{
	return node_of((struct spot){ FACE_TENSORS, 0, (uint32_t)i });
}

uint64_t view_object_node(size_t i)
{
	return node_of((struct spot){ FACE_OBJECTS, 0, (uint32_t)i });
}

bool view_single(const struct view *v, uint64_t node, bool *ret_object, uint64_t *ret_id)
{
	struct spot p = view_spot(node);
	size_t i = p.index;

	if (view_kind(v, node) != VIEW_FILE)
		return false;
	*ret_object = p.face == FACE_OBJECTS;
	(void)view_object_json(v, p, &i);
	*ret_id = view_id(of_rank(p.rank), i);
	if (p.face == FACE_LOGICAL)
		*ret_id = view_logical_id(v, p.index);
	return p.face == FACE_TENSORS || p.face == FACE_NPY || p.face == FACE_OBJECTS ||
	       p.face == FACE_LOGICAL;
}

/* ---- consolidated files ---- */

void members_release(struct members *m)
{
	free(m->v);
	free(m->shapes);
	*m = (struct members){ 0 };
}

/* Why one of the stored tensors it is made of cannot be read, or NULL. */
static const char *fault_of(const struct view *v, const struct tensor_info *t)
{
	const char *fault = NULL;

	for (size_t k = 0; v->o.fault && !fault && k < t->n_sources; k++)
		fault = v->o.fault(v->o.arg, false, t->sources[k]);
	return fault;
}

typedef int check_fn(const struct tensor_info *t, struct ckpt_err *e);

static bool left_out(const struct view *v, const struct tensor_info *t, check_fn *check,
		     struct ckpt_err *why)
{
	const char *fault = fault_of(v, t);

	return fault ? err_set(why, EIO, "%s", fault) : check(t, why);
}

bool view_left_out(const struct view *v, size_t i, struct ckpt_err *why)
{
	struct tensor_info t;

	view_model_tensor(v, i, &t);
	return left_out(v, &t, st_check, why);
}

void view_about(const struct view *v, struct view_about *ret)
{
	struct ckpt_err why;

	*ret = (struct view_about){ .has_model = v->has_model,
				    .prefix = "",
				    .model_tensors = v->hf->names.n,
				    .shards = v->n_shards,
				    .ranks = v->o.layout ? layout_ranks(v->o.layout) : 0 };
	for (size_t i = 0; i < v->model.n_weights && v->prefix; i++)
		if (!v->model.weights[i].made) { /* the same prefix for each stored one */
			ret->prefix = v->tensors.v[v->model.weights[i].at].fqn;
			ret->prefix_len = v->prefix;
			break;
		}
	for (size_t i = 0; i < v->hf->names.n; i++) {
		struct tensor_info t;

		view_model_tensor(v, i, &t);
		ret->model_bytes += t.bytes;
		ret->left_out += left_out(v, &t, st_check, &why);
	}
}

void view_left(const struct view *v, enum view_file file, struct view_left *ret)
{
	uint32_t of = file == VIEW_HF			    ? OF_HF
		      : file == VIEW_PT || view_of_model(v) ? OF_MODEL
							    : OF_TREE;
	const struct model *m = model_of(v, of);
	struct tensor_info t;
	struct ckpt_err why;

	*ret = (struct view_left){ .tensors = m ? m->names.n : v->tensors.n };
	for (size_t i = 0; i < ret->tensors; i++) {
		find_whole(v, of, i, &t);
		if (!left_out(v, &t, file == VIEW_PT ? pt_check : st_check, &why))
			continue;
		if (!ret->left_out++) {
			ret->first = t;
			ret->why = why;
		}
	}
}

/* Total number of dimensions in the shapes of a rank's shards. */
static size_t shape_numbers(const struct view *v)
{
	struct tensor_info t;
	size_t n = 0;

	for (size_t i = 0; i < v->model.names.n; i++) {
		find_whole(v, OF_MODEL, i, &t);
		n += t.n_dims;
	}
	return n;
}

int view_members(const struct view *v, uint32_t of,
		 int (*check)(const struct tensor_info *t, struct ckpt_err *e),
		 const struct positions *only, struct members *ret, struct ckpt_err *e)
{
	const struct model *model = model_of(v, of);
	size_t n = only ? only->n : model ? model->names.n : v->tensors.n;
	uint64_t *shape;

	*ret = (struct members){ .v = calloc(n + 1, sizeof(struct tensor_info)) };
	ret->shapes = shape =
		calloc(of >= OF_RANKS ? shape_numbers(v) + CKPT_MAX_DIMS : 1, sizeof(*shape));
	if (!ret->v || !shape) {
		members_release(ret);
		return err_nomem(e);
	}
	for (size_t k = 0; k < n; k++) {
		size_t i = only ? only->v[k] : k;
		struct tensor_info *t = &ret->v[ret->n];
		struct ckpt_err why;

		if (!view_info(v, of, i, t, shape) || fault_of(v, t) || check(t, &why))
			continue;
		if (of >= OF_RANKS)
			shape += t->n_dims;
		ret->n++;
	}
	return 0;
}
