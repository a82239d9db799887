/* SPDX-License-Identifier: Apache-2.0 */
/*
 * parts - a reply whose long runs are not copied but stay in the page cache, or in decoded blocks.
 *
 *	parts_start(&p, files, buf, PARTS_MIN_RUN);
 *	...                            // the reply is put into buf, but for what parts_add takes
 *	rc = parts_finish(&p, len, &e);
 *	writev(fd, p.iov, p.n_iov);
 *	parts_release(&p);
 *
 * Threads: one at a time.
 */
#ifndef SOURCE_PARTS_H
#define SOURCE_PARTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct blockcache;
struct ckpt_err;
struct files;

enum {
	PARTS_MAX = 480,	   /* runs in a reply; with the gaps between them, under IOV_MAX */
	PARTS_MIN_RUN = 16 * 1024, /* bytes; a shorter run is copied faster than its pages are
				       looked up by the kernel */
};

struct part {
	uint64_t at, len; /* in the reply */
	const uint8_t *data;
};

struct parts {
	uint8_t *buf;
	struct files *files;
	uint64_t min_run; /* bytes; shorter runs are copied */
	struct part v[PARTS_MAX];
	size_t n;
	uint32_t pins[PARTS_MAX]; /* files that are lent */
	size_t n_pins;
	struct blockcache *cache; /* that all `blocks` are from */
	void *blocks[PARTS_MAX];  /* pins of blocks that are lent */
	size_t n_blocks;
	struct iovec iov[2 * PARTS_MAX + 1];
	int n_iov;
};

void parts_start(struct parts *p, struct files *files, uint8_t *buf, uint64_t min_run);
/* Is there room for n more runs from one file? */
bool parts_room(const struct parts *p, uint64_t n);
/* Adds the run whose position in the reply is `at` in the buffer. Runs must not overlap. */
void parts_add(struct parts *p, const uint8_t *at, const uint8_t *data, uint64_t len);
/* Everything added since the last pin is in this file, obtained by files_lend. */
void parts_pin(struct parts *p, uint32_t file);
/* The run added last is in this block, whose pin is put back later. All blocks must be from one
 * cache. */
void parts_pin_block(struct parts *p, struct blockcache *cache, void *pin);

/* Makes iov for the len bytes, and checks that no file has changed. */
int parts_finish(struct parts *p, uint64_t len, struct ckpt_err *e);
/* Releases all files and blocks. */
void parts_release(struct parts *p);

#endif
