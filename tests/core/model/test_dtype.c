/* SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "model/dtype.h"
#include "suites.h"

#include <stdlib.h>
#include <string.h>

/* Sizes: torch.empty(0, dtype=...).element_size(). Names: torch, torch.storage, safetensors.torch.
 */
static const struct {
	const char *name;
	size_t size;
	const char *storage, *safetensors;
} rows[] = {
	{ "float64", 8, "DoubleStorage", "F64" },
	{ "float32", 4, "FloatStorage", "F32" },
	{ "float16", 2, "HalfStorage", "F16" },
	{ "bfloat16", 2, "BFloat16Storage", "BF16" },
	{ "int64", 8, "LongStorage", "I64" },
	{ "int32", 4, "IntStorage", "I32" },
	{ "int16", 2, "ShortStorage", "I16" },
	{ "int8", 1, "CharStorage", "I8" },
	{ "uint64", 8, NULL, "U64" },
	{ "uint32", 4, NULL, "U32" },
	{ "uint16", 2, NULL, "U16" },
	{ "uint8", 1, "ByteStorage", "U8" },
	{ "bool", 1, "BoolStorage", "BOOL" },
	{ "complex128", 16, "ComplexDoubleStorage", NULL },
	{ "complex64", 8, "ComplexFloatStorage", "C64" },
	{ "complex32", 4, NULL, NULL },
	{ "bcomplex32", 4, NULL, NULL },
	{ "float8_e4m3fn", 1, NULL, "F8_E4M3" },
	{ "float8_e4m3fnuz", 1, NULL, "F8_E4M3FNUZ" },
	{ "float8_e5m2", 1, NULL, "F8_E5M2" },
	{ "float8_e5m2fnuz", 1, NULL, "F8_E5M2FNUZ" },
	{ "float8_e8m0fnu", 1, NULL, "F8_E8M0" },
	{ "float4_e2m1fn_x2", 1, NULL, "F4" },
	{ "qint8", 1, "QInt8Storage", NULL },
	{ "quint8", 1, "QUInt8Storage", NULL },
	{ "qint32", 4, "QInt32Storage", NULL },
	{ "quint4x2", 1, "QUInt4x2Storage", NULL },
	{ "quint2x4", 1, "QUInt2x4Storage", NULL },
	{ "bits8", 1, NULL, NULL },
	{ "bits16", 2, NULL, NULL },
	{ "bits1x8", 1, NULL, NULL },
	{ "bits2x4", 1, NULL, NULL },
	{ "bits4x2", 1, NULL, NULL },
	{ "float8_e3m4", 1, NULL, NULL },
	{ "float8_e4m3b11fnuz", 1, NULL, NULL },
	{ "float4_e2m1fn", 1, NULL, NULL },
	{ "int4", 1, NULL, NULL },
	{ "int2", 1, NULL, NULL },
};

START_LOOP_TEST(every_name_leads_to_the_type_and_its_size, ARRAY_LEN(rows))
{
	enum ckpt_dtype t = ckpt_dtype_by_name(rows[_i].name, strlen(rows[_i].name));
	const struct dtype_info *d = dtype_info(t);

	ck_assert_int_ne(t, CKPT_DTYPE_NONE);
	ck_assert_str_eq(d->name, rows[_i].name);
	ck_assert_uint_eq(d->size, rows[_i].size);
	ck_assert_str_eq(ckpt_dtype_name(t), rows[_i].name);
	ck_assert_uint_eq(ckpt_dtype_size(t), rows[_i].size);
	ck_assert_pstr_eq(d->storage, rows[_i].storage);
	ck_assert_pstr_eq(d->safetensors, rows[_i].safetensors);
	if (rows[_i].storage)
		ck_assert_int_eq(dtype_by_storage(rows[_i].storage), t);
	if (rows[_i].safetensors)
		ck_assert_int_eq(dtype_by_safetensors(rows[_i].safetensors), t);
}
END_TEST

START_TEST(the_table_has_no_further_types)
{
	ck_assert_uint_eq(ARRAY_LEN(rows), CKPT_DTYPE_COUNT - 1);
}
END_TEST

START_LOOP_TEST(numpy_descriptors_have_the_same_size, CKPT_DTYPE_COUNT - 1)
{
	const struct dtype_info *d = dtype_info((enum ckpt_dtype)(CKPT_DTYPE_NONE + 1 + _i));

	ck_assert_uint_eq(strtoul(d->npy + 2, NULL, 10), d->size);
	ck_assert(strchr(d->size == 1 ? "|" : "<", d->npy[0]));
	ck_assert(strchr("fiubcV", d->npy[1]));
	ck_assert_uint_ge(d->unit, 1);
	ck_assert_uint_eq(d->size % d->unit, 0);
	ck_assert_uint_eq(d->size / d->unit, strstr(d->name, "complex") ? 2 : 1);
}
END_TEST

START_TEST(names_need_not_end_but_must_match_whole)
{
	ck_assert_int_eq(ckpt_dtype_by_name("float32xyz", 7), CKPT_DTYPE_F32);
	ck_assert_int_eq(ckpt_dtype_by_name("float32xyz", 8), CKPT_DTYPE_NONE);
	ck_assert_int_eq(ckpt_dtype_by_name("float3", 6), CKPT_DTYPE_NONE);
	ck_assert_int_eq(ckpt_dtype_by_name("", 0), CKPT_DTYPE_NONE);
	ck_assert_int_eq(ckpt_dtype_by_name("none", 4), CKPT_DTYPE_NONE);
	ck_assert_int_eq(ckpt_dtype_by_name("Float32", 7), CKPT_DTYPE_NONE);
	ck_assert_int_eq(dtype_by_storage("Storage"), CKPT_DTYPE_NONE);
	ck_assert_int_eq(dtype_by_storage(""), CKPT_DTYPE_NONE);
	ck_assert_int_eq(dtype_by_safetensors("f32"), CKPT_DTYPE_NONE);
	ck_assert_int_eq(dtype_by_safetensors(""), CKPT_DTYPE_NONE);
}
END_TEST

START_TEST(numbers_out_of_the_table_are_none)
{
	ck_assert_str_eq(dtype_info(CKPT_DTYPE_NONE)->name, "none");
	ck_assert_uint_eq(dtype_info(CKPT_DTYPE_NONE)->size, 0);
	ck_assert_ptr_eq(dtype_info(CKPT_DTYPE_COUNT), dtype_info(CKPT_DTYPE_NONE));
	ck_assert_ptr_eq(dtype_info((enum ckpt_dtype)0x7fffffff), dtype_info(CKPT_DTYPE_NONE));
}
END_TEST

SUITE(dtype)
