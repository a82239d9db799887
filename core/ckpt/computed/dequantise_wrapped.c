/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/computed/dequantise_wrapped.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "codec/cast.h"

#include <errno.h>
#include <string.h>

#define MAX_TEXT ((uint32_t)1 << 20) /* of an object; they have some hundred bytes */
#define MAX_LEVELS \
	16 /* of names, from a tensor to the object that it is a part of; there are at most 4 */

/* ---- objects ---- */

static void owner_release(struct deq_owner *o)
{
	jdoc_release(&o->doc);
}

/* The library whose class the object describes; NULL: another. */
static const char *library_of(const struct catalog_object *o)
{
	/* How torchsave_kinds.c begins it, so that no other text is parsed for each tensor. */
	static const char begin[] = "{\"__class__\": \"";
	static const char *const modules[] = { "torchao", "transformer_engine" };

	if (!o->text || o->text_len > MAX_TEXT || !bytes_begin(o->text, o->text_len, begin))
		return NULL;
	for (size_t i = 0; i < ARRAY_LEN(modules); i++) {
		size_t from = strlen(begin), n = strlen(modules[i]);

		if (bytes_begin(o->text + from, o->text_len - from, modules[i]) &&
		    o->text_len > from + n && o->text[from + n] == '.')
			return modules[i];
	}
	return NULL;
}

/* 1: no object has that name, or it belongs to another library. */
static int owner_read(const struct deq_finder *f, const char *name, size_t len,
		      struct deq_owner *ret)
{
	int64_t at = catalog_find_object(f->catalog, name, len);
	const struct catalog_object *o = at < 0 ? NULL : &catalog_objects(f->catalog, NULL)[at];
	const char *module = o ? library_of(o) : NULL, *dot;
	struct ckpt_err why;
	int rc;

	*ret = (struct deq_owner){ .module = "", .class = "" };
	if (!module)
		return 1;
	rc = jdoc_parse_copy(&ret->doc, o->text, o->text_len,
			     JDOC_ANY | JDOC_DUPLICATES | JDOC_PYTHON | JDOC_BIG | JDOC_NULS, &why);
	if (rc)
		return rc == -ENOMEM ? err_nomem(f->e) : 1;
	ret->attrs = jdoc_root(&ret->doc);
	dot = jval_str(jval_get(ret->attrs, "__class__"));
	dot = dot ? strrchr(dot, '.') : NULL;
	if (!dot)
		return 1;
	ret->module = module;
	ret->class = dot + 1;
	return 0;
}

/* ---- one tensor ---- */

static int refuse(const struct deq_wrapped *x, const char *class, const char *why)
{
	return err_set(x->f->e, ERR_UNSUPPORTED,
		       "option 'dequantize': '%.120s', of class %.60s: %s",
		       FQN_TEXT(x->name, (uint32_t)x->len), class, why);
}

int deq_bad_part(const struct deq_wrapped *x, const char *why)
{
	return refuse(x, x->owner->class, why);
}

const struct catalog_tensor *deq_part(const struct deq_wrapped *x, const char *name)
{
	int64_t at = deq_sibling(x->f, x->t, x->end, name);

	return at < 0 ? NULL : &x->f->t[at];
}

void deq_hide_part(const struct deq_wrapped *x, const char *name)
{
	const struct catalog_tensor *t = deq_part(x, name);

	if (t)
		x->f->hide[t - x->f->t] = true;
}

/* ---- all ---- */

static const struct {
	const char *module, *class, *end;
	deq_wrapped_fn *find;
	deq_inner_fn *inner; /* in place of it for what an AffineQuantizedTensor is made of */
} classes[] = {
	{ "torchao", "Int8Tensor", ".qdata", deq_torchao_int8, NULL },
	{ "torchao", "IntxUnpackedToInt8Tensor", ".qdata", deq_torchao_int8, NULL },
	{ "torchao", "Int4Tensor", ".qdata", deq_torchao_int4, NULL },
	{ "torchao", "PlainAQTTensorImpl", ".int_data", NULL, deq_torchao_plain },
	{ "torchao", "PlainAQTLayout", ".int_data", NULL, deq_torchao_plain },
	{ "torchao", "QDQTensorImpl", ".int_data", NULL, deq_torchao_plain },
	{ "torchao", "Float8AQTTensorImpl", ".float8_data", NULL, deq_torchao_plain_float8 },
	{ "torchao", "Float8AQTLayout", ".float8_data", NULL, deq_torchao_plain_float8 },
	{ "torchao", "OptimState8bit", ".codes", deq_torchao_state, NULL },
	{ "torchao", "OptimState4bit", ".codes", deq_torchao_state, NULL },
	{ "torchao", "OptimStateFp8", ".codes", deq_torchao_state, NULL },
	{ "transformer_engine", "Float8Tensor", "._data", deq_te_float8, NULL },
	{ "transformer_engine", "MXFP8Tensor", "._rowwise_data", deq_te_blocks, NULL },
	{ "transformer_engine", "Float8BlockwiseQTensor", "._rowwise_data", deq_te_blocks, NULL },
};

/* Cuts an attribute's name off that of x. False: it does not end in it. */
static bool cut_name(struct deq_wrapped *x, const char *end)
{
	if (x->len <= strlen(end) || !bytes_end(x->name, x->len, end))
		return false;
	x->len -= strlen(end);
	return true;
}

/* Cuts off names of wrappers that only say how activations are treated, or nothing
 * (torchao/quantization/linear_activation_quantized_tensor.py). */
static int cut_wrappers(struct deq_wrapped *x)
{
	static const char *const known[] = {
		"LinearActivationQuantizedTensor",
		"WeightTensorWithLinearActivationQuantizationMetadata",
	};

	while (cut_name(x, ".original_weight_tensor")) {
		CLEANUP(owner_release) struct deq_owner o = { 0 };
		bool is_known = false;
		int rc = owner_read(x->f, x->name, x->len, &o);

		if (rc < 0)
			return rc;
		for (size_t i = 0; !rc && i < ARRAY_LEN(known); i++)
			is_known |= !strcmp(o.class, known[i]);
		if (!is_known)
			return refuse(x, rc ? "unknown" : o.class,
				      "what it does to the weight inside it is not known");
	}
	return 0;
}

static int find_inner(struct deq_wrapped *x, deq_inner_fn *find)
{
	CLEANUP(owner_release) struct deq_owner outer = { 0 };
	int rc = 1;

	if (cut_name(x, ".tensor_impl") || cut_name(x, ".layout_tensor"))
		rc = owner_read(x->f, x->name, x->len, &outer);
	if (rc < 0)
		return rc;
	if (rc || strcmp(outer.class, "AffineQuantizedTensor") != 0)
		return deq_bad_part(x, "it is not part of an AffineQuantizedTensor");
	rc = cut_wrappers(x);
	return rc ? rc : find(x, &outer);
}

int deq_find_wrapped(struct deq_finder *f, const struct catalog_tensor *t)
{
	CLEANUP(owner_release) struct deq_owner o = { 0 };
	struct deq_wrapped x = { .f = f, .t = t, .owner = &o, .name = t->fqn };
	bool is_read = false;
	int rc = 0;

	for (size_t i = 0; !rc && i < ARRAY_LEN(classes); i++) {
		if (!deq_ends(t, classes[i].end))
			continue;
		x.end = classes[i].end;
		x.len = t->fqn_len - strlen(x.end);
		if (!is_read)
			rc = owner_read(f, x.name, x.len, &o);
		is_read = true;
		if (rc || strcmp(o.module, classes[i].module) != 0 ||
		    strcmp(o.class, classes[i].class) != 0)
			continue;
		if (classes[i].inner)
			return find_inner(&x, classes[i].inner);
		rc = cut_wrappers(&x);
		return rc ? rc : classes[i].find(&x);
	}
	return rc < 0 ? rc : 0;
}

int deq_check_float8(const struct deq_finder *f, const struct catalog_tensor *t, const char *end)
{
	static const char *const known[] = { "Float8Tensor", "PrototypeFloat8Tensor" };
	CLEANUP(owner_release) struct deq_owner o = { 0 };
	int rc = owner_read(f, t->fqn, t->fqn_len - strlen(end), &o);

	for (size_t i = 0; !rc && i < ARRAY_LEN(known); i++)
		if (!strcmp(o.class, known[i]))
			return 0;
	return rc > 0 ? 0 : rc ? rc : deq_refuse_wrapped(f, t);
}

void deq_hide_owners(struct catalog *c, const struct deq_finder *f, const struct deq_found *x)
{
	const struct catalog_object *o = catalog_objects(c, NULL);

	for (size_t k = 0; k < x->n_inputs; k++) {
		const struct catalog_tensor *t = &f->t[x->inputs[k]];
		unsigned levels = 0;

		if (!bytes_begin(t->fqn, t->fqn_len, x->name))
			continue;
		for (size_t len = x->name_len; len < t->fqn_len && levels < MAX_LEVELS; len++) {
			int64_t at = t->fqn[len] == '.' ? catalog_find_object(c, t->fqn, len) : -1;

			levels += t->fqn[len] == '.';
			if (at >= 0 && library_of(&o[at]))
				catalog_hide_object(c, (size_t)at);
		}
	}
}

int deq_refuse_wrapped(const struct deq_finder *f, const struct catalog_tensor *t)
{
	unsigned levels = 0;

	for (size_t len = t->fqn_len; len-- > 1;) {
		CLEANUP(owner_release) struct deq_owner o = { 0 };
		int rc;

		if (t->fqn[len] != '.')
			continue;
		if (levels++ == MAX_LEVELS) /* a name may be nothing but dots */
			break;
		rc = owner_read(f, t->fqn, len, &o);
		if (rc < 0)
			return rc;
		if (!rc)
			return err_set(
				f->e, ERR_UNSUPPORTED,
				"option 'dequantize': '%.120s' (%s, shape %s) holds codes of "
				"%s's class %.60s, whose layout is not known",
				SHOWN(t), DTYPE_TEXT(t), SHAPE_TEXT(t), o.module, o.class);
	}
	return 0;
}
