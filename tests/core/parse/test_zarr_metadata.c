/* SPDX-License-Identifier: Apache-2.0 */
#include "parse/zarr_metadata.h"

#include "base/checked.h"
#include "base/err.h"
#include "codec/values.h"
#include "rng.h"
#include "suites.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- elements ---- */

static const enum ckpt_dtype floats[] = {
	CKPT_DTYPE_F16,		CKPT_DTYPE_BF16,    CKPT_DTYPE_F8_E4M3FN,
	CKPT_DTYPE_F8_E4M3FNUZ, CKPT_DTYPE_F8_E5M2, CKPT_DTYPE_F8_E5M2FNUZ,
	CKPT_DTYPE_F8_E8M0FNU,	CKPT_DTYPE_F8_E3M4, CKPT_DTYPE_F8_E4M3B11FNUZ,
	CKPT_DTYPE_F4_E2M1FN,	CKPT_DTYPE_I8,	    CKPT_DTYPE_U8,
	CKPT_DTYPE_I16,		CKPT_DTYPE_U16,
};

/* Every number that a type can hold gets its own bits again, and NaN those of some NaN. */
START_LOOP_TEST(every_number_is_the_element_that_it_was, ARRAY_LEN(floats))
{
	enum ckpt_dtype t = floats[_i];
	size_t size = dtype_info(t)->size, n = t == CKPT_DTYPE_F4_E2M1FN ? 16
					       : size == 1		 ? 256
									 : 65536;

	for (size_t i = 0; i < n; i++) {
		uint8_t bits[2] = { (uint8_t)i, (uint8_t)(i >> 8) }, got[2] = { 0 };
		double v, back, rest;

		(void)values_decode(t, bits, 1, &v, &rest);
		REQUIRE(zarr_element(t, v, got));
		(void)values_decode(t, got, 1, &back, &rest);
		REQUIRE(isnan(v) ? isnan(back) : !memcmp(got, bits, size));
	}
}
END_TEST

/* For other numbers, no element is nearer; if two are equally near, it is the even one. */
START_LOOP_TEST(the_nearest_element_is_taken, ARRAY_LEN(floats))
{
	enum ckpt_dtype t = floats[_i];
	size_t n = t == CKPT_DTYPE_F4_E2M1FN ? 16 : dtype_info(t)->size == 1 ? 256 : 65536;
	struct rng r = rng_new();

	if (dtype_info(t)->is_integer || t == CKPT_DTYPE_F8_E8M0FNU)
		return; /* not rounded */
	for (int k = 0; k < 300; k++) {
		size_t at = rng_below(&r, n);
		uint8_t bits[2] = { (uint8_t)at, (uint8_t)(at >> 8) }, got[2] = { 0 };
		double v, w, rest, best = (double)INFINITY;

		(void)values_decode(t, bits, 1, &v, &rest);
		if (!isfinite(v))
			continue;
		v *= 1 +
		     ((double)rng_below(&r, 4097) / 4096 - 0.5) / (double)(1 + rng_below(&r, 3));
		if (!zarr_element(t, v, got)) {
			REQUIRE(fabs(v) > 1); /* beyond the greatest */
			continue;
		}
		(void)values_decode(t, got, 1, &w, &rest);
		for (size_t i = 0; i < n; i++) {
			uint8_t other[2] = { (uint8_t)i, (uint8_t)(i >> 8) };
			double x;

			(void)values_decode(t, other, 1, &x, &rest);
			if (!isfinite(x))
				continue;
			best = fabs(x - v) < best ? fabs(x - v) : best;
			REQUIRE(!(fabs(x - v) == fabs(w - v) && x != w && got[0] & 1));
		}
		REQUIRE(fabs(w - v) == best);
	}
}
END_TEST

/* ---- metadata ---- */

#define V2(more) "{\"zarr_format\":2,\"order\":\"C\",\"shape\":[4,6],\"chunks\":[2,3]," more "}"
#define V3(more) \
	"{\"zarr_format\":3,\"node_type\":\"array\",\"shape\":[4,6]," \
	"\"chunk_grid\":{\"name\":\"regular\",\"configuration\":{\"chunk_shape\":[2,6]}}," \
	"\"chunk_key_encoding\":{\"name\":\"default\"}," more "}"
#define F4    "\"data_type\":\"float32\",\"fill_value\":0,"
#define BYTES "{\"name\":\"bytes\",\"configuration\":{\"endian\":\"little\"}}"
#define SHARD(chunk, codecs, more) \
	"{\"name\":\"sharding_indexed\",\"configuration\":{\"chunk_shape\":" chunk \
	",\"codecs\":[" codecs "],\"index_codecs\":[" BYTES ",{\"name\":\"crc32c\"}]" more "}}"

static int parse(const char *text, struct zarr_array *a, struct ckpt_err *e)
{
	return zarr_parse(text, strlen(text), strstr(text, "\"zarr_format\":3") != NULL, a, e);
}

static void parse_good(const char *text, struct zarr_array *a)
{
	struct ckpt_err e = { 0 };
	int rc = parse(text, a, &e);

	ck_assert_msg(rc == 1, "%s: %s", text, e.msg);
}

START_TEST(version_2_as_tensorstore_writes_it)
{
	struct zarr_array a;

	parse_good("{\"chunks\":[8,2],\"compressor\":{\"id\":\"zstd\",\"level\":1},"
		   "\"dimension_separator\":\".\",\"dtype\":\">i4\",\"fill_value\":null,"
		   "\"filters\":null,\"order\":\"F\",\"shape\":[16,2],\"zarr_format\":2}",
		   &a);
	ck_assert_str_eq(a.unsupported, "");
	ck_assert_int_eq(a.dtype, CKPT_DTYPE_I32);
	ck_assert(a.n_levels == 1 && a.level[0].swap && a.level[0].n_codecs == 1);
	ck_assert_str_eq(a.level[0].codec[0], "zstd");
	ck_assert(a.level[0].axis[0] == 1 && a.level[0].axis[1] == 0);
	ck_assert(a.n_dims == 2 && a.shape[0] == 16 && a.level[0].chunk[0] == 8);
	ck_assert(!a.key_c && a.separator == '.');
}
END_TEST

START_TEST(version_3_as_orbax_writes_it)
{
	struct zarr_array a;

	parse_good(
		"{\"chunk_grid\":{\"configuration\":{\"chunk_shape\":[8]},\"name\":\"regular\"},"
		"\"chunk_key_encoding\":{\"name\":\"default\"},\"codecs\":[{\"configuration\":"
		"{\"chunk_shape\":[4],\"codecs\":[{\"configuration\":{\"endian\":\"little\"},"
		"\"name\":\"bytes\"},{\"configuration\":{\"checksum\":false,\"level\":3},"
		"\"name\":\"zstd\"}],\"index_codecs\":[{\"configuration\":{\"endian\":\"little\"},"
		"\"name\":\"bytes\"},{\"name\":\"crc32c\"}]},\"name\":\"sharding_indexed\"}],"
		"\"data_type\":\"int32\",\"fill_value\":0,\"node_type\":\"array\",\"shape\":[8],"
		"\"zarr_format\":3}",
		&a);
	ck_assert_str_eq(a.unsupported, "");
	ck_assert(a.n_levels == 2 && a.level[0].index_crc && !a.level[0].index_first);
	ck_assert(a.level[0].chunk[0] == 8 && a.level[1].chunk[0] == 4);
	ck_assert_str_eq(a.level[1].codec[0], "zstd");
	ck_assert(a.key_c && a.separator == '/');
}
END_TEST

START_TEST(a_group_is_no_array)
{
	struct zarr_array a;
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(parse("{\"zarr_format\":3,\"node_type\":\"group\"}", &a, &e), 0);
}
END_TEST

START_TEST(transposes_are_applied_one_after_another)
{
	struct zarr_array a;

	parse_good("{\"zarr_format\":3,\"node_type\":\"array\",\"shape\":[2,3,4],\"chunk_grid\":"
		   "{\"name\":\"regular\",\"configuration\":{\"chunk_shape\":[2,3,4]}},"
		   "\"chunk_key_encoding\":\"default\"," F4 "\"codecs\":["
		   "{\"name\":\"transpose\",\"configuration\":{\"order\":[1,2,0]}},"
		   "{\"name\":\"transpose\",\"configuration\":{\"order\":\"F\"}},\"bytes\"]}",
		   &a);
	/* the axes 0 1 2 become 1 2 0, which "F" reverses to 0 2 1 */
	ck_assert(a.level[0].axis[0] == 0 && a.level[0].axis[1] == 2 && a.level[0].axis[2] == 1);
}
END_TEST

/* ---- what is refused, and what is not supported ---- */

static const struct {
	const char *json, *msg;
} bads[] = {
	{ "{\"zarr_format\":3,}", "line 1: string expected near '}'" },
	{ "{\"zarr_format\":3,\"node_type\":\"x\"}", "its node_type is neither array nor group" },
	{ "{\"zarr_format\":3,\"node_type\":\"array\"}", "it has no shape or no chunk_grid" },
	{ V3("\"codecs\":[]"), "it has no data_type" },
	{ V3(F4 "\"attributes\":{}"), "it has no codecs" },
	{ V3(F4 "\"codecs\":{}"), "its codecs are not a list" },
	{ V3(F4 "\"codecs\":[]"), "none of its codecs turns elements into bytes" },
	{ V3(F4 "\"codecs\":[{\"name\":\"transpose\",\"configuration\":{\"order\":[0]}}]"),
	  "the order of its transpose is not a list of all axes" },
	{ V3(F4 "\"codecs\":[{\"name\":\"transpose\",\"configuration\":{\"order\":[1,1]}}]"),
	  "the order of its transpose is not a permutation" },
	{ V3(F4 "\"codecs\":[{\"name\":\"transpose\",\"configuration\":{\"order\":[0,64]}}]"),
	  "the order of its transpose is not a permutation" },
	{ V3(F4 "\"codecs\":[{\"name\":\"bytes\",\"configuration\":{\"endian\":\"odd\"}}]"),
	  "a codec's endian is neither little nor big" },
	{ V3(F4 "\"codecs\":[" SHARD("[2,4]", BYTES, "") "]"),
	  "the chunk_shape of its shards does not divide them" },
	{ V3(F4 "\"codecs\":[" SHARD("[2,0]", BYTES, "") "]"),
	  "the chunk_shape of its shards does not divide them" },
	{ V3(F4 "\"codecs\":[" SHARD("[2]", BYTES, "") "]"),
	  "the chunk_shape of its shards is not a list of as many numbers as its shape" },
	{ V3(F4 "\"codecs\":[" SHARD("[2,3]", BYTES, ",\"index_location\":\"middle\"") "]"),
	  "the index_location of its shards is neither start nor end" },
	{ V3(F4 "\"codecs\":[" SHARD("[2,3]", "", "") "]"),
	  "none of its codecs turns elements into bytes" },
	{ V3("\"data_type\":\"float32\",\"fill_value\":\"0x7f\",\"codecs\":[" BYTES "]"),
	  "its fill_value '0x7f' is not a value of float32" },
	{ V3("\"data_type\":\"int8\",\"fill_value\":128,\"codecs\":[" BYTES "]"),
	  "its fill_value is not a value of int8" },
	{ V3("\"data_type\":\"uint64\",\"fill_value\":18446744073709551616,\"codecs\":[" BYTES "]"),
	  "its fill_value is not a value of uint64" },
	{ V3("\"data_type\":\"complex64\",\"fill_value\":[1],\"codecs\":[" BYTES "]"),
	  "its fill_value is not a value of complex64" },
	{ "{\"zarr_format\":\"3\"}", "its zarr_format is not 2" },
	{ "{\"x\":{\"zarr_format\":3},\"zarr_format\":2}", "its zarr_format is not 3" },
	{ "{\"x\":{\"zarr_format\":3}}", "its zarr_format is not 3" },
	{ "{\"zarr_format\":2,\"shape\":[4,-1]}", "its shape is not a list of at most 64 numbers" },
	{ "{\"zarr_format\":2,\"shape\":[4],\"chunks\":[4,1]}",
	  "its chunks are not a list of as many numbers as its shape" },
	{ "{\"zarr_format\":2,\"shape\":[4],\"chunks\":[0]}", "its chunks have no elements" },
	{ "{\"zarr_format\":2,\"shape\":[4],\"chunks\":[4],\"dtype\":5}",
	  "its dtype is neither a string nor a list" },
	{ "{\"zarr_format\":2,\"shape\":[4],\"chunks\":[4],\"dtype\":\"<f4\"}",
	  "its order is neither C nor F" },
	{ "{\"zarr_format\":2,\"order\":\"C\",\"shape\":[4],\"chunks\":[2305843009213693952],"
	  "\"dtype\":\"<f4\"}",
	  "its chunks have more than 2^63 bytes" },
	{ "{\"zarr_format\":2,\"order\":\"C\",\"shape\":[4,4],"
	  "\"chunks\":[4294967296,4294967296],\"dtype\":\"<f4\"}",
	  "its chunks have more than 2^63 bytes" },
	{ V2("\"dtype\":\"<f4\",\"dimension_separator\":\"-\""),
	  "the separator of its keys is neither '.' nor '/'" },
	{ "{\"zarr_format\":3,\"node_type\":\"array\",\"chunk_grid\":{\"name\":\"odd\"}}",
	  "it has no shape or no chunk_grid" },
	{ "{\"zarr_format\":3,\"node_type\":\"array\",\"shape\":[1],\"chunk_grid\":{\"name\":5}}",
	  "it has no shape or no chunk_grid" },
	{ "{\"zarr_format\":3,\"node_type\":\"array\",\"shape\":[1],\"chunk_grid\":{\"name\":[1]}}",
	  "it has no shape or no chunk_grid" },
	{ V3(F4 "\"codecs\":[{\"name\":\"transpose\",\"configuration\":{\"order\":\"K\"}}]"),
	  "the order of its transpose is not a list of all axes" },
	{ V3(F4 "\"codecs\":[" SHARD("5", BYTES, "") "]"),
	  "the chunk_shape of its shards is not a list of as many numbers as its shape" },
	{ V3(F4 "\"codecs\":[{\"name\":\"sharding_indexed\",\"configuration\":{"
		"\"chunk_shape\":[2,3],\"codecs\":5}}]"),
	  "its shards have no list of codecs" },
	{ V3("\"data_type\":\"complex64\",\"fill_value\":[1,\"x\"],\"codecs\":[" BYTES "]"),
	  "its fill_value is not a value of complex64" },
	{ V3("\"data_type\":\"complex64\",\"fill_value\":[true,1],\"codecs\":[" BYTES "]"),
	  "its fill_value is not a value of complex64" },
	{ V3("\"data_type\":\"float32\",\"fill_value\":\"0x7fc0000g\",\"codecs\":[" BYTES "]"),
	  "its fill_value '0x7fc0000g' is not a value of float32" },
	{ V3("\"data_type\":\"int8\",\"fill_value\":\"0x7f\",\"codecs\":[" BYTES "]"),
	  "its fill_value '0x7f' is not a value of int8" },
	{ V3("\"data_type\":\"bool\",\"fill_value\":\"0x01\",\"codecs\":[" BYTES "]"),
	  "its fill_value '0x01' is not a value of bool" },
	{ V3("\"data_type\":\"int8\",\"fill_value\":true,\"codecs\":[" BYTES "]"),
	  "its fill_value is not a value of int8" },
	{ V3("\"data_type\":\"int8\",\"fill_value\":1.5,\"codecs\":[" BYTES "]"),
	  "its fill_value is not a value of int8" },
	{ V3("\"data_type\":\"uint8\",\"fill_value\":-1,\"codecs\":[" BYTES "]"),
	  "its fill_value is not a value of uint8" },
	{ V3("\"data_type\":\"int8\",\"fill_value\":-129,\"codecs\":[" BYTES "]"),
	  "its fill_value is not a value of int8" },
	{ V3("\"data_type\":\"int64\",\"fill_value\":9223372036854775808,\"codecs\":[" BYTES "]"),
	  "its fill_value is not a value of int64" },
	{ V3("\"data_type\":\"uint64\",\"fill_value\":-1,\"codecs\":[" BYTES "]"),
	  "its fill_value is not a value of uint64" },
	{ V3("\"data_type\":\"float32\",\"fill_value\":1e39,\"codecs\":[" BYTES "]"),
	  "its fill_value is not a value of float32" },
	{ V3("\"data_type\":\"float16\",\"fill_value\":1e300,\"codecs\":[" BYTES "]"),
	  "its fill_value is not a value of float16" },
	{ V3("\"data_type\":\"float16\",\"fill_value\":65520,\"codecs\":[" BYTES "]"),
	  "its fill_value is not a value of float16" },
	{ V3("\"data_type\":\"float8_e4m3fn\",\"fill_value\":\"Infinity\",\"codecs\":[" BYTES "]"),
	  "its fill_value 'Infinity' is not a value of float8_e4m3fn" },
	{ V3("\"data_type\":\"float8_e8m0fnu\",\"fill_value\":3,\"codecs\":[" BYTES "]"),
	  "its fill_value is not a value of float8_e8m0fnu" },
	{ V3("\"data_type\":\"float8_e8m0fnu\",\"fill_value\":-2,\"codecs\":[" BYTES "]"),
	  "its fill_value is not a value of float8_e8m0fnu" },
	{ V3("\"data_type\":\"float8_e8m0fnu\",\"fill_value\":\"Infinity\",\"codecs\":[" BYTES "]"),
	  "its fill_value 'Infinity' is not a value of float8_e8m0fnu" },
	{ V3("\"data_type\":\"float8_e8m0fnu\",\"fill_value\":3.4028236692093846e38,\"codecs\":"
	     "[" BYTES "]"),
	  "its fill_value is not a value of float8_e8m0fnu" },
	{ V3("\"data_type\":\"float8_e8m0fnu\",\"fill_value\":2.938735877055719e-39,\"codecs\":"
	     "[" BYTES "]"),
	  "its fill_value is not a value of float8_e8m0fnu" },
	{ V3("\"data_type\":\"bool\",\"fill_value\":2,\"codecs\":[" BYTES "]"),
	  "its fill_value is not a value of bool" },
};

START_LOOP_TEST(what_contradicts_the_specification_is_refused, ARRAY_LEN(bads))
{
	struct zarr_array a;
	struct ckpt_err e = { 0 };

	ck_assert_int_lt(parse(bads[_i].json, &a, &e), 0);
	ck_assert_int_eq(e.code, EBADMSG);
	ck_assert_str_eq(e.msg, bads[_i].msg);
}
END_TEST

static const struct {
	const char *json, *what;
	enum ckpt_dtype dtype;
} lacking[] = {
	{ V2("\"dtype\":\"<U7\""), "the dtype '<U7'", CKPT_DTYPE_NONE },
	{ V2("\"dtype\":\"|V4\""), "the dtype '|V4'", CKPT_DTYPE_NONE },
	{ V2("\"dtype\":\"qint8\""), "the dtype 'qint8'", CKPT_DTYPE_NONE },
	{ V2("\"dtype\":\"<f4\",\"compressor\":{\"id\":\"bz2\"}"), "the codec 'bz2'",
	  CKPT_DTYPE_F32 },
	{ V2("\"dtype\":\"<f4\",\"compressor\":{\"id\":\"crc32c\"}"), "the codec 'crc32c'",
	  CKPT_DTYPE_F32 },
	{ V2("\"dtype\":\"<f4\",\"filters\":[{\"id\":\"delta\"}]"), "filters", CKPT_DTYPE_F32 },
	{ V2("\"dtype\":\"<f4\",\"filters\":{}"), "filters", CKPT_DTYPE_F32 },
	{ V2("\"dtype\":\"<f4\",\"filters\":[]"), "", CKPT_DTYPE_F32 },
	{ V2("\"dtype\":[[\"a\",\"<f4\"]]"), "a dtype of several fields", CKPT_DTYPE_NONE },
	{ V2("\"dtype\":\"|f4\""), "the dtype '|f4'", CKPT_DTYPE_NONE },
	{ V2("\"dtype\":\"\""), "the dtype ''", CKPT_DTYPE_NONE },
	{ V2("\"dtype\":\"complex32\""), "the dtype 'complex32'", CKPT_DTYPE_NONE },
	{ V2("\"dtype\":\"bits8\""), "the dtype 'bits8'", CKPT_DTYPE_NONE },
	{ V2("\"dtype\":\"<f4\",\"compressor\":{\"id\":\"zlib\"}"), "", CKPT_DTYPE_F32 },
	{ V2("\"dtype\":\"<f4\",\"compressor\":{\"id\":5}"), "the codec '(not a name)'",
	  CKPT_DTYPE_F32 },
	{ V2("\"dtype\":\"<f4\",\"compressor\":{\"id\":\"zstd\\u0000\"}"), "the codec 'zstd%00'",
	  CKPT_DTYPE_F32 },
	{ V3(F4 "\"codecs\":[" BYTES ",{\"name\":\"numcodecs.zlib\"}]"), "", CKPT_DTYPE_F32 },
	{ V3(F4 "\"codecs\":[" BYTES ",{\"name\":\"numcodecs.crc32c\"}]"),
	  "the codec 'numcodecs.crc32c'", CKPT_DTYPE_F32 },
	{ V3(F4 "\"codecs\":[" BYTES ",{\"name\":\"zlib\"}]"), "the codec 'zlib'", CKPT_DTYPE_F32 },
	{ V3(F4 "\"codecs\":[" BYTES ",5]"), "the codec '(not a name)'", CKPT_DTYPE_F32 },
	{ V3(F4
	     "\"codecs\":[" BYTES
	     ",\"gzip\",\"gzip\",\"gzip\",\"gzip\",\"gzip\",\"gzip\",\"gzip\",\"gzip\",\"gzip\"]"),
	  "more than 8 codecs", CKPT_DTYPE_F32 },
	{ V3(F4
	     "\"codecs\":[{\"name\":\"sharding_indexed\",\"configuration\":{\"chunk_shape\":[2,3],"
	     "\"codecs\":[" BYTES "]}}]"),
	  "the codecs of its shards' index", CKPT_DTYPE_F32 },
	{ V3(F4
	     "\"codecs\":[{\"name\":\"sharding_indexed\",\"configuration\":{\"chunk_shape\":[2,3],"
	     "\"codecs\":[" BYTES "],\"index_codecs\":[\"bytes\",\"crc32c\",\"crc32c\"]}}]"),
	  "the codecs of its shards' index", CKPT_DTYPE_F32 },
	{ V3(F4
	     "\"codecs\":[{\"name\":\"sharding_indexed\",\"configuration\":{\"chunk_shape\":[2,3],"
	     "\"codecs\":[" BYTES "],\"index_codecs\":[\"bytes\",\"zstd\"]}}]"),
	  "the codecs of its shards' index", CKPT_DTYPE_F32 },
	{ "{\"zarr_format\":3,\"node_type\":\"array\",\"shape\":[4,6],\"chunk_grid\":"
	  "{\"name\":\"regular\",\"configuration\":{\"chunk_shape\":[2,6]}},"
	  "\"chunk_key_encoding\":\"novel\"," F4 "\"codecs\":[" BYTES "]}",
	  "the chunk key encoding 'novel'", CKPT_DTYPE_F32 },
	{ V3(F4 "\"codecs\":[{\"name\":\"transpose\",\"configuration\":{\"order\":\"C\"}}," BYTES
		"]"),
	  "", CKPT_DTYPE_F32 },
	{ V3(F4 "\"codecs\":[" SHARD("[2,3]", BYTES, ",\"index_location\":\"end\"") "]"), "",
	  CKPT_DTYPE_F32 },
	{ V3(F4 "\"codecs\":[" SHARD("[2,3]", BYTES, ",\"index_location\":\"start\"") "]"), "",
	  CKPT_DTYPE_F32 },
	{ V3("\"data_type\":5,\"codecs\":[" BYTES "]"), "the data type '(not a name)'",
	  CKPT_DTYPE_NONE },
	{ V3("\"data_type\":{\"name\":\"float32\",\"configuration\":{}},\"codecs\":[" BYTES "]"),
	  "", CKPT_DTYPE_F32 },
	{ V3("\"data_type\":\"string\",\"codecs\":[{\"name\":\"vlen-utf8\"}]"),
	  "the data type 'string'", CKPT_DTYPE_NONE },
	{ V3("\"data_type\":{\"name\":\"numpy.datetime64\",\"configuration\":{\"unit\":\"s\"}},"
	     "\"codecs\":[" BYTES "]"),
	  "the data type 'numpy.datetime64'", CKPT_DTYPE_NONE },
	{ V3(F4 "\"codecs\":[" BYTES ",{\"name\":\"lz99\"}]"), "the codec 'lz99'", CKPT_DTYPE_F32 },
	{ V3(F4 "\"codecs\":[{\"name\":\"packbits\"}]"), "the codec 'packbits'", CKPT_DTYPE_F32 },
	{ V3(F4 "\"codecs\":[" SHARD("[2,3]", BYTES, "") ",{\"name\":\"zstd\"}]"),
	  "shards with the codec 'zstd'", CKPT_DTYPE_F32 },
	{ V3(F4 "\"codecs\":[" BYTES "],\"storage_transformers\":[{\"name\":\"x\"}]"),
	  "storage transformers", CKPT_DTYPE_F32 },
	{ V3(F4 "\"codecs\":[" BYTES "],\"novelty\":{\"must_understand\":true}"),
	  "the extension 'novelty'", CKPT_DTYPE_F32 },
	{ V3(F4 "\"codecs\":[" BYTES "],\"novelty\":{\"must_understand\":false}"), "",
	  CKPT_DTYPE_F32 },
	{ "{\"zarr_format\":3,\"node_type\":\"array\",\"shape\":[4,6],\"chunk_grid\":"
	  "{\"name\":\"rectilinear\"},\"chunk_key_encoding\":{\"name\":\"default\"}," F4
	  "\"codecs\":[" BYTES "]}",
	  "the chunk grid 'rectilinear'", CKPT_DTYPE_F32 },
	{ V3(F4 "\"codecs\":[" SHARD(
		  "[2,6]", SHARD("[2,6]", SHARD("[2,6]", SHARD("[2,6]", BYTES, ""), ""), ""),
		  "") "]"),
	  "shards in shards, 4 deep", CKPT_DTYPE_F32 },
};

START_LOOP_TEST(what_is_not_supported_is_named, ARRAY_LEN(lacking))
{
	struct zarr_array a;

	parse_good(lacking[_i].json, &a);
	ck_assert_str_eq(a.unsupported, lacking[_i].what);
	ck_assert_int_eq(a.dtype, lacking[_i].dtype);
	ck_assert(a.n_dims == 2 && a.shape[0] == 4 && a.shape[1] == 6);
}
END_TEST

/* ---- fill values ---- */

static const struct {
	const char *type, *text, *hex;
} fills[] = {
	{ "float32", "null", "00000000" },
	{ "float32", "-0.0", "00000080" },
	{ "float32", "\"NaN\"", "0000c07f" },
	{ "float32", "\"-Infinity\"", "000080ff" },
	{ "float32", "\"0x7fc00001\"", "0100c07f" },
	{ "float32", "1", "0000803f" },
	{ "float64", "0.1", "9a9999999999b93f" },
	{ "bfloat16", "\"0x7fc0\"", "c07f" },
	{ "bfloat16", "1.5", "c03f" },
	{ "float8_e4m3fn", "\"NaN\"", "7f" },
	{ "float8_e8m0fnu", "2", "80" },
	{ "float16", "65504", "ff7b" },
	{ "uint64", "18446744073709551615", "ffffffffffffffff" },
	{ "int64", "-9223372036854775808", "0000000000000080" },
	{ "uint64", "9007199254740993", "0100000000002000" },
	{ "int4", "-8", "f8" },
	{ "int2", "-2", "fe" },
	{ "int32", "-2", "feffffff" },
	{ "bool", "true", "01" },
	{ "bool", "0", "00" },
	{ "complex64", "[1,\"NaN\"]", "0000803f0000c07f" },
	{ "complex64", "2.5", "0000204000000000" },
	{ "float8_e8m0fnu", "\"NaN\"", "ff" },
	{ "float8_e8m0fnu", "1.7014118346046923e38", "fe" },
	{ "float8_e8m0fnu", "5.877471754111438e-39", "00" },
	{ "bool", "false", "00" },
	{ "float16", "\"Infinity\"", "007c" },
	{ "float8_e4m3fnuz", "-0.0", "00" },
	{ "complex128", "[0,-1]", "0000000000000000000000000000f0bf" },
};

START_LOOP_TEST(fill_values_have_these_bytes, ARRAY_LEN(fills))
{
	struct zarr_array a;
	char text[600], hex[40];
	size_t n = 0;

	(void)snprintf(text, sizeof(text),
		       V3("\"data_type\":\"%s\",\"fill_value\":%s,\"codecs\":[" BYTES "]"),
		       fills[_i].type, fills[_i].text);
	parse_good(text, &a);
	ck_assert_str_eq(a.unsupported, "");
	for (size_t k = 0; k < ckpt_dtype_size(a.dtype); k++)
		n += (size_t)sprintf(hex + n, "%02x", a.fill[k]);
	ck_assert_str_eq(hex, fills[_i].hex);
}
END_TEST

/* ---- keys ---- */

static const struct {
	const char *json, *key;
	int64_t cell[2]; /* -1: none */
} keys[] = {
	{ V2("\"dtype\":\"<f4\""), "1.1", { 1, 1 } },
	{ V2("\"dtype\":\"<f4\""), "2.0", { -1 } },
	{ V2("\"dtype\":\"<f4\""), "1/1", { -1 } },
	{ V2("\"dtype\":\"<f4\""), "01.1", { -1 } },
	{ V2("\"dtype\":\"<f4\""), "1.1.0", { -1 } },
	{ V2("\"dtype\":\"<f4\""), "1.", { -1 } },
	{ V2("\"dtype\":\"<f4\""), "1", { -1 } },
	{ V2("\"dtype\":\"<f4\""), "", { -1 } },
	{ V2("\"dtype\":\"<f4\""), "18446744073709551616.0", { -1 } },
	{ V2("\"dtype\":\"<f4\""), "9223372036854775808.0", { -1 } },
	{ V2("\"dtype\":\"<f4\",\"dimension_separator\":\"/\""), "0/1", { 0, 1 } },
	{ V3(F4 "\"codecs\":[" BYTES "]"), "c/1/0", { 1, 0 } },
	{ V3(F4 "\"codecs\":[" BYTES "]"), "c/1", { -1 } },
	{ V3(F4 "\"codecs\":[" BYTES "]"), "c1/0", { -1 } },
	{ V3(F4 "\"codecs\":[" BYTES "]"), "1/0", { -1 } },
	{ V3(F4 "\"codecs\":[" BYTES "]"), "", { -1 } },
	{ V3(F4 "\"codecs\":[" BYTES "]"), "c", { -1 } },
};

START_LOOP_TEST(keys_are_cells, ARRAY_LEN(keys))
{
	struct zarr_array a;
	uint64_t cell[CKPT_MAX_DIMS];
	bool want = keys[_i].cell[0] >= 0;

	parse_good(keys[_i].json, &a);
	ck_assert_int_eq(zarr_cell(&a, keys[_i].key, strlen(keys[_i].key), cell), want);
	if (want)
		ck_assert(cell[0] == (uint64_t)keys[_i].cell[0] &&
			  cell[1] == (uint64_t)keys[_i].cell[1]);
}
END_TEST

/* Neither NumPy nor JAX has these, so that no zarr array does. */
START_TEST(types_of_torch_alone_are_none_of_zarrs)
{
	static const enum ckpt_dtype none[] = {
		CKPT_DTYPE_C32,	    CKPT_DTYPE_BC32,   CKPT_DTYPE_F4_E2M1FN_X2, CKPT_DTYPE_QI8,
		CKPT_DTYPE_QU8,	    CKPT_DTYPE_QI32,   CKPT_DTYPE_QU4X2,	CKPT_DTYPE_QU2X4,
		CKPT_DTYPE_BITS8,   CKPT_DTYPE_BITS16, CKPT_DTYPE_BITS1X8,	CKPT_DTYPE_BITS2X4,
		CKPT_DTYPE_BITS4X2,
	};

	for (enum ckpt_dtype t = CKPT_DTYPE_NONE + 1; t < CKPT_DTYPE_COUNT; t++) {
		const char *name = dtype_info(t)->name;
		struct zarr_array a;
		char text[600];
		bool has = true;

		for (size_t i = 0; i < ARRAY_LEN(none); i++)
			has &= none[i] != t;
		(void)snprintf(text, sizeof(text),
			       V3("\"data_type\":\"%s\",\"codecs\":[" BYTES "]"), name);
		parse_good(text, &a);
		ck_assert_msg(a.dtype == (has ? t : CKPT_DTYPE_NONE), "%s", name);
		ck_assert_msg(!*a.unsupported == has, "%s: %s", name, a.unsupported);
	}
}
END_TEST

START_TEST(metadata_of_more_than_its_limit_is_refused)
{
	struct zarr_array a;
	struct ckpt_err e = { 0 };

	ck_assert_int_eq(zarr_parse("", ZARR_MAX_METADATA + 1, true, &a, &e), -EFBIG);
	ck_assert_msg(strstr(e.msg, "it has more than ") != NULL, "%s", e.msg);
}
END_TEST

SUITE(zarr_metadata)
