/* SPDX-License-Identifier: Apache-2.0 */
#include "codec/values.h"

#include "base/bytes.h"

#include <math.h>
#include <string.h>

/* Numbers per step of a loop whose length the compiler knows, so that it can vectorise it. */
enum { STEP = 16 };

static double double_of(uint64_t bits)
{
	double d;

	memcpy(&d, &bits, sizeof(d));
	return d;
}

static float float_of(uint32_t bits)
{
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}

/*
 * Sign, exponent and `man` bits of mantissa, without the patterns that a format reserves for NaN
 * and infinity. No branches and no denormal doubles: the mantissa as an integer, times a power of
 * two.
 */
static double small_float(unsigned u, unsigned exp, unsigned man, unsigned bias)
{
	unsigned e = u >> man & ((1u << exp) - 1), m = u & ((1u << man) - 1);
	unsigned normal = e != 0;
	uint64_t power = 1023 + e + !normal - bias - man;
	uint64_t sign = (uint64_t)(u >> (exp + man) & 1) << 63;

	return (double)(int32_t)(m | normal << man) * double_of(power << 52 | sign);
}

/* IEEE: the greatest exponent means infinity, or NaN with a non-zero mantissa. */
static double ieee_small(unsigned u, unsigned exp, unsigned man, unsigned bias)
{
	unsigned top = ((1u << exp) - 1) << man, magnitude = u & ((1u << (exp + man)) - 1);
	double d = small_float(u, exp, man, bias);

	if (magnitude < top)
		return d;
	return magnitude > top ? (double)NAN : d < 0 ? -(double)INFINITY : (double)INFINITY;
}

/* ---- one number each ---- */

static inline double of_f64(const uint8_t *p)
{
	return double_of(load_le64(p));
}

static inline double of_f32(const uint8_t *p)
{
	return (double)float_of(load_le32(p));
}

static inline double of_bf16(const uint8_t *p)
{
	return (double)float_of((uint32_t)load_le16(p) << 16);
}

static inline double of_f16(const uint8_t *p)
{
	return ieee_small(load_le16(p), 5, 10, 15);
}

static inline double of_e5m2(const uint8_t *p)
{
	return ieee_small(*p, 5, 2, 15);
}

static inline double of_e4m3fn(const uint8_t *p)
{
	return (*p & 0x7f) == 0x7f ? (double)NAN : small_float(*p, 4, 3, 7);
}

static inline double of_e4m3fnuz(const uint8_t *p)
{
	return *p == 0x80 ? (double)NAN : small_float(*p, 4, 3, 8);
}

static inline double of_e5m2fnuz(const uint8_t *p)
{
	return *p == 0x80 ? (double)NAN : small_float(*p, 5, 2, 16);
}

static inline double of_e8m0fnu(const uint8_t *p)
{
	return *p == 0xff ? (double)NAN : double_of((uint64_t)(1023 - 127 + *p) << 52);
}

static inline double of_e3m4(const uint8_t *p)
{
	return ieee_small(*p, 3, 4, 3);
}

static inline double of_e4m3b11fnuz(const uint8_t *p)
{
	return *p == 0x80 ? (double)NAN : small_float(*p, 4, 3, 11);
}

/* What is above the lowest bits does not count. */
static inline double of_e2m1fn(const uint8_t *p)
{
	return small_float(*p & 15, 2, 1, 1);
}

static inline double of_i4(const uint8_t *p)
{
	return (*p & 7) - (*p & 8);
}

static inline double of_i2(const uint8_t *p)
{
	return (*p & 1) - (*p & 2);
}

static inline double of_i64(const uint8_t *p)
{
	return (double)(int64_t)load_le64(p);
}

static inline double of_i32(const uint8_t *p)
{
	return (int32_t)load_le32(p);
}

static inline double of_i16(const uint8_t *p)
{
	return (int16_t)load_le16(p);
}

static inline double of_i8(const uint8_t *p)
{
	return (int8_t)*p;
}

static inline double of_u64(const uint8_t *p)
{
	return (double)load_le64(p);
}

static inline double of_u32(const uint8_t *p)
{
	return load_le32(p);
}

static inline double of_u16(const uint8_t *p)
{
	return load_le16(p);
}

static inline double of_u8(const uint8_t *p)
{
	return *p;
}

static inline double of_bool(const uint8_t *p)
{
	return *p != 0;
}

/* The error of the nearest double, which may be 2^63 or 2^64, beyond any 64-bit integer. */
static double rest_i64(const uint8_t *p)
{
	return (double)((__int128)(int64_t)load_le64(p) - (__int128)of_i64(p));
}

static double rest_u64(const uint8_t *p)
{
	return (double)((__int128)load_le64(p) - (__int128)of_u64(p));
}

/* ---- many ---- */

#define DECODER(name, size) \
	static void name##s(const uint8_t *restrict p, size_t n, double *restrict ret) \
	{ \
		for (; n >= STEP; n -= STEP, p += STEP * (size), ret += STEP) \
			for (size_t i = 0; i < STEP; i++) \
				ret[i] = name(p + i * (size)); \
		for (size_t i = 0; i < n; i++) \
			ret[i] = name(p + i * (size)); \
	}

DECODER(of_f64, 8)
DECODER(of_f32, 4)
DECODER(of_f16, 2)
DECODER(of_bf16, 2)
DECODER(of_e4m3fn, 1)
DECODER(of_e4m3fnuz, 1)
DECODER(of_e5m2, 1)
DECODER(of_e5m2fnuz, 1)
DECODER(of_e8m0fnu, 1)
DECODER(of_e3m4, 1)
DECODER(of_e4m3b11fnuz, 1)
DECODER(of_e2m1fn, 1)
DECODER(of_i4, 1)
DECODER(of_i2, 1)
DECODER(of_i64, 8)
DECODER(of_i32, 4)
DECODER(of_i16, 2)
DECODER(of_i8, 1)
DECODER(of_u64, 8)
DECODER(of_u32, 4)
DECODER(of_u16, 2)
DECODER(of_u8, 1)
DECODER(of_bool, 1)
DECODER(rest_i64, 8)
DECODER(rest_u64, 8)

typedef void decoder(const uint8_t *restrict p, size_t n, double *restrict ret);

static decoder *const decoders[CKPT_DTYPE_COUNT] = {
	[CKPT_DTYPE_F64] = of_f64s,
	[CKPT_DTYPE_F32] = of_f32s,
	[CKPT_DTYPE_F16] = of_f16s,
	[CKPT_DTYPE_BF16] = of_bf16s,
	[CKPT_DTYPE_I64] = of_i64s,
	[CKPT_DTYPE_I32] = of_i32s,
	[CKPT_DTYPE_I16] = of_i16s,
	[CKPT_DTYPE_I8] = of_i8s,
	[CKPT_DTYPE_U64] = of_u64s,
	[CKPT_DTYPE_U32] = of_u32s,
	[CKPT_DTYPE_U16] = of_u16s,
	[CKPT_DTYPE_U8] = of_u8s,
	[CKPT_DTYPE_BOOL] = of_bools,
	[CKPT_DTYPE_C128] = of_f64s,
	[CKPT_DTYPE_C64] = of_f32s,
	[CKPT_DTYPE_C32] = of_f16s,
	[CKPT_DTYPE_BC32] = of_bf16s,
	[CKPT_DTYPE_F8_E4M3FN] = of_e4m3fns,
	[CKPT_DTYPE_F8_E4M3FNUZ] = of_e4m3fnuzs,
	[CKPT_DTYPE_F8_E5M2] = of_e5m2s,
	[CKPT_DTYPE_F8_E5M2FNUZ] = of_e5m2fnuzs,
	[CKPT_DTYPE_F8_E8M0FNU] = of_e8m0fnus,
	[CKPT_DTYPE_F8_E3M4] = of_e3m4s,
	[CKPT_DTYPE_F8_E4M3B11FNUZ] = of_e4m3b11fnuzs,
	[CKPT_DTYPE_F4_E2M1FN] = of_e2m1fns,
	[CKPT_DTYPE_I4] = of_i4s,
	[CKPT_DTYPE_I2] = of_i2s,
};

bool values_known(enum ckpt_dtype t)
{
	return t < CKPT_DTYPE_COUNT && decoders[t];
}

size_t values_numbers(enum ckpt_dtype t)
{
	const struct dtype_info *i = dtype_info(t);

	return i->unit ? i->size / i->unit : 1;
}

bool values_decode(enum ckpt_dtype t, const void *from, size_t n, double *ret, double *rest)
{
	decoders[t](from, n, ret);
	if (t == CKPT_DTYPE_I64)
		rest_i64s(from, n, rest);
	else if (t == CKPT_DTYPE_U64)
		rest_u64s(from, n, rest);
	return t == CKPT_DTYPE_I64 || t == CKPT_DTYPE_U64;
}
