/* SPDX-License-Identifier: Apache-2.0 */
#include "source/parts.h"

#include "base/err.h"
#include "source/blockcache.h"
#include "source/files.h"

#include <stdlib.h>

void parts_start(struct parts *p, struct files *files, uint8_t *buf, uint64_t min_run)
{
	p->buf = buf;
	p->files = files;
	p->min_run = min_run;
	p->n = p->n_pins = p->n_blocks = 0;
	p->n_iov = 0;
}

bool parts_room(const struct parts *p, uint64_t n)
{
	return n <= PARTS_MAX - p->n && p->n_pins < PARTS_MAX && n <= PARTS_MAX - p->n_blocks;
}

void parts_add(struct parts *p, const uint8_t *at, const uint8_t *data, uint64_t len)
{
	p->v[p->n++] = (struct part){ (uint64_t)(at - p->buf), len, data };
}

void parts_pin(struct parts *p, uint32_t file)
{
	p->pins[p->n_pins++] = file;
}

void parts_pin_block(struct parts *p, struct blockcache *cache, void *pin)
{
	p->cache = cache;
	p->blocks[p->n_blocks++] = pin;
}

static int by_place(const void *a, const void *b)
{
	const struct part *x = a, *y = b;

	return x->at < y->at ? -1 : x->at > y->at;
}

static void add_iov(struct parts *p, const uint8_t *data, uint64_t len)
{
	if (len)
		p->iov[p->n_iov++] = (struct iovec){ (void *)(uintptr_t)data, (size_t)len };
}

static int check_all(const struct parts *p, struct ckpt_err *e)
{
	for (size_t i = 0; i < p->n_pins; i++) {
		int rc = i && p->pins[i] == p->pins[i - 1] ? 0
							   : files_check(p->files, p->pins[i], e);

		if (rc)
			return rc;
	}
	return 0;
}

int parts_finish(struct parts *p, uint64_t len, struct ckpt_err *e)
{
	uint64_t done = 0;

	if (p->n)
		qsort(p->v, p->n, sizeof(p->v[0]), by_place);
	for (size_t i = 0; i < p->n; i++) {
		/* The reply must never extend beyond the end of the buffer. */
		if (p->v[i].at < done || p->v[i].at > len || p->v[i].len > len - p->v[i].at)
			return err_set(e, EIO, "runs of a reply overlap");
		add_iov(p, p->buf + done, p->v[i].at - done);
		add_iov(p, p->v[i].data, p->v[i].len);
		done = p->v[i].at + p->v[i].len;
	}
	add_iov(p, p->buf + done, len - done);
	return check_all(p, e);
}

void parts_release(struct parts *p)
{
	for (size_t i = 0; i < p->n_pins; i++)
		files_unlend(p->files, p->pins[i]);
	for (size_t i = 0; i < p->n_blocks; i++)
		blockcache_put(p->cache, p->blocks[i]);
	p->n_pins = p->n_blocks = 0;
}
