/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes in memory as a file. They never change. */
#include "base/checked.h"
#include "base/err.h"
#include "source/source.h"

#include <stdlib.h>
#include <string.h>

struct memory {
	struct source source;
	const uint8_t *bytes;
};

static const struct memory *memory_of(const struct source *s)
{
	return (const struct memory *)(const void *)s;
}

static int64_t memory_read(struct source *s, void *buf, size_t len, uint64_t off,
			   struct ckpt_err *e)
{
	uint64_t size = s->seen.size;
	size_t n = (size_t)min_u64(len, size - min_u64(off, size));

	(void)e;
	if (n)
		memcpy(buf, memory_of(s)->bytes + off, n);
	return (int64_t)n;
}

static int memory_look(struct source *s, struct place_seen *ret)
{
	*ret = s->seen;
	return 0;
}

static void memory_free(struct source *s)
{
	free(s);
}

static const uint8_t *memory_map(struct source *s, uint64_t off, uint64_t len)
{
	uint64_t size = s->seen.size;

	return off <= size && len <= size - off ? memory_of(s)->bytes + off : NULL;
}

static void memory_give_back(struct source *s)
{
	(void)s;
}

int memory_source(const void *bytes, size_t len, struct source **ret, struct ckpt_err *e)
{
	static const struct source_ops ops = { .read = memory_read,
					       .look = memory_look,
					       .free = memory_free,
					       .map = memory_map,
					       .lend = memory_map,
					       .give_back = memory_give_back };
	struct memory *m = calloc(1, sizeof(*m));

	if (!m)
		return err_nomem(e);
	m->source = (struct source){ .ops = &ops, .seen = { .kind = PLACE_FILE, .size = len } };
	m->bytes = bytes;
	*ret = &m->source;
	return 0;
}
