/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zarr_lost - chunks whose array has no metadata, and which would otherwise go unnoticed.
 *
 * Threads: pure.
 */
#ifndef FORMAT_ZARR_ZARR_LOST_H
#define FORMAT_ZARR_ZARR_LOST_H

#include <stddef.h>

/*
 * Is the key named like a chunk, "NAME/0.0", "NAME/c/0/0" or "NAME/c"? Then the length of NAME,
 * else 0. In "NAME/0/0" NAME is all but the last part, for names may end in numbers.
 */
size_t zarr_lost_name(const char *key, size_t len);

#endif
