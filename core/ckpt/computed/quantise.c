/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/computed/quantise.h"

#include "base/buf.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "base/json_out.h"
#include "base/json_without.h"
#include "base/text.h"
#include "base/vec.h"
#include "ckpt/ckpt_internal.h"
#include "ckpt/open/assets.h"
#include "codec/cast.h"
#include "index/catalog_query.h"
#include "read/derived/quant.h"
#include "read/fetch.h"
#include "tensor/vtensor.h"
#include "tree/view.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char config_key[] = "quantization_config", end_weight[] = ".weight";

/* A weight that is to be codes. */
struct chosen {
	struct tensor_info t;
	struct vtensor *made; /* owned by eng->computed */
	struct quantise *how; /* likewise */
	size_t i;	      /* of the model */
};

struct quantiser {
	struct engine *eng;
	enum quantise_by by;
	struct chosen *v;
	size_t n, cap;
	const char **left; /* NUL-terminated names of linear layers that stay, and their lengths */
	size_t *left_len;
	size_t n_left, cap_left, cap_left_len;
	const char *config; /* config.json for hf/ */
	struct ckpt_err *e;
};

static void quantiser_release(struct quantiser *q)
{
	free(q->v);
	free(q->left);
	free(q->left_len);
}

/* ---- which weights ---- */

/* A path element of a name. */
struct element {
	const char *s;
	size_t len;
};

static bool is_one_of(struct element x, const char *const *words)
{
	for (; *words; words++)
		if (bytes_are(x.s, x.len, *words))
			return true;
	return false;
}

static bool next_element(struct element *x, const char *end)
{
	const char *from = x->s + x->len + (x->len > 0), *dot;

	if (from >= end)
		return false;
	dot = memchr(from, '.', (size_t)(end - from));
	*x = (struct element){ from, (size_t)((dot ? dot : end) - from) };
	return x->len > 0;
}

enum layer { LINEAR, LEFT, OTHER };

/* What kind of module has that name; OTHER: not a linear layer. */
static enum layer layer_of(const char *name, size_t len)
{
	static const char *const heads[] = { "lm_head", "embed_out", "score", "classifier", NULL };
	static const char *const routers[] = { "gate", "router", "shared_expert_gate", NULL };
	static const char *const tables[] = { "wte", "wpe", "shared", NULL };
	static const char *const senses[] = { "visual",
					      "vision_tower",
					      "vision_model",
					      "vision_embed_tokens",
					      "audio_tower",
					      "audio_model",
					      "mm_projector",
					      "multi_modal_projector",
					      "embed_vision",
					      "vision_encoder",
					      "audio_encoder",
					      "embed_audio",
					      NULL };
	struct element x = { name, 0 };
	enum layer found = LINEAR;

	while (next_element(&x, name + len))
		if (is_one_of(x, senses) || bytes_are(x.s, x.len, "router"))
			found = LEFT;
	if (is_one_of(x, heads) || is_one_of(x, routers))
		return LEFT;
	if (is_one_of(x, tables) || memmem(x.s, x.len, "embed", 5) ||
	    memmem(x.s, x.len, "norm", 4) || bytes_end(x.s, x.len, "_bias"))
		return OTHER;
	return found;
}

static int leave(struct quantiser *q, const char *name, size_t len)
{
	if (!VEC_ROOM(q->left, q->cap_left, q->n_left + 1) ||
	    !VEC_ROOM(q->left_len, q->cap_left_len, q->n_left + 1))
		return err_nomem(q->e);
	q->left[q->n_left] = name;
	q->left_len[q->n_left++] = len;
	return 0;
}

static int choose(struct quantiser *q, const struct tensor_info *t, size_t i)
{
	struct computed *c = &q->eng->computed;
	const struct quantise how = { q->by, t->dtype, t->shape[0], t->shape[1] };
	struct chosen x = { .t = *t, .how = arena_dup(&c->mem, &how, sizeof(how)), .i = i };
	int rc = x.how ? view_vtensor(q->eng->view, t->id, &x.made, q->e) : err_nomem(q->e);

	if (!rc)
		rc = computed_keep(c, x.made, q->e);
	if (!rc && !VEC_ROOM(q->v, q->cap, q->n + 1))
		rc = err_nomem(q->e);
	if (!rc)
		q->v[q->n++] = x;
	return rc;
}

static int refused(const struct quantiser *q, const struct tensor_info *t, const char *why)
{
	return err_set(q->e, ERR_UNSUPPORTED, "option 'quantize': '%.120s' is %s, shape %s: %s",
		       FQN_TEXT(t->fqn, t->fqn_len), dtype_info(t->dtype)->name,
		       TUPLE_TEXT(t->shape, t->n_dims), why);
}

static int look_at(struct quantiser *q, size_t i)
{
	struct tensor_info t;
	enum layer layer;
	size_t len;

	view_model_tensor(q->eng->view, i, &t);
	len = t.fqn_len - strlen(end_weight);
	if (t.n_dims == 3 && memmem(t.fqn, t.fqn_len, ".experts.", 9) &&
	    cast_possible(t.dtype, CKPT_DTYPE_F32))
		return refused(q, &t,
			       "fused experts are not linear layers; experts=split separates those "
			       "of known models");
	if (t.fqn_len <= strlen(end_weight) || !bytes_end(t.fqn, t.fqn_len, end_weight) ||
	    t.n_dims != 2)
		return 0;
	layer = layer_of(t.fqn, len);
	if (layer == OTHER)
		return 0;
	if (layer == LEFT || !t.bytes ||
	    (q->by == QUANTISE_BLOCKS &&
	     (t.shape[0] % QUANTISE_BLOCK || t.shape[1] % QUANTISE_BLOCK)))
		return leave(q, t.fqn, len);
	if (t.dtype == CKPT_DTYPE_F64)
		return refused(q, &t, "cast it with dtype=");
	if (!cast_possible(t.dtype, CKPT_DTYPE_F32))
		return refused(q, &t,
			       "only float32, float16 and bfloat16 are quantised; dequantize= "
			       "makes these from codes");
	return choose(q, &t, i);
}

/* ---- computed tensors ---- */

struct parts {
	struct computed_new *v;
	struct derived_input *in;
	uint64_t (*shapes)[2];
};

static void parts_release(struct parts *p)
{
	free(p->v);
	free(p->in);
	free(p->shapes);
}

static struct computed_new part_of(const struct chosen *x, enum ckpt_dtype dtype,
				   const uint64_t *shape, derived_fn *run,
				   const struct derived_input *in, size_t n_in)
{
	return (struct computed_new){ .fqn = x->t.fqn,
				      .fqn_len = (uint32_t)x->t.fqn_len,
				      .like = x->t.sources[0],
				      .dtype = dtype,
				      .n_dims = 2,
				      .shape = shape,
				      .run = run,
				      .how = x->how,
				      .inputs = in,
				      .n_inputs = n_in,
				      .hidden = true };
}

/* The maxima first, because the others are computed from them; *ret_first is their place in
 * computed.v, then come codes and scales in turn. */
static int derive(struct quantiser *q, size_t *ret_first)
{
	struct computed *c = &q->eng->computed;
	struct parts p CLEANUP(parts_release) = {
		.v = calloc(2 * q->n, sizeof(*p.v)),
		.in = calloc(3 * q->n, sizeof(*p.in)),
		.shapes = calloc(q->n, sizeof(*p.shapes)),
	};
	size_t shown, first = *ret_first = c->n;
	autofree bool *hide = NULL;
	int rc;

	(void)catalog_tensors(q->eng->catalog, &shown);
	hide = calloc(shown + 1, sizeof(*hide));
	if (!p.v || !p.in || !p.shapes || !hide)
		return err_nomem(q->e);
	for (size_t i = 0; i < q->n; i++) {
		const struct chosen *x = &q->v[i];

		quantise_scale_shape(x->how, p.shapes[i]);
		p.in[i] = (struct derived_input){ .tensor = x->t.sources[0], .made = x->made };
		p.v[i] = part_of(x, CKPT_DTYPE_F32, p.shapes[i], quantise_maxima_run, &p.in[i], 1);
		p.v[i].shift = quantise_scale_shift(x->how, sizeof(float));
	}
	rc = computed_add(c, q->eng->catalog, p.v, q->n, hide, q->e);
	for (size_t i = 0; !rc && i < q->n; i++) {
		const struct chosen *x = &q->v[i];
		enum ckpt_dtype dtype = quantise_scale_dtype(x->how);
		struct derived_input *in = &p.in[2 * i];

		in[0] = (struct derived_input){ .tensor = x->t.sources[0], .made = x->made };
		in[1] = (struct derived_input){ .tensor = c->v[first + i].number };
		p.v[2 * i] =
			part_of(x, CKPT_DTYPE_F8_E4M3FN, x->t.shape, quantise_codes_run, in, 2);
		p.v[2 * i + 1] = part_of(x, dtype, p.shapes[i], quantise_scales_run, &in[1], 1);
		p.v[2 * i + 1].shift = quantise_scale_shift(x->how, dtype_info(dtype)->size);
	}
	return rc ? rc : computed_add(c, q->eng->catalog, p.v, 2 * q->n, hide, q->e);
}

static int show(struct quantiser *q, size_t first)
{
	const struct derived *v = q->eng->computed.v + first + q->n;
	autofree struct view_codes *codes = calloc(q->n + 1, sizeof(*codes));

	if (!codes)
		return err_nomem(q->e);
	for (size_t i = 0; i < q->n; i++)
		codes[i] = (struct view_codes){ q->v[i].i, v[2 * i].number, v[2 * i + 1].number };
	return view_show_codes(q->eng->view, codes, q->n,
			       q->by == QUANTISE_ROWS ? "_scale" : "_scale_inv", q->config, q->e);
}

/* ---- config.json ---- */

static void put_left(struct json_out *j, const char *key, const struct quantiser *q)
{
	bool head = false;

	json_open(j, key, '[');
	for (size_t i = 0; i < q->n_left; i++) {
		json_str_n(j, NULL, q->left[i], q->left_len[i]);
		head |= bytes_are(q->left[i], q->left_len[i], "lm_head");
	}
	if (!head) /* it may be the embedding, under another name */
		json_str(j, NULL, "lm_head");
	json_close(j);
}

static void put_args(struct json_out *j, const char *key, const char *strategy, bool dynamic)
{
	json_open(j, key, '{');
	json_u64(j, "num_bits", 8);
	json_str(j, "type", "float");
	json_str(j, "strategy", strategy);
	json_bool(j, "symmetric", true);
	json_bool(j, "dynamic", dynamic);
	json_close(j);
}

static void put_rows(struct json_out *j, const struct quantiser *q)
{
	json_str(j, "quant_method", "compressed-tensors");
	json_str(j, "format", "float-quantized");
	json_str(j, "quantization_status", "compressed");
	json_open(j, "config_groups", '{');
	json_open(j, "group_0", '{');
	json_open_line(j, "targets", '[');
	json_str(j, NULL, "Linear");
	json_close(j);
	put_args(j, "weights", "channel", false);
	put_args(j, "input_activations", "token", true);
	json_close(j);
	json_close(j);
	put_left(j, "ignore", q);
}

static void put_blocks(struct json_out *j, const struct quantiser *q)
{
	json_str(j, "quant_method", "fp8");
	json_str(j, "fmt", "e4m3");
	json_str(j, "activation_scheme", "dynamic");
	json_u64s(j, "weight_block_size", (const uint64_t[]){ QUANTISE_BLOCK, QUANTISE_BLOCK }, 2);
	put_left(j, "modules_to_not_convert", q);
}

/* Appends the text, which is an object, with one more member at its end. */
static void put_config(struct buf *b, const struct quantiser *q, const char *text, size_t len)
{
	struct buf made CLEANUP(buf_release) = BUF_INIT(2 * ASSETS_MAX_CONFIG);
	struct json_out j = { .to = &made };
	const char *s;

	json_open(&j, NULL, '{');
	json_open(&j, config_key, '{');
	(q->by == QUANTISE_ROWS ? put_rows : put_blocks)(&j, q);
	json_close(&j);
	json_close(&j);
	while (len && text[len - 1] != '}')
		len--;
	for (len -= len > 0; len && strchr(" \t\r\n", text[len - 1]);)
		len--;
	buf_add(b, text, len);
	buf_str(b, len && text[len - 1] == '{' ? "\n" : ",\n"); /* it may have no members */
	buf_add(&made, "", 1);
	s = made.err ? NULL : strchr(made.data, '\n');
	if (s)
		buf_str(b, s + 1);
	else
		b->err = ENOMEM;
}

static int make_config(struct quantiser *q)
{
	struct jdoc config CLEANUP(jdoc_release) = { 0 };
	struct buf b CLEANUP(buf_release) = BUF_INIT(4 * ASSETS_MAX_CONFIG);
	autofree char *text = NULL;
	struct assets *assets = &q->eng->assets;
	struct jval root;
	int64_t number;
	size_t len;
	int rc = assets_text(assets, "config.json", ASSETS_MAX_CONFIG, &text, &len, &number, q->e);

	if (!rc && !text)
		rc = err_set(q->e, ENOENT,
			     "option 'quantize': there is no config.json beside the checkpoint or "
			     "in assets=, which would have to say how weights are quantised");
	if (!rc && jdoc_parse_copy(&config, text, len, JDOC_BIG | JDOC_PYTHON, q->e))
		rc = err_wrap(q->e, "'%.200s', line %zu", assets->v[number].path, config.line);
	if (rc)
		return rc;
	root = jdoc_root(&config);
	if (!jval_is(root, J_OBJECT))
		return err_set(q->e, EINVAL, "'%.200s', line 1: it is not an object",
			       assets->v[number].path);
	if (!jval_is_null(jval_get(root, config_key)))
		return err_set(q->e, EINVAL,
			       "option 'quantize': '%.200s' has a %s: the model is quantised "
			       "already, use dequantize=, or remove it",
			       assets->v[number].path, config_key);
	if (jval_is_str(jval_get(root, "model_type"), "gpt2") ||
	    jval_is_str(jval_get(root, "model_type"), "openai-gpt"))
		return err_set(q->e, ERR_UNSUPPORTED,
			       "option 'quantize': the layers of %s are convolutions, which "
			       "nothing loads as float8",
			       jval_str(jval_get(root, "model_type")));
	len = json_without(text, len, config_key);
	put_config(&b, q, text, len);
	buf_add(&b, "", 1);
	q->config = b.err ? NULL : arena_dup(&q->eng->computed.mem, b.data, b.len);
	return q->config ? 0 : err_nomem(q->e);
}

/* The catalog has changed. */
static int fetch_again(struct engine *eng, const struct fetch_opts *how, struct ckpt_err *e)
{
	struct fetch_opts o = *how;

	fetch_free(eng->fetch);
	eng->fetch = NULL;
	o.derived = eng->computed.v;
	o.n_derived = eng->computed.n;
	return fetch_new(eng->catalog, eng->files, &o, &eng->fetch, e);
}

int quantise(struct engine *eng, const struct ckpt_opts *o, const struct fetch_opts *how,
	     struct ckpt_err *e)
{
	static const struct ckpt_choice kinds[] = {
		{ "fp8_dynamic", QUANTISE_ROWS, false },
		{ "fp8_block", QUANTISE_BLOCKS, false },
	};
	struct quantiser q CLEANUP(quantiser_release) = { .eng = eng, .e = e };
	struct view_about about;
	size_t first = 0;
	int by = 0, rc = ckpt_opts_choose("quantize", o->quantize, kinds, ARRAY_LEN(kinds), &by, e);

	if (rc)
		return rc;
	q.by = (enum quantise_by)by;
	view_about(eng->view, &about);
	if (!about.has_model)
		return err_set(e, EINVAL, "option 'quantize': there is no model in the checkpoint");
	for (size_t i = 0; !rc && i < view_model(eng->view); i++)
		rc = look_at(&q, i);
	if (!rc && !q.n)
		rc = err_set(e, EINVAL,
			     "option 'quantize': the model has no matrix that can be quantised: "
			     "those of linear layers are named NAME%s%s",
			     end_weight,
			     q.by == QUANTISE_BLOCKS
				     ? ", and both their dimensions must be multiples of 128"
				     : "");
	if (!rc)
		rc = make_config(&q);
	if (!rc)
		rc = derive(&q, &first);
	if (!rc && eng->tensor_bad)
		rc = engine_find_victims(eng, e);
	if (!rc)
		rc = fetch_again(eng, how, e);
	return rc ? rc : show(&q, first);
}
