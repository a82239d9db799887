/* SPDX-License-Identifier: Apache-2.0 */
/*
 * name - encodes FQNs as file names.
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

/* Returns the name's length; *ret_cut, if not NULL, is set to whether it was cut. */
size_t name_encode(const char *fqn, size_t len, const char *suffix, char out[static NAME_CAP],
		   bool *ret_cut);
/* Does the name fit, uncut, with a suffix of n_suffix bytes? */
bool name_fits(const char *fqn, size_t len, size_t n_suffix);
/*
 * Decodes a name without its suffix into out, which has room for len bytes. False if an escape is
 * invalid, as in a name that was cut. Names that name_encode would not produce may decode too
 * ("%41"): encode the result again if that matters.
 */
bool name_decode(const char *name, size_t len, char *out, size_t *ret_len);
/* Was the name cut? Then *ret_hash is the hash of its FQN. */
bool name_is_cut(const char *name, size_t len, uint64_t *ret_hash);
/* 64-bit FNV-1a, http://www.isthe.com/chongo/tech/comp/fnv/ */
uint64_t name_hash(const char *fqn, size_t len);

#endif
