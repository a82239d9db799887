/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pickle_lex - the byte stream of a pickle, and the first of the two passes over it.
 *
 * Private to core/parse. Threads: one at a time.
 */
#ifndef PARSE_PICKLE_LEX_H
#define PARSE_PICKLE_LEX_H

#include "parse/pickle.h"
#include "parse/pickle_memo.h"
#include "parse/pickle_ops.h"

#define PK_MAX_STRING  (1u << 20)  /* bytes of one string; longer bytes objects are skipped */
#define PK_LONG_STRING (64u << 20) /* the same with pickle_opts.keep_long */
#define PK_MAX_LINE    1024	   /* bytes of a line with a name or number */
#define PK_MAX_FIXED   9	   /* bytes of an opcode with an operand of fixed size */

/* A window that slides over the input. */
struct pk_reader {
	const struct pickle_input *in;
	const uint8_t *p, *end;
	uint64_t base; /* input offset of *end */
	uint8_t *window;
	size_t cap;
	bool eof;
	const char *until; /* if not NULL, the first pass ends after this string */
};

int pk_reader_init(struct pk_reader *r, const struct pickle_input *in, struct ckpt_err *e);
void pk_reader_release(struct pk_reader *r);
void pk_reader_rewind(struct pk_reader *r);
/* Makes n <= PK_LONG_STRING bytes readable at r->p, or fails: ENODATA at the end of the input. */
int pk_reader_fill(struct pk_reader *r, size_t n, struct ckpt_err *e);
int pk_reader_skip(struct pk_reader *r, uint64_t n, struct ckpt_err *e);
/* The line at r->p, without its newline, which is skipped too; of at most PK_MAX_LINE bytes. */
int pk_reader_line(struct pk_reader *r, const char **ret, size_t *ret_len, struct ckpt_err *e);
/* The same, up to max; a longer line is skipped: 1. */
int pk_reader_long_line(struct pk_reader *r, size_t max, const char **ret, size_t *ret_len,
			struct ckpt_err *e);
/* The memo key of a GET or PUT, a line. */
int pk_reader_key(struct pk_reader *r, uint32_t *ret, struct ckpt_err *e);
static inline uint64_t pk_reader_pos(const struct pk_reader *r)
{
	return r->base - (uint64_t)(r->end - r->p);
}

/* Makes the opcode at r->p readable, with its operand if that has a fixed size. */
int pk_reader_op(struct pk_reader *r, struct ckpt_err *e);
/* Length prefix of a string-like opcode; r->p is after the opcode. */
int pk_reader_length(struct pk_reader *r, uint8_t op, uint64_t *ret, struct ckpt_err *e);

/* Results of the first pass. */
struct pk_prescan {
	struct pk_memo_plan memo;
	uint64_t end; /* bytes, STOP included, or up to the end of `until` */
	bool cut;     /* the latter */
};

/* max_bytes: for the memo's keys, if they must be stored. */
int pk_prescan(struct pk_reader *r, size_t max_bytes, struct pk_prescan *ret, struct ckpt_err *e);

#endif
