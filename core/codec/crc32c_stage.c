/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes with their CRC-32C behind them, four bytes, lowest first. */
#include "base/bytes.h"
#include "base/checked.h"
#include "base/crc32c.h"
#include "base/err.h"
#include "codec/stage.h"

#include <stdlib.h>
#include <string.h>

enum { IN_SIZE = 64 * 1024, TAIL = 4 };

struct crc32c_stage {
	struct stage stage;
	uint32_t crc; /* of the first `summed` bytes of data, and all before them */
	size_t at, summed, n;
	bool in_end;
	uint8_t data[IN_SIZE];
};

/* Leaves the last TAIL bytes in the buffer until it is known whether they are the end. */
static int refill(struct crc32c_stage *s, struct ckpt_err *e)
{
	size_t left = s->n - s->at;

	memmove(s->data, s->data + s->at, left);
	s->at = s->summed = 0;
	s->n = left;
	while (s->n < IN_SIZE && !s->in_end) {
		int64_t n = stage_input(&s->stage, s->data + s->n, IN_SIZE - s->n, e);

		if (n < 0)
			return (int)n;
		s->in_end = !n;
		s->n += (size_t)n;
	}
	if (s->n < TAIL)
		return err_set(e, ERR_CORRUPT, "crc32c: the bytes end before their checksum");
	s->crc = crc32c(s->crc, s->data, s->n - TAIL);
	s->summed = s->n - TAIL;
	if (s->in_end && load_le32(s->data + s->summed) != s->crc)
		return err_set(e, ERR_CORRUPT,
			       "crc32c: the checksum of the bytes is %08x, but %08x is recorded",
			       s->crc, load_le32(s->data + s->summed));
	return 0;
}

static int64_t crc32c_read(struct stage *stage, void *buf, size_t len, struct ckpt_err *e)
{
	struct crc32c_stage *s = (struct crc32c_stage *)(void *)stage;
	size_t done = 0;

	while (done < len) {
		size_t n = min_u64(len - done, s->summed - s->at);

		if (!n && s->in_end)
			break;
		if (!n && refill(s, e))
			return -e->code;
		memcpy((uint8_t *)buf + done, s->data + s->at, n);
		s->at += n;
		done += n;
	}
	return (int64_t)done;
}

static size_t crc32c_memory(const struct stage *stage)
{
	(void)stage;
	return sizeof(struct crc32c_stage);
}

static void crc32c_free(struct stage *stage)
{
	free(stage);
}

struct stage *crc32c_stage_new(void)
{
	static const struct stage_ops ops = { crc32c_read, crc32c_memory, crc32c_free };
	struct crc32c_stage *s = malloc(sizeof(*s));

	if (!s)
		return NULL;
	s->stage = (struct stage){ .ops = &ops };
	s->crc = 0;
	s->at = s->summed = s->n = 0;
	s->in_end = false;
	return &s->stage;
}
