/* SPDX-License-Identifier: Apache-2.0 */
#include "format/shard.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "base/crc32c.h"
#include "base/text.h"

#include <errno.h>
#include <stdlib.h>

enum { ENTRY = 16, CRC = 4 };

static bool take_number(const char **s, uint64_t *ret)
{
	char *end;

	if (**s < '0' || **s > '9')
		return false;
	errno = 0;
	*ret = strtoull(*s, &end, 10);
	*s = end;
	return !errno;
}

/* As many numbers as the first list has. */
static bool take_list(const char **s, const char *what, uint64_t *v, size_t *n, bool first)
{
	size_t k = 0;

	if (!text_take(s, what))
		return false;
	if (**s >= '0' && **s <= '9') /* none of a tensor without dimensions */
		do
			if (k == CKPT_MAX_DIMS || !take_number(s, &v[k++]))
				return false;
		while (text_take(s, ","));
	if (first)
		*n = k;
	return k == *n;
}

/* Is there an entry for every chunk? */
static bool is_possible(struct shard_layout *l)
{
	uint64_t last = 0, part;

	l->chunks = 1;
	for (size_t d = 0; d < l->n_dims; d++) {
		if (!l->chunk[d] || !l->count[d] || ckd_mul(&l->chunks, l->chunks, l->count[d]) ||
		    l->chunks > SHARD_MAX_CHUNKS || ckd_mul(&part, l->count[d] - 1, l->step[d]) ||
		    ckd_add(&last, last, part))
			return false;
	}
	return last < l->chunks;
}

bool shard_take(const char **name, struct shard_layout *ret)
{
	size_t n = 0;

	*ret = (struct shard_layout){ 0 };
	if (!text_take(name, "shard") || !take_list(name, ":chunk=", ret->chunk, &n, true) ||
	    !take_list(name, ":count=", ret->count, &n, false) ||
	    !take_list(name, ":step=", ret->step, &n, false))
		return false;
	ret->n_dims = (uint8_t)n;
	ret->at_start = text_take(name, ":index=start");
	if (!ret->at_start && !text_take(name, ":index=end"))
		return false;
	ret->swap = text_take(name, ":be");
	ret->crc = text_take(name, ":crc32c");
	ret->has_fill = text_take(name, ":fill=");
	if (ret->has_fill && !take_number(name, &ret->fill))
		return false;
	return text_take(name, "/") && is_possible(ret);
}

size_t shard_index_size(const struct shard_layout *l)
{
	return (size_t)l->chunks * ENTRY + (l->crc ? CRC : 0);
}

uint64_t shard_number(const struct shard_layout *l, const uint64_t *off)
{
	uint64_t number = 0;

	for (size_t d = 0; d < l->n_dims; d++)
		number += off[d] / l->chunk[d] % l->count[d] * l->step[d];
	return number;
}

bool shard_index_ok(const struct shard_layout *l, const uint8_t *index)
{
	size_t n = (size_t)l->chunks * ENTRY;

	return !l->crc || crc32c(0, index, n) == load_le32(index + n);
}

struct shard_chunk shard_entry(const struct shard_layout *l, const uint8_t *index, uint64_t number)
{
	const uint8_t *p = index + number * ENTRY;
	struct shard_chunk c = { .offset = l->swap ? load_be64(p) : load_le64(p),
				 .length = l->swap ? load_be64(p + 8) : load_le64(p + 8) };

	c.absent = c.offset == UINT64_MAX && c.length == UINT64_MAX;
	return c;
}
