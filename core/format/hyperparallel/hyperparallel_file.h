/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hyperparallel_file - finds tensors by name in one of HyperParallel's container files.
 *
 * The files are called *.safetensors, and are safetensors or torch.save archives of {name: tensor},
 * which the first generation's PyTorch writer made. Private to core/format/hyperparallel.
 *
 * Threads: one at a time.
 */
#ifndef HYPERPARALLEL_HYPERPARALLEL_FILE_H
#define HYPERPARALLEL_HYPERPARALLEL_FILE_H

#include "format/raw.h"
#include "model/box.h"
#include "model/dtype.h"

#include <stddef.h>
#include <stdint.h>

struct ckpt_err;
struct hp_file;
struct source;

struct hp_tensor {
	enum ckpt_dtype dtype;
	size_t n_dims;
	uint64_t shape[CKPT_MAX_DIMS];
	uint64_t offset, length; /* bytes in the file */
	struct raw_layout layout;
};

/* Errors do not name the file. s remains the caller's, and must outlive it. */
int hp_file_open(struct source *s, struct hp_file **ret, struct ckpt_err *e);
void hp_file_close(struct hp_file *f); /* NULL is fine */

/* 1, or 0 if there is no tensor with that name. Only known dtypes are returned. */
int hp_file_find(const struct hp_file *f, const char *name, size_t len, struct hp_tensor *ret,
		 struct ckpt_err *e);

#endif
