/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reports the saved value as tensors and objects. A tensor's FQN is the path of keys to it, with
 * list positions as numbers: {"model": {"w": t}, "l": [t]} has model.w and l.0. Instances of any
 * class that contain a tensor are searched too: their attributes, items and arguments.
 *
 * A value that contains no tensor is one object, however large; at the root, each key is one.
 */
#include "format/torch/torchsave.h"

#include "base/buf.h"
#include "base/err.h"
#include "base/text.h"
#include "format/raw_chunks.h"
#include "format/st_index.h"
#include "format/torch_tensor.h"
#include "index/catalog_build.h"
#include "index/catalog_path.h"
#include "parse/pickle_json.h"

#include <string.h>

enum {
	MAX_DEPTH = 100,
	MAX_PATH = 1 << 20,
	/* Limit on values visited: this many, and more per byte of the pickle; containers may be
	 * shared. */
	SOME_VISITS = 1 << 22,
	VISITS_PER_BYTE = 64,
};

struct walk {
	struct torchsave *t;
	const char *name;
	const struct st_index *expected;
	struct catalog_writer *w;
	uint32_t source;
	struct {
		uint32_t end; /* bytes of the path up to this step */
		bool is_position;
	} steps[MAX_DEPTH + 1];
	size_t n_steps;
	uint8_t cuts[(MAX_DEPTH + 1) * CATALOG_PATH_NUMBER]; /* the same, for the catalog */
	struct buf path, text;
};

/* ---- kinds of values ---- */

/* Is it a value that torch rebuilds, any kind of tensor? */
static bool is_tensor(const struct pk_value *v)
{
	const struct pk_value *fn = v->type == PK_OBJECT ? &v->n->own[PK_CALLEE] : NULL;

	return fn && fn->type == PK_GLOBAL && !strncmp(fn->g->module->data, "torch", 5) &&
	       !strncmp(fn->g->name->data, "_rebuild_", 9);
}

static bool is_storage(const struct pk_value *v)
{
	const struct pk_value *id = v->type == PK_PERSID ? &v->n->own[0] : NULL;

	return id && id->type == PK_TUPLE && pk_len(id) && pk_is_text(&id->n->own[0], "storage");
}

static int too_often(struct ckpt_err *e)
{
	return err_set(e, ERR_UNSUPPORTED,
		       "what was saved refers to itself, or repeats itself "
		       "without end");
}

/* Calls `each` for the values that v is made of. A non-zero return stops and is returned. */
typedef int part_fn(void *arg, const struct pk_value *key, size_t number,
		    const struct pk_value *value, struct ckpt_err *e);

static int each_of(const struct pk_value *v, part_fn *each, void *arg, struct ckpt_err *e);

static int each_of_object(const struct pk_value *f, part_fn *each, void *arg, struct ckpt_err *e)
{
	const struct pk_value *args = &f[PK_ARGS], *state = &f[PK_STATE];
	int rc = 0;

	if (!pk_is(&f[PK_CALLEE], "collections", "defaultdict")) /* the class of the default */
		rc = each_of(args, each, arg, e);
	/* (attributes, slots) of classes that have __slots__ */
	if (!rc && state->type == PK_TUPLE && pk_len(state) == 2 &&
	    state->n->own[1].type == PK_DICT) {
		rc = each_of(&state->n->own[0], each, arg, e);
		state = &state->n->own[1];
	}
	if (!rc)
		rc = each_of(state, each, arg, e);
	return rc ? rc : each_of(&f[PK_ITEMS], each, arg, e);
}

static int each_of(const struct pk_value *v, part_fn *each, void *arg, struct ckpt_err *e)
{
	int rc = 0;

	switch (v->type) {
	case PK_DICT:
		for (size_t i = 0; !rc && i < pk_len(v); i++)
			rc = each(arg, &v->n->v[2 * i], 0, &v->n->v[2 * i + 1], e);
		return rc;
	case PK_LIST:
	case PK_TUPLE:
		for (size_t i = 0; !rc && i < pk_len(v); i++)
			rc = each(arg, NULL, i, &v->n->v[i], e);
		return rc;
	case PK_OBJECT:
		return each_of_object(v->n->own, each, arg, e);
	default:
		return 0;
	}
}

struct search {
	struct walk *w;
	unsigned depth;
};

/* 1: it contains a tensor, or an unreadable one. */
static int find_tensor(void *arg, const struct pk_value *key, size_t number,
		       const struct pk_value *v, struct ckpt_err *e)
{
	struct search *s = arg;
	int rc;

	(void)key;
	(void)number;
	if (is_tensor(v) || is_storage(v))
		return 1;
	if (!s->w->t->visits--)
		return too_often(e);
	if (s->depth == MAX_DEPTH) /* an object, for which pickle_json reports the depth */
		return 0;
	s->depth++;
	rc = each_of(v, find_tensor, s, e);
	s->depth--;
	return rc;
}

static int has_tensor(struct walk *w, const struct pk_value *v, struct ckpt_err *e)
{
	struct search s = { .w = w };

	return find_tensor(&s, NULL, 0, v, e);
}

/* ---- reporting ---- */

static const uint8_t *path_of(struct walk *w)
{
	uint32_t from = 0;
	size_t at;

	if (!w->n_steps) /* the value is not a state dict */
		return catalog_path_unknown;
	at = catalog_path_put_head(w->cuts, w->n_steps, w->steps[w->n_steps - 1].is_position);
	for (size_t i = 0; i + 1 < w->n_steps; i++) {
		at += catalog_path_put_step(w->cuts + at, w->steps[i].end - from,
					    w->steps[i].is_position);
		from = w->steps[i].end + 1;
	}
	return w->cuts;
}

static int add_object(struct walk *w, const char *text, size_t len, const char *fault,
		      struct ckpt_err *e)
{
	const struct object_item o = { .fqn = w->path.data,
				       .fqn_len = w->path.len,
				       .path = path_of(w),
				       .loc = { .file = CATALOG_NO_FILE },
				       .text = text,
				       .text_len = len,
				       .fault = fault };

	return catalog_add_object(w->w, &o, e);
}

static int report_object(struct walk *w, const struct pk_value *v, struct ckpt_err *e)
{
	struct ckpt_err why;
	int rc;

	w->text.len = 0;
	w->text.err = 0;
	rc = pickle_json(v, &w->text, &why);
	if (rc == -ENOMEM) {
		*e = why;
		return rc;
	}
	if (rc)
		return add_object(w, NULL, 0, why.msg, e);
	buf_str(&w->text, "\n");
	if (w->text.err)
		return err_set(e, w->text.err, "out of memory");
	rc = add_object(w, w->text.data, w->text.len, NULL, &why);
	if (rc == -EFBIG) /* it is too large: list it without its text */
		return add_object(w, NULL, 0, why.msg, e);
	if (rc)
		*e = why;
	return rc;
}

/* A tensor that exists but cannot be shown. */
static int report_fault(struct walk *w, const struct pk_value *v, struct ckpt_err *why,
			struct ckpt_err *e)
{
	const struct pk_value *args = &v->n->own[PK_ARGS];

	/* _rebuild_from_type_v2(function, class, arguments, state): users know the class. */
	if (pk_is(&v->n->own[PK_CALLEE], NULL, "_rebuild_from_type_v2") && pk_len(args) > 1 &&
	    args->n->own[1].type == PK_GLOBAL)
		(void)err_set(why, ERR_UNSUPPORTED, "a %.100s is not a dense tensor",
			      args->n->own[1].g->name->data);
	return add_object(w, NULL, 0, why->msg, e);
}

static int locate(struct walk *w, const struct torch_tensor *t, struct chunk_loc *ret,
		  struct ckpt_err *e)
{
	struct raw_layout l;
	uint64_t at, end;
	int rc = torch_tensor_reach(t, &end, e);

	if (!rc)
		rc = torchsave_find(w->t, t, &at, e);
	if (rc)
		return rc;
	torch_tensor_layout(t, w->t->big_endian, &l);
	*ret = (struct chunk_loc){ .file = w->source };
	rc = raw_item(&l, t->dtype, t->n_dims, t->size, w->w, ret, e);
	/* Inside the storage, as torch_tensor_reach has checked. */
	ret->offset = ret->length ? at + t->offset * dtype_info(t->dtype)->size : at;
	return rc;
}

static int report_tensor(struct walk *w, const struct pk_value *v, struct ckpt_err *e)
{
	uint64_t box[2 * CKPT_MAX_DIMS] = { 0 };
	struct torch_tensor t = { 0 };
	struct chunk_loc loc;
	struct tensor_chunks chunks = { .fqn = w->path.data,
					.fqn_len = w->path.len,
					.path = path_of(w),
					.shape = t.size,
					.count = 1,
					.boxes = box,
					.locs = &loc };
	struct ckpt_err why;
	int rc = torch_tensor_read(v, &t, &why);

	if (!rc && t.dtype >= CKPT_DTYPE_QI8 && t.dtype <= CKPT_DTYPE_QU2X4)
		rc = err_set(&why, ERR_UNSUPPORTED,
			     "a quantised tensor: its elements mean nothing without its scales");
	if (rc == -ERR_UNSUPPORTED)
		return report_fault(w, v, &why, e);
	if (rc) {
		*e = why;
		return rc;
	}
	rc = locate(w, &t, &loc, e);
	if (rc)
		return rc;
	if (t.n_dims)
		memcpy(box + t.n_dims, t.size, t.n_dims * sizeof(*box));
	chunks.dtype = t.dtype;
	chunks.n_dims = t.n_dims;
	if (w->expected) {
		struct st_index_entry *x = strlen(w->path.data) == w->path.len
						   ? st_index_find(w->expected, w->path.data)
						   : NULL;

		if (x && !strcmp(x->file, w->name))
			x->found = true;
	}
	return catalog_add_tensor(w->w, &chunks, e);
}

/* ---- walking ---- */

struct step {
	struct walk *w;
	unsigned depth;
};

static int report(struct walk *w, const struct pk_value *v, unsigned depth, struct ckpt_err *e);

static int report_part(void *arg, const struct pk_value *key, size_t number,
		       const struct pk_value *v, struct ckpt_err *e)
{
	const struct step *s = arg;
	struct walk *w = s->w;
	size_t len = w->path.len;
	int rc = 0;

	buf_str(&w->path, s->depth ? "." : "");
	if (key)
		rc = pickle_key(key, &w->path, e);
	else
		buf_u64(&w->path, number);
	if (!rc && w->path.err)
		rc = err_set(e, w->path.err, "a name of more than %d bytes", MAX_PATH);
	if (rc)
		return rc;
	w->steps[w->n_steps].end = (uint32_t)w->path.len;
	w->steps[w->n_steps++].is_position = !key;
	rc = report(w, v, s->depth + 1, e);
	w->path.len = len;
	w->path.data[len] = 0;
	w->n_steps--;
	return rc;
}

/* Does each part get a name of its own even if it contains no tensor? */
static bool is_root_container(const struct pk_value *v, unsigned depth)
{
	return !depth && (v->type == PK_DICT || v->type == PK_LIST || v->type == PK_TUPLE);
}

static int report(struct walk *w, const struct pk_value *v, unsigned depth, struct ckpt_err *e)
{
	struct step s = { w, depth };
	char fqn[120];
	int rc;

	if (is_root_container(v, depth))
		return each_of(v, report_part, &s, e);
	rc = has_tensor(w, v, e);
	if (rc < 0)
		return rc;
	if (rc && !is_tensor(v) && !is_storage(v))
		return depth < MAX_DEPTH ? each_of(v, report_part, &s, e) : too_often(e);
	if (!w->t->entries--)
		return too_often(e);
	if (is_tensor(v))
		rc = report_tensor(w, v, e);
	else if (is_storage(v))
		rc = add_object(w, NULL, 0, "a storage that is not a tensor's", e);
	else
		rc = report_object(w, v, e);
	return rc ? err_wrap(e, "'%s'", text_show(w->path.data, w->path.len, fqn, sizeof(fqn))) : 0;
}

/* v is the value at `steps`, or the outermost value if there are none. */
static int report_from(struct torchsave *t, const char *name, const struct st_index *expected,
		       const struct pk_value *v, const char *const steps[],
		       struct catalog_writer *w, struct ckpt_err *e)
{
	struct walk walk = { .t = t,
			     .name = name,
			     .expected = expected,
			     .w = w,
			     .path = BUF_INIT(MAX_PATH),
			     .text = BUF_INIT(CATALOG_MAX_TEXT + 1) };
	int rc = catalog_add_source(w, name, strlen(name), &walk.source, e);

	if (!t->walked) { /* the budget is shared by all walks */
		t->walked = true;
		t->visits = SOME_VISITS + VISITS_PER_BYTE * pickle_end(t->pickle);
		t->entries = pickle_end(t->pickle);
	}
	buf_str(&walk.path, "");
	for (size_t i = 0; steps && steps[i]; i++) {
		buf_str(&walk.path, i ? "." : "");
		buf_str(&walk.path, steps[i]);
		walk.steps[walk.n_steps++].end = (uint32_t)walk.path.len;
	}
	if (!rc && walk.path.err)
		rc = err_set(e, walk.path.err, "a name of more than %d bytes", MAX_PATH);
	if (!rc)
		rc = report(&walk, v, (unsigned)walk.n_steps, e);
	buf_release(&walk.path);
	buf_release(&walk.text);
	return rc;
}

int torchsave_report(struct torchsave *t, const char *name, const struct st_index *expected,
		     struct catalog_writer *w, struct ckpt_err *e)
{
	const struct pk_value root = pickle_root(t->pickle);

	return report_from(t, name, expected, &root, NULL, w, e);
}

int torchsave_report_at(struct torchsave *t, const char *name, const struct pk_value *v,
			const char *const steps[], struct catalog_writer *w, struct ckpt_err *e)
{
	return report_from(t, name, NULL, v, steps, w, e);
}
