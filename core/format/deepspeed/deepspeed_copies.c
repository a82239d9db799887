/* SPDX-License-Identifier: Apache-2.0 */
/* Finds a rank's file that is a copy of another rank's: otherwise its own values would be missing
 * unnoticed. */
#include "base/checked.h"
#include "base/cleanup.h"
#include "format/deepspeed/deepspeed.h"
#include "source/source.h"

#include <stdlib.h>
#include <string.h>

/*
 * Ranks may well have the same zeros or ones, so a piece with fewer VALUES in its sample is not
 * counted. ENOUGH pieces that are counted, or MOST that are read, are enough to tell two files
 * apart.
 */
enum { BYTES = 4096 /* at each end */, VALUES = 8, ENOUGH = 16, MOST = 64 };

static bool is_varied(const unsigned char *p, size_t len, size_t size)
{
	const unsigned char *seen[VALUES];
	size_t n = 0;

	for (size_t at = 0; at + size <= len; at += size) {
		size_t i = 0;

		while (i < n && memcmp(seen[i], p + at, size) != 0)
			i++;
		if (i < n)
			continue;
		seen[n++] = p + at;
		if (n == VALUES)
			return true;
	}
	return false;
}

int ds_sample(struct ds_open *o, const struct ds_piece *p, enum ckpt_dtype dtype,
	      struct ds_sample *s, struct ckpt_err *e)
{
	uint64_t size = dtype_info(dtype)->size, bytes = p->numel * size;
	unsigned char buf[BYTES];
	bool varied = false;

	if (s->n == MOST || s->n_varied == ENOUGH)
		return 0;
	s->n++;
	digest_add(&s->is, &bytes, sizeof(bytes));
	for (int i = 0; i < (bytes > BYTES ? 2 : 1); i++) {
		uint64_t at = i ? bytes - BYTES : 0;
		int64_t n = source_read(o->file.source, buf, (size_t)min_u64(bytes, BYTES),
					p->offset + at, e);

		if (n < 0)
			return (int)n;
		digest_add(&s->is, buf, (size_t)n);
		varied |= is_varied(buf, (size_t)n, size);
	}
	s->n_varied += varied;
	return 0;
}

static int by_digest(const void *ap, const void *bp)
{
	const struct ds_sample *a = *(const struct ds_sample *const *)ap;
	const struct ds_sample *b = *(const struct ds_sample *const *)bp;
	int c = memcmp(&a->is, &b->is, sizeof(a->is));

	return c ? c : a < b ? -1 : a > b;
}

int ds_find_copy(const struct ds_sample *s, size_t n, size_t ret[2], struct ckpt_err *e)
{
	autofree const struct ds_sample **v = calloc(n + 1, sizeof(struct ds_sample *));

	if (!v)
		return err_nomem(e);
	for (size_t i = 0; i < n; i++)
		v[i] = &s[i];
	qsort(v, n, sizeof(struct ds_sample *), by_digest);
	for (size_t i = 1; i < n; i++)
		if (v[i]->n_varied && !memcmp(&v[i]->is, &v[i - 1]->is, sizeof(v[i]->is))) {
			ret[0] = (size_t)(v[i - 1] - s);
			ret[1] = (size_t)(v[i] - s);
			return 1;
		}
	return 0;
}
