/* SPDX-License-Identifier: Apache-2.0 */
/*
 * buf - a growing byte buffer with a ceiling fixed at initialisation.
 *
 *	struct buf b = BUF_INIT(1 << 20);
 *	buf_printf(&b, "%d", 7);
 *	if (b.err) ...                  // ENOMEM or EFBIG; sticky, test once at the end: buf_check
 *	buf_release(&b);
 *
 * Text is always followed by a NUL that .len does not count.
 * Threads: one at a time.
 */
#ifndef BASE_BUF_H
#define BASE_BUF_H

#include <stddef.h>
#include <stdint.h>

struct ckpt_err;

struct buf {
	char *data;
	size_t len, cap, max; /* bytes */
	int err;	      /* 0, ENOMEM or EFBIG; the contents stay as before the failure */
};

#define BUF_INIT(limit) \
	{ \
		.max = (limit) \
	}

void buf_release(struct buf *b);
/* Reports its failure: the given sentence for EFBIG, else "out of memory". 0: it has not failed. */
int buf_check(const struct buf *b, struct ckpt_err *e, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Empties it for another attempt, also after EFBIG; ENOMEM stays. */
void buf_restart(struct buf *b);
/* Makes room for n more bytes: returns a pointer to them (then add to .len), or NULL with .err
 * set. */
void *buf_room(struct buf *b, size_t n);
void buf_add(struct buf *b, const void *p, size_t n);
void buf_str(struct buf *b, const char *s);
void buf_u64(struct buf *b, uint64_t v);    /* decimal */
void buf_varint(struct buf *b, uint64_t v); /* LEB128 */
void buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/*
 * Append s as a JSON string with its quotes: ASCII only, \uXXXX for the rest. Lone surrogates,
 * which Python strings may contain (ED A0-BF xx), become the single \uDXXX that Python reads back.
 */
void buf_json_str(struct buf *b, const char *s, size_t n);
/* "[1,2,3]" */
void buf_json_u64s(struct buf *b, const uint64_t *v, size_t n);

#endif
