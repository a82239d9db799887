/* SPDX-License-Identifier: Apache-2.0 */
#include "page/dict.h"

#include "base/vec.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <xxhash.h>

enum { FIRST_SLOTS = 1024 };

const char *dict_string(const struct dict *d, size_t i, size_t *ret_len)
{
	size_t start = i ? d->ends[i - 1] : 0;

	*ret_len = d->ends[i] - start;
	return d->bytes.data ? d->bytes.data + start : "";
}

static size_t slot_of(const struct dict *d, const void *s, size_t len)
{
	return (size_t)XXH3_64bits_withSeed(s, len, d->seed) & (d->n_slots - 1);
}

/* At most half of the slots are used. */
static int make_slots(struct dict *d)
{
	size_t n = d->n_slots ? 2 * d->n_slots : FIRST_SLOTS;
	uint32_t *grown;

	if (d->n < d->n_slots / 2)
		return 0;
	grown = calloc(n, sizeof(*grown));
	if (!grown || d->n >= UINT32_MAX / 4) {
		free(grown);
		return -ENOMEM;
	}
	if (!d->n_slots && getrandom(&d->seed, sizeof(d->seed), GRND_NONBLOCK) < 0)
		d->seed = (uintptr_t)grown;
	free(d->slots);
	d->slots = grown;
	d->n_slots = n;
	for (size_t i = 0; i < d->n; i++) {
		size_t len, at;
		const char *have = dict_string(d, i, &len);

		at = slot_of(d, have, len);
		while (d->slots[at])
			at = (at + 1) & (n - 1);
		d->slots[at] = (uint32_t)i + 1;
	}
	return 0;
}

int64_t dict_number(struct dict *d, const void *s, size_t len)
{
	size_t at;

	if (make_slots(d))
		return -ENOMEM;
	for (at = slot_of(d, s, len); d->slots[at]; at = (at + 1) & (d->n_slots - 1)) {
		size_t n, i = d->slots[at] - 1;
		const char *have = dict_string(d, i, &n);

		if (n == len && !memcmp(have, s, len))
			return (int64_t)i;
	}
	if (!VEC_ROOM(d->ends, d->cap, d->n + 1))
		return -ENOMEM;
	buf_add(&d->bytes, s, len);
	if (d->bytes.err)
		return -ENOMEM;
	d->ends[d->n] = d->bytes.len;
	d->slots[at] = (uint32_t)++d->n;
	return (int64_t)d->n - 1;
}

void dict_release(struct dict *d)
{
	buf_release(&d->bytes);
	free(d->ends);
	free(d->slots);
	*d = (struct dict){ 0 };
}
