/* SPDX-License-Identifier: Apache-2.0 */
/* sha256_util - SHA-256 (FIPS 180-4), for the expected hashes in tests/data. Threads: pure. */
#ifndef TESTS_SHA256_UTIL_H
#define TESTS_SHA256_UTIL_H

#include <stddef.h>

/* 64 hex digits. */
const char *sha256_hex(const void *p, size_t n, char out[static 65]);

#endif
