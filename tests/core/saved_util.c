/* SPDX-License-Identifier: Apache-2.0 */
#include "saved_util.h"

#include "archive_util.h"
#include "base/err.h"
#include "blob_util.h"
#include "opts_util.h"
#include "pickle_util.h"
#include "suites.h"
#include <ckptfs/ckpt.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- files, as Python would show what is in them ---- */

enum { ELEMENTS = 40 }; /* of a storage */
enum { MAX_INTEGERS = 8 };

struct py {
	const char *s;
	struct emit m;
	bool big;	   /* numbers in storages are big-endian */
	unsigned storages; /* of floats: the highest number named, plus 1 */
	struct integers {
		unsigned n, size; /* bytes of one */
		int64_t v[ELEMENTS];
	} integers[MAX_INTEGERS];
	unsigned n_integers;
};

static void skip(struct py *p)
{
	p->s += strspn(p->s, " \n\t");
}

static int64_t number(struct py *p)
{
	char *end;
	int64_t v = strtoll(p->s, &end, 10);

	REQUIRE(end > p->s);
	p->s = end;
	return v;
}

/* of names with dots between them */
#define NAME_CHARACTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_."

static void value(struct py *p);
static void value_named(struct py *p, int64_t id);

/* Stores the value on top of the stack, once. */
static void store(struct py *p, int64_t *id)
{
	if (*id < 0)
		return;
	emit_op(&p->m, 'r');
	emit_bytes(&p->m, &(uint32_t){ (uint32_t)*id }, 4);
	*id = -1;
}

/* Values with commas between them, up to the closing bracket. */
static void values(struct py *p, char close, bool pairs)
{
	p->s++;
	emit_op(&p->m, '(');
	for (skip(p); *p->s != close; skip(p)) {
		value(p);
		skip(p);
		if (pairs) {
			REQUIRE(*p->s == ':');
			p->s++;
			value(p);
			skip(p);
		}
		p->s += *p->s == ',';
	}
	p->s++;
}

/* Numbers in brackets. */
static unsigned numbers(struct py *p, const char *brackets, int64_t *ret, unsigned max)
{
	unsigned n = 0;

	REQUIRE(*p->s == brackets[0]);
	for (p->s++, skip(p); *p->s != brackets[1]; p->s += *p->s == ',', skip(p)) {
		REQUIRE(n < max);
		ret[n++] = number(p);
	}
	p->s++;
	return n;
}

static void emit_numbers(struct emit *m, const int64_t *v, unsigned n)
{
	emit_op(m, '(');
	for (unsigned i = 0; i < n; i++)
		emit_int(m, v[i]);
	emit_op(m, 't');
}

/* The shape and perhaps the strides come next: (2,3), or (2,3)/(1,2). */
static void view(struct py *p, const char *class, const char *key, int64_t count, int64_t offset)
{
	int64_t size[16] = { 0 }, stride[16], step = 1;
	unsigned n = numbers(p, "()", size, 16);

	for (unsigned d = n; d-- > 0; step = (int64_t)((uint64_t)step * (uint64_t)size[d]))
		stride[d] = step;
	if (*p->s == '/') {
		p->s++;
		REQUIRE(numbers(p, "()", stride, 16) == n);
	}
	emit_global(&p->m, "torch._utils", "_rebuild_tensor_v2");
	emit_bytes(&p->m, "((", 2);
	emit_str(&p->m, "storage");
	emit_global(&p->m, "torch", class);
	emit_str(&p->m, key);
	emit_str(&p->m, "cuda:3");
	emit_int(&p->m, count);
	emit_bytes(&p->m, "tQ", 2);
	emit_int(&p->m, offset);
	emit_numbers(&p->m, size, n);
	emit_numbers(&p->m, stride, n);
	emit_op(&p->m, 0x89);
	emit_global(&p->m, "collections", "OrderedDict");
	emit_bytes(&p->m, ")RtR", 4);
}

static void tensor(struct py *p)
{
	bool half = *p->s++ == 'h';
	unsigned storage = (unsigned)number(p);
	int64_t offset;
	char key[16];

	REQUIRE(*p->s == '+');
	offset = number(p);
	(void)snprintf(key, sizeof(key), "%u", storage);
	view(p, half ? "HalfStorage" : "FloatStorage", key, half ? 2 * ELEMENTS : ELEMENTS, offset);
	if (storage >= p->storages)
		p->storages = storage + 1;
}

static void integer_tensor(struct py *p)
{
	struct integers *x = &p->integers[p->n_integers];
	char key[16];

	REQUIRE(p->n_integers < MAX_INTEGERS);
	(void)snprintf(key, sizeof(key), "i%u", p->n_integers++);
	x->size = *p->s++ == 'I' ? 8 : 4;
	x->n = numbers(p, "[]", x->v, ELEMENTS);
	view(p, x->size == 8 ? "LongStorage" : "IntStorage", key, x->n, 0);
}

/* package.module.name, or that called: package.module.name('x', 1) */
static void global(struct py *p)
{
	size_t n = strspn(p->s, NAME_CHARACTERS), dot = n;
	char module[200], name[100];

	while (p->s[dot - 1] != '.')
		dot--;
	(void)snprintf(module, sizeof(module), "%.*s", (int)dot - 1, p->s);
	(void)snprintf(name, sizeof(name), "%.*s", (int)(n - dot), p->s + dot);
	p->s += n;
	emit_global(&p->m, module, name);
	while (*p->s == '(') {
		values(p, ')', false);
		emit_bytes(&p->m, "tR", 2);
	}
}

/* #1=X is X, and #1 the same object again. */
static void shared(struct py *p)
{
	int64_t id;

	p->s++;
	id = number(p);
	if (*p->s != '=') {
		emit_get(&p->m, (uint32_t)id);
		return;
	}
	p->s++;
	value_named(p, id);
}

static void string(struct py *p)
{
	const char quote[] = { *p->s, 0 };
	size_t n = strcspn(++p->s, quote);
	char *text = strndup(p->s, n);

	char *nul;

	REQUIRE(text);
	p->s += n + 1;
	nul = strstr(text, "\\0");
	if (nul) { /* emit_str cannot write it */
		memmove(nul + 1, nul + 2, strlen(nul + 2) + 1);
		*nul = 0;
		emit_op(&p->m, 'X');
		emit_bytes(&p->m, &(uint32_t){ (uint32_t)n - 1 }, 4);
		emit_bytes(&p->m, text, n - 1);
	} else {
		emit_str(&p->m, text);
	}
	free(text);
}

static void real_or_integer(struct py *p)
{
	char *end;
	union {
		double f;
		uint64_t u;
	} v = { strtod(p->s, &end) };

	if (*end == '.' || !memchr(p->s, '.', (size_t)(end - p->s))) {
		emit_int(&p->m, number(p));
		return;
	}
	p->s = end;
	v.u = __builtin_bswap64(v.u);
	emit_op(&p->m, 'G');
	emit_bytes(&p->m, &v.u, 8);
}

/* %00ff: bytes in hexadecimal. */
static void bytes(struct py *p)
{
	size_t n = strspn(++p->s, "0123456789abcdef") / 2;

	emit_op(&p->m, 'C');
	emit_op(&p->m, (uint8_t)n);
	for (size_t i = 0; i < n; i++, p->s += 2) {
		char digits[3] = { p->s[0], p->s[1], 0 };

		emit_op(&p->m, (uint8_t)strtoul(digits, NULL, 16));
	}
}

static void plain_value(struct py *p, int64_t *id)
{
	size_t name = strspn(p->s, NAME_CHARACTERS);

	if (name && (*p->s < '0' || *p->s > '9') && memchr(p->s, '.', name)) {
		global(p);
		return;
	}
	switch (*p->s) {
	case '{':
		emit_op(&p->m, '}');
		store(p, id);
		values(p, '}', true);
		emit_op(&p->m, 'u');
		return;
	case '[':
		emit_op(&p->m, ']');
		store(p, id);
		values(p, ']', false);
		emit_op(&p->m, 'e');
		return;
	case '(':
		values(p, ')', false);
		emit_op(&p->m, 't');
		return;
	case '\'':
	case '"':
		string(p);
		return;
	case '%':
		bytes(p);
		return;
	case '#':
		shared(p);
		return;
	case '&':
		p->s++;
		value(p);
		emit_op(&p->m, 'Q');
		return;
	case 't':
	case 'h':
		tensor(p);
		return;
	case 'I':
	case 'J':
		integer_tensor(p);
		return;
	case 'A': /* A{'x': 1}: argparse.Namespace(x=1) */
		p->s++;
		emit_object(&p->m, "argparse", "Namespace");
		store(p, id);
		value(p);
		emit_op(&p->m, 'b');
		return;
	case 'N':
		p->s++;
		emit_op(&p->m, 'N');
		return;
	case 'T':
		p->s++;
		emit_op(&p->m, 0x88);
		return;
	case 'F':
		p->s++;
		emit_op(&p->m, 0x89);
		return;
	case 'E': /* an object that would do something */
		p->s++;
		emit_global(&p->m, "posix", "system");
		emit_str(&p->m, "false");
		emit_bytes(&p->m, "\x85R}b", 4);
		return;
	case 'Z': /* ZeroStageEnum(2) */
		p->s++;
		emit_global(&p->m, "deepspeed.runtime.zero.config", "ZeroStageEnum");
		emit_int(&p->m, 2);
		emit_bytes(&p->m, "\x85R", 2);
		return;
	default:
		real_or_integer(p);
	}
}

static void value_named(struct py *p, int64_t id)
{
	skip(p);
	plain_value(p, &id);
	store(p, &id);
	if (*p->s == '!') { /* X!state */
		p->s++;
		value(p);
		emit_op(&p->m, 'b');
	}
}

static void value(struct py *p)
{
	value_named(p, -1);
}

/* A storage: numbers of that many bytes. */
static void add_storage(struct archive *a, const struct py *p, const char *key, uint8_t *v,
			size_t n, size_t size)
{
	char name[32];

	for (size_t i = 0; p->big && i < n; i++)
		for (size_t k = 0; k < size / 2; k++) {
			uint8_t first = v[i * size + k];

			v[i * size + k] = v[i * size + size - 1 - k];
			v[i * size + size - 1 - k] = first;
		}
	(void)snprintf(name, sizeof(name), "data/%s", key);
	archive_add(a, name, v, n * size);
}

static void add_storages(struct archive *a, struct py *p, unsigned first)
{
	char key[16];

	for (unsigned k = 0; k < p->storages; k++) {
		float v[ELEMENTS];

		for (unsigned i = 0; i < ELEMENTS; i++)
			v[i] = (float)(first + 100 * k + i);
		(void)snprintf(key, sizeof(key), "%u", k);
		add_storage(a, p, key, (uint8_t *)v, ELEMENTS, sizeof(*v));
	}
	for (unsigned k = 0; k < p->n_integers; k++) {
		struct integers *x = &p->integers[k];
		uint8_t v[sizeof(x->v)];

		for (unsigned i = 0; i < x->n; i++)
			memcpy(v + i * x->size, &x->v[i], x->size);
		(void)snprintf(key, sizeof(key), "i%u", k);
		add_storage(a, p, key, v, x->n, x->size);
	}
}

static void emit_text(struct py *p)
{
	emit_proto(&p->m);
	value(p);
	emit_op(&p->m, '.');
	skip(p);
	REQUIRE(!p->m.b.err && !*p->s);
}

struct buf saved_text_pickle(const char *text)
{
	struct py p = { .s = text, .m = EMIT_INIT(3, false) };

	emit_text(&p);
	return p.m.b;
}

void saved_put(int dirfd, const char *path, const char *text, unsigned first)
{
	struct archive a = { .style = { 0 } };
	struct py p = { .s = text, .m = EMIT_INIT(2, false), .big = *text == '>' };

	p.s += p.big;
	emit_text(&p);
	archive_add(&a, "data.pkl", p.m.b.data, p.m.b.len);
	if (p.big)
		archive_add(&a, "byteorder", "big", 3);
	add_storages(&a, &p, first);
	archive_end(&a);
	put_file(dirfd, path, a.b.data, a.b.len);
	archive_release(&a);
	buf_release(&p.m.b);
}

/* ---- what is read ---- */

static void note(void *arg, const char *what)
{
	(void)snprintf(arg, 600, "%s", what);
}

static int open_saved(const char *path, struct ckpt **ret, char warning[static 600],
		      struct ckpt_err *e)
{
	struct ckpt_opts o = { .index = ":memory:", .warn = note, .warn_arg = warning };

	*warning = 0;
	return open_typed(path, &o, ret, e);
}

static void show_values(struct buf *b, struct ckpt *c, uint64_t i)
{
	struct ckpt_file *f = NULL;
	struct ckpt_tensor t;
	struct ckpt_err e = { 0 };
	uint64_t zero[8] = { 0 };
	float v[200];
	int64_t n;

	ckpt_tensor(c, i, &t);
	buf_printf(b, "%s", t.fqn);
	buf_json_u64s(b, t.shape, t.n_dims);
	if (strcmp(t.dtype, "float32") != 0) {
		buf_printf(b, " %s\n", t.dtype);
		return;
	}
	ck_assert_msg(!ckpt_box_open(c, i, zero, t.shape, &f, &e), "%s", e.msg);
	n = ckpt_file_read(f, v, sizeof(v), 0, &e);
	ck_assert_msg(n >= 0, "%s", e.msg);
	for (int64_t k = 0; k < n / 4; k++)
		buf_printf(b, " %g", (double)v[k]);
	buf_str(b, "\n");
	ckpt_file_close(f);
}

/* What a checkpoint is shown as; the caller releases it. */
static struct buf shown(const char *path, const char *format)
{
	struct buf b = BUF_INIT(16 << 20);
	struct ckpt *c = NULL;
	struct ckpt_totals t;
	struct ckpt_err e = { 0 };
	char warning[600];

	ck_assert_msg(!open_saved(path, &c, warning, &e), "%s", e.msg);
	ckpt_totals(c, &t);
	ck_assert_str_eq(t.format, format);
	buf_str(&b, "");
	for (uint64_t i = 0; i < t.tensors; i++)
		show_values(&b, c, i);
	for (uint64_t i = 0; i < t.objects; i++) {
		struct ckpt_object o;

		ckpt_object(c, i, &o);
		if (strncmp(o.fqn, "train_state.", 12) && strcmp(o.fqn, "not_shown") &&
		    strcmp(o.fqn, "missing"))
			buf_printf(&b, "object %s\n", o.fqn);
	}
	buf_str(&b, *warning ? "! " : "");
	buf_str(&b, warning);
	REQUIRE(!b.err);
	ckpt_close(c);
	return b;
}

void saved_expect(const char *path, const char *format, const char *want)
{
	struct buf b = shown(path, format);

	ck_assert_str_eq(b.data, want);
	buf_release(&b);
}

void saved_expect_begin(const char *path, const char *format, const char *want)
{
	struct buf b = shown(path, format);

	ck_assert_msg(!strncmp(b.data, want, strlen(want)), "%s", b.data);
	buf_release(&b);
}

void saved_expect_warning(const char *path, const char *format, const char *want)
{
	struct buf b = shown(path, format);
	const char *at = strstr(b.data, "\n! ");

	ck_assert_str_eq(at ? at + 1 : "", want);
	buf_release(&b);
}

void saved_expect_error(const char *path, const char *want)
{
	struct ckpt *c = NULL;
	struct ckpt_err e = { 0 };
	char warning[600];

	ck_assert_int_lt(open_saved(path, &c, warning, &e), 0);
	ck_assert_msg(strstr(e.msg, want) != NULL, "%s", e.msg);
	ck_assert_ptr_null(c);
}

void saved_expect_not(const char *path, const char *format)
{
	struct ckpt *c = NULL;
	struct ckpt_totals t;
	struct ckpt_err e = { 0 };
	char warning[600];

	if (open_saved(path, &c, warning, &e))
		return;
	ckpt_totals(c, &t);
	ck_assert_str_ne(t.format, format);
	ckpt_close(c);
}
