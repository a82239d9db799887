/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peek - reading small tensors of a checkpoint while it is being opened, before it has a fetch.
 *
 * Private to core/ckpt.
 *
 * Threads: the one that opens.
 */
#ifndef CKPT_PEEK_H
#define CKPT_PEEK_H

#include <stddef.h>
#include <stdint.h>

struct ckpt_err;
struct engine;
struct fetch;

/* Reads the first len bytes of tensor number i of the catalog, as it is before it changes; the
 * tensor has as many. 1: they are missing, so what needs them is refused or shown as faulty
 * later. */
struct peek {
	int (*read)(void *arg, uint32_t i, void *buf, size_t len, struct ckpt_err *e);
	void *arg;
};

/* The arg of peek_engine. */
struct peeking {
	struct engine *eng;
	struct fetch *fetch; /* made at the first read, the caller's; NULL before */
};

int peek_engine(void *arg, uint32_t i, void *buf, size_t len, struct ckpt_err *e);

#endif
