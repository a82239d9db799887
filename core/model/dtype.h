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

enum dtype {
	DTYPE_NONE,
	DTYPE_F64,
	DTYPE_F32,
	DTYPE_F16,
	DTYPE_BF16,
	DTYPE_I64,
	DTYPE_I32,
	DTYPE_I16,
	DTYPE_I8,
	DTYPE_U64,
	DTYPE_U32,
	DTYPE_U16,
	DTYPE_U8,
	DTYPE_BOOL,
	DTYPE_C128,
	DTYPE_C64,
	DTYPE_C32,
	DTYPE_BC32,
	DTYPE_F8_E4M3FN,
	DTYPE_F8_E4M3FNUZ,
	DTYPE_F8_E5M2,
	DTYPE_F8_E5M2FNUZ,
	DTYPE_F8_E8M0FNU,
	DTYPE_F4_E2M1FN_X2,
	DTYPE_QI8,
	DTYPE_QU8,
	DTYPE_QI32,
	DTYPE_QU4X2,
	DTYPE_QU2X4,
	DTYPE_BITS8,
	DTYPE_BITS16,
	DTYPE_BITS1X8,
	DTYPE_BITS2X4,
	DTYPE_BITS4X2,
	DTYPE_COUNT
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

const struct dtype_info *dtype_info(enum dtype t);
/* DTYPE_NONE when unknown; names need not end in NUL. */
enum dtype dtype_by_name(const char *name, size_t len);
enum dtype dtype_by_storage(const char *name);
enum dtype dtype_by_safetensors(const char *name);

#endif
