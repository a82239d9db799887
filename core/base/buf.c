/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buf.h"

#include "base/bytes.h"
#include "base/err.h"
#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void buf_release(struct buf *b)
{
	free(b->data);
	*b = (struct buf)BUF_INIT(b->max);
}

int buf_check(const struct buf *b, struct ckpt_err *e, const char *fmt, ...)
{
	char why[sizeof(e->msg)];
	va_list ap;

	if (!b->err)
		return 0;
	if (b->err != EFBIG)
		return err_nomem(e);
	va_start(ap, fmt);
	(void)vsnprintf(why, sizeof(why), fmt, ap);
	va_end(ap);
	return err_set(e, EFBIG, "%s", why);
}

void buf_restart(struct buf *b)
{
	b->len = 0;
	if (b->data)
		b->data[0] = 0;
	if (b->err == EFBIG)
		b->err = 0;
}

void *buf_room(struct buf *b, size_t n)
{
	size_t need, cap = b->cap ? b->cap : 64;
	char *p;

	if (b->err)
		return NULL;
	if (n > b->max || b->len > b->max - n) {
		b->err = EFBIG;
		return NULL;
	}
	need = b->len + n + 1;
	if (need > b->cap) {
		while (cap < need)
			cap += cap / 2 + 64;
		p = realloc(b->data, cap);
		if (!p) {
			b->err = ENOMEM;
			return NULL;
		}
		b->data = p;
		b->cap = cap;
	}
	b->data[b->len + n] = 0;
	return b->data + b->len;
}

void buf_add(struct buf *b, const void *p, size_t n)
{
	void *to = buf_room(b, n);

	if (to && n) {
		memcpy(to, p, n);
		b->len += n;
	}
}

void buf_str(struct buf *b, const char *s)
{
	buf_add(b, s, strlen(s));
}

void buf_u64(struct buf *b, uint64_t v)
{
	char tmp[20];
	size_t i = sizeof(tmp);

	do {
		tmp[--i] = (char)('0' + v % 10);
	} while (v /= 10);
	buf_add(b, tmp + i, sizeof(tmp) - i);
}

void buf_varint(struct buf *b, uint64_t v)
{
	uint8_t bytes[10];

	buf_add(b, bytes, put_varint(bytes, v));
}

void buf_printf(struct buf *b, const char *fmt, ...)
{
	va_list ap;
	char *to;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(NULL, 0, fmt, ap);
	va_end(ap);
	if (n < 0) {
		b->err = EINVAL;
		return;
	}
	to = buf_room(b, (size_t)n);
	if (!to)
		return;
	va_start(ap, fmt);
	(void)vsnprintf(to, (size_t)n + 1, fmt, ap);
	va_end(ap);
	b->len += (size_t)n;
}

/* Number of bytes at s that need no escape in a JSON string: nearly always all. */
static size_t plain_run(const char *s, const char *end)
{
	const char *p = s;

	while (p < end && *p >= 0x20 && *p < 0x7f && *p != '"' && *p != '\\')
		p++;
	return (size_t)(p - s);
}

static void json_char(struct buf *b, uint32_t c)
{
	if (c == '"' || c == '\\')
		buf_printf(b, "\\%c", (int)c);
	else if (c >= 0x10000)
		buf_printf(b, "\\u%04x\\u%04x", 0xd800 + ((c - 0x10000) >> 10),
			   0xdc00 + ((c - 0x10000) & 0x3ff));
	else
		buf_printf(b, "\\u%04x", c);
}

void buf_json_str(struct buf *b, const char *s, size_t n)
{
	const char *end = s + n;

	buf_str(b, "\"");
	while (s < end && !b->err) {
		size_t run = plain_run(s, end);

		buf_add(b, s, run);
		s += run;
		if (s < end)
			json_char(b, text_next(&s, end));
	}
	buf_str(b, "\"");
}

void buf_json_u64s(struct buf *b, const uint64_t *v, size_t n)
{
	buf_str(b, "[");
	for (size_t i = 0; i < n; i++) {
		if (i)
			buf_str(b, ",");
		buf_u64(b, v[i]);
	}
	buf_str(b, "]");
}
