/* SPDX-License-Identifier: Apache-2.0 */
/* What a reader's hooks see, what they may take, and what they may put in its place. */
#include "base/checked.h"
#include "parse/pickle.h"
#include "parse/pickle_lex.h"
#include "pickle_util.h"
#include "suites.h"

#include <stdlib.h>
#include <string.h>

/*
 * Of module "m" the hooks know classes by their first letter: R (root) is 1, S is 2, T is 3. They
 * know no other classes. The log has everything that happens. Keys that begin with 'x' are taken.
 */
struct log {
	struct buf b;
	bool records;	     /* built() turns S into a record of its attribute "a" */
	const char *fail_at; /* the hook that stops everything, with -EIO */
};

static int fails(const struct log *l, const char *what, struct ckpt_err *e)
{
	return l->fail_at && !strcmp(l->fail_at, what) ? err_set(e, EIO, "hook %s", what) : 0;
}

static int classify(void *arg, const char *module, const char *name)
{
	struct log *l = arg;

	buf_printf(&l->b, "classify %s.%s\n", module, name);
	return strcmp(module, "m") ? 0 : *name == 'R' ? 1 : *name == 'S' ? 2 : *name == 'T' ? 3 : 0;
}

static int built(void *arg, struct pickle *p, struct pk_value *obj, struct ckpt_err *e)
{
	struct log *l = arg;
	const struct pk_value *a = pk_attr(obj, "a");
	uint8_t bytes[3] = { 0xab, 0, 0xcd };
	int rc;

	buf_str(&l->b, "built ");
	print_value(&l->b, obj);
	buf_str(&l->b, "\n");
	if (obj->n->own[PK_CALLEE].g->cls == 2 && l->records && a) {
		bytes[1] = (uint8_t)a->i;
		rc = pickle_to_record(p, obj, bytes, sizeof(bytes), e);
		buf_printf(&l->b, "record %d\n", rc);
		if (rc < 0)
			return rc;
	}
	return fails(l, "built", e);
}

static int attr_item(void *arg, int root_class, const struct pk_str *attr,
		     const struct pk_value *key, const struct pk_value *value, bool *consumed,
		     struct ckpt_err *e)
{
	struct log *l = arg;

	buf_printf(&l->b, "item %d %s ", root_class, attr->data);
	print_value(&l->b, key);
	buf_str(&l->b, ": ");
	print_value(&l->b, value);
	buf_str(&l->b, "\n");
	ck_assert(!*consumed);
	*consumed = key->type == PK_STR && key->s->data[0] == 'x';
	return fails(l, "attr_item", e);
}

static const struct pickle_hooks hooks = { classify, built, attr_item };

/* Loads a pickle, and appends the root's value to the log. Returns what pickle_load did. */
static int run(struct log *l, const struct emit *m, bool drop_unknown, struct ckpt_err *e)
{
	struct pickle_opts opts = {
		.hooks = &hooks, .arg = l, .max_bytes = 1 << 20, .drop_unknown = drop_unknown
	};
	struct pickle *p = NULL;
	struct pk_value root;
	int rc;

	REQUIRE(!m->b.err);
	rc = load_bytes(m->b.data, m->b.len, 0, &opts, &p, e);
	if (rc)
		return rc;
	root = pickle_root(p);
	buf_str(&l->b, "root ");
	print_value(&l->b, &root);
	pickle_free(p);
	return 0;
}

static void expect(struct emit *m, bool drop_unknown, bool records, const char *want)
{
	struct log l = { .b = BUF_INIT(1 << 20), .records = records };
	struct ckpt_err e = { 0 };

	ck_assert_msg(!run(&l, m, drop_unknown, &e), "%s", e.msg);
	ck_assert_str_eq(l.b.data, want);
	buf_release(&l.b);
	buf_release(&m->b);
}

static void emit_pair(struct emit *m, const char *key, int64_t value)
{
	emit_str(m, key);
	emit_int(m, value);
}

/* ---- classify ---- */

START_TEST(each_global_is_classified_once)
{
	struct emit m = EMIT_INIT(4, false);

	emit_op(&m, OP_MARK);
	emit_global(&m, "m", "S");
	emit_global(&m, "n", "S");
	emit_global(&m, "m", "S");
	emit_global(&m, "torch", "Size");
	emit_op(&m, OP_TUPLE);
	emit_op(&m, OP_STOP);
	expect(&m, false, false,
	       "classify m.S\nclassify n.S\nclassify torch.Size\nroot (m.S, n.S, m.S, torch.Size)");
}
END_TEST

/* The part of a name before a NUL is not the name, for a hook or otherwise. */
START_LOOP_TEST(a_name_with_a_nul_has_no_class, 6)
{
	static const struct {
		const char *bytes;
		size_t n;
	} objects[] = {
#define PICKLE(s) { s, sizeof(s) - 1 }
		PICKLE("\x8c\1m\x8c\3S\0x\x93)\x81}b."),
		PICKLE("\x8c\3m\0x\x8c\1S\x93)\x81}b."),
		PICKLE("\x8c\13collections\x8c\15OrderedDict\0x\x93)R."),
		PICKLE("\x8c\15collections\0x\x8c\13OrderedDict\x93)R."),
		PICKLE("\x8c\5torch\x8c\6Size\0x\x93)\x85R."),
		PICKLE("\x8c\7torch\0x\x8c\4Size\x93)\x85R."),
#undef PICKLE
	};
	struct emit m = EMIT_INIT(4, false);

	emit_bytes(&m, objects[_i].bytes, objects[_i].n);
	expect(&m, true, false, "root ?");
}
END_TEST

/* ---- built ---- */

START_TEST(built_sees_known_objects_with_their_state)
{
	struct emit m = EMIT_INIT(4, true);

	emit_op(&m, OP_MARK);
	emit_object(&m, "m", "S");
	emit_attrs(&m);
	emit_pair(&m, "a", 5);
	emit_attrs_end(&m);
	emit_object(&m, "n", "S"); /* unknown */
	emit_attrs(&m);
	emit_attrs_end(&m);
	emit_object(&m, "m", "T"); /* never built */
	emit_op(&m, OP_TUPLE);
	emit_op(&m, OP_STOP);
	expect(&m, false, false,
	       "classify m.S\nbuilt m.S()!{'a': 5}\nclassify n.S\nclassify m.T\n"
	       "root (m.S()!{'a': 5}, n.S()!{}, m.T())");
}
END_TEST

START_TEST(drop_unknown_keeps_known_objects_only)
{
	struct emit m = EMIT_INIT(2, true);

	emit_op(&m, OP_MARK);
	emit_object(&m, "m", "S");
	emit_attrs(&m);
	emit_str(&m, "b");
	emit_object(&m, "n", "S");
	emit_attrs(&m);
	emit_pair(&m, "a", 5);
	emit_attrs_end(&m);
	emit_attrs_end(&m);
	emit_object(&m, "other", "X");
	emit_op(&m, OP_TUPLE);
	emit_op(&m, OP_STOP);
	expect(&m, true, false,
	       "classify m.S\nclassify n.S\nbuilt m.S()!{'b': ?}\nclassify other.X\n"
	       "root (m.S()!{'b': ?}, ?)");
}
END_TEST

START_TEST(an_object_becomes_a_record)
{
	struct emit m = EMIT_INIT(4, true);

	emit_op(&m, OP_EMPTY_LIST);
	emit_op(&m, OP_MARK);
	for (int i = 0; i < 2; i++) {
		emit_object(&m, "m", "S");
		emit_attrs(&m);
		emit_pair(&m, "a", 5 + i);
		emit_attrs_end(&m);
	}
	emit_op(&m, OP_APPENDS);
	emit_op(&m, OP_STOP);
	expect(&m, true, true,
	       "classify m.S\nbuilt m.S()!{'a': 5}\nrecord 0\nbuilt m.S()!{'a': 6}\nrecord 0\n"
	       "root [<ab05cd>, <ab06cd>]");
}
END_TEST

START_TEST(a_shared_object_stays_an_object)
{
	struct emit m = EMIT_INIT(4, false);

	emit_object(&m, "m", "S"); /* asked for again below */
	emit_put(&m);
	emit_attrs(&m);
	emit_pair(&m, "a", 5);
	emit_attrs_end(&m);
	emit_get(&m, 0);
	emit_object(&m, "m", "S"); /* twice on the stack */
	emit_op(&m, OP_DUP);
	emit_attrs(&m);
	emit_pair(&m, "a", 6);
	emit_attrs_end(&m);
	emit_op(&m, OP_TUPLE2);
	emit_op(&m, OP_TUPLE3);
	emit_op(&m, OP_STOP);
	expect(&m, true, true,
	       "classify m.S\nbuilt m.S()!{'a': 5}\nrecord 1\nbuilt m.S()!{'a': 6}\nrecord 1\n"
	       "root (m.S()!{'a': 5}, m.S()!{'a': 5}, (m.S()!{'a': 6}, m.S()!{'a': 6}))");
}
END_TEST

static int make_records(void *arg, struct pickle *p, struct pk_value *obj, struct ckpt_err *e)
{
	static const uint8_t bytes[300000];
	const size_t *len = arg;
	int rc = pickle_to_record(p, obj, bytes, *len, e);

	if (!rc)
		REQUIRE(obj->type == PK_RECORD && pk_len(obj) == *len &&
			!memcmp(pickle_record(obj), bytes, *len));
	return rc;
}

START_TEST(records_have_any_size_up_to_the_ceiling)
{
	struct pickle_hooks record = dcp_hooks;
	static const size_t sizes[] = { 0, 1, 8, 9, 1000, 250000, 300000 };
	struct emit m = EMIT_INIT(4, false);

	record.built = make_records;
	emit_object(&m, "m", "Metadata");
	emit_attrs(&m);
	emit_attrs_end(&m);
	emit_op(&m, OP_STOP);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		size_t len = sizes[i];
		struct pickle_opts opts = { .hooks = &record, .arg = &len, .max_bytes = 280000 };
		struct pickle *p = NULL;
		struct ckpt_err e = { 0 };
		int rc = load_bytes(m.b.data, m.b.len, 0, &opts, &p, &e);

		ck_assert_int_eq(rc, len > 250000 ? -EFBIG : 0);
		pickle_free(p);
	}
	buf_release(&m.b);
}
END_TEST

/* ---- attributes of the root ---- */

static void emit_dict(struct emit *m, const char *key)
{
	emit_str(m, key);
	emit_op(m, OP_EMPTY_DICT);
	if (m->memoize)
		emit_put(m);
}

static void emit_streams(struct emit *m)
{
	emit_object(m, "m", "Root");
	emit_attrs(m);
	emit_dict(m, "one"); /* a single pair comes as SETITEM */
	emit_pair(m, "xa", 1);
	emit_op(m, OP_SETITEM);
	emit_dict(m, "kept");
	emit_pair(m, "a", 1);
	emit_op(m, OP_SETITEM);
	emit_dict(m, "batches");
	emit_op(m, OP_MARK);
	emit_pair(m, "xb", 1);
	emit_pair(m, "c", 2);
	emit_pair(m, "xd", 3);
	emit_op(m, OP_SETITEMS);
	emit_op(m, OP_MARK);
	emit_pair(m, "e", 4);
	emit_pair(m, "xf", 5);
	emit_pair(m, "g", 6);
	emit_op(m, OP_SETITEMS);
	emit_op(m, OP_MARK);
	emit_op(m, OP_SETITEMS);
	emit_pair(m, "xh", 7);
	emit_op(m, OP_SETITEM);
	emit_pair(m, "number", 8);
	emit_dict(m, "empty");
	emit_attrs_end(m);
	emit_op(m, OP_STOP);
}

static const char streamed[] =
	"classify m.Root\n"
	"item 1 one 'xa': 1\n"
	"item 1 kept 'a': 1\n"
	"item 1 batches 'xb': 1\n"
	"item 1 batches 'c': 2\n"
	"item 1 batches 'xd': 3\n"
	"item 1 batches 'e': 4\n"
	"item 1 batches 'xf': 5\n"
	"item 1 batches 'g': 6\n"
	"item 1 batches 'xh': 7\n"
	"built m.Root()!{'one': {}, 'kept': {'a': 1}, 'batches': {'c': 2, 'e': 4, 'g': 6}, "
	"'number': 8, 'empty': {}}\n"
	"root m.Root()!{'one': {}, 'kept': {'a': 1}, 'batches': {'c': 2, 'e': 4, 'g': 6}, "
	"'number': 8, 'empty': {}}";

START_LOOP_TEST(pairs_of_the_roots_attributes_stream_by, 8)
{
	struct emit m = EMIT_INIT(2 + _i / 2, _i % 2);

	emit_streams(&m);
	expect(&m, true, false, streamed);
}
END_TEST

START_TEST(a_root_with_one_attribute_streams_too)
{
	struct emit m = EMIT_INIT(4, false);

	emit_object(&m, "m", "Root");
	emit_op(&m, OP_EMPTY_DICT);
	emit_dict(&m, "only");
	emit_op(&m, OP_MARK);
	emit_pair(&m, "xa", 1);
	emit_pair(&m, "b", 2);
	emit_op(&m, OP_SETITEMS);
	emit_op(&m, OP_SETITEM);
	emit_op(&m, OP_BUILD);
	emit_op(&m, OP_STOP);
	expect(&m, true, false,
	       "classify m.Root\nitem 1 only 'xa': 1\nitem 1 only 'b': 2\n"
	       "built m.Root()!{'only': {'b': 2}}\nroot m.Root()!{'only': {'b': 2}}");
}
END_TEST

START_TEST(deeper_dicts_and_other_roots_do_not_stream)
{
	struct emit m = EMIT_INIT(4, false);

	emit_object(&m, "m", "Root"); /* an object in the root; one of several dicts in a dict */
	emit_attrs(&m);
	emit_str(&m, "object");
	emit_object(&m, "m", "S");
	emit_attrs(&m);
	emit_dict(&m, "attr");
	emit_op(&m, OP_MARK);
	emit_pair(&m, "xb", 1);
	emit_op(&m, OP_SETITEMS);
	emit_attrs_end(&m);
	emit_dict(&m, "outer");
	emit_op(&m, OP_MARK);
	emit_dict(&m, "inner");
	emit_pair(&m, "xa", 1);
	emit_op(&m, OP_SETITEM);
	emit_op(&m, OP_SETITEMS);
	emit_str(&m, "pair"); /* in a tuple */
	emit_dict(&m, "one");
	emit_pair(&m, "xc", 1);
	emit_op(&m, OP_SETITEM);
	emit_op(&m, OP_TUPLE2);
	emit_attrs_end(&m);
	emit_op(&m, OP_STOP);
	expect(&m, true, false,
	       "classify m.Root\nclassify m.S\nbuilt m.S()!{'attr': {'xb': 1}}\n"
	       "item 1 outer 'inner': {'xa': 1}\n"
	       "built m.Root()!{'object': m.S()!{'attr': {'xb': 1}}, 'outer': {'inner': {'xa': "
	       "1}}, "
	       "'pair': ('one', {'xc': 1})}\n"
	       "root m.Root()!{'object': m.S()!{'attr': {'xb': 1}}, 'outer': {'inner': {'xa': 1}}, "
	       "'pair': ('one', {'xc': 1})}");

	m = (struct emit)EMIT_INIT(4, false); /* in a list, the only attribute */
	emit_object(&m, "m", "Root");
	emit_op(&m, OP_EMPTY_DICT);
	emit_str(&m, "list");
	emit_op(&m, OP_EMPTY_LIST);
	emit_op(&m, OP_MARK);
	emit_dict(&m, "one");
	emit_pair(&m, "xd", 1);
	emit_op(&m, OP_SETITEM);
	emit_op(&m, OP_APPENDS);
	emit_op(&m, OP_SETITEM);
	emit_op(&m, OP_BUILD);
	emit_op(&m, OP_STOP);
	expect(&m, true, false,
	       "classify m.Root\nbuilt m.Root()!{'list': ['one', {'xd': 1}]}\n"
	       "root m.Root()!{'list': ['one', {'xd': 1}]}");

	m = (struct emit)EMIT_INIT(4, false); /* a plain dict at the root */
	emit_op(&m, OP_EMPTY_DICT);
	emit_op(&m, OP_MARK);
	emit_dict(&m, "outer");
	emit_pair(&m, "xa", 1);
	emit_op(&m, OP_SETITEM);
	emit_op(&m, OP_SETITEMS);
	emit_op(&m, OP_STOP);
	expect(&m, true, false, "root {'outer': {'xa': 1}}");
}
END_TEST

/*
 * If a dict is the only item of an attribute, or the last of three in a tuple, the stack looks as
 * if the dict were an attribute. Taking from it must not go unnoticed; looking at it is harmless.
 */
static void emit_lookalike(struct emit *m, bool tuple, bool last, const char *key)
{
	emit_object(m, "m", "Root");
	emit_attrs(m);
	emit_dict(m, "first");
	emit_pair(m, "xa", 1);
	emit_op(m, OP_SETITEM);
	if (tuple) {
		emit_str(m, "outer");
		emit_int(m, 1);
	} else {
		emit_dict(m, "outer");
	}
	emit_dict(m, "inner");
	emit_op(m, OP_MARK);
	emit_pair(m, key, 1);
	emit_op(m, OP_SETITEMS);
	emit_op(m, tuple ? OP_TUPLE3 : OP_SETITEM);
	if (last) {
		emit_dict(m, "last");
		emit_pair(m, "xb", 1);
		emit_op(m, OP_SETITEM);
	}
	emit_attrs_end(m);
	emit_op(m, OP_STOP);
}

START_LOOP_TEST(pairs_taken_from_what_only_looks_like_an_attribute_are_an_error, 4)
{
	struct log l = { .b = BUF_INIT(1 << 20) };
	struct emit m = EMIT_INIT(4, false);
	struct ckpt_err e = { 0 };

	emit_lookalike(&m, _i % 2, _i < 2, "xc");
	ck_assert_int_eq(run(&l, &m, true, &e), -ENOTSUP);
	ck_assert_int_eq(e.code, ENOTSUP);
	ck_assert(strstr(e.msg, "pickle: a dict inside attribute data was taken for an attribute"));
	buf_release(&l.b);
	buf_release(&m.b);
	m = (struct emit)EMIT_INIT(4, false);
	if (_i >= 2)
		return;
	emit_lookalike(&m, _i, true, "c");
	expect(&m, true, false,
	       _i ? "classify m.Root\nitem 1 first 'xa': 1\nitem 1 inner 'c': 1\nitem 1 last 'xb': "
		    "1\n"
		    "built m.Root()!{'first': {}, 'outer': (1, 'inner', {'c': 1}), 'last': {}}\n"
		    "root m.Root()!{'first': {}, 'outer': (1, 'inner', {'c': 1}), 'last': {}}"
		  : "classify m.Root\nitem 1 first 'xa': 1\nitem 1 inner 'c': 1\n"
		    "item 1 outer 'inner': {'c': 1}\nitem 1 last 'xb': 1\n"
		    "built m.Root()!{'first': {}, 'outer': {'inner': {'c': 1}}, 'last': {}}\n"
		    "root m.Root()!{'first': {}, 'outer': {'inner': {'c': 1}}, 'last': {}}");
}
END_TEST

/*
 * The same, but the attribute is never completed: the state is a tuple, the object is left behind,
 * all but the dict is, or the dict is dropped.
 */
START_LOOP_TEST(pairs_taken_from_what_never_becomes_an_attribute_are_an_error, 4)
{
	struct log l = { .b = BUF_INIT(1 << 20) };
	struct emit m = EMIT_INIT(4, false);
	struct ckpt_err e = { 0 };

	emit_object(&m, "m", "Root");
	emit_op(&m, OP_EMPTY_DICT);
	emit_dict(&m, "attr");
	emit_pair(&m, "xa", 1);
	emit_op(&m, OP_SETITEM);
	if (_i < 2) {
		emit_op(&m, OP_TUPLE3); /* the state, 'attr' and the rest of its dict */
		emit_op(&m, _i ? OP_TUPLE2 : OP_BUILD);
	} else if (_i == 3) {
		emit_op(&m, OP_POP);
	}
	emit_op(&m, OP_STOP);
	ck_assert_int_eq(run(&l, &m, true, &e), -ENOTSUP);
	ck_assert_int_eq(e.code, ENOTSUP);
	ck_assert(strstr(e.msg, "pickle: a dict inside attribute data was taken for an attribute"));
	buf_release(&l.b);
	buf_release(&m.b);
}
END_TEST

START_TEST(a_root_of_no_class_says_so)
{
	struct emit m = EMIT_INIT(4, false);

	emit_object(&m, "n", "Root");
	emit_attrs(&m);
	emit_dict(&m, "d");
	emit_pair(&m, "a", 1);
	emit_op(&m, OP_SETITEM);
	emit_attrs_end(&m);
	emit_op(&m, OP_STOP);
	expect(&m, false, false, "classify n.Root\nitem 0 d 'a': 1\nroot n.Root()!{'d': {'a': 1}}");
}
END_TEST

START_LOOP_TEST(a_hook_can_stop_the_load, 2)
{
	static const char *const names[] = { "built", "attr_item" };
	struct log l = { .b = BUF_INIT(1 << 20), .fail_at = names[_i] };
	struct emit m = EMIT_INIT(4, true);
	struct ckpt_err e = { 0 };

	emit_streams(&m);
	ck_assert_int_eq(run(&l, &m, true, &e), -EIO);
	ck_assert_int_eq(e.code, EIO);
	ck_assert_str_eq(e.msg, _i ? "hook attr_item" : "hook built");
	buf_release(&l.b);
	buf_release(&m.b);
}
END_TEST

START_TEST(hooks_may_be_left_out_one_by_one)
{
	struct emit m = EMIT_INIT(4, true);

	emit_streams(&m);
	for (int i = 0; i < 8; i++) {
		struct log l = { .b = BUF_INIT(1 << 20) };
		struct pickle_hooks some = { i & 1 ? classify : NULL, i & 2 ? built : NULL,
					     i & 4 ? attr_item : NULL };
		struct pickle_opts opts = { .hooks = &some, .arg = &l, .max_bytes = 1 << 20 };
		struct pickle *p = NULL;
		struct ckpt_err e = { 0 };

		ck_assert_msg(!load_bytes(m.b.data, m.b.len, 0, &opts, &p, &e), "%s", e.msg);
		ck_assert_int_eq(i & 1, l.b.len && strstr(l.b.data, "classify"));
		ck_assert_int_eq((i & 3) == 3, l.b.len && strstr(l.b.data, "built"));
		ck_assert_int_eq(!!(i & 4), l.b.len && strstr(l.b.data, "item"));
		pickle_free(p);
		buf_release(&l.b);
	}
	buf_release(&m.b);
}
END_TEST

/* The memory used depends on what is kept, which is never more than a batch of 1000 pairs. */
START_TEST(what_is_consumed_costs_no_memory)
{
	struct emit m = EMIT_INIT(4, true);
	struct dcp_count count = { 0 };
	struct pk_strings *strings = pk_strings_new(4 << 20);
	struct pickle_opts opts = { .hooks = &dcp_hooks,
				    .arg = &count,
				    .strings = strings,
				    .max_bytes = 3 << 20,
				    .drop_unknown = true };
	struct pickle *p = NULL;
	struct ckpt_err e = { 0 };

	emit_metadata(&m, 5000, 6);
	ck_assert_uint_gt(m.b.len, 12 << 20);
	ck_assert_msg(!load_bytes(m.b.data, m.b.len, 65536, &opts, &p, &e), "%s", e.msg);
	ck_assert_uint_eq(count.tensors, 5000);
	ck_assert_uint_eq(count.planned, 5000);
	ck_assert_uint_eq(count.stored, 30000);
	ck_assert_uint_eq(count.chunks, 30000);
	ck_assert_uint_eq(count.shared, 0);
	pickle_free(p);
	opts.drop_unknown = false;
	opts.hooks = NULL;
	ck_assert_int_eq(load_bytes(m.b.data, m.b.len, 65536, &opts, &p, &e), -EFBIG);
	pk_strings_free(strings);
	buf_release(&m.b);
}
END_TEST

/* ---- ending early ---- */

#define PK(s) s, sizeof(s) - 1
#define OBJ   "\x80\4cm\nC\n)\x81}"
#define UNTIL "\x8c\5until"

static const struct {
	const char *bytes;
	size_t n;
	const char *want; /* NULL: ECANCELED */
} cut[] = {
	{ PK(OBJ "(\x8c\1aK\1" UNTIL "K\2\x8c\1bK\3ub."), "m.C()!{'a': 1}" },
	{ PK(OBJ "(\x8c\1aK\1" UNTIL), "m.C()!{'a': 1}" },
	{ PK(OBJ "(\x8c\1aK\1" UNTIL "\xff"), "m.C()!{'a': 1}" },
	{ PK(OBJ "(\x8c\1aK\1X\5\0\0\0until\xff"), "m.C()!{'a': 1}" },
	{ PK(OBJ "(" UNTIL "\xff"), "m.C()!{}" },
	/* A memoized value that only the rest would use is not missed. */
	{ PK(OBJ "(\x8c\1aK\1\x85\x94" UNTIL "h\0\xff"), "m.C()!{'a': (1,)}" },
	/* Only this string counts; similar ones do not. */
	{ PK(OBJ "(\x8c\1aK\1\x8c\5untilK\2\x8c\6until2K\3ub."), "m.C()!{'a': 1}" },
	{ PK(OBJ "(\x8c\4untiK\1\x8c\6until2K\3\x8c\5UntilNub."),
	  "m.C()!{'unti': 1, 'until2': 3, 'Until': None}" },
	{ PK(OBJ "(\x8c\1aC\5untilub."), "m.C()!{'a': b'until'}" },
	/* These are not names of attributes: a value, a key of a dict, part of something else. */
	{ PK(OBJ "(\x8c\1a" UNTIL "ub."), NULL },
	{ PK(OBJ "(\x8c\1a}(" UNTIL "K\2uub."), NULL },
	{ PK(OBJ "(\x8c\1a(" UNTIL "K\2tub."), NULL },
	{ PK(OBJ UNTIL "K\2sb."), NULL },
	{ PK("\x80\4}(" UNTIL "K\2u."), NULL },
	{ PK("\x80\4" UNTIL "."), NULL },
	{ PK("\x80\4}(}" UNTIL "K\2su."), NULL },
	/* This one looks like an attribute, as pickle.h says. */
	{ PK(OBJ "(\x8c\1a}" UNTIL "K\2sub."), "m.C()!{'a': {}}" },
};

START_LOOP_TEST(an_attribute_that_is_not_wanted_ends_the_load, ARRAY_LEN(cut))
{
	for (size_t step = 0; step < 4; step++) {
		const struct pickle_opts o = { .max_bytes = 1 << 20, .until = "until" };
		struct buf b = BUF_INIT(10000);
		struct pickle *p = NULL;
		struct ckpt_err e = { 0 };
		struct pk_value root;
		int rc = load_bytes(cut[_i].bytes, cut[_i].n, step, &o, &p, &e);

		ck_assert_msg(rc == (cut[_i].want ? 0 : -ECANCELED), "%d %s", rc, e.msg);
		if (!rc) {
			root = pickle_root(p);
			print_value(&b, &root);
			ck_assert_str_eq(b.data, cut[_i].want);
		}
		pickle_free(p);
		buf_release(&b);
	}
}
END_TEST

SUITE(pickle_hooks, .seconds = 60)
