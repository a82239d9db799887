/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a saved value is made of: the parts that have names of their own, without keys that occur
 * again. Values may be shared without end, so that every visit is counted.
 */
#include "base/buf.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/vec.h"
#include "format/torch/torchsave_tar.h"
#include "format/torch/torchsave_walk.h"
#include "format/torch_tensor.h"
#include "index/catalog_build.h"
#include "parse/pickle_json.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
	/* Limit on values visited: this many, and more per byte of the pickle; containers may be
	 * shared. */
	SOME_VISITS = 1 << 22,
	VISITS_PER_BYTE = 64,
	/* Limit on tensors and objects listed again: this many, and one for each byte. */
	SOME_AGAIN = 1 << 12,
	/* Limit on the text of objects: what the catalog takes, and this for each byte of the
	 * pickle: strings may be shared. */
	TEXT_PER_BYTE = 16,
	/* Bytes, and values; longer keys are taken to be different. */
	MAX_KEY = 256,
};

/* ---- kinds of values ---- */

bool walk_is_tensor(struct walk *w, const struct pk_value *v)
{
	return torch_is_tensor(v) || kinds_is_engine(v) || torchsave_tar_has(w->t, v, true);
}

bool walk_is_storage(struct walk *w, const struct pk_value *v)
{
	return (v->type == PK_PERSID && torch_is_storage_id(&v->n->own[0])) ||
	       torchsave_tar_has(w->t, v, false);
}

/* ---- the budget, which all walks over a file share ---- */

void walk_budget(struct torchsave *t)
{
	if (t->walked)
		return;
	t->walked = true;
	t->visits = SOME_VISITS + VISITS_PER_BYTE * pickle_end(t->pickle);
	t->again = SOME_AGAIN + pickle_end(t->pickle);
	t->text = CATALOG_MAX_TEXT + TEXT_PER_BYTE * pickle_end(t->pickle);
}

static int spend(uint64_t *budget, uint64_t n, struct ckpt_err *e)
{
	if (n > *budget)
		return err_set(e, WALK_TOO_OFTEN,
			       "it has the same values too often: not all of them are listed");
	*budget -= n;
	return 0;
}

int walk_charge(struct torchsave *t, uint64_t n, struct ckpt_err *e)
{
	return spend(&t->visits, n, e);
}

int walk_charge_again(struct torchsave *t, struct ckpt_err *e)
{
	return spend(&t->again, 1, e);
}

/* ---- keys that occur twice in a dict: the last one counts, as in Python ---- */

/* True, 1 and 1.0 are one key. */
static bool is_number(const struct pk_value *key, int64_t *ret)
{
	bool whole = key->type == PK_FLOAT && key->f >= -9223372036854775808.0 &&
		     key->f < 9223372036854775808.0 && key->f == (double)(int64_t)key->f;

	*ret = whole ? (int64_t)key->f : key->i;
	return whole || key->type == PK_INT || key->type == PK_BOOL;
}

/* Is it equal to whatever has the same text? Objects are equal to themselves only, as is NaN. */
static bool has_value(const struct pk_value *key, unsigned *left)
{
	if (!*left)
		return false;
	--*left;
	switch (key->type) {
	case PK_NONE:
	case PK_BOOL:
	case PK_INT:
	case PK_LONG:
	case PK_STR:
	case PK_BYTES:
	case PK_GLOBAL:
		return true;
	case PK_FLOAT:
		return key->f == key->f;
	case PK_TUPLE:
		for (size_t i = 0; i < pk_len(key); i++)
			if (!has_value(&key->n->own[i], left))
				return false;
		return true;
	default:
		return false;
	}
}

/*
 * Equal keys get the same string, and keys that are not text get one that no text can be. NULL:
 * with errno, a failure; without, a key that is taken to be different from all others.
 */
static const struct pk_str *string_of_key(struct torchsave *t, const struct pk_value *key)
{
	char number[1 + sizeof(key->i)] = { (char)0xff };
	struct buf text CLEANUP(buf_release) = BUF_INIT(MAX_KEY);
	struct ckpt_err why = { 0 };
	unsigned left = MAX_KEY;
	int64_t n;
	int rc;

	if (key->type == PK_STR)
		return key->s;
	if (is_number(key, &n)) {
		memcpy(number + 1, &n, sizeof(n));
		return pk_intern(t->strings, number, sizeof(number));
	}
	number[0] = (char)0xfe;
	buf_add(&text, number, 1);
	errno = 0;
	rc = has_value(key, &left) ? pickle_key(key, &text, &why) : -EINVAL;
	if (rc == -ENOMEM)
		errno = ENOMEM;
	return rc ? NULL : pk_intern(t->strings, text.data, text.len);
}

/* As in most dicts with numbers. */
static bool only_numbers_increase(const struct pk_value *dict)
{
	const struct pk_value *last = NULL;

	for (size_t i = 0; i < pk_len(dict); i++) {
		const struct pk_value *key = &dict->n->v[2 * i];

		if (key->type == PK_STR)
			continue;
		if (key->type != PK_INT || (last && key->i <= last->i))
			return false;
		last = key;
	}
	return true;
}

static bool is_repeated(const uint8_t *bits, size_t i)
{
	return bits && bits[i / 8] >> i % 8 & 1;
}

/* *ret: NULL, or a bit for each pair: does its key occur again? */
static int find_repeated(struct torchsave *t, const struct pk_value *dict, uint8_t **ret,
			 struct ckpt_err *e)
{
	size_t n = pk_len(dict);
	int rc = n > 1 ? walk_charge(t, n, e) : 0;
	bool others;

	*ret = NULL;
	if (rc || n < 2)
		return rc;
	t->n_dicts++;
	others = !only_numbers_increase(dict);
	for (size_t i = n; i-- > 0;) {
		const struct pk_value *key = &dict->n->v[2 * i];
		const struct pk_str *s;

		if (key->type != PK_STR && !others)
			continue;
		s = string_of_key(t, key);
		if (!s && !errno)
			continue;
		if (!s)
			return err_set(e, errno, "all names take too much memory");
		if (!VEC_ROOM_ZEROED(t->seen, t->seen_cap, s->id + (size_t)1))
			return err_nomem(e);
		if (t->seen[s->id] != t->n_dicts) {
			t->seen[s->id] = t->n_dicts;
			continue;
		}
		if (!*ret)
			*ret = calloc(n / 8 + 1, 1);
		if (!*ret)
			return err_nomem(e);
		(*ret)[i / 8] |= (uint8_t)(1U << i % 8);
	}
	return 0;
}

static bool is_dict(const struct pk_value *v)
{
	return v && v->type == PK_DICT;
}

static bool is_nn_module(const struct pk_value *v)
{
	return is_dict(pk_attr(v, "_parameters")) && is_dict(pk_attr(v, "_buffers")) &&
	       is_dict(pk_attr(v, "_modules"));
}

bool walk_is_module(const struct pk_value *v)
{
	const struct pk_value *class = v->type == PK_OBJECT ? &v->n->own[PK_CALLEE] : NULL;

	/* TorchScript: tensors are attributes of modules, like everything else. */
	if (class && class->type == PK_GLOBAL &&
	    bytes_begin(class->g->module->data, class->g->module->len, "__torch__"))
		return true;
	return is_nn_module(v);
}

/* The strings of a set, as either protocol has them; NULL: there are none. */
static const struct pk_value *set_of(const struct pk_value *v)
{
	const struct pk_value *args = v && v->type == PK_OBJECT ? &v->n->own[PK_ARGS] : NULL;

	if (!args)
		return NULL;
	return pk_len(args) ? &args->n->v[0] : &v->n->own[PK_ITEMS];
}

static int contains(struct torchsave *t, const struct pk_value *set, const struct pk_value *key,
		    struct ckpt_err *e)
{
	for (size_t i = 0; set && i < pk_len(set); i++) {
		int rc = walk_charge(t, 1, e);

		if (rc)
			return rc;
		if (key->type == PK_STR && set->n->v[i].type == PK_STR && set->n->v[i].s == key->s)
			return 1;
	}
	return 0;
}

/* What state_dict() takes: not None, nor buffers of register_buffer(persistent=False). */
static int each_of_module(struct torchsave *t, const struct pk_value *v, walk_part_fn *each,
			  void *arg, struct ckpt_err *e)
{
	static const char *const attrs[] = { "_parameters", "_buffers", "_modules" };
	const struct pk_value *left_out = set_of(pk_attr(v, "_non_persistent_buffers_set"));
	int rc = 0;

	if (left_out && left_out->type != PK_LIST)
		left_out = NULL;
	for (size_t k = 0; !rc && k < ARRAY_LEN(attrs); k++) {
		const struct pk_value *dict = pk_attr(v, attrs[k]);
		autofree uint8_t *repeated = NULL;

		rc = find_repeated(t, dict, &repeated, e);
		for (size_t i = 0; !rc && i < pk_len(dict); i++) {
			const struct pk_value *pair = &dict->n->v[2 * i];
			int skip = is_repeated(repeated, i);

			if (!skip && k == 1)
				skip = contains(t, left_out, pair, e);
			if (skip < 0)
				return skip;
			if (!skip && pair[1].type != PK_NONE)
				rc = each(arg, pair, 0, pair + 1, e);
		}
	}
	return rc;
}

static int each_of(struct torchsave *t, const struct pk_value *v, unsigned within,
		   walk_part_fn *each, void *arg, struct ckpt_err *e);

static int each_of_object(struct torchsave *t, const struct pk_value *v, unsigned within,
			  walk_part_fn *each, void *arg, struct ckpt_err *e)
{
	const struct pk_value *f = v->n->own, *args = &f[PK_ARGS], *state = &f[PK_STATE];
	int rc = 0;

	rc = walk_charge(
		t,
		pk_dict_len(state->type == PK_TUPLE && pk_len(state) ? &state->n->own[0] : state),
		e);
	if (rc)
		return rc;
	if (is_nn_module(v))
		return each_of_module(t, v, each, arg, e);
	within++;
	/* TorchScript: build_tensorlist(list), restore_type_tag(dict, "Dict[str, Tensor]") */
	if (f[PK_CALLEE].type == PK_GLOBAL && pk_len(args) &&
	    pk_str_is(f[PK_CALLEE].g->module, "torch.jit._pickle"))
		return each_of(t, &args->n->v[0], within, each, arg, e);
	if (!pk_is(&f[PK_CALLEE], "collections", "defaultdict")) /* the class of the default */
		rc = each_of(t, args, within, each, arg, e);
	/* (attributes, slots) of classes that have __slots__ */
	if (!rc && state->type == PK_TUPLE && pk_len(state) == 2 &&
	    state->n->own[1].type == PK_DICT) {
		rc = each_of(t, &state->n->own[0], within, each, arg, e);
		state = &state->n->own[1];
	}
	if (!rc)
		rc = each_of(t, state, within, each, arg, e);
	return rc ? rc : each_of(t, &f[PK_ITEMS], within, each, arg, e);
}

static int each_of_dict(struct torchsave *t, const struct pk_value *v, walk_part_fn *each,
			void *arg, struct ckpt_err *e)
{
	autofree uint8_t *repeated = NULL;
	int rc = find_repeated(t, v, &repeated, e);

	for (size_t i = 0; !rc && i < pk_len(v); i++)
		if (!is_repeated(repeated, i))
			rc = each(arg, &v->n->v[2 * i], 0, &v->n->v[2 * i + 1], e);
	return rc;
}

/* within: in how many objects v is what they are made of, not a part. */
static int each_of(struct torchsave *t, const struct pk_value *v, unsigned within,
		   walk_part_fn *each, void *arg, struct ckpt_err *e)
{
	enum { MAX_WITHIN = 1 }; /* an object may be its own state */
	int rc = 0;

	switch (v->type) {
	case PK_DICT:
		return each_of_dict(t, v, each, arg, e);
	case PK_LIST:
	case PK_TUPLE:
		for (size_t i = 0; !rc && i < pk_len(v); i++)
			rc = each(arg, NULL, i, &v->n->v[i], e);
		return rc;
	case PK_OBJECT:
		return within > MAX_WITHIN ? each(arg, NULL, 0, v, e)
					   : each_of_object(t, v, within, each, arg, e);
	default:
		return 0;
	}
}

int walk_parts(struct torchsave *t, const struct pk_value *v, walk_part_fn *each, void *arg,
	       struct ckpt_err *e)
{
	return each_of(t, v, 0, each, arg, e);
}
