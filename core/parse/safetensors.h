/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors - the header of a safetensors file: u64 length, that many bytes of JSON, data.
 *
 * Validated as by safetensors 0.8: tensors begin at 0, follow each other without gaps or overlaps
 * and end where the data ends; sizes agree with shapes and dtypes; no duplicate keys. The caller
 * has to check what follows the last tensor, see st_end.
 *
 * Threads: a parsed header is immutable.
 */
#ifndef PARSE_SAFETENSORS_H
#define PARSE_SAFETENSORS_H

#include "base/blob.h"
#include "model/dtype.h"

#include <stddef.h>
#include <stdint.h>

#define ST_MAX_HEADER 100000000u /* bytes of JSON; safetensors' own limit */

struct st_tensor {
	const char *name;
	size_t n_dims;
	const uint64_t *shape; /* elements; F4 counts single values, two to a byte */
	uint64_t begin, end;   /* bytes, from the start of the data */
	enum ckpt_dtype
		dtype; /* CKPT_DTYPE_NONE: not known here, then begin and end are all that counts */
	const char *dtype_name;
};

struct st_header;

/* Reads the header at the start of the blob, which extends to the end of the file. */
int st_read(const struct blob *b, struct st_header **ret, struct ckpt_err *e);
void st_free(struct st_header *h);
/* Offsets from the blob's start: of the data, and of what follows its last byte. */
uint64_t st_data(const struct st_header *h);
uint64_t st_end(const struct st_header *h);
size_t st_count(const struct st_header *h);
const struct st_tensor *st_tensor(const struct st_header *h, size_t i); /* by name */
/* NULL if there is no tensor with that name. */
const struct st_tensor *st_find(const struct st_header *h, const char *name, size_t len);
/* The value of that key of __metadata__, or NULL. */
const char *st_metadata(const struct st_header *h, const char *key);

#endif
