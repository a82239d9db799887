/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reports the saved value as tensors and objects. A tensor's FQN is the path of keys to it, with
 * list positions as numbers: {"model": {"w": t}, "l": [t]} has model.w and l.0. Instances of any
 * class that contain a tensor are searched too: their attributes, items and arguments. A
 * torch.nn.Module has what its state_dict() would have, under the same names: "0.weight"; one of
 * TorchScript all its tensors.
 *
 * A value that contains no tensor is one object, however large; at the root, each key is one.
 *
 * {"a.b": t, "a": {"b": t}} has two values of one name: the second one's is a.b@2.
 *
 * A value that several others refer to has a name in each of them, as long as the budget lasts.
 * Then it is listed as a fault, as is one that nests too deeply; nothing is left out without a
 * word, except what leads back to a value that is being listed.
 */
#include "base/checked.h"
#include "base/err.h"
#include "base/text.h"
#include "base/vec.h"
#include "format/raw_chunks.h"
#include "format/torch/torchsave_walk.h"
#include "format/torch_tensor.h"
#include "index/catalog_build.h"
#include "parse/pickle_json.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { MAX_PATH = 1 << 20 };

/* ---- names ---- */

static const uint8_t *path_of(struct walk *w)
{
	uint32_t from = 0;
	size_t at;

	if (!w->n_steps || w->off_path) /* the value is not in a state dict */
		return catalog_path_unknown;
	at = catalog_path_put_head(w->cuts, w->n_steps, w->steps[w->n_steps - 1].is_position);
	for (size_t i = 0; i + 1 < w->n_steps; i++) {
		at += catalog_path_put_step(w->cuts + at, w->steps[i].end - from,
					    w->steps[i].is_position);
		from = w->steps[i].end + 1;
	}
	return w->cuts;
}

static int check_path(struct walk *w, struct ckpt_err *e)
{
	return buf_check(&w->path, e, "a name of more than %d bytes", MAX_PATH);
}

/* What to go back to. */
struct place_in_walk {
	size_t len, n_steps;
	uint32_t end;
	bool off_path;
};

static void go_back(struct walk *w, const struct place_in_walk *m)
{
	w->path.len = m->len;
	w->path.data[m->len] = 0;
	w->n_steps = m->n_steps;
	if (m->n_steps)
		w->steps[m->n_steps - 1].end = m->end;
	w->off_path = m->off_path;
}

/*
 * Makes the last step of the name longer. What was a position in a list no longer is one, and a
 * list cannot have other keys: such a value is outside the state dict.
 */
static int go_beside(struct walk *w, const char *joint, const char *word, size_t len,
		     struct place_in_walk *ret, struct ckpt_err *e)
{
	*ret = (struct place_in_walk){ w->path.len, w->n_steps, 0, w->off_path };
	if (!w->n_steps) {
		w->steps[w->n_steps++].is_position = false;
		joint = w->path.len ? joint : "";
	} else {
		ret->end = w->steps[w->n_steps - 1].end;
		w->off_path |= w->steps[w->n_steps - 1].is_position;
	}
	buf_str(&w->path, joint);
	buf_add(&w->path, word, len);
	w->steps[w->n_steps - 1].end = (uint32_t)w->path.len;
	return check_path(w, e);
}

enum { A_TENSOR, AN_OBJECT };

/* How many values of this name and kind have been reported. */
static int count_of(struct walk *w, int kind, uint32_t **ret, struct ckpt_err *e)
{
	const struct pk_str *s = pk_intern(w->t->strings, w->path.data, w->path.len);

	if (!s)
		return err_set(e, errno, "all names take too much memory");
	if (s->id >= w->t->named_cap) {
		size_t old = w->t->named_cap;

		if (!VEC_ROOM(w->t->named, w->t->named_cap, s->id + (size_t)1))
			return err_nomem(e);
		memset(w->t->named + old, 0, (w->t->named_cap - old) * sizeof(*w->t->named));
	}
	*ret = &w->t->named[s->id][kind];
	return 0;
}

/* Does the checkpoint have something else of that name? */
static bool is_taken(const struct walk *w)
{
	const struct torchsave_wrapped *how = w->wrapped;

	return how && how->taken && w->path.len > how->fqn_len &&
	       how->taken(how->taken_arg, w->path.data, w->path.len);
}

/* Gives the value another name if this one is in use: "w@2". */
static int claim_name(struct walk *w, int kind, struct place_in_walk *ret, struct ckpt_err *e)
{
	const struct pk_str *first;
	uint32_t *count, n;
	int rc = count_of(w, kind, &count, e);

	*ret = (struct place_in_walk){ w->path.len, w->n_steps, 0, w->off_path };
	if (w->n_steps)
		ret->end = w->steps[w->n_steps - 1].end;
	if (rc || (!(*count)++ && !is_taken(w)))
		return rc;
	first = pk_intern(w->t->strings, w->path.data, w->path.len);
	for (n = *count > 1 ? *count : 2;; n++) {
		struct place_in_walk from;
		char number[12];

		(void)snprintf(number, sizeof(number), "%u", n);
		rc = go_beside(w, "@", number, strlen(number), &from, e);
		if (!rc)
			rc = count_of(w, kind, &count, e);
		if (rc)
			return rc;
		if (!(*count)++ && !is_taken(w))
			break;
		go_back(w, &from);
	}
	w->t->named[first->id][kind] = n; /* so that none of these is tried again */
	return 0;
}

/* ---- reporting ---- */

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

/* Reports a text under the present name or, if it is NULL, the fault that it has instead. */
static int report_text(struct walk *w, const char *text, size_t len, const char *fault,
		       struct ckpt_err *e)
{
	struct place_in_walk from;
	struct ckpt_err why;
	int rc = w->wrapped && w->wrapped->only_parts ? 1 : claim_name(w, AN_OBJECT, &from, e);

	if (rc > 0)
		return 0;
	if (rc)
		return rc;
	rc = add_object(w, text, len, fault, &why);
	if (rc == -EFBIG) /* it is too large: list it without its text */
		rc = add_object(w, NULL, 0, why.msg, e);
	else if (rc)
		*e = why;
	go_back(w, &from);
	return rc;
}

int walk_own_text(struct walk *w, struct ckpt_err *e)
{
	buf_str(&w->text, "\n");
	if (w->text.err)
		return err_set(e, w->text.err, "out of memory");
	return report_text(w, w->text.data, w->text.len, NULL, e);
}

int walk_json(struct walk *w, const struct pk_value *v, struct ckpt_err *e)
{
	enum { PER_VALUE = 16 }; /* A value counts as so many bytes: containers may be shared. */
	const uint64_t most = CATALOG_MAX_TEXT / PER_VALUE + 64 * pickle_end(w->t->pickle);
	size_t len = w->text.len;
	uint64_t left = most;
	int rc;

	if (!w->t->text)
		return err_set(e, EFBIG, "the objects' texts are more than 64 MiB");
	rc = pickle_json_within(v, &left, &w->text, e);
	w->t->text -= min_u64(w->t->text, max_u64(w->text.len - len, PER_VALUE * (most - left)));
	if (!rc && pickle_json_lacks(w->text.data + len, w->text.len - len))
		return err_set(e, EFBIG, "a part of it has no text, or is longer than 64 MiB");
	return rc;
}

static int report_object(struct walk *w, const struct pk_value *v, struct ckpt_err *e)
{
	struct ckpt_err why;
	int rc;

	w->text.len = 0;
	w->text.err = 0;
	rc = walk_json(w, v, &why);
	if (rc == -ENOMEM) {
		*e = why;
		return rc;
	}
	return rc ? report_text(w, NULL, 0, why.msg, e) : walk_own_text(w, e);
}

/* A value that is not listed, or not with all its parts. */
static int report_unlisted(struct walk *w, const struct ckpt_err *why, struct ckpt_err *e)
{
	if (!w->wrapped || !w->wrapped->only_parts)
		return report_text(w, NULL, 0, why->msg, e);
	*e = *why;
	return -why->code;
}

static int report_too_deep(struct walk *w, struct ckpt_err *e)
{
	struct ckpt_err why;

	(void)err_set(&why, EFBIG, "it nests deeper than %d levels", WALK_MAX_DEPTH);
	return report_unlisted(w, &why, e);
}

/* A tensor that exists but cannot be shown. */
static int report_fault(struct walk *w, const struct torch_call *c, struct ckpt_err *why,
			struct ckpt_err *e)
{
	/* Users know the class. */
	if (c->class && c->class->type == PK_GLOBAL)
		(void)err_set(why, ERR_UNSUPPORTED, "a %.100s is not a dense tensor",
			      c->class->g->name->data);
	return report_text(w, NULL, 0, why->msg, e);
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
	ret->offset = w->base + (ret->length ? at + t->offset * dtype_info(t->dtype)->size : at);
	return rc;
}

/* For a tensor in a wrapper: passes it to the caller's `part`, which may change or drop it. */
static int look_at_part(struct walk *w, struct tensor_chunks *c, struct ckpt_err *e)
{
	const struct torchsave_wrapped *how = w->wrapped;
	size_t from = how ? how->fqn_len + 1 : 0;

	return how && how->part && w->path.len >= from
		       ? how->part(how->part_arg, w->path.data + from, w->path.len - from, c, e)
		       : 0;
}

int walk_dense(struct walk *w, const struct torch_tensor *t, struct ckpt_err *e)
{
	uint64_t box[2 * CKPT_MAX_DIMS] = { 0 };
	struct chunk_loc loc;
	struct tensor_chunks chunks = { .dtype = t->dtype,
					.n_dims = t->n_dims,
					.shape = t->size,
					.count = 1,
					.boxes = box,
					.locs = &loc };
	struct place_in_walk from;
	int rc = locate(w, t, &loc, e);

	if (rc)
		return rc;
	if (t->n_dims)
		memcpy(box + t->n_dims, t->size, t->n_dims * sizeof(*box));
	rc = look_at_part(w, &chunks, e);
	if (rc)
		return rc < 0 ? rc : 0;
	rc = claim_name(w, A_TENSOR, &from, e);
	if (rc)
		return rc;
	chunks.fqn = w->path.data;
	chunks.fqn_len = w->path.len;
	chunks.path = path_of(w);
	rc = catalog_add_tensor(w->w, &chunks, e);
	go_back(w, &from);
	return rc;
}

/* Is it this file's value that counts? Notes whether the index is right about it. */
static bool is_expected_here(struct walk *w, bool is_tensor)
{
	struct torchsave_expected *x = w->expected;
	struct st_index_entry *i = x && strlen(w->path.data) == w->path.len
					   ? st_index_find(x->index, w->path.data)
					   : NULL;

	if (!x || w->within > 0)
		return true;
	if (!i) {
		if (is_tensor && !x->again)
			st_index_note(&x->unnamed, w->path.data, w->path.len, w->name);
		return !x->again;
	}
	if (!strcmp(i->file, w->name)) {
		i->found = true;
		return !x->again;
	}
	if (x->again) {
		if (i->found || i->in_several || !i->instead || strcmp(i->instead, w->name) != 0)
			return false;
		st_index_note(&x->elsewhere, w->path.data, w->path.len, w->name);
		return i->found = true;
	}
	i->in_several |= i->instead && strcmp(i->instead, w->name) != 0;
	i->instead = w->name;
	return false;
}

static int report_tensor(struct walk *w, const struct pk_value *v, unsigned depth,
			 struct ckpt_err *e)
{
	struct torch_call c;
	struct ckpt_err why;
	int rc;

	if (depth >= WALK_MAX_DEPTH)
		return report_too_deep(w, e);
	(void)torch_call_of(v, &c); /* or an id in a tar file */
	w->within++;
	rc = kinds_report(w, &c, depth, &why);
	w->within--;
	if (rc > 0)
		return report_fault(w, &c, &why, e);
	if (rc)
		*e = why;
	return rc;
}

/* Reports a value under the present name. */
static int report_value(struct walk *w, const struct pk_value *v, unsigned depth,
			struct ckpt_err *e);

int walk_beside(struct walk *w, const char *word, size_t len, const struct pk_value *v,
		unsigned depth, struct ckpt_err *e)
{
	struct place_in_walk from;
	int rc = go_beside(w, ".", word, len, &from, e);

	if (!rc)
		rc = report_value(w, v, depth + 1, e);
	go_back(w, &from);
	return rc;
}

int walk_dense_beside(struct walk *w, uint64_t number, const struct torch_tensor *t,
		      struct ckpt_err *e)
{
	enum { VISITS = 16 }; /* several tensors may be divided by the same numbers */
	struct place_in_walk from;
	char word[24];
	int rc = walk_charge(w->t, VISITS, e);

	if (rc)
		return rc;
	(void)snprintf(word, sizeof(word), "%llu", (unsigned long long)number);
	rc = go_beside(w, ".", word, strlen(word), &from, e);
	if (!rc)
		rc = walk_dense(w, t, e);
	go_back(w, &from);
	return rc;
}

/* ---- walking ---- */

struct step {
	struct walk *w;
	unsigned depth;
	bool in_module;
};

static int report_part(void *arg, const struct pk_value *key, size_t number,
		       const struct pk_value *v, struct ckpt_err *e)
{
	const struct step *s = arg;
	struct walk *w = s->w;
	size_t len = w->path.len;
	int rc = s->in_module ? walk_has_tensor(w, v, e) : 1;

	if (rc <= 0) /* a ReLU, for example, is not in a state dict */
		return rc;
	buf_str(&w->path, s->depth ? "." : "");
	rc = 0;
	if (key)
		rc = pickle_key(key, &w->path, e);
	else
		buf_u64(&w->path, number);
	if (!rc)
		rc = check_path(w, e);
	if (rc)
		return rc;
	w->steps[w->n_steps].end = (uint32_t)w->path.len;
	w->steps[w->n_steps++].is_position = !key;
	rc = report_value(w, v, s->depth + 1, e);
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

static int report_entered(struct walk *w, const struct pk_value *v, unsigned depth,
			  struct ckpt_err *e)
{
	struct step s = { w, depth, false };
	int rc;

	if (is_root_container(v, depth))
		return walk_parts(w->t, v, report_part, &s, e);
	rc = walk_has_tensor(w, v, e);
	if (rc < 0)
		return rc;
	if (rc && !walk_is_tensor(w, v) && !walk_is_storage(w, v)) {
		s.in_module = walk_is_module(v);
		return depth < WALK_MAX_DEPTH ? walk_parts(w->t, v, report_part, &s, e)
					      : report_too_deep(w, e);
	}
	rc = w->again ? walk_charge_again(w->t, e) : 0;
	if (rc)
		return rc;
	if (!is_expected_here(w, walk_is_tensor(w, v)))
		return 0;
	if (walk_is_tensor(w, v))
		return report_tensor(w, v, depth, e);
	if (walk_is_storage(w, v))
		return report_text(w, NULL, 0, "a storage that is not a tensor's", e);
	return report_object(w, v, e);
}

static int report_value(struct walk *w, const struct pk_value *v, unsigned depth,
			struct ckpt_err *e)
{
	struct walk_visit visit;
	struct ckpt_err why;
	char fqn[120];
	int rc = walk_enter(w, v, &visit, e);

	if (rc)
		return rc > 0 ? 0 : rc;
	w->again += visit.again;
	rc = report_entered(w, v, depth, &why);
	w->again -= visit.again;
	walk_leave(w, &visit);
	/* Of a value that is listed again, none of the parts becomes a fault, but the whole. */
	if (rc == -WALK_TOO_OFTEN && !w->again)
		return report_unlisted(w, &why, e);
	if (!rc)
		return 0;
	*e = why;
	if (rc == -WALK_TOO_OFTEN || w->error_named || is_root_container(v, depth))
		return rc;
	w->error_named = true;
	return err_wrap(e, "'%s'", text_show(w->path.data, w->path.len, fqn, sizeof(fqn)));
}

static int begin_walk(struct walk *walk, struct torchsave *t, const char *name,
		      struct catalog_writer *w, struct ckpt_err *e)
{
	*walk = (struct walk){ .t = t,
			       .name = name,
			       .w = w,
			       .path = BUF_INIT(MAX_PATH),
			       .text = BUF_INIT(CATALOG_MAX_TEXT + 1) };
	walk_budget(t);
	buf_str(&walk->path, "");
	return catalog_add_source(w, name, strlen(name), &walk->source, e);
}

static void end_walk(struct walk *walk)
{
	buf_release(&walk->path);
	buf_release(&walk->text);
}

/* v is the value at `steps`, or the outermost value if there are none. */
static int report_from(struct torchsave *t, const char *name, struct torchsave_expected *expected,
		       const struct pk_value *v, const char *const steps[],
		       struct catalog_writer *w, struct ckpt_err *e)
{
	struct walk walk;
	int rc = begin_walk(&walk, t, name, w, e);

	walk.expected = expected;
	for (size_t i = 0; steps && steps[i]; i++) {
		buf_str(&walk.path, i ? "." : "");
		buf_str(&walk.path, steps[i]);
		walk.steps[walk.n_steps++].end = (uint32_t)walk.path.len;
	}
	if (!rc)
		rc = check_path(&walk, e);
	if (!rc)
		rc = report_value(&walk, v, (unsigned)walk.n_steps, e);
	end_walk(&walk);
	return rc;
}

int torchsave_report(struct torchsave *t, const char *name, struct torchsave_expected *expected,
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

/* A walk below a name that the checkpoint has already. */
static int begin_item(struct walk *walk, struct torchsave *t, const char *name, uint64_t base,
		      const char *fqn, size_t fqn_len, const uint8_t *path,
		      struct catalog_writer *w, struct ckpt_err *e)
{
	struct catalog_steps i = catalog_path_begin(path, fqn, (uint32_t)fqn_len);
	struct catalog_step step;
	int rc = begin_walk(walk, t, name, w, e);

	walk->base = base;
	buf_add(&walk->path, fqn, fqn_len);
	while (walk->n_steps < WALK_MAX_DEPTH && catalog_path_next(&i, &step)) {
		walk->steps[walk->n_steps].end = (uint32_t)(step.text + step.len - fqn);
		walk->steps[walk->n_steps++].is_position = step.is_position;
	}
	/* An unknown path, or a very long one: beside a name outside the state dict. */
	if (!walk->n_steps || walk->steps[walk->n_steps - 1].end != fqn_len) {
		walk->n_steps = 1;
		walk->steps[0].end = (uint32_t)fqn_len;
		walk->off_path = true;
	}
	return rc ? rc : check_path(walk, e);
}

int torchsave_report_quantiser(struct torchsave *t, const char *name, uint64_t base,
			       const char *fqn, size_t fqn_len, const uint8_t *path,
			       struct catalog_writer *w, struct ckpt_err *e)
{
	const struct pk_value root = pickle_root(t->pickle);
	struct torch_call c;
	struct walk walk;
	int rc = begin_item(&walk, t, name, base, fqn, fqn_len, path, w, e);

	if (!rc && torch_call_of(&root, &c) && c.fn && pk_is(c.fn, NULL, "_rebuild_qtensor"))
		rc = kinds_quantiser(&walk, &c, (unsigned)walk.n_steps, e);
	end_walk(&walk);
	return rc < 0 ? rc : 0;
}

const char *torchsave_wrapper_class(struct torchsave *t)
{
	const struct pk_value root = pickle_root(t->pickle);
	struct torch_call c;

	if (!torch_call_of(&root, &c) || !c.fn || !kinds_is_wrapper(&c))
		return NULL;
	return c.class && c.class->type == PK_GLOBAL ? c.class->g->name->data : "?";
}

int torchsave_report_wrapped(struct torchsave *t, const struct torchsave_wrapped *how,
			     struct catalog_writer *w, struct ckpt_err *e)
{
	const struct pk_value root = pickle_root(t->pickle);
	struct torch_call c;
	struct walk walk;
	int rc;

	if (!torch_call_of(&root, &c) || !c.fn || !kinds_is_wrapper(&c))
		return 0;
	rc = begin_item(&walk, t, how->name, how->base, how->fqn, how->fqn_len, how->path, w, e);
	walk.wrapped = how;
	if (!rc)
		rc = kinds_report(&walk, &c, (unsigned)walk.n_steps, e);
	end_walk(&walk);
	return rc < 0 ? rc : !rc;
}
