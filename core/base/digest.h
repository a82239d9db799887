/* SPDX-License-Identifier: Apache-2.0 */
/*
 * digest - a hash of a sequence of items of any size: "ab", "c" and "a", "bc" differ.
 *
 * It detects accidental changes (XXH3), not deliberate collisions.
 *
 * Threads: pure.
 */
#ifndef BASE_DIGEST_H
#define BASE_DIGEST_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <xxhash.h>

#define DIGEST_HEX 33 /* digits and the NUL */

struct digest {
	uint64_t low, high; /* all zero: nothing added yet */
};

/* A hash that was computed elsewhere, such as that of a file's bytes. */
static inline struct digest digest_of(XXH128_hash_t h)
{
	return (struct digest){ h.low64, h.high64 };
}

static inline void digest_add(struct digest *d, const void *p, size_t len)
{
	XXH128_hash_t h = XXH3_128bits(p, len);
	const uint64_t both[] = { d->low, d->high, h.low64, h.high64 };

	*d = digest_of(XXH3_128bits(both, sizeof(both)));
}

static inline void digest_hex(const struct digest *d, char ret[static DIGEST_HEX])
{
	(void)snprintf(ret, DIGEST_HEX, "%016llx%016llx", (unsigned long long)d->high,
		       (unsigned long long)d->low);
}

#endif
