/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scales - which tensors hold codes, and which the scales without which the codes mean nothing, by
 * the names that quantisers give them.
 *
 *	size_t at = 0;
 *	int64_t scales = scales_of(catalog, t, &at);	"a.weight_scale_inv" for "a.weight" of float8
 *
 * Threads: pure.
 */
#ifndef TENSOR_SCALES_H
#define TENSOR_SCALES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct catalog;
struct catalog_tensor;

/* Is t of a dtype that codes have: an integer of at most 32 bits, or a float of at most 8? */
bool scales_possible(const struct catalog_tensor *t);
/* And of a shape that quantised weights have? Buffers such as masks and positions have others. */
bool scales_likely(const struct catalog_tensor *t);
/*
 * The number of a shown tensor with scales of t, which holds codes if there is one; -1: there is
 * none. *at is 0 at first; further calls find further tensors.
 */
int64_t scales_of(const struct catalog *c, const struct catalog_tensor *t, size_t *at);
/* Are those found last, and t, parts of one tensor, whose class says what they mean? */
bool scales_are_parts(size_t at);

#endif
