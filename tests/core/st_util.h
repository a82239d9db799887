/* SPDX-License-Identifier: Apache-2.0 */
/*
 * st_util - a safetensors file of random bytes, described by a text.
 *
 *	st_put(dir_fd, "model.safetensors", &r, "a.weight F8_E4M3 2x4; a.weight_scale F32 1");
 */
#ifndef TESTS_ST_UTIL_H
#define TESTS_ST_UTIL_H

struct rng;

/* A tensor is its name, its dtype as in safetensors, and its shape ("-": no dimensions). "=TEXT"
 * after these gives its first bytes; TEXT has no blank and no semicolon. */
void st_put(int dirfd, const char *file, struct rng *r, const char *tensors);

#endif
