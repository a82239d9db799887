/* SPDX-License-Identifier: Apache-2.0 */
#include "source/item_source.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "source/parts.h"

#include <stdlib.h>

#define MAX_OBJECT ((uint64_t)4 << 30) /* decoded bytes of an item of unknown size */
#define MAX_HELD   ((uint64_t)8 << 20) /* per reading thread */

/* ---- store ---- */

static int read_stored(void *arg, uint32_t file, void *buf, size_t len, uint64_t off,
		       struct ckpt_err *e)
{
	const struct item_store *s = arg;

	return files_read(s->files, file, buf, len, off, e);
}

static int compute(void *arg, uint32_t number, void *buf, size_t len, uint64_t off,
		   struct ckpt_err *e)
{
	const struct item_store *s = arg;

	return s->compute(s->arg, number, buf, len, off, e);
}

int item_store_init(struct item_store *s, struct files *files, size_t cache_bytes,
		    struct ckpt_err *e)
{
	const struct block_source src = { read_stored, s, compute };

	*s = (struct item_store){ .files = files, .blocks = blockcache_new(cache_bytes, &src) };
	return s->blocks ? 0 : err_nomem(e);
}

void item_store_release(struct item_store *s)
{
	blockcache_free(s->blocks);
	s->blocks = NULL;
}

/* ---- reading ---- */

static int too_short(const struct item_source *s, struct ckpt_err *e)
{
	return err_set(e, ERR_CORRUPT,
		       "the item at %llu decodes to fewer bytes than its tensor needs",
		       (unsigned long long)s->at.offset);
}

int item_decode(const struct item_source *s, void *buf, size_t len, uint64_t off,
		struct ckpt_err *e)
{
	int64_t n = blockcache_read(s->store->blocks, &s->at, off, buf, len, e);

	if (n < 0)
		return (int)n;
	return (uint64_t)n == len ? 0 : too_short(s, e);
}

int64_t item_read_some(const struct item_source *s, void *buf, size_t len, uint64_t off,
		       struct ckpt_err *e)
{
	size_t n;
	int rc;

	if (!item_is_plain(s))
		return blockcache_read(s->store->blocks, &s->at, off, buf, len, e);
	n = (size_t)min_u64(len, off < s->at.length ? s->at.length - off : 0);
	rc = n ? item_read(s, buf, n, off, e) : 0;
	return rc ? rc : (int64_t)n;
}

static int64_t read_blob(void *arg, uint64_t off, void *buf, size_t len, struct ckpt_err *e)
{
	return item_read_some(arg, buf, len, off, e);
}

struct blob item_blob(struct item_source *s, uint64_t size)
{
	return (struct blob){ read_blob, s, size };
}

int item_size(const struct item_source *s, uint64_t *ret, struct ckpt_err *e)
{
	autofree uint8_t *buf = NULL;
	uint64_t at = 0;
	int64_t n;

	if (item_is_plain(s)) {
		*ret = s->at.length;
		return 0;
	}
	buf = malloc(BLOCK_SIZE);
	if (!buf)
		return err_nomem(e);
	do {
		n = item_read_some(s, buf, BLOCK_SIZE, at, e);
		if (n < 0)
			return (int)n;
		at += (uint64_t)n;
		if (at > MAX_OBJECT)
			return err_set(e, EFBIG, "the object decodes to more than %llu GiB",
				       (unsigned long long)(MAX_OBJECT >> 30));
	} while (n == (int64_t)BLOCK_SIZE);
	*ret = at;
	return 0;
}

bool item_want(const struct item_source *s, uint64_t off, uint64_t len)
{
	uint64_t at, n;

	if (coding_is_computed(s->at.coding))
		return s->store->want(s->store->arg, s->at.file, off, len);
	if (!item_is_plain(s) && off >= DECODED_SIZE)
		return false; /* its decoder reads the file in order */
	item_stored(s, off, len, &at, &n);
	n = min_u64(n, max_u64(len, DECODED_SIZE));
	return n && files_want(s->store->files, s->at.file, at, n);
}

bool item_keep(const struct item_source *s, uint64_t off, uint64_t len)
{
	unsigned shift = block_shift(&s->at);
	bool missing = false;
	int rc = 0;

	for (uint64_t i = off >> shift; !rc && i <= (off + len - 1) >> shift; i++) {
		struct ckpt_err ignored;
		struct block b;
		void *pin;

		if (blockcache_has(s->store->blocks, &s->at, i))
			continue;
		missing = true;
		rc = blockcache_get(s->store->blocks, &s->at, i, 1, &b, &pin, &ignored);
		if (!rc)
			blockcache_put(s->store->blocks, pin);
	}
	return missing;
}

/* ---- bytes in place ---- */

const uint8_t *item_map(const struct item_source *s, uint64_t off, uint64_t len, bool bring)
{
	if (!item_is_plain(s))
		return NULL;
	return (bring ? files_bring : files_map)(s->store->files, s->at.file, s->at.offset + off,
						 len);
}

void item_unmap(const struct item_source *s)
{
	files_unmap(s->store->files, s->at.file);
}

int item_check(const struct item_source *s, struct ckpt_err *e)
{
	return files_check(s->store->files, s->at.file, e);
}

const uint8_t *item_lend(const struct item_source *s, const struct parts *parts, uint64_t n,
			 uint64_t off, uint64_t len)
{
	if (!item_is_plain(s) || !parts_room(parts, n))
		return NULL;
	return files_lend(s->store->files, s->at.file, s->at.offset + off, len);
}

/* ---- blocks ---- */

bool item_may_hold(const struct item_source *s)
{
	return !item_is_plain(s) || s->at.length <= blockcache_max(s->store->blocks) / 2;
}

uint64_t item_max_held(const struct item_source *s)
{
	return item_is_plain(s) ? MAX_HELD
				: min_u64(MAX_HELD, blockcache_max(s->store->blocks) / 2);
}

void item_let_go(struct item_held *h)
{
	for (size_t i = 0; i < h->n; i++)
		blockcache_put(h->cache, h->pins[i]);
	free(h->blocks);
	free(h->pins);
}

int item_hold(const struct item_source *s, uint64_t off, uint64_t len, struct item_held *ret,
	      struct ckpt_err *e)
{
	unsigned shift = block_shift(&s->at);
	size_t n = (size_t)(((off + len - 1) >> shift) - (off >> shift)) + 1;
	int rc;

	*ret = (struct item_held){ .cache = s->store->blocks,
				   .shift = shift,
				   .first = off >> shift,
				   .blocks = calloc(n, sizeof(*ret->blocks)),
				   .pins = calloc(n, sizeof(*ret->pins)) };
	if (!ret->blocks || !ret->pins)
		return err_nomem(e);
	rc = blockcache_get(ret->cache, &s->at, ret->first, n, ret->blocks, ret->pins, e);
	if (rc)
		return rc;
	ret->n = n;
	/* Only the last block may be short, and it must reach the end of the requested range. */
	if (ret->blocks[n - 1].len < ((off + len - 1) & (block_size(&s->at) - 1)) + 1)
		return too_short(s, e);
	return 0;
}

int item_leave(const struct item_source *s, struct parts *parts, uint64_t off, uint8_t *to,
	       uint64_t run, struct ckpt_err *e)
{
	uint64_t size = block_size(&s->at);
	struct item_held h = { 0 };
	int rc;

	if (item_is_plain(s) || !parts || run < parts->min_run ||
	    !parts_room(parts, (run >> block_shift(&s->at)) + 2))
		return 1;
	rc = item_hold(s, off, run, &h, e);
	for (size_t i = 0; !rc && i < h.n; i++) {
		uint64_t skip = off & (size - 1), n = min_u64(run, size - skip);

		parts_add(parts, to, h.blocks[i].data + skip, n);
		parts_pin_block(parts, h.cache, h.pins[i]);
		h.pins[i] = NULL;
		off += n;
		to += n;
		run -= n;
	}
	item_let_go(&h);
	return rc;
}
