/* SPDX-License-Identifier: Apache-2.0 */
/*
 * As in cast.c, everything that depends on the type and the operation is constant in each loop.
 */
#include "codec/arith.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "codec/arith_internal.h"
#include "codec/floats.h"

#include <endian.h>
#include <math.h>

/*
 * torch computes e to the power of x with SLEEF, whose 1.0 ULP function for float32 ("expf, u10";
 * sleef.org) is this, with these constants: x = q ln 2 + s, where ln 2 is in two parts, because the
 * first alone is not exact enough; the result is a polynomial of s, times 2 to the power of q.
 */
static float torch_exp(float x)
{
	static const float log2_e = 0x1.715476p+0F, ln2_high = 0x1.62e4p-1F,
			   ln2_low = 0x1.7f7d1cp-20F;
	static const float factors[] = { 0x1.a057b4p-13F, 0x1.6d2d92p-10F, 0x1.11114cp-7F,
					 0x1.5554f4p-5F,  0x1.555556p-3F,  0.5F };
	float q, s, sum = 0;

	if (!(x >= -104))
		return isnan(x) ? x + x : 0;
	if (x > 100)
		return HUGE_VALF;
	q = rintf(x * log2_e);
	s = fmaf(q, -ln2_low, fmaf(q, -ln2_high, x));
	for (size_t i = 0; i < ARRAY_LEN(factors); i++)
		sum = fmaf(sum, s, factors[i]);
	return ldexpf(1 + fmaf(s * s, sum, s), (int)q);
}

INLINE float operate(enum arith_op op, float x, float number)
{
	if (op == ARITH_MINUS_EXP)
		return -torch_exp(x);
	return op == ARITH_TIMES ? x * number : op == ARITH_OVER ? x / number : x + number;
}

INLINE double operate_f64(enum arith_op op, double x, double number)
{
	if (op == ARITH_MINUS_EXP)
		return -exp(x);
	return op == ARITH_TIMES ? x * number : op == ARITH_OVER ? x / number : x + number;
}

INLINE void one_f64(enum arith_op op, float number, uint8_t *p)
{
	uint64_t u = load_le64(p);
	double d;

	memcpy(&d, &u, sizeof(d));
	d = operate_f64(op, d, (double)number);
	memcpy(&u, &d, sizeof(u));
	u = htole64(u);
	memcpy(p, &u, sizeof(u));
}

INLINE void one_f32(enum arith_op op, float number, uint8_t *p)
{
	uint32_t u = bits_of_f32(operate(op, f32_of_bits(load_le32(p)), number));

	u = htole32(u);
	memcpy(p, &u, sizeof(u));
}

INLINE void one_16(enum ckpt_dtype type, enum arith_op op, float number, uint8_t *p)
{
	uint16_t h = load_le16(p);
	uint32_t u = type == CKPT_DTYPE_F16 ? f16_to_f32(h) : (uint32_t)h << 16;

	u = bits_of_f32(operate(op, f32_of_bits(u), number));
	h = type == CKPT_DTYPE_F16 ? f32_to_f16(u)
				   : f32_to_bf16(u, (uint16_t)((u >> 16 & 0x8000) | 0x7fc0));
	h = htole16(h);
	memcpy(p, &h, sizeof(h));
}

INLINE void loop(enum ckpt_dtype type, enum arith_op op, float number, uint8_t *p, size_t n)
{
	if (type == CKPT_DTYPE_F64)
		for (size_t i = 0; i < n; i++)
			one_f64(op, number, p + 8 * i);
	else if (type == CKPT_DTYPE_F32)
		for (size_t i = 0; i < n; i++)
			one_f32(op, number, p + 4 * i);
	else
		for (size_t i = 0; i < n; i++)
			one_16(type, op, number, p + 2 * i);
}

INLINE void run_op(enum ckpt_dtype type, enum arith_op op, float number, uint8_t *p, size_t n)
{
	if (type == CKPT_DTYPE_F64)
		loop(CKPT_DTYPE_F64, op, number, p, n);
	else if (type == CKPT_DTYPE_F32)
		loop(CKPT_DTYPE_F32, op, number, p, n);
	else if (type == CKPT_DTYPE_F16)
		loop(CKPT_DTYPE_F16, op, number, p, n);
	else
		loop(CKPT_DTYPE_BF16, op, number, p, n);
}

INLINE void run(enum ckpt_dtype type, struct arith a, uint8_t *p, size_t n)
{
	if (a.op == ARITH_TIMES)
		run_op(type, ARITH_TIMES, a.number, p, n);
	else if (a.op == ARITH_OVER)
		run_op(type, ARITH_OVER, a.number, p, n);
	else if (a.op == ARITH_PLUS)
		run_op(type, ARITH_PLUS, a.number, p, n);
	else if (a.op == ARITH_MINUS_EXP)
		run_op(type, ARITH_MINUS_EXP, 0, p, n);
}

void arith_run_portable(enum ckpt_dtype type, struct arith a, void *elements, size_t n)
{
	run(type, a, elements, n);
}

#ifdef __x86_64__
__attribute__((target("avx2"))) static void run_avx2(enum ckpt_dtype type, struct arith a,
						     void *elements, size_t n)
{
	run(type, a, elements, n);
}
#endif

void arith_run(enum ckpt_dtype type, struct arith a, void *elements, size_t n)
{
#ifdef __x86_64__
	if (__builtin_cpu_supports("avx2")) {
		run_avx2(type, a, elements, n);
		return;
	}
#endif
	arith_run_portable(type, a, elements, n);
}

bool arith_possible(enum ckpt_dtype type)
{
	return type == CKPT_DTYPE_F64 || type == CKPT_DTYPE_F32 || type == CKPT_DTYPE_F16 ||
	       type == CKPT_DTYPE_BF16;
}

bool arith_equal(struct arith a, struct arith b)
{
	return a.op == b.op && (a.op == ARITH_NONE || a.number == b.number);
}
