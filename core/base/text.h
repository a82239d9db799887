/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text - UTF-8 as Python writes it, natural order, globs, sizes and names for people, addresses.
 *
 * Python strings may contain lone surrogates; pickles carry them as ED A0-BF xx ("surrogatepass").
 * These are accepted as characters; other invalid UTF-8 is not.
 *
 * Threads: pure.
 */
#ifndef BASE_TEXT_H
#define BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt_err;

/* Next code point of [*s, end), *s < end; for invalid UTF-8 U+FFFD, and one byte is consumed. */
uint32_t text_next(const char **s, const char *end);
bool text_is_utf8(const char *s, size_t n);
/* Writes what text_next reads as this code point, a surrogate too, at most 4 bytes; returns their
 * end. */
char *text_put(char *to, uint32_t c);

/*
 * Natural order: runs of digits compare as numbers ("layers.2" before "layers.10"), everything else
 * bytewise. A total order: different strings never compare equal ("0" before "00").
 */
int text_natural_cmp(const char *a, size_t an, const char *b, size_t bn);

/* Shell glob over a byte string of any content: * ? [a-z] [!a-z] {a,b*} \x. '*' matches '/' too; a
 * brace without a comma or without an end is a literal. */
bool text_glob(const char *pattern, const char *s, size_t n);
/*
 * The same for untrusted patterns, with bounded work: *steps is what remains for all patterns and
 * names together, usually starting from TEXT_GLOB_STEPS. A step compares a byte of a pattern with a
 * byte of a name, in each alternative that is tried; more than 64 braces in one pattern use up all
 * steps. Once *steps is 0, this and all further results (false) are meaningless; so checking at the
 * end suffices.
 */
#define TEXT_GLOB_STEPS ((uint64_t)1 << 31) /* a few seconds */
bool text_glob_within(const char *pattern, const char *s, size_t n, uint64_t *steps);
/* Does any of the patterns match? NULL-terminated; true if there are none, or for NULL. */
bool text_glob_any(const char *const *patterns, const char *s, size_t n, uint64_t *steps);

/* EFBIG if the steps have run out; `what` names the patterns in the message: "ls". */
int text_glob_check(uint64_t steps, const char *what, struct ckpt_err *e);

/* "1.5 GiB" into out[16]. */
const char *text_size(uint64_t bytes, char out[static 16]);
/* The ending of a noun after a number: "1 tensor", "2 tensors". */
static inline const char *text_s(uint64_t n)
{
	return n == 1 ? "" : "s";
}
/* "145,216" and, from a million on, three digits: "7.24 B". */
const char *text_count(uint64_t n, char out[static 16]);
/* "7,241,732,096" */
const char *text_digits(uint64_t n, char out[static 32]);
/* As printf would print it, freed by the caller; NULL: out of memory. */
char *text_format(const char *fmt, ...) __attribute__((format(printf, 1, 2), malloc));
/*
 * Number of bytes at s that must not be sent to a terminal: a control character (C0, DEL, C1), one
 * that changes the direction of the text after it (U+202A to 202E, 2066 to 2069), or a byte that is
 * not UTF-8 and may be a control character in another encoding. 0: the character may be shown. s <
 * end.
 */
size_t text_unfit(const char *s, const char *end);
/* Puts '?' in place of each of these bytes, for a sentence: a newline or an escape sequence in a
 * hostile name must not reach a terminal or a log. */
void text_make_fit(char *s);
/* FQN for display: bytes unfit for a terminal become %XX; shortened with "..." to fit cap >= 8.
 * Returns out. */
const char *text_show(const char *s, size_t n, char *out, size_t cap);
/* The same for use in a message; the result is valid in the enclosing block. */
#define FQN_TEXT(s, n) text_show(s, n, (char[128]){ 0 }, 128)

/* If *s begins with the word, step over it. */
bool text_take(const char **s, const char *word);
/* Step over a decimal number of 1 to most_digits digits, at most 9; *s is undefined after a
 * failure. */
bool text_take_number(const char **s, int most_digits, uint32_t *ret);

/*
 * n numbers as Python prints them: "torch.Size([2, 3])" with SIZE_TEXT, "(2, 3)" and "(2,)" with
 * TUPLE_TEXT; shortened with "..." if too many for a message.
 */
#define SIZE_TEXT(v, n)	 text_dims(v, n, 'S', (char[128]){ 0 }, 128)
#define TUPLE_TEXT(v, n) text_dims(v, n, 'T', (char[128]){ 0 }, 128)
const char *text_dims(const uint64_t *v, size_t n, char style, char *out, size_t cap);
/* "512", "64K", "256MiB", "5GB" (K, M, G, T and KiB... are powers of 1024, KB, MB... of 1000). */
bool text_parse_size(const char *s, uint64_t *ret);

/* Does it begin as an address does: s3://, gs://, https://, http://, hf://, file://? */
bool text_is_address(const char *s);
/* Files of this machine as if they were another's, so that they are cached: FILE_SCHEME and a
 * path. */
#define FILE_SCHEME "file://"
/* The path; NULL: it is not such an address. */
const char *text_file_path(const char *s);
/* Bytes of a path, or of an address of file://, before its last name: 2 in "a/b/", 0 in "a". */
size_t text_parent(const char *path);
/* An address as messages show it, without a user and password and, unless it is of s3, gs, hf or
 * file, without its query: "https://h/x" for "https://u:p@h/x?sig=1". It is cut off to fit; returns
 * buf. */
const char *text_show_address(const char *s, char *buf, size_t cap);
/* Does it have a user or password? They end at the last '@' before the host. */
bool text_has_user(const char *s);

#endif
