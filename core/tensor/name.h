/* SPDX-License-Identifier: Apache-2.0 */
/*
 * name - FQNs as file names.
 *
 * '/', '%', bytes below 0x20 and 0x7f are %XX; the FQNs "." and ".." are %2E and %2E%2E, the empty
 * one is "%". A name that would exceed 255 bytes with its suffix is cut at a character boundary
 * and ends in "%~" and 16 hex digits of the FQN's FNV-1a hash. Threads: pure.
 */
#ifndef TENSOR_NAME_H
#define TENSOR_NAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NAME_CAP 256 /* bytes of the longest name with its NUL */

/* Returns the name's length; *ret_cut, if not NULL, says whether it was cut. */
size_t name_encode(const char *fqn, size_t len, const char *suffix, char out[static NAME_CAP],
		   bool *ret_cut);
/* Is the name with a suffix of n_suffix bytes not cut? */
bool name_fits(const char *fqn, size_t len, size_t n_suffix);
/*
 * The FQN of a name without its suffix into out, which has room for len bytes. False where an
 * escape is none, as in one that was cut. Others than name_encode's may decode as well ("%41"):
 * a caller that minds encodes it again.
 */
bool name_decode(const char *name, size_t len, char *out, size_t *ret_len);
/* Was it cut? Then *ret_hash is the FQN's. */
bool name_is_cut(const char *name, size_t len, uint64_t *ret_hash);
/* 64-bit FNV-1a, http://www.isthe.com/chongo/tech/comp/fnv/ */
uint64_t name_hash(const char *fqn, size_t len);

#endif
