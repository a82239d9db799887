/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dequant - the weights that quantised codes and their scales stand for, as derived tensors.
 *
 * A matrix of codes, the plane, has the dimensions a and b. Scales form a coarser grid over it: the
 * scale of code (a, b) is S[a / rows, b / columns]. So a scale for all codes, for each row, for
 * groups of columns and for blocks are one thing; the last block of a row or column may be smaller.
 * Dimensions before these two are those of a stack of planes. The weight, in float32,
 *
 *	y = (value(code) - zero) * scale
 *
 * is rounded once more to the dtype of the derived tensor, to nearest, ties to even. That is what
 * transformers, compressed-tensors, llama.cpp's converter and the kernels of the models' authors
 * compute; tests/torch/dequant.py compares the bits. torchao rounds in between, see dequant_form.
 *
 * Threads: see derived.h.
 */
#ifndef READ_DEQUANT_H
#define READ_DEQUANT_H

#include "codec/codes.h"
#include "model/dtype.h"
#include "read/derived.h"

#include <stdbool.h>

/*
 * How the value, its zero and its scale become an element. T rounds to the dtype of the result,
 * once more at the end; everything else is float32. torchao/quantization/quant_primitives.py, 0.4
 * to 0.18, has the middle two: _dequantize_affine and _dequantize_affine_tinygemm. Up to 0.11 it
 * subtracts integers before it rounds, which is the same as long as zeros are among the codes;
 * others are an error.
 */
enum dequant_form {
	DEQUANT_SCALED,	 /* (value - zero) * scale */
	DEQUANT_ROUNDED, /* T(value - T(zero)) * scale */
	DEQUANT_SHIFTED, /* T(T(value - mid) * scale) + zero */
	DEQUANT_ADDED,	 /* value * scale + zero */
};

/* Inputs of the derived tensor; numbers of its list, 0 for none, except the codes'. */
struct dequant {
	enum ckpt_dtype dtype; /* of the result: float32, float16 or bfloat16 */
	enum codes codes;
	uint8_t bits;	  /* of a code: 4 or 8 */
	uint8_t n_prefix; /* dimensions of the stack */
	bool turned;	  /* the result is [..., b, a] */
	/*
	 * Where codes are packed, several in each stored element, lowest bits first: along b, or
	 * along a. A stored dimension may follow b, of group / per elements (the blocks of
	 * gpt-oss).
	 */
	bool packed_a;
	uint32_t per;	  /* codes in a stored element */
	uint32_t group;	  /* codes in the last stored dimension; 0: there is none */
	uint8_t order[8]; /* of 4 bits: code i of eight is in nibble order[i] */
	/* The exponents of gpt-oss: 255 is 2^128, which transformers multiplies by as ldexp()
	 * does. */
	bool all_exponents;
	/* Scales: float32, float16, bfloat16, or float8. */
	uint64_t rows, columns; /* each at least 1 */
	uint8_t scale_dims;	/* 0; 1: of rows; or 2, after those of the stack */
	bool exponents;		/* uint8 scales are of CODES_E8M0 */
	bool scales_turned;	/* their grid is [..., b, a] */
	uint8_t over;		/* input: one number that divides all scales, in float32 */
	uint8_t times;		/* input: one number that multiplies them */
	/* Input: zero points, one for each scale, packed like codes along a or b. */
	uint8_t zeros, zeros_per;
	bool zeros_packed_a;
	uint8_t zero_more; /* added to each */
	/* They have the shape of the scales and a dtype of their own, an integer's or a float's. */
	bool zeros_plain;
	bool zeros_whole;	/* even floats must be integers among the codes */
	enum dequant_form form; /* except for DEQUANT_SCALED: not turned, without groups */
	float mid;		/* of DEQUANT_SHIFTED */
	/* Input: the group of each index of a or b, in place of a / rows or b / columns. */
	uint8_t groups;
	bool groups_of_a;
	uint64_t n_groups;
};

enum { DEQUANT_CODES, DEQUANT_SCALES };

/* For derived.run; how is a struct dequant. */
derived_fn dequant_run;

#endif
