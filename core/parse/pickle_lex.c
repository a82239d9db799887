/* SPDX-License-Identifier: Apache-2.0 */
#include "parse/pickle_lex.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "base/err.h"
#include "parse/pickle_text.h"

#include <stdlib.h>

enum { WINDOW = 256 * 1024 };

/*
 * Operands by opcode: FIXED(bytes); VAR if a length or lines follow; 0: not accepted. EXT and
 * out-of-band buffers mean nothing outside the program that wrote them.
 */
#define FIXED(n) ((n) + 1)
enum { VAR = 0xff };
static const uint8_t operand[256] = {
	[OP_MARK] = FIXED(0),
	[OP_STOP] = FIXED(0),
	[OP_POP] = FIXED(0),
	[OP_POP_MARK] = FIXED(0),
	[OP_DUP] = FIXED(0),
	[OP_NONE] = FIXED(0),
	[OP_BINPERSID] = FIXED(0),
	[OP_REDUCE] = FIXED(0),
	[OP_APPEND] = FIXED(0),
	[OP_BUILD] = FIXED(0),
	[OP_DICT] = FIXED(0),
	[OP_APPENDS] = FIXED(0),
	[OP_LIST] = FIXED(0),
	[OP_SETITEM] = FIXED(0),
	[OP_OBJ] = FIXED(0),
	[OP_TUPLE] = FIXED(0),
	[OP_SETITEMS] = FIXED(0),
	[OP_EMPTY_DICT] = FIXED(0),
	[OP_EMPTY_LIST] = FIXED(0),
	[OP_EMPTY_TUPLE] = FIXED(0),
	[OP_NEWOBJ] = FIXED(0),
	[OP_TUPLE1] = FIXED(0),
	[OP_TUPLE2] = FIXED(0),
	[OP_TUPLE3] = FIXED(0),
	[OP_NEWTRUE] = FIXED(0),
	[OP_NEWFALSE] = FIXED(0),
	[OP_EMPTY_SET] = FIXED(0),
	[OP_ADDITEMS] = FIXED(0),
	[OP_FROZENSET] = FIXED(0),
	[OP_NEWOBJ_EX] = FIXED(0),
	[OP_STACK_GLOBAL] = FIXED(0),
	[OP_MEMOIZE] = FIXED(0),
	[OP_BININT1] = FIXED(1),
	[OP_BINGET] = FIXED(1),
	[OP_BINPUT] = FIXED(1),
	[OP_PROTO] = FIXED(1),
	[OP_BININT2] = FIXED(2),
	[OP_BININT] = FIXED(4),
	[OP_LONG_BINGET] = FIXED(4),
	[OP_LONG_BINPUT] = FIXED(4),
	[OP_BINFLOAT] = FIXED(8),
	[OP_FRAME] = FIXED(8),
	[OP_FLOAT] = VAR,
	[OP_INT] = VAR,
	[OP_LONG] = VAR,
	[OP_PERSID] = VAR,
	[OP_STRING] = VAR,
	[OP_UNICODE] = VAR,
	[OP_GET] = VAR,
	[OP_PUT] = VAR,
	[OP_INST] = VAR,
	[OP_BINSTRING] = VAR,
	[OP_SHORT_BINSTRING] = VAR,
	[OP_BINUNICODE] = VAR,
	[OP_GLOBAL] = VAR,
	[OP_BINBYTES] = VAR,
	[OP_SHORT_BINBYTES] = VAR,
	[OP_LONG1] = VAR,
	[OP_LONG4] = VAR,
	[OP_SHORT_BINUNICODE] = VAR,
	[OP_BINUNICODE8] = VAR,
	[OP_BINBYTES8] = VAR,
	[OP_BYTEARRAY8] = VAR,
};

/* Size of an opcode's operand if it is fixed, else 0. */
static size_t operand_size(uint8_t op)
{
	return operand[op] && operand[op] != VAR ? operand[op] - 1u : 0;
}

static int out_of_memory(struct ckpt_err *e)
{
	return err_set(e, ENOMEM, "pickle: out of memory");
}

int pk_reader_init(struct pk_reader *r, const struct pickle_input *in, struct ckpt_err *e)
{
	*r = (struct pk_reader){ .in = in };
	if (!in->mem) {
		r->cap = WINDOW;
		r->window = malloc(r->cap);
		if (!r->window)
			return out_of_memory(e);
	}
	pk_reader_rewind(r);
	return 0;
}

void pk_reader_release(struct pk_reader *r)
{
	free(r->window);
	r->window = NULL;
}

void pk_reader_rewind(struct pk_reader *r)
{
	if (r->in->mem) {
		r->p = r->in->mem;
		r->end = r->p + r->in->mem_len;
		r->base = r->in->mem_len;
		r->eof = true;
	} else {
		r->p = r->end = r->window;
		r->base = 0;
		r->eof = false;
	}
}

int pk_reader_fill(struct pk_reader *r, size_t n, struct ckpt_err *e)
{
	size_t have = (size_t)(r->end - r->p);

	if (have >= n)
		return 0;
	if (!r->eof) {
		memmove(r->window, r->p, have);
		if (n > r->cap) {
			size_t cap = (size_t)max_u64(n, 2 * r->cap);
			uint8_t *w = realloc(r->window, cap);

			if (!w)
				return out_of_memory(e);
			r->window = w;
			r->cap = cap;
		}
		r->p = r->window;
		while (have < n) {
			int64_t got = r->in->read(r->in->arg, r->base, r->window + have,
						  r->cap - have, e);

			if (got < 0)
				return (int)got;
			if (!got) {
				r->eof = true;
				break;
			}
			r->base += (uint64_t)got;
			have += (size_t)got;
		}
		r->end = r->window + have;
	}
	if (have < n)
		return err_set(e, ENODATA, "pickle ends too early, at byte %llu",
			       (unsigned long long)r->base);
	return 0;
}

int pk_reader_op(struct pk_reader *r, struct ckpt_err *e)
{
	int rc = pk_reader_fill(r, 1, e);

	return rc ? rc : pk_reader_fill(r, 1 + operand_size(*r->p), e);
}

int pk_reader_skip(struct pk_reader *r, uint64_t n, struct ckpt_err *e)
{
	for (;;) {
		uint64_t have = (uint64_t)(r->end - r->p), step = min_u64(n, have);
		int rc;

		r->p += step;
		n -= step;
		if (!n)
			return 0;
		rc = pk_reader_fill(r, 1, e);
		if (rc)
			return rc;
	}
}

/* 1: the line is longer than max; nothing has been skipped. */
static int find_line(struct pk_reader *r, size_t max, const char **ret, size_t *ret_len,
		     struct ckpt_err *e)
{
	for (size_t seen = 0;;) {
		size_t have = min_u64((size_t)(r->end - r->p), max);
		const uint8_t *newline =
			have > seen ? memchr(r->p + seen, '\n', have - seen) : NULL;
		int rc;

		if (newline) {
			*ret = (const char *)r->p;
			*ret_len = (size_t)(newline - r->p);
			r->p = newline + 1;
			return 0;
		}
		if (have == max)
			return 1;
		seen = have;
		rc = pk_reader_fill(r, have + 1, e);
		if (rc)
			return rc;
	}
}

int pk_reader_line(struct pk_reader *r, const char **ret, size_t *ret_len, struct ckpt_err *e)
{
	int rc = find_line(r, PK_MAX_LINE, ret, ret_len, e);

	if (rc <= 0)
		return rc;
	return err_set(e, ERR_CORRUPT, "pickle: line at byte %llu is longer than %d",
		       (unsigned long long)pk_reader_pos(r), PK_MAX_LINE);
}

static int skip_line(struct pk_reader *r, struct ckpt_err *e)
{
	uint64_t begin = pk_reader_pos(r);

	for (;;) {
		size_t have = (size_t)(r->end - r->p);
		const uint8_t *newline = have ? memchr(r->p, '\n', have) : NULL;
		int rc;

		r->p = newline ? newline + 1 : r->end;
		if (newline)
			return 0;
		if (pk_reader_pos(r) - begin > INT32_MAX)
			return err_set(e, ERR_CORRUPT,
				       "pickle: line at byte %llu is longer than %d",
				       (unsigned long long)begin, INT32_MAX);
		rc = pk_reader_fill(r, 1, e);
		if (rc)
			return rc;
	}
}

int pk_reader_long_line(struct pk_reader *r, size_t max, const char **ret, size_t *ret_len,
			struct ckpt_err *e)
{
	int rc = find_line(r, max, ret, ret_len, e);

	if (rc <= 0)
		return rc;
	rc = skip_line(r, e);
	return rc ? rc : 1;
}

int pk_reader_key(struct pk_reader *r, uint32_t *ret, struct ckpt_err *e)
{
	const char *line;
	size_t len;
	int rc = pk_reader_line(r, &line, &len, e);

	if (rc || pk_text_key(line, len, ret))
		return rc;
	return err_set(e, ERR_CORRUPT,
		       "pickle: memo key that is not a 32-bit number, before byte %llu",
		       (unsigned long long)pk_reader_pos(r));
}

int pk_reader_length(struct pk_reader *r, uint8_t op, uint64_t *ret, struct ckpt_err *e)
{
	size_t width = 4;
	uint64_t n;
	int rc;

	switch (op) {
	case OP_SHORT_BINUNICODE:
	case OP_SHORT_BINBYTES:
	case OP_SHORT_BINSTRING:
	case OP_LONG1:
		width = 1;
		break;
	case OP_BINUNICODE8:
	case OP_BINBYTES8:
	case OP_BYTEARRAY8:
		width = 8;
		break;
	default:
		break;
	}
	rc = pk_reader_fill(r, width, e);
	if (rc)
		return rc;
	n = width == 1 ? r->p[0] : width == 4 ? load_le32(r->p) : load_le64(r->p);
	r->p += width;
	if (n > INT64_MAX || ((op == OP_LONG4 || op == OP_BINSTRING) && n > INT32_MAX))
		return err_set(e, ERR_CORRUPT, "pickle: impossible length %llu at byte %llu",
			       (unsigned long long)n, (unsigned long long)pk_reader_pos(r));
	*ret = n;
	return 0;
}

/* ---- the first pass ---- */

static int get_new(struct pk_memo_plan *m, uint32_t key, const struct pk_reader *r,
		   struct ckpt_err *e)
{
	uint64_t number = pk_memo_number(m, key);

	if (number == PK_MEMO_NONE)
		return err_set(e, ERR_CORRUPT,
			       "pickle: memo entry %u, requested at byte %llu, was never stored",
			       key, (unsigned long long)pk_reader_pos(r));
	return pk_memo_want(m, number, e);
}

static inline int get(struct pk_memo_plan *m, uint32_t key, const struct pk_reader *r,
		      struct ckpt_err *e)
{
	uint64_t number = (uint64_t)key - m->first;

	if (!m->table && number / 64 < m->words && m->wanted[number / 64] >> (number % 64) & 1)
		return 0;
	return get_new(m, key, r, e);
}

/* 1 if the string of n bytes that follows opcode op equals r->until. */
static int is_until(struct pk_reader *r, uint8_t op, uint64_t n, struct ckpt_err *e)
{
	int rc;

	if (!r->until || n != strlen(r->until) ||
	    (op != OP_SHORT_BINUNICODE && op != OP_BINUNICODE))
		return 0;
	rc = pk_reader_fill(r, n, e);
	return rc ? rc : !memcmp(r->p, r->until, n);
}

/* 1: the string was r->until. */
static int skip_var(struct pk_reader *r, uint8_t op, struct ckpt_err *e)
{
	uint64_t n;
	int rc, last;

	if (op && strchr("LPSV", op))
		return skip_line(r, e);
	if (op == OP_GLOBAL || op == OP_INST || op == OP_INT || op == OP_FLOAT) {
		const char *line;
		size_t len;

		rc = pk_reader_line(r, &line, &len, e);
		return rc || op == OP_INT || op == OP_FLOAT ? rc
							    : pk_reader_line(r, &line, &len, e);
	}
	rc = pk_reader_length(r, op, &n, e);
	if (rc)
		return rc;
	last = is_until(r, op, n, e);
	if (last < 0)
		return last;
	if ((size_t)(r->end - r->p) >= n) {
		r->p += n;
		return last;
	}
	return pk_reader_skip(r, n, e);
}

/* Handles rare opcodes; r->p is after the opcode. */
static int scan_op(struct pk_reader *r, uint8_t op, struct pk_memo_plan *m, struct ckpt_err *e)
{
	uint32_t key = 0;
	int rc = 0;

	switch (op) {
	case OP_GET:
		rc = pk_reader_key(r, &key, e);
		return rc ? rc : get(m, key, r, e);
	case OP_PUT:
		rc = pk_reader_key(r, &key, e);
		return rc ? rc : pk_memo_put(m, key, e);
	case OP_PROTO:
		if (*r->p > 5)
			rc = err_set(e, ERR_UNSUPPORTED, "pickle protocol %d is not supported",
				     *r->p);
		break;
	case OP_BINPUT:
	case OP_LONG_BINPUT:
		rc = pk_memo_put(m, op == OP_BINPUT ? *r->p : load_le32(r->p), e);
		break;
	default:
		if (operand[op] == VAR)
			return skip_var(r, op, e);
		if (!operand[op])
			rc = err_set(e, ERR_CORRUPT, "pickle: unknown opcode 0x%02x at byte %llu",
				     op, (unsigned long long)pk_reader_pos(r) - 1);
		break;
	}
	if (!rc)
		r->p += operand_size(op);
	return rc;
}

/*
 * Scans to the STOP (0), or past r->until (1). The cases make up a .metadata: with one branch each,
 * the processor can predict where the next opcode is instead of waiting for this one's length.
 */
static int scan(struct pk_reader *r, struct pk_memo_plan *m, struct ckpt_err *e)
{
	const uint8_t *at = r->p;

	for (;;) {
		uint8_t op;
		int rc;

		if (r->end - at < PK_MAX_FIXED) {
			r->p = at;
			rc = pk_reader_op(r, e);
			if (rc)
				return rc;
			at = r->p;
		}
		op = *at++;
		switch (op) {
		case OP_MEMOIZE:
			rc = pk_memo_put_next(m, e);
			if (rc)
				return rc;
			continue;
		case OP_MARK:
		case OP_EMPTY_TUPLE:
		case OP_EMPTY_DICT:
		case OP_TUPLE1:
		case OP_TUPLE2:
		case OP_REDUCE:
		case OP_NEWOBJ:
		case OP_BUILD:
		case OP_SETITEMS:
			continue;
		case OP_BININT1:
			at += 1;
			continue;
		case OP_BININT2:
			at += 2;
			continue;
		case OP_BINGET:
			r->p = at;
			rc = get(m, *at++, r, e);
			if (rc)
				return rc;
			continue;
		case OP_LONG_BINGET:
			r->p = at;
			rc = get(m, load_le32(at), r, e);
			if (rc)
				return rc;
			at += 4;
			continue;
		case OP_STOP:
			r->p = at;
			return 0;
		default:
			r->p = at;
			rc = scan_op(r, op, m, e);
			if (rc)
				return rc;
			at = r->p;
			continue;
		}
	}
}

int pk_prescan(struct pk_reader *r, size_t max_bytes, struct pk_prescan *ret, struct ckpt_err *e)
{
	struct pk_prescan s = { .memo.max_bytes = max_bytes };
	int rc = scan(r, &s.memo, e);

	s.end = pk_reader_pos(r);
	s.cut = rc == 1;
	if (rc >= 0)
		rc = pk_memo_done(&s.memo, e);
	if (rc)
		pk_memo_release(&s.memo);
	else
		*ret = s;
	return rc;
}
