/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch_file - one of many files of torch.save that make up a checkpoint: opens it, adds it to the
 * catalog, and locates its tensors' elements. Private to core/format.
 *
 *	rc = torch_file_open(&f, place, "rank_0.pt", w, &e);
 *	...
 *	rc = torch_file_close(&f, rc, &e);       // also when open failed
 *
 * Threads: one at a time.
 */
#ifndef TORCH_TORCH_FILE_H
#define TORCH_TORCH_FILE_H

#include "base/blob.h"
#include "format/raw.h"
#include "format/torch/torchsave.h"
#include "format/torch_tensor.h"
#include "model/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct catalog_writer;
struct ckpt_err;
struct digest;
struct place;
struct source;

struct torch_file {
	const char *path; /* borrowed */
	struct source *source;
	struct blob blob;
	struct torchsave t;
	struct pk_value root;
	uint32_t number; /* in the catalog */
	uint64_t budget; /* values that may still be visited: containers can be shared */
};

int torch_file_open(struct torch_file *f, struct place *place, const char *path,
		    struct catalog_writer *w, struct ckpt_err *e);
/* Returns rc; or, if rc is 0, an error if the file has changed meanwhile. */
int torch_file_close(struct torch_file *f, int rc, struct ckpt_err *e);
/* Fails if more values are visited than the pickle has bytes. */
int torch_file_spend(struct torch_file *f, uint64_t n, struct ckpt_err *e);

/* torchsave_report_at for a value in the file. */
int torch_file_report(struct torch_file *f, const struct pk_value *v, const char *const steps[],
		      struct catalog_writer *w, struct ckpt_err *e);

struct torch_view {
	enum ckpt_dtype dtype;
	size_t n_dims;
	uint64_t size[CKPT_MAX_DIMS];
	uint64_t numel;
	uint64_t at; /* byte offset of the first element; 0 if there is none */
	struct raw_layout layout;
};
/* ERR_UNSUPPORTED: it is a tensor, but cannot be shown. */
int torch_file_view(struct torch_file *f, const struct pk_value *v, struct torch_view *ret,
		    struct ckpt_err *e);
/* Hashes the first and last 4 KiB of len bytes at off. */
int torch_sample_ends(struct source *file, uint64_t off, uint64_t len, struct digest *ret,
		      struct ckpt_err *e);
/* The same for a tensor's. */
int torch_file_sample(struct torch_file *f, const struct torch_view *v, struct digest *ret,
		      struct ckpt_err *e);

#endif
