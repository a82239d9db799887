/* SPDX-License-Identifier: Apache-2.0 */
#include "parse/pickle_json.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/err.h"
#include "base/text.h"
#include "model/box.h"
#include "model/dtype.h"
#include "parse/pickle.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char skipped[] = "{\"__class__\": \"?\"}";

enum {
	MAX_DEPTH = 100,
	/* Bytes of a non-string key: inside another key its quotes take twice the space. */
	MAX_KEY = 1 << 20,
};

/* A container that is being written, and the one around it. */
struct level {
	const struct level *up; /* NULL: it is what is around the outermost value */
	const struct pk_node *n;
	unsigned depth;	  /* from 1 */
	uint64_t *values; /* that may still be written */
};

static int put(struct buf *b, const struct pk_value *v, const struct level *up, struct ckpt_err *e);

static int checked(int rc, const struct buf *b, struct ckpt_err *e)
{
	return rc ? rc : buf_check(b, e, "its text needs more than %zu bytes", b->max);
}

/* ---- numbers ---- */

/*
 * Like Python's repr: the fewest digits that read back as the same number, without an exponent from
 * 1e-4 to below 1e16.
 */
static void put_float(struct buf *b, double f)
{
	char sci[40], digits[24] = "";
	int precision = 0, exponent, n = 0;
	const char *sign = signbit(f) ? "-" : "";

	if (isnan(f) || isinf(f)) {
		buf_printf(b, "{\"__class__\": \"builtins.float\", \"value\": \"%s\"}",
			   isnan(f) ? "nan"
			   : f < 0  ? "-inf"
				    : "inf");
		return;
	}
	do
		(void)snprintf(sci, sizeof(sci), "%.*e", precision, fabs(f));
	while (strtod(sci, NULL) != fabs(f) && ++precision < 17);
	exponent = (int)strtol(strchr(sci, 'e') + 1, NULL, 10);
	for (const char *s = sci; *s != 'e'; s++)
		if (*s != '.')
			digits[n++] = *s;
	if (exponent < -4 || exponent >= 16)
		buf_printf(b, "%s%c%s%se%c%02d", sign, digits[0], n > 1 ? "." : "", digits + 1,
			   exponent < 0 ? '-' : '+', abs(exponent));
	else if (exponent < 0)
		buf_printf(b, "%s0.%.*s%s", sign, -exponent - 1, "0000", digits);
	else if (n > exponent + 1)
		buf_printf(b, "%s%.*s.%s", sign, exponent + 1, digits, digits + exponent + 1);
	else
		buf_printf(b, "%s%s%.*s.0", sign, digits, exponent + 1 - n, "0000000000000000");
}

/* Converts two's complement, low byte first, to decimal by repeated division by 10^9. */
static void put_long(struct buf *b, const struct pk_str *s)
{
	enum { MAX_WORDS = UINT8_MAX / 4 + 1, MAX_GROUPS = MAX_WORDS * 32 / 29 + 2 };
	uint32_t words[MAX_WORDS] = { 0 }, groups[MAX_GROUPS], carry = 1;
	bool negative = s->data[s->len - 1] & 0x80;
	size_t n = (s->len + 3) / 4, n_groups = 0;

	for (size_t i = 0; i < n * 4; i++) {
		uint8_t byte = i < s->len ? (uint8_t)s->data[i] : negative ? 0xff : 0;

		if (negative) { /* take the absolute value */
			carry += (uint8_t)~byte;
			byte = (uint8_t)carry;
			carry >>= 8;
		}
		words[i / 4] |= (uint32_t)byte << (8 * (i % 4));
	}
	do {
		uint64_t rest = 0;

		for (size_t i = n; i-- > 0;) {
			rest = rest << 32 | words[i];
			words[i] = (uint32_t)(rest / 1000000000);
			rest %= 1000000000;
		}
		groups[n_groups++] = (uint32_t)rest;
		while (n && !words[n - 1])
			n--;
	} while (n);
	buf_printf(b, "%s%u", negative ? "-" : "", groups[--n_groups]);
	while (n_groups)
		buf_printf(b, "%09u", groups[--n_groups]);
}

/* ---- containers ---- */

static int put_list(struct buf *b, const struct pk_value *v, const struct level *at,
		    struct ckpt_err *e)
{
	int rc = 0;

	buf_str(b, "[");
	for (size_t i = 0; !rc && i < pk_len(v); i++) {
		buf_str(b, i ? ", " : "");
		rc = put(b, &v->n->v[i], at, e);
	}
	buf_str(b, "]");
	return rc;
}

static int key_text(struct buf *b, const struct pk_value *key, const struct level *at,
		    struct ckpt_err *e)
{
	if (key->type != PK_STR)
		return put(b, key, at, e);
	buf_add(b, key->s->data, key->s->len);
	return 0;
}

/* A key as a string, whatever it is. */
static int put_key(struct buf *b, const struct pk_value *key, const struct level *at,
		   struct ckpt_err *e)
{
	struct buf text = BUF_INIT(key->type == PK_STR ? b->max : min_u64(b->max, MAX_KEY));
	int rc = checked(key_text(&text, key, at, e), &text, e);

	if (!rc)
		buf_json_str(b, text.data ? text.data : "", text.len);
	buf_release(&text);
	return rc;
}

/* The pairs of a dict; first: no member precedes them in the braces. */
static int put_pairs(struct buf *b, const struct pk_value *v, bool first, const struct level *at,
		     struct ckpt_err *e)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < pk_len(v); i++) {
		const struct pk_value *key = &v->n->v[2 * i];

		buf_str(b, first && !i ? "" : ", ");
		rc = put_key(b, key, at, e);
		buf_str(b, ": ");
		if (!rc)
			rc = put(b, key + 1, at, e);
	}
	return rc;
}

/* Names that have a meaning here: a dict with such a key must not be taken for something else. */
static bool is_reserved(const struct pk_value *key)
{
	static const char *const names[] = { "__class__", "__global__", "__cycle__", "__args__",
					     "__items__", "__state__",	"__error__" };

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (pk_is_text(key, names[i]))
			return true;
	return false;
}

/* Do its keys have different texts, none of them reserved? */
static bool has_names(const struct pk_value *dict)
{
	size_t strings = 0;

	for (size_t i = 0; i < pk_len(dict); i++) {
		const struct pk_value *key = &dict->n->v[2 * i];

		strings += key->type == PK_STR;
		if (key->type == PK_STR ? i + 1 != strings || is_reserved(key) : strings != 0)
			return false;
	}
	return true;
}

static int put_rows(struct buf *b, const struct pk_value *v, const struct level *at,
		    struct ckpt_err *e)
{
	int rc = 0;

	buf_str(b, "{\"__class__\": \"builtins.dict\", \"__items__\": [");
	for (size_t i = 0; !rc && i < pk_len(v); i++) {
		buf_str(b, i ? ", [" : "[");
		rc = put(b, &v->n->v[2 * i], at, e);
		buf_str(b, ", ");
		if (!rc)
			rc = put(b, &v->n->v[2 * i + 1], at, e);
		buf_str(b, "]");
	}
	buf_str(b, "]}");
	return rc;
}

static int put_dict(struct buf *b, const struct pk_value *v, const struct level *at,
		    struct ckpt_err *e)
{
	int rc;

	if (!has_names(v))
		return put_rows(b, v, at, e);
	buf_str(b, "{");
	rc = put_pairs(b, v, true, at, e);
	buf_str(b, "}");
	return rc;
}

/* ---- values that JSON cannot express ---- */

/* The last member of an object, and its end. */
static void put_hex(struct buf *b, const struct buf *bytes)
{
	buf_str(b, "\"hex\": \"");
	for (size_t i = 0; i < bytes->len; i++)
		buf_printf(b, "%02x", (uint8_t)bytes->data[i]);
	buf_str(b, "\"}");
	if (bytes->err && !b->err)
		b->err = bytes->err;
}

/* Adds the bytes that v is: bytes themselves, or as protocol 2 writes them, _codecs.encode(text,
 * 'latin1') or, if there are none, bytes(). False: v is something else. */
static bool add_bytes(const struct pk_value *v, struct buf *ret)
{
	const struct pk_value *f = v->type == PK_OBJECT ? v->n->own : NULL;
	const struct pk_value *args = f ? &f[PK_ARGS] : NULL, *a;
	const char *s, *end;

	if (v->type == PK_BYTES) {
		buf_add(ret, v->s->data, v->s->len);
		return true;
	}
	if (!args || args->type != PK_TUPLE)
		return false;
	if (!pk_len(args))
		return pk_is(&f[PK_CALLEE], "__builtin__", "bytes");
	a = args->n->own;
	if (!pk_is(&f[PK_CALLEE], "_codecs", "encode") || pk_len(args) != 2 ||
	    a[0].type != PK_STR || !pk_is_text(&a[1], "latin1"))
		return false;
	for (s = a[0].s->data, end = s + a[0].s->len; s < end;) {
		uint8_t byte = (uint8_t)text_next(&s, end);

		buf_add(ret, &byte, 1);
	}
	return true;
}

static bool put_bytes(struct buf *b, const struct pk_value *v)
{
	struct buf bytes = BUF_INIT(b->max);
	bool is = add_bytes(v, &bytes);

	if (is) {
		buf_str(b, "{\"__class__\": \"builtins.bytes\", ");
		put_hex(b, &bytes);
	}
	buf_release(&bytes);
	return is;
}

/* Replaces the names of Python 2, which protocols below 3 use. */
static void modernize(const char **module, const char **name)
{
	static const char *const names[][2] = {
		{ "long", "int" }, { "unicode", "str" }, { "unichr", "chr" }, { "xrange", "range" }
	};

	if (!strcmp(*module, "copy_reg"))
		*module = "copyreg";
	if (strcmp(*module, "__builtin__") != 0)
		return;
	*module = "builtins";
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (!strcmp(*name, names[i][0]))
			*name = names[i][1];
}

static void put_name(struct buf *b, const char *key, const char *module, const char *name)
{
	struct buf whole = BUF_INIT(1 << 20);

	modernize(&module, &name);
	buf_str(&whole, module);
	buf_str(&whole, *module ? "." : "");
	buf_str(&whole, name);
	buf_printf(b, "{\"%s\": ", key);
	buf_json_str(b, whole.data ? whole.data : "", whole.len);
	if (whole.err && !b->err)
		b->err = whole.err;
	buf_release(&whole);
}

static void put_global(struct buf *b, const char *key, const struct pk_value *v)
{
	bool is = v->type == PK_GLOBAL;

	put_name(b, key, is ? v->g->module->data : "", is ? v->g->name->data : "?");
}

/* The class of a value. */
static void put_class(struct buf *b, const struct pk_value *v)
{
	static const char *const names[] = {
		[PK_NONE] = "NoneType", [PK_BOOL] = "bool",   [PK_INT] = "int",
		[PK_LONG] = "int",	[PK_FLOAT] = "float", [PK_STR] = "str",
		[PK_BYTES] = "bytes",	[PK_GLOBAL] = "type", [PK_OPAQUE] = NULL,
		[PK_TUPLE] = "tuple",	[PK_LIST] = "list",   [PK_DICT] = "dict",
	};
	const char *name = v->type < ARRAY_LEN(names) ? names[v->type] : NULL;

	if (v->type == PK_OBJECT)
		put_global(b, "__class__", &v->n->own[PK_CALLEE]);
	else
		put_name(b, "__class__", name ? "builtins" : "", name ? name : "?");
}

/* ---- tensors ---- */

/* The n fields of a tuple, or NULL. */
static const struct pk_value *fields(const struct pk_value *v, size_t n)
{
	return v->type == PK_TUPLE && pk_len(v) >= n ? v->n->own : NULL;
}

/* ('storage', torch.FloatStorage, '0', 'cpu', count), or NULL. */
static const struct pk_value *storage_of(const struct pk_value *v)
{
	const struct pk_value *f = v->type == PK_PERSID ? fields(&v->n->own[0], 5) : NULL;

	return f && pk_is_text(&f[0], "storage") && f[1].type == PK_GLOBAL && f[4].type == PK_INT
		       ? f
		       : NULL;
}

/* Wrappers: Parameter(tensor, ...), and subclasses as (function, class, arguments). */
static const struct pk_value *tensor_args(const struct pk_value *v, const struct pk_value **ret_fn,
					  const struct pk_value **ret_class)
{
	const struct pk_value *fn = &v->n->own[PK_CALLEE], *args = &v->n->own[PK_ARGS], *f;

	if (pk_is(fn, "torch._utils", "_rebuild_parameter") && (f = fields(args, 1)) &&
	    f[0].type == PK_OBJECT) {
		fn = &f[0].n->own[PK_CALLEE];
		args = &f[0].n->own[PK_ARGS];
	} else if (pk_is(fn, "torch._tensor", "_rebuild_from_type_v2") && (f = fields(args, 3))) {
		fn = &f[0];
		*ret_class = &f[1];
		args = &f[2];
	}
	*ret_fn = fn;
	return args;
}

static void put_shape(struct buf *b, const uint64_t *shape, size_t n)
{
	buf_str(b, "\"shape\": [");
	for (size_t i = 0; i < n; i++)
		buf_printf(b, "%s%llu", i ? ", " : "", (unsigned long long)shape[i]);
	buf_str(b, "]");
}

/* Type and shape. False: v is not a tensor, or not as torch writes one. */
static bool put_tensor(struct buf *b, const struct pk_value *v)
{
	const struct pk_value *fn, *class = NULL, *args = tensor_args(v, &fn, &class);
	const struct pk_value *a = fields(args, 4), *s = a ? storage_of(&a[0]) : NULL;
	enum ckpt_dtype dtype = CKPT_DTYPE_NONE;
	uint64_t shape[CKPT_MAX_DIMS];
	size_t n = 0;

	if (s && (pk_is(fn, "torch._utils", "_rebuild_tensor_v2") ||
		  pk_is(fn, "torch._utils", "_rebuild_tensor") ||
		  pk_is(fn, "torch._utils", "_rebuild_qtensor")))
		dtype = dtype_by_storage(s[1].g->name->data);
	else if (s && pk_is(fn, "torch._utils", "_rebuild_tensor_v3") && pk_len(args) >= 7 &&
		 a[6].type == PK_GLOBAL)
		dtype = ckpt_dtype_by_name(a[6].g->name->data, a[6].g->name->len);
	if (dtype == CKPT_DTYPE_NONE || !pk_numbers(&a[2], shape, CKPT_MAX_DIMS, &n))
		return false;
	if (class)
		put_global(b, "__class__", class);
	else
		put_name(b, "__class__", "torch", "Tensor");
	buf_printf(b, ", \"dtype\": \"%s\", ", dtype_info(dtype)->name);
	put_shape(b, shape, n);
	buf_str(b, "}");
	return true;
}

static void put_storage(struct buf *b, const struct pk_value *v)
{
	const struct pk_value *s = storage_of(v);

	if (!s) {
		buf_str(b, "{\"__class__\": \"?\"}");
		return;
	}
	put_global(b, "__class__", &s[1]);
	buf_printf(b, ", \"size\": %lld}", (long long)s[4].i);
}

/* ---- NumPy's values ---- */

static bool is_numpy(const struct pk_value *fn, const char *name)
{
	return pk_is(fn, "numpy.core.multiarray", name) ||
	       pk_is(fn, "numpy._core.multiarray", name);
}

/* dtype("f8", False, True) with the state (3, "<", ...): "<f8". False: it is not a dtype of
 * numbers. */
static bool numpy_type(const struct pk_value *v, char ret[static 4])
{
	const struct pk_value *f = v->type == PK_OBJECT ? v->n->own : NULL;
	const struct pk_value *args = f ? fields(&f[PK_ARGS], 1) : NULL;
	const struct pk_value *state = f ? fields(&f[PK_STATE], 2) : NULL;

	if (!args || !state || !pk_is(&f[PK_CALLEE], "numpy", "dtype") || args[0].type != PK_STR ||
	    args[0].s->len != 2 || !strchr("biufc", args[0].s->data[0]) ||
	    !strchr("1248", args[0].s->data[1]) || state[1].type != PK_STR ||
	    state[1].s->len != 1 || !strchr("<>|", state[1].s->data[0]))
		return false;
	(void)snprintf(ret, 4, "%s%s", state[1].s->data, args[0].s->data);
	return true;
}

/* _reconstruct(ndarray, (0,), b"b") with the state (1, shape, dtype, Fortran order, bytes) */
static bool put_array(struct buf *b, const struct pk_value *v)
{
	const struct pk_value *f = v->n->own, *state = fields(&f[PK_STATE], 5);
	struct buf bytes = BUF_INIT(b->max);
	uint64_t shape[CKPT_MAX_DIMS];
	char type[4];
	size_t n;
	bool is = state && is_numpy(&f[PK_CALLEE], "_reconstruct") && state[3].type == PK_BOOL &&
		  pk_numbers(&state[1], shape, CKPT_MAX_DIMS, &n) && numpy_type(&state[2], type) &&
		  add_bytes(&state[4], &bytes);

	if (is) {
		put_name(b, "__class__", "numpy", "ndarray");
		buf_printf(b, ", \"dtype\": \"%s\", ", type);
		put_shape(b, shape, n);
		buf_str(b, state[3].i ? ", \"order\": \"F\", " : ", ");
		put_hex(b, &bytes);
	}
	buf_release(&bytes);
	return is;
}

static void put_number(struct buf *b, const char *type, uint64_t bits)
{
	const char *kind = type[1] == 'f' ? "float" : type[1] == 'i' ? "int" : "uint";
	unsigned width = 8u * (unsigned)(type[2] - '0');
	char name[16];
	uint32_t low = (uint32_t)bits;
	double real;
	float single;

	(void)snprintf(name, sizeof(name), "%s%u", kind, width);
	put_name(b, "__class__", "numpy", type[1] == 'b' ? "bool" : name);
	buf_str(b, ", \"value\": ");
	if (type[1] == 'f') {
		memcpy(&real, &bits, sizeof(real));
		memcpy(&single, &low, sizeof(single));
		put_float(b, width == 64 ? real : (double)single);
	} else if (type[1] == 'i') {
		bits <<= 64 - width; /* the sign */
		buf_printf(b, "%lld", (long long)((int64_t)bits >> (64 - width)));
	} else if (type[1] == 'u') {
		buf_u64(b, bits);
	} else {
		buf_str(b, bits ? "true" : "false");
	}
	buf_str(b, "}");
}

/* scalar(dtype, bytes): the number, where it is a float of 4 or 8 bytes, an integer or a bool. */
static bool put_scalar(struct buf *b, const struct pk_value *v)
{
	const struct pk_value *f = v->n->own, *args = fields(&f[PK_ARGS], 2);
	struct buf bytes = BUF_INIT(16);
	uint64_t bits = 0;
	char type[4];
	bool is = args && is_numpy(&f[PK_CALLEE], "scalar") && numpy_type(&args[0], type) &&
		  type[0] != '>' &&
		  (strchr("biu", type[1]) || !strcmp(type + 1, "f8") || !strcmp(type + 1, "f4")) &&
		  add_bytes(&args[1], &bytes) && bytes.len == (size_t)(type[2] - '0');

	for (size_t i = bytes.len; is && i-- > 0;)
		bits = bits << 8 | (uint8_t)bytes.data[i];
	if (is)
		put_number(b, type, bits);
	buf_release(&bytes);
	return is;
}

/* ---- objects ---- */

/* The elements of a set, which protocols below 4 build from a list; NULL: v is not a set. */
static const struct pk_value *set_items(const struct pk_value *v)
{
	const struct pk_value *fn = &v->n->own[PK_CALLEE], *args = &v->n->own[PK_ARGS];

	if (!pk_is(fn, "builtins", "set") && !pk_is(fn, "builtins", "frozenset") &&
	    !pk_is(fn, "__builtin__", "set") && !pk_is(fn, "__builtin__", "frozenset"))
		return NULL;
	if (args->type != PK_TUPLE || pk_len(args) > 1)
		return NULL;
	if (!pk_len(args))
		return &v->n->own[PK_ITEMS];
	return args->n->own[0].type == PK_LIST || args->n->own[0].type == PK_TUPLE
		       ? &args->n->own[0]
		       : NULL;
}

static int put_set(struct buf *b, const struct pk_value *v, const struct pk_value *items,
		   const struct level *at, struct ckpt_err *e)
{
	int rc = 0;

	put_class(b, v);
	buf_str(b, ", \"__items__\": ");
	if (items->type == PK_NONE)
		buf_str(b, "[]");
	else
		rc = put(b, items, at, e);
	buf_str(b, "}");
	return rc;
}

static int put_field(struct buf *b, const char *name, const struct pk_value *v,
		     const struct level *at, struct ckpt_err *e)
{
	buf_printf(b, ", \"%s\": ", name);
	return put(b, v, at, e);
}

static int put_object(struct buf *b, const struct pk_value *v, const struct level *at,
		      struct ckpt_err *e)
{
	const struct pk_value *f = v->n->own, *items = set_items(v);
	int rc = 0;

	if (put_bytes(b, v) || put_tensor(b, v) || put_array(b, v) || put_scalar(b, v))
		return 0;
	if (items)
		return put_set(b, v, items, at, e);
	put_class(b, v);
	if (f[PK_ARGS].type != PK_TUPLE || pk_len(&f[PK_ARGS]))
		rc = put_field(b, "__args__", &f[PK_ARGS], at, e);
	if (!rc && f[PK_STATE].type == PK_DICT && has_names(&f[PK_STATE]))
		rc = put_pairs(b, &f[PK_STATE], false, at, e);
	else if (!rc && f[PK_STATE].type != PK_NONE)
		rc = put_field(b, "__state__", &f[PK_STATE], at, e);
	if (!rc && f[PK_ITEMS].type != PK_NONE)
		rc = put_field(b, "__items__", &f[PK_ITEMS], at, e);
	buf_str(b, "}");
	return rc;
}

/* How many levels up v contains itself; 0: it does not. */
static unsigned cycle(const struct pk_value *v, const struct level *up)
{
	for (unsigned n = 1; up->up; up = up->up, n++)
		if (up->n == v->n)
			return n;
	return 0;
}

static int put_node(struct buf *b, const struct pk_value *v, const struct level *up,
		    struct ckpt_err *e)
{
	const struct level here = { up, v->n, up->depth + 1, up->values };
	unsigned again = v->n ? cycle(v, up) : 0;

	if (again) {
		buf_printf(b, "{\"__cycle__\": %u}", again);
		return 0;
	}
	if (v->type == PK_DICT)
		return put_dict(b, v, &here, e);
	return v->type == PK_OBJECT ? put_object(b, v, &here, e) : put_list(b, v, &here, e);
}

static int put(struct buf *b, const struct pk_value *v, const struct level *up, struct ckpt_err *e)
{
	if (up->depth > MAX_DEPTH)
		return err_set(e, EFBIG, "it nests deeper than %d levels", MAX_DEPTH);
	if (!*up->values)
		return err_set(e, EFBIG, "it has the same values too often for a text");
	--*up->values;
	if (b->err)
		return checked(0, b, e);
	switch (v->type) {
	case PK_NONE:
		buf_str(b, "null");
		return 0;
	case PK_BOOL:
		buf_str(b, v->i ? "true" : "false");
		return 0;
	case PK_INT:
		buf_printf(b, "%lld", (long long)v->i);
		return 0;
	case PK_LONG:
		put_long(b, v->s);
		return 0;
	case PK_FLOAT:
		put_float(b, v->f);
		return 0;
	case PK_STR:
		buf_json_str(b, v->s->data, v->s->len);
		return 0;
	case PK_BYTES:
		(void)put_bytes(b, v);
		return 0;
	case PK_TUPLE:
	case PK_LIST:
	case PK_DICT:
	case PK_OBJECT:
		return put_node(b, v, up, e);
	case PK_PERSID:
		put_storage(b, v);
		return 0;
	case PK_GLOBAL:
		put_global(b, "__global__", v);
		buf_str(b, "}");
		return 0;
	default:
		buf_str(b, skipped);
		return 0;
	}
}

int pickle_json_within(const struct pk_value *v, uint64_t *values, struct buf *ret,
		       struct ckpt_err *e)
{
	const struct level around = { .values = values };

	return checked(put(ret, v, &around, e), ret, e);
}

int pickle_json(const struct pk_value *v, struct buf *ret, struct ckpt_err *e)
{
	uint64_t all = UINT64_MAX;

	return pickle_json_within(v, &all, ret, e);
}

/* Quotes inside strings are escaped. */
bool pickle_json_lacks(const char *text, size_t len)
{
	return len && memmem(text, len, skipped, strlen(skipped));
}

void pickle_json_error(const struct pk_value *v, const char *why, struct buf *ret)
{
	put_class(ret, v);
	buf_str(ret, ", \"__error__\": ");
	buf_json_str(ret, why, strlen(why));
	buf_str(ret, "}");
}

int pickle_key(const struct pk_value *key, struct buf *ret, struct ckpt_err *e)
{
	uint64_t all = UINT64_MAX;
	const struct level around = { .values = &all };

	return checked(key_text(ret, key, &around, e), ret, e);
}
