/* SPDX-License-Identifier: Apache-2.0 */
#include "parse/pickle.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "parse/pickle_internal.h"
#include "parse/pickle_text.h"

#include <errno.h>
#include <stdlib.h>

/* ---- opcodes with operands ---- */

static int push_opaque(struct pickle *p, struct ckpt_err *e)
{
	return pk_push(p, (struct pk_value){ .type = PK_OPAQUE }, e);
}

/* After pk_intern has failed: may this string become PK_OPAQUE? */
static bool may_miss(const struct pickle *p, uint64_t n)
{
	return p->keep_long && n > PK_MAX_STRING && errno == EFBIG;
}

static size_t longest_string(const struct pickle *p)
{
	return p->keep_long ? PK_LONG_STRING : PK_MAX_STRING;
}

/* Pushes the next n bytes, which are readable. */
static int push_string(struct pickle *p, enum pk_type type, uint64_t n, struct ckpt_err *e)
{
	const struct pk_str *s = pk_intern(p->strings, (const char *)p->in.p, n);

	if (!s && !may_miss(p, n))
		return pk_no_string(p, e);
	p->in.p += n;
	if (!s)
		return push_opaque(p, e);
	return pk_push(p, (struct pk_value){ .type = type, .s = s }, e);
}

static int op_string(struct pickle *p, uint8_t op, struct ckpt_err *e)
{
	bool text = op == OP_SHORT_BINUNICODE || op == OP_BINUNICODE || op == OP_BINUNICODE8 ||
		    op == OP_BINSTRING || op == OP_SHORT_BINSTRING;
	uint64_t n;
	int rc = pk_reader_length(&p->in, op, &n, e);

	if (rc)
		return rc;
	if (n > longest_string(p)) {
		if (text && !p->keep_long)
			return err_set(e, EFBIG,
				       "pickle: a string of %llu bytes is too long, at byte %llu",
				       (unsigned long long)n,
				       (unsigned long long)pk_reader_pos(&p->in));
		rc = pk_reader_skip(&p->in, n, e);
		return rc ? rc : push_opaque(p, e);
	}
	rc = pk_reader_fill(&p->in, n, e);
	if (rc)
		return rc;
	if (p->plan.cut && pk_reader_pos(&p->in) + n == p->plan.end) {
		p->in.p += n;
		return 1;
	}
	return push_string(p, text ? PK_STR : PK_BYTES, n, e);
}

/* An integer of `n` bytes, two's complement, not more than PK_TEXT_LONG. */
static int push_long(struct pickle *p, const uint8_t *bytes, size_t n, struct ckpt_err *e)
{
	const struct pk_str *s;
	uint64_t v = 0;

	if (n > 8) {
		s = pk_intern(p->strings, (const char *)bytes, n);
		return s ? pk_push(p, (struct pk_value){ .type = PK_LONG, .s = s }, e)
			 : pk_no_string(p, e);
	}
	for (size_t i = 0; i < n; i++)
		v |= (uint64_t)bytes[i] << (8 * i);
	if (n && n < 8 && bytes[n - 1] & 0x80)
		v |= ~(uint64_t)0 << (8 * n);
	return pk_push_int(p, (int64_t)v, e);
}

static int op_long(struct pickle *p, uint8_t op, struct ckpt_err *e)
{
	uint64_t n;
	int rc = pk_reader_length(&p->in, op, &n, e);

	if (rc)
		return rc;
	if (n > UINT8_MAX) {
		rc = pk_reader_skip(&p->in, n, e);
		return rc ? rc : push_opaque(p, e);
	}
	rc = pk_reader_fill(&p->in, n, e);
	if (rc)
		return rc;
	rc = push_long(p, p->in.p, n, e);
	p->in.p += n;
	return rc;
}

/* A line of decimal digits. "00" and "01" were False and True before protocol 2. */
static int op_int(struct pickle *p, struct ckpt_err *e)
{
	const char *line;
	size_t len, at;
	int64_t v = 0;
	bool minus, bad;
	int rc = pk_reader_line(&p->in, &line, &len, e);

	if (rc)
		return rc;
	if (len == 2 && line[0] == '0' && (line[1] == '0' || line[1] == '1'))
		return pk_push(p, (struct pk_value){ .type = PK_BOOL, .i = line[1] == '1' }, e);
	minus = len && line[0] == '-';
	bad = len == minus;
	for (at = minus; at < len && !bad; at++) {
		int digit = line[at] - '0';

		bad = digit < 0 || digit > 9 || ckd_mul(&v, v, 10) ||
		      (minus ? ckd_sub(&v, v, digit) : ckd_add(&v, v, digit));
	}
	return bad ? pk_bad(p, "INT that is not a 64-bit number", e) : pk_push_int(p, v, e);
}

static int op_global(struct pickle *p, struct ckpt_err *e)
{
	const struct pk_str *module, *name;
	const char *line;
	size_t len;
	int rc = pk_reader_line(&p->in, &line, &len, e);

	if (rc)
		return rc;
	module = pk_intern(p->strings, line, len);
	if (!module)
		return pk_no_string(p, e);
	rc = pk_reader_line(&p->in, &line, &len, e);
	if (rc)
		return rc;
	name = pk_intern(p->strings, line, len);
	return name ? pk_add_global(p, module, name, e) : pk_no_string(p, e);
}

static int op_stack_global(struct pickle *p, struct ckpt_err *e)
{
	if (!pk_has(p, 2))
		return pk_need(p, 2, e);
	if (p->stack[p->n - 1].type != PK_STR || p->stack[p->n - 2].type != PK_STR)
		return pk_bad(p, "global whose name is not a string", e);
	p->n -= 2;
	return pk_add_global(p, p->stack[p->n].s, p->stack[p->n + 1].s, e);
}

/* ---- memo ---- */

static int memo_store(struct pickle *p, uint32_t at, struct ckpt_err *e)
{
	if (!pk_has(p, 1))
		return pk_need(p, 1, e);
	pk_ref(&p->stack[p->n - 1]);
	pk_drop(p, &p->memo[at]);
	p->memo[at] = p->stack[p->n - 1];
	return 0;
}

static int memo_store_next(struct pickle *p, struct ckpt_err *e)
{
	int rc = memo_store(p, p->n_memo, e);

	p->n_memo++;
	p->next_wanted = pk_memo_next(&p->plan.memo, p->next_wanted + 1);
	return rc;
}

/* A PUT when the keys are not consecutive. */
static int memo_put_any(struct pickle *p, uint32_t key, struct ckpt_err *e)
{
	uint64_t number = pk_memo_number(&p->plan.memo, key);
	uint32_t place = pk_memo_place(&p->plan.memo, number);

	p->n_stored += number == p->n_stored;
	return place ? memo_store(p, place - 1, e) : 0;
}

static inline int memo_put(struct pickle *p, uint32_t key, struct ckpt_err *e)
{
	if (p->plan.memo.table)
		return memo_put_any(p, key, e);
	return p->n_stored++ == p->next_wanted ? memo_store_next(p, e) : 0;
}

static inline int memo_get(struct pickle *p, uint32_t key, struct ckpt_err *e)
{
	struct pk_memo_place *known = &p->places[key % PK_PLACES];
	const struct pk_value *v;

	if (known->key != key || !known->place) {
		known->key = key;
		known->place = pk_memo_place(&p->plan.memo, pk_memo_number(&p->plan.memo, key));
	}
	v = known->place ? &p->memo[known->place - 1] : NULL;
	/* An input that changed between the passes may request any entry. */
	if (!v || (v->type == PK_STR && !v->s))
		return pk_bad(p, "memo entry that was never stored", e);
	pk_ref(v);
	return pk_push(p, *v, e);
}

/* ---- opcodes of protocols 0 and 1, whose operands are lines ---- */

static int op_text_float(struct pickle *p, struct ckpt_err *e)
{
	const char *line;
	size_t len;
	double f;
	int rc = pk_reader_line(&p->in, &line, &len, e);

	if (rc)
		return rc;
	if (!pk_text_float(line, len, &f))
		return pk_bad(p, "FLOAT that is not a number", e);
	return pk_push(p, (struct pk_value){ .type = PK_FLOAT, .f = f }, e);
}

static int op_text_long(struct pickle *p, struct ckpt_err *e)
{
	uint8_t bytes[PK_TEXT_LONG];
	const char *line;
	size_t len, n;
	int rc = pk_reader_long_line(&p->in, PK_MAX_STRING, &line, &len, e);

	if (rc < 0)
		return rc;
	if (rc || len > PK_TEXT_DIGITS)
		n = 0;
	else if (!pk_text_long(line, len, bytes, &n))
		return pk_bad(p, "LONG that is not a number", e);
	return n ? push_long(p, bytes, n, e) : push_opaque(p, e);
}

/* STRING, UNICODE, and the id of PERSID. */
static int op_text_string(struct pickle *p, uint8_t op, struct ckpt_err *e)
{
	const struct pk_str *s;
	autofree char *text = NULL;
	const char *line;
	size_t len;
	bool good;
	int rc = pk_reader_long_line(&p->in, longest_string(p), &line, &len, e);

	if (rc < 0)
		return rc;
	if (rc && !p->keep_long)
		return err_set(e, EFBIG, "pickle: string of more than %u bytes before byte %llu",
			       PK_MAX_STRING, (unsigned long long)pk_reader_pos(&p->in));
	if (rc)
		return push_opaque(p, e);
	if (op != OP_PERSID) {
		text = malloc(2 * len + 1);
		if (!text)
			return err_set(e, ENOMEM, "pickle: out of memory");
		good = op == OP_STRING ? pk_text_string(line, len, text, &len)
				       : pk_text_unicode(line, len, text, &len);
		if (!good)
			return pk_bad(p, "string that is not quoted as Python quotes it", e);
		line = text;
	}
	s = pk_intern(p->strings, line, len);
	if (!s)
		return may_miss(p, len) ? push_opaque(p, e) : pk_no_string(p, e);
	return pk_push(p, (struct pk_value){ .type = PK_STR, .s = s }, e);
}

/* INST: the class's module and name; the arguments are above a mark. */
static int op_inst(struct pickle *p, struct ckpt_err *e)
{
	struct pk_value args;
	size_t from = 0;
	int rc = pk_mark_pop(p, &from, e);

	if (!rc)
		rc = pk_make_tuple(p, p->n - from, e);
	if (!rc)
		rc = op_global(p, e);
	if (rc)
		return rc;
	args = p->stack[p->n - 2];
	p->stack[p->n - 2] = p->stack[p->n - 1];
	p->stack[p->n - 1] = args;
	return pk_make_object(p, false, e);
}

static int op_text(struct pickle *p, uint8_t op, struct ckpt_err *e)
{
	uint32_t key;
	int rc;

	switch (op) {
	case OP_FLOAT:
		return op_text_float(p, e);
	case OP_LONG:
		return op_text_long(p, e);
	case OP_GET:
		rc = pk_reader_key(&p->in, &key, e);
		return rc ? rc : memo_get(p, key, e);
	case OP_PUT:
		rc = pk_reader_key(&p->in, &key, e);
		return rc ? rc : memo_put(p, key, e);
	case OP_INST:
		return op_inst(p, e);
	case OP_PERSID:
		rc = op_text_string(p, op, e);
		return rc ? rc : pk_make_persid(p, e);
	default:
		return op_text_string(p, op, e);
	}
}

/* ---- the machine ---- */

static int op_pop(struct pickle *p, struct ckpt_err *e)
{
	size_t ignore;

	if (p->n_marks && p->floor == p->n)
		return pk_mark_pop(p, &ignore, e);
	if (!pk_has(p, 1))
		return pk_need(p, 1, e);
	pk_drop_from(p, p->n - 1);
	return 0;
}

static int op_dup(struct pickle *p, struct ckpt_err *e)
{
	struct pk_value v;

	if (!pk_has(p, 1))
		return pk_need(p, 1, e);
	v = p->stack[p->n - 1];
	pk_ref(&v);
	return pk_push(p, v, e);
}

/* The opcodes that run() does not handle itself. Operands of fixed size are readable at p->in.p. */
static int step(struct pickle *p, uint8_t op, struct ckpt_err *e)
{
	double f;
	uint64_t u;
	int rc;

	switch (op) {
	case OP_BINPUT:
		return memo_put(p, *p->in.p++, e);
	case OP_LONG_BINPUT:
		p->in.p += 4;
		return memo_put(p, load_le32(p->in.p - 4), e);
	case OP_LONG1:
	case OP_LONG4:
		return op_long(p, op, e);
	case OP_BINFLOAT:
		u = load_be64(p->in.p);
		p->in.p += 8;
		memcpy(&f, &u, sizeof(f));
		return pk_push(p, (struct pk_value){ .type = PK_FLOAT, .f = f }, e);
	case OP_NEWTRUE:
	case OP_NEWFALSE:
		return pk_push(p, (struct pk_value){ .type = PK_BOOL, .i = op == OP_NEWTRUE }, e);
	case OP_SHORT_BINUNICODE:
	case OP_BINUNICODE:
	case OP_BINUNICODE8:
	case OP_BINSTRING:
	case OP_SHORT_BINSTRING:
	case OP_SHORT_BINBYTES:
	case OP_BINBYTES:
	case OP_BINBYTES8:
	case OP_BYTEARRAY8:
		return op_string(p, op, e);
	case OP_INT:
		return op_int(p, e);
	case OP_FLOAT:
	case OP_LONG:
	case OP_PERSID:
	case OP_STRING:
	case OP_UNICODE:
	case OP_GET:
	case OP_PUT:
	case OP_INST:
		return op_text(p, op, e);
	case OP_GLOBAL:
		return op_global(p, e);
	case OP_STACK_GLOBAL:
		return op_stack_global(p, e);
	case OP_EMPTY_LIST:
		return pk_push_node(p, PK_LIST, pk_node_new(p, 0), e);
	case OP_EMPTY_SET:
		return pk_make_set(p, "set", e);
	case OP_TUPLE:
	case OP_LIST:
	case OP_DICT:
	case OP_OBJ:
	case OP_APPENDS:
	case OP_ADDITEMS:
	case OP_FROZENSET:
	case OP_POP_MARK:
		return pk_marked(p, op, e);
	case OP_SETITEM:
		return pk_has(p, 3) ? pk_set_items(p, p->n - 2, e) : pk_need(p, 3, e);
	case OP_APPEND:
		return pk_has(p, 2) ? pk_append_items(p, p->n - 1, e) : pk_need(p, 2, e);
	case OP_NEWOBJ_EX:
		rc = pk_need(p, 3, e);
		if (rc)
			return rc;
		pk_drop_from(p, p->n - 1); /* keyword arguments */
		return pk_make_object(p, false, e);
	case OP_BINPERSID:
		return pk_make_persid(p, e);
	case OP_POP:
		return op_pop(p, e);
	case OP_DUP:
		return op_dup(p, e);
	case OP_PROTO:
		p->in.p += 1;
		return 0;
	case OP_FRAME:
		p->in.p += 8;
		return 0;
	default:
		return pk_bad(p, "unknown opcode", e); /* unreachable: the first pass refuses it */
	}
}

/*
 * The name of the unwanted attribute has been read. The object's state is what is on the stack:
 * "object, dict, MARK, name, value, name, value".
 */
static int close_early(struct pickle *p, struct ckpt_err *e)
{
	int rc;

	if (p->n_marks != 1 || p->marks[0] != 2 || p->n % 2 || p->stack[0].type != PK_OBJECT ||
	    p->stack[1].type != PK_DICT)
		return err_set(e, ECANCELED, "pickle: '%s' at byte %llu is not an attribute's name",
			       p->in.until, (unsigned long long)pk_reader_pos(&p->in));
	rc = pk_marked(p, OP_SETITEMS, e);
	return rc ? rc : pk_build(p, e);
}

/* Handles the opcodes that make up 99 % of torch's .metadata; step() handles the others. */
static int run(struct pickle *p, struct ckpt_err *e)
{
	struct pk_reader *in = &p->in;

	for (;;) {
		int rc = in->end - in->p < PK_MAX_FIXED ? pk_reader_op(in, e) : 0;
		uint8_t op;

		if (rc)
			return rc;
		op = *in->p++;
		switch (op) {
		case OP_STOP:
			return 0;
		case OP_MEMOIZE:
			rc = memo_put(p, (uint32_t)p->n_stored, e);
			break;
		case OP_BINGET:
			rc = memo_get(p, *in->p++, e);
			break;
		case OP_LONG_BINGET:
			in->p += 4;
			rc = memo_get(p, load_le32(in->p - 4), e);
			break;
		case OP_BININT1:
			rc = pk_push_int(p, *in->p++, e);
			break;
		case OP_BININT2:
			in->p += 2;
			rc = pk_push_int(p, load_le16(in->p - 2), e);
			break;
		case OP_BININT:
			in->p += 4;
			rc = pk_push_int(p, (int32_t)load_le32(in->p - 4), e);
			break;
		case OP_NONE:
			rc = pk_push(p, (struct pk_value){ .type = PK_NONE }, e);
			break;
		case OP_EMPTY_TUPLE:
			rc = pk_push(p, (struct pk_value){ .type = PK_TUPLE }, e);
			break;
		case OP_TUPLE1:
			rc = pk_make_tuple(p, 1, e);
			break;
		case OP_TUPLE2:
			rc = pk_make_tuple(p, 2, e);
			break;
		case OP_TUPLE3:
			rc = pk_make_tuple(p, 3, e);
			break;
		case OP_EMPTY_DICT:
			rc = pk_push_node(p, PK_DICT, pk_node_new(p, 0), e);
			break;
		case OP_MARK:
			rc = pk_mark_push(p, e);
			break;
		case OP_SETITEMS:
			rc = pk_marked(p, op, e);
			break;
		case OP_REDUCE:
			rc = pk_make_object(p, true, e);
			break;
		case OP_NEWOBJ:
			rc = pk_make_object(p, false, e);
			break;
		case OP_BUILD:
			rc = pk_build(p, e);
			break;
		default:
			rc = step(p, op, e);
			break;
		}
		if (rc)
			return rc;
	}
}

static int make_memo(struct pickle *p, struct ckpt_err *e)
{
	size_t n = p->plan.memo.n_wanted;

	if (!arena_charge(&p->pool.arena, pk_memo_table_bytes(&p->plan.memo)) ||
	    !arena_charge(&p->pool.arena, (n + 1) * sizeof(*p->memo)))
		return pk_too_big(p, e);
	p->memo = malloc((n + 1) * sizeof(*p->memo));
	if (!p->memo)
		return err_set(e, ENOMEM, "pickle: out of memory");
	for (size_t i = 0; i <= n; i++)
		p->memo[i] = (struct pk_value){ .type = PK_STR };
	p->next_wanted = pk_memo_next(&p->plan.memo, 0);
	return 0;
}

static int load(struct pickle *p, const struct pickle_input *in, const char *until,
		struct ckpt_err *e)
{
	int rc;

	if (!p->strings)
		p->strings = p->own_strings = pk_strings_new(p->pool.arena.max_bytes);
	if (!p->strings)
		return err_set(e, ENOMEM, "pickle: out of memory");
	rc = pk_reader_init(&p->in, in, e);
	if (rc)
		return rc;
	p->in.until = until;
	rc = pk_prescan(&p->in, p->pool.arena.max_bytes, &p->plan, e);
	if (!rc)
		rc = make_memo(p, e);
	if (rc)
		return rc;
	pk_reader_rewind(&p->in);
	rc = run(p, e);
	if (rc > 0)
		rc = close_early(p, e);
	if (rc)
		return rc;
	if (!p->n || p->n_marks)
		return pk_bad(p, "STOP without a value", e);
	p->taken_at = p->n; /* either an object's state has taken it, or it was no attribute */
	rc = pk_check_taken(p, e);
	if (rc)
		return rc;
	p->root = p->stack[p->n - 1];
	pk_reader_release(&p->in);
	return 0;
}

int pickle_load(const struct pickle_input *in, const struct pickle_opts *opts, struct pickle **ret,
		struct ckpt_err *e)
{
	struct pickle *p = calloc(1, sizeof(*p));
	int rc;

	if (!p)
		return err_set(e, ENOMEM, "pickle: out of memory");
	p->hooks = opts->hooks;
	p->persid = opts->persid;
	p->arg = opts->arg;
	p->drop_unknown = opts->drop_unknown;
	p->keep_long = opts->keep_long;
	p->strings = opts->strings;
	p->pool.arena.max_bytes = (size_t)min_u64(opts->max_bytes, PK_MAX_MEMORY);
	rc = load(p, in, opts->until, e);
	if (rc) {
		pickle_free(p);
		return rc;
	}
	*ret = p;
	return 0;
}

void pickle_free(struct pickle *p)
{
	if (!p)
		return;
	pk_reader_release(&p->in);
	pk_memo_release(&p->plan.memo);
	arena_release(&p->pool.arena);
	pk_strings_free(p->own_strings);
	free(p->memo);
	free(p->stack);
	free(p->marks);
	free(p);
}

struct pk_value pickle_root(const struct pickle *p)
{
	return p->root;
}

uint64_t pickle_end(const struct pickle *p)
{
	return p->plan.end;
}

int pickle_to_record(struct pickle *p, struct pk_value *obj, const void *bytes, size_t len,
		     struct ckpt_err *e)
{
	unsigned cls = pool_class(sizeof(struct pk_node) + len);
	struct pk_node *r;

	if (obj->n->refs > 1)
		return 1;
	r = len < UINT32_MAX / 2 ? pool_get(&p->pool, cls) : NULL;
	if (!r)
		return pk_too_big(p, e);
	pk_drop(p, obj);
	*r = (struct pk_node){ .refs = 1, .len = (uint32_t)len, .own_class = (uint16_t)cls };
	memcpy(r->own, bytes, len);
	obj->type = PK_RECORD;
	obj->n = r;
	return 0;
}

/* ---- looking ---- */

bool pk_is(const struct pk_value *v, const char *module, const char *name)
{
	return v->type == PK_GLOBAL && pk_str_is(v->g->name, name) &&
	       (!module || pk_str_is(v->g->module, module));
}

bool pk_numbers(const struct pk_value *v, uint64_t *ret, size_t max, size_t *ret_n)
{
	size_t n = v ? pk_len(v) : 0;

	if (!v || (v->type != PK_TUPLE && v->type != PK_LIST) || n > max)
		return false;
	for (size_t i = 0; i < n; i++) {
		if (v->n->v[i].type != PK_INT || v->n->v[i].i < 0)
			return false;
		ret[i] = (uint64_t)v->n->v[i].i;
	}
	*ret_n = n;
	return true;
}
