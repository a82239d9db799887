/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A chunk of Blosc 1 has a header of 16 bytes, the position of each block as 4 bytes, and the
 * blocks, which writers with several threads store in any order:
 *
 *	version, version of the compressor, flags, bytes of a number;
 *	decoded bytes, decoded bytes of a block (the last one may have fewer), stored bytes
 *
 * The library only decodes chunks that are completely in memory, up to 2 GiB. But blocks are
 * independent, and a chunk of one block is a header, a position and the block: so the library is
 * given each block as such a chunk, and memory is bounded by the size of a block.
 */
#include "base/bytes.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/search.h"
#include "codec/codec_stream.h"
#include "codec/stage.h"

#include <blosc.h>
#include <stdlib.h>

enum {
	HEAD = 16,
	FLAGS = 2,
	POSITION = 4,
	ONE = HEAD + POSITION, /* before the block in a chunk that has one */
	STORED = 2,	       /* flag: the decoded bytes follow the header unchanged */
	/* A block consists of up to 255 streams, each preceded by its length, which do not grow. */
	MAX_GROWTH = 255 * 4,
};

struct blosc_stage {
	struct stage stage;
	size_t max_block; /* bytes, also of the table of positions */
	bool begun;
	uint8_t head[HEAD];
	uint32_t decoded, block,
		stored;	    /* bytes: of the chunk, of a block, of the chunk as stored */
	uint32_t n, next;   /* blocks */
	uint32_t *at;	    /* position of each block */
	uint32_t *sorted;   /* the same in order */
	uint8_t *whole;	    /* all stored bytes, if they come from another stage */
	uint8_t *one, *out; /* a chunk of one block; what it decodes to */
	size_t out_at, out_n;
	uint64_t copied; /* decoded bytes of a chunk that is stored unchanged */
};

static struct blosc_stage *blosc_of(struct stage *s)
{
	return (struct blosc_stage *)(void *)s;
}

static int damaged(struct ckpt_err *e, const char *what)
{
	return err_set(e, ERR_CORRUPT, "blosc: %s", what);
}

/* ---- stored bytes ---- */

/* The next n bytes of the input. */
static int take(struct blosc_stage *s, uint8_t *to, size_t n, struct ckpt_err *e)
{
	while (n) {
		int64_t got = stage_input(&s->stage, to, n, e);

		if (got < 0)
			return (int)got;
		if (!got)
			return damaged(e, "the chunk ends too early");
		to += got;
		n -= (size_t)got;
	}
	return 0;
}

/* Bytes of the chunk from any position. */
static int fetch(struct blosc_stage *s, uint32_t at, uint8_t *to, size_t n, struct ckpt_err *e)
{
	if (s->whole) {
		memcpy(to, s->whole + at, n);
		return 0;
	}
	s->stage.src_pos = at;
	return take(s, to, n, e);
}

/* All of another stage's bytes have been taken: lets it see its end. */
static int check_end(struct blosc_stage *s, struct ckpt_err *e)
{
	uint8_t more;
	int64_t n = s->stage.before ? stage_input(&s->stage, &more, 1, e) : 0;

	if (n < 0)
		return (int)n;
	return n ? damaged(e, "the chunk is followed by other bytes") : 0;
}

/* ---- the header ---- */

static int too_large(const struct blosc_stage *s, const char *what, uint32_t n, struct ckpt_err *e)
{
	bool largest = s->max_block >> CODEC_WINDOW_LOG_MAX;

	return err_set(e, largest ? ERR_UNSUPPORTED : ENOBUFS,
		       "blosc: %s has %u bytes, at most %u can be read", what, n,
		       1u << CODEC_WINDOW_LOG_MAX);
}

static int by_u32(const void *ap, const void *bp)
{
	uint32_t a = *(const uint32_t *)ap, b = *(const uint32_t *)bp;

	return (a > b) - (a < b);
}

/* The positions; from here on the input is read at any position. */
static int read_positions(struct blosc_stage *s, struct ckpt_err *e)
{
	size_t bytes = (size_t)s->n * POSITION;
	int rc;

	s->at = malloc(bytes + 1);
	s->sorted = malloc(bytes + 1);
	if (!s->at || !s->sorted)
		return err_nomem(e);
	rc = fetch(s, HEAD, (uint8_t *)s->at, bytes, e);
	for (uint32_t i = 0; !rc && i < s->n; i++) {
		s->at[i] = load_le32(&s->at[i]);
		if (s->at[i] < HEAD + bytes || s->at[i] > s->stored - POSITION)
			return damaged(e, "a block is outside the chunk");
		s->sorted[i] = s->at[i];
	}
	if (!rc)
		qsort(s->sorted, s->n, sizeof(*s->sorted), by_u32);
	return rc;
}

static int read_whole(struct blosc_stage *s, struct ckpt_err *e)
{
	if (s->stored > s->max_block)
		return too_large(s, "a chunk that was encoded again", s->stored, e);
	s->whole = malloc(s->stored);
	if (!s->whole)
		return err_nomem(e);
	memcpy(s->whole, s->head, HEAD);
	if (take(s, s->whole + HEAD, s->stored - HEAD, e))
		return -e->code;
	return check_end(s, e);
}

static int begin(struct blosc_stage *s, struct ckpt_err *e)
{
	size_t decoded;
	int rc = take(s, s->head, HEAD, e);

	if (rc)
		return rc;
	s->decoded = load_le32(s->head + 4);
	s->block = load_le32(s->head + 8);
	s->stored = load_le32(s->head + 12);
	if (s->head[0] != BLOSC_VERSION_FORMAT)
		return err_set(e, ERR_UNSUPPORTED, "blosc: version %u of the format is not known",
			       s->head[0]);
	if (s->stored < HEAD || s->stored > INT32_MAX || s->decoded > INT32_MAX)
		return damaged(e, "a damaged header");
	if (!s->stage.before && s->stage.src->size != BLOB_SIZE_UNKNOWN &&
	    s->stage.src->size != s->stored)
		return damaged(e, s->stage.src->size < s->stored
					  ? "the chunk ends too early"
					  : "the chunk is followed by other bytes");
	if (!s->decoded)
		return 0;
	if (s->head[FLAGS] & STORED)
		return s->stored == s->decoded + HEAD ? 0 : damaged(e, "a damaged header");
	/* The library's own check of the other fields. */
	if (blosc_cbuffer_validate(s->head, s->stored, &decoded) || !s->block)
		return damaged(e, "a damaged header");
	s->n = s->decoded / s->block + !!(s->decoded % s->block);
	if (s->n > (s->stored - HEAD) / POSITION / 2)
		return damaged(e, "more blocks than it has room for");
	if (s->block > s->max_block)
		return too_large(s, "a block", s->block, e);
	if (s->n > s->max_block / POSITION)
		return too_large(s, "the table of its blocks", s->n * POSITION, e);
	if (s->stage.before)
		rc = read_whole(s, e);
	if (!rc)
		rc = read_positions(s, e);
	if (rc)
		return rc;
	s->one = malloc(ONE + (size_t)s->block + MAX_GROWTH);
	s->out = malloc(s->block);
	return s->one && s->out ? 0 : err_nomem(e);
}

/* ---- decoding ---- */

/* The stored bytes of block i: up to the next one. */
static size_t block_bytes(const struct blosc_stage *s, uint32_t i)
{
	uint32_t at = s->at[i];
	size_t k = PARTITION_POINT(m, s->n, s->sorted[m] <= at);
	uint32_t end = k < s->n ? s->sorted[k] : s->stored;

	return (size_t)min_u64(end - at, (uint64_t)s->block + MAX_GROWTH);
}

static int decode_next(struct blosc_stage *s, struct ckpt_err *e)
{
	size_t stored = block_bytes(s, s->next), decoded;
	uint32_t left = s->decoded - s->next * s->block;
	int n, rc;

	n = (int)min_u64(left, s->block);
	memcpy(s->one, s->head, HEAD);
	(void)put_le(s->one + 4, (uint64_t)n, 4);
	(void)put_le(s->one + 12, ONE + stored, 4);
	(void)put_le(s->one + HEAD, ONE, POSITION);
	rc = fetch(s, s->at[s->next], s->one + ONE, stored, e);
	if (rc)
		return rc;
	if (blosc_cbuffer_validate(s->one, ONE + stored, &decoded) ||
	    blosc_decompress_ctx(s->one, s->out, s->block, 1) != n)
		return err_set(e, ERR_CORRUPT, "blosc: block %u of %u cannot be decoded", s->next,
			       s->n);
	s->next++;
	s->out_at = 0;
	s->out_n = (size_t)n;
	return 0;
}

static int64_t copy_stored(struct blosc_stage *s, uint8_t *buf, size_t len, struct ckpt_err *e)
{
	size_t n = (size_t)min_u64(len, s->decoded - s->copied);
	int rc = take(s, buf, n, e);

	s->copied += n;
	if (!rc && s->copied == s->decoded)
		rc = check_end(s, e);
	return rc ? rc : (int64_t)n;
}

static int64_t blosc_read(struct stage *stage, void *buf, size_t len, struct ckpt_err *e)
{
	struct blosc_stage *s = blosc_of(stage);
	size_t done = 0;

	if (!s->begun && begin(s, e))
		return -e->code;
	s->begun = true;
	if (!s->n)
		return copy_stored(s, buf, len, e);
	while (done < len) {
		size_t n = min_u64(len - done, s->out_n - s->out_at);

		if (!n && s->next == s->n)
			break;
		if (!n && decode_next(s, e))
			return -e->code;
		memcpy((uint8_t *)buf + done, s->out + s->out_at, n);
		s->out_at += n;
		done += n;
	}
	return (int64_t)done;
}

static size_t blosc_memory(const struct stage *stage)
{
	const struct blosc_stage *s = (const struct blosc_stage *)(const void *)stage;

	/* The library takes as much again for a block as it is large. */
	return sizeof(*s) + (s->at ? 2 * POSITION * (size_t)s->n : 0) + (s->whole ? s->stored : 0) +
	       (s->out ? 4 * (size_t)s->block : 0);
}

static void blosc_free(struct stage *stage)
{
	struct blosc_stage *s = blosc_of(stage);

	free(s->at);
	free(s->sorted);
	free(s->whole);
	free(s->one);
	free(s->out);
	free(s);
}

struct stage *blosc_stage_new(int window_log)
{
	static const struct stage_ops ops = { blosc_read, blosc_memory, blosc_free };
	struct blosc_stage *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->stage.ops = &ops;
	s->stage.takes_all = true;
	s->max_block = (size_t)1 << window_log;
	return &s->stage;
}
