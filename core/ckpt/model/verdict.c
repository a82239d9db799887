/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/model/verdict.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "ckpt/ckpt_internal.h"
#include "ckpt/open/assets.h"
#include "codec/cast.h"
#include "gguf/gguf_config.h"
#include "tensor/arch_check.h"
#include "tensor/config_values.h"
#include "tensor/vtensor.h"
#include "tree/view.h"

#include <inttypes.h>
#include <string.h>

#define LIKE_IT 2 /* names that a recipe must find to be mentioned */

enum face { OF_HF, OF_GGUF, OF_PT, OF_SAFETENSORS, N_OF };
static const char *const face_names[N_OF] = { "hf", "gguf", "pt", "safetensors" };

struct verdict {
	enum ckpt_serves serves;
	struct buf text;
};
#define VERDICT_INIT \
	{ \
		.text = BUF_INIT(4096) \
	}

static void verdict_release(struct verdict *v)
{
	buf_release(&v->text);
}

static void add_name(struct buf *b, const char *name, size_t len)
{
	buf_str(b, FQN_TEXT(name, len));
}

static void add_count(struct buf *b, uint64_t n)
{
	buf_printf(b, "%" PRIu64 " tensor%s", n, text_s(n));
}

/* ---- tensor lists for arch_check ---- */

static bool is_weight(enum ckpt_dtype t)
{
	return cast_possible(t, CKPT_DTYPE_F32);
}

/*
 * The tensors of hf/, without those it leaves out; codes are weights to programs that know their
 * scales.
 */
static bool shown_get(const void *arg, size_t i, struct arch_tensor *ret)
{
	enum view_role role = view_role(arg, i);
	struct tensor_info t;

	view_model_tensor(arg, i, &t);
	*ret = (struct arch_tensor){ t.fqn, t.fqn_len, t.n_dims, t.shape,
				     role == VIEW_CODES || is_weight(t.dtype) };
	return role != VIEW_SCALES && view_hf_has(arg, i);
}

static int64_t shown_find(const void *arg, const char *name, size_t len)
{
	return view_find_model_tensor(arg, name, len);
}

/* The tensors a recipe makes. */
static bool made_get(const void *arg, size_t i, struct arch_tensor *ret)
{
	const struct recipe_out *o = arg;
	const struct named *n = &o->names.v[i];
	const struct vtensor *t = o->tensors[n->index];

	*ret = (struct arch_tensor){ n->fqn, n->len, t->n_dims, t->shape, is_weight(t->dtype) };
	return true;
}

static int64_t made_find(const void *arg, const char *name, size_t len)
{
	return namelist_find(&((const struct recipe_out *)arg)->names, name, len);
}

/* ---- other names: which recipe fits? ---- */

/* Appends the source naming: "Megatron-core" of "Megatron-core to Llama, Qwen2". */
static void add_naming(struct buf *b, const struct recipe_builtin *r)
{
	const char *to = strstr(r->summary, " to ");

	buf_str(b, "; its names look like those of ");
	buf_add(b, r->summary, to ? (size_t)(to - r->summary) : strlen(r->summary));
}

static bool fits_model(const struct recipe_builtin *r, const char *type)
{
	bool fits = !type && *r->models;

	for (const char *const *m = r->models; !fits && *m; m++)
		fits = !strcmp(*m, type);
	return fits;
}

/*
 * How well a recipe fits: 0, its result is the model; -1, it is for other names; otherwise *b says
 * what is in the way.
 */
static int try_recipe(struct engine *eng, const struct recipe_builtin *r, const char *type,
		      struct model_recipe *m, const struct namelist *names, const struct arch *a,
		      struct buf *b)
{
	struct recipe_out made = { 0 };
	struct arch_tensors t = { 0, made_get, made_find, &made };
	struct arch_report report = { 0 };
	struct ckpt_err why = { 0 };
	size_t found;
	int rc;

	if (recipe_parse(r->text, (size_t)(r->end - r->text), r->name, &m->recipe, &why))
		return -1;
	rc = view_try_recipe(eng->view, m->recipe, &m->facts, names, &found, &made, &why);
	recipe_free(m->recipe);
	m->recipe = NULL;
	t.n = made.names.n;
	if (!rc && a)
		rc = arch_check(a, &t, &report, &why);
	recipe_out_release(&made);
	if (rc && found < LIKE_IT)
		return -1;
	if (rc && !type) { /* no config.json, whose numbers it needs */
		buf_printf(b, ": with assets=DIR, where its config.json is, try recipe=%.*s",
			   (int)strcspn(r->name, "-"), r->name);
	} else if (rc) {
		buf_printf(b, ", but recipe=%s does not fit: %s", r->name, why.msg);
	} else if (!arch_is_complete(&report)) {
		uint64_t n =
			report.missing + report.unexpected + report.misshapen + report.no_weights;

		buf_printf(b, ", but with recipe=%s ", r->name);
		add_count(b, n);
		buf_printf(b, " %s missing, unexpected or of the wrong shape",
			   n == 1 ? "is" : "are");
	}
	return rc || !arch_is_complete(&report);
}

/*
 * Names the recipe that makes the model from these names, or else one that nearly does. a: NULL if
 * the tensors the model needs are unknown.
 */
static void add_recipe(struct engine *eng, const struct arch *a, const char *type, struct buf *b)
{
	CLEANUP(model_recipe_release) struct model_recipe m = { 0 };
	CLEANUP(buf_release) struct buf near = BUF_INIT(1024);
	CLEANUP(namelist_release) struct namelist names = { 0 };
	const struct recipe_builtin *r, *like = NULL;
	struct ckpt_err why;

	if (eng->recipe.recipe || model_recipe_facts(eng, &m, &why) ||
	    view_weight_names(eng->view, &names, &why))
		return;
	for (size_t i = 0; (r = recipe_builtin(i)); i++) {
		CLEANUP(buf_release) struct buf but = BUF_INIT(1024);
		int how = -1;

		if (fits_model(r, type))
			how = try_recipe(eng, r, type, &m, &names, a, &but);

		if (!how) {
			add_naming(b, r);
			buf_printf(b, ": try recipe=%s", r->name);
			return;
		}
		if (how > 0 && !like) {
			like = r;
			buf_add(&near, but.data, but.len);
		}
	}
	if (like) {
		add_naming(b, like);
		buf_add(b, near.data, near.len);
	}
}

/* ---- hf/ ---- */

struct hf {
	struct engine *eng;
	struct verdict *v;
	struct jdoc json;
	struct arch arch;
	const char *from; /* where config.json was found */
};

static void hf_release(struct hf *h)
{
	arch_release(&h->arch);
	jdoc_release(&h->json);
}

static void add_missing(struct buf *b, const struct arch_report *r)
{
	add_count(b, r->missing);
	buf_printf(b, " missing (%s", r->missing_names[0]);
	for (size_t i = 1; i < min_u64(r->missing, ARCH_SHOWN); i++)
		buf_printf(b, ", %s", r->missing_names[i]);
	buf_str(b, r->missing > ARCH_SHOWN ? ", ...)" : ")");
}

static void add_unexpected(struct buf *b, const struct view *v, const struct arch_report *r)
{
	struct tensor_info t;

	buf_printf(b, "%" PRIu64 " unexpected (", r->unexpected);
	for (size_t i = 0; i < min_u64(r->unexpected, ARCH_SHOWN); i++) {
		view_model_tensor(v, r->unexpected_at[i], &t);
		buf_str(b, i ? ", " : "");
		add_name(b, t.fqn, t.fqn_len);
	}
	buf_str(b, r->unexpected > ARCH_SHOWN ? ", ...)" : ")");
}

static void add_misshapen(struct buf *b, const struct view *v, const struct arch_report *r)
{
	struct tensor_info t;

	view_model_tensor(v, r->misshapen_at, &t);
	buf_printf(b, "%" PRIu64 " of the wrong shape (", r->misshapen);
	add_name(b, t.fqn, t.fqn_len);
	buf_printf(b, " is %s, but by config.json it should be %s%s)",
		   TUPLE_TEXT(t.shape, t.n_dims), TUPLE_TEXT(r->should_be, r->n_should_be),
		   r->misshapen > 1 ? ", ..." : "");
}

static void add_no_weights(struct buf *b, const struct view *v, const struct arch_report *r)
{
	struct tensor_info t;

	view_model_tensor(v, r->no_weight_at, &t);
	buf_printf(b, "%" PRIu64 " of a dtype that transformers does not compute with (",
		   r->no_weights);
	add_name(b, t.fqn, t.fqn_len);
	buf_printf(b, " is %s)", dtype_info(t.dtype)->name);
}

static void add_left_out(struct buf *b, const struct view_left *l)
{
	struct ckpt_err why = l->why;

	ckpt_drop_name(l->first.fqn, l->first.fqn_len, &why);
	buf_printf(b, "%" PRIu64 " of ", l->left_out);
	add_count(b, l->tensors);
	buf_str(b, " left out (");
	add_name(b, l->first.fqn, l->first.fqn_len);
	buf_printf(b, ": %s%s)", why.msg, l->left_out > 1 ? ", ..." : "");
}

static const char *const between[] = { ": ", ", " };

/* Appends each kind of fault, with its count and first names. */
static void add_faults(struct hf *h, const struct arch_report *r)
{
	const struct view *v = h->eng->view;
	struct buf *b = &h->v->text;
	struct view_left left;
	size_t n = 0;

	view_left(v, VIEW_HF, &left);
	if (h->arch.whole && !r->others) {
		buf_str(b, between[n++ > 0]);
		buf_str(b, "no tensors but those of the text model");
	}
	if (r->missing) {
		buf_str(b, between[n++ > 0]);
		add_missing(b, r);
	}
	if (r->unexpected) {
		buf_str(b, between[n++ > 0]);
		add_unexpected(b, v, r);
	}
	if (r->misshapen) {
		buf_str(b, between[n++ > 0]);
		add_misshapen(b, v, r);
	}
	if (r->no_weights) {
		buf_str(b, between[n++ > 0]);
		add_no_weights(b, v, r);
	}
	if (left.left_out) {
		buf_str(b, between[n++ > 0]);
		add_left_out(b, &left);
	}
	if (r->padded)
		buf_printf(b, "; the vocabulary is padded to %" PRIu64 " row%s", r->padded,
			   text_s(r->padded));
}

static int judge(struct hf *h, struct ckpt_err *e)
{
	const struct view *v = h->eng->view;
	const struct arch_tensors t = { view_model(v), shown_get, shown_find, v };
	const char *class = arch_class(&h->arch);
	struct arch_report r;
	bool part;
	int rc = arch_check(&h->arch, &t, &r, e);

	if (rc)
		return rc;
	part = h->arch.whole && !r.others;
	h->v->serves = arch_is_complete(&r) && !part ? CKPT_SERVES_YES : CKPT_SERVES_NO;
	if (h->v->serves == CKPT_SERVES_YES && h->arch.whole) {
		h->v->serves = CKPT_SERVES_UNCHECKED;
		buf_str(&h->v->text, "not checked: the text model is complete for ");
		buf_printf(&h->v->text, "%s (config.json from %s), and what the other ", class,
			   h->from);
		add_count(&h->v->text, r.others);
		buf_str(&h->v->text, " should be is not known");
		return 0;
	}
	if (arch_is_complete(&r) && !part) {
		buf_printf(&h->v->text, "complete for %s (config.json from %s)", class, h->from);
		return 0;
	}
	if (r.missing || r.misshapen || r.no_weights || part)
		buf_printf(&h->v->text, "not loadable as %s", class);
	else
		buf_printf(&h->v->text, "more than %s", class);
	add_faults(h, &r);
	if (r.missing)
		add_recipe(h->eng, &h->arch, h->arch.family->type, &h->v->text);
	return 0;
}

static int no_verdict(struct verdict *v, enum ckpt_serves serves, const char *what, const char *why)
{
	v->serves = serves;
	buf_printf(&v->text, "%s: %s", what, why);
	return 0;
}

/* Determines the tensors config.json requires. 1: unknown, and the verdict says so. */
static int read_arch(struct hf *h, struct ckpt_err *e)
{
	struct assets *assets = &h->eng->assets;
	struct config_in in = { .e = e };
	struct jval root;
	autofree char *text = NULL;
	struct ckpt_err why;
	const char *type;
	int64_t number;
	size_t len;
	int rc = assets_text(assets, "config.json", ASSETS_MAX_CONFIG, &text, &len, &number, &why);

	if (rc) {
		no_verdict(h->v, CKPT_SERVES_UNCHECKED, "not checked", why.msg);
		return rc == -ENOMEM ? err_nomem(e) : 1;
	}
	if (!text && h->eng->format == &format_gguf) {
		no_verdict(h->v, CKPT_SERVES_NO, "not loadable: no config.json", h->eng->gguf.why);
		return 1;
	}
	if (!text) {
		no_verdict(h->v, CKPT_SERVES_NO, "not loadable",
			   "no config.json beside the checkpoint or in assets=");
		add_recipe(h->eng, NULL, NULL, &h->v->text);
		return 1;
	}
	h->from = asset_from_text(assets->origin[number]);
	if (gguf_json("config.json", text, len, &h->json, &why)) {
		no_verdict(h->v, CKPT_SERVES_NO, "not loadable", why.msg);
		return why.code == ENOMEM ? err_nomem(e) : 1;
	}
	root = jdoc_root(&h->json);
	in = (struct config_in){ .from = root, .e = &why };
	if (arch_read(&in, &h->arch)) {
		no_verdict(h->v, CKPT_SERVES_UNCHECKED, "not checked", why.msg);
		if (why.code == ENOMEM)
			return err_nomem(e);
		type = jval_str(jval_get(root, "model_type"));
		if (type)
			add_recipe(h->eng, NULL, type, &h->v->text);
		return 1;
	}
	if (config_get(&in, "quantization_config").d ||
	    jval_given(jval_get(root, "quantization_config")).d) {
		no_verdict(h->v, CKPT_SERVES_UNCHECKED, "not checked",
			   "config.json asks for quantised weights (quantization_config)");
		return 1;
	}
	return 0;
}

static const char no_model[] =
	"no tensor names of a model: name the weights with weights= or rename=";
static const char no_weights[] =
	"no tensor seems to be a weight of a model: name the weights with weights= or rename=";

/* Sets the verdict of hf/ or pt/ if no tensor can be in it. */
static bool lacks_model(const struct engine *eng, struct verdict *v)
{
	const struct ckpt_totals *t = &eng->c->totals;

	if (!t->has_model)
		(void)no_verdict(v, CKPT_SERVES_ABSENT, "absent", no_model);
	else if (!t->tensors)
		(void)no_verdict(v, CKPT_SERVES_NO, "empty", "the checkpoint has no tensors");
	else if (!t->model_tensors)
		(void)no_verdict(v, CKPT_SERVES_NO, "empty", no_weights);
	return !t->has_model || !t->model_tensors;
}

static int judge_hf(struct engine *eng, struct verdict *v, struct ckpt_err *e)
{
	CLEANUP(hf_release) struct hf h = { .eng = eng, .v = v };
	int rc;

	if (lacks_model(eng, v))
		return 0;
	rc = read_arch(&h, e);
	return rc ? (rc < 0 ? rc : 0) : judge(&h, e);
}

/* ---- the other faces ---- */

static void judge_gguf(struct engine *eng, bool now, struct verdict *v)
{
	struct view_gguf g;

	if (now && !view_gguf_is_known(eng->view)) {
		no_verdict(v, CKPT_SERVES_UNCHECKED, "not checked",
			   "it is made when it is first accessed");
		return;
	}
	view_gguf(eng->view, &g);
	v->serves = g.missing ? CKPT_SERVES_ABSENT : CKPT_SERVES_YES;
	if (g.missing)
		buf_printf(&v->text, "absent: %s", g.missing);
	else
		buf_printf(&v->text, "complete for llama.cpp (%s, %s)", g.arch, g.dtype);
}

static void judge_file(struct engine *eng, enum view_file file, struct verdict *v)
{
	/* A tensor that is lost together with its dtype and shape is listed as an object. */
	uint64_t damaged = engine_damaged_objects(eng);
	struct view_left l;

	if (file == VIEW_PT && lacks_model(eng, v))
		return;
	view_left(eng->view, file, &l);
	v->serves = l.left_out || damaged || eng->missing ? CKPT_SERVES_NO : CKPT_SERVES_YES;
	buf_str(&v->text, v->serves == CKPT_SERVES_YES ? "complete: " : "not complete: ");
	if (l.left_out)
		add_left_out(&v->text, &l);
	else
		add_count(&v->text, l.tensors);
	if (damaged)
		buf_printf(&v->text, "; %" PRIu64 " object%s cannot be read", damaged,
			   text_s(damaged));
	if (eng->missing)
		buf_str(&v->text, "; not everything is there");
}

/*
 * now: skip what takes long, a gguf/ that has not been looked up yet. *ret must be VERDICT_INIT;
 * the caller releases it, also after a failure.
 */
static int judge_face(struct engine *eng, enum face of, bool now, struct verdict *ret,
		      struct ckpt_err *e)
{
	int rc = 0;

	if (of == OF_HF)
		rc = judge_hf(eng, ret, e);
	else if (of == OF_GGUF)
		judge_gguf(eng, now, ret);
	else
		judge_file(eng, of == OF_PT ? VIEW_PT : VIEW_SAFETENSORS, ret);
	if (!rc && ret->text.err == ENOMEM)
		rc = err_nomem(e);
	return rc;
}

int verdict_refuse(struct engine *eng, struct ckpt_err *e)
{
	CLEANUP(verdict_release) struct verdict v = VERDICT_INIT;
	int rc = judge_face(eng, OF_HF, true, &v, e);

	if (!rc && v.serves == CKPT_SERVES_NO)
		rc = err_set(e, EINVAL, "option 'strict': hf/: %s", v.text.data);
	return rc;
}

int ckpt_verdicts(struct ckpt *c, bool now,
		  int (*each)(void *arg, const struct ckpt_verdict *verdict), void *arg,
		  struct ckpt_err *e)
{
	struct engine *eng = ckpt_engine(c, e);
	int rc = eng ? 0 : -e->code;

	for (enum face of = 0; !rc && of < N_OF; of++) {
		CLEANUP(verdict_release) struct verdict v = VERDICT_INIT;

		rc = judge_face(eng, of, now, &v, e);
		if (!rc)
			rc = each(arg,
				  &(struct ckpt_verdict){ face_names[of], v.serves, v.text.data });
	}
	return rc;
}
