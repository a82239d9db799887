/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pickle_text - the values that protocols 0 and 1 write as a line of text, without its newline.
 *
 * Private to core/parse. Threads: pure.
 */
#ifndef PARSE_PICKLE_TEXT_H
#define PARSE_PICKLE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A memo key, "12". */
bool pk_text_key(const char *s, size_t n, uint32_t *ret);

/* FLOAT, "1e-05", "-inf". */
bool pk_text_float(const char *s, size_t n, double *ret);

enum { PK_TEXT_LONG = 255, PK_TEXT_DIGITS = 620 }; /* bytes of a number, and its digits with sign */

/*
 * LONG, "-123L" or "123": two's complement, little-endian, as few bytes as possible. False: it is
 * not a number, or has more than PK_TEXT_DIGITS digits. *ret_len is 0 if it needs more than
 * PK_TEXT_LONG bytes, else at least 1.
 */
bool pk_text_long(const char *s, size_t n, uint8_t ret[static PK_TEXT_LONG], size_t *ret_len);

/* STRING, a quoted literal of Python 2: its bytes, never more than n. */
bool pk_text_string(const char *s, size_t n, char *ret, size_t *ret_len);

/* UNICODE, Python's raw-unicode-escape: as UTF-8, surrogates included, never more than 2 n
 * bytes. */
bool pk_text_unicode(const char *s, size_t n, char *ret, size_t *ret_len);

#endif
