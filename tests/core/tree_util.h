/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tree_util - reads what an open checkpoint or run shows. The caller frees what is returned. A test
 * that reads what cannot be read fails; only tree_text returns the error.
 */
#ifndef TESTS_TREE_UTIL_H
#define TESTS_TREE_UTIL_H

#include <stddef.h>
#include <stdint.h>

struct ckpt;
struct ckpt_file;

/* All bytes of a file, and a NUL behind them. ret_n may be NULL. */
uint8_t *tree_bytes(struct ckpt *c, const char *path, size_t *ret_n);
/* The same for an open file, which it closes. */
uint8_t *tree_bytes_of(struct ckpt_file *f, size_t *ret_n);
/* What a short file holds, or "error CODE: MESSAGE". */
char *tree_text(struct ckpt *c, const char *path);
/* "NAME dtype [shape]; ..." of all tensors, with f for float32. */
char *tree_tensors(const struct ckpt *c);

/* Fails the test unless `got` is the text `want` with `root` in place of each '@'. */
void expect_at(const char *root, const char *got, const char *want);

#endif
