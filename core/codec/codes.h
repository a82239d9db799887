/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codes - what the codes of quantised weights stand for, before they are scaled.
 *
 * Threads: pure.
 */
#ifndef CODEC_CODES_H
#define CODEC_CODES_H

#include <stdint.h>

enum codes {
	CODES_E4M3, /* float8_e4m3fn: no infinity, NaN is 0x7f and 0xff (OCP 8-bit floating point) */
	CODES_E5M2,    /* float8_e5m2, as IEEE 754 would have it */
	CODES_E8M0,    /* 2^(code - 127), NaN is 255 (OCP microscaling formats 1.0, 5.4.1) */
	CODES_E2M1,    /* two of them in a byte: 0 .5 1 1.5 2 3 4 6, and the negatives from 8 on */
	CODES_INT8,    /* two's complement */
	CODES_UINT,    /* the code itself */
	CODES_UINT4_8, /* the code minus 8 */
	CODES_UINT8_128, /* the code minus 128 */
	CODES_INT4,	 /* two's complement */
};

/* Of codes of 4 bits, the first 16 values are set. NaNs are those of torch's float8 to float32. */
void codes_values(enum codes codes, float ret[static 256]);

#endif
