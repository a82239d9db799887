/* SPDX-License-Identifier: Apache-2.0 */
#include "base/json_out.h"

#include "base/buf.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void new_line(struct json_out *j)
{
	buf_printf(j->to, "\n%*s", (int)(2 * j->depth), "");
}

/* What precedes a value: comma, line break, key. */
static void begin(struct json_out *j, const char *key)
{
	bool lines = j->depth && !j->line;

	if (j->some)
		buf_str(j->to, lines ? "," : ", ");
	if (lines)
		new_line(j);
	if (key) {
		buf_json_str(j->to, key, strlen(key));
		buf_str(j->to, ": ");
	}
	j->some = true;
}

void json_open(struct json_out *j, const char *key, char bracket)
{
	assert(j->depth < JSON_OUT_DEPTH);
	begin(j, key);
	buf_add(j->to, &bracket, 1);
	j->close[j->depth++] = bracket == '{' ? '}' : ']';
	j->some = false;
}

void json_open_line(struct json_out *j, const char *key, char bracket)
{
	json_open(j, key, bracket);
	if (!j->line)
		j->line = j->depth;
}

void json_close(struct json_out *j)
{
	bool lines = j->some && !j->line;

	if (j->line == j->depth)
		j->line = 0;
	j->depth--;
	if (lines)
		new_line(j);
	buf_add(j->to, &j->close[j->depth], 1);
	if (!j->depth)
		buf_str(j->to, "\n");
	j->some = true;
}

void json_str_n(struct json_out *j, const char *key, const char *s, size_t n)
{
	begin(j, key);
	if (s)
		buf_json_str(j->to, s, n);
	else
		buf_str(j->to, "null");
}

void json_str(struct json_out *j, const char *key, const char *s)
{
	json_str_n(j, key, s, s ? strlen(s) : 0);
}

void json_u64(struct json_out *j, const char *key, uint64_t v)
{
	begin(j, key);
	buf_u64(j->to, v);
}

void json_u64s(struct json_out *j, const char *key, const uint64_t *v, size_t n)
{
	begin(j, key);
	buf_json_u64s(j->to, v, n);
}

void json_bool(struct json_out *j, const char *key, bool v)
{
	json_raw(j, key, "%s", v ? "true" : "false");
}

void json_real(struct json_out *j, const char *key, bool known, double v)
{
	if (known && isfinite(v))
		json_raw(j, key, "%.17g", v);
	else
		json_str(j, key, NULL);
}

void json_raw(struct json_out *j, const char *key, const char *fmt, ...)
{
	char text[64];
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	json_raw_n(j, key, text, strlen(text));
}

void json_raw_n(struct json_out *j, const char *key, const char *text, size_t n)
{
	begin(j, key);
	buf_add(j->to, text, n);
}
