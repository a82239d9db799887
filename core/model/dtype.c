/* SPDX-License-Identifier: Apache-2.0 */
#include "model/dtype.h"
#include "base/bytes.h"

#include <string.h>

static const struct dtype_info table[CKPT_DTYPE_COUNT] = {
	[CKPT_DTYPE_NONE] = { "none", 0, 0, NULL, NULL, NULL, false },
	[CKPT_DTYPE_F64] = { "float64", 8, 8, "DoubleStorage", "F64", "<f8", false },
	[CKPT_DTYPE_F32] = { "float32", 4, 4, "FloatStorage", "F32", "<f4", false },
	[CKPT_DTYPE_F16] = { "float16", 2, 2, "HalfStorage", "F16", "<f2", false },
	[CKPT_DTYPE_BF16] = { "bfloat16", 2, 2, "BFloat16Storage", "BF16", "<V2", false },
	[CKPT_DTYPE_I64] = { "int64", 8, 8, "LongStorage", "I64", "<i8", true },
	[CKPT_DTYPE_I32] = { "int32", 4, 4, "IntStorage", "I32", "<i4", true },
	[CKPT_DTYPE_I16] = { "int16", 2, 2, "ShortStorage", "I16", "<i2", true },
	[CKPT_DTYPE_I8] = { "int8", 1, 1, "CharStorage", "I8", "|i1", true },
	[CKPT_DTYPE_U64] = { "uint64", 8, 8, NULL, "U64", "<u8", true },
	[CKPT_DTYPE_U32] = { "uint32", 4, 4, NULL, "U32", "<u4", true },
	[CKPT_DTYPE_U16] = { "uint16", 2, 2, NULL, "U16", "<u2", true },
	[CKPT_DTYPE_U8] = { "uint8", 1, 1, "ByteStorage", "U8", "|u1", true },
	[CKPT_DTYPE_BOOL] = { "bool", 1, 1, "BoolStorage", "BOOL", "|b1", false },
	[CKPT_DTYPE_C128] = { "complex128", 16, 8, "ComplexDoubleStorage", NULL, "<c16", false },
	[CKPT_DTYPE_C64] = { "complex64", 8, 4, "ComplexFloatStorage", "C64", "<c8", false },
	[CKPT_DTYPE_C32] = { "complex32", 4, 2, NULL, NULL, "<V4", false },
	[CKPT_DTYPE_BC32] = { "bcomplex32", 4, 2, NULL, NULL, "<V4", false },
	[CKPT_DTYPE_F8_E4M3FN] = { "float8_e4m3fn", 1, 1, NULL, "F8_E4M3", "|V1", false },
	[CKPT_DTYPE_F8_E4M3FNUZ] = { "float8_e4m3fnuz", 1, 1, NULL, "F8_E4M3FNUZ", "|V1", false },
	[CKPT_DTYPE_F8_E5M2] = { "float8_e5m2", 1, 1, NULL, "F8_E5M2", "|V1", false },
	[CKPT_DTYPE_F8_E5M2FNUZ] = { "float8_e5m2fnuz", 1, 1, NULL, "F8_E5M2FNUZ", "|V1", false },
	[CKPT_DTYPE_F8_E8M0FNU] = { "float8_e8m0fnu", 1, 1, NULL, "F8_E8M0", "|V1", false },
	[CKPT_DTYPE_F4_E2M1FN_X2] = { "float4_e2m1fn_x2", 1, 1, NULL, "F4", "|V1", false },
	[CKPT_DTYPE_QI8] = { "qint8", 1, 1, "QInt8Storage", NULL, "|V1", true },
	[CKPT_DTYPE_QU8] = { "quint8", 1, 1, "QUInt8Storage", NULL, "|V1", true },
	[CKPT_DTYPE_QI32] = { "qint32", 4, 4, "QInt32Storage", NULL, "<V4", true },
	[CKPT_DTYPE_QU4X2] = { "quint4x2", 1, 1, "QUInt4x2Storage", NULL, "|V1", false },
	[CKPT_DTYPE_QU2X4] = { "quint2x4", 1, 1, "QUInt2x4Storage", NULL, "|V1", false },
	[CKPT_DTYPE_BITS8] = { "bits8", 1, 1, NULL, NULL, "|V1", false },
	[CKPT_DTYPE_BITS16] = { "bits16", 2, 2, NULL, NULL, "<V2", false },
	[CKPT_DTYPE_BITS1X8] = { "bits1x8", 1, 1, NULL, NULL, "|V1", false },
	[CKPT_DTYPE_BITS2X4] = { "bits2x4", 1, 1, NULL, NULL, "|V1", false },
	[CKPT_DTYPE_BITS4X2] = { "bits4x2", 1, 1, NULL, NULL, "|V1", false },
	[CKPT_DTYPE_F8_E3M4] = { "float8_e3m4", 1, 1, NULL, NULL, "|V1", false },
	[CKPT_DTYPE_F8_E4M3B11FNUZ] = { "float8_e4m3b11fnuz", 1, 1, NULL, NULL, "|V1", false },
	[CKPT_DTYPE_F4_E2M1FN] = { "float4_e2m1fn", 1, 1, NULL, NULL, "|V1", false },
	[CKPT_DTYPE_I4] = { "int4", 1, 1, NULL, NULL, "|V1", true },
	[CKPT_DTYPE_I2] = { "int2", 1, 1, NULL, NULL, "|V1", true },
};

const struct dtype_info *dtype_info(enum ckpt_dtype t)
{
	return &table[t < CKPT_DTYPE_COUNT ? t : CKPT_DTYPE_NONE];
}

const char *ckpt_dtype_name(enum ckpt_dtype t)
{
	const struct dtype_info *info = dtype_info(t);

	return info == &table[CKPT_DTYPE_NONE] ? NULL : info->name;
}

size_t ckpt_dtype_size(enum ckpt_dtype t)
{
	return dtype_info(t)->size;
}

enum ckpt_dtype ckpt_dtype_by_name(const char *name, size_t len)
{
	for (enum ckpt_dtype t = CKPT_DTYPE_NONE + 1; t < CKPT_DTYPE_COUNT; t++)
		if (bytes_are(name, len, table[t].name))
			return t;
	return CKPT_DTYPE_NONE;
}

enum ckpt_dtype dtype_by_storage(const char *name)
{
	for (enum ckpt_dtype t = CKPT_DTYPE_NONE + 1; t < CKPT_DTYPE_COUNT; t++)
		if (table[t].storage && !strcmp(table[t].storage, name))
			return t;
	return CKPT_DTYPE_NONE;
}

enum ckpt_dtype dtype_by_safetensors(const char *name)
{
	for (enum ckpt_dtype t = CKPT_DTYPE_NONE + 1; t < CKPT_DTYPE_COUNT; t++)
		if (table[t].safetensors && !strcmp(table[t].safetensors, name))
			return t;
	return CKPT_DTYPE_NONE;
}
