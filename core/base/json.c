/* SPDX-License-Identifier: Apache-2.0 */
#include "base/json.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "base/err.h"
#include "base/text.h"
#include "base/vec.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 2048, NO_NODE = UINT32_MAX };
enum { NUMBER_INT, NUMBER_REAL, NUMBER_BIG_INT }; /* jnode.n */

/* ---- numbers ---- */

/* Independent of the locale that the calling program has set. glibc returns its static "C" locale,
 * so there is nothing to free. */
static double real_of(const char *s)
{
	return strtod_l(s, NULL, newlocale(LC_ALL_MASK, "C", (locale_t)0));
}

/* Digits after an optional minus sign. */
static bool int_of(const char *s, int64_t *ret)
{
	bool negative = *s == '-';
	int64_t n = 0;

	for (s += negative; *s >= '0' && *s <= '9'; s++)
		if (ckd_mul(&n, n, 10) || ckd_sub(&n, n, *s - '0'))
			return false;
	if (!negative && n == INT64_MIN)
		return false;
	*ret = negative ? n : -n;
	return true;
}

/* ---- parsing ---- */

struct parser {
	struct jdoc *d;
	char *p, *end;
	unsigned flags;
	uint32_t open; /* innermost container; until it is closed its .n is the enclosing one */
	size_t depth;
	struct ckpt_err *e;
};

static bool is_word(char c)
{
	return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
	       c == '-' || c == '+' || c == '.' || c == '_';
}

/* Reports what is wrong at p. */
static int bad(struct parser *s, const char *what)
{
	const char *end = s->p;
	char shown[64];

	if (s->p == s->end)
		return err_set(s->e, ERR_CORRUPT, "%s near end of file", what);
	while (end < s->end && end - s->p < 20 && is_word(*end))
		end++;
	end += end == s->p;
	return err_set(s->e, ERR_CORRUPT, "%s near '%s'", what,
		       text_show(s->p, (size_t)(end - s->p), shown, sizeof(shown)));
}

static void skip_blanks(struct parser *s)
{
	/* The text is NUL-terminated. */
	for (; *s->p == ' ' || *s->p == '\n' || *s->p == '\t' || *s->p == '\r'; s->p++)
		s->d->line += *s->p == '\n';
}

static int add(struct parser *s, uint32_t at, uint32_t n)
{
	struct jdoc *d = s->d;
	size_t max = d->max ? d->max : JDOC_MAX_VALUES;

	if (d->n == max)
		return err_set(s->e, EFBIG, "more than %zu values", max);
	if (!VEC_ROOM_WITHIN(d->v, d->cap, d->n + 1, max))
		return err_nomem(s->e);
	d->v[d->n++] = (struct jnode){ at, n };
	return 0;
}

/* ---- strings ---- */

static bool hex4(const char *p, uint32_t *ret)
{
	uint32_t v = 0;

	for (int i = 0; i < 4; i++) {
		char c = p[i];

		if (c >= '0' && c <= '9')
			v = v << 4 | (uint32_t)(c - '0');
		else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'))
			v = v << 4 | ((uint32_t)(c | 0x20) - 'a' + 10);
		else
			return false; /* also the NUL behind the text */
	}
	*ret = v;
	return true;
}

/* The character that \uXXXX, or a pair of them, stands for; p is at the backslash. */
static int unicode_escape(struct parser *s, uint32_t *ret)
{
	uint32_t c, low;

	if (!hex4(s->p + 2, &c))
		return bad(s, "invalid escape");
	if (c >= 0xd800 && c <= 0xdbff && s->p[6] == '\\' && s->p[7] == 'u' &&
	    hex4(s->p + 8, &low) && low >= 0xdc00 && low <= 0xdfff) {
		c = 0x10000 + ((c - 0xd800) << 10 | (low - 0xdc00));
		s->p += 6;
	} else if (c >= 0xd800 && c <= 0xdfff && !(s->flags & JDOC_PICKLED)) {
		return bad(s, "a lone surrogate");
	}
	s->p += 6;
	*ret = c;
	return 0;
}

/* p is at the backslash; the character is written to *to, which advances. */
static int escape(struct parser *s, char **to, bool nul_ok)
{
	static const char from[] = "\"\\/bfnrt", means[] = "\"\\/\b\f\n\r\t";
	const char *found = s->p[1] ? strchr(from, s->p[1]) : NULL;
	uint32_t c = 0;
	int rc;

	if (found) {
		*(*to)++ = means[found - from];
		s->p += 2;
		return 0;
	}
	if (s->p[1] != 'u')
		return bad(s, "invalid escape");
	rc = unicode_escape(s, &c);
	if (rc)
		return rc;
	if (!c && !nul_ok)
		return err_set(s->e, ERR_CORRUPT, "a NUL character in a string");
	*to = text_put(*to, c); /* never longer than the escape */
	return 0;
}

/* Length of the UTF-8 character at p. */
static int utf8_bytes(struct parser *s, size_t *ret)
{
	const char *next = s->p;
	uint32_t c = text_next(&next, s->end);

	if (next - s->p == 1 || (c >= 0xd800 && c <= 0xdfff))
		return err_set(s->e, ERR_CORRUPT, "byte 0x%02x is not UTF-8", (uint8_t)*s->p);
	*ret = (size_t)(next - s->p);
	return 0;
}

/* p is at the quote. The decoded string is no longer than its source, so it replaces it. */
static int parse_string(struct parser *s, bool nul_ok)
{
	char *from = s->p++, *to = s->p;
	int rc = 0;

	while (*s->p != '"') {
		size_t n = 1;

		if (*s->p == '\\') {
			rc = escape(s, &to, nul_ok);
			if (rc)
				return rc;
			continue;
		}
		if ((uint8_t)*s->p < 0x20)
			return s->p == s->end ? bad(s, "premature end of input")
					      : err_set(s->e, ERR_CORRUPT,
							"control character 0x%02x in a string",
							(uint8_t)*s->p);
		if ((uint8_t)*s->p >= 0x80)
			rc = utf8_bytes(s, &n);
		if (rc)
			return rc;
		for (; n; n--)
			*to++ = *s->p++;
	}
	*to = 0;
	s->p++;
	return add(s, (uint32_t)(from - s->d->text), (uint32_t)(to - from - 1));
}

/* ---- other scalars ---- */

static char *skip_digits(char *p)
{
	while (*p >= '0' && *p <= '9')
		p++;
	return p;
}

static int parse_number(struct parser *s)
{
	char *from = s->p, *p = from + (*from == '-'), *digits = p;
	uint32_t kind = NUMBER_INT;
	bool ok;
	int64_t n;

	p = skip_digits(p);
	ok = p > digits && (*digits != '0' || p == digits + 1);
	if (ok && *p == '.') {
		digits = ++p;
		p = skip_digits(p);
		ok = p > digits;
		kind = NUMBER_REAL;
	}
	if (ok && (*p == 'e' || *p == 'E')) {
		digits = p += 1 + (p[1] == '-' || p[1] == '+');
		p = skip_digits(p);
		ok = p > digits;
		kind = NUMBER_REAL;
	}
	if (!ok)
		return bad(s, "invalid token");
	if (kind == NUMBER_INT && !int_of(from, &n)) {
		if (!(s->flags & (JDOC_BIG | JDOC_PICKLED)))
			return bad(s, "too big integer");
		kind = s->flags & JDOC_PICKLED ? NUMBER_BIG_INT : NUMBER_REAL;
	}
	if (kind == NUMBER_REAL && isinf(real_of(from)))
		return bad(s, "too big number");
	s->p = p;
	return add(s, (uint32_t)(from - s->d->text), kind);
}

static int parse_word(struct parser *s)
{
	static const char *const words[] = { "null", "false", "true" };
	size_t n = 0;

	while (is_word(s->p[n]))
		n++;
	for (size_t i = 0; i < ARRAY_LEN(words); i++)
		if (bytes_are(s->p, n, words[i])) {
			s->p += n;
			return add(s, (uint32_t)(s->p - n - s->d->text), 0);
		}
	return bad(s, "invalid token");
}

/* The length of a number that Python writes and JSON does not have; 0: there is none here. */
static size_t python_number(const struct parser *s)
{
	static const char *const words[] = { "NaN", "Infinity", "-Infinity" };
	size_t n = 0;

	while (s->flags & JDOC_PYTHON && is_word(s->p[n]))
		n++;
	for (size_t i = 0; i < ARRAY_LEN(words); i++)
		if (bytes_are(s->p, n, words[i]))
			return n;
	return 0;
}

/* ---- objects and arrays ---- */

static const char *string_at(const struct jdoc *d, uint32_t i)
{
	return d->text + d->v[i].at + 1;
}

static bool is_container(const struct jdoc *d, uint32_t i)
{
	char c = d->text[d->v[i].at];

	return c == '{' || c == '[';
}

/* The value after this one, in the same container if there is one. */
static uint32_t behind(const struct jdoc *d, uint32_t i)
{
	return is_container(d, i) ? d->v[i].n : i + 1;
}

static int compare_keys(const struct jdoc *d, uint32_t a, uint32_t b)
{
	size_t an = d->v[a].n, bn = d->v[b].n;

	if (an != bn)
		return an < bn ? -1 : 1;
	return memcmp(string_at(d, a), string_at(d, b), an);
}

static int by_key(const void *ap, const void *bp, void *arg)
{
	return compare_keys(arg, *(const uint32_t *)ap, *(const uint32_t *)bp);
}

/* Checks that the object that ends here has no duplicate keys. Sorting has no slow worst case. */
static int check_keys(struct parser *s, uint32_t object)
{
	enum { FEW = 8 };
	struct jdoc *d = s->d;
	uint32_t few[FEW], *keys = few;
	size_t n = 0, k = 0;
	int rc = 0;

	for (uint32_t i = object + 1; i < d->n; i = behind(d, i + 1))
		n++;
	if (n > FEW)
		keys = malloc(n * sizeof(*keys));
	if (!keys)
		return err_nomem(s->e);
	for (uint32_t i = object + 1; i < d->n; i = behind(d, i + 1))
		keys[k++] = i;
	qsort_r(keys, n, sizeof(*keys), by_key, d);
	for (size_t i = 1; i < n && !rc; i++)
		if (!compare_keys(d, keys[i - 1], keys[i])) {
			char shown[64];

			rc = err_set(s->e, ERR_CORRUPT, "duplicate object key near '\"%s\"'",
				     text_show(string_at(d, keys[i]), d->v[keys[i]].n, shown,
					       sizeof(shown)));
		}
	if (keys != few)
		free(keys);
	return rc;
}

static int open_container(struct parser *s)
{
	uint32_t i = (uint32_t)s->d->n;
	int rc = add(s, (uint32_t)(s->p - s->d->text), s->open);

	if (rc)
		return rc;
	s->open = i;
	s->depth++;
	s->p++;
	return 0;
}

static int close_container(struct parser *s)
{
	uint32_t i = s->open;
	int rc = 0;

	s->p++;
	if (s->d->text[s->d->v[i].at] == '{' && !(s->flags & JDOC_DUPLICATES))
		rc = check_keys(s, i);
	s->open = s->d->v[i].n;
	s->d->v[i].n = (uint32_t)s->d->n;
	s->depth--;
	return rc;
}

/* A value, or the beginning of one. */
static int begin_value(struct parser *s)
{
	size_t n;

	if (s->depth == MAX_DEPTH)
		return bad(s, "maximum parsing depth reached");
	switch (*s->p) {
	case '{':
	case '[':
		return open_container(s);
	case '"':
		return parse_string(s, s->flags & (JDOC_NULS | JDOC_PICKLED));
	default:
		n = python_number(s);
		if (n) {
			s->p += n;
			return add(s, (uint32_t)(s->p - n - s->d->text), NUMBER_REAL);
		}
		return *s->p == '-' || (*s->p >= '0' && *s->p <= '9') ? parse_number(s)
								      : parse_word(s);
	}
}

static int parse_key(struct parser *s, bool first)
{
	int rc;

	if (*s->p != '"')
		return bad(s, first ? "string or '}' expected" : "string expected");
	rc = parse_string(s, s->flags & JDOC_PICKLED);
	if (rc)
		return rc;
	skip_blanks(s);
	if (*s->p != ':')
		return bad(s, "':' expected");
	s->p++;
	skip_blanks(s);
	return 0;
}

/* Parses the end or the next value of the innermost container; `first`: it has no values yet. */
static int step(struct parser *s, bool first)
{
	bool object = s->d->text[s->d->v[s->open].at] == '{';
	int rc = 0;

	if (*s->p == (object ? '}' : ']'))
		return close_container(s);
	if (!first && *s->p != ',')
		return bad(s, object ? "'}' expected" : "']' expected");
	if (!first) {
		s->p++;
		skip_blanks(s);
	}
	if (object)
		rc = parse_key(s, first);
	return rc ? rc : begin_value(s);
}

static int parse(struct parser *s)
{
	int rc;

	skip_blanks(s);
	if (!(s->flags & JDOC_ANY) && *s->p != '{' && *s->p != '[')
		return bad(s, "'[' or '{' expected");
	rc = begin_value(s);
	while (!rc && s->open != NO_NODE) {
		skip_blanks(s);
		rc = step(s, s->d->n - 1 == s->open);
	}
	if (rc || s->flags & JDOC_PREFIX)
		return rc;
	skip_blanks(s);
	return s->p == s->end ? 0 : bad(s, "end of file expected");
}

int jdoc_parse(struct jdoc *d, char *text, size_t len, unsigned flags, struct ckpt_err *e)
{
	struct parser s = {
		.d = d, .p = text, .end = text + len, .flags = flags, .open = NO_NODE, .e = e
	};
	int rc;

	d->text = text;
	d->n = 0;
	d->line = 1;
	text[len] = 0;
	rc = len < UINT32_MAX ? parse(&s) : err_set(e, EFBIG, "%zu bytes of JSON", len);
	d->at = (size_t)(s.p - text);
	if (rc) {
		free(d->v);
		d->v = NULL;
		d->n = d->cap = 0;
	}
	return rc;
}

int jdoc_parse_copy(struct jdoc *d, const char *text, size_t len, unsigned flags,
		    struct ckpt_err *e)
{
	char *copy = malloc(len + 1);
	int rc;

	if (!copy)
		return err_nomem(e);
	if (len)
		memcpy(copy, text, len);
	rc = jdoc_parse(d, copy, len, flags, e);
	if (rc)
		free(copy);
	else
		d->owned = copy;
	return rc;
}

void jdoc_keep(struct jdoc *d, struct jval v)
{
	uint32_t from = v.d ? v.i : 0, end = v.d ? behind(d, from) : 0;
	struct jnode *fewer;

	d->n = end - from;
	for (uint32_t i = from; i < end; i++) {
		d->v[i - from] = d->v[i];
		if (is_container(d, i - from))
			d->v[i - from].n -= from;
	}
	fewer = realloc(d->v, (d->n + 1) * sizeof(*d->v));
	if (fewer) {
		d->v = fewer;
		d->cap = d->n + 1;
	}
}

void jdoc_release(struct jdoc *d)
{
	free(d->v);
	free(d->owned);
	*d = (struct jdoc){ 0 };
}

/* ---- values ---- */

struct jval jdoc_root(const struct jdoc *d)
{
	return (struct jval){ d->n ? d : NULL, 0 };
}

enum jtype jval_type(struct jval v)
{
	if (!v.d)
		return J_NONE;
	switch (v.d->text[v.d->v[v.i].at]) {
	case '{':
		return J_OBJECT;
	case '[':
		return J_ARRAY;
	case '"':
		return J_STRING;
	case 'n':
		return J_NULL;
	case 'f':
		return J_FALSE;
	case 't':
		return J_TRUE;
	default:
		return v.d->v[v.i].n == NUMBER_INT    ? J_INT
		       : v.d->v[v.i].n == NUMBER_REAL ? J_REAL
						      : J_BIG_INT;
	}
}

const char *jval_str(struct jval v)
{
	return jval_is(v, J_STRING) ? string_at(v.d, v.i) : NULL;
}

size_t jval_len(struct jval v)
{
	return jval_is(v, J_STRING) ? v.d->v[v.i].n : 0;
}

bool jval_is_str(struct jval v, const char *s)
{
	return jval_is(v, J_STRING) && !strcmp(string_at(v.d, v.i), s);
}

bool jval_int(struct jval v, int64_t *ret)
{
	return jval_is(v, J_INT) && int_of(v.d->text + v.d->v[v.i].at, ret);
}

bool jval_u64(struct jval v, uint64_t *ret)
{
	const char *s = jval_is(v, J_INT) || jval_is(v, J_REAL) ? v.d->text + v.d->v[v.i].at : "-";
	uint64_t n = 0;

	if (*s < '0' || *s > '9')
		return false;
	for (; *s >= '0' && *s <= '9'; s++)
		if (ckd_mul(&n, n, 10u) || ckd_add(&n, n, (uint64_t)(*s - '0')))
			return false;
	*ret = n;
	return *s != '.' && *s != 'e' && *s != 'E';
}

bool jval_number(struct jval v, double *ret)
{
	if (!jval_is(v, J_INT) && !jval_is(v, J_REAL))
		return false;
	*ret = real_of(v.d->text + v.d->v[v.i].at);
	return true;
}

const char *jval_digits(struct jval v, size_t *ret_len)
{
	char *s;

	if (!jval_is(v, J_INT) && !jval_is(v, J_BIG_INT))
		return NULL;
	s = v.d->text + v.d->v[v.i].at;
	*ret_len = (size_t)(skip_digits(s + (*s == '-')) - s);
	return s;
}

bool jval_u64s(struct jval v, uint64_t *ret, size_t max, size_t *ret_n)
{
	struct jiter i = jiter(v);
	size_t n = 0;
	int64_t x;

	if (!jval_is(v, J_ARRAY))
		return false;
	for (; jiter_next(&i); ret[n++] = (uint64_t)x)
		if (n == max || !jval_int(i.v, &x) || x < 0)
			return false;
	*ret_n = n;
	return true;
}

struct jiter jiter(struct jval v)
{
	enum jtype t = jval_type(v);
	struct jiter i = { .v.d = v.d, .keyed = t == J_OBJECT };

	if (t == J_OBJECT || t == J_ARRAY) {
		i.next = v.i + 1;
		i.end = v.d->v[v.i].n;
	}
	return i;
}

bool jiter_next(struct jiter *i)
{
	if (i->next >= i->end)
		return false;
	if (i->keyed) {
		i->key = string_at(i->v.d, i->next);
		i->key_len = i->v.d->v[i->next++].n;
	}
	i->v.i = i->next;
	i->next = behind(i->v.d, i->next);
	return true;
}

const char *jval_key(struct jval member, size_t *ret_len)
{
	*ret_len = member.d->v[member.i - 1].n;
	return string_at(member.d, member.i - 1);
}

struct jval jval_get(struct jval object, const char *key)
{
	struct jiter i = jiter(object);

	while (i.keyed && jiter_next(&i))
		if (!strcmp(i.key, key))
			return i.v;
	return (struct jval){ 0 };
}

struct jval jval_at(struct jval array, size_t at)
{
	struct jiter i = jiter(array);

	while (!i.keyed && jiter_next(&i))
		if (!at--)
			return i.v;
	return (struct jval){ 0 };
}

size_t jval_size(struct jval v)
{
	struct jiter i = jiter(v);
	size_t n = 0;

	while (jiter_next(&i))
		n++;
	return n;
}
