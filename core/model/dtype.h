/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dtype - element types and what each neighbour calls them.
 *
 * Names are torch's (torch 2.14 c10/core/ScalarType.h), storage classes those of
 * torch/storage.py, safetensors names those of safetensors 0.8, NumPy descriptors those of the
 * .npy format. Threads: const tables.
 */
#ifndef MODEL_DTYPE_H
#define MODEL_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ckpt_dtype {
	CKPT_DTYPE_NONE,
	CKPT_DTYPE_F64,
	CKPT_DTYPE_F32,
	CKPT_DTYPE_F16,
	CKPT_DTYPE_BF16,
	CKPT_DTYPE_I64,
	CKPT_DTYPE_I32,
	CKPT_DTYPE_I16,
	CKPT_DTYPE_I8,
	CKPT_DTYPE_U64,
	CKPT_DTYPE_U32,
	CKPT_DTYPE_U16,
	CKPT_DTYPE_U8,
	CKPT_DTYPE_BOOL,
	CKPT_DTYPE_C128,
	CKPT_DTYPE_C64,
	CKPT_DTYPE_C32,
	CKPT_DTYPE_BC32,
	CKPT_DTYPE_F8_E4M3FN,
	CKPT_DTYPE_F8_E4M3FNUZ,
	CKPT_DTYPE_F8_E5M2,
	CKPT_DTYPE_F8_E5M2FNUZ,
	CKPT_DTYPE_F8_E8M0FNU,
	CKPT_DTYPE_F4_E2M1FN_X2,
	CKPT_DTYPE_QI8,
	CKPT_DTYPE_QU8,
	CKPT_DTYPE_QI32,
	CKPT_DTYPE_QU4X2,
	CKPT_DTYPE_QU2X4,
	CKPT_DTYPE_BITS8,
	CKPT_DTYPE_BITS16,
	CKPT_DTYPE_BITS1X8,
	CKPT_DTYPE_BITS2X4,
	CKPT_DTYPE_BITS4X2,
	CKPT_DTYPE_COUNT
};

struct dtype_info {
	const char *name;	 /* "bfloat16" */
	uint8_t size;		 /* bytes of an element */
	uint8_t unit;		 /* bytes of one number: a complex element has two */
	const char *storage;	 /* "BFloat16Storage", or NULL where torch has none */
	const char *safetensors; /* "BF16", or NULL where the format has none */
	const char *npy;	 /* "<f4"; where NumPy has no such type, void of the same size */
	bool is_integer;	 /* two's complement or unsigned; not bool */
};

const struct dtype_info *dtype_info(enum ckpt_dtype t);
/* CKPT_DTYPE_NONE when unknown; names need not end in NUL. */
enum ckpt_dtype dtype_by_name(const char *name, size_t len);
enum ckpt_dtype dtype_by_storage(const char *name);
enum ckpt_dtype dtype_by_safetensors(const char *name);

#endif
