/* SPDX-License-Identifier: Apache-2.0 */
/*
 * parts - a reply of which long runs stay where they are: in the page cache, or in decoded blocks.
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
	PARTS_MAX = 480,	   /* runs in a reply; with what is between them, under IOV_MAX */
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
	uint64_t min_run; /* bytes; what is shorter is to be copied */
	struct part v[PARTS_MAX];
	size_t n;
	uint32_t pins[PARTS_MAX]; /* files that are lent */
	size_t n_pins;
	struct blockcache *cache; /* of blocks */
	void *blocks[PARTS_MAX];  /* that are lent: pins */
	size_t n_blocks;
	struct iovec iov[2 * PARTS_MAX + 1];
	int n_iov;
};

void parts_start(struct parts *p, struct files *files, uint8_t *buf, uint64_t min_run);
/* Is there room for n runs out of one file? */
bool parts_room(const struct parts *p, uint64_t n);
/* The run that the reply has at `at` of the buffer. Runs do not overlap. */
void parts_add(struct parts *p, const uint8_t *at, const uint8_t *data, uint64_t len);
/* All that was added since the last pin lies in this file, which files_lend gave. */
void parts_pin(struct parts *p, uint32_t file);
/* What was added last lies in this block; the pin is put back in time. All are of one cache. */
void parts_pin_block(struct parts *p, struct blockcache *cache, void *pin);

/* Make iov of the len bytes, and see that all files are what they were. */
int parts_finish(struct parts *p, uint64_t len, struct ckpt_err *e);
/* Give all files and blocks back. */
void parts_release(struct parts *p);

#endif
