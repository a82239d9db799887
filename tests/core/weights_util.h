/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weights_util - checkpoints of one safetensors file, reading tensors of an opened one, and values of
 * codes.
 *
 *	const struct weights_tensor t[] = { { "w", CKPT_DTYPE_F32, 2, { 3, 5 }, bytes } };
 *	weights_put(dir_fd, "step-1", t, 1);
 *
 * Threads: one at a time.
 */
#ifndef TESTS_WEIGHTS_UTIL_H
#define TESTS_WEIGHTS_UTIL_H

#include "model/dtype.h"

#include <math.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt;
struct ckpt_err;

struct weights_tensor {
	const char *name;
	enum ckpt_dtype dtype;
	size_t n_dims;
	uint64_t shape[4];
	const void *bytes; /* NULL: zeros */
};

/* The value of a code of float8_e4m3fn, and the scale that a code of float8_e8m0fnu is. */
static inline float e4m3_value(uint8_t code)
{
	int exponent = code >> 3 & 15;
	float f = exponent ? ldexpf(8 + (float)(code & 7), exponent - 10)
			   : ldexpf((float)(code & 7), -9);

	if ((code & 0x7f) == 0x7f)
		return NAN;
	return code & 0x80 ? -f : f;
}
static inline float e8m0_value(uint8_t code)
{
	return code == 255 ? NAN : ldexpf(1, code - 127);
}

uint64_t weights_elements(const struct weights_tensor *t);
/* Writes SUB/NAME, below dirfd, where SUB is made if it is not there. */
void weights_put_as(int dirfd, const char *sub, const char *name, const struct weights_tensor *t,
		    size_t n);
/* The same as model.safetensors. */
void weights_put(int dirfd, const char *sub, const struct weights_tensor *t, size_t n);
/* SUB/NAME with this text. */
void weights_put_text(int dirfd, const char *sub, const char *name, const char *text);
/* len bytes at off of a tensor's file: 0, or the error. */
int weights_read(struct ckpt *c, const char *fqn, void *to, size_t len, uint64_t off,
		 struct ckpt_err *e);

#endif
