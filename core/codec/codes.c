/* SPDX-License-Identifier: Apache-2.0 */
#include "codec/codes.h"

#include <math.h>
#include <string.h>

/* torch's conversion: payload bits of float8's width, made quiet. */
static float nan_of(uint32_t sign)
{
	const uint32_t bits = sign << 31 | 0x7ff00000u;
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}

/* A sign, exponent bits with this bias, and `mantissa` bits. */
static float small_float(unsigned code, int mantissa, int bias)
{
	unsigned magnitude = code & 0x7f;
	int exponent = (int)(magnitude >> mantissa);
	unsigned fraction = magnitude & ((1u << mantissa) - 1);
	float f = exponent
			  ? ldexpf((float)(fraction + (1u << mantissa)), exponent - bias - mantissa)
			  : ldexpf((float)fraction, 1 - bias - mantissa);

	return code & 0x80 ? -f : f;
}

static float e4m3(unsigned code)
{
	return (code & 0x7f) == 0x7f ? nan_of(code >> 7) : small_float(code, 3, 7);
}

static float e5m2(unsigned code)
{
	if ((code & 0x7f) > 0x7c)
		return nan_of(code >> 7);
	if ((code & 0x7f) == 0x7c)
		return code & 0x80 ? -INFINITY : INFINITY;
	return small_float(code, 2, 15);
}

static float value(enum codes codes, unsigned code)
{
	static const float e2m1[8] = { 0, 0.5F, 1, 1.5F, 2, 3, 4, 6 };

	switch (codes) {
	case CODES_E4M3:
		return e4m3(code);
	case CODES_E5M2:
		return e5m2(code);
	case CODES_E8M0:
		return code == 255 ? nan_of(0) : ldexpf(1, (int)code - 127);
	case CODES_E2M1:
		return code & 8 ? -e2m1[code & 7] : e2m1[code & 7];
	case CODES_INT8:
		return (float)(int8_t)code;
	case CODES_UINT:
		return (float)code;
	case CODES_UINT4_8:
		return (float)code - 8;
	case CODES_UINT8_128:
		return (float)code - 128;
	case CODES_INT4:
		return (float)((int)(code & 15) ^ 8) - 8;
	}
	return 0;
}

void codes_values(enum codes codes, float ret[static 256])
{
	for (unsigned i = 0; i < 256; i++)
		ret[i] = value(codes, i);
}
