/* SPDX-License-Identifier: Apache-2.0 */
/*
 * diff_gguf - a checkpoint beside a GGUF that may have been made from it: the tensors of both under
 * the names of the GGUF.
 *
 * The checkpoint's are those that gguf/ would have: rearranged in the same way, in the types that
 * the GGUF has. Whoever compares the tensors encodes the blocks. Private to core/ckpt/scan.
 *
 * Threads: immutable once made.
 */
#ifndef CKPT_DIFF_GGUF_H
#define CKPT_DIFF_GGUF_H

#include "model/ggml.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt;
struct ckpt_err;
struct ckpt_file;
struct vtensor;

struct diff_gguf_tensor {
	const char *name;
	size_t len;
	size_t n_dims;
	const uint64_t *shape; /* elements */
	const char *dtype;     /* torch's name; for blocks, ggml's */
	uint64_t bytes;
	const struct ggml_info *blocks; /* their type; for A, that of the same name in B; or NULL */
	const struct vtensor *v;	/* float32 in place of A's blocks, bytes in place of B's */
	const void *memory;		/* if v is NULL: the tensor's bytes */
};

/* A list in natural order. */
struct diff_gguf_side {
	struct ckpt *ckpt;
	const struct diff_gguf_tensor *t;
	size_t n;
};

struct diff_gguf;

/* Is b a GGUF whose bytes are shown, and a no GGUF? */
bool diff_gguf_is(struct ckpt *a, struct ckpt *b);
/* Both must be kept open. Fails if gguf/ of a could not be made, and says why. */
int diff_gguf_new(struct ckpt *a, struct ckpt *b, struct diff_gguf **ret, struct ckpt_err *e);
void diff_gguf_free(struct diff_gguf *g); /* NULL is fine */
struct diff_gguf_side diff_gguf_side(const struct diff_gguf *g, size_t side);

int diff_gguf_open(const struct diff_gguf_side *s, uint64_t at, struct ckpt_file **ret,
		   struct ckpt_err *e);

#endif
