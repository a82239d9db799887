/* SPDX-License-Identifier: Apache-2.0 */
#include "parse/pickle_json.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/err.h"
#include "base/text.h"
#include "parse/pickle.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	MAX_DEPTH = 100,
	/* Bytes of a non-string key: inside another key its quotes take twice the space. */
	MAX_KEY = 1 << 20,
};

static int put(struct buf *b, const struct pk_value *v, unsigned depth, struct ckpt_err *e);

static int checked(int rc, const struct buf *b, struct ckpt_err *e)
{
	return !rc && b->err ? err_set(e, b->err, "its text needs more than %zu bytes", b->max)
			     : rc;
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
		buf_printf(b, "%s", isnan(f) ? "NaN" : f < 0 ? "-Infinity" : "Infinity");
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

static int put_list(struct buf *b, const struct pk_value *v, unsigned depth, struct ckpt_err *e)
{
	int rc = 0;

	buf_str(b, "[");
	for (size_t i = 0; !rc && i < pk_len(v); i++) {
		buf_str(b, i ? ", " : "");
		rc = put(b, &v->n->v[i], depth + 1, e);
	}
	buf_str(b, "]");
	return rc;
}

static int key_text(struct buf *b, const struct pk_value *key, unsigned depth, struct ckpt_err *e)
{
	if (key->type != PK_STR)
		return put(b, key, depth, e);
	buf_add(b, key->s->data, key->s->len);
	return 0;
}

/* A key as a string, whatever it is. */
static int put_key(struct buf *b, const struct pk_value *key, unsigned depth, struct ckpt_err *e)
{
	struct buf text = BUF_INIT(key->type == PK_STR ? b->max : min_u64(b->max, MAX_KEY));
	int rc = checked(key_text(&text, key, depth, e), &text, e);

	if (!rc)
		buf_json_str(b, text.data ? text.data : "", text.len);
	buf_release(&text);
	return rc;
}

/* The pairs of a dict; first: no member precedes them in the braces. */
static int put_pairs(struct buf *b, const struct pk_value *v, bool first, unsigned depth,
		     struct ckpt_err *e)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < pk_len(v); i++) {
		const struct pk_value *key = &v->n->v[2 * i];

		buf_str(b, first && !i ? "" : ", ");
		rc = put_key(b, key, depth + 1, e);
		buf_str(b, ": ");
		if (!rc)
			rc = put(b, key + 1, depth + 1, e);
	}
	return rc;
}

static int put_dict(struct buf *b, const struct pk_value *v, unsigned depth, struct ckpt_err *e)
{
	int rc;

	buf_str(b, "{");
	rc = put_pairs(b, v, true, depth, e);
	buf_str(b, "}");
	return rc;
}

/* ---- values that JSON cannot express ---- */

static void put_hex(struct buf *b, const uint8_t *p, size_t n)
{
	buf_str(b, "{\"__class__\": \"builtins.bytes\", \"hex\": \"");
	for (size_t i = 0; i < n; i++)
		buf_printf(b, "%02x", p[i]);
	buf_str(b, "\"}");
}

/* Protocol 2 writes bytes as _codecs.encode(text, 'latin1'). False: v is something else. */
static bool put_latin1(struct buf *b, const struct pk_value *v)
{
	const struct pk_value *args = &v->n->own[PK_ARGS], *a = args->n ? args->n->own : NULL;
	struct buf bytes = BUF_INIT(b->max);
	const char *s, *end;

	if (!pk_is(&v->n->own[PK_CALLEE], "_codecs", "encode") || args->type != PK_TUPLE ||
	    pk_len(args) != 2 || a[0].type != PK_STR || a[1].type != PK_STR ||
	    strcmp(a[1].s->data, "latin1") != 0)
		return false;
	for (s = a[0].s->data, end = s + a[0].s->len; s < end;) {
		uint8_t byte = (uint8_t)text_next(&s, end);

		buf_add(&bytes, &byte, 1);
	}
	put_hex(b, (const uint8_t *)bytes.data, bytes.len);
	if (bytes.err && !b->err)
		b->err = bytes.err;
	buf_release(&bytes);
	return true;
}

static void put_global(struct buf *b, const char *key, const struct pk_value *v)
{
	struct buf name = BUF_INIT(1 << 20);

	if (v->type == PK_GLOBAL) {
		const char *module = v->g->module->data;

		/* the name in protocols below 3 */
		buf_str(&name, strcmp(module, "__builtin__") != 0 ? module : "builtins");
		buf_str(&name, ".");
		buf_str(&name, v->g->name->data);
	}
	buf_printf(b, "{\"%s\": ", key);
	buf_json_str(b, name.len ? name.data : "?", name.len ? name.len : 1);
	if (name.err && !b->err)
		b->err = name.err;
	buf_release(&name);
}

static int put_field(struct buf *b, const char *name, const struct pk_value *v, unsigned depth,
		     struct ckpt_err *e)
{
	buf_printf(b, ", \"%s\": ", name);
	return put(b, v, depth + 1, e);
}

static int put_object(struct buf *b, const struct pk_value *v, unsigned depth, struct ckpt_err *e)
{
	const struct pk_value *f = v->n->own;
	int rc = 0;

	if (put_latin1(b, v))
		return 0;
	put_global(b, "__class__", &f[PK_CALLEE]);
	if (f[PK_ARGS].type != PK_TUPLE || pk_len(&f[PK_ARGS]))
		rc = put_field(b, "__args__", &f[PK_ARGS], depth, e);
	if (!rc && f[PK_STATE].type == PK_DICT)
		rc = put_pairs(b, &f[PK_STATE], false, depth, e);
	else if (!rc && f[PK_STATE].type != PK_NONE)
		rc = put_field(b, "__state__", &f[PK_STATE], depth, e);
	if (!rc && f[PK_ITEMS].type != PK_NONE)
		rc = put_field(b, "__items__", &f[PK_ITEMS], depth, e);
	buf_str(b, "}");
	return rc;
}

static int put(struct buf *b, const struct pk_value *v, unsigned depth, struct ckpt_err *e)
{
	if (depth > MAX_DEPTH)
		return err_set(e, EFBIG, "it nests deeper than %d levels", MAX_DEPTH);
	if (b->err)
		return err_set(e, b->err, "its text needs more than %zu bytes", b->max);
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
		put_hex(b, (const uint8_t *)v->s->data, v->s->len);
		return 0;
	case PK_TUPLE:
	case PK_LIST:
		return put_list(b, v, depth, e);
	case PK_DICT:
		return put_dict(b, v, depth, e);
	case PK_OBJECT:
		return put_object(b, v, depth, e);
	case PK_GLOBAL:
		put_global(b, "__global__", v);
		buf_str(b, "}");
		return 0;
	default:
		buf_str(b, "{\"__class__\": \"?\"}");
		return 0;
	}
}

int pickle_json(const struct pk_value *v, struct buf *ret, struct ckpt_err *e)
{
	return checked(put(ret, v, 0, e), ret, e);
}

int pickle_key(const struct pk_value *key, struct buf *ret, struct ckpt_err *e)
{
	return checked(key_text(ret, key, 0, e), ret, e);
}
