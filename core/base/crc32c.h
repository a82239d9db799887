/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crc32c - the CRC with Castagnoli's polynomial, as in iSCSI (RFC 3720, 12.1): 0x1EDC6F41,
 * reflected; it begins with all ones, and the result is inverted.
 *
 *	uint32_t crc = crc32c(0, p, n);
 *	crc = crc32c(crc, q, m);        // what follows
 *
 * Threads: any.
 */
#ifndef BASE_CRC32C_H
#define BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

uint32_t crc32c(uint32_t crc, const void *p, size_t n);
/* The same without the processor's instruction, for comparison. */
uint32_t crc32c_table(uint32_t crc, const void *p, size_t n);

#endif
