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

struct py {
	const char *s;
	struct emit m;
	unsigned storages; /* of floats: the highest that was named, + 1 */
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

static void value(struct py *p);

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

/* t2+5(2,3): a tensor of that shape on storage 2, from element 5 on; h2+5(2,3): of fp16. */
static void tensor(struct py *p)
{
	bool half = *p->s++ == 'h';
	unsigned storage = (unsigned)number(p), n = 0;
	int64_t offset, size[8] = { 0 }, step = 1, stride[8];
	char key[8];

	REQUIRE(*p->s == '+');
	offset = number(p);
	REQUIRE(*p->s == '(');
	for (p->s++; *p->s != ')'; p->s += *p->s == ',')
		size[n++] = number(p);
	p->s++;
	for (unsigned d = n; d-- > 0; step *= size[d])
		stride[d] = step;
	(void)snprintf(key, sizeof(key), "%u", storage);
	emit_global(&p->m, "torch._utils", "_rebuild_tensor_v2");
	emit_bytes(&p->m, "((", 2);
	emit_str(&p->m, "storage");
	emit_global(&p->m, "torch", half ? "HalfStorage" : "FloatStorage");
	emit_str(&p->m, key);
	emit_str(&p->m, "cuda:3");
	emit_int(&p->m, half ? 2 * ELEMENTS : ELEMENTS);
	emit_bytes(&p->m, "tQ", 2);
	emit_int(&p->m, offset);
	emit_op(&p->m, '(');
	for (unsigned d = 0; d < n; d++)
		emit_int(&p->m, size[d]);
	emit_bytes(&p->m, "t(", 2);
	for (unsigned d = 0; d < n; d++)
		emit_int(&p->m, stride[d]);
	emit_op(&p->m, 't');
	emit_op(&p->m, 0x89);
	emit_global(&p->m, "collections", "OrderedDict");
	emit_bytes(&p->m, ")RtR", 4);
	if (storage >= p->storages)
		p->storages = storage + 1;
}

static void value(struct py *p)
{
	char text[200];
	size_t n;

	skip(p);
	switch (*p->s) {
	case '{':
		emit_op(&p->m, '}');
		values(p, '}', true);
		emit_op(&p->m, 'u');
		return;
	case '[':
		emit_op(&p->m, ']');
		values(p, ']', false);
		emit_op(&p->m, 'e');
		return;
	case '(':
		values(p, ')', false);
		emit_op(&p->m, 't');
		return;
	case '\'':
		n = strcspn(++p->s, "'");
		(void)snprintf(text, sizeof(text), "%.*s", (int)n, p->s);
		p->s += n + 1;
		emit_str(&p->m, text);
		return;
	case 't':
	case 'h':
		tensor(p);
		return;
	case 'A': /* A{'x': 1}: argparse.Namespace(x=1) */
		p->s++;
		emit_object(&p->m, "argparse", "Namespace");
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
		emit_int(&p->m, number(p));
	}
}

void saved_put(int dirfd, const char *path, const char *text, unsigned first)
{
	struct archive a = { .style = { 0 } };
	struct py p = { .s = text, .m = EMIT_INIT(2, false) };

	emit_proto(&p.m);
	value(&p);
	emit_op(&p.m, '.');
	REQUIRE(!p.m.b.err);
	archive_add(&a, "data.pkl", p.m.b.data, p.m.b.len);
	for (unsigned k = 0; k < p.storages; k++) {
		float v[ELEMENTS];
		char name[16];

		for (unsigned i = 0; i < ELEMENTS; i++)
			v[i] = (float)(first + 100 * k + i);
		(void)snprintf(name, sizeof(name), "data/%u", k);
		archive_add(&a, name, v, sizeof(v));
	}
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

void saved_expect(const char *path, const char *format, const char *want)
{
	struct buf b = BUF_INIT(1 << 20);
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
		if (strncmp(o.fqn, "train_state.", 12) && strcmp(o.fqn, "not_shown"))
			buf_printf(&b, "object %s\n", o.fqn);
	}
	buf_str(&b, *warning ? "! " : "");
	buf_str(&b, warning);
	ck_assert_str_eq(b.data, want);
	buf_release(&b);
	ckpt_close(c);
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
