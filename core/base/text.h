/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text - UTF-8 as Python writes it, natural order, sizes for people.
 *
 * Python strings may contain lone surrogates; pickles carry them as ED A0-BF xx ("surrogatepass").
 * They are accepted here as characters; nothing else outside UTF-8 is.
 * Threads: pure.
 */
#ifndef BASE_TEXT_H
#define BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt_err;

/* Next code point of [*s, end), *s < end; U+FFFD (and one byte forward) where it is not UTF-8. */
uint32_t text_next(const char **s, const char *end);
bool text_is_utf8(const char *s, size_t n);

/*
 * Natural order: runs of digits compare as numbers ("layers.2" before "layers.10"), all else by
 * bytes. A total order: strings that differ never compare equal ("0" before "00").
 */
int text_natural_cmp(const char *a, size_t an, const char *b, size_t bn);

/* Shell glob over a byte string of any content: * ? [a-z] [!a-z] {a,b*} \x. '*' matches '/' too; a
 * brace without a comma, or without an end, stands for itself. */
bool text_glob(const char *pattern, const char *s, size_t n);
/*
 * The same for patterns that come from outside, within a bound on work: *steps are those still
 * allowed to all patterns and names together, mostly from TEXT_GLOB_STEPS on. A step is a byte of a
 * pattern that is held against a byte of a name, in all alternatives that are tried; more than 64
 * braces in one pattern take all of them. 0 afterwards: they have run out, and this and all
 * further answers, which are false, mean nothing; so it is enough to look at the end.
 */
#define TEXT_GLOB_STEPS ((uint64_t)1 << 31) /* a few seconds */
bool text_glob_within(const char *pattern, const char *s, size_t n, uint64_t *steps);
/* Does one of the patterns match? NULL-terminated; true where there are none, or NULL. */
bool text_glob_any(const char *const *patterns, const char *s, size_t n, uint64_t *steps);

/* Has the work run out? EFBIG, with what the patterns are called: "ls". */
int text_glob_check(uint64_t steps, const char *what, struct ckpt_err *e);

/* "1.5 GiB" into out[16]. */
const char *text_size(uint64_t bytes, char out[static 16]);
/*
 * How many bytes at s are not for a terminal: a control character (C0, DEL, C1), one that changes
 * the direction of the text behind it (U+202A to 202E, 2066 to 2069), or a byte that is no UTF-8
 * and may be a control character of another encoding. 0: what is there may be shown. s < end.
 */
size_t text_unfit(const char *s, const char *end);
/* FQN for people: bytes that are not for a terminal as %XX, cut with "..." to fit cap >= 8. Returns
 * out. */
const char *text_show(const char *s, size_t n, char *out, size_t cap);
/* The same for a message; lives as long as the block it is written in. */
#define FQN_TEXT(s, n) text_show(s, n, (char[128]){ 0 }, 128)

/*
 * n numbers as Python shows them: "torch.Size([2, 3])" with SIZE_TEXT, "(2, 3)" and "(2,)" with
 * TUPLE_TEXT; cut with "..." where they are too many for a message.
 */
#define SIZE_TEXT(v, n)	 text_dims(v, n, 'S', (char[128]){ 0 }, 128)
#define TUPLE_TEXT(v, n) text_dims(v, n, 'T', (char[128]){ 0 }, 128)
const char *text_dims(const uint64_t *v, size_t n, char style, char *out, size_t cap);
/* "512", "64K", "256MiB", "5GB" (K, M, G, T and KiB... are powers of 1024, KB, MB... of 1000). */
bool text_parse_size(const char *s, uint64_t *ret);

#endif
