/* SPDX-License-Identifier: Apache-2.0 */
#include "codec/numpy_text.h"

#include "base/buf.h"
#include "base/checked.h"
#include "codec/values.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	PRECISION = 8, /* digits after the point */
	LINE = 75,     /* characters */
	DIGITS = 32,   /* room for the digits of a double */
	WORD = 512,    /* room for a double with 309 digits */
};

/* ---- numbers ---- */

/* The precision of a floating-point type, which determines its text. */
enum precision { HALF, SINGLE, DOUBLE };

static enum precision precision_of(enum ckpt_dtype t)
{
	switch (t) {
	case CKPT_DTYPE_F64:
	case CKPT_DTYPE_C128:
		return DOUBLE;
	case CKPT_DTYPE_F16:
	case CKPT_DTYPE_C32:
		return HALF;
	default:
		return SINGLE;
	}
}

/* Is v the number of that type that is nearest to the decimal number? */
static bool reads_back(const char *text, double v, enum precision p)
{
	if (p == DOUBLE)
		return strtod(text, NULL) == v;
	if (p == SINGLE)
		return strtof(text, NULL) == (float)v;
	/* Half: within half the distance to either neighbour; ties go to the even one. */
	double got = fabs(strtod(text, NULL)), mag = fabs(v), ulp;
	int exp;

	(void)frexp(mag, &exp);
	ulp = ldexp(1, (exp < -13 ? -13 : exp) - 11);
	if (got >= mag)
		return got - mag < ulp / 2 || (got - mag == ulp / 2 && fmod(mag / ulp, 2) == 0);
	/* a power of two: numbers below it are closer together */
	if (mag == ldexp(0.5, exp) && exp > -13)
		return mag - got <= ulp / 4;
	return mag - got < ulp / 2 || (mag - got == ulp / 2 && fmod(mag / ulp, 2) == 0);
}

/* Adds one to the last digit of "1.25e-05". False: all are nines; then fewer digits have
 * sufficed. */
static bool next_above(char *text)
{
	for (char *s = strchr(text, 'e'); s-- > text;) {
		if (*s == '.')
			continue;
		if (*s != '9') {
			(*s)++;
			return true;
		}
		*s = '0';
	}
	return false;
}

/* The shortest digits of a finite magnitude: "12345" means 1.2345 * 10^*exp. */
static void shortest(double v, enum precision p, char digits[static DIGITS], int *exp)
{
	char text[DIGITS];
	size_t n = 0;

	for (int k = 0; k < 17; k++) {
		(void)snprintf(text, sizeof(text), "%.*e", k, v);
		if (reads_back(text, v, p))
			break;
		/*
		 * Numbers below a power of two are closer together than those above it, so that
		 * only the decimal number above it may qualify, which need not be the nearest.
		 */
		if (next_above(text) && reads_back(text, v, p))
			break;
	}
	for (const char *s = text; *s != 'e'; s++)
		if (*s != '.')
			digits[n++] = *s;
	while (n > 1 && digits[n - 1] == '0')
		n--;
	digits[n] = 0;
	*exp = atoi(strchr(text, 'e') + 1);
}

/* Removes trailing zeros after the point, which stays. */
static void trim(char *text)
{
	size_t n = strlen(text);

	while (text[n - 1] == '0')
		text[--n] = 0;
}

static void set_sign(double v, bool plus, char **at)
{
	if (signbit(v))
		*(*at)++ = '-';
	else if (plus)
		*(*at)++ = '+';
}

/* "-12.5", "3."; at most `precision` digits after the point. */
static void positional(double v, enum precision p, int precision, bool plus, char out[static WORD])
{
	char digits[DIGITS], *at = out, *end = out + WORD;
	int exp, n, behind;

	set_sign(v, plus, &at);
	v = fabs(v);
	shortest(v, p, digits, &exp);
	n = (int)strlen(digits);
	behind = n - 1 - exp; /* digits after the point */
	if (behind > precision) {
		(void)snprintf(at, WORD - 1, "%.*f", precision, v);
		trim(at);
		return;
	}
	if (exp >= n && precision == PRECISION) { /* arrays show all digits before the point */
		(void)snprintf(at, WORD - 1, "%.0f.", v);
		return;
	}
	if (exp < 0) {
		(void)snprintf(at, (size_t)(end - at), "0.%.*s%s", -exp - 1, "00000000000000000000",
			       digits);
	} else {
		for (int i = 0; i <= exp; i++)
			*at++ = i < n ? digits[i] : '0';
		(void)snprintf(at, (size_t)(end - at), ".%s", n > exp + 1 ? digits + exp + 1 : "");
	}
}

/*
 * "1.25e-05"; the shortest digits, trimmed, or with `keep` exactly `precision` digits after the
 * point.
 */
static void scientific(double v, enum precision p, int precision, bool keep, int exp_digits,
		       bool plus, char out[static WORD])
{
	char digits[DIGITS], text[DIGITS * 2], *at = out, *e;
	int exp, n;

	set_sign(v, plus, &at);
	v = fabs(v);
	shortest(v, p, digits, &exp);
	n = (int)strlen(digits) - 1;
	if (n == precision || (n < precision && !keep)) {
		(void)snprintf(text, sizeof(text), "%c.%s", digits[0], digits + 1);
	} else { /* all requested digits, which may be more than are needed */
		(void)snprintf(text, sizeof(text), "%#.*e", precision, v);
		e = strchr(text, 'e');
		exp = (int)strtol(e + 1, NULL, 10);
		*e = 0;
	}
	if (!keep)
		trim(text);
	at = stpcpy(at, text);
	(void)snprintf(at, (size_t)(out + WORD - at), exp_digits > 2 ? "e%c%03d" : "e%c%02d",
		       exp < 0 ? '-' : '+', abs(exp) % 1000);
}

/* ---- the common format of an array's numbers, which aligns them in columns ---- */

struct format {
	enum precision of;
	bool plus, exp_format;
	int precision, exp_digits, left, right;
};

static int larger(int a, size_t b)
{
	return a > (int)b ? a : (int)b;
}

static void fit_word(struct format *f, double v)
{
	char word[WORD], *point, *e;

	if (f->exp_format) {
		scientific(v, f->of, PRECISION, false, 0, f->plus, word);
		e = strchr(word, 'e');
		f->exp_digits = larger(f->exp_digits, strlen(e) - 2);
		*e = 0;
	} else {
		positional(v, f->of, PRECISION, f->plus, word);
	}
	point = strchr(word, '.');
	f->left = larger(f->left, (size_t)(point - word));
	f->right = larger(f->right, strlen(point + 1));
}

/* The format for n numbers, `step` apart. */
static struct format format_of(const double *v, size_t n, size_t step, enum precision of, bool plus)
{
	struct format f = { .of = of, .plus = plus };
	double max = 0, min = (double)INFINITY;
	bool any_finite = false, any_odd = false, below = plus;

	for (size_t i = 0; i < n; i++) {
		double x = v[i * step], mag = fabs(x);

		any_finite |= isfinite(x) != 0;
		any_odd |= !isfinite(x);
		below |= isinf(x) && x < 0;
		if (isfinite(x) && x != 0) {
			max = mag > max ? mag : max;
			min = mag < min ? mag : min;
		}
	}
	f.exp_format = max > 0 && (max >= 1e8 || min < 0.0001 ||
				   (of == DOUBLE ? max / min : (double)(float)(max / min)) > 1000);
	for (size_t i = 0; i < n; i++)
		if (isfinite(v[i * step]))
			fit_word(&f, v[i * step]);
	if (f.exp_format) {
		f.precision = f.right;
		f.right += f.exp_digits + 2;
	} else {
		f.precision = PRECISION;
	}
	if (any_odd) {
		int offset = any_finite ? f.right + 1 : 1;

		f.left = larger(
			f.left,
			(size_t)larger(3 - offset > 0 ? 3 - offset : 0,
				       (size_t)(3 + below - offset > 0 ? 3 + below - offset : 0)));
	}
	return f;
}

static char *put_blanks(char *to, int n)
{
	for (; n > 0; n--)
		*to++ = ' ';
	return to;
}

/* Padded with blanks on both sides. */
static void write_number(const struct format *f, double v, char out[static WORD])
{
	char word[WORD];
	const char *point;
	int left, right;

	if (!isfinite(v)) {
		(void)snprintf(word, sizeof(word), "%s%s",
			       isnan(v)	 ? (f->plus ? "+" : "")
			       : v < 0	 ? "-"
			       : f->plus ? "+"
					 : "",
			       isnan(v) ? "nan" : "inf");
		(void)snprintf(out, WORD, "%*s", f->left + f->right + 1, word);
		return;
	}
	if (f->exp_format)
		scientific(v, f->of, f->precision, true, f->exp_digits, f->plus, word);
	else
		positional(v, f->of, f->precision, f->plus, word);
	point = strchr(word, '.');
	left = f->left - (int)(point - word);
	right = f->right - (int)strlen(point + 1);
	out = put_blanks(out, left);
	out = stpcpy(out, word);
	*put_blanks(out, right) = 0;
}

/* ---- arrays ---- */

struct text {
	struct buf *b;
	enum text_form form;
	enum ckpt_dtype type;
	const uint64_t *shape;
	uint64_t *shown;
	size_t n_dims;
	bool summary;
	const uint8_t *next; /* the next element */
	struct format real, imag;
	int width; /* of an integer */
	size_t column;
};

static void integer_text(const struct text *t, const uint8_t *p, char out[static WORD])
{
	double v, rest = 0;
	__int128 whole;

	(void)values_decode(t->type, p, 1, &v, &rest);
	whole = (__int128)v + (__int128)rest;
	if (whole < 0)
		(void)snprintf(out, WORD, "%" PRId64, (int64_t)whole);
	else
		(void)snprintf(out, WORD, "%" PRIu64, (uint64_t)whole);
}

static void bits_text(const uint8_t *p, size_t size, char out[static WORD])
{
	size_t at = (size_t)snprintf(out, WORD, "0x");

	while (size--)
		at += (size_t)snprintf(out + at, WORD - at, "%02x", p[size]);
}

static void element_text(struct text *t, char out[static 2 * WORD])
{
	const struct dtype_info *i = dtype_info(t->type);
	double v[2], rest[2];
	char word[WORD], *end;

	if (t->form == TEXT_BITS) {
		bits_text(t->next, i->size, out);
	} else if (i->is_integer) {
		integer_text(t, t->next, word);
		(void)snprintf(out, WORD, "%*s", t->width, word);
	} else if (t->type == CKPT_DTYPE_BOOL) {
		(void)snprintf(out, WORD, "%s", *t->next ? " True" : "False");
	} else {
		(void)values_decode(t->type, t->next, values_numbers(t->type), v, rest);
		write_number(&t->real, v[0], out);
		if (values_numbers(t->type) == 2) {
			out += strlen(out);
			write_number(&t->imag, v[1], out);
			end = out + strlen(out);
			while (end[-1] == ' ')
				end--;
			memmove(end + 1, end, strlen(end) + 1);
			*end = 'j';
		}
	}
	t->next += i->size;
}

/* Adds a word to the line, or to a new one, which begins with `indent` blanks. */
static void add_word(struct text *t, const char *word, size_t indent, size_t width)
{
	size_t n = strlen(word);

	if (t->column + n > width && t->column > indent) {
		while (t->b->len && t->b->data[t->b->len - 1] == ' ')
			t->b->len--;
		buf_printf(t->b, "\n%*s", (int)indent, "");
		t->column = indent;
	}
	buf_add(t->b, word, n);
	t->column += n;
}

static void add_row(struct text *t, uint64_t n, bool summary, size_t indent, size_t width)
{
	char word[2 * WORD]; /* a complex number has two parts */

	t->column = indent;
	for (uint64_t i = 0; i < n; i++) {
		if (summary && i == NUMPY_TEXT_EDGE) {
			add_word(t, "...", indent, width);
			buf_str(t->b, " ");
			t->column++;
		}
		element_text(t, word);
		add_word(t, word, indent, width);
		if (i + 1 < n) {
			buf_str(t->b, " ");
			t->column++;
		}
	}
}

static void add_array(struct text *t, size_t axis, size_t width)
{
	uint64_t n = t->shown[axis];
	size_t left = t->n_dims - axis, indent = axis + 1;
	bool summary = n < t->shape[axis];

	buf_str(t->b, "[");
	if (left == 1) {
		add_row(t, n, summary, indent, width - 1);
		buf_str(t->b, "]");
		return;
	}
	for (uint64_t i = 0; i < n; i++) {
		if (summary && i == NUMPY_TEXT_EDGE) {
			buf_str(t->b, "...");
			for (size_t k = 1; k < left; k++)
				buf_str(t->b, "\n");
			buf_printf(t->b, "%*s", (int)indent, "");
		}
		add_array(t, axis + 1, width - 1);
		if (i + 1 == n)
			break;
		for (size_t k = 1; k < left; k++)
			buf_str(t->b, "\n");
		buf_printf(t->b, "%*s", (int)indent, "");
	}
	buf_str(t->b, "]");
}

/*
 * A number alone. Unlike those of an array, it does not end with a point: 3. is followed by
 * `after_point` or loses its point, and 1.e-06 becomes 1e-06.
 */
static void add_scalar_number(struct text *t, double v, bool plus, const char *after_point)
{
	enum precision p = precision_of(t->type);
	double mag = fabs(v);
	char word[WORD], *point;

	if (!isfinite(v)) {
		buf_printf(t->b, "%s%s",
			   !isnan(v) && v < 0 ? "-"
			   : plus	      ? "+"
					      : "",
			   isnan(v) ? "nan" : "inf");
		return;
	}
	if (mag != 0 && (mag < 1e-4 || mag >= 1e16)) {
		scientific(v, p, 17, false, 2, plus, word);
		after_point = "";
	} else {
		positional(v, p, WORD, plus, word);
	}
	point = strchr(word, '.');
	if (point[1] != 'e' && point[1]) {
		buf_str(t->b, word);
		return;
	}
	buf_add(t->b, word, (size_t)(point - word));
	if (*after_point)
		buf_printf(t->b, ".%s", after_point);
	buf_str(t->b, point + 1);
}

/* A tensor without dimensions is printed as a number. */
static void add_scalar(struct text *t)
{
	size_t parts = values_numbers(t->type);
	double v[2] = { 0 }, rest[2];
	char word[WORD];

	if (t->form == TEXT_BITS) {
		bits_text(t->next, dtype_info(t->type)->size, word);
		buf_str(t->b, word);
		return;
	}
	if (dtype_info(t->type)->is_integer) {
		integer_text(t, t->next, word);
		buf_str(t->b, word);
		return;
	}
	if (t->type == CKPT_DTYPE_BOOL) {
		buf_str(t->b, *t->next ? "True" : "False");
		return;
	}
	(void)values_decode(t->type, t->next, parts, v, rest);
	if (parts == 1) {
		add_scalar_number(t, v[0], false, "0");
	} else if (v[0] == 0 && !signbit(v[0])) {
		add_scalar_number(t, v[1], false, "");
		buf_str(t->b, "j");
	} else {
		buf_str(t->b, "(");
		add_scalar_number(t, v[0], false, "");
		add_scalar_number(t, v[1], true, "");
		buf_str(t->b, "j)");
	}
}

/* ---- JSON ---- */

static void add_json_number(struct text *t, double v)
{
	enum precision p = precision_of(t->type);
	double mag = fabs(v);
	char word[WORD], digits[DIGITS];
	int exp;

	if (!isfinite(v)) {
		buf_str(t->b, isnan(v) ? "\"nan\"" : v < 0 ? "\"-inf\"" : "\"inf\"");
	} else if (mag != 0 && (mag < 1e-4 || mag >= 1e16)) {
		shortest(mag, p, digits, &exp);
		buf_printf(t->b, "%s%c%s%se%d", v < 0 ? "-" : "", digits[0], digits[1] ? "." : "",
			   digits + 1, exp);
	} else {
		positional(v, p, WORD, false, word);
		buf_str(t->b, word);
		buf_str(t->b, word[strlen(word) - 1] == '.' ? "0" : "");
	}
}

static void add_json_element(struct text *t)
{
	const struct dtype_info *i = dtype_info(t->type);
	double v[2], rest[2];
	char word[WORD];

	if (i->is_integer) {
		integer_text(t, t->next, word);
		buf_str(t->b, word);
	} else if (t->type == CKPT_DTYPE_BOOL) {
		buf_str(t->b, *t->next ? "true" : "false");
	} else {
		(void)values_decode(t->type, t->next, values_numbers(t->type), v, rest);
		if (values_numbers(t->type) == 2) {
			buf_str(t->b, "[");
			add_json_number(t, v[0]);
			buf_str(t->b, ",");
			add_json_number(t, v[1]);
			buf_str(t->b, "]");
		} else {
			add_json_number(t, v[0]);
		}
	}
	t->next += i->size;
}

static void add_json(struct text *t, size_t axis)
{
	if (axis == t->n_dims) {
		add_json_element(t);
		return;
	}
	buf_str(t->b, "[");
	for (uint64_t i = 0; i < t->shape[axis]; i++) {
		buf_str(t->b, i ? "," : "");
		add_json(t, axis + 1);
	}
	buf_str(t->b, "]");
}

bool numpy_text_shown(const uint64_t *shape, size_t n_dims, uint64_t *n)
{
	uint64_t all = 1;
	bool more = false;

	for (size_t k = 0; k < n_dims; k++) {
		more |= shape[k] && all > NUMPY_TEXT_ALL / shape[k];
		all = shape[k] && more ? NUMPY_TEXT_ALL + 1 : all * shape[k];
	}
	more = all > NUMPY_TEXT_ALL;
	for (size_t k = 0; k < n_dims; k++)
		n[k] = more && shape[k] > 2 * NUMPY_TEXT_EDGE ? 2 * NUMPY_TEXT_EDGE : shape[k];
	return more;
}

void numpy_text(struct buf *b, enum text_form form, enum ckpt_dtype t, const uint64_t *shape,
		size_t n_dims, const void *data)
{
	struct text text = {
		.b = b, .form = form, .type = t, .shape = shape, .n_dims = n_dims, .next = data
	};
	const struct dtype_info *info = dtype_info(t);
	size_t parts = form == TEXT_BITS ? 0 : values_numbers(t), n = 1;
	double *values, *rests;

	if (form == TEXT_JSON) {
		add_json(&text, 0);
		return;
	}
	if (!n_dims) {
		add_scalar(&text);
		return;
	}
	text.shown = calloc(n_dims, sizeof(*text.shown));
	if (!text.shown) {
		b->err = ENOMEM;
		return;
	}
	text.summary = numpy_text_shown(shape, n_dims, text.shown);
	for (size_t k = 0; k < n_dims; k++)
		n *= text.shown[k];
	values = calloc(n * parts + 1, sizeof(*values));
	rests = calloc(n * parts + 1, sizeof(*rests));
	if (!values || !rests) {
		b->err = ENOMEM;
	} else if (!n) {
		buf_str(b, "[]");
	} else {
		if (parts)
			(void)values_decode(t, data, n * parts, values, rests);
		for (size_t i = 0; parts && info->is_integer && i < n; i++) {
			char word[WORD];

			integer_text(&text, (const uint8_t *)data + i * info->size, word);
			text.width = larger(text.width, strlen(word));
		}
		if (parts)
			text.real = format_of(values, n, parts, precision_of(t), false);
		if (parts == 2)
			text.imag = format_of(values + 1, n, parts, precision_of(t), true);
		add_array(&text, 0, LINE);
	}
	free(rests);
	free(values);
	free(text.shown);
}
