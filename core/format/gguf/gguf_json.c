/* SPDX-License-Identifier: Apache-2.0 */
#include "format/gguf/gguf_json.h"

#include "base/buf.h"
#include "base/bytes.h"
#include "parse/gguf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static void put_float(struct buf *b, float f)
{
	char s[32];

	for (int digits = 6; digits <= 9; digits++) {
		(void)snprintf(s, sizeof(s), "%.*g", digits, (double)f);
		if (strtof(s, NULL) == f)
			break;
	}
	buf_str(b, isfinite(f) ? s : "null");
}

static void put_double(struct buf *b, double f)
{
	char s[40];

	for (int digits = 15; digits <= 17; digits++) {
		(void)snprintf(s, sizeof(s), "%.*g", digits, f);
		if (strtod(s, NULL) == f)
			break;
	}
	buf_str(b, isfinite(f) ? s : "null");
}

static void put_array(const struct gguf_value *v, struct buf *b)
{
	enum gguf_type of;
	const uint8_t *p;
	uint64_t n;

	gguf_open_array(v, &of, &n, &p);
	buf_str(b, "[");
	for (uint64_t i = 0; i < n && !b->err; i++) {
		struct gguf_value one = gguf_take(&p, of);

		buf_str(b, i ? ", " : "");
		gguf_json_value(&one, b);
	}
	buf_str(b, "]");
}

void gguf_json_value(const struct gguf_value *v, struct buf *b)
{
	uint32_t bits;
	uint64_t wide;
	float f;
	double d;

	switch (v->type) {
	case GGUF_U8:
		buf_u64(b, *v->p);
		break;
	case GGUF_I8:
		buf_printf(b, "%d", (int8_t)*v->p);
		break;
	case GGUF_U16:
		buf_u64(b, load_le16(v->p));
		break;
	case GGUF_I16:
		buf_printf(b, "%d", (int16_t)load_le16(v->p));
		break;
	case GGUF_U32:
		buf_u64(b, load_le32(v->p));
		break;
	case GGUF_I32:
		buf_printf(b, "%d", (int32_t)load_le32(v->p));
		break;
	case GGUF_U64:
		buf_u64(b, load_le64(v->p));
		break;
	case GGUF_I64:
		buf_printf(b, "%lld", (long long)load_le64(v->p));
		break;
	case GGUF_F32:
		bits = load_le32(v->p);
		memcpy(&f, &bits, sizeof(f));
		put_float(b, f);
		break;
	case GGUF_F64:
		wide = load_le64(v->p);
		memcpy(&d, &wide, sizeof(d));
		put_double(b, d);
		break;
	case GGUF_BOOL:
		buf_str(b, *v->p ? "true" : "false");
		break;
	case GGUF_STR:
		buf_json_str(b, (const char *)v->p, v->len);
		break;
	case GGUF_ARRAY:
		put_array(v, b);
		break;
	}
}
