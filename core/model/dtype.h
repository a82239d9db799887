/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dtype - element types and their names in other software.
 *
 * Names are torch's (torch 2.14 c10/core/ScalarType.h) and, for types that torch lacks, JAX's
 * (ml_dtypes 0.5); storage classes are those of torch/storage.py, safetensors names those of
 * safetensors 0.8, NumPy descriptors those of the .npy format. Threads: const tables.
 */
#ifndef MODEL_DTYPE_H
#define MODEL_DTYPE_H

#include <ckptfs/ckpt_tensor.h>

#include <stdbool.h>
#include <stdint.h>

struct dtype_info {
	const char *name;	 /* "bfloat16" */
	uint8_t size;		 /* bytes of an element */
	uint8_t unit;		 /* bytes of one number: a complex element has two */
	const char *storage;	 /* "BFloat16Storage"; NULL: torch has none */
	const char *safetensors; /* "BF16"; NULL: the format has none */
	const char *npy;	 /* "<f4"; for types that NumPy lacks, void of the same size */
	bool is_integer;	 /* two's complement or unsigned; not bool */
};

const struct dtype_info *dtype_info(enum ckpt_dtype t);
/* CKPT_DTYPE_NONE if unknown. */
enum ckpt_dtype dtype_by_storage(const char *name);
enum ckpt_dtype dtype_by_safetensors(const char *name);

#endif
