/* SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "parse/pickle_json.h"
#include "pickle_util.h"
#include "saved_util.h"
#include "suites.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FLOAT(value) "{\"__class__\": \"builtins.float\", \"value\": \"" value "\"}"
#define TENSOR(args) \
	"ctorch._utils\n_rebuild_tensor_v2\n(" \
	"(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0" \
	"0X\3\0\0\0cpuK\6tQ" args "tR"
#define TYPE(type, order) \
	"cnumpy\ndtype\n(X\2\0\0\0" type "\x89\x88tR(K\3X\1\0\0\0" order \
	"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"
#define ARRAY(type, fortran, bytes) \
	"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\0\x85" \
	"C\1btR(K\1K\2\x85" type fortran bytes "tb."
#define SCALAR(type, bytes) "cnumpy._core.multiarray\nscalar\n" type bytes "\x86R."
#define ROW(bytes, text) \
	{ \
		bytes, sizeof(bytes) - 1, text \
	}
/* The texts are what CPython's json.dumps prints, if it can print the value. */
static const struct {
	const char *bytes;
	size_t n;
	const char *text;
} rows[] = {
	ROW("N.", "null"),
	ROW("\x88.", "true"),
	ROW("\x89.", "false"),
	ROW("K\7.", "7"),
	ROW("\x8a\x8\0\0\0\0\0\0\0\x80.", "-9223372036854775808"),
	ROW("\x8a\x9\0\0\0\0\0\0\0\x80\0.", "9223372036854775808"),
	ROW("\x8a\x9\xff\xff\xff\xff\xff\xff\xff\x7f\xff.", "-9223372036854775809"),
	ROW("\x8a\xd\0\0\0\0\0\0\0\0\0\0\0\0\x10.", "1267650600228229401496703205376"),
	ROW("\x8a\x9\0\0\0\0\0\0\0\0\x80.", "-2361183241434822606848"),
	ROW("\x8a\xa\0\0\0\0\0\0\0\0\0\0.", "0"),
	ROW("\x8a\x9\0\0\xe8\x89\x04\x23\xc7\x8a\0.", "10000000000000000000"),
	ROW("G\x3f\xb9\x99\x99\x99\x99\x99\x9a.", "0.1"),
	ROW("G\x40\x59\0\0\0\0\0\0.", "100.0"),
	ROW("G\0\0\0\0\0\0\0\0.", "0.0"),
	ROW("G\x80\0\0\0\0\0\0\0.", "-0.0"),
	ROW("G\x3f\x1a\x36\xe2\xeb\x1c\x43\x2d.", "0.0001"),
	ROW("G\x3e\xe4\xf8\xb5\x88\xe3\x68\xf1.", "1e-05"),
	ROW("G\x43\x41\xc3\x79\x37\xe0\x80\0.", "1e+16"),
	ROW("G\x43\x0c\x6b\xf5\x26\x34\0\0.", "1000000000000000.0"),
	ROW("G\x41\x9d\x6f\x34\x54\x80\0\0.", "123456789.125"),
	ROW("G\0\0\0\0\0\0\0\1.", "5e-324"),
	ROW("G\xff\xef\xff\xff\xff\xff\xff\xff.", "-1.7976931348623157e+308"),
	ROW("G\x7f\xf8\0\0\0\0\0\0.", FLOAT("nan")),
	ROW("G\x7f\xf0\0\0\0\0\0\0.", FLOAT("inf")),
	ROW("G\xff\xf0\0\0\0\0\0\0.", FLOAT("-inf")),
	ROW("X\5\0\0\0h\xc3\xa9\"\\.", "\"h\\u00e9\\\"\\\\\""),
	ROW("(K\1N]}t.", "[1, null, [], {}]"),
	ROW("}(X\1\0\0\0aK\1X\1\0\0\0bNu.", "{\"a\": 1, \"b\": null}"),
	ROW("}(K\2]K\3aN}\x88)G\x3f\xf8\0\0\0\0\0\0K\4K\5\x85K\6u.",
	    "{\"2\": [3], \"null\": {}, \"true\": [], \"1.5\": 4, \"[5]\": 6}"),
	/* as strings, these keys would be equal, or look like something else */
	ROW("}(X\1\0\0\0"
	    "1K\2K\1K\3u.",
	    "{\"__class__\": \"builtins.dict\", \"__items__\": [[\"1\", 2], [1, 3]]}"),
	ROW("}(K\1K\3X\1\0\0\0"
	    "1K\2u.",
	    "{\"__class__\": \"builtins.dict\", \"__items__\": [[1, 3], [\"1\", 2]]}"),
	ROW("}X\x9\0\0\0__class__X\1\0\0\0xs.",
	    "{\"__class__\": \"builtins.dict\", \"__items__\": [[\"__class__\", \"x\"]]}"),
	/* values that JSON cannot represent */
	ROW("C\3\0\xff"
	    "a.",
	    "{\"__class__\": \"builtins.bytes\", \"hex\": \"00ff61\"}"),
	ROW("c_codecs\nencode\nX\3\0\0\0\xc3\xbf"
	    "aX\6\0\0\0latin1\x86R.",
	    "{\"__class__\": \"builtins.bytes\", \"hex\": \"ff61\"}"),
	ROW("c_codecs\nencode\nX\1\0\0\0aX\4\0\0\0utf8\x86R.",
	    "{\"__class__\": \"_codecs.encode\", \"__args__\": [\"a\", \"utf8\"]}"),
	ROW("ctorch\nbfloat16\n.", "{\"__global__\": \"torch.bfloat16\"}"),
	ROW("c__builtin__\nset\n]K\1a\x85R.",
	    "{\"__class__\": \"builtins.set\", \"__items__\": [1]}"),
	ROW("\x8f(K\1K\2\x90.", "{\"__class__\": \"builtins.set\", \"__items__\": [1, 2]}"),
	ROW("(K\1K\2\x91.", "{\"__class__\": \"builtins.frozenset\", \"__items__\": [1, 2]}"),
	ROW("\x8f.", "{\"__class__\": \"builtins.set\", \"__items__\": []}"),
	ROW("c__builtin__\nset\n)R.", "{\"__class__\": \"builtins.set\", \"__items__\": []}"),
	ROW("c__builtin__\nset\nK\1\x85R.", "{\"__class__\": \"builtins.set\", \"__args__\": [1]}"),
	ROW("c__builtin__\nlong\n.", "{\"__global__\": \"builtins.int\"}"),
	ROW("c__builtin__\nxrange\nK\3\x85R.",
	    "{\"__class__\": \"builtins.range\", \"__args__\": [3]}"),
	ROW("cm\nlong\n.", "{\"__global__\": \"m.long\"}"),
	ROW("ccopy_reg\nx\n.", "{\"__global__\": \"copyreg.x\"}"),
	ROW("cargparse\nNamespace\n)\x81}X\2\0\0\0lrK\1sb.",
	    "{\"__class__\": \"argparse.Namespace\", \"lr\": 1}"),
	ROW("cm\nC\n)\x81K\5b.", "{\"__class__\": \"m.C\", \"__state__\": 5}"),
	ROW("cm\nC\n)\x81K\1K\2sK\5b.",
	    "{\"__class__\": \"m.C\", \"__state__\": 5, \"__items__\": {\"1\": 2}}"),
	ROW("cm\nC\n)\x81K\1a.", "{\"__class__\": \"m.C\", \"__items__\": [1]}"),
	ROW("K\1)R.", "{\"__class__\": \"?\"}"),
	ROW("cm\nC\n)\x81}X\x9\0\0\0__class__K\1sb.",
	    "{\"__class__\": \"m.C\", \"__state__\": {\"__class__\": \"builtins.dict\", "
	    "\"__items__\": [[\"__class__\", 1]]}}"),
	ROW("c__builtin__\nbytes\n)R.", "{\"__class__\": \"builtins.bytes\", \"hex\": \"\"}"),
	/* tensors, in their own right and as a Parameter */
	ROW(TENSOR("K\0K\2K\3\x86K\3K\1\x86\x89N") ".",
	    "{\"__class__\": \"torch.Tensor\", \"dtype\": \"float32\", \"shape\": [2, 3]}"),
	ROW("ctorch._utils\n_rebuild_parameter\n(" TENSOR("K\0))\x89N") "\x88NtR.",
	    "{\"__class__\": \"torch.Tensor\", \"dtype\": \"float32\", \"shape\": []}"),
	ROW("ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_tensor_v2\ncm\nT\n("
	    "(X\7\0\0\0storagectorch\nLongStorage\nX\1\0\0\0"
	    "0X\3\0\0\0cpuK\6tQ"
	    "K\0K\6\x85K\1\x85\x89Nt}tR.",
	    "{\"__class__\": \"m.T\", \"dtype\": \"int64\", \"shape\": [6]}"),
	/* not quite as torch writes it */
	ROW(TENSOR("K\0K\2K\3") ".",
	    "{\"__class__\": \"torch._utils._rebuild_tensor_v2\", \"__args__\": "
	    "[{\"__class__\": \"torch.FloatStorage\", \"size\": 6}, 0, 2, 3]}"),
	/* NumPy's values; with text in place of bytes, there is no array */
	ROW(ARRAY(TYPE("u1", "|"), "\x89", "C\2\0\1"),
	    "{\"__class__\": \"numpy.ndarray\", \"dtype\": \"|u1\", \"shape\": [2], "
	    "\"hex\": \"0001\"}"),
	ROW(ARRAY(TYPE("u1", "|"), "\x88", "c_codecs\nencode\nX\1\0\0\0aX\6\0\0\0latin1\x86R"),
	    "{\"__class__\": \"numpy.ndarray\", \"dtype\": \"|u1\", \"shape\": [2], "
	    "\"order\": \"F\", \"hex\": \"61\"}"),
	ROW("cnumpy.core.multiarray\n_reconstruct\n)R(K\1K\2\x85K\3\x89Ntb.",
	    "{\"__class__\": \"numpy.core.multiarray._reconstruct\", \"__state__\": "
	    "[1, [2], 3, false, null]}"),
	ROW(SCALAR(TYPE("f8", "<"), "C\x8\0\0\0\0\0\0\xe0\x3f"),
	    "{\"__class__\": \"numpy.float64\", \"value\": 0.5}"),
	ROW(SCALAR(TYPE("f8", "<"), "C\x8\0\0\0\0\0\0\xf0\x7f"),
	    "{\"__class__\": \"numpy.float64\", \"value\": " FLOAT("inf") "}"),
	ROW(SCALAR(TYPE("f4", "<"), "C\4\0\0\x20\xc1"),
	    "{\"__class__\": \"numpy.float32\", \"value\": -10.0}"),
	ROW(SCALAR(TYPE("i2", "<"), "C\2\xfe\xff"),
	    "{\"__class__\": \"numpy.int16\", \"value\": -2}"),
	ROW(SCALAR(TYPE("i8", "<"), "C\x8\xff\xff\xff\xff\xff\xff\xff\xff"),
	    "{\"__class__\": \"numpy.int64\", \"value\": -1}"),
	ROW(SCALAR(TYPE("u8", "<"), "C\x8\xff\xff\xff\xff\xff\xff\xff\xff"),
	    "{\"__class__\": \"numpy.uint64\", \"value\": 18446744073709551615}"),
	ROW(SCALAR(TYPE("b1", "|"), "C\1\1"), "{\"__class__\": \"numpy.bool\", \"value\": true}"),
	ROW(SCALAR("K\1", "C\1\1"), "{\"__class__\": \"numpy._core.multiarray.scalar\", "
				    "\"__args__\": [1, {\"__class__\": \"builtins.bytes\", "
				    "\"hex\": \"01\"}]}"),
	/* parts of themselves */
	ROW("}\x94h\0Ns.", "{\"{\\\"__cycle__\\\": 1}\": null}"),
	ROW("]\x94K\1ah\0a.", "[1, {\"__cycle__\": 1}]"),
	ROW("}\x94N]h\0as.", "{\"null\": [{\"__cycle__\": 2}]}"),
	ROW("cm\nC\n)\x81\x94}X\1\0\0\0ph\0sb.",
	    "{\"__class__\": \"m.C\", \"p\": {\"__cycle__\": 1}}"),
	ROW("]K\1a\x94h\0\x86.", "[[1], [1]]"),
	ROW("K\1Q.", "{\"__class__\": \"?\"}"),
	/* arguments that are not a tuple */
	ROW("cm\nC\nK\5R.", "{\"__class__\": \"m.C\", \"__args__\": 5}"),
	ROW("c__builtin__\nset\nK\5R.", "{\"__class__\": \"builtins.set\", \"__args__\": 5}"),
	ROW("c_codecs\nencode\nNR.", "{\"__class__\": \"_codecs.encode\", \"__args__\": null}"),
};

static struct pickle *load(const char *bytes, size_t n)
{
	const struct pickle_opts opts = { .max_bytes = 1 << 20 };
	struct pickle *p = NULL;
	struct ckpt_err e = { 0 };

	ck_assert_msg(!load_bytes(bytes, n, 0, &opts, &p, &e), "%s", e.msg);
	return p;
}

START_LOOP_TEST(values_are_written_as_python_writes_them, (int)ARRAY_LEN(rows))
{
	struct buf b = BUF_INIT(1 << 20);
	struct pickle *p = load(rows[_i].bytes, rows[_i].n);
	struct pk_value v = pickle_root(p);
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(pickle_json(&v, &b, &e), 0);
	ck_assert_str_eq(b.data, rows[_i].text);
	/* With any smaller ceiling there is an error, and nothing beyond the ceiling. */
	for (size_t max = 0; max < strlen(rows[_i].text); max++) {
		struct buf small = BUF_INIT(max);

		ck_assert_int_eq(pickle_json(&v, &small, &e), -EFBIG);
		ck_assert_uint_le(small.len, max);
		buf_release(&small);
	}
	buf_release(&b);
	pickle_free(p);
}
END_TEST

START_TEST(what_has_no_text_says_its_class)
{
	static const char *const classes[][2] = {
		{ "]", "builtins.list" },  { "}", "builtins.dict" },  { ")", "builtins.tuple" },
		{ "K\1", "builtins.int" }, { "cm\nC\n)\x81", "m.C" }, { "]Q", "?" }
	};

	for (size_t i = 0; i < ARRAY_LEN(classes); i++) {
		struct buf b = BUF_INIT(1 << 20);
		char bytes[20], want[100];
		struct pickle *p;
		struct pk_value v;

		(void)snprintf(bytes, sizeof(bytes), "%s.", classes[i][0]);
		p = load(bytes, strlen(bytes));
		v = pickle_root(p);
		pickle_json_error(&v, "it is \"long\"", &b);
		(void)snprintf(want, sizeof(want),
			       "{\"__class__\": \"%s\", \"__error__\": \"it is \\\"long\\\"\"}",
			       classes[i][1]);
		ck_assert_str_eq(b.data, want);
		pickle_free(p);
		buf_release(&b);
	}
}
END_TEST

START_TEST(a_key_that_is_a_string_is_its_own_name)
{
	struct buf b = BUF_INIT(100);
	struct pickle *p = load("X\3\0\0\0a\"b.", 9);
	struct pk_value v = pickle_root(p);
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(pickle_key(&v, &b, &e), 0);
	ck_assert_str_eq(b.data, "a\"b");
	pickle_free(p);
	p = load("K\1K\2\x86.", 6);
	v = pickle_root(p);
	ck_assert_int_eq(pickle_key(&v, &b, &e), 0);
	ck_assert_str_eq(b.data, "a\"b[1, 2]");
	pickle_free(p);
	buf_release(&b);
}
END_TEST

START_TEST(depth_is_bounded)
{
	for (size_t depth = 100; depth <= 101; depth++) {
		struct emit m = EMIT_INIT(2, false);
		struct buf b = BUF_INIT(1 << 20);
		struct ckpt_err e = { 0 };
		struct pickle *p;
		struct pk_value v;

		emit_ops(&m, ']', depth + 1);
		emit_ops(&m, 'a', depth);
		emit_op(&m, '.');
		p = load(m.b.data, m.b.len);
		v = pickle_root(p);
		ck_assert_int_eq(pickle_json(&v, &b, &e), depth > 100 ? -EFBIG : 0);
		if (depth > 100)
			ck_assert_str_eq(e.msg, "it nests deeper than 100 levels");
		pickle_free(p);
		buf_release(&b);
		buf_release(&m.b);
	}
}
END_TEST

/* 2^60 values, written with 60 lists: the ceiling ends this, or the number of values. */
START_TEST(what_is_shared_cannot_blow_up)
{
	uint64_t values = 100;
	struct emit m = EMIT_INIT(4, false);
	struct buf b = BUF_INIT(1 << 20);
	struct ckpt_err e = { 0 };
	struct pickle *p;
	struct pk_value v;

	emit_op(&m, 'N');
	for (int i = 0; i < 60; i++)
		emit_bytes(&m, "2\x86", 2);
	emit_op(&m, '.');
	p = load(m.b.data, m.b.len);
	v = pickle_root(p);
	ck_assert_int_eq(pickle_json(&v, &b, &e), -EFBIG);
	ck_assert_str_eq(e.msg, "its text needs more than 1048576 bytes");
	b.len = 0;
	b.err = 0;
	ck_assert_int_eq(pickle_json_within(&v, &values, &b, &e), -EFBIG);
	ck_assert_str_eq(e.msg, "it has the same values too often for a text");
	ck_assert_uint_eq(values, 0);
	ck_assert_uint_lt(b.len, 1000);
	pickle_free(p);
	buf_release(&b);
	buf_release(&m.b);
}
END_TEST

/* Quotes of a key within a key double with each level: a few bytes of pickle became gigabytes of
 * text. */
START_TEST(dicts_as_keys_of_dicts_come_to_an_end)
{
	struct emit m = EMIT_INIT(2, false);
	struct buf b = BUF_INIT(64 << 20);
	struct ckpt_err e = { 0 };
	struct pickle *p;
	struct pk_value v;

	emit_ops(&m, '}', 71);
	for (int i = 0; i < 70; i++)
		emit_bytes(&m, "Ns", 2);
	emit_op(&m, '.');
	p = load(m.b.data, m.b.len);
	v = pickle_root(p);
	ck_assert_int_eq(pickle_json(&v, &b, &e), -EFBIG);
	ck_assert_str_eq(e.msg, "its text needs more than 1048576 bytes");
	pickle_free(p);
	buf_release(&b);
	buf_release(&m.b);
}
END_TEST

/* ---- forms that are known, and others that only resemble them ---- */

#define STORE			  "&('storage', torch.FloatStorage, '0', 'cpu', 6)"
#define PARTS			  ", 0, (2,3), (3,1)"
#define MADE(name, storage, more) "torch._utils._rebuild_" name "(" storage PARTS more ")"
#define DTYPE(args, state)	  "numpy.dtype(" args ")!" state
#define F8			  DTYPE("'f8', F, T", "(3, '<', N)")
#define NDARRAY(state)		  "numpy.core.multiarray._reconstruct(numpy.ndarray, (0,), %62)!" state
#define NUMBER(dtype, bytes)	  "numpy.core.multiarray.scalar(" dtype ", " bytes ")"

static const struct {
	const char *text, *want; /* the text, or its beginning followed by "..." */
} forms[] = {
	{ MADE("tensor", STORE, ""),
	  "{'__class__': 'torch.Tensor', 'dtype': 'float32', 'shape': [2, 3]}" },
	{ MADE("tensor_v2", STORE, ", F, N"),
	  "{'__class__': 'torch.Tensor', 'dtype': 'float32', 'shape': [2, 3]}" },
	{ MADE("qtensor", "&('storage', torch.QInt8Storage, '0', 'cpu', 6)", ", 5"),
	  "{'__class__': 'torch.Tensor', 'dtype': 'qint8', 'shape': [2, 3]}" },
	{ MADE("tensor_v3", STORE, ", F, N, torch.uint16"),
	  "{'__class__': 'torch.Tensor', 'dtype': 'uint16', 'shape': [2, 3]}" },
	{ MADE("tensor_v3", STORE, ", F, N, 5"),
	  "{'__class__': 'torch._utils._rebuild_tensor_v3', '__args__': ..." },
	{ MADE("tensor_v3", STORE, ", F, N, torch.odd"),
	  "{'__class__': 'torch._utils._rebuild_tensor_v3', '__args__': ..." },
	{ MADE("tensor_v3", STORE, ", F"),
	  "{'__class__': 'torch._utils._rebuild_tensor_v3', '__args__': ..." },
	{ MADE("other", STORE, ""),
	  "{'__class__': 'torch._utils._rebuild_other', '__args__': ..." },
	{ MADE("tensor", "&('storage', torch.OddStorage, '0', 'cpu', 6)", ""),
	  "{'__class__': 'torch._utils._rebuild_tensor', '__args__': ..." },
	{ "torch._utils._rebuild_tensor(" STORE ", 0, (2,-3), (3,1))",
	  "{'__class__': 'torch._utils._rebuild_tensor', '__args__': ..." },
	{ "torch._utils._rebuild_tensor(" STORE ", 0, (2,3))",
	  "{'__class__': 'torch._utils._rebuild_tensor', '__args__': ..." },
	{ MADE("tensor", "5", ""),
	  "{'__class__': 'torch._utils._rebuild_tensor', '__args__': [5, ..." },
	{ "torch._utils._rebuild_parameter()", "{'__class__': 'torch._utils._rebuild_parameter'}" },
	{ "torch._utils._rebuild_parameter(5)",
	  "{'__class__': 'torch._utils._rebuild_parameter', '__args__': [5]}" },
	{ "torch._tensor._rebuild_from_type_v2(5, 6)",
	  "{'__class__': 'torch._tensor._rebuild_from_type_v2', '__args__': [5, 6]}" },
	{ "torch._tensor._rebuild_from_type_v2(torch._utils._rebuild_tensor, 5, (" STORE PARTS "))",
	  "{'__class__': '?', 'dtype': 'float32', 'shape': [2, 3]}" },
	{ STORE, "{'__class__': 'torch.FloatStorage', 'size': 6}" },
	{ "&('storage', torch.FloatStorage, '0', 'cpu')", "{'__class__': '?'}" },
	{ "&('store', torch.FloatStorage, '0', 'cpu', 6)", "{'__class__': '?'}" },
	{ "&(5, torch.FloatStorage, '0', 'cpu', 6)", "{'__class__': '?'}" },
	{ "&('storage', 5, '0', 'cpu', 6)", "{'__class__': '?'}" },
	{ "&('storage', torch.FloatStorage, '0', 'cpu', 'x')", "{'__class__': '?'}" },
	{ "_codecs.encode('a')", "{'__class__': '_codecs.encode', '__args__': ['a']}" },
	{ "_codecs.encode(5, 'latin1')",
	  "{'__class__': '_codecs.encode', '__args__': [5, 'latin1']}" },
	{ "_codecs.encode('a', 5)", "{'__class__': '_codecs.encode', '__args__': ['a', 5]}" },
	{ "_codecs.decode('a', 'latin1')",
	  "{'__class__': '_codecs.decode', '__args__': ['a', 'latin1']}" },
	{ "builtins.set((1, 2))", "{'__class__': 'builtins.set', '__items__': [1, 2]}" },
	{ "builtins.frozenset([1])", "{'__class__': 'builtins.frozenset', '__items__': [1]}" },
	{ "builtins.set([1], 2)", "{'__class__': 'builtins.set', '__args__': [[1], 2]}" },
	{ NDARRAY("(1, (1,), " F8 ", F, %0000000000000840)"),
	  "{'__class__': 'numpy.ndarray', 'dtype': '<f8', 'shape': [1], 'hex': "
	  "'0000000000000840'}" },
	{ NDARRAY("(1, (1,), " F8 ", F)"),
	  "{'__class__': 'numpy.core.multiarray._reconstruct', ..." },
	{ NDARRAY("(1, (1,), " F8 ", 5, %00)"),
	  "{'__class__': 'numpy.core.multiarray._reconstruct', ..." },
	{ NDARRAY("(1, 5, " F8 ", F, %00)"),
	  "{'__class__': 'numpy.core.multiarray._reconstruct', ..." },
	{ NDARRAY("(1, (1,), 5, F, %00)"),
	  "{'__class__': 'numpy.core.multiarray._reconstruct', ..." },
	{ NDARRAY("(1, (1,), " F8 ", F, 'x')"),
	  "{'__class__': 'numpy.core.multiarray._reconstruct', ..." },
	{ "numpy.core.multiarray.other()!(1, (1,), " F8 ", F, %00)",
	  "{'__class__': 'numpy.core.multiarray.other', ..." },
	{ NUMBER(F8, "%0000000000000840"), "{'__class__': 'numpy.float64', 'value': 3.0}" },
	{ NUMBER(DTYPE("'b1', F, T", "(3, '|')"), "%00"),
	  "{'__class__': 'numpy.bool', 'value': false}" },
	{ NUMBER(DTYPE("'u2', F, T", "(3, '<')"), "%ff01"),
	  "{'__class__': 'numpy.uint16', 'value': 511}" },
	{ NUMBER(DTYPE("'i4', F, T", "(3, '<')"), "%00000080"),
	  "{'__class__': 'numpy.int32', 'value': -2147483648}" },
	{ NUMBER(DTYPE("'f8', F, T", "(3, '>')"), "%0000000000000840"),
	  "{'__class__': 'numpy.core.multiarray.scalar', ..." },
	{ NUMBER(DTYPE("'f2', F, T", "(3, '<')"), "%0000"),
	  "{'__class__': 'numpy.core.multiarray.scalar', ..." },
	{ NUMBER(DTYPE("'c8', F, T", "(3, '<')"), "%0000000000000840"),
	  "{'__class__': 'numpy.core.multiarray.scalar', ..." },
	{ NUMBER(F8, "%00"), "{'__class__': 'numpy.core.multiarray.scalar', ..." },
	{ NUMBER(F8, "5"), "{'__class__': 'numpy.core.multiarray.scalar', ..." },
	{ NUMBER("5", "%00"), "{'__class__': 'numpy.core.multiarray.scalar', '__args__': [5, ..." },
	{ NUMBER(DTYPE("", "(3, '<')"), "%00"),
	  "{'__class__': 'numpy.core.multiarray.scalar', ..." },
	{ NUMBER(DTYPE("5", "(3, '<')"), "%00"),
	  "{'__class__': 'numpy.core.multiarray.scalar', ..." },
	{ NUMBER(DTYPE("'f16'", "(3, '<')"), "%00"),
	  "{'__class__': 'numpy.core.multiarray.scalar', ..." },
	{ NUMBER(DTYPE("'U1'", "(3, '<')"), "%00"),
	  "{'__class__': 'numpy.core.multiarray.scalar', ..." },
	{ NUMBER(DTYPE("'u3'", "(3, '<')"), "%000000"),
	  "{'__class__': 'numpy.core.multiarray.scalar', ..." },
	{ NUMBER(DTYPE("'u1'", "(3,)"), "%00"),
	  "{'__class__': 'numpy.core.multiarray.scalar', ..." },
	{ NUMBER(DTYPE("'u1'", "(3, 5)"), "%00"),
	  "{'__class__': 'numpy.core.multiarray.scalar', ..." },
	{ NUMBER(DTYPE("'u1'", "(3, '<<')"), "%00"),
	  "{'__class__': 'numpy.core.multiarray.scalar', ..." },
	{ NUMBER(DTYPE("'u1'", "(3, '=')"), "%00"),
	  "{'__class__': 'numpy.core.multiarray.scalar', ..." },
	{ NUMBER("numpy.dtype('u1')", "%00"), "{'__class__': 'numpy.core.multiarray.scalar', ..." },
	{ NUMBER("numpy.odd('u1')!(3, '|')", "%00"),
	  "{'__class__': 'numpy.core.multiarray.scalar', ..." },
	{ "numpy.core.multiarray.scalar(" F8 ")",
	  "{'__class__': 'numpy.core.multiarray.scalar', ..." },
};

START_TEST(what_is_nearly_of_a_known_form_is_an_object)
{
	for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
		struct buf b = BUF_INIT(1 << 20), text = saved_text_pickle(forms[i].text);
		size_t n = strlen(forms[i].want);
		struct pickle *p = load(text.data, text.len);
		struct pk_value v = pickle_root(p);
		struct ckpt_err e = { 0 };

		ck_assert_int_eq(pickle_json(&v, &b, &e), 0);
		for (char *s = b.data; *s; s++)
			*s = *s == '"' ? '\'' : *s;
		if (n > 3 && !strcmp(forms[i].want + n - 3, "..."))
			ck_assert_msg(!strncmp(b.data, forms[i].want, n - 3), "%s", b.data);
		else
			ck_assert_str_eq(b.data, forms[i].want);
		pickle_free(p);
		buf_release(&text);
		buf_release(&b);
	}
}
END_TEST

SUITE(pickle_json)
