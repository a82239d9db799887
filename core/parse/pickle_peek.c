/* SPDX-License-Identifier: Apache-2.0 */
#include "base/bytes.h"
#include "parse/pickle_lex.h"

/* The string operand of opcode `op`, or NULL. */
static const char *take_module(struct cursor *c, uint8_t op, size_t *ret_len)
{
	const uint8_t *p = c->p, *newline;

	switch (op) {
	case OP_GLOBAL: /* module and name are lines */
		newline = memchr(p, '\n', (size_t)(c->end - p));
		*ret_len = newline ? (size_t)(newline - p) : 0;
		return newline ? (const char *)p : NULL;
	case OP_SHORT_BINUNICODE: /* module and name are strings, followed by STACK_GLOBAL */
		p = cursor_take(c, 1);
		*ret_len = p ? *p : 0;
		break;
	case OP_BINUNICODE:
		*ret_len = cursor_le32(c);
		break;
	default:
		return NULL;
	}
	return (const char *)cursor_take(c, *ret_len);
}

const char *pickle_first_module(const void *bytes, size_t len, size_t *ret_len)
{
	struct cursor c = cursor_of(bytes, len);

	for (;;) {
		const uint8_t *op = cursor_take(&c, 1);

		if (!op)
			return NULL;
		switch (*op) {
		case OP_PROTO:
			(void)cursor_take(&c, 1);
			break;
		case OP_FRAME:
			(void)cursor_take(&c, 8);
			break;
		default:
			return take_module(&c, *op, ret_len);
		}
	}
}
