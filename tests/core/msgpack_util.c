/* SPDX-License-Identifier: Apache-2.0 */
#include "msgpack_util.h"

#include "base/bytes.h"
#include "model/dtype.h"
#include "suites.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static void put_number(struct buf *b, uint8_t mark, uint64_t v, size_t bytes)
{
	buf_add(b, &mark, 1);
	while (bytes-- > 0)
		buf_add(b, &(uint8_t){ (uint8_t)(v >> (8 * bytes)) }, 1);
}

static void put_text(struct buf *b, const char *s, size_t n)
{
	put_number(b, n < 256 ? 0xd9 : 0xdb, n, n < 256 ? 1 : 4);
	buf_add(b, s, n);
}

static void put_real(struct buf *b, double v)
{
	uint64_t u;

	memcpy(&u, &v, sizeof(u));
	put_number(b, 0xcb, u, 8);
}

static void put_bytes(struct buf *b, size_t n)
{
	put_number(b, 0xc6, n, 4);
	for (size_t i = 0; i < n; i++)
		buf_add(b, &(uint8_t){ (uint8_t)i }, 1);
}

static void put_extension(struct buf *b, uint8_t code, struct buf *body)
{
	REQUIRE(!body->err);
	put_number(b, 0xc9, body->len, 4);
	buf_add(b, &code, 1);
	buf_add(b, body->data, body->len);
	buf_release(body);
}

static const char *value(struct buf *b, const char *s);

static const char *skip(const char *s)
{
	return s + strspn(s, " \n\t");
}

static const char *members(struct buf *b, const char *s, bool is_map)
{
	struct buf all = BUF_INIT(1 << 20);
	unsigned n = 0;

	for (s = skip(s + 1); *s != (is_map ? '}' : ']'); n++) {
		s = value(&all, s);
		if (is_map) {
			REQUIRE(*s == ':');
			s = value(&all, s + 1);
		}
		s = skip(s + (*s == ','));
	}
	put_number(b, is_map ? 0xde : 0xdc, n, 2);
	buf_add(b, all.data, all.len);
	buf_release(&all);
	return s + 1;
}

/* @dtype(shape)bytes */
static const char *array(struct buf *b, const char *s)
{
	struct buf body = BUF_INIT(1 << 20);
	size_t name = strcspn(++s, "("), dims = 0;
	enum ckpt_dtype t = ckpt_dtype_by_name(s, name);
	const char *d = s + name + 1;
	int64_t shape[100], bytes = t == CKPT_DTYPE_NONE ? 0 : dtype_info(t)->size;
	char *end;

	for (; *d != ')'; d = end + (*end == ',')) {
		REQUIRE(dims < 100);
		shape[dims] = strtoll(d, &end, 10);
		REQUIRE(end > d);
		bytes = (int64_t)((uint64_t)bytes * (uint64_t)shape[dims++]);
	}
	if (isdigit((unsigned char)*++d)) {
		bytes = strtoll(d, &end, 10);
		d = end;
	}
	put_number(&body, 0xdc, 3, 2);
	put_number(&body, 0xdc, dims, 2);
	for (size_t i = 0; i < dims; i++)
		put_number(&body, 0xd3, (uint64_t)shape[i], 8);
	put_text(&body, s, name);
	put_bytes(&body, (size_t)bytes);
	put_extension(b, 1, &body);
	return d;
}

static const char *complex_number(struct buf *b, const char *s)
{
	struct buf body = BUF_INIT(100);
	char *end;

	put_number(&body, 0xdc, 2, 2);
	put_real(&body, strtod(s + 1, &end));
	REQUIRE(*end == ',');
	put_real(&body, strtod(end + 1, &end));
	put_extension(b, 2, &body);
	return end;
}

static const char *number(struct buf *b, const char *s)
{
	char *end;
	double v = strtod(s, &end);

	REQUIRE(end > s);
	if (memchr(s, '.', (size_t)(end - s)) || strpbrk(s, "ni") == s + (*s == '-'))
		put_real(b, v);
	else
		put_number(b, 0xd3, (uint64_t)strtoll(s, NULL, 10), 8);
	return end;
}

static const char *value(struct buf *b, const char *s)
{
	struct buf none = BUF_INIT(10);
	char *end;

	s = skip(s);
	switch (*s) {
	case '{':
	case '[':
		s = members(b, s, *s == '{');
		break;
	case '\'':
		put_text(b, s + 1, strcspn(s + 1, "'"));
		s += strcspn(s + 1, "'") + 2;
		break;
	case '@':
		s = array(b, s);
		break;
	case 'c':
		s = complex_number(b, s);
		break;
	case 'b':
		put_bytes(b, strtoul(s + 1, &end, 10));
		s = end;
		break;
	case 'u':
		put_number(b, 0xcf, strtoull(s + 1, &end, 10), 8);
		s = end;
		break;
	case 'N':
	case 'T':
	case 'F':
		buf_add(b, *s == 'N' ? "\xc0" : *s == 'T' ? "\xc3" : "\xc2", 1);
		s++;
		break;
	case 'x':
		buf_str(&none, "!");
		put_extension(b, 99, &none);
		s++;
		break;
	default:
		s = number(b, s);
	}
	return skip(s);
}

void msgpack_put(struct buf *b, const char *text)
{
	REQUIRE(!*value(b, text));
}
